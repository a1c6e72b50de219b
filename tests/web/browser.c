#include "web/browser.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <nettle/base64.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 60, AWAIT_LIMIT_S = 20, CLOSE_LIMIT_S = 10, READ_BYTES = 1 << 16, POLL_MS = 20 };

const char *browser_program(void)
{
    static const char *const programs[] = {"/usr/bin/chromium", "/usr/bin/chromium-browser",
                                           "/usr/bin/google-chrome"};

    for (unsigned i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        if (access(programs[i], X_OK) == 0) {
            return programs[i];
        }
    }
    return NULL;
}

/* In the child: no return. */
static void execute(int commands, int answers, const char *profile)
{
    char data[2048];
    const char *const words[] = {browser_program(),
                                 "--headless",
                                 "--no-sandbox",
                                 "--disable-gpu",
                                 "--disable-quic",
                                 "--no-first-run",
                                 "--disable-background-networking",
                                 "--disable-component-update",
                                 "--disable-sync",
                                 "--disable-breakpad",
                                 "--disable-dev-shm-usage",
                                 "--hide-scrollbars",
                                 "--remote-debugging-pipe",
                                 data,
                                 "about:blank",
                                 NULL};
    const int log = open("browser.log", O_WRONLY | O_CREAT | O_APPEND, 0644);

    snprintf(data, sizeof data, "--user-data-dir=%s", profile);
    setpgid(0, 0);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    /* Above 4 first, so that neither takes the other's place. */
    const int reads = fcntl(commands, F_DUPFD, 10);
    const int writes = fcntl(answers, F_DUPFD, 10);
    dup2(reads, 3);
    dup2(writes, 4);
    for (int descriptor = 5; descriptor < 256; descriptor++) {
        close(descriptor);
    }
    execv(words[0], (char *const *)(uintptr_t)words);
    _exit(127);
}

/* Fills one more part of the buffer; 0 at the deadline, or when the browser is gone. */
static int read_more(struct browser *browser, uint64_t deadline_ns)
{
    struct pollfd ready = {.fd = browser->answers, .events = POLLIN};

    while (poll(&ready, 1, POLL_MS) <= 0) {
        if (hd_now_ns() > deadline_ns) {
            return 0;
        }
    }
    if (browser->filled + READ_BYTES > browser->capacity) {
        browser->capacity = 2 * browser->capacity + READ_BYTES;
        browser->buffer = realloc(browser->buffer, browser->capacity);
        assert(browser->buffer != NULL);
    }
    const ssize_t got = read(browser->answers, browser->buffer + browser->filled, READ_BYTES);
    if (got <= 0) {
        return 0;
    }
    browser->filled += (size_t)got;
    return 1;
}

/* The next whole message, owned; NULL: the browser is lost. */
static cJSON *next_message(struct browser *browser, uint64_t deadline_ns)
{
    size_t looked = 0;

    while (!browser->is_lost) {
        char *end = looked < browser->filled
                        ? memchr(browser->buffer + looked, '\0', browser->filled - looked)
                        : NULL;
        if (end != NULL) {
            cJSON *message = cJSON_Parse(browser->buffer);
            browser->filled -= (size_t)(end + 1 - browser->buffer);
            memmove(browser->buffer, end + 1, browser->filled);
            return message;
        }
        looked = browser->filled;
        browser->is_lost = !read_more(browser, deadline_ns);
    }
    return NULL;
}

static const cJSON *at(const cJSON *item, const char *first, const char *second)
{
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(item, first);
    return second == NULL ? inner : cJSON_GetObjectItemCaseSensitive(inner, second);
}

static const char *text_at(const cJSON *item, const char *first, const char *second)
{
    const char *text = cJSON_GetStringValue(at(item, first, second));
    return text != NULL ? text : "";
}

static void count_error(struct browser *browser, const cJSON *parameters)
{
    if (browser->error_count++ == 0) {
        char *text = cJSON_PrintUnformatted(parameters);
        snprintf(browser->first_error, sizeof browser->first_error, "%s", text);
        free(text);
    }
}

static void note_event(struct browser *browser, const cJSON *message)
{
    const char *method = text_at(message, "method", NULL);
    const cJSON *parameters = at(message, "params", NULL);

    if (strcmp(method, "Page.loadEventFired") == 0) {
        browser->is_loaded = 1;
    } else if (strcmp(method, "Runtime.exceptionThrown") == 0 ||
               (strcmp(method, "Runtime.consoleAPICalled") == 0 &&
                strcmp(text_at(parameters, "type", NULL), "error") == 0) ||
               (strcmp(method, "Log.entryAdded") == 0 &&
                strcmp(text_at(parameters, "entry", "level"), "error") == 0)) {
        count_error(browser, parameters);
    }
}

static void send_text(struct browser *browser, const char *text)
{
    size_t left = strlen(text) + 1; /* the zero byte ends the message */

    while (left > 0 && !browser->is_lost) {
        const ssize_t sent = write(browser->commands, text, left);
        if (sent < 0 && errno != EINTR) {
            browser->is_lost = 1;
        } else if (sent > 0) {
            text += sent;
            left -= (size_t)sent;
        }
    }
}

cJSON *browser_call(struct browser *browser, const char *method, const char *parameters)
{
    const uint64_t deadline_ns = hd_now_ns() + LIMIT_S * HD_S_NS;
    const uint32_t call = browser->next_call++;
    cJSON *request = cJSON_CreateObject();
    cJSON *result = NULL;

    cJSON_AddNumberToObject(request, "id", call);
    cJSON_AddStringToObject(request, "method", method);
    cJSON_AddRawToObject(request, "params", parameters != NULL ? parameters : "{}");
    if (browser->session[0] != '\0') {
        cJSON_AddStringToObject(request, "sessionId", browser->session);
    }
    char *text = cJSON_PrintUnformatted(request);
    cJSON_Delete(request);
    send_text(browser, text);
    free(text);
    for (cJSON *message; (message = next_message(browser, deadline_ns)) != NULL;) {
        const cJSON *id = at(message, "id", NULL);
        note_event(browser, message);
        if (cJSON_IsNumber(id) && (uint32_t)id->valuedouble == call) {
            result = cJSON_DetachItemFromObjectCaseSensitive(message, "result");
            cJSON_Delete(message);
            break;
        }
        cJSON_Delete(message);
    }
    return result;
}

/* A call whose result says nothing; 0 when it was refused. */
static int call(struct browser *browser, const char *method, const char *parameters)
{
    cJSON *result = browser_call(browser, method, parameters);
    const int is_done = result != NULL;
    cJSON_Delete(result);
    return is_done;
}

static int attach(struct browser *browser)
{
    char parameters[256];
    cJSON *target = browser_call(browser, "Target.createTarget", "{\"url\": \"about:blank\"}");

    snprintf(parameters, sizeof parameters, "{\"targetId\": \"%s\", \"flatten\": true}",
             text_at(target, "targetId", NULL));
    cJSON *session = browser_call(browser, "Target.attachToTarget", parameters);
    snprintf(browser->session, sizeof browser->session, "%s", text_at(session, "sessionId", NULL));
    cJSON_Delete(target);
    cJSON_Delete(session);
    return browser->session[0] != '\0' && call(browser, "Page.enable", NULL) &&
           call(browser, "Runtime.enable", NULL) && call(browser, "Log.enable", NULL);
}

int browser_open(struct browser *browser, const char *profile)
{
    int commands[2], answers[2];

    *browser = (struct browser){.next_call = 1};
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(commands, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) {
        return 0;
    }
    fflush(NULL);
    browser->pid = fork();
    if (browser->pid == 0) {
        execute(commands[0], answers[1], profile);
    }
    close(commands[0]);
    close(answers[1]);
    browser->commands = commands[1];
    browser->answers = answers[0];
    return browser->pid > 0 && attach(browser);
}

void browser_close(struct browser *browser)
{
    const uint64_t deadline_ns = hd_now_ns() + CLOSE_LIMIT_S * HD_S_NS;
    struct pollfd ready = {.fd = browser->answers, .events = POLLIN};

    browser->session[0] = '\0';
    send_text(browser, "{\"id\": 0, \"method\": \"Browser.close\"}");
    close(browser->commands);
    /* Its end of the pipe closes when it is gone. */
    while (hd_now_ns() < deadline_ns) {
        if (poll(&ready, 1, POLL_MS) > 0 && !read_more(browser, deadline_ns)) {
            break;
        }
    }
    kill(-browser->pid, SIGKILL);
    waitpid(browser->pid, NULL, 0);
    close(browser->answers);
    free(browser->buffer);
}

int browser_load(struct browser *browser, const char *url)
{
    cJSON *object = cJSON_CreateObject();
    const uint64_t deadline_ns = hd_now_ns() + LIMIT_S * HD_S_NS;

    /* Another file with the same name is another page: a change of the fragment alone would not
       load it again. */
    call(browser, "Page.navigate", "{\"url\": \"about:blank\"}");
    browser->is_loaded = 0;
    browser->error_count = 0;
    cJSON_AddStringToObject(object, "url", url);
    char *parameters = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    const int is_going = call(browser, "Page.navigate", parameters);
    free(parameters);
    while (is_going && !browser->is_loaded && !browser->is_lost) {
        cJSON *message = next_message(browser, deadline_ns);
        note_event(browser, message);
        cJSON_Delete(message);
    }
    return browser_await(browser, "document.readyState === 'complete' && location.href !== "
                                  "'about:blank'");
}

char *browser_text(struct browser *browser, const char *expression)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "expression", expression);
    cJSON_AddTrueToObject(object, "returnByValue");
    cJSON_AddTrueToObject(object, "awaitPromise");
    char *parameters = cJSON_PrintUnformatted(object);
    cJSON *result = browser_call(browser, "Runtime.evaluate", parameters);
    const cJSON *value = at(result, "result", "value");
    char *text = NULL;

    if (cJSON_IsString(value)) {
        text = strdup(value->valuestring);
    } else if (value != NULL) {
        text = cJSON_PrintUnformatted(value);
    }
    cJSON_Delete(object);
    cJSON_Delete(result);
    free(parameters);
    return text != NULL ? text : strdup("");
}

double browser_number(struct browser *browser, const char *expression)
{
    char *text = browser_text(browser, expression);
    char *end = text;
    const double value = strtod(text, &end);
    const int is_number = end != text;

    free(text);
    return is_number ? value : NAN;
}

int browser_await(struct browser *browser, const char *expression)
{
    const uint64_t deadline_ns = hd_now_ns() + AWAIT_LIMIT_S * HD_S_NS;
    int is_true = 0;

    while (!is_true && !browser->is_lost && hd_now_ns() < deadline_ns) {
        char *text = browser_text(browser, expression);
        is_true = strcmp(text, "true") == 0;
        free(text);
        if (!is_true) {
            struct pollfd ready = {.fd = browser->answers, .events = POLLIN};
            poll(&ready, 1, POLL_MS);
        }
    }
    return is_true;
}

void browser_key(struct browser *browser, const char *key)
{
    static const char *const types[] = {"keyDown", "keyUp"};
    char parameters[256], text[64] = "";

    if (strlen(key) == 1) {
        snprintf(text, sizeof text, ", \"text\": \"%s\"", key);
    }
    for (unsigned i = 0; i < 2; i++) {
        snprintf(parameters, sizeof parameters,
                 "{\"type\": \"%s\", \"key\": \"%s\", \"code\": \"%s\"%s}", types[i], key, key,
                 i == 0 ? text : "");
        call(browser, "Input.dispatchKeyEvent", parameters);
    }
}

static void mouse(struct browser *browser, const char *type, double x, double y)
{
    char parameters[256];

    snprintf(parameters, sizeof parameters,
             "{\"type\": \"%s\", \"x\": %.2f, \"y\": %.2f, \"button\": \"%s\", \"clickCount\": %d}",
             type, x, y, strcmp(type, "mouseMoved") == 0 ? "none" : "left",
             strcmp(type, "mouseMoved") != 0);
    call(browser, "Input.dispatchMouseEvent", parameters);
}

void browser_move(struct browser *browser, double x, double y)
{
    mouse(browser, "mouseMoved", x, y);
}

void browser_click(struct browser *browser, double x, double y)
{
    mouse(browser, "mouseMoved", x, y);
    mouse(browser, "mousePressed", x, y);
    mouse(browser, "mouseReleased", x, y);
}

void browser_size(struct browser *browser, uint32_t width, uint32_t height)
{
    char parameters[256];

    snprintf(parameters, sizeof parameters,
             "{\"width\": %u, \"height\": %u, \"deviceScaleFactor\": 1, \"mobile\": false}", width,
             height);
    call(browser, "Emulation.setDeviceMetricsOverride", parameters);
}

void browser_media(struct browser *browser, const char *scheme, const char *media)
{
    char parameters[256];

    snprintf(parameters, sizeof parameters,
             "{\"media\": \"%s\", \"features\": [{\"name\": \"prefers-color-scheme\", \"value\": "
             "\"%s\"}]}",
             media, scheme);
    call(browser, "Emulation.setEmulatedMedia", parameters);
}

static int write_file(const char *path, const uint8_t *bytes, size_t length)
{
    FILE *file = fopen(path, "we");
    int is_whole = file != NULL && fwrite(bytes, 1, length, file) == length;

    if (file != NULL) {
        is_whole &= fclose(file) == 0;
    }
    return is_whole;
}

int browser_shot(struct browser *browser, const char *path)
{
    struct base64_decode_ctx decoder;
    size_t length = 0;
    int is_written = 0;

    /* Two frames on, what was asked to be drawn is drawn. */
    free(browser_text(browser, "new Promise((done) => requestAnimationFrame(() => "
                               "requestAnimationFrame(() => done(1))))"));
    cJSON *result = browser_call(browser, "Page.captureScreenshot",
                                 "{\"format\": \"png\", \"captureBeyondViewport\": true}");
    const char *text = text_at(result, "data", NULL);
    uint8_t *bytes = malloc(BASE64_DECODE_LENGTH(strlen(text)) + 1);
    assert(bytes != NULL);
    base64_decode_init(&decoder);
    if (base64_decode_update(&decoder, &length, bytes, strlen(text), text) && length > 0) {
        is_written = write_file(path, bytes, length);
    }
    free(bytes);
    cJSON_Delete(result);
    return is_written;
}

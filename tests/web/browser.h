/*
 * tests/web/browser.h - one headless Chromium, driven over the DevTools protocol.
 *
 * The protocol goes over two pipes (--remote-debugging-pipe: the browser reads descriptor 3 and
 * writes 4, each message ends in a zero byte), so no port is opened and none is guessed.  Whatever
 * is waited for has a deadline; past it the browser is lost, calls return NULL, and the test fails.
 * What a page logs as an error, or throws, is counted.
 *
 * Source: the Chrome DevTools Protocol, domains Target, Page, Runtime, Log, Input, Emulation.
 */
#ifndef HD_TESTS_WEB_BROWSER_H
#define HD_TESTS_WEB_BROWSER_H

#include <cjson/cJSON.h>

#include <stdint.h>
#include <sys/types.h>

struct browser {
    pid_t pid;
    int commands, answers; /* our ends of the pipes */
    uint32_t next_call;
    uint32_t is_lost;
    uint32_t is_loaded;   /* the page has fired its load event */
    uint32_t error_count; /* of the page, since the last load */
    char first_error[512];
    char session[64];
    char *buffer; /* what has come in, not yet a whole message */
    size_t filled, capacity;
};

/* The browser's program, or NULL: it is not installed; static. */
const char *browser_program(void);

/* Starts it with an empty profile in `profile`, one blank page open.  0: it did not come up. */
int browser_open(struct browser *browser, const char *profile);
void browser_close(struct browser *browser);

/* One call in the page's session; `parameters` is JSON text or NULL.  The result, owned; NULL when
   the browser refuses or is lost. */
cJSON *browser_call(struct browser *browser, const char *method, const char *parameters);

/* Goes to `url` and waits for its load; errors are counted anew. */
int browser_load(struct browser *browser, const char *url);
/* The value of an expression as text (objects as JSON), owned; "" when it throws. */
char *browser_text(struct browser *browser, const char *expression);
double browser_number(struct browser *browser, const char *expression); /* NaN: none */
/* Waits until the expression is true; 0: it did not come to be. */
int browser_await(struct browser *browser, const char *expression);

/* Input as a user gives it: a key by its name ("ArrowRight", "Enter", "d"), a click. */
void browser_key(struct browser *browser, const char *key);
void browser_click(struct browser *browser, double x, double y);
void browser_move(struct browser *browser, double x, double y);

void browser_size(struct browser *browser, uint32_t width, uint32_t height);
/* prefers-color-scheme, "light" or "dark"; media "screen" or "print". */
void browser_media(struct browser *browser, const char *scheme, const char *media);
/* The whole page as a PNG, from its top. */
int browser_shot(struct browser *browser, const char *path);

#endif /* HD_TESTS_WEB_BROWSER_H */

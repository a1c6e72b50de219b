#include "web/reader.h"
#include "support/check.h"
#include "support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct browser web_browser;
const char *web_work;

static void report_failure(const char *what, const char *wanted, const char *got)
{
    printf("\n    %s: wanted '%s', got '%s'", what, wanted, got);
    CU_FAIL("a page is not as it should be");
}

void web_is(const char *expression, const char *wanted)
{
    char *got = browser_text(&web_browser, expression);

    if (strcmp(got, wanted) != 0) {
        report_failure(expression, wanted, got);
    }
    free(got);
}

void web_shows(const char *selector, const char *wanted)
{
    char expression[WEB_TEXT_BYTES];

    snprintf(
        expression, sizeof expression,
        "(document.querySelector(`%s`) || {innerText: 'nothing'}).innerText.replace(/\\s+/g, ' "
        "').trim().includes(`%s`)",
        selector, wanted);
    if (!browser_await(&web_browser, expression)) {
        snprintf(expression, sizeof expression,
                 "(document.querySelector(`%s`) || {innerText: 'nothing'}).innerText.slice(0, 700)",
                 selector);
        char *got = browser_text(&web_browser, expression);
        report_failure(selector, wanted, got);
        free(got);
    }
}

void web_no_errors(const char *name)
{
    if (web_browser.error_count > 0) {
        report_failure(name, "no error in the console", web_browser.first_error);
    }
}

void web_make(const char *words)
{
    struct command command = {0};
    const int code = command_run(&command, words);

    if (code != 0) {
        char *text = command_text(command.err);
        report_failure(words, "exit 0", text);
        free(text);
    }
}

void web_load(const char *page, const char *fragment)
{
    char url[WEB_TEXT_BYTES];

    snprintf(url, sizeof url, "file://%s/%s%s", web_work, page, fragment);
    CU_ASSERT_TRUE(browser_load(&web_browser, url));
    CU_ASSERT_TRUE(browser_await(&web_browser, "window.heddle !== undefined && heddle.view !== "
                                               "undefined"));
    web_no_errors(page);
}

void web_shot(const char *name)
{
    char path[WEB_TEXT_BYTES];

    snprintf(path, sizeof path, "%s/%s.png", hd_check_build("tests/web"), name);
    CU_ASSERT_TRUE(browser_shot(&web_browser, path));
    web_no_errors(name);
}

void web_keys(const char *key, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        browser_key(&web_browser, key);
    }
}

void web_focus_grid(void)
{
    free(browser_text(&web_browser, "document.querySelector('.scroller').focus()"));
}

void web_opens(const char *tab)
{
    char expression[256];

    snprintf(expression, sizeof expression, "document.getElementById('tab-%s').click()", tab);
    free(browser_text(&web_browser, expression));
    snprintf(expression, sizeof expression,
             "document.getElementById('tab-%s').getAttribute('aria-selected')", tab);
    web_is(expression, "true");
}

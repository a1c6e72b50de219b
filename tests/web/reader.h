/*
 * tests/web/reader.h - a person before a page: makes it, opens it, acts, and reads what is there.
 *
 * One browser for the whole program.  Every function is a check: what is not as wanted is printed
 * and fails the test.
 */
#ifndef HD_TESTS_WEB_READER_H
#define HD_TESTS_WEB_READER_H

#include "web/browser.h"

enum { WEB_TEXT_BYTES = 4096 };

extern struct browser web_browser; /* opened and closed by main */
extern const char *web_work;       /* where pages are made: the working directory */

/* Runs "heddle WORDS", which must end well. */
void web_make(const char *words);
/* Opens a page of the working directory at "#view=..", and waits until it is shown. */
void web_load(const char *page, const char *fragment);

/* The value of an expression is this text. */
void web_is(const char *expression, const char *wanted);
/* The text of the first element that matches holds `wanted`, white space made single; waited for,
   since tables follow the cursor a frame later. */
void web_shows(const char *selector, const char *wanted);
/* The console holds no error. */
void web_no_errors(const char *name);

void web_keys(const char *key, unsigned count);
void web_focus_grid(void);
void web_opens(const char *tab); /* "schedule", "measured", "compare", "numbers" */
/* Keeps NAME.png in tests/web/ of the build tree. */
void web_shot(const char *name);

#endif /* HD_TESTS_WEB_READER_H */

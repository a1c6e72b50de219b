/*
 * tests/support/corpus.h - small corpus files, opened and refused.
 *
 * Files lie in a directory of the test's own, which hd_corpus_check_main makes and removes.
 */
#ifndef HD_TESTS_SUPPORT_CORPUS_H
#define HD_TESTS_SUPPORT_CORPUS_H

#include "support/check.h"

#include "train/corpus.h"

#include <stddef.h>

/* The directory of this test; static. */
const char *hd_corpus_check_directory(void);

/* Writes a file there and returns its path; static storage, one at a time. */
const char *hd_corpus_check_put(const char *name, const void *bytes, size_t byte_count);

/* Vocabulary 256, sequence 4, one sample a step. */
struct hd_corpus_request hd_corpus_check_request(const char *path);

/* Opens what must be sound. */
struct hd_corpus *hd_corpus_check_open(const struct hd_corpus_request *request);

/* Refused with exit 2, the file as place, a remedy, and `part` in the line. */
void hd_corpus_check_refused(const struct hd_corpus_request *request, const char *part);

/* hd_check_main with the directory around it. */
int hd_corpus_check_main(const char *suite, const struct hd_check *checks, unsigned count);

#endif /* HD_TESTS_SUPPORT_CORPUS_H */

/*
 * tests/fuzz/memory_file.h - bytes as a file with a path, for readers that open files.
 *
 * The file lies in memory and is the same one for every input, so that no run depends on a disk.
 */
#ifndef HD_TESTS_FUZZ_MEMORY_FILE_H
#define HD_TESTS_FUZZ_MEMORY_FILE_H

#include <stddef.h>
#include <stdio.h>

enum { MEMORY_FILE_COUNT = 2 };

/* File `which` holds these bytes and no others; its path, static.  A failure ends the process. */
const char *memory_file(unsigned which, const void *bytes, size_t count);

/* File `which`, empty, to be written; memory_file_path once it is closed. */
FILE *memory_file_write(unsigned which);
const char *memory_file_path(unsigned which);

#endif /* HD_TESTS_FUZZ_MEMORY_FILE_H */

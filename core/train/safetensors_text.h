/*
 * train/safetensors_text.h - a walk over the JSON of a safetensors header: strings, whole numbers,
 * lists, objects.
 *
 * The walk runs once over a copy of the text.  It decodes strings in place, because a JSON string
 * is never shorter than its meaning.  A refusal names the byte.
 */
#ifndef HEDDLE_TRAIN_SAFETENSORS_TEXT_H
#define HEDDLE_TRAIN_SAFETENSORS_TEXT_H

#include "base/problem.h"

#include <stdint.h>

struct hd_walk {
    char *text; /* [length] */
    uint64_t length, at;
    struct hd_problem *problem;
};

/* Refuses the byte at `at`, where the text must have `expected` ("a colon").  HD_INVALID. */
hd_status hd_walk_refuse(struct hd_walk *walk, const char *expected);

/* The next byte that is not a blank, without taking it; 0 at the end. */
char hd_walk_peek(struct hd_walk *walk);
hd_status hd_walk_take(struct hd_walk *walk, char letter, const char *name);

/* {"KEY": VALUE, ...}: calls `member`, which takes one KEY, the colon and VALUE. */
hd_status hd_walk_object(struct hd_walk *walk,
                         hd_status (*member)(struct hd_walk *walk, void *context), void *context);

/* `string` points into the text, and ends in zero; `name` says what it is. */
hd_status hd_walk_string(struct hd_walk *walk, const char *name, const char **string);

/* [1, 2, 3]: at most `capacity` numbers. */
hd_status hd_walk_numbers(struct hd_walk *walk, uint32_t capacity, uint64_t *numbers,
                          uint32_t *count);

#endif /* HEDDLE_TRAIN_SAFETENSORS_TEXT_H */

/*
 * train/safetensors_text.h - the letters of a safetensors header: strings, whole numbers, lists.
 *
 * One walk over a copy of the text.  Strings are decoded in place, because what a JSON string means
 * is never longer than how it is written.  A refusal says the byte.  Only safetensors_header.c
 * includes this.
 */
#ifndef HEDDLE_TRAIN_SAFETENSORS_TEXT_H
#define HEDDLE_TRAIN_SAFETENSORS_TEXT_H

#include "train/safetensors.h"

/* How far the walk has come, and where it ended. */
struct hd_walk {
    struct hd_safetensors *file;
    char *text; /* [length] */
    uint64_t length, at;
    uint64_t tensor_room, note_room; /* of the lists that grow in `file` */
    struct hd_problem *problem;
};

/* Byte `at` is not `expected` ("a colon"); HD_INVALID. */
hd_status hd_walk_refuse(struct hd_walk *walk, const char *expected);

/* The next letter that counts, without taking it; 0 at the end. */
char hd_walk_peek(struct hd_walk *walk);
hd_status hd_walk_take(struct hd_walk *walk, char letter, const char *name);

/* After one member: 1 another follows, 0 the closing letter was taken, negative neither. */
int32_t hd_walk_more(struct hd_walk *walk, char closing, const char *name);

/* The string lies in the text, with a zero behind it. */
hd_status hd_walk_string(struct hd_walk *walk, const char *name, const char **string);

/* [1, 2, 3]: at most `capacity` numbers, and how many they are. */
hd_status hd_walk_numbers(struct hd_walk *walk, uint32_t capacity, uint64_t *numbers,
                          uint32_t *count);

#endif /* HEDDLE_TRAIN_SAFETENSORS_TEXT_H */

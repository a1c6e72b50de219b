/*
 * train/grammar.h - the built-in text: endless, learnable, the same everywhere.
 *
 * Small stories about a few people and things, from a fixed list of lines with random words.  The
 * beginning of a line determines its end (a name is repeated, two numbers are added), so a model
 * that looks back has a lower loss than one that knows only the byte before.
 *
 * The text is a sequence of pages, each generated from its number alone, so that any part can be
 * read without the text before it.  A page ends in the middle of a line.
 */
#ifndef HEDDLE_TRAIN_GRAMMAR_H
#define HEDDLE_TRAIN_GRAMMAR_H

#include <stdint.h>

#define HD_GRAMMAR_PAGE_BYTES 1024u

/* Fills `text` with page `page`, without a final zero. [any-thread] */
void hd_grammar_page(uint64_t seed, uint64_t page, char text[HD_GRAMMAR_PAGE_BYTES]);

/* The id of a letter of the text: the byte itself if the vocabulary has 128 ids or more, else its
   place in the alphabet of 31 letters, modulo the vocabulary. */
int32_t hd_grammar_id(char letter, uint32_t vocabulary);

#endif /* HEDDLE_TRAIN_GRAMMAR_H */

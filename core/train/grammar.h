/*
 * train/grammar.h - the built-in text: endless, learnable, the same everywhere.
 *
 * Small stories about a few people and things, from a fixed list of lines in which words are drawn.
 * What a line says early decides what it says late (a name comes back, two numbers make a
 * third), so a model that looks back gains on one that knows only the byte before.
 *
 * The text is cut into pages, each drawn from its own number alone, so any place of it can be
 * had without the text before.  A page ends in the middle of a line.
 */
#ifndef HEDDLE_TRAIN_GRAMMAR_H
#define HEDDLE_TRAIN_GRAMMAR_H

#include <stdint.h>

#define HD_GRAMMAR_PAGE_BYTES 1024u

/* Fills `text` with page `page`; no final zero. [any-thread] */
void hd_grammar_page(uint64_t seed, uint64_t page, char text[HD_GRAMMAR_PAGE_BYTES]);

/* The id of a letter of the text: the byte itself where the vocabulary holds ASCII (128 and more),
   else its place in the alphabet of 31 letters, modulo the vocabulary. */
int32_t hd_grammar_id(char letter, uint32_t vocabulary);

#endif /* HEDDLE_TRAIN_GRAMMAR_H */

/*
 * cli/facts.h - what the ranks of a launched run must agree on, as text.
 *
 * One line for each fact, "key = value": the command line's options, the plugins with the SHA-256
 * of their files, the plugins' options, every key of the configuration but those that name a place
 * on one host, the corpus, the checkpoint, and the instruction set.  A value has one spelling, so
 * 1e-2 and 0.01 agree.  The hub compares the texts line by line (launch/rendezvous.h).
 *
 * A file is known by its size and the SHA-256 of its bytes.  Of a file of more than 16 MiB, 256
 * blocks of 64 KiB are hashed, at equal distances, the first and the last block included.
 */
#ifndef HEDDLE_CLI_FACTS_H
#define HEDDLE_CLI_FACTS_H

#include "run/job.h"
#include "run/resume.h"

/* `words` begins the text: whole lines about the command line, or "".  `resume`: NULL for none.
   Owned, free(); NULL: cannot be allocated. */
char *hd_facts_text(const struct hd_job *job, const struct hd_resume *resume, const char *words);

#endif /* HEDDLE_CLI_FACTS_H */

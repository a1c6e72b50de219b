/*
 * tests/support/transport_region.h - what the ranks of a testbed share; only its own files include
 * it.
 */
#ifndef HD_TESTS_SUPPORT_TRANSPORT_REGION_H
#define HD_TESTS_SUPPORT_TRANSPORT_REGION_H

#include "support/transport_harness.h"

enum { ENTRY_MAX = 256, KEY_BYTES = 64, VALUE_BYTES = 4096 };

struct entry {
    char key[KEY_BYTES];
    uint64_t bytes;
    unsigned char value[VALUE_BYTES];
};

/* What one rank has put; only that rank writes it, the others read behind a fence. */
struct table {
    _Atomic uint32_t count;
    struct entry entries[ENTRY_MAX];
};

struct hd_testbed_region {
    _Atomic uint32_t generation; /* the futex of the fence */
    _Atomic uint32_t arrived_count;
    _Atomic uint32_t is_aborted; /* every fence ends */
    _Atomic uint64_t words[HD_TESTBED_WORD_COUNT];
    _Atomic int32_t pids[HD_TESTBED_RANK_MAX];
    struct table tables[HD_TESTBED_RANK_MAX];
};

/* Fills rank->host; its context is the rank. */
void hd_testbed_host_init(struct hd_testbed_rank *rank, const struct hd_testbed_job *job);

#endif /* HD_TESTS_SUPPORT_TRANSPORT_REGION_H */

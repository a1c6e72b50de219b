/*
 * tests/support/routing.h - a model in which the token alone decides the expert.
 *
 * The first E elements of the residual stream are set by the embedding and changed by nothing:
 * attention adds zero, and no expert writes there.  The routers look at nothing else, so that
 * token t goes to expert t % E in every block, in every precision, by a wide margin; further
 * choices, which tie, go to the lowest other experts.
 */
#ifndef HD_TESTS_SUPPORT_ROUTING_H
#define HD_TESTS_SUPPORT_ROUTING_H

#include "support/kernel_harness.h"

/* Changes the masters of a drawn chain. */
void hd_chain_fix_routing(struct hd_chain *chain);

/* |a|, and a b / (|a| |b|), over one copy of all tensors whose name has `part`: "experts". */
double hd_chain_length(struct hd_chain *chain, const char *part, uint32_t copy);
double hd_chain_cosine(struct hd_chain *a, struct hd_chain *b, const char *part, uint32_t copy);

#endif /* HD_TESTS_SUPPORT_ROUTING_H */

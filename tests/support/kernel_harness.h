/*
 * tests/support/kernel_harness.h - opens a kernel plugin without a core, for conform/chain.h.
 *
 *   struct hd_harness harness;
 *   hd_harness_open(&harness, "reference", "float64=on");
 *   ... chains ...
 *   hd_harness_close(&harness);
 *
 * An operation that fails leaves its sentence in harness.failure.
 */
#ifndef HD_TESTS_SUPPORT_KERNEL_HARNESS_H
#define HD_TESTS_SUPPORT_KERNEL_HARNESS_H

#include "conform/chain.h"

/* Host and options for a plugin that is linked; opens nothing. */
void hd_harness_fill(struct hd_harness *harness, const struct hd_plugin *plugin,
                     const char *options);
/* "cuda:KEY=VALUE,..": the plugin cuda over this build's stand-ins, or over the libraries that it
   finds itself, and perhaps one more option; static. */
const char *hd_harness_cuda(int is_standin, const char *option);

/* Loads heddle_kernel_NAME.so of HD_PLUGIN_DIR and opens device 0; `options` is NULL or
   "key=value,key=value" in the plugin's own keys.  0, or -1 after saying why on stdout. */
int hd_harness_open(struct hd_harness *harness, const char *name, const char *options);
void hd_harness_close(struct hd_harness *harness); /* unloads nothing; takes a failed one */

/* What tests ask of a chain beside the checks of conform; kernel_chain.c. */

/* A small OLMoE for tests to change: 2 blocks, 4 experts, 2 per token, width 8, 10 tokens. */
struct hd_stage_spec hd_chain_model(void);

/* Fills payloads and scratch with 0xff. */
void hd_chain_poison(struct hd_chain *chain);

/* -1 if there is no tensor of that name. */
int64_t hd_chain_find(struct hd_chain *chain, const char *name);

/* |a - b| / |b| in L2 over one copy of one tensor of two chains; |a| where b is zero. */
double hd_chain_residual(struct hd_chain *a, struct hd_chain *b, uint32_t tensor, uint32_t copy);

#endif /* HD_TESTS_SUPPORT_KERNEL_HARNESS_H */

/* plugins/kernels/transformer/spec.h - which models are served, and their costs. */
#ifndef HD_TRANSFORMER_SPEC_H
#define HD_TRANSFORMER_SPEC_H

#include "ops.h"

/* Reads min(size, own) and fills in defaults; UNSUPPORTED after host->fail if the model is not
   served.  With two half batches `batch` of the result is that of one. */
hd_status hd_spec_read(const struct hd_host *host, const struct hd_stage_spec *given,
                       struct hd_stage_spec *out);
uint64_t hd_spec_hash(const struct hd_stage_spec *spec, const struct hd_ops *ops);
/* Addends of the loss: two for each routed block, one for the head. */
uint32_t hd_term_count(const struct hd_stage_spec *spec);
/* Floating-point operations of a forward, two for each multiply-add; a backward has twice as many.
   docs/benchmarks.md has the formula, and says what it leaves out. */
double hd_spec_forward_flops(const struct hd_stage_spec *spec);

#endif /* HD_TRANSFORMER_SPEC_H */

/* tests/support/transport_variants.c - one job on every variant that promises what it checks. */
#include "support/check.h"
#include "support/transport_harness.h"

#include <stdio.h>

static uint32_t run_variant(const struct hd_testbed_variant *variant, struct hd_testbed_job job)
{
    const struct hd_testbed_job asked = job;

    hd_testbed_choose(&job, variant);
    if (asked.options != NULL) {
        job.options = asked.options;
        job.option_count = asked.option_count;
    }
    return hd_testbed_run(&job);
}

void hd_testbed_run_where(uint64_t capabilities, const struct hd_testbed_job *job)
{
    const uint64_t wanted = capabilities & ~HD_TESTBED_PLAIN;
    uint32_t run_count = 0;

    for (const struct hd_testbed_variant *variant = hd_testbed_variants; variant->name != NULL;
         variant++) {
        const int is_asked = variant->inner == NULL || wanted == capabilities;
        const int may_die = job->exit_codes != NULL && variant->is_mortal;
        if (is_asked && !may_die && hd_testbed_is_built(variant) &&
            (hd_testbed_capabilities(variant) & wanted) == wanted) {
            const uint32_t wrong_count = run_variant(variant, *job);
            CU_ASSERT_EQUAL(wrong_count, 0);
            if (wrong_count > 0) {
                printf("%s: %u ranks\n", variant->label, wrong_count);
            }
            run_count++;
        }
    }
    CU_ASSERT(run_count > 0);
}

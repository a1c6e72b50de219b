/*
 * tests/test_hazard.c - a payload slot that is used again too early, and what is left of it.
 *
 * One stage, driven by a lease pool of the engine through F0 F1 B0 B1, or through more.  The
 * routing is fixed, so that nothing depends on a clock: microbatch 0 has all its tokens on one
 * expert, the later ones on all four, which needs more rows.
 *
 *   honest          two slots      gradients are those of a slot for every microbatch
 *   lease off       one slot       B0 reads what F1 wrote: finite, and wrong
 *   early release   two slots      the same, though the pool is large enough
 *   forward order   one slot       the same
 *
 * Sources: the report, section 6.4; C88 of the cases.
 */
#include "base/bf16.h"
#include "base/memory.h"
#include "engine/lease.h"
#include "plugins/kernels/transformer/transformer.h"
#include "support/check.h"
#include "support/kernel_harness.h"
#include "support/routing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MICROBATCH_MAX = 4, TOKENS = 64 };

#define COSINE_WRONG 0.5

struct variant {
    const char *name, *kernel;
    uint32_t precision;
};

static const struct variant variants[] = {
    {"reference, bf16", "reference", HD_PRECISION_BF16},
    {"reference, mxfp8", "reference", HD_PRECISION_MXFP8},
    {"cpu, bf16", "cpu", HD_PRECISION_BF16},
    {"cpu, mxfp8", "cpu", HD_PRECISION_MXFP8},
};

static int is_built(const struct variant *variant)
{
    char file[64];
    snprintf(file, sizeof file, "heddle_kernel_%s.so", variant->kernel);
    return access(hd_check_plugin(file), R_OK) == 0;
}

/* --- a stage and its pools -------------------------------------------------------------------- */

struct plant {
    struct hd_harness harness;
    struct hd_chain chain;
    struct hd_lease_pool pool;
    void *own_payload;
};

static const struct hd_regions regions = {.alignment = 64};

static void open_plant(struct plant *plant, const struct variant *variant, const char *options,
                       struct hd_lease_pool pool)
{
    struct hd_problem problem = {0};
    struct hd_stage_spec model = hd_chain_model();
    const uint32_t slot_count = pool.slot_count;
    model.width = 64;
    model.heads = 4;
    model.expert_width = 96;
    model.vocabulary = 64;
    model.sequence = 32;
    model.experts_per_token = 1;
    model.precision = variant->precision;
    model.balance_weight = model.z_weight = 0;
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&plant->harness, variant->kernel, options), 0);
    CU_ASSERT_EQUAL_FATAL(hd_chain_open(&plant->chain, &plant->harness, &model, (uint32_t[]){2}, 1),
                          HD_OK);
    hd_chain_draw(&plant->chain, 41);
    hd_chain_fix_routing(&plant->chain);
    plant->pool = pool;
    plant->pool.regions = &regions;
    plant->pool.microbatch_count = MICROBATCH_MAX;
    CU_ASSERT_EQUAL_FATAL(hd_lease_pool_create(&plant->pool, slot_count,
                                               plant->chain.stages[0].needs.payload_bytes,
                                               &problem),
                          HD_OK);
    plant->own_payload = plant->chain.stages[0].payload;
}

static void close_plant(struct plant *plant)
{
    plant->chain.stages[0].payload = plant->own_payload;
    hd_lease_pool_finish(&plant->pool);
    hd_chain_close(&plant->chain);
    hd_harness_close(&plant->harness);
}

/* Microbatch 0: expert 0 alone, 64 rows.  The others: 16 tokens an expert, 128 rows. */
static void draw_microbatch(struct plant *plant, uint32_t microbatch)
{
    struct hd_chain *chain = &plant->chain;
    hd_chain_draw_tokens(chain, 300 + microbatch);
    for (uint32_t token = 0; token < TOKENS; token++) {
        const int32_t group = chain->tokens[token] / 4 * 4;
        chain->tokens[token] = microbatch == 0 ? group : group + (int32_t)(token % 4);
    }
    chain->microbatch = microbatch;
}

/* One action, as the engine runs it. */
static hd_status act(struct plant *plant, char kind, uint32_t microbatch)
{
    struct hd_chain_stage *at = &plant->chain.stages[0];
    struct hd_problem problem = {0};
    draw_microbatch(plant, microbatch);
    if (kind == 'F') {
        CU_ASSERT_EQUAL(hd_lease_acquire(&plant->pool, microbatch, &problem), HD_OK);
    }
    CU_ASSERT_EQUAL(
        hd_lease_find(&plant->pool, microbatch, &at->payload, &at->generation, &problem), HD_OK);
    memset(at->memory.scratch, 0xff, at->needs.scratch_bytes);
    if (kind == 'F') {
        const hd_status status = hd_chain_forward(&plant->chain, 0);
        hd_lease_end_forward(&plant->pool, microbatch);
        return status;
    }
    const hd_status status = hd_chain_backward(&plant->chain);
    CU_ASSERT_EQUAL(hd_lease_release(&plant->pool, microbatch, &problem), HD_OK);
    return status;
}

/* "F0 F1 B0 B1"; the first status that is not OK. */
static hd_status run(struct plant *plant, const char *order)
{
    hd_status status = HD_OK;
    for (const char *at = order; *at != '\0' && status == HD_OK; at += at[2] == ' ' ? 3 : 2) {
        status = act(plant, at[0], (uint32_t)(at[1] - '0'));
    }
    return status;
}

static double whole_norm(struct plant *plant)
{
    return hd_chain_length(&plant->chain, "", HD_GRADIENT);
}

/* --- with the leases right -------------------------------------------------------------------- */

static uint64_t gradients_with(const struct variant *variant, uint32_t slot_count,
                               const char *order)
{
    struct plant plant;
    open_plant(&plant, variant, NULL,
               (struct hd_lease_pool){.slot_count = slot_count, .poison = 1});
    CU_ASSERT_EQUAL(run(&plant, order), HD_OK);
    CU_ASSERT(plant.pool.peak_count <= slot_count);
    const uint64_t gradients = hd_chain_hash(&plant.chain, HD_GRADIENT);
    close_plant(&plant);
    return gradients;
}

static void test_honest_leases(void)
{
    for (unsigned i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        if (is_built(&variants[i])) {
            const uint64_t unlimited = gradients_with(&variants[i], 4, "F0 F1 F2 F3 B0 B1 B2 B3");
            const uint64_t two = gradients_with(&variants[i], 2, "F0 F1 B0 F2 B1 F3 B2 B3");
            const uint64_t one = gradients_with(&variants[i], 1, "F0 B0 F1 B1 F2 B2 F3 B3");
            CU_ASSERT_EQUAL(two, unlimited);
            CU_ASSERT_EQUAL(one, unlimited);
        }
    }
}

/* --- with the leases wrong -------------------------------------------------------------------- */

struct breach {
    const char *name, *order;
    uint32_t fault, slot_count;
};

static const struct breach breaches[] = {
    {"lease off", "F0 F1 B0 B1", HD_LEASE_OFF, 1},
    {"lease off, one slot too few", "F0 F1 F2 B0 B1 B2", HD_LEASE_OFF, 2},
    {"early release, of a pool that is large enough", "F0 F1 B0 B1", HD_LEASE_EARLY_RELEASE, 2},
    {"forward order", "F0 F1 B0 B1", HD_LEASE_FORWARD_ORDER, 1},
};

static void say_if(int is_wrong, const struct variant *variant, const struct breach *breach,
                   const char *what)
{
    if (is_wrong) {
        printf("\n    %s, %s: %s\n", variant->name, breach->name, what);
    }
    CU_ASSERT_FALSE(is_wrong);
}

/* Every expert's gradient after B0 is another's; loss and norm are finite, and of the right
   size. */
static void check_silent(const struct variant *variant, const struct breach *breach)
{
    struct plant wrong, right;
    open_plant(&wrong, variant, "check_stamps=off",
               (struct hd_lease_pool){.slot_count = breach->slot_count, .fault = breach->fault});
    open_plant(&right, variant, NULL, (struct hd_lease_pool){.slot_count = 4});
    const char *end = strstr(breach->order, "B0");
    char until_first[32];
    snprintf(until_first, sizeof until_first, "%.*s", (int)(end + 2 - breach->order),
             breach->order);
    CU_ASSERT_EQUAL(run(&wrong, until_first), HD_OK);
    CU_ASSERT_EQUAL(run(&right, until_first), HD_OK);
    const double norm = whole_norm(&wrong), wanted = whole_norm(&right);
    const double cosine = hd_chain_cosine(&wrong.chain, &right.chain, "experts", HD_GRADIENT);
    say_if(!isfinite(wrong.chain.loss) || !isfinite(norm), variant, breach, "it is loud");
    say_if(norm > 10 * wanted || norm < wanted / 10, variant, breach, "the norm gives it away");
    say_if(!(cosine < COSINE_WRONG), variant, breach, "the experts' gradients are right");
    close_plant(&wrong);
    close_plant(&right);
}

static void check_caught(const struct variant *variant, const struct breach *breach)
{
    struct plant plant;
    char owner[64], intruder[64];
    open_plant(&plant, variant, NULL,
               (struct hd_lease_pool){.slot_count = breach->slot_count, .fault = breach->fault});
    say_if(run(&plant, breach->order) != HD_PROTOCOL, variant, breach,
           "the stamp did not catch it");
    snprintf(owner, sizeof owner, "stage 0, microbatch 0: expected the payload of generation 1");
    snprintf(intruder, sizeof intruder, "of microbatch %u", breach->slot_count == 1 ? 1u : 0u);
    say_if(strstr(plant.harness.failure, owner) == NULL, variant, breach, plant.harness.failure);
    say_if(strstr(plant.harness.failure, "found generation") == NULL, variant, breach,
           plant.harness.failure);
    say_if(breach->slot_count == 1 && strstr(plant.harness.failure, intruder) == NULL, variant,
           breach, plant.harness.failure);
    CU_ASSERT_EQUAL(whole_norm(&plant), 0); /* refused before it added anything */
    close_plant(&plant);
}

static void for_each_breach(void (*check)(const struct variant *, const struct breach *))
{
    for (unsigned i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        for (unsigned j = 0; is_built(&variants[i]) && j < sizeof breaches / sizeof breaches[0];
             j++) {
            check(&variants[i], &breaches[j]);
        }
    }
}

static void test_silent_without_the_check(void)
{
    for_each_breach(check_silent);
}

static void test_caught_by_the_stamp(void)
{
    for_each_breach(check_caught);
}

/* Poison: a slot that was released early is refused even before another forward takes it. */
static void test_poison_is_loud(void)
{
    static const char *const options[] = {NULL, "check_stamps=off"};
    for (unsigned i = 0; i < 2; i++) {
        struct plant plant;
        open_plant(
            &plant, &variants[0], options[i],
            (struct hd_lease_pool){.slot_count = 2, .fault = HD_LEASE_EARLY_RELEASE, .poison = 1});
        CU_ASSERT_EQUAL(run(&plant, "F0 B0"), HD_PROTOCOL);
        CU_ASSERT_PTR_NOT_NULL(strstr(plant.harness.failure, "stage 0, microbatch 0"));
        close_plant(&plant);
    }
}

/* --- scales packed behind the rows in use
 * --------------------------------------------------------- */

extern const struct hd_ops reference_ops_bf16;

enum { WIDTH = 64, ROW_MAX = 128 };

/* One slot as the report's system had it: the elements, and the scales right behind the last row
   in use, so that where they lie depends on the routing. */
struct packed {
    uint8_t bytes[ROW_MAX * WIDTH + ROW_MAX * WIDTH / 32];
};

static struct hd_quantise_args packed_args(struct packed *slot, uint32_t rows, uint16_t *values)
{
    return (struct hd_quantise_args){
        .source = values,
        .target = values,
        .rowwise = {slot->bytes, slot->bytes + (uint64_t)rows * WIDTH, HD_E4M3, rows, WIDTH},
        .rows = rows,
        .columns = WIDTH};
}

static void pack(struct packed *slot, uint32_t rows, uint32_t seed)
{
    static uint16_t values[ROW_MAX * WIDTH];
    for (uint32_t i = 0; i < rows * WIDTH; i++) {
        const int32_t drawn = (int32_t)((i * 2654435761u + seed) >> 16 & 0xff) - 128;
        values[i] = hd_bf16_from_float((float)drawn / 64);
    }
    const struct hd_quantise_args args = packed_args(slot, rows, values);
    CU_ASSERT_EQUAL(reference_ops_bf16.quantise(NULL, &args), HD_OK);
}

static double norm_of(struct packed *slot, uint32_t rows)
{
    static uint16_t values[ROW_MAX * WIDTH];
    const struct hd_quantise_args args = packed_args(slot, rows, values);
    double sum = 0;
    CU_ASSERT_EQUAL(reference_ops_bf16.dequantise(NULL, &args), HD_OK);
    for (uint32_t i = 0; i < rows * WIDTH; i++) {
        const double value = (double)hd_bf16_to_float(values[i]);
        sum += value * value;
    }
    /* As a norm of gradients is kept: in float32 at the end. */
    return (double)(float)sqrt(sum);
}

/* The owner has 64 rows, the intruder 128: where the owner's scales were are elements now, and an
   element read as a scale is up to 2^127. */
static void test_packed_scales_are_loud(void)
{
    static struct packed slot;
    pack(&slot, 64, 1);
    const double norm = norm_of(&slot, 64);
    CU_ASSERT(norm > 10 && norm < 1000);
    pack(&slot, 128, 2);
    CU_ASSERT_FALSE(isfinite(norm_of(&slot, 64)));
    /* As many rows: the scales are the intruder's as well, and nothing shows. */
    pack(&slot, 64, 3);
    CU_ASSERT(isfinite(norm_of(&slot, 64)));
}

static const struct hd_check checks[] = {
    {"with leases right, gradients are those of an unlimited pool", test_honest_leases},
    {"a slot used again is silent without the stamp: finite, and wrong",
     test_silent_without_the_check},
    {"the stamp catches it, and names stage, owner and intruder", test_caught_by_the_stamp},
    {"poison makes a read of a released slot loud", test_poison_is_loud},
    {"C88: scales packed behind the rows in use make the norm infinite",
     test_packed_scales_are_loud},
};

int main(void)
{
    return hd_check_main("hazard", checks, HD_CHECK_COUNT(checks));
}

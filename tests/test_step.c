/* The end of a step: where the numbers lie, in which order they are added, and the verdict. */
#include "support/check.h"

#include "train/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE_MAX = 8, RANK_MAX = 4, VALUE_MAX = 64 };

static double bits_apart(double left, double right)
{
    return memcmp(&left, &right, sizeof left) == 0 ? 0.0 : fabs(left - right) + 1e-300;
}

/* Blocks of all ranks, with every vote given. */
struct blocks {
    struct hd_exchange exchange;
    unsigned char *bytes;
};

static void *block_at(const struct blocks *blocks, uint32_t rank)
{
    return blocks->bytes + rank * blocks->exchange.block_bytes;
}

static struct hd_exchange_header *header_at(const struct blocks *blocks, uint32_t rank)
{
    return block_at(blocks, rank);
}

static double *terms_at(const struct blocks *blocks, uint32_t stage)
{
    const struct hd_exchange_stage *const at = &blocks->exchange.stages[stage];
    return hd_exchange_values(block_at(blocks, at->rank)) + at->term_offset;
}

static double *squares_at(const struct blocks *blocks, uint32_t stage)
{
    const struct hd_exchange_stage *const at = &blocks->exchange.stages[stage];
    return hd_exchange_values(block_at(blocks, at->rank)) + at->square_offset;
}

static struct blocks blocks_begin(uint32_t rank_count, uint32_t stage_count,
                                  const struct hd_exchange_stage *stages)
{
    struct blocks blocks;

    CU_ASSERT_FATAL(hd_exchange_layout(&blocks.exchange, rank_count, stage_count, stages) == HD_OK);
    blocks.bytes = calloc(rank_count, blocks.exchange.block_bytes);
    CU_ASSERT_FATAL(blocks.bytes != NULL);
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        header_at(&blocks, rank)->vote = 1;
        header_at(&blocks, rank)->step = 1;
    }
    return blocks;
}

static void blocks_end(struct blocks *blocks)
{
    free(blocks->bytes);
    hd_exchange_finish(&blocks->exchange);
    CU_ASSERT(blocks->exchange.stages == NULL);
}

static struct hd_step_result judge(const struct blocks *blocks, double clip_norm)
{
    struct hd_step_result result;
    hd_step_judge(&blocks->exchange, blocks->bytes, clip_norm, &result);
    return result;
}

static void layout(void)
{
    /* Four stages on two ranks, in a V: 0 and 3 on rank 0. */
    static const struct hd_exchange_stage stages[] = {
        {.rank = 0, .tensor_count = 5, .term_count = 4},
        {.rank = 1, .tensor_count = 3, .term_count = 2},
        {.rank = 1, .tensor_count = 3, .term_count = 2},
        {.rank = 0, .tensor_count = 4, .term_count = 3, .has_head = 1},
    };
    static const uint32_t terms[] = {0, 0, 5, 9}, squares[] = {4, 2, 7, 12};
    struct blocks blocks = blocks_begin(2, 4, stages);

    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT(blocks.exchange.stages[i].term_offset == terms[i]);
        CU_ASSERT(blocks.exchange.stages[i].square_offset == squares[i]);
    }
    CU_ASSERT(blocks.exchange.value_count == 16);
    CU_ASSERT(blocks.exchange.block_bytes == sizeof(struct hd_exchange_header) + 16 * 8);
    blocks_end(&blocks);
}

/* A rank without a term or a tensor (synthetic kernels) has a loss and a norm of nothing. */
static void empty_layout(void)
{
    static const struct hd_exchange_stage stages[] = {{.rank = 0}, {.rank = 1}};
    struct blocks blocks = blocks_begin(2, 2, stages);
    const struct hd_step_result result = judge(&blocks, 1.0);

    CU_ASSERT(blocks.exchange.block_bytes == sizeof(struct hd_exchange_header));
    CU_ASSERT(result.is_sound == 1 && result.is_finite == 1);
    CU_ASSERT(result.loss == 0.0 && result.grad_norm == 0.0 && result.gradient_scale == 1.0);
    blocks_end(&blocks);
}

/* Sums run over microbatches, ascending: 1e16 + 1 + 1 loses both ones, 1 + 1 + 1e16 does not. */
static void microbatch_order(void)
{
    static const double terms[3][2] = {{1e16, 1.0}, {1.0, 1.0}, {1.0, 1e16}};
    double out[2];

    hd_exchange_sum_terms(&terms[0][0], 3, 2, out);
    CU_ASSERT(out[0] == 1e16);
    CU_ASSERT(out[1] == 1e16 + 2.0);
    hd_exchange_sum_terms(&terms[0][0], 1, 2, out);
    CU_ASSERT(out[0] == 1e16 && out[1] == 1.0);
}

/*
 * The scalar chain of the public cases: y = w1 w0 x, loss y^2 / 2, x = 1, 2, 3, 4.  The kernel
 * scales a microbatch's term by the labels of the whole step, known beforehand, so the exchange
 * only adds.
 */
struct chain_row {
    const char *name;
    uint32_t microbatch_count, batch;
};

static void scalar_chain(void)
{
    static const struct chain_row rows[] = {
        {"C26: m=1 b=4", 1, 4}, {"C26: m=2 b=2", 2, 2}, {"C28, C23: m=4 b=1", 4, 1}};

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const struct hd_exchange_stage stages[] = {
            {.rank = 0, .tensor_count = 1},
            {.rank = 1, .tensor_count = 1, .term_count = 1, .has_head = 1}};
        struct blocks blocks = blocks_begin(2, 2, stages);
        double terms[4] = {0}, gradient = 0.0;
        for (uint32_t x = 1; x <= 4; x++) {
            const double y = x;
            terms[(x - 1) / rows[i].batch] += 0.5 * y * y * 0.25;
            gradient += y * y * 0.25;
        }
        hd_exchange_sum_terms(terms, rows[i].microbatch_count, 1, terms_at(&blocks, 1));
        *squares_at(&blocks, 0) = gradient * gradient;
        *squares_at(&blocks, 1) = gradient * gradient;
        const struct hd_step_result result = judge(&blocks, 0.0);
        CU_ASSERT(result.loss == 3.75);
        CU_ASSERT(fabs(result.grad_norm - 7.5 * sqrt(2.0)) < 1e-12);
        CU_ASSERT(result.gradient_scale == 1.0);
        blocks_end(&blocks);
    }
}

/* C32: P=4, two microbatches with losses 2 and 4: 3, whichever rank holds the head, and a rank
   without a loss adds none. */
static void loss_from_any_rank(void)
{
    for (uint32_t loss_rank = 0; loss_rank < 4; loss_rank++) {
        static const double terms[2] = {2.0 / 2, 4.0 / 2};
        struct hd_exchange_stage stages[4];
        for (uint32_t i = 0; i < 4; i++) {
            stages[i] = (struct hd_exchange_stage){.rank = (loss_rank + 1 + i) % 4,
                                                   .tensor_count = 2,
                                                   .term_count = i == 3,
                                                   .has_head = i == 3};
        }
        struct blocks blocks = blocks_begin(4, 4, stages);
        CU_ASSERT(blocks.exchange.stages[3].rank == loss_rank);
        hd_exchange_sum_terms(terms, 2, 1, terms_at(&blocks, 3));
        CU_ASSERT(judge(&blocks, 1.0).loss == 3.0);
        blocks_end(&blocks);
    }
}

/* C29: alpha = 0.01 and a unit auxiliary term in every microbatch of stage 1: 0.01 for every m. */
static void auxiliary_terms(void)
{
    for (uint32_t count = 1; count <= 4; count *= 2) {
        const struct hd_exchange_stage stages[] = {{.rank = 0, .term_count = 2},
                                                   {.rank = 1, .term_count = 3, .has_head = 1}};
        struct blocks blocks = blocks_begin(2, 2, stages);
        double terms[4][3];
        for (uint32_t microbatch = 0; microbatch < count; microbatch++) {
            terms[microbatch][0] = 0.01 / count; /* auxiliary_scale = 1 / m */
            terms[microbatch][1] = 0.001 / count;
            terms[microbatch][2] = 2.0 / count;
        }
        hd_exchange_sum_terms(&terms[0][0], count, 3, terms_at(&blocks, 1));
        const struct hd_step_result result = judge(&blocks, 1.0);
        CU_ASSERT(result.balance_loss == 0.01 && result.z_loss == 0.001 && result.loss == 2.0);
        blocks_end(&blocks);
    }
}

/* A model of 8 blocks with 3 tensors each, over awkward numbers, cut in every way: one result. */
static struct hd_step_result cut_model(uint32_t rank_count, uint32_t stage_count, uint32_t is_v)
{
    struct hd_exchange_stage stages[STAGE_MAX];
    const uint32_t blocks_each = 8 / stage_count;

    for (uint32_t i = 0; i < stage_count; i++) {
        const uint32_t turn = i / rank_count % 2;
        const uint32_t place = i % rank_count;
        stages[i] =
            (struct hd_exchange_stage){.rank = is_v && turn ? rank_count - 1 - place : place,
                                       .tensor_count = 3 * blocks_each,
                                       .term_count = 2 * blocks_each + (i + 1 == stage_count),
                                       .has_head = i + 1 == stage_count};
    }
    struct blocks blocks = blocks_begin(rank_count, stage_count, stages);
    for (uint32_t block = 0; block < 8; block++) {
        const uint32_t stage = block / blocks_each, local = block % blocks_each;
        terms_at(&blocks, stage)[2 * local] = 0.1 / (block + 1) * (block % 3 == 0 ? 1e8 : 1.0);
        terms_at(&blocks, stage)[2 * local + 1] = 0.7 / (block + 3) * (block == 4 ? 1e9 : 1.0);
        for (uint32_t tensor = 0; tensor < 3; tensor++) {
            squares_at(&blocks, stage)[3 * local + tensor] =
                (block == 2 ? 1e15 : 1.0) / (7 * block + tensor + 1);
        }
    }
    terms_at(&blocks, stage_count - 1)[2 * blocks_each] = 2.3;
    const struct hd_step_result result = judge(&blocks, 1.0);
    blocks_end(&blocks);
    return result;
}

static void cuts_do_not_show(void)
{
    static const uint32_t shapes[][3] = {{1, 2, 0}, {1, 8, 0}, {2, 2, 0}, {2, 4, 0}, {2, 4, 1},
                                         {2, 8, 1}, {4, 4, 0}, {4, 8, 0}, {4, 8, 1}};
    const struct hd_step_result whole = cut_model(1, 1, 0);

    CU_ASSERT(whole.is_sound && whole.is_finite && whole.loss == 2.3);
    for (unsigned i = 0; i < HD_CHECK_COUNT(shapes); i++) {
        const struct hd_step_result cut = cut_model(shapes[i][0], shapes[i][1], shapes[i][2]);
        CU_ASSERT(bits_apart(cut.loss, whole.loss) == 0.0);
        CU_ASSERT(bits_apart(cut.balance_loss, whole.balance_loss) == 0.0);
        CU_ASSERT(bits_apart(cut.z_loss, whole.z_loss) == 0.0);
        CU_ASSERT(bits_apart(cut.grad_norm, whole.grad_norm) == 0.0);
        CU_ASSERT(bits_apart(cut.gradient_scale, whole.gradient_scale) == 0.0);
    }
}

static const struct hd_exchange_stage two_stages[] = {
    {.rank = 0, .tensor_count = 2, .term_count = 2},
    {.rank = 1, .tensor_count = 1, .term_count = 3, .has_head = 1}};

static void clipping(void)
{
    static const struct {
        const char *name;
        double squares[3], clip_norm, norm, scale;
    } rows[] = {
        {"a norm over the limit is scaled to it", {9.0, 0.0, 16.0}, 1.0, 5.0, 0.2},
        {"a norm at the limit stays", {9.0, 0.0, 16.0}, 5.0, 5.0, 1.0},
        {"a norm under the limit stays", {0.09, 0.0, 0.16}, 1.0, 0.5, 1.0},
        {"clip_norm 0 never clips", {9e10, 0.0, 16e10}, 0.0, 5e5, 1.0},
        {"no gradient at all", {0.0, 0.0, 0.0}, 1.0, 0.0, 1.0},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct blocks blocks = blocks_begin(2, 2, two_stages);
        memcpy(squares_at(&blocks, 0), rows[i].squares, 2 * sizeof(double));
        *squares_at(&blocks, 1) = rows[i].squares[2];
        const struct hd_step_result result = judge(&blocks, rows[i].clip_norm);
        CU_ASSERT(result.is_sound && result.is_finite);
        CU_ASSERT(fabs(result.grad_norm - rows[i].norm) <= 1e-15 * rows[i].norm);
        CU_ASSERT(fabs(result.gradient_scale - rows[i].scale) <= 1e-15);
        blocks_end(&blocks);
    }
}

/* One value of each kind that is not finite: the step is sound, and nothing may be applied. */
static void non_finite(void)
{
    static const struct {
        const char *name;
        uint32_t stage, is_square, at;
        double value;
    } rows[] = {
        {"balance of stage 0 is NaN", 0, 0, 0, NAN},  {"z of stage 0 is inf", 0, 0, 1, INFINITY},
        {"z of stage 1 is NaN", 1, 0, 1, NAN},        {"loss is NaN", 1, 0, 2, NAN},
        {"loss is -inf", 1, 0, 2, -INFINITY},         {"a square of stage 0 is NaN", 0, 1, 1, NAN},
        {"the last square is inf", 1, 1, 0, INFINITY}};

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        for (unsigned clip = 0; clip < 2; clip++) {
            struct blocks blocks = blocks_begin(2, 2, two_stages);
            CU_ASSERT(judge(&blocks, clip).is_finite == 1);
            double *const values = rows[i].is_square ? squares_at(&blocks, rows[i].stage)
                                                     : terms_at(&blocks, rows[i].stage);
            values[rows[i].at] = rows[i].value;
            const struct hd_step_result result = judge(&blocks, clip);
            CU_ASSERT(result.is_sound == 1 && result.is_finite == 0);
            CU_ASSERT(result.gradient_scale == 0.0);
            blocks_end(&blocks);
        }
    }
}

/* clip_norm = 0 must not skip the vote (docs/architecture.md, "When things fail"). */
static void votes(void)
{
    static const struct {
        const char *name;
        uint64_t vote[2], step[2];
        uint32_t is_sound;
    } rows[] = {
        {"both vote", {1, 1}, {3, 3}, 1},
        {"rank 0 does not", {0, 1}, {3, 3}, 0},
        {"rank 1 does not", {1, 0}, {3, 3}, 0},
        {"a vote of rubbish is none", {1, 0xffffffffffffffffu}, {3, 3}, 0},
        {"rank 1 votes for another step", {1, 1}, {3, 2}, 0},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        for (unsigned clip = 0; clip < 2; clip++) {
            struct blocks blocks = blocks_begin(2, 2, two_stages);
            terms_at(&blocks, 1)[2] = 2.5;
            for (uint32_t rank = 0; rank < 2; rank++) {
                header_at(&blocks, rank)->vote = rows[i].vote[rank];
                header_at(&blocks, rank)->step = rows[i].step[rank];
            }
            const struct hd_step_result result = judge(&blocks, clip);
            CU_ASSERT(result.is_sound == rows[i].is_sound);
            CU_ASSERT(result.is_finite == rows[i].is_sound);
            CU_ASSERT(rows[i].is_sound ? result.loss == 2.5 : isnan(result.loss));
            CU_ASSERT(rows[i].is_sound || result.gradient_scale == 0.0);
            blocks_end(&blocks);
        }
    }
}

static void rates(void)
{
    static const struct {
        const char *name;
        struct hd_rate rate;
        uint32_t step;
        double wanted;
    } rows[] = {
        {"warm-up 0 begins whole", {1e-3, 0.1, 0, 60, 0}, 1, 1e-3},
        {"warm-up 1 begins whole", {1e-3, 0.1, 1, 60, 0}, 1, 1e-3},
        {"warm-up 10, first step", {3e-3, 0.1, 10, 60, 0}, 1, 3e-4},
        {"warm-up 10, step 9", {3e-3, 0.1, 10, 60, 0}, 9, 2.7e-3},
        {"warm-up 10, step 10 is whole", {3e-3, 0.1, 10, 60, 0}, 10, 3e-3},
        {"flat to the end", {3e-3, 0.1, 10, 60, 0}, 60, 3e-3},
        {"warm-up longer than the run", {1e-3, 0.1, 100, 10, 1}, 10, 1e-4},
        {"warm-up as long as the run", {1e-3, 0.1, 10, 10, 1}, 10, 1e-3},
        {"cosine begins whole", {1e-3, 0.1, 10, 60, 1}, 10, 1e-3},
        {"cosine halfway", {1e-3, 0.1, 10, 60, 1}, 35, 5.5e-4},
        {"cosine ends at its fraction", {1e-3, 0.1, 10, 60, 1}, 60, 1e-4},
        {"cosine to nothing", {1e-3, 0.0, 0, 4, 1}, 4, 0.0},
        {"cosine without warm-up, step 1 of 4", {1e-3, 0.0, 0, 4, 1}, 1, 8.5355339059327e-4},
        {"cosine past the end stays", {1e-3, 0.1, 10, 60, 1}, 61, 1e-4},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const double rate = hd_rate_at(&rows[i].rate, rows[i].step);
        CU_ASSERT(fabs(rate - rows[i].wanted) <= 1e-14 * rows[i].rate.learning_rate);
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"a rank's stages lie one behind the other in its block", layout},
        {"stages without terms and tensors give 0", empty_layout},
        {"terms are added over microbatches, ascending", microbatch_order},
        {"scalar chain: loss 3.75 and gradient 7.5 for every m (C23, C26, C28)", scalar_chain},
        {"the loss comes from the last stage alone, wherever it lies (C32)", loss_from_any_rank},
        {"auxiliary terms do not grow or shrink with m (C29)", auxiliary_terms},
        {"sums are the same bits for every cut and placement", cuts_do_not_show},
        {"a gradient is clipped to the norm and never stretched", clipping},
        {"one non-finite number makes the step non-finite (K8)", non_finite},
        {"a step without every vote is not sound, clip_norm 0 or not", votes},
        {"the learning rate warms up, stays or falls", rates},
    };
    return hd_check_main("step", checks, HD_CHECK_COUNT(checks));
}

/*
 * test_cuda_host.c - what the plugin cuda decides and counts on the host: no device, not even an
 * emulated one.
 *
 * Where scales lie, how many tiles a routing needs, how much scratch an op takes, and which way
 * MXFP8 goes.  Launches are noted and not made.
 */
#include "plugins/kernels/cuda/device.h"
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- scales ----------------------------------------------------------------------------------- */

struct tiling {
    const char *name;
    uint32_t outer, inner; /* of an operand: rows, blocks along them */
    uint64_t bytes;
};

static const struct tiling tilings[] = {
    {"one scale", 1, 1, 512},
    {"a tile", 128, 4, 512},
    {"one row more", 129, 4, 1024},
    {"one block more", 128, 5, 1024},
    {"both", 129, 5, 2048},
    {"a weight, 192 x 64", 192, 2, 1024},
    {"h200-1gpu's gate and up", 2048, 64, 131072},
    {"a tall one", 1000, 3, 4096},
    {"a wide one", 96, 33, 4608},
};

/* The layout by counting: walks the bytes in their order and says whose scale each is. */
static void walk_tiles(const struct tiling *tiling, uint8_t *seen)
{
    uint64_t byte = 0;
    for (uint32_t down = 0; down < tiling->outer; down += 128) {
        for (uint32_t across = 0; across < tiling->inner; across += 4) {
            for (uint32_t line = 0; line < 32; line++) {
                for (uint32_t quarter = 0; quarter < 4; quarter++) {
                    for (uint32_t block = 0; block < 4; block++, byte++) {
                        const uint32_t outer = down + 32 * quarter + line;
                        const uint32_t inner = across + block;
                        CU_ASSERT_EQUAL(hd_scale_at(outer, inner, tiling->inner), byte);
                        if (outer < tiling->outer && inner < tiling->inner) {
                            seen[byte]++;
                        }
                    }
                }
            }
        }
    }
    CU_ASSERT_EQUAL(byte, tiling->bytes);
}

static void test_scales(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(tilings); i++) {
        const struct tiling *tiling = &tilings[i];
        uint8_t *seen = calloc(tiling->bytes, 1);
        uint64_t count = 0;
        CU_ASSERT_PTR_NOT_NULL_FATAL(seen);
        CU_ASSERT_EQUAL_FATAL(hd_scale_bytes(tiling->outer, tiling->inner), tiling->bytes);
        walk_tiles(tiling, seen);
        for (uint64_t byte = 0; byte < tiling->bytes; byte++) {
            CU_ASSERT(seen[byte] <= 1);
            count += seen[byte];
        }
        CU_ASSERT_EQUAL(count, (uint64_t)tiling->outer * tiling->inner);
        free(seen);
    }
}

/* A few by hand, from the documentation's figure. */
static void test_known_scales(void)
{
    CU_ASSERT_EQUAL(hd_scale_at(0, 0, 4), 0);
    CU_ASSERT_EQUAL(hd_scale_at(0, 3, 4), 3);
    CU_ASSERT_EQUAL(hd_scale_at(32, 0, 4), 4);
    CU_ASSERT_EQUAL(hd_scale_at(96, 3, 4), 15);
    CU_ASSERT_EQUAL(hd_scale_at(1, 0, 4), 16);
    CU_ASSERT_EQUAL(hd_scale_at(127, 3, 4), 511);
    CU_ASSERT_EQUAL(hd_scale_at(0, 4, 8), 512);
    CU_ASSERT_EQUAL(hd_scale_at(128, 0, 8), 1024);
}

/* --- tiles ------------------------------------------------------------------------------------ */

enum { EXPERT_MAX = 16, ROW_MAX = 4096 };

struct routing {
    uint32_t experts;
    int32_t offsets[EXPERT_MAX + 1];
};

static struct hd_gemm_args product_of(const struct routing *routing, uint32_t row_max)
{
    return (struct hd_gemm_args){.a = {.dtype = HD_BF16, .rows = row_max, .columns = 64},
                                 .b = {.dtype = HD_BF16, .rows = 200, .columns = 64},
                                 .c = {.dtype = HD_BF16, .rows = row_max, .columns = 200},
                                 .form = HD_FPROP,
                                 .expert_count = routing->experts,
                                 .offsets = routing->offsets};
}

/* Each row is in one tile, with its own expert; answers how many tiles have one. */
static uint32_t cover(const struct routing *routing, uint32_t tile_count)
{
    static uint8_t expert_of[ROW_MAX];
    const uint32_t rows = (uint32_t)routing->offsets[routing->experts];
    uint32_t used = 0;
    memset(expert_of, 0xFF, sizeof expert_of);
    for (uint32_t tile = 0; tile < tile_count; tile++) {
        const struct hd_tile_place place = hd_tile_find(routing->offsets, routing->experts, tile);
        if (place.expert == routing->experts) {
            continue;
        }
        CU_ASSERT_EQUAL(used, tile); /* those without rows are the last */
        CU_ASSERT(place.first < place.end);
        for (uint32_t row = place.first; row < place.end && row < place.first + 128; row++) {
            CU_ASSERT_EQUAL(expert_of[row], 0xFF);
            expert_of[row] = (uint8_t)place.expert;
        }
        used++;
    }
    for (uint32_t row = 0; row < rows; row++) {
        const uint8_t expert = expert_of[row];
        CU_ASSERT_FATAL(expert < routing->experts);
        CU_ASSERT((uint32_t)routing->offsets[expert] <= row &&
                  row < (uint32_t)routing->offsets[expert + 1]);
    }
    return used;
}

/* Any split of `rows` among experts, each a multiple of 32; by `seed`, some have none. */
static struct routing route(uint32_t rows, uint32_t experts, uint32_t seed)
{
    struct routing routing = {.experts = experts};
    uint32_t left = rows / 32;
    for (uint32_t e = 0; e < experts; e++) {
        seed = seed * 1664525u + 1013904223u;
        const uint32_t own = e + 1 == experts ? left : (seed >> 8) % (left + 1);
        left -= own;
        routing.offsets[e + 1] = routing.offsets[e] + (int32_t)(32 * own);
    }
    return routing;
}

static void test_tiles_cover(void)
{
    for (uint32_t seed = 0; seed < 400; seed++) {
        const uint32_t experts = 1 + seed % EXPERT_MAX, rows = 32 * (1 + seed * 7 % 127);
        const struct routing routing = route(rows, experts, seed);
        const struct hd_gemm_args args = product_of(&routing, ROW_MAX);
        const struct hd_cuda_grid grid = hd_cuda_tile_grid(&args);
        uint32_t needed = 0;
        for (uint32_t e = 0; e < experts; e++) {
            needed += hd_cuda_blocks((uint64_t)(routing.offsets[e + 1] - routing.offsets[e]),
                                     HD_TILE_ROWS);
        }
        CU_ASSERT_EQUAL(grid.x, 2); /* 200 columns: a whole tile and a ragged one */
        CU_ASSERT(needed <= grid.y);
        CU_ASSERT_EQUAL(cover(&routing, grid.y), needed);
    }
}

/* All rows there can be, and each expert but the last with 32 in its last tile: the whole grid. */
static void test_worst_routing(void)
{
    for (uint32_t experts = 1; experts <= EXPERT_MAX; experts++) {
        for (uint32_t rest = 32; rest <= 128; rest += 32) {
            struct routing routing = {.experts = experts};
            for (uint32_t e = 0; e < experts; e++) {
                const uint32_t own = e + 1 < experts ? 128 * (e % 2) + 32 : 128 + rest;
                routing.offsets[e + 1] = routing.offsets[e] + (int32_t)own;
            }
            const uint32_t rows = (uint32_t)routing.offsets[experts];
            const struct hd_gemm_args args = product_of(&routing, rows);
            CU_ASSERT_EQUAL(cover(&routing, hd_cuda_tile_grid(&args).y),
                            hd_cuda_tile_grid(&args).y);
        }
    }
}

struct serving {
    const char *name;
    uint32_t form, a_rows, a_columns, b_rows, b_columns, a_type;
    struct hd_cuda_grid grid; /* x 0: the plain kernel makes it */
};

static const struct serving servings[] = {
    {"fprop, whole tiles", HD_FPROP, 256, 64, 384, 64, HD_BF16, {3, 2, 1}},
    {"fprop, ragged both ways", HD_FPROP, 130, 8, 2, 8, HD_BF16, {1, 2, 1}},
    {"fprop, one row", HD_FPROP, 1, 64, 64, 64, HD_BF16, {1, 1, 1}},
    {"fprop, an odd column", HD_FPROP, 64, 64, 35, 64, HD_BF16, {0}},
    {"fprop, lines of 12", HD_FPROP, 64, 12, 64, 12, HD_BF16, {0}},
    {"fprop, float32", HD_FPROP, 64, 64, 64, 64, HD_F32, {0}},
    {"dgrad, ragged", HD_DGRAD, 129, 64, 64, 136, HD_BF16, {2, 2, 1}},
    {"dgrad, lines of 4", HD_DGRAD, 64, 64, 64, 4, HD_BF16, {0}},
    {"wgrad, ragged", HD_WGRAD, 70, 136, 70, 264, HD_BF16, {3, 2, 1}},
    {"wgrad, lines of 20", HD_WGRAD, 64, 20, 64, 64, HD_BF16, {0}},
};

static void test_which_kernel(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(servings); i++) {
        const struct serving *row = &servings[i];
        const struct hd_gemm_args args = {
            .a = {.dtype = row->a_type, .rows = row->a_rows, .columns = row->a_columns},
            .b = {.dtype = HD_BF16, .rows = row->b_rows, .columns = row->b_columns},
            .c = {.dtype = HD_BF16,
                  .rows = row->a_rows,
                  .columns = row->form == HD_FPROP ? row->b_rows : row->b_columns},
            .form = row->form};
        const struct hd_cuda_grid grid = hd_cuda_tile_grid(&args);
        const int is_right = hd_cuda_tile_serves(&args) == (row->grid.x != 0) &&
                             (row->grid.x == 0 || memcmp(&grid, &row->grid, sizeof grid) == 0);
        if (!is_right) {
            printf("\n    %s: %u x %u x %u", row->name, grid.x, grid.y, grid.z);
        }
        CU_ASSERT(is_right);
    }
}

/* Of experts a weight's gradient has a tile for each, whatever rows they have. */
static void test_wgrad_of_experts(void)
{
    const struct routing routing = route(512, 5, 3);
    struct hd_gemm_args args = product_of(&routing, 512);
    args.form = HD_WGRAD;
    args.b.rows = 512;
    const struct hd_cuda_grid grid = hd_cuda_tile_grid(&args);
    CU_ASSERT_EQUAL(grid.x, 1);
    CU_ASSERT_EQUAL(grid.y, 1);
    CU_ASSERT_EQUAL(grid.z, 5);
}

/* --- scratch ---------------------------------------------------------------------------------- */

static hd_status note(struct hd_ops_device *device, enum hd_cuda_kernel kernel,
                      struct hd_cuda_grid grid, const void *args)
{
    (void)device, (void)args;
    CU_ASSERT(kernel < HD_CUDA_KERNEL_COUNT);
    CU_ASSERT(grid.x > 0 && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535);
    return HD_OK;
}

/* As cuBLASLt, with algorithms for everything. */
static hd_status note_product(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    (void)device, (void)args;
    return HD_OK;
}

static bool serves(const struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    (void)device, (void)args;
    return 1;
}

static const struct hd_stage_spec specs[] = {
    {.width = 64,
     .heads = 4,
     .key_value_heads = 2,
     .experts = 8,
     .experts_per_token = 2,
     .expert_width = 96,
     .vocabulary = 10000,
     .sequence = 65,
     .batch = 3,
     .has_head = 1},
    {.width = 64,
     .heads = 4,
     .key_value_heads = 4,
     .experts = 40,
     .experts_per_token = 2,
     .expert_width = 96,
     .vocabulary = 256,
     .sequence = 600,
     .batch = 1},
    {.width = 64,
     .heads = 4,
     .key_value_heads = 4,
     .expert_width = 96,
     .vocabulary = 100,
     .sequence = 17,
     .batch = 1,
     .has_head = 1},
    {.width = 64,
     .heads = 32,
     .key_value_heads = 32,
     .expert_width = 96,
     .vocabulary = 256,
     .sequence = 64,
     .batch = 1},
    {.width = 64,
     .heads = 4,
     .key_value_heads = 4,
     .expert_width = 320,
     .vocabulary = 256,
     .sequence = 32,
     .batch = 1,
     .precision = HD_PRECISION_MXFP8},
    {.width = 160,
     .heads = 4,
     .key_value_heads = 4,
     .expert_width = 32,
     .vocabulary = 256,
     .sequence = 288,
     .batch = 1,
     .precision = HD_PRECISION_MXFP8},
};

/* Products of a dense feed-forward, y = x W^T, in MXFP8. */
static void run_weight(struct hd_ops_device *device, uint32_t tokens, uint32_t rows,
                       uint32_t columns)
{
    for (uint32_t form = HD_FPROP; form <= HD_WGRAD; form++) {
        struct hd_gemm_args args = {.a = {.dtype = HD_BF16, .rows = tokens, .columns = rows},
                                    .b = {.dtype = HD_BF16, .rows = rows, .columns = columns},
                                    .form = form,
                                    .is_mxfp8 = 1};
        args.a.columns = form == HD_FPROP ? columns : rows;
        args.b.rows = form == HD_WGRAD ? tokens : rows;
        CU_ASSERT_EQUAL(hd_cuda_ops.gemm(device, &args), HD_OK);
    }
}

/* Every op that takes scratch, over exactly `bytes`; what does not suffice asserts. */
static void run_ops(const struct hd_stage_spec *spec, uint64_t bytes)
{
    struct hd_ops_device device = {.launch = note,
                                   .multiply = note_product,
                                   .has_mxfp8 = serves,
                                   .scratch = {malloc(bytes), bytes}};
    const uint32_t tokens = spec->batch * spec->sequence, width = spec->width;
    const struct hd_norm_args norm = {.row_count = tokens, .width = width};
    const struct hd_attention_args attention = {.batch = spec->batch,
                                                .sequence = spec->sequence,
                                                .heads = spec->heads,
                                                .key_value_heads = spec->key_value_heads,
                                                .head_width = width / spec->heads};
    const struct hd_route_args router = {.token_count = tokens,
                                         .width = width,
                                         .experts = spec->experts,
                                         .experts_per_token = spec->experts_per_token};
    const struct hd_rows_args rows = {.token_count = tokens,
                                      .width = width,
                                      .experts = spec->experts,
                                      .experts_per_token = spec->experts_per_token};
    const struct hd_head_args head = {
        .token_count = tokens, .width = width, .vocabulary = spec->vocabulary};
    const struct hd_gemm_args sum = {.c = {.dtype = HD_BF16, .rows = tokens, .columns = width},
                                     .add = {.data = device.scratch.at, .dtype = HD_F32},
                                     .form = HD_DGRAD};
    hd_cuda_ops.gemm(&device, &sum); /* of q, k and v */
    hd_cuda_ops.rms_norm_backward(&device, &norm);
    hd_cuda_ops.attention_backward(&device, &attention);
    if (spec->experts > 0) {
        hd_cuda_ops.route(&device, &router);
        hd_cuda_ops.route_backward(&device, &router);
        hd_cuda_ops.assign(&device, &rows);
    }
    if (spec->has_head) {
        hd_cuda_ops.head_loss(&device, &head);
        hd_cuda_ops.head_loss_backward(&device, &head);
    }
    if (spec->precision == HD_PRECISION_MXFP8) {
        run_weight(&device, tokens, 2 * spec->expert_width, width);
        run_weight(&device, tokens, width, spec->expert_width);
    }
    free(device.scratch.at);
}

/* The end of a child that runs the ops over so many bytes. */
static int end_of(const struct hd_stage_spec *spec, uint64_t bytes)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        fclose(stderr); /* the sentence of an assertion that is wanted */
        run_ops(spec, bytes);
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    return status;
}

static void test_scratch(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(specs); i++) {
        const uint64_t bytes = hd_cuda_scratch_bytes(&specs[i]);
        const int whole = end_of(&specs[i], bytes), less = end_of(&specs[i], bytes - 256);
        if (whole != 0 || !WIFSIGNALED(less)) {
            printf("\n    spec %u, %llu bytes: ends %x and with less %x", i,
                   (unsigned long long)bytes, (unsigned)whole, (unsigned)less);
        }
        CU_ASSERT_EQUAL(whole, 0);
        CU_ASSERT(WIFSIGNALED(less) && WTERMSIG(less) == SIGABRT);
    }
}

/* --- which way MXFP8 goes --------------------------------------------------------------------- */

struct decision {
    const char *name;
    struct hd_cuda_mxfp8_facts facts;
    const char *missing; /* a part of the clause */
};

static const struct decision decisions[] = {
    {"a B200, dense", {0, 1, 100, 3}, NULL},
    {"a later one", {0, 1, 120, 3}, NULL},
    {"an H200", {0, 1, 90, 3}, "compute capability 10.0"},
    {"below by one", {0, 1, 99, 3}, "compute capability 10.0"},
    {"a B200, experts", {8, 1, 100, 3}, "only the device knows"},
    {"one expert", {1, 1, 100, 3}, "only the device knows"},
    {"our own products", {0, 0, 100, 3}, "kernel.cuda.products"},
    {"two of three", {0, 1, 100, 2}, "each of the three products"},
    {"none of three", {0, 1, 100, 0}, "each of the three products"},
    {"an H200, whatever it may say", {0, 1, 90, 0}, "compute capability 10.0"},
};

static void test_decisions(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(decisions); i++) {
        const char *missing = hd_cuda_mxfp8_missing(&decisions[i].facts);
        const int is_right = decisions[i].missing == NULL
                                 ? missing == NULL
                                 : missing != NULL && strstr(missing, decisions[i].missing) != NULL;
        if (!is_right) {
            printf("\n    %s: %s", decisions[i].name, missing != NULL ? missing : "nothing");
        }
        CU_ASSERT(is_right);
    }
}

static void test_ways(void)
{
    static const struct {
        enum hd_cuda_wish wish;
        enum hd_cuda_way complete, lacking;
    } rows[] = {
        {HD_CUDA_WISH_AUTO, HD_CUDA_WAY_NATIVE, HD_CUDA_WAY_EMULATED},
        {HD_CUDA_WISH_EMULATED, HD_CUDA_WAY_EMULATED, HD_CUDA_WAY_EMULATED},
        {HD_CUDA_WISH_NATIVE, HD_CUDA_WAY_NATIVE, HD_CUDA_WAY_REFUSED},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        CU_ASSERT_EQUAL(hd_cuda_mxfp8_way(rows[i].wish, NULL), rows[i].complete);
        CU_ASSERT_EQUAL(hd_cuda_mxfp8_way(rows[i].wish, "something"), rows[i].lacking);
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"scales: each has one byte of its tile, and every byte is counted", test_scales},
        {"scales: those of the documentation's figure", test_known_scales},
        {"tiles: every row of every routing is in one", test_tiles_cover},
        {"tiles: the worst routing needs the whole grid", test_worst_routing},
        {"tiles: which products they serve, and in what grid", test_which_kernel},
        {"tiles: a weight gradient has its own for each expert", test_wgrad_of_experts},
        {"scratch: what is counted is what the ops take", test_scratch},
        {"mxfp8: what native products lack", test_decisions},
        {"mxfp8: auto, emulated, native", test_ways},
    };
    return hd_check_main("cuda_host", checks, HD_CHECK_COUNT(checks));
}

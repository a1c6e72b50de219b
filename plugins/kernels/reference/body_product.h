/*
 * plugins/kernels/reference/body_product.h - the one product behind every op (see body.h).
 *
 * C[i,j] = sum over l of A(i,l) B(l,j); the strides of the operands say what is transposed.
 * Panels of 4 rows of A and of 16 columns of B are packed as `stat`, so that the inner
 * loop reads both in order.  It computes 16 results at once, over l ascending, so the bits
 * of a result do not depend on the position of its row.
 */

enum { ROW_TILE = 4, COLUMN_TILE = 16, TILES_KEPT = 8, COLUMNS_KEPT = COLUMN_TILE * TILES_KEPT };

/* One operand: the element (free index, depth index) is data[free * step + depth * depth_step]. */
struct operand {
    const void *data;
    uint32_t dtype;
    size_t step, depth_step;
};

struct product {
    struct operand a, b;
    size_t rows, columns, depth;
    void *c;
    uint32_t c_dtype, adds_to_c; /* adds_to_c: C += */
    const void *add;             /* or NULL; shaped as C */
    uint32_t add_dtype;
};

static uint64_t product_panel_bytes(uint64_t depth)
{
    return (depth * (COLUMNS_KEPT + ROW_TILE) * sizeof(stat) + 63) / 64 * 64;
}

/* For the longest sum of any product of such a stage. */
static uint64_t product_panel_bytes_of(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    const uint64_t rows = tokens * (spec->experts ? spec->experts_per_token : 1);
    const uint64_t chunk = spec->vocabulary < HD_HEAD_CHUNK ? spec->vocabulary : HD_HEAD_CHUNK;
    const uint64_t lengths[] = {rows + 31ull * spec->experts, tokens, spec->width,
                                2ull * spec->expert_width,    chunk,  spec->experts};
    uint64_t depth = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        depth = lengths[i] > depth ? lengths[i] : depth;
    }
    return product_panel_bytes(depth);
}

/* A packed operand: values[depth][tile]. */
struct panel {
    stat *values;
    size_t tile, depth;
};

/* Packs `count` <= tile free indices from `first`; the rest are zeros already. */
static void product_pack_act(const struct operand *from, size_t first, size_t count,
                             struct panel panel)
{
    const act *data = (const act *)from->data + first * from->step;
    for (size_t l = 0; l < panel.depth; l++) {
        for (size_t i = 0; i < count; i++) {
            panel.values[l * panel.tile + i] = load(data[i * from->step + l * from->depth_step]);
        }
    }
}

static void product_pack_stat(const struct operand *from, size_t first, size_t count,
                              struct panel panel)
{
    const stat *data = (const stat *)from->data + first * from->step;
    for (size_t l = 0; l < panel.depth; l++) {
        for (size_t i = 0; i < count; i++) {
            panel.values[l * panel.tile + i] = data[i * from->step + l * from->depth_step];
        }
    }
}

static void product_pack(const struct operand *from, size_t first, size_t limit, struct panel panel)
{
    const size_t count = limit - first < panel.tile ? limit - first : panel.tile;
    if (count < panel.tile) {
        memset(panel.values, 0, panel.tile * panel.depth * sizeof(stat));
    }
    if (from->dtype == STAT_DTYPE) {
        product_pack_stat(from, first, count, panel);
    } else {
        product_pack_act(from, first, count, panel);
    }
}

/* sums[i][j] = sum over l, ascending, of rows[l][i] columns[l][j].  There are four arrays instead
   of one, because the compilers keep these in registers. */
static void product_multiply_tile(const stat *restrict rows, const stat *restrict columns,
                                  size_t depth, stat sums[restrict ROW_TILE][COLUMN_TILE])
{
    stat sum0[COLUMN_TILE] = {0}, sum1[COLUMN_TILE] = {0};
    stat sum2[COLUMN_TILE] = {0}, sum3[COLUMN_TILE] = {0};
    for (size_t l = 0; l < depth; l++) {
        const stat *left = rows + l * ROW_TILE, *right = columns + l * COLUMN_TILE;
        const stat left0 = left[0], left1 = left[1], left2 = left[2], left3 = left[3];
        for (size_t j = 0; j < COLUMN_TILE; j++) {
            sum0[j] += left0 * right[j];
            sum1[j] += left1 * right[j];
            sum2[j] += left2 * right[j];
            sum3[j] += left3 * right[j];
        }
    }
    memcpy(sums[0], sum0, sizeof sum0);
    memcpy(sums[1], sum1, sizeof sum1);
    memcpy(sums[2], sum2, sizeof sum2);
    memcpy(sums[3], sum3, sizeof sum3);
}

/* sums[j] += add[index + j]. */
static void product_add_row(const struct product *p, size_t index, size_t count, stat *sums)
{
    const stat *as_stat = (const stat *)p->add + index;
    const act *as_act = (const act *)p->add + index;
    if (p->add_dtype == STAT_DTYPE) {
        for (size_t j = 0; j < count; j++) {
            sums[j] += as_stat[j];
        }
    } else {
        for (size_t j = 0; j < count; j++) {
            sums[j] += load(as_act[j]);
        }
    }
}

/* `count` results of one row, the first of them at `index` of C. */
static void product_put_row(const struct product *p, size_t index, size_t count, stat *sums)
{
    stat *as_stat = (stat *)p->c + index;
    act *as_act = (act *)p->c + index;
    if (p->add != NULL) {
        product_add_row(p, index, count, sums);
    }
    if (p->adds_to_c) {
        for (size_t j = 0; j < count; j++) {
            as_stat[j] += sums[j];
        }
    } else if (p->c_dtype == STAT_DTYPE) {
        memcpy(as_stat, sums, count * sizeof(stat));
    } else {
        for (size_t j = 0; j < count; j++) {
            as_act[j] = store(sums[j]);
        }
    }
}

static void product_put_tile(const struct product *p, size_t row, size_t column,
                             stat sums[ROW_TILE][COLUMN_TILE])
{
    const size_t left = p->columns - column, count = left < COLUMN_TILE ? left : COLUMN_TILE;
    for (size_t i = 0; i < ROW_TILE && row + i < p->rows; i++) {
        product_put_row(p, (row + i) * p->columns + column, count, sums[i]);
    }
}

/* Packs the columns [begin, end) of B, tile after tile. */
static void product_pack_columns(const struct product *p, size_t begin, size_t end, stat *panels)
{
    for (size_t column = begin; column < end; column += COLUMN_TILE) {
        stat *values = panels + (column - begin) * p->depth;
        product_pack(&p->b, column, p->columns, (struct panel){values, COLUMN_TILE, p->depth});
    }
}

static void product_multiply(const struct hd_ops_device *device, const struct product *p)
{
    const uint64_t panels = product_panel_bytes(p->depth);
    assert(panels <= device->scratch_bytes);
    stat *row_panel = (stat *)(void *)(device->scratch + (device->scratch_bytes - panels));
    stat *column_panels = row_panel + p->depth * ROW_TILE;
    for (size_t begin = 0; begin < p->columns; begin += COLUMNS_KEPT) {
        const size_t end = begin + COLUMNS_KEPT < p->columns ? begin + COLUMNS_KEPT : p->columns;
        product_pack_columns(p, begin, end, column_panels);
        for (size_t row = 0; row < p->rows; row += ROW_TILE) {
            product_pack(&p->a, row, p->rows, (struct panel){row_panel, ROW_TILE, p->depth});
            for (size_t column = begin; column < end; column += COLUMN_TILE) {
                stat sums[ROW_TILE][COLUMN_TILE];
                const stat *columns = column_panels + (column - begin) * p->depth;
                product_multiply_tile(row_panel, columns, p->depth, sums);
                product_put_tile(p, row, column, sums);
            }
        }
    }
}

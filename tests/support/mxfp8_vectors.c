/* tests/support/mxfp8_vectors.c - reads the table. */
#include "support/mxfp8_vectors.h"
#include "base/bf16.h"
#include "support/check.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32 };

static uint8_t read_byte(const char *text)
{
    const char digits[3] = {text[0], text[1], '\0'};
    return (uint8_t)strtoul(digits, NULL, 16);
}

static void read_elements(const char *text, uint8_t *elements)
{
    assert(strlen(text) == (size_t)2 * BLOCK);
    for (unsigned i = 0; i < BLOCK; i++) {
        elements[i] = read_byte(text + (size_t)2 * i);
    }
}

/* id,name,floor scale,floor elements,up scale,up elements,32 values */
static void read_vector(char *line, struct hd_mxfp8_vector *out)
{
    char *rest = line, *fields[6 + BLOCK];
    for (unsigned field = 0; field < 6 + BLOCK; field++) {
        fields[field] = strsep(&rest, ",\n");
        assert(fields[field] != NULL);
    }
    snprintf(out->name, sizeof out->name, "%s", fields[1]);
    out->scale[1] = read_byte(fields[2]);
    out->scale[0] = read_byte(fields[4]);
    read_elements(fields[3], out->elements[1]);
    read_elements(fields[5], out->elements[0]);
    out->is_bf16 = 1;
    for (unsigned i = 0; i < BLOCK; i++) {
        const float value = strtof(fields[6 + i], NULL);
        out->values[i] = value;
        out->is_bf16 &= isnan(value) || hd_bf16_to_float(hd_bf16_from_float(value)) == value;
    }
}

static void read_vectors(struct hd_mxfp8_vectors *vectors)
{
    char line[4096];
    FILE *file = fopen(hd_check_source("tests/golden/mxfp8_vectors.csv"), "r");
    assert(file != NULL);
    for (unsigned row = 0; fgets(line, sizeof line, file) != NULL; row++) {
        assert(vectors->count < HD_MXFP8_VECTOR_MAX);
        if (row > 0) { /* the first has the names of the columns */
            read_vector(line, &vectors->rows[vectors->count++]);
        }
    }
    fclose(file);
}

const struct hd_mxfp8_vectors *hd_mxfp8_vectors(void)
{
    static struct hd_mxfp8_vectors vectors;
    if (vectors.count == 0) {
        read_vectors(&vectors);
    }
    return &vectors;
}

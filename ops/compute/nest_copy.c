/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between tensors with strides, of any type: Transpose, Slice, Split, Expand. */
#include "ops/compute/support.h"

#include <string.h>

#define TILE 32

/* b[i * stride_b] = a[i * stride_a], for one size of elements. */
#define COPY(bytes)                                                                                \
    for (int64_t i = 0; i < count; i++) {                                                          \
        memcpy(b + (bytes)*i * stride_b, a + (bytes)*i * stride_a, bytes);                         \
    }
static void copy_run(const char *a, int64_t stride_a, char *b, int64_t stride_b, int64_t count,
                     int64_t elem)
{
    if (stride_a == 1 && stride_b == 1) {
        memcpy(b, a, (size_t)(count * elem));
    } else if (elem == 4 && stride_b == 1) {
        for (int64_t i = 0; i < count; i++) {
            memcpy(b + 4 * i, a + 4 * i * stride_a, 4);
        }
    } else if (elem == 4) {
        COPY(4)
    } else if (elem == 8) {
        COPY(8)
    } else if (elem == 2) {
        COPY(2)
    } else {
        COPY(1)
    }
}

/* Matrices go in tiles, so that both sides stay in cache. */
static void copy_tiles(const wefti_nest_t *nest, const char *a, char *b, int64_t elem)
{
    int64_t rows = nest->dims[0], columns = nest->dims[1];
    for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
        for (int64_t c0 = 0; c0 < columns; c0 += TILE) {
            int64_t width = columns - c0 < TILE ? columns - c0 : TILE;
            for (int64_t r = r0; r < rows && r < r0 + TILE; r++) {
                copy_run(a + elem * (r * nest->a[0] + c0 * nest->a[1]), nest->a[1],
                         b + elem * (r * nest->b[0] + c0 * nest->b[1]), nest->b[1], width, elem);
            }
        }
    }
}

void wefti_nest_copy(const wefti_nest_t *nest, const void *a, void *b, size_t elem_bytes)
{
    int64_t elem = (int64_t)elem_bytes;
    uint32_t last = nest->rank - 1;
    wefti_nest_at_t at = {0};
    if (nest->empty) {
        return;
    }
    if (nest->rank == 2 && nest->a[1] != 1) {
        copy_tiles(nest, a, b, elem);
        return;
    }
    bool one = nest->dims[last] == 1; /* its strides were never set */
    do {
        copy_run((const char *)a + elem * at.a, one ? 1 : nest->a[last], (char *)b + elem * at.b,
                 one ? 1 : nest->b[last], nest->dims[last], elem);
    } while (wefti_nest_next(nest, &at));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between tensors with strides, of any type: Transpose, Slice, Split, Expand. */
#include "ops/compute/support.h"
#include "ops/compute/vector.h"
#include "runtime/base/parallel.h"

#include <string.h>

#define TILE 32
#define TURN 64 /* elements that lie side by side afterwards: some lines */

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

/* 4 x 4 elements of 4 bytes; strides are those of rows. */
static inline void turn(const char *a, int64_t stride_a, char *b, int64_t stride_b)
{
    const wefti_f32x4_t r0 = WEFTI_F32X(4, a), r1 = WEFTI_F32X(4, a + 4 * stride_a);
    const wefti_f32x4_t r2 = WEFTI_F32X(4, a + 8 * stride_a), r3 = WEFTI_F32X(4, a + 12 * stride_a);
    const wefti_f32x4_t low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
    const wefti_f32x4_t high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    const wefti_f32x4_t low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    const wefti_f32x4_t high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    WEFTI_F32X(4, b) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    WEFTI_F32X(4, b + 4 * stride_b) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    WEFTI_F32X(4, b + 8 * stride_b) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    WEFTI_F32X(4, b + 12 * stride_b) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

/* 8 x 8 elements of 2 bytes: three rounds, each of which interleaves rows i and i + 4. */
static inline void turn_halves(const char *a, int64_t stride_a, char *b, int64_t stride_b)
{
    typedef uint16_t u16x8_t __attribute__((vector_size(16), aligned(2), may_alias));
    u16x8_t rows[8], next[8];
    for (int i = 0; i < 8; i++) {
        rows[i] = *(const u16x8_t *)(const void *)(a + 2 * i * stride_a);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            next[2 * i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            next[2 * i + 1] =
                __builtin_shufflevector(rows[i], rows[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(rows, next, sizeof(rows));
    }
    for (int i = 0; i < 8; i++) {
        *(u16x8_t *)(void *)(b + 2 * i * stride_b) = rows[i];
    }
}

/* The two innermost dimensions as a matrix, from a row and column on: in tiles, so that both sides
 * stay in cache. */
static void copy_tiles(const wefti_nest_t *nest, int64_t row, int64_t column, const char *a,
                       char *b, int64_t elem)
{
    const uint32_t in = nest->rank - 1, out = in - 1;
    const int64_t rows = nest->dims[out], columns = nest->dims[in];
    for (int64_t r0 = row; r0 < rows; r0 += TILE) {
        for (int64_t c0 = column; c0 < columns; c0 += TILE) {
            int64_t width = columns - c0 < TILE ? columns - c0 : TILE;
            for (int64_t r = r0; r < rows && r < r0 + TILE; r++) {
                copy_run(a + elem * (r * nest->a[out] + c0 * nest->a[in]), nest->a[in],
                         b + elem * (r * nest->b[out] + c0 * nest->b[in]), nest->b[in], width,
                         elem);
            }
        }
    }
}

/* Rows of a become columns of b, whose lines of memory are filled one after the other. */
static void copy_turned(const wefti_nest_t *nest, const char *a, char *b, int64_t elem)
{
    const uint32_t in = nest->rank - 1, out = in - 1;
    const int64_t side = 16 / elem; /* of a block: elements of a vector */
    const int64_t rows = nest->dims[out] / side * side, columns = nest->dims[in] / side * side;
    wefti_nest_t left = *nest; /* of the rows that are turned, the last columns */
    for (int64_t c0 = 0; c0 < columns; c0 += TURN) {
        const int64_t end = c0 + TURN < columns ? c0 + TURN : columns;
        for (int64_t r = 0; r < rows; r += side) {
            for (int64_t c = c0; c < end; c += side) {
                const char *from = a + elem * (r + c * nest->a[in]);
                char *to = b + elem * (r * nest->b[out] + c);
                if (elem == 4) {
                    turn(from, nest->a[in], to, nest->b[out]);
                } else {
                    turn_halves(from, nest->a[in], to, nest->b[out]);
                }
            }
        }
    }
    left.dims[out] = rows;
    copy_tiles(&left, 0, columns, a, b, elem);
    copy_tiles(nest, rows, 0, a, b, elem);
}

void wefti_nest_copy(const wefti_nest_t *nest, const void *a, void *b, size_t elem_bytes)
{
    int64_t elem = (int64_t)elem_bytes;
    uint32_t last = nest->rank - 1;
    wefti_nest_at_t at = {0};
    if (nest->empty) {
        return;
    }
    if (nest->rank >= 2 && nest->a[last] != 1 && (nest->rank == 2 || nest->a[last - 1] == 1)) {
        wefti_nest_t outer = *nest; /* its innermost dimension is a matrix */
        outer.rank--;
        do {
            const char *from = (const char *)a + elem * at.a;
            char *to = (char *)b + elem * at.b;
            if ((elem == 4 || elem == 2) && nest->a[last - 1] == 1 && nest->b[last] == 1) {
                copy_turned(nest, from, to, elem);
            } else {
                copy_tiles(nest, 0, 0, from, to, elem);
            }
        } while (wefti_nest_next(&outer, &at));
        return;
    }
    bool one = nest->dims[last] == 1; /* its strides were never set */
    do {
        copy_run((const char *)a + elem * at.a, one ? 1 : nest->a[last], (char *)b + elem * at.b,
                 one ? 1 : nest->b[last], nest->dims[last], elem);
    } while (wefti_nest_next(nest, &at));
}

typedef struct divided {
    const wefti_nest_t *nest;
    uint32_t by; /* the dimension that is divided */
    const char *a;
    char *b;
    size_t elem_bytes;
} divided_t;

static void copy_range(const void *job, wefti_range_t range)
{
    const divided_t *d = job;
    wefti_nest_t nest = *d->nest;
    const int64_t elem = (int64_t)d->elem_bytes;
    nest.dims[d->by] = range.to - range.from;
    wefti_nest_copy(&nest, d->a + elem * range.from * nest.a[d->by],
                    d->b + elem * range.from * nest.b[d->by], d->elem_bytes);
}

void wefti_nest_copy_by(uint32_t threads, const wefti_nest_t *nest, const void *a, void *b,
                        size_t elem_bytes)
{
    divided_t d = {.nest = nest, .a = a, .b = b, .elem_bytes = elem_bytes};
    int64_t count = 1;
    if (nest->empty) {
        return;
    }
    for (uint32_t i = 0; i < nest->rank; i++) {
        count *= nest->dims[i];
        /* The first that has enough, else the largest. */
        d.by = nest->dims[d.by] < threads && nest->dims[i] > nest->dims[d.by] ? i : d.by;
    }
    if (threads < 2 || nest->dims[d.by] == 1) {
        wefti_nest_copy(nest, a, b, elem_bytes);
        return;
    }
    wefti_parallel_for(threads, nest->dims[d.by],
                       wefti_grain_rows(count / nest->dims[d.by] * (int64_t)elem_bytes / 4),
                       copy_range, &d);
}

void wefti_copy_by(uint32_t threads, const void *a, void *b, size_t count)
{
    const wefti_nest_t nest = {
        .rank = 1, .dims = {(int64_t)count}, .a = {1}, .b = {1}, .empty = count == 0};
    wefti_nest_copy_by(threads, &nest, a, b, 1);
}

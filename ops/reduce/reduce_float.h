/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sum, avg and prod in f32 of f32, f16, bf16 and, between steps, of wide sums beside halves:
 * written once over the vectors of an instruction set. The file that includes this defines TARGET,
 * LANES, and
 *
  *   vector_t                      LANES elements in f32, as two registers a and b: of bf16 the
 *                                 even and the odd elements, which costs no shuffle; else the lower
 *                                 and the upper half
 *   load, load_wide(dtype, from, at, lanes)       fewer lanes than LANES: the rest is zero
 *   combine(prod, x, y), scale(x, by, divides)
 *   any_nan(x), quiet(x)                          quiet: any NaN becomes the one quiet NaN of f32
 *   narrow(dtype, x)                              rounded once to nearest even, denormals kept
 *   store, store_wide(dtype, to, at, x, lanes)    what narrow returned; f32
 *
 * all inlined where dtype and, but for tails, lanes are constants.
 */
#ifndef WEFT_OPS_REDUCE_FLOAT_H
#define WEFT_OPS_REDUCE_FLOAT_H

#if defined(LANES) /* else this header is looked at alone */

#include "ops/reduce/reduce_internal.h"

/* What is constant in one kernel. */
typedef struct how {
    weft_dtype_t dtype;
    bool prod;
    bool mixed;    /* some sources may be wide, and destinations where wide_out */
    bool wide_out; /* looked at once per vector: need not be a constant */
    bool small;    /* little code instead of straight-line code */
} how_t;

INLINED vector_t tree1(how_t how, const void *const *from, const uint8_t *wide, size_t at,
                       size_t lanes)
{
    return how.mixed && wide[0] ? load_wide(how.dtype, from[0], at, lanes)
                                : load(how.dtype, from[0], at, lanes);
}

INLINED vector_t tree2(how_t how, const void *const *from, const uint8_t *wide, size_t at,
                       size_t lanes)
{
    return combine(how.prod, tree1(how, from, wide, at, lanes),
                   tree1(how, from + 1, how.mixed ? wide + 1 : wide, at, lanes));
}

INLINED vector_t tree4(how_t how, const void *const *from, const uint8_t *wide, size_t at,
                       size_t lanes)
{
    return combine(how.prod, tree2(how, from, wide, at, lanes),
                   tree2(how, from + 2, how.mixed ? wide + 2 : wide, at, lanes));
}

INLINED vector_t tree8(how_t how, const void *const *from, const uint8_t *wide, size_t at,
                       size_t lanes)
{
    return combine(how.prod, tree4(how, from, wide, at, lanes),
                   tree4(how, from + 4, how.mixed ? wide + 4 : wide, at, lanes));
}

/* The tree by binary counter over subtrees of 8 or, if small, 2, see reduce_portable.c;
 * straight-line code where count is a constant up to 8. */
INLINED vector_t tree(how_t how, const void *const *from, const uint8_t *wide, uint32_t count,
                      size_t at, size_t lanes)
{
    const uint32_t leaves = how.small ? 2 : 8;
    vector_t stack[12];
    uint32_t depth = 0;
    uint32_t done = 0;
    for (; count - done >= leaves; done += leaves) {
        vector_t all = how.small ? tree2(how, from + done, wide + done, at, lanes)
                                 : tree8(how, from + done, wide, at, lanes);
        for (uint32_t ones = done / leaves; ones & 1u; ones >>= 1) {
            all = combine(how.prod, stack[--depth], all);
        }
        stack[depth++] = all;
    }
    if (!how.small && count & 4u) {
        stack[depth++] = tree4(how, from + done, wide, at, lanes);
        done += 4;
    }
    if (!how.small && count & 2u) {
        stack[depth++] = tree2(how, from + done, wide, at, lanes);
        done += 2;
    }
    if (count & 1u) {
        stack[depth++] = tree1(how, from + done, how.mixed ? wide + done : wide, at, lanes);
    }
    vector_t all = stack[--depth];
    while (depth > 0) {
        all = combine(how.prod, stack[--depth], all);
    }
    return all;
}

/* NaNs are rare and a branch that is never taken is cheaper than mending every vector. */
INLINED vector_t finish(how_t how, vector_t x, float by, int scaling)
{
    if (scaling != 0) {
        x = scale(x, by, scaling == 2);
    }
    if (__builtin_expect(any_nan(x), 0)) {
        x = quiet(x);
    }
    return how.mixed && how.wide_out ? x : narrow(how.dtype, x);
}

INLINED void store_all(how_t how, void *const *to, uint32_t to_count, size_t at, vector_t x,
                       size_t lanes)
{
    for (uint32_t d = 0; d < to_count; d++) {
        if (how.mixed && how.wide_out) {
            store_wide(how.dtype, to[d], at, x, lanes);
        } else {
            store(how.dtype, to[d], at, x, lanes);
        }
    }
}

/*
 * Halves take several times the instructions per byte of f32, so fewer lines are on their way at a
 * time: those that another core has just written are asked for ahead. Measured between two cores: a
 * tenth to a sixth less time from 16 KiB on; f32 gains nothing.
 */
#define AHEAD_BYTES ((size_t)1024)

INLINED void ask_ahead(how_t how, const void *const *from, uint32_t from_count, size_t at,
                       size_t elem_count)
{
    const size_t ahead = (at * 2) + AHEAD_BYTES;
    if (how.dtype == WEFT_DTYPE_F32 || ahead >= elem_count * 2) {
        return;
    }
    for (uint32_t k = 0; k < from_count; k++) {
        for (size_t line = 0; line < 2 * LANES * 2; line += 64) {
            __builtin_prefetch((const uint8_t *)from[k] + ahead + line, 0, 3);
        }
    }
}

INLINED void body(how_t how, const wefti_reduce_step_t *step, void *const *to, uint32_t to_count,
                  const void *const *from, uint32_t from_count)
{
    const size_t elem_count = (size_t)step->elem_count;
    const float divisor = wefti_reduce_divisor(step);
    const int scaling = divisor <= 1.0f ? 0 : wefti_is_power_of_two((uint32_t)divisor) ? 1 : 2;
    const float by = scaling == 1 ? 1.0f / divisor : divisor;
    const uint8_t *wide = step->wide;
    size_t at = 0;
    for (; !how.small && elem_count - at >= 2 * LANES; at += 2 * LANES) {
        ask_ahead(how, from, from_count, at, elem_count);
        vector_t x = tree(how, from, wide, from_count, at, LANES);
        vector_t y = tree(how, from, wide, from_count, at + LANES, LANES);
        x = finish(how, x, by, scaling);
        y = finish(how, y, by, scaling);
        for (uint32_t d = 0; d < to_count; d++) {
            store_all(how, to + d, 1, at, x, LANES);
            store_all(how, to + d, 1, at + LANES, y, LANES);
        }
    }
    for (; elem_count - at >= LANES; at += LANES) {
        vector_t x = finish(how, tree(how, from, wide, from_count, at, LANES), by, scaling);
        store_all(how, to, to_count, at, x, LANES);
    }
    if (at < elem_count) {
        const size_t lanes = elem_count - at;
        vector_t x = finish(how, tree(how, from, wide, from_count, at, lanes), by, scaling);
        store_all(how, to, to_count, at, x, lanes);
    }
}

/* The counts of small groups as constants; the addresses of two in locals, where stores cannot
 * seem to change them. */
#define DEFINE_SUM(name, type)                                                                     \
    TARGET static void name(const wefti_reduce_step_t *step)                                       \
    {                                                                                              \
        const how_t how = {.dtype = type};                                                         \
        if (step->source_count == 2) {                                                             \
            const void *const from[2] = {step->sources[0], step->sources[1]};                      \
            if (step->destination_count == 2) {                                                    \
                void *const to[2] = {step->destinations[0], step->destinations[1]};                \
                body(how, step, to, 2, from, 2);                                                   \
            } else {                                                                               \
                body(how, step, step->destinations, step->destination_count, from, 2);             \
            }                                                                                      \
        } else if (step->source_count == 4) {                                                      \
            body(how, step, step->destinations, step->destination_count, step->sources, 4);        \
        } else if (step->source_count == 8) {                                                      \
            body(how, step, step->destinations, step->destination_count, step->sources, 8);        \
        } else {                                                                                   \
            body(how, step, step->destinations, step->destination_count, step->sources,            \
                 step->source_count);                                                              \
        }                                                                                          \
    }

static const uint8_t none[WEFT_MAX_GROUP_DIRECT]; /* no source is wide */

#define DEFINE_MIXED(name, type, is_prod)                                                          \
    TARGET static void name(const wefti_reduce_step_t *step)                                       \
    {                                                                                              \
        const how_t how = {type, is_prod, true, !step->finish, true};                              \
        wefti_reduce_step_t mixed = *step;                                                         \
        mixed.wide = step->wide ? step->wide : none;                                               \
        body(how, &mixed, step->destinations, step->destination_count, step->sources,              \
             step->source_count);                                                                  \
    }

DEFINE_SUM(sum_f32, WEFT_DTYPE_F32)
DEFINE_SUM(sum_f16, WEFT_DTYPE_F16)
DEFINE_SUM(sum_bf16, WEFT_DTYPE_BF16)
DEFINE_MIXED(mixed_sum_f16, WEFT_DTYPE_F16, false)
DEFINE_MIXED(mixed_sum_bf16, WEFT_DTYPE_BF16, false)
DEFINE_MIXED(mixed_prod_f16, WEFT_DTYPE_F16, true)
DEFINE_MIXED(mixed_prod_bf16, WEFT_DTYPE_BF16, true)

wefti_reduce_fn TABLE(const wefti_reduce_step_t *step)
{
    /* sum, avg, prod */
    static const wefti_reduce_fn whole[][3] = {
        [WEFT_DTYPE_F32] = {sum_f32, sum_f32, NULL},
        [WEFT_DTYPE_F16] = {sum_f16, sum_f16, mixed_prod_f16},
        [WEFT_DTYPE_BF16] = {sum_bf16, sum_bf16, mixed_prod_bf16},
    };
    static const wefti_reduce_fn mixed[][3] = {
        [WEFT_DTYPE_F32] = {sum_f32, sum_f32, NULL},
        [WEFT_DTYPE_F16] = {mixed_sum_f16, mixed_sum_f16, mixed_prod_f16},
        [WEFT_DTYPE_BF16] = {mixed_sum_bf16, mixed_sum_bf16, mixed_prod_bf16},
    };
    if (step->dtype > WEFT_DTYPE_BF16 || step->reduction > WEFT_REDUCTION_PROD) {
        return NULL;
    }
    return (step->wide || !step->finish ? mixed : whole)[step->dtype][step->reduction];
}

#endif
#endif

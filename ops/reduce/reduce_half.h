/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sum and avg of f16 and bf16, written once over the vectors of an instruction set. The file that
 * includes this defines LANES, TARGET, vector_t (LANES elements in f32), halves_t and, inlined with
 * a constant kind,
 *
 *   load(kind, from, lanes)  widened; fewer lanes than LANES: the rest is zero
 *   add, divide              in f32
 *   narrow(kind, v)          rounded once to nearest even, denormals kept, any NaN the one quiet
 * NaN store(to, halves, lanes)
 */
#ifndef WEFT_OPS_REDUCE_HALF_H
#define WEFT_OPS_REDUCE_HALF_H

#if defined(LANES) /* else this header is looked at alone */

#include "ops/reduce/reduce_internal.h"

#define INLINED TARGET __attribute__((always_inline)) static inline

INLINED vector_t tree(weft_dtype_t kind, const uint16_t *const *sources, uint32_t count, size_t at,
                      size_t lanes)
{
    vector_t stack[12]; /* by binary counter, see reduce_portable.c */
    uint32_t depth = 0;
    for (uint32_t k = 0; k < count; k++) {
        vector_t sum = load(kind, sources[k] + at, lanes);
        for (uint32_t ones = k; ones & 1u; ones >>= 1) {
            sum = add(stack[--depth], sum);
        }
        stack[depth++] = sum;
    }
    vector_t sum = stack[--depth];
    while (depth > 0) {
        sum = add(stack[--depth], sum);
    }
    return sum;
}

INLINED void body(weft_dtype_t kind, uint16_t *const *destinations, uint32_t destination_count,
                  const uint16_t *const *sources, uint32_t source_count, size_t elem_count,
                  float divisor)
{
    for (size_t at = 0; at < elem_count; at += LANES) {
        size_t lanes = elem_count - at < LANES ? elem_count - at : LANES;
        vector_t sum = tree(kind, sources, source_count, at, lanes);
        if (divisor > 1.0f) {
            sum = divide(sum, divisor);
        }
        halves_t halves = narrow(kind, sum);
        for (uint32_t d = 0; d < destination_count; d++) {
            store(destinations[d] + at, halves, lanes);
        }
    }
}

/* Two ranks: the pair written out, addresses where stores cannot seem to change them. */
INLINED void two_to_two(weft_dtype_t kind, uint16_t *const *destinations,
                        const uint16_t *const *sources, size_t elem_count, float divisor)
{
    const uint16_t *from[2] = {sources[0], sources[1]};
    uint16_t *to[2] = {destinations[0], destinations[1]};
    size_t at = 0;
    for (; elem_count - at >= 2 * LANES; at += 2 * LANES) {
        vector_t x = add(load(kind, from[0] + at, LANES), load(kind, from[1] + at, LANES));
        vector_t y =
            add(load(kind, from[0] + at + LANES, LANES), load(kind, from[1] + at + LANES, LANES));
        if (divisor > 1.0f) {
            x = divide(x, divisor);
            y = divide(y, divisor);
        }
        halves_t first = narrow(kind, x), second = narrow(kind, y);
        store(to[0] + at, first, LANES);
        store(to[0] + at + LANES, second, LANES);
        store(to[1] + at, first, LANES);
        store(to[1] + at + LANES, second, LANES);
    }
    const uint16_t *const rest[2] = {from[0] + at, from[1] + at};
    uint16_t *const rest_to[2] = {to[0] + at, to[1] + at};
    body(kind, rest_to, 2, rest, 2, elem_count - at, divisor);
}

#define DEFINE_HALF_SUM(name, kind)                                                                \
    TARGET static void name(const wefti_reduce_step_t *step)                                       \
    {                                                                                              \
        uint16_t *const *to = (uint16_t *const *)step->destinations;                               \
        const uint16_t *const *from = (const uint16_t *const *)step->sources;                      \
        const size_t elem_count = (size_t)step->elem_count;                                        \
        const float divisor = wefti_reduce_divisor(step);                                          \
        if (step->source_count == 2 && step->destination_count == 2) {                             \
            two_to_two(kind, to, from, elem_count, divisor);                                       \
        } else if (step->source_count == 2) {                                                      \
            body(kind, to, step->destination_count, from, 2, elem_count, divisor);                 \
        } else if (step->source_count == 4) {                                                      \
            body(kind, to, step->destination_count, from, 4, elem_count, divisor);                 \
        } else if (step->source_count == 8) {                                                      \
            body(kind, to, step->destination_count, from, 8, elem_count, divisor);                 \
        } else {                                                                                   \
            body(kind, to, step->destination_count, from, step->source_count, elem_count,          \
                 divisor);                                                                         \
        }                                                                                          \
    }

#endif
#endif

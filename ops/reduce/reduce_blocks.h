/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every dtype and reduction in plain C, a block at a time, for the compiler to vectorise. The file
 * that includes this defines TARGET, the instruction set, and NAME, the function that it provides.
 * Elements are widened to one of four accumulation types (f32 for f16, bf16 and f32; f64; i64;
 * u64), reduced there and narrowed once. Sums and products of integers wrap, which narrowing from
 * 64 bits gives for every width.
 *
 * The tree is walked like a binary counter: leaf k is pushed, and merged with the top of the stack
 * once for every trailing one bit of k; what is left at the end is merged from the right. For n =
 * 7:
 *
 *   ((x0 x1)(x2 x3))   (x4 x5)   x6        ->  L (M R)
 */
#ifndef WEFT_OPS_REDUCE_BLOCKS_H
#define WEFT_OPS_REDUCE_BLOCKS_H

#if defined(TARGET) /* else this header is looked at alone */

#include <string.h>

#include "ops/reduce/reduce_internal.h"
#include "runtime/base/half.h"

#define BLOCK_ELEMS ((size_t)128)
#define MAX_DEPTH 12 /* log2(WEFT_MAX_GROUP_DIRECT) + 1, and one being merged */
_Static_assert(WEFT_MAX_GROUP_DIRECT <= 1u << (MAX_DEPTH - 2), "the stack holds the tree");

typedef union block {
    float f32[BLOCK_ELEMS];
    double f64[BLOCK_ELEMS];
    int64_t i64[BLOCK_ELEMS];
    uint64_t u64[BLOCK_ELEMS];
} block_t;

/*
 * Runs statement for every i below count. Nearly all blocks are full; with a constant count
 * compilers vectorise at their usual level of optimisation.
 */
#define EACH(count, ...)                                                                           \
    do {                                                                                           \
        if ((count) == BLOCK_ELEMS) {                                                              \
            for (size_t i = 0; i < BLOCK_ELEMS; i++) {                                             \
                __VA_ARGS__                                                                        \
            }                                                                                      \
        } else {                                                                                   \
            for (size_t i = 0; i < (count); i++) {                                                 \
                __VA_ARGS__                                                                        \
            }                                                                                      \
        }                                                                                          \
    } while (0)

typedef void (*load_fn)(block_t *acc, const uint8_t *src, size_t count);
typedef void (*store_fn)(uint8_t *dst, const block_t *acc, size_t count);
/* left = left op right */
typedef void (*combine_fn)(block_t *restrict left, const block_t *restrict right, size_t count);
typedef void (*divide_fn)(block_t *acc, uint32_t divisor, size_t count);

/* Address by bytes: nothing says that elements are aligned. */
#define DEFINE_COPY(name, field, type)                                                             \
    TARGET static void load_##name(block_t *restrict acc, const uint8_t *restrict src,             \
                                   size_t count)                                                   \
    {                                                                                              \
        EACH(count, {                                                                              \
            type value;                                                                            \
            memcpy(&value, src + i * sizeof value, sizeof value);                                  \
            acc->field[i] = value;                                                                 \
        });                                                                                        \
    }                                                                                              \
    TARGET static void store_##name(uint8_t *restrict dst, const block_t *restrict acc,            \
                                    size_t count)                                                  \
    {                                                                                              \
        EACH(count, {                                                                              \
            type value = (type)acc->field[i];                                                      \
            memcpy(dst + i * sizeof value, &value, sizeof value);                                  \
        });                                                                                        \
    }
DEFINE_COPY(i8, i64, int8_t)
DEFINE_COPY(i16, i64, int16_t)
DEFINE_COPY(i32, i64, int32_t)
DEFINE_COPY(i64, i64, int64_t)
DEFINE_COPY(u8, u64, uint8_t)
DEFINE_COPY(u16, u64, uint16_t)
DEFINE_COPY(u32, u64, uint32_t)
DEFINE_COPY(u64, u64, uint64_t)

#define DEFINE_HALF(name)                                                                          \
    TARGET static void load_##name(block_t *acc, const uint8_t *src, size_t count)                 \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            uint16_t half;                                                                         \
            memcpy(&half, src + i * sizeof half, sizeof half);                                     \
            acc->f32[i] = wefti_##name##_to_f32(half);                                             \
        }                                                                                          \
    }                                                                                              \
    TARGET static void store_##name(uint8_t *dst, const block_t *acc, size_t count)                \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            uint16_t half = wefti_##name##_from_f32(acc->f32[i]);                                  \
            memcpy(dst + i * sizeof half, &half, sizeof half);                                     \
        }                                                                                          \
    }
DEFINE_HALF(f16)
DEFINE_HALF(bf16)

/* Any NaN leaves as the one quiet NaN; inside the tree its payload does not matter. */
#define DEFINE_FLOAT(name, type, bits_t, nan_bits)                                                 \
    TARGET static void load_##name(block_t *acc, const uint8_t *src, size_t count)                 \
    {                                                                                              \
        memcpy(acc->name, src, count * sizeof(type));                                              \
    }                                                                                              \
    TARGET static void store_##name(uint8_t *dst, const block_t *acc, size_t count)                \
    {                                                                                              \
        const bits_t nan_pattern = (nan_bits);                                                     \
        type out[BLOCK_ELEMS], nan;                                                                \
        memcpy(&nan, &nan_pattern, sizeof nan);                                                    \
        EACH(count, out[i] = acc->name[i] != acc->name[i] ? nan : acc->name[i];);                  \
        memcpy(dst, out, count * sizeof(type));                                                    \
    }                                                                                              \
    TARGET static void sum_##name(block_t *restrict left, const block_t *restrict right,           \
                                  size_t count)                                                    \
    {                                                                                              \
        EACH(count, left->name[i] += right->name[i];);                                             \
    }                                                                                              \
    TARGET static void prod_##name(block_t *restrict left, const block_t *restrict right,          \
                                   size_t count)                                                   \
    {                                                                                              \
        EACH(count, left->name[i] *= right->name[i];);                                             \
    }                                                                                              \
    TARGET static void divide_##name(block_t *acc, uint32_t divisor, size_t count)                 \
    {                                                                                              \
        const type by = (type)divisor, times = 1 / by;                                             \
        if (wefti_is_power_of_two(divisor)) {                                                      \
            EACH(count, acc->name[i] *= times;);                                                   \
        } else {                                                                                   \
            EACH(count, acc->name[i] /= by;);                                                      \
        }                                                                                          \
    }                                                                                              \
    /* Equal values with different bits are zeros: or-ing signs gives -0, and-ing gives +0. */     \
    TARGET static type pick_##name(type a, type b, int wants_less)                                 \
    {                                                                                              \
        bits_t a_bits, b_bits;                                                                     \
        if (a != a || b != b) {                                                                    \
            return a + b;                                                                          \
        }                                                                                          \
        if (a < b || b < a) {                                                                      \
            return (a < b) == wants_less ? a : b;                                                  \
        }                                                                                          \
        memcpy(&a_bits, &a, sizeof a);                                                             \
        memcpy(&b_bits, &b, sizeof b);                                                             \
        a_bits = wants_less ? a_bits | b_bits : a_bits & b_bits;                                   \
        memcpy(&a, &a_bits, sizeof a);                                                             \
        return a;                                                                                  \
    }                                                                                              \
    TARGET static void min_##name(block_t *restrict left, const block_t *restrict right,           \
                                  size_t count)                                                    \
    {                                                                                              \
        EACH(count, left->name[i] = pick_##name(left->name[i], right->name[i], 1););               \
    }                                                                                              \
    TARGET static void max_##name(block_t *restrict left, const block_t *restrict right,           \
                                  size_t count)                                                    \
    {                                                                                              \
        EACH(count, left->name[i] = pick_##name(left->name[i], right->name[i], 0););               \
    }
DEFINE_FLOAT(f32, float, uint32_t, WEFTI_F32_NAN)
DEFINE_FLOAT(f64, double, uint64_t, 0x7ff8000000000000ull)

/* Sums and products wrap, so both signs share the unsigned ones. */
TARGET static void sum_int(block_t *restrict left, const block_t *restrict right, size_t count)
{
    EACH(count, left->u64[i] += right->u64[i];);
}

TARGET static void prod_int(block_t *restrict left, const block_t *restrict right, size_t count)
{
    EACH(count, left->u64[i] *= right->u64[i];);
}

#define DEFINE_INT(name)                                                                           \
    TARGET static void min_##name(block_t *restrict left, const block_t *restrict right,           \
                                  size_t count)                                                    \
    {                                                                                              \
        EACH(count,                                                                                \
             left->name[i] = right->name[i] < left->name[i] ? right->name[i] : left->name[i];);    \
    }                                                                                              \
    TARGET static void max_##name(block_t *restrict left, const block_t *restrict right,           \
                                  size_t count)                                                    \
    {                                                                                              \
        EACH(count,                                                                                \
             left->name[i] = right->name[i] > left->name[i] ? right->name[i] : left->name[i];);    \
    }
DEFINE_INT(i64)
DEFINE_INT(u64)

/* Toward zero: by a power of two the magnitude is shifted. */
TARGET static void divide_i64(block_t *acc, uint32_t divisor, size_t count)
{
    const unsigned int shift = (unsigned int)__builtin_ctz(divisor);
    if (wefti_is_power_of_two(divisor)) {
        EACH(count, const uint64_t sign = 0 - (acc->u64[i] >> 63); /* all ones, or none */
             const uint64_t magnitude = (acc->u64[i] ^ sign) - sign;
             acc->u64[i] = ((magnitude >> shift) ^ sign) - sign;);
    } else {
        EACH(count, acc->i64[i] /= divisor;);
    }
}

TARGET static void divide_u64(block_t *acc, uint32_t divisor, size_t count)
{
    const unsigned int shift = (unsigned int)__builtin_ctz(divisor);
    if (wefti_is_power_of_two(divisor)) {
        EACH(count, acc->u64[i] >>= shift;);
    } else {
        EACH(count, acc->u64[i] /= divisor;);
    }
}

typedef struct accumulator {
    combine_fn combine[5]; /* by weft_reduction_t */
    divide_fn divide;
} accumulator_t;

static const accumulator_t acc_f32 = {{sum_f32, sum_f32, prod_f32, min_f32, max_f32}, divide_f32};
static const accumulator_t acc_f64 = {{sum_f64, sum_f64, prod_f64, min_f64, max_f64}, divide_f64};
static const accumulator_t acc_i64 = {{sum_int, sum_int, prod_int, min_i64, max_i64}, divide_i64};
static const accumulator_t acc_u64 = {{sum_int, sum_int, prod_int, min_u64, max_u64}, divide_u64};

typedef struct element {
    load_fn load;
    store_fn store;
    const accumulator_t *accumulator;
    size_t bytes;
} element_t;

static const element_t elements[] = {
    [WEFT_DTYPE_F64] = {load_f64, store_f64, &acc_f64, 8},
    [WEFT_DTYPE_F32] = {load_f32, store_f32, &acc_f32, 4},
    [WEFT_DTYPE_F16] = {load_f16, store_f16, &acc_f32, 2},
    [WEFT_DTYPE_BF16] = {load_bf16, store_bf16, &acc_f32, 2},
    [WEFT_DTYPE_I64] = {load_i64, store_i64, &acc_i64, 8},
    [WEFT_DTYPE_I32] = {load_i32, store_i32, &acc_i64, 4},
    [WEFT_DTYPE_I16] = {load_i16, store_i16, &acc_i64, 2},
    [WEFT_DTYPE_I8] = {load_i8, store_i8, &acc_i64, 1},
    [WEFT_DTYPE_U64] = {load_u64, store_u64, &acc_u64, 8},
    [WEFT_DTYPE_U32] = {load_u32, store_u32, &acc_u64, 4},
    [WEFT_DTYPE_U16] = {load_u16, store_u16, &acc_u64, 2},
    [WEFT_DTYPE_U8] = {load_u8, store_u8, &acc_u64, 1},
};

/* The tree over the sources' elements from at, left in stack[0]. */
TARGET static void reduce_block(const wefti_reduce_step_t *step, const element_t *user,
                                const element_t *wide, combine_fn combine, size_t at, size_t count,
                                block_t *stack)
{
    uint32_t depth = 0;
    for (uint32_t k = 0; k < step->source_count; k++) {
        const element_t *element = step->wide && step->wide[k] ? wide : user;
        element->load(&stack[depth], (const uint8_t *)step->sources[k] + at * element->bytes,
                      count);
        for (uint32_t ones = k; ones & 1u; ones >>= 1) {
            combine(&stack[depth - 1], &stack[depth], count);
            depth--;
        }
        depth++;
    }
    for (; depth > 1; depth--) {
        combine(&stack[depth - 2], &stack[depth - 1], count);
    }
}

TARGET void NAME(const wefti_reduce_step_t *step)
{
    const element_t *user = &elements[step->dtype];
    const element_t *wide = &elements[wefti_accumulator_dtype(step->dtype, step->reduction)];
    const element_t *out = step->finish ? user : wide;
    combine_fn combine = user->accumulator->combine[step->reduction];
    size_t total = (size_t)step->elem_count;
    block_t stack[MAX_DEPTH];
    for (size_t at = 0; at < total; at += BLOCK_ELEMS) {
        size_t count = total - at < BLOCK_ELEMS ? total - at : BLOCK_ELEMS;
        /* All sources are read before anything is written: a destination may be a source. */
        reduce_block(step, user, wide, combine, at, count, stack);
        if (step->reduction == WEFT_REDUCTION_AVG && step->finish) {
            user->accumulator->divide(&stack[0], step->divisor, count);
        }
        for (uint32_t d = 0; d < step->destination_count; d++) {
            out->store((uint8_t *)step->destinations[d] + at * out->bytes, &stack[0], count);
        }
    }
}

#endif
#endif

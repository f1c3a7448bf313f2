/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions that can be done in the type's own width, as loops for the compiler to vectorise: sums
 * and products of integers, which wrap like their 64-bit versions narrowed; minimum and maximum of
 * everything. The file that includes this defines TARGET, the instruction set, and TABLE, the
 * function that it provides.
 *
 * Floats are compared as integers: negative ones with their other bits flipped are in order, -0
 * below +0, and a NaN becomes the number that wins every comparison.
 */
#ifndef WEFT_OPS_REDUCE_NATIVE_H
#define WEFT_OPS_REDUCE_NATIVE_H

#if defined(TARGET) /* else this header is looked at alone */

#include <string.h>

#include "ops/reduce/reduce_internal.h"
#include "runtime/base/half.h"

#define BLOCK_BYTES ((size_t)1024)
#define MAX_DEPTH 12 /* see reduce_portable.c */
#define SAME(x) (x)
#define LESS(a, b) ((b) < (a) ? (b) : (a))
#define MORE(a, b) ((b) > (a) ? (b) : (a))
#define PLUS(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))

/* Full blocks have a constant count, which is what makes compilers vectorise at their usual level.
 */
#define EACH(count, most, statement)                                                               \
    do {                                                                                           \
        if ((count) == (most)) {                                                                   \
            for (size_t i = 0; i < (most); i++) {                                                  \
                statement                                                                          \
            }                                                                                      \
        } else {                                                                                   \
            for (size_t i = 0; i < (count); i++) {                                                 \
                statement                                                                          \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* type holds an element, bits is the unsigned type of that width. */
#define DEFINE_NATIVE(name, type, bits, KEY, OP, VALUE)                                            \
    TARGET static void load_##name(type *restrict to, const uint8_t *restrict from, size_t count)  \
    {                                                                                              \
        EACH(count, BLOCK_BYTES / sizeof(type), {                                                  \
            bits raw;                                                                              \
            memcpy(&raw, from + i * sizeof raw, sizeof raw);                                       \
            to[i] = (type)KEY(raw);                                                                \
        });                                                                                        \
    }                                                                                              \
    TARGET static void combine_##name(type *restrict a, const type *restrict b, size_t count)      \
    {                                                                                              \
        EACH(count, BLOCK_BYTES / sizeof(type), a[i] = (type)OP(a[i], b[i]););                     \
    }                                                                                              \
    /* A leaf that is merged at once is never stored. */                                           \
    TARGET static void combine_leaf_##name(type *restrict a, const uint8_t *restrict from,         \
                                           size_t count)                                           \
    {                                                                                              \
        EACH(count, BLOCK_BYTES / sizeof(type), {                                                  \
            bits raw;                                                                              \
            memcpy(&raw, from + i * sizeof raw, sizeof raw);                                       \
            const type b = (type)KEY(raw);                                                         \
            a[i] = (type)OP(a[i], b);                                                              \
        });                                                                                        \
    }                                                                                              \
    TARGET static void store_##name(uint8_t *restrict to, const type *restrict from, size_t count) \
    {                                                                                              \
        EACH(count, BLOCK_BYTES / sizeof(type), {                                                  \
            bits raw = (bits)VALUE(from[i]);                                                       \
            memcpy(to + i * sizeof raw, &raw, sizeof raw);                                         \
        });                                                                                        \
    }                                                                                              \
    TARGET static void name(const wefti_reduce_step_t *step)                                       \
    {                                                                                              \
        const size_t most = BLOCK_BYTES / sizeof(type);                                            \
        size_t total = (size_t)step->elem_count;                                                   \
        type stack[MAX_DEPTH][BLOCK_BYTES / sizeof(type)];                                         \
        for (size_t at = 0; at < total; at += most) {                                              \
            size_t count = total - at < most ? total - at : most;                                  \
            uint32_t depth = 0;                                                                    \
            for (uint32_t k = 0; k < step->source_count; k++) {                                    \
                const uint8_t *from = (const uint8_t *)step->sources[k] + at * sizeof(type);       \
                if ((k & 1u) == 0) {                                                               \
                    load_##name(stack[depth++], from, count);                                      \
                    continue;                                                                      \
                }                                                                                  \
                combine_leaf_##name(stack[depth - 1], from, count);                                \
                for (uint32_t ones = k >> 1; ones & 1u; ones >>= 1, depth--) {                     \
                    combine_##name(stack[depth - 2], stack[depth - 1], count);                     \
                }                                                                                  \
            }                                                                                      \
            for (; depth > 1; depth--) {                                                           \
                combine_##name(stack[depth - 2], stack[depth - 1], count);                         \
            }                                                                                      \
            for (uint32_t d = 0; d < step->destination_count; d++) {                               \
                store_##name((uint8_t *)step->destinations[d] + at * sizeof(type), stack[0],       \
                             count);                                                               \
            }                                                                                      \
        }                                                                                          \
    }

/* Integers: unsigned arithmetic wraps; 16 bits are widened so that their product cannot overflow
 * int. */
#define TIMES_16(a, b) ((uint16_t)((uint32_t)(a) * (uint32_t)(b)))
DEFINE_NATIVE(sum_8, uint8_t, uint8_t, SAME, PLUS, SAME)
DEFINE_NATIVE(sum_16, uint16_t, uint16_t, SAME, PLUS, SAME)
DEFINE_NATIVE(sum_32, uint32_t, uint32_t, SAME, PLUS, SAME)
DEFINE_NATIVE(sum_64, uint64_t, uint64_t, SAME, PLUS, SAME)
DEFINE_NATIVE(prod_8, uint8_t, uint8_t, SAME, TIMES, SAME)
DEFINE_NATIVE(prod_16, uint16_t, uint16_t, SAME, TIMES_16, SAME)
DEFINE_NATIVE(prod_32, uint32_t, uint32_t, SAME, TIMES, SAME)
DEFINE_NATIVE(prod_64, uint64_t, uint64_t, SAME, TIMES, SAME)
DEFINE_NATIVE(min_i8, int8_t, uint8_t, SAME, LESS, SAME)
DEFINE_NATIVE(min_i16, int16_t, uint16_t, SAME, LESS, SAME)
DEFINE_NATIVE(min_i32, int32_t, uint32_t, SAME, LESS, SAME)
DEFINE_NATIVE(min_i64, int64_t, uint64_t, SAME, LESS, SAME)
DEFINE_NATIVE(min_u8, uint8_t, uint8_t, SAME, LESS, SAME)
DEFINE_NATIVE(min_u16, uint16_t, uint16_t, SAME, LESS, SAME)
DEFINE_NATIVE(min_u32, uint32_t, uint32_t, SAME, LESS, SAME)
DEFINE_NATIVE(min_u64, uint64_t, uint64_t, SAME, LESS, SAME)
DEFINE_NATIVE(max_i8, int8_t, uint8_t, SAME, MORE, SAME)
DEFINE_NATIVE(max_i16, int16_t, uint16_t, SAME, MORE, SAME)
DEFINE_NATIVE(max_i32, int32_t, uint32_t, SAME, MORE, SAME)
DEFINE_NATIVE(max_i64, int64_t, uint64_t, SAME, MORE, SAME)
DEFINE_NATIVE(max_u8, uint8_t, uint8_t, SAME, MORE, SAME)
DEFINE_NATIVE(max_u16, uint16_t, uint16_t, SAME, MORE, SAME)
DEFINE_NATIVE(max_u32, uint32_t, uint32_t, SAME, MORE, SAME)
DEFINE_NATIVE(max_u64, uint64_t, uint64_t, SAME, MORE, SAME)

/* Floats: to a key and back; winner is what a NaN becomes, and no number does. */
#define DEFINE_KEYS(name, type, bits, infinity, nan, winner)                                       \
    TARGET static inline type key_##name(bits raw)                                                 \
    {                                                                                              \
        bits rest = raw & (bits) ~((bits)1 << (8 * sizeof raw - 1));                               \
        bits flipped =                                                                             \
            (bits)(raw ^ (rest == raw ? 0 : (bits) ~((bits)1 << (8 * sizeof raw - 1))));           \
        return rest > (infinity) ? (winner) : (type)flipped;                                       \
    }                                                                                              \
    TARGET static inline bits value_##name(type key)                                               \
    {                                                                                              \
        bits flipped = (bits)key;                                                                  \
        bits raw = (bits)(flipped ^ (key < 0 ? (bits) ~((bits)1 << (8 * sizeof raw - 1)) : 0));    \
        return key == (winner) ? (nan) : raw;                                                      \
    }
#define DEFINE_FLOAT(name, type, bits, infinity, nan, low, high)                                   \
    DEFINE_KEYS(min_##name, type, bits, infinity, nan, low)                                        \
    DEFINE_KEYS(max_##name, type, bits, infinity, nan, high)                                       \
    DEFINE_NATIVE(min_##name, type, bits, key_min_##name, LESS, value_min_##name)                  \
    DEFINE_NATIVE(max_##name, type, bits, key_max_##name, MORE, value_max_##name)
DEFINE_FLOAT(f16, int16_t, uint16_t, 0x7c00u, WEFTI_F16_NAN, INT16_MIN, INT16_MAX)
DEFINE_FLOAT(bf16, int16_t, uint16_t, 0x7f80u, WEFTI_BF16_NAN, INT16_MIN, INT16_MAX)
DEFINE_FLOAT(f32, int32_t, uint32_t, 0x7f800000u, WEFTI_F32_NAN, INT32_MIN, INT32_MAX)
DEFINE_FLOAT(f64, int64_t, uint64_t, 0x7ff0000000000000ull, 0x7ff8000000000000ull, INT64_MIN,
             INT64_MAX)

/* Floats in their own type: any NaN leaves as the one quiet NaN. */
#define DEFINE_OWN(name, type, bits, nan)                                                          \
    TARGET static inline type key_##name(bits raw)                                                 \
    {                                                                                              \
        type value;                                                                                \
        memcpy(&value, &raw, sizeof value);                                                        \
        return value;                                                                              \
    }                                                                                              \
    TARGET static inline bits value_##name(type value)                                             \
    {                                                                                              \
        bits raw;                                                                                  \
        memcpy(&raw, &value, sizeof raw);                                                          \
        return value != value ? (nan) : raw;                                                       \
    }
DEFINE_OWN(own_f32, float, uint32_t, WEFTI_F32_NAN)
DEFINE_OWN(own_f64, double, uint64_t, 0x7ff8000000000000ull)
DEFINE_NATIVE(prod_f32, float, uint32_t, key_own_f32, TIMES, value_own_f32)
DEFINE_NATIVE(prod_f64, double, uint64_t, key_own_f64, TIMES, value_own_f64)
DEFINE_NATIVE(sum_f64, double, uint64_t, key_own_f64, PLUS, value_own_f64)

wefti_reduce_fn TABLE(const wefti_reduce_step_t *step)
{
    /* sum, avg, prod, min, max */
    static const wefti_reduce_fn table[][5] = {
        [WEFT_DTYPE_F64] = {sum_f64, NULL, prod_f64, min_f64, max_f64},
        [WEFT_DTYPE_F32] = {NULL, NULL, prod_f32, min_f32, max_f32},
        [WEFT_DTYPE_F16] = {NULL, NULL, NULL, min_f16, max_f16},
        [WEFT_DTYPE_BF16] = {NULL, NULL, NULL, min_bf16, max_bf16},
        [WEFT_DTYPE_I64] = {sum_64, NULL, prod_64, min_i64, max_i64},
        [WEFT_DTYPE_I32] = {sum_32, NULL, prod_32, min_i32, max_i32},
        [WEFT_DTYPE_I16] = {sum_16, NULL, prod_16, min_i16, max_i16},
        [WEFT_DTYPE_I8] = {sum_8, NULL, prod_8, min_i8, max_i8},
        [WEFT_DTYPE_U64] = {sum_64, NULL, prod_64, min_u64, max_u64},
        [WEFT_DTYPE_U32] = {sum_32, NULL, prod_32, min_u32, max_u32},
        [WEFT_DTYPE_U16] = {sum_16, NULL, prod_16, min_u16, max_u16},
        [WEFT_DTYPE_U8] = {sum_8, NULL, prod_8, min_u8, max_u8},
    };
    return step->wide ? NULL : table[step->dtype][step->reduction];
}

#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions by definition, one number at a time: an oracle that shares nothing with the library.
 * Also numbers to reduce.
 */
#ifndef WEFT_TESTS_OPS_REDUCE_ORACLE_H
#define WEFT_TESTS_OPS_REDUCE_ORACLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <weft/types.h>

#include "tests/support/support.h"

static const weft_dtype_t oracle_dtypes[] = {
    WEFT_DTYPE_F64, WEFT_DTYPE_F32, WEFT_DTYPE_F16, WEFT_DTYPE_BF16, WEFT_DTYPE_I64, WEFT_DTYPE_I32,
    WEFT_DTYPE_I16, WEFT_DTYPE_I8,  WEFT_DTYPE_U64, WEFT_DTYPE_U32,  WEFT_DTYPE_U16, WEFT_DTYPE_U8,
};
#define ORACLE_DTYPES (sizeof oracle_dtypes / sizeof oracle_dtypes[0])

static inline uint32_t oracle_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float oracle_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

typedef struct number { /* whichever of the two the type uses */
    double f;
    float s; /* f32 and the halves */
    uint64_t u;
} number_t;

static inline int oracle_is_float(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F64 || dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F16 ||
           dtype == WEFT_DTYPE_BF16;
}

static inline int oracle_is_signed(weft_dtype_t dtype)
{
    return dtype >= WEFT_DTYPE_I64 && dtype <= WEFT_DTYPE_I8;
}

/* f16 by definition: sign, exponent, fraction. */
static inline double oracle_f16(uint16_t half)
{
    int exponent = half >> 10 & 31;
    double fraction = half & 1023;
    double magnitude = exponent == 31  ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                       : exponent == 0 ? ldexp(fraction, -24)
                                       : ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

static inline number_t oracle_read(weft_dtype_t dtype, const uint8_t *at)
{
    number_t number = {0};
    uint64_t raw = 0;
    size_t bytes = weft_dtype_size_bytes(dtype);
    memcpy(&raw, at, bytes); /* little endian */
    if (dtype == WEFT_DTYPE_F64) {
        memcpy(&number.f, at, 8);
    } else if (dtype == WEFT_DTYPE_F32) {
        memcpy(&number.s, at, 4);
    } else if (dtype == WEFT_DTYPE_F16) {
        number.s = (float)oracle_f16((uint16_t)raw);
    } else if (dtype == WEFT_DTYPE_BF16) {
        number.s = oracle_f32((uint32_t)raw << 16);
    } else if (oracle_is_signed(dtype)) {
        unsigned int shift = 64u - 8u * (unsigned int)bytes;
        number.u = (uint64_t)((int64_t)(raw << shift) >> shift);
    } else {
        number.u = raw;
    }
    return number;
}

static inline float oracle_pick32(float a, float b, int least)
{
    if (isnan(a) || isnan(b)) {
        return NAN;
    }
    if (a == b) {
        return (signbit(a) != 0) == least ? a : b;
    }
    return least ? fminf(a, b) : fmaxf(a, b);
}

static inline double oracle_pick64(double a, double b, int least)
{
    if (isnan(a) || isnan(b)) {
        return (double)NAN;
    }
    if (a == b) {
        return (signbit(a) != 0) == least ? a : b;
    }
    return least ? fmin(a, b) : fmax(a, b);
}

static inline number_t oracle_combine(weft_dtype_t dtype, weft_reduction_t op, number_t a,
                                      number_t b)
{
    number_t c = {0};
    int less = oracle_is_signed(dtype) ? (int64_t)a.u < (int64_t)b.u : a.u < b.u;
    switch (op) {
    case WEFT_REDUCTION_SUM:
    case WEFT_REDUCTION_AVG:
        c = (number_t){a.f + b.f, a.s + b.s, a.u + b.u};
        break;
    case WEFT_REDUCTION_PROD:
        c = (number_t){a.f * b.f, a.s * b.s, a.u * b.u};
        break;
    case WEFT_REDUCTION_MIN:
        c = (number_t){oracle_pick64(a.f, b.f, 1), oracle_pick32(a.s, b.s, 1), less ? a.u : b.u};
        break;
    case WEFT_REDUCTION_MAX:
        c = (number_t){oracle_pick64(a.f, b.f, 0), oracle_pick32(a.s, b.s, 0), less ? b.u : a.u};
        break;
    }
    return c;
}

/* Left: as many as the largest power of two below count. */
static inline number_t oracle_tree(weft_dtype_t dtype, weft_reduction_t op, const number_t *leaves,
                                   uint32_t count)
{
    uint32_t half = 1;
    if (count == 1) {
        return leaves[0];
    }
    while (half * 2 < count) {
        half *= 2;
    }
    return oracle_combine(dtype, op, oracle_tree(dtype, op, leaves, half),
                          oracle_tree(dtype, op, leaves + half, count - half));
}

/* The nearest half, ties to even, found by trying: monotone in the pattern, so by bisection. */
static inline uint16_t oracle_nearest_half(weft_dtype_t dtype, float value)
{
    int is_f16 = dtype == WEFT_DTYPE_F16;
    uint16_t infinity = is_f16 ? 0x7c00 : 0x7f80;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double wanted = fabs((double)value);
    uint16_t low = 0, high = infinity;
    if (isnan(value)) {
        return is_f16 ? 0x7e00 : 0x7fc0;
    }
    if (isinf(value)) {
        return (uint16_t)(sign | infinity);
    }
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        double at = is_f16 ? oracle_f16(middle) : (double)oracle_f32((uint32_t)middle << 16);
        *(at <= wanted ? &low : &high) = middle;
    }
    double below = is_f16 ? oracle_f16(low) : (double)oracle_f32((uint32_t)low << 16);
    double above = high == infinity ? (is_f16 ? 65536.0 : ldexp(1.0, 128))
                   : is_f16         ? oracle_f16(high)
                                    : (double)oracle_f32((uint32_t)high << 16);
    double to_below = wanted - below, to_above = above - wanted;
    if (to_below > to_above || (to_below == to_above && (low & 1))) {
        low = high;
    }
    return (uint16_t)(sign | low);
}

/* The sum of n ranks, divided for avg, rounded. */
static inline void oracle_write(weft_dtype_t dtype, weft_reduction_t op, number_t number,
                                uint32_t n, uint8_t *at)
{
    if (op == WEFT_REDUCTION_AVG) {
        number.f /= n;
        number.s /= (float)n;
        number.u =
            oracle_is_signed(dtype) ? (uint64_t)((int64_t)number.u / (int64_t)n) : number.u / n;
    }
    uint64_t raw = number.u;
    if (dtype == WEFT_DTYPE_F64) {
        raw = 0x7ff8000000000000ull;
        if (!isnan(number.f)) {
            memcpy(&raw, &number.f, 8);
        }
    } else if (dtype == WEFT_DTYPE_F32) {
        raw = isnan(number.s) ? 0x7fc00000u : oracle_f32_bits(number.s);
    } else if (oracle_is_float(dtype)) {
        raw = oracle_nearest_half(dtype, number.s);
    }
    memcpy(at, &raw, weft_dtype_size_bytes(dtype));
}

/* Ordinary numbers mostly; zeros of both signs, denormals, infinities, NaNs of all kinds in
 * between. */
static inline void oracle_fill(weft_dtype_t dtype, uint8_t *at, size_t elem_count, uint64_t *state)
{
    static const uint32_t specials[] = {
        0x00000000u, 0x80000000u, 0x00000001u, 0x807fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u,
        0xffc12345u, 0x7f800001u, 0x7f7fffffu, 0x00800000u, 0x33000000u, 0x477fefffu, 0x38800000u};
    size_t bytes = weft_dtype_size_bytes(dtype);
    for (size_t i = 0; i < elem_count; i++) {
        uint64_t raw = test_next_random(state);
        uint64_t kind = test_next_random(state) % 16;
        float value = (float)((double)(raw >> 40) / (double)(1 << 20) - 8.0);
        double wide = (double)(raw >> 11) / ldexp(1.0, 49) - 8.0;
        if (kind == 0) {
            value = oracle_f32(specials[raw % (sizeof specials / sizeof specials[0])]);
            wide = raw % 5 == 0 ? 5e-324 : (double)value;
        }
        if (kind > 1 && dtype == WEFT_DTYPE_F64) { /* kind 1: any bit pattern */
            memcpy(&raw, &wide, 8);
        } else if (kind != 1 && dtype == WEFT_DTYPE_F32) {
            raw = oracle_f32_bits(value);
        } else if (kind != 1 && dtype == WEFT_DTYPE_BF16) {
            raw = oracle_f32_bits(value) >> 16;
        } else if (kind != 1 && dtype == WEFT_DTYPE_F16) {
            raw = 0x3800 + raw % 0x0c00; /* 0.5 to 4 */
        } else if (kind < 8 && !oracle_is_float(dtype)) {
            raw = raw % 9 - 4; /* sums around zero */
        }
        memcpy(at + i * bytes, &raw, bytes);
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp, tanh and log of our own: libm's differ by library version and by the CPU it finds, and a
 * loop around a call does not vectorise. Branch-free, the same operations whatever the instruction
 * set.
 */
#ifndef WEFT_OPS_COMPUTE_MATH_F32_H
#define WEFT_OPS_COMPUTE_MATH_F32_H

#include <stdint.h>
#include <string.h>

#include "runtime/base/half.h"

/* exp(x) to about 1.5 units in the last place; denormal results are right, NaN stays NaN. */
static inline float wefti_exp_f32(float x)
{
    /* x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to the nearest integer. */
    const float round = 12582912.0f;
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = x * 1.44269504f + round;
    float n = shifted - round;
    /* 355/512 has few bits, so its product with n is exact. */
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    /* 2^n in two factors, for 2^128 and 2^-150 are no normal numbers. */
    int32_t whole = (int32_t)(wefti_f32_bits(shifted) - wefti_f32_bits(round));
    int32_t half = whole >> 1;
    p = p * wefti_f32_from_bits((uint32_t)(half + 127) << 23);
    return p * wefti_f32_from_bits((uint32_t)(whole - half + 127) << 23);
}

/* tanh(x) to about 2 units in the last place; odd, +-1 at infinity, NaN stays NaN. */
static inline float wefti_tanh_f32(float x)
{
    uint32_t sign = wefti_f32_bits(x) & 0x80000000u;
    float a = wefti_f32_from_bits(wefti_f32_bits(x) ^ sign);
    /* Near 0: x + x^3 P(x^2), P fitted (least squares at Chebyshev points) on [0, 0.56^2]. */
    float z = a * a;
    float p = -0.00619716477f;
    p = p * z + 0.0210191272f;
    p = p * z - 0.0538400523f;
    p = p * z + 0.133324742f;
    p = p * z - 0.333333135f;
    float near = p * (z * a) + a;
    float far = 1.0f - 2.0f / (wefti_exp_f32(a + a) + 1.0f);
    float y = a < 0.55f ? near : far;
    return wefti_f32_from_bits(wefti_f32_bits(y) | sign);
}

/* log(x) for finite normal x > 0, in double, to about 1e-12. */
static inline double wefti_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof(m));
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    /* log m = 2 artanh s, |s| <= 0.172 */
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 15; k >= 1; k -= 2) {
        sum = sum * z + 1.0 / k;
    }
    return (double)exponent * 0.69314718055994531 + 2.0 * s * sum;
}

/* base^exponent for a step count: products only, so that it is the same everywhere. */
static inline double wefti_pow_step(double base, uint32_t exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        result = (exponent & 1) != 0 ? result * base : result;
        base *= base;
    }
    return result;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp, tanh and log of our own: libm's differ by library version and by the CPU it finds, and a
 * loop around a call does not vectorise. Branch-free, the same operations whatever the instruction
 * set.
 */
#ifndef WEFT_OPS_COMPUTE_MATH_F32_H
#define WEFT_OPS_COMPUTE_MATH_F32_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "runtime/base/half.h"

/*
 * exp(x) = 2^n exp(r) with |r| <= ln 2 / 2. Returns exp(r), to 0.05 units in the last place before
 * roundings; the polynomial was fitted (minimax of the relative error) and is evaluated in pairs,
 * because its longest chain of operations limits the speed. out_power: n << 23.
 */
static inline float wefti_exp_rest_f32(float x, uint32_t *out_power)
{
    /* Adding 1.5 * 2^23 rounds to the nearest integer; the low bits are then those of n. */
    const float round = 12582912.0f;
    float shifted = x * 1.44269504f + round;
    float n = shifted - round;
    /* 355/512 has few bits, so its product with n is exact. */
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float z = r * r;
    float low = 0.49999994f + 0.16666521f * r, high = 0.04166839f + 0.0083687454f * r;
    float q = low + z * (high + z * 0.0013814539f);
    *out_power = wefti_f32_bits(shifted) << 23;
    return (z * q + r) + 1.0f;
}

/* exp(x) to about 1.5 units in the last place; denormal results are right, NaN stays NaN. */
static inline float wefti_exp_f32(float x)
{
    uint32_t power;
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float rest = wefti_exp_rest_f32(x, &power);
    /* 2^n in two factors, for 2^128 and 2^-150 are no normal numbers: the second one is 2^64, or
     * 2^-64 for negative x. */
    uint32_t turn = (uint32_t)((int32_t)wefti_f32_bits(x) >> 31) & (128u << 23);
    rest = rest * wefti_f32_from_bits(power + (63u << 23) + turn);
    return rest * wefti_f32_from_bits((191u << 23) - turn);
}

/* The same bits for x <= 0, with fewer operations. */
static inline float wefti_exp_of_negative_f32(float x)
{
    uint32_t power;
    float rest = wefti_exp_rest_f32(x < -104.0f ? -104.0f : x, &power);
    return rest * wefti_f32_from_bits(power + (191u << 23)) * 0x1p-64f;
}

/* tanh(x) to about 6.2 units in the last place; odd, +-1 from 9.1 on, NaN stays NaN. x P(x^2) /
 * Q(x^2), fitted (minimax of the relative error): all coefficients are positive, so nothing cancels. */
static inline float wefti_tanh_f32(float x)
{
    x = x > 9.1f ? 9.1f : x;
    x = x < -9.1f ? -9.1f : x;
    float z = x * x;
    float p = 1.33190331e-08f, q = 7.76200288e-07f;
    p = p * z + 2.0583451e-05f;
    p = p * z + 0.00349403264f;
    p = p * z + 0.133797163f;
    p = p * z + 1.0f;
    q = q * z + 0.000328308975f;
    q = q * z + 0.0258710658f;
    q = q * z + 0.467130316f;
    q = q * z + 1.0f;
    float y = x * p / q;
    y = y > 1.0f ? 1.0f : y;
    return y < -1.0f ? -1.0f : y;
}

/* log(x) to about 1 unit in the last place, by the polynomial of Cephes; -infinity of 0, NaN of
 * negative numbers. */
static inline float wefti_log_f32(float x)
{
    const bool tiny = x < 0x1p-126f; /* the exponent is that of a normal number */
    const uint32_t root = 0x3f3504f3u, bits = wefti_f32_bits(tiny ? x * 0x1p25f : x) - root;
    const float e = (float)((int32_t)bits >> 23) - (tiny ? 25.0f : 0.0f);
    const float r = wefti_f32_from_bits((bits & 0x7fffffu) + root) - 1.0f, z = r * r;
    float p = 0.070376836292f;
    p = p * r - 0.11514610310f;
    p = p * r + 0.11676998740f;
    p = p * r - 0.12420140846f;
    p = p * r + 0.14249322787f;
    p = p * r - 0.16668057665f;
    p = p * r + 0.20000714765f;
    p = p * r - 0.24999993993f;
    p = p * r + 0.33333331174f;
    /* e ln 2 in two parts; the first one is exact. */
    float y = (r + (p * (r * z) - 2.12194440e-4f * e - 0.5f * z)) + 0.693359375f * e;
    y = x > 0.0f ? y : NAN;
    y = x == 0.0f ? -INFINITY : y;
    return x < INFINITY ? y : x;
}

static inline uint64_t wefti_f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline double wefti_f64_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* log(x) for finite normal x > 0, in double, to about 1e-12. */
static inline double wefti_log(double x)
{
    uint64_t bits = wefti_f64_bits(x);
    uint64_t exponent = bits >> 52;
    bits &= 0x000fffffffffffffu;
    const uint64_t halve = bits > 0x6a09e667f3bcdu; /* 1.4142135623730951 */
    bits |= (1023u - halve) << 52;
    exponent += halve;
    const double m = wefti_f64_from_bits(bits);
    /* log m = 2 artanh s, |s| <= 0.172 */
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    sum = sum * z + 1.0 / 15.0;
    sum = sum * z + 1.0 / 13.0;
    sum = sum * z + 1.0 / 11.0;
    sum = sum * z + 1.0 / 9.0;
    sum = sum * z + 1.0 / 7.0;
    sum = sum * z + 1.0 / 5.0;
    sum = sum * z + 1.0 / 3.0;
    sum = sum * z + 1.0;
    /* Not a conversion: AVX2 has none of 64 bits. */
    const double e = wefti_f64_from_bits(0x4330000000000000u | exponent) - (0x1p52 + 1023.0);
    return e * 0.69314718055994531 + 2.0 * s * sum;
}

/* exp(x) in double, to about 1e-15; 0 and infinity beyond the range, NaN stays NaN. */
static inline double wefti_exp(double x)
{
    const double round = 6755399441055744.0; /* 1.5 * 2^52 */
    x = x < -746.0 ? -746.0 : x;
    x = x > 711.0 ? 711.0 : x;
    double shifted = x * 1.4426950408889634 + round, n = shifted - round;
    double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    double sum = 1.0 / 6227020800.0; /* 1 / 13!; no loop, which would keep others from vectors */
    sum = sum * r + 1.0 / 479001600.0;
    sum = sum * r + 1.0 / 39916800.0;
    sum = sum * r + 1.0 / 3628800.0;
    sum = sum * r + 1.0 / 362880.0;
    sum = sum * r + 1.0 / 40320.0;
    sum = sum * r + 1.0 / 5040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 1.0 / 2.0;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    int64_t whole = (int64_t)(wefti_f64_bits(shifted) - wefti_f64_bits(round)), half = whole >> 1;
    sum *= wefti_f64_from_bits((uint64_t)(half + 1023) << 52);
    return sum * wefti_f64_from_bits((uint64_t)(whole - half + 1023) << 52);
}

/* erf(x) to about 5.9 units in the last place; odd, +-1 from 4 on, NaN stays NaN. As tanh. */
static inline float wefti_erf_f32(float x)
{
    x = x > 4.0f ? 4.0f : x;
    x = x < -4.0f ? -4.0f : x;
    float z = x * x;
    float p = 2.04197548e-06f, q = 3.80040898e-05f;
    p = p * z + 0.000284807956f;
    p = p * z + 0.00377958138f;
    p = p * z + 0.0527902001f;
    p = p * z + 0.190783185f;
    p = p * z + 1.12837915f;
    q = q * z + 0.00116520592f;
    q = q * z + 0.0149973817f;
    q = q * z + 0.114257255f;
    q = q * z + 0.502409915f;
    q = q * z + 1.0f;
    float y = x * p / q;
    y = y > 1.0f ? 1.0f : y;
    return y < -1.0f ? -1.0f : y;
}

/* x^y by the rules of IEEE 754, to about 1e-11 of the result. */
static inline double wefti_pow(double x, double y)
{
    double a = x < 0.0 ? -x : x, whole = y < 0x1p53 && y > -0x1p53 ? (double)(int64_t)y : y;
    bool odd = whole == y && y < 0x1p53 && y > -0x1p53 && ((int64_t)y & 1) != 0;
    if (y == 0.0 || x == 1.0) {
        return 1.0;
    }
    if (x != x || y != y || (x < 0.0 && whole != y && a < INFINITY)) {
        return NAN;
    }
    double result;
    if (a == 0.0 || a == INFINITY) {
        result = (a == 0.0) == (y < 0.0) ? INFINITY : 0.0;
    } else {
        int shift = a < 0x1p-1000 ? 54 : 0; /* the logarithm takes normal numbers */
        double log = wefti_log(shift ? a * 0x1p54 : a) - shift * 0.69314718055994531;
        result = wefti_exp(y * log);
    }
    return odd && signbit(x) ? -result : result;
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f16 and bf16 as bit patterns. Widening is exact; narrowing rounds once, to nearest even, keeps
 * denormals and turns any NaN into one quiet NaN. Portable on purpose: vcvtneps2bf16 flushes
 * denormals.
 */
#ifndef WEFT_RUNTIME_BASE_HALF_H
#define WEFT_RUNTIME_BASE_HALF_H

#include <stdint.h>
#include <string.h>

#define WEFTI_F32_NAN 0x7fc00000u
#define WEFTI_F16_NAN 0x7e00u
#define WEFTI_BF16_NAN 0x7fc0u

static inline uint32_t wefti_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float wefti_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float wefti_bf16_to_f32(uint16_t half)
{
    return wefti_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t wefti_bf16_from_f32(float value)
{
    uint32_t bits = wefti_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return WEFTI_BF16_NAN;
    }
    /* Half of the last kept bit, less one where that bit is even: ties go to even. Carries into the
     * exponent round up to the next binade, and to infinity, correctly. */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float wefti_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = half & 0x7fffu;
    if (rest >= 0x7c00u) { /* infinity, NaN */
        return wefti_f32_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    if (rest < 0x400u) { /* zero, denormals: exact in f32 */
        float magnitude = (float)rest * 0x1p-24f;
        return wefti_f32_from_bits(sign | wefti_f32_bits(magnitude));
    }
    return wefti_f32_from_bits(sign | ((rest << 13) + (112u << 23)));
}

static inline uint16_t wefti_f16_from_f32(float value)
{
    uint32_t bits = wefti_f32_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        return WEFTI_F16_NAN;
    }
    if (rest >= 0x477ff000u) { /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (rest < 0x38800000u) { /* below 2^-14: count in units of 2^-24, the addition rounds */
        float shifted = wefti_f32_from_bits(rest) + 0.5f; /* 0.5 has a last bit of 2^-24 */
        return (uint16_t)(sign | (wefti_f32_bits(shifted) - 0x3f000000u));
    }
    rest += 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | (rest - (112u << 23)) >> 13);
}

#endif

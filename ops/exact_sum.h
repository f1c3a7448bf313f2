/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sum of doubles that has no rounding and so no order: a fixed-point number of 22 limbs, 32 bits
 * each, in 64-bit integers that leave room for carries. It holds every sum of squares of f32:
 * limb i counts in units of 2^(32 i - 352), a square is a multiple of 2^-298 and below 2^256.
 * Sums of two such numbers are sums of their limbs, which is how ranks add theirs.
 */
#ifndef WEFT_OPS_EXACT_SUM_H
#define WEFT_OPS_EXACT_SUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define WEFTI_SUM_LIMBS 24      /* 22, one that is 0, and how many summands were not finite */
#define WEFTI_SUM_NOT_FINITE 23 /* index of that count */
#define WEFTI_SUM_UNIT 16       /* elements whose squares are summed in double, in a fixed tree */
#define WEFTI_SUM_SCALE 352     /* limb 0 counts in units of 2^-352 */
#define WEFTI_SUM_PENDING (1u << 29) /* values that can be added before carries must be moved */

/* Adds value, a non-negative multiple of 2^-298 below 2^261. */
static inline void wefti_sum_add(int64_t *limbs, double value)
{
    uint64_t bits, mantissa, low, high;
    uint32_t exponent, limb, shift;
    memcpy(&bits, &value, sizeof bits);
    exponent = (uint32_t)(bits >> 52);
    if (exponent < 1023 + 52 - WEFTI_SUM_SCALE) { /* zero: no square of f32 is that small */
        return;
    }
    if (exponent >= 0x7ff || exponent > 1023 + 300) {
        limbs[WEFTI_SUM_NOT_FINITE]++;
        return;
    }
    mantissa = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1 << 52;
    exponent = exponent + WEFTI_SUM_SCALE - 1023 - 52; /* of the mantissa's lowest bit */
    limb = exponent / 32;
    shift = exponent % 32;
    low = (mantissa & UINT32_MAX) << shift;
    high = (mantissa >> 32) << shift;
    limbs[limb] += (int64_t)(low & UINT32_MAX);
    limbs[limb + 1] += (int64_t)((low >> 32) + (high & UINT32_MAX));
    limbs[limb + 2] += (int64_t)(high >> 32);
}

/* Moves carries up: every limb but the last is below 2^32 then. Equal sums have equal limbs. */
static inline void wefti_sum_carry(int64_t *limbs)
{
    for (int i = 0; i + 1 < WEFTI_SUM_NOT_FINITE; i++) {
        limbs[i + 1] += limbs[i] >> 32;
        limbs[i] &= UINT32_MAX;
    }
}

/* The sum as a double; NaN if a summand was not finite. The limbs need not be carried. */
static inline double wefti_sum_value(const int64_t *limbs)
{
    int64_t own[WEFTI_SUM_LIMBS];
    double value = 0;
    if (limbs[WEFTI_SUM_NOT_FINITE] != 0) {
        return (double)NAN;
    }
    memcpy(own, limbs, sizeof own);
    wefti_sum_carry(own);
    for (int i = 0; i < WEFTI_SUM_NOT_FINITE; i++) { /* from the smallest on */
        value += ldexp((double)own[i], 32 * i - WEFTI_SUM_SCALE);
    }
    return value;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11):
 * a keyed bijection of 128-bit counters. Any element of the sequence can be computed alone, in any
 * order, on any rank.
 */
#ifndef WEFT_OPS_COMPUTE_PHILOX_H
#define WEFT_OPS_COMPUTE_PHILOX_H

#include "ops/compute/support.h"

#define WEFTI_PHILOX_LANES 16
#define WEFTI_PHILOX_ROUNDS 10

/* Counters of as many blocks; in place they become their four random words. */
typedef struct wefti_philox {
    uint32_t x[4][WEFTI_PHILOX_LANES];
} wefti_philox_t;

/* Words are exact, so every instruction set makes the same ones. */
WEFTI_INLINE void wefti_philox_4x32_10(wefti_philox_t *at, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < WEFTI_PHILOX_ROUNDS; round++) {
        for (int l = 0; l < WEFTI_PHILOX_LANES; l++) {
            uint64_t a = (uint64_t)at->x[0][l] * 0xd2511f53u;
            uint64_t b = (uint64_t)at->x[2][l] * 0xcd9e8d57u;
            uint32_t x1 = at->x[1][l], x3 = at->x[3][l];
            at->x[0][l] = (uint32_t)(b >> 32) ^ x1 ^ key0;
            at->x[1][l] = (uint32_t)b;
            at->x[2][l] = (uint32_t)(a >> 32) ^ x3 ^ key1;
            at->x[3][l] = (uint32_t)a;
        }
        key0 += 0x9e3779b9u; /* the golden ratio */
        key1 += 0xbb67ae85u; /* the square root of 3, less 1 */
    }
}

#endif

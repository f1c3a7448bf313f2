/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11):
 * a keyed bijection of 128-bit counters. Any element of the sequence can be computed alone, in any
 * order, on any rank.
 */
#ifndef WEFT_OPS_COMPUTE_PHILOX_H
#define WEFT_OPS_COMPUTE_PHILOX_H

#include "ops/compute/support.h"

#define WEFTI_PHILOX_LANES 32

/* Counters of as many blocks; in place they become their four random words. */
typedef struct wefti_philox {
    uint32_t x[4][WEFTI_PHILOX_LANES];
} wefti_philox_t;

/* One round: x0 and x2 are multiplied, the products' halves change places. */
#define WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0, key1)                                             \
    do {                                                                                           \
        uint64_t a_ = (uint64_t)(x0)*0xd2511f53u;                                                  \
        uint64_t b_ = (uint64_t)(x2)*0xcd9e8d57u;                                                  \
        (x0) = (uint32_t)(b_ >> 32) ^ (x1) ^ (key0);                                               \
        (x2) = (uint32_t)(a_ >> 32) ^ (x3) ^ (key1);                                               \
        (x1) = (uint32_t)b_;                                                                       \
        (x3) = (uint32_t)a_;                                                                       \
    } while (0)

/* Words are exact, so every instruction set makes the same ones. Rounds are written out: the loop
 * over lanes is then the one that becomes vectors. */
WEFTI_INLINE void wefti_philox_4x32_10(wefti_philox_t *at, uint32_t key0, uint32_t key1)
{
    const uint32_t golden = 0x9e3779b9u, root = 0xbb67ae85u; /* of 3, less 1 */
    WEFTI_INDEPENDENT
    for (int l = 0; l < WEFTI_PHILOX_LANES; l++) {
        uint32_t x0 = at->x[0][l], x1 = at->x[1][l], x2 = at->x[2][l], x3 = at->x[3][l];
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0, key1);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + golden, key1 + root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 2 * golden, key1 + 2 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 3 * golden, key1 + 3 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 4 * golden, key1 + 4 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 5 * golden, key1 + 5 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 6 * golden, key1 + 6 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 7 * golden, key1 + 7 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 8 * golden, key1 + 8 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 9 * golden, key1 + 9 * root);
        at->x[0][l] = x0;
        at->x[1][l] = x1;
        at->x[2][l] = x2;
        at->x[3][l] = x3;
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of the compiler, for loops that it does not vectorise by itself: too few rounds, or
 * conditions. Where an instruction set has no vectors of a size, the compiler takes smaller ones.
 * Macros, as functions would pass vectors in a way that depends on the instruction set.
 */
#ifndef WEFT_OPS_COMPUTE_VECTOR_H
#define WEFT_OPS_COMPUTE_VECTOR_H

#include <stdint.h>

typedef float wefti_f32x4_t __attribute__((vector_size(16)));
typedef float wefti_f32x8_t __attribute__((vector_size(32)));
typedef float wefti_f32x16_t __attribute__((vector_size(64)));
typedef int32_t wefti_i32x4_t __attribute__((vector_size(16)));
typedef int32_t wefti_i32x8_t __attribute__((vector_size(32)));
typedef int32_t wefti_i32x16_t __attribute__((vector_size(64)));

/* The same in memory, at any address. */
typedef float wefti_f32x4_at_t __attribute__((vector_size(16), aligned(1), may_alias));
typedef float wefti_f32x8_at_t __attribute__((vector_size(32), aligned(1), may_alias));
typedef float wefti_f32x16_at_t __attribute__((vector_size(64), aligned(1), may_alias));
typedef int32_t wefti_i32x4_at_t __attribute__((vector_size(16), aligned(1), may_alias));
typedef int32_t wefti_i32x8_at_t __attribute__((vector_size(32), aligned(1), may_alias));
typedef int32_t wefti_i32x16_at_t __attribute__((vector_size(64), aligned(1), may_alias));

/* The n elements at an address. */
#define WEFTI_F32X(n, at) (*(wefti_f32x##n##_at_t *)(void *)(uintptr_t)(at))
#define WEFTI_I32X(n, at) (*(wefti_i32x##n##_at_t *)(void *)(uintptr_t)(at))

/* where: 0 or -1 per element, as comparisons of vectors return. */
#define WEFTI_SELECT_I32(where, yes, no) (((yes) & (where)) | ((no) & ~(where)))
#define WEFTI_SELECT_F32X(n, where, yes, no)                                                       \
    ((wefti_f32x##n##_t)WEFTI_SELECT_I32(where, (wefti_i32x##n##_t)(yes), (wefti_i32x##n##_t)(no)))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of ops/reduce share. */
#ifndef WEFT_OPS_REDUCE_INTERNAL_H
#define WEFT_OPS_REDUCE_INTERNAL_H

#include "ops/reduce/reduce.h"

/* One way to run a step; arguments are checked, wide is NULL where no source differs from dtype. */
typedef void (*wefti_reduce_fn)(const wefti_reduce_step_t *step);

/* Any step. The oracle of the others. */
void wefti_reduce_portable(const wefti_reduce_step_t *step);

#if defined(__x86_64__)
/* The same, compiled for these. */
void wefti_reduce_blocks_avx2(const wefti_reduce_step_t *step);
void wefti_reduce_blocks_avx512(const wefti_reduce_step_t *step);

/* Sum and avg of f32; sum, avg and prod of half types. NULL: something else. */
wefti_reduce_fn wefti_reduce_float_avx2(const wefti_reduce_step_t *step);
wefti_reduce_fn wefti_reduce_float_avx512(const wefti_reduce_step_t *step);

/* What can be reduced in the type's own width. NULL: something else. */
wefti_reduce_fn wefti_reduce_native_avx2(const wefti_reduce_step_t *step);
wefti_reduce_fn wefti_reduce_native_avx512(const wefti_reduce_step_t *step);
#endif

/* What a sum is divided by before it is rounded. */
static inline float wefti_reduce_divisor(const wefti_reduce_step_t *step)
{
    return step->reduction == WEFT_REDUCTION_AVG && step->finish ? (float)step->divisor : 1.0f;
}

/* Dividing by a power of two is multiplying by its reciprocal, bit for bit, and a vector division
 * costs more than the memory traffic around it. */
static inline bool wefti_is_power_of_two(uint32_t n)
{
    return (n & (n - 1)) == 0;
}

#endif

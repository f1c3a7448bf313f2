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
/* Sum and avg of f32. */
void wefti_reduce_f32_avx2(const wefti_reduce_step_t *step);
void wefti_reduce_f32_avx512(const wefti_reduce_step_t *step);

/* Sum and avg of half types whose sources are all of that type, with finish. */
wefti_reduce_fn wefti_reduce_half_avx2(weft_dtype_t dtype);
wefti_reduce_fn wefti_reduce_half_avx512(weft_dtype_t dtype);

/* What can be reduced in the type's own width; NULL where it cannot. */
wefti_reduce_fn wefti_reduce_native_avx2(weft_dtype_t dtype, weft_reduction_t reduction);
wefti_reduce_fn wefti_reduce_native_avx512(weft_dtype_t dtype, weft_reduction_t reduction);
#endif

/* What a sum is divided by before it is rounded. */
static inline float wefti_reduce_divisor(const wefti_reduce_step_t *step)
{
    return step->reduction == WEFT_AVG && step->finish ? (float)step->divisor : 1.0f;
}

/* Dividing by a power of two is multiplying by its reciprocal, bit for bit, and a vector division
 * costs more than the memory traffic around it. */
static inline int wefti_divides_exactly(float divisor)
{
    uint32_t n = (uint32_t)divisor;
    return (n & (n - 1)) == 0;
}

#endif

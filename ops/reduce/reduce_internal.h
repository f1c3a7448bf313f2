/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of ops/reduce share. */
#ifndef WEFT_OPS_REDUCE_INTERNAL_H
#define WEFT_OPS_REDUCE_INTERNAL_H

#include "ops/reduce/reduce.h"

/* Any dtype and reduction, arguments already checked. The oracle of the others. */
void wefti_reduce_portable(const weft_reduce_t *reduce);

void wefti_reduce_f32_portable(float *const *destinations, uint32_t destination_count,
                               const float *const *sources, uint32_t source_count,
                               size_t elem_count, float divisor);
#if defined(__x86_64__)
void wefti_reduce_f32_avx2(float *const *destinations, uint32_t destination_count,
                           const float *const *sources, uint32_t source_count, size_t elem_count,
                           float divisor);
void wefti_reduce_f32_avx512(float *const *destinations, uint32_t destination_count,
                             const float *const *sources, uint32_t source_count, size_t elem_count,
                             float divisor);
#endif

typedef enum wefti_half {
    WEFTI_HALF_F16 = 0,
    WEFTI_HALF_BF16 = 1,
} wefti_half_t;

/* Sum, divided by divisor where that is more than 1; accumulated in f32 and rounded once. */
typedef void (*wefti_reduce_half_fn)(uint16_t *const *destinations, uint32_t destination_count,
                                     const uint16_t *const *sources, uint32_t source_count,
                                     size_t elem_count, float divisor);
#if defined(__x86_64__)
wefti_reduce_half_fn wefti_reduce_half_avx2(wefti_half_t kind);
wefti_reduce_half_fn wefti_reduce_half_avx512(wefti_half_t kind);
#endif

/* What can be reduced in the type's own width; NULL where it cannot. Arguments already checked. */
typedef void (*wefti_reduce_native_fn)(const weft_reduce_t *reduce);
#if defined(__x86_64__)
wefti_reduce_native_fn wefti_reduce_native_avx2(weft_dtype_t dtype, weft_reduction_t reduction);
wefti_reduce_native_fn wefti_reduce_native_avx512(weft_dtype_t dtype, weft_reduction_t reduction);
#endif

/* Dividing by a power of two is multiplying by its reciprocal, bit for bit, and a vector division
 * costs more than the memory traffic around it. */
static inline int wefti_divides_exactly(float divisor)
{
    uint32_t n = (uint32_t)divisor;
    return (n & (n - 1)) == 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over dimensions: the general kernel, and the sums of f32 that are faster. */
#ifndef WEFT_OPS_COMPUTE_REDUCE_H
#define WEFT_OPS_COMPUTE_REDUCE_H

#include "ops/compute/support.h"
#include "runtime/base/parallel.h"

/* First in the state of a reduction: ReduceSum has two kernels. */
typedef weft_status_t (*wefti_reduce_fn)(const weft_kernel_call_t *call);

/* reduce.c: any type. */
weft_status_t wefti_reduce_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   void **out_state, size_t *out_scratch_bytes);
/* sum_to.c: calls fn for ranges of a dimension that stays (b is not 0), by several threads; a sum
 * is in one range. out_by, which job refers to, receives the dimension before. Ranges begin at
 * multiples of 64 if elements are adjacent. */
void wefti_reduce_by(uint32_t threads, const wefti_nest_t *nest, uint32_t *out_by,
                     wefti_range_fn fn, const void *job);
/* The part of a nest that is a range of a dimension; *a and *b: where it begins. */
static inline wefti_nest_t wefti_nest_range(const wefti_nest_t *nest, uint32_t by,
                                            wefti_range_t range, int64_t *a, int64_t *b)
{
    wefti_nest_t part = *nest;
    part.dims[by] = range.to - range.from;
    *a = range.from * nest->a[by];
    *b = range.from * nest->b[by];
    return part;
}
/* sum_to.c: the dimensions that are reduced, one bit each, and for the others of X the stride in
 * Y. */
weft_status_t wefti_reduce_strides(const weft_node_desc_t *node, uint32_t *out_mask,
                                   int64_t *out_strides);

#endif

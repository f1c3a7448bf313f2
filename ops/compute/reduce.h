/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over dimensions: the general kernel, and the sums of f32 that are faster. */
#ifndef WEFT_OPS_COMPUTE_REDUCE_H
#define WEFT_OPS_COMPUTE_REDUCE_H

#include "ops/compute/support.h"

/* First in the state of a reduction: ReduceSum has two kernels. */
typedef weft_status_t (*wefti_reduce_fn)(const weft_kernel_call_t *call);

/* reduce.c: any type. */
weft_status_t wefti_reduce_prepare(const weft_node_desc_t *node, void **out_state,
                                   size_t *out_scratch_bytes);
/* sum_to.c: the dimensions that are reduced, one bit each, and for the others of X the stride in
 * Y. */
weft_status_t wefti_reduce_strides(const weft_node_desc_t *node, uint32_t *out_mask,
                                   int64_t *out_strides);

#endif

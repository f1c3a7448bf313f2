/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels run on tensors behind which no memory follows, so that a read or write past the end is a
 * fault, also of intrinsics, which sanitizers do not see. */
#ifndef WEFT_TESTS_SUPPORT_SUPPORT_FENCE_H
#define WEFT_TESTS_SUPPORT_SUPPORT_FENCE_H

#include <weft/registry.h>

/* Runs kernel on copies of the tensors of call; the outputs are copied back. An output that is the
 * memory of an input stays so. */
weft_status_t test_run_fenced(const weft_kernel_t *kernel, const weft_node_desc_t *node,
                              const weft_kernel_call_t *call);

#endif

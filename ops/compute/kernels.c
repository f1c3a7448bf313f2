/* SPDX-License-Identifier: Apache-2.0 */
/* Every built-in kernel. */
#include "ops/op_defs.h"

#include "ops/compute/onednn_kernels.h"

const weft_kernel_t *const *wefti_compute_kernels(size_t *out_count)
{
    static const weft_kernel_t *const kernels[] = {
        &wefti_kernel_gemm, &wefti_kernel_matmul,    &wefti_kernel_fused_matmul,
        &wefti_kernel_conv, &wefti_kernel_conv_grad,
    };
    *out_count = sizeof(kernels) / sizeof(kernels[0]);
    return kernels;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Every built-in kernel. */
#include "ops/op_defs.h"

#include "ops/compute/onednn_kernels.h"
#include "ops/compute/own_kernels.h"
#include "ops/compute/product_kernels.h"

const weft_kernel_t *const *wefti_compute_kernels(size_t *out_count)
{
    static const weft_kernel_t *const kernels[] = {
        &wefti_kernel_gemm,
        &wefti_kernel_matmul,
        &wefti_kernel_fused_matmul,
        &wefti_kernel_conv,
        &wefti_kernel_conv_grad,
        &wefti_kernel_relu,
        &wefti_kernel_relu_grad,
        &wefti_kernel_tanh,
        &wefti_kernel_tanh_grad,
        &wefti_kernel_add,
        &wefti_kernel_sub,
        &wefti_kernel_mul,
        &wefti_kernel_div,
        &wefti_kernel_sum_to,
        &wefti_kernel_identity,
        &wefti_kernel_reshape,
        &wefti_kernel_flatten,
        &wefti_kernel_squeeze,
        &wefti_kernel_unsqueeze,
        &wefti_kernel_pad,
        &wefti_kernel_pad_grad,
        &wefti_kernel_transpose,
        &wefti_kernel_max_pool,
        &wefti_kernel_max_pool_mask,
        &wefti_kernel_max_pool_grad,
        &wefti_kernel_average_pool,
        &wefti_kernel_average_pool_grad,
        &wefti_kernel_global_average_pool,
        &wefti_kernel_dropout,
        &wefti_kernel_dropout_mask,
        &wefti_kernel_dropout_grad,
        &wefti_kernel_softmax,
        &wefti_kernel_log_softmax,
        &wefti_kernel_loss,
        &wefti_kernel_loss_grad,
        &wefti_kernel_sgd,
        &wefti_kernel_momentum,
        &wefti_kernel_adam,
        &wefti_kernel_tree_fold,
        &wefti_kernel_pack,
        &wefti_kernel_unpack,
        &wefti_kernel_square_sum,
        &wefti_kernel_clip_scale,
        /* alternatives, after the kernels that they stand beside */
        &wefti_onednn_gemm,
        &wefti_onednn_matmul,
        &wefti_onednn_fused_matmul,
        &wefti_onednn_conv,
        &wefti_onednn_conv_grad,
    };
    *out_count = sizeof(kernels) / sizeof(kernels[0]);
    return kernels;
}

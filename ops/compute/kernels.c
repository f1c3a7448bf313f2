/* SPDX-License-Identifier: Apache-2.0 */
/* Every built-in kernel: families that are tables, then single ones. */
#include "ops/op_defs.h"

#include "ops/compute/onednn_kernels.h"
#include "ops/compute/own_kernels.h"
#include "ops/compute/product_kernels.h"

size_t wefti_compute_kernels(const weft_kernel_t **out_kernels, size_t capacity)
{
    const wefti_kernel_family_t families[] = {
        wefti_kernels_functions(), wefti_kernels_broadcast(),  wefti_kernels_reduce(),
        wefti_kernels_scatter(),   wefti_kernels_along_axis(), wefti_kernels_rearrange(),
        wefti_kernels_resize(),
    };
    static const weft_kernel_t *const kernels[] = {
        &wefti_kernel_gemm,
        &wefti_kernel_matmul,
        &wefti_kernel_fused_matmul,
        &wefti_kernel_conv,
        &wefti_kernel_conv_grad,
        &wefti_kernel_conv_transpose,
        &wefti_kernel_clip,
        &wefti_kernel_clip_grad,
        &wefti_kernel_batch_norm,
        &wefti_kernel_batch_norm_training,
        &wefti_kernel_batch_norm_evaluation,
        &wefti_kernel_batch_norm_grad,
        &wefti_kernel_batch_norm_moments,
        &wefti_kernel_moving_average,
        &wefti_kernel_reduce_sum,
        &wefti_kernel_reduce_mean,
        &wefti_kernel_fused,
        &wefti_kernel_flash_attention,
        &wefti_kernel_flash_attention_grad,
        &wefti_kernel_pow,
        &wefti_kernel_pow_grad,
        &wefti_kernel_layer_norm,
        &wefti_kernel_layer_norm_grad,
        &wefti_kernel_softmax_grad,
        &wefti_kernel_log_softmax_grad,
        &wefti_kernel_where,
        &wefti_kernel_cast,
        &wefti_kernel_cast_like,
        &wefti_kernel_constant,
        &wefti_kernel_shape,
        &wefti_kernel_size,
        &wefti_kernel_constant_of_shape,
        &wefti_kernel_range,
        &wefti_kernel_gather,
        &wefti_kernel_gather_grad,
        &wefti_kernel_slice,
        &wefti_kernel_slice_grad,
        &wefti_kernel_split,
        &wefti_kernel_concat,
        &wefti_kernel_expand,
        &wefti_kernel_trilu,
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
        &wefti_kernel_nll,
        &wefti_kernel_nll_grad,
        &wefti_kernel_loss,
        &wefti_kernel_loss_grad,
        &wefti_kernel_smooth_loss,
        &wefti_kernel_sgd,
        &wefti_kernel_momentum,
        &wefti_kernel_adam,
        &wefti_kernel_adamw,
        &wefti_kernel_adagrad,
        &wefti_kernel_lamb,
        &wefti_kernel_lamb_squares,
        &wefti_kernel_learning_rate,
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
    size_t count = 0;
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        for (size_t i = 0; i < families[f].count; i++, count++) {
            if (count < capacity) {
                out_kernels[count] = &families[f].kernels[i];
            }
        }
    }
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++, count++) {
        if (count < capacity) {
            out_kernels[count] = kernels[i];
        }
    }
    return count;
}

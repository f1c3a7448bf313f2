/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that are our own C; kernels.c lists them. */
#ifndef WEFT_OPS_COMPUTE_OWN_KERNELS_H
#define WEFT_OPS_COMPUTE_OWN_KERNELS_H

#include <weft/registry.h>

/* Kernels that one table lists. */
typedef struct wefti_kernel_family {
    const weft_kernel_t *kernels;
    size_t count;
} wefti_kernel_family_t;
wefti_kernel_family_t wefti_kernels_functions(void);
wefti_kernel_family_t wefti_kernels_broadcast(void);
wefti_kernel_family_t wefti_kernels_reduce(void);
wefti_kernel_family_t wefti_kernels_scatter(void);
wefti_kernel_family_t wefti_kernels_along_axis(void);
wefti_kernel_family_t wefti_kernels_rearrange(void);
wefti_kernel_family_t wefti_kernels_resize(void);

extern const weft_kernel_t wefti_kernel_clip, wefti_kernel_clip_grad, wefti_kernel_reduce_sum;
extern const weft_kernel_t wefti_kernel_reduce_mean, wefti_kernel_where, wefti_kernel_cast;
extern const weft_kernel_t wefti_kernel_cast_like, wefti_kernel_constant, wefti_kernel_shape;
extern const weft_kernel_t wefti_kernel_size, wefti_kernel_constant_of_shape, wefti_kernel_range;
extern const weft_kernel_t wefti_kernel_batch_norm, wefti_kernel_batch_norm_training;
extern const weft_kernel_t wefti_kernel_batch_norm_moments, wefti_kernel_batch_norm_evaluation;
extern const weft_kernel_t wefti_kernel_batch_norm_grad, wefti_kernel_moving_average;
extern const weft_kernel_t wefti_kernel_gather, wefti_kernel_gather_grad;
extern const weft_kernel_t wefti_kernel_slice;
extern const weft_kernel_t wefti_kernel_slice_grad, wefti_kernel_split, wefti_kernel_concat;
extern const weft_kernel_t wefti_kernel_expand, wefti_kernel_trilu, wefti_kernel_pow;
extern const weft_kernel_t wefti_kernel_pow_grad, wefti_kernel_layer_norm;
extern const weft_kernel_t wefti_kernel_layer_norm_grad, wefti_kernel_softmax_grad;
extern const weft_kernel_t wefti_kernel_log_softmax_grad, wefti_kernel_dropout;
extern const weft_kernel_t wefti_kernel_dropout_mask, wefti_kernel_dropout_grad;
extern const weft_kernel_t wefti_kernel_sum_to, wefti_kernel_identity, wefti_kernel_reshape;
extern const weft_kernel_t wefti_kernel_flatten, wefti_kernel_squeeze, wefti_kernel_unsqueeze;
extern const weft_kernel_t wefti_kernel_pad, wefti_kernel_pad_grad, wefti_kernel_transpose;
extern const weft_kernel_t wefti_kernel_max_pool, wefti_kernel_max_pool_mask;
extern const weft_kernel_t wefti_kernel_max_pool_grad, wefti_kernel_average_pool;
extern const weft_kernel_t wefti_kernel_average_pool_grad, wefti_kernel_global_average_pool;
extern const weft_kernel_t wefti_kernel_softmax, wefti_kernel_log_softmax, wefti_kernel_loss;
extern const weft_kernel_t wefti_kernel_nll, wefti_kernel_nll_grad;
extern const weft_kernel_t wefti_kernel_loss_grad, wefti_kernel_sgd, wefti_kernel_momentum;
extern const weft_kernel_t wefti_kernel_adam, wefti_kernel_adamw, wefti_kernel_lamb;
extern const weft_kernel_t wefti_kernel_adagrad, wefti_kernel_lamb_squares;
extern const weft_kernel_t wefti_kernel_fused, wefti_kernel_flash_attention;
extern const weft_kernel_t wefti_kernel_flash_attention_grad;
extern const weft_kernel_t wefti_kernel_learning_rate, wefti_kernel_smooth_loss;
extern const weft_kernel_t wefti_kernel_tree_fold, wefti_kernel_pack;
extern const weft_kernel_t wefti_kernel_unpack, wefti_kernel_square_sum, wefti_kernel_clip_scale;

#endif

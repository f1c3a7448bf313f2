/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that are our own C; kernels.c lists them. */
#ifndef WEFT_OPS_COMPUTE_OWN_KERNELS_H
#define WEFT_OPS_COMPUTE_OWN_KERNELS_H

#include <weft/registry.h>

extern const weft_kernel_t wefti_kernel_relu, wefti_kernel_relu_grad;
extern const weft_kernel_t wefti_kernel_tanh, wefti_kernel_tanh_grad;
extern const weft_kernel_t wefti_kernel_sigmoid, wefti_kernel_sigmoid_grad;
extern const weft_kernel_t wefti_kernel_hard_sigmoid, wefti_kernel_hard_sigmoid_grad;
extern const weft_kernel_t wefti_kernel_hard_swish, wefti_kernel_hard_swish_grad;
extern const weft_kernel_t wefti_kernel_clip, wefti_kernel_clip_grad;
extern const weft_kernel_t wefti_kernel_reduce_sum, wefti_kernel_reduce_mean;
extern const weft_kernel_t wefti_kernel_add, wefti_kernel_sub, wefti_kernel_mul, wefti_kernel_div;
extern const weft_kernel_t wefti_kernel_max, wefti_kernel_min, wefti_kernel_where;
extern const weft_kernel_t wefti_kernel_equal, wefti_kernel_less, wefti_kernel_less_or_equal;
extern const weft_kernel_t wefti_kernel_greater, wefti_kernel_greater_or_equal;
extern const weft_kernel_t wefti_kernel_and, wefti_kernel_or, wefti_kernel_xor, wefti_kernel_not;
extern const weft_kernel_t wefti_kernel_is_nan, wefti_kernel_cast, wefti_kernel_cast_like;
extern const weft_kernel_t wefti_kernel_constant, wefti_kernel_shape, wefti_kernel_size;
extern const weft_kernel_t wefti_kernel_constant_of_shape, wefti_kernel_range;
extern const weft_kernel_t wefti_kernel_gather, wefti_kernel_gather_grad;
extern const weft_kernel_t wefti_kernel_gather_elements, wefti_kernel_slice;
extern const weft_kernel_t wefti_kernel_slice_grad, wefti_kernel_split, wefti_kernel_concat;
extern const weft_kernel_t wefti_kernel_expand, wefti_kernel_trilu;
extern const weft_kernel_t wefti_kernel_neg, wefti_kernel_exp, wefti_kernel_log;
extern const weft_kernel_t wefti_kernel_sqrt, wefti_kernel_reciprocal, wefti_kernel_erf;
extern const weft_kernel_t wefti_kernel_gelu, wefti_kernel_cos, wefti_kernel_sin;
extern const weft_kernel_t wefti_kernel_sqrt_grad, wefti_kernel_reciprocal_grad,
    wefti_kernel_erf_grad;
extern const weft_kernel_t wefti_kernel_gelu_grad, wefti_kernel_pow, wefti_kernel_pow_grad;
extern const weft_kernel_t wefti_kernel_layer_norm, wefti_kernel_layer_norm_grad,
    wefti_kernel_softmax_grad;
extern const weft_kernel_t wefti_kernel_log_softmax_grad;
extern const weft_kernel_t wefti_kernel_dropout, wefti_kernel_dropout_mask;
extern const weft_kernel_t wefti_kernel_dropout_grad;
extern const weft_kernel_t wefti_kernel_sum_to;
extern const weft_kernel_t wefti_kernel_identity, wefti_kernel_reshape, wefti_kernel_flatten;
extern const weft_kernel_t wefti_kernel_squeeze, wefti_kernel_unsqueeze;
extern const weft_kernel_t wefti_kernel_pad, wefti_kernel_pad_grad, wefti_kernel_transpose;
extern const weft_kernel_t wefti_kernel_max_pool, wefti_kernel_max_pool_mask;
extern const weft_kernel_t wefti_kernel_max_pool_grad;
extern const weft_kernel_t wefti_kernel_average_pool, wefti_kernel_average_pool_grad;
extern const weft_kernel_t wefti_kernel_global_average_pool;
extern const weft_kernel_t wefti_kernel_softmax, wefti_kernel_log_softmax;
extern const weft_kernel_t wefti_kernel_loss, wefti_kernel_loss_grad;
extern const weft_kernel_t wefti_kernel_sgd, wefti_kernel_momentum, wefti_kernel_adam,
    wefti_kernel_adamw, wefti_kernel_lamb;
extern const weft_kernel_t wefti_kernel_tree_fold;
extern const weft_kernel_t wefti_kernel_pack, wefti_kernel_unpack;
extern const weft_kernel_t wefti_kernel_square_sum, wefti_kernel_clip_scale;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of matrix products and convolutions; ops/compute/kernels.c lists them. */
#ifndef WEFT_OPS_COMPUTE_PRODUCT_KERNELS_H
#define WEFT_OPS_COMPUTE_PRODUCT_KERNELS_H

#include <weft/registry.h>

extern const weft_kernel_t wefti_kernel_gemm;           /* "" Gemm */
extern const weft_kernel_t wefti_kernel_matmul;         /* "" MatMul */
extern const weft_kernel_t wefti_kernel_fused_matmul;   /* com.microsoft FusedMatMul */
extern const weft_kernel_t wefti_kernel_conv;           /* "" Conv */
extern const weft_kernel_t wefti_kernel_conv_grad;      /* com.microsoft ConvGrad */
extern const weft_kernel_t wefti_kernel_conv_transpose; /* "" ConvTranspose */

#endif

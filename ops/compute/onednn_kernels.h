/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the family "onednn"; ops/compute/kernels.c lists them. */
#ifndef WEFT_OPS_COMPUTE_ONEDNN_KERNELS_H
#define WEFT_OPS_COMPUTE_ONEDNN_KERNELS_H

#include <weft/registry.h>

extern const weft_kernel_t wefti_onednn_gemm;         /* "" Gemm */
extern const weft_kernel_t wefti_onednn_matmul;       /* "" MatMul */
extern const weft_kernel_t wefti_onednn_fused_matmul; /* com.microsoft FusedMatMul */
extern const weft_kernel_t wefti_onednn_conv;         /* "" Conv */
extern const weft_kernel_t wefti_onednn_conv_grad;    /* com.microsoft ConvGrad */

#endif

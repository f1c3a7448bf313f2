/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of f32 on tensors of f16 and bf16, by copies in f32. */
#ifndef WEFT_OPS_COMPUTE_HALVES_H
#define WEFT_OPS_COMPUTE_HALVES_H

#include <stdbool.h>

#include <weft/registry.h>

/*
 * Prepares *kernel. Where it declines half types, *out_kernel is a kernel that widens inputs of
 * such types to f32, calls *kernel, and rounds its outputs once; else it is kernel. The message of
 * an error is that of kernel.
 */
weft_status_t wefti_prepare_kernel(const weft_kernel_t *kernel, const weft_node_desc_t *node,
                                   const weft_kernel_env_t *env, const weft_kernel_t **out_kernel,
                                   void **out_state, size_t *out_scratch_bytes);

/* f16 or bf16 to f32, exactly. */
void wefti_halves_widen(weft_isa_t isa, weft_dtype_t dtype, const void *x, int64_t count,
                        float *out);
/* f32 to f16 or bf16, rounded to nearest, ties to even. */
void wefti_halves_narrow(weft_isa_t isa, weft_dtype_t dtype, const float *x, int64_t count,
                         void *out);

static inline bool wefti_is_half(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F16 || dtype == WEFT_DTYPE_BF16;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The one table of built-in operator definitions, and the registry's inside. */
#ifndef WEFT_OPS_OP_DEFS_H
#define WEFT_OPS_OP_DEFS_H

#include <weft/registry.h>

/* All built-in definitions; *out_count of them, any order. */
const weft_op_def_t *const *wefti_op_defs(size_t *out_count);
/* All built-in kernels (ops/compute). */
const weft_kernel_t *const *wefti_compute_kernels(size_t *out_count);

#endif

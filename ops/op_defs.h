/* SPDX-License-Identifier: Apache-2.0 */
/* The one table of built-in operator definitions, and internals of the registry. */
#ifndef WEFT_OPS_OP_DEFS_H
#define WEFT_OPS_OP_DEFS_H

#include <weft/registry.h>

/* Stores up to capacity built-in definitions, any order. @return how many there are. */
size_t wefti_op_defs(const weft_op_def_t **out_defs, size_t capacity);
/* Stores up to capacity built-in kernels (ops/compute). @return how many there are. */
size_t wefti_compute_kernels(const weft_kernel_t **out_kernels, size_t capacity);

/* registry.c: adds all definitions of from (or NULL) that registry lacks; they must outlive it. */
weft_status_t wefti_registry_add_defs(weft_registry_t *registry, const weft_registry_t *from);
/* Memory that lives as long as the registry. */
struct wefti_arena *wefti_registry_arena(weft_registry_t *registry);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft::Fused: element-wise operators (steps) in one pass over the data. The tables of element-wise
 * kernels contribute the loops, which compute in f32. Results of a half type are rounded to it: bits
 * are those of the single operators.
 */
#ifndef WEFT_OPS_COMPUTE_FUSED_H
#define WEFT_OPS_COMPUTE_FUSED_H

#include "ops/compute/elementwise.h"

#define WEFTI_FUSED_STEPS 24u
#define WEFTI_FUSED_INPUTS 12u

/* Elements of two operands; a stride of 0 repeats one element. y has stride 1. */
typedef void (*wefti_broadcast_fn)(const void *a, int64_t sa, const void *b, int64_t sb, void *y,
                                   int64_t count);

/* A node as a step. */
typedef struct wefti_fused_step {
    const char *name;  /* of the step: the operator, or operator:form */
    uint32_t tensors;  /* operands: inputs 0 and 1 of the node */
    bool broadcasts;   /* operands may be smaller than the result */
    weft_dtype_t type; /* of the result */
    double numbers[2];
} wefti_fused_step_t;

#define WEFTI_FUSED_CAST "Cast" /* the step that only changes the type */

/* What a step executes: one of the two. */
typedef struct wefti_fused_loop {
    wefti_elementwise_fn same;
    wefti_broadcast_fn broadcast;
    uint32_t tensors;
} wefti_fused_loop_t;

/* fused.c: false where the operator is not a step, or has other types than f32, f16 and bf16. */
bool wefti_fused_step(const weft_node_desc_t *node, wefti_fused_step_t *out_step);
/* The type of a step's result, by attribute types; NONE where the attribute is wrong. */
weft_dtype_t wefti_fused_type(const weft_node_desc_t *node, int64_t step);

/* functions.c and broadcast.c: false where the table has no such operator. */
bool wefti_function_step(const weft_node_desc_t *node, wefti_fused_step_t *out_step);
bool wefti_broadcast_step(const weft_node_desc_t *node, wefti_fused_step_t *out_step);
bool wefti_function_loop(const char *name, weft_isa_t isa, wefti_fused_loop_t *out_loop);
bool wefti_broadcast_loop(const char *name, weft_isa_t isa, wefti_fused_loop_t *out_loop);

#endif

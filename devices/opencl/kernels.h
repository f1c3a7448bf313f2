/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of operators: prepare checks a node and writes down the functions to call (node.c,
 * kernels.c, window.c), launch calls them (launch.c). A function gets all operands of the node
 * (inputs, outputs, scratch if there is any), then the numbers, then the factors, then the word that
 * tells of a wrong label if it looks at labels.
 */
#ifndef WEFT_DEVICES_OPENCL_KERNELS_H
#define WEFT_DEVICES_OPENCL_KERNELS_H

#include "devices/opencl/opencl.h"

#define STEPS 3u
#define NUMBERS 24u
#define FACTORS 6u
#define OPERANDS 16u

/* A call of a function. */
typedef struct cl_step {
    const char *function;
    size_t count; /* work items */
} cl_step_t;

/* The state of a kernel. */
typedef struct cl_node {
    cl_step_t steps[STEPS];
    uint32_t step_count, number_count, factor_count;
    cl_long numbers[NUMBERS];
    cl_float factors[FACTORS];
    size_t bytes[OPERANDS];             /* of each operand of the plan's node, inputs first */
    uint32_t input_count, output_count; /* that the functions take; absent ones count */
    size_t scratch_bytes;
    bool labels, f64;
} cl_node_t;

#define PREPARE(name)                                                                              \
    weft_status_t name(const weft_node_desc_t *desc, const weft_kernel_env_t *env,                 \
                       void **out_state, size_t *out_scratch_bytes)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        weft_status_t try_status = (call);                                                         \
        if (try_status < 0) {                                                                      \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

/* node.c */
const weft_attr_t *cl_attr(const weft_node_desc_t *desc, const char *name);
int64_t cl_attr_int(const weft_node_desc_t *desc, const char *name, int64_t otherwise);
float cl_attr_float(const weft_node_desc_t *desc, const char *name, float otherwise);
/* count integers of a list; otherwise where it is absent. */
weft_status_t cl_attr_ints(const weft_node_desc_t *desc, const char *name, size_t count,
                           int64_t otherwise, int64_t *out);
bool cl_has(const weft_tensor_desc_t *tensors, uint32_t count, uint32_t index);
int64_t cl_elems(const weft_tensor_desc_t *tensor);
bool cl_same_shape(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b);
weft_status_t cl_refuse(const weft_node_desc_t *desc, const char *why);
/* Tensors of f32 in plain layout, but those of the mask; all of them are there. */
weft_status_t cl_need_f32(const weft_node_desc_t *desc, uint32_t inputs, uint32_t outputs,
                          uint32_t other_inputs);
size_t cl_elem_bytes(weft_dtype_t dtype);
cl_node_t cl_start(uint32_t inputs, uint32_t outputs);
void cl_add_step(cl_node_t *node, cl_step_t step);
/* A work item for each of count. */
cl_step_t cl_each(const char *function, int64_t count);
void cl_add_number(cl_node_t *node, int64_t number);
void cl_add_factor(cl_node_t *node, float factor);
weft_status_t cl_keep(const weft_node_desc_t *desc, const cl_node_t *made, void **out_state,
                      size_t *out_scratch_bytes);
void cl_node_destroy(void *state);

/* window.c */
PREPARE(cl_prepare_conv);
PREPARE(cl_prepare_conv_grad);
PREPARE(cl_prepare_max_pool);
PREPARE(cl_prepare_max_pool_grad);

#endif

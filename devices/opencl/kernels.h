/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of operators: prepare checks a node and writes down the functions to call (node.c, and a
 * file per kind of operator), launch calls them (launch.c). A function gets all operands of the node
 * (inputs, outputs, scratch if there is any), or those that its step selects, then the table if the
 * node has one, the numbers, the factors, and the word that reports a wrong label or index.
 */
#ifndef WEFT_DEVICES_OPENCL_KERNELS_H
#define WEFT_DEVICES_OPENCL_KERNELS_H

#include "devices/opencl/opencl.h"

#define NUMBERS 26u
#define FACTORS 6u
#define SELECTED 4u
#define DIMS 8u /* of a tensor */

/* A call of a function. */
typedef struct cl_step {
    const char *function;
    size_t count;              /* work items */
    uint32_t selected;         /* operands that the function takes; 0: all of them */
    uint32_t chosen[SELECTED]; /* which these are */
    size_t table_at;           /* numbers of the table before its own */
} cl_step_t;

/* The state of a kernel. */
typedef struct cl_node {
    cl_step_t *steps;
    size_t step_count, step_capacity;
    uint32_t number_count, factor_count;
    cl_long numbers[NUMBERS];
    cl_float factors[FACTORS];
    size_t *bytes;                      /* of each operand of the plan's node, inputs first */
    cl_place_t *places;                 /* of operands and scratch, in the present launch */
    uint32_t input_count, output_count; /* that the functions take; absent ones count */
    size_t scratch_bytes;
    bool labels;
    bool view;      /* there is nothing to do where output 0 is input 0 */
    cl_long *table; /* numbers that do not fit into arguments */
    size_t table_count, table_capacity;
    bool failed;         /* no memory for what was added */
    cl_mem table_memory; /* the table on the device, from the first launch on */
} cl_node_t;

/* Dimensions with the strides of two tensors; neighbours that lie like one are one. */
typedef struct cl_nest {
    uint32_t rank;
    int64_t dims[DIMS], a[DIMS], b[DIMS];
} cl_nest_t;

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
/* NULL also where it has another type. */
const weft_attr_t *cl_attr_list(const weft_node_desc_t *desc, const char *name,
                                weft_attr_type_t type);
int64_t cl_attr_int(const weft_node_desc_t *desc, const char *name, int64_t otherwise);
float cl_attr_float(const weft_node_desc_t *desc, const char *name, float otherwise);
/* count integers of a list; otherwise where it is absent. */
weft_status_t cl_attr_ints(const weft_node_desc_t *desc, const char *name, size_t count,
                           int64_t otherwise, int64_t *out);
bool cl_has(const weft_tensor_desc_t *tensors, uint32_t count, uint32_t index);
int64_t cl_elems(const weft_tensor_desc_t *tensor);
bool cl_same_shape(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b);
weft_status_t cl_refuse(const weft_node_desc_t *desc, const char *why);
/* The same once there are steps or a table. */
weft_status_t cl_drop(const weft_node_desc_t *desc, cl_node_t *node, const char *why);
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
/* A number of the table. */
void cl_add_to_table(cl_node_t *node, int64_t number);
cl_nest_t cl_nest(void);
void cl_nest_add(cl_nest_t *nest, int64_t size, int64_t a, int64_t b);
/* Of a tensor in plain layout. */
void cl_strides(const weft_tensor_desc_t *tensor, int64_t strides[DIMS]);
/* Strides of from at the dimensions of to, 0 where it repeats; false: it cannot be broadcast. */
bool cl_broadcast(const weft_tensor_desc_t *from, const weft_tensor_desc_t *to,
                  int64_t strides[DIMS]);
/* An axis of rank dimensions, which may count from the last one. */
weft_status_t cl_attr_axis(const weft_node_desc_t *desc, int64_t otherwise, uint32_t rank,
                           uint32_t *out_axis);
/* All operands that are there have plain layout. */
weft_status_t cl_need_plain(const weft_node_desc_t *desc);
/* Takes steps and table of made over. */
weft_status_t cl_keep(const weft_node_desc_t *desc, const cl_node_t *made, void **out_state,
                      size_t *out_scratch_bytes);
void cl_node_destroy(void *state);

/* product.c */
PREPARE(cl_prepare_gemm);
PREPARE(cl_prepare_matmul);

/* elements.c */
PREPARE(cl_prepare_elements);

/* move.c */
PREPARE(cl_prepare_view);
PREPARE(cl_prepare_transpose);
PREPARE(cl_prepare_slice);
PREPARE(cl_prepare_slice_grad);
PREPARE(cl_prepare_split);
PREPARE(cl_prepare_concat);
PREPARE(cl_prepare_expand);
PREPARE(cl_prepare_dropout);
PREPARE(cl_prepare_gather);
PREPARE(cl_prepare_gather_grad);
PREPARE(cl_prepare_gather_nd);

/* rows.c */
PREPARE(cl_prepare_softmax);
PREPARE(cl_prepare_softmax_grad);
PREPARE(cl_prepare_layer_norm);
PREPARE(cl_prepare_layer_norm_grad);
PREPARE(cl_prepare_sum_to);
PREPARE(cl_prepare_reduce);

/* attention.c */
PREPARE(cl_prepare_attention);
PREPARE(cl_prepare_attention_grad);

/* update.c */
PREPARE(cl_prepare_sgd);
PREPARE(cl_prepare_momentum);
PREPARE(cl_prepare_adagrad);
PREPARE(cl_prepare_adam);
PREPARE(cl_prepare_learning_rate);
PREPARE(cl_prepare_square_sum);
PREPARE(cl_prepare_clip_scale);

/* window.c */
PREPARE(cl_prepare_conv);
PREPARE(cl_prepare_conv_grad);
PREPARE(cl_prepare_max_pool);
PREPARE(cl_prepare_max_pool_grad);

#endif

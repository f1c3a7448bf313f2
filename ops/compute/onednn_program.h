/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that oneDNN computes: a short list of its primitives, all of them made in prepare.
 *
 *   input W (plain) --reorder--> W as oneDNN likes it (scratch) --+
 *   input X ------------------------------------------------------+--> convolution --> output Y
 *
 * Memory objects are made once as well; run sets their addresses, which are the same in every step,
 * and executes. dnnl.h is included by ops/compute/onednn_* alone.
 */
#ifndef WEFT_OPS_COMPUTE_ONEDNN_PROGRAM_H
#define WEFT_OPS_COMPUTE_ONEDNN_PROGRAM_H

#include <dnnl.h>

#include <stdbool.h>

#include <weft/registry.h>

enum { WEFTI_ONEDNN_TENSORS = 24, WEFTI_ONEDNN_STEPS = 10, WEFTI_ONEDNN_ARGS = 6 };

typedef enum wefti_onednn_place {
    WEFTI_ONEDNN_INPUT,
    WEFTI_ONEDNN_OUTPUT,
    WEFTI_ONEDNN_SCRATCH,   /* private to the kernel */
    WEFTI_ONEDNN_SCRATCHPAD /* oneDNN's own; steps share it */
} wefti_onednn_place_t;

typedef struct wefti_onednn_tensor {
    dnnl_memory_desc_t desc;
    dnnl_memory_t memory;
    wefti_onednn_place_t place;
    size_t at;        /* index of the input or output, or offset into scratch */
    void *handle;     /* what memory holds */
    uint32_t copy_of; /* an input that is copied here: its number; else WEFTI_ONEDNN_TENSORS */
} wefti_onednn_tensor_t;

typedef struct wefti_onednn_step {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[WEFTI_ONEDNN_ARGS];
    int arg_count;
} wefti_onednn_step_t;

typedef struct wefti_onednn_program {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint32_t threads;
    uint32_t tensor_count, step_count;
    wefti_onednn_tensor_t tensors[WEFTI_ONEDNN_TENSORS];
    wefti_onednn_step_t steps[WEFTI_ONEDNN_STEPS];
    size_t scratch_bytes, scratchpad_bytes;
    char name[96]; /* implementations, in order */
} wefti_onednn_program_t;

/* Loads oneDNN; before any other call. WEFT_ERR_NOT_FOUND: it is not installed. */
weft_status_t wefti_onednn_load(void);
/* The OpenMP that oneDNN uses. Ours have other names, as a program may be linked with an OpenMP. */
#define omp_get_max_threads wefti_omp_get_max_threads
#define omp_set_num_threads wefti_omp_set_num_threads
int omp_get_max_threads(void);
void omp_set_num_threads(int count);

/* Fills the steps in. WEFT_ERR_UNSUPPORTED: oneDNN is not to compute this node. */
typedef weft_status_t (*wefti_onednn_describe_fn)(const weft_node_desc_t *node,
                                                  const weft_kernel_env_t *env,
                                                  wefti_onednn_program_t *program);

/* The slots of weft_kernel_t; prepare is called by each kernel's own with its describe. */
weft_status_t wefti_onednn_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   wefti_onednn_describe_fn describe, void **out_state,
                                   size_t *out_scratch_bytes);
weft_status_t wefti_onednn_run(const weft_kernel_call_t *call);
void wefti_onednn_destroy(void *state);
const char *wefti_onednn_implementation(void *state);

/* A oneDNN status as ours; 0 stays 0. what is named in the message. */
weft_status_t wefti_onednn_status(dnnl_status_t status, const char *what);

/* An input or output of the node. Tensors are numbered from 0. */
weft_status_t wefti_onednn_tensor(wefti_onednn_program_t *program, const dnnl_memory_desc_t *desc,
                                  wefti_onednn_place_t place, size_t index, uint32_t *out_tensor);
/* tensor itself where it has the format wanted already, else a new one in scratch. */
weft_status_t wefti_onednn_tensor_as(wefti_onednn_program_t *program, uint32_t tensor,
                                     const dnnl_memory_desc_t *wanted, uint32_t *out_tensor);
/* The same for an input, and adds the reorder that fills it; steps that want one format share it.
 */
weft_status_t wefti_onednn_input_as(wefti_onednn_program_t *program, uint32_t tensor,
                                    const dnnl_memory_desc_t *wanted, uint32_t *out_tensor);
/* Adds a reorder; nothing when both are one tensor. */
weft_status_t wefti_onednn_reorder(wefti_onednn_program_t *program, uint32_t from, uint32_t to);

/*
 * The best implementation of op_desc that is not oneDNN's reference code; WEFT_ERR_UNSUPPORTED when
 * there is none. attr and hint may be NULL; attr's scratchpad mode is set here. label ("dX ") goes
 * before the implementation's name; NULL: out_desc is only to be a hint, reference code will do.
 */
weft_status_t wefti_onednn_choose(wefti_onednn_program_t *program, const void *op_desc,
                                  dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                  const char *label, dnnl_primitive_desc_t *out_desc);
/* The format desc wants for an argument (dnnl_query_weights_md and so on). */
const dnnl_memory_desc_t *wefti_onednn_wanted(const_dnnl_primitive_desc_t desc, dnnl_query_t what);

typedef struct wefti_onednn_arg {
    int arg; /* DNNL_ARG_SRC and so on */
    uint32_t tensor;
} wefti_onednn_arg_t;
/* Adds a primitive of desc; its scratchpad is added to args. */
weft_status_t wefti_onednn_step(wefti_onednn_program_t *program, const_dnnl_primitive_desc_t desc,
                                const wefti_onednn_arg_t *args, int arg_count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small graph compiler that knows nothing of ONNX and has kernels of its own. It takes from Weft
 * the definitions of collectives, the passes that place and fuse them, and streams, events and
 * calls to run them with; the graph, its memory, the kernels and the loop that runs a step are its
 * own.
 */
#ifndef HOST_H
#define HOST_H

#include <weft/weft.h>

#define HOST_NONE UINT32_MAX
#define HOST_MAX_NODES 96u
#define HOST_MAX_TENSORS 128u
#define HOST_MAX_IO 16u
#define HOST_MAX_ORDERS 64u

typedef enum host_op {
    HOST_LINEAR,    /* x, w, b -> x w + b */
    HOST_RELU,      /* z -> a */
    HOST_XENT,      /* z, labels -> loss, dz */
    HOST_RELU_GRAD, /* da, a -> dz */
    HOST_GRAD_X,    /* dz, w -> da */
    HOST_GRAD_W,    /* x, dz -> dw */
    HOST_GRAD_B,    /* dz -> db */
    HOST_SGD,       /* w, dw: updates w */
    HOST_COLLECTIVE,
} host_op_t;

typedef struct host_tensor {
    char name[32];
    uint32_t rows, cols;
    uint32_t producer; /* node, or HOST_NONE */
    uint32_t grad_of;  /* parameter, or HOST_NONE */
    uint32_t alias;    /* lies where this tensor lies, or HOST_NONE */
    float *data;
} host_tensor_t;

typedef struct host_node {
    host_op_t op;
    char name[48];
    uint32_t inputs[HOST_MAX_IO], outputs[HOST_MAX_IO];
    uint32_t input_count, output_count;
    int removed;
    /* collectives */
    const weft_op_def_t *def; /* Weft's */
    weft_reduction_t reduction;
    uint32_t parts; /* 0: whole */
    char algorithm[32], reason[160];
    uint32_t start_after, wait_before; /* nodes, or HOST_NONE */
} host_node_t;

typedef struct host_graph {
    host_tensor_t tensors[HOST_MAX_TENSORS];
    uint32_t tensor_count;
    host_node_t nodes[HOST_MAX_NODES];
    uint32_t node_count;
    uint32_t order[HOST_MAX_NODES]; /* of execution */
    uint32_t order_count;
    uint32_t edges[2 * HOST_MAX_ORDERS]; /* orderings that no tensor shows */
    uint32_t edge_count;
} host_graph_t;

/* The arrays of a view; what it shows is a copy of the graph's links. */
typedef struct host_view {
    weft_graph_view_t view;
    weft_view_value_t values[HOST_MAX_TENSORS];
    weft_view_op_t ops[HOST_MAX_NODES];
    uint32_t inputs[HOST_MAX_NODES * HOST_MAX_IO], outputs[HOST_MAX_NODES * HOST_MAX_IO];
    uint32_t users[HOST_MAX_NODES * HOST_MAX_IO];
} host_view_t;

/* Every call can fail; a sample stops at the first one that does. */
void host_check(weft_status_t status);
void host_fail(const char *text);

/* ir.c */
uint32_t host_add_tensor(host_graph_t *graph, const char *name, uint32_t rows, uint32_t cols);
uint32_t host_add_node(host_graph_t *graph, host_op_t op, const char *name);
void host_add_input(host_graph_t *graph, uint32_t node, uint32_t tensor);
void host_add_output(host_graph_t *graph, uint32_t node, uint32_t tensor);
/* A new order: by values, edges and, where these leave a choice, keys[node]. */
void host_sort(host_graph_t *graph, const uint32_t *keys);
size_t host_tensor_bytes(const host_tensor_t *tensor);
/* Predicted time of a node by this compiler's own cost model. */
uint64_t host_node_ns(const host_graph_t *graph, const host_node_t *node);

/* weft_bridge.c: everything that speaks Weft's language at compile time. */
void host_show(const host_graph_t *graph, host_view_t *out);
void host_apply(host_graph_t *graph, const weft_registry_t *registry,
                const weft_edit_list_t *edits);
/* All passes, one after the other; policy as in weft_bucket_policy_check. */
void host_compile(host_graph_t *graph, const weft_registry_t *registry, uint32_t ranks,
                  const char *policy, int verbose);
/* Only the collectives, nothing fused: to compare with. */
void host_compile_plain(host_graph_t *graph, const weft_registry_t *registry);

/* model.c: a training step of a small network. */
typedef struct host_model {
    uint32_t input, labels, loss;
    uint32_t params[16], param_count;
} host_model_t;
void host_build_model(host_graph_t *graph, host_model_t *model);

/* kernels.c */
void host_run_kernel(const host_graph_t *graph, const host_node_t *node);

/* plan.c: the same by a plan. */
void host_register(weft_registry_t *registry); /* operators and kernels */
weft_plan_t *host_build_plan(const host_graph_t *graph, const host_model_t *model,
                             const weft_registry_t *registry, uint32_t ranks);

/* execute.c */
typedef struct host_program host_program_t;
/* Collective: gives tensors memory, gradients side by side in the order of their buckets. */
host_program_t *host_program_create(host_graph_t *graph, weft_group_t *group);
void host_program_step(host_program_t *program);       /* by streams and events */
void host_program_step_plain(host_program_t *program); /* one after the other on this thread */
void host_program_destroy(host_program_t *program);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph IR: values and nodes with dense ids, in static single assignment form.
 *
 *   value  a tensor: graph input, parameter, constant, optimizer state, scalar, or output of a node
 *   node   one operator; inputs and outputs are value ids (WEFTI_NONE: an absent optional one)
 *
 * Names, attributes and id lists live in the graph's arena. Adding invalidates pointers into
 * values[] and nodes[], so keep ids. Removed nodes stay in the array with dead set, so ids never
 * change. order[] is one topological order, and the order of execution. A node that updates an
 * input in place (WEFT_EFFECT_UPDATES) runs after every other reader of that input.
 *
 * Programs. A compiled graph has programs: the entry points of its plan. A program is a list of
 * nodes in the order of order[]; a node is in one or several programs. Persistent values carry data
 * from program to program: parameters, states, and outputs of nodes with the flag PERSISTENT
 * (partial sums of micro-batches).
 *
 *   init: Broadcast(%w)  step:       %h = MaxPoolMask(%x)   %l = Loss(%h)  %sum = TreeFold(%g, %s0)
 *                        eval:       %h.eval = MaxPool(%x)  %l = Loss(%h)  alias_of(%h.eval) is %h
 *                        micro_step: ..  %s0 = MatMul(..)                  %s0 is persistent
 *
 * Where a program runs another node in place of a node of step, the output of that node is an
 * alias: the readers of %h read %h.eval in a program that has the producer of %h.eval but not that
 * of %h. Both have one type and one place in memory.
 */
#ifndef WEFT_GRAPH_IR_H
#define WEFT_GRAPH_IR_H

#include <weft/graph_view.h>
#include <weft/registry.h>

#include "graph/name_index.h"
#include "ops/optimizers.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/mesh.h"
#include "runtime/base/text.h"

#define WEFTI_NONE UINT32_MAX

typedef enum wefti_value_kind {
    WEFTI_VALUE_NODE = 0, /* output of a node */
    WEFTI_VALUE_INPUT,    /* fed at every step */
    WEFTI_VALUE_PARAM, /* trained: a float initializer that a gradient may reach; data is its start */
    WEFTI_VALUE_CONST,  /* never changes; data holds it */
    WEFTI_VALUE_STATE,  /* optimizer state, starts at zero; state_of is its parameter */
    WEFTI_VALUE_SCALAR, /* scalar plan input such as lr or step, with default_value */
} wefti_value_kind_t;

typedef uint32_t wefti_value_flags_t;
#define WEFTI_VALUE_OUTPUT (1u << 0) /* a graph output; lives to the end of the step */
#define WEFTI_VALUE_LOSS (1u << 1)
#define WEFTI_VALUE_LOGITS (1u << 2) /* first input of the loss node */
#define WEFTI_VALUE_LABEL (1u << 3)  /* second input of the loss node */
#define WEFTI_VALUE_REDUCED                                                                        \
    (1u << 4) /* a gradient that is the same on all ranks, though no collective makes it */
#define WEFTI_VALUE_PERSISTENT                                                                     \
    (1u << 5) /* output of a node that keeps its contents between programs */

typedef struct wefti_value {
    const char *name; /* unique in the graph, never NULL */
    wefti_value_kind_t kind;
    wefti_value_flags_t flags;
    weft_tensor_desc_t
        type; /* type.data: contents of PARAM and CONST, plain layout, maybe unaligned */
    const char **dim_names; /* INPUT only: [WEFT_MAX_DIMS], names of symbolic dimensions or NULL */
    uint32_t producer;      /* node id, or WEFTI_NONE */
    uint32_t producer_output; /* which output of it */
    uint32_t grad_of;  /* this is the complete local gradient of that parameter, or WEFTI_NONE */
    uint32_t state_of; /* STATE only */
    uint32_t
        alias_of; /* NODE only: this is the same tensor, made by another node in another program; or WEFTI_NONE */
    double default_value; /* SCALAR only */
    /* PARAM and CONST that differ by rank: contents of rank r are at type.data + r * rank_bytes; else
     * 0. */
    size_t rank_bytes;
    wefti_division_t parts; /* of such a PARAM: how its whole is divided */
} wefti_value_t;

typedef enum wefti_phase {
    WEFTI_PHASE_FORWARD = 0,
    WEFTI_PHASE_BACKWARD,
    WEFTI_PHASE_COMM,
    WEFTI_PHASE_UPDATE,
} wefti_phase_t;

typedef struct wefti_node {
    const char *name; /* unique, never NULL; made from op and id where the file gives none */
    const weft_op_def_t *def;
    int32_t version; /* opset version it was written for */
    wefti_phase_t phase;
    bool dead;
    uint32_t replaced_by; /* dead by an edit: the node that does its work now; else WEFTI_NONE */
    uint32_t after;       /* inserted: the place that the next sort gives it; else WEFTI_NONE */
    uint32_t input_count, output_count, attr_count;
    uint32_t *inputs, *outputs; /* value ids */
    weft_attr_t *attrs;
} wefti_node_t;

/* Node before runs before node after though no value connects them. */
typedef struct wefti_constraint {
    uint32_t before, after;
} wefti_constraint_t;

/* A floating-point initializer of a model, or a parameter that the exporter left out of it. */
typedef struct wefti_parameter {
    const char *name;
    const char *why;         /* it is trained, or not */
    uint32_t value;          /* WEFTI_NONE: the model lacks it */
    weft_tensor_desc_t type; /* without contents */
    bool trained;
    bool guess;           /* the model does not state it */
    bool folded;          /* the exporter computed it from parameters */
    bool running;         /* a statistic that steps update: not trained, but no constant */
    uint32_t fixed_norms; /* BatchNormalization nodes in evaluation form whose scale it is */
} wefti_parameter_t;

/* How a model itself updates all its parameters. */
typedef struct wefti_update_rule {
    bool stated;
    wefti_optimizer_t kind;
    double lr;            /* 0: not stated */
    double clip_norm;     /* 0: gradients are not clipped */
    weft_attr_t attrs[8]; /* numbers */
    uint32_t attr_count;
} wefti_update_rule_t;

/* What a multi-device annotation asks of a node's input or output. */
typedef struct wefti_sharding {
    const char *node;            /* "node 'fc1' (MatMul)" */
    const char *output, *tensor; /* the first output of the node; the value */
    bool is_output;
    bool split;        /* into one part per device, along axis, which may be negative; else whole */
    int64_t axis, dim; /* dim: the size of the axis, or -1 */
} wefti_sharding_t;

typedef struct wefti_program {
    const char *name; /* init, micro_step, micro_step.1 .., step, flush, eval */
    uint32_t *nodes;  /* ids, in the order of order[] */
    uint32_t node_count;
} wefti_program_t;

typedef struct wefti_graph {
    wefti_arena_t arena;
    const weft_registry_t *registry; /* borrowed */
    const weft_op_def_t *fold;       /* weft::TreeFold, or NULL */
    const char *name;
    int32_t opset;          /* ai.onnx */
    int64_t batch;          /* samples per rank per step, once bound; else 0 */
    int64_t exported_batch; /* the file's fixed batch, where batch replaced it; else 0 */
    uint32_t value_count, node_count;
    size_t value_capacity, node_capacity;
    wefti_value_t *values;
    wefti_node_t *nodes;
    uint32_t *order; /* live node ids, topological */
    uint32_t order_count;
    size_t order_capacity;
    uint32_t *inputs; /* INPUT values in file order (data, label); add_value appends */
    uint32_t input_count;
    size_t input_capacity;
    uint32_t *outputs; /* wefti_graph_add_output appends */
    uint32_t output_count;
    size_t output_capacity;
    wefti_constraint_t *constraints;
    uint32_t constraint_count;
    size_t constraint_capacity;
    wefti_parameter_t *parameters; /* of an imported model, in file order */
    uint32_t parameter_count;
    wefti_update_rule_t update_rule; /* of training_info, or of ONNX Runtime */
    uint32_t device_configurations;  /* annotations of the model for several devices */
    wefti_sharding_t *shardings;     /* those that are executed */
    uint32_t sharding_count;
    wefti_program_t *programs;
    uint32_t program_count;
    size_t program_capacity;
    uint32_t loss, logits, label; /* value ids or WEFTI_NONE */
    wefti_mapping_t *mappings;    /* files whose bytes values point into; unmapped on destroy */
    uint32_t mapping_count;
    size_t mapping_capacity;
    bool
        defer_inference; /* set while importing: add_node leaves types unknown, bind_shapes infers them */
    wefti_name_index_t value_names, node_names;
    weft_tensor_desc_t *scratch; /* for inference */
    size_t scratch_capacity;
} wefti_graph_t;

/* An empty graph; NULL allocator: malloc. budget_bytes bounds the arena (0: none). */
weft_status_t wefti_graph_create(const weft_allocator_t *allocator, const weft_registry_t *registry,
                                 size_t budget_bytes, wefti_graph_t **out_graph);
void wefti_graph_destroy(wefti_graph_t *graph); /* accepts NULL */
/* graph/clone.c: a copy with the same ids, which passes may change. It borrows names and contents
 * from graph. */
weft_status_t wefti_graph_clone(const wefti_graph_t *graph, wefti_graph_t **out_copy);

/* Adds a value; its name is made unique by a suffix ".2", ".3" if taken. kind NODE is set by
 * add_node. */
weft_status_t wefti_graph_add_value(wefti_graph_t *graph, const char *name, wefti_value_kind_t kind,
                                    const weft_tensor_desc_t *type, uint32_t *out_value);

/* Gives a value another name (made unique as above); users keep their ids. */
weft_status_t wefti_graph_rename_value(wefti_graph_t *graph, uint32_t value, const char *name);
/* Marks a value as a graph output; twice is fine. */
weft_status_t wefti_graph_add_output(wefti_graph_t *graph, uint32_t value);
/* The graph unmaps it when it is destroyed; on failure the caller keeps it. */
weft_status_t wefti_graph_adopt_mapping(wefti_graph_t *graph, const wefti_mapping_t *mapping);

typedef struct wefti_node_params {
    /* name NULL: made up. What params point to may come from wefti_arena_printf on the arena of the
     * graph without a check: adding fails after it has failed. */
    const char *domain, *op, *name;
    const weft_op_def_t *def; /* NULL: the registry's; else it lives as long as the graph */
    int32_t version;          /* 0: the newest definition in the registry */
    wefti_phase_t phase;
    const uint32_t *inputs; /* WEFTI_NONE: absent */
    uint32_t input_count;
    const char *const *output_names; /* NULL, or NULL entries: made from the node's name */
    uint32_t output_count;           /* outputs are created as values of unknown type */
    const bool *output_absent;       /* NULL, or true where an optional output is not wanted */
    const weft_attr_t *attrs;        /* copied deeply, except what tensor->data points to */
    uint32_t attr_count;
} wefti_node_params_t;

/* What adds the same node again; the caller sets name, output_names and output_absent. */
static inline wefti_node_params_t wefti_node_params_of(const wefti_node_t *node)
{
    return (wefti_node_params_t){.def = node->def,
                                 .version = node->version,
                                 .phase = node->phase,
                                 .inputs = node->inputs,
                                 .input_count = node->input_count,
                                 .output_count = node->output_count,
                                 .attrs = node->attrs,
                                 .attr_count = node->attr_count};
}

/* Appends a node at the end of order[], creates its outputs and infers their types from the
 * definition. */
weft_status_t wefti_graph_add_node(wefti_graph_t *graph, const wefti_node_params_t *params,
                                   uint32_t *out_node);
/* The same, and the next sort places the node after another one, live or dead, or .. */
weft_status_t wefti_graph_insert_node(wefti_graph_t *graph, const wefti_node_params_t *params,
                                      uint32_t after, uint32_t *out_node);
#define WEFTI_WHEN_READY (UINT32_MAX - 1)  /* .. as soon as its inputs are computed */
#define WEFTI_AS_REPLACED (UINT32_MAX - 2) /* .. where the last node that it replaces was */
/* A node with one output, as soon as its inputs are computed, which passes make for node of. params
 * have no name, version and outputs: the name is that of the node, "/" and suffix. */
weft_status_t wefti_graph_insert_for(wefti_graph_t *graph, uint32_t of, const char *suffix,
                                     wefti_node_params_t params, uint32_t *out_value);
/* A definition for an operator that nobody declared: its outputs have the types of rules (borrowed
 * as long as the graph), and it may have any effect, so it is a fence for every pass. */
weft_status_t wefti_graph_define_opaque(wefti_graph_t *graph, const char *domain, const char *op,
                                        int32_t version, uint32_t input_count,
                                        const weft_output_rule_t *rules, uint32_t output_count,
                                        const weft_op_def_t **out_def);
/* Takes nodes whose dead is set out of order[]. Outputs of these must have no users. */
void wefti_graph_compact_order(wefti_graph_t *graph);
/* Changes the operator of a node, keeping attributes, inputs and outputs; extra_outputs more are
 * created, named after the first output. Types are inferred again. */
weft_status_t wefti_graph_change_op(wefti_graph_t *graph, uint32_t node, const char *domain,
                                    const char *op, uint32_t extra_outputs);
/* Adds or replaces one attribute; copied like those of add_node. */
weft_status_t wefti_graph_set_attr(wefti_graph_t *graph, uint32_t node, const weft_attr_t *attr);
/* Input index of node becomes value; inputs between are absent. */
weft_status_t wefti_graph_set_input(wefti_graph_t *graph, uint32_t node, uint32_t index,
                                    uint32_t value);
/* Infers the types of a node's outputs. They stay unknown (dtype NONE) while an input's type is. */
weft_status_t wefti_graph_infer_node(wefti_graph_t *graph, uint32_t node);
/* Every use of from (node inputs and graph outputs) becomes a use of to; except_node (or
 * WEFTI_NONE) keeps its own. Looks at the whole graph: passes with many replacements use an edit
 * list, or replace_all. */
void wefti_graph_replace_uses(wefti_graph_t *graph, uint32_t from, uint32_t to,
                              uint32_t except_node);
/* The same for each value v below count with by[v] other than WEFTI_NONE; the node that produces
 * by[v] keeps its use of v. Replacements of replacements are followed; by must have no cycle. */
void wefti_graph_replace_all(wefti_graph_t *graph, const uint32_t *by, uint32_t count);
/* What remains of v after replace_all. */
uint32_t wefti_graph_replacement(const uint32_t *by, uint32_t count, uint32_t v);
/* Fills a description for shape rules and kernels; arrays come from arena. */
weft_status_t wefti_graph_node_desc(const wefti_graph_t *graph, uint32_t node, wefti_arena_t *arena,
                                    weft_node_desc_t *out_desc);
/* The same in memory of the graph, valid until the next call. */
weft_status_t wefti_graph_scratch_desc(wefti_graph_t *graph, uint32_t node,
                                       weft_node_desc_t *out_desc);
const weft_attr_t *wefti_node_attr(const wefti_node_t *node, const char *name);
/* The value of an attribute, or the default of its definition, or 0. */
int64_t wefti_node_int(const wefti_node_t *node, const char *name);
float wefti_node_float(const wefti_node_t *node, const char *name);
/* By value: is it an INPUT, or does it depend on one? In arena; NULL: no memory. visit (or NULL)
 * returns the mark of a node's outputs; any: an input of the node has a mark. */
typedef uint8_t (*wefti_spread_fn)(const wefti_node_t *node, uint8_t any);
uint8_t *wefti_graph_spread(const wefti_graph_t *graph, wefti_arena_t *arena,
                            wefti_spread_fn visit);
bool wefti_dtype_is_floating(weft_dtype_t dtype);
static inline bool wefti_node_communicates(const wefti_node_t *node)
{
    return (node->def->effects & WEFT_EFFECT_COMMUNICATES) != 0;
}
/* The node that computes a value; WEFTI_NONE where there is none, or no value. */
static inline uint32_t wefti_producer(const wefti_graph_t *graph, uint32_t value)
{
    return value == WEFTI_NONE ? WEFTI_NONE : graph->values[value].producer;
}
/* Has output 0 the bytes of input 0, so that both may be one place in memory? */
bool wefti_node_is_view(const wefti_graph_t *graph, const wefti_node_t *node);
/* Text attribute, or "". */
const char *wefti_node_text(const wefti_node_t *node, const char *name);
/* What the operator does with a flat range of tensors. */
weft_range_role_t wefti_node_range(const wefti_node_t *node);
/* ReduceScatter of several tensors into one shard; AllGather of a shard into several tensors. */
bool wefti_node_is_flat_scatter(const wefti_node_t *node);
bool wefti_node_is_flat_gather(const wefti_node_t *node);
/* The input that output index overwrites by the definition, or WEFTI_NONE. */
uint32_t wefti_node_overwrites(const wefti_node_t *node, uint32_t index);
/* For every value the nodes that read it: those of v are nodes[first[v]] up to
 * nodes[first[v + 1]], in the given order; a node that reads v twice is listed twice. */
typedef struct wefti_readers {
    uint32_t *first, *nodes;
} wefti_readers_t;
weft_status_t wefti_graph_readers(const wefti_graph_t *graph, const uint32_t *order, uint32_t count,
                                  wefti_arena_t *arena, wefti_readers_t *out);
/* Output index of node becomes value, which another node produced so far. */
void wefti_graph_take_output(wefti_graph_t *graph, uint32_t node, uint32_t index, uint32_t value);
/* Ids by node or value: count times WEFTI_NONE. In arena; NULL: no memory. */
uint32_t *wefti_id_map(wefti_arena_t *arena, size_t count);
size_t wefti_value_bytes(const wefti_value_t *value);                          /* 0 when unknown */
uint32_t wefti_graph_find_value(const wefti_graph_t *graph, const char *name); /* or WEFTI_NONE */

/* The end of a pass that adds, replaces or removes nodes: a topological order of the live nodes
 * that keeps the present order where it can, has inserted nodes in their places, and honours
 * constraints and in-place updates. Programs follow it. A cycle is an error naming nodes on it. */
weft_status_t wefti_graph_sort(wefti_graph_t *graph);
/* The same with a key per node (of graph->node_count) in place of positions and places: small keys
 * go first. */
weft_status_t wefti_graph_reorder(wefti_graph_t *graph, const uint64_t *keys);
/* graph/order_edges.c: node before runs before node after. */
weft_status_t wefti_graph_add_constraint(wefti_graph_t *graph, uint32_t before, uint32_t after);
/* The live node that replaces node, node itself if it is live, or WEFTI_NONE. */
uint32_t wefti_graph_live_node(const wefti_graph_t *graph, uint32_t node);
/* Every "before, after" that no value shows: constraints, then readers before in-place updates.
 * Free with the graph's allocator (graph->arena.allocator). */
weft_status_t wefti_graph_order_edges(const wefti_graph_t *graph, wefti_constraint_t **out_edges,
                                      size_t *out_count);
/* graph/programs.c: adds a program; nodes in any order, copied and sorted. A second one of that
 * name is an error. */
weft_status_t wefti_graph_add_program(wefti_graph_t *graph, const char *name, const uint32_t *nodes,
                                      uint32_t count);
const wefti_program_t *wefti_graph_find_program(const wefti_graph_t *graph,
                                                const char *name); /* or NULL */
/* After nodes were replaced, removed or sorted: programs list live nodes, once each, in the order
 * of order[]. */
weft_status_t wefti_graph_refresh_programs(wefti_graph_t *graph);
/* Adds a node to the programs that have a reader of its outputs. */
weft_status_t wefti_graph_join_programs(wefti_graph_t *graph, uint32_t node);
/* Completes needed[], by node id, by what the needed nodes need. An update among them is an
 * error. */
weft_status_t wefti_graph_mark_needed(const wefti_graph_t *graph, bool *needed, bool evaluates);
/* Is it weft::TreeFold? */
bool wefti_graph_is_fold(const wefti_graph_t *graph, uint32_t node);
/* Does it only run in other programs than step: is an output an alias, or a partial sum? */
bool wefti_graph_outside_step(const wefti_graph_t *graph, uint32_t node);
/* The node whose work this node does in another program, by the aliases among its outputs, or
 * WEFTI_NONE. */
uint32_t wefti_graph_variant_of(const wefti_graph_t *graph, uint32_t node);

/* Checks every invariant above; the message names the first node or value that breaks one. */
weft_status_t wefti_graph_verify(const wefti_graph_t *graph);
/* graph/text: one line per value and node, "%out = Gemm(%a, %b) {transB=1} : f32[64,10]". Contents
 * with more elements than max_elements are shown as "..."; UINT32_MAX: the text is the whole
 * graph. */
void wefti_graph_to_text(const wefti_graph_t *graph, uint32_t max_elements, wefti_text_t *out);
/* Reads the text form. Types of outputs are checked against inference, the graph is verified; an
 * error begins with "line N: ". Ids are new: live values and nodes in the order of the text. */
weft_status_t wefti_graph_from_text(const char *text, size_t length,
                                    const weft_allocator_t *allocator,
                                    const weft_registry_t *registry, wefti_graph_t **out_graph);
/* The line of one node, and kind, name and type of one value, without a line's end. */
void wefti_graph_node_text(const wefti_graph_t *graph, uint32_t node, wefti_text_t *out);
void wefti_graph_value_text(const wefti_graph_t *graph, uint32_t value, wefti_text_t *out);

/* Enough for any type and shape: 8 dimensions of at most 20 digits. */
#define WEFTI_TYPE_TEXT_BYTES 208
/* "f32 [3, 4]", for messages; returns buffer (WEFTI_TYPE_TEXT_BYTES). */
const char *wefti_type_text(const weft_tensor_desc_t *type, char *buffer);
/* Errors that several places raise. */
weft_status_t wefti_error_empty_param(const char *name);
/* The model has no loss, and the compile parameter loss does not name one. */
weft_status_t wefti_error_no_loss(const char *model);
/* Removes nodes without used outputs and without effects. */
weft_status_t wefti_graph_prune(wefti_graph_t *graph);

/* graph/shape_inference.c: infers all types anew in order; error names the node. */
weft_status_t wefti_graph_infer_shapes(wefti_graph_t *graph);
/* graph/fold.c: infers every node anew and evaluates shape arithmetic and small constant subgraphs
 * on the way; folded values become CONST. Parameters are not constants. */
weft_status_t wefti_graph_fold_constants(wefti_graph_t *graph);
/* The same for a graph whose inputs are bound: a type that stays unknown is an error. */
weft_status_t wefti_graph_fold(wefti_graph_t *graph);

/* graph/expand.c: operators that ONNX defines by others, and that have no kernel, become these. */
weft_status_t wefti_graph_expand(wefti_graph_t *graph);
bool wefti_is_expanded(const weft_op_def_t *def);
#define WEFTI_FOLD_BUDGET_BYTES ((size_t)64 << 20) /* of all folded values of a graph */

/* graph/bind_shapes.c */
typedef struct wefti_shape_override {
    const char *name; /* an input */
    uint32_t rank;
    int64_t dims[WEFT_MAX_DIMS];
} wefti_shape_override_t;
/* Replaces dimensions of inputs by numbers. batch 0: keep what the file says; a symbolic batch is
 * then open_batch, and
 * *out_opened is set to true, or, with open_batch 0, an error. */
weft_status_t wefti_graph_bind_inputs(wefti_graph_t *graph, int64_t batch, int64_t open_batch,
                                      const wefti_shape_override_t *overrides,
                                      uint32_t override_count, bool *out_opened);
/* wefti_graph_bind_inputs, then wefti_graph_fold. */
weft_status_t wefti_graph_bind_shapes(wefti_graph_t *graph, int64_t batch,
                                      const wefti_shape_override_t *overrides,
                                      uint32_t override_count);

/* graph/reachability.c: does any path (values and order edges) lead from op a to op b? An op
 * reaches itself. A row of bits per asked-for op is kept, within a fixed memory budget; needs ops
 * listed topologically. */
typedef struct wefti_reachability wefti_reachability_t;
weft_status_t wefti_reachability_create(const weft_graph_view_t *view,
                                        const weft_allocator_t *allocator,
                                        wefti_reachability_t **out_reachability);
bool wefti_reachable(wefti_reachability_t *reachability, uint32_t from_op, uint32_t to_op);
void wefti_reachability_destroy(wefti_reachability_t *reachability);

/* graph/graph.c: does a node read a value, or is it an output of the graph? */
bool wefti_graph_is_read(const wefti_graph_t *graph, uint32_t value);
/* graph/graph.c: by value, the node of which a parameter is a running statistic
 * (WEFT_FACT_STATISTICS), or WEFTI_NONE. Its gradient is the statistic of a step, averaged over ranks
 * and micro-batches. NULL: no memory. */
uint32_t *wefti_graph_statistics(const wefti_graph_t *graph, wefti_arena_t *arena);
/* graph/graph.c: does a value have grad_of? */
bool wefti_graph_has_gradients(const wefti_graph_t *graph);

/* graph/collective_pairs.c: a start and its wait become one node. constrain: constraints keep their
 * places in the order. */
weft_status_t wefti_graph_pair_collectives(wefti_graph_t *graph, bool constrain);

/* graph/places.c: where nodes run. Does a node send a value from one place of its group to others? */
bool wefti_node_transfers(const wefti_node_t *node);
/* By node, 0: on all ranks, else 1 + its place: what is connected runs where its transfers come from
 * and lead to. In arena; NULL in *out_places where the graph has no transfers. A node connected with
 * two places is an error that names it. */
weft_status_t wefti_graph_places(const wefti_graph_t *graph, wefti_arena_t *arena,
                                 uint32_t **out_places);

/* graph/scalar.c: the scalar plan input of that name and type, made if the graph has it not. A
 * tensor of the model that has the name gets another one. */
weft_status_t wefti_graph_need_scalar(wefti_graph_t *graph, const char *name, weft_dtype_t dtype,
                                      double default_value, uint32_t *out_value);

/* The number in a tensor of one floating-point element whose contents are known; else false. */
bool wefti_tensor_number(const weft_tensor_desc_t *type, double *out_number);

/* graph/autodiff/differentiate.c: appends the backward pass of loss for every PARAM that reaches
 * it; sets grad_of. Parameters that do not reach the loss become CONST. An operator without a rule
 * is named. */
weft_status_t wefti_graph_differentiate(wefti_graph_t *graph);
/* Whether its gradient is known at all; attributes may still be refused. */
bool wefti_is_differentiable(const weft_op_def_t *def);

/* graph/view.c: a flat view of the graph; arrays come from arena. Op ids of the view are node
 * ids. */
weft_status_t wefti_graph_view(const wefti_graph_t *graph, wefti_arena_t *arena,
                               weft_graph_view_t *out_view);
/* graph/edit.c: applies an edit list; on error the graph is unusable and must be destroyed. */
weft_status_t wefti_graph_apply(wefti_graph_t *graph, const weft_edit_list_t *edits);

#endif

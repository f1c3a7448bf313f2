/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training graphs of ONNX Runtime: forward and backward pass, with operators that add up gradients
 * of micro-batches and update parameters. A plan does both itself, so these nodes leave the graph,
 * and what they state stays: the update rule.
 *
 *   w_grad, buffer --> InPlaceAccumulatorV2        the gradient of w, by its name
 *   SequenceConstruct(w, ..) --> AdamWOptimizer    the rule; also SGDOptimizerV2
 *   InplaceClipGradNorm                            the bound of the norm of all gradients
 *
 * The "training artifacts" are such a graph in files next to each other:
 *
 *   training_model.onnx      the graph; parameters are inputs
 *   checkpoint               FlatBuffers: the contents of parameters
 *   optimizer_model.onnx     the update of sequences of tensors; it names no parameter
 */
#include "graph/onnx/internal.h"

#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define DOMAIN "com.microsoft"
#define MODEL "training_model.onnx"
#define MOST_NAME_BYTES 4096u

typedef struct artifacts {
    wefti_onnx_file_t *file;
    wefti_update_rule_t *rule;
    const Onnx__NodeProto *rule_node; /* the first node with the rule */
    wefti_name_index_t producers;     /* name of an output -> node */
    wefti_name_index_t initializers;  /* name -> initializer */
    wefti_name_index_t inputs;
    wefti_name_index_t updated;       /* parameters of optimizers */
    wefti_name_index_t kept, dropped; /* names that nodes read */
    bool accumulates;
} artifacts_t;

static bool is_op(const Onnx__NodeProto *node, const char *domain, const char *op)
{
    return node->op_type != NULL && strcmp(node->op_type, op) == 0 &&
           strcmp(wefti_onnx_domain(node->domain), domain) == 0;
}

static bool accumulates(const Onnx__NodeProto *node)
{
    return is_op(node, DOMAIN, "InPlaceAccumulatorV2");
}

static bool clips(const Onnx__NodeProto *node)
{
    return is_op(node, DOMAIN, "InplaceClipGradNorm");
}

static bool updates(const Onnx__NodeProto *node)
{
    return is_op(node, DOMAIN, "AdamWOptimizer") || is_op(node, DOMAIN, "SGDOptimizerV2");
}

static weft_status_t refuse(const artifacts_t *a, const Onnx__NodeProto *node, const char *what,
                            const char *name)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: node '%.100s' (%.40s): %s '%.100s'",
                       a->file->label, node->name != NULL ? node->name : "", node->op_type, what,
                       name);
}

static const char *input_of(const Onnx__NodeProto *node, size_t i)
{
    return i < node->n_input ? node->input[i] : "";
}

static const Onnx__NodeProto *producer(const artifacts_t *a, const char *name)
{
    uint32_t node = wefti_name_index_find(&a->producers, name);
    return node == WEFTI_NONE ? NULL : a->file->model->graph->node[node];
}

static bool is_in(const wefti_name_index_t *index, const char *name)
{
    return name != NULL && wefti_name_index_find(index, name) != WEFTI_NONE;
}

static weft_status_t add_name(artifacts_t *a, wefti_name_index_t *index, const char *name,
                              size_t id)
{
    const char *unique;
    return name == NULL || name[0] == '\0' || is_in(index, name)
               ? WEFT_OK
               : wefti_name_index_add(index, &a->file->arena, name, (uint32_t)id, &unique);
}

static weft_status_t index_names(artifacts_t *a)
{
    const Onnx__GraphProto *graph = a->file->model->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        for (size_t k = 0; k < graph->node[i]->n_output; k++) {
            WEFT_RETURN_IF_ERROR(add_name(a, &a->producers, graph->node[i]->output[k], i));
        }
    }
    for (size_t i = 0; i < graph->n_initializer; i++) {
        WEFT_RETURN_IF_ERROR(add_name(a, &a->initializers, graph->initializer[i]->name, i));
    }
    for (size_t i = 0; i < graph->n_input; i++) {
        WEFT_RETURN_IF_ERROR(add_name(a, &a->inputs, graph->input[i]->name, i));
    }
    return WEFT_OK;
}

/* ---- the update rule ---- */

static float float_of(const Onnx__NodeProto *node, const char *name, float by_default)
{
    const Onnx__AttributeProto *attribute = wefti_onnx_find_attribute(node, name);
    return attribute != NULL ? attribute->f : by_default;
}

static int64_t integer_of(const Onnx__NodeProto *node, const char *name, int64_t by_default)
{
    const Onnx__AttributeProto *attribute = wefti_onnx_find_attribute(node, name);
    return attribute != NULL ? attribute->i : by_default;
}

static void set_float(wefti_update_rule_t *rule, const char *name, float value)
{
    rule->attrs[rule->attr_count++] =
        (weft_attr_t){.name = name, .type = WEFT_ATTR_TYPE_FLOAT, .f = value};
}

static void set_integer(wefti_update_rule_t *rule, const char *name, int64_t value)
{
    rule->attrs[rule->attr_count++] =
        (weft_attr_t){.name = name, .type = WEFT_ATTR_TYPE_INT, .i = value};
}

/* adam_mode 0 is AdamW of torch; 1 that of transformers, which decays last. */
static weft_status_t read_adamw(const artifacts_t *a, const Onnx__NodeProto *node,
                                wefti_update_rule_t *rule)
{
    int64_t mode = integer_of(node, "adam_mode", 0);
    if (mode != 0 && mode != 1) {
        return refuse(a, node, "only 0 and 1 are supported for attribute", "adam_mode");
    }
    if (integer_of(node, "correct_bias", 1) != 1) {
        return refuse(a, node, "only 1 is supported for attribute", "correct_bias");
    }
    if (input_of(node, 6)[0] != '\0') {
        return refuse(a, node, "updates that are skipped are not supported: input update_signal",
                      node->input[6]);
    }
    rule->kind = WEFTI_OPTIMIZER_ADAMW;
    set_float(rule, "beta1", float_of(node, "alpha", 0.9f));
    set_float(rule, "beta2", float_of(node, "beta", 0.999f));
    set_float(rule, "epsilon", float_of(node, "epsilon", 1e-8f));
    set_float(rule, "weight_decay", float_of(node, "weight_decay", 0.01f));
    set_integer(rule, "scaled_epsilon", mode);
    set_integer(rule, "decay_last", mode);
    return WEFT_OK;
}

/* The learning rate: a number of the file, or an input, which is open. */
static weft_status_t read_rate(artifacts_t *a, const Onnx__NodeProto *node, double *out_lr)
{
    const char *name = input_of(node, 0);
    uint32_t i = wefti_name_index_find(&a->initializers, name);
    weft_tensor_desc_t tensor;
    *out_lr = 0;
    if (i == WEFTI_NONE) {
        return name[0] == '\0' || producer(a, name) != NULL
                   ? refuse(a, node,
                            "the learning rate must be an input or a number above 0:", name)
                   : WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_onnx_tensor(a->file, a->file->model->graph->initializer[i], false,
                                           &a->file->arena, &tensor));
    return wefti_tensor_number(&tensor, out_lr) && *out_lr > 0
               ? WEFT_OK
               : refuse(a, node, "the learning rate must be an input or a number above 0:", name);
}

/* The gradients before they are clipped. */
static weft_status_t read_clip(const artifacts_t *a, const char **gradients,
                               wefti_update_rule_t *rule)
{
    const Onnx__NodeProto *node = producer(a, *gradients);
    if (node == NULL || !clips(node)) {
        return WEFT_OK;
    }
    const Onnx__AttributeProto *type = wefti_onnx_find_attribute(node, "norm_type");
    rule->clip_norm = (double)float_of(node, "max_norm", 1.0f);
    if (type != NULL && (type->s.len != 3 || memcmp(type->s.data, "fro", 3) != 0)) {
        return refuse(a, node, "only fro is supported for attribute", "norm_type");
    }
    if (!(rule->clip_norm > 0)) {
        return refuse(a, node, "must be above 0: attribute", "max_norm");
    }
    *gradients = input_of(node, 0);
    return WEFT_OK;
}

static weft_status_t take_rule(artifacts_t *a, const Onnx__NodeProto *node,
                               const wefti_update_rule_t *rule)
{
    if (a->rule_node == NULL) {
        a->rule_node = node;
        *a->rule = *rule;
        return WEFT_OK;
    }
    return wefti_onnx_same_rule(a->rule, rule)
               ? WEFT_OK
               : refuse(a, node, "another update rule than that of node",
                        a->rule_node->name != NULL ? a->rule_node->name : "");
}

/* A sequence: NULL where it is an input of the graph, whose tensors have no names. */
static weft_status_t read_sequence(const artifacts_t *a, const Onnx__NodeProto *node,
                                   const char *name, const Onnx__NodeProto **out)
{
    *out = producer(a, name);
    return *out == NULL
               ? (name[0] != '\0' ? WEFT_OK : refuse(a, node, "missing input of", node->op_type))
           : is_op(*out, "", "SequenceConstruct")
               ? WEFT_OK
               : refuse(a, node, "not the result of SequenceConstruct:", name);
}

/* Moments start at zero: inputs are left to the plan, initializers are looked at. */
static weft_status_t check_moments(const artifacts_t *a, const Onnx__NodeProto *node,
                                   const char *name)
{
    const Onnx__NodeProto *list;
    WEFT_RETURN_IF_ERROR(read_sequence(a, node, name, &list));
    for (size_t i = 0; list != NULL && i < list->n_input; i++) {
        uint32_t at = wefti_name_index_find(&a->initializers, list->input[i]);
        weft_tensor_desc_t tensor = {0};
        if (at != WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(wefti_onnx_tensor(a->file, a->file->model->graph->initializer[at],
                                                   false, &a->file->arena, &tensor));
        }
        const char *bytes = tensor.data;
        size_t size = bytes == NULL ? 0
                                    : (size_t)weft_tensor_elem_count(&tensor) *
                                          weft_dtype_size_bytes(tensor.dtype);
        for (size_t k = 0; k < size; k++) {
            if (bytes[k] != 0) {
                return refuse(a, node, "the state must start at zero:", list->input[i]);
            }
        }
    }
    return WEFT_OK;
}

/* Is gradient, or what it is added to, the gradient of the parameter by name? */
static bool is_gradient(const artifacts_t *a, const char *gradient, const char *parameter)
{
    const Onnx__NodeProto *node = producer(a, gradient);
    if (node != NULL && accumulates(node)) {
        gradient = input_of(node, 1);
    }
    size_t length = strlen(parameter);
    return (strncmp(gradient, parameter, length) == 0 && strcmp(gradient + length, "_grad") == 0) ||
           (strncmp(gradient, "grad.", 5) == 0 && strcmp(gradient + 5, parameter) == 0);
}

static weft_status_t take_parameters(artifacts_t *a, const Onnx__NodeProto *node,
                                     const char *weights, const char *gradients)
{
    const Onnx__NodeProto *w, *g;
    WEFT_RETURN_IF_ERROR(read_sequence(a, node, weights, &w));
    WEFT_RETURN_IF_ERROR(read_sequence(a, node, gradients, &g));
    if (w == NULL && g == NULL) {
        return WEFT_OK;
    }
    if (w == NULL || g == NULL || w->n_input != g->n_input) {
        return refuse(a, node, "parameters and gradients do not correspond:", gradients);
    }
    for (size_t i = 0; i < w->n_input; i++) {
        if (!is_gradient(a, g->input[i], w->input[i])) {
            return refuse(a, node, "the name of a gradient must be <parameter>_grad:", g->input[i]);
        }
        WEFT_RETURN_IF_ERROR(add_name(a, &a->updated, w->input[i], 0));
    }
    return WEFT_OK;
}

static weft_status_t take_optimizer(artifacts_t *a, const Onnx__NodeProto *node)
{
    wefti_update_rule_t rule = {.stated = true, .kind = WEFTI_OPTIMIZER_SGD};
    bool adamw = is_op(node, DOMAIN, "AdamWOptimizer");
    const char *weights = input_of(node, adamw ? 2 : 1);
    const char *gradients = input_of(node, adamw ? 3 : 2);
    WEFT_RETURN_IF_ERROR(read_rate(a, node, &rule.lr));
    if (adamw) {
        WEFT_RETURN_IF_ERROR(read_adamw(a, node, &rule));
        WEFT_RETURN_IF_ERROR(check_moments(a, node, input_of(node, 4)));
        WEFT_RETURN_IF_ERROR(check_moments(a, node, input_of(node, 5)));
        if (producer(a, node->input[1]) != NULL || is_in(&a->initializers, node->input[1])) {
            return refuse(a, node, "the count of steps must be an input:", node->input[1]);
        }
    } else if (input_of(node, 3)[0] != '\0') {
        return refuse(a, node, "updates that are skipped are not supported: input update_signal",
                      node->input[3]);
    }
    WEFT_RETURN_IF_ERROR(read_clip(a, &gradients, &rule));
    WEFT_RETURN_IF_ERROR(take_parameters(a, node, weights, gradients));
    return take_rule(a, node, &rule);
}

/* A parameter that has a gradient but is not in the sequences would be updated by the plan. */
static weft_status_t check_updated(const artifacts_t *a)
{
    const Onnx__GraphProto *graph = a->file->model->graph;
    for (size_t i = 0; a->rule_node != NULL && i < graph->n_initializer; i++) {
        const char *name = wefti_onnx_tensor_name(graph->initializer[i]);
        char *gradient = wefti_arena_printf(&a->file->arena, "%s_grad", name);
        WEFT_RETURN_IF_NO_MEMORY(gradient);
        if (producer(a, gradient) != NULL && !is_in(&a->updated, name)) {
            return refuse(a, a->rule_node, "does not update a parameter with a gradient:", name);
        }
    }
    return WEFT_OK;
}

/* ---- what remains of the graph ---- */

/* Does a plan execute what node stands for? Sequences only serve optimizers here. */
static bool leaves(const artifacts_t *a, const Onnx__NodeProto *node)
{
    return accumulates(node) || clips(node) || updates(node) ||
           (a->rule_node != NULL && is_op(node, "", "SequenceConstruct"));
}

static bool in_file(const artifacts_t *a, const Onnx__NodeProto *node)
{
    const char *buffer = input_of(node, 0);
    return buffer[0] != '\0' && producer(a, buffer) == NULL;
}

static weft_status_t drop_nodes(artifacts_t *a)
{
    Onnx__GraphProto *graph = a->file->model->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        bool stays = !leaves(a, node);
        for (size_t k = 0; k < node->n_input; k++) {
            const Onnx__NodeProto *from = producer(a, node->input[k]);
            if (stays && from != NULL && leaves(a, from)) {
                return refuse(a, node,
                              "reads a result of the update of parameters:", node->input[k]);
            }
            WEFT_RETURN_IF_ERROR(add_name(a, stays ? &a->kept : &a->dropped, node->input[k], 0));
        }
        if (accumulates(node) && !in_file(a, node)) {
            return refuse(a, node, "adds to the result of a node:", input_of(node, 0));
        }
    }
    for (size_t i = 0; i < graph->n_output; i++) { /* producers are read: nodes stay in place */
        const char *name = graph->output[i]->name != NULL ? graph->output[i]->name : "";
        const Onnx__NodeProto *from = producer(a, name);
        if (from == NULL || !leaves(a, from)) {
            graph->output[kept++] = graph->output[i];
        }
    }
    graph->n_output = kept;
    kept = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        if (!leaves(a, graph->node[i])) {
            graph->node[kept++] = graph->node[i];
        }
    }
    graph->n_node = kept;
    return WEFT_OK;
}

static bool stays(const artifacts_t *a, const char *name)
{
    return is_in(&a->kept, name) || !is_in(&a->dropped, name);
}

static void drop_values(artifacts_t *a)
{
    Onnx__GraphProto *graph = a->file->model->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->n_input; i++) {
        if (stays(a, graph->input[i]->name)) {
            graph->input[kept++] = graph->input[i];
        }
    }
    graph->n_input = kept;
    kept = 0;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        if (stays(a, graph->initializer[i]->name)) {
            graph->initializer[kept++] = graph->initializer[i];
        }
    }
    graph->n_initializer = kept;
}

/* ---- files next to the model ---- */

/* "dir/x_training_model.onnx" -> "dir/x_" name; NULL: the model has another name, or no file. */
static weft_status_t neighbour(const artifacts_t *a, const char *name, char **out)
{
    const char *path = a->file->path;
    size_t length = path != NULL ? strlen(path) : 0, suffix = strlen(MODEL);
    *out = NULL;
    if (length < suffix || strcmp(path + length - suffix, MODEL) != 0) {
        return WEFT_OK;
    }
    *out = wefti_arena_printf(&a->file->arena, "%.*s%s", (int)(length - suffix), path, name);
    WEFT_RETURN_IF_NO_MEMORY(*out);
    if (access(*out, F_OK) != 0) {
        *out = NULL;
    }
    return WEFT_OK;
}

/* FlatBuffers: tables whose fields are found by offsets. All are of a file that may be hostile. */
typedef struct flat {
    const uint8_t *data;
    size_t size_bytes;
    bool damaged;
} flat_t;

static uint64_t number(flat_t *flat, size_t at, size_t bytes)
{
    uint64_t value = 0;
    if (at > flat->size_bytes || bytes > flat->size_bytes - at) {
        flat->damaged = true;
        return 0;
    }
    memcpy(&value, flat->data + at, bytes);
    return value;
}

/* The place of field id of a table; 0: absent. */
static size_t field(flat_t *flat, size_t table, uint32_t id)
{
    int64_t entries = (int64_t)table - (int32_t)number(flat, table, 4);
    if (table == 0 || entries < 0 || flat->damaged) {
        flat->damaged = flat->damaged || table != 0;
        return 0;
    }
    size_t slot = 4 + 2 * (size_t)id;
    if (slot + 2 > number(flat, (size_t)entries, 2)) {
        return 0;
    }
    uint64_t offset = number(flat, (size_t)entries + slot, 2);
    return offset == 0 ? 0 : table + (size_t)offset;
}

/* What the offset at a place points to; 0: absent. */
static size_t follow(flat_t *flat, size_t at)
{
    return at == 0 ? 0 : at + (size_t)number(flat, at, 4);
}

/* A vector or text of elements of some bytes: its first one, within the file. */
static size_t elements(flat_t *flat, size_t at, size_t bytes, uint64_t *out_count)
{
    *out_count = at == 0 ? 0 : number(flat, at, 4);
    if (!flat->damaged && *out_count > 0 &&
        (at + 4 > flat->size_bytes || *out_count > (flat->size_bytes - at - 4) / bytes)) {
        flat->damaged = true;
    }
    *out_count = flat->damaged ? 0 : *out_count;
    return at + 4;
}

/* An initializer whose contents are in the file location. */
static weft_status_t add_tensor(artifacts_t *a, flat_t *flat, size_t table, const char *location)
{
    enum { NAME, DIMS = 2, TYPE, RAW, EXTERNAL = 6 };
    wefti_arena_t *arena = &a->file->arena;
    Onnx__GraphProto *graph = a->file->model->graph;
    uint64_t name_bytes, rank, bytes;
    size_t name = elements(flat, follow(flat, field(flat, table, NAME)), 1, &name_bytes);
    size_t dims = elements(flat, follow(flat, field(flat, table, DIMS)), 8, &rank);
    size_t type = field(flat, table, TYPE);
    size_t raw = elements(flat, follow(flat, field(flat, table, RAW)), 1, &bytes);
    flat->damaged = flat->damaged || name_bytes > MOST_NAME_BYTES;
    if (flat->damaged) {
        return WEFT_OK; /* the caller says so */
    }
    char *text =
        wefti_arena_printf(arena, "%.*s", (int)name_bytes, (const char *)flat->data + name);
    WEFT_RETURN_IF_NO_MEMORY(text);
    if (!is_in(&a->inputs, text) || is_in(&a->initializers, text)) {
        return WEFT_OK;
    }
    if (field(flat, table, EXTERNAL) != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: checkpoint: '%.100s' is in another file, which is not supported",
                           a->file->label, text);
    }
    Onnx__TensorProto *tensor = wefti_arena_alloc(arena, sizeof *tensor);
    int64_t *sizes = wefti_arena_array(arena, (size_t)rank + 1, sizeof *sizes);
    Onnx__StringStringEntryProto *entries = wefti_arena_array(arena, 3, sizeof *entries);
    Onnx__StringStringEntryProto **list = wefti_arena_array(arena, 3, sizeof *list);
    WEFT_RETURN_IF_NO_MEMORY(tensor && sizes && entries && list);
    char *const values[][2] = {{"location", (char *)(uintptr_t)location},
                               {"offset", wefti_arena_printf(arena, "%zu", raw)},
                               {"length", wefti_arena_printf(arena, "%zu", (size_t)bytes)}};
    for (int i = 0; i < 3; i++) {
        WEFT_RETURN_IF_NO_MEMORY(values[i][1]);
        onnx__string_string_entry_proto__init(&entries[i]);
        entries[i].key = values[i][0];
        entries[i].value = values[i][1];
        list[i] = &entries[i];
    }
    memcpy(sizes, flat->data + dims, (size_t)rank * sizeof *sizes);
    onnx__tensor_proto__init(tensor);
    tensor->name = text;
    tensor->dims = sizes;
    tensor->n_dims = (size_t)rank;
    tensor->has_data_type = true;
    tensor->data_type = type == 0 ? 0 : (int32_t)number(flat, type, 4);
    tensor->has_data_location = true;
    tensor->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    tensor->external_data = list;
    tensor->n_external_data = 3;
    graph->initializer[graph->n_initializer] = tensor;
    return add_name(a, &a->initializers, text, graph->n_initializer++);
}

static weft_status_t add_state(artifacts_t *a, flat_t *flat, const char *location)
{
    enum { MODULE = 1, TRAINED = 0, FROZEN, NOMINAL };
    Onnx__GraphProto *graph = a->file->model->graph;
    flat->damaged = flat->size_bytes < 8 || memcmp(flat->data + 4, "ODTC", 4) != 0;
    size_t root = (size_t)number(flat, 0, 4);
    size_t module = follow(flat, field(flat, root, MODULE));
    size_t nominal = field(flat, module, NOMINAL);
    if (nominal != 0 && number(flat, nominal, 1) != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: checkpoint: nominal, without contents",
                           a->file->label);
    }
    for (uint32_t part = TRAINED; part <= FROZEN; part++) {
        uint64_t count;
        size_t first = elements(flat, follow(flat, field(flat, module, part)), 4, &count);
        Onnx__TensorProto **tensors = wefti_arena_array(
            &a->file->arena, graph->n_initializer + (size_t)count + 1, sizeof *tensors);
        WEFT_RETURN_IF_NO_MEMORY(tensors);
        for (size_t i = 0; i < graph->n_initializer; i++) {
            tensors[i] = graph->initializer[i];
        }
        graph->initializer = tensors;
        for (uint64_t i = 0; i < count && !flat->damaged; i++) {
            WEFT_RETURN_IF_ERROR(
                add_tensor(a, flat, follow(flat, first + 4 * (size_t)i), location));
        }
    }
    return flat->damaged || module == 0
               ? wefti_error(WEFT_ERR_FORMAT,
                             "%s: checkpoint: not a checkpoint of ONNX Runtime, "
                             "or damaged",
                             a->file->label)
               : WEFT_OK;
}

static weft_status_t read_checkpoint(artifacts_t *a)
{
    char *path;
    wefti_mapping_t mapping = {0};
    WEFT_RETURN_IF_ERROR(neighbour(a, "checkpoint", &path));
    if (path == NULL) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_file_map(path, &mapping));
    flat_t flat = {.data = mapping.data, .size_bytes = mapping.size_bytes};
    const char *slash = strrchr(path, '/');
    weft_status_t status = add_state(a, &flat, slash == NULL ? path : slash + 1);
    wefti_file_unmap(&mapping);
    return status;
}

static weft_status_t read_neighbour_rule(artifacts_t *a)
{
    char *path;
    wefti_onnx_file_t file;
    WEFT_RETURN_IF_ERROR(neighbour(a, "optimizer_model.onnx", &path));
    if (path == NULL) {
        return WEFT_OK;
    }
    const wefti_onnx_import_params_t params = {.path = path};
    WEFT_RETURN_IF_ERROR(wefti_onnx_file_open(&params, a->file->allocator, &file));
    file.registry = a->file->registry;
    weft_status_t status = wefti_onnx_artifacts(&file, a->rule);
    wefti_onnx_file_close(&file);
    return status;
}

/* An accumulator is of a parameter, so an input that it names has to have contents. */
static weft_status_t check_contents(const artifacts_t *a)
{
    const Onnx__GraphProto *graph = a->file->model->graph;
    for (size_t i = 0; i < graph->n_input; i++) {
        const char *name = graph->input[i]->name != NULL ? graph->input[i]->name : "";
        char *gradient = wefti_arena_printf(&a->file->arena, "%s_grad", name);
        WEFT_RETURN_IF_NO_MEMORY(gradient);
        if (producer(a, gradient) != NULL && !is_in(&a->initializers, name)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: parameter '%.100s' is an input, whose contents ONNX Runtime "
                               "keeps in another file: expected a file 'checkpoint' next to a "
                               "model named '" MODEL "'",
                               a->file->label, name);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_all(artifacts_t *a)
{
    const Onnx__GraphProto *graph = a->file->model->graph;
    WEFT_RETURN_IF_ERROR(index_names(a));
    for (size_t i = 0; i < graph->n_node; i++) {
        a->accumulates = a->accumulates || accumulates(graph->node[i]);
        if (updates(graph->node[i])) {
            WEFT_RETURN_IF_ERROR(take_optimizer(a, graph->node[i]));
        }
    }
    if (a->accumulates) {
        WEFT_RETURN_IF_ERROR(read_checkpoint(a));
        WEFT_RETURN_IF_ERROR(check_contents(a));
    }
    WEFT_RETURN_IF_ERROR(check_updated(a));
    if (a->accumulates && a->rule_node == NULL) {
        WEFT_RETURN_IF_ERROR(read_neighbour_rule(a));
    }
    WEFT_RETURN_IF_ERROR(drop_nodes(a));
    drop_values(a);
    return WEFT_OK;
}

weft_status_t wefti_onnx_artifacts(wefti_onnx_file_t *file, wefti_update_rule_t *rule)
{
    artifacts_t a = {.file = file, .rule = rule};
    wefti_name_index_t *const indexes[] = {&a.producers, &a.initializers, &a.inputs,
                                           &a.updated,   &a.kept,         &a.dropped};
    bool any = false;
    for (size_t i = 0; i < file->model->graph->n_node && !any; i++) {
        const Onnx__NodeProto *node = file->model->graph->node[i];
        any = accumulates(node) || updates(node);
    }
    if (!any) {
        return WEFT_OK;
    }
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        wefti_name_index_init(indexes[i], file->arena.allocator);
    }
    weft_status_t status = read_all(&a);
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        wefti_name_index_deinit(indexes[i]);
    }
    return status;
}

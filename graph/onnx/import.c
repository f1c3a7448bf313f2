/* SPDX-License-Identifier: Apache-2.0 */
/* From the unpacked message to a graph: initializers, inputs, nodes in file order, outputs, loss.
 */
#include "graph/onnx/internal.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Unsupported inputs in one error. */
#define MOST_INPUTS 8u

typedef struct import {
    wefti_onnx_file_t *file;
    wefti_graph_t *graph;
    wefti_graph_t *lasting; /* of an initialization: the graph that takes its results */
    const wefti_onnx_import_params_t *params;
    wefti_name_index_t producers; /* name of an output -> node, for messages */
    wefti_onnx_compiled_t compiled;
    const weft_op_def_t **foreign; /* by node: definitions of opaque operators */
    uint32_t foreign_count;
    int32_t *versions; /* of nodes, where they are not the file's; NULL: nowhere */
    wefti_onnx_initials_t initials;
    wefti_onnx_training_t training;
    bool reported; /* the error names all unsupported operators */
} import_t;

/* place: the node, or the kind of list, that defines name a second time */
static weft_status_t duplicate(const import_t *import, const char *place, const char *name)
{
    return wefti_error(WEFT_ERR_FORMAT, "%s: %s: duplicate definition of value '%s'",
                       import->file->label, place, name);
}

static weft_status_t take_name(import_t *import, const char *name, const char *what)
{
    if (name == NULL || name[0] == '\0') {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %s: missing name", import->file->label, what);
    }
    if (wefti_graph_find_value(import->graph, name) != WEFTI_NONE) {
        return duplicate(import, what, name);
    }
    return WEFT_OK;
}

/* A dimension of type may be open. */
static bool matches(const weft_tensor_desc_t *has, const weft_tensor_desc_t *type)
{
    bool same = has->dtype == type->dtype && has->rank == type->rank;
    for (uint32_t i = 0; same && i < type->rank; i++) {
        same = type->dims[i] == -1 || type->dims[i] == has->dims[i];
    }
    return same;
}

/* Contents that the initialization of training_info computes. */
static weft_status_t initialize(const import_t *import, const char *name, weft_tensor_desc_t *desc)
{
    const weft_tensor_desc_t *initial = wefti_onnx_initial(&import->initials, name);
    char texts[2][WEFTI_TYPE_TEXT_BYTES];
    if (initial == NULL) {
        return WEFT_OK;
    }
    if (!matches(desc, initial)) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: training_info: initialization of '%s': type does not match: %s, "
                           "initializer %s",
                           import->file->label, name, wefti_type_text(initial, texts[0]),
                           wefti_type_text(desc, texts[1]));
    }
    desc->data = initial->data;
    return WEFT_OK;
}

/* Contents in the arena of the message are copied to that of the graph; mapped ones stay. */
static weft_status_t add_initializers(import_t *import)
{
    const Onnx__GraphProto *proto = import->file->model->graph;
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < proto->n_initializer; i++) {
        const Onnx__TensorProto *tensor = proto->initializer[i];
        weft_tensor_desc_t desc;
        uint32_t value;
        WEFT_TRY(status, take_name(import, tensor->name, "initializer"), fail);
        status = wefti_onnx_tensor(import->file, tensor, import->params->holes,
                                   &import->graph->arena, &desc);
        if (status < 0) {
            return wefti_error_prefix(status, "%s", import->file->label);
        }
        WEFT_TRY(status, initialize(import, tensor->name, &desc), fail);
        WEFT_TRY(status,
                 wefti_graph_add_value(import->graph, tensor->name,
                                       wefti_dtype_is_floating(desc.dtype) ? WEFTI_VALUE_PARAM
                                                                           : WEFTI_VALUE_CONST,
                                       &desc, &value),
                 fail);
    }
fail:
    return status;
}

/* Old files list initializers also among the inputs. Their types must match. */
static weft_status_t check_listed(const import_t *import, const char *name, uint32_t value,
                                  const weft_tensor_desc_t *type)
{
    const weft_tensor_desc_t *has = &import->graph->values[value].type;
    if (!matches(has, type)) {
        char texts[2][WEFTI_TYPE_TEXT_BYTES];
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: input '%s': type does not match the initializer of the same name: "
                           "%s, initializer %s",
                           import->file->label, name, wefti_type_text(type, texts[0]),
                           wefti_type_text(has, texts[1]));
    }
    return WEFT_OK;
}

static weft_status_t add_inputs(import_t *import)
{
    const Onnx__GraphProto *proto = import->file->model->graph;
    for (size_t i = 0; i < proto->n_input; i++) {
        const Onnx__ValueInfoProto *info = proto->input[i];
        const char *dim_names[WEFT_MAX_DIMS] = {NULL};
        weft_tensor_desc_t type;
        WEFT_RETURN_IF_ERROR(wefti_onnx_value_type(import->file, info, "input", &type, dim_names));
        uint32_t value =
            info->name != NULL ? wefti_graph_find_value(import->graph, info->name) : WEFTI_NONE;
        if (value != WEFTI_NONE && import->graph->values[value].kind != WEFTI_VALUE_INPUT) {
            WEFT_RETURN_IF_ERROR(check_listed(import, info->name, value, &type));
            continue;
        }
        WEFT_RETURN_IF_ERROR(take_name(import, info->name, "input"));
        WEFT_RETURN_IF_ERROR(
            wefti_graph_add_value(import->graph, info->name, WEFTI_VALUE_INPUT, &type, &value));
        for (uint32_t d = 0; d < type.rank; d++) {
            if (dim_names[d] != NULL) {
                char *name = wefti_arena_strdup(&import->graph->arena, dim_names[d]);
                WEFT_RETURN_IF_NO_MEMORY(name);
                import->graph->values[value].dim_names[d] = name;
            }
        }
    }
    return WEFT_OK;
}

/* Indexes the producer of every value before nodes are converted: an input that a later node
 * produces gets its own message. */
static weft_status_t index_producers(import_t *import)
{
    const Onnx__GraphProto *proto = import->file->model->graph;
    char label[WEFTI_ONNX_LABEL_BYTES];
    for (size_t i = 0; i < proto->n_node; i++) {
        const Onnx__NodeProto *node = proto->node[i];
        for (size_t j = 0; j < node->n_output; j++) {
            const char *name = node->output[j], *unique;
            if (name[0] == '\0') {
                continue;
            }
            if (wefti_name_index_find(&import->producers, name) != WEFTI_NONE ||
                wefti_graph_find_value(import->graph, name) != WEFTI_NONE) {
                return duplicate(import, wefti_onnx_node_label(node, i, label), name);
            }
            WEFT_RETURN_IF_ERROR(wefti_name_index_add(&import->producers, &import->file->arena,
                                                      name, (uint32_t)i, &unique));
        }
    }
    return WEFT_OK;
}

static weft_status_t missing_input(const import_t *import, const Onnx__NodeProto *node,
                                   size_t index, const char *name)
{
    char label[WEFTI_ONNX_LABEL_BYTES], other[WEFTI_ONNX_LABEL_BYTES];
    uint32_t producer = wefti_name_index_find(&import->producers, name);
    wefti_onnx_node_label(node, index, label);
    if (producer == WEFTI_NONE) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %s: no node produces input '%s'",
                           import->file->label, label, name);
    }
    if (producer == index) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %s: reads its own output '%s'",
                           import->file->label, label, name);
    }
    wefti_onnx_node_label(import->file->model->graph->node[producer], producer, other);
    return wefti_error(WEFT_ERR_FORMAT,
                       "%s: %s: input '%s' is produced later, by %s: the graph has a cycle "
                       "or is not in topological order",
                       import->file->label, label, name, other);
}

/* Inputs and outputs of one node; arrays from the message's arena. */
static weft_status_t connect(import_t *import, const Onnx__NodeProto *node, size_t index,
                             wefti_node_params_t *out_params)
{
    wefti_arena_t *arena = &import->file->arena;
    size_t input_count = node->n_input, output_count = node->n_output;
    while (input_count > 0 && node->input[input_count - 1][0] == '\0') {
        input_count--; /* absent optional ones at the end */
    }
    while (output_count > 0 && node->output[output_count - 1][0] == '\0') {
        output_count--;
    }
    uint32_t *inputs = wefti_arena_array(arena, input_count + 1, sizeof(*inputs));
    bool *absent = wefti_arena_array(arena, output_count + 1, sizeof(*absent));
    WEFT_RETURN_IF_NO_MEMORY(inputs && absent);
    for (size_t i = 0; i < input_count; i++) {
        bool given = node->input[i][0] != '\0';
        inputs[i] = given ? wefti_graph_find_value(import->graph, node->input[i]) : WEFTI_NONE;
        if (given && inputs[i] == WEFTI_NONE) {
            return missing_input(import, node, index, node->input[i]);
        }
    }
    for (size_t i = 0; i < output_count; i++) {
        absent[i] = node->output[i][0] == '\0';
    }
    out_params->inputs = inputs;
    out_params->input_count = (uint32_t)input_count;
    out_params->output_absent = absent;
    out_params->output_names = (const char *const *)node->output;
    out_params->output_count = (uint32_t)output_count;
    return WEFT_OK;
}

/* "y_grad" -> the node that produces y, if it is the mean of windows. */
static uint32_t averaged(const import_t *import, const char *gradient)
{
    const size_t length = strlen(gradient), suffix = strlen("_grad");
    if (length <= suffix || strcmp(gradient + length - suffix, "_grad") != 0) {
        return WEFTI_NONE;
    }
    const char *y =
        wefti_arena_printf(&import->file->arena, "%.*s", (int)(length - suffix), gradient);
    uint32_t value = y == NULL ? WEFTI_NONE : wefti_graph_find_value(import->graph, y);
    uint32_t node = value == WEFTI_NONE ? WEFTI_NONE : wefti_producer(import->graph, value);
    return node != WEFTI_NONE && wefti_op_facts(import->graph->nodes[node].def).gradient ==
                                     WEFT_GRADIENT_WINDOW_MEAN
               ? node
               : WEFTI_NONE;
}

/* Gradients of pooling have the shape of what was pooled, which becomes their last input: MaxPool
 * is found by its indices, AveragePool by the name that ONNX Runtime gives the gradient of Y. */
static void add_pooled(const import_t *import, wefti_node_params_t *params)
{
    const wefti_graph_t *graph = import->graph;
    const weft_expansion_t expansion = wefti_op_facts(params->def).expansion;
    uint32_t *inputs = (uint32_t *)params->inputs; /* of connect, with one entry more */
    uint32_t pool = WEFTI_NONE;
    if (expansion == WEFT_EXPANSION_POOL_GRAD && params->input_count == 2) {
        pool = wefti_producer(graph, inputs[1]);
    } else if (expansion == WEFT_EXPANSION_AVERAGE_POOL_GRAD && params->input_count == 1 &&
               inputs[0] != WEFTI_NONE) {
        pool = averaged(import, graph->values[inputs[0]].name);
    }
    if (pool != WEFTI_NONE) {
        inputs[params->input_count++] = graph->nodes[pool].inputs[0];
    }
}

static weft_status_t add_constant(import_t *import, const Onnx__NodeProto *node)
{
    weft_tensor_desc_t desc;
    uint32_t value;
    WEFT_RETURN_IF_ERROR(wefti_onnx_constant(import->file, node, &import->graph->arena, &desc));
    WEFT_RETURN_IF_ERROR(take_name(import, node->output[0], "output of a constant"));
    return wefti_graph_add_value(import->graph, node->output[0], WEFTI_VALUE_CONST, &desc, &value);
}

/* An attribute that this version of the operator does not have would be ignored in silence. Before
 * opset 6 operators had hints for memory (consumed_inputs). */
static weft_status_t check_attributes(const weft_op_def_t *def, const wefti_node_params_t *node)
{
    for (uint32_t i = 0; i < node->attr_count && def->domain[0] == '\0'; i++) {
        bool known = strcmp(node->attrs[i].name, "consumed_inputs") == 0;
        for (size_t j = 0; j < def->attr_count && !known; j++) {
            known = strcmp(def->attrs[j].name, node->attrs[i].name) == 0;
        }
        if (!known) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "unknown attribute '%s'", node->attrs[i].name);
        }
    }
    return WEFT_OK;
}

/* Initializers that decide shapes are no weights. */
static void take_shapes(wefti_graph_t *graph, const wefti_node_t *node)
{
    const uint32_t shapes = wefti_op_facts(node->def).shape_inputs;
    for (uint32_t i = 0; i < node->input_count && i < 32; i++) {
        if ((shapes >> i & 1) != 0 && node->inputs[i] != WEFTI_NONE &&
            graph->values[node->inputs[i]].kind == WEFTI_VALUE_PARAM) {
            graph->values[node->inputs[i]].kind = WEFTI_VALUE_CONST;
        }
    }
}

static weft_status_t add_node(import_t *import, size_t index)
{
    const Onnx__NodeProto *node = import->file->model->graph->node[index];
    const char *domain = wefti_onnx_domain(node->domain);
    const char *op = node->op_type != NULL ? node->op_type : "";
    int64_t version = import->versions != NULL && import->versions[index] != 0
                          ? import->versions[index]
                          : wefti_onnx_opset(import->file->model, domain);
    weft_status_t status;
    uint32_t id;
    if (op[0] == '\0') {
        status = wefti_error(WEFT_ERR_FORMAT, "missing operator name");
        goto place;
    }
    if (version == 0) {
        status = wefti_error(WEFT_ERR_FORMAT, "opset_import has no domain '%s'", domain);
        goto place;
    }
    if (domain[0] == '\0' && strcmp(op, "Constant") == 0) {
        status = add_constant(import, node);
        goto place;
    }
    wefti_node_params_t params = {.name = node->name, .version = (int32_t)version};
    weft_attr_t *attrs;
    /* Attributes first: subgraphs have their own error, also in an unknown operator. */
    WEFT_TRY(status,
             wefti_onnx_attributes(import->file, node, &import->graph->arena, &attrs,
                                   &params.attr_count),
             place);
    params.attrs = attrs;
    params.def = import->foreign[index];
    if (params.def == NULL) {
        params.def = weft_registry_find_op(import->graph->registry, domain, op, (int32_t)version);
    }
    if (params.def == NULL) {
        import->reported = true;
        return wefti_onnx_unknown_operator(import->file, node, index, import->graph->registry);
    }
    WEFT_TRY(status, check_attributes(params.def, &params), place);
    WEFT_TRY(status, connect(import, node, index, &params), fail);
    add_pooled(import, &params);
    status = wefti_graph_add_node(import->graph, &params, &id);
    if (status < 0) { /* the message has a generated name if the node has none */
        bool named = node->name != NULL && node->name[0] != '\0';
        return named ? wefti_error_prefix(status, "%s", import->file->label)
                     : wefti_error_prefix(status, "%s: node %zu", import->file->label, index);
    }
    take_shapes(import->graph, &import->graph->nodes[id]);
    if (import->compiled.ids != NULL) {
        import->compiled.ids[index] = id;
    }
place:
    if (status < 0) {
        char label[WEFTI_ONNX_LABEL_BYTES];
        wefti_error_prefix(status, "%s: %s", import->file->label,
                           wefti_onnx_node_label(node, index, label));
    }
fail:
    return status;
}

static bool communicates(const wefti_graph_t *graph)
{
    bool any = false;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        any = any || wefti_node_communicates(&graph->nodes[graph->order[i]]);
    }
    return any;
}

static weft_status_t add_outputs(import_t *import)
{
    const Onnx__GraphProto *proto = import->file->model->graph;
    /* A compiled graph may have updates only, and a stage may send all that it computes. */
    if (proto->n_output == 0 && import->params->compiled == NULL && !communicates(import->graph)) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: graph has no outputs", import->file->label);
    }
    for (size_t i = 0; i < proto->n_output; i++) {
        const char *name = proto->output[i]->name != NULL ? proto->output[i]->name : "";
        uint32_t value = wefti_graph_find_value(import->graph, name);
        if (value == WEFTI_NONE) {
            return wefti_error(WEFT_ERR_FORMAT, "%s: no node produces graph output '%s'",
                               import->file->label, name);
        }
        WEFT_RETURN_IF_ERROR(wefti_graph_add_output(import->graph, value));
    }
    return WEFT_OK;
}

/* A loss of language models reads its scores flattened: the output that they are views of, or the
 * scores. */
static uint32_t whole_scores(const wefti_graph_t *graph, uint32_t scores)
{
    for (uint32_t at = scores;;) {
        for (uint32_t i = 0; i < graph->output_count; i++) {
            if (graph->outputs[i] == at) {
                return at;
            }
        }
        uint32_t id = wefti_producer(graph, at);
        const wefti_node_t *node = id == WEFTI_NONE ? NULL : &graph->nodes[id];
        if (node == NULL || node->input_count == 0 || !wefti_op_has(node->def, WEFT_FACT_VIEW)) {
            return scores;
        }
        at = node->inputs[0];
    }
}

/* With training_info the loss may be any expression of what the model for inference returns. */
static uint32_t logits_of(const import_t *import, const wefti_onnx_loss_t *loss)
{
    const wefti_graph_t *graph = import->graph;
    const char *first = import->training.logits;
    uint32_t value = first != NULL ? wefti_graph_find_value(graph, first) : WEFTI_NONE;
    return value != WEFTI_NONE && strcmp(first, loss->loss) != 0
               ? value
               : whole_scores(graph, wefti_graph_find_value(graph, loss->logits));
}

static weft_status_t mark_loss(import_t *import)
{
    wefti_onnx_loss_t found;
    wefti_graph_t *graph = import->graph;
    const char *loss = import->params->loss != NULL ? import->params->loss : import->training.loss;
    weft_status_t status = wefti_onnx_find_loss(import->file, loss, &found);
    if (status < 0) {
        bool none = import->params->loss == NULL &&
                    (import->params->loss_optional ||
                     (import->params->may_lack_loss && status == WEFT_ERR_NOT_FOUND));
        return none ? WEFT_OK : status;
    }
    graph->loss = wefti_graph_find_value(graph, found.loss);
    graph->logits = logits_of(import, &found);
    graph->values[graph->loss].flags |= WEFTI_VALUE_LOSS;
    graph->values[graph->logits].flags |= WEFTI_VALUE_LOGITS;
    if (found.label != NULL) {
        graph->label = wefti_graph_find_value(graph, found.label);
        graph->values[graph->label].flags |= WEFTI_VALUE_LABEL;
    }
    return WEFT_OK;
}

static weft_status_t list_parameters(const import_t *import)
{
    wefti_graph_t *graph = import->graph;
    WEFT_RETURN_IF_ERROR(wefti_onnx_parameters(import->file, &graph->arena, &graph->parameters,
                                               &graph->parameter_count));
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        wefti_parameter_t *parameter = &graph->parameters[i];
        if (parameter->value != WEFTI_NONE) {
            parameter->value = wefti_graph_find_value(graph, parameter->name);
        }
        if (import->training.loss != NULL && !parameter->running) {
            bool trained = false;
            for (size_t k = 0; k < import->training.trained_count && !trained; k++) {
                trained = strcmp(import->training.trained[k], parameter->name) == 0;
            }
            parameter->trained = trained;
            parameter->guess = false;
            parameter->why = trained ? "the model updates it" : "the model does not update it";
        }
    }
    return WEFT_OK;
}

/* A compiled graph: the nodes of the updates follow the others. */
static weft_status_t join_updates(import_t *import)
{
    wefti_onnx_compiled_t *compiled = &import->compiled;
    WEFT_RETURN_IF_ERROR(wefti_onnx_merge_training(import->file, compiled));
    WEFT_RETURN_IF_ERROR(
        wefti_onnx_compiled_versions(import->params, import->file, &import->versions));
    compiled->node_count = import->file->model->graph->n_node;
    compiled->ids = wefti_id_map(&import->file->arena, compiled->node_count);
    return compiled->ids == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* The graph of the message as one of its own, whose initializers are constants, folded. */
static weft_status_t fold_alone(import_t *import)
{
    const Onnx__GraphProto *proto = import->file->model->graph;
    wefti_graph_t *graph = import->graph;
    import->foreign =
        wefti_arena_array(&import->file->arena, proto->n_node + 1, sizeof *import->foreign);
    WEFT_RETURN_IF_NO_MEMORY(import->foreign);
    graph->defer_inference = true;
    graph->opset = (int32_t)wefti_onnx_opset(import->file->model, "");
    WEFT_RETURN_IF_ERROR(add_initializers(import));
    for (uint32_t v = 0; v < graph->value_count; v++) {
        graph->values[v].kind = WEFTI_VALUE_CONST;
    }
    WEFT_RETURN_IF_ERROR(add_inputs(import));
    WEFT_RETURN_IF_ERROR(index_producers(import));
    for (size_t i = 0; i < proto->n_node; i++) {
        WEFT_RETURN_IF_ERROR(add_node(import, i));
    }
    graph->defer_inference = false;
    return wefti_graph_fold_constants(graph);
}

/* Marks what a value depends on: nodes are in order, so one walk back is enough. */
static weft_status_t keep_ancestors(wefti_onnx_file_t *file, const char *name,
                                    Onnx__GraphProto *part)
{
    wefti_name_index_t needed;
    wefti_arena_t *arena = &file->arena;
    const char *unique;
    size_t kept = part->n_node;
    weft_status_t status;
    wefti_name_index_init(&needed, file->allocator);
    Onnx__NodeProto **nodes = wefti_arena_array(arena, part->n_node + 1, sizeof(*nodes));
    Onnx__TensorProto **tensors =
        wefti_arena_array(arena, part->n_initializer + 1, sizeof(*tensors));
    Onnx__ValueInfoProto **inputs = wefti_arena_array(arena, part->n_input + 1, sizeof(*inputs));
    WEFT_TRY(status, nodes && tensors && inputs ? WEFT_OK : WEFT_ERR_NO_MEMORY, done);
    WEFT_TRY(status, wefti_name_index_add(&needed, arena, name, 0, &unique), done);
    for (size_t i = part->n_node; i-- > 0;) {
        Onnx__NodeProto *node = part->node[i];
        bool wanted = false;
        for (size_t k = 0; k < node->n_output; k++) {
            wanted = wanted || (node->output[k][0] != '\0' &&
                                wefti_name_index_find(&needed, node->output[k]) != WEFTI_NONE);
        }
        for (size_t k = 0; k < node->n_input && wanted; k++) {
            if (wefti_name_index_find(&needed, node->input[k]) == WEFTI_NONE) {
                WEFT_TRY(status, wefti_name_index_add(&needed, arena, node->input[k], 0, &unique),
                         done);
            }
        }
        if (wanted) {
            nodes[--kept] = node;
        }
    }
    part->node = nodes + kept;
    part->n_node -= kept;
    kept = 0;
    for (size_t i = 0; i < part->n_initializer; i++) {
        const char *own = part->initializer[i]->name;
        if (own != NULL && wefti_name_index_find(&needed, own) != WEFTI_NONE) {
            tensors[kept++] = part->initializer[i];
        }
    }
    part->initializer = tensors;
    part->n_initializer = kept;
    kept = 0;
    for (size_t i = 0; i < part->n_input; i++) {
        const char *own = part->input[i]->name;
        if (own != NULL && wefti_name_index_find(&needed, own) != WEFTI_NONE) {
            inputs[kept++] = part->input[i];
        }
    }
    part->input = inputs;
    part->n_input = kept;
done:
    wefti_name_index_deinit(&needed);
    return status;
}

weft_status_t wefti_onnx_look(wefti_onnx_file_t *file, const Onnx__GraphProto *graph,
                              const char *name, weft_tensor_desc_t *out)
{
    static const wefti_onnx_import_params_t params = {.loss_optional = true};
    import_t own = {.file = file, .params = &params};
    Onnx__GraphProto *main_graph = file->model->graph, part = *graph;
    weft_status_t status;
    wefti_name_index_init(&own.producers, file->allocator);
    file->model->graph = &part;
    WEFT_TRY(status, keep_ancestors(file, name, &part), done);
    WEFT_TRY(status, wefti_graph_create(file->allocator, file->registry, 0, &own.graph), done);
    WEFT_TRY(status, fold_alone(&own), done);
    uint32_t value = wefti_graph_find_value(own.graph, name);
    if (value == WEFTI_NONE) {
        status = WEFT_ERR_NOT_FOUND;
        goto done;
    }
    const wefti_value_t *found = &own.graph->values[value];
    *out = found->type;
    out->data = NULL;
    if (found->kind == WEFTI_VALUE_CONST && found->type.data != NULL) {
        out->data = wefti_arena_memdup(&file->arena, found->type.data, wefti_value_bytes(found));
        status = out->data == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    }
done:
    wefti_graph_destroy(own.graph);
    wefti_name_index_deinit(&own.producers);
    file->model->graph = main_graph;
    return status;
}

/* The initialization of training_info as a graph of its own, all of whose values are constants. */
static weft_status_t evaluate(import_t *import, const Onnx__TrainingInfoProto *info)
{
    wefti_onnx_initials_t *out = &import->initials;
    wefti_arena_t *arena = &import->file->arena;
    wefti_graph_t *graph = import->graph;
    size_t count = info->n_initialization_binding;
    WEFT_RETURN_IF_ERROR(fold_alone(import));
    out->names = wefti_arena_array(arena, count, sizeof *out->names);
    out->types = wefti_arena_array(arena, count, sizeof *out->types);
    WEFT_RETURN_IF_NO_MEMORY(out->names && out->types);
    for (size_t i = 0; i < count; i++) {
        const Onnx__StringStringEntryProto *entry = info->initialization_binding[i];
        const char *name = entry->value != NULL ? entry->value : "";
        uint32_t value = wefti_graph_find_value(graph, name);
        if (entry->key == NULL || value == WEFTI_NONE ||
            graph->values[value].kind != WEFTI_VALUE_CONST) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: training_info: initialization of '%.100s': '%.100s' is not a "
                               "constant; store the values as an initializer",
                               import->file->label, entry->key != NULL ? entry->key : "", name);
        }
        const wefti_value_t *from = &graph->values[value];
        weft_tensor_desc_t *type = &out->types[out->count];
        *type = from->type;
        type->data =
            wefti_arena_memdup(&import->lasting->arena, from->type.data, wefti_value_bytes(from));
        WEFT_RETURN_IF_NO_MEMORY(type->data);
        out->names[out->count++] = entry->key;
    }
    return WEFT_OK;
}

static weft_status_t run_initialization(import_t *import)
{
    Onnx__ModelProto *model = import->file->model;
    const Onnx__TrainingInfoProto *info =
        model->n_training_info == 1 ? model->training_info[0] : NULL;
    if (info == NULL || info->initialization == NULL || info->n_initialization_binding == 0) {
        return WEFT_OK;
    }
    import_t own = {.file = import->file, .params = import->params, .lasting = import->graph};
    Onnx__GraphProto *main_graph = model->graph;
    weft_status_t status;
    model->graph = info->initialization;
    wefti_name_index_init(&own.producers, import->file->arena.allocator);
    WEFT_TRY(
        status,
        wefti_graph_create(import->graph->arena.allocator, import->graph->registry, 0, &own.graph),
        done);
    status = evaluate(&own, info);
    import->initials = own.initials;
done:
    wefti_graph_destroy(own.graph);
    wefti_name_index_deinit(&own.producers);
    model->graph = main_graph;
    return status;
}

/* The last error without "label: ", which is cut where the name of a file is very long. */
static const char *unlabelled(const import_t *import)
{
    const char *error = weft_last_error();
    const size_t label = strlen(import->file->label) + 2;
    return strlen(error) > label ? error + label : error;
}

/* What is not supported besides what the error names, such as an initializer: other inputs, and
 * operators. */
static weft_status_t report_all(import_t *import, weft_status_t status)
{
    const Onnx__GraphProto *proto = import->file->model->graph;
    const char *dim_names[WEFT_MAX_DIMS];
    weft_tensor_desc_t type;
    wefti_text_t text;
    if (status != WEFT_ERR_UNSUPPORTED || import->reported) {
        return status;
    }
    wefti_text_init(&text, import->file->allocator);
    wefti_text_add(&text, weft_last_error());
    for (size_t i = 0, named = 0; i < proto->n_input && named < MOST_INPUTS && !text.failed; i++) {
        if (wefti_onnx_value_type(import->file, proto->input[i], "input", &type, dim_names) ==
                WEFT_ERR_UNSUPPORTED &&
            strstr(text.data, unlabelled(import)) == NULL) {
            wefti_text_printf(&text, "; also %s", unlabelled(import));
            named++;
        }
    }
    if (wefti_onnx_foreign(import->file, import->graph, &import->foreign, &import->foreign_count) ==
        WEFT_ERR_UNSUPPORTED) {
        wefti_text_printf(&text, "; also %s", unlabelled(import));
    } else {
        wefti_onnx_add_unknown(import->file, NULL, import->graph->registry, &text);
    }
    status = text.failed ? WEFT_ERR_NO_MEMORY : wefti_error(status, "%s", text.data);
    wefti_text_deinit(&text);
    return status;
}

static weft_status_t convert(import_t *import)
{
    const Onnx__ModelProto *model = import->file->model;
    wefti_graph_t *graph = import->graph;
    import->file->compiled = import->params->compiled != NULL;
    WEFT_RETURN_IF_ERROR(wefti_onnx_inline_functions(import->file));
    WEFT_RETURN_IF_ERROR(wefti_onnx_check_model(import->file));
    if (import->params->compiled == NULL && !import->params->loss_optional) {
        WEFT_RETURN_IF_ERROR(wefti_onnx_tie(import->file));
    }
    if (import->params->compiled == NULL && !import->params->loss_optional) {
        WEFT_RETURN_IF_ERROR(run_initialization(import));
        WEFT_RETURN_IF_ERROR(
            wefti_onnx_training(import->file, &import->initials, &import->training));
        graph->update_rule = import->training.rule;
        WEFT_RETURN_IF_ERROR(wefti_onnx_artifacts(import->file, &graph->update_rule));
    }
    if (import->params->compiled != NULL) {
        WEFT_RETURN_IF_ERROR(join_updates(import));
    }
    if (import->params->training_form) {
        WEFT_RETURN_IF_ERROR(wefti_onnx_training_form(import->file));
    }
    graph->opset = (int32_t)wefti_onnx_opset(model, "");
    graph->name =
        wefti_arena_strdup(&graph->arena, model->graph->name != NULL ? model->graph->name : "");
    WEFT_RETURN_IF_NO_MEMORY(graph->name);
    weft_status_t status = add_initializers(import);
    status = status < 0 ? status : add_inputs(import);
    if (status < 0) {
        return report_all(import, status);
    }
    WEFT_RETURN_IF_ERROR(index_producers(import));
    WEFT_RETURN_IF_ERROR(
        wefti_onnx_foreign(import->file, graph, &import->foreign, &import->foreign_count));
    for (size_t i = 0; i < model->graph->n_node; i++) {
        status = add_node(import, i);
        if (status < 0) {
            return report_all(import, status);
        }
    }
    WEFT_RETURN_IF_ERROR(add_outputs(import));
    if (import->params->compiled != NULL) {
        WEFT_RETURN_IF_ERROR(
            wefti_onnx_compiled_apply(import->params, import->file, graph, &import->compiled));
        return wefti_onnx_file_give_mappings(import->file, graph);
    }
    WEFT_RETURN_IF_ERROR(mark_loss(import));
    WEFT_RETURN_IF_ERROR(list_parameters(import));
    graph->device_configurations = wefti_onnx_count_device_configurations(import->file);
    if (import->params->devices.count > 0) {
        WEFT_RETURN_IF_ERROR(
            wefti_onnx_read_shardings(import->file, &import->params->devices, graph));
    }
    return wefti_onnx_file_give_mappings(import->file, graph);
}

weft_status_t wefti_onnx_import(const wefti_onnx_import_params_t *params,
                                const weft_allocator_t *allocator, const weft_registry_t *registry,
                                wefti_graph_t **out_graph)
{
    wefti_onnx_file_t file;
    import_t import = {.file = &file, .params = params};
    *out_graph = NULL;
    weft_status_t status = wefti_onnx_file_open(params, allocator, &file);
    if (status < 0) {
        return status;
    }
    file.registry = registry;
    file.look = wefti_onnx_look;
    wefti_name_index_init(&import.producers,
                          allocator != NULL ? allocator : wefti_allocator_default());
    WEFT_TRY(status, wefti_graph_create(allocator, registry, 0, &import.graph), done);
    import.graph->defer_inference = true; /* shapes are not bound yet */
    status = convert(&import);
    if (status == WEFT_OK) {
        import.graph->defer_inference = false;
        *out_graph = import.graph;
        import.graph = NULL;
    }
done:
    wefti_graph_destroy(import.graph);
    wefti_name_index_deinit(&import.producers);
    wefti_onnx_file_close(&file);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model-local functions: a node that calls one becomes the nodes of its body. Values inside of a
 * call get a prefix of its own; attributes of the caller replace references to them.
 */
#include "graph/onnx/internal.h"

#include <string.h>

#include "runtime/base/error.h"

#define MOST_DEPTH 32u
#define MOST_NODES 200000u /* and calls */

typedef struct inliner {
    wefti_onnx_file_t *file;
    Onnx__NodeProto **nodes;
    size_t count, capacity;
    uint32_t calls;
} inliner_t;

/* A call: the names of its values by those of the body. */
typedef struct call {
    const Onnx__FunctionProto *function;
    const Onnx__NodeProto *node;
    uint32_t number;
} call_t;

static bool same(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

static const Onnx__FunctionProto *find_function(const inliner_t *in, const Onnx__NodeProto *node)
{
    const Onnx__ModelProto *model = in->file->model;
    for (size_t i = 0; i < model->n_functions; i++) {
        const Onnx__FunctionProto *function = model->functions[i];
        if (same(function->name, node->op_type) &&
            strcmp(wefti_onnx_domain(function->domain), wefti_onnx_domain(node->domain)) == 0) {
            return function;
        }
    }
    return NULL;
}

/* NULL: out of memory. */
static char *name_in(inliner_t *in, const call_t *call, const char *name)
{
    static char none[] = "";
    if (name == NULL || name[0] == '\0') {
        return none;
    }
    for (size_t i = 0; i < call->function->n_input; i++) {
        if (same(call->function->input[i], name)) {
            return i < call->node->n_input ? call->node->input[i] : none;
        }
    }
    for (size_t i = 0; i < call->function->n_output; i++) {
        if (same(call->function->output[i], name) && i < call->node->n_output &&
            call->node->output[i][0] != '\0') {
            return call->node->output[i];
        }
    }
    return (char *)(uintptr_t)wefti_arena_printf(&in->file->arena, "%s.%u/%s", call->function->name,
                                                 call->number, name);
}

static weft_status_t rename_list(inliner_t *in, const call_t *call, size_t count, char ***list)
{
    char **renamed = wefti_arena_array(&in->file->arena, count + 1, sizeof(*renamed));
    WEFT_RETURN_IF_NO_MEMORY(renamed);
    for (size_t i = 0; i < count; i++) {
        renamed[i] = name_in(in, call, (*list)[i]);
        WEFT_RETURN_IF_NO_MEMORY(renamed[i]);
    }
    *list = renamed;
    return WEFT_OK;
}

static const Onnx__AttributeProto *find_attribute(Onnx__AttributeProto *const *list, size_t count,
                                                  const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (same(list[i]->name, name)) {
            return list[i];
        }
    }
    return NULL;
}

/* References become the caller's attributes, or are left out. */
static weft_status_t resolve_attributes(inliner_t *in, const call_t *call, Onnx__NodeProto *node)
{
    size_t kept = 0;
    Onnx__AttributeProto **list =
        wefti_arena_array(&in->file->arena, node->n_attribute + 1, sizeof(*list));
    WEFT_RETURN_IF_NO_MEMORY(list);
    for (size_t i = 0; i < node->n_attribute; i++) {
        Onnx__AttributeProto *attribute = node->attribute[i];
        const char *wanted = attribute->ref_attr_name;
        if (wanted == NULL || wanted[0] == '\0') {
            list[kept++] = attribute;
            continue;
        }
        const Onnx__AttributeProto *given =
            find_attribute(call->node->attribute, call->node->n_attribute, wanted);
        if (given == NULL) {
            bool optional =
                false; /* else the function has a default, in a field that is not read */
            for (size_t k = 0; k < call->function->n_attribute; k++) {
                optional = optional || same(call->function->attribute[k], wanted);
            }
            if (optional) {
                continue;
            }
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: function '%s': default values of attributes, such as '%s', are "
                               "not supported",
                               in->file->label, call->function->name, wanted);
        }
        Onnx__AttributeProto *copy = wefti_arena_memdup(&in->file->arena, given, sizeof(*given));
        WEFT_RETURN_IF_NO_MEMORY(copy);
        copy->name = attribute->name;
        list[kept++] = copy;
    }
    node->attribute = list;
    node->n_attribute = kept;
    return WEFT_OK;
}

static weft_status_t push(inliner_t *in, Onnx__NodeProto *node)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(in->file->allocator, &in->nodes, &in->capacity,
                                             in->count + 1, sizeof(in->nodes[0])));
    in->nodes[in->count++] = node;
    return WEFT_OK;
}

static weft_status_t add(inliner_t *in, Onnx__NodeProto *node, uint32_t depth)
{
    const call_t call = {.function = find_function(in, node), .node = node, .number = in->calls};
    if (call.function == NULL) {
        return push(in, node);
    }
    if (depth >= MOST_DEPTH) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: function '%s' calls itself, or functions are "
                           "nested more than %u deep",
                           in->file->label, call.function->name, MOST_DEPTH);
    }
    if (++in->calls > MOST_NODES || in->count > MOST_NODES) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: function '%s': more than %u calls or nodes of functions",
                           in->file->label, call.function->name, MOST_NODES);
    }
    for (size_t i = 0; i < call.function->n_node; i++) {
        Onnx__NodeProto *copy = wefti_arena_memdup(&in->file->arena, call.function->node[i],
                                                   sizeof(*call.function->node[i]));
        WEFT_RETURN_IF_NO_MEMORY(copy);
        WEFT_RETURN_IF_ERROR(rename_list(in, &call, copy->n_input, &copy->input));
        WEFT_RETURN_IF_ERROR(rename_list(in, &call, copy->n_output, &copy->output));
        WEFT_RETURN_IF_ERROR(resolve_attributes(in, &call, copy));
        copy->name = (char *)(uintptr_t)wefti_arena_printf(
            &in->file->arena, "%s.%u/%s", call.function->name, call.number,
            copy->name != NULL && copy->name[0] != '\0' ? copy->name : copy->op_type);
        WEFT_RETURN_IF_NO_MEMORY(copy->name);
        WEFT_RETURN_IF_ERROR(add(in, copy, depth + 1));
    }
    return WEFT_OK;
}

/* Operators of a body have the versions that the model imports. */
static weft_status_t check_versions(const wefti_onnx_file_t *file)
{
    const Onnx__ModelProto *model = file->model;
    for (size_t f = 0; f < model->n_functions; f++) {
        const Onnx__FunctionProto *function = model->functions[f];
        for (size_t i = 0; i < function->n_opset_import; i++) {
            const char *domain = wefti_onnx_domain(function->opset_import[i]->domain);
            int64_t of_model = wefti_onnx_opset(model, domain);
            if (of_model != 0 && of_model != function->opset_import[i]->version) {
                return wefti_error(
                    WEFT_ERR_UNSUPPORTED,
                    "%s: function '%s' imports version %lld of domain '%s', the model %lld",
                    file->label, function->name != NULL ? function->name : "",
                    (long long)function->opset_import[i]->version, domain, (long long)of_model);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t inline_functions(wefti_onnx_file_t *file)
{
    inliner_t in = {.file = file};
    Onnx__GraphProto *graph = file->model->graph;
    weft_status_t status = WEFT_OK;
    if (file->model->n_functions == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(check_versions(file));
    for (size_t i = 0; i < graph->n_node && status >= 0; i++) {
        status = add(&in, graph->node[i], 0);
    }
    if (status >= 0) {
        Onnx__NodeProto **nodes = wefti_arena_array(&file->arena, in.count + 1, sizeof(*nodes));
        status = nodes == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
        if (nodes != NULL && in.count > 0) {
            memcpy(nodes, in.nodes, in.count * sizeof(*nodes));
            graph->node = nodes;
            graph->n_node = in.count;
        }
    }
    wefti_free(file->allocator, in.nodes);
    return status;
}

weft_status_t wefti_onnx_inline_functions(wefti_onnx_file_t *file)
{
    WEFT_RETURN_IF_ERROR(inline_functions(file));
    WEFT_RETURN_IF_ERROR(wefti_onnx_replace_bags(file));
    WEFT_RETURN_IF_ERROR(wefti_onnx_unroll(file));
    return wefti_onnx_replace_sequences(file);
}

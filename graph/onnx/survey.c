/* SPDX-License-Identifier: Apache-2.0 */
/* Operators and inputs of a model, supported or not. */
#include "graph/onnx/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* Operators by domain and name, then by how often they are used. */
static int by_name(const void *a, const void *b)
{
    const wefti_onnx_op_use_t *x = a, *y = b;
    int domains = strcmp(x->domain, y->domain);
    return domains != 0 ? domains : strcmp(x->name, y->name);
}

static int by_use(const void *a, const void *b)
{
    const wefti_onnx_op_use_t *x = a, *y = b;
    return x->count != y->count ? (x->count > y->count ? -1 : 1) : by_name(a, b);
}

static bool is_initializer(const Onnx__GraphProto *graph, const char *name)
{
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const char *other = graph->initializer[i]->name;
        if (other != NULL && strcmp(other, name) == 0) {
            return true;
        }
    }
    return false;
}

static void look_up(const Onnx__ModelProto *model, const weft_registry_t *registry,
                    wefti_onnx_op_use_t *use)
{
    int64_t opset = wefti_onnx_opset(model, use->domain);
    int32_t version = opset > 0 && opset < INT32_MAX ? (int32_t)opset : INT32_MAX;
    const weft_op_def_t *def = weft_registry_find_op(registry, use->domain, use->name, version);
    use->defined = def != NULL;
    use->differentiable = def != NULL && wefti_is_differentiable(def);
    use->has_kernel = weft_registry_find_kernel(registry, use->domain, use->name, version) != NULL;
}

/* One entry per operator: nodes sorted by name, equal neighbours counted. */
static weft_status_t survey_ops(const Onnx__ModelProto *model, const weft_registry_t *registry,
                                wefti_arena_t *arena, wefti_onnx_survey_t *out)
{
    const Onnx__GraphProto *graph = model->graph;
    out->ops = wefti_arena_array(arena, graph->n_node, sizeof *out->ops);
    size_t *first = wefti_arena_array(arena, graph->n_node, sizeof *first);
    WEFT_RETURN_IF_NO_MEMORY(out->ops && first);
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        char label[WEFTI_ONNX_LABEL_BYTES];
        wefti_onnx_op_use_t *use = &out->ops[i];
        use->domain = wefti_arena_strdup(arena, wefti_onnx_domain(node->domain));
        use->name = wefti_arena_strdup(arena, node->op_type != NULL ? node->op_type : "");
        use->first = wefti_arena_strdup(arena, wefti_onnx_node_label(node, i, label));
        use->count = (uint32_t)i; /* the order of nodes, for now */
        WEFT_RETURN_IF_NO_MEMORY(use->domain && use->name && use->first);
    }
    qsort(out->ops, graph->n_node, sizeof *out->ops, by_name);
    for (size_t i = 0, j; i < graph->n_node; i = j) {
        size_t lowest = i;
        for (j = i; j < graph->n_node && by_name(&out->ops[i], &out->ops[j]) == 0; j++) {
            lowest = out->ops[j].count < out->ops[lowest].count ? j : lowest;
        }
        wefti_onnx_op_use_t use = out->ops[lowest];
        use.count = (uint32_t)(j - i);
        look_up(model, registry, &use);
        out->ops[out->op_count++] = use; /* at or before i */
    }
    qsort(out->ops, out->op_count, sizeof *out->ops, by_use);
    return WEFT_OK;
}

static const char *type_text(const wefti_onnx_file_t *file, const Onnx__ValueInfoProto *info,
                             wefti_arena_t *arena)
{
    weft_tensor_desc_t type;
    const char *dim_names[WEFT_MAX_DIMS];
    if (wefti_onnx_value_type(file, info, "input", &type, dim_names) < 0) {
        return wefti_arena_strdup(arena, weft_last_error());
    }
    char *text = wefti_arena_printf(arena, "%s [", weft_dtype_name(type.dtype));
    for (uint32_t d = 0; d < type.rank && text != NULL; d++) {
        const char *comma = d > 0 ? ", " : "";
        text = type.dims[d] >= 0
                   ? wefti_arena_printf(arena, "%s%s%lld", text, comma, (long long)type.dims[d])
                   : wefti_arena_printf(arena, "%s%s%.64s", text, comma,
                                        dim_names[d] != NULL ? dim_names[d] : "?");
    }
    return text != NULL ? wefti_arena_printf(arena, "%s]", text) : NULL;
}

static weft_status_t survey_inputs(const wefti_onnx_file_t *file, wefti_arena_t *arena,
                                   wefti_onnx_survey_t *out)
{
    const Onnx__GraphProto *graph = file->model->graph;
    out->inputs = wefti_arena_array(arena, graph->n_input, sizeof *out->inputs);
    WEFT_RETURN_IF_NO_MEMORY(out->inputs);
    for (size_t i = 0; i < graph->n_input; i++) {
        const Onnx__ValueInfoProto *info = graph->input[i];
        const char *name = info->name != NULL ? info->name : "";
        if (is_initializer(graph, name)) {
            continue; /* old files list these among the inputs */
        }
        wefti_onnx_input_t input = {wefti_arena_strdup(arena, name), type_text(file, info, arena)};
        WEFT_RETURN_IF_NO_MEMORY(input.name && input.text);
        out->inputs[out->input_count++] = input;
    }
    return WEFT_OK;
}

weft_status_t wefti_onnx_survey(const char *path, const weft_allocator_t *allocator,
                                const weft_registry_t *registry, wefti_arena_t *arena,
                                wefti_onnx_survey_t *out)
{
    weft_status_t status;
    wefti_onnx_file_t file = {0};
    wefti_onnx_import_params_t params = {.path = path};
    *out = (wefti_onnx_survey_t){0};
    WEFT_TRY(status, wefti_onnx_file_open(&params, allocator, &file), done);
    WEFT_TRY(status, wefti_onnx_inline_functions(&file), done);
    WEFT_TRY(status, wefti_onnx_artifacts(&file, &(wefti_update_rule_t){0}), done);
    const Onnx__GraphProto *graph = file.model->graph;
    if (graph->n_node > UINT32_MAX / 2 || graph->n_initializer > UINT32_MAX / 2) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED,
                             "%s: too many nodes or initializers: %zu and %zu, limit %u", path,
                             graph->n_node, graph->n_initializer, UINT32_MAX / 2);
        goto done;
    }
    out->ir_version = file.model->ir_version;
    out->opset = wefti_onnx_opset(file.model, "");
    out->node_count = (uint32_t)graph->n_node;
    out->initializer_count = (uint32_t)graph->n_initializer;
    WEFT_TRY(status, survey_ops(file.model, registry, arena, out), done);
    WEFT_TRY(status, survey_inputs(&file, arena, out), done);
    WEFT_TRY(status, wefti_onnx_tie(&file), done);
    WEFT_TRY(status, wefti_onnx_parameters(&file, arena, &out->parameters, &out->parameter_count),
             done);
done:
    wefti_onnx_file_close(&file);
    return status;
}

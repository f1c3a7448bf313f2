/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opaque operators: of other domains, without a definition. A node is compiled if the file has the
 * types of all its outputs. It may have any effect, so it is a fence for every pass; running it
 * needs a kernel. Otherwise one error names all such operators and shows a declaration.
 */
#include "graph/onnx/internal.h"

#include <string.h>

#include "runtime/base/error.h"

#define NAMED 8u

typedef struct foreign {
    wefti_onnx_file_t *file;
    wefti_graph_t *graph;
    wefti_name_index_t infos; /* name -> index into the list below */
    const Onnx__ValueInfoProto **list;
    const weft_op_def_t **defs; /* by node of the file */
    size_t first;               /* that cannot be compiled, SIZE_MAX: none */
    wefti_text_t others;
    uint32_t named, missing;
} foreign_t;

static bool is_foreign(const char *domain)
{
    return domain[0] != '\0' && strcmp(domain, "weft") != 0;
}

static weft_status_t index_infos(foreign_t *f)
{
    const Onnx__GraphProto *proto = f->file->model->graph;
    size_t count = proto->n_value_info + proto->n_output;
    const char *unique;
    f->list = wefti_arena_array(&f->file->arena, count + 1, sizeof(*f->list));
    if (f->list == NULL || count > UINT32_MAX) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        const Onnx__ValueInfoProto *info =
            i < proto->n_value_info ? proto->value_info[i] : proto->output[i - proto->n_value_info];
        f->list[i] = info;
        if (info->name != NULL && info->name[0] != '\0' &&
            wefti_name_index_find(&f->infos, info->name) == WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(
                wefti_name_index_add(&f->infos, &f->file->arena, info->name, (uint32_t)i, &unique));
        }
    }
    return WEFT_OK;
}

/* An open first dimension is the batch: that of the node's first input. */
static bool read_rule(foreign_t *f, const char *name, weft_output_rule_t *rule)
{
    weft_tensor_desc_t type;
    const char *dim_names[WEFT_MAX_DIMS];
    uint32_t index = wefti_name_index_find(&f->infos, name);
    if (index == WEFTI_NONE ||
        wefti_onnx_value_type(f->file, f->list[index], "value", &type, dim_names) < 0) {
        return false;
    }
    *rule = (weft_output_rule_t){.like = -1, .dtype = type.dtype, .rank = type.rank};
    for (uint32_t d = 0; d < type.rank; d++) {
        bool open = type.dims[d] < 0;
        if (open && d > 0) {
            return false;
        }
        rule->dims[d] = open ? 0 : type.dims[d];
        rule->of_input[d] = open ? 0 : -1;
    }
    return true;
}

/* *out_def NULL: the file lacks the type of an output. */
static weft_status_t define(foreign_t *f, const Onnx__NodeProto *node, int32_t version,
                            const weft_op_def_t **out_def)
{
    weft_output_rule_t *outputs =
        wefti_arena_array(&f->graph->arena, node->n_output + 1, sizeof(*outputs));
    *out_def = NULL;
    WEFT_RETURN_IF_NO_MEMORY(outputs);
    for (size_t i = 0; i < node->n_output; i++) {
        outputs[i] = (weft_output_rule_t){.like = -1, .dtype = WEFT_DTYPE_F32};
        if (node->output[i][0] != '\0' && !read_rule(f, node->output[i], &outputs[i])) {
            return WEFT_OK;
        }
    }
    return node->n_output == 0
               ? WEFT_OK
               : wefti_graph_define_opaque(f->graph, node->domain, node->op_type, version,
                                           (uint32_t)node->n_input, outputs,
                                           (uint32_t)node->n_output, out_def);
}

/* Records a node that cannot be compiled. */
static void note(foreign_t *f, size_t index)
{
    const Onnx__NodeProto *node = f->file->model->graph->node[index];
    wefti_text_t name;
    f->missing++;
    if (f->first == SIZE_MAX) {
        f->first = index;
        return;
    }
    wefti_text_init(&name, f->file->allocator);
    wefti_text_printf(&name, "%.60s::%.60s", node->domain, node->op_type);
    const Onnx__NodeProto *first = f->file->model->graph->node[f->first];
    bool same =
        strcmp(first->domain, node->domain) == 0 && strcmp(first->op_type, node->op_type) == 0;
    if (!name.failed && !same && f->named < NAMED &&
        (f->others.data == NULL || strstr(f->others.data, name.data) == NULL)) {
        wefti_text_printf(&f->others, "%s%s", f->named++ > 0 ? ", " : "", name.data);
    }
    wefti_text_deinit(&name);
}

static weft_status_t refuse(const foreign_t *f)
{
    char label[WEFTI_ONNX_LABEL_BYTES];
    const Onnx__NodeProto *node = f->file->model->graph->node[f->first];
    const char *others = f->others.data != NULL ? f->others.data : "";
    wefti_text_t known;
    wefti_text_init(&known, f->file->allocator);
    wefti_onnx_add_unknown(f->file, node, f->graph->registry, &known);
    wefti_onnx_node_label(node, f->first, label);
    weft_status_t status = wefti_error(
        WEFT_ERR_UNSUPPORTED,
        "%s: %s: unsupported operator %.60s::%.60s%s%s%s; declare it in the file ops_path: "
        "{\"operators\": [{\"domain\": \"%.60s\", \"name\": \"%.60s\", \"inputs\": %zu, "
        "\"outputs\": %zu, \"types\": [{\"like\": 0}], \"effects\": \"pure\"}]}%s",
        f->file->label, label, node->domain, node->op_type, f->named > 0 ? " (also " : "", others,
        f->named > 0 ? ")" : "", node->domain, node->op_type, node->n_input, node->n_output,
        known.data != NULL ? known.data : "");
    wefti_text_deinit(&known);
    return status;
}

static weft_status_t visit(foreign_t *f, size_t index)
{
    const Onnx__NodeProto *node = f->file->model->graph->node[index];
    const char *domain = wefti_onnx_domain(node->domain);
    const char *op = node->op_type != NULL ? node->op_type : "";
    int64_t version = wefti_onnx_opset(f->file->model, domain);
    if (!is_foreign(domain) || op[0] == '\0' || version == 0 ||
        weft_registry_find_op(f->graph->registry, domain, op, (int32_t)version) != NULL) {
        return WEFT_OK;
    }
    if (f->list == NULL) {
        WEFT_RETURN_IF_ERROR(index_infos(f));
    }
    WEFT_RETURN_IF_ERROR(define(f, node, (int32_t)version, &f->defs[index]));
    if (f->defs[index] == NULL) {
        note(f, index);
    }
    return WEFT_OK;
}

weft_status_t wefti_onnx_foreign(wefti_onnx_file_t *file, wefti_graph_t *graph,
                                 const weft_op_def_t ***out_defs, uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    const Onnx__GraphProto *proto = file->model->graph;
    foreign_t f = {.file = file, .graph = graph, .first = SIZE_MAX};
    wefti_name_index_init(&f.infos, graph->arena.allocator);
    wefti_text_init(&f.others, file->allocator);
    f.defs = wefti_arena_array(&file->arena, proto->n_node + 1, sizeof(*f.defs));
    WEFT_TRY(status, f.defs == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK, done);
    for (size_t i = 0; i < proto->n_node; i++) {
        WEFT_TRY(status, visit(&f, i), done);
        *out_count += f.defs[i] != NULL;
    }
    if (f.first != SIZE_MAX) {
        status = refuse(&f);
    }
    *out_defs = f.defs;
done:
    wefti_text_deinit(&f.others);
    wefti_name_index_deinit(&f.infos);
    return status;
}

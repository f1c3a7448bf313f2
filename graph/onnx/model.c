/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of a whole model: versions, domains, types of inputs; errors for unsupported ones. */
#include "graph/onnx/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

/* Operators in an error. */
#define MOST_NAMED 24u
/* A linear search per node. */
#define MOST_DOMAINS 100

const char *wefti_onnx_node_label(const Onnx__NodeProto *node, size_t index, char *buffer)
{
    const char *op = node->op_type != NULL ? node->op_type : "";
    if (node->name != NULL && node->name[0] != '\0') {
        snprintf(buffer, WEFTI_ONNX_LABEL_BYTES, "node %zu '%.100s' (%.40s)", index, node->name,
                 op);
    } else {
        snprintf(buffer, WEFTI_ONNX_LABEL_BYTES, "node %zu (%.40s)", index, op);
    }
    return buffer;
}

const char *wefti_onnx_domain(const char *domain)
{
    return domain == NULL || strcmp(domain, "ai.onnx") == 0 ? "" : domain;
}

int64_t wefti_onnx_opset(const Onnx__ModelProto *model, const char *domain)
{
    for (size_t i = 0; i < model->n_opset_import; i++) {
        if (strcmp(wefti_onnx_domain(model->opset_import[i]->domain), domain) == 0) {
            return model->opset_import[i]->version;
        }
    }
    /* The first formats had one operator set and no opset_import. */
    return model->n_opset_import == 0 && model->ir_version < 3 && domain[0] == '\0' ? 1 : 0;
}

weft_status_t wefti_onnx_check_model(const wefti_onnx_file_t *file)
{
    const Onnx__ModelProto *model = file->model;
    const Onnx__GraphProto *graph = model->graph;
    if (!model->has_ir_version || model->ir_version < 1) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: not an ONNX model: no ir_version", file->label);
    }
    if (model->n_opset_import > MOST_DOMAINS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: too many entries in opset_import: %zu, limit %d", file->label,
                           model->n_opset_import, MOST_DOMAINS);
    }
    for (size_t i = 0; i < model->n_opset_import; i++) {
        int64_t version = model->opset_import[i]->version;
        const char *domain = wefti_onnx_domain(model->opset_import[i]->domain);
        if (version < 1 || version > INT32_MAX) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "%s: opset_import[%zu] '%s': version must be between 1 and %d: %lld",
                               file->label, i, domain, INT32_MAX, (long long)version);
        }
        if (domain[0] == '\0' && version > WEFTI_ONNX_NEWEST_OPSET) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "%s: unsupported opset %lld: the newest supported is %d; export the "
                               "model with that one",
                               file->label, (long long)version, WEFTI_ONNX_NEWEST_OPSET);
        }
    }
    if (wefti_onnx_opset(model, "") == 0 && model->n_opset_import == 0) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: opset_import is empty", file->label);
    }
    if (graph->n_sparse_initializer > 0) {
        const Onnx__TensorProto *values = graph->sparse_initializer[0]->values;
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: initializer '%s': sparse tensors are not supported", file->label,
                           values != NULL ? wefti_onnx_tensor_name(values) : "");
    }
    if (graph->n_node > UINT32_MAX / 4 || graph->n_initializer > UINT32_MAX / 4) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: too many nodes or initializers: %zu and %zu, limit %u", file->label,
                           graph->n_node, graph->n_initializer, UINT32_MAX / 4);
    }
    return WEFT_OK;
}

/* Names close to a wanted one, best first. */
typedef struct near {
    const char *domain, *wanted;
    const char *names[5];
    size_t distances[5];
    uint32_t count;
} near_t;

static int visit_near(const weft_op_def_t *def, void *user)
{
    near_t *near = user;
    if (strcmp(wefti_onnx_domain(def->domain), near->domain) != 0) {
        return 0;
    }
    size_t distance = wefti_edit_distance(def->name, near->wanted);
    size_t prefix = 0;
    while (def->name[prefix] != '\0' && def->name[prefix] == near->wanted[prefix]) {
        prefix++;
    }
    if (prefix < 3 && distance > strlen(near->wanted) / 2) {
        return 0;
    }
    uint32_t at = near->count;
    for (uint32_t i = 0; i < near->count; i++) {
        if (strcmp(near->names[i], def->name) == 0) {
            return 0; /* another version */
        }
    }
    while (at > 0 && near->distances[at - 1] > distance) {
        at--;
    }
    if (at == 5) {
        return 0;
    }
    uint32_t last = near->count < 5 ? near->count++ : 4;
    for (; last > at; last--) {
        near->names[last] = near->names[last - 1];
        near->distances[last] = near->distances[last - 1];
    }
    near->names[at] = def->name;
    near->distances[at] = distance;
    return 0;
}

/* The lowest version of an operator. */
typedef struct lowest {
    const char *domain, *op;
    int32_t version; /* 0: none */
} lowest_t;

static int visit_lowest(const weft_op_def_t *def, void *user)
{
    lowest_t *lowest = user;
    if (strcmp(def->name, lowest->op) == 0 &&
        strcmp(wefti_onnx_domain(def->domain), lowest->domain) == 0 &&
        (lowest->version == 0 || def->since_version < lowest->version)) {
        lowest->version = def->since_version;
    }
    return 0;
}

/* One operator that the registry does not have, and how often the model uses it. */
typedef struct missing {
    const Onnx__NodeProto *node;
    uint32_t count;
} missing_t;

static bool same_operator(const Onnx__NodeProto *a, const Onnx__NodeProto *b)
{
    return strcmp(wefti_onnx_domain(a->domain), wefti_onnx_domain(b->domain)) == 0 &&
           strcmp(a->op_type, b->op_type) == 0;
}

void wefti_onnx_add_unknown(const wefti_onnx_file_t *file, const Onnx__NodeProto *but,
                            const weft_registry_t *registry, wefti_text_t *out)
{
    const Onnx__GraphProto *graph = file->model->graph;
    missing_t others[MOST_NAMED + 1];
    uint32_t count = 0, more = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        const char *domain = wefti_onnx_domain(node->domain);
        int64_t version = wefti_onnx_opset(file->model, domain);
        bool own = domain[0] == '\0' || strcmp(domain, "weft") == 0; /* foreign.c has the others */
        if (!own || node->op_type == NULL || version == 0 ||
            (but != NULL && same_operator(node, but)) ||
            (domain[0] == '\0' && strcmp(node->op_type, "Constant") == 0) ||
            weft_registry_find_op(registry, domain, node->op_type, (int32_t)version) != NULL) {
            continue;
        }
        uint32_t at = 0;
        while (at < count && !same_operator(others[at].node, node)) {
            at++;
        }
        if (at == MOST_NAMED) {
            more++;
            continue;
        }
        others[at] = at == count ? (missing_t){node, 0} : others[at];
        count += at == count;
        others[at].count++;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *domain = wefti_onnx_domain(others[i].node->domain);
        wefti_text_printf(out, "%s%.40s%s%.60s (%u node%s)", i == 0 ? "; also " : ", ", domain,
                          domain[0] != '\0' ? "::" : "", others[i].node->op_type, others[i].count,
                          others[i].count == 1 ? "" : "s");
    }
    if (more > 0) {
        wefti_text_printf(out, ", and others (%u nodes)", more);
    }
}

weft_status_t wefti_onnx_unknown_operator(const wefti_onnx_file_t *file,
                                          const Onnx__NodeProto *node, size_t index,
                                          const weft_registry_t *registry)
{
    char label[WEFTI_ONNX_LABEL_BYTES], names[200] = "";
    const char *op = node->op_type != NULL ? node->op_type : "";
    const char *domain = wefti_onnx_domain(node->domain);
    near_t near = {.domain = domain, .wanted = op};
    wefti_text_t others;
    weft_status_t status;
    wefti_onnx_node_label(node, index, label);
    lowest_t lowest = {.domain = domain, .op = op};
    weft_op_registry_visit(registry, visit_lowest, &lowest);
    wefti_text_init(&others, file->allocator);
    wefti_onnx_add_unknown(file, node, registry, &others);
    const char *also = others.data != NULL ? others.data : "";
    if (lowest.version != 0) {
        status = wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "%s: %s: operator %s needs opset %d or newer, the model imports %lld%s", file->label,
            label, op, lowest.version, (long long)wefti_onnx_opset(file->model, domain), also);
        goto done;
    }
    weft_op_registry_visit(registry, visit_near, &near);
    for (uint32_t i = 0, used = 0; i < near.count && used < sizeof(names); i++) {
        used += (uint32_t)snprintf(names + used, sizeof(names) - used, "%s%s", i == 0 ? "" : ", ",
                                   near.names[i]);
    }
    status = wefti_error(
        WEFT_ERR_UNSUPPORTED,
        "%s: %s: unsupported operator %s%s%.80s%s%s%s%s; 'weft ops' lists the supported ones",
        file->label, label, domain, domain[0] != '\0' ? "::" : "", op,
        near.count > 0 ? " (did you mean " : "", names, near.count > 0 ? "?)" : "", also);
done:
    wefti_text_deinit(&others);
    return status;
}

weft_status_t wefti_onnx_value_type(const wefti_onnx_file_t *file, const Onnx__ValueInfoProto *info,
                                    const char *what, weft_tensor_desc_t *out_type,
                                    const char **out_dim_names)
{
    const char *name = info->name != NULL ? info->name : "";
    const Onnx__TypeProto *type = info->type;
    if (type == NULL || type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
        type->tensor_type == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s '%s': not a tensor", file->label, what,
                           name);
    }
    const Onnx__TensorShapeProto *shape = type->tensor_type->shape;
    *out_type = (weft_tensor_desc_t){.dtype = wefti_onnx_dtype(type->tensor_type->elem_type)};
    if (out_type->dtype == WEFT_DTYPE_NONE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s '%s': unsupported element type %d",
                           file->label, what, name, type->tensor_type->elem_type);
    }
    if (shape == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: %s '%s': missing shape; dimensions may be symbolic", file->label,
                           what, name);
    }
    if (shape->n_dim > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %s '%s': too many dimensions: %zu, limit %d",
                           file->label, what, name, shape->n_dim, WEFT_MAX_DIMS);
    }
    out_type->rank = (uint32_t)shape->n_dim;
    for (uint32_t i = 0; i < out_type->rank; i++) {
        const Onnx__TensorShapeProto__Dimension *dim = shape->dim[i];
        bool fixed = dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        bool named = dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM &&
                     dim->dim_param != NULL && dim->dim_param[0] != '\0';
        out_type->dims[i] = fixed ? dim->dim_value : -1;
        out_dim_names[i] = named ? dim->dim_param : NULL;
        if (fixed && dim->dim_value < 0) {
            return wefti_error(WEFT_ERR_FORMAT, "%s: %s '%s': dimension %u is negative: %lld",
                               file->label, what, name, i, (long long)dim->dim_value);
        }
    }
    /* An overflow of the known dimensions is an error here, so later code does not check. */
    size_t count = 1;
    for (uint32_t i = 0; i < out_type->rank; i++) {
        size_t dim = out_type->dims[i] > 0 ? (size_t)out_type->dims[i] : 1;
        if (!wefti_mul_size(count, dim, &count) || count > INT64_MAX / 8) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "%s: %s '%s': too large: number of elements overflows", file->label,
                               what, name);
        }
    }
    return WEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tools of the gradient rules: emit nodes, add up contributions, make constants. */
#include <stdio.h>
#include <string.h>

#include "graph/autodiff/differentiate.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

uint32_t wefti_diff_input(const wefti_diff_t *diff, uint32_t index)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    return index < node->input_count ? node->inputs[index] : WEFTI_NONE;
}

uint32_t wefti_diff_output(const wefti_diff_t *diff, uint32_t index)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    return index < node->output_count ? node->outputs[index] : WEFTI_NONE;
}

uint32_t wefti_diff_output_grad(const wefti_diff_t *diff, uint32_t index)
{
    uint32_t value = wefti_diff_output(diff, index);
    return value < diff->forward_value_count ? diff->grads[value] : WEFTI_NONE;
}

bool wefti_diff_wants(const wefti_diff_t *diff, uint32_t index)
{
    uint32_t value = wefti_diff_input(diff, index);
    return value < diff->forward_value_count && diff->wanted[value];
}

weft_status_t wefti_diff_each_input(wefti_diff_t *diff,
                                    weft_status_t (*rule)(wefti_diff_t *diff, uint32_t index))
{
    uint32_t count = wefti_diff_node(diff)->input_count;
    for (int params = 1; params >= 0; params--) {
        for (uint32_t i = 0; i < count; i++) {
            if (wefti_diff_wants(diff, i) && (diff->graph->values[wefti_diff_input(diff, i)].kind ==
                                              WEFTI_VALUE_PARAM) == params) {
                WEFT_RETURN_IF_ERROR(rule(diff, i));
            }
        }
    }
    return WEFT_OK;
}

/* Appends a backward node. */
static weft_status_t emit(wefti_diff_t *diff, const wefti_diff_op_t *op, uint32_t *out_node)
{
    char name[300];
    snprintf(name, sizeof(name), "%.280s/grad", wefti_diff_node(diff)->name);
    wefti_node_params_t params = {.domain = op->domain,
                                  .op = op->op,
                                  .name = name,
                                  .phase = WEFTI_PHASE_BACKWARD,
                                  .inputs = op->inputs,
                                  .input_count = op->input_count,
                                  .output_count = op->output_count ? op->output_count : 1,
                                  .output_absent = op->output_absent,
                                  .attrs = op->attrs,
                                  .attr_count = op->attr_count};
    return wefti_graph_add_node(diff->graph, &params, out_node);
}

weft_status_t wefti_diff_emit_value(wefti_diff_t *diff, const wefti_diff_op_t *op,
                                    uint32_t *out_value)
{
    uint32_t node;
    weft_status_t status = emit(diff, op, &node);
    if (status >= 0) {
        const uint32_t *output = diff->graph->nodes[node].outputs;
        while (*output == WEFTI_NONE) {
            output++;
        }
        *out_value = *output;
    }
    return status;
}

static bool has_shape(const weft_tensor_desc_t *type, const int64_t *dims, uint32_t rank)
{
    return type->rank == rank && memcmp(type->dims, dims, rank * sizeof(*dims)) == 0;
}

weft_status_t wefti_diff_give(wefti_diff_t *diff, uint32_t index, uint32_t grad)
{
    wefti_graph_t *graph = diff->graph;
    uint32_t value = wefti_diff_input(diff, index);
    bool passed_on = false; /* grad is the gradient of an output */
    if (!wefti_diff_wants(diff, index)) {
        return WEFT_OK;
    }
    weft_tensor_desc_t type = graph->values[value].type;
    WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, grad, type.dims, type.rank, &grad));
    if (!has_shape(&graph->values[grad].type, type.dims, type.rank)) {
        char texts[2][WEFTI_TYPE_TEXT_BYTES];
        return wefti_error(WEFT_ERR_INTERNAL,
                           "node '%s' (%s): wrong shape of the gradient of '%s': %s, expected %s",
                           wefti_diff_node(diff)->name, wefti_diff_node(diff)->def->name,
                           graph->values[value].name,
                           wefti_type_text(&graph->values[grad].type, texts[0]),
                           wefti_type_text(&type, texts[1]));
    }
    for (uint32_t k = 0; k < wefti_diff_node(diff)->output_count; k++) {
        passed_on = passed_on || wefti_diff_output_grad(diff, k) == grad;
    }
    if (diff->grads[value] != WEFTI_NONE) {
        uint32_t inputs[] = {diff->grads[value], grad};
        wefti_diff_op_t add = {.domain = "", .op = "Add", .inputs = inputs, .input_count = 2};
        WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &add, &grad));
    } else if (passed_on && graph->values[value].kind == WEFTI_VALUE_PARAM) {
        /* The gradient of a parameter is reduced in place: it must have no other reader. */
        wefti_diff_op_t copy = {.domain = "", .op = "Identity", .inputs = &grad, .input_count = 1};
        WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &copy, &grad));
    }
    diff->grads[value] = grad;
    return WEFT_OK;
}

weft_status_t wefti_diff_give_op(wefti_diff_t *diff, uint32_t index, const wefti_diff_op_t *op)
{
    uint32_t grad;
    if (!wefti_diff_wants(diff, index)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, op, &grad));
    return wefti_diff_give(diff, index, grad);
}

weft_status_t wefti_diff_give_each(wefti_diff_t *diff, wefti_diff_op_t *op)
{
    bool any = false;
    uint32_t node;
    bool *absent = wefti_arena_array(&diff->graph->arena, op->output_count, sizeof(*absent));
    WEFT_RETURN_IF_NO_MEMORY(absent);
    for (uint32_t i = 0; i < op->output_count; i++) {
        absent[i] = !wefti_diff_wants(diff, i);
        any = any || !absent[i];
    }
    op->output_absent = absent;
    const weft_op_def_t *def =
        weft_registry_find_op(diff->graph->registry, op->domain, op->op, INT32_MAX);
    while (def != NULL && op->output_count > def->outputs_min && absent[op->output_count - 1]) {
        op->output_count--; /* as import of a compiled graph has it */
    }
    if (any) {
        WEFT_RETURN_IF_ERROR(emit(diff, op, &node));
    }
    for (uint32_t i = 0; i < op->output_count && any; i++) {
        WEFT_RETURN_IF_ERROR(wefti_diff_give(diff, i, diff->graph->nodes[node].outputs[i]));
    }
    return WEFT_OK;
}

weft_status_t wefti_diff_ints(wefti_diff_t *diff, const char *name, const int64_t *list,
                              uint32_t count, uint32_t *out_value)
{
    char full[300];
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {count}};
    type.data = wefti_arena_memdup(&diff->graph->arena, list, count * sizeof(*list));
    WEFT_RETURN_IF_NO_MEMORY(type.data);
    snprintf(full, sizeof(full), "%.280s/%s", wefti_diff_node(diff)->name, name);
    return wefti_graph_add_value(diff->graph, full, WEFTI_VALUE_CONST, &type, out_value);
}

weft_status_t wefti_diff_reshape(wefti_diff_t *diff, uint32_t value, const int64_t *dims,
                                 uint32_t rank, uint32_t *out_value)
{
    wefti_graph_t *graph = diff->graph;
    if (has_shape(&graph->values[value].type, dims, rank)) {
        *out_value = value;
        return WEFT_OK;
    }
    uint32_t inputs[] = {value, WEFTI_NONE};
    WEFT_RETURN_IF_ERROR(wefti_diff_ints(diff, "shape", dims, rank, &inputs[1]));
    wefti_diff_op_t op = {.domain = "", .op = "Reshape", .inputs = inputs, .input_count = 2};
    return wefti_diff_emit_value(diff, &op, out_value);
}

weft_status_t wefti_diff_sum_to(wefti_diff_t *diff, uint32_t value, const int64_t *dims,
                                uint32_t rank, uint32_t *out_value)
{
    if (has_shape(&diff->graph->values[value].type, dims, rank)) {
        *out_value = value;
        return WEFT_OK;
    }
    weft_attr_t shape = {.name = "shape", .type = WEFT_ATTR_TYPE_INTS, .ints = dims, .count = rank};
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "SumTo",
                          .inputs = &value,
                          .input_count = 1,
                          .attrs = &shape,
                          .attr_count = 1};
    return wefti_diff_emit_value(diff, &op, out_value);
}

/* One element of a floating type, rounded to it. */
static weft_status_t encode(double number, weft_dtype_t dtype, void *out)
{
    const float f32 = (float)number;
    const uint16_t half =
        dtype == WEFT_DTYPE_BF16 ? wefti_bf16_from_f32(f32) : wefti_f16_from_f32(f32);
    if (!wefti_dtype_is_floating(dtype)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "cannot encode constant %g as type %s", number,
                           weft_dtype_name(dtype));
    }
    memcpy(out,
           dtype == WEFT_DTYPE_F64   ? (const void *)&number
           : dtype == WEFT_DTYPE_F32 ? (const void *)&f32
                                     : &half,
           weft_dtype_size_bytes(dtype));
    return WEFT_OK;
}

weft_status_t wefti_diff_constant(wefti_graph_t *graph, const char *name,
                                  const weft_tensor_desc_t *like, double number,
                                  uint32_t *out_value)
{
    weft_tensor_desc_t type = *like;
    size_t elem_bytes = weft_dtype_size_bytes(type.dtype);
    int64_t count = weft_tensor_elem_count(&type);
    uint8_t *data = count < 0 ? NULL : wefti_arena_array(&graph->arena, (size_t)count, elem_bytes);
    WEFT_RETURN_IF_NO_MEMORY(data);
    for (int64_t i = 0; i < count; i++) {
        WEFT_RETURN_IF_ERROR(encode(number, type.dtype, data + (size_t)i * elem_bytes));
    }
    type.data = data;
    type.layout = WEFT_LAYOUT_PLAIN;
    return wefti_graph_add_value(graph, name, WEFTI_VALUE_CONST, &type, out_value);
}

weft_status_t wefti_diff_scale(wefti_diff_t *diff, uint32_t value, double factor,
                               uint32_t *out_value)
{
    char name[300];
    uint32_t inputs[] = {value, WEFTI_NONE};
    if (factor == 1.0) {
        *out_value = value;
        return WEFT_OK;
    }
    weft_tensor_desc_t scalar = {.dtype = diff->graph->values[value].type.dtype};
    snprintf(name, sizeof(name), "%.280s/factor", wefti_diff_node(diff)->name);
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, name, &scalar, factor, &inputs[1]));
    wefti_diff_op_t op = {.domain = "", .op = "Mul", .inputs = inputs, .input_count = 2};
    return wefti_diff_emit_value(diff, &op, out_value);
}

weft_status_t wefti_diff_two(wefti_diff_t *diff, const char *op, uint32_t a, uint32_t b,
                             uint32_t *out_value)
{
    uint32_t inputs[] = {a, b};
    wefti_diff_op_t node = {
        .domain = "", .op = op, .inputs = inputs, .input_count = b == WEFTI_NONE ? 1 : 2};
    return wefti_diff_emit_value(diff, &node, out_value);
}

weft_status_t wefti_diff_choose(wefti_diff_t *diff, uint32_t condition, uint32_t a, uint32_t b,
                                uint32_t *out_value)
{
    uint32_t inputs[] = {condition, a, b};
    wefti_diff_op_t node = {.domain = "", .op = "Where", .inputs = inputs, .input_count = 3};
    return wefti_diff_emit_value(diff, &node, out_value);
}

weft_status_t wefti_diff_zero_like(wefti_diff_t *diff, uint32_t value, uint32_t *out_value)
{
    const weft_tensor_desc_t scalar = {.dtype = diff->graph->values[value].type.dtype};
    return wefti_diff_constant(diff->graph, "zero", &scalar, 0.0, out_value);
}

weft_status_t wefti_diff_equal(wefti_diff_t *diff, uint32_t a, uint32_t b, uint32_t *out_condition,
                               uint32_t *out_one)
{
    const weft_tensor_desc_t scalar = {.dtype = diff->graph->values[a].type.dtype};
    uint32_t zero, one;
    WEFT_RETURN_IF_ERROR(wefti_diff_zero_like(diff, a, &zero));
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, "one", &scalar, 1.0, &one));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Equal", a, b, out_condition));
    return wefti_diff_choose(diff, *out_condition, one, zero, out_one);
}

weft_status_t wefti_diff_factor(wefti_diff_t *diff, uint32_t value, wefti_diff_factor_t *out)
{
    uint32_t zero, condition;
    WEFT_RETURN_IF_ERROR(wefti_diff_zero_like(diff, value, &zero));
    WEFT_RETURN_IF_ERROR(wefti_diff_equal(diff, value, zero, &condition, &out->is_zero));
    return wefti_diff_choose(diff, condition, out->is_zero, value, &out->other);
}

weft_status_t wefti_diff_give_factor(wefti_diff_t *diff, uint32_t index,
                                     const wefti_diff_factor_t *factor, uint32_t grad,
                                     uint32_t zeros)
{
    uint32_t zero, alone;
    WEFT_RETURN_IF_ERROR(wefti_diff_zero_like(diff, grad, &zero));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Equal", zeros, factor->is_zero, &alone));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Div", grad, factor->other, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, alone, grad, zero, &grad));
    return wefti_diff_give(diff, index, grad);
}

weft_status_t wefti_diff_unsupported(const wefti_diff_t *diff, const char *what)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    return wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (%s): no gradient rule for %s", node->name,
                       node->def->name, what);
}

weft_status_t wefti_diff_attrs_with(wefti_diff_t *diff, const weft_attr_t *more,
                                    const weft_attr_t **out_attrs, uint32_t *out_count)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    weft_attr_t *attrs =
        wefti_arena_array(&diff->graph->arena, (size_t)node->attr_count + 1, sizeof(*attrs));
    WEFT_RETURN_IF_NO_MEMORY(attrs);
    memcpy(attrs, node->attrs, node->attr_count * sizeof(*attrs));
    attrs[node->attr_count] = *more;
    *out_attrs = attrs;
    *out_count = node->attr_count + 1;
    return WEFT_OK;
}

weft_status_t wefti_diff_need_output(wefti_diff_t *diff, const char *domain, const char *op,
                                     uint32_t index, uint32_t *out_value)
{
    wefti_node_t *node = wefti_diff_node(diff);
    while (node->output_count && node->output_count > index &&
           node->outputs[node->output_count - 1] == WEFTI_NONE) {
        node->output_count--; /* named but absent: added below */
    }
    uint32_t extra = node->output_count > index ? 0 : index + 1 - node->output_count;
    weft_status_t status = wefti_graph_change_op(diff->graph, diff->node, domain, op, extra);
    if (status >= 0) {
        *out_value = wefti_diff_node(diff)->outputs[index];
    }
    return status;
}

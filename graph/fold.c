/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constant folding, mostly of the shape arithmetic that exporters write. Every rule reads and
 * writes single elements, so that all types share one code; results are small, and their sum is
 * bounded.
 */
#include <math.h>
#include <string.h>

#include "graph/ir.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define RESULT_MAX_ELEMS 4096
#define DIMS_PRODUCT_MAX ((int64_t)1 << 31)

/* An element: integers and booleans in i, floats in f. */
typedef union number {
    int64_t i;
    double f;
} number_t;

typedef struct folding {
    const wefti_graph_t *graph;
    const wefti_node_t *node;
    weft_node_desc_t desc;
    weft_tensor_desc_t *out;
    uint8_t *result;
    int64_t count; /* elements of the result */
} folding_t;

/* Writes the result; false: not a case for folding. */
typedef bool (*fold_fn)(folding_t *fold);

static bool is_float(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64;
}

static bool can_read(weft_dtype_t dtype)
{
    return is_float(dtype) || dtype == WEFT_DTYPE_I64 || dtype == WEFT_DTYPE_I32 ||
           dtype == WEFT_DTYPE_BOOL;
}

/* Products of any of the dimensions stay far from overflow, also where another one is 0. */
static bool is_small(const weft_tensor_desc_t *type)
{
    int64_t product = 1;
    for (uint32_t d = 0; d < type->rank; d++) {
        if (type->dims[d] < 0 || type->dims[d] > DIMS_PRODUCT_MAX) {
            return false;
        }
        product *= type->dims[d] ? type->dims[d] : 1;
        if (product > DIMS_PRODUCT_MAX) {
            return false;
        }
    }
    return true;
}

static number_t get(const weft_tensor_desc_t *tensor, int64_t index)
{
    size_t bytes = weft_dtype_size_bytes(tensor->dtype);
    const uint8_t *at = (const uint8_t *)tensor->data + (size_t)index * bytes;
    number_t number = {0};
    float f32;
    int32_t i32;
    switch (tensor->dtype) {
    case WEFT_DTYPE_F64:
        memcpy(&number.f, at, sizeof(number.f));
        break;
    case WEFT_DTYPE_F32:
        memcpy(&f32, at, sizeof(f32));
        number.f = (double)f32;
        break;
    case WEFT_DTYPE_I64:
        memcpy(&number.i, at, sizeof(number.i));
        break;
    case WEFT_DTYPE_I32:
        memcpy(&i32, at, sizeof(i32));
        number.i = i32;
        break;
    default:
        number.i = *at != 0;
        break;
    }
    return number;
}

/* False when the number does not fit the type. */
static bool put(folding_t *fold, int64_t index, number_t number)
{
    uint8_t *at = fold->result + (size_t)index * weft_dtype_size_bytes(fold->out->dtype);
    float f32;
    int32_t i32;
    switch (fold->out->dtype) {
    case WEFT_DTYPE_F64:
        memcpy(at, &number.f, sizeof(number.f));
        return true;
    case WEFT_DTYPE_F32:
        f32 = (float)number.f;
        memcpy(at, &f32, sizeof(f32));
        return true;
    case WEFT_DTYPE_I64:
        memcpy(at, &number.i, sizeof(number.i));
        return true;
    case WEFT_DTYPE_I32:
        i32 = (int32_t)number.i;
        memcpy(at, &i32, sizeof(i32));
        return i32 == number.i;
    default:
        *at = number.i != 0;
        return true;
    }
}

static bool fold_copy(folding_t *fold)
{
    const weft_tensor_desc_t *x = &fold->desc.inputs[0];
    if (x->dtype != fold->out->dtype || weft_tensor_elem_count(x) != fold->count) {
        return false;
    }
    memcpy(fold->result, x->data, (size_t)fold->count * weft_dtype_size_bytes(x->dtype));
    return true;
}

static bool fold_shape(folding_t *fold)
{
    const weft_tensor_desc_t *x = &fold->desc.inputs[0];
    int64_t start = weft_node_attr_int(&fold->desc, "start", 0);
    start = start < 0 ? start + x->rank : start;
    start = start < 0 ? 0 : start;
    for (int64_t i = 0; i < fold->count; i++) {
        if (start + i >= x->rank || x->dims[start + i] < 0) {
            return false;
        }
        put(fold, i, (number_t){.i = x->dims[start + i]});
    }
    return true;
}

static bool fold_constant(folding_t *fold)
{
    const weft_attr_t *attr;
    for (int64_t i = 0; i < fold->count; i++) {
        number_t number = {0};
        if ((attr = weft_node_attr(&fold->desc, "value_float"))) {
            number.f = (double)attr->f;
        } else if ((attr = weft_node_attr(&fold->desc, "value_int"))) {
            number.i = attr->i;
        } else if ((attr = weft_node_attr(&fold->desc, "value_floats"))) {
            number.f = (double)attr->floats[i];
        } else if ((attr = weft_node_attr(&fold->desc, "value_ints"))) {
            number.i = attr->ints[i];
        } else {
            return false;
        }
        put(fold, i, number);
    }
    return true;
}

static bool fold_cast(folding_t *fold)
{
    const weft_tensor_desc_t *x = &fold->desc.inputs[0];
    bool from_float = is_float(x->dtype), to_float = is_float(fold->out->dtype);
    for (int64_t i = 0; i < fold->count; i++) {
        number_t from = get(x, i), to = from;
        if (from_float && !to_float) {
            if (fold->out->dtype == WEFT_DTYPE_BOOL) {
                to.i = from.f != 0.0;
            } else if (fabs(from.f) < 9e18) {
                to.i = (int64_t)from.f;
            } else {
                return false;
            }
        } else if (!from_float && to_float) {
            to.f = (double)from.i;
        }
        if (!put(fold, i, to)) {
            return false;
        }
    }
    return true;
}

/* The number of elements before, at and behind an axis. */
static void split_at(const weft_tensor_desc_t *x, uint32_t axis, int64_t *outer, int64_t *length,
                     int64_t *inner)
{
    *outer = *inner = 1;
    for (uint32_t d = 0; d < x->rank; d++) {
        *outer *= d < axis ? x->dims[d] : 1;
        *inner *= d > axis ? x->dims[d] : 1;
    }
    *length = x->dims[axis];
}

static bool fold_gather(folding_t *fold)
{
    const weft_tensor_desc_t *x = &fold->desc.inputs[0], *indices = &fold->desc.inputs[1];
    int64_t outer, length, inner, index_count = weft_tensor_elem_count(indices);
    uint32_t axis;
    if (wefti_infer_axis(weft_node_attr_int(&fold->desc, "axis", 0), x->rank, "axis", &axis) < 0) {
        return false;
    }
    split_at(x, axis, &outer, &length, &inner);
    for (int64_t at = 0; at < fold->count; at++) {
        int64_t index = get(indices, at / inner % index_count).i;
        index = index < 0 ? index + length : index;
        if (index < 0 || index >= length) {
            return false; /* the kernel's business to complain about */
        }
        int64_t block = at / inner / index_count;
        put(fold, at, get(x, (block * length + index) * inner + at % inner));
    }
    return true;
}

static bool fold_concat(folding_t *fold)
{
    uint32_t axis;
    int64_t outer, total, inner, before = 0;
    if (wefti_infer_axis(weft_node_attr_int(&fold->desc, "axis", 1), fold->out->rank, "axis",
                         &axis) < 0) {
        return false;
    }
    split_at(fold->out, axis, &outer, &total, &inner);
    for (uint32_t k = 0; k < fold->desc.input_count; k++) {
        const weft_tensor_desc_t *x = &fold->desc.inputs[k];
        int64_t length = x->dims[axis] * inner;
        for (int64_t i = 0; i < outer * length; i++) {
            put(fold, i / length * total * inner + before + i % length, get(x, i));
        }
        before += length;
    }
    return true;
}

/* starts, ends, axes and steps are attributes before opset 10 and inputs since. */
static bool slice_list(const folding_t *fold, uint32_t input, const char *name, int64_t *list,
                       uint32_t *count)
{
    *count = 0;
    if (fold->desc.version < 10) {
        return wefti_attr_ints(&fold->desc, name, list, WEFT_MAX_DIMS, count) >= 0;
    }
    const weft_tensor_desc_t *given = wefti_infer_input(&fold->desc, input);
    return !given || wefti_const_ints(given, list, WEFT_MAX_DIMS, count);
}

static bool fold_slice(folding_t *fold)
{
    const weft_tensor_desc_t *x = &fold->desc.inputs[0];
    int64_t starts[WEFT_MAX_DIMS], axes[WEFT_MAX_DIMS], steps[WEFT_MAX_DIMS];
    int64_t first[WEFT_MAX_DIMS] = {0}, step[WEFT_MAX_DIMS];
    uint32_t start_count, axis_count, step_count;
    if (!slice_list(fold, 1, "starts", starts, &start_count) ||
        !slice_list(fold, 3, "axes", axes, &axis_count) ||
        !slice_list(fold, 4, "steps", steps, &step_count)) {
        return false;
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        step[d] = 1;
    }
    for (uint32_t i = 0; i < start_count; i++) {
        uint32_t d;
        if (wefti_infer_axis(i < axis_count ? axes[i] : (int64_t)i, x->rank, "axis", &d) < 0) {
            return false;
        }
        step[d] = i < step_count ? steps[i] : 1;
        int64_t last = step[d] < 0 ? x->dims[d] - 1 : x->dims[d];
        int64_t start = starts[i] < 0 ? starts[i] + x->dims[d] : starts[i];
        first[d] = start < 0 ? 0 : start > last ? last : start;
    }
    for (int64_t at = 0; at < fold->count; at++) {
        int64_t rest = at, from = 0, stride = 1;
        for (uint32_t d = x->rank; d-- > 0;) {
            from += (first[d] + rest % fold->out->dims[d] * step[d]) * stride;
            rest /= fold->out->dims[d];
            stride *= x->dims[d];
        }
        if (from < 0 || from >= stride) {
            return false;
        }
        put(fold, at, get(x, from));
    }
    return true;
}

/* Index into a broadcast operand for element at of the result. */
static int64_t broadcast_index(const weft_tensor_desc_t *out, const weft_tensor_desc_t *x,
                               int64_t at)
{
    int64_t index = 0, stride = 1;
    for (uint32_t i = 0; i < out->rank && i < x->rank; i++) { /* from the last dimension */
        int64_t size = x->dims[x->rank - 1 - i], out_size = out->dims[out->rank - 1 - i];
        index += size == 1 ? 0 : at % out_size * stride;
        at /= out_size;
        stride *= size;
    }
    return index;
}

/* False when the result is not defined. */
static bool integer_op(char op, int64_t a, int64_t b, int64_t *out)
{
    switch (op) {
    case '+':
        return !__builtin_add_overflow(a, b, out);
    case '-':
        return !__builtin_sub_overflow(a, b, out);
    case '*':
        return !__builtin_mul_overflow(a, b, out);
    default:
        if (b == 0 || (a == INT64_MIN && b == -1)) {
            return false;
        }
        *out = a / b;
        return true;
    }
}

static double float_op(char op, double a, double b)
{
    return op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
}

static bool fold_arithmetic(folding_t *fold)
{
    const weft_tensor_desc_t *a = &fold->desc.inputs[0], *b = &fold->desc.inputs[1];
    const char *name = fold->desc.op;
    char op = name[0] == 'A' ? '+' : name[0] == 'S' ? '-' : name[0] == 'M' ? '*' : '/';
    for (int64_t at = 0; at < fold->count; at++) {
        number_t x = get(a, broadcast_index(fold->out, a, at)),
                 y = get(b, broadcast_index(fold->out, b, at));
        number_t z = {0};
        if (is_float(fold->out->dtype)) {
            z.f = float_op(op, x.f, y.f);
        } else if (!integer_op(op, x.i, y.i, &z.i)) {
            return false;
        }
        if (!put(fold, at, z)) {
            return false;
        }
    }
    return true;
}

static const struct fold_rule {
    const char *op;
    fold_fn fold;
} rules[] = {
    {"Constant", fold_constant}, {"Shape", fold_shape},    {"Gather", fold_gather},
    {"Slice", fold_slice},       {"Concat", fold_concat},  {"Unsqueeze", fold_copy},
    {"Squeeze", fold_copy},      {"Reshape", fold_copy},   {"Flatten", fold_copy},
    {"Identity", fold_copy},     {"Cast", fold_cast},      {"Add", fold_arithmetic},
    {"Sub", fold_arithmetic},    {"Mul", fold_arithmetic}, {"Div", fold_arithmetic},
};

static fold_fn find_rule(const weft_op_def_t *def)
{
    for (size_t i = 0; *def->domain == '\0' && i < WEFTI_COUNT(rules); i++) {
        if (strcmp(rules[i].op, def->name) == 0) {
            return rules[i].fold;
        }
    }
    return NULL;
}

/* Constants of readable types; Shape needs its input's shape only. */
static bool inputs_constant(const folding_t *fold, bool shape_only)
{
    for (uint32_t i = 0; i < fold->node->input_count; i++) {
        uint32_t id = fold->node->inputs[i];
        if (id == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *value = &fold->graph->values[id];
        bool constant = value->kind == WEFTI_VALUE_CONST && value->type.data &&
                        can_read(value->type.dtype) && weft_tensor_elem_count(&value->type) >= 0;
        if (!shape_only && !constant) {
            return false;
        }
    }
    return true;
}

static void become_constant(wefti_graph_t *graph, uint32_t node, const void *data)
{
    wefti_value_t *value = &graph->values[graph->nodes[node].outputs[0]];
    value->kind = WEFTI_VALUE_CONST;
    value->producer = value->producer_output = WEFTI_NONE;
    value->type.data = data;
    graph->nodes[node].dead = true;
}

weft_status_t wefti_graph_fold_node(wefti_graph_t *graph, uint32_t node, size_t *budget_bytes,
                                    bool *out_folded)
{
    const wefti_node_t *at = &graph->nodes[node];
    folding_t fold = {.graph = graph, .node = at};
    fold_fn rule = find_rule(at->def);
    *out_folded = false;
    if (!rule || at->output_count != 1 || at->outputs[0] == WEFTI_NONE ||
        !inputs_constant(&fold, rule == fold_shape)) {
        return WEFT_OK;
    }
    fold.out = &graph->values[at->outputs[0]].type;
    fold.count = weft_tensor_elem_count(fold.out);
    const weft_attr_t *value = wefti_node_attr(at, "value");
    if (rule == fold_constant && value && value->type == WEFT_ATTR_TENSOR && value->tensor->data) {
        become_constant(graph, node,
                        value->tensor->data); /* of any size and type: nothing is copied */
        *out_folded = true;
        return WEFT_OK;
    }
    size_t bytes = fold.count < 0 ? 0 : (size_t)fold.count * weft_dtype_size_bytes(fold.out->dtype);
    if (!is_small(fold.out) || fold.count > RESULT_MAX_ELEMS || bytes > *budget_bytes ||
        !can_read(fold.out->dtype)) {
        return WEFT_OK;
    }
    weft_tensor_desc_t *scratch =
        graph->scratch; /* made large enough by the inference that ran before */
    if (graph->scratch_capacity < (size_t)at->input_count + at->output_count) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < at->input_count; i++) {
        scratch[i] = at->inputs[i] == WEFTI_NONE ? (weft_tensor_desc_t){0}
                                                 : graph->values[at->inputs[i]].type;
    }
    fold.desc = (weft_node_desc_t){.domain = at->def->domain,
                                   .op = at->def->name,
                                   .version = at->version,
                                   .name = at->name,
                                   .input_count = at->input_count,
                                   .inputs = scratch,
                                   .attr_count = at->attr_count,
                                   .attrs = at->attrs};
    fold.result = wefti_arena_alloc(&graph->arena, bytes);
    if (!fold.result) {
        return WEFT_ERR_NO_MEMORY;
    }
    *budget_bytes -= bytes;
    if (rule(&fold)) {
        become_constant(graph, node, fold.result);
        *out_folded = true;
    }
    return WEFT_OK;
}

weft_status_t wefti_graph_fold_constants(wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    size_t budget_bytes = WEFTI_FOLD_BUDGET_BYTES;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        bool folded;
        WEFT_TRY(status, wefti_graph_infer_node(graph, graph->order[i]), done);
        WEFT_TRY(status, wefti_graph_fold_node(graph, graph->order[i], &budget_bytes, &folded),
                 done);
    }
done:
    wefti_graph_compact_order(graph);
    return status;
}

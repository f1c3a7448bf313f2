/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of ONNX Runtime's training graphs as those of Weft and of ONNX. */
#include "graph/expand.h"

/* An operator of domain weft, with one output. */
static uint32_t weft(expander_t *e, const char *op, const uint32_t *inputs, uint32_t count,
                     const weft_attr_t *attrs, uint32_t attr_count)
{
    return add_node(e, &(const wefti_node_params_t){.domain = "weft",
                                                    .op = op,
                                                    .inputs = inputs,
                                                    .input_count = count,
                                                    .output_count = 1,
                                                    .attrs = attrs,
                                                    .attr_count = attr_count});
}

static uint32_t zeros(expander_t *e, const weft_tensor_desc_t *like)
{
    const weft_tensor_desc_t type = {.dtype = like->dtype};
    const double zero = 0.0;
    uint32_t number = constant(e, &type, &zero, weft_dtype_size_bytes(type.dtype));
    return two(e, "Expand", number, ints(e, like->dims, like->rank));
}

static uint32_t unsupported(expander_t *e, const char *what)
{
    if (e->status >= 0) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED, "%s", what);
    }
    return 0;
}

static weft_tensor_desc_t output_type(const expander_t *e, uint32_t index)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    return type_of(e, node->outputs[index]);
}

static bool wants(const expander_t *e, uint32_t index)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    return index < node->output_count && node->outputs[index] != NONE;
}

/* The operator of result_grad with the same inputs, outputs and, if it has any, attributes. */
static uint32_t same(expander_t *e)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    const weft_op_ref_t op = wefti_op_facts(node->def).result_grad;
    bool absent[WEFT_MAX_DIMS];
    uint32_t first = 0, count = node->output_count < WEFT_MAX_DIMS ? node->output_count : 1;
    for (uint32_t i = 0; i < count; i++) {
        absent[i] = node->outputs[i] == NONE;
    }
    while (first + 1 < count && absent[first]) {
        first++;
    }
    const wefti_node_params_t params = {.domain = op.domain,
                                        .op = op.name,
                                        .inputs = node->inputs,
                                        .input_count = node->input_count,
                                        .output_count = count,
                                        .output_absent = absent,
                                        .attrs = node->attrs,
                                        .attr_count = node->attr_count};
    add_node(e, &params);
    for (uint32_t i = 1; i < count && e->status >= 0; i++) {
        wefti_expand_take(e, i, e->last, i);
    }
    return e->status < 0 ? 0 : e->graph->nodes[e->last].outputs[first];
}

/* dX is like the first operand of the forward operator, seen as a matrix. */
static uint32_t flat_softmax_grad(expander_t *e)
{
    const weft_tensor_desc_t x = type_of(e, input(e, 0));
    int64_t axis = int_attr(e, "axis"), matrix[] = {1, -1};
    axis = axis < 0 ? axis + x.rank : axis;
    for (int64_t d = 0; d < axis && d < x.rank; d++) {
        matrix[0] *= x.dims[d];
    }
    const weft_op_ref_t op = wefti_op_facts(e->graph->nodes[e->node].def).result_grad;
    const uint32_t in[] = {reshape(e, input(e, 0), matrix, 2), reshape(e, input(e, 1), matrix, 2)};
    return reshape(e, weft(e, op.name, in, 2, NULL, 0), x.dims, x.rank);
}

static uint32_t slope_of_gelu(expander_t *e, const char *approximate)
{
    const weft_attr_t attr = {
        .name = "approximate", .type = WEFT_ATTR_TYPE_STRING, .s = approximate};
    uint32_t x = input(e, 2) != NONE ? two(e, "Add", input(e, 1), input(e, 2)) : input(e, 1);
    const uint32_t in[] = {input(e, 0), x};
    return weft(e, "GeluGrad", in, 2, &attr, 1);
}

static uint32_t gelu_grad(expander_t *e)
{
    return slope_of_gelu(e, "none");
}

static uint32_t fast_gelu_grad(expander_t *e)
{
    return slope_of_gelu(e, "tanh");
}

static uint32_t gather_grad(expander_t *e)
{
    const weft_tensor_desc_t x = output_type(e, 0);
    const uint32_t in[] = {input(e, 2), input(e, 1)};
    const weft_attr_t attrs[] = {
        {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = int_attr(e, "axis")},
        {.name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .ints = x.dims, .count = x.rank}};
    return weft(e, "GatherGrad", in, 2, attrs, 2);
}

/* Zeros to which updates are added in order. */
static uint32_t scatter(expander_t *e, const char *op, const weft_tensor_desc_t *x,
                        uint32_t indices, uint32_t updates, const weft_attr_t *axis)
{
    const uint32_t in[] = {zeros(e, x), indices, updates};
    weft_attr_t attrs[2] = {{.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "add"}};
    if (axis != NULL) {
        attrs[1] = *axis;
    }
    return add_node(e, &(const wefti_node_params_t){.domain = "",
                                                    .op = op,
                                                    .inputs = in,
                                                    .input_count = 3,
                                                    .output_count = 1,
                                                    .attrs = attrs,
                                                    .attr_count = axis != NULL ? 2 : 1});
}

static uint32_t gather_elements_grad(expander_t *e)
{
    const weft_tensor_desc_t x = output_type(e, 0);
    const weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = int_attr(e, "axis")};
    return scatter(e, "ScatterElements", &x, input(e, 2), input(e, 0), &axis);
}

static uint32_t gather_nd_grad(expander_t *e)
{
    const weft_tensor_desc_t x = output_type(e, 0);
    return int_attr(e, "batch_dims") != 0
               ? unsupported(e, "attribute batch_dims must be 0")
               : scatter(e, "ScatterND", &x, input(e, 1), input(e, 2), NULL);
}

/* A gradient of pooling with the attributes of a node and the shape of dX. */
static uint32_t with_shape(expander_t *e, const char *op, const uint32_t *in, uint32_t in_count,
                           uint32_t of)
{
    wefti_graph_t *graph = e->graph;
    const weft_tensor_desc_t x = output_type(e, 0);
    const wefti_node_t *from = &graph->nodes[of];
    const uint32_t count = from->attr_count;
    weft_attr_t *attrs = wefti_arena_array(&graph->arena, (size_t)count + 1, sizeof(*attrs));
    if (e->status >= 0 && attrs == NULL) {
        e->status = WEFT_ERR_NO_MEMORY;
    }
    if (e->status < 0) {
        return 0;
    }
    memcpy(attrs, from->attrs, count * sizeof(*attrs));
    attrs[count] = (weft_attr_t){
        .name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .ints = x.dims, .count = x.rank};
    return weft(e, op, in, in_count, attrs, count + 1);
}

/* The pooling keeps a mask in place of the indices. */
static uint32_t pool_grad(expander_t *e)
{
    wefti_graph_t *graph = e->graph;
    const uint32_t pool = wefti_producer(graph, input(e, 1));
    const uint32_t in[] = {input(e, 0), input(e, 1)};
    if (pool == NONE || graph->nodes[pool].output_count != 2) {
        return unsupported(e, "input Indices must be an output of MaxPool");
    }
    if (wefti_op_facts(graph->nodes[pool].def).gradient == WEFT_GRADIENT_WINDOW_MAXIMUM) {
        e->status = wefti_graph_change_op(graph, pool, "weft", "MaxPoolMask", 0);
    }
    return with_shape(e, "MaxPoolGrad", in, 2, pool);
}

static uint32_t average_pool_grad(expander_t *e)
{
    const uint32_t dy = input(e, 0);
    return with_shape(e, "AveragePoolGrad", &dy, 1, e->node);
}

/* Does a node that is no gradient of it read output 4, in ONNX Runtime 1 / deviation? */
static bool reads_deviation(const wefti_graph_t *graph, uint32_t value)
{
    bool other = (graph->values[value].flags & WEFTI_VALUE_OUTPUT) != 0;
    for (uint32_t i = 0; i < graph->order_count && !other; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        const bool gradient = wefti_op_facts(node->def).expansion == WEFT_EXPANSION_BATCH_NORM_GRAD;
        for (uint32_t k = 0; k < node->input_count && !node->dead; k++) {
            other = other || (node->inputs[k] == value && !(gradient && k == 4));
        }
    }
    return other;
}

/* As the backward pass of Weft has it: outputs 1 and 2, which the pass given-gradients takes, become
 * copies of the statistics of the batch; outputs 3 and 4, which BatchNormalizationGrad reads, become
 * these, the variance in place of 1 / deviation. */
static uint32_t batch_norm(expander_t *e)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    const weft_op_ref_t op = wefti_op_facts(node->def).result_grad;
    const weft_attr_t attrs[] = {
        {.name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .f = wefti_node_float(node, "epsilon")},
        {.name = "momentum", .type = WEFT_ATTR_TYPE_FLOAT, .f = wefti_node_float(node, "momentum")},
    };
    for (uint32_t k = 1; k < 3; k++) {
        if (wants(e, k) && wefti_graph_is_read(e->graph, node->outputs[k])) {
            return unsupported(e, "running statistics that other nodes read are not supported");
        }
    }
    if (wants(e, 4) && reads_deviation(e->graph, node->outputs[4])) {
        return unsupported(e, "only BatchNormalizationGrad may read output saved_inv_std");
    }
    uint32_t y = add_node(e, &(const wefti_node_params_t){.domain = op.domain,
                                                          .op = op.name,
                                                          .inputs = node->inputs,
                                                          .input_count = node->input_count,
                                                          .output_count = 3,
                                                          .attrs = attrs,
                                                          .attr_count = 2});
    const uint32_t training = e->last;
    for (uint32_t k = 1; k < 3 && e->status >= 0; k++) {
        if (wants(e, k + 2)) {
            wefti_expand_take(e, k + 2, training, k);
        }
        if (wants(e, k) && e->graph->values[e->graph->nodes[e->node].outputs[k]].grad_of != NONE) {
            wefti_expand_give(e, k, e->graph->nodes[training].outputs[k]);
            e->graph->nodes[e->last].phase = WEFTI_PHASE_BACKWARD; /* evaluation reads none */
        }
    }
    return y;
}

static uint32_t slice_grad(expander_t *e)
{
    const weft_tensor_desc_t x = output_type(e, 0), dy = type_of(e, input(e, 0));
    int64_t starts[WEFT_MAX_DIMS], steps[WEFT_MAX_DIMS], list[3][WEFT_MAX_DIMS];
    const uint32_t places[] = {2, 4, 5};
    uint32_t counts[3] = {0};
    for (uint32_t d = 0; d < x.rank; d++) {
        starts[d] = 0;
        steps[d] = 1;
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (input(e, places[i]) != NONE) {
            const weft_tensor_desc_t type = type_of(e, input(e, places[i]));
            if (!wefti_const_ints(&type, list[i], WEFT_MAX_DIMS, &counts[i])) {
                return unsupported(e, "starts, axes and steps must be constants");
            }
        }
    }
    for (uint32_t i = 0; i < counts[0]; i++) {
        int64_t d = counts[1] > i ? list[1][i] : i;
        d = d < 0 ? d + x.rank : d;
        if (d < 0 || d >= x.rank) {
            return unsupported(e, "axes are out of range");
        }
        steps[d] = counts[2] > i ? list[2][i] : 1;
        int64_t low = steps[d] < 0 ? -1 : 0, high = x.dims[d] + (steps[d] < 0 ? -1 : 0);
        int64_t start = list[0][i] < 0 ? list[0][i] + x.dims[d] : list[0][i];
        starts[d] = start < low ? low : start > high ? high : start;
        starts[d] = dy.dims[d] == 0 ? 0 : starts[d];
    }
    const weft_attr_t attrs[] = {
        {.name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .ints = x.dims, .count = x.rank},
        {.name = "starts", .type = WEFT_ATTR_TYPE_INTS, .ints = starts, .count = x.rank},
        {.name = "steps", .type = WEFT_ATTR_TYPE_INTS, .ints = steps, .count = x.rank}};
    const uint32_t in[] = {input(e, 0)};
    return weft(e, "SliceGrad", in, 1, attrs, 3);
}

static uint32_t sum_to(expander_t *e, uint32_t x, const weft_tensor_desc_t *like)
{
    const weft_tensor_desc_t from = type_of(e, x);
    const weft_attr_t shape = {
        .name = "shape", .type = WEFT_ATTR_TYPE_INTS, .ints = like->dims, .count = like->rank};
    bool equal = from.rank == like->rank;
    for (uint32_t d = 0; equal && d < from.rank; d++) {
        equal = from.dims[d] == like->dims[d];
    }
    return equal ? one(e, "Identity", x) : weft(e, "SumTo", &x, 1, &shape, 1);
}

static uint32_t division_grad(expander_t *e)
{
    const weft_tensor_desc_t a = type_of(e, input(e, 1)), b = type_of(e, input(e, 2));
    uint32_t da = two(e, "Div", input(e, 0), input(e, 2));
    if (wants(e, 1)) {
        uint32_t db = two(e, "Div", two(e, "Mul", da, input(e, 1)), input(e, 2));
        wefti_expand_give(e, 1, sum_to(e, one(e, "Neg", db), &b));
    }
    return sum_to(e, da, &a);
}

/* The gradient of a mean is divided by the number of elements, which is an integer. */
static uint32_t scale(expander_t *e)
{
    return two(e, int_attr(e, "scale_down") != 0 ? "Div" : "Mul", input(e, 0),
               two(e, "CastLike", input(e, 1), input(e, 0)));
}

/* n = X inv; dScale = sum of dY n; dX = inv (dY scale - n mean(dY scale n)). */
static uint32_t rms_norm_grad(expander_t *e)
{
    int64_t axes[WEFT_MAX_DIMS], axis = int_attr(e, "axis");
    const weft_tensor_desc_t x = type_of(e, input(e, 1)), scale = type_of(e, input(e, 2));
    uint32_t count = 0, inverse = input(e, 3);
    for (int64_t d = axis < 0 ? axis + x.rank : axis; d >= 0 && d < x.rank; d++) {
        axes[count++] = d;
    }
    uint32_t n = two(e, "Mul", input(e, 1), inverse);
    uint32_t scaled = two(e, "Mul", input(e, 0), input(e, 2));
    if (wants(e, 1)) {
        wefti_expand_give(e, 1, sum_to(e, two(e, "Mul", input(e, 0), n), &scale));
    }
    uint32_t mean = reduce(e, "ReduceMean", two(e, "Mul", scaled, n), axes, count);
    return two(e, "Mul", two(e, "Sub", scaled, two(e, "Mul", n, mean)), inverse);
}

/* dX = dY / (1 - ratio) where mask, else 0; dY outside of training. */
static uint32_t dropout_grad(expander_t *e)
{
    uint32_t dy = input(e, 0), ratio = input(e, 2), mode = input(e, 3);
    const weft_tensor_desc_t trains =
        mode != NONE ? type_of(e, mode) : (weft_tensor_desc_t){.rank = 0};
    if (mode != NONE && trains.data == NULL) {
        return unsupported(e, "training_mode must be a constant");
    }
    if (mode != NONE && *(const uint8_t *)trains.data == 0) {
        return one(e, "Identity", dy);
    }
    uint32_t kept =
        ratio != NONE ? two(e, "Sub", number(e, 1.0, ratio), ratio) : number(e, 0.5, dy);
    uint32_t scaled = two(e, "Div", dy, two(e, "CastLike", kept, dy));
    return choose(e, input(e, 1), scaled, number(e, 0.0, dy));
}

/* The label that ignore_index, input index, names; false: there is none. */
static bool ignored(expander_t *e, uint32_t index, weft_attr_t *out)
{
    int64_t label;
    uint32_t count;
    if (input(e, index) == NONE) {
        return false;
    }
    const weft_tensor_desc_t type = type_of(e, input(e, index));
    if (!wefti_const_ints(&type, &label, 1, &count) || count != 1) {
        unsupported(e, "ignore_index must be a constant");
    }
    *out = (weft_attr_t){.name = "ignore_index", .type = WEFT_ATTR_TYPE_INT, .i = label};
    return true;
}

static weft_attr_t reduction(const expander_t *e)
{
    const char *text = wefti_node_text(&e->graph->nodes[e->node], "reduction");
    return (weft_attr_t){
        .name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = text[0] != '\0' ? text : "mean"};
}

static uint32_t cross_entropy(expander_t *e)
{
    weft_attr_t attrs[2] = {reduction(e)};
    const uint32_t in[] = {input(e, 0), input(e, 1), input(e, 2)};
    const bool ignores = ignored(e, 3, &attrs[1]), second = wants(e, 1);
    uint32_t loss = add_node(e, &(const wefti_node_params_t){.domain = "",
                                                             .op = "SoftmaxCrossEntropyLoss",
                                                             .inputs = in,
                                                             .input_count = in[2] != NONE ? 3 : 2,
                                                             .output_count = second ? 2 : 1,
                                                             .attrs = attrs,
                                                             .attr_count = ignores ? 2 : 1});
    if (second && e->status >= 0) {
        wefti_expand_take(e, 1, e->last, 1);
    }
    return loss;
}

static uint32_t cross_entropy_grad(expander_t *e)
{
    weft_attr_t attrs[2] = {reduction(e)};
    const uint32_t in[] = {input(e, 0), input(e, 1), input(e, 2), input(e, 3)};
    const bool ignores = ignored(e, 4, &attrs[1]);
    uint32_t dx = add_node(e, &(const wefti_node_params_t){.domain = "com.microsoft",
                                                           .op = "SoftmaxCrossEntropyLossGrad",
                                                           .inputs = in,
                                                           .input_count = in[3] != NONE ? 4 : 3,
                                                           .output_count = 1,
                                                           .attrs = attrs,
                                                           .attr_count = ignores ? 2 : 1});
    return input(e, 5) != NONE ? two(e, "Add", dx, input(e, 5)) : dx;
}

/* (exp(log_prob) - label) dY, and with mean by the number of rows. */
static uint32_t one_hot_entropy_grad(expander_t *e)
{
    const weft_tensor_desc_t x = type_of(e, input(e, 1));
    double rows = 1.0;
    for (uint32_t d = 0; d + 1 < x.rank; d++) {
        rows *= (double)x.dims[d];
    }
    uint32_t dy = input(e, 0);
    if (reduction(e).s[0] == 'm') {
        dy = two(e, "Div", dy, number(e, rows, dy));
    }
    return two(e, "Mul", two(e, "Sub", one(e, "Exp", input(e, 1)), input(e, 2)), dy);
}

wefti_expand_fn wefti_expand_gradient(weft_expansion_t expansion)
{
    static const wefti_expand_fn rows[] = {
        [WEFT_EXPANSION_SAME] = same,
        [WEFT_EXPANSION_FLAT_SOFTMAX_GRAD] = flat_softmax_grad,
        [WEFT_EXPANSION_GELU_GRAD] = gelu_grad,
        [WEFT_EXPANSION_FAST_GELU_GRAD] = fast_gelu_grad,
        [WEFT_EXPANSION_GATHER_GRAD] = gather_grad,
        [WEFT_EXPANSION_GATHER_ELEMENTS_GRAD] = gather_elements_grad,
        [WEFT_EXPANSION_GATHER_ND_GRAD] = gather_nd_grad,
        [WEFT_EXPANSION_SLICE_GRAD] = slice_grad,
        [WEFT_EXPANSION_RMS_NORM_GRAD] = rms_norm_grad,
        [WEFT_EXPANSION_DIVISION_GRAD] = division_grad,
        [WEFT_EXPANSION_DROPOUT_GRAD] = dropout_grad,
        [WEFT_EXPANSION_CROSS_ENTROPY] = cross_entropy,
        [WEFT_EXPANSION_CROSS_ENTROPY_GRAD] = cross_entropy_grad,
        [WEFT_EXPANSION_ONE_HOT_ENTROPY_GRAD] = one_hot_entropy_grad,
        [WEFT_EXPANSION_POOL_GRAD] = pool_grad,
        [WEFT_EXPANSION_SCALE] = scale,
        [WEFT_EXPANSION_BATCH_NORM] = batch_norm,
        [WEFT_EXPANSION_BATCH_NORM_GRAD] = same,
        [WEFT_EXPANSION_AVERAGE_POOL_GRAD] = average_pool_grad,
    };
    const size_t row = (size_t)expansion;
    return row < sizeof(rows) / sizeof(rows[0]) ? rows[row] : NULL;
}

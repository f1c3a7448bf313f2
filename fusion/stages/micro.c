/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro-batches of a pipeline. The graph computes one part of the batch; its copies compute the
 * others. Weights, and what is computed from them alone, are there once, so the differentiator adds
 * the gradients of all parts.
 *
 *   x [M b, ..] -> Slice -> graph            -> loss 0 -.
 *              '-> Slice -> copy of the graph -> loss 1 -+-> mean -> loss
 *
 * Outputs with the batch as first dimension are joined. Part p of batch r draws the random numbers of
 * batch r M + p, so masks are those of one rank with the whole batch, or that accumulates.
 */
#include <string.h>

#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"
#include "runtime/base/error.h"

typedef struct divider {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    const wefti_micro_batches_t *params;
    uint32_t count; /* parts */
    uint32_t value_count;
    uint8_t *fed;     /* by value: depends on an input with the batch */
    uint32_t *part;   /* by value: in the copy at hand */
    uint32_t *slices; /* by stage and value: rows of an input, of the part at hand */
    uint32_t rank;    /* the scalar; WEFTI_NONE: nothing draws random numbers */
} divider_t;

static weft_status_t add(divider_t *d, wefti_node_params_t params, const char *op, const char *name,
                         uint32_t *out_value)
{
    uint32_t node;
    params.op = op;
    params.domain = "";
    params.version = d->graph->opset;
    params.name = name;
    params.output_count = 1;
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(d->graph, &params, &node));
    *out_value = d->graph->nodes[node].outputs[0];
    return WEFT_OK;
}

static weft_status_t add_constant(divider_t *d, weft_dtype_t dtype, const void *data, int64_t count,
                                  const char *name, uint32_t *out_value)
{
    size_t bytes = weft_dtype_size_bytes(dtype) * (size_t)(count > 0 ? count : 1);
    weft_tensor_desc_t type = {.dtype = dtype,
                               .rank = count > 0,
                               .dims = {count},
                               .data = wefti_arena_memdup(&d->graph->arena, data, bytes)};
    WEFT_RETURN_IF_NO_MEMORY(type.data);
    return wefti_graph_add_value(d->graph, name, WEFTI_VALUE_CONST, &type, out_value);
}

/* Rows of a part of an input: each stage takes them itself, so that nothing is sent. */
static weft_status_t add_slice(divider_t *d, uint32_t input, uint32_t stage, uint32_t part,
                               uint32_t *out_value)
{
    const wefti_value_t *value = &d->graph->values[input];
    wefti_arena_t *arena = &d->graph->arena;
    int64_t rows = value->type.dims[0] / d->count, begin = rows * part, end = begin + rows,
            axis = 0;
    uint32_t in[4] = {input};
    const char *name = wefti_arena_printf(arena, "%s/part_%u/of_%u", value->name, part, stage);
    WEFT_RETURN_IF_NO_MEMORY(name);
    WEFT_RETURN_IF_ERROR(add_constant(d, WEFT_DTYPE_I64, &begin, 1,
                                      wefti_arena_printf(arena, "%s/begin", name), &in[1]));
    WEFT_RETURN_IF_ERROR(add_constant(d, WEFT_DTYPE_I64, &end, 1,
                                      wefti_arena_printf(arena, "%s/end", name), &in[2]));
    WEFT_RETURN_IF_ERROR(add_constant(d, WEFT_DTYPE_I64, &axis, 1,
                                      wefti_arena_printf(arena, "%s/axis", name), &in[3]));
    return add(d, (wefti_node_params_t){.inputs = in, .input_count = 4}, "Slice", name, out_value);
}

/* rank M + part, in place of the scalar "rank". */
static weft_status_t add_rank(divider_t *d, uint32_t part, uint32_t *out_value)
{
    wefti_arena_t *arena = &d->graph->arena;
    const int64_t count = d->count, number = part;
    uint32_t in[2] = {d->rank}, first;
    WEFT_RETURN_IF_ERROR(add_constant(d, WEFT_DTYPE_I64, &count, 0,
                                      wefti_arena_printf(arena, "rank/parts_%u", part), &in[1]));
    WEFT_RETURN_IF_ERROR(add(d, (wefti_node_params_t){.inputs = in, .input_count = 2}, "Mul",
                             wefti_arena_printf(arena, "rank/first_%u", part), &first));
    in[0] = first;
    WEFT_RETURN_IF_ERROR(add_constant(d, WEFT_DTYPE_I64, &number, 0,
                                      wefti_arena_printf(arena, "rank/number_%u", part), &in[1]));
    return add(d, (wefti_node_params_t){.inputs = in, .input_count = 2}, "Add",
               wefti_arena_printf(arena, "rank/part_%u", part), out_value);
}

/* What a node that depends on the batch reads for a part in place of value. */
static weft_status_t input_of_part(divider_t *d, uint32_t id, uint32_t value, uint32_t part,
                                   uint32_t *out_value)
{
    *out_value = value;
    if (value == WEFTI_NONE || (!d->fed[value] && value != d->rank)) {
        return WEFT_OK;
    }
    if (d->graph->values[value].kind != WEFTI_VALUE_INPUT && value != d->rank) {
        *out_value = part == 0 ? value : d->part[value];
        return WEFT_OK;
    }
    uint32_t stage =
        d->params->stage[id] < d->params->stages && value != d->rank ? d->params->stage[id] : 0;
    uint32_t *known = &d->slices[(size_t)stage * d->value_count + value];
    if (*known == WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(value == d->rank ? add_rank(d, part, known)
                                              : add_slice(d, value, stage, part, known));
    }
    *out_value = *known;
    return WEFT_OK;
}

static weft_status_t check(const divider_t *d)
{
    const wefti_graph_t *graph = d->graph, *whole = d->params->whole;
    if (graph->input_count != whole->input_count || graph->output_count != whole->output_count) {
        return wefti_error_split_graph("pipeline_micro_batches");
    }
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        if (graph->parameters[i].running && d->params->trains) {
            return wefti_error_field(WEFT_ERR_UNSUPPORTED, "pipeline_micro_batches",
                                     "'%s': running statistics are those of a whole batch",
                                     graph->parameters[i].name);
        }
    }
    return WEFT_OK;
}

/* How the type of an input or result changes with the batch; like: its value in the other graph. */
static wefti_share_t share_of(const divider_t *d, const weft_tensor_desc_t *type, uint32_t like)
{
    weft_tensor_desc_t whole = d->params->whole->values[like].type;
    whole.dtype = type->dtype; /* may be a half type now */
    return wefti_batch_share(type, &whole, d->count);
}

static weft_status_t mark_fed(divider_t *d)
{
    const wefti_graph_t *graph = d->graph;
    d->fed = wefti_arena_array(&d->arena, graph->value_count, sizeof(*d->fed));
    WEFT_RETURN_IF_NO_MEMORY(d->fed);
    for (uint32_t i = 0; i < graph->input_count; i++) {
        const wefti_value_t *input = &graph->values[graph->inputs[i]];
        wefti_share_t share = share_of(d, &input->type, d->params->whole->inputs[i]);
        if (share == WEFTI_SHARE_OTHER) {
            return wefti_error_field(WEFT_ERR_UNSUPPORTED, "pipeline_micro_batches",
                                     "the batch is not the first dimension of input '%s'",
                                     input->name);
        }
        d->fed[graph->inputs[i]] = share == WEFTI_SHARE_FIRST;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        uint8_t any = 0;
        for (uint32_t j = 0; j < node->input_count; j++) {
            any |= node->inputs[j] != WEFTI_NONE && d->fed[node->inputs[j]];
        }
        for (uint32_t j = 0; j < node->output_count; j++) {
            if (node->outputs[j] != WEFTI_NONE) {
                d->fed[node->outputs[j]] = any;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t copy_node(divider_t *d, uint32_t id, uint32_t part)
{
    wefti_graph_t *graph = d->graph;
    uint32_t added, outputs = graph->nodes[id].output_count;
    uint32_t *inputs = wefti_arena_array(&d->arena, graph->nodes[id].input_count, sizeof(*inputs));
    const char **names = wefti_arena_array(&d->arena, outputs, sizeof(*names));
    bool *absent = wefti_arena_array(&d->arena, outputs, sizeof(*absent));
    WEFT_RETURN_IF_NO_MEMORY(inputs && names && absent);
    for (uint32_t i = 0; i < graph->nodes[id].input_count; i++) {
        WEFT_RETURN_IF_ERROR(input_of_part(d, id, graph->nodes[id].inputs[i], part, &inputs[i]));
    }
    const wefti_node_t *node = &graph->nodes[id]; /* after new nodes, which move the others */
    wefti_node_params_t params = wefti_node_params_of(node);
    for (uint32_t i = 0; i < outputs; i++) {
        absent[i] = node->outputs[i] == WEFTI_NONE;
        names[i] = absent[i] ? NULL
                             : wefti_arena_printf(&graph->arena, "%s/part_%u",
                                                  graph->values[node->outputs[i]].name, part);
    }
    params.name = wefti_arena_printf(&graph->arena, "%s/part_%u", node->name, part);
    params.inputs = inputs;
    params.output_names = names;
    params.output_absent = absent;
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(graph, &params, &added));
    for (uint32_t i = 0; i < outputs; i++) {
        if (!absent[i]) {
            d->part[graph->nodes[id].outputs[i]] = graph->nodes[added].outputs[i];
        }
    }
    return WEFT_OK;
}

static bool is_fed(const divider_t *d, uint32_t id)
{
    const wefti_node_t *node = &d->graph->nodes[id];
    for (uint32_t i = 0; i < node->input_count; i++) {
        if (node->inputs[i] != WEFTI_NONE && d->fed[node->inputs[i]]) {
            return true;
        }
    }
    return false;
}

/* The scalar that masks are drawn with. */
static uint32_t find_rank(const wefti_graph_t *graph)
{
    uint32_t value = wefti_graph_find_value(graph, "rank");
    return value != WEFTI_NONE && graph->values[value].kind == WEFTI_VALUE_SCALAR ? value
                                                                                  : WEFTI_NONE;
}

static wefti_share_t share_of_result(const divider_t *d, uint32_t value, uint32_t like)
{
    const weft_tensor_desc_t *type = &d->graph->values[value].type;
    uint32_t found = 0;
    if (like == WEFTI_NONE || value == d->graph->loss) {
        return WEFTI_SHARE_SAME;
    }
    if (!d->params->inputs_only) {
        return share_of(d, type, like);
    }
    for (uint32_t i = 0; i < type->rank; i++) { /* a size of which there is one */
        found += type->dims[i] == d->graph->batch;
    }
    if (found > 0 && type->dims[0] == d->graph->batch &&
        (found == 1 || value == d->graph->logits)) { /* of logits, as many classes as samples */
        return WEFTI_SHARE_FIRST;
    }
    return found == 0 ? WEFTI_SHARE_SAME : WEFTI_SHARE_OTHER;
}

/* What of all parts becomes an output: the mean of numbers in training, other tensors one after the
 * other. */
static weft_status_t add_whole(divider_t *d, uint32_t value, uint32_t like, const uint32_t *parts,
                               uint32_t *out_value)
{
    wefti_graph_t *graph = d->graph;
    const weft_tensor_desc_t type = graph->values[value].type;
    const weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT};
    char *name = wefti_arena_printf(&graph->arena, "%s/parts", graph->values[value].name);
    WEFT_RETURN_IF_NO_MEMORY(name);
    wefti_share_t share = share_of_result(d, value, like);
    if (share == WEFTI_SHARE_FIRST) {
        const wefti_node_params_t params = {
            .inputs = parts, .input_count = d->count, .attrs = &axis, .attr_count = 1};
        return add(d, params, "Concat", name, out_value);
    }
    if (share != WEFTI_SHARE_SAME || !d->params->trains || weft_tensor_elem_count(&type) != 1 ||
        type.dtype != WEFT_DTYPE_F32) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, "pipeline_micro_batches",
                                 "the batch is not the first dimension of output '%s'",
                                 graph->values[value].name);
    }
    uint32_t sum = parts[0], pair[2];
    const float factor = 1.0f / (float)d->count;
    for (uint32_t p = 1; p < d->count; p++) {
        pair[0] = sum;
        pair[1] = parts[p];
        WEFT_RETURN_IF_ERROR(
            add(d, (wefti_node_params_t){.inputs = pair, .input_count = 2}, "Add", NULL, &sum));
    }
    pair[0] = sum;
    WEFT_RETURN_IF_ERROR(add_constant(d, WEFT_DTYPE_F32, &factor, 0,
                                      wefti_arena_printf(&graph->arena, "%s/share", name),
                                      &pair[1]));
    return add(d, (wefti_node_params_t){.inputs = pair, .input_count = 2}, "Mul", name, out_value);
}

/* The value takes over name and marks of that of the first part. */
static weft_status_t take_over(wefti_graph_t *graph, uint32_t from, uint32_t to)
{
    const wefti_value_flags_t marks = WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS;
    const char *name = graph->values[from].name;
    WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(
        graph, from, wefti_arena_printf(&graph->arena, "%s/part_0", name)));
    WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, to, name));
    graph->values[to].flags |= graph->values[from].flags & marks;
    graph->values[from].flags &= ~marks;
    for (uint32_t i = 0; i < graph->output_count; i++) {
        graph->outputs[i] = graph->outputs[i] == from ? to : graph->outputs[i];
    }
    graph->loss = graph->loss == from ? to : graph->loss;
    graph->logits = graph->logits == from ? to : graph->logits;
    return WEFT_OK;
}

/* Loss, logits and outputs, each once, and what they are in the other graph. */
static weft_status_t find_results(divider_t *d, uint32_t **out, uint32_t **out_like,
                                  uint32_t *out_count)
{
    const wefti_graph_t *graph = d->graph, *whole = d->params->whole;
    uint32_t count = 0;
    uint32_t *results =
        wefti_arena_array(&d->arena, (size_t)graph->output_count + 2, sizeof(*results));
    uint32_t *like = wefti_arena_array(&d->arena, (size_t)graph->output_count + 2, sizeof(*like));
    WEFT_RETURN_IF_NO_MEMORY(results && like);
    for (uint32_t i = 0; i < graph->output_count + 2; i++) {
        uint32_t value = i < graph->output_count    ? graph->outputs[i]
                         : i == graph->output_count ? graph->loss
                                                    : graph->logits;
        bool known = value == WEFTI_NONE || !d->fed[value];
        for (uint32_t k = 0; k < count; k++) {
            known = known || results[k] == value;
        }
        if (!known) {
            like[count] = i < graph->output_count    ? whole->outputs[i]
                          : i == graph->output_count ? whole->loss
                                                     : whole->logits;
            results[count++] = value;
        }
    }
    *out = results;
    *out_like = like;
    *out_count = count;
    return WEFT_OK;
}

/* The original nodes compute the first part. */
static weft_status_t take_first_part(divider_t *d, uint32_t id)
{
    for (uint32_t i = 0; i < d->graph->nodes[id].input_count; i++) {
        uint32_t value;
        WEFT_RETURN_IF_ERROR(input_of_part(d, id, d->graph->nodes[id].inputs[i], 0, &value));
        d->graph->nodes[id].inputs[i] = value;
    }
    return WEFT_OK;
}

/* Part 0 comes last: its nodes are those that are copied. */
static weft_status_t add_part(divider_t *d, const uint32_t *nodes, uint32_t count, uint32_t part)
{
    memset(d->slices, 0xff, (size_t)d->params->stages * d->value_count * sizeof(*d->slices));
    for (uint32_t i = 0; i < count; i++) {
        WEFT_RETURN_IF_ERROR(part == 0 ? take_first_part(d, nodes[i])
                                       : copy_node(d, nodes[i], part));
    }
    return WEFT_OK;
}

static weft_status_t divide(divider_t *d)
{
    wefti_graph_t *graph = d->graph;
    uint32_t result_count, fed_count = 0;
    uint32_t *results, *like, *parts;
    WEFT_RETURN_IF_ERROR(check(d));
    WEFT_RETURN_IF_ERROR(mark_fed(d));
    WEFT_RETURN_IF_ERROR(find_results(d, &results, &like, &result_count));
    uint32_t *nodes = wefti_arena_array(&d->arena, graph->order_count, sizeof(*nodes));
    d->value_count = graph->value_count;
    d->part = wefti_id_map(&d->arena, graph->value_count);
    d->slices = wefti_id_map(&d->arena, (size_t)d->params->stages * graph->value_count);
    d->rank = find_rank(graph);
    parts = wefti_arena_array(&d->arena, (size_t)result_count * d->count, sizeof(*parts));
    WEFT_RETURN_IF_NO_MEMORY(nodes && d->part && d->slices && parts);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (is_fed(d, graph->order[i])) {
            nodes[fed_count++] = graph->order[i];
        }
    }
    for (uint32_t i = 0; i < graph->input_count; i++) {
        if (d->fed[graph->inputs[i]]) {
            graph->values[graph->inputs[i]].type.dims[0] *= d->count;
        }
    }
    for (uint32_t i = 1; i <= d->count; i++) {
        uint32_t p = i % d->count;
        WEFT_RETURN_IF_ERROR(add_part(d, nodes, fed_count, p));
        for (uint32_t k = 0; k < result_count; k++) {
            parts[k * d->count + p] = p == 0 ? results[k] : d->part[results[k]];
        }
    }
    for (uint32_t i = 0; i < result_count; i++) {
        uint32_t whole = WEFTI_NONE;
        WEFT_RETURN_IF_ERROR(add_whole(d, results[i], like[i], &parts[i * d->count], &whole));
        WEFT_RETURN_IF_ERROR(take_over(graph, results[i], whole));
    }
    graph->batch *= d->count;
    return wefti_graph_sort(graph);
}

weft_status_t wefti_stages_divide_batch(wefti_graph_t *graph, const wefti_micro_batches_t *params)
{
    divider_t d = {.graph = graph, .params = params, .count = params->count};
    wefti_arena_init(&d.arena, graph->arena.allocator, 0);
    weft_status_t status = divide(&d);
    wefti_arena_deinit(&d.arena);
    return status;
}

/*
 * check-micro-batches: the parts of a batch give parts of the results.
 *
 * Matches a graph for inference; produces nothing. In training, parts are what micro-batches of
 * --accumulate are.
 */
weft_status_t wefti_apply_check_micro_batches(wefti_compiler_t *c)
{
    return wefti_check_split(c->graph, c->models[1].graph, c->params.pipeline_micro_batches,
                             "pipeline_micro_batches", true, &c->arena);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a rank: parts of initializers, local numbers in shapes, and collectives. A part of
 * an initializer is a value with contents for every rank (wefti_value_t.rank_bytes).
 */
#include "fusion/tensor/rewrite.h"

#include <string.h>

#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Operators between an initializer and a part of it. */
#define MOST_OPERATORS 64

/* Is a part of the result that operator's result of a part? */
static bool passes_parts(const wefti_node_t *node)
{
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    return node->input_count == 1 && node->output_count == 1 &&
           (facts.gradient == WEFT_GRADIENT_PERMUTATION ||
            (facts.flags & WEFT_FACT_ELEMENTWISE) != 0);
}

static uint32_t axis_before(const wefti_graph_t *graph, const wefti_node_t *node, uint32_t axis)
{
    const weft_attr_t *perm = wefti_node_attr(node, "perm");
    uint32_t rank = graph->values[node->inputs[0]].type.rank;
    return wefti_op_facts(node->def).gradient != WEFT_GRADIENT_PERMUTATION ? axis
           : perm != NULL ? (uint32_t)perm->ints[axis]
                          : rank - 1 - axis;
}

bool wefti_split_can_slice(const wefti_splitter_t *s, uint32_t value, uint32_t axis)
{
    for (uint32_t i = 0; i < MOST_OPERATORS; i++) {
        const wefti_value_t *v = &s->graph->values[value];
        if (s->trains && s->readers[value] > 1 && v->kind != WEFTI_VALUE_CONST) {
            return false; /* a parameter is one tensor, with one gradient */
        }
        if (v->kind == WEFTI_VALUE_PARAM || v->kind == WEFTI_VALUE_CONST) {
            int64_t dim = v->type.dims[axis];
            return v->type.data != NULL && dim > 0 && dim % s->ranks == 0;
        }
        const wefti_node_t *node = &s->graph->nodes[v->producer];
        if (!passes_parts(node)) {
            return false;
        }
        axis = axis_before(s->graph, node, axis);
        value = node->inputs[0];
    }
    return false;
}

bool wefti_split_joins_again(const wefti_splitter_t *s, uint32_t value)
{
    uint32_t producer = s->graph->values[value].producer;
    const wefti_node_t *node = producer == WEFTI_NONE ? NULL : &s->graph->nodes[producer];
    bool whole = false;
    if (node == NULL || s->trains || wefti_op_facts(node->def).gradient != WEFT_GRADIENT_JOIN) {
        return false;
    }
    for (uint32_t i = 0; i < node->input_count; i++) { /* before they are rewritten */
        uint32_t input = node->inputs[i];
        whole = whole || input >= s->value_count || !wefti_is_split(&s->of_value[input]);
    }
    return whole;
}

static weft_status_t add_marked(rewriter_t *r, uint32_t at, const weft_op_def_t *def,
                                const char *suffix, uint32_t input, uint32_t *out_value)
{
    const wefti_node_params_t params = {.def = def, .inputs = &input, .input_count = 1};
    return wefti_graph_insert_for(r->graph, at, suffix, params, out_value);
}

/* ---- parts of initializers ---- */

/* All ranks' parts of a tensor, one after the other. */
static void copy_parts(const weft_tensor_desc_t *type, const wefti_split_t *split, int64_t ranks,
                       uint8_t *out)
{
    size_t inner = weft_dtype_size_bytes(type->dtype);
    int64_t outer = 1, size = type->dims[split->axis];
    const uint8_t *data = type->data;
    for (uint32_t d = (uint32_t)split->axis + 1; d < type->rank; d++) {
        inner *= (size_t)type->dims[d];
    }
    for (int32_t d = 0; d < split->axis; d++) {
        outer *= type->dims[d];
    }
    for (int64_t rank = 0; rank < ranks; rank++) {
        for (int64_t o = 0; o < outer; o++) {
            int64_t begin = o * size;
            for (uint32_t i = 0; i < split->count; i++) {
                int64_t segment = split->count > 1 ? split->sizes[i] : size, part = segment / ranks;
                memcpy(out, data + (size_t)(begin + rank * part) * inner, (size_t)part * inner);
                out += (size_t)part * inner;
                begin += segment;
            }
        }
    }
}

static weft_status_t slice_initializer(rewriter_t *r, uint32_t value, const wefti_split_t *split,
                                       uint32_t *out_value)
{
    wefti_graph_t *graph = r->graph;
    weft_tensor_desc_t type = graph->values[value].type;
    size_t bytes = wefti_value_bytes(&graph->values[value]);
    uint8_t *parts = wefti_arena_alloc(&graph->arena, bytes + 1);
    WEFT_RETURN_IF_NO_MEMORY(parts);
    copy_parts(&type, split, r->s->ranks, parts);
    const int64_t whole = type.dims[split->axis];
    type.dims[split->axis] /= r->s->ranks;
    type.data = parts;
    WEFT_RETURN_IF_ERROR(wefti_graph_add_value(graph, graph->values[value].name,
                                               graph->values[value].kind, &type, out_value));
    int64_t *sizes = wefti_arena_memdup(&graph->arena, split->count > 1 ? split->sizes : &whole,
                                        split->count * sizeof(*sizes));
    WEFT_RETURN_IF_NO_MEMORY(sizes);
    graph->values[*out_value].rank_bytes = bytes / (size_t)r->s->ranks;
    graph->values[*out_value].parts =
        (wefti_division_t){(uint32_t)split->axis, split->count, sizes};
    return WEFT_OK;
}

static bool is_mark(const rewriter_t *r, uint32_t node)
{
    return r->s->marks != NULL && node < r->node_count && r->s->mark_of[node] != NULL;
}

/* The part of a value that is computed from initializers. */
static weft_status_t slice_fixed(rewriter_t *r, uint32_t value, const wefti_split_t *split,
                                 uint32_t *out_value)
{
    *out_value = wefti_split_find_made(r, value, split);
    if (*out_value != WEFTI_NONE) {
        return WEFT_OK;
    }
    uint32_t producer = r->graph->values[value].producer;
    if (producer == WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(slice_initializer(r, value, split, out_value));
    } else if (is_mark(r, producer)) {
        return slice_fixed(r, r->graph->nodes[producer].inputs[0], split, out_value);
    } else {
        wefti_split_t before = *split;
        uint32_t part;
        const wefti_node_t *node = &r->graph->nodes[producer];
        before.axis = (int32_t)axis_before(r->graph, node, (uint32_t)split->axis);
        WEFT_RETURN_IF_ERROR(slice_fixed(r, node->inputs[0], &before, &part));
        node = &r->graph->nodes[producer];
        const wefti_node_params_t params = {.domain = node->def->domain,
                                            .op = node->def->name,
                                            .phase = node->phase,
                                            .inputs = &part,
                                            .input_count = 1,
                                            .attrs = node->attrs,
                                            .attr_count = node->attr_count};
        WEFT_RETURN_IF_ERROR(wefti_graph_insert_for(r->graph, producer, "part", params, out_value));
    }
    return wefti_split_remember(r, value, split, *out_value);
}

/* Along an axis of so many elements: the positions of a rank's part. */
static weft_status_t add_positions(rewriter_t *r, int64_t size, const wefti_split_t *split,
                                   uint32_t *out_value)
{
    const wefti_split_t key = {.axis = (int32_t)size, .count = split->count, .sizes = split->sizes};
    weft_tensor_desc_t all = {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {size}};
    const wefti_split_t parts = {.axis = 0, .count = split->count, .sizes = split->sizes};
    *out_value = wefti_split_find_made(r, WEFTI_NONE, &key);
    if (*out_value != WEFTI_NONE) {
        return WEFT_OK;
    }
    int64_t *positions = wefti_arena_array(r->s->arena, (size_t)size, sizeof(*positions));
    int64_t *of_ranks = wefti_arena_array(&r->graph->arena, (size_t)size, sizeof(*of_ranks));
    WEFT_RETURN_IF_NO_MEMORY(positions && of_ranks);
    for (int64_t i = 0; i < size; i++) {
        positions[i] = i;
    }
    all.data = positions;
    copy_parts(&all, &parts, r->s->ranks, (uint8_t *)of_ranks);
    all.data = of_ranks;
    all.dims[0] = size / r->s->ranks;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_add_value(r->graph, "positions", WEFTI_VALUE_CONST, &all, out_value));
    r->graph->values[*out_value].rank_bytes = (size_t)all.dims[0] * sizeof(int64_t);
    return wefti_split_remember(r, WEFTI_NONE, &key, *out_value);
}

/* The part of a value that every rank has. */
static weft_status_t copy_part(rewriter_t *r, uint32_t value, const wefti_split_t *split,
                               uint32_t reader, uint32_t *out_value)
{
    const wefti_value_t *v = &r->graph->values[value];
    uint32_t inputs[] = {value, WEFTI_NONE};
    *out_value = wefti_split_find_made(r, value, split);
    if (*out_value != WEFTI_NONE) {
        return WEFT_OK;
    }
    const weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = split->axis};
    uint32_t of = v->producer != WEFTI_NONE ? v->producer : reader;
    WEFT_RETURN_IF_ERROR(add_positions(r, v->type.dims[split->axis], split, &inputs[1]));
    const wefti_node_params_t params = {.domain = "",
                                        .op = "Gather",
                                        .phase = WEFTI_PHASE_FORWARD,
                                        .inputs = inputs,
                                        .input_count = 2,
                                        .attrs = &axis,
                                        .attr_count = 1};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_for(r->graph, of, "part", params, out_value));
    return wefti_split_remember(r, value, split, *out_value);
}

/* ---- names ---- */

/* to gets the name of from, which gets a suffix. */
static weft_status_t take_name(wefti_graph_t *graph, uint32_t to, uint32_t from, const char *suffix)
{
    const char *name = graph->values[from].name;
    char *other = wefti_arena_printf(&graph->arena, "%s.%s", name, suffix);
    WEFT_RETURN_IF_NO_MEMORY(other);
    WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, from, other));
    return wefti_graph_rename_value(graph, to, name);
}

/* ---- collectives ---- */

/* The sum over ranks, then the addend of Gemm. */
static weft_status_t sum(rewriter_t *r, uint32_t id)
{
    wefti_node_t *node = &r->graph->nodes[id];
    uint32_t term = node->outputs[0], total, result;
    uint32_t addend = node->input_count > 2 ? node->inputs[2] : WEFTI_NONE;
    node->input_count -= node->input_count > 2;
    WEFT_RETURN_IF_ERROR(add_marked(r, id, wefti_tensor_terms(), "sum", term, &total));
    if (!r->s->trains) {
        WEFT_RETURN_IF_ERROR(
            wefti_tensor_add_sum(r->graph, r->s->group, r->graph->values[total].producer));
    }
    result = total;
    if (addend != WEFTI_NONE) {
        const uint32_t inputs[] = {total, addend};
        const wefti_node_params_t params = {.domain = "",
                                            .op = "Add",
                                            .phase = WEFTI_PHASE_FORWARD,
                                            .inputs = inputs,
                                            .input_count = 2};
        WEFT_RETURN_IF_ERROR(wefti_graph_insert_for(r->graph, id, "add", params, &result));
    }
    wefti_value_flags_t flags = r->graph->values[term].flags & ~WEFTI_VALUE_OUTPUT;
    wefti_graph_replace_uses(r->graph, term, result, r->graph->values[total].producer);
    r->graph->values[term].flags &= ~flags;
    r->graph->values[result].flags |= flags;
    r->graph->logits = r->graph->logits == term ? result : r->graph->logits;
    r->graph->values[result].type = r->graph->values[term].type; /* inferred after the rewrite */
    return take_name(r->graph, result, term, "term");
}

/* A whole input of a node that computes a part: where it has a gradient, that is a sum. */
static weft_status_t share(rewriter_t *r, uint32_t value, uint32_t *out_value)
{
    static const wefti_split_t mark = {.axis = -2, .count = 1};
    const wefti_value_t *v = &r->graph->values[value];
    *out_value = wefti_split_find_made(r, value, &mark);
    if (!wefti_dtype_is_floating(v->type.dtype) || v->kind == WEFTI_VALUE_CONST ||
        v->kind == WEFTI_VALUE_INPUT) {
        *out_value = value;
    }
    if (*out_value != WEFTI_NONE) {
        return WEFT_OK;
    }
    uint32_t at = v->producer != WEFTI_NONE ? v->producer : r->graph->order[0];
    WEFT_RETURN_IF_ERROR(add_marked(r, at, wefti_tensor_shared(), "shared", value, out_value));
    const weft_attr_t group = {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = r->s->group};
    WEFT_RETURN_IF_ERROR(
        wefti_graph_set_attr(r->graph, r->graph->values[*out_value].producer, &group));
    return wefti_split_remember(r, value, &mark, *out_value);
}

/* What is added to the sum over ranks is added once. */
static bool is_addend(const rewriter_t *r, uint32_t id, uint32_t input)
{
    return r->s->nodes[id].sums && input == 2;
}

/* Does the mark id, and nothing else, read a sum over ranks, of which a rank needs its rows? */
static bool scatters(const rewriter_t *r, uint32_t id, uint32_t value)
{
    const wefti_graph_t *graph = r->graph;
    const uint32_t producer = graph->values[value].producer;
    const wefti_split_t *need = &r->s->nodes[id].need[0];
    if (!is_mark(r, id) || value < r->first_new || need->axis != 0 || need->count > 1 ||
        !wefti_is_all_reduce(&graph->nodes[producer]) ||
        (graph->values[value].flags & WEFTI_VALUE_OUTPUT) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count && graph->order[i] != id; k++) {
            if (node->inputs[k] == value) {
                return false;
            }
        }
    }
    return true;
}

static weft_status_t scatter(rewriter_t *r, uint32_t value)
{
    const uint32_t node = r->graph->values[value].producer;
    const weft_attr_t size = {.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = r->s->ranks};
    WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(r->graph, node, &size));
    return wefti_graph_change_op(r->graph, node, "weft", "ReduceScatter", 0);
}

/* A part is copied at run time, not taken from initializers. */
static bool is_copied(const rewriter_t *r, uint32_t id, uint32_t value, const wefti_split_t *need)
{
    return value >= r->first_new || !r->s->fixed[value] ||
           (is_mark(r, id) && !wefti_split_can_slice(r->s, value, (uint32_t)need->axis));
}

static weft_status_t rewrite_node(rewriter_t *r, uint32_t id)
{
    const wefti_node_split_t *split = &r->s->nodes[id];
    bool parts = split->sums || wefti_is_split(&split->out);
    if (wefti_is_split(&split->out) &&
        wefti_split_joins_again(r->s, r->graph->nodes[id].outputs[0])) {
        const wefti_node_t *node = &r->graph->nodes[id];
        r->joined[id] = wefti_arena_memdup(r->s->arena, node->inputs,
                                           node->input_count * sizeof(*node->inputs));
        WEFT_RETURN_IF_NO_MEMORY(r->joined[id]);
    }
    for (uint32_t i = 0; i < r->graph->nodes[id].input_count; i++) {
        uint32_t value = r->graph->nodes[id].inputs[i], other = value;
        if (value == WEFTI_NONE) {
            continue;
        }
        bool have = value < r->first_new && wefti_is_split(&r->s->of_value[value]);
        bool need = wefti_is_split(&split->need[i]);
        bool same = have && r->s->of_value[value].axis == split->need[i].axis;
        if (!have && !need) {
            if (parts && r->s->trains && !is_addend(r, id, i)) {
                WEFT_RETURN_IF_ERROR(share(r, value, &r->graph->nodes[id].inputs[i]));
            }
            continue;
        }
        if (need && !have && scatters(r, id, value)) {
            WEFT_RETURN_IF_ERROR(scatter(r, value));
        } else if (need && !have && is_copied(r, id, value, &split->need[i])) {
            WEFT_RETURN_IF_ERROR(copy_part(r, value, &split->need[i], id, &other));
        } else if (need && !have) {
            WEFT_RETURN_IF_ERROR(slice_fixed(r, value, &split->need[i], &other));
        } else if (have && !same) {
            WEFT_RETURN_IF_ERROR(wefti_split_gather(r, value, &other));
            if (need) {
                r->graph->values[other].type = r->graph->values[value].type; /* inferred later */
                WEFT_RETURN_IF_ERROR(copy_part(r, other, &split->need[i], id, &other));
            }
        }
        r->graph->nodes[id].inputs[i] = other;
    }
    WEFT_RETURN_IF_ERROR(wefti_split_make_local(r, id));
    return split->sums ? sum(r, id) : WEFT_OK;
}

static void move_parameter(wefti_graph_t *graph, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        if (graph->parameters[i].value == from) {
            graph->parameters[i].value = to;
            graph->parameters[i].type = graph->values[to].type;
            graph->parameters[i].type.data = NULL;
        }
    }
}

/* Parts take the names of initializers that nobody reads any more. */
static weft_status_t take_names(rewriter_t *r)
{
    wefti_graph_t *graph = r->graph;
    bool *read = wefti_arena_array(r->s->arena, graph->value_count + 1u, sizeof(*read));
    WEFT_RETURN_IF_NO_MEMORY(read);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                read[node->inputs[k]] = true;
            }
        }
    }
    for (uint32_t i = 0; i < r->made_count; i++) {
        const made_t *made = &r->made[i];
        if (graph->values[made->value].producer == WEFTI_NONE && made->of != WEFTI_NONE &&
            !read[made->of]) {
            read[made->of] = true; /* once */
            graph->values[made->of].kind = WEFTI_VALUE_CONST;
            move_parameter(graph, made->of, made->value);
            WEFT_RETURN_IF_ERROR(take_name(graph, made->value, made->of, "whole"));
        }
    }
    return WEFT_OK;
}

static weft_status_t remove_marks(wefti_splitter_t *s)
{
    wefti_graph_t *graph = s->graph;
    uint32_t count = graph->value_count, *by = wefti_id_map(s->arena, count);
    WEFT_RETURN_IF_NO_MEMORY(by);
    for (uint32_t i = 0; i < s->mark_count; i++) {
        wefti_node_t *node = &graph->nodes[s->marks[i].node];
        node->dead = true;
        by[node->outputs[0]] = node->inputs[0];
    }
    wefti_graph_replace_all(graph, by, count);
    wefti_graph_compact_order(graph);
    return WEFT_OK;
}

weft_status_t wefti_split_rewrite(wefti_splitter_t *s)
{
    wefti_graph_t *graph = s->graph;
    rewriter_t r = {
        .s = s, .graph = graph, .node_count = graph->node_count, .first_new = graph->value_count};
    r.last = WEFTI_NONE;
    r.joined = wefti_arena_array(s->arena, graph->node_count + 1u, sizeof(*r.joined));
    uint32_t count = graph->order_count;
    uint32_t *order = wefti_arena_memdup(s->arena, graph->order, count * sizeof(*order));
    bool deferred = graph->defer_inference;
    WEFT_RETURN_IF_NO_MEMORY(order && r.joined);
    graph->defer_inference = true;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < count && status >= 0; i++) {
        status = rewrite_node(&r, order[i]);
    }
    r.last = count > 0 ? order[count - 1] : WEFTI_NONE;
    for (uint32_t i = 0; i < graph->output_count && status >= 0; i++) {
        uint32_t value = graph->outputs[i], all;
        if (value >= r.first_new || !wefti_is_split(&s->of_value[value])) {
            continue;
        }
        WEFT_TRY(status, wefti_split_gather(&r, value, &all), done);
        WEFT_TRY(status, take_name(graph, all, value, "part"), done);
        graph->values[all].flags |= graph->values[value].flags & WEFTI_VALUE_OUTPUT;
        graph->values[value].flags &= ~WEFTI_VALUE_OUTPUT;
        graph->outputs[i] = all;
    }
done:
    graph->defer_inference = deferred;
    WEFT_RETURN_IF_ERROR(status);
    WEFT_RETURN_IF_ERROR(remove_marks(s));
    WEFT_RETURN_IF_ERROR(wefti_graph_sort(graph));
    WEFT_RETURN_IF_ERROR(wefti_graph_prune(graph));
    WEFT_RETURN_IF_ERROR(take_names(&r));
    return wefti_graph_infer_shapes(graph);
}

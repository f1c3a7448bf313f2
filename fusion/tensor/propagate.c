/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which products are split. All that can be are at first; splits are propagated through the graph
 * in its order; then products whose split costs more than it saves become whole, and so on until
 * nothing changes. Products that are split together become whole together.
 */
#include "fusion/tensor/tensor.h"

#include <inttypes.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "runtime/base/sets.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* A result that is gathered is worth it from so many operations saved per byte, .. */
#define OPS_PER_BYTE 16.0
/* .. and for a weight of so many bytes. */
#define LEAST_BYTES (64.0 * 1024)

/* Of all products that are split together, at their root. */
typedef struct group {
    double saved_ops, weight_bytes, gathered_bytes;
    bool unordered; /* parts of an axis with segments, which no all-gather puts in order */
    uint32_t node;  /* the first that needs something whole, or WEFTI_NONE */
    const char *why;
} group_t;

/* A split value that is needed whole. */
typedef struct event {
    uint32_t value, node;
    const char *why;
} event_t;

typedef struct propagation {
    wefti_splitter_t s;
    event_t *events;
    uint32_t event_count, event_capacity;
    group_t *groups; /* by node, at roots */
    event_t *wholes; /* by node, of products that became whole: what needs the result, and why */
} propagation_t;

static weft_status_t find_fixed(wefti_splitter_t *s)
{
    const wefti_graph_t *graph = s->graph;
    uint32_t *readers = wefti_arena_array(s->arena, graph->value_count + 1u, sizeof(*readers));
    WEFT_RETURN_IF_NO_MEMORY(readers);
    s->readers = readers;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        wefti_value_kind_t kind = graph->values[v].kind;
        s->fixed[v] = kind == WEFTI_VALUE_PARAM || kind == WEFTI_VALUE_CONST;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        bool fixed = node->def->effects == 0;
        for (uint32_t k = 0; k < node->input_count; k++) {
            readers[node->inputs[k] == WEFTI_NONE ? graph->value_count : node->inputs[k]]++;
            fixed = fixed && (node->inputs[k] == WEFTI_NONE || s->fixed[node->inputs[k]]);
        }
        for (uint32_t k = 0; k < node->output_count; k++) {
            if (node->outputs[k] != WEFTI_NONE) {
                s->fixed[node->outputs[k]] = fixed;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t add_event(propagation_t *p, uint32_t value, uint32_t node, const char *why)
{
    if (p->event_count == p->event_capacity) {
        uint32_t capacity = p->event_capacity * 2 + 64;
        event_t *events = wefti_arena_array(p->s.arena, capacity, sizeof(*events));
        WEFT_RETURN_IF_NO_MEMORY(events);
        if (p->event_count > 0) {
            memcpy(events, p->events, p->event_count * sizeof(*events));
        }
        p->events = events;
        p->event_capacity = capacity;
    }
    p->events[p->event_count++] = (event_t){value, node, why};
    return WEFT_OK;
}

static weft_status_t propagate_node(propagation_t *p, uint32_t id)
{
    wefti_splitter_t *s = &p->s;
    const wefti_node_t *node = &s->graph->nodes[id];
    wefti_node_split_t *result = &s->nodes[id];
    wefti_split_rule(s, id, result);
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t value = node->inputs[i];
        if (value != WEFTI_NONE && wefti_is_split(&s->of_value[value]) &&
            s->of_value[value].axis != result->need[i].axis) {
            WEFT_RETURN_IF_ERROR(add_event(
                p, value, id, result->why != NULL ? result->why : "its other inputs are whole"));
        }
    }
    for (uint32_t k = 0; k < node->output_count; k++) {
        if (node->outputs[k] != WEFTI_NONE) {
            s->of_value[node->outputs[k]] = result->out;
        }
    }
    return WEFT_OK;
}

static weft_status_t propagate(propagation_t *p)
{
    wefti_splitter_t *s = &p->s;
    const wefti_graph_t *graph = s->graph;
    s->changed = false;
    p->event_count = 0;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        s->of_value[v] = (wefti_split_t){.axis = -1, .count = 1};
    }
    for (uint32_t n = 0; n < graph->node_count; n++) {
        s->parent[n] = n;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        WEFT_RETURN_IF_ERROR(propagate_node(p, graph->order[i]));
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        if (wefti_is_split(&s->of_value[graph->outputs[i]])) {
            WEFT_RETURN_IF_ERROR(
                add_event(p, graph->outputs[i], WEFTI_NONE, "it is an output of the graph"));
        }
    }
    return WEFT_OK;
}

static void count_product(propagation_t *p, uint32_t id, uint32_t origin)
{
    const wefti_graph_t *graph = p->s.graph;
    const wefti_node_t *node = &graph->nodes[id];
    const wefti_value_t *weight = &graph->values[node->inputs[1]];
    const weft_tensor_desc_t *out = &graph->values[node->outputs[0]].type;
    group_t *group = &p->groups[wefti_sets_root(p->s.parent, origin)];
    double columns = (double)out->dims[out->rank - 1], share = 1 - 1.0 / (double)p->s.ranks;
    double elems =
        (double)wefti_value_bytes(weight) / (double)weft_dtype_size_bytes(weight->type.dtype);
    double results = (double)wefti_value_bytes(&graph->values[node->outputs[0]]) /
                     (double)weft_dtype_size_bytes(out->dtype);
    group->saved_ops += columns > 0 ? share * 2 * elems * results / columns : 0;
    group->weight_bytes += (double)wefti_value_bytes(weight);
}

static void count_all(propagation_t *p)
{
    wefti_splitter_t *s = &p->s;
    const wefti_graph_t *graph = s->graph;
    for (uint32_t n = 0; n < graph->node_count; n++) {
        p->groups[n] = (group_t){.node = WEFTI_NONE};
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (wefti_split_weight(s, id) == UINT32_MAX) {
            continue;
        }
        if (s->nodes[id].sums) {
            count_product(p, id, s->nodes[id].need[0].origin);
        } else if (s->splits_columns[id] && wefti_is_split(&s->nodes[id].out)) {
            count_product(p, id, id);
        }
    }
}

static group_t *group_of(propagation_t *p, const event_t *event)
{
    return &p->groups[wefti_sets_root(p->s.parent, p->s.of_value[event->value].origin)];
}

/* Of several groups that meet at a node and do not fit together, the one that saves least. The
 * others may stay once it is whole. */
static bool saves_least(propagation_t *p, uint32_t index)
{
    const group_t *group = group_of(p, &p->events[index]);
    bool least = true;
    for (uint32_t i = index; i-- > 0 && p->events[i].node == p->events[index].node;) {
        least = least && group_of(p, &p->events[i])->saved_ops > group->saved_ops;
    }
    for (uint32_t i = index + 1; i < p->event_count && p->events[i].node == p->events[index].node;
         i++) {
        least = least && group_of(p, &p->events[i])->saved_ops >= group->saved_ops;
    }
    return least || p->events[index].node == WEFTI_NONE;
}

static double gathered_bytes(const propagation_t *p, uint32_t value)
{
    const wefti_graph_t *graph = p->s.graph;
    double bytes = 0;
    if (!wefti_split_joins_again(&p->s, value)) {
        return (double)wefti_value_bytes(&graph->values[value]);
    }
    const wefti_node_t *node = &graph->nodes[graph->values[value].producer];
    for (uint32_t i = 0; i < node->input_count; i++) {
        bytes += wefti_is_split(&p->s.of_value[node->inputs[i]])
                     ? (double)wefti_value_bytes(&graph->values[node->inputs[i]])
                     : 0;
    }
    return bytes;
}

static void blame(propagation_t *p, bool all)
{
    for (uint32_t i = 0; i < p->event_count; i++) {
        const event_t *event = &p->events[i];
        group_t *group = group_of(p, event);
        if (!all && !saves_least(p, i)) {
            continue;
        }
        group->gathered_bytes += gathered_bytes(p, event->value);
        group->unordered = group->unordered || p->s.of_value[event->value].count > 1;
        if (group->why == NULL) {
            group->node = event->node;
            group->why = event->why;
        }
    }
}

static bool is_worth_it(const group_t *group, bool trains)
{
    return group->gathered_bytes == 0 ||
           (!trains && !group->unordered && group->weight_bytes >= LEAST_BYTES &&
            group->saved_ops >= OPS_PER_BYTE * group->gathered_bytes);
}

/* Returns whether products became whole. */
static bool give_up(propagation_t *p, bool all)
{
    wefti_splitter_t *s = &p->s;
    bool changed = false;
    count_all(p);
    blame(p, all);
    for (uint32_t i = 0; i < s->graph->order_count; i++) {
        uint32_t id = s->graph->order[i];
        const group_t *group = &p->groups[wefti_sets_root(s->parent, id)];
        if (s->splits_columns[id] && wefti_is_split(&s->nodes[id].out) &&
            !is_worth_it(group, s->trains)) {
            s->splits_columns[id] = false;
            s->columns[id].count = 1;
            changed = true;
            p->wholes[id] = (event_t){.node = group->node, .why = group->why};
        }
    }
    return changed;
}

/* Of annotations: returns whether splits are propagated again. */
static bool settle_marks(propagation_t *p)
{
    bool changed = false;
    for (uint32_t i = 0; i < p->event_count && !changed; i++) {
        changed = wefti_split_unorder(&p->s, p->events[i].value);
    }
    return changed;
}

/* A term of the model's own sum would be the whole. */
static weft_status_t check_whole(const wefti_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if ((node->def->effects & WEFT_EFFECT_COMMUNICATES) != 0) {
            return wefti_error_field(WEFT_ERR_UNSUPPORTED, "tensor_parallel",
                                     "the model is already divided: node '%s' (%s) communicates",
                                     node->name, node->def->name);
        }
    }
    return WEFT_OK;
}

static weft_status_t make_tables(propagation_t *p)
{
    wefti_splitter_t *s = &p->s;
    const wefti_graph_t *graph = s->graph;
    size_t values = graph->value_count + 1u, nodes = graph->node_count + 1u;
    s->value_count = graph->value_count;
    s->fixed = wefti_arena_array(s->arena, values, sizeof(*s->fixed));
    s->of_value = wefti_arena_array(s->arena, values, sizeof(*s->of_value));
    s->columns = wefti_arena_array(s->arena, nodes, sizeof(*s->columns));
    s->splits_columns = wefti_arena_array(s->arena, nodes, sizeof(*s->splits_columns));
    s->parent = wefti_arena_array(s->arena, nodes, sizeof(*s->parent));
    s->nodes = wefti_arena_array(s->arena, nodes, sizeof(*s->nodes));
    p->groups = wefti_arena_array(s->arena, nodes, sizeof(*p->groups));
    p->wholes = wefti_arena_array(s->arena, nodes, sizeof(*p->wholes));
    WEFT_RETURN_IF_NO_MEMORY(!s->arena->failed);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        s->columns[id] = (wefti_split_t){.axis = -1, .count = 1};
        s->splits_columns[id] = true;
        s->nodes[id].need = wefti_arena_array(s->arena, graph->nodes[id].input_count + 1u,
                                              sizeof(*s->nodes[id].need));
        WEFT_RETURN_IF_NO_MEMORY(s->nodes[id].need);
    }
    return find_fixed(s);
}

/* "node 'x' (Softmax): it combines elements along the split axis" */
static const char *whole_reason(const propagation_t *p, uint32_t product)
{
    const event_t *whole = &p->wholes[product];
    if (whole->why == NULL) {
        const char *why = p->s.nodes[product].why;
        return why != NULL ? why : "other products are whole";
    }
    if (whole->node == WEFTI_NONE) {
        return whole->why;
    }
    const wefti_node_t *node = &p->s.graph->nodes[whole->node];
    const char *text = wefti_arena_printf(p->s.arena, "node '%s' (%s) needs it whole: %s",
                                          node->name, node->def->name, whole->why);
    return text != NULL ? text : whole->why;
}

/* A warning where a part of the model is whole, an error where all of it is. */
static weft_status_t report(const propagation_t *p, const wefti_log_t *log)
{
    const wefti_splitter_t *s = &p->s;
    const wefti_graph_t *graph = s->graph;
    uint32_t products = 0, split = 0, first = WEFTI_NONE;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (wefti_split_weight(s, id) != UINT32_MAX) {
            bool divided = s->nodes[id].sums || wefti_is_split(&s->nodes[id].out);
            products++;
            split += divided;
            first = first == WEFTI_NONE && !divided ? id : first;
        }
    }
    if (split == 0) {
        return wefti_error_field(
            WEFT_ERR_UNSUPPORTED, "tensor_parallel",
            "no product can be split over %" PRId64 " ranks: %s%s%s", s->ranks,
            products == 0 ? "there are none with weights" : "first '",
            products == 0 ? "" : graph->nodes[first].name,
            products == 0 ? "" : wefti_arena_printf(s->arena, "': %s", whole_reason(p, first)));
    }
    if (split < products) {
        wefti_log(log, WEFT_LOG_LEVEL_WARN,
                  "tensor_parallel: %u of %u products with weights are split over %" PRId64
                  " ranks; all ranks compute the others, first '%s': %s",
                  split, products, s->ranks, graph->nodes[first].name, whole_reason(p, first));
    }
    return WEFT_OK;
}

weft_status_t wefti_pass_tensor_parallel(wefti_graph_t *graph, const wefti_tensor_params_t *params,
                                         const wefti_log_t *log)
{
    weft_status_t status = WEFT_OK;
    wefti_arena_t arena;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    propagation_t p = {.s = {.graph = graph,
                             .arena = &arena,
                             .ranks = params->ranks,
                             .group = params->group,
                             .trains = params->trains}};
    WEFT_TRY(status, check_whole(graph), done);
    if (params->annotated) {
        WEFT_TRY(status, wefti_split_mark(&p.s), done);
    }
    WEFT_TRY(status, make_tables(&p), done);
    if (params->annotated) {
        WEFT_TRY(status, wefti_split_index_marks(&p.s), done);
    }
    do { /* each round gives up a product, or divides the columns of one */
        WEFT_TRY(status, propagate(&p), done);
    } while (p.s.changed ||
             (params->annotated ? settle_marks(&p) : give_up(&p, false) || give_up(&p, true)));
    WEFT_TRY(status, params->annotated ? wefti_split_check_marks(&p.s) : report(&p, log), done);
    WEFT_TRY(status, wefti_split_rewrite(&p.s), done);
    status = params->trains ? WEFT_OK : wefti_pass_inference_form(graph);
done:
    wefti_arena_deinit(&arena);
    return status;
}

static wefti_tensor_params_t params_of(const wefti_compiler_t *c, bool trains)
{
    return (wefti_tensor_params_t){.ranks = c->params.tensor_parallel,
                                   .group = c->mesh.axis_count > 0 ? WEFTI_GROUP_TENSOR : 0,
                                   .trains = trains,
                                   .annotated = !trains && c->devices.count > 0};
}

weft_status_t wefti_apply_tensor_parallel(wefti_compiler_t *c)
{
    const wefti_tensor_params_t params = params_of(c, false);
    WEFT_RETURN_IF_ERROR(wefti_pass_tensor_parallel(c->graph, &params, &c->log));
    return wefti_pass_tidy_collectives(c->graph, c->params.tensor_parallel);
}

/* A dropped element would be dropped on one rank and not on another one. */
static weft_status_t check_random(const wefti_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        const bool drops = wefti_op_facts(node->def).gradient == WEFT_GRADIENT_DROPOUT;
        const bool random = (node->def->effects & WEFT_EFFECT_RANDOM) != 0;
        if ((drops || random) && node->input_count > 1) { /* with one input it is the identity */
            return wefti_error_field(WEFT_ERR_UNSUPPORTED, "tensor_parallel",
                                     "node '%s' (%s): ranks draw different random numbers",
                                     node->name, node->def->name);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_apply_tensor_training(wefti_compiler_t *c)
{
    WEFT_RETURN_IF_ERROR(check_random(c->graph));
    const wefti_tensor_params_t params = params_of(c, true);
    return wefti_pass_tensor_parallel(c->graph, &params, &c->log);
}

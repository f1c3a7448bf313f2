/* SPDX-License-Identifier: Apache-2.0 */
/*
 * programs: the programs of a plan, from the graph of a step.
 *
 * Matches   the finished graph of a step: forward, backward, collectives, updates.
 * Produces  the order in which a step runs, and the programs
 *   init        a Broadcast of all weights from rank 0, unless ranks have weights of their own,
 *               or shards of them
 *   step        all nodes except those that only micro_step runs (accumulate.c)
 *   eval        the nodes that loss and logits need, in their form for evaluation:
 *               MaxPool in place of MaxPoolMask, Identity in place of DropoutMask
 *
 * Order of a step. A collective is issued as soon as its inputs are ready, so that as many kernels
 * as possible run during its transfers. Updates run last, collective by collective: no kernel reads
 * a parameter after its update.
 *
 * A rank runs eval alone, unless weights are gathered, or ranks have parts of them and compute a
 * batch together. If the forward pass communicates otherwise, there is no eval.
 */
#include <string.h>

#include "fusion/passes/issue.h"
#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

typedef struct maker {
    wefti_graph_t *graph;
    const wefti_program_params_t *params;
    wefti_arena_t arena;
    bool *needed;         /* by node: of the program being made */
    uint32_t *nodes;      /* of the program being made */
    uint32_t *variant;    /* by node: what eval runs in its place, or WEFTI_NONE */
    uint32_t *broadcasts; /* of init */
    uint32_t broadcast_count;
} maker_t;

/*
 * The order of a step.
 */

typedef struct order {
    uint32_t *update_of; /* by value: its only update, or WEFTI_NONE */
    uint32_t *nodes;     /* the result */
    uint32_t count;
} order_t;

/* An update that a collective runs is issued as the collective. */
static bool comes_last(const wefti_node_t *node)
{
    return node->phase == WEFTI_PHASE_UPDATE &&
           (!wefti_node_communicates(node) || wefti_node_is_flat_gather(node));
}

/* Nothing but updates may come after an update. */
static weft_status_t check_reads(const wefti_graph_t *graph, uint32_t id)
{
    const wefti_node_t *node = &graph->nodes[id];
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t producer = wefti_producer(graph, node->inputs[i]);
        if (producer == WEFTI_NONE || graph->nodes[producer].phase != WEFTI_PHASE_UPDATE) {
            continue;
        }
        return wefti_node_communicates(node)
                   ? wefti_error(
                         WEFT_ERR_UNSUPPORTED,
                         "node '%s' (%s): a collective on the result of an update is not supported",
                         node->name, node->def->name)
                   : wefti_error(WEFT_ERR_UNSUPPORTED,
                                 "node '%s': reads '%s', the output of an update", node->name,
                                 graph->values[node->inputs[i]].name);
    }
    return WEFT_OK;
}

/* Kernels in the order of the graph, collectives between them; updates are left out. */
static weft_status_t place_collectives(maker_t *m, order_t *o)
{
    const wefti_graph_t *graph = m->graph;
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    wefti_issue_t issue;
    WEFT_RETURN_IF_ERROR(wefti_graph_view(graph, &m->arena, &view));
    WEFT_RETURN_IF_ERROR(wefti_find_issue(&view, &m->arena, &issue));
    for (uint32_t i = 0, next = 0; i <= graph->order_count; i++) {
        for (; next < issue.count && issue.after[issue.ops[next]] <= i; next++) {
            uint32_t id = issue.ops[next];
            if (!comes_last(&graph->nodes[id])) {
                WEFT_RETURN_IF_ERROR(check_reads(graph, id));
                o->nodes[o->count++] = id;
            }
        }
        uint32_t id = i < graph->order_count ? graph->order[i] : WEFTI_NONE;
        if (id != WEFTI_NONE && !wefti_is_issued(&view.ops[id]) && !comes_last(&graph->nodes[id])) {
            WEFT_RETURN_IF_ERROR(check_reads(graph, id));
            o->nodes[o->count++] = id;
        }
    }
    return WEFT_OK;
}

static weft_status_t find_updates(maker_t *m, order_t *o)
{
    const wefti_graph_t *graph = m->graph;
    bool *ambiguous = wefti_arena_array(&m->arena, graph->value_count, sizeof(*ambiguous));
    o->update_of = wefti_id_map(&m->arena, graph->value_count);
    WEFT_RETURN_IF_NO_MEMORY(ambiguous && o->update_of);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        for (uint32_t k = 0; node->phase == WEFTI_PHASE_UPDATE && k < node->input_count; k++) {
            uint32_t value = node->inputs[k];
            if (value != WEFTI_NONE) {
                ambiguous[value] |= o->update_of[value] != WEFTI_NONE && o->update_of[value] != id;
                o->update_of[value] = id;
            }
        }
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        o->update_of[v] = ambiguous[v] ? WEFTI_NONE : o->update_of[v];
    }
    return WEFT_OK;
}

/* An update after the shard that it overwrites and before the gather of what it produces. */
static void place_update(const wefti_graph_t *graph, order_t *o, bool *placed, uint32_t id)
{
    const wefti_node_t *node = &graph->nodes[id];
    if (placed[id] || !comes_last(node)) {
        return;
    }
    placed[id] = true;
    for (uint32_t k = 0; k < node->input_count; k++) {
        uint32_t producer = wefti_producer(graph, node->inputs[k]);
        if (producer != WEFTI_NONE) {
            place_update(graph, o, placed, producer);
        }
    }
    o->nodes[o->count++] = id;
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t reader =
            node->outputs[k] == WEFTI_NONE ? WEFTI_NONE : o->update_of[node->outputs[k]];
        if (reader != WEFTI_NONE) {
            place_update(graph, o, placed, reader);
        }
    }
}

/* Updates of what a collective reduces, in the order of collectives; then the others. */
static weft_status_t place_updates(maker_t *m, order_t *o)
{
    const wefti_graph_t *graph = m->graph;
    uint32_t before = o->count;
    bool *placed = wefti_arena_array(&m->arena, graph->node_count, sizeof(*placed));
    WEFT_RETURN_IF_NO_MEMORY(placed);
    WEFT_RETURN_IF_ERROR(find_updates(m, o));
    for (uint32_t i = 0; i < before; i++) {
        const wefti_node_t *node = &graph->nodes[o->nodes[i]];
        for (uint32_t k = 0; wefti_node_communicates(node) && k < node->output_count; k++) {
            uint32_t update =
                node->outputs[k] == WEFTI_NONE ? WEFTI_NONE : o->update_of[node->outputs[k]];
            if (update != WEFTI_NONE) {
                place_update(graph, o, placed, update);
            }
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        place_update(graph, o, placed, graph->order[i]);
    }
    return WEFT_OK;
}

static weft_status_t order_step(maker_t *m)
{
    order_t o = {0};
    o.nodes = wefti_id_map(&m->arena, m->graph->order_count);
    WEFT_RETURN_IF_NO_MEMORY(o.nodes);
    WEFT_RETURN_IF_ERROR(place_collectives(m, &o));
    WEFT_RETURN_IF_ERROR(place_updates(m, &o));
    memcpy(m->graph->order, o.nodes, o.count * sizeof(*o.nodes));
    return WEFT_OK;
}

/*
 * What values need.
 */

static void need_producer(maker_t *m, uint32_t value)
{
    uint32_t producer = wefti_producer(m->graph, value);
    if (producer != WEFTI_NONE) {
        m->needed[producer] = true;
    }
}

/* The needed nodes, or in place of each its variant, as a program. */
static weft_status_t add_needed(maker_t *m, const char *name, const uint32_t *variant)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->graph->order_count; i++) {
        uint32_t id = m->graph->order[i];
        if (m->needed[id]) {
            m->nodes[count++] = variant != NULL && variant[id] != WEFTI_NONE ? variant[id] : id;
        }
    }
    return wefti_graph_add_program(m->graph, name, m->nodes, count);
}

/*
 * init
 */

/* Weights of which each rank has a shard only (shard_parameters.c), by value. */
static bool *mark_sharded(maker_t *m)
{
    const wefti_graph_t *graph = m->graph;
    bool *sharded = wefti_arena_array(&m->arena, graph->value_count, sizeof(*sharded));
    for (uint32_t i = 0; i < graph->order_count && sharded != NULL; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 1; node->phase == WEFTI_PHASE_COMM && k < node->input_count &&
                             wefti_node_is_flat_gather(node);
             k++) {
            sharded[node->inputs[k]] = true;
        }
    }
    return sharded;
}

/* A Broadcast of the weights of one type. */
static weft_status_t add_broadcast(maker_t *m, const uint32_t *weights, uint32_t count)
{
    wefti_graph_t *graph = m->graph;
    const weft_attr_t reason = {
        .name = "reason", .type = WEFT_ATTR_TYPE_STRING, .s = "broadcasts the weights of rank 0"};
    const char **names = wefti_arena_array(&m->arena, count, sizeof(*names));
    WEFT_RETURN_IF_NO_MEMORY(names);
    for (uint32_t i = 0; i < count; i++) {
        names[i] = wefti_arena_printf(&m->arena, "%s.initial", graph->values[weights[i]].name);
        WEFT_RETURN_IF_NO_MEMORY(names[i]);
    }
    wefti_node_params_t params = {.domain = "weft",
                                  .op = "Broadcast",
                                  .name = "initial weights",
                                  .phase = WEFTI_PHASE_COMM,
                                  .inputs = weights,
                                  .output_names = names,
                                  .input_count = count,
                                  .output_count = count,
                                  .attrs = &reason,
                                  .attr_count = 1};
    return wefti_graph_add_node(graph, &params, &m->broadcasts[m->broadcast_count++]);
}

/* Broadcasts of all weights that are whole, one per type, in front of all other nodes: they read
 * the weights, which updates overwrite. */
static weft_status_t add_broadcasts(maker_t *m)
{
    wefti_graph_t *graph = m->graph;
    uint32_t value_count = graph->value_count, others = graph->order_count;
    uint32_t *weights = wefti_id_map(&m->arena, value_count);
    bool *done = mark_sharded(m);
    m->broadcasts = wefti_id_map(&m->arena, value_count);
    WEFT_RETURN_IF_NO_MEMORY(weights && done && m->broadcasts);
    for (uint32_t v = 0; v < value_count; v++) {
        done[v] = done[v] || graph->values[v].kind != WEFTI_VALUE_PARAM ||
                  wefti_value_bytes(&graph->values[v]) == 0;
    }
    for (uint32_t first = 0; first < value_count && m->params->broadcast_weights; first++) {
        weft_dtype_t dtype = graph->values[first].type.dtype;
        uint32_t count = 0;
        for (uint32_t v = first; v < value_count && !done[first]; v++) {
            if (!done[v] && graph->values[v].type.dtype == dtype) {
                weights[count++] = v;
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            done[weights[i]] = true;
        }
        if (count > 0) {
            WEFT_RETURN_IF_ERROR(add_broadcast(m, weights, count));
        }
    }
    memmove(graph->order + m->broadcast_count, graph->order, others * sizeof(*graph->order));
    if (m->broadcast_count > 0) {
        memcpy(graph->order, m->broadcasts, m->broadcast_count * sizeof(*graph->order));
    }
    return WEFT_OK;
}

/*
 * eval
 */

/* Does the forward pass, or a reader of the graph's outputs, read output index of a node? */
static bool read_forward(const wefti_graph_t *graph, const wefti_node_t *node, uint32_t index)
{
    uint32_t value = index < node->output_count ? node->outputs[index] : WEFTI_NONE;
    if (value == WEFTI_NONE) {
        return false;
    }
    for (uint32_t n = 0; n < graph->order_count; n++) {
        const wefti_node_t *reader = &graph->nodes[graph->order[n]];
        for (uint32_t j = 0; reader->phase == WEFTI_PHASE_FORWARD && j < reader->input_count; j++) {
            if (reader->inputs[j] == value) {
                return true;
            }
        }
    }
    return (graph->values[value].flags & WEFTI_VALUE_OUTPUT) != 0;
}

/* What eval runs in place of a node, or NULL. */
static const weft_op_def_t *eval_op(const wefti_graph_t *graph, const wefti_node_t *node)
{
    const weft_op_ref_t op = wefti_op_facts(node->def).evaluation;
    return op.name == NULL || read_forward(graph, node, 1)
               ? NULL
               : weft_registry_find_op(graph->registry, op.domain, op.name, graph->opset);
}

static weft_status_t add_eval_node(maker_t *m, uint32_t id, const weft_op_def_t *def)
{
    wefti_graph_t *graph = m->graph;
    const wefti_node_t *node = &graph->nodes[id];
    char *name = wefti_arena_printf(&m->arena, "%s.eval", node->name);
    char *output = wefti_arena_printf(&m->arena, "%s.eval", graph->values[node->outputs[0]].name);
    WEFT_RETURN_IF_NO_MEMORY(name && output);
    const char *names[] = {output};
    uint32_t of = node->outputs[0];
    uint32_t *inputs =
        wefti_arena_memdup(&m->arena, node->inputs, node->input_count * sizeof(*inputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    wefti_node_params_t params = {
        .def = def,
        .name = name,
        .version = graph->opset,
        .phase = node->phase,
        .inputs = inputs,
        .input_count = node->input_count < def->inputs_max ? node->input_count : def->inputs_max,
        .output_names = names,
        .output_count = 1,
        .attrs = node->attrs,
        .attr_count = def->attr_count == 0 ? 0 : node->attr_count};
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(graph, &params, &m->variant[id]));
    graph->values[graph->nodes[m->variant[id]].outputs[0]].alias_of = of;
    return WEFT_OK;
}

/* Marks what evaluation needs; *out_alone: none of it communicates, but to gather weights. */
static weft_status_t find_eval(maker_t *m, bool *out_alone)
{
    const wefti_graph_t *graph = m->graph;
    memset(m->needed, 0, graph->node_count * sizeof(*m->needed));
    if (graph->loss != WEFTI_NONE) {
        need_producer(m, graph->loss);
        need_producer(m, graph->logits);
    }
    for (uint32_t i = 0; graph->loss == WEFTI_NONE && i < graph->output_count; i++) {
        need_producer(m, graph->outputs[i]);
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_mark_needed(graph, m->needed, true));
    *out_alone = true;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        *out_alone = *out_alone && !(m->needed[id] && wefti_node_communicates(&graph->nodes[id]) &&
                                     !wefti_node_is_flat_gather(&graph->nodes[id]));
    }
    return WEFT_OK;
}

/* Nodes of eval, each behind the node that step runs. */
static weft_status_t add_eval(maker_t *m)
{
    wefti_graph_t *graph = m->graph;
    bool alone = false;
    uint32_t count = graph->order_count;
    uint32_t *order = wefti_id_map(&m->arena, 2 * (size_t)count);
    m->variant = wefti_id_map(&m->arena, graph->node_count);
    WEFT_RETURN_IF_NO_MEMORY(order && m->variant);
    WEFT_RETURN_IF_ERROR(find_eval(m, &alone));
    if (!alone && m->params->broadcast_weights) {
        return WEFT_OK;
    }
    for (uint32_t i = 0, at = 0; i < count; i++) {
        uint32_t id = graph->order[i];
        const weft_op_def_t *def = m->needed[id] ? eval_op(graph, &graph->nodes[id]) : NULL;
        order[at++] = id;
        if (def != NULL) {
            WEFT_RETURN_IF_ERROR(add_eval_node(m, id, def));
            order[at++] = m->variant[id];
        }
    }
    memcpy(graph->order, order, graph->order_count * sizeof(*order));
    return add_needed(m, "eval", m->variant);
}

/*
 * The others.
 */

static weft_status_t add_step(maker_t *m)
{
    const wefti_graph_t *graph = m->graph;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        m->needed[i] = !wefti_graph_outside_step(graph, i);
    }
    for (uint32_t i = 0; i < m->broadcast_count; i++) {
        m->needed[m->broadcasts[i]] = false;
    }
    return add_needed(m, "step", NULL);
}

static weft_status_t add_programs(maker_t *m)
{
    WEFT_RETURN_IF_ERROR(order_step(m));
    WEFT_RETURN_IF_ERROR(add_broadcasts(m));
    if (m->params->broadcast_weights) {
        WEFT_RETURN_IF_ERROR(
            wefti_graph_add_program(m->graph, "init", m->broadcasts, m->broadcast_count));
    }
    m->nodes = wefti_id_map(&m->arena, 2 * (size_t)m->graph->order_count);
    m->needed = wefti_arena_array(&m->arena, 2 * (size_t)m->graph->node_count, sizeof(*m->needed));
    WEFT_RETURN_IF_NO_MEMORY(m->nodes && m->needed);
    WEFT_RETURN_IF_ERROR(add_step(m));
    if (!m->params->infer) {
        WEFT_RETURN_IF_ERROR(add_eval(m));
    }
    return wefti_graph_refresh_programs(m->graph);
}

wefti_program_params_t wefti_program_params(const wefti_lower_params_t *params)
{
    return (wefti_program_params_t){.infer = params->infer,
                                    .broadcast_weights = !params->rank_data};
}

weft_status_t wefti_pass_programs(wefti_graph_t *graph, const wefti_program_params_t *params)
{
    maker_t m = {.graph = graph, .params = params};
    wefti_arena_init(&m.arena, graph->arena.allocator, 0);
    weft_status_t status = add_programs(&m);
    wefti_arena_deinit(&m.arena);
    return status;
}

weft_status_t wefti_apply_programs(wefti_compiler_t *c)
{
    wefti_lower_params_t lower;
    weft_status_t status = wefti_compile_lower_params(c, &lower);
    if (status >= 0) {
        const wefti_program_params_t params = wefti_program_params(&lower);
        status = wefti_pass_programs(c->graph, &params);
    }
    return status;
}

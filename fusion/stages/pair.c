/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives of models that differ by rank become transfers:
 *
 *   model 0:  a -> Send{peer=1,tag=3}                    a -> Transfer{root=0,to=2} -> c
 *   model 1:  Recv{peer=0,tag=3,shape=..} -> c    =>
 *
 * As in MPI, send i from one rank to another with one tag meets receive i, in the order of the
 * graphs. All ranks run transfers in the order of one graph, so models that send in both directions
 * do not wait for each other; a cycle of values is an error of the sort.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "fusion/stages/stages.h"
#include "runtime/base/error.h"

typedef struct end {
    uint32_t node, model, peer, place; /* place: among all ends */
    uint32_t partner;                  /* a place, or WEFTI_NONE */
    int64_t tag;
    bool sends;
} end_t;

typedef struct pairing {
    wefti_compiler_t *c;
    wefti_graph_t *graph;
    end_t *ends; /* in the order of the graphs, model by model */
    uint32_t count;
    uint32_t *by; /* by value: what is received in its place */
    uint32_t value_count;
} pairing_t;

bool wefti_node_is_sent(const wefti_node_t *node)
{
    return node->def->ordering == WEFT_ORDERING_PAIR && wefti_node_attr(node, "peer") != NULL;
}

static weft_status_t fail(const pairing_t *p, const end_t *end, weft_status_t status,
                          const char *what)
{
    WEFT_RETURN_IF_NO_MEMORY(what);
    const wefti_node_t *node = &p->graph->nodes[end->node];
    return wefti_error_field(status, "rank_models", "%s: node '%s' (%s): %s",
                             p->c->params.rank_models[end->model], node->name, node->def->name,
                             what);
}

static weft_status_t read_end(const pairing_t *p, end_t *end)
{
    const wefti_node_t *node = &p->graph->nodes[end->node];
    int64_t peer = wefti_node_int(node, "peer");
    end->tag = wefti_node_int(node, "tag");
    end->sends = node->output_count == 0;
    if (wefti_node_int(node, "group") != 0) {
        return fail(p, end, WEFT_ERR_UNSUPPORTED, "the only group is 0, that of all models");
    }
    if (peer < 0 || peer >= p->c->model_count || peer == end->model) {
        return fail(p, end, WEFT_ERR_INVALID_ARGUMENT,
                    wefti_arena_printf(&p->c->arena,
                                       "invalid peer %" PRId64 " of rank %u: there are %u models",
                                       peer, end->model, p->c->model_count));
    }
    end->peer = (uint32_t)peer;
    return WEFT_OK;
}

static weft_status_t find_ends(pairing_t *p, const uint32_t *first_node)
{
    const wefti_graph_t *graph = p->graph;
    p->ends = wefti_arena_array(&p->c->arena, graph->order_count + 1u, sizeof(*p->ends));
    WEFT_RETURN_IF_NO_MEMORY(p->ends);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i], model = p->c->model_count - 1;
        if (wefti_node_is_sent(&graph->nodes[id])) {
            while (id < first_node[model]) {
                model--;
            }
            p->ends[p->count] =
                (end_t){.node = id, .model = model, .place = p->count, .partner = WEFTI_NONE};
            WEFT_RETURN_IF_ERROR(read_end(p, &p->ends[p->count]));
            p->count++;
        }
    }
    return WEFT_OK;
}

/* By sender, receiver and tag. */
static int by_channel(const void *a, const void *b)
{
    const end_t *x = a, *y = b;
    const int64_t left[] = {x->sends ? x->model : x->peer, x->sends ? x->peer : x->model, x->tag};
    const int64_t right[] = {y->sends ? y->model : y->peer, y->sends ? y->peer : y->model, y->tag};
    for (int i = 0; i < 3; i++) {
        if (left[i] != right[i]) {
            return left[i] < right[i] ? -1 : 1;
        }
    }
    return 0;
}

/* And sends first, each kind in the order of the graphs. */
static int in_channel(const void *a, const void *b)
{
    const end_t *x = a, *y = b;
    int order = by_channel(a, b);
    return order != 0             ? order
           : x->sends != y->sends ? (x->sends ? -1 : 1)
                                  : (x->place > y->place) - (x->place < y->place);
}

/* Send i of a channel meets receive i. */
static weft_status_t find_partners(pairing_t *p)
{
    end_t *sorted = wefti_arena_memdup(&p->c->arena, p->ends, (p->count + 1u) * sizeof(*sorted));
    WEFT_RETURN_IF_NO_MEMORY(sorted);
    qsort(sorted, p->count, sizeof(*sorted), in_channel);
    for (uint32_t first = 0, sends, end; first < p->count; first = end) {
        for (sends = first; sends < p->count && sorted[sends].sends &&
                            by_channel(&sorted[first], &sorted[sends]) == 0;) {
            sends++;
        }
        for (end = sends; end < p->count && by_channel(&sorted[first], &sorted[end]) == 0;) {
            end++;
        }
        for (uint32_t i = 0; first + i < sends && sends + i < end; i++) {
            p->ends[sorted[first + i].place].partner = sorted[sends + i].place;
            p->ends[sorted[sends + i].place].partner = sorted[first + i].place;
        }
    }
    return WEFT_OK;
}

static weft_status_t refuse_alone(const pairing_t *p, const end_t *end)
{
    return fail(p, end, WEFT_ERR_INVALID_ARGUMENT,
                wefti_arena_printf(
                    &p->c->arena,
                    "no %s of rank %u is left for it: expected one with peer %u and tag %" PRId64,
                    end->sends ? "Recv" : "Send", end->peer, end->model, end->tag));
}

static weft_status_t check_types(const pairing_t *p, const end_t *send, const end_t *recv)
{
    const wefti_graph_t *graph = p->graph;
    const weft_tensor_desc_t *sent = &graph->values[graph->nodes[send->node].inputs[0]].type;
    const weft_tensor_desc_t *expected = &graph->values[graph->nodes[recv->node].outputs[0]].type;
    char types[2][WEFTI_TYPE_TEXT_BYTES];
    if (sent->dtype == expected->dtype && sent->rank == expected->rank &&
        memcmp(sent->dims, expected->dims, sent->rank * sizeof(*sent->dims)) == 0) {
        return WEFT_OK;
    }
    return fail(p, send, WEFT_ERR_INVALID_ARGUMENT,
                wefti_arena_printf(
                    &p->c->arena, "sends %s, but node '%.200s' of %.200s receives %s",
                    wefti_type_text(sent, types[0]), graph->nodes[recv->node].name,
                    p->c->params.rank_models[recv->model], wefti_type_text(expected, types[1])));
}

/* A value that no operator computes is of no place (graph/places.c). */
static weft_status_t compute(wefti_graph_t *graph, uint32_t *value, uint32_t send)
{
    if (graph->values[*value].kind == WEFTI_VALUE_NODE) {
        return WEFT_OK;
    }
    const wefti_node_params_t params = {.domain = "",
                                        .op = "Identity",
                                        .phase = WEFTI_PHASE_FORWARD,
                                        .inputs = value,
                                        .input_count = 1};
    return wefti_graph_insert_for(graph, send, "value", params, value);
}

static weft_status_t join_pair(pairing_t *p, const end_t *send, const end_t *recv)
{
    wefti_graph_t *graph = p->graph;
    uint32_t value =
        wefti_graph_replacement(p->by, p->value_count, graph->nodes[send->node].inputs[0]);
    uint32_t received;
    WEFT_RETURN_IF_ERROR(check_types(p, send, recv));
    WEFT_RETURN_IF_ERROR(compute(graph, &value, send->node));
    const weft_attr_t reason = {
        .name = "reason",
        .type = WEFT_ATTR_TYPE_STRING,
        .s = wefti_arena_printf(&graph->arena, "node '%s' sends to node '%s', tag %" PRId64,
                                graph->nodes[send->node].name, graph->nodes[recv->node].name,
                                send->tag)};
    WEFT_RETURN_IF_NO_MEMORY(reason.s);
    WEFT_RETURN_IF_ERROR(
        wefti_stages_send(graph, value, send->model, recv->model, NULL, &received));
    WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, graph->values[received].producer, &reason));
    p->by[graph->nodes[recv->node].outputs[0]] = received;
    graph->nodes[send->node].dead = graph->nodes[recv->node].dead = true;
    return WEFT_OK;
}

weft_status_t wefti_stages_pair(wefti_compiler_t *c, const uint32_t *first_node)
{
    pairing_t p = {.c = c, .graph = c->models[0].graph};
    WEFT_RETURN_IF_ERROR(find_ends(&p, first_node));
    WEFT_RETURN_IF_ERROR(find_partners(&p));
    p.value_count = p.graph->value_count;
    p.by = wefti_id_map(&c->arena, p.value_count);
    WEFT_RETURN_IF_NO_MEMORY(p.by);
    for (uint32_t i = 0; i < p.count; i++) {
        const end_t *send = &p.ends[i];
        if (send->sends && send->partner == WEFTI_NONE) {
            return refuse_alone(&p, send);
        }
        if (send->sends) {
            WEFT_RETURN_IF_ERROR(join_pair(&p, send, &p.ends[send->partner]));
        }
    }
    for (uint32_t i = 0; i < p.count; i++) {
        if (p.ends[i].partner == WEFTI_NONE) {
            return refuse_alone(&p, &p.ends[i]);
        }
    }
    wefti_graph_replace_all(p.graph, p.by, p.value_count);
    wefti_graph_compact_order(p.graph);
    return WEFT_OK;
}

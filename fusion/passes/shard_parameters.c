/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard-parameters: each rank keeps only its shard of the weights (ZeRO-3, FSDP).
 *
 * Matches a bucket in the form that shard.c produces, whose weights only kernels read:
 *
 *   Shard w1..wn -> shard -> update -> new shard -> AllGather -> w1'..wn'
 *   w1..wn -> kernels of the forward pass, kernels of the backward pass
 *
 * Produces an all-gather before each pass that reads the weights, and none after the update:
 *
 *   Shard w1..wn -> shard -> AllGather -> w1_forward..  -> kernels of the forward pass
 *                         -> AllGather -> w1_backward.. -> kernels of the backward pass
 *                         -> update
 *
 * Only Shard reads w1..wn now, so no rank needs memory for all of them. The gathered tensors are
 * values of their own: their memory is reused after the last kernel that reads them. If no other
 * bucket is read between the two passes, one all-gather serves both. Kernels read the same bytes as
 * before, so no bit changes.
 *
 * in_flight K bounds the gathered weights in memory: the all-gather for a bucket is issued when the
 * kernels are reached that read the bucket K - 1 all-gathers earlier. Constraints express that.
 *
 * A bucket stays as it is, and gets attribute shard_reason, if another node than a kernel reads a
 * weight, or if a new weight is read outside of the update.
 */
#include <stdlib.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "runtime/base/error.h"

enum { FORWARD, BACKWARD, PASSES };

typedef struct gather {
    uint32_t node;
    uint32_t first; /* position of the first kernel that reads the weights */
} gather_t;

typedef struct bucket {
    uint32_t scatter, view, update, gather; /* nodes */
    uint32_t count;                         /* members */
    const uint32_t *params;
    uint32_t first[PASSES], last[PASSES]; /* positions of readers; WEFTI_NONE: no reader */
} bucket_t;

typedef struct splitter {
    wefti_graph_t *graph;
    uint32_t in_flight;
    wefti_arena_t arena;
    wefti_readers_t readers;
    uint32_t *position; /* by node, in the order */
    uint32_t *reads;    /* by position: weights of buckets that nodes before it read */
    bucket_t *buckets;
    uint32_t bucket_count;
    gather_t *gathers;
    uint32_t gather_count;
} splitter_t;

static bool is_output(const wefti_value_t *value)
{
    return (value->flags & (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS)) != 0;
}

/* The nodes of the bucket whose weights gather completes. */
static bool find_bucket(const splitter_t *s, uint32_t gather, bucket_t *out)
{
    const wefti_graph_t *graph = s->graph;
    const wefti_node_t *node = &graph->nodes[gather];
    uint32_t update =
        wefti_node_is_flat_gather(node) ? wefti_producer(graph, node->inputs[0]) : WEFTI_NONE;
    if (update == WEFTI_NONE || graph->nodes[update].phase != WEFTI_PHASE_UPDATE) {
        return false;
    }
    uint32_t view = wefti_producer(graph, graph->nodes[update].inputs[0]);
    uint32_t scatter = wefti_producer(graph, graph->nodes[update].inputs[1]);
    if (view == WEFTI_NONE || wefti_node_range(&graph->nodes[view]) != WEFT_RANGE_ROLE_SHARD ||
        scatter == WEFTI_NONE || !wefti_node_is_flat_scatter(&graph->nodes[scatter])) {
        return false;
    }
    *out = (bucket_t){.scatter = scatter,
                      .view = view,
                      .update = update,
                      .gather = gather,
                      .count = graph->nodes[view].input_count,
                      .params = graph->nodes[view].inputs,
                      .first = {WEFTI_NONE, WEFTI_NONE},
                      .last = {WEFTI_NONE, WEFTI_NONE}};
    return true;
}

/* Why every rank needs all of member i, or NULL. */
static const char *whole_reason(const splitter_t *s, const bucket_t *bucket, uint32_t i)
{
    const wefti_graph_t *graph = s->graph;
    uint32_t param = bucket->params[i], updated = graph->nodes[bucket->gather].outputs[i];
    if (is_output(&graph->values[param])) {
        return "is an output of the graph";
    }
    if (updated != WEFTI_NONE && (is_output(&graph->values[updated]) ||
                                  s->readers.first[updated] < s->readers.first[updated + 1])) {
        return "is read after its update";
    }
    for (uint32_t k = s->readers.first[param]; k < s->readers.first[param + 1]; k++) {
        uint32_t reader = s->readers.nodes[k];
        wefti_phase_t phase = graph->nodes[reader].phase;
        if (reader != bucket->view && reader != bucket->gather && phase != WEFTI_PHASE_FORWARD &&
            phase != WEFTI_PHASE_BACKWARD) {
            return "is read by a collective or by another update";
        }
    }
    return NULL;
}

static uint32_t pass_of(const wefti_node_t *node)
{
    return node->phase == WEFTI_PHASE_BACKWARD ? BACKWARD : FORWARD;
}

static void note_readers(splitter_t *s, bucket_t *bucket)
{
    for (uint32_t i = 0; i < bucket->count; i++) {
        uint32_t param = bucket->params[i];
        for (uint32_t k = s->readers.first[param]; k < s->readers.first[param + 1]; k++) {
            uint32_t reader = s->readers.nodes[k], at = s->position[reader];
            if (reader == bucket->view || reader == bucket->gather) {
                continue;
            }
            uint32_t pass = pass_of(&s->graph->nodes[reader]);
            uint32_t *first = &bucket->first[pass], *last = &bucket->last[pass];
            *first = *first == WEFTI_NONE || at < *first ? at : *first;
            *last = *last == WEFTI_NONE || at > *last ? at : *last;
            s->reads[at + 1]++;
        }
    }
}

/* Adds the bucket of gather, if there is one and its weights can be sharded. */
static weft_status_t add_bucket(splitter_t *s, uint32_t gather)
{
    bucket_t *bucket = &s->buckets[s->bucket_count];
    if (!find_bucket(s, gather, bucket)) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < bucket->count; i++) {
        const char *why = whole_reason(s, bucket, i);
        if (why == NULL) {
            continue;
        }
        const weft_attr_t attr = {
            .name = "shard_reason",
            .type = WEFT_ATTR_TYPE_STRING,
            .s = wefti_arena_printf(&s->arena, "weights are whole on all ranks: %s %s",
                                    s->graph->values[bucket->params[i]].name, why)};
        return attr.s == NULL ? WEFT_ERR_NO_MEMORY
                              : wefti_graph_set_attr(s->graph, bucket->scatter, &attr);
    }
    note_readers(s, bucket);
    s->bucket_count +=
        bucket->first[FORWARD] != WEFTI_NONE || bucket->first[BACKWARD] != WEFTI_NONE;
    return WEFT_OK;
}

/* Does one all-gather serve both passes? */
static bool gathers_once(const splitter_t *s, const bucket_t *bucket)
{
    uint32_t last = bucket->last[FORWARD], first = bucket->first[BACKWARD];
    return last != WEFTI_NONE && first != WEFTI_NONE &&
           (first <= last || s->reads[first] == s->reads[last + 1]);
}

/* The readers of one pass, or of both, read output i of node gather in place of member i. */
static void take_readers(splitter_t *s, const bucket_t *bucket, uint32_t i, uint32_t gather,
                         uint32_t passes)
{
    wefti_graph_t *graph = s->graph;
    uint32_t param = bucket->params[i], gathered = graph->nodes[gather].outputs[i];
    for (uint32_t k = s->readers.first[param]; k < s->readers.first[param + 1]; k++) {
        uint32_t reader = s->readers.nodes[k];
        wefti_node_t *node = &graph->nodes[reader];
        for (uint32_t j = 0; j < node->input_count; j++) {
            if (reader != bucket->view && reader != bucket->gather && node->inputs[j] == param &&
                (passes >> pass_of(node) & 1) != 0) {
                node->inputs[j] = gathered;
            }
        }
    }
}

/* An all-gather for the kernels of some passes (a mask), before the first of them. */
static weft_status_t add_gather(splitter_t *s, const bucket_t *bucket, uint32_t passes,
                                const char *word, uint32_t first)
{
    wefti_graph_t *graph = s->graph;
    const wefti_node_t *like = &graph->nodes[bucket->gather];
    const char **names = wefti_arena_array(&s->arena, bucket->count, sizeof(*names));
    uint32_t *in = wefti_arena_memdup(&s->arena, like->inputs, like->input_count * sizeof(*in));
    char *name = wefti_arena_printf(&s->arena, "%s_%s", like->name, word);
    uint32_t node;
    WEFT_RETURN_IF_NO_MEMORY(names && in && name);
    in[0] = graph->nodes[bucket->view].outputs[0];
    for (uint32_t i = 0; i < bucket->count; i++) {
        names[i] =
            wefti_arena_printf(&s->arena, "%s_%s", graph->values[bucket->params[i]].name, word);
        WEFT_RETURN_IF_NO_MEMORY(names[i]);
    }
    const wefti_node_params_t params = {.def = like->def,
                                        .version = like->version,
                                        .name = name,
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = in,
                                        .input_count = bucket->count + 1,
                                        .output_names = names,
                                        .output_count = bucket->count,
                                        .attrs = like->attrs,
                                        .attr_count = like->attr_count};
    uint32_t after = first > 0 ? graph->order[first - 1] : WEFTI_WHEN_READY;
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, after, &node));
    s->gathers[s->gather_count++] = (gather_t){node, first};
    for (uint32_t i = 0; i < bucket->count; i++) {
        take_readers(s, bucket, i, node, passes);
    }
    return wefti_graph_join_programs(graph, node);
}

/* A view costs nothing: it comes before all kernels. */
static weft_status_t gather_bucket(splitter_t *s, const bucket_t *bucket)
{
    const uint32_t *first = bucket->first;
    if (gathers_once(s, bucket)) {
        WEFT_RETURN_IF_ERROR(
            add_gather(s, bucket, 1u << FORWARD | 1u << BACKWARD, "gathered",
                       first[BACKWARD] < first[FORWARD] ? first[BACKWARD] : first[FORWARD]));
    } else {
        if (first[FORWARD] != WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(add_gather(s, bucket, 1u << FORWARD, "forward", first[FORWARD]));
        }
        if (first[BACKWARD] != WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(
                add_gather(s, bucket, 1u << BACKWARD, "backward", first[BACKWARD]));
        }
    }
    s->graph->nodes[bucket->gather].dead = true;
    s->graph->nodes[bucket->view].phase = WEFTI_PHASE_COMM;
    s->graph->nodes[bucket->view].after = WEFTI_WHEN_READY;
    return wefti_graph_join_programs(s->graph, bucket->view);
}

static int compare_first(const void *a, const void *b)
{
    const gather_t *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1)
                                : (x->node > y->node) - (x->node < y->node);
}

/* The last kernel before a position of the present order, or WEFTI_NONE. */
static uint32_t kernel_before(const splitter_t *s, const uint32_t *order, uint32_t position)
{
    while (position-- > 0) {
        const wefti_node_t *node = &s->graph->nodes[order[position]];
        if (node->phase == WEFTI_PHASE_FORWARD || node->phase == WEFTI_PHASE_BACKWARD) {
            return order[position];
        }
    }
    return WEFTI_NONE;
}

/* order: the present one. */
static weft_status_t bound_gathers(splitter_t *s, const uint32_t *order)
{
    if (s->gather_count > 0) {
        qsort(s->gathers, s->gather_count, sizeof(*s->gathers), compare_first);
    }
    for (uint32_t i = s->in_flight - 1; i < s->gather_count; i++) {
        uint32_t reader = s->gathers[i - (s->in_flight - 1)].first;
        uint32_t before = kernel_before(s, order, reader);
        if (before != WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(wefti_graph_add_constraint(s->graph, before, s->gathers[i].node));
        }
    }
    return WEFT_OK;
}

static weft_status_t begin(splitter_t *s)
{
    wefti_graph_t *graph = s->graph;
    size_t most = (size_t)graph->node_count + PASSES * (size_t)graph->order_count;
    s->position = wefti_arena_array(&s->arena, graph->node_count, sizeof(*s->position));
    s->reads = wefti_arena_array(&s->arena, (size_t)graph->order_count + 2, sizeof(*s->reads));
    s->buckets = wefti_arena_array(&s->arena, (size_t)graph->order_count + 1, sizeof(*s->buckets));
    s->gathers = wefti_arena_array(&s->arena, most, sizeof(*s->gathers));
    WEFT_RETURN_IF_NO_MEMORY(s->position && s->reads && s->buckets && s->gathers);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        s->position[graph->order[i]] = i;
    }
    return wefti_graph_readers(graph, graph->order, graph->order_count, &s->arena, &s->readers);
}

static weft_status_t shard_parameters(splitter_t *s)
{
    const wefti_graph_t *graph = s->graph;
    uint32_t count = graph->order_count;
    uint32_t *order = wefti_arena_memdup(&s->arena, graph->order, count * sizeof(*order));
    WEFT_RETURN_IF_NO_MEMORY(order);
    WEFT_RETURN_IF_ERROR(begin(s));
    for (uint32_t i = 0; i < count; i++) {
        WEFT_RETURN_IF_ERROR(add_bucket(s, graph->order[i]));
    }
    for (uint32_t i = 0; i <= count; i++) {
        s->reads[i + 1] += s->reads[i];
    }
    for (uint32_t b = 0; b < s->bucket_count; b++) {
        WEFT_RETURN_IF_ERROR(gather_bucket(s, &s->buckets[b]));
    }
    WEFT_RETURN_IF_ERROR(bound_gathers(s, order));
    return wefti_graph_sort(s->graph);
}

weft_status_t wefti_pass_shard_parameters(wefti_graph_t *graph, uint32_t in_flight)
{
    splitter_t s = {.graph = graph, .in_flight = in_flight};
    wefti_arena_init(&s.arena, graph->arena.allocator, 0);
    weft_status_t status = shard_parameters(&s);
    wefti_arena_deinit(&s.arena);
    return status;
}

weft_status_t wefti_apply_shard_parameters(wefti_compiler_t *c)
{
    return wefti_pass_shard_parameters(c->graph, wefti_compile_in_flight(c));
}

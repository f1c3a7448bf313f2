/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard: shards optimizer states (ZeRO-1) and the work of updates over all ranks.
 *
 * Matches an all-reduce of gradients (a bucket) whose parameters have the same update, element-wise
 * or with norms:
 *
 *   AllReduce g1..gn -> r1..rn         r1 -> update w1    ...    rn -> update wn
 *
 * Produces, with the members side by side as one flat range that divides into a shard per rank:
 *
 *   ReduceScatter g1..gn -> shard of the gradients  \
 *                 Shard w1..wn -> shard of the weights > update of shards -> AllGather w1..wn
 *                              states of the shard /
 *
 * Every element goes through the same operations as before, so no bit changes, and a rank has only
 * the states of its shard. A bucket stays as it is, and gets attribute shard_reason, if the updates
 * of its members differ, if another node reads a reduced gradient, or if a piece is too small.
 *
 * An update that takes norms of each parameter (LAMB) gets those that all shards have together, the
 * sums of all buckets in one all-reduce:
 *
 *   LambSquares of bucket 1 -> LambSquares of bucket 2 .. -> AllReduce -> all updates of shards
 *
 * Such sums are exact, so their bits do not depend on the shards.
 *
 * Sums of squares for clipping are taken of the shards, reduced over all ranks, and continued with
 * the gradients that every rank has whole:
 *
 *   SquareSum of shards -> AllReduce -> SquareSum of whole gradients -> ClipScale
 */
#include <string.h>

#include "fusion/passes/gradient_sums.h"
#include "fusion/passes/passes.h"
#include "fusion/passes/update_group.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Operands of Lamb; after the scale it reads the sums and the number of the shard. */
enum { LAMB_MOMENT1 = 2, LAMB_MOMENT2, LAMB_LR, LAMB_STEP, LAMB_SCALE, LAMB_SUMS, LAMB_SHARD };
#define LAMB_INPUTS (LAMB_SHARD + 1)

/* A sharded bucket whose update waits for norms. */
typedef struct normed {
    wefti_update_group_t group;
    uint32_t grads, params; /* shards */
    uint32_t row;           /* of its first tensor among the sums */
    uint32_t *in;           /* of its update */
    weft_attr_t begins;
} normed_t;

typedef struct sharder {
    wefti_graph_t *graph;
    const wefti_shard_params_t *params;
    wefti_arena_t arena;
    wefti_readers_t readers;
    uint32_t *slots, slot_count;
    uint32_t old_count;  /* nodes before the pass */
    uint32_t *shard_of;  /* by node of these: reduce-scatter that replaces it, or WEFTI_NONE */
    weft_attr_t flat[4]; /* attributes of the bucket's nodes: flat, group, group_size, parts */
    uint32_t flat_count;
    normed_t *normed;
    uint32_t normed_count, row_count; /* buckets, and their tensors */
} sharder_t;

static uint64_t aligned_bytes(const wefti_graph_t *graph, const uint32_t *values, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += wefti_align_up(wefti_value_bytes(&graph->values[values[i]]), WEFTI_PLAN_ALIGNMENT);
    }
    return bytes;
}

/* Sharded, the reduced gradient is nowhere whole: only its update may read it. */
static const char *read_by_others(const sharder_t *s, uint32_t reduced, uint32_t update)
{
    const wefti_value_t *value = &s->graph->values[reduced];
    if ((value->flags & (WEFTI_VALUE_OUTPUT | WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS)) != 0) {
        return "is an output of the graph";
    }
    for (uint32_t i = s->readers.first[reduced]; i < s->readers.first[reduced + 1]; i++) {
        uint32_t node = s->readers.nodes[i];
        if (node != update && !wefti_op_has(s->graph->nodes[node].def, WEFT_FACT_ACCUMULATES)) {
            return "is read by more than its update";
        }
    }
    return NULL;
}

/* Why a bucket cannot be sharded, or NULL. */
static const char *whole_reason(sharder_t *s, const wefti_update_group_t *group)
{
    const wefti_node_t *node = &s->graph->nodes[group->node];
    if (!group->uniform) {
        return "not sharded: its updates are not one operator on ranges with the same settings";
    }
    for (uint32_t i = 0; i < group->count; i++) {
        const char *why = read_by_others(s, node->outputs[i], group->updates[i]);
        if (why != NULL) {
            why = wefti_arena_printf(&s->arena, "not sharded: %s %s",
                                     s->graph->values[node->inputs[i]].name, why);
            return why == NULL ? "not sharded" : why;
        }
    }
    uint64_t bytes = aligned_bytes(s->graph, group->params, group->count);
    uint64_t unit = (uint64_t)s->params->flat_bytes * s->params->ranks;
    return bytes > 0 && (uint64_t)wefti_node_int(node, "parts") > (bytes - 1) / unit + 1
               ? "not sharded: its pieces are smaller than one shard per rank"
               : NULL;
}

static weft_status_t set_text(wefti_graph_t *graph, uint32_t node, const char *name,
                              const char *text)
{
    const weft_attr_t attr = {.name = name, .type = WEFT_ATTR_TYPE_STRING, .s = text};
    return wefti_graph_set_attr(graph, node, &attr);
}

/* Attributes of the range of parameters, or of what a node reduces, in which elements may be
 * smaller: shards have as many elements. */
static void read_flat(sharder_t *s, const wefti_update_group_t *group, uint32_t reduce)
{
    const wefti_graph_t *graph = s->graph;
    const wefti_node_t *node = &graph->nodes[group->node];
    uint64_t param_bytes = weft_dtype_size_bytes(graph->values[group->params[0]].type.dtype);
    uint64_t elem_bytes = reduce == WEFTI_NONE
                              ? param_bytes
                              : weft_dtype_size_bytes(graph->values[node->inputs[0]].type.dtype);
    s->flat_count = 0;
    s->flat[s->flat_count++] =
        (weft_attr_t){.name = "flat",
                      .type = WEFT_ATTR_TYPE_INT,
                      .i = (int64_t)(s->params->flat_bytes * elem_bytes / param_bytes)};
    s->flat[s->flat_count++] =
        (weft_attr_t){.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = s->params->ranks};
    if (wefti_node_attr(node, "group") != NULL) {
        s->flat[s->flat_count++] = *wefti_node_attr(node, "group");
    }
    if (wefti_node_attr(node, "parts") != NULL) {
        s->flat[s->flat_count++] = *wefti_node_attr(node, "parts");
    }
}

/* The shard of the reduced gradients. Algorithms were chosen for the all-reduce: they are not
 * kept. */
static weft_status_t add_scatter(sharder_t *s, uint32_t reduce, uint32_t *out_shard)
{
    static const char *const kept[] = {"reduction", "reason", "split_reason"};
    const wefti_node_t *node = &s->graph->nodes[reduce];
    uint32_t scatter;
    const char *names[] = {
        wefti_arena_printf(&s->arena, "%s_shard", s->graph->values[node->outputs[0]].name)};
    wefti_node_params_t params = {.domain = "weft",
                                  .op = "ReduceScatter",
                                  .name = wefti_arena_printf(&s->arena, "%s/scatter", node->name),
                                  .phase = WEFTI_PHASE_COMM,
                                  .inputs = node->inputs,
                                  .input_count = node->input_count,
                                  .output_names = names,
                                  .output_count = 1,
                                  .attrs = s->flat,
                                  .attr_count = s->flat_count};
    WEFT_RETURN_IF_NO_MEMORY(params.name && names[0]);
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(s->graph, &params, reduce, &scatter));
    for (size_t k = 0; k < sizeof(kept) / sizeof(kept[0]); k++) {
        const weft_attr_t *attr = wefti_node_attr(&s->graph->nodes[reduce], kept[k]);
        if (attr != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(s->graph, scatter, attr));
        }
    }
    s->graph->nodes[reduce].dead = true;
    s->graph->nodes[reduce].replaced_by = scatter;
    s->shard_of[reduce] = scatter;
    *out_shard = s->graph->nodes[scatter].outputs[0];
    return WEFT_OK;
}

/* Norms are taken of it before the updates. */
static weft_status_t add_view(sharder_t *s, const wefti_update_group_t *group, uint32_t *out_shard)
{
    uint32_t after = group->norms ? group->node : group->updates[0];
    uint32_t node;
    const char *first = s->graph->values[group->params[0]].name;
    const char *names[] = {wefti_arena_printf(&s->arena, "%s_shard", first)};
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "Shard",
                                        .name = wefti_arena_printf(&s->arena, "%s/shard", first),
                                        .phase =
                                            group->norms ? WEFTI_PHASE_COMM : WEFTI_PHASE_UPDATE,
                                        .inputs = group->params,
                                        .input_count = group->count,
                                        .output_names = names,
                                        .output_count = 1,
                                        .attrs = s->flat,
                                        .attr_count = s->flat_count};
    WEFT_RETURN_IF_NO_MEMORY(params.name && names[0]);
    weft_status_t status = wefti_graph_insert_node(s->graph, &params, after, &node);
    if (status >= 0) {
        *out_shard = s->graph->nodes[node].outputs[0];
    }
    return status;
}

/* "w_shard_momentum" is the shard of "w_momentum" and of the same state of the other members. */
static weft_status_t add_state(sharder_t *s, const wefti_update_group_t *group, uint32_t shard,
                               uint32_t state, uint32_t *out_state)
{
    wefti_graph_t *graph = s->graph;
    const char *param = graph->values[group->params[0]].name, *what = graph->values[state].name;
    size_t skip = strlen(param);
    weft_tensor_desc_t type = graph->values[shard].type;
    what +=
        strncmp(what, param, skip) == 0 && (what[skip] == '_' || what[skip] == '.') ? skip + 1 : 0;
    char *name = wefti_arena_printf(&s->arena, "%s_%s", graph->values[shard].name, what);
    WEFT_RETURN_IF_NO_MEMORY(name);
    weft_status_t status = wefti_graph_add_value(graph, name, WEFTI_VALUE_STATE, &type, out_state);
    if (status >= 0) {
        graph->values[*out_state].state_of = group->params[0];
    }
    return status;
}

/* What the first member's update reads, with shards for tensors; absent ones follow. */
static weft_status_t shard_operands(sharder_t *s, const wefti_update_group_t *group, uint32_t grads,
                                    uint32_t params_shard, uint32_t **out_in)
{
    const wefti_node_t *first = &s->graph->nodes[group->updates[0]];
    uint32_t count = first->input_count;
    uint32_t *in = wefti_id_map(&s->arena, (size_t)count + LAMB_INPUTS);
    WEFT_RETURN_IF_NO_MEMORY(in);
    memcpy(in, first->inputs, count * sizeof(*in));
    in[0] = params_shard;
    in[1] = grads;
    for (uint32_t j = 2; j < count; j++) {
        if (in[j] != WEFTI_NONE && s->slots[in[j]] != WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(add_state(s, group, params_shard, in[j], &in[j]));
        }
    }
    *out_in = in;
    return WEFT_OK;
}

/* The first member's update, of shards: attributes and inputs take the place of its own. */
static weft_status_t add_update(sharder_t *s, const wefti_update_group_t *group, const uint32_t *in,
                                uint32_t count, const weft_attr_t *attrs, uint32_t attr_count,
                                uint32_t *out_shard)
{
    wefti_graph_t *graph = s->graph;
    uint32_t first = group->updates[0], node;
    uint32_t outputs = graph->nodes[first].output_count;
    const char *first_name = graph->values[in[0]].name;
    const char **names = wefti_arena_array(&s->arena, outputs, sizeof(*names));
    char *name = wefti_arena_printf(&s->arena, "%s/update", first_name);
    WEFT_RETURN_IF_NO_MEMORY(names && name);
    for (uint32_t k = 0; k < outputs; k++) {
        uint32_t at = wefti_node_overwrites(&graph->nodes[first], k);
        names[k] = wefti_arena_printf(&s->arena, "%s_new",
                                      graph->values[in[at == WEFTI_NONE ? 0 : at]].name);
        WEFT_RETURN_IF_NO_MEMORY(names[k]);
    }
    const wefti_node_t *like = &graph->nodes[first];
    const wefti_node_params_t params = {.domain = like->def->domain,
                                        .op = like->def->name,
                                        .version = like->version,
                                        .name = name,
                                        .phase = WEFTI_PHASE_UPDATE,
                                        .inputs = in,
                                        .input_count = count,
                                        .output_names = names,
                                        .output_count = outputs,
                                        .attrs = attrs,
                                        .attr_count = attr_count};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(s->graph, &params, first, &node));
    for (uint32_t i = 0; i < group->count; i++) {
        graph->nodes[group->updates[i]].dead = true;
        graph->nodes[group->updates[i]].replaced_by = node;
    }
    *out_shard = graph->nodes[node].outputs[0];
    return WEFT_OK;
}

/* Gives all ranks the new weights, which are the values that the updates produced. */
static weft_status_t add_gather(sharder_t *s, const wefti_update_group_t *group, uint32_t shard,
                                uint32_t after)
{
    uint32_t node;
    uint32_t *in = wefti_arena_array(&s->arena, (size_t)group->count + 1, sizeof(*in));
    bool *absent = wefti_arena_array(&s->arena, group->count, sizeof(*absent));
    wefti_node_params_t params = {
        .domain = "weft",
        .op = "AllGather",
        .name = wefti_arena_printf(&s->arena, "%s/gather", s->graph->values[group->params[0]].name),
        .phase = WEFTI_PHASE_UPDATE,
        .inputs = in,
        .input_count = group->count + 1,
        .output_count = group->count,
        .output_absent = absent,
        .attrs = s->flat,
        .attr_count = s->flat_count};
    WEFT_RETURN_IF_NO_MEMORY(in && absent && params.name);
    in[0] = shard;
    memcpy(in + 1, group->params, group->count * sizeof(*in));
    memset(absent, true, group->count * sizeof(*absent));
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(s->graph, &params, after, &node));
    for (uint32_t i = 0; i < group->count; i++) {
        uint32_t value = s->graph->nodes[group->updates[i]].outputs[0];
        if (value != WEFTI_NONE) {
            wefti_graph_take_output(s->graph, node, i, value);
        }
    }
    return WEFT_OK;
}

/* Where each member begins in the range, in elements. */
static weft_status_t find_begins(sharder_t *s, const wefti_update_group_t *group,
                                 weft_attr_t *out_begins)
{
    int64_t *begins = wefti_arena_array(&s->arena, group->count, sizeof(*begins));
    uint64_t bytes = 0;
    WEFT_RETURN_IF_NO_MEMORY(begins);
    for (uint32_t i = 0; i < group->count; i++) {
        const wefti_value_t *param = &s->graph->values[group->params[i]];
        begins[i] = (int64_t)(bytes / weft_dtype_size_bytes(param->type.dtype));
        bytes += wefti_align_up(wefti_value_bytes(param), s->params->flat_bytes);
    }
    *out_begins = (weft_attr_t){
        .name = "begins", .type = WEFT_ATTR_TYPE_INTS, .ints = begins, .count = group->count};
    return WEFT_OK;
}

/* Attributes of the first member's update that def has as well, and where its tensors are. */
static weft_status_t normed_attrs(sharder_t *s, const normed_t *n, const weft_op_def_t *def,
                                  weft_attr_t **out_attrs, uint32_t *out_count)
{
    const wefti_node_t *update = &s->graph->nodes[n->group.updates[0]];
    weft_attr_t *attrs =
        wefti_arena_array(&s->arena, (size_t)update->attr_count + 3, sizeof(*attrs));
    uint32_t count = 0;
    WEFT_RETURN_IF_NO_MEMORY(attrs);
    for (uint32_t i = 0; i < update->attr_count; i++) {
        for (uint32_t k = 0; k < def->attr_count; k++) {
            if (strcmp(update->attrs[i].name, def->attrs[k].name) == 0) {
                attrs[count++] = update->attrs[i];
            }
        }
    }
    attrs[count++] = n->begins;
    attrs[count++] = (weft_attr_t){.name = "at", .type = WEFT_ATTR_TYPE_INT, .i = n->row};
    *out_attrs = attrs;
    *out_count = count;
    return WEFT_OK;
}

/* Adds a bucket's sums to those of the buckets before it. */
static weft_status_t add_lamb_squares(sharder_t *s, const normed_t *n, uint32_t shard,
                                      uint32_t *inout_sums)
{
    wefti_graph_t *graph = s->graph;
    const weft_op_def_t *def = weft_registry_find_op(graph->registry, "weft", "LambSquares", 1);
    const uint32_t in[] = {*inout_sums, shard,    n->in[LAMB_STEP],    n->in[LAMB_SCALE],
                           n->params,   n->grads, n->in[LAMB_MOMENT1], n->in[LAMB_MOMENT2]};
    const char *name = wefti_arena_printf(&s->arena, "%s/squares", graph->values[n->params].name);
    weft_attr_t *attrs;
    uint32_t attr_count;
    uint32_t node;
    WEFT_RETURN_IF_NO_MEMORY(name);
    WEFT_RETURN_IF_ERROR(normed_attrs(s, n, def, &attrs, &attr_count));
    attrs[attr_count++] =
        (weft_attr_t){.name = "tensors", .type = WEFT_ATTR_TYPE_INT, .i = s->row_count};
    const wefti_node_params_t params = {.def = def,
                                        .version = 1,
                                        .name = name,
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = in,
                                        .input_count = sizeof(in) / sizeof(in[0]),
                                        .output_count = 1,
                                        .attrs = attrs,
                                        .attr_count = attr_count};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, n->group.node, &node));
    *inout_sums = graph->nodes[node].outputs[0];
    return WEFT_OK;
}

static weft_status_t add_sum_of_ranks(sharder_t *s, const char *name, const char *reason,
                                      uint32_t after, uint32_t *inout_sum)
{
    uint32_t node;
    const weft_attr_t attrs[] = {{.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "sum"},
                                 {.name = "reason", .type = WEFT_ATTR_TYPE_STRING, .s = reason}};
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "AllReduce",
                                        .name = name,
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = inout_sum,
                                        .input_count = 1,
                                        .output_count = 1,
                                        .attrs = attrs,
                                        .attr_count = 2};
    weft_status_t status = wefti_graph_insert_node(s->graph, &params, after, &node);
    if (status >= 0) {
        *inout_sum = s->graph->nodes[node].outputs[0];
    }
    return status;
}

/* The updates that wait for norms, after one all-reduce of the sums of all of them. */
static weft_status_t add_normed_updates(sharder_t *s)
{
    wefti_graph_t *graph = s->graph;
    uint32_t shard, sums = WEFTI_NONE;
    if (s->normed_count == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_need_scalar(graph, "shard", WEFT_DTYPE_I64, 0.0, &shard));
    for (uint32_t i = 0; i < s->normed_count; i++) {
        WEFT_RETURN_IF_ERROR(add_lamb_squares(s, &s->normed[i], shard, &sums));
    }
    WEFT_RETURN_IF_ERROR(add_sum_of_ranks(s, "squares of all tensors",
                                          "sums the squares of all shards for norms of tensors",
                                          s->normed[s->normed_count - 1].group.node, &sums));
    for (uint32_t i = 0; i < s->normed_count; i++) {
        normed_t *n = &s->normed[i];
        uint32_t first = n->group.updates[0], updated;
        weft_attr_t *attrs;
        uint32_t count;
        n->in[LAMB_SUMS] = sums;
        n->in[LAMB_SHARD] = shard;
        WEFT_RETURN_IF_ERROR(normed_attrs(s, n, graph->nodes[first].def, &attrs, &count));
        WEFT_RETURN_IF_ERROR(add_update(s, &n->group, n->in, LAMB_INPUTS, attrs, count, &updated));
        read_flat(s, &n->group, WEFTI_NONE);
        WEFT_RETURN_IF_ERROR(add_gather(s, &n->group, updated, first));
    }
    return WEFT_OK;
}

static weft_status_t shard_bucket(sharder_t *s, const wefti_update_group_t *group)
{
    wefti_graph_t *graph = s->graph;
    uint32_t grads, shard, first = group->updates[0], *in;
    const char *whole = whole_reason(s, group);
    if (whole != NULL) {
        return set_text(graph, group->node, "shard_reason", whole);
    }
    read_flat(s, group, group->node);
    WEFT_RETURN_IF_ERROR(add_scatter(s, group->node, &grads));
    read_flat(s, group, WEFTI_NONE);
    for (uint32_t i = 0; i < group->count; i++) { /* nothing has all of it any more */
        graph->values[graph->nodes[group->node].outputs[i]].grad_of = WEFTI_NONE;
    }
    WEFT_RETURN_IF_ERROR(add_view(s, group, &shard));
    WEFT_RETURN_IF_ERROR(shard_operands(s, group, grads, shard, &in));
    if (group->norms) {
        normed_t *n = &s->normed[s->normed_count++];
        *n = (normed_t){
            .group = *group, .grads = grads, .params = shard, .row = s->row_count, .in = in};
        s->row_count += group->count;
        return find_begins(s, group, &n->begins);
    }
    const wefti_node_t *like = &graph->nodes[first];
    WEFT_RETURN_IF_ERROR(
        add_update(s, group, in, like->input_count, like->attrs, like->attr_count, &shard));
    return add_gather(s, group, shard, first);
}

/* A chain of SquareSums, the last one first. */
typedef struct squares {
    uint32_t *inputs; /* of the next node: the sum so far, then gradients */
    uint32_t count;
    uint32_t sum;
} squares_t;

static weft_status_t add_squares(sharder_t *s, squares_t *q, uint32_t after)
{
    uint32_t node;
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "SquareSum",
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = q->inputs,
                                        .input_count = q->count,
                                        .output_count = 1};
    if (q->count == 1) {
        return WEFT_OK;
    }
    q->inputs[0] = q->sum;
    q->count = 1;
    weft_status_t status = wefti_graph_insert_node(s->graph, &params, after, &node);
    if (status >= 0) {
        q->sum = s->graph->nodes[node].outputs[0];
    }
    return status;
}

/* The shards that stand for what one node of the chain reads: one per bucket. */
static void collect_shards(sharder_t *s, const wefti_node_t *node, squares_t *q, bool *seen)
{
    for (uint32_t k = 1; k < node->input_count; k++) {
        uint32_t producer = wefti_producer(s->graph, node->inputs[k]);
        uint32_t shard = producer < s->old_count ? s->shard_of[producer] : WEFTI_NONE;
        if (shard != WEFTI_NONE && !seen[producer]) {
            seen[producer] = true;
            q->inputs[q->count++] = s->graph->nodes[shard].outputs[0];
        }
    }
}

static void collect_whole(sharder_t *s, const wefti_node_t *node, squares_t *q)
{
    for (uint32_t k = 1; k < node->input_count; k++) {
        uint32_t producer = wefti_producer(s->graph, node->inputs[k]);
        if (producer >= s->old_count || s->shard_of[producer] == WEFTI_NONE) {
            q->inputs[q->count++] = node->inputs[k];
        }
    }
}

/* Nodes of the chain that ends with last, first to last. */
static weft_status_t find_chain(sharder_t *s, uint32_t last, uint32_t **out_chain, uint32_t *count)
{
    uint32_t *chain = wefti_arena_array(&s->arena, s->old_count, sizeof(*chain));
    uint32_t at = s->old_count;
    WEFT_RETURN_IF_NO_MEMORY(chain);
    for (uint32_t id = last; id != WEFTI_NONE && at > 0;) {
        uint32_t before = wefti_producer(s->graph, s->graph->nodes[id].inputs[0]);
        chain[--at] = id;
        id =
            before != WEFTI_NONE && wefti_op_has(s->graph->nodes[before].def, WEFT_FACT_ACCUMULATES)
                ? before
                : WEFTI_NONE;
    }
    *out_chain = chain + at;
    *count = s->old_count - at;
    return WEFT_OK;
}

static weft_status_t shard_squares(sharder_t *s, uint32_t last)
{
    wefti_graph_t *graph = s->graph;
    uint32_t *chain, count;
    squares_t q = {.count = 1, .sum = WEFTI_NONE};
    bool *seen = wefti_arena_array(&s->arena, s->old_count, sizeof(*seen));
    q.inputs = wefti_arena_array(&s->arena, (size_t)graph->value_count + 1, sizeof(*q.inputs));
    WEFT_RETURN_IF_ERROR(find_chain(s, last, &chain, &count));
    WEFT_RETURN_IF_NO_MEMORY(seen && q.inputs);
    for (uint32_t i = 0; i < count; i++) {
        collect_shards(s, &graph->nodes[chain[i]], &q, seen);
        WEFT_RETURN_IF_ERROR(add_squares(s, &q, chain[i]));
    }
    if (q.sum == WEFTI_NONE) {
        return WEFT_OK; /* no bucket is sharded */
    }
    WEFT_RETURN_IF_ERROR(add_sum_of_ranks(s, "squares of all ranks",
                                          "sums the squares of all shards for the global norm",
                                          last, &q.sum));
    for (uint32_t i = 0; i < count; i++) {
        collect_whole(s, &graph->nodes[chain[i]], &q);
        graph->nodes[chain[i]].dead = true;
    }
    WEFT_RETURN_IF_ERROR(add_squares(s, &q, last));
    wefti_graph_replace_uses(graph, graph->nodes[last].outputs[0], q.sum, WEFTI_NONE);
    return WEFT_OK;
}

/* Does a SquareSum continue the sum of the node? */
static bool is_continued(const sharder_t *s, uint32_t node)
{
    uint32_t sum = s->graph->nodes[node].outputs[0];
    for (uint32_t i = s->readers.first[sum]; i < s->readers.first[sum + 1]; i++) {
        if (wefti_op_has(s->graph->nodes[s->readers.nodes[i]].def, WEFT_FACT_ACCUMULATES)) {
            return true;
        }
    }
    return false;
}

static weft_status_t begin(sharder_t *s)
{
    wefti_graph_t *graph = s->graph;
    s->old_count = graph->node_count;
    s->shard_of = wefti_id_map(&s->arena, s->old_count);
    s->normed = wefti_arena_array(&s->arena, graph->order_count, sizeof(*s->normed));
    WEFT_RETURN_IF_NO_MEMORY(s->shard_of && s->normed);
    WEFT_RETURN_IF_ERROR(
        wefti_graph_readers(graph, graph->order, graph->order_count, &s->arena, &s->readers));
    return wefti_state_slots(graph, &s->arena, &s->slots, &s->slot_count);
}

static weft_status_t shard(sharder_t *s)
{
    wefti_graph_t *graph = s->graph;
    uint32_t count = graph->order_count;
    WEFT_RETURN_IF_ERROR(begin(s));
    for (uint32_t i = 0; i < count; i++) {
        wefti_update_group_t group;
        if (wefti_reduces_gradients(graph, &graph->nodes[graph->order[i]])) {
            WEFT_RETURN_IF_ERROR(wefti_update_group(graph, &s->readers, s->slots, graph->order[i],
                                                    &s->arena, &group));
            WEFT_RETURN_IF_ERROR(shard_bucket(s, &group));
        }
    }
    WEFT_RETURN_IF_ERROR(add_normed_updates(s));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = graph->order[i];
        if (wefti_op_has(graph->nodes[id].def, WEFT_FACT_ACCUMULATES) && !is_continued(s, id)) {
            WEFT_RETURN_IF_ERROR(shard_squares(s, id));
        }
    }
    return graph->order_count > count ? wefti_graph_sort(graph) : WEFT_OK;
}

weft_status_t wefti_pass_shard(wefti_graph_t *graph, const wefti_shard_params_t *params)
{
    sharder_t s = {.graph = graph, .params = params};
    if (params->ranks < 2) {
        return WEFT_OK;
    }
    wefti_arena_init(&s.arena, graph->arena.allocator, 0);
    weft_status_t status = shard(&s);
    wefti_arena_deinit(&s.arena);
    return status;
}

wefti_shard_params_t wefti_shard_params(const wefti_lower_params_t *params)
{
    /* What is on the wire as bf16 is half as long, in whole units as well. */
    bool half = params->gradients.wire == WEFT_DTYPE_BF16;
    return (wefti_shard_params_t){.ranks = params->shard ? params->world_size : 1,
                                  .flat_bytes = WEFTI_PLAN_ALIGNMENT * (half ? 2 : 1)};
}

weft_status_t wefti_apply_shard(wefti_compiler_t *c)
{
    wefti_lower_params_t lower;
    weft_status_t status = wefti_compile_lower_params(c, &lower);
    const wefti_shard_params_t params = wefti_shard_params(&lower);
    return status < 0 ? status : wefti_pass_shard(c->graph, &params);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuse-updates: fuses updates, after sharding. Two rewrites:
 *
 * 1. If every rank has all updates of a bucket, and they are one element-wise operator with the
 *    same settings, they become one FusedUpdate: one kernel over a flat range instead of one per
 *    parameter.
 *
 * 2. ReduceScatter -> update of shards -> AllGather becomes one ReduceUpdateGather where that is
 *    predicted to cost less. For one cache-sized block after the other, a rank reduces its shard,
 *    updates it and writes the new weights to all ranks. That saves a call and a second pass over
 *    the shard: reduced gradients are not written and read again, nor new weights read to be sent.
 *    On the other hand it starts only after the last reader of the weights. With R bytes in the
 *    bucket, S = R / ranks, k states, and u for one byte of an update:
 *
 *      fused         T_all-reduce(R) + (1 + 2k) S u
 *      three passes  T_reduce-scatter(R) + T_all-gather(R) + (3 + 2k) S u
 *
 *    Attribute cost_reason of either form reports both predictions.
 */
#include <string.h>

#include "fusion/passes/passes.h"
#include "fusion/passes/gradient_sums.h"
#include "fusion/passes/update_group.h"
#include "runtime/base/error.h"

typedef struct fuser {
    wefti_graph_t *graph;
    const wefti_fuse_params_t *params;
    wefti_arena_t arena;
    wefti_readers_t readers;
    uint32_t *slots, slot_count;
} fuser_t;

/* Attributes of a fused node under construction. */
typedef struct attrs {
    weft_attr_t *list;
    uint32_t count;
} attrs_t;

static weft_status_t begin_attrs(fuser_t *f, const wefti_node_t *update,
                                 const wefti_node_t *scatter, uint32_t members, attrs_t *out)
{
    size_t most = (size_t)update->attr_count + (scatter != NULL ? scatter->attr_count : 0) + 5;
    out->list = wefti_arena_array(&f->arena, most, sizeof(*out->list));
    out->count = 0;
    WEFT_RETURN_IF_NO_MEMORY(out->list);
    for (uint32_t i = 0; scatter != NULL && i < scatter->attr_count; i++) {
        out->list[out->count++] = scatter->attrs[i];
    }
    for (uint32_t i = 0; i < update->attr_count; i++) {
        out->list[out->count++] = update->attrs[i];
    }
    out->list[out->count++] =
        (weft_attr_t){.name = "update", .type = WEFT_ATTR_TYPE_STRING, .s = update->def->name};
    out->list[out->count++] =
        (weft_attr_t){.name = "update_version", .type = WEFT_ATTR_TYPE_INT, .i = update->version};
    out->list[out->count++] =
        (weft_attr_t){.name = "members", .type = WEFT_ATTR_TYPE_INT, .i = members};
    return WEFT_OK;
}

/* A node without outputs yet: it takes those of the nodes that it replaces. */
static weft_status_t add_fused(fuser_t *f, const char *op, const char *first,
                               const uint32_t *inputs, uint32_t input_count, uint32_t output_count,
                               const attrs_t *attrs, uint32_t after, uint32_t *out_node)
{
    bool *absent = wefti_arena_array(&f->arena, output_count, sizeof(*absent));
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = op,
                                        .name = wefti_arena_printf(&f->arena, "%s/%s", first, op),
                                        .phase = WEFTI_PHASE_UPDATE,
                                        .inputs = inputs,
                                        .input_count = input_count,
                                        .output_count = output_count,
                                        .output_absent = absent,
                                        .attrs = attrs->list,
                                        .attr_count = attrs->count};
    WEFT_RETURN_IF_NO_MEMORY(absent && params.name);
    memset(absent, true, output_count * sizeof(*absent));
    return wefti_graph_insert_node(f->graph, &params, after, out_node);
}

static void take_output(fuser_t *f, uint32_t node, uint32_t index, uint32_t value)
{
    if (value != WEFTI_NONE) {
        wefti_graph_take_output(f->graph, node, index, value);
    }
}

static void replace(fuser_t *f, uint32_t node, uint32_t by)
{
    f->graph->nodes[node].dead = true;
    f->graph->nodes[node].replaced_by = by;
}

/* Operands in turn: parameters, gradients, each state of all members, then scalars. */
static weft_status_t fuse_group(fuser_t *f, const wefti_update_group_t *group)
{
    wefti_graph_t *graph = f->graph;
    const wefti_node_t *first = &graph->nodes[group->updates[0]];
    uint32_t n = group->count, tensors = first->output_count + 1, count = 0, node;
    uint32_t outputs = first->output_count;
    uint32_t *in = wefti_arena_array(&f->arena, (size_t)n * first->input_count, sizeof(*in));
    attrs_t attrs;
    WEFT_RETURN_IF_NO_MEMORY(in);
    for (uint32_t j = 0; j < first->input_count; j++) {
        for (uint32_t i = 0; i < (j < tensors ? n : 1); i++) {
            in[count++] = graph->nodes[group->updates[i]].inputs[j];
        }
    }
    WEFT_RETURN_IF_ERROR(begin_attrs(f, first, NULL, n, &attrs));
    if (wefti_node_attr(&graph->nodes[group->node], "parts") != NULL) {
        attrs.list[attrs.count++] = *wefti_node_attr(&graph->nodes[group->node], "parts");
    }
    WEFT_RETURN_IF_ERROR(add_fused(f, "FusedUpdate", graph->values[group->params[0]].name, in,
                                   count, n * outputs, &attrs, group->updates[0], &node));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < outputs; k++) {
            take_output(f, node, k * n + i, graph->nodes[group->updates[i]].outputs[k]);
        }
        replace(f, group->updates[i], node);
    }
    return WEFT_OK;
}

/* The only node that reads value, or WEFTI_NONE. */
static uint32_t only_reader(const fuser_t *f, uint32_t value)
{
    uint32_t first = f->readers.first[value];
    return f->readers.first[value + 1] == first + 1 ? f->readers.nodes[first] : WEFTI_NONE;
}

/* A ReduceScatter with what follows it. */
typedef struct triple {
    uint32_t scatter, shard, update, gather;
} triple_t;

/* Is it a scalar input, or computed from such alone? */
static bool is_known_at_start(const wefti_graph_t *graph, uint32_t value)
{
    uint32_t producer = value == WEFTI_NONE ? WEFTI_NONE : graph->values[value].producer;
    for (uint32_t k = 0; producer != WEFTI_NONE && k < graph->nodes[producer].input_count; k++) {
        uint32_t input = graph->nodes[producer].inputs[k];
        if (input != WEFTI_NONE && graph->values[input].kind != WEFTI_VALUE_SCALAR) {
            return false;
        }
    }
    return true;
}

/* Fused, new weights are written as soon as gradients are reduced: nothing else may be computed
 * first, and every other reader of the weights must be a kernel, which the collective can wait
 * for. */
static bool find_triple(const fuser_t *f, uint32_t scatter, triple_t *out)
{
    const wefti_graph_t *graph = f->graph;
    uint32_t grads = graph->nodes[scatter].outputs[0];
    uint32_t update = only_reader(f, grads);
    if (update == WEFTI_NONE || graph->nodes[update].phase != WEFTI_PHASE_UPDATE) {
        return false;
    }
    const wefti_node_t *node = &graph->nodes[update];
    uint32_t shard = graph->values[node->inputs[0]].producer;
    uint32_t gather = only_reader(f, node->outputs[0]);
    if (shard == WEFTI_NONE || gather == WEFTI_NONE ||
        !(wefti_node_range(&graph->nodes[shard]) == WEFT_RANGE_ROLE_SHARD) ||
        !wefti_node_is_flat_gather(&graph->nodes[gather])) {
        return false;
    }
    for (uint32_t j = 2; j < node->input_count; j++) {
        if (!is_known_at_start(graph, node->inputs[j])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < graph->nodes[shard].input_count; i++) {
        uint32_t param = graph->nodes[shard].inputs[i];
        for (uint32_t r = f->readers.first[param]; r < f->readers.first[param + 1]; r++) {
            uint32_t reader = f->readers.nodes[r];
            if (reader != shard && reader != gather &&
                (graph->nodes[reader].phase == WEFTI_PHASE_UPDATE ||
                 wefti_node_communicates(&graph->nodes[reader]))) {
                return false;
            }
        }
    }
    *out = (triple_t){scatter, shard, update, gather};
    return true;
}

static uint32_t count_states(const wefti_graph_t *graph, const wefti_node_t *update)
{
    uint32_t count = 0;
    for (uint32_t j = 0; j < update->input_count; j++) {
        count += update->inputs[j] != WEFTI_NONE &&
                 graph->values[update->inputs[j]].kind == WEFTI_VALUE_STATE;
    }
    return count;
}

/* Predicts both forms of one piece of the bucket. */
static weft_status_t compare(fuser_t *f, const triple_t *triple, bool *out_fuse,
                             uint64_t *out_fused_ps, const char **out_reason)
{
    const wefti_node_t *scatter = &f->graph->nodes[triple->scatter];
    uint64_t bytes = 0;
    *out_fuse = true;
    *out_fused_ps = 0;
    *out_reason = NULL;
    if (f->params->shard == NULL || f->params->all_reduce == NULL) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < scatter->input_count; i++) {
        bytes += wefti_align_up(wefti_value_bytes(&f->graph->values[scatter->inputs[i]]),
                                WEFTI_PLAN_ALIGNMENT);
    }
    bytes /= (uint64_t)wefti_node_int(scatter, "parts");
    uint64_t shard = bytes / (uint64_t)wefti_node_int(scatter, "group_size");
    uint64_t states = 2ull * count_states(f->graph, &f->graph->nodes[triple->update]);
    uint64_t update_bytes = shard * (3 + states), fused_bytes = shard * (1 + states);
    double ps_per_byte = wefti_update_ns_per_byte(f->params->rates, (double)update_bytes) * 1e3;
    uint64_t apart = wefti_bucket_cost_ps(&f->params->shard->reduce_scatter, bytes) +
                     wefti_bucket_cost_ps(&f->params->shard->all_gather, bytes) +
                     (uint64_t)((double)update_bytes * ps_per_byte);
    /* half of an all-reduce moves gradients, the other half weights */
    uint64_t fused = wefti_bucket_cost_ps(f->params->all_reduce, bytes) / 2 * 2 +
                     (uint64_t)((double)fused_bytes * ps_per_byte);
    *out_fuse = fused < apart;
    *out_fused_ps = fused;
    *out_reason =
        wefti_arena_printf(&f->arena, "fused reduce-update-gather %.1f us, three passes %.1f us",
                           (double)fused / 1e6, (double)apart / 1e6);
    return *out_reason == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t replace_triple(fuser_t *f, const triple_t *triple, attrs_t *attrs)
{
    wefti_graph_t *graph = f->graph;
    const wefti_node_t *scatter = &graph->nodes[triple->scatter];
    const wefti_node_t *update = &graph->nodes[triple->update];
    const wefti_node_t *gather = &graph->nodes[triple->gather];
    uint32_t n = scatter->input_count, count = 2 * n, node;
    uint32_t outputs = n + update->output_count - 1;
    uint32_t *in = wefti_arena_array(&f->arena, (size_t)count + update->input_count, sizeof(*in));
    WEFT_RETURN_IF_NO_MEMORY(in);
    memcpy(in, gather->inputs + 1, n * sizeof(*in));
    memcpy(in + n, scatter->inputs, n * sizeof(*in));
    for (uint32_t j = 2; j < update->input_count; j++) {
        in[count++] = update->inputs[j];
    }
    WEFT_RETURN_IF_ERROR(add_fused(f, "ReduceUpdateGather", graph->values[in[0]].name, in, count,
                                   outputs, attrs, triple->scatter, &node));
    for (uint32_t i = 0; i < outputs; i++) {
        take_output(f, node, i,
                    i < n ? graph->nodes[triple->gather].outputs[i]
                          : graph->nodes[triple->update].outputs[i - n + 1]);
    }
    replace(f, triple->scatter, node);
    replace(f, triple->shard, node);
    replace(f, triple->update, node);
    replace(f, triple->gather, node);
    return WEFT_OK;
}

static weft_status_t fuse_triple(fuser_t *f, uint32_t scatter)
{
    triple_t triple;
    bool fuse;
    uint64_t fused_ps;
    const char *reason;
    attrs_t attrs;
    if (!f->params->reduce_update_gather || !find_triple(f, scatter, &triple)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(compare(f, &triple, &fuse, &fused_ps, &reason));
    const weft_attr_t text = {.name = "cost_reason", .type = WEFT_ATTR_TYPE_STRING, .s = reason};
    if (!fuse) {
        return wefti_graph_set_attr(f->graph, scatter, &text);
    }
    WEFT_RETURN_IF_ERROR(begin_attrs(f, &f->graph->nodes[triple.update], &f->graph->nodes[scatter],
                                     f->graph->nodes[scatter].input_count, &attrs));
    if (reason != NULL) {
        attrs.list[attrs.count++] = text;
        attrs.list[attrs.count++] = (weft_attr_t){
            .name = "predicted_ps", .type = WEFT_ATTR_TYPE_INT, .i = (int64_t)fused_ps};
    }
    return replace_triple(f, &triple, &attrs);
}

static weft_status_t fuse_updates(fuser_t *f)
{
    wefti_graph_t *graph = f->graph;
    uint32_t count = graph->order_count;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_readers(graph, graph->order, graph->order_count, &f->arena, &f->readers));
    WEFT_RETURN_IF_ERROR(wefti_state_slots(graph, &f->arena, &f->slots, &f->slot_count));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = graph->order[i];
        wefti_update_group_t group = {0};
        if (wefti_node_is_flat_scatter(&graph->nodes[id])) {
            WEFT_RETURN_IF_ERROR(fuse_triple(f, id));
        } else if (wefti_reduces_gradients(graph, &graph->nodes[id])) {
            WEFT_RETURN_IF_ERROR(
                wefti_update_group(graph, &f->readers, f->slots, id, &f->arena, &group));
        }
        if (group.uniform && !group.norms) {
            WEFT_RETURN_IF_ERROR(fuse_group(f, &group));
        }
    }
    return graph->order_count > count ? wefti_graph_sort(graph) : WEFT_OK;
}

weft_status_t wefti_pass_fuse_updates(wefti_graph_t *graph, const wefti_fuse_params_t *params)
{
    fuser_t f = {.graph = graph, .params = params};
    wefti_arena_init(&f.arena, graph->arena.allocator, 0);
    weft_status_t status = fuse_updates(&f);
    wefti_arena_deinit(&f.arena);
    return status;
}

wefti_fuse_params_t wefti_fuse_params(const wefti_lower_params_t *params)
{
    return (wefti_fuse_params_t){.reduce_update_gather = params->fuse,
                                 .all_reduce = params->bucket_cost,
                                 .shard = params->shard_cost,
                                 .rates = params->rates};
}

weft_status_t wefti_apply_fuse_updates(wefti_compiler_t *c)
{
    wefti_lower_params_t lower;
    weft_status_t status = wefti_compile_lower_params(c, &lower);
    const wefti_fuse_params_t params = wefti_fuse_params(&lower);
    return status < 0 ? status : wefti_pass_fuse_updates(c->graph, &params);
}

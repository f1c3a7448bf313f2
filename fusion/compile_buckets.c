/* SPDX-License-Identifier: Apache-2.0 */
/* Costs and parameters of the buckets of a training graph. */
#include "fusion/passes/passes.h"

#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Whether a collective may update what it reduces: f32, with nothing to compute in between. */
bool wefti_compile_may_fuse(const wefti_compiler_t *c)
{
    /* It runs as a mesh, in the order of ranks, and sends as much between hosts as inside them. */
    return c->sharded && c->params.algo == NULL && c->rules.order.order == WEFT_ORDER_TREE &&
           !c->params.decouple && !c->params.shard_parameters &&
           (c->place == NULL || c->place->host_count < 2) &&
           c->gradient_params.wire == WEFT_DTYPE_F32 && c->gradient_params.clip_norm == 0;
}

static double gradient_bytes(const wefti_graph_t *graph)
{
    double bytes = 0;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        bytes += graph->values[v].grad_of != WEFTI_NONE && graph->values[v].producer != WEFTI_NONE
                     ? (double)wefti_value_bytes(&graph->values[v])
                     : 0;
    }
    return bytes;
}

/* What the comm stream spends on a bucket. Of a sharded one that is a fused reduce-update-gather,
 * or the reduce-scatter alone: updates and gathers come later. */
static weft_status_t planned_cost(wefti_compiler_t *c, wefti_bucket_cost_t *out_cost)
{
    double states = wefti_optimizers[c->optimizer.kind].state_count;
    double touched = (1 + 2 * states) / c->params.world_size; /* bytes per byte of the bucket */
    *out_cost = c->sharded ? c->shard_cost.reduce_scatter : c->bucket_cost;
    if (!wefti_compile_may_fuse(c)) {
        return WEFT_OK;
    }
    double ns = wefti_update_ns_per_byte(&c->rates, touched * gradient_bytes(c->graph));
    return wefti_bucket_cost_add(&c->bucket_cost, 0, touched * ns, &c->arena, out_cost);
}

/* In bf16 half as much travels. */
static weft_status_t wire_cost(wefti_compiler_t *c, wefti_bucket_cost_t *cost)
{
    wefti_bucket_cost_t whole = *cost;
    return c->gradient_params.wire == WEFT_DTYPE_BF16
               ? wefti_bucket_cost_shrink(&whole, 0.5, &c->arena, cost)
               : WEFT_OK;
}

/* Gradients are reduced behind a step's last micro-batch: those before it take as long each. */
static void add_micro_batches(wefti_compiler_t *c, uint64_t *ready_ns)
{
    uint64_t last = 0, most = 1000000000000000ull, before;
    for (uint32_t i = 0; i < c->graph->order_count; i++) {
        uint64_t ready = ready_ns[c->graph->order[i]];
        last = ready > last ? ready : last;
    }
    if (__builtin_mul_overflow(last, c->gradient_params.accumulate - 1, &before) || before > most) {
        before = most;
    }
    for (uint32_t i = 0; i < c->graph->order_count && last < most; i++) {
        ready_ns[c->graph->order[i]] += before;
    }
    c->micro_batches_ns = before;
}

/* Are there collectives on blocks to be bucketed? */
static bool has_blocks(const wefti_graph_t *graph)
{
    bool found = false;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t collective = wefti_op_facts(graph->nodes[graph->order[i]].def).collective;
        found |= collective == WEFT_COLLECTIVE_REDUCE_SCATTER ||
                 collective == WEFT_COLLECTIVE_ALL_GATHER;
    }
    return found;
}

/* Several tensors are copied, on both sides, to lie block by block (pack.c). */
static weft_status_t block_costs(wefti_compiler_t *c, wefti_shard_cost_t *out_alone,
                                 wefti_shard_cost_t *out_packed)
{
    double copied = 2 * (1 + 1.0 / c->params.world_size); /* bytes per byte of the range */
    double ns, ns_per_byte;
    wefti_move_ns(&c->rates, &ns, &ns_per_byte);
    WEFT_RETURN_IF_ERROR(wefti_shard_cost(&c->costs, c->params.world_size, &c->rules, &c->profile,
                                          &c->arena, out_alone));
    WEFT_RETURN_IF_ERROR(wefti_bucket_cost_add(&out_alone->reduce_scatter, 2 * ns,
                                               copied * ns_per_byte, &c->arena,
                                               &out_packed->reduce_scatter));
    return wefti_bucket_cost_add(&out_alone->all_gather, 2 * ns, copied * ns_per_byte, &c->arena,
                                 &out_packed->all_gather);
}

/* Ranks reduce the gradients of their own place. */
static weft_status_t separate_places(wefti_compiler_t *c, uint8_t *apart)
{
    const wefti_graph_t *graph = c->graph;
    uint32_t *places;
    WEFT_RETURN_IF_ERROR(wefti_graph_places(graph, &c->arena, &places));
    for (uint32_t v = 0; v < graph->value_count && places != NULL; v++) {
        uint32_t param = graph->values[v].grad_of, producer = graph->values[v].producer;
        if (param != WEFTI_NONE && producer != WEFTI_NONE) {
            apart[param] = (uint8_t)(apart[param] + 3 * places[producer]);
        }
    }
    return WEFT_OK;
}

/* Where updates differ: running statistics, and in shards parameters without decay. */
static weft_status_t find_apart(wefti_compiler_t *c, const uint8_t **out_apart)
{
    bool *undecayed;
    uint8_t *apart = wefti_arena_array(&c->arena, c->graph->value_count, sizeof *apart);
    const uint32_t *statistic_of = wefti_graph_statistics(c->graph, &c->arena);
    WEFT_RETURN_IF_NO_MEMORY(apart && statistic_of);
    WEFT_RETURN_IF_ERROR(wefti_find_undecayed(c->graph, &c->optimizer, &c->arena, &undecayed));
    for (uint32_t v = 0; v < c->graph->value_count; v++) {
        bool statistic =
            c->graph->values[v].kind == WEFTI_VALUE_PARAM && statistic_of[v] != WEFTI_NONE;
        apart[v] = statistic ? 2 : c->sharded && undecayed[v] ? 1 : 0;
    }
    WEFT_RETURN_IF_ERROR(separate_places(c, apart));
    *out_apart = apart;
    return WEFT_OK;
}

weft_status_t wefti_apply_bucket(wefti_compiler_t *c)
{
    weft_status_t status;
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    weft_edit_list_t *edits = NULL;
    uint64_t *ready_ns = NULL;
    WEFT_TRY(status, wefti_graph_view(c->graph, &c->arena, &view), fail);
    WEFT_TRY(status, wefti_predict_ready(c->graph, &c->profile, &c->rates, &c->arena, &ready_ns),
             fail);
    add_micro_batches(c, ready_ns);
    const uint8_t *apart;
    wefti_bucket_cost_t cost;
    WEFT_TRY(status, find_apart(c, &apart), fail);
    WEFT_TRY(status, planned_cost(c, &cost), fail);
    WEFT_TRY(status, wire_cost(c, &cost), fail);
    wefti_bucket_params_t params = {.policy = &c->policy,
                                    .ready_ns = ready_ns,
                                    .cost = &cost,
                                    .allocator = c->allocator,
                                    .apart = apart,
                                    .forecast_arena = &c->arena};
    wefti_shard_cost_t alone, packed;
    if (has_blocks(c->graph)) {
        WEFT_TRY(status, block_costs(c, &alone, &packed), fail);
        params.alone_cost = &alone;
        params.shard_cost = &packed;
    }
    WEFT_TRY(status, wefti_pass_bucket(&view, &params, &edits, &c->forecast), fail);
    status = wefti_graph_apply(c->graph, edits);
    weft_edit_list_destroy(edits);
fail:
    return status;
}

/* All kernels of a step, updates included; fused with collectives, those count as communication. */
weft_status_t wefti_compile_predict_step(wefti_compiler_t *c)
{
    weft_status_t status = WEFT_OK;
    uint64_t *ready_ns = NULL, before = 0, updates = 0, others = 0;
    const wefti_program_t *step = wefti_graph_find_program(c->graph, "step");
    if (c->profile.known) {
        c->forecast.compute_ps = (uint64_t)(c->profile.compute_ns * 1e3);
    } else if (c->graph->order_count > 0) {
        WEFT_TRY(status,
                 wefti_predict_ready(c->graph, &c->profile, &c->rates, &c->arena, &ready_ns), fail);
        for (uint32_t i = 0, at = 0; i < c->graph->order_count && at < step->node_count; i++) {
            uint32_t id = c->graph->order[i];
            bool is_update = c->graph->nodes[id].phase == WEFTI_PHASE_UPDATE;
            if (id == step->nodes[at]) {
                *(is_update ? &updates : &others) += ready_ns[id] - before;
                at++;
            }
            before = ready_ns[id];
        }
        others += updates;
        c->forecast.update_ps = (updates < 1000000000000000ull ? updates : 0) * 1000;
        c->forecast.compute_ps =
            (others < 1000000000000000ull ? others : 1000000000000000ull) * 1000;
    }
    c->forecast.compute_ps += c->micro_batches_ns * 1000;
    c->forecast.costs = "";
    if (c->costs.kernel_count > 0 || c->costs.measured_count > 0) {
        c->forecast.costs = wefti_arena_strdup(&c->arena, c->costs.name);
    }
    if (c->costs.kernel_count > 0) {
        c->forecast.progress =
            c->rates.inline_progress ? WEFTI_FORECAST_INLINE : WEFTI_FORECAST_THREAD;
    }
    return c->forecast.costs == NULL ? WEFT_ERR_NO_MEMORY : status;
fail:
    return status;
}

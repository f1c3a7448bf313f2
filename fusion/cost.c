/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicted times of kernels: from the cost table's measured kernels, else from default rates.
 * Predictions order and close buckets and are printed. They are never part of the structure digest.
 */
#include "fusion/fusion.h"

#include "ops/op_infer.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* Default rates: one core of a generic server, data in memory. */
#define FLOPS_PER_NS 100.0 /* 100 GFLOP/s */
#define FEW_BYTES 64.0
#define MANY_BYTES ((double)(1 << 20))
#define BYTES_PER_NS 10.0 /* 10 GB/s */

static wefti_kernel_kind_t kind_of(const weft_op_def_t *def)
{
    static const wefti_kernel_kind_t kinds[] = {
        [WEFT_COST_CURVE_MOVE] = WEFTI_KERNEL_MOVE,
        [WEFT_COST_CURVE_PRODUCT] = WEFTI_KERNEL_PRODUCT,
        [WEFT_COST_CURVE_CONV] = WEFTI_KERNEL_CONV,
        [WEFT_COST_CURVE_CONV_GRAD] = WEFTI_KERNEL_CONV_GRAD,
        [WEFT_COST_CURVE_EXP] = WEFTI_KERNEL_EXP,
        [WEFT_COST_CURVE_POOL] = WEFTI_KERNEL_POOL,
        [WEFT_COST_CURVE_UPDATE] = WEFTI_KERNEL_UPDATE,
        [WEFT_COST_CURVE_ATTENTION] = WEFTI_KERNEL_ATTENTION,
        [WEFT_COST_CURVE_FUSED] = WEFTI_KERNEL_FUSED,
        [WEFT_COST_CURVE_NORM] = WEFTI_KERNEL_NORM,
    };
    size_t curve = wefti_op_facts(def).cost_curve;
    return curve < sizeof(kinds) / sizeof(kinds[0]) ? kinds[curve] : WEFTI_KERNEL_MOVE;
}

wefti_rates_t wefti_rates_of(const wefti_costs_t *costs, uint32_t hosts, uint32_t host_ranks,
                             uint32_t host_cores)
{
    wefti_rates_t rates = {.costs = costs, .threads = 1, .slowdown = 1, .core_ranks = 1};
    uint32_t cores = host_cores > 0 ? host_cores : costs->cores;
    if (cores == 0 || host_ranks == 0) {
        return rates;
    }
    bool alone = host_ranks == 1 && hosts < 2;
    if (host_cores == 0 && host_ranks > WEFTI_HOST_MAX_RANKS) {
        host_ranks = cores;
    }
    rates.core_ranks = (host_ranks + cores - 1) / cores; /* each is bound to one */
    rates.slowdown = rates.core_ranks;
    if (costs->cores == 0) { /* default rates are those of one thread */
        return rates;
    }
    uint32_t share = cores / host_ranks;
    rates.inline_progress = !alone && share < 2 && hosts < 2;
    rates.threads = share;
    if (!alone && share > 1) {
        rates.threads--; /* the progress thread has a core */
    }
    rates.threads = rates.threads > 0 ? rates.threads : 1;
    return rates;
}

static double slowdown_of(const wefti_rates_t *rates)
{
    return rates != NULL ? rates->slowdown : 1;
}

/* The kind whose times a kernel takes where costs have none of its own: a table written by a former
 * version knows only these. */
static wefti_kernel_kind_t measured_kind(const wefti_rates_t *rates, wefti_kernel_kind_t kind)
{
    double ns;
    if (rates == NULL || wefti_costs_kernel_ns(rates->costs, kind, rates->threads, 1, &ns)) {
        return kind;
    }
    return kind == WEFTI_KERNEL_ATTENTION                            ? WEFTI_KERNEL_PRODUCT
           : kind == WEFTI_KERNEL_FUSED || kind == WEFTI_KERNEL_NORM ? WEFTI_KERNEL_MOVE
                                                                     : kind;
}

/* By the cost rule. step_bytes: what a step touches between two updates of a parameter. */
static double predict_ns(const weft_op_def_t *def, const weft_node_desc_t *node,
                         const wefti_rates_t *rates, double step_bytes)
{
    double flops = 0, bytes = 0, ns = 0;
    if ((def->effects & WEFT_EFFECT_COMMUNICATES) == 0) {
        wefti_op_cost(def, node, &flops, &bytes);
    }
    if (flops <= 0 && bytes <= 0) {
        return 0;
    }
    wefti_kernel_kind_t kind = measured_kind(rates, kind_of(def));
    double size = wefti_kernel_counts_flops(kind) ? flops : bytes;
    if (kind == WEFTI_KERNEL_UPDATE && step_bytes >= bytes) {
        return bytes * wefti_update_ns_per_byte(rates, step_bytes);
    }
    if (rates != NULL && wefti_costs_kernel_ns(rates->costs, kind, rates->threads, size, &ns)) {
        return ns * rates->slowdown;
    }
    double compute = flops / FLOPS_PER_NS, move = bytes / BYTES_PER_NS;
    return (compute > move ? compute : move) * slowdown_of(rates);
}

double wefti_op_predict_ns(const weft_op_def_t *def, const weft_node_desc_t *node,
                           const wefti_rates_t *rates)
{
    return predict_ns(def, node, rates, 0);
}

double wefti_update_ns_per_byte(const wefti_rates_t *rates, double bytes)
{
    double ns;
    bytes *= rates != NULL ? rates->core_ranks : 1; /* they use one cache in turn */
    if (rates == NULL || bytes <= 0 ||
        !wefti_costs_kernel_ns(rates->costs, WEFTI_KERNEL_UPDATE, rates->threads, bytes, &ns)) {
        return slowdown_of(rates) / BYTES_PER_NS;
    }
    return ns * rates->slowdown / bytes;
}

void wefti_move_ns(const wefti_rates_t *rates, double *out_ns, double *out_ns_per_byte)
{
    double few, many;
    *out_ns = 0;
    *out_ns_per_byte = slowdown_of(rates) / BYTES_PER_NS;
    if (rates != NULL &&
        wefti_costs_kernel_ns(rates->costs, WEFTI_KERNEL_MOVE, rates->threads, FEW_BYTES, &few) &&
        wefti_costs_kernel_ns(rates->costs, WEFTI_KERNEL_MOVE, rates->threads, MANY_BYTES, &many)) {
        *out_ns = few * rates->slowdown;
        *out_ns_per_byte = many > few ? (many - few) * rates->slowdown / MANY_BYTES : 0;
    }
}

/*
 * Updates find their operands in the cache that holds what a step touches in between: what all
 * updates read and write, or all values of the step, whichever is more.
 */
static weft_status_t touched_bytes(wefti_graph_t *graph, double *out_bytes)
{
    double updated = 0, values = 0;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        weft_node_desc_t desc;
        double flops = 0, bytes = 0;
        if (kind_of(graph->nodes[id].def) == WEFTI_KERNEL_UPDATE) {
            WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(graph, id, &desc));
            wefti_op_cost(graph->nodes[id].def, &desc, &flops, &bytes);
            updated += bytes;
        }
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        const wefti_node_t *node = graph->values[v].producer != WEFTI_NONE
                                       ? &graph->nodes[graph->values[v].producer]
                                       : NULL;
        bool in_place =
            node != NULL && (node->phase == WEFTI_PHASE_UPDATE || wefti_node_communicates(node));
        values += in_place ? 0 : (double)wefti_value_bytes(&graph->values[v]);
    }
    *out_bytes = updated > values ? updated : values;
    return WEFT_OK;
}

weft_status_t wefti_predict_ready(wefti_graph_t *graph, const wefti_profile_t *profile,
                                  const wefti_rates_t *rates, wefti_arena_t *arena,
                                  uint64_t **out_ready_ns)
{
    double now_ns = 0, step_bytes;
    uint64_t *ready = wefti_arena_array(arena, graph->node_count, sizeof(*ready));
    WEFT_RETURN_IF_NO_MEMORY(ready);
    WEFT_RETURN_IF_ERROR(touched_bytes(graph, &step_bytes));
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        double cost_ns = 0;
        bool known = wefti_profile_kernel_ns(profile, graph->nodes[id].name, &cost_ns);
        if (!known && rates != NULL && rates->costs->kernel_count > 0 &&
            wefti_node_is_view(graph, &graph->nodes[id])) {
            double per_byte;
            wefti_move_ns(rates, &cost_ns, &per_byte);
        } else if (!known) {
            weft_node_desc_t desc;
            WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(graph, id, &desc));
            cost_ns = predict_ns(graph->nodes[id].def, &desc, rates, step_bytes);
        }
        now_ns += cost_ns > 0 ? cost_ns : 0;
        ready[id] = now_ns < 1e18 ? (uint64_t)now_ns : (uint64_t)1000000000000000000;
    }
    *out_ready_ns = ready;
    return WEFT_OK;
}

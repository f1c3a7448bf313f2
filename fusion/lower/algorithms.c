/* SPDX-License-Identifier: Apache-2.0 */
/* The candidate algorithms of a plan's collective: bind takes the first that all ranks can run. */
#include "fusion/lower/lower.h"

#include <math.h>
#include <string.h>

#include "fusion/rankings.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"

#define MOST_LISTED 4u /* mesh included */

/* Sources are wholly or partly the result's memory. */
static bool is_in_place(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    const wefti_plan_buffer_t *a = &plan->buffers[collective->source],
                              *b = &plan->buffers[collective->buffer];
    return a->offset_bytes < b->offset_bytes + b->size_bytes &&
           b->offset_bytes < a->offset_bytes + a->size_bytes;
}

/* The rankings of collectives of each group. */
static weft_status_t make_rankings(wefti_lowering_t *l)
{
    uint32_t count = l->params->mesh.axis_count + 1;
    wefti_rankings_t *rankings = wefti_arena_array(&l->arena, count, sizeof *rankings);
    WEFT_RETURN_IF_NO_MEMORY(rankings);
    for (uint32_t g = 0; g < count; g++) {
        rankings[g] =
            (wefti_rankings_t){.costs = l->params->costs, .most = MOST_LISTED, .arena = &l->arena};
        rankings[g].rules = l->params->rules;
        rankings[g].registry = l->params->rules != NULL ? l->params->rules->registry : NULL;
        if (g > 0) {
            WEFT_RETURN_IF_ERROR(wefti_rules_of_axis(l->params->rules, &l->params->mesh.axes[g - 1],
                                                     l->params->world_size, &l->arena,
                                                     &rankings[g].rules));
        }
    }
    l->rankings = rankings;
    return WEFT_OK;
}

/* Those of the collective's group; a plan without the group is refused later. */
static wefti_rankings_t *rankings_of(const wefti_lowering_t *l,
                                     const wefti_plan_collective_t *collective)
{
    return &l->rankings[collective->group <= l->params->mesh.axis_count ? collective->group : 0];
}

static uint32_t ranks_of(const wefti_lowering_t *l, const wefti_plan_collective_t *collective)
{
    return collective->group <= l->params->mesh.axis_count
               ? wefti_plan_axis(l->plan, collective).size
               : l->params->world_size;
}

static weft_status_t find_ranking(wefti_lowering_t *l, const wefti_plan_collective_t *collective,
                                  uint64_t bytes, const wefti_ranking_t **out_ranking)
{
    if (l->rankings == NULL) {
        WEFT_RETURN_IF_ERROR(make_rankings(l));
    }
    return wefti_rank_algorithms(rankings_of(l, collective), collective->op,
                                 ranks_of(l, collective), is_in_place(l->plan, collective), 4,
                                 bytes, out_ranking);
}

static uint64_t as_ps(double ns)
{
    return ns < 0 ? 0 : ns > 1e12 ? (uint64_t)1000000000000000 : (uint64_t)llround(ns * 1e3);
}

/* The first of the list takes as long as cost predicts (a profile may have scaled it); the others
 * keep their distance. */
static double scale_of(const wefti_bucket_cost_t *cost, uint64_t bytes, double best_ns)
{
    return cost == NULL || best_ns <= 0
               ? 1
               : (double)wefti_bucket_cost_ps(cost, bytes) / (best_ns * 1e3);
}

static weft_status_t add_ranked(wefti_lowering_t *l, wefti_plan_collective_t *collective,
                                uint64_t range_bytes, const wefti_bucket_cost_t *cost)
{
    const wefti_ranking_t *ranking;
    /* One block, which is what costs are asked for. */
    uint64_t bytes = collective->elem_count * weft_dtype_size_bytes(collective->dtype);
    WEFT_RETURN_IF_ERROR(find_ranking(l, collective, bytes, &ranking));
    /* The sweep does what mesh does, and nothing else does that. */
    bool only_mesh = collective->update != WEFTI_PLAN_NONE;
    wefti_plan_algorithm_t *out = wefti_arena_array(&l->plan->arena, ranking->count, sizeof(*out));
    bool ordered =
        l->params->rules != NULL && wefti_collective_reduces(collective->op) && !only_mesh;
    collective->order =
        wefti_arena_strdup(&l->plan->arena, ordered ? l->params->rules->order_text : "tree");
    WEFT_RETURN_IF_NO_MEMORY(out && collective->order);
    collective->algorithms = out;
    double scale = scale_of(cost, range_bytes, wefti_ranking_ns(ranking, 0, bytes));
    for (uint32_t i = 0; i < ranking->count; i++) {
        double ns = wefti_ranking_ns(ranking, i, bytes);
        if (only_mesh && strcmp(ranking->names[i], "mesh") != 0) {
            continue;
        }
        *out = (wefti_plan_algorithm_t){
            .name = wefti_arena_strdup(&l->plan->arena, ranking->names[i]),
            .capabilities = WEFTI_PLAN_CAP_DIRECT | WEFTI_PLAN_CAP_SIGNAL,
            .predicted_ps = ranks_of(l, collective) > 1 ? as_ps(ns * scale) : 0};
        WEFT_RETURN_IF_NO_MEMORY(out->name);
        out++;
        collective->algorithm_count++;
    }
    return WEFT_OK;
}

/* The next name of a comma-separated list, NULL at the end; in arena. */
static const char *next_name(wefti_arena_t *arena, const char **at, bool *out_failed)
{
    size_t length = strcspn(*at, ",");
    char *name = length > 0 ? wefti_arena_printf(arena, "%.*s", (int)length, *at) : NULL;
    *out_failed = length > 0 && name == NULL;
    *at += length + ((*at)[length] == ',');
    return name;
}

static uint64_t listed_ps(const wefti_plan_collective_t *collective, const char *name)
{
    for (uint32_t i = 0; i < collective->algorithm_count; i++) {
        if (strcmp(collective->algorithms[i].name, name) == 0) {
            return collective->algorithms[i].predicted_ps;
        }
    }
    return 0;
}

static weft_algo_params_t params_of(const wefti_lowering_t *l,
                                    const wefti_plan_collective_t *collective)
{
    weft_algo_params_t params =
        wefti_rules_params(rankings_of(l, collective)->rules, collective->op,
                           ranks_of(l, collective), is_in_place(l->plan, collective));
    params.root = collective->root;
    return params;
}

/* In place of these, those that the graph asks for, and no others. */
static weft_status_t take_listed(wefti_lowering_t *l, const wefti_node_t *node,
                                 wefti_plan_collective_t *collective)
{
    const weft_attr_t *attr = wefti_node_attr(node, "algorithm");
    const char *at = attr != NULL && attr->type == WEFT_ATTR_TYPE_STRING ? attr->s : "";
    uint32_t count = 0;
    bool failed = false;
    const char *refused = NULL, *why = NULL;
    const weft_algo_params_t params = params_of(l, collective);
    if (*at == '\0' || strcmp(at, "auto") == 0) {
        return WEFT_OK;
    }
    wefti_plan_algorithm_t *out =
        wefti_arena_array(&l->plan->arena, strlen(at) / 2 + 1, sizeof(*out));
    for (const char *name;
         out != NULL && (name = next_name(&l->plan->arena, &at, &failed)) != NULL;) {
        const weft_algorithm_t *algorithm =
            weft_registry_find_algorithm(l->graph->registry, collective->op, name);
        if (algorithm == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "node '%s' (%s): attribute 'algorithm': unknown algorithm '%.60s'; "
                               "'weft algos' lists the known ones",
                               node->name, node->def->name, name);
        }
        const char *reason =
            params.group_size > 1 ? wefti_algorithm_order_refusal(algorithm, &params) : NULL;
        if (reason != NULL) {
            refused = name;
            why = reason;
            continue;
        }
        out[count++] =
            (wefti_plan_algorithm_t){.name = name,
                                     .capabilities = WEFTI_PLAN_CAP_DIRECT | WEFTI_PLAN_CAP_SIGNAL,
                                     .predicted_ps = listed_ps(collective, name)};
    }
    if (out == NULL || failed) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (count == 0 && refused != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): attribute 'algorithm': '%s': %s (%s)", node->name,
                           node->def->name, refused, why, collective->order);
    }
    if (count == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): attribute 'algorithm': no name in '%.60s'", node->name,
                           node->def->name, attr->s);
    }
    collective->algorithms = out;
    collective->algorithm_count = count;
    return WEFT_OK;
}

/* In place of all others, the one that the parameter algo fixes. */
static weft_status_t take_fixed(wefti_lowering_t *l, const weft_algorithm_t *fixed,
                                wefti_plan_collective_t *collective)
{
    const weft_algo_params_t params = params_of(l, collective);
    weft_status_t status = wefti_rules_check(fixed, &params);
    if (status < 0) {
        return wefti_error_prefix(status, "%s", collective->name);
    }
    char *name = wefti_arena_strdup(&l->plan->arena, fixed->name);
    WEFT_RETURN_IF_NO_MEMORY(name);
    collective->algorithms[0] =
        (wefti_plan_algorithm_t){.name = name,
                                 .capabilities = WEFTI_PLAN_CAP_DIRECT | WEFTI_PLAN_CAP_SIGNAL,
                                 .predicted_ps = listed_ps(collective, name)};
    collective->algorithm_count = 1;
    return WEFT_OK;
}

weft_status_t wefti_lower_add_algorithms(wefti_lowering_t *l, const wefti_node_t *node,
                                         wefti_plan_collective_t *collective, uint64_t bytes,
                                         const wefti_bucket_cost_t *cost)
{
    const weft_algorithm_t *fixed =
        wefti_rules_fixed(l->params->rules, collective->op, ranks_of(l, collective));
    WEFT_RETURN_IF_ERROR(add_ranked(l, collective, bytes, cost));
    if (collective->update != WEFTI_PLAN_NONE) {
        return WEFT_OK;
    }
    return fixed != NULL ? take_fixed(l, fixed, collective) : take_listed(l, node, collective);
}

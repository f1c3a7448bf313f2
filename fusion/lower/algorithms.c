/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The candidate algorithms of a plan's collective, the fastest predicted one first: bind takes the
 * first that all ranks can run. Mesh is always in the list; any group in shared memory can run it.
 * Predictions run the schedules of all ranks, so they are made once per operator and class of
 * sizes; in between times are affine in bytes.
 */
#include "fusion/lower/lower.h"

#include <math.h>
#include <string.h>

#include "runtime/base/error.h"

#define MOST_LISTED 4u /* mesh included */
#define CLASSES 64u

/* What was predicted for sizes from 2^k bytes to twice that. */
typedef struct ranking {
    bool known;
    uint32_t count;
    const char *names[MOST_LISTED];
    double low_ns[MOST_LISTED], high_ns[MOST_LISTED]; /* at either end */
} ranking_t;

struct wefti_rankings {
    ranking_t of[WEFT_COLLECTIVE_BARRIER + 1][2][CLASSES]; /* operator, in place, class */
};

/* Sources are wholly or partly the result's memory. */
static bool is_in_place(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    const wefti_plan_buffer_t *a = &plan->buffers[collective->source],
                              *b = &plan->buffers[collective->buffer];
    return a->offset_bytes < b->offset_bytes + b->size_bytes &&
           b->offset_bytes < a->offset_bytes + a->size_bytes;
}

static weft_status_t predict_at(const wefti_lowering_t *l, const weft_algo_params_t *params,
                                uint64_t bytes, wefti_candidate_t out[WEFTI_MAX_CANDIDATES],
                                uint32_t *out_count)
{
    /* Hand-written code loads and stores. */
    wefti_choice_t choice = {.planned = true, .executors = params->host_of == NULL};
    wefti_counts_t counts = {.elem_count = bytes / 4, .elem_bytes = 4};
    weft_status_t status =
        wefti_cost_choose(l->params->costs, params, &counts, &choice, out, out_count);
    for (uint32_t i = 0; status >= 0 && i < *out_count; i++) {
        if (out[i].reason != NULL) { /* eligible ones come first */
            *out_count = i;
        }
    }
    return status;
}

static double predicted_ns(const wefti_candidate_t *candidates, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(candidates[i].algorithm->name, name) == 0) {
            return candidates[i].predicted_ns;
        }
    }
    return 0;
}

static void list(ranking_t *ranking, const char *name, const wefti_candidate_t *low,
                 uint32_t low_count, const wefti_candidate_t *high, uint32_t high_count)
{
    ranking->names[ranking->count] = name;
    ranking->low_ns[ranking->count] = predicted_ns(low, low_count, name);
    ranking->high_ns[ranking->count++] = predicted_ns(high, high_count, name);
}

/* The best ones in the middle of the class, and mesh. */
static weft_status_t rank(wefti_lowering_t *l, const weft_algo_params_t *params, uint32_t class,
                          ranking_t *ranking)
{
    weft_status_t status;
    wefti_candidate_t low[WEFTI_MAX_CANDIDATES], middle[WEFTI_MAX_CANDIDATES],
        high[WEFTI_MAX_CANDIDATES];
    uint32_t low_count, middle_count, high_count;
    bool mesh = false;
    uint64_t bytes = 1ull << class;
    WEFT_TRY(status, predict_at(l, params, bytes, low, &low_count), fail);
    WEFT_TRY(status, predict_at(l, params, bytes + bytes / 2, middle, &middle_count), fail);
    WEFT_TRY(status, predict_at(l, params, bytes * 2, high, &high_count), fail);
    for (uint32_t i = 0; i < middle_count; i++) {
        const char *name = middle[i].algorithm->name;
        bool is_mesh = strcmp(name, "mesh") == 0;
        if (is_mesh || ranking->count + !mesh < MOST_LISTED) {
            list(ranking, name, low, low_count, high, high_count);
        }
        mesh |= is_mesh;
    }
    ranking->known = true;
fail:
    return status;
}

/* Too many ranks to predict for: few steps, then mesh. */
static weft_status_t rank_unpredicted(const weft_algo_params_t *params, ranking_t *ranking)
{
    const weft_algorithm_t *few = wefti_cost_few_steps(params);
    ranking->known = true;
    if (few != NULL && strcmp(few->name, "mesh") != 0) {
        ranking->names[ranking->count++] = few->name;
    }
    ranking->names[ranking->count++] = "mesh";
    return WEFT_OK;
}

static weft_status_t find_ranking(wefti_lowering_t *l, const wefti_plan_collective_t *collective,
                                  uint64_t bytes, const ranking_t **out_ranking)
{
    weft_status_t status = WEFT_OK;
    bool in_place = is_in_place(l->plan, collective);
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = collective->op,
                                 .group_size = l->params->world_size,
                                 .in_place = in_place,
                                 .order = WEFT_ORDER_TREE};
    wefti_plan_place_params(l->params->place, &params);
    uint32_t class = 63u - (uint32_t)__builtin_clzll(bytes | 64);
    if (l->rankings == NULL) {
        l->rankings = wefti_arena_alloc(&l->arena, sizeof *l->rankings);
    }
    if (l->rankings == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    class = class > 40 ? 40 : class; /* 1 TiB */
    ranking_t *ranking = &l->rankings->of[collective->op][in_place][class];
    *out_ranking = ranking;
    if (ranking->known) {
        return WEFT_OK;
    }
    if (l->params->costs == NULL || params.group_size == 1) {
        ranking->known = true;
        ranking->names[ranking->count++] = "mesh";
    } else if (params.group_size > WEFTI_MAX_PREDICTED_RANKS) {
        status = rank_unpredicted(&params, ranking);
    } else {
        status = rank(l, &params, class, ranking);
    }
    return status;
}

static uint64_t as_ps(double ns)
{
    return ns < 0 ? 0 : ns > 1e12 ? (uint64_t)1000000000000000 : (uint64_t)llround(ns * 1e3);
}

/* All-reduces take what the planner thought of (a profile may have scaled it); the others of the
 * list keep their distance. */
static double scale_of(const wefti_lowering_t *l, const wefti_plan_collective_t *collective,
                       uint64_t bytes, double best_ns)
{
    if (collective->op != WEFT_COLLECTIVE_ALL_REDUCE || l->params->bucket_cost == NULL ||
        best_ns <= 0) {
        return 1;
    }
    return (double)wefti_bucket_cost_ps(l->params->bucket_cost, bytes) / (best_ns * 1e3);
}

weft_status_t wefti_lower_add_algorithms(wefti_lowering_t *l, wefti_plan_collective_t *collective,
                                         uint64_t range_bytes)
{
    weft_status_t status;
    const ranking_t *ranking;
    /* One block, which is what costs are asked for. */
    uint64_t bytes = collective->elem_count * weft_dtype_size_bytes(collective->dtype);
    WEFT_TRY(status, find_ranking(l, collective, bytes, &ranking), fail);
    uint64_t base = 1ull << (63u - (uint32_t)__builtin_clzll(bytes | 64));
    double along = ((double)bytes - (double)base) / (double)base;
    /* The sweep does what mesh does, and nothing else does that. */
    bool only_mesh = collective->update != WEFTI_PLAN_NONE;
    wefti_plan_algorithm_t *out = wefti_arena_array(&l->plan->arena, ranking->count, sizeof(*out));
    collective->order = wefti_arena_strdup(&l->plan->arena, "tree");
    if (out == NULL || collective->order == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    collective->algorithms = out;
    collective->algorithm_count = 0;
    double scale =
        scale_of(l, collective, range_bytes,
                 ranking->low_ns[0] + along * (ranking->high_ns[0] - ranking->low_ns[0]));
    for (uint32_t i = 0; i < ranking->count; i++) {
        double ns = ranking->low_ns[i] + along * (ranking->high_ns[i] - ranking->low_ns[i]);
        if (only_mesh && strcmp(ranking->names[i], "mesh") != 0) {
            continue;
        }
        *out = (wefti_plan_algorithm_t){
            .name = wefti_arena_strdup(&l->plan->arena, ranking->names[i]),
            .capabilities = WEFTI_PLAN_CAP_DIRECT | WEFTI_PLAN_CAP_SIGNAL,
            .predicted_ps = l->params->world_size > 1 ? as_ps(ns * scale) : 0};
        if (out->name == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        out++;
        collective->algorithm_count++;
    }
fail:
    return status;
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

weft_status_t wefti_lower_take_algorithms(wefti_lowering_t *l, const wefti_node_t *node,
                                          wefti_plan_collective_t *collective)
{
    const weft_attr_t *attr = wefti_node_attr(node, "algorithm");
    const char *at = attr != NULL && attr->type == WEFT_ATTR_TYPE_STRING ? attr->s : "";
    uint32_t count = 0;
    bool failed = false;
    if (*at == '\0' || strcmp(at, "auto") == 0) {
        return WEFT_OK;
    }
    wefti_plan_algorithm_t *out =
        wefti_arena_array(&l->plan->arena, strlen(at) / 2 + 1, sizeof(*out));
    for (const char *name; out != NULL && (name = next_name(&l->plan->arena, &at, &failed)) != NULL;
         count++) {
        if (weft_registry_find_algorithm(l->graph->registry, collective->op, name) == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "node '%s' (%s): attribute 'algorithm': unknown algorithm '%.60s'; "
                               "'weft algos' lists the known ones",
                               node->name, node->def->name, name);
        }
        out[count] =
            (wefti_plan_algorithm_t){.name = name,
                                     .capabilities = WEFTI_PLAN_CAP_DIRECT | WEFTI_PLAN_CAP_SIGNAL,
                                     .predicted_ps = listed_ps(collective, name)};
    }
    if (out == NULL || failed) {
        return WEFT_ERR_NO_MEMORY;
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

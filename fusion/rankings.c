/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/rankings.h"

#include <string.h>

#include "fusion/simulate/simulate.h"
#include "runtime/base/error.h"

#define MOST_CLASS 40u /* 1 TiB */

static uint32_t class_of(uint64_t bytes)
{
    return 63u - (uint32_t)__builtin_clzll(bytes | 64);
}

double wefti_ranking_ns(const wefti_ranking_t *ranking, uint32_t index, uint64_t bytes)
{
    double base = (double)(1ull << class_of(bytes));
    return ranking->low_ns[index] +
           ((double)bytes - base) / base * (ranking->high_ns[index] - ranking->low_ns[index]);
}

/* Simulates the cluster's links, for any number of ranks; or NULL. */
static sim_group_t *described(const wefti_rankings_t *r)
{
    return r->rules != NULL ? r->rules->described : NULL;
}

/* Of V forms the counts are known when they are called: all blocks are equal here. */
static weft_status_t predict_at(const wefti_rankings_t *r, const weft_algo_params_t *params,
                                uint32_t elem_bytes, uint64_t bytes,
                                wefti_candidate_t out[WEFTI_MAX_CANDIDATES], uint32_t *out_count)
{
    uint64_t each[WEFTI_MAX_PREDICTED_RANKS * WEFTI_MAX_PREDICTED_RANKS];
    /* Hand-written code loads and stores. */
    wefti_choice_t choice = {
        .planned = true, .executors = params->host_of == NULL, .registry = r->registry};
    if (described(r) != NULL) {
        choice.predict = wefti_sim_predict;
        choice.predict_user = described(r);
    }
    wefti_counts_t counts = {.elem_count = bytes / elem_bytes, .elem_bytes = elem_bytes};
    if (wefti_collective_is_variable(params->op) && described(r) == NULL) {
        for (uint32_t i = 0; i < params->group_size * params->group_size; i++) {
            each[i] = counts.elem_count;
        }
        counts.counts = each;
    }
    weft_status_t status = wefti_cost_choose(r->costs, params, &counts, &choice, out, out_count);
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

/* Sessions know racks from WEFT_TOPOLOGY only. */
static bool needs_racks(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    weft_algo_params_t unknown = *params;
    unknown.rack_of = NULL;
    return wefti_algorithm_reason(algorithm, &unknown) != NULL;
}

/* The best ones in the middle of the class, of these one that needs no racks, what the rules fix,
 * and mesh: any group in shared memory can run it. */
static weft_status_t predict(const wefti_rankings_t *r, const weft_algo_params_t *params,
                             wefti_ranking_t *ranking)
{
    wefti_candidate_t low[WEFTI_MAX_CANDIDATES], middle[WEFTI_MAX_CANDIDATES],
        high[WEFTI_MAX_CANDIDATES];
    uint32_t low_count, middle_count, high_count, elem = ranking->elem_bytes;
    uint32_t most = r->most > 0 ? r->most : WEFTI_MAX_CANDIDATES;
    bool mesh = false, anywhere = false;
    const weft_algorithm_t *fixed = wefti_rules_fixed(r->rules, params->op, params->group_size);
    uint64_t bytes = 1ull << ranking->class;
    WEFT_RETURN_IF_ERROR(predict_at(r, params, elem, bytes, low, &low_count));
    WEFT_RETURN_IF_ERROR(predict_at(r, params, elem, bytes + bytes / 2, middle, &middle_count));
    WEFT_RETURN_IF_ERROR(predict_at(r, params, elem, bytes * 2, high, &high_count));
    for (uint32_t i = 0; i < middle_count; i++) {
        const char *name = middle[i].algorithm->name;
        bool is_mesh = strcmp(name, "mesh") == 0;
        bool listed = is_mesh || middle[i].algorithm == fixed;
        bool racks = needs_racks(middle[i].algorithm, params);
        uint32_t kept = !mesh + (racks && !anywhere); /* places */
        if (listed || ranking->count + kept < most || r->most == 0) {
            anywhere = anywhere || !(racks || is_mesh);
            uint32_t at = ranking->count++;
            ranking->names[at] = name;
            ranking->low_ns[at] = predicted_ns(low, low_count, name);
            ranking->high_ns[at] = predicted_ns(high, high_count, name);
        }
        mesh |= is_mesh;
    }
    const weft_algorithm_t *other = wefti_algorithm_find(params->op, "mesh");
    if (!mesh && described(r) != NULL && other != NULL && other->eligible(params) == NULL) {
        ranking->names[ranking->count++] = other->name; /* not predicted */
    }
    return WEFT_OK;
}

/* Too many ranks to predict for: few steps, then mesh. */
static void list_unpredicted(const weft_algo_params_t *params, wefti_ranking_t *ranking)
{
    const weft_algorithm_t *few = wefti_cost_few_steps(params);
    ranking->count = 0;
    if (few != NULL && strcmp(few->name, "mesh") != 0) {
        ranking->names[ranking->count++] = few->name;
    }
    ranking->names[ranking->count++] = "mesh";
}

weft_status_t wefti_rank_algorithms(wefti_rankings_t *r, weft_collective_t op, uint32_t ranks,
                                    bool in_place, uint32_t elem_bytes, uint64_t bytes,
                                    const wefti_ranking_t **out_ranking)
{
    uint32_t class = class_of(bytes) < MOST_CLASS ? class_of(bytes) : MOST_CLASS;
    weft_algo_params_t params = wefti_rules_params(r->rules, op, ranks, in_place);
    for (*out_ranking = r->first; *out_ranking != NULL; *out_ranking = (*out_ranking)->next) {
        const wefti_ranking_t *found = *out_ranking;
        if (found->op == op && found->ranks == ranks && found->in_place == in_place &&
            found->elem_bytes == elem_bytes && found->class == class) {
            return WEFT_OK;
        }
    }
    wefti_ranking_t *ranking = wefti_arena_alloc(r->arena, sizeof *ranking);
    WEFT_RETURN_IF_NO_MEMORY(ranking);
    *ranking = (wefti_ranking_t){.op = op,
                                 .ranks = ranks,
                                 .elem_bytes = elem_bytes,
                                 .class = class,
                                 .in_place = in_place,
                                 .next = r->first};
    if (r->costs == NULL || ranks == 1) {
        ranking->names[ranking->count++] = "mesh";
    } else if (ranks > WEFTI_MAX_PREDICTED_RANKS && described(r) == NULL) {
        list_unpredicted(&params, ranking);
    } else {
        weft_status_t status = predict(r, &params, ranking);
        if (status == WEFT_ERR_UNSUPPORTED && described(r) != NULL) {
            list_unpredicted(&params, ranking); /* of none */
            status = WEFT_OK;
        }
        WEFT_RETURN_IF_ERROR(status);
    }
    r->first = ranking;
    *out_ranking = ranking;
    return WEFT_OK;
}

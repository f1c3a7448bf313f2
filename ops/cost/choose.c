/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm carries out a collective of these sizes over these ranks, and why. */
#include <string.h>

#include "ops/cost/cost.h"
#include "runtime/base/error.h"

/* The piece of a measured fit that bytes lie in. */
static const wefti_measured_cost_t *find_measured(const wefti_costs_t *costs,
                                                  const weft_algo_params_t *params,
                                                  const char *name, bool plain, uint64_t bytes)
{
    uint32_t hosts = params->host_count > 0 ? params->host_count : 1;
    const wefti_measured_cost_t *found = NULL;
    for (size_t i = 0; i < costs->measured_count; i++) {
        const wefti_measured_cost_t *item = &costs->measured[i];
        if (item->op == params->op && item->ranks == params->group_size && item->hosts == hosts &&
            item->plain == plain && item->from_bytes <= bytes &&
            (found == NULL || item->from_bytes > found->from_bytes) &&
            strcmp(item->algorithm, name) == 0) {
            found = item;
        }
    }
    return found;
}

static weft_status_t estimate(const wefti_costs_t *costs, const weft_algo_params_t *params,
                              const wefti_counts_t *counts, bool plain,
                              wefti_candidate_t *candidate)
{
    double bytes = (double)counts->elem_count * counts->elem_bytes;
    const wefti_measured_cost_t *item =
        counts->counts == NULL && bytes < 0x1p62
            ? find_measured(costs, params, candidate->algorithm->name, plain, (uint64_t)bytes)
            : NULL;
    if (item != NULL) {
        candidate->measured = true;
        candidate->predicted_ns = item->alpha_ns + item->beta_ns_per_byte * bytes;
        return WEFT_OK;
    }
    return wefti_cost_predict(costs, candidate->algorithm, params, counts,
                              &candidate->predicted_ns);
}

/* Whether a goes before b; equal ones stay in the order of the table. */
static bool goes_before(const wefti_candidate_t *a, const wefti_candidate_t *b)
{
    if ((a->reason == NULL) != (b->reason == NULL)) {
        return a->reason == NULL;
    }
    return a->reason == NULL && a->predicted_ns < b->predicted_ns;
}

static void insert(wefti_candidate_t *list, uint32_t *count, const wefti_candidate_t *candidate)
{
    uint32_t at = (*count)++;
    while (at > 0 && goes_before(candidate, &list[at - 1])) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = *candidate;
}

weft_status_t wefti_cost_choose(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                const wefti_counts_t *counts, const wefti_choice_t *choice,
                                wefti_candidate_t out[WEFTI_MAX_CANDIDATES], uint32_t *out_count)
{
    const weft_algorithm_t *algorithm;
    const char *wanted = choice != NULL ? choice->wanted : NULL;
    *out_count = 0;
    weft_status_t status = wefti_algo_params_check(params);
    if (status < 0) {
        return status;
    }
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (algorithm->op != params->op || *out_count == WEFTI_MAX_CANDIDATES ||
            (wanted != NULL && strcmp(wanted, algorithm->name) != 0)) {
            continue;
        }
        wefti_candidate_t candidate = {.algorithm = algorithm,
                                       .reason = algorithm->eligible(params)};
        if (candidate.reason == NULL) {
            status = estimate(costs, params, counts, choice != NULL && choice->plain, &candidate);
        }
        if (status < 0) {
            return status;
        }
        insert(out, out_count, &candidate);
    }
    if (*out_count == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s has no algorithm%s%s",
                           weft_collective_name(params->op), wanted != NULL ? " called " : "",
                           wanted != NULL ? wanted : "");
    }
    if (out[0].reason != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s %s: %s", weft_collective_name(params->op),
                           out[0].algorithm->name, out[0].reason);
    }
    return WEFT_OK;
}

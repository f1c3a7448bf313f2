/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm carries out a collective of these sizes over these ranks, and why. */
#include <string.h>

#include "ops/algo/placement.h"
#include "ops/cost/cost.h"
#include "runtime/base/error.h"

#define MANY_HOSTS 16u
#define FEW_PEERS_MAX_BYTES ((uint64_t)256 << 10) /* of all that a rank sends */

/* The piece of a measured fit that bytes lie in. */
static const wefti_measured_cost_t *find_measured(const wefti_costs_t *costs,
                                                  const weft_algo_params_t *params,
                                                  const char *name, bool plain, uint64_t bytes)
{
    uint32_t hosts = wefti_placement_hosts(params);
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

bool wefti_cost_has_executor(const weft_algorithm_t *algorithm)
{
    return wefti_algorithm_find(algorithm->op, algorithm->name) == algorithm &&
           (strcmp(algorithm->name, "mesh") == 0 || strcmp(algorithm->name, "one-shot") == 0);
}

/*
 * What eager calls take beside their schedule. One that is interpreted begins when the ranks have
 * agreed on the call, which an executor's first wait does in passing. Memory that peers cannot
 * reach is copied on its own rank: by executors to where peers read it, by schedules back as well.
 */
static double beside_ns(const wefti_costs_t *costs, uint32_t hosts, double bytes, bool plain,
                        bool executor)
{
    double copied = plain ? bytes * (executor ? 2 : 4) : 0;
    double ns = copied * costs->level[WEFTI_LEVEL_SELF].beta_ns_per_byte;
    double flag = costs->level[hosts > 1 ? WEFTI_LEVEL_NET : WEFTI_LEVEL_HOST].alpha_ns;
    return executor ? ns : ns + costs->call_ns + flag;
}

static weft_status_t estimate(const wefti_costs_t *costs, const weft_algo_params_t *params,
                              const wefti_counts_t *counts, const wefti_choice_t *choice,
                              wefti_candidate_t *candidate)
{
    double bytes = (double)counts->elem_count * counts->elem_bytes;
    const wefti_measured_cost_t *item =
        counts->counts == NULL && bytes < 0x1p62
            ? find_measured(costs, params, candidate->algorithm->name, choice->plain,
                            (uint64_t)bytes)
            : NULL;
    if (item != NULL) {
        candidate->measured = true;
        double ns = item->alpha_ns + item->beta_ns_per_byte * bytes;
        candidate->predicted_ns = ns > 0 ? ns : 0;
        return WEFT_OK;
    }
    if (choice->predict != NULL) {
        return choice->predict(choice->predict_user, candidate->algorithm, params, counts,
                               &candidate->predicted_ns);
    }
    wefti_costs_t own = *costs;
    own.step_ns = candidate->executor ? 0 : costs->step_ns;
    weft_status_t status =
        wefti_cost_predict(&own, candidate->algorithm, params, counts, &candidate->predicted_ns);
    if (status >= 0 && !choice->planned) {
        candidate->predicted_ns += beside_ns(costs, wefti_placement_hosts(params), bytes,
                                             choice->plain, candidate->executor);
    }
    return status;
}

static double handicapped_ns(const wefti_candidate_t *candidate)
{
    return candidate->executor ? candidate->predicted_ns
                               : candidate->predicted_ns * WEFTI_EXECUTOR_LEAD;
}

/* Whether a goes before b; equal ones stay in the order of the table. */
static bool goes_before(const wefti_candidate_t *a, const wefti_candidate_t *b)
{
    if ((a->reason == NULL) != (b->reason == NULL)) {
        return a->reason == NULL;
    }
    return a->reason == NULL && handicapped_ns(a) < handicapped_ns(b);
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

/* The built-in algorithms, then those of the registry. */
static const weft_algorithm_t *next_algorithm(const weft_registry_t *registry, size_t *built_in,
                                              size_t *added)
{
    const weft_algorithm_t *algorithm = wefti_algorithm_at(*built_in);
    if (algorithm != NULL) {
        (*built_in)++;
        return algorithm;
    }
    return wefti_registry_algorithm_at(registry, (*added)++);
}

weft_status_t wefti_cost_choose(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                const wefti_counts_t *counts, const wefti_choice_t *choice,
                                wefti_candidate_t out[WEFTI_MAX_CANDIDATES], uint32_t *out_count)
{
    static const wefti_choice_t of_a_plan = {.planned = true};
    const weft_algorithm_t *algorithm;
    size_t built_in = 0, added = 0;
    choice = choice != NULL ? choice : &of_a_plan;
    const char *wanted = choice->wanted;
    *out_count = 0;
    weft_status_t status = wefti_algo_params_check(params);
    if (status < 0) {
        return status;
    }
    while ((algorithm = next_algorithm(choice->registry, &built_in, &added)) != NULL) {
        if (algorithm->op != params->op || *out_count == WEFTI_MAX_CANDIDATES ||
            (wanted != NULL && strcmp(wanted, algorithm->name) != 0)) {
            continue;
        }
        wefti_candidate_t candidate = {.algorithm = algorithm,
                                       .executor =
                                           choice->executors && wefti_cost_has_executor(algorithm),
                                       .reason = wefti_algorithm_reason(algorithm, params)};
        if (candidate.reason == NULL) {
            status = estimate(costs, params, counts, choice, &candidate);
        }
        if (status == WEFT_ERR_UNSUPPORTED && choice->predict != NULL) {
            candidate.reason = "its time cannot be predicted for so many ranks";
            status = WEFT_OK;
        }
        if (status < 0 && status != WEFT_ERR_NO_MEMORY && added > 0 && wanted == NULL) {
            /* Nobody asked for it: the others are not to suffer. */
            candidate.reason = "its schedule cannot be built; verify it";
            status = WEFT_OK;
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

const weft_algorithm_t *wefti_cost_few_steps(const weft_algo_params_t *params)
{
    static const char *const names[] = {"hierarchical", "halving-doubling", "halving", "binomial",
                                        "doubling",     "pairwise",         "mesh"};
    /* Its hosts talk to each other all at once. */
    bool many_hosts = wefti_placement_hosts(params) > MANY_HOSTS;
    for (size_t i = many_hosts; i < sizeof names / sizeof *names; i++) {
        const weft_algorithm_t *algorithm = wefti_algorithm_find(params->op, names[i]);
        if (algorithm != NULL && wefti_algorithm_reason(algorithm, params) == NULL) {
            return algorithm;
        }
    }
    return NULL;
}

wefti_peers_t wefti_cost_peers(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    /* They end when all ranks have, or read from all. */
    static const char *const of_all[] = {"mesh",    "one-shot", "pairwise",      "halving-doubling",
                                         "halving", "doubling", "scatter-gather"};
    static const char *const of_hosts[] = {"hierarchical", "rails"};
    bool many_hosts = wefti_placement_hosts(params) > MANY_HOSTS;
    bool reads_few =
        params->op == WEFT_COLLECTIVE_ALL_REDUCE && strcmp(algorithm->name, "doubling") == 0;
    for (size_t i = 0; !reads_few && i < sizeof of_all / sizeof *of_all; i++) {
        if (strcmp(algorithm->name, of_all[i]) == 0) {
            return WEFTI_PEERS_ALL;
        }
    }
    for (size_t i = 0; many_hosts && i < sizeof of_hosts / sizeof *of_hosts; i++) {
        if (strcmp(algorithm->name, of_hosts[i]) == 0) {
            return WEFTI_PEERS_HOSTS;
        }
    }
    return WEFTI_PEERS_FEW;
}

const weft_algorithm_t *wefti_cost_few_peers(const weft_algo_params_t *params, uint64_t bytes)
{
    static const char *const names[] = {"hierarchical", "binomial", "doubling",
                                        "log-step",     "bruck",    "ring"};
    /* With few links these move data log2 n times: by doubling, by bruck. */
    bool blocks = params->op == WEFT_COLLECTIVE_ALL_TO_ALL;
    if ((blocks || params->op == WEFT_COLLECTIVE_ALL_REDUCE) &&
        bytes > FEW_PEERS_MAX_BYTES / (blocks ? params->group_size : 1)) {
        return wefti_cost_few_steps(params);
    }
    for (uint32_t peers = WEFTI_PEERS_FEW; peers <= WEFTI_PEERS_HOSTS; peers++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const weft_algorithm_t *algorithm = wefti_algorithm_find(params->op, names[i]);
            if (algorithm != NULL && wefti_algorithm_reason(algorithm, params) == NULL &&
                wefti_cost_peers(algorithm, params) == peers) {
                return algorithm;
            }
        }
    }
    return wefti_cost_few_steps(params);
}

uint64_t wefti_cost_slot_bytes(const wefti_costs_t *costs, const weft_algo_params_t *params)
{
    const wefti_link_cost_t *net = &costs->level[WEFTI_LEVEL_NET];
    uint32_t n = params->group_size, hosts = wefti_placement_hosts(params);
    uint64_t most = 0;
    for (uint32_t host = 0; host < hosts && hosts > 1; host++) {
        uint64_t size = 0;
        for (uint32_t r = 0; r < n; r++) {
            size += wefti_placement_host_of(params, r) == host;
        }
        most = size * (n - size) > most ? size * (n - size) : most;
    }
    double bytes = most > 0 ? net->alpha_ns / (net->beta_ns_per_byte + 1e-6) / (double)most : 1e9;
    return bytes < 1e9 ? (uint64_t)bytes : UINT64_MAX;
}

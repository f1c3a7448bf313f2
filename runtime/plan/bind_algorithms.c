/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm executes each of a plan's collectives: the one that WEFT_ALGO selects, else the
 * first of the plan's list that all ranks can run. All ranks choose the same one, or all get the
 * reason why not.
 *
 * On the CPU device any algorithm runs, over any links: one lane without scratch over shared memory
 * as records (bind_collectives.c), everything else by the interpreter (bind_schedules.c). Other
 * devices run records only.
 */
#include "runtime/plan/session.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/interpreter/proof.h"

/* Compilers do not include the transport: the numbers they write into plans are kept equal here. */
_Static_assert(WEFTI_PLAN_CAP_DIRECT == WEFTI_CAP_DIRECT && WEFTI_PLAN_CAP_PUT == WEFTI_CAP_PUT &&
                   WEFTI_PLAN_CAP_SIGNAL == WEFTI_CAP_SIGNAL,
               "plans speak of the transport's capabilities");

/* Whether the operator's in-place rule holds for the buffers of all ranks that have both. The plan
 * was verified: where it does not, they share nothing. */
static bool is_in_place(const weft_session_t *session, const wefti_plan_collective_t *planned)
{
    const wefti_plan_buffer_t *source = &session->plan->buffers[planned->source];
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[planned->buffer];
    const wefti_bound_group_t *group = wefti_session_group(session, planned);
    bool rooted = wefti_collective_rooted(planned->op);
    for (uint32_t r = rooted ? planned->root : 0;
         r < (rooted ? planned->root + 1 : group->axis.size); r++) {
        uint64_t send = wefti_session_offset(source, group->ranks[r]);
        uint64_t recv = wefti_session_offset(buffer, group->ranks[r]);
        uint64_t at = wefti_in_place_elems(planned->op, r, planned->elem_count) *
                      weft_dtype_size_bytes(planned->dtype);
        if (wefti_collective_scatters(planned->op) ? send + at != recv : recv + at != send) {
            return false;
        }
    }
    return true;
}

weft_algo_params_t wefti_bind_algo_params(const weft_session_t *session, uint32_t collective)
{
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const wefti_bound_group_t *group = wefti_session_group(session, planned);
    const wefti_order_setting_t *order = &session->orders[collective];
    return (weft_algo_params_t){.struct_size = sizeof(weft_algo_params_t),
                                .op = planned->op,
                                .group_size = group->axis.size,
                                .rank = group->rank,
                                .root = planned->root,
                                .in_place = is_in_place(session, planned),
                                .order = order->order,
                                .order_sizes = order->sizes,
                                .order_size_count = order->count,
                                .host_of = group->host_of,
                                .host_of_count = group->host_count,
                                .rail_of = group->rail_of,
                                .rack_of = group->rack_of};
}

/* Why this session cannot run algorithm, or NULL. *out_records: as records; else interpreted. */
static const char *why_not(const weft_session_t *session, uint32_t collective,
                           const weft_algorithm_t *algorithm, bool *out_records)
{
    bool on_device = session->context->device != NULL && !session->staged;
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const wefti_bound_group_t *group = wefti_session_group(session, planned);
    *out_records = group->host_of == NULL && !session->staged;
    if (planned->update != WEFTI_PLAN_NONE) {
        /* The rank that reduces a shard updates it, as in a mesh. */
        return strcmp(algorithm->name, "mesh") != 0 ? "only algorithm mesh supports a fused update"
               : !*out_records && on_device
                   ? "a fused update on a device requires memory shared by all ranks"
                   : NULL;
    }
    weft_algo_params_t params = wefti_bind_algo_params(session, collective);
    weft_algo_resources_t resources = {0};
    const char *reason = wefti_algorithm_reason(algorithm, &params);
    if (reason != NULL || group->axis.size == 1) {
        *out_records = true;
        return reason; /* one rank: every algorithm does the same */
    }
    wefti_algorithm_resources(algorithm, &params, &resources);
    *out_records = *out_records && resources.lanes <= 1 && resources.scratch_slots == 0;
    return !*out_records && on_device
               ? "devices support only algorithms with one lane and no scratch"
               : NULL;
}

/* Selects algorithm, unless *out_why becomes the reason why this session cannot run it. Algorithms
 * of the caller's are proved before they run, once for each context. */
static weft_status_t take(weft_session_t *session, uint32_t collective,
                          const weft_algorithm_t *algorithm, const char **out_why)
{
    bool records;
    weft_algo_params_t params = wefti_bind_algo_params(session, collective);
    *out_why = why_not(session, collective, algorithm, &records);
    if (*out_why != NULL) {
        return WEFT_OK;
    }
    session->algorithms[collective] = algorithm;
    session->interpreted[collective] = !records;
    session->interprets = session->interprets || !records;
    /* Those of the plan's files were proved when it was read. The context, which remembers proofs by
     * address, outlives them. */
    return wefti_plan_registry_of(session->plan, NULL, algorithm) != NULL
               ? WEFT_OK
               : wefti_algorithm_prove(session->context, algorithm, &params);
}

/* What a list of one comes to. */
static weft_status_t use_wanted(weft_session_t *session, uint32_t collective,
                                const weft_algorithm_t *wanted)
{
    const char *why;
    WEFT_RETURN_IF_ERROR(take(session, collective, wanted, &why));
    return why == NULL
               ? WEFT_OK
               : wefti_error(WEFT_ERR_UNSUPPORTED, "%s: WEFT_ALGO selects %s algorithm \"%s\": %s",
                             session->plan->collectives[collective].name,
                             weft_collective_name(wanted->op), wanted->name, why);
}

weft_status_t wefti_bind_cheapest(const weft_session_t *session, const weft_algo_params_t *params,
                                  const wefti_counts_t *counts, const wefti_choice_t *choice,
                                  wefti_candidate_t list[WEFTI_MAX_CANDIDATES], uint32_t *out_count)
{
    if (params->group_size <= WEFTI_MAX_PREDICTED_RANKS) {
        return wefti_cost_choose(&session->context->costs, params, counts, choice, list, out_count);
    }
    list[0] = (wefti_candidate_t){.algorithm = wefti_cost_few_steps(params)};
    *out_count = list[0].algorithm != NULL;
    return WEFT_OK;
}

/*
 * A list that was made for one host has what is best in shared memory. If the plan was compiled
 * without a topology and ranks are on several hosts, the algorithm of least cost is used instead,
 * or the list if none of them can run.
 */
static weft_status_t use_cheapest(weft_session_t *session, uint32_t collective)
{
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    weft_algo_params_t params = wefti_bind_algo_params(session, collective);
    wefti_counts_t counts = {.elem_count = planned->elem_count,
                             .elem_bytes = (uint32_t)weft_dtype_size_bytes(planned->dtype)};
    wefti_choice_t choice = {.registry = session->context->registry, .planned = true};
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count = 0;
    if (params.host_of == NULL || session->plan->topology[0] != '\0' ||
        planned->update != WEFTI_PLAN_NONE || planned->algorithm_count == 1) { /* asked for */
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_bind_cheapest(session, &params, &counts, &choice, list, &count));
    const char *why = "";
    for (uint32_t i = 0; i < count && list[i].reason == NULL && why != NULL; i++) {
        WEFT_RETURN_IF_ERROR(take(session, collective, list[i].algorithm, &why));
    }
    return WEFT_OK;
}

static weft_status_t use_listed(weft_session_t *session, uint32_t collective, uint64_t common)
{
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const char *why = "unknown algorithm, or not supported by the links"; /* of the last one */
    WEFT_RETURN_IF_ERROR(use_cheapest(session, collective));
    for (uint32_t i = 0; i < planned->algorithm_count && session->algorithms[collective] == NULL;
         i++) {
        const wefti_plan_algorithm_t *listed = &planned->algorithms[i];
        const weft_algorithm_t *algorithm =
            wefti_plan_find_algorithm(session->plan, session->registry, planned->op, listed->name);
        bool able = wefti_session_group(session, planned)->axis.size == 1 ||
                    (listed->capabilities & common) == listed->capabilities;
        if (able && algorithm != NULL) {
            WEFT_RETURN_IF_ERROR(take(session, collective, algorithm, &why));
        }
    }
    if (session->algorithms[collective] != NULL) {
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "%s: none of its %u algorithms can run over %s on all ranks: %s",
                       planned->name, planned->algorithm_count, session->endpoint->ops->name, why);
}

/* *out_common: what the links between all ranks can do. */
static weft_status_t gather_links(weft_session_t *session, uint64_t *out_common)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    void *gathered;
    WEFT_RETURN_IF_ERROR(wefti_session_gather(endpoint, &session->arena, WEFT_OK, &endpoint->caps,
                                              sizeof endpoint->caps, &gathered));
    *out_common = ~0ull;
    for (uint32_t r = 0; r < endpoint->world_size && endpoint->world_size > 1; r++) {
        *out_common &= ((const uint64_t *)gathered)[r];
    }
    session->puts = (*out_common & WEFTI_CAP_DIRECT) == 0;
    /* Put links stand in for shared memory: schedules are lowered to them. */
    if (session->puts && (*out_common & WEFTI_CAP_PUT) && (*out_common & WEFTI_CAP_SIGNAL)) {
        *out_common |= WEFTI_CAP_DIRECT;
    }
    return WEFT_OK;
}

/* A plan has no place for the peers of SendRecv or for counts per rank. */
static weft_status_t check_operator(const wefti_plan_collective_t *planned)
{
    bool variable = wefti_collective_is_variable(planned->op);
    if (!wefti_collective_known(planned->op) || variable ||
        planned->op == WEFT_COLLECTIVE_SEND_RECV) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: operator %s is not supported in plans: a plan has no %s",
                           planned->name, weft_collective_name(planned->op),
                           variable ? "counts per rank" : "send and receive pairs");
    }
    return WEFT_OK;
}

/* Chooses an algorithm for each collective. */
static weft_status_t choose(weft_session_t *session, uint64_t common)
{
    const weft_plan_t *plan = session->plan;
    WEFT_RETURN_IF_ERROR(wefti_bind_groups(session));
    for (uint32_t i = 0; i < plan->collective_count; i++) { /* valid in a plan that was verified */
        WEFT_RETURN_IF_ERROR(wefti_order_parse(plan->collectives[i].order, &session->orders[i]));
    }
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *planned = &plan->collectives[i];
        WEFT_RETURN_IF_ERROR(check_operator(planned));
        const weft_algorithm_t *wanted = session->context->wanted.algorithm[planned->op];
        WEFT_RETURN_IF_ERROR(wanted != NULL ? use_wanted(session, i, wanted)
                                            : use_listed(session, i, common));
        wefti_log(&session->context->log, WEFT_LOG_LEVEL_DEBUG, "%s: algorithm %s%s", planned->name,
                  session->algorithms[i]->name, session->interpreted[i] ? ", interpreted" : "");
    }
    return WEFT_OK;
}

typedef struct choice {
    uint64_t hash;   /* of all algorithms' names */
    char asked[256]; /* WEFT_ALGO */
} choice_t;

weft_status_t wefti_bind_algorithms(weft_session_t *session)
{
    uint64_t common;
    void *gathered;
    choice_t own = {.hash = WEFTI_HASH_START};
    WEFT_RETURN_IF_ERROR(gather_links(session, &common));
    weft_status_t status = choose(session, common);
    for (uint32_t i = 0; i < session->plan->collective_count && status >= 0; i++) {
        const char *name = session->algorithms[i]->name;
        own.hash = wefti_hash_bytes(own.hash, name, strlen(name) + 1);
    }
    snprintf(own.asked, sizeof(own.asked), "%s", session->context->settings.algo);
    WEFT_RETURN_IF_ERROR(wefti_session_gather(session->endpoint, &session->arena, status, &own,
                                              sizeof(own), &gathered));
    const choice_t *all = gathered;
    for (uint32_t rank = 1; rank < session->endpoint->world_size; rank++) {
        if (all[rank].hash != all[0].hash) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "plan: ranks chose different algorithms: rank 0 has WEFT_ALGO "
                               "\"%s\", rank %u has \"%s\"",
                               all[0].asked, rank, all[rank].asked);
        }
    }
    return WEFT_OK;
}

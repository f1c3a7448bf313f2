/* SPDX-License-Identifier: Apache-2.0 */
/* From parameters to the schedule of a rank: checks, what the algorithm asks for, its steps. */
#include "ops/algo/schedule.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/error.h"

static weft_status_t check_sizes(const weft_algo_params_t *params, const char *what,
                                 const uint32_t *sizes, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (sizes == NULL || sizes[i] == 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s %u is empty", what, i);
        }
        sum += sizes[i];
    }
    if (sum != params->group_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "sizes of the %ss sum to %" PRIu64 " ranks, but the group has %u", what,
                           sum, params->group_size);
    }
    return WEFT_OK;
}

/* Ranks on hosts in any order: each host has one. */
static weft_status_t check_placement(const weft_algo_params_t *params)
{
    uint32_t hosts = params->host_of_count;
    if (hosts == 0 || hosts > params->group_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "host_of: invalid number of hosts %u for a group of %u ranks", hosts,
                           params->group_size);
    }
    uint8_t *seen = wefti_alloc(NULL, hosts);
    if (seen == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = WEFT_OK;
    uint32_t count = 0;
    for (uint32_t r = 0; r < params->group_size && status == WEFT_OK; r++) {
        if (params->host_of[r] >= hosts) {
            status =
                wefti_error(WEFT_ERR_INVALID_ARGUMENT, "host_of: rank %u: invalid host %u of %u", r,
                            params->host_of[r], hosts);
            break;
        }
        count += !seen[params->host_of[r]];
        seen[params->host_of[r]] = 1;
    }
    wefti_free(NULL, seen);
    if (status == WEFT_OK && count != hosts) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT, "host_of: only %u of %u hosts have ranks",
                             count, hosts);
    }
    for (uint32_t r = 0; r < params->group_size && status == WEFT_OK && params->rack_of != NULL;
         r++) {
        if (params->rack_of[r] >= params->group_size) {
            status = wefti_error(WEFT_ERR_INVALID_ARGUMENT, "rack_of: rank %u: invalid rack %u", r,
                                 params->rack_of[r]);
        }
    }
    return status;
}

/* What takes no loop over ranks. */
static weft_status_t check_call(const weft_algo_params_t *params)
{
    if (!wefti_collective_known(params->op)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "unknown collective operator %d",
                           (int)params->op);
    }
    if (params->group_size == 0 || params->group_size > WEFTI_MAX_GROUP) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid group size %u: must be between 1 and %u", params->group_size,
                           WEFTI_MAX_GROUP);
    }
    if (params->rank >= params->group_size || params->root >= params->group_size ||
        params->peer >= params->group_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "rank %u, root %u or peer %u is out of range for a group of %u ranks",
                           params->rank, params->root, params->peer, params->group_size);
    }
    if ((uint32_t)params->order > WEFT_ORDER_ANY) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "unknown reduction order %d",
                           (int)params->order);
    }
    if (params->op == WEFT_COLLECTIVE_SEND_RECV && params->root == params->peer) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid send: rank %u is both sender and receiver", params->root);
    }
    if (params->in_place && params->op != WEFT_COLLECTIVE_BARRIER &&
        !wefti_collective_of(params->op)->in_place) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: in place is not supported",
                           weft_collective_name(params->op));
    }
    return WEFT_OK;
}

weft_status_t wefti_algo_params_check(const weft_algo_params_t *params)
{
    weft_status_t status = check_call(params);
    if (status >= 0 && params->order == WEFT_ORDER_BLOCKS) {
        status = check_sizes(params, "block", params->order_sizes, params->order_size_count);
    }
    if (status >= 0 && params->host_count > 0) {
        status = check_sizes(params, "host", params->host_sizes, params->host_count);
    }
    if (status >= 0 && params->host_of != NULL) {
        status = check_placement(params);
    }
    return status;
}

static weft_status_t ask_resources(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    *out = (weft_algo_resources_t){0};
    wefti_algorithm_resources(algorithm, params, out);
    out->lanes = out->lanes > 0 ? out->lanes : 1;
    out->blocks = out->blocks > 0 ? out->blocks : 1;
    out->scratch_sets = out->scratch_sets > 0 ? out->scratch_sets : 1;
    if (out->lanes > WEFTI_MAX_LANES || out->phases > WEFTI_MAX_PHASES ||
        out->blocks > WEFTI_MAX_BLOCKS || out->scratch_slots > WEFTI_MAX_BLOCKS ||
        out->scratch_sets > 2 || (uint64_t)out->parts * params->group_size > WEFTI_MAX_BLOCKS ||
        (out->parts > 1 && wefti_collective_is_variable(params->op))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s %s: requested resources exceed the limits: %u lanes, %u phases, %u "
                           "blocks, %u scratch slots in %u sets, %u parts of a block",
                           weft_collective_name(params->op), algorithm->name, out->lanes,
                           out->phases, out->blocks, out->scratch_slots, out->scratch_sets,
                           out->parts);
    }
    bool promised = wefti_collective_reduces(params->op) && params->order != WEFT_ORDER_ANY;
    out->by_placement = out->by_placement && !promised;
    return WEFT_OK;
}

/* What the algorithm sees: ranks, and their hosts and racks, by their numbers. */
static weft_algo_params_t numbered(const weft_algo_params_t *params,
                                   const wefti_rank_numbers_t *numbers)
{
    weft_algo_params_t own = *params;
    own.rank = numbers->number_of[params->rank];
    own.root = numbers->number_of[params->root];
    own.peer = numbers->number_of[params->peer];
    own.host_of = numbers->host_of;
    own.rack_of = numbers->rack_of;
    own.host_sizes = own.rail_of = NULL;
    own.host_count = 0;
    return own;
}

weft_status_t wefti_schedule_build_numbered(const weft_algorithm_t *algorithm,
                                            const weft_algo_params_t *params,
                                            const wefti_rank_numbers_t *numbers,
                                            const weft_allocator_t *allocator,
                                            wefti_schedule_t *out)
{
    *out = (wefti_schedule_t){
        .allocator = allocator, .algorithm = algorithm, .rank = params->rank, .stage_sets = 1};
    weft_status_t status = numbers->checked ? check_call(params) : wefti_algo_params_check(params);
    if (status < 0) {
        return status;
    }
    const char *reason = wefti_algorithm_reason(algorithm, params);
    if (reason != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s %s: %s", weft_collective_name(params->op),
                           algorithm->name, reason);
    }
    status = ask_resources(algorithm, params, &out->resources);
    if (status < 0) {
        return status;
    }
    bool renumber = out->resources.by_placement && numbers->rank_at != NULL;
    weft_algo_params_t own = renumber ? numbered(params, numbers) : *params;
    own.algorithm = algorithm;
    weft_schedule_builder_t builder = {out, &own, WEFT_OK, 0};
    algorithm->build(&own, &builder);
    status = builder.status >= 0 ? wefti_schedule_sort(out) : builder.status;
    status = status >= 0 && renumber ? wefti_schedule_renumber(out, params, numbers) : status;
    if (status < 0) {
        wefti_schedule_deinit(out);
        return wefti_error_prefix(status, "%s %s", weft_collective_name(params->op),
                                  algorithm->name);
    }
    return WEFT_OK;
}

weft_status_t wefti_schedule_same_resources(const weft_algorithm_t *algorithm,
                                            const wefti_schedule_t *a, const wefti_schedule_t *b)
{
    return memcmp(&a->resources, &b->resources, sizeof a->resources) == 0
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "%s %s: ranks %u and %u request different resources",
                             weft_collective_name(algorithm->op), algorithm->name, a->rank,
                             b->rank);
}

weft_status_t wefti_schedule_build(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params,
                                   const weft_allocator_t *allocator, wefti_schedule_t *out)
{
    wefti_rank_numbers_t numbers;
    *out = (wefti_schedule_t){0};
    WEFT_RETURN_IF_ERROR(wefti_rank_numbers_init(&numbers, params));
    weft_status_t status =
        wefti_schedule_build_numbered(algorithm, params, &numbers, allocator, out);
    wefti_rank_numbers_deinit(&numbers);
    return status;
}

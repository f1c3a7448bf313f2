/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path of algorithms as data: whatever the hand-written executors do not do, or do more slowly,
 * or were told not to do.
 *
 *   before a call is posted   select.c chooses by the call's size. If the choice may be a schedule,
 *                             the call slot holds whether this rank can run it in place or out of
 *                             place, and whether peers reach its buffers
 *   after all slots are read  every rank decides the same: algorithm, in place or not, hidden
 *                             buffers or not; the schedule comes from the cache or is built
 *   MOVING                    the interpreter executes it
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/call_meet.h"
#include "runtime/collective/call_move.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/schedule_cache.h"

/* All-reduce through staging is a mesh from here on (call_staged.c), else one-shot. */
static bool staged_is_mesh(const wefti_call_t *call)
{
    return call->request.op != WEFT_COLLECTIVE_ALL_REDUCE || wefti_call_stages_two_shots(call);
}

static bool is_built_in(const weft_algorithm_t *algorithm, const char *name)
{
    return strcmp(algorithm->name, name) == 0 &&
           wefti_algorithm_find(algorithm->op, name) == algorithm;
}

static bool executors_can(const wefti_call_t *call)
{
    return wefti_select_has_executors(call->group, call->request.op);
}

/* Call slots with data are the executor of one-shot, and of mesh where nothing is cut. They also
 * reach ranks behind put links. */
static bool posting_is_wanted(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    if (!group->calls->selection.executors_reduce && wefti_collective_reduces(call->request.op)) {
        return false;
    }
    if (call->schedule.wanted != NULL) {
        return is_built_in(call->schedule.wanted,
                           call->request.op == WEFT_COLLECTIVE_ALL_REDUCE ? "one-shot" : "mesh");
    }
    return call->schedule.by_cost[0] == NULL || group->put_peer_count > 0;
}

static bool is_eligible(const wefti_call_t *call)
{
    weft_algo_params_t params;
    wefti_select_params(call->group, call->request.op, call->request.root, &params);
    return call->schedule.wanted == NULL ||
           wefti_algorithm_reason(call->schedule.wanted, &params) == NULL;
}

weft_status_t wefti_call_consider(wefti_call_t *call, bool *out_may_post)
{
    const weft_algorithm_t **by_cost = call->schedule.by_cost;
    weft_collective_t op = call->request.op;
    by_cost[0] = by_cost[1] = NULL;
    /* What ranks have for each other is known after the call slots only. */
    for (int plain = 0;
         plain < 2 && call->schedule.wanted == NULL && op != WEFT_COLLECTIVE_ALL_TO_ALL_V;
         plain++) {
        WEFT_RETURN_IF_ERROR(wefti_select_by_cost(call->group, op, call->elem_bytes, call->longest,
                                                  plain, &by_cost[plain]));
    }
    if (call->group->size == 1 && is_eligible(call)) { /* all algorithms are the same */
        call->schedule.wanted = NULL;
        return WEFT_OK;
    }
    *out_may_post = posting_is_wanted(call);
    call->schedule.possible = call->schedule.wanted != NULL || by_cost[0] != NULL ||
                              by_cost[1] != NULL || op == WEFT_COLLECTIVE_ALL_TO_ALL_V;
    return WEFT_OK;
}

/* Whether what was asked for by name is what the executors would do now. */
static bool executors_are_wanted(const wefti_call_t *call)
{
    bool direct = (call->flags & WEFTI_POSTED_REACHABLE) != 0;
    if (!executors_can(call) || call->request.op == WEFT_COLLECTIVE_BARRIER) {
        return false;
    }
    return is_built_in(call->schedule.wanted, "mesh") && (direct || staged_is_mesh(call));
}

static weft_status_t pick(wefti_call_t *call, const weft_algorithm_t **out_algorithm)
{
    weft_collective_t op = call->request.op;
    bool plain = (call->flags & WEFTI_POSTED_REACHABLE) == 0;
    if (call->schedule.wanted != NULL) {
        *out_algorithm = executors_are_wanted(call) ? NULL : call->schedule.wanted;
        return WEFT_OK;
    }
    *out_algorithm = call->schedule.by_cost[plain];
    if (op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        WEFT_RETURN_IF_ERROR(wefti_select_by_cost(call->group, op, call->elem_bytes, call->longest,
                                                  plain, out_algorithm));
    }
    if (*out_algorithm == NULL && !executors_can(call)) {
        *out_algorithm = wefti_algorithm_find(op, "mesh");
    }
    return WEFT_OK;
}

static bool is_mixed(const wefti_call_t *call)
{
    return (call->flags & (WEFTI_POSTED_IN_PLACE | WEFTI_POSTED_OUT_OF_PLACE)) == 0;
}

/* In place, a rank's send buffer is part of its receive buffer: of all ranks, as no rooted operator
 * is. Ranks that are out of place can act so, too: one copy, and the send buffer is left alone. */
static bool joins_receive_buffers(const wefti_call_t *call)
{
    weft_collective_t op = call->request.op;
    return !wefti_collective_rooted(op) && !wefti_collective_scatters(op);
}

static bool schedule_takes(const wefti_call_t *call)
{
    return call->schedule.algorithm != NULL;
}

weft_status_t wefti_call_settle_algorithm(wefti_call_t *call)
{
    if ((call->flags & WEFTI_POSTED_DATA) == 0) {
        WEFT_RETURN_IF_ERROR(pick(call, &call->schedule.algorithm));
    }
    if (call->schedule.algorithm != NULL && call->schedule.wanted == NULL && is_mixed(call) &&
        executors_can(call)) {
        call->schedule.algorithm = NULL;
    }
    return WEFT_OK;
}

static void make_in_place(wefti_call_t *call)
{
    uint32_t rank = call->group->rank;
    wefti_buffer_shape_t send = wefti_call_send_shape(call);
    uint64_t bytes = wefti_shape_elems(&send) * call->elem_bytes;
    if (bytes > 0 && !wefti_call_is_in_place(call)) {
        memcpy(call->request.recv + wefti_call_alias_at(call, rank), call->request.send,
               (size_t)bytes);
        call->request.send = call->request.recv + wefti_call_alias_at(call, rank);
    }
}

/* Of a mixed call whose ranks receive one block each: it comes to memory that no peer reaches, then
 * to its place. */
static weft_status_t make_out_of_place(wefti_call_t *call)
{
    uint64_t bytes = call->request.count * call->elem_bytes;
    return bytes > 0 && wefti_call_is_in_place(call)
               ? wefti_schedules_spare(call->group, (size_t)bytes, &call->request.recv)
               : WEFT_OK;
}

static void take_from_spare(wefti_call_t *call)
{
    const uint8_t *spare = call->group->calls->schedules->spare;
    if (spare != NULL && call->request.recv == spare) {
        uint8_t *own =
            (uint8_t *)(uintptr_t)call->request.send + wefti_call_alias_at(call, call->group->rank);
        wefti_call_copy(own, spare, call->request.count * call->elem_bytes);
        call->request.recv = own;
    }
}

/* Offsets of all ranks' buffers; this rank's own may lie outside the region. */
static void collect_places(const wefti_call_t *call, bool in_place)
{
    const weft_group_t *group = call->group;
    wefti_schedules_t *all = group->calls->schedules;
    const uint8_t *base = group->bases[group->rank];
    bool known = !wefti_group_is_hosted(group) || wefti_call_needs_all_slots(call);
    for (uint32_t r = 0; r < group->size; r++) {
        const wefti_call_slot_t *slot = wefti_call_slot_of(group, r, call->number);
        all->send[r] = known ? slot->at.send : 0; /* 0: not touched, as buffers are hidden */
        all->recv[r] = known ? slot->at.recv : 0;
        if (in_place && joins_receive_buffers(call)) {
            all->send[r] = all->recv[r] + wefti_call_alias_at(call, r);
        }
    }
    all->send[group->rank] = (uint64_t)((uintptr_t)call->request.send - (uintptr_t)base);
    all->recv[group->rank] = (uint64_t)((uintptr_t)call->request.recv - (uintptr_t)base);
}

/* All ranks' counts, from their call slots. */
static weft_status_t read_matrix(const wefti_call_t *call, wefti_run_call_t *out)
{
    weft_group_t *group = call->group;
    uint32_t n = group->size;
    uint64_t *counts;
    WEFT_RETURN_IF_ERROR(wefti_schedules_matrix(group, &counts));
    uint64_t *to = counts + (size_t)n * n, *from = to + (size_t)n * n;
    for (uint32_t r = 0; r < n; r++) {
        const uint64_t *table = wefti_call_table(call, r);
        for (uint32_t d = 0; d < n; d++) {
            counts[(size_t)r * n + d] = table[2 * d] / call->elem_bytes;
            to[(size_t)r * n + d] = table[2 * d + 1] / call->elem_bytes;
        }
    }
    for (uint32_t r = 0; r < n; r++) { /* what touches own memory is not read where peers write */
        counts[(size_t)r * n + group->rank] = call->counts[2 * n + r];
        counts[(size_t)group->rank * n + r] = call->counts[r];
        to[(size_t)group->rank * n + r] = call->counts[n + r];
    }
    for (uint32_t r = 0; r < n; r++) { /* of others: side by side, or not reached at all */
        for (uint32_t s = 0; s < n; s++) {
            size_t at = (size_t)r * n + s;
            from[at] = s == 0 ? 0 : from[at - 1] + counts[(size_t)(s - 1) * n + r];
            from[at] = r == group->rank ? call->counts[3 * n + s] : from[at];
        }
    }
    out->counts.counts = counts;
    out->displacements = (wefti_displacements_t){to, from, n};
    return WEFT_OK;
}

static weft_status_t fill_counts(const wefti_call_t *call, wefti_run_call_t *out)
{
    out->counts =
        (wefti_counts_t){.elem_count = call->request.count, .elem_bytes = call->elem_bytes};
    if (call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        return read_matrix(call, out);
    }
    if (wefti_collective_has_shared_counts(call->request.op)) {
        const uint64_t *blocks = wefti_call_blocks(call);
        out->counts.counts = blocks;
        bool gathers = wefti_collective_gathers(call->request.op);
        out->displacements =
            (wefti_displacements_t){gathers ? NULL : blocks + call->group->size,
                                    gathers ? blocks + call->group->size : NULL, 0};
    }
    return WEFT_OK;
}

/*
 * A call larger than its work memory goes in chunks. In so many times the call's own bytes, the
 * built-in algorithms do all or most of it at once; a small call needs no more than the staging
 * that ranks on several hosts have by default, and 256 bytes for each rank are one element of
 * every slot.
 */
#define WORK_TIMES 4u
#define WORK_MIN_BYTES ((uint64_t)2 << 20)
#define WORK_RANK_BYTES 256u
#define WORK_PAGE_BYTES 4096u

size_t wefti_call_work_bytes(const wefti_call_t *call, uint64_t longest)
{
    const weft_group_t *group = call->group;
    uint64_t blocks = wefti_collective_is_vector(call->request.op) ? 1 : group->size;
    uint64_t most = 2 * (uint64_t)group->staging.half_bytes, bytes;
    uint64_t least = (uint64_t)group->size * WORK_RANK_BYTES;
    least = least > WORK_MIN_BYTES ? least : WORK_MIN_BYTES;
    if (__builtin_mul_overflow(longest, WORK_TIMES * blocks, &bytes) || bytes >= most) {
        return (size_t)most;
    }
    bytes = wefti_align_up(bytes > least ? bytes : least, WORK_PAGE_BYTES);
    return (size_t)(bytes < most ? bytes : most);
}

/* The longest block by which every rank has committed memory: of an all-to-all-v, a rank knows its
 * own blocks only. */
static uint64_t committed_longest(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint64_t longest = call->longest;
    for (uint32_t r = 0; call->request.op == WEFT_COLLECTIVE_ALL_TO_ALL_V && r < group->size; r++) {
        const wefti_call_slot_t *slot = wefti_call_slot_of(group, r, call->number);
        longest = slot->at.longest < longest ? slot->at.longest : longest;
    }
    return longest;
}

static weft_status_t start_run(wefti_call_t *call, bool in_place)
{
    weft_group_t *group = call->group;
    wefti_schedules_t *all = group->calls->schedules;
    wefti_run_call_t run = {.dtype = call->request.dtype,
                            .reduction = call->request.reduction,
                            .send = all->send,
                            .recv = all->recv};
    WEFT_RETURN_IF_ERROR(fill_counts(call, &run));
    collect_places(call, in_place);
    all->memory.limit = group->context->one_process
                            ? UINT64_MAX
                            : atomic_load_explicit(&group->endpoint->region_bytes,
                                                   memory_order_relaxed); /* it grows */
    all->memory.work_bytes = wefti_call_work_bytes(call, committed_longest(call));
    weft_status_t status = wefti_run_start(call->schedule.run, &all->memory, &run);
    if (status == WEFT_ERR_NO_MEMORY) { /* on all ranks: not one element fits */
        call->state = WEFTI_CALL_REFUSED;
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s %s: staging buffers too small for the algorithm's scratch: %zu "
                           "bytes; increase WEFT_STAGING_BYTES",
                           weft_collective_name(call->request.op), call->schedule.algorithm->name,
                           all->memory.work_bytes);
    }
    return status;
}

/* Where the result's bits depend on the algorithm, its name says so. */
static void name_algorithm(const wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_calls_t *calls = group->calls;
    if (calls->labelled != call->schedule.algorithm) {
        weft_algo_params_t params;
        wefti_select_params(group, call->request.op, call->request.root, &params);
        bool any = params.order == WEFT_ORDER_ANY && wefti_collective_reduces(call->request.op);
        params.order = WEFT_ORDER_TREE;
        any = any && wefti_algorithm_reason(call->schedule.algorithm, &params) != NULL;
        snprintf(calls->label, sizeof calls->label, "%.40s%s", call->schedule.algorithm->name,
                 any ? " (order any)" : "");
        calls->labelled = call->schedule.algorithm;
    }
    calls->algorithm = calls->label;
}

static weft_status_t schedule_start(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    bool mixed = is_mixed(call), joins = mixed && joins_receive_buffers(call);
    name_algorithm(call);
    bool in_place = mixed ? joins : (call->flags & WEFTI_POSTED_OUT_OF_PLACE) == 0;
    wefti_schedule_key_t key = {call->schedule.algorithm, call->request.root, in_place,
                                (call->flags & WEFTI_POSTED_OPEN) == 0 || (mixed && !joins)};
    weft_status_t status = wefti_schedules_get(group, &key, &call->schedule.run);
    if (status < 0) {
        call->state = status == WEFT_ERR_UNSUPPORTED ? WEFTI_CALL_REFUSED : call->state;
        return status;
    }
    if (joins) {
        make_in_place(call);
    } else if (mixed) {
        WEFT_RETURN_IF_ERROR(make_out_of_place(call));
    }
    call->state = WEFTI_CALL_MOVING;
    return start_run(call, in_place);
}

static weft_status_t schedule_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status = wefti_run_advance(call->schedule.run, out_blocked);
    if (status == WEFT_OK) {
        take_from_spare(call);
        wefti_call_complete(call);
    }
    return status;
}

const wefti_path_t wefti_path_schedule = {"schedule", schedule_takes, schedule_start,
                                          schedule_advance};

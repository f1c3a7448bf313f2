/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/interpreter/internal.h"

#include <string.h>

#include "ops/algo/table.h"
#include "runtime/base/error.h"

size_t wefti_run_area_bytes(uint32_t group_size, uint32_t lanes)
{
    return lanes * sizeof(wefti_signal_line_t) + (size_t)lanes * group_size * WEFTI_ARRIVAL_BYTES;
}

bool wefti_run_arrives_from(const wefti_run_counters_t *counters, const uint8_t *area,
                            uint32_t peer, const wefti_signal_t *signal)
{
    for (uint32_t lane = 0; lane < counters->lanes; lane++) {
        if ((const uint8_t *)signal == area + wefti_run_arrival(counters, lane, peer)) {
            return true;
        }
    }
    return false;
}

uint32_t wefti_run_signaled(const wefti_run_counters_t *counters, uint32_t peer)
{
    uint32_t sum = 0;
    for (uint32_t lane = 0; lane < counters->lanes; lane++) {
        size_t to = (size_t)lane * counters->group_size + peer;
        sum += atomic_load_explicit(&counters->signaled[to], memory_order_relaxed);
    }
    return sum;
}

uint32_t wefti_run_came(const wefti_run_counters_t *counters, uint8_t *area, uint32_t peer)
{
    uint32_t sum = 0;
    for (uint32_t lane = 0; lane < counters->lanes; lane++) {
        wefti_signal_t *signal =
            (wefti_signal_t *)(void *)(area + wefti_run_arrival(counters, lane, peer));
        sum += atomic_load_explicit(&signal->value, memory_order_relaxed);
    }
    return sum;
}

void wefti_run_area_clear(void *area, uint32_t group_size, uint32_t lanes)
{
    size_t bytes = wefti_run_area_bytes(group_size, lanes);
    for (size_t at = 0; at < bytes; at += WEFTI_ARRIVAL_BYTES) { /* every counter starts a line */
        wefti_signal_t *signal = (wefti_signal_t *)(void *)((uint8_t *)area + at);
        atomic_store_explicit(&signal->value, 0, memory_order_relaxed);
    }
}

weft_status_t wefti_run_counters_init(wefti_run_counters_t *counters, uint32_t group_size,
                                      uint32_t lanes, const weft_allocator_t *allocator)
{
    size_t count = (size_t)lanes * group_size;
    *counters =
        (wefti_run_counters_t){.allocator = allocator, .group_size = group_size, .lanes = lanes};
    counters->sent = wefti_alloc(allocator, 2 * count * sizeof *counters->sent);
    WEFT_RETURN_IF_NO_MEMORY(counters->sent);
    counters->arrived = counters->sent + count;
    counters->signaled = wefti_alloc(allocator, count * sizeof *counters->signaled);
    WEFT_RETURN_IF_NO_MEMORY(counters->signaled);
    return WEFT_OK;
}

void wefti_run_counters_deinit(wefti_run_counters_t *counters)
{
    wefti_free(counters->allocator, counters->sent);
    wefti_free(counters->allocator, counters->signaled);
    *counters = (wefti_run_counters_t){0};
}

/* Signals that each lane sends in a run, of all ranks' schedules. */
static weft_status_t count_signals(wefti_run_t *run, const wefti_schedule_t *schedules)
{
    uint32_t n = run->params.group_size, own = run->params.rank;
    size_t count = (size_t)run->lanes * n;
    run->sent = wefti_alloc(run->allocator, 2 * count * sizeof *run->sent);
    WEFT_RETURN_IF_NO_MEMORY(run->sent);
    run->arrived = run->sent + count;
    for (uint32_t rank = 0; rank < n; rank++) {
        for (size_t i = 0; i < schedules[rank].step_count; i++) {
            const wefti_step_t *step = &schedules[rank].steps[i];
            if (step->op != WEFTI_DO_SIGNAL) {
                continue;
            }
            if (rank == own) {
                run->sent[(size_t)step->lane * n + step->signal.peer]++;
            }
            if (step->signal.peer == own) {
                run->arrived[(size_t)step->lane * n + rank]++;
            }
        }
    }
    return WEFT_OK;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* What a run needs of all ranks' lowered schedules; this rank's stays. */
static weft_status_t take(wefti_run_t *run, const wefti_links_t *links, wefti_schedule_t *schedules)
{
    const weft_algo_params_t *params = &run->params;
    run->lanes = schedules[0].resources.lanes;
    if (links->memory_of != NULL) {
        WEFT_RETURN_IF_ERROR(count_signals(run, schedules));
        WEFT_RETURN_IF_ERROR(wefti_run_find_lent(run, schedules));
    }
    for (uint32_t rank = 0; rank < params->group_size; rank++) {
        run->slots[WEFTI_STAGE] = larger(run->slots[WEFTI_STAGE], schedules[rank].stage_slots);
        run->slots[WEFTI_STAGE_WIDE] =
            larger(run->slots[WEFTI_STAGE_WIDE], schedules[rank].stage_wide_slots);
    }
    run->schedule = schedules[params->rank];
    schedules[params->rank] = (wefti_schedule_t){.allocator = run->allocator};
    return WEFT_OK;
}

static weft_status_t build(wefti_run_t *run, const weft_algorithm_t *algorithm,
                           const wefti_links_t *links)
{
    wefti_schedule_t *schedules;
    if (links->memory_of == NULL && links->hidden == NULL) {
        return wefti_schedule_build(algorithm, &run->params, run->allocator, &run->schedule);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_schedules_build_lowered(algorithm, &run->params, links, run->allocator, &schedules));
    weft_status_t status = take(run, links, schedules);
    wefti_schedules_free(run->allocator, schedules, run->params.group_size);
    return status;
}

static size_t count_ranks(const wefti_operand_t *operands, uint32_t count)
{
    size_t ranks = 0;
    for (uint32_t i = 0; i < count; i++) {
        ranks += operands[i].rank_count;
    }
    return ranks;
}

/* The longest list of places that one reduction has. */
static weft_status_t reserve_lists(wefti_run_t *run)
{
    const wefti_schedule_t *schedule = &run->schedule;
    size_t most = 1;
    for (size_t i = 0; i < schedule->step_count; i++) {
        const wefti_step_t *step = &schedule->steps[i];
        if (step->op == WEFTI_DO_REDUCE) {
            const wefti_operand_t *operands = schedule->operands + step->move.operand;
            size_t sources = count_ranks(operands, step->move.source_count);
            size_t destinations =
                count_ranks(operands + step->move.source_count, step->move.destination_count);
            most = sources > most ? sources : most;
            most = destinations > most ? destinations : most;
        }
    }
    size_t places = (size_t)WEFTI_BUFFER_COUNT * run->params.group_size;
    run->sources = wefti_alloc(run->allocator, most * sizeof *run->sources);
    run->wide = wefti_alloc(run->allocator, most * sizeof *run->wide);
    run->destinations = wefti_alloc(run->allocator, most * sizeof *run->destinations);
    run->places = wefti_alloc(run->allocator, places * sizeof *run->places);
    WEFT_RETURN_IF_NO_MEMORY(run->sources && run->wide && run->destinations && run->places);
    return WEFT_OK;
}

/* What a run has for itself. */
static weft_status_t add_own(wefti_run_t *run)
{
    WEFT_RETURN_IF_ERROR(wefti_tasks_reserve(&run->tasks, &run->params, &run->schedule));
    return reserve_lists(run);
}

weft_status_t wefti_run_create(const weft_algorithm_t *algorithm, const weft_algo_params_t *params,
                               const wefti_links_t *links, const weft_allocator_t *allocator,
                               wefti_run_t **out_run)
{
    weft_status_t status;
    *out_run = NULL;
    wefti_run_t *run = wefti_alloc(allocator, sizeof *run);
    WEFT_RETURN_IF_NO_MEMORY(run);
    run->allocator = allocator;
    run->schedule.allocator = allocator;
    run->tasks.allocator = allocator;
    run->params = *params;
    run->users = wefti_alloc(allocator, sizeof *run->users);
    WEFT_TRY(status, run->users != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, fail);
    *run->users = 1;
    WEFT_TRY(status, build(run, algorithm, links), fail);
    run->lanes = run->schedule.resources.lanes;
    run->phases = run->schedule.resources.phases;
    run->slots[WEFTI_SCRATCH] = run->schedule.resources.scratch_slots;
    run->sets[WEFTI_SCRATCH] = larger(run->schedule.resources.scratch_sets, 1);
    run->sets[WEFTI_STAGE] = run->sets[WEFTI_STAGE_WIDE] = larger(run->schedule.stage_sets, 1);
    WEFT_TRY(status, wefti_schedule_check(params, &run->schedule), fail);
    /* Borrowed for building only. */
    run->params.order_sizes = run->params.host_sizes = NULL;
    run->params.order_size_count = run->params.host_count = 0;
    run->params.host_of = run->params.rail_of = run->params.rack_of = NULL;
    run->params.host_of_count = 0;
    WEFT_TRY(status, add_own(run), fail);
    *out_run = run;
    return WEFT_OK;
fail:
    wefti_run_destroy(run);
    return status;
}

weft_status_t wefti_run_create_like(const wefti_run_t *like, wefti_run_t **out_run)
{
    *out_run = NULL;
    wefti_run_t *run = wefti_alloc(like->allocator, sizeof *run);
    WEFT_RETURN_IF_NO_MEMORY(run);
    *run = (wefti_run_t){.allocator = like->allocator,
                         .params = like->params,
                         .users = like->users,
                         .schedule = like->schedule,
                         .lanes = like->lanes,
                         .phases = like->phases,
                         .sent = like->sent,
                         .arrived = like->arrived,
                         .settles_each = like->settles_each,
                         .tasks.allocator = like->allocator};
    memcpy(run->slots, like->slots, sizeof run->slots);
    memcpy(run->sets, like->sets, sizeof run->sets);
    ++*run->users;
    weft_status_t status = add_own(run);
    if (status < 0) {
        wefti_run_destroy(run);
        return status;
    }
    *out_run = run;
    return WEFT_OK;
}

void wefti_run_destroy(wefti_run_t *run)
{
    if (run == NULL) {
        return;
    }
    wefti_run_settle(run); /* what is lent points here */
    if (run->users != NULL && --*run->users == 0) {
        wefti_schedule_deinit(&run->schedule);
        wefti_free(run->allocator, run->sent);
        wefti_free(run->allocator, run->users);
    }
    wefti_tasks_deinit(&run->tasks);
    wefti_free(run->allocator, (void *)run->sources);
    wefti_free(run->allocator, run->wide);
    wefti_free(run->allocator, run->destinations);
    wefti_free(run->allocator, run->places);
    wefti_free(run->allocator, run);
}

const wefti_schedule_t *wefti_run_schedule(const wefti_run_t *run)
{
    return &run->schedule;
}

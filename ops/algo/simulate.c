/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/simulate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

#define MAX_RUNS 4u

static const char *const step_names[] = {"?",      "post", "wait",   "copy",
                                         "reduce", "put",  "signal", "await"};
static const char *const places[] = {"send", "recv", "scratch", "stage", "wide stage"};

static size_t operand_text(const wefti_operand_t *operand, uint32_t count, char *buffer,
                           size_t bytes)
{
    int used = snprintf(buffer, bytes, "%s[%u%s] of ", places[operand->buffer], operand->block,
                        count > 1 ? ".." : "");
    size_t at = used > 0 && (size_t)used < bytes ? (size_t)used : bytes - 1;
    if (operand->rank_count > 1) {
        used = snprintf(buffer + at, bytes - at, "ranks %u..%u", operand->rank,
                        operand->rank + operand->rank_count - 1);
    } else {
        used = snprintf(buffer + at, bytes - at, "rank %u", operand->rank);
    }
    return used > 0 && at + (size_t)used < bytes ? at + (size_t)used : bytes - 1;
}

const char *wefti_step_text(const wefti_schedule_t *schedule, const wefti_step_t *step,
                            char *buffer, size_t bytes)
{
    const char *name = step->op <= WEFTI_DO_AWAIT ? step_names[step->op] : step_names[0];
    if (step->op == WEFTI_DO_POST) {
        snprintf(buffer, bytes, "post %u", step->post.phase);
    } else if (step->op == WEFTI_DO_WAIT) {
        snprintf(buffer, bytes, "wait for phase %u of rank%s %u%s%.0u", step->wait.phase,
                 step->wait.rank_count > 1 ? "s" : "", step->wait.first_rank,
                 step->wait.rank_count > 1 ? ".." : "",
                 step->wait.rank_count > 1 ? step->wait.first_rank + step->wait.rank_count - 1 : 0);
    } else if (step->op == WEFTI_DO_SIGNAL || step->op == WEFTI_DO_AWAIT) {
        snprintf(buffer, bytes, "%s %u %s rank %u", name, step->signal.index,
                 step->op == WEFTI_DO_SIGNAL ? "to" : "of", step->signal.peer);
    } else {
        const wefti_operand_t *operands = schedule->operands + step->move.operand;
        size_t at = (size_t)snprintf(buffer, bytes, "%s ", name);
        for (uint32_t i = 0; i < step->move.source_count && at + 4 < bytes; i++) {
            at += operand_text(&operands[i], step->move.count, buffer + at, bytes - at);
            if (at + 4 < bytes) {
                bool last = i + 1 == step->move.source_count;
                at += (size_t)snprintf(buffer + at, bytes - at, last ? " -> " : " + ");
            }
        }
        if (at + 4 < bytes && step->move.destination_count > 0) {
            operand_text(&operands[step->move.source_count], step->move.count, buffer + at,
                         bytes - at);
        }
    }
    return buffer;
}

weft_status_t wefti_step_error(const wefti_schedule_t *schedule, uint32_t lane, uint32_t at,
                               uint32_t run, const char *what)
{
    char step[160] = "the end";
    if (at < schedule->lane_begin[lane + 1]) {
        wefti_step_text(schedule, &schedule->steps[at], step, sizeof step);
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "rank %u, lane %u, step %u (%s), run %u: %s",
                       schedule->rank, lane, at - schedule->lane_begin[lane], step, run, what);
}

weft_status_t wefti_sim_error(const wefti_sim_t *sim, uint32_t thread, const char *format, ...)
{
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (thread == WEFTI_NOBODY) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s", what);
    }
    const wefti_sim_thread_t *own = &sim->thread[thread];
    return wefti_step_error(&sim->schedules[own->rank], own->lane, own->at, own->run, what);
}

static weft_status_t begin_run(wefti_sim_t *sim, uint32_t rank, uint32_t run)
{
    uint32_t first = rank * sim->lanes;
    sim->thread[first].run = run;
    weft_status_t status = sim->symbols ? wefti_sim_fill(sim, rank, run) : WEFT_OK;
    if (status < 0) {
        return status;
    }
    sim->rank[rank].lanes_left = sim->lanes;
    uint32_t *clock = sim->clocks + (size_t)first * sim->threads;
    for (uint32_t lane = 0; lane < sim->lanes; lane++) {
        wefti_sim_thread_t *thread = &sim->thread[first + lane];
        thread->run = run;
        thread->at = sim->schedules[rank].lane_begin[lane];
        thread->queued = true;
        if (lane > 0) {
            wefti_sim_join(sim, first + lane, clock);
        }
        sim->queue[(sim->queue_head + sim->queue_count++) % sim->threads] = first + lane;
    }
    sim->rank[rank].begin_clock[run] = clock[first]++;
    return WEFT_OK;
}

/* A barrier ends when every rank is known to have begun it. */
static weft_status_t check_barrier(const wefti_sim_t *sim, uint32_t rank, uint32_t run)
{
    for (uint32_t other = 0; other < sim->ranks && sim->params->op == WEFT_COLLECTIVE_BARRIER;
         other++) {
        uint32_t clock = sim->rank[other].begin_clock[run];
        if (clock == 0 || !wefti_sim_knows(sim, rank * sim->lanes, other * sim->lanes, clock)) {
            return wefti_sim_error(sim, rank * sim->lanes,
                                   "leaves the barrier before it knows that rank %u has arrived",
                                   other);
        }
    }
    return WEFT_OK;
}

/* All lanes have ended: the user looks at what came, and starts the next run. */
static weft_status_t end_run(wefti_sim_t *sim, uint32_t rank)
{
    uint32_t first = rank * sim->lanes;
    uint32_t run = sim->thread[first].run;
    for (uint32_t lane = 1; lane < sim->lanes; lane++) {
        wefti_sim_join(sim, first, sim->clocks + (size_t)(first + lane) * sim->threads);
        sim->clocks[(size_t)(first + lane) * sim->threads + first + lane]++;
    }
    weft_status_t status = sim->symbols ? wefti_sim_check(sim, rank, run) : WEFT_OK;
    if (status >= 0 && sim->symbols) {
        status = check_barrier(sim, rank, run);
    }
    if (status < 0 || run + 1 == sim->runs) {
        return status;
    }
    return begin_run(sim, rank, run + 1);
}

/* Whether a link is asked for what it cannot do: only puts and signals cross every link. */
static weft_status_t check_links(const wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step)
{
    uint32_t rank = sim->thread[thread].rank;
    for (uint32_t i = 0; step->op == WEFTI_DO_WAIT && i < step->wait.rank_count; i++) {
        if (wefti_links_put(sim->links, rank, step->wait.first_rank + i)) {
            return wefti_sim_error(
                sim, thread, "reads the counter of rank %u, but the link between them has no loads",
                step->wait.first_rank + i);
        }
    }
    if (step->op != WEFTI_DO_COPY && step->op != WEFTI_DO_REDUCE && step->op != WEFTI_DO_PUT) {
        return WEFT_OK;
    }
    const wefti_operand_t *operand = sim->schedules[rank].operands + step->move.operand;
    uint32_t count = step->move.source_count + (uint32_t)step->move.destination_count;
    for (uint32_t o = 0; o < count; o++, operand++) {
        for (uint32_t other = operand->rank; other - operand->rank < operand->rank_count; other++) {
            bool put = step->op == WEFTI_DO_PUT && o >= step->move.source_count;
            if (!put && wefti_links_put(sim->links, rank, other)) {
                return wefti_sim_error(sim, thread,
                                       "accesses the memory of rank %u, but the link between them "
                                       "has no loads or stores",
                                       other);
            }
            if (other != rank && operand->buffer < WEFTI_SCRATCH && sim->links->hidden != NULL &&
                sim->links->hidden[other]) {
                return wefti_sim_error(
                    sim, thread, "accesses a user buffer of rank %u, which peers cannot reach",
                    other);
            }
        }
    }
    return WEFT_OK;
}

/* Runs a thread until it has to wait; *out_ended when its lane is through. */
static weft_status_t advance(wefti_sim_t *sim, uint32_t thread, bool *out_ended)
{
    wefti_sim_thread_t *own = &sim->thread[thread];
    const wefti_step_t *steps = sim->schedules[own->rank].steps;
    weft_status_t status = WEFT_OK;
    *out_ended = false;
    for (; own->at < own->end; own->at++) {
        const wefti_step_t *step = &steps[own->at];
        if (sim->links != NULL) {
            status = check_links(sim, thread, step);
        }
        if (status < 0) {
            return status;
        }
        if (step->op == WEFTI_DO_WAIT && !wefti_sim_wait(sim, thread, step)) {
            return WEFT_OK;
        }
        if (step->op == WEFTI_DO_AWAIT && !wefti_sim_await(sim, thread, step)) {
            return WEFT_OK;
        }
        if (sim->no_memory) {
            return WEFT_ERR_NO_MEMORY;
        }
        if (sim->visit != NULL) {
            status = sim->visit(sim->user, sim, thread, step);
        }
        if (status < 0) {
            return status;
        }
        if (step->op == WEFTI_DO_POST) {
            status = wefti_sim_post(sim, thread, step);
        } else if (step->op == WEFTI_DO_SIGNAL) {
            status = wefti_sim_signal(sim, thread, step);
        } else if (sim->symbols && (step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE ||
                                    step->op == WEFTI_DO_PUT)) {
            status = wefti_sim_move(sim, thread, step);
        }
        if (status < 0) {
            return status;
        }
        sim->step_total++;
    }
    *out_ended = true;
    return WEFT_OK;
}

/* Whom a stuck thread waits for. */
static uint32_t awaited_thread(const wefti_sim_t *sim, const wefti_sim_thread_t *own)
{
    const wefti_step_t *step = &sim->schedules[own->rank].steps[own->at];
    bool wait = step->op == WEFTI_DO_WAIT;
    uint32_t peer = wait ? step->wait.first_rank + own->waited : step->signal.peer;
    return peer * sim->lanes + (wait ? step->wait.lane : step->signal.lane);
}

/* Whether other still has what own waits for before it in this run. */
static bool may_still_come(const wefti_sim_t *sim, const wefti_sim_thread_t *own,
                           const wefti_sim_thread_t *other)
{
    const wefti_step_t *step = &sim->schedules[own->rank].steps[own->at];
    if (other->run < own->run) {
        return true;
    }
    for (uint32_t i = other->at; i < other->end; i++) {
        const wefti_step_t *next = &sim->schedules[other->rank].steps[i];
        if (step->op == WEFTI_DO_WAIT
                ? next->op == WEFTI_DO_POST && next->post.phase >= step->wait.phase
                : next->op == WEFTI_DO_SIGNAL && next->signal.peer == own->rank) {
            return true;
        }
    }
    return false;
}

/* Names a rank that is stuck, if possible one whose wait nobody can end, and where its partner
 * stands. */
static weft_status_t stuck(const wefti_sim_t *sim)
{
    uint32_t found = WEFTI_NOBODY;
    bool hopeless = false;
    for (uint32_t i = 0; i < sim->threads && !hopeless; i++) {
        const wefti_sim_thread_t *own = &sim->thread[i];
        if (own->at < own->end) {
            hopeless = !may_still_come(sim, own, &sim->thread[awaited_thread(sim, own)]);
            found = hopeless || found == WEFTI_NOBODY ? i : found;
        }
    }
    if (found == WEFTI_NOBODY) {
        return WEFT_OK;
    }
    const wefti_sim_thread_t *other = &sim->thread[awaited_thread(sim, &sim->thread[found])];
    char text[160] = "the end";
    if (other->at < other->end) {
        wefti_step_text(&sim->schedules[other->rank], &sim->schedules[other->rank].steps[other->at],
                        text, sizeof text);
    }
    return wefti_sim_error(sim, found, "deadlock: rank %u, lane %u, is in run %u at %s",
                           other->rank, other->lane, other->run, text);
}

weft_status_t wefti_sim_run(wefti_sim_t *sim)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t rank = 0; rank < sim->ranks && status >= 0; rank++) {
        status = begin_run(sim, rank, 0);
    }
    while (sim->queue_count > 0 && status >= 0) {
        uint32_t thread = sim->queue[sim->queue_head];
        sim->queue_head = (sim->queue_head + 1) % sim->threads;
        sim->queue_count--;
        sim->thread[thread].queued = false;
        bool ended;
        status = advance(sim, thread, &ended);
        if (status >= 0 && ended && --sim->rank[sim->thread[thread].rank].lanes_left == 0) {
            status = end_run(sim, sim->thread[thread].rank);
        }
    }
    return status >= 0 ? stuck(sim) : status;
}

weft_status_t wefti_sim_init(wefti_sim_t *sim, const weft_algo_params_t *params,
                             const wefti_schedule_t *schedules, const weft_allocator_t *allocator,
                             bool symbols)
{
    *sim = (wefti_sim_t){.params = params,
                         .symbols = symbols,
                         .schedules = schedules,
                         .allocator = allocator,
                         .resources = schedules[0].resources,
                         .ranks = params->group_size,
                         .lanes = schedules[0].resources.lanes};
    uint32_t sets = sim->resources.scratch_sets;
    sim->runs = 1 + (sets > schedules[0].stage_sets ? sets : schedules[0].stage_sets);
    if (sim->runs > MAX_RUNS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "scratch or staging has more than two sets");
    }
    sim->threads = sim->ranks * sim->lanes;
    sim->blocks = wefti_block_count(params, &sim->resources);
    sim->thread = wefti_alloc(allocator, sim->threads * sizeof *sim->thread);
    sim->rank = wefti_alloc(allocator, sim->ranks * sizeof *sim->rank);
    sim->queue = wefti_alloc(allocator, sim->threads * sizeof *sim->queue);
    if (sim->thread == NULL || sim->rank == NULL || sim->queue == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < sim->ranks; rank++) {
        const wefti_schedule_t *schedule = &schedules[rank];
        if (memcmp(&schedule->resources, &sim->resources, sizeof sim->resources) != 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "ranks %u and 0 request different resources", rank);
        }
        for (uint32_t lane = 0; lane < sim->lanes; lane++) {
            wefti_sim_thread_t *thread = &sim->thread[rank * sim->lanes + lane];
            thread->rank = rank;
            thread->lane = lane;
            thread->end = schedule->lane_begin[lane + 1];
        }
    }
    weft_status_t status = symbols ? wefti_exprs_init(&sim->exprs, allocator) : WEFT_OK;
    if (status >= 0 && symbols) {
        status = wefti_sim_init_memory(sim);
    }
    return status >= 0 ? wefti_sim_init_sync(sim) : status;
}

void wefti_sim_deinit(wefti_sim_t *sim)
{
    wefti_sim_deinit_sync(sim);
    wefti_sim_deinit_memory(sim);
    wefti_exprs_deinit(&sim->exprs);
    wefti_free(sim->allocator, sim->thread);
    wefti_free(sim->allocator, sim->rank);
    wefti_free(sim->allocator, sim->queue);
}

weft_status_t wefti_schedules_verify(const weft_algo_params_t *params,
                                     const wefti_schedule_t *schedules, const wefti_links_t *links,
                                     const weft_allocator_t *allocator,
                                     wefti_verify_stats_t *out_stats)
{
    wefti_sim_t sim;
    weft_status_t status = wefti_sim_init(&sim, params, schedules, allocator, true);
    sim.links = links;
    if (status >= 0) {
        status = wefti_sim_run(&sim);
    }
    if (out_stats != NULL) {
        *out_stats = (wefti_verify_stats_t){sim.step_total, sim.access_total};
    }
    wefti_sim_deinit(&sim);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who knows what. Ranks of built-in algorithms read only what they waited for themselves, and what
 * is written to them they learn from the writer: the schedules of the two ranks of an exchange are
 * enough. (tests/ops/test_algo_lower.c compares that with the simulator.) Of other algorithms the
 * simulator tells, for a rank may know by way of a third.
 */
#include "ops/algo/lower_internal.h"
#include "runtime/base/error.h"

/* ---- by the waits of two ranks ---- */

void wefti_lower_begin_lane(wefti_lowering_t *l)
{
    l->visit += (uint64_t)1 << 32;
}

static bool names(const wefti_step_t *wait, uint32_t rank)
{
    return rank >= wait->wait.first_rank && rank - wait->wait.first_rank < wait->wait.rank_count;
}

void wefti_lower_waited(wefti_lowering_t *l, const wefti_site_t *site)
{
    const wefti_step_t *step = site->step;
    if (step->wait.back > 0) {
        return;
    }
    if (l->only != WEFTI_NOBODY && site->rank != l->only) {
        l->waited[l->only] = names(step, l->only) ? l->visit | site->at : l->waited[l->only];
        return;
    }
    for (uint32_t i = 0; i < step->wait.rank_count; i++) {
        l->waited[step->wait.first_rank + i] = l->visit | site->at;
    }
}

bool wefti_lower_find_post(const wefti_lowering_t *l, uint32_t rank, uint32_t lane, uint32_t phase,
                           uint32_t *out_step)
{
    const wefti_schedule_t *schedule = &l->schedules[rank];
    const uint32_t *posts = l->posts[rank];
    uint32_t low = 0, high = l->post_count[rank];
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const wefti_step_t *post = &schedule->steps[posts[middle]];
        bool before = post->lane < lane || (post->lane == lane && post->post.phase < phase);
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    if (low == l->post_count[rank] || schedule->steps[posts[low]].lane != lane) {
        return false;
    }
    *out_step = posts[low];
    return true;
}

bool wefti_lower_seen(wefti_lowering_t *l, const wefti_site_t *site, uint32_t rank,
                      uint32_t *out_step, uint32_t *out_lane)
{
    if (l->known != NULL) {
        wefti_known_t *known = &l->known[site->rank * l->schedules[0].resources.lanes + site->lane];
        const wefti_site_t *post = &known->reads[known->next_read++];
        *out_step = post->at;
        *out_lane = post->lane;
        return true;
    }
    if (l->waited[rank] < l->visit) {
        return false;
    }
    const wefti_step_t *wait = &l->schedules[site->rank].steps[(uint32_t)l->waited[rank]];
    *out_lane = wait->wait.lane;
    return wefti_lower_find_post(l, rank, wait->wait.lane, wait->wait.phase, out_step);
}

uint32_t wefti_lower_settled(wefti_lowering_t *l, const wefti_site_t *site, uint32_t rank)
{
    const wefti_schedule_t *own = &l->schedules[site->rank], *other = &l->schedules[rank];
    if (l->known != NULL) {
        wefti_known_t *known = &l->known[site->rank * own->resources.lanes + site->lane];
        return known->writes[known->next_write++];
    }
    uint32_t shown = site->at; /* the post after the write */
    while (shown < own->lane_begin[site->lane + 1] && own->steps[shown].op != WEFTI_DO_POST) {
        shown++;
    }
    for (uint32_t i = 0; i < other->step_count && shown < own->lane_begin[site->lane + 1]; i++) {
        const wefti_step_t *wait = &other->steps[i];
        uint32_t post;
        if (wait->op == WEFTI_DO_WAIT && wait->wait.back == 0 && wait->wait.lane == site->lane &&
            names(wait, site->rank) &&
            wefti_lower_find_post(l, site->rank, site->lane, wait->wait.phase, &post) &&
            post >= shown) {
            return i;
        }
    }
    return WEFTI_NOBODY;
}

/* ---- by the simulator ---- */

/* A write to a rank that it does not know of yet. */
typedef struct pending {
    uint32_t thread, clock; /* who wrote, when */
    uint32_t number;        /* of the thread's writes */
    bool done;
} pending_t;

typedef struct pending_list {
    pending_t *items;
    size_t count, capacity, first; /* all before first are done */
} pending_list_t;

typedef struct learning {
    wefti_lowering_t *l;
    pending_list_t *pending; /* [rank] */
} learning_t;

/* The post of rank that thread waited for last, in this run. */
static bool last_post_awaited(const wefti_sim_t *sim, uint32_t thread, uint32_t rank,
                              uint32_t *out_step, uint32_t *out_lane)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    const wefti_schedule_t *schedule = &sim->schedules[own->rank];
    for (uint32_t at = own->at; at-- > schedule->lane_begin[own->lane];) {
        const wefti_step_t *step = &schedule->steps[at];
        if (step->op != WEFTI_DO_WAIT || step->wait.back > 0 || !names(step, rank)) {
            continue;
        }
        uint64_t target = (uint64_t)own->run * sim->resources.phases + step->wait.phase;
        const wefti_release_log_t *log = &sim->thread[rank * sim->lanes + step->wait.lane].posts;
        for (size_t i = log->count; i-- > 0 && log->entries[i].value >= target;) {
            *out_step = log->entries[i].step;
        }
        *out_lane = step->wait.lane;
        return true;
    }
    return false;
}

/* The last post of rank that thread has seen: its step, and its lane. Of several lanes, the one
 * that it waited for knows what the others wrote. */
static bool last_post_seen(const wefti_sim_t *sim, uint32_t thread, uint32_t rank,
                           uint32_t *out_step, uint32_t *out_lane)
{
    if (sim->lanes > 1 && last_post_awaited(sim, thread, rank, out_step, out_lane)) {
        return true;
    }
    for (uint32_t lane = 0; lane < sim->lanes; lane++) {
        uint32_t other = rank * sim->lanes + lane;
        const wefti_release_log_t *log = &sim->thread[other].posts;
        for (size_t i = log->count; i-- > 0;) {
            if (wefti_sim_knows(sim, thread, other, log->entries[i].clock)) {
                *out_step = log->entries[i].step;
                *out_lane = lane;
                return true;
            }
        }
    }
    return false;
}

static weft_status_t learn_read(learning_t *learning, const wefti_sim_t *sim, uint32_t thread,
                                uint32_t rank)
{
    wefti_known_t *known = &learning->l->known[thread];
    wefti_site_t post = {.rank = rank};
    if (!last_post_seen(sim, thread, rank, &post.at, &post.lane)) {
        return wefti_sim_error(
            sim, thread,
            "reads from rank %u without waiting for it: only shared memory allows that", rank);
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(learning->l->allocator, &known->reads,
                                             &known->read_capacity, known->read_count + 1,
                                             sizeof *known->reads));
    known->reads[known->read_count++] = post;
    return WEFT_OK;
}

static weft_status_t learn_write(learning_t *learning, const wefti_sim_t *sim, uint32_t thread,
                                 uint32_t rank)
{
    const weft_allocator_t *allocator = learning->l->allocator;
    wefti_known_t *known = &learning->l->known[thread];
    pending_list_t *list = &learning->pending[rank];
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &known->writes, &known->write_capacity,
                                             known->write_count + 1, sizeof *known->writes));
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &list->items, &list->capacity,
                                             list->count + 1, sizeof *list->items));
    list->items[list->count++] =
        (pending_t){thread, sim->clocks[(size_t)thread * sim->threads + thread],
                    (uint32_t)known->write_count, false};
    known->writes[known->write_count++] = WEFTI_NOBODY;
    return WEFT_OK;
}

static weft_status_t learn_move(learning_t *learning, const wefti_sim_t *sim, uint32_t thread,
                                const wefti_step_t *step)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    const wefti_operand_t *operands = sim->schedules[own->rank].operands + step->move.operand;
    for (uint32_t o = 0; o < step->move.source_count + (uint32_t)step->move.destination_count;
         o++) {
        for (uint32_t i = 0; i < operands[o].rank_count; i++) {
            wefti_operand_t part = wefti_part_of(&operands[o], i);
            if (wefti_lower_unreachable(learning->l, own->rank, &part)) {
                bool reads = o < step->move.source_count;
                WEFT_RETURN_IF_ERROR(reads ? learn_read(learning, sim, thread, part.rank)
                                           : learn_write(learning, sim, thread, part.rank));
            }
        }
    }
    return WEFT_OK;
}

/* Writes of others that this wait tells of. */
static void settle(learning_t *learning, const wefti_sim_t *sim, uint32_t thread)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    pending_list_t *list = &learning->pending[own->rank];
    for (size_t i = list->first; i < list->count; i++) {
        pending_t *item = &list->items[i];
        if (!item->done && wefti_sim_knows(sim, thread, item->thread, item->clock)) {
            item->done = true;
            learning->l->known[item->thread].writes[item->number] = own->at;
        }
    }
    while (list->first < list->count && list->items[list->first].done) {
        list->first++;
    }
}

static weft_status_t visit(void *user, wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step)
{
    if (step->op == WEFTI_DO_WAIT) {
        settle(user, sim, thread);
    }
    return step->op == WEFTI_DO_COPY || step->op == WEFTI_DO_REDUCE
               ? learn_move(user, sim, thread, step)
               : WEFT_OK;
}

weft_status_t wefti_lower_learn(wefti_lowering_t *l)
{
    uint32_t n = l->params->group_size, lanes = l->schedules[0].resources.lanes;
    learning_t learning = {l, wefti_alloc(l->allocator, n * sizeof *learning.pending)};
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    l->known = wefti_alloc(l->allocator, (size_t)n * lanes * sizeof *l->known);
    if (learning.pending != NULL && l->known != NULL) {
        wefti_sim_t sim;
        status = wefti_sim_init(&sim, l->params, l->schedules, l->allocator, false);
        sim.runs = 1;
        sim.visit = visit;
        sim.user = &learning;
        if (status >= 0) {
            status = wefti_sim_run(&sim);
        }
        wefti_sim_deinit(&sim);
    }
    for (uint32_t rank = 0; learning.pending != NULL && rank < n; rank++) {
        wefti_free(l->allocator, learning.pending[rank].items);
    }
    wefti_free(l->allocator, learning.pending);
    return status;
}

void wefti_lower_forget(wefti_lowering_t *l)
{
    size_t threads = (size_t)l->params->group_size * l->schedules[0].resources.lanes;
    for (size_t i = 0; l->known != NULL && i < threads; i++) {
        wefti_free(l->allocator, l->known[i].reads);
        wefti_free(l->allocator, l->known[i].writes);
    }
    wefti_free(l->allocator, l->known);
    l->known = NULL;
}

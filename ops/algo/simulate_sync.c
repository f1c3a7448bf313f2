/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, signals and what they tell: vector clocks. */
#include "ops/algo/simulate.h"

#include <string.h>

#include "runtime/base/error.h"

void wefti_sim_join(wefti_sim_t *sim, uint32_t thread, const uint32_t *clock)
{
    uint32_t *own = sim->clocks + (size_t)thread * sim->threads;
    for (uint32_t i = 0; i < sim->threads; i++) {
        own[i] = own[i] > clock[i] ? own[i] : clock[i];
    }
}

void wefti_sim_wake(wefti_sim_t *sim, uint32_t *waiters)
{
    uint32_t next = *waiters;
    *waiters = 0;
    while (next != 0) {
        wefti_sim_thread_t *thread = &sim->thread[next - 1];
        if (!thread->queued) {
            thread->queued = true;
            sim->queue[(sim->queue_head + sim->queue_count++) % sim->threads] = next - 1;
        }
        next = thread->next_waiter;
        thread->next_waiter = 0;
    }
}

static void block_on(wefti_sim_t *sim, uint32_t thread, uint32_t *waiters)
{
    sim->thread[thread].next_waiter = *waiters;
    *waiters = thread + 1;
}

/* Logs a release of thread's knowledge, and moves it into its next epoch. */
static weft_status_t release(wefti_sim_t *sim, uint32_t thread, wefti_release_log_t *log,
                             uint64_t value, uint32_t references)
{
    weft_status_t status = wefti_array_reserve(sim->allocator, &log->entries, &log->capacity,
                                               log->count + 1, sizeof *log->entries);
    if (status < 0) {
        return status;
    }
    uint32_t *own = sim->clocks + (size_t)thread * sim->threads;
    wefti_release_t *entry = &log->entries[log->count++];
    *entry = (wefti_release_t){value, own[thread], sim->thread[thread].at, NULL};
    if (references > 0) {
        entry->snapshot =
            wefti_alloc(sim->allocator,
                        sizeof *entry->snapshot + sim->threads * sizeof *entry->snapshot->clock);
        if (entry->snapshot == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        entry->snapshot->references = references;
        memcpy(entry->snapshot->clock, own, sim->threads * sizeof *own);
    }
    own[thread]++;
    return WEFT_OK;
}

/* Takes over what was known at the release. */
static void acquire(wefti_sim_t *sim, uint32_t thread, uint32_t other, wefti_release_t *entry)
{
    if (entry->snapshot == NULL) {
        return;
    }
    if (!wefti_sim_knows(sim, thread, other, entry->clock)) {
        wefti_sim_join(sim, thread, entry->snapshot->clock);
    }
    if (--entry->snapshot->references == 0) {
        wefti_free(sim->allocator, entry->snapshot);
        entry->snapshot = NULL;
    }
}

weft_status_t wefti_sim_post(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step)
{
    wefti_sim_thread_t *own = &sim->thread[thread];
    uint64_t before = (uint64_t)own->run * sim->resources.phases;
    uint64_t value = before + step->post.phase;
    if (value <= own->phase) {
        return wefti_sim_error(sim, thread,
                               "the counter already has this value; phases must increase");
    }
    uint32_t references = 0;
    uint64_t last = own->phase > before ? own->phase - before : 0;
    for (uint64_t phase = last + 1; phase <= step->post.phase; phase++) {
        references += own->wait_counts[phase];
    }
    weft_status_t status = release(sim, thread, &own->posts, value, references);
    own->phase = value;
    wefti_sim_wake(sim, &own->waiter);
    return status;
}

/* The first post at or above value. */
static wefti_release_t *find_post(wefti_release_log_t *log, uint64_t value)
{
    size_t low = 0, high = log->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (log->entries[middle].value < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return &log->entries[low];
}

bool wefti_sim_wait(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step)
{
    wefti_sim_thread_t *own = &sim->thread[thread];
    if (own->run >= step->wait.back) {
        uint64_t target =
            (uint64_t)(own->run - step->wait.back) * sim->resources.phases + step->wait.phase;
        for (; own->waited < step->wait.rank_count; own->waited++) {
            uint32_t other = (step->wait.first_rank + own->waited) * sim->lanes + step->wait.lane;
            if (other == thread) {
                continue;
            }
            if (sim->thread[other].phase < target) {
                block_on(sim, thread, &sim->thread[other].waiter);
                return false;
            }
            acquire(sim, thread, other, find_post(&sim->thread[other].posts, target));
        }
    }
    own->waited = 0;
    return true;
}

weft_status_t wefti_sim_signal(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    wefti_channel_t *channel = &sim->channels[(size_t)thread * sim->ranks + step->signal.peer];
    uint64_t value = (uint64_t)own->run * channel->per_run + step->signal.index;
    if (value != channel->sent.count + 1) {
        return wefti_sim_error(sim, thread, "signal %u to rank %u is out of order",
                               step->signal.index, step->signal.peer);
    }
    weft_status_t status =
        release(sim, thread, &channel->sent, value, channel->wait_counts[step->signal.index]);
    wefti_sim_wake(sim, &channel->waiter);
    return status;
}

bool wefti_sim_await(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step)
{
    const wefti_sim_thread_t *own = &sim->thread[thread];
    if (own->run < step->signal.back) {
        return true;
    }
    uint32_t other = step->signal.peer * sim->lanes + step->signal.lane;
    wefti_channel_t *channel = &sim->channels[(size_t)other * sim->ranks + own->rank];
    uint64_t target =
        (uint64_t)(own->run - step->signal.back) * channel->per_run + step->signal.index;
    if (channel->sent.count < target) {
        block_on(sim, thread, &channel->waiter);
        return false;
    }
    acquire(sim, thread, other, &channel->sent.entries[target - 1]);
    uint64_t last =
        channel->landed_count > 0 ? channel->landed[channel->landed_count - 1].value : 0;
    if (target > last || sim->lanes > 1) { /* with several lanes each learns for itself */
        uint32_t clock = sim->clocks[(size_t)thread * sim->threads + thread];
        if (wefti_array_reserve(sim->allocator, &channel->landed, &channel->landed_capacity,
                                channel->landed_count + 1, sizeof *channel->landed) < 0) {
            sim->no_memory = true;
            return true;
        }
        channel->landed[channel->landed_count++] = (wefti_landing_t){target, thread, clock};
    }
    return true;
}

static weft_status_t count_waits(wefti_sim_t *sim, uint32_t rank, const wefti_step_t *step)
{
    for (uint32_t i = 0; i < step->wait.rank_count; i++) {
        uint32_t other = (step->wait.first_rank + i) * sim->lanes + step->wait.lane;
        sim->thread[other].wait_counts[step->wait.phase] += other != rank * sim->lanes + step->lane;
    }
    return WEFT_OK;
}

/* Channels exist only where some rank signals. */
static weft_status_t init_channels(wefti_sim_t *sim)
{
    size_t count = (size_t)sim->threads * sim->ranks;
    sim->channels = wefti_alloc(sim->allocator, count * sizeof *sim->channels);
    if (sim->channels == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < sim->ranks; rank++) {
        for (size_t i = 0; i < sim->schedules[rank].step_count; i++) {
            const wefti_step_t *step = &sim->schedules[rank].steps[i];
            if (step->op == WEFTI_DO_SIGNAL) {
                uint32_t thread = rank * sim->lanes + step->lane;
                sim->channels[(size_t)thread * sim->ranks + step->signal.peer].per_run++;
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        wefti_channel_t *channel = &sim->channels[i];
        if (channel->per_run > 0) {
            channel->wait_counts =
                wefti_alloc(sim->allocator, (channel->per_run + 1) * sizeof(uint32_t));
            if (channel->wait_counts == NULL) {
                return WEFT_ERR_NO_MEMORY;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t count_await(wefti_sim_t *sim, uint32_t rank, const wefti_step_t *step)
{
    uint32_t other = step->signal.peer * sim->lanes + step->signal.lane;
    wefti_channel_t *channel = &sim->channels[(size_t)other * sim->ranks + rank];
    if (step->signal.index == 0 || step->signal.index > channel->per_run) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "rank %u, lane %u, step %zu: deadlock: waits for signal %u of rank %u, "
                           "which sends only %u",
                           rank, step->lane, (size_t)(step - sim->schedules[rank].steps),
                           step->signal.index, step->signal.peer, channel->per_run);
    }
    channel->wait_counts[step->signal.index]++;
    return WEFT_OK;
}

weft_status_t wefti_sim_init_sync(wefti_sim_t *sim)
{
    bool signals = false;
    weft_status_t status = WEFT_OK;
    sim->clocks =
        wefti_alloc(sim->allocator, (size_t)sim->threads * sim->threads * sizeof *sim->clocks);
    if (sim->clocks == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < sim->threads; i++) {
        sim->clocks[(size_t)i * sim->threads + i] = 1;
        sim->thread[i].wait_counts =
            wefti_alloc(sim->allocator, (sim->resources.phases + 1) * sizeof(uint32_t));
        if (sim->thread[i].wait_counts == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    for (uint32_t rank = 0; rank < sim->ranks; rank++) {
        for (size_t i = 0; i < sim->schedules[rank].step_count; i++) {
            uint8_t op = sim->schedules[rank].steps[i].op;
            signals = signals || op >= WEFTI_DO_PUT;
        }
    }
    status = signals ? init_channels(sim) : WEFT_OK;
    for (uint32_t rank = 0; rank < sim->ranks && status >= 0; rank++) {
        for (size_t i = 0; i < sim->schedules[rank].step_count && status >= 0; i++) {
            const wefti_step_t *step = &sim->schedules[rank].steps[i];
            if (step->op == WEFTI_DO_WAIT) {
                status = count_waits(sim, rank, step);
            } else if (step->op == WEFTI_DO_AWAIT) {
                status = count_await(sim, rank, step);
            }
        }
    }
    return status;
}

static void free_log(wefti_sim_t *sim, wefti_release_log_t *log)
{
    for (size_t i = 0; i < log->count; i++) {
        wefti_free(sim->allocator, log->entries[i].snapshot);
    }
    wefti_free(sim->allocator, log->entries);
}

void wefti_sim_deinit_sync(wefti_sim_t *sim)
{
    for (uint32_t i = 0; sim->thread != NULL && i < sim->threads; i++) {
        free_log(sim, &sim->thread[i].posts);
        wefti_free(sim->allocator, sim->thread[i].wait_counts);
    }
    for (size_t i = 0; sim->channels != NULL && i < (size_t)sim->threads * sim->ranks; i++) {
        free_log(sim, &sim->channels[i].sent);
        wefti_free(sim->allocator, sim->channels[i].landed);
        wefti_free(sim->allocator, sim->channels[i].wait_counts);
    }
    wefti_free(sim->allocator, sim->channels);
    wefti_free(sim->allocator, sim->clocks);
}

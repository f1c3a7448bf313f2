/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the tasks of all lanes. */
#include "runtime/interpreter/internal.h"

#include "runtime/base/copy.h"

#define SETTLE_BYTES 4096u /* moves from here on make sleepers wait too long */
#define LOOKS_AHEAD 6u     /* counters of a wait for many are fetched side by side */
/* A lane that no rank waits for would fall behind by half the range of 32 bits: it is brought up to
 * date at least this often. */
#define REFRESH_PHASES (1u << 28)
#define LEND_BYTES ((size_t)16 << 10) /* copying less is cheaper than looking after it */
#define SOURCE_WAIT_NS 1000000ull

/* Wakes who sleeps on what was posted; see wefti_fence. */
static void settle(wefti_run_t *run)
{
    wefti_fence();
    for (uint32_t bits = run->unsettled; bits != 0; bits &= bits - 1) {
        wefti_signal_settle(wefti_run_lane_signal(run->area, (uint32_t)__builtin_ctz(bits)));
    }
    run->unsettled = 0;
}

static void set_counter(wefti_run_t *run, uint32_t lane, uint32_t value)
{
    run->memory->counters->posted[lane] = value;
    wefti_signal_publish(wefti_run_lane_signal(run->area, lane), value);
    run->unsettled |= 1u << lane;
}

/* A WAIT's rank number i. Ranks start with their neighbour, so that they do not all read one counter
 * at once. */
static uint32_t waited_rank(const wefti_run_t *run, const wefti_task_t *task, uint32_t i)
{
    uint32_t count = task->wait.rank_count;
    uint32_t skew = run->params.rank - task->wait.first_rank;
    i += skew < count ? skew + 1 : 0;
    return task->wait.first_rank + (i < count ? i : i - count);
}

/* That rank's counter, and what it must reach; NULL: this lane itself. */
static wefti_signal_t *waited_for(const wefti_run_t *run, uint32_t lane, const wefti_task_t *task,
                                  uint32_t i, uint32_t *out_target)
{
    const wefti_run_memory_t *memory = run->memory;
    uint32_t rank = waited_rank(run, task, i);
    if (rank == run->params.rank && task->wait.lane == lane) {
        return NULL;
    }
    *out_target = memory->counters->phase + task->wait.phase - task->wait.back * run->phases;
    return wefti_run_lane_signal(memory->bases[rank] + memory->area, task->wait.lane);
}

static wefti_signal_t *awaited(const wefti_run_t *run, const wefti_task_t *task,
                               uint32_t *out_target)
{
    const wefti_run_counters_t *counters = run->memory->counters;
    size_t from = (size_t)task->signal.lane * counters->group_size + task->signal.peer;
    *out_target =
        counters->arrived[from] + task->signal.index - task->signal.back * run->arrived[from];
    return (wefti_signal_t *)(void *)(run->area + wefti_run_arrival(counters, task->signal.lane,
                                                                    task->signal.peer));
}

/* What this run lent is back. */
static bool is_back(const wefti_signal_t *lent)
{
    return wefti_signal_has_reached(lent, 0);
}

static wefti_signal_t *lent_now(wefti_run_t *run)
{
    return &run->lent[run->number & 1].signal;
}

/* What a lane is blocked on, or NULL when its task may run. */
static wefti_signal_t *blocked_on(wefti_run_t *run, uint32_t lane, const wefti_task_t *task,
                                  uint32_t *out_target)
{
    wefti_run_lane_t *own = &run->lane[lane];
    if (task->op == WEFTI_DO_WAIT && run->number >= task->wait.back) {
        for (; own->seen < task->wait.rank_count; own->seen++) {
            wefti_signal_t *signal = waited_for(run, lane, task, own->seen, out_target);
            if (signal != NULL && !wefti_signal_has_reached(signal, *out_target)) {
                return signal;
            }
            if (own->seen + LOOKS_AHEAD < task->wait.rank_count) {
                __builtin_prefetch(
                    waited_for(run, lane, task, own->seen + LOOKS_AHEAD, out_target));
            }
        }
        own->seen = 0;
    } else if (task->op == WEFTI_DO_AWAIT && run->number >= task->signal.back) {
        wefti_signal_t *signal = awaited(run, task, out_target);
        return wefti_signal_has_reached(signal, *out_target) ? NULL : signal;
    } else if ((task->flags & WEFTI_STEP_AFTER_LENT) != 0 && !is_back(lent_now(run))) {
        *out_target = 0;
        return lent_now(run);
    }
    return NULL;
}

static uintptr_t place_of(const wefti_run_t *run, const wefti_extent_t *range, uint32_t i)
{
    return run->places[range->buffer * run->params.group_size + range->rank + i] +
           range->offset * run->elem_bytes[range->buffer];
}

/* Over shared memory place_of is an address. */
static void *address_of(const wefti_run_t *run, const wefti_extent_t *range, uint32_t i)
{
    return (void *)place_of(run, range, i);
}

static weft_status_t reduce(wefti_run_t *run, const wefti_task_t *task,
                            const wefti_extent_t *ranges)
{
    uint32_t sources = 0, destinations = 0, wide = 0;
    for (uint32_t s = 0; s < task->source_count; s++) {
        uint8_t is_wide = ranges[s].buffer == WEFTI_SCRATCH || ranges[s].buffer == WEFTI_STAGE_WIDE;
        wide |= is_wide;
        for (uint32_t i = 0; i < ranges[s].rank_count; i++) {
            run->wide[sources] = is_wide;
            run->sources[sources++] = address_of(run, &ranges[s], i);
        }
    }
    ranges += task->source_count;
    for (uint32_t d = 0; d < task->destination_count; d++) {
        for (uint32_t i = 0; i < ranges[d].rank_count; i++) {
            run->destinations[destinations++] = address_of(run, &ranges[d], i);
        }
    }
    wefti_reduce_step_t step = {.sources = run->sources,
                                .wide = wide != 0 && !run->narrow ? run->wide : NULL,
                                .source_count = sources,
                                .destination_count = destinations,
                                .destinations = run->destinations,
                                .elem_count = task->elem_count,
                                .dtype = run->call.dtype,
                                .reduction = run->call.reduction,
                                .divisor = run->call.divisor != 0 ? run->call.divisor
                                                                  : run->params.group_size,
                                .finish = (task->flags & WEFTI_STEP_FINISH) != 0};
    return wefti_reduce_step(&step, run->memory->isa);
}

/* Memory that a call borrowed may be gone when it has failed; the region stays. */
static bool may_lend(const wefti_run_t *run, const wefti_task_t *task, const void *from,
                     size_t bytes)
{
    const wefti_run_memory_t *memory = run->memory;
    size_t least = memory->lend_bytes > 0 ? memory->lend_bytes : LEND_BYTES;
    uintptr_t base = (uintptr_t)memory->bases[run->params.rank];
    /* relaxed: it only grows */
    size_t limit = atomic_load_explicit(&memory->endpoint->region_bytes, memory_order_relaxed);
    return (task->flags & WEFTI_STEP_LEND) != 0 && bytes >= least && (uintptr_t)from >= base &&
           (uintptr_t)from - base <= limit && bytes <= limit - ((uintptr_t)from - base);
}

static weft_status_t put(wefti_run_t *run, uint32_t lane, const wefti_task_t *task,
                         const wefti_extent_t *ranges, const void *from, size_t bytes)
{
    const wefti_run_memory_t *memory = run->memory;
    uint32_t peer = memory->ranks[ranges[1].rank];
    uintptr_t to = place_of(run, &ranges[1], 0);
    if (may_lend(run, task, from, bytes)) {
        return wefti_put_zero_copy(memory->endpoint, peer, to, from, bytes, lane, lent_now(run));
    }
    return wefti_put(memory->endpoint, peer, to, from, bytes, lane);
}

/* A task that is not blocked. */
static weft_status_t run_task(wefti_run_t *run, uint32_t lane, const wefti_task_t *task)
{
    const wefti_run_memory_t *memory = run->memory;
    const wefti_extent_t *ranges = run->tasks.ranges + task->range;
    size_t bytes;
    switch ((wefti_step_op_t)task->op) {
    case WEFTI_DO_POST:
        set_counter(run, lane, memory->counters->phase + task->phase);
        return WEFT_OK;
    case WEFTI_DO_WAIT:
    case WEFTI_DO_AWAIT:
        return WEFT_OK;
    case WEFTI_DO_SIGNAL: {
        const wefti_run_counters_t *counters = memory->counters;
        size_t to = (size_t)lane * counters->group_size + task->signal.peer;
        /* relaxed: a thread that reads it looks again when this one rests */
        atomic_store_explicit(&counters->signaled[to], counters->sent[to] + task->signal.index,
                              memory_order_relaxed);
        return wefti_signal_peer(memory->endpoint, memory->ranks[task->signal.peer],
                                 memory->area + wefti_run_arrival(counters, lane, run->params.rank),
                                 counters->sent[to] + task->signal.index, lane);
    }
    default:
        break;
    }
    bytes = task->elem_count * run->elem_bytes[ranges[0].buffer];
    if (run->unsettled != 0 && bytes >= SETTLE_BYTES) {
        settle(run);
    }
    if (task->op == WEFTI_DO_REDUCE) {
        return reduce(run, task, ranges);
    }
    const void *from = address_of(run, &ranges[0], 0);
    if (task->op == WEFTI_DO_PUT) {
        return put(run, lane, task, ranges, from, bytes);
    }
    void *to = address_of(run, &ranges[1], 0);
    if (to != from) {
        wefti_copy(to, from, bytes);
    }
    return WEFT_OK;
}

/* Nothing else may be receiving while this rank looks. */
static void make_progress(const wefti_run_t *run)
{
    if (run->sent != NULL) {
        wefti_endpoint_progress(run->memory->endpoint);
    }
}

/* Looks at a counter before the run counts as blocked. */
static uint32_t tries_of(const wefti_run_t *run)
{
    return run->memory->polls ? 0 : wefti_endpoint_tries(run->memory->endpoint);
}

/* As far as the lane goes. WEFT_IN_PROGRESS: blocked, on *out. */
static weft_status_t run_lane(wefti_run_t *run, uint32_t lane, uint32_t tries, wefti_blocked_t *out)
{
    wefti_run_lane_t *own = &run->lane[lane];
    for (; own->at < own->end; own->at++) {
        const wefti_task_t *task = &run->tasks.tasks[own->at];
        wefti_signal_t *signal;
        uint32_t target;
        for (uint32_t i = 0; (signal = blocked_on(run, lane, task, &target)) != NULL; i++) {
            if (i == tries) {
                out->signal = signal;
                out->target = target;
                return WEFT_IN_PROGRESS;
            }
            if (i % WEFTI_TRIES_PER_PROGRESS == 0) {
                make_progress(run);
            }
        }
        weft_status_t status = run_task(run, lane, task);
        if (status < 0) {
            return status;
        }
    }
    return WEFT_OK;
}

/* All lanes in turns, until every one of them is done or blocked. */
static weft_status_t run_lanes(wefti_run_t *run, wefti_blocked_t *out)
{
    uint32_t tries = tries_of(run);
    if (run->lanes == 1) {
        return run_lane(run, 0, tries, out);
    }
    for (uint32_t i = 0; i <= tries; i++) {
        bool done = true;
        for (uint32_t lane = 0; lane < run->lanes; lane++) {
            uint32_t before = run->lane[lane].at;
            weft_status_t status = run_lane(run, lane, 0, out);
            if (status < 0) {
                return status;
            }
            done = done && status == WEFT_OK;
            i = run->lane[lane].at != before ? 0 : i;
        }
        if (done) {
            return WEFT_OK;
        }
        make_progress(run);
    }
    return WEFT_IN_PROGRESS;
}

/* What must be back before the run that is over counts as over; NULL: nothing that is not. */
static const wefti_signal_t *still_lent(const wefti_run_t *run)
{
    bool last = run->slice.at + run->slice.elem_count >= run->total;
    const wefti_signal_t *own = &run->lent[run->number & 1].signal;
    const wefti_signal_t *former = &run->lent[(run->number + 1) & 1].signal;
    if (!is_back(former)) {
        return former;
    }
    return (last || run->settles_each) && !is_back(own) ? own : NULL;
}

static weft_status_t take_back(wefti_run_t *run, wefti_blocked_t *out)
{
    uint32_t tries = tries_of(run);
    const wefti_signal_t *lent;
    for (uint32_t i = 0; (lent = still_lent(run)) != NULL; i++) {
        if (i == tries) {
            out->signal = (wefti_signal_t *)(uintptr_t)lent;
            out->target = 0;
            return WEFT_IN_PROGRESS;
        }
        make_progress(run);
    }
    return WEFT_OK;
}

void wefti_run_settle(wefti_run_t *run)
{
    for (uint32_t i = 0; i < 2; i++) {
        while (!is_back(&run->lent[i].signal) && wefti_endpoint_owned(run->memory->endpoint)) {
            wefti_endpoint_progress(run->memory->endpoint);
            wefti_endpoint_yield_progress(run->memory->endpoint);
            wefti_futex_wait(&run->lent[i].signal.value,
                             atomic_load_explicit(&run->lent[i].signal.value, memory_order_relaxed),
                             SOURCE_WAIT_NS);
        }
    }
}

/* A lane that no rank waits for would fall behind by half the range of its counter. */
static void refresh_counters(wefti_run_t *run)
{
    wefti_run_counters_t *counters = run->memory->counters;
    for (uint32_t lane = 0; lane < counters->lanes; lane++) {
        if (counters->posted[lane] != counters->phase) {
            set_counter(run, lane, counters->phase);
        }
    }
}

static void end_run(wefti_run_t *run)
{
    wefti_run_counters_t *counters = run->memory->counters;
    uint32_t before = counters->phase;
    counters->phase += run->phases;
    if ((before ^ counters->phase) & ~(REFRESH_PHASES - 1)) {
        refresh_counters(run);
    }
    size_t count = (size_t)run->lanes * run->params.group_size;
    for (size_t i = 0; run->sent != NULL && i < count; i++) {
        counters->sent[i] += run->sent[i];
        counters->arrived[i] += run->arrived[i];
    }
    run->number++;
    run->slice.at += run->slice.elem_count;
}

weft_status_t wefti_run_advance(wefti_run_t *run, wefti_blocked_t *out_blocked)
{
    weft_status_t status;
    make_progress(run);
    for (;;) {
        status = run_lanes(run, out_blocked);
        status = status == WEFT_OK ? take_back(run, out_blocked) : status;
        if (status != WEFT_OK) {
            break;
        }
        uint64_t at = run->slice.at;
        end_run(run);
        if (run->call.hooks != NULL) {
            settle(run); /* hooks may wait */
            status = run->call.hooks->end(run->call.hooks, at, run->slice.elem_count);
        }
        if (status < 0 || run->slice.at >= run->total || (status = wefti_run_begin(run)) < 0) {
            break;
        }
    }
    if (run->unsettled != 0) {
        settle(run);
    }
    return status;
}

static bool lane_ready(const wefti_run_t *run, uint32_t lane)
{
    const wefti_run_lane_t *own = &run->lane[lane];
    const wefti_task_t *task = &run->tasks.tasks[own->at];
    const wefti_signal_t *signal = NULL;
    uint32_t target = 0;
    if (task->op == WEFTI_DO_WAIT) {
        signal = waited_for(run, lane, task, own->seen, &target);
    } else if (task->op == WEFTI_DO_AWAIT) {
        signal = awaited(run, task, &target);
    } else if (task->flags & WEFTI_STEP_AFTER_LENT) {
        signal = &run->lent[run->number & 1].signal;
    }
    return signal == NULL || wefti_signal_has_reached(signal, target);
}

bool wefti_run_ready(const wefti_run_t *run)
{
    bool ended = true;
    for (uint32_t lane = 0; lane < run->lanes; lane++) {
        if (run->lane[lane].at != run->lane[lane].end) {
            ended = false;
            if (lane_ready(run, lane)) {
                return true;
            }
        }
    }
    return ended && still_lent(run) == NULL;
}

bool wefti_run_late(const wefti_run_t *run, uint32_t ranks[WEFTI_MAX_LANES], uint32_t *out_count)
{
    *out_count = 0;
    for (uint32_t lane = 0; lane < run->lanes; lane++) {
        const wefti_run_lane_t *own = &run->lane[lane];
        const wefti_task_t *task = &run->tasks.tasks[own->at];
        if (own->at == own->end) {
            continue;
        }
        if (task->op != WEFTI_DO_WAIT && task->op != WEFTI_DO_AWAIT) {
            return false;
        }
        uint32_t rank =
            task->op == WEFTI_DO_WAIT ? waited_rank(run, task, own->seen) : task->signal.peer;
        ranks[(*out_count)++] = run->memory->ranks[rank];
    }
    return *out_count > 0;
}

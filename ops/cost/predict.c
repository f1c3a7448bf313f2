/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the tasks of all ranks on a clock: waits end when the post has travelled, moves take their
 * bytes' time. Between hosts data is put by whoever has it as soon as it was posted, and is on its
 * way while the reader does other things: reading waits until it is there.
 */
#include <string.h>

#include "ops/algo/placement.h"
#include "ops/cost/cost.h"
#include "runtime/base/error.h"

/* Of a network's alpha: for how long a message keeps the cards, and whoever serves them, busy. */
#define MESSAGE_SHARE (1.0 / 16)

typedef struct clocked {
    wefti_tasks_t tasks;
    uint32_t host;
    uint32_t at[WEFTI_MAX_LANES];
    double now[WEFTI_MAX_LANES];
    bool blocked[WEFTI_MAX_LANES];
    double busy;    /* until when the rank's processor is: lanes share it */
    double sent;    /* when what it put on other hosts is there, but for alpha */
    double *seen;   /* [rank]: when the last post that this one saw of it was made */
    double *posted; /* [lane * phases + phase - 1]: when, or -1 */
} clocked_t;

typedef struct clockwork {
    const wefti_costs_t *costs;
    const weft_algo_params_t *params;
    const wefti_counts_t *counts;
    weft_algo_resources_t resources;
    clocked_t *ranks;
    uint32_t wide_bytes;
    double *sends, *receives; /* [host]: until when its card is busy */
} clockwork_t;

static wefti_link_level_t level_of(const clockwork_t *c, uint32_t a, uint32_t b)
{
    if (a == b) {
        return WEFTI_LEVEL_SELF;
    }
    return c->ranks[a].host == c->ranks[b].host ? WEFTI_LEVEL_HOST : WEFTI_LEVEL_NET;
}

/* When the lane had reached phase, or -1: not yet. */
static double reached_at(const clockwork_t *c, uint32_t rank, uint32_t lane, uint32_t phase)
{
    const double *posted = c->ranks[rank].posted + (size_t)lane * c->resources.phases;
    for (uint32_t p = phase; p <= c->resources.phases; p++) {
        if (posted[p - 1] >= 0) {
            return posted[p - 1];
        }
    }
    return -1;
}

static bool run_wait(const clockwork_t *c, uint32_t rank, uint32_t lane, const wefti_task_t *task,
                     double *now)
{
    if (task->wait.back > 0) {
        return true;
    }
    double latest = *now;
    for (uint32_t i = 0; i < task->wait.rank_count; i++) {
        uint32_t peer = task->wait.first_rank + i;
        if (peer == rank && task->wait.lane == lane) {
            continue;
        }
        double when = reached_at(c, peer, task->wait.lane, task->wait.phase);
        if (when < 0) {
            return false;
        }
        double *seen = &c->ranks[rank].seen[peer];
        *seen = when > *seen ? when : *seen;
        when += c->costs->level[level_of(c, rank, peer)].alpha_ns;
        latest = when > latest ? when : latest;
    }
    *now = latest + c->costs->step_ns * task->wait.rank_count;
    return true;
}

/* When a transfer between hosts that could begin at `from_ns` is through. What a card sends and
 * what it receives goes one after the other, and neither waits for what the other end is busy with.
 */
static double cross(const clockwork_t *c, uint32_t from, uint32_t to, double from_ns, double bytes)
{
    const wefti_link_cost_t *net = &c->costs->level[WEFTI_LEVEL_NET];
    double *out = &c->sends[c->ranks[from].host], *in = &c->receives[c->ranks[to].host];
    double ns = bytes * net->beta_ns_per_byte + net->alpha_ns * MESSAGE_SHARE;
    *out = (from_ns > *out ? from_ns : *out) + ns;
    *in = (from_ns > *in ? from_ns : *in) + ns;
    return *out > *in ? *out : *in;
}

/* How long this rank waits at `now` for what another host's puts here. */
static double read_ns(const clockwork_t *c, uint32_t rank, uint32_t other, double now, double bytes)
{
    double there = cross(c, other, rank, c->ranks[rank].seen[other], bytes) +
                   c->costs->level[WEFTI_LEVEL_NET].alpha_ns;
    return there > now ? there - now : 0;
}

/* *out_card: how much of it is waiting for the network. */
static double move_ns(const clockwork_t *c, uint32_t rank, const wefti_task_t *task, double now,
                      double *out_card)
{
    const wefti_extent_t *ranges = c->ranks[rank].tasks.ranges + task->range;
    double ns = c->costs->step_ns;
    for (uint32_t i = 0; i < task->source_count + (uint32_t)task->destination_count; i++) {
        bool wide = ranges[i].buffer == WEFTI_SCRATCH && task->op == WEFTI_DO_REDUCE;
        bool source = i < task->source_count;
        double bytes = (double)task->elem_count * (wide ? c->wide_bytes : c->counts->elem_bytes);
        for (uint32_t r = 0; r < ranges[i].rank_count; r++) {
            uint32_t other = ranges[i].rank + r;
            wefti_link_level_t level = level_of(c, rank, other);
            if (level == WEFTI_LEVEL_NET && source) {
                double card = read_ns(c, rank, other, now + ns, bytes);
                ns += card;
                *out_card += card;
            } else if (level == WEFTI_LEVEL_NET) {
                c->ranks[rank].sent = cross(c, rank, other, now + ns, bytes);
            } else {
                ns += bytes * c->costs->level[level].beta_ns_per_byte;
            }
        }
        if (source && task->op == WEFTI_DO_REDUCE) {
            ns += bytes * ranges[i].rank_count * c->costs->gamma_ns_per_byte;
        }
    }
    return ns;
}

static void unblock_all(const clockwork_t *c)
{
    for (uint32_t rank = 0; rank < c->params->group_size; rank++) {
        memset(c->ranks[rank].blocked, 0, sizeof c->ranks[rank].blocked);
    }
}

/* Runs one task of a lane, or finds that it has to wait. */
static void run_one(const clockwork_t *c, uint32_t rank, uint32_t lane)
{
    clocked_t *own = &c->ranks[rank];
    const wefti_task_t *task = &own->tasks.tasks[own->at[lane]];
    if (task->op == WEFTI_DO_WAIT) {
        if (!run_wait(c, rank, lane, task, &own->now[lane])) {
            own->blocked[lane] = true;
            return;
        }
    } else if (task->op == WEFTI_DO_POST) {
        own->now[lane] += c->costs->step_ns;
        own->posted[(size_t)lane * c->resources.phases + task->phase - 1] =
            own->now[lane] > own->sent ? own->now[lane] : own->sent;
        unblock_all(c);
    } else {
        double begin = own->now[lane] > own->busy ? own->now[lane] : own->busy, card = 0;
        own->now[lane] = begin + move_ns(c, rank, task, begin, &card);
        own->busy = own->now[lane] - card;
    }
    own->at[lane]++;
}

/* The lane furthest behind that may go on; whether lanes are left at all in *out_left. */
static bool find_lane(const clockwork_t *c, uint32_t *out_rank, uint32_t *out_lane, bool *out_left)
{
    bool found = false;
    double earliest = 0;
    *out_left = false;
    for (uint32_t rank = 0; rank < c->params->group_size; rank++) {
        const clocked_t *own = &c->ranks[rank];
        for (uint32_t lane = 0; lane < c->resources.lanes; lane++) {
            bool ended = own->at[lane] == own->tasks.lane_begin[lane + 1];
            *out_left = *out_left || !ended;
            if (!ended && !own->blocked[lane] && (!found || own->now[lane] < earliest)) {
                found = true;
                earliest = own->now[lane];
                *out_rank = rank;
                *out_lane = lane;
            }
        }
    }
    return found;
}

static weft_status_t run_all(const clockwork_t *c, double *out_ns)
{
    uint32_t n = c->params->group_size, at_rank = 0, at_lane = 0;
    bool left;
    while (find_lane(c, &at_rank, &at_lane, &left)) {
        run_one(c, at_rank, at_lane);
    }
    if (left) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the schedule waits for ever");
    }
    *out_ns = 0;
    for (uint32_t rank = 0; rank < n; rank++) {
        for (uint32_t lane = 0; lane < c->resources.lanes; lane++) {
            *out_ns = c->ranks[rank].now[lane] > *out_ns ? c->ranks[rank].now[lane] : *out_ns;
        }
    }
    return WEFT_OK;
}

static weft_status_t prepare(clockwork_t *c, const wefti_schedule_t *schedules,
                             const weft_allocator_t *allocator)
{
    uint32_t n = c->params->group_size;
    c->resources = schedules[0].resources;
    size_t slots = (size_t)c->resources.lanes * (c->resources.phases + 1);
    weft_status_t status = WEFT_OK;
    for (uint32_t rank = 0; rank < n && status >= 0; rank++) {
        clocked_t *own = &c->ranks[rank];
        own->host = wefti_placement_host_of(c->params, rank);
        own->posted = wefti_alloc(allocator, slots * sizeof *own->posted);
        own->seen = wefti_alloc(allocator, n * sizeof *own->seen);
        if (own->posted == NULL || own->seen == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (size_t i = 0; i < slots; i++) {
            own->posted[i] = -1;
        }
        status =
            wefti_schedule_resolve(c->params, &schedules[rank], c->counts, allocator, &own->tasks);
        for (uint32_t lane = 0; lane < c->resources.lanes && status >= 0; lane++) {
            own->at[lane] = own->tasks.lane_begin[lane];
        }
    }
    return status;
}

weft_status_t wefti_cost_predict(const wefti_costs_t *costs, const weft_algorithm_t *algorithm,
                                 const weft_algo_params_t *params, const wefti_counts_t *counts,
                                 double *out_ns)
{
    const weft_allocator_t *allocator = costs->allocator;
    clockwork_t c = {.costs = costs, .params = params, .counts = counts};
    wefti_schedule_t *schedules;
    weft_status_t status = wefti_schedules_build(algorithm, params, allocator, &schedules);
    if (status < 0) {
        return status;
    }
    size_t hosts = wefti_placement_hosts(params);
    c.wide_bytes = counts->elem_bytes < 4 ? 4 : counts->elem_bytes;
    c.ranks = wefti_alloc(allocator, params->group_size * sizeof *c.ranks);
    c.sends = wefti_alloc(allocator, hosts * sizeof *c.sends);
    c.receives = wefti_alloc(allocator, hosts * sizeof *c.receives);
    bool room = c.ranks != NULL && c.sends != NULL && c.receives != NULL;
    status = room ? prepare(&c, schedules, allocator) : WEFT_ERR_NO_MEMORY;
    if (status >= 0) {
        status = run_all(&c, out_ns);
    }
    for (uint32_t rank = 0; c.ranks != NULL && rank < params->group_size; rank++) {
        wefti_tasks_deinit(&c.ranks[rank].tasks);
        wefti_free(allocator, c.ranks[rank].posted);
        wefti_free(allocator, c.ranks[rank].seen);
    }
    wefti_free(allocator, c.ranks);
    wefti_free(allocator, c.sends);
    wefti_free(allocator, c.receives);
    wefti_schedules_free(allocator, schedules, params->group_size);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One collective on a clock, event by event. A class of ranks is simulated by its lowest rank; what
 * that waits for and reads is the same of the class of the peer. Between hosts data is on its way
 * from when its owner has posted it (as the runtime puts it); a step waits until it is there.
 */
#include "fusion/simulate/simulate.h"

#include <math.h>
#include <string.h>

#include "ops/algo/table.h"
#include "runtime/base/error.h"

#define FEW_RANKS 1024u          /* of an operand or wait, to look at each */
#define MESSAGE_SHARE (1.0 / 16) /* of alpha: how long a message keeps a NIC busy, as predict.c */
#define MOST_STEPS ((uint64_t)1 << 25)
#define NOTHING UINT32_MAX
/* Of a change of processes on a core. Calls of 1 KiB of 2, 4 and 8 ranks on two cores take 0.9, 5.4
 * and 12.4 us (weft bench). */
#define SWITCH_NS 2000.0

typedef enum lane_state {
    LANE_READY,   /* the step at `at` begins */
    LANE_POSTING, /* publishes when it goes on */
    LANE_WAITING, /* for posts */
    LANE_QUEUED,  /* for the rank's processor */
    LANE_MOVING,  /* has the processor */
    LANE_AWAITS,  /* data of other hosts */
    LANE_FLUSHES, /* what it put on other hosts is to land before a post */
    LANE_DONE,
} lane_state_t;

typedef struct lane {
    lane_state_t state;
    uint32_t at, end, missing, stage;
    double wake;
    double shared[WEFTI_TOPO_RACK]; /* bytes that this step moves through links of the host */
    uint32_t flow;                  /* of moves through them */
} lane_t;

typedef struct actor {
    uint32_t rank; /* of the world */
    wefti_schedule_t schedule;
    lane_t lanes[WEFTI_MAX_LANES];
    uint32_t *first_in; /* [step + 1]: flows that a step reads */
    uint32_t owner;     /* the lane that has the processor, or NOTHING */
    uint32_t outgoing;
    double end_ns;
} actor_t;

typedef enum flow_role { FLOW_LOCAL, FLOW_IN, FLOW_OUT } flow_role_t;

/* What the caller knows of a flow. */
typedef struct cargo {
    flow_role_t role;
    uint32_t actor, lane, step;
    bool begun, ended, waited;
    double bytes, latency_ns, there_ns;
} cargo_t;

/* Who goes on once a lane has posted a phase. */
typedef struct waiter {
    uint32_t next; /* + 1 */
    uint32_t actor, lane, flow;
    double latency_ns;
} waiter_t;

typedef struct event {
    double ns;
    uint32_t actor, lane;
    uint64_t seq;
} event_t;

typedef struct run {
    sim_world_t *world;
    const sim_call_t *call;
    const sim_division_t *division;
    actor_t *actors;
    uint32_t phases, lanes;
    double *posted;  /* [(actor * lanes + lane) * phases + phase - 1], -1: not yet */
    uint32_t *heads; /* likewise: waiter + 1 */
    waiter_t *waiters;
    size_t waiter_count, waiter_capacity;
    cargo_t *cargo;
    size_t flow_count, cargo_capacity, flow_capacity;
    sim_flows_t flows;
    uint32_t *link_of[SIM_KINDS]; /* [part] */
    double *here[SIM_KINDS];      /* [class]: members on the same link as the lowest one */
    event_t *events;              /* a heap */
    size_t event_count, event_capacity;
    uint64_t seq;
    double now_ns;
    uint32_t wide_bytes;
} run_t;

static bool sooner(const event_t *a, const event_t *b)
{
    return a->ns < b->ns || (a->ns == b->ns && a->seq < b->seq);
}

static weft_status_t push(run_t *run, double ns, uint32_t actor, uint32_t lane)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &run->events, &run->event_capacity,
                                             run->event_count + 1, sizeof *run->events));
    event_t event = {ns, actor, lane, run->seq++};
    size_t at = run->event_count++;
    for (; at > 0 && sooner(&event, &run->events[(at - 1) / 2]); at = (at - 1) / 2) {
        run->events[at] = run->events[(at - 1) / 2];
    }
    run->events[at] = event;
    return WEFT_OK;
}

static event_t pop(run_t *run)
{
    event_t top = run->events[0], last = run->events[--run->event_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < run->event_count) {
        child +=
            child + 1 < run->event_count && sooner(&run->events[child + 1], &run->events[child]);
        if (!sooner(&run->events[child], &last)) {
            break;
        }
        run->events[at] = run->events[child];
        at = child;
    }
    run->events[at] = last;
    return top;
}

static size_t slot(const run_t *run, uint32_t actor, uint32_t lane, uint32_t phase)
{
    return ((size_t)actor * run->lanes + lane) * run->phases + phase - 1;
}

static bool crosses(sim_distance_t distance)
{
    return distance == SIM_IN_RACK || distance == SIM_APART;
}

/* The link of a rank; readers: the class of those who read or write like the actor. */
static void add_hop(const run_t *run, sim_flow_t *flow, uint32_t readers, sim_kind_t kind,
                    uint32_t rank)
{
    const sim_division_t *division = run->division;
    uint32_t part = run->world->part[kind][rank], own = division->class_of[rank];
    if (run->world->rate[kind][part] > 0) {
        double weight = run->here[kind][own] * division->size[readers] / division->size[own];
        flow->hops[flow->hop_count++] = (sim_hop_t){run->link_of[kind][part], weight};
    }
}

static weft_status_t add_flow(run_t *run, const cargo_t *cargo, const sim_flow_t *flow)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &run->cargo, &run->cargo_capacity,
                                             run->flow_count + 1, sizeof *run->cargo));
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &run->flows.flows, &run->flow_capacity,
                                             run->flow_count + 1, sizeof *run->flows.flows));
    run->cargo[run->flow_count] = *cargo;
    run->flows.flows[run->flow_count++] = *flow;
    return WEFT_OK;
}

/* Between hosts, over NICs and racks' uplinks. */
static weft_status_t add_crossing(run_t *run, cargo_t cargo, uint32_t from, uint32_t to)
{
    const sim_world_t *w = run->world;
    double rate = w->rate[SIM_NIC_IN][w->part[SIM_NIC_IN][to]];
    double latency_ns = wefti_sim_latency_ns(w, from, to), message_ns = latency_ns * MESSAGE_SHARE;
    sim_flow_t flow = {.bytes = cargo.bytes + message_ns * rate};
    add_hop(run, &flow, cargo.actor, SIM_NIC_OUT, from);
    add_hop(run, &flow, cargo.actor, SIM_NIC_IN, to);
    if (w->part[SIM_RACK_UP][from] != w->part[SIM_RACK_UP][to]) {
        add_hop(run, &flow, cargo.actor, SIM_RACK_UP, from);
        add_hop(run, &flow, cargo.actor, SIM_RACK_DOWN, to);
    }
    if (w->pair_links) {
        wefti_topo_link_t link = wefti_cluster_link(w->cluster, w->cluster->ranks[from].host,
                                                    w->cluster->ranks[to].host);
        flow.most = (double)link.bits_per_s / 8e9;
    }
    cargo.latency_ns = latency_ns;
    return add_flow(run, &cargo, &flow);
}

static weft_status_t add_waiter(run_t *run, size_t at, waiter_t waiter)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &run->waiters, &run->waiter_capacity,
                                             run->waiter_count + 1, sizeof *run->waiters));
    if (run->waiter_count >= UINT32_MAX - 1) {
        return WEFT_ERR_NO_MEMORY;
    }
    waiter.next = run->heads[at];
    run->waiters[run->waiter_count] = waiter;
    run->heads[at] = (uint32_t)++run->waiter_count;
    return WEFT_OK;
}

const wefti_step_t *wefti_sim_wait_before(const wefti_schedule_t *schedule, size_t index,
                                          uint32_t peer)
{
    uint32_t lane = schedule->steps[index].lane;
    while (index-- > schedule->lane_begin[lane]) {
        const wefti_step_t *step = &schedule->steps[index];
        if (step->op == WEFTI_DO_WAIT && step->wait.back == 0 &&
            peer - step->wait.first_rank < step->wait.rank_count) {
            return step;
        }
    }
    return NULL;
}

/* Data of another host that a step reads: on its way once its owner has posted it. */
static weft_status_t add_incoming(run_t *run, uint32_t actor, uint32_t step, uint32_t peer,
                                  uint32_t from, double bytes)
{
    const actor_t *own = &run->actors[actor];
    const wefti_schedule_t *schedule = &own->schedule;
    cargo_t cargo = {.role = FLOW_IN,
                     .actor = actor,
                     .lane = schedule->steps[step].lane,
                     .step = step,
                     .bytes = bytes};
    WEFT_RETURN_IF_ERROR(add_crossing(run, cargo, from, own->rank));
    const wefti_step_t *wait = wefti_sim_wait_before(schedule, step, peer);
    if (wait == NULL) {
        return WEFT_OK; /* begins with the step */
    }
    run->cargo[run->flow_count - 1].waited = true;
    uint32_t other = run->division->class_of[from];
    return add_waiter(run, slot(run, other, wait->wait.lane, wait->wait.phase),
                      (waiter_t){.flow = (uint32_t)run->flow_count});
}

static double operand_bytes(const run_t *run, const wefti_step_t *step, const wefti_operand_t *at,
                            double bytes)
{
    bool wide = at->buffer == WEFTI_SCRATCH && step->op == WEFTI_DO_REDUCE;
    return wide ? bytes / run->call->counts.elem_bytes * run->wide_bytes : bytes;
}

/* How many of the ranks are on other hosts; the first of them in *out_first. */
static uint32_t count_far(const run_t *run, uint32_t rank, const wefti_operand_t *at,
                          uint32_t *out_first)
{
    const sim_world_t *w = run->world;
    uint32_t far = 0;
    for (uint32_t i = 0; i < at->rank_count; i++) {
        uint32_t peer = wefti_sim_member(run->call, rank, at->rank + i);
        if (w->host_of[peer] != w->host_of[rank]) {
            *out_first = far++ == 0 ? at->rank + i : *out_first;
        }
    }
    return far;
}

static weft_status_t find_incoming(run_t *run, uint32_t actor, uint32_t index)
{
    const actor_t *own = &run->actors[actor];
    const wefti_step_t *step = &own->schedule.steps[index];
    double bytes = wefti_sim_block_bytes(run->call, &own->schedule, step->move.first,
                                         step->move.step, step->move.count);
    for (uint32_t i = 0; i < step->move.source_count && bytes > 0; i++) {
        const wefti_operand_t *at = &own->schedule.operands[step->move.operand + i];
        double each = operand_bytes(run, step, at, bytes);
        if (at->rank_count > FEW_RANKS) { /* from everybody, who reads as much from this host */
            uint32_t first = 0, far = count_far(run, own->rank, at, &first);
            if (far > 0) {
                WEFT_RETURN_IF_ERROR(add_incoming(run, actor, index, first,
                                                  wefti_sim_member(run->call, own->rank, first),
                                                  each * far));
            }
            continue;
        }
        for (uint32_t r = 0; r < at->rank_count; r++) {
            uint32_t peer = wefti_sim_member(run->call, own->rank, at->rank + r);
            if (crosses(wefti_sim_distance(run->world, own->rank, peer))) {
                WEFT_RETURN_IF_ERROR(add_incoming(run, actor, index, at->rank + r, peer, each));
            }
        }
    }
    return WEFT_OK;
}

/* ---- lanes ---- */

static weft_status_t go_on(run_t *run, uint32_t actor, uint32_t lane);

static weft_status_t begin_flow(run_t *run, uint32_t flow)
{
    cargo_t *cargo = &run->cargo[flow];
    if (cargo->begun) {
        return WEFT_OK;
    }
    cargo->begun = true;
    return wefti_sim_flow_begin(&run->flows, flow);
}

static weft_status_t publish(run_t *run, uint32_t actor, uint32_t lane, uint32_t phase)
{
    for (; phase > 0; phase--) {
        size_t at = slot(run, actor, lane, phase);
        if (run->posted[at] >= 0) {
            break;
        }
        run->posted[at] = run->now_ns;
        for (uint32_t i = run->heads[at]; i != 0; i = run->waiters[i - 1].next) {
            const waiter_t *waiter = &run->waiters[i - 1];
            if (waiter->flow != 0) {
                WEFT_RETURN_IF_ERROR(begin_flow(run, waiter->flow - 1));
                continue;
            }
            lane_t *other = &run->actors[waiter->actor].lanes[waiter->lane];
            other->wake = fmax(other->wake, run->now_ns + waiter->latency_ns);
            if (--other->missing == 0) {
                WEFT_RETURN_IF_ERROR(push(run, other->wake, waiter->actor, waiter->lane));
            }
        }
        run->heads[at] = 0;
    }
    return WEFT_OK;
}

static weft_status_t wait_for(run_t *run, uint32_t actor, uint32_t lane, uint32_t other,
                              double latency_ns)
{
    actor_t *own = &run->actors[actor];
    lane_t *at = &own->lanes[lane];
    const wefti_step_t *step = &own->schedule.steps[at->at];
    size_t where = slot(run, other, step->wait.lane, step->wait.phase);
    if (run->posted[where] >= 0) {
        at->wake = fmax(at->wake, run->posted[where] + latency_ns);
        return WEFT_OK;
    }
    at->missing++;
    return add_waiter(run, where,
                      (waiter_t){.actor = actor, .lane = lane, .latency_ns = latency_ns});
}

/* Until a rank that has waited is on its core again, the other ranks of the core have had a turn. */
static double turns_ns(const sim_world_t *w, uint32_t rank)
{
    return (w->on_core[w->part[SIM_CORE][rank]] - 1) * SWITCH_NS;
}

static weft_status_t begin_wait(run_t *run, uint32_t actor, uint32_t lane)
{
    const sim_world_t *w = run->world;
    actor_t *own = &run->actors[actor];
    lane_t *at = &own->lanes[lane];
    const wefti_step_t *step = &own->schedule.steps[at->at];
    at->state = LANE_WAITING;
    at->missing = 0;
    at->wake = run->now_ns;
    bool few = step->wait.rank_count <= FEW_RANKS;
    uint32_t count = few ? step->wait.rank_count : run->division->count;
    for (uint32_t i = 0; i < count && step->wait.back == 0; i++) {
        uint32_t peer = few ? wefti_sim_member(run->call, own->rank, step->wait.first_rank + i)
                            : run->division->first[i];
        uint32_t other = run->division->class_of[peer];
        double latency_ns = wefti_sim_latency_ns(w, own->rank, peer);
        if (peer == own->rank && step->wait.lane == lane) {
            continue;
        }
        if (!few && w->hosts > 1) { /* of each class there is somebody far away */
            latency_ns = w->latency_ns[w->part_count[SIM_RACK_UP] > 1 ? SIM_APART : SIM_IN_RACK];
        }
        WEFT_RETURN_IF_ERROR(
            wait_for(run, actor, lane, other, latency_ns + turns_ns(w, own->rank)));
    }
    return at->missing == 0 ? push(run, at->wake, actor, lane) : WEFT_OK;
}

/* Adds what a move through one operand takes to the lane's stages; writes to other hosts begin. */
static weft_status_t add_operand(run_t *run, uint32_t actor, uint32_t lane,
                                 const wefti_operand_t *at, double bytes, bool source,
                                 double *inout_ns)
{
    sim_world_t *w = run->world;
    actor_t *own = &run->actors[actor];
    uint32_t few = at->rank_count < FEW_RANKS ? at->rank_count : FEW_RANKS;
    for (uint32_t r = 0; r < at->rank_count; r++) {
        uint32_t peer = wefti_sim_member(run->call, own->rank, at->rank + r);
        sim_distance_t distance = wefti_sim_distance(w, own->rank, peer);
        if (distance == SIM_SELF) {
            *inout_ns += bytes * w->costs->level[WEFTI_LEVEL_SELF].beta_ns_per_byte;
        } else if (!crosses(distance)) {
            if (w->rate[distance][w->part[distance][own->rank]] > 0) {
                own->lanes[lane].shared[distance] += bytes;
            } else {
                *inout_ns += bytes * w->costs->level[WEFTI_LEVEL_HOST].beta_ns_per_byte;
            }
        } else if (!source && r < few) {
            cargo_t cargo = {.role = FLOW_OUT, .actor = actor, .lane = lane, .bytes = bytes};
            WEFT_RETURN_IF_ERROR(add_crossing(run, cargo, own->rank, peer));
            own->outgoing++;
            WEFT_RETURN_IF_ERROR(begin_flow(run, (uint32_t)run->flow_count - 1));
        }
    }
    return WEFT_OK;
}

/* Work of the rank's processor. Those that are bound to one core get equal shares of it. */
static weft_status_t compute(run_t *run, uint32_t actor, uint32_t lane, double ns)
{
    sim_flow_t flow = {.bytes = ns};
    add_hop(run, &flow, actor, SIM_CORE, run->actors[actor].rank);
    if (flow.hop_count == 0) {
        return push(run, run->now_ns + ns, actor, lane);
    }
    cargo_t cargo = {.role = FLOW_LOCAL, .actor = actor, .lane = lane, .bytes = ns};
    WEFT_RETURN_IF_ERROR(add_flow(run, &cargo, &flow));
    return begin_flow(run, (uint32_t)run->flow_count - 1);
}

static weft_status_t begin_move(run_t *run, uint32_t actor, uint32_t lane)
{
    const wefti_costs_t *costs = run->world->costs;
    actor_t *own = &run->actors[actor];
    lane_t *at = &own->lanes[lane];
    const wefti_step_t *step = &own->schedule.steps[at->at];
    double bytes = wefti_sim_block_bytes(run->call, &own->schedule, step->move.first,
                                         step->move.step, step->move.count);
    if (bytes <= 0) {
        at->at++;
        return push(run, run->now_ns, actor, lane);
    }
    if (own->owner != NOTHING) {
        at->state = LANE_QUEUED;
        return WEFT_OK;
    }
    own->owner = lane;
    at->state = LANE_MOVING;
    at->stage = 0;
    memset(at->shared, 0, sizeof at->shared);
    double ns = costs->step_ns;
    uint32_t operands = (uint32_t)step->move.source_count + step->move.destination_count;
    for (uint32_t i = 0; i < operands; i++) {
        const wefti_operand_t *operand = &own->schedule.operands[step->move.operand + i];
        bool source = i < step->move.source_count;
        double each = operand_bytes(run, step, operand, bytes);
        WEFT_RETURN_IF_ERROR(add_operand(run, actor, lane, operand, each, source, &ns));
        if (source && step->op == WEFTI_DO_REDUCE) {
            ns += each * operand->rank_count * costs->gamma_ns_per_byte;
        }
    }
    for (uint32_t f = own->first_in[at->at]; f < own->first_in[at->at + 1]; f++) {
        if (!run->cargo[f].waited) {
            WEFT_RETURN_IF_ERROR(begin_flow(run, f));
        }
    }
    return compute(run, actor, lane, ns);
}

/* The next link of the host that the step moves bytes through, if there is one. */
static weft_status_t move_on(run_t *run, uint32_t actor, uint32_t lane, bool *out_more)
{
    actor_t *own = &run->actors[actor];
    lane_t *at = &own->lanes[lane];
    while (at->stage < WEFTI_TOPO_RACK && at->shared[at->stage] <= 0) {
        at->stage++;
    }
    *out_more = at->stage < WEFTI_TOPO_RACK;
    if (!*out_more) {
        return WEFT_OK;
    }
    double bytes = at->shared[at->stage];
    sim_flow_t flow = {.bytes = bytes,
                       .most = 1 / run->world->costs->level[WEFTI_LEVEL_HOST].beta_ns_per_byte};
    add_hop(run, &flow, actor, (sim_kind_t)at->stage, own->rank);
    cargo_t cargo = {.role = FLOW_LOCAL, .actor = actor, .lane = lane, .bytes = bytes};
    at->stage++;
    WEFT_RETURN_IF_ERROR(add_flow(run, &cargo, &flow));
    return begin_flow(run, (uint32_t)run->flow_count - 1);
}

/* The processor is free; the step ends when data of other hosts is there. */
static weft_status_t await_data(run_t *run, uint32_t actor, uint32_t lane)
{
    actor_t *own = &run->actors[actor];
    lane_t *at = &own->lanes[lane];
    own->owner = NOTHING;
    at->state = LANE_AWAITS;
    at->missing = 0;
    at->wake = run->now_ns;
    for (uint32_t f = own->first_in[at->at]; f < own->first_in[at->at + 1]; f++) {
        at->missing += !run->cargo[f].ended;
        at->wake = run->cargo[f].ended ? fmax(at->wake, run->cargo[f].there_ns) : at->wake;
    }
    for (uint32_t other = 0; other < run->lanes; other++) {
        if (own->lanes[other].state == LANE_QUEUED && own->owner == NOTHING) {
            own->lanes[other].state = LANE_READY;
            WEFT_RETURN_IF_ERROR(begin_move(run, actor, other));
        }
    }
    return at->missing == 0 ? push(run, at->wake, actor, lane) : WEFT_OK;
}

static weft_status_t begin_step(run_t *run, uint32_t actor, uint32_t lane)
{
    actor_t *own = &run->actors[actor];
    lane_t *at = &own->lanes[lane];
    at->state = LANE_READY;
    if (at->at == at->end) {
        at->state = LANE_DONE;
        own->end_ns = fmax(own->end_ns, run->now_ns);
        return WEFT_OK;
    }
    switch (own->schedule.steps[at->at].op) {
    case WEFTI_DO_POST:
        at->state = own->outgoing > 0 ? LANE_FLUSHES : LANE_POSTING;
        return own->outgoing > 0 ? WEFT_OK
                                 : push(run, run->now_ns + run->world->costs->step_ns, actor, lane);
    case WEFTI_DO_WAIT:
        return begin_wait(run, actor, lane);
    default:
        return begin_move(run, actor, lane);
    }
}

static weft_status_t go_on(run_t *run, uint32_t actor, uint32_t lane)
{
    actor_t *own = &run->actors[actor];
    lane_t *at = &own->lanes[lane];
    const wefti_step_t *step = &own->schedule.steps[at->at];
    bool more = false;
    switch (at->state) {
    case LANE_POSTING:
        WEFT_RETURN_IF_ERROR(publish(run, actor, lane, step->post.phase));
        break;
    case LANE_WAITING: /* then looks at every counter */
        at->state = LANE_READY;
        at->at++;
        return push(run, run->now_ns + run->world->costs->step_ns * step->wait.rank_count, actor,
                    lane);
    case LANE_MOVING:
        WEFT_RETURN_IF_ERROR(move_on(run, actor, lane, &more));
        return more ? WEFT_OK : await_data(run, actor, lane);
    case LANE_AWAITS:
        break;
    default:
        return begin_step(run, actor, lane);
    }
    at->at++;
    return begin_step(run, actor, lane);
}

static weft_status_t flow_ended(void *user, uint32_t flow)
{
    run_t *run = user;
    cargo_t *cargo = &run->cargo[flow];
    actor_t *own = &run->actors[cargo->actor];
    lane_t *at = &own->lanes[cargo->lane];
    cargo->ended = true;
    cargo->there_ns = run->now_ns + cargo->latency_ns;
    if (cargo->role == FLOW_LOCAL) {
        return push(run, run->now_ns, cargo->actor, cargo->lane);
    }
    if (cargo->role == FLOW_OUT) {
        own->outgoing--;
        for (uint32_t lane = 0; lane < run->lanes && own->outgoing == 0; lane++) {
            if (own->lanes[lane].state == LANE_FLUSHES) {
                own->lanes[lane].state = LANE_READY;
                WEFT_RETURN_IF_ERROR(push(run, run->now_ns, cargo->actor, lane));
            }
        }
        return WEFT_OK;
    }
    if (at->state == LANE_AWAITS && at->at == cargo->step) {
        at->wake = fmax(at->wake, cargo->there_ns);
        if (--at->missing == 0) {
            return push(run, at->wake, cargo->actor, cargo->lane);
        }
    }
    return WEFT_OK;
}

static weft_status_t run_clock(run_t *run)
{
    for (;;) {
        double flows = wefti_sim_flows_next(&run->flows, run->now_ns);
        double events = run->event_count > 0 ? run->events[0].ns : INFINITY;
        double next = fmin(flows, events);
        if (isinf(next)) {
            return WEFT_OK;
        }
        next = fmax(next, run->now_ns);
        double before = run->now_ns;
        run->now_ns = next;
        WEFT_RETURN_IF_ERROR(wefti_sim_flows_advance(&run->flows, before, next, flow_ended, run));
        while (run->event_count > 0 && run->events[0].ns <= next) {
            event_t event = pop(run);
            WEFT_RETURN_IF_ERROR(go_on(run, event.actor, event.lane));
        }
    }
}

/* ---- preparation ---- */

static uint64_t scramble(uint64_t value)
{
    value = (value + 1) * 0x9e3779b97f4a7c15u;
    return (value ^ value >> 29) * 0xbf58476d1ce4e5b9u;
}

/* Links that serve the same classes are one, which stands for all of them. */
static weft_status_t merge_links(run_t *run)
{
    const sim_world_t *w = run->world;
    uint32_t links = 0;
    uint64_t *hash = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof *hash);
    run->flows.rates = wefti_alloc(NULL, SIM_KINDS * (w->ranks + 1ul) * sizeof *run->flows.rates);
    run->flows.loads = wefti_alloc(NULL, SIM_KINDS * (w->ranks + 1ul) * sizeof *run->flows.loads);
    run->flows.spare = wefti_alloc(NULL, SIM_KINDS * (w->ranks + 1ul) * sizeof *run->flows.spare);
    size_t buckets = 2;
    while (buckets < 4ul * w->ranks) {
        buckets *= 2;
    }
    uint32_t *table = wefti_alloc(NULL, buckets * sizeof *table); /* link + 1 */
    uint64_t *keys = wefti_alloc(NULL, SIM_KINDS * (w->ranks + 1ul) * sizeof *keys);
    bool room = hash != NULL && run->flows.rates != NULL && run->flows.loads != NULL &&
                run->flows.spare != NULL && table != NULL && keys != NULL;
    for (uint32_t kind = 0; kind < SIM_KINDS && room; kind++) {
        uint32_t count = w->part_count[kind];
        run->link_of[kind] = wefti_alloc(NULL, (count + 1ul) * sizeof *run->link_of[kind]);
        run->here[kind] = wefti_alloc(NULL, (run->division->count + 1ul) * sizeof **run->here);
        room = run->link_of[kind] != NULL && run->here[kind] != NULL;
        if (!room) {
            break;
        }
        memset(hash, 0, count * sizeof *hash);
        memset(table, 0, buckets * sizeof *table);
        for (uint32_t r = 0; r < w->ranks; r++) {
            uint32_t own = run->division->class_of[r];
            hash[w->part[kind][r]] += scramble(own);
            run->here[kind][own] += w->part[kind][r] == w->part[kind][run->division->first[own]];
        }
        for (uint32_t part = 0; part < count; part++) {
            uint64_t rate_bits;
            memcpy(&rate_bits, &w->rate[kind][part], sizeof rate_bits);
            uint64_t key = hash[part] ^ scramble(rate_bits ^ kind);
            size_t at = key & (buckets - 1);
            while (table[at] != 0 && keys[table[at] - 1] != key) {
                at = (at + 1) & (buckets - 1);
            }
            if (table[at] == 0) {
                keys[links] = key;
                run->flows.rates[links] = w->rate[kind][part];
                table[at] = ++links;
            }
            run->link_of[kind][part] = table[at] - 1;
        }
    }
    run->flows.link_count = links;
    wefti_free(NULL, hash);
    wefti_free(NULL, table);
    wefti_free(NULL, keys);
    return room ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static bool are_built(const run_t *run, const sim_schedules_t *known)
{
    const weft_algo_params_t *a = &known->params, *b = &run->call->params;
    return known->list != NULL && known->algorithm == run->call->algorithm &&
           a->group_size == b->group_size && a->root == b->root && a->in_place == b->in_place &&
           a->order == b->order && a->order_size_count == b->order_size_count &&
           b->order_sizes == NULL && known->stride == run->call->stride &&
           known->count == run->division->count &&
           memcmp(known->rank_of, run->division->first, known->count * sizeof *known->rank_of) == 0;
}

static weft_status_t build_classes(const run_t *run, const wefti_rank_numbers_t *numbers,
                                   sim_schedules_t *out)
{
    uint32_t count = run->division->count;
    uint64_t steps = 0;
    for (; out->count < count; out->count++) {
        weft_algo_params_t params = run->call->params;
        out->rank_of[out->count] = run->division->first[out->count];
        params.rank = wefti_sim_group_rank(run->call, out->rank_of[out->count]);
        WEFT_RETURN_IF_ERROR(wefti_schedule_build_numbered(run->call->algorithm, &params, numbers,
                                                           NULL, &out->list[out->count]));
        steps += out->list[out->count].step_count;
        if (steps > MOST_STEPS) {
            out->count++;
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "algorithm %s on %u ranks: too many steps to simulate: more than "
                               "%llu in %u classes of ranks",
                               run->call->algorithm->name, params.group_size,
                               (unsigned long long)MOST_STEPS, count);
        }
    }
    return WEFT_OK;
}

static weft_status_t build_schedules(run_t *run)
{
    sim_schedules_t *out = &run->world->schedules;
    uint32_t count = run->division->count;
    wefti_rank_numbers_t numbers;
    if (are_built(run, out)) {
        return WEFT_OK;
    }
    wefti_sim_schedules_deinit(out);
    out->algorithm = run->call->algorithm;
    out->params = run->call->params;
    out->stride = run->call->stride;
    out->list = wefti_alloc(NULL, (count + 1ul) * sizeof *out->list);
    out->rank_of = wefti_alloc(NULL, (count + 1ul) * sizeof *out->rank_of);
    WEFT_RETURN_IF_NO_MEMORY(out->list && out->rank_of);
    WEFT_RETURN_IF_ERROR(wefti_rank_numbers_init(&numbers, &run->call->params));
    weft_status_t status = build_classes(run, &numbers, out);
    wefti_rank_numbers_deinit(&numbers);
    return status;
}

static weft_status_t build_actors(run_t *run)
{
    WEFT_RETURN_IF_ERROR(build_schedules(run));
    for (uint32_t a = 0; a < run->division->count; a++) {
        actor_t *own = &run->actors[a];
        own->rank = run->division->first[a];
        own->owner = NOTHING;
        own->schedule = run->world->schedules.list[a]; /* which owns it */
        own->first_in = wefti_alloc(NULL, (own->schedule.step_count + 1) * sizeof *own->first_in);
        WEFT_RETURN_IF_NO_MEMORY(own->first_in);
    }
    run->phases = run->actors[0].schedule.resources.phases;
    run->phases = run->phases > 0 ? run->phases : 1;
    run->lanes = run->actors[0].schedule.resources.lanes;
    size_t slots = (size_t)run->division->count * run->lanes * run->phases;
    run->posted = wefti_alloc(NULL, slots * sizeof *run->posted);
    run->heads = wefti_alloc(NULL, slots * sizeof *run->heads);
    WEFT_RETURN_IF_NO_MEMORY(run->posted && run->heads);
    for (size_t i = 0; i < slots; i++) {
        run->posted[i] = -1;
    }
    for (uint32_t a = 0; a < run->division->count; a++) {
        actor_t *own = &run->actors[a];
        for (uint32_t s = 0; s < own->schedule.step_count; s++) {
            uint8_t op = own->schedule.steps[s].op;
            own->first_in[s] = (uint32_t)run->flow_count;
            if (op != WEFTI_DO_POST && op != WEFTI_DO_WAIT) {
                WEFT_RETURN_IF_ERROR(find_incoming(run, a, s));
            }
        }
        own->first_in[own->schedule.step_count] = (uint32_t)run->flow_count;
    }
    return WEFT_OK;
}

static weft_status_t begin_all(run_t *run, const double *now_ns)
{
    const sim_division_t *division = run->division;
    double *begin = wefti_alloc(NULL, (division->count + 1ul) * sizeof *begin);
    WEFT_RETURN_IF_NO_MEMORY(begin);
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 0; r < run->world->ranks; r++) {
        uint32_t a = division->class_of[r];
        begin[a] = fmax(begin[a], now_ns[r]);
    }
    run->now_ns = INFINITY;
    for (uint32_t a = 0; a < division->count; a++) {
        actor_t *own = &run->actors[a];
        run->now_ns = fmin(run->now_ns, begin[a]);
        for (uint32_t lane = 0; lane < run->lanes && status >= 0; lane++) {
            own->lanes[lane].at = own->schedule.lane_begin[lane];
            own->lanes[lane].end = own->schedule.lane_begin[lane + 1];
            status = push(run, begin[a], a, lane);
        }
    }
    wefti_free(NULL, begin);
    return status;
}

static weft_status_t finish(run_t *run, double *now_ns)
{
    sim_world_t *w = run->world;
    for (uint32_t a = 0; a < run->division->count; a++) {
        for (uint32_t lane = 0; lane < run->lanes; lane++) {
            if (run->actors[a].lanes[lane].state != LANE_DONE) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "algorithm %s on %u ranks: ranks of one class wait for each "
                                   "other, so classes cannot stand for ranks",
                                   run->call->algorithm->name, run->call->params.group_size);
            }
        }
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        now_ns[r] = run->actors[run->division->class_of[r]].end_ns;
    }
    memset(run->flows.loads, 0, run->flows.link_count * sizeof *run->flows.loads);
    for (size_t f = 0; f < run->flow_count; f++) {
        const sim_flow_t *flow = &run->flows.flows[f];
        for (uint32_t h = 0; h < flow->hop_count; h++) {
            run->flows.loads[flow->hops[h].link] += run->cargo[f].bytes * flow->hops[h].weight;
        }
    }
    for (uint32_t kind = 0; kind < SIM_KINDS; kind++) {
        for (uint32_t part = 0; part < w->part_count[kind]; part++) {
            w->carried[kind][part] += run->flows.loads[run->link_of[kind][part]];
        }
    }
    return WEFT_OK;
}

static void deinit(run_t *run)
{
    for (uint32_t a = 0; run->actors != NULL && a < run->division->count; a++) {
        wefti_free(NULL, run->actors[a].first_in);
    }
    for (uint32_t kind = 0; kind < SIM_KINDS; kind++) {
        wefti_free(NULL, run->link_of[kind]);
        wefti_free(NULL, run->here[kind]);
    }
    void *all[] = {run->actors,      run->posted,      run->heads,        run->waiters,
                   run->cargo,       run->flows.flows, run->flows.active, run->flows.rates,
                   run->flows.loads, run->flows.spare, run->events};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        wefti_free(NULL, all[i]);
    }
}

weft_status_t wefti_sim_collective(sim_world_t *world, const sim_call_t *call,
                                   const sim_division_t *division, double *now_ns)
{
    run_t run = {.world = world, .call = call, .division = division};
    run.wide_bytes = call->counts.elem_bytes < 4 ? 4 : call->counts.elem_bytes;
    run.actors = wefti_alloc(NULL, (division->count + 1ul) * sizeof *run.actors);
    weft_status_t status;
    WEFT_TRY(status, run.actors != NULL ? merge_links(&run) : WEFT_ERR_NO_MEMORY, out);
    WEFT_TRY(status, build_actors(&run), out);
    WEFT_TRY(status, begin_all(&run, now_ns), out);
    WEFT_TRY(status, run_clock(&run), out);
    status = finish(&run, now_ns);
out:
    deinit(&run);
    return status;
}

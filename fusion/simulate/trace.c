/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/simulate/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/algo/algorithms.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

#define MOST_DEPENDS 2u
#define NO_RANK UINT32_MAX
#define FEW_RANKS 64u                /* up to which a wait for all ranks is a message from each */
#define ROUNDS 32u                   /* at most, of a barrier */
#define MOST_PAIRS ((size_t)1 << 27) /* of ranks: some 30 GB of text */

/* What a wait of one rank for another becomes; ranks are those of a group. */
typedef struct message {
    uint32_t to, to_step, from, from_lane, from_phase;
    uint32_t tag; /* which message of the pair it is */
    double bytes;
} message_t;

typedef struct messages {
    message_t *list;
    size_t count, capacity;
} messages_t;

/*
 * Collectives that run by the same schedules, whatever their sizes. Of all ranks only who waits for
 * whom is kept; schedules are built for the rank at hand and those that it exchanges messages with.
 */
typedef struct pattern {
    sim_call_t call; /* of the first of these collectives */
    sim_scratch_t scratch;
    wefti_rank_numbers_t numbers;
    uint32_t *waiters, *waiter_begin; /* [rank + 1] of a group: those that wait for it, in order */
    uint32_t most_waits;              /* of a rank */
    bool writes;                      /* ranks write to others */
    bool barriers;                    /* waits of all ranks for all are barriers */
    uint32_t rank;                    /* of the group: that schedules are of; or NO_RANK */
    struct member {
        uint32_t rank;
        wefti_schedule_t schedule;
    } * members; /* the rank itself, then others as they are needed */
    uint32_t member_count;
    size_t member_capacity;
    uint32_t *member_of; /* [rank of the group]: 1 + index; 0: no schedule yet */
} pattern_t;

/* A collective of the plan, once it was met. */
typedef struct prepared {
    bool done;
    size_t pattern;
    sim_call_t call; /* its params point into the pattern's */
} prepared_t;

struct sim_tracer {
    const sim_world_t *world;
    const weft_plan_t *plan;
    const weft_registry_t *registry;
    const wefti_plan_program_t *program;
    double *kernel_ns;
    prepared_t *prepared; /* [collective] */
    pattern_t *patterns;
    size_t pattern_count, pattern_capacity;
    wefti_arena_t arena;
    uint32_t *streams; /* [stream]: number of the rank's last node, 0: none */
    uint32_t *events;  /* [event]: likewise, when it was recorded */
    bool *recorded;    /* [event] */
    uint32_t *at;      /* [stream] */
    /* of the rank at hand */
    sim_node_fn add;
    void *user;
    uint32_t rank, number, first_tag;
    /* of its collective at hand */
    sim_call_t call;
    const wefti_schedule_t *schedule;
    messages_t in, out;
};

typedef struct sim_tracer tracer_t;

static weft_status_t add_node(tracer_t *t, sim_node_t node, uint32_t a, uint32_t b,
                              uint32_t *out_number)
{
    uint32_t depends[MOST_DEPENDS];
    node.depends = depends;
    if (a != 0) {
        depends[node.depend_count++] = a;
    }
    if (b != 0 && b != a) {
        depends[node.depend_count++] = b;
    }
    *out_number = ++t->number;
    return t->add(t->user, t->rank, *out_number, &node);
}

/* One node that is done when both are. */
static weft_status_t join(tracer_t *t, uint32_t a, uint32_t *inout)
{
    if (a == 0 || *inout == 0 || a == *inout) {
        *inout = a != 0 ? a : *inout;
        return WEFT_OK;
    }
    return add_node(t, (sim_node_t){.kind = SIM_CALC, .name = "join"}, a, *inout, inout);
}

static bool moves(const wefti_step_t *step)
{
    return step->op != WEFTI_DO_POST && step->op != WEFTI_DO_WAIT;
}

static bool waits(const wefti_step_t *step)
{
    return step->op == WEFTI_DO_WAIT && step->wait.back == 0;
}

/*
 * Does the step only wait until all ranks of a large group have come there? Of n ranks that is
 * n * (n - 1) messages without data; as a barrier it is n log2 n.
 */
static bool is_barrier(const wefti_schedule_t *schedule, uint32_t ranks, uint32_t index)
{
    const wefti_step_t *wait = &schedule->steps[index];
    if (!waits(wait) || ranks <= FEW_RANKS || wait->wait.rank_count != ranks ||
        wait->wait.lane != wait->lane) {
        return false;
    }
    for (uint32_t s = index + 1; s < schedule->lane_begin[wait->lane + 1u]; s++) {
        const wefti_step_t *step = &schedule->steps[s];
        for (uint32_t i = 0; moves(step) && i < step->move.source_count; i++) {
            const wefti_operand_t *at = &schedule->operands[step->move.operand + i];
            for (uint32_t r = at->rank; r < at->rank + at->rank_count; r++) {
                if (r != schedule->rank && wefti_sim_wait_before(schedule, s, r) == wait) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* ---- patterns ---- */

static weft_status_t build_schedule(const pattern_t *p, uint32_t rank, wefti_schedule_t *out)
{
    weft_algo_params_t params = p->call.params;
    params.rank = rank;
    return wefti_schedule_build_numbered(p->call.algorithm, &params, &p->numbers, NULL, out);
}

/* Who waits for whom, of all ranks. */
typedef struct edges {
    struct edge {
        uint32_t from, to;
    } * list;
    size_t count, capacity;
    uint32_t *last;    /* [from]: 1 + the last rank that was found to wait for it */
    uint64_t barriers; /* a hash of those of rank 0 */
} edges_t;

static weft_status_t list_edges(pattern_t *p, uint32_t to, const wefti_schedule_t *schedule,
                                edges_t *edges)
{
    uint32_t wait_count = 0, n = p->call.params.group_size;
    uint64_t barriers = WEFTI_HASH_START;
    for (uint32_t s = 0; s < schedule->step_count; s++) {
        const wefti_step_t *step = &schedule->steps[s];
        if (p->barriers && is_barrier(schedule, n, s)) {
            barriers = wefti_hash_word(wefti_hash_word(barriers, step->lane), step->wait.phase);
            wait_count += ROUNDS;
            continue;
        }
        for (uint32_t i = 0; moves(step) && i < step->move.destination_count; i++) {
            const wefti_operand_t *at =
                &schedule->operands[step->move.operand + step->move.source_count + i];
            p->writes = p->writes || at->rank != to || at->rank_count > 1;
        }
        wait_count += waits(step);
        for (uint32_t i = 0; waits(step) && i < step->wait.rank_count; i++) {
            uint32_t from = step->wait.first_rank + i;
            if (from == to || edges->last[from] == to + 1) {
                continue;
            }
            edges->last[from] = to + 1;
            if (edges->count == MOST_PAIRS) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "algorithm %s: too many pairs of ranks with messages: more than "
                                   "%zu",
                                   p->call.algorithm->name, MOST_PAIRS);
            }
            WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &edges->list, &edges->capacity,
                                                     edges->count + 1, sizeof *edges->list));
            edges->list[edges->count++] = (struct edge){from, to};
        }
    }
    p->most_waits = wait_count > p->most_waits ? wait_count : p->most_waits;
    edges->barriers = to == 0 ? barriers : edges->barriers;
    bool alike = barriers == edges->barriers && !p->writes; /* of which one may come with a wait */
    return alike || !p->barriers ? WEFT_OK : WEFT_AGAIN;
}

/* By the rank that is waited for; those that wait stay in order. */
static weft_status_t sort_edges(pattern_t *p, const edges_t *edges)
{
    uint32_t n = p->call.params.group_size;
    p->waiters = wefti_alloc(NULL, (edges->count + 1) * sizeof *p->waiters);
    p->waiter_begin = wefti_alloc(NULL, (n + 2ul) * sizeof *p->waiter_begin);
    WEFT_RETURN_IF_NO_MEMORY(p->waiters && p->waiter_begin);
    for (size_t e = 0; e < edges->count; e++) {
        p->waiter_begin[edges->list[e].from + 2]++;
    }
    for (uint32_t r = 0; r < n; r++) {
        p->waiter_begin[r + 2] += p->waiter_begin[r + 1];
    }
    for (size_t e = 0; e < edges->count; e++) {
        p->waiters[p->waiter_begin[edges->list[e].from + 1]++] = edges->list[e].to;
    }
    return WEFT_OK;
}

/* WEFT_AGAIN: not with barriers. */
static weft_status_t find_waiters(pattern_t *p)
{
    weft_status_t status = WEFT_OK;
    uint32_t n = p->call.params.group_size;
    edges_t edges = {.last = wefti_alloc(NULL, (n + 1ul) * sizeof *edges.last)};
    WEFT_RETURN_IF_NO_MEMORY(edges.last);
    for (uint32_t r = 0; r < n && status == WEFT_OK; r++) {
        wefti_schedule_t schedule;
        WEFT_TRY(status, build_schedule(p, r, &schedule), out);
        status = list_edges(p, r, &schedule, &edges);
        wefti_schedule_deinit(&schedule);
    }
    status = status == WEFT_OK ? sort_edges(p, &edges) : status;
out:
    wefti_free(NULL, edges.list);
    wefti_free(NULL, edges.last);
    return status;
}

static void forget_members(pattern_t *p)
{
    while (p->member_count > 0) {
        wefti_schedule_deinit(&p->members[--p->member_count].schedule);
        p->member_of[p->members[p->member_count].rank] = 0;
    }
    p->rank = NO_RANK;
}

static void pattern_deinit(pattern_t *p)
{
    forget_members(p);
    wefti_free(NULL, p->members);
    wefti_free(NULL, p->member_of);
    wefti_free(NULL, p->waiters);
    wefti_free(NULL, p->waiter_begin);
    wefti_rank_numbers_deinit(&p->numbers);
    wefti_sim_scratch_deinit(&p->scratch);
}

/* Of one plan: groups of equal size and distance are at the same places. */
static bool is_like(const sim_call_t *a, const sim_call_t *b)
{
    return a->algorithm == b->algorithm && a->stride == b->stride &&
           a->params.group_size == b->params.group_size && a->params.root == b->params.root &&
           a->params.in_place == b->params.in_place && wefti_same_order(&a->params, &b->params);
}

static weft_status_t prepare(tracer_t *t, const wefti_plan_collective_t *collective,
                             prepared_t *out)
{
    sim_scratch_t scratch = {0};
    weft_status_t status =
        wefti_sim_call(t->world, t->plan, t->registry, collective, &scratch, &out->call);
    for (size_t i = 0; i < t->pattern_count && status >= 0; i++) {
        if (is_like(&t->patterns[i].call, &out->call)) {
            wefti_sim_scratch_deinit(&scratch);
            out->pattern = i;
            out->call.params = t->patterns[i].call.params;
            return WEFT_OK;
        }
    }
    status = status < 0 ? status
                        : wefti_array_reserve(NULL, &t->patterns, &t->pattern_capacity,
                                              t->pattern_count + 1, sizeof *t->patterns);
    if (status < 0) {
        wefti_sim_scratch_deinit(&scratch);
        return status;
    }
    out->pattern = t->pattern_count++;
    pattern_t *p = &t->patterns[out->pattern];
    *p = (pattern_t){.call = out->call, .scratch = scratch, .rank = NO_RANK};
    uint32_t n = out->call.params.group_size;
    if (n == 1) {
        return WEFT_OK;
    }
    p->member_of = wefti_alloc(NULL, n * sizeof *p->member_of);
    WEFT_RETURN_IF_NO_MEMORY(p->member_of);
    WEFT_RETURN_IF_ERROR(wefti_rank_numbers_init(&p->numbers, &p->call.params));
    p->barriers = true;
    status = find_waiters(p);
    if (status == WEFT_AGAIN) {
        p->barriers = p->writes = false;
        p->most_waits = 0;
        status = find_waiters(p);
    }
    return status;
}

/* The schedule of a rank; valid until the next one is asked for. */
static weft_status_t schedule_of(pattern_t *p, uint32_t rank, const wefti_schedule_t **out)
{
    if (p->member_of[rank] != 0) {
        *out = &p->members[p->member_of[rank] - 1].schedule;
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &p->members, &p->member_capacity,
                                             p->member_count + 1ul, sizeof *p->members));
    WEFT_RETURN_IF_ERROR(build_schedule(p, rank, &p->members[p->member_count].schedule));
    p->members[p->member_count].rank = rank;
    *out = &p->members[p->member_count++].schedule;
    p->member_of[rank] = p->member_count;
    return WEFT_OK;
}

static bool is_pattern_barrier(const pattern_t *p, const wefti_schedule_t *schedule, uint32_t step)
{
    return p->barriers && is_barrier(schedule, p->call.params.group_size, step);
}

/* ---- messages of a rank ---- */

static double bytes_of(const tracer_t *t, const wefti_schedule_t *schedule,
                       const wefti_step_t *step)
{
    return wefti_sim_block_bytes(&t->call, schedule, step->move.first, step->move.step,
                                 step->move.count);
}

static bool covers(uint32_t first, uint32_t count, uint32_t rank)
{
    return rank - first < count;
}

/* How many of a step's operands are on a rank: of its sources, or destinations. */
static uint32_t operands_on(const wefti_schedule_t *schedule, const wefti_step_t *step, bool source,
                            uint32_t rank)
{
    uint32_t begin = source ? 0 : step->move.source_count, found = 0;
    uint32_t count = source ? step->move.source_count : step->move.destination_count;
    for (uint32_t i = begin; i < begin + count; i++) {
        const wefti_operand_t *at = &schedule->operands[step->move.operand + i];
        found += covers(at->rank, at->rank_count, rank);
    }
    return found;
}

/* Messages that a post of the lane lets go. */
static bool lets_go(const message_t *message, uint32_t lane, uint32_t before, uint32_t phase)
{
    return message->from_lane == lane && message->from_phase > before &&
           message->from_phase <= phase;
}

/* What a rank writes to another goes with the next message to it. */
static void add_writes(const tracer_t *t, const wefti_schedule_t *schedule, message_t *list,
                       size_t count)
{
    uint32_t before = 0, lane = 0;
    double written = 0;
    for (size_t s = 0; s < schedule->step_count && count > 0; s++) {
        const wefti_step_t *step = &schedule->steps[s];
        before = step->lane != lane ? 0 : before;
        lane = step->lane;
        if (moves(step)) {
            written += operands_on(schedule, step, false, list->to) * bytes_of(t, schedule, step);
        }
        for (size_t m = 0; step->op == WEFTI_DO_POST && m < count; m++) {
            if (lets_go(&list[m], lane, before, step->post.phase)) {
                list[m].bytes += written;
                written = 0;
            }
        }
        before = step->op == WEFTI_DO_POST ? step->post.phase : before;
    }
}

/* The messages from a rank to another: one for each wait of the latter, with what it reads. */
static weft_status_t list_pair(const tracer_t *t, pattern_t *p, uint32_t from, uint32_t to,
                               messages_t *out)
{
    const wefti_schedule_t *schedule;
    uint32_t lane = 0, tag = 0;
    size_t begin = out->count;
    message_t *last = NULL; /* of the lane */
    WEFT_RETURN_IF_ERROR(schedule_of(p, to, &schedule));
    for (size_t s = 0; s < schedule->step_count; s++) {
        const wefti_step_t *step = &schedule->steps[s];
        last = step->lane == lane ? last : NULL;
        lane = step->lane;
        if (is_pattern_barrier(p, schedule, (uint32_t)s)) {
            last = NULL;
        } else if (waits(step) && covers(step->wait.first_rank, step->wait.rank_count, from)) {
            WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &out->list, &out->capacity,
                                                     out->count + 1, sizeof *out->list));
            last = &out->list[out->count++];
            *last = (message_t){to, (uint32_t)s, from, step->wait.lane, step->wait.phase, tag++, 0};
        } else if (moves(step) && last != NULL) {
            last->bytes += operands_on(schedule, step, true, from) * bytes_of(t, schedule, step);
        }
    }
    if (p->writes) {
        WEFT_RETURN_IF_ERROR(schedule_of(p, from, &schedule));
        add_writes(t, schedule, out->list + begin, out->count - begin);
    }
    return WEFT_OK;
}

static int compare_messages(const void *a, const void *b)
{
    const message_t *x = a, *y = b;
    return x->to_step != y->to_step ? (x->to_step > y->to_step) - (x->to_step < y->to_step)
                                    : (x->from > y->from) - (x->from < y->from);
}

/* Those that the rank gets, in the order of its waits. */
static weft_status_t list_in(tracer_t *t, pattern_t *p, uint32_t own)
{
    const wefti_schedule_t *schedule;
    t->in.count = 0;
    WEFT_RETURN_IF_ERROR(schedule_of(p, own, &schedule));
    uint8_t *seen = wefti_alloc(NULL, t->call.params.group_size);
    WEFT_RETURN_IF_NO_MEMORY(seen);
    weft_status_t status = WEFT_OK;
    seen[own] = 1;
    for (size_t s = 0; s < schedule->step_count && status >= 0; s++) {
        const wefti_step_t *step = &schedule->steps[s];
        bool single = waits(step) && !is_pattern_barrier(p, schedule, (uint32_t)s);
        for (uint32_t i = 0; single && i < step->wait.rank_count && status >= 0; i++) {
            uint32_t from = step->wait.first_rank + i;
            status = seen[from] ? WEFT_OK : list_pair(t, p, from, own, &t->in);
            seen[from] = 1;
        }
        WEFT_TRY(status, status < 0 ? status : schedule_of(p, own, &schedule), out); /* moved */
    }
    if (t->in.count > 1) {
        qsort(t->in.list, t->in.count, sizeof *t->in.list, compare_messages);
    }
out:
    wefti_free(NULL, seen);
    return status;
}

static weft_status_t list_messages(tracer_t *t, pattern_t *p, uint32_t own)
{
    if (p->rank != own) {
        forget_members(p);
        p->rank = own;
    }
    WEFT_RETURN_IF_ERROR(list_in(t, p, own));
    t->out.count = 0;
    for (uint32_t k = p->waiter_begin[own]; k < p->waiter_begin[own + 1]; k++) {
        WEFT_RETURN_IF_ERROR(list_pair(t, p, own, p->waiters[k], &t->out));
    }
    return schedule_of(p, own, &t->schedule);
}

static uint64_t whole_bytes(double bytes)
{
    return bytes < 1 ? 1 : (uint64_t)bytes;
}

/* ---- nodes of a collective ---- */

static weft_status_t add_message(tracer_t *t, bool sends, const message_t *message, uint32_t last,
                                 uint32_t *out_number)
{
    uint32_t peer = sends ? message->to : message->from;
    sim_node_t node = {.kind = sends ? SIM_SEND : SIM_RECV,
                       .name = t->call.algorithm->name,
                       .bytes = whole_bytes(message->bytes),
                       .peer = wefti_sim_member(&t->call, t->rank, peer),
                       .tag = t->first_tag + message->tag};
    return add_node(t, node, last, 0, out_number);
}

static weft_status_t add_receives(tracer_t *t, uint32_t step, size_t *inout_message,
                                  uint32_t *inout_last)
{
    uint32_t before = *inout_last, all = 0, number;
    for (; *inout_message < t->in.count && t->in.list[*inout_message].to_step == step;
         ++*inout_message) {
        WEFT_RETURN_IF_ERROR(add_message(t, false, &t->in.list[*inout_message], before, &number));
        WEFT_RETURN_IF_ERROR(join(t, number, &all));
    }
    *inout_last = all != 0 ? all : before;
    return WEFT_OK;
}

static weft_status_t add_sends(tracer_t *t, uint32_t lane, uint32_t before, uint32_t phase,
                               uint32_t last)
{
    uint32_t number;
    for (size_t m = 0; m < t->out.count; m++) {
        if (lets_go(&t->out.list[m], lane, before, phase)) {
            WEFT_RETURN_IF_ERROR(add_message(t, true, &t->out.list[m], last, &number));
        }
    }
    return WEFT_OK;
}

/* What arrived is next to the rank by then. */
static uint64_t move_ns(const tracer_t *t, const wefti_step_t *step)
{
    const wefti_costs_t *costs = t->world->costs;
    double bytes = bytes_of(t, t->schedule, step), reads = 0;
    for (uint32_t i = 0; i < step->move.source_count; i++) {
        reads += t->schedule->operands[step->move.operand + i].rank_count;
    }
    double ns = (reads + step->move.destination_count) * bytes *
                costs->level[WEFTI_LEVEL_SELF].beta_ns_per_byte;
    ns += step->op == WEFTI_DO_REDUCE ? reads * bytes * costs->gamma_ns_per_byte : 0;
    return (uint64_t)llround(ns + costs->step_ns);
}

/* By dissemination: in round k with the ranks 2^k further and 2^k before. */
static weft_status_t add_barrier(tracer_t *t, uint32_t first_tag, uint32_t *inout_last)
{
    uint32_t n = t->call.params.group_size, own = t->schedule->rank, sent, received;
    for (uint32_t round = 0; (uint64_t)1 << round < n; round++) {
        message_t message = {.tag = first_tag + round};
        message.to = (uint32_t)((own + ((uint64_t)1 << round)) % n);
        message.from = (uint32_t)((own + n - ((uint64_t)1 << round)) % n);
        WEFT_RETURN_IF_ERROR(add_message(t, true, &message, *inout_last, &sent));
        WEFT_RETURN_IF_ERROR(add_message(t, false, &message, *inout_last, &received));
        *inout_last = received;
    }
    return WEFT_OK;
}

static weft_status_t trace_call(tracer_t *t, pattern_t *p, uint32_t *inout_last)
{
    uint32_t begin = *inout_last, end = 0, barrier_tag = p->most_waits;
    size_t message = 0;
    WEFT_RETURN_IF_ERROR(list_messages(t, p, wefti_sim_group_rank(&t->call, t->rank)));
    for (uint32_t lane = 0; lane < t->schedule->resources.lanes; lane++) {
        uint32_t last = begin, before = 0;
        for (uint32_t s = t->schedule->lane_begin[lane]; s < t->schedule->lane_begin[lane + 1];
             s++) {
            const wefti_step_t *step = &t->schedule->steps[s];
            if (is_pattern_barrier(p, t->schedule, s)) {
                barrier_tag -= ROUNDS;
                WEFT_RETURN_IF_ERROR(add_barrier(t, barrier_tag, &last));
            } else if (step->op == WEFTI_DO_WAIT) {
                WEFT_RETURN_IF_ERROR(add_receives(t, s, &message, &last));
            } else if (step->op == WEFTI_DO_POST) {
                WEFT_RETURN_IF_ERROR(add_sends(t, lane, before, step->post.phase, last));
                before = step->post.phase;
            } else if (bytes_of(t, t->schedule, step) > 0) {
                sim_node_t node = {
                    .kind = SIM_CALC, .name = t->call.algorithm->name, .ns = move_ns(t, step)};
                WEFT_RETURN_IF_ERROR(add_node(t, node, last, 0, &last));
            }
        }
        WEFT_RETURN_IF_ERROR(join(t, last, &end));
    }
    *inout_last = end;
    t->first_tag += p->most_waits;
    return WEFT_OK;
}

/* ---- streams ---- */

/* Ranks of one core compute in turns. */
static uint64_t rank_ns(const tracer_t *t, double ns)
{
    return (uint64_t)llround(ns * t->world->on_core[t->world->part[SIM_CORE][t->rank]]);
}

static weft_status_t trace_collective(tracer_t *t, uint32_t index, uint32_t *last)
{
    const wefti_plan_collective_t *collective = &t->plan->collectives[index];
    prepared_t *prepared = &t->prepared[index];
    weft_status_t status = prepared->done ? WEFT_OK : prepare(t, collective, prepared);
    prepared->done = status >= 0;
    t->call = prepared->call;
    if (status >= 0 && t->call.params.group_size > 1) {
        status = trace_call(t, &t->patterns[prepared->pattern], last);
    }
    if (collective->update != WEFTI_PLAN_NONE && status >= 0) {
        sim_node_t node = {
            .kind = SIM_CALC,
            .name = t->plan->kernels[collective->update].name,
            .ns = rank_ns(t, t->kernel_ns[collective->update] / t->call.params.group_size)};
        status = add_node(t, node, *last, 0, last);
    }
    return status < 0 ? wefti_error_prefix(status, "%s", collective->name) : status;
}

static weft_status_t trace_step(tracer_t *t, uint32_t stream, const wefti_plan_step_t *step)
{
    uint32_t *last = &t->streams[stream];
    switch (step->kind) {
    case WEFTI_STEP_COLLECTIVE:
        return trace_collective(t, step->index, last);
    case WEFTI_STEP_RECORD:
        t->events[step->index] = *last;
        t->recorded[step->index] = true;
        return WEFT_OK;
    case WEFTI_STEP_WAIT:
        return join(t, t->events[step->index], last);
    case WEFTI_STEP_KERNEL:
        break;
    }
    const wefti_plan_kernel_t *kernel = &t->plan->kernels[step->index];
    sim_node_t node = {
        .kind = SIM_CALC, .name = kernel->name, .ns = rank_ns(t, t->kernel_ns[step->index])};
    return wefti_plan_runs(t->plan, kernel->place, t->rank) ? add_node(t, node, *last, 0, last)
                                                            : WEFT_OK;
}

weft_status_t wefti_sim_trace_rank(tracer_t *t, uint32_t rank, sim_node_fn add, void *user)
{
    bool more = true;
    t->add = add;
    t->user = user;
    t->rank = rank;
    t->number = t->first_tag = 0;
    memset(t->streams, 0, t->plan->stream_count * sizeof *t->streams);
    memset(t->at, 0, t->plan->stream_count * sizeof *t->at);
    memset(t->recorded, 0, t->plan->event_count * sizeof *t->recorded);
    while (more) { /* in the same order on every rank: tags depend on it */
        more = false;
        for (uint32_t s = 0; s < t->plan->stream_count; s++) {
            const wefti_plan_stream_program_t *list = &t->program->streams[s];
            while (t->at[s] < list->step_count && (list->steps[t->at[s]].kind != WEFTI_STEP_WAIT ||
                                                   t->recorded[list->steps[t->at[s]].index])) {
                WEFT_RETURN_IF_ERROR(trace_step(t, s, &list->steps[t->at[s]++]));
                more = true;
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_sim_tracer_create(const sim_world_t *world, const weft_plan_t *plan,
                                      const weft_registry_t *registry, tracer_t **out_tracer)
{
    bool is_inline;
    tracer_t *t = wefti_alloc(NULL, sizeof *t);
    *out_tracer = t;
    WEFT_RETURN_IF_NO_MEMORY(t);
    t->world = world;
    t->plan = plan;
    t->registry = registry;
    wefti_arena_init(&t->arena, NULL, 0);
    t->program = wefti_plan_program(plan, "step");
    t->streams = wefti_arena_array(&t->arena, plan->stream_count + 1ul, sizeof *t->streams);
    t->at = wefti_arena_array(&t->arena, plan->stream_count + 1ul, sizeof *t->at);
    t->events = wefti_arena_array(&t->arena, plan->event_count + 1ul, sizeof *t->events);
    t->recorded = wefti_arena_array(&t->arena, plan->event_count + 1ul, sizeof *t->recorded);
    t->prepared = wefti_arena_array(&t->arena, plan->collective_count + 1ul, sizeof *t->prepared);
    return t->arena.failed ? WEFT_ERR_NO_MEMORY
                           : wefti_sim_kernel_ns(world, plan, registry, &t->kernel_ns, &is_inline);
}

void wefti_sim_tracer_destroy(tracer_t *t)
{
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->pattern_count; i++) {
        pattern_deinit(&t->patterns[i]);
    }
    wefti_free(NULL, t->patterns);
    wefti_free(NULL, t->in.list);
    wefti_free(NULL, t->out.list);
    wefti_free(NULL, t->kernel_ns);
    wefti_arena_deinit(&t->arena);
    wefti_free(NULL, t);
}

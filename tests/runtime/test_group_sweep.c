/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random groups and random calls on them. Groups are made in every way, also from each other, and
 * destroyed at once or kept for a while, so that channels are used again while slow ranks are still
 * in the calls before. Ranks are threads over a simulated network (tests/faults/network.h), which
 * delays and reorders, then processes of one to eight simulated hosts, over shared memory and TCP.
 *
 * What a rank contributes depends on the rank, the group, the call and the element. Every result is
 * compared with the exact one; a wrong one names the contribution of another call that would
 * explain it. All ranks draw from the same seed, so that nothing has to be agreed; each rank also
 * has delays of its own.
 *
 *   WEFT_TEST_SEED=N     the seed
 *   WEFT_TEST_SECONDS=N  how long, in each of the two ways; else 4
 *   WEFT_TEST_ROUNDS=N   of each world; few: more worlds, which are new; many: more groups of each
 *   WEFT_TEST_LAYOUT=L   only this layout: one character per rank, equal on ranks of one host
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "support_ranks.h"

#include "runtime/base/sync.h"
#include "tests/support/support.h"

#define MAX_RANKS 16u
#define MAX_COUNT 6000u
#define KEPT 96u
#define IN_FLIGHT 6u
#define ROOM ((size_t)MAX_RANKS * MAX_COUNT * 8)

typedef struct totals { /* of all ranks of all worlds; shared memory */
    _Atomic uint64_t groups, calls, worlds;
} totals_t;
static totals_t *totals;

typedef enum op {
    OP_REDUCE_SCATTER,
    OP_REDUCE_SCATTER_V,
    OP_ALL_REDUCE,
    OP_ALL_GATHER,
    OP_ALL_GATHER_V,
    OP_ALL_TO_ALL,
    OP_REDUCE,
    OP_BROADCAST,
    OP_GATHER,
    OP_SCATTER,
    OP_BARRIER,
    OP_COUNT,
} op_t;
static const char *const op_names[] = {
    "reduce_scatter", "reduce_scatter_v", "all_reduce", "all_gather", "all_gather_v", "all_to_all",
    "reduce",         "broadcast",        "gather",     "scatter",    "barrier"};

typedef struct member {
    weft_group_t *group;
    uint64_t id;      /* equal on its ranks, unlike any other group's */
    uint32_t calls;   /* so far */
    uint32_t ends_at; /* round */
    bool asks;        /* for algorithms: a call that one cannot do would break a stream */
} member_t;

typedef struct call { /* one in flight */
    op_t op;
    weft_dtype_t dtype;
    uint32_t root, index;
    uint64_t count; /* of each block */
    bool in_place;
    weft_status_t status;
    uint64_t counts[MAX_RANKS], displacements[MAX_RANKS];
    uint8_t *send, *recv; /* as the call got them */
    uint8_t *memory[2];
} call_t;

typedef struct plan { /* of one world */
    const char *layout;
    uint64_t seed;
    uint32_t rounds;
} plan_t;

typedef struct sweep {
    rank_world_t *world;
    const char *layout;
    uint64_t seed, noise;
    uint32_t round;
    weft_stream_t *stream;
    member_t kept[KEPT]; /* in the order in which they were made, which is the same on all ranks */
    uint32_t kept_count;
    call_t calls[IN_FLIGHT];
} sweep_t;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t state = a * 0x9e3779b97f4a7c15ull + b;
    return test_next_random(&state);
}

/* ---- what ranks contribute, and what must come out ---- */

/* Small enough for exact sums of 16 ranks in every type, but for those that wrap. */
static uint64_t value_of(uint64_t id, uint32_t call, uint32_t rank, uint64_t element)
{
    return mix(mix(id, call), (uint64_t)rank << 32 | element) % 50021;
}

static void store(uint8_t *at, weft_dtype_t dtype, uint64_t index, uint64_t value)
{
    at += index * weft_dtype_size_bytes(dtype);
    if (dtype == WEFT_DTYPE_F32) {
        float x = (float)value;
        memcpy(at, &x, sizeof x);
    } else if (dtype == WEFT_DTYPE_F64) {
        double x = (double)value;
        memcpy(at, &x, sizeof x);
    } else {
        memcpy(at, &value, weft_dtype_size_bytes(dtype)); /* little end first; wraps */
    }
}

static uint64_t load(const uint8_t *at, weft_dtype_t dtype, uint64_t index)
{
    uint64_t value = 0;
    at += index * weft_dtype_size_bytes(dtype);
    if (dtype == WEFT_DTYPE_F32) {
        float x;
        memcpy(&x, at, sizeof x);
        return (uint64_t)(int64_t)x;
    }
    if (dtype == WEFT_DTYPE_F64) {
        double x;
        memcpy(&x, at, sizeof x);
        return (uint64_t)(int64_t)x;
    }
    memcpy(&value, at, weft_dtype_size_bytes(dtype));
    return value;
}

static uint64_t wrapped(uint64_t value, weft_dtype_t dtype)
{
    size_t bytes = weft_dtype_size_bytes(dtype);
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64 || bytes == 8
               ? value
               : value & ((1ull << 8 * bytes) - 1);
}

static uint64_t sum_of(const member_t *member, const call_t *call, uint64_t element)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < weft_group_size(member->group); r++) {
        sum += value_of(member->id, call->index, r, element);
    }
    return sum;
}

static uint64_t total_of(const call_t *call, uint32_t size)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < size; r++) {
        total += call->counts[r];
    }
    return total;
}

/* Elements of this rank's buffers, and which element of its contribution is the first of send. */
static uint64_t send_count(const call_t *call, uint32_t rank, uint32_t size)
{
    switch (call->op) {
    case OP_REDUCE_SCATTER_V:
        return total_of(call, size);
    case OP_ALL_GATHER_V:
        return call->counts[rank];
    case OP_REDUCE_SCATTER:
    case OP_ALL_TO_ALL:
        return call->count * size;
    case OP_SCATTER:
        return rank == call->root ? call->count * size : 0;
    case OP_BROADCAST:
        return rank == call->root ? call->count : 0;
    case OP_BARRIER:
        return 0;
    default:
        return call->count;
    }
}

static uint64_t recv_count(const call_t *call, uint32_t rank, uint32_t size)
{
    switch (call->op) {
    case OP_REDUCE_SCATTER_V:
        return call->counts[rank];
    case OP_ALL_GATHER_V:
        return total_of(call, size);
    case OP_ALL_GATHER:
    case OP_ALL_TO_ALL:
        return call->count * size;
    case OP_GATHER:
        return rank == call->root ? call->count * size : 0;
    case OP_REDUCE:
        return rank == call->root ? call->count : 0;
    case OP_BARRIER:
        return 0;
    default:
        return call->count;
    }
}

/* Element of recv. */
static uint64_t expected(const member_t *member, const call_t *call, uint64_t element)
{
    uint32_t size = weft_group_size(member->group), rank = weft_group_rank(member->group), from = 0;
    switch (call->op) {
    case OP_REDUCE_SCATTER:
        return sum_of(member, call, rank * call->count + element);
    case OP_REDUCE_SCATTER_V:
        return sum_of(member, call, call->displacements[rank] + element);
    case OP_ALL_REDUCE:
    case OP_REDUCE:
        return sum_of(member, call, element);
    case OP_ALL_GATHER:
    case OP_GATHER:
        return value_of(member->id, call->index, (uint32_t)(element / call->count),
                        element % call->count);
    case OP_ALL_GATHER_V:
        while (from + 1 < size && element >= call->displacements[from + 1]) {
            from++;
        }
        return value_of(member->id, call->index, from, element - call->displacements[from]);
    case OP_ALL_TO_ALL:
        return value_of(member->id, call->index, (uint32_t)(element / call->count),
                        rank * call->count + element % call->count);
    case OP_BROADCAST:
        return value_of(member->id, call->index, call->root, element);
    default: /* scatter */
        return value_of(member->id, call->index, call->root, rank * call->count + element);
    }
}

/* Which element of every rank's contribution the sum is of. */
static uint64_t summed_element(const member_t *member, const call_t *call, uint64_t element)
{
    uint32_t rank = weft_group_rank(member->group);
    return element + (call->op == OP_REDUCE_SCATTER     ? rank * call->count
                      : call->op == OP_REDUCE_SCATTER_V ? call->displacements[rank]
                                                        : 0);
}

static void explain_sum(const member_t *member, const call_t *call, uint64_t element, uint64_t got)
{
    uint64_t at = summed_element(member, call, element), sum = sum_of(member, call, at);
    for (uint32_t r = 0; r < weft_group_size(member->group); r++) {
        uint64_t own = value_of(member->id, call->index, r, at);
        if (wrapped(sum - own, call->dtype) == got) {
            fprintf(stderr, "  as if rank %u had contributed 0\n", r);
        }
        for (uint32_t c = 0; c < call->index + 8; c++) {
            if (c != call->index &&
                wrapped(sum - own + value_of(member->id, c, r, at), call->dtype) == got) {
                fprintf(stderr, "  as if rank %u had contributed to call %u\n", r, c);
            }
        }
    }
}

static void wrong(const sweep_t *sweep, const member_t *member, const call_t *call,
                  uint64_t element, uint64_t got, uint64_t want)
{
    const weft_group_t *group = member->group;
    fprintf(
        stderr,
        "seed %llu layout %s round %u: rank %u, which is %u of %u in group %llx: call %u: %s of "
        "%llu x %s%s (root %u): element %llu is %llu, not %llu; path %s, %s\n",
        (unsigned long long)sweep->seed, sweep->layout, sweep->round, sweep->world->rank,
        weft_group_rank(group), weft_group_size(group), (unsigned long long)member->id, call->index,
        op_names[call->op], (unsigned long long)call->count, weft_dtype_name(call->dtype),
        call->in_place ? " in place" : "", call->root, (unsigned long long)element,
        (unsigned long long)got, (unsigned long long)want, weft_group_last_path(group),
        weft_group_last_algorithm(group));
    fprintf(stderr, "  world ranks:");
    for (uint32_t r = 0; r < weft_group_size(group); r++) {
        fprintf(stderr, " %u", weft_group_world_rank(group, r));
    }
    fprintf(stderr, "\n");
    if (call->op <= OP_ALL_REDUCE || call->op == OP_REDUCE) {
        explain_sum(member, call, element, got);
    }
    fflush(NULL);
    _exit(1);
}

static void check_result(const sweep_t *sweep, const member_t *member, const call_t *call)
{
    uint64_t count =
        recv_count(call, weft_group_rank(member->group), weft_group_size(member->group));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t got = load(call->recv, call->dtype, i);
        uint64_t want = wrapped(expected(member, call, i), call->dtype);
        if (got != want) {
            wrong(sweep, member, call, i, got, want);
        }
    }
}

/* ---- one call ---- */

static void draw_call(call_t *call, uint64_t *draws, uint32_t size)
{
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_I32, WEFT_DTYPE_I32, WEFT_DTYPE_F32,
                                          WEFT_DTYPE_F64, WEFT_DTYPE_I64, WEFT_DTYPE_U8};
    uint32_t kind = test_draw(draws, 20);
    call->op = test_draw(draws, 2) == 0 ? OP_REDUCE_SCATTER : (op_t)test_draw(draws, OP_COUNT);
    call->dtype = dtypes[test_draw(draws, 6)];
    call->root = test_draw(draws, size);
    call->in_place = test_draw(draws, 3) == 0;
    call->count = kind < 12   ? 1 + test_draw(draws, 3)
                  : kind < 17 ? 1 + test_draw(draws, 60)
                  : kind < 19 ? 1 + test_draw(draws, 900)
                              : 1 + test_draw(draws, MAX_COUNT - 1);
    for (uint32_t r = 0; r < size; r++) {
        call->counts[r] = test_draw(draws, (uint32_t)call->count + 1);
        call->displacements[r] = r == 0 ? 0 : call->displacements[r - 1] + call->counts[r - 1];
    }
}

/* Sets send and recv, and this rank's contribution. */
static void prepare(const member_t *member, call_t *call)
{
    uint32_t size = weft_group_size(member->group), rank = weft_group_rank(member->group);
    size_t elem = weft_dtype_size_bytes(call->dtype);
    call->send = call->memory[0];
    call->recv = call->memory[1];
    if (call->in_place) {
        switch (call->op) {
        case OP_REDUCE_SCATTER:
            call->recv = call->send + rank * call->count * elem;
            break;
        case OP_REDUCE_SCATTER_V:
            call->recv = call->send + call->displacements[rank] * elem;
            break;
        case OP_ALL_GATHER:
            call->send = call->recv + rank * call->count * elem;
            break;
        case OP_ALL_GATHER_V:
            call->send = call->recv + call->displacements[rank] * elem;
            break;
        case OP_GATHER:
            call->send = rank == call->root ? call->recv + rank * call->count * elem : call->send;
            break;
        case OP_SCATTER:
            call->recv = rank == call->root ? call->send + rank * call->count * elem : call->recv;
            break;
        case OP_BROADCAST:
        case OP_REDUCE:
            call->recv = rank == call->root ? call->send : call->recv;
            break;
        default:
            call->recv = call->send;
        }
    }
    memset(call->recv, 0x5a, recv_count(call, rank, size) * elem);
    for (uint64_t i = 0; i < send_count(call, rank, size); i++) {
        store(call->send, call->dtype, i, value_of(member->id, call->index, rank, i));
    }
}

static weft_status_t submit(const member_t *member, const call_t *call, weft_stream_t *stream)
{
    weft_group_t *g = member->group;
    weft_reduction_t sum = WEFT_REDUCTION_SUM;
    switch (call->op) {
    case OP_REDUCE_SCATTER:
        return weft_reduce_scatter(call->send, call->recv, call->count, call->dtype, sum, g,
                                   stream);
    case OP_REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(call->send, call->recv, call->counts, NULL, call->dtype, sum,
                                     g, stream);
    case OP_ALL_REDUCE:
        return weft_all_reduce(call->send, call->recv, call->count, call->dtype, sum, g, stream);
    case OP_ALL_GATHER:
        return weft_all_gather(call->send, call->recv, call->count, call->dtype, g, stream);
    case OP_ALL_GATHER_V:
        return weft_all_gather_v(call->send, call->recv, call->counts, NULL, call->dtype, g,
                                 stream);
    case OP_ALL_TO_ALL:
        return weft_all_to_all(call->send, call->recv, call->count, call->dtype, g, stream);
    case OP_REDUCE:
        return weft_reduce(call->send, call->recv, call->count, call->dtype, sum, call->root, g,
                           stream);
    case OP_BROADCAST:
        return weft_broadcast(call->send, call->recv, call->count, call->dtype, call->root, g,
                              stream);
    case OP_GATHER:
        return weft_gather(call->send, call->recv, call->count, call->dtype, call->root, g, stream);
    case OP_SCATTER:
        return weft_scatter(call->send, call->recv, call->count, call->dtype, call->root, g,
                            stream);
    default:
        return weft_barrier(g, stream);
    }
}

/* This rank alone is late. */
static void dawdle(sweep_t *sweep)
{
    uint32_t kind = test_draw(&sweep->noise, 64);
    if (kind < 6) {
        sched_yield();
    } else if (kind < 9) {
        usleep(test_draw(&sweep->noise, 300));
    } else if (kind == 9) {
        usleep(test_draw(&sweep->noise, 5000));
    }
}

static void make_calls(sweep_t *sweep, member_t *member, uint64_t *draws)
{
    uint32_t size = weft_group_size(member->group), left = test_draw(draws, 7);
    while (left > 0) {
        uint32_t together = test_draw(draws, 4) == 0 ? 1 + test_draw(draws, IN_FLIGHT) : 1;
        bool streams = (together > 1 || test_draw(draws, 8) == 0) && !member->asks;
        together = streams ? together : 1;
        together = together < left ? together : left;
        left -= together;
        for (uint32_t i = 0; i < together; i++) {
            call_t *call = &sweep->calls[i];
            draw_call(call, draws, size);
            call->index = member->calls++;
            prepare(member, call);
            dawdle(sweep);
            call->status = submit(member, call, streams ? sweep->stream : NULL);
            if (call->status != WEFT_ERR_UNSUPPORTED) { /* an algorithm that cannot */
                RANK_OK(call->status);
            }
        }
        weft_status_t status = streams ? weft_stream_synchronize(sweep->stream) : WEFT_OK;
        RANK_OK(status);
        for (uint32_t i = 0; i < together && sweep->calls[i].status == WEFT_OK; i++) {
            check_result(sweep, member, &sweep->calls[i]);
        }
        totals->calls += together;
    }
}

/* ---- groups ---- */

static void end_group(sweep_t *sweep, member_t *member)
{
    dawdle(sweep);
    weft_group_destroy(member->group);
    member->group = NULL;
}

/* Keeps it for some rounds, or ends it: the same on all its ranks. */
static void put_away(sweep_t *sweep, member_t *member)
{
    uint64_t draws = mix(member->id, sweep->round + 1);
    if (member->group == NULL) {
        return;
    }
    if (test_draw(&draws, 4) != 0) {
        end_group(sweep, member);
        return;
    }
    RANK_CHECK(sweep->kept_count < KEPT);
    member->ends_at = sweep->round + 1 + test_draw(&draws, 8);
    sweep->kept[sweep->kept_count++] = *member;
}

/* A list of 1 to size ranks in any order. */
static uint32_t draw_ranks(uint64_t *draws, uint32_t size, uint32_t *ranks)
{
    for (uint32_t r = 0; r < size; r++) {
        uint32_t at = test_draw(draws, r + 1);
        ranks[r] = ranks[at];
        ranks[at] = r;
    }
    return 1 + test_draw(draws, size);
}

/* A group from parent, or of the world. Its group stays NULL on ranks that have none. */
static void make_group(sweep_t *sweep, weft_group_t *parent, uint64_t parent_id, uint64_t *draws,
                       member_t *out)
{
    uint32_t ranks[MAX_RANKS], colors[MAX_RANKS], size = weft_group_size(parent);
    int64_t keys[MAX_RANKS];
    uint32_t rank = weft_group_rank(parent), kind = test_draw(draws, 8), color = 0;
    uint64_t number = test_next_random(draws);
    uint32_t count = draw_ranks(draws, size, ranks), color_count = 1 + test_draw(draws, 3);
    bool some = test_draw(draws, 3) == 0;
    for (uint32_t r = 0; r < size; r++) {
        colors[r] =
            some && test_draw(draws, 4) == 0 ? WEFT_COLOR_NONE : test_draw(draws, color_count);
        keys[r] = (int64_t)test_draw(draws, 5) - 2;
    }
    weft_status_t status;
    *out = (member_t){0};
    dawdle(sweep);
    if (kind < 2) {
        status = weft_group_duplicate(parent, &out->group);
    } else if (kind == 2) {
        status = weft_group_create_ranks(parent, ranks, count, &out->group);
    } else if (kind == 3 && parent == sweep->world->group) {
        status = weft_group_create_world(sweep->world->context, &out->group);
    } else {
        color = colors[rank];
        status = weft_group_split(parent, color, keys[rank], &out->group);
    }
    /* The first pool is used up: only a group made of the world adds another one. */
    if (status != WEFT_ERR_NO_MEMORY || parent == sweep->world->group) {
        RANK_OK(status);
    }
    out->id = mix(mix(parent_id, number), color);
    totals->groups += out->group != NULL;
}

/* What calls of the group ask for, and so the paths that they take. */
static void draw_selection(member_t *member, uint64_t *draws)
{
    static const char *const names[] = {"mesh",     "ring",     "hierarchical",     "log-step",
                                        "halving",  "binomial", "halving-doubling", "bruck",
                                        "one-shot", "rails"};
    static const weft_collective_t ops[] = {
        WEFT_COLLECTIVE_REDUCE_SCATTER, WEFT_COLLECTIVE_REDUCE_SCATTER_V,
        WEFT_COLLECTIVE_ALL_REDUCE,     WEFT_COLLECTIVE_ALL_GATHER_V,
        WEFT_COLLECTIVE_ALL_TO_ALL,     WEFT_COLLECTIVE_REDUCE,
        WEFT_COLLECTIVE_BROADCAST,      WEFT_COLLECTIVE_GATHER,
        WEFT_COLLECTIVE_SCATTER};
    if (test_draw(draws, 3) == 0) {
        RANK_OK(weft_group_set_order(member->group, WEFT_ORDER_ANY, NULL, 0));
    }
    bool some = test_draw(draws, 2) == 0;
    member->asks = member->asks || some;
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const char *name = names[test_draw(draws, 10)];
        if (some && test_draw(draws, 2) == 0) {
            weft_status_t status = weft_group_set_algorithm(member->group, ops[i], name);
            RANK_CHECK(status == WEFT_OK || status == WEFT_ERR_INVALID_ARGUMENT);
        }
    }
}

/* Calls on a group, groups made of it and calls on these. */
static void use_group(sweep_t *sweep, member_t *member, uint32_t depth)
{
    if (member->group == NULL) {
        return;
    }
    uint64_t draws = mix(member->id, sweep->round);
    draw_selection(member, &draws);
    make_calls(sweep, member, &draws);
    uint32_t children = depth < 3 ? test_draw(&draws, 3) : 0;
    for (uint32_t i = 0; i < children; i++) {
        member_t child;
        make_group(sweep, member->group, member->id, &draws, &child);
        child.asks = member->asks;              /* inherited */
        bool early = test_draw(&draws, 2) == 0; /* the parent goes on before or after it */
        if (early) {
            make_calls(sweep, member, &draws);
        }
        use_group(sweep, &child, depth + 1);
        put_away(sweep, &child);
        if (!early) {
            make_calls(sweep, member, &draws);
        }
    }
}

static void look_after_kept(sweep_t *sweep)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sweep->kept_count; i++) {
        member_t member = sweep->kept[i];
        uint64_t draws = mix(member.id, sweep->round);
        if (test_draw(&draws, 4) == 0) {
            make_calls(sweep, &member, &draws);
        }
        if (member.ends_at <= sweep->round) {
            end_group(sweep, &member);
        } else {
            sweep->kept[count++] = member;
        }
    }
    sweep->kept_count = count;
}

/* The last calls, after which each rank goes as soon as it can: what it sent is still under way. */
static void run_off(sweep_t *sweep)
{
    member_t world = {.group = sweep->world->group, .id = sweep->seed};
    for (uint32_t i = 0; i <= sweep->kept_count; i++) {
        member_t *member = i < sweep->kept_count ? &sweep->kept[i] : &world;
        uint64_t draws = mix(member->id, sweep->round);
        make_calls(sweep, member, &draws);
        weft_group_leave(member->group);
    }
    sweep->world->group = NULL;
}

/* ---- worlds ---- */

static void run_rounds(rank_world_t *world)
{
    const plan_t *plan = world->user;
    sweep_t *sweep = calloc(1, sizeof *sweep);
    RANK_CHECK(sweep != NULL);
    sweep->world = world;
    sweep->layout = plan->layout;
    sweep->seed = plan->seed;
    sweep->noise = mix(plan->seed, 1000 + world->rank);
    RANK_OK(weft_stream_create(world->context, NULL, &sweep->stream));
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        for (uint32_t side = 0; side < 2; side++) { /* half of them are memory that peers reach */
            void *memory = i % 2 == 0 ? malloc(ROOM) : NULL;
            if (i % 2 != 0) {
                RANK_OK(weft_mem_alloc(world->context, ROOM, &memory));
            }
            RANK_CHECK(memory != NULL);
            sweep->calls[i].memory[side] = memory;
        }
    }
    for (; sweep->round < plan->rounds; sweep->round++) {
        uint64_t draws = mix(plan->seed, sweep->round);
        look_after_kept(sweep);
        member_t member;
        make_group(sweep, world->group, mix(plan->seed, sweep->round), &draws, &member);
        use_group(sweep, &member, 0);
        put_away(sweep, &member);
    }
    if (plan->seed % 2 == 0) {
        while (sweep->kept_count > 0) {
            look_after_kept(sweep);
            sweep->round++;
        }
    } else {
        run_off(sweep);
    }
    weft_stream_destroy(sweep->stream);
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        for (uint32_t side = 0; side < 2; side++) {
            if (i % 2 == 0) {
                free(sweep->calls[i].memory[side]);
            }
        }
    }
    free(sweep);
}

static bool run_world(const char *layout, uint64_t seed, uint32_t rounds, bool threads)
{
    plan_t plan = {layout, seed, rounds};
    uint32_t size = (uint32_t)strlen(layout), host_of[MAX_RANKS];
    totals->worlds++;
    if (threads) { /* a simulated network, which reorders as much as links may */
        for (uint32_t r = 0; r < size; r++) {
            host_of[r] = (uint32_t)(layout[r] - 'a');
        }
        const wefti_hub_links_t links = {
            .host_of = host_of, .seed = seed, .max_delay_ns = seed % 4 * 50000};
        support_rank_threads_over(size, run_rounds, &plan, &links);
        return true; /* else the process has ended */
    }
    setenv("WEFT_TEST_HOSTS", layout, 1);
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1);
    bool good = support_rank_processes(size, run_rounds, &plan);
    if (!good) {
        fprintf(stderr, "failed: WEFT_TEST_SEED=%llu, layout %s, rounds %u\n",
                (unsigned long long)seed, layout, rounds);
    }
    return good;
}

static const char *const layouts[] = {
    "aabbbccc",     "aaaabbbb", "aab",      "abcabcabc",        "aaaaa",
    "abbbbbbb",     "ab",       "aabbc",    "aaaaaaaabbbbbbbb", "abababab",
    "aaabbbcccddd", "aaaaabcc", "abcdefgh", "aaaabbbbbbbbbccc", "aaaaaaabbbb"};

static void sweep_worlds(bool threads)
{
    const char *seconds = getenv("WEFT_TEST_SECONDS"), *only = getenv("WEFT_TEST_LAYOUT");
    const char *rounds = getenv("WEFT_TEST_ROUNDS");
    uint64_t seed = support_seed(), span_ns = (seconds != NULL ? strtoull(seconds, NULL, 10) : 4);
    uint64_t until = wefti_now_ns() + span_ns * 1000000000ull;
    totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(totals != MAP_FAILED);
    setenv("WEFT_STAGING_BYTES", "32K", 0);
    bool good = true;
    for (uint32_t i = 0; good && (i == 0 || wefti_now_ns() < until); i++) {
        const char *layout = only != NULL ? only : layouts[i % (sizeof layouts / sizeof *layouts)];
        good = run_world(layout, seed + i,
                         rounds != NULL ? (uint32_t)atoi(rounds) : 10 + i % 4 * 20, threads);
    }
    printf("%llu worlds, %llu groups, %llu calls, counted on every rank\n",
           (unsigned long long)totals->worlds, (unsigned long long)totals->groups,
           (unsigned long long)totals->calls);
    munmap(totals, sizeof *totals);
    assert_true(good);
}

static void test_groups_of_processes(void **state)
{
    (void)state;
    sweep_worlds(false);
}

static void test_groups_of_threads(void **state)
{
    (void)state;
    sweep_worlds(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups_of_threads),
                                       cmocka_unit_test(test_groups_of_processes)};
    const char *only = getenv("WEFT_TEST_ONLY");
    if (only != NULL) {
        cmocka_set_test_filter(only);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

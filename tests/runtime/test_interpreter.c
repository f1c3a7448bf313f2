/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interpreter with every algorithm: ranks are threads over a hub, results are compared with the
 * operator's definition, reductions bit for bit with the in-order tree over all ranks. Cases are
 * drawn at random: type, reduction, size, root, displacements, chunks, in place or not, which
 * buffers are hidden, which links only put. Calls follow each other with and without a barrier.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ops/algo/algorithms.h"
#include "ops/algo/table.h"
#include "ops/reduce/reduce.h"
#include "runtime/context/context.h"
#include "runtime/interpreter/internal.h"
#include "support_ranks.h"
#include "tests/faults/network.h"
#include "tests/support/support.h"

#define MAX_RANKS 16u
#define LANES WEFTI_MAX_LANES
#define WORK_BYTES ((size_t)1 << 20)
#define ROOM_BYTES ((size_t)1 << 18) /* of one buffer */
#define CALLS 3u

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FEWER 1 /* each step costs ten times as much */
#else
#define FEWER 0
#endif

typedef struct random {
    uint64_t state;
} random_t;

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

static uint64_t draw(random_t *random, uint64_t below)
{
    return mix(random->state++) % below;
}

/* What all ranks of a case know. */
typedef struct spec {
    const weft_algorithm_t *algorithm;
    weft_algo_params_t params;
    uint32_t order_sizes[3], host_sizes[3];
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint64_t elem_count, longest;
    uint64_t counts[MAX_RANKS * MAX_RANKS];
    uint64_t gaps[2][MAX_RANKS * MAX_RANKS]; /* where blocks of V forms begin, [send, recv] */
    bool displaced[2];
    uint32_t stride;
    uint8_t hidden[MAX_RANKS];
    bool hides;
    uint64_t chunk;
    uint64_t work_bytes;
    uint64_t seed; /* of what is sent */
} spec_t;

typedef struct world {
    weft_hub_t *hub;
    uint32_t size;
    const uint32_t *host_of; /* NULL: one host */
    uint64_t seed;
    uint32_t rounds;
    uint64_t send[MAX_RANKS], recv[MAX_RANKS]; /* posted */
} world_t;

typedef struct rank {
    world_t *world;
    uint32_t rank;
    weft_context_t *context;
    wefti_endpoint_t *endpoint;
    wefti_run_memory_t memory;
    wefti_run_counters_t counters;
    uint32_t ranks[MAX_RANKS];
    uint64_t send_offset, recv_offset; /* in the region */
    uint8_t *hidden_send, *hidden_recv;
    uint64_t send[MAX_RANKS], recv[MAX_RANKS];
    uint8_t *own_send, *own_recv;         /* of this case */
    uint8_t *sources[MAX_RANKS], *wanted; /* what every rank sends; what comes */
    pthread_t thread;
} rank_t;

static bool is_variable(weft_collective_t op)
{
    return op == WEFT_COLLECTIVE_ALL_GATHER_V || op == WEFT_COLLECTIVE_REDUCE_SCATTER_V ||
           op == WEFT_COLLECTIVE_ALL_TO_ALL_V;
}

static size_t size_of(const spec_t *s)
{
    return weft_dtype_size_bytes(s->dtype);
}

/* Elements from `from` to `to`: of a block. */
static uint64_t block_elems(const spec_t *s, uint32_t from, uint32_t to)
{
    switch (s->params.op) {
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return s->counts[from];
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return s->counts[to];
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        return s->counts[from * s->params.group_size + to];
    default:
        return s->elem_count;
    }
}

/* Where rank's block for or from peer begins in send (0) or recv (1). */
static uint64_t block_at(const spec_t *s, uint32_t buffer, uint32_t rank, uint32_t peer)
{
    uint64_t at = 0;
    if (s->displaced[buffer]) {
        return s->gaps[buffer][rank * s->stride + peer];
    }
    for (uint32_t i = 0; i < peer; i++) {
        at += buffer == 0 ? block_elems(s, rank, i) : block_elems(s, i, rank);
    }
    return at;
}

static bool has_blocks(const spec_t *s, uint32_t buffer)
{
    switch (s->params.op) {
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
    case WEFT_COLLECTIVE_SCATTER:
        return buffer == 0;
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_ALL_GATHER_V:
    case WEFT_COLLECTIVE_GATHER:
        return buffer == 1;
    case WEFT_COLLECTIVE_ALL_TO_ALL:
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        return true;
    default:
        return false;
    }
}

/* Elements of a buffer, gaps included. */
static uint64_t buffer_elems(const spec_t *s, uint32_t buffer, uint32_t rank)
{
    uint64_t elems = 0;
    if (!has_blocks(s, buffer)) {
        return s->params.op == WEFT_COLLECTIVE_BARRIER ? 0 : block_elems(s, rank, rank);
    }
    for (uint32_t i = 0; i < s->params.group_size; i++) {
        uint64_t end = block_at(s, buffer, rank, i) +
                       (buffer == 0 ? block_elems(s, rank, i) : block_elems(s, i, rank));
        elems = end > elems ? end : elems;
    }
    return elems;
}

/*
 * Numbers with few digits where the order of additions is free, so that all orders give the same;
 * else anything.
 */
static void fill(const spec_t *s, uint8_t *data, uint64_t count, uint32_t rank, uint32_t call)
{
    static const float few[] = {0, 1, -1, 2, 1, -2, 1, 4};
    bool exact = s->params.order != WEFT_ORDER_TREE;
    uint64_t start = mix(s->seed * 1000003 + rank * 7919 + call);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t x = mix(start + i);
        float number = exact ? few[x % 8] : (float)(int64_t)(x % 200001) / 7777 - 12;
        switch (s->dtype) {
        case WEFT_DTYPE_F64:
            ((double *)(void *)data)[i] = exact ? number : (double)(int64_t)(x % 2000001) / 64321;
            break;
        case WEFT_DTYPE_F32:
            ((float *)(void *)data)[i] = number;
            break;
        case WEFT_DTYPE_F16:
        case WEFT_DTYPE_BF16: {
            static const uint16_t f16[] = {0, 0x3c00, 0xbc00, 0x4000, 0x3c00, 0xc000, 0, 0x4400};
            static const uint16_t bf16[] = {0, 0x3f80, 0xbf80, 0x4000, 0x3f80, 0xc000, 0, 0x4080};
            bool is_f16 = s->dtype == WEFT_DTYPE_F16;
            ((uint16_t *)(void *)data)[i] =
                exact ? (is_f16 ? f16 : bf16)[x % 8]
                      : (uint16_t)((is_f16 ? 0x3000 : 0x3f00) + x % 0x180);
            break;
        }
        default:
            memcpy(data + i * size_of(s), &x, size_of(s));
            break;
        }
    }
}

/* ---- the definition of every operator ---- */

static void want_reduced(const rank_t *me, const spec_t *s, uint64_t from, uint64_t count)
{
    const void *sources[MAX_RANKS];
    void *destination = me->wanted;
    for (uint32_t r = 0; r < s->params.group_size; r++) {
        sources[r] = me->sources[r] + from * size_of(s);
    }
    weft_reduce_t reduce = {
        sources, s->params.group_size, &destination, 1, count, s->dtype, s->reduction, 0};
    RANK_OK(wefti_reduce(&reduce, WEFT_ISA_PORTABLE));
}

static void want_block(const rank_t *me, const spec_t *s, uint32_t from)
{
    uint64_t source = has_blocks(s, 0) ? block_at(s, 0, from, me->rank) : 0;
    uint64_t at = has_blocks(s, 1) ? block_at(s, 1, me->rank, from) : 0;
    memcpy(me->wanted + at * size_of(s), me->sources[from] + source * size_of(s),
           block_elems(s, from, me->rank) * size_of(s));
}

/* True when this rank receives anything. */
static bool want(const rank_t *me, const spec_t *s)
{
    uint32_t n = s->params.group_size, root = s->params.root;
    switch (s->params.op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
    case WEFT_COLLECTIVE_REDUCE:
        want_reduced(me, s, 0, s->elem_count);
        return s->params.op == WEFT_COLLECTIVE_ALL_REDUCE || me->rank == root;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        want_reduced(me, s, block_at(s, 0, 0, me->rank), block_elems(s, me->rank, me->rank));
        return true;
    case WEFT_COLLECTIVE_BROADCAST:
    case WEFT_COLLECTIVE_SCATTER:
    case WEFT_COLLECTIVE_SEND_RECV:
        want_block(me, s, root);
        return s->params.op != WEFT_COLLECTIVE_SEND_RECV || me->rank == s->params.peer;
    case WEFT_COLLECTIVE_BARRIER:
        return false;
    default:
        for (uint32_t from = 0; from < n; from++) {
            want_block(me, s, from);
        }
        return s->params.op != WEFT_COLLECTIVE_GATHER || me->rank == root;
    }
}

static void say(const rank_t *me, const spec_t *s, const char *what)
{
    fprintf(stderr,
            "%s %s, %s, %u ranks, root %u, order %d%s, %llu elements in chunks of %llu%s%s: rank "
            "%u: %s\n",
            weft_collective_name(s->params.op), s->algorithm->name, weft_dtype_name(s->dtype),
            s->params.group_size, s->params.root, (int)s->params.order,
            s->params.in_place ? ", in place" : "", (unsigned long long)s->longest,
            (unsigned long long)s->chunk, s->hides ? ", hidden" : "",
            me->world->host_of != NULL ? ", puts" : "", me->rank, what);
}

static void check(const rank_t *me, const spec_t *s)
{
    uint64_t elems = buffer_elems(s, 1, me->rank);
    memset(me->wanted, 0xa5, (elems + 8) * size_of(s));
    if (!want(me, s)) {
        return;
    }
    /* Gaps, and what follows the buffer, must be as they were; in place they are input. */
    for (uint32_t i = 0; i < (has_blocks(s, 1) ? s->params.group_size : 1); i++) {
        uint64_t at = has_blocks(s, 1) ? block_at(s, 1, me->rank, i) : 0;
        uint64_t count = has_blocks(s, 1) ? block_elems(s, i, me->rank) : elems;
        size_t skip = at * size_of(s);
        if (memcmp(me->own_recv + skip, me->wanted + skip, count * size_of(s)) != 0) {
            char text[96];
            uint64_t e = 0;
            while (memcmp(me->own_recv + skip + e * size_of(s), me->wanted + skip + e * size_of(s),
                          size_of(s)) == 0) {
                e++;
            }
            snprintf(text, sizeof text, "block %u, element %llu of %llu", i, (unsigned long long)e,
                     (unsigned long long)count);
            say(me, s, text);
            RANK_CHECK(false);
        }
    }
    if (!s->params.in_place && memcmp(me->own_recv, me->wanted, (elems + 8) * size_of(s)) != 0) {
        say(me, s, "writes beside its blocks");
        RANK_CHECK(false);
    }
}

/* ---- algorithms of several lanes, which the table has none of ---- */

static const char *any_params(const weft_algo_params_t *params)
{
    (void)params;
    return NULL;
}

static void two_lanes(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->lanes = 2;
    out->phases = 2;
    out->blocks = 2 * params->group_size;
}

/* Lane 0 begins; lane 1 waits for its word, and fetches from every second rank. */
static void build_gather(const weft_algo_params_t *params, weft_schedule_builder_t *builder)
{
    uint32_t n = params->group_size, own = params->rank;
    weft_schedule_post(builder, 0, 1);
    for (uint32_t lane = 0; lane < 2; lane++) {
        weft_schedule_wait(builder, lane, 0, n, 0, 1, 0);
        for (uint32_t r = 0; r < n; r++) {
            if (r % 2 == lane && (r != own || !params->in_place)) {
                weft_schedule_copy(
                    builder, lane, (weft_place_t){own, 1, WEFT_ALGO_BUFFER_RECV, r, 1},
                    (weft_place_t){r, 1, WEFT_ALGO_BUFFER_SEND, r, 1}, (weft_blocks_t){r, 1, 1});
            }
        }
        weft_schedule_post(builder, lane, 2);
        for (uint32_t theirs = 0; theirs < 2; theirs++) {
            weft_schedule_wait(builder, lane, 0, n, theirs, 2, 0);
        }
    }
}

/* A mesh for each half of the vector, side by side. */
static void build_all_reduce(const weft_algo_params_t *params, weft_schedule_builder_t *builder)
{
    uint32_t n = params->group_size, own = params->rank;
    for (uint32_t lane = 0; lane < 2; lane++) {
        uint32_t block = lane * n + own;
        weft_place_t from = {0, n, WEFT_ALGO_BUFFER_SEND, block, 1};
        weft_place_t to = {0, n, WEFT_ALGO_BUFFER_RECV, block, 1};
        weft_schedule_post(builder, lane, 1);
        weft_schedule_wait(builder, lane, 0, n, lane, 1, 0);
        weft_schedule_reduce(builder, lane, &to, 1, &from, 1, (weft_blocks_t){block, 1, 1}, 1);
        weft_schedule_post(builder, lane, 2);
        weft_schedule_wait(builder, lane, 0, n, lane, 2, 0);
    }
}

static const weft_algorithm_t laned[] = {
    {WEFT_ALGO_ABI_VERSION, WEFT_COLLECTIVE_ALL_GATHER, "two-lanes", "", any_params, two_lanes,
     build_gather},
    {WEFT_ALGO_ABI_VERSION, WEFT_COLLECTIVE_ALL_REDUCE, "two-lanes", "", wefti_needs_tree,
     two_lanes, build_all_reduce},
};

static const weft_algorithm_t *algorithm_at(size_t i)
{
    size_t own = sizeof laned / sizeof *laned;
    return i < own ? &laned[i] : wefti_algorithm_at(i - own);
}

/* ---- cases ---- */

static void draw_counts(spec_t *s, random_t *random)
{
    static const uint64_t vectors[] = {0, 1, 3, 17, 64, 100, 257, 1000, 1531, 4000};
    static const uint64_t blocks[] = {0, 1, 2, 7, 33, 64, 100, 250};
    uint32_t n = s->params.group_size;
    s->elem_count = wefti_collective_is_vector(s->params.op) ? vectors[draw(random, 10)]
                                                             : blocks[draw(random, 8)];
    s->elem_count = s->params.op == WEFT_COLLECTIVE_BARRIER ? 0 : s->elem_count;
    s->longest = s->elem_count;
    s->displaced[0] = s->displaced[1] = false;
    s->stride = 0;
    if (!is_variable(s->params.op)) {
        return;
    }
    bool exchange = s->params.op == WEFT_COLLECTIVE_ALL_TO_ALL_V;
    s->longest = 0;
    for (uint32_t i = 0; i < (exchange ? n * n : n); i++) {
        s->counts[i] = draw(random, 4) == 0 ? 0 : draw(random, s->elem_count + 1);
        s->longest = s->counts[i] > s->longest ? s->counts[i] : s->longest;
    }
    if (s->params.in_place || draw(random, 2) == 0) {
        return;
    }
    s->stride = exchange || draw(random, 2) == 0 ? n : 0;
    for (uint32_t b = 0; b < 2; b++) {
        for (uint32_t r = 0; r < n; r++) {
            uint64_t at = 0;
            for (uint32_t i = 0; i < n; i++) {
                at += draw(random, 5);
                s->gaps[b][r * s->stride + i] = at;
                at += b == 0 ? block_elems(s, r, i) : block_elems(s, i, r);
            }
        }
        /* The sources of a reduction lie at one place everywhere: see want_reduced. */
        s->displaced[b] = has_blocks(s, b);
    }
    if (s->params.op == WEFT_COLLECTIVE_REDUCE_SCATTER_V) {
        s->stride = 0;
    }
}

static void draw_links(spec_t *s, random_t *random)
{
    uint32_t n = s->params.group_size;
    s->hides = draw(random, 3) == 0;
    for (uint32_t a = 0; a < n; a++) {
        s->hidden[a] = s->hides && draw(random, 3) > 0;
    }
}

/* False when the algorithm cannot do what was drawn. */
static bool draw_case(const world_t *world, spec_t *s, const weft_algorithm_t *algorithm,
                      random_t *random)
{
    uint32_t n = world->size;
    *s = (spec_t){.algorithm = algorithm, .seed = draw(random, UINT64_MAX)};
    s->params = (weft_algo_params_t){.struct_size = sizeof s->params,
                                     .op = algorithm->op,
                                     .group_size = n,
                                     .root = (uint32_t)draw(random, n),
                                     .in_place = (uint32_t)draw(random, 2),
                                     .order = WEFT_ORDER_TREE};
    s->params.peer = (s->params.root + 1) % n;
    if (n >= 4) {
        s->host_sizes[0] = 1;
        s->host_sizes[1] = n / 2;
        s->host_sizes[2] = n - 1 - n / 2;
        s->params.host_sizes = s->host_sizes;
        s->params.host_count = 3;
    }
    if (algorithm->op == WEFT_COLLECTIVE_SEND_RECV ||
        algorithm->op == WEFT_COLLECTIVE_ALL_TO_ALL_V) {
        s->params.in_place = 0;
    }
    if (algorithm->op == WEFT_COLLECTIVE_SEND_RECV && n == 1) {
        return false;
    }
    if (n >= 4 && wefti_collective_reduces(algorithm->op) && draw(random, 4) == 0) {
        memcpy(s->order_sizes, s->host_sizes, sizeof s->order_sizes);
        s->params.order = WEFT_ORDER_BLOCKS;
        s->params.order_sizes = s->order_sizes;
        s->params.order_size_count = 3;
    }
    if (algorithm->eligible(&s->params) != NULL) {
        s->params.order = WEFT_ORDER_ANY;
        if (algorithm->eligible(&s->params) != NULL) {
            return false;
        }
    }
    s->dtype = (weft_dtype_t)(WEFT_DTYPE_F64 + draw(random, 12));
    s->reduction = (weft_reduction_t)draw(random, 5);
    draw_counts(s, random);
    draw_links(s, random);
    s->work_bytes = WORK_BYTES;
    return true;
}

/* Half of the cases work in little memory, so in many chunks. */
static void draw_chunk(spec_t *s, const wefti_run_t *run, random_t *random)
{
    wefti_counts_t counts = {s->elem_count, 0, is_variable(s->params.op) ? s->counts : NULL};
    uint64_t few = s->longest > 40 ? s->longest / (1 + draw(random, 9)) : 1 + draw(random, 12);
    uint64_t how = draw(random, 4);
    if (how == 0) {
        s->chunk = few;
    } else if (how == 1) {
        s->work_bytes = wefti_run_work_bytes(run, s->dtype, s->reduction, &counts, few) +
                        (few < s->longest ? 512 : 0);
        s->chunk = wefti_run_chunk(run, s->dtype, s->reduction, &counts, s->work_bytes);
        RANK_CHECK(s->chunk >= 1 && 2 * s->chunk + 64 >= (few < s->longest ? few : s->longest));
        RANK_CHECK(wefti_run_work_bytes(run, s->dtype, s->reduction, &counts, s->chunk) <=
                   s->work_bytes);
    }
}

/* Where this rank's buffers are, said to all; nobody is in a call now. */
static void post_buffers(rank_t *me, const spec_t *s)
{
    uint32_t own = me->rank, n = s->params.group_size;
    uint8_t *base = me->endpoint->region_of[own];
    bool hidden = s->hidden[own] != 0;
    me->own_send = hidden ? me->hidden_send : base + me->send_offset;
    me->own_recv = hidden ? me->hidden_recv : base + me->recv_offset;
    const weft_algo_resources_t plain = {0};
    uint32_t alias;
    if (s->params.in_place && (wefti_in_place_alias(&s->params, &plain, own, own, &alias) ||
                               wefti_in_place_alias(&s->params, &plain, own, 0, &alias))) {
        bool gathers = !has_blocks(s, 0) && has_blocks(s, 1);
        bool scatters = has_blocks(s, 0) && !has_blocks(s, 1);
        if (gathers) {
            me->own_send = me->own_recv + block_at(s, 1, own, own) * size_of(s);
        } else if (scatters) {
            me->own_recv = me->own_send + block_at(s, 0, own, own) * size_of(s);
        } else {
            me->own_recv = me->own_send;
        }
    }
    me->world->send[own] = (uint64_t)((uintptr_t)me->own_send - (uintptr_t)base);
    me->world->recv[own] = (uint64_t)((uintptr_t)me->own_recv - (uintptr_t)base);
    RANK_OK(wefti_endpoint_barrier(me->endpoint));
    for (uint32_t r = 0; r < n; r++) {
        bool known = r == own || !s->hidden[r];
        me->send[r] = known ? me->world->send[r] : 0x0123456789abcdefull;
        me->recv[r] = known ? me->world->recv[r] : 0x0123456789abcdefull;
    }
}

static weft_status_t stop_when_ready(void *run)
{
    return wefti_run_ready(run) ? WEFT_ERR_ABORTED : WEFT_OK;
}

static void run_to_end(rank_t *me, const spec_t *s, wefti_run_t *run)
{
    wefti_blocked_t blocked;
    weft_status_t status;
    while ((status = wefti_run_advance(run, &blocked)) == WEFT_IN_PROGRESS) {
        status = wefti_wait_signal(me->endpoint, blocked.signal, blocked.target, "a schedule",
                                   stop_when_ready, run);
        if (status < 0 && !wefti_run_ready(run)) {
            say(me, s, "waits");
            RANK_OK(status);
        }
    }
    if (status < 0) {
        say(me, s, weft_last_error());
    }
    RANK_OK(status);
}

static void make_sources(rank_t *me, const spec_t *s, uint32_t call)
{
    for (uint32_t r = 0; r < s->params.group_size; r++) {
        fill(s, me->sources[r], buffer_elems(s, 0, r), r, call);
    }
}

static bool sends(const spec_t *s, uint32_t rank)
{
    bool root_only = s->params.op == WEFT_COLLECTIVE_BROADCAST ||
                     s->params.op == WEFT_COLLECTIVE_SCATTER ||
                     s->params.op == WEFT_COLLECTIVE_SEND_RECV;
    return !root_only || rank == s->params.root;
}

static void run_case(rank_t *me, spec_t *s, random_t *random)
{
    wefti_run_t *run;
    wefti_links_t links = {me->world->host_of, s->hides ? s->hidden : NULL};
    s->params.rank = me->rank;
    weft_status_t status = wefti_run_create(s->algorithm, &s->params, &links, NULL, &run);
    if (status < 0) {
        say(me, s, weft_last_error());
    }
    RANK_OK(status);
    draw_chunk(s, run, random);
    post_buffers(me, s);
    me->memory.work_bytes = s->work_bytes;
    wefti_run_call_t call = {
        .dtype = s->dtype,
        .reduction = s->reduction,
        .counts = {s->elem_count, 0, is_variable(s->params.op) ? s->counts : NULL},
        .displacements = {s->displaced[0] ? s->gaps[0] : NULL, s->displaced[1] ? s->gaps[1] : NULL,
                          s->stride},
        .send = me->send,
        .recv = me->recv,
        .chunk = s->chunk};
    random_t own = {mix(s->seed + me->rank * 31)};
    for (uint32_t i = 0; i < CALLS; i++) {
        make_sources(me, s, i);
        memset(me->own_recv, 0xa5, (buffer_elems(s, 1, me->rank) + 8) * size_of(s));
        if (sends(s, me->rank)) {
            memcpy(me->own_send, me->sources[me->rank], buffer_elems(s, 0, me->rank) * size_of(s));
        }
        if (i == 1) { /* nobody is in the first call any more */
            RANK_OK(wefti_endpoint_barrier(me->endpoint));
        }
        for (uint64_t naps = draw(&own, 16); naps < 3; naps++) {
            sched_yield();
        }
        call.follows = i == 2;
        RANK_OK(wefti_run_start(run, &me->memory, &call));
        run_to_end(me, s, run);
        check(me, s);
        if (i == 0) {
            RANK_OK(wefti_endpoint_barrier(me->endpoint));
        }
    }
    RANK_OK(wefti_endpoint_barrier(me->endpoint));
    wefti_run_destroy(run);
}

static uint8_t *take(size_t bytes)
{
    uint8_t *memory = aligned_alloc(64, bytes);
    RANK_CHECK(memory != NULL);
    return memory;
}

static void open_rank(rank_t *me)
{
    const world_t *world = me->world;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    size_t area = (wefti_run_area_bytes(world->size, LANES) + 4095) / 4096 * 4096, offset;
    params.rank = (int32_t)me->rank;
    params.world_size = (int32_t)world->size;
    params.hub = world->hub;
    RANK_OK(weft_context_create(&params, &me->context));
    me->endpoint = ((struct weft_context *)me->context)->endpoint;
    RANK_OK(wefti_region_alloc(me->endpoint, area + WORK_BYTES + 2 * ROOM_BYTES, &offset));
    RANK_OK(wefti_run_counters_init(&me->counters, world->size, LANES, NULL));
    for (uint32_t r = 0; r < world->size; r++) {
        me->ranks[r] = r;
        me->sources[r] = take(ROOM_BYTES);
    }
    me->wanted = take(ROOM_BYTES);
    me->hidden_send = take(ROOM_BYTES);
    me->hidden_recv = take(ROOM_BYTES);
    me->send_offset = offset + area + WORK_BYTES;
    me->recv_offset = me->send_offset + ROOM_BYTES;
    me->memory = (wefti_run_memory_t){.endpoint = me->endpoint,
                                      .ranks = me->ranks,
                                      .bases = me->endpoint->region_of,
                                      .limit = UINT64_MAX,
                                      .area = offset,
                                      .work = offset + area,
                                      .work_bytes = WORK_BYTES,
                                      .counters = &me->counters,
                                      .isa = wefti_isa_detect(),
                                      .lend_bytes = 1}; /* the network reads it late */
}

static void close_rank(rank_t *me)
{
    RANK_OK(wefti_endpoint_barrier(me->endpoint));
    for (uint32_t r = 0; r < me->world->size; r++) {
        free(me->sources[r]);
    }
    free(me->wanted);
    free(me->hidden_send);
    free(me->hidden_recv);
    wefti_run_counters_deinit(&me->counters);
    weft_context_release(me->context);
}

static wefti_signal_t *counter_at(const rank_t *me, size_t offset)
{
    return (wefti_signal_t *)(void *)(me->memory.bases[me->rank] + me->memory.area + offset);
}

/* As if so many phases and signals had been. */
static void set_counters(rank_t *me, uint32_t value)
{
    uint32_t n = me->world->size;
    me->counters.phase = value;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        me->counters.posted[lane] = value;
        atomic_store(&counter_at(me, lane * sizeof(wefti_signal_line_t))->value, value);
        for (uint32_t r = 0; r < n; r++) {
            me->counters.sent[lane * n + r] = me->counters.arrived[lane * n + r] = value;
            atomic_store(
                &counter_at(me, LANES * sizeof(wefti_signal_line_t) + (lane * n + r) * 64)->value,
                value);
        }
    }
}

/* Lanes that no schedule used were moved on, too. */
static void check_counters(const rank_t *me)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t value = atomic_load(&counter_at(me, lane * sizeof(wefti_signal_line_t))->value);
        RANK_CHECK(me->counters.phase < 100000); /* has wrapped */
        RANK_CHECK(me->counters.phase - value <= me->counters.phase);
    }
}

static void *rank_main(void *user)
{
    rank_t *me = user;
    const weft_algorithm_t *algorithm;
    random_t random = {me->world->seed * 131 + me->world->size}; /* the same on all ranks */
    spec_t spec;
    open_rank(me);
    set_counters(me, 0u - 100u); /* about to wrap */
    RANK_OK(wefti_endpoint_barrier(me->endpoint));
    for (uint32_t round = 0; round < me->world->rounds; round++) {
        for (size_t i = 0; (algorithm = algorithm_at(i)) != NULL; i++) {
            if (draw_case(me->world, &spec, algorithm, &random)) {
                run_case(me, &spec, &random);
            }
        }
    }
    check_counters(me);
    close_rank(me);
    return NULL;
}

static void run_world(world_t *world, void *(*run)(void *))
{
    rank_t *ranks = calloc(world->size, sizeof *ranks);
    assert_non_null(ranks);
    for (uint32_t r = 0; r < world->size; r++) {
        ranks[r].world = world;
        ranks[r].rank = r;
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    free(ranks);
}

static uint64_t seed;

static void test_every_algorithm_over_shared_memory(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        world_t world = {
            .size = sizes[i], .seed = seed + i, .rounds = FEWER || sizes[i] > 9 ? 1 : 3};
        assert_int_equal(weft_hub_create(world.size, &world.hub), WEFT_OK);
        run_world(&world, rank_main);
        weft_hub_destroy(world.hub);
    }
}

/* All pairs, and mixed with shared memory; late and out of order. */
static void test_every_algorithm_over_links_that_put(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {2, 3, 4, 5, 6, 7, 8, 9};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += 1 + FEWER) {
        for (uint32_t mixed = 0; mixed < 2; mixed++) {
            uint32_t hosts[MAX_RANKS];
            for (uint32_t r = 0; r < sizes[i]; r++) {
                hosts[r] = mixed ? r / 3 : r;
            }
            world_t world = {
                .size = sizes[i], .seed = seed + i * 2 + mixed, .rounds = 1, .host_of = hosts};
            wefti_hub_links_t links = {hosts, seed + i, i % 2 == 0 ? 20000 : 0};
            assert_int_equal(weft_hub_create(world.size, &world.hub), WEFT_OK);
            assert_int_equal(wefti_hub_hide(world.hub, &links), WEFT_OK);
            run_world(&world, rank_main);
            weft_hub_destroy(world.hub);
        }
    }
}

/* Addresses of a hostile peer, memory that is too small, lanes for which there is no room. */
static void test_what_cannot_run_is_refused(void **state)
{
    (void)state;
    uint8_t *region = aligned_alloc(64, 65536);
    assert_non_null(region);
    memset(region, 0, 65536);
    uint8_t *bases[2] = {region, region + 32768};
    uint32_t ranks[2] = {5, 7};
    uint64_t send[2] = {8192, 8192}, recv[2] = {16384, 16384};
    wefti_endpoint_t endpoint = {.world_size = 2};
    wefti_run_counters_t counters;
    wefti_run_t *mesh, *doubling;
    weft_algo_params_t params = {
        .struct_size = sizeof params, .op = WEFT_COLLECTIVE_ALL_REDUCE, .group_size = 2};
    assert_int_equal(wefti_run_counters_init(&counters, 2, 1, NULL), WEFT_OK);
    assert_int_equal(wefti_run_create(wefti_algorithm_find(params.op, "mesh"), &params,
                                      &(wefti_links_t){0}, NULL, &mesh),
                     WEFT_OK);
    assert_int_equal(wefti_run_create(wefti_algorithm_find(params.op, "doubling"), &params,
                                      &(wefti_links_t){0}, NULL, &doubling),
                     WEFT_OK);
    wefti_run_memory_t memory = {.endpoint = &endpoint,
                                 .ranks = ranks,
                                 .bases = bases,
                                 .limit = 32768,
                                 .work = 4096,
                                 .work_bytes = 4096,
                                 .counters = &counters};
    wefti_run_call_t call = {.dtype = WEFT_DTYPE_F32,
                             .reduction = WEFT_REDUCTION_SUM,
                             .counts = {1000, 0, NULL},
                             .send = send,
                             .recv = recv};
    assert_int_equal(wefti_run_start(mesh, &memory, &call), WEFT_OK);
    static const uint64_t outside[] = {32768 - 2000, 32769, UINT64_MAX, UINT64_MAX - 3999,
                                       1ull << 63};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        recv[1] = outside[i];
        assert_int_equal(wefti_run_start(mesh, &memory, &call), WEFT_ERR_FORMAT);
        assert_non_null(
            strstr(weft_last_error(), "malformed message from rank 7: address outside"));
        recv[1] = 16384;
    }
    recv[0] = send[0] = UINT64_MAX - 63; /* the own buffers are where they are */
    assert_int_equal(wefti_run_start(mesh, &memory, &call), WEFT_OK);
    memory.work_bytes = 3;
    assert_int_equal(wefti_run_start(mesh, &memory, &call), WEFT_OK); /* needs none */
    assert_int_equal(wefti_run_start(doubling, &memory, &call), WEFT_ERR_NO_MEMORY);
    assert_non_null(strstr(weft_last_error(), "too small for one element: 3 bytes"));
    assert_int_equal(wefti_run_chunk(doubling, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, &call.counts, 3),
                     0);
    call.counts.elem_count = UINT64_MAX - 7;
    assert_int_equal(wefti_run_start(mesh, &memory, &call), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "overflow"));
    wefti_run_destroy(mesh);
    assert_int_equal(wefti_run_create(&laned[1], &params, &(wefti_links_t){0}, NULL, &mesh),
                     WEFT_OK);
    call.counts.elem_count = 10;
    assert_int_equal(wefti_run_start(mesh, &memory, &call), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "too many lanes: 2, the group supports 1"));
    wefti_run_destroy(mesh);
    wefti_run_destroy(doubling);
    wefti_run_counters_deinit(&counters);
    free(region);
}

/* Creating a run survives every failing allocation; calls of any size then allocate nothing. */
static void test_only_creating_allocates(void **state)
{
    (void)state;
    test_memory_t budget;
    const uint32_t memory_of[3] = {0, 0, 1};
    const uint8_t hidden[3] = {0, 1, 0};
    const wefti_links_t links = {memory_of, hidden};
    weft_algo_params_t params = {
        .struct_size = sizeof params, .op = WEFT_COLLECTIVE_ALL_GATHER_V, .group_size = 3};
    const weft_algorithm_t *mesh = wefti_algorithm_find(params.op, "mesh");
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    wefti_run_t *run = NULL;
    test_memory_init(&budget);
    for (uint64_t limit = 0; status == WEFT_ERR_NO_MEMORY; limit++) {
        test_memory_fail(&budget, UINT64_MAX, limit);
        status = wefti_run_create(mesh, &params, &links, &budget.allocator, &run);
        assert_true(status == WEFT_OK || (budget.live_blocks == 0 && run == NULL && limit < 10000));
    }
    assert_int_equal(status, WEFT_OK);
    test_memory_fail(&budget, UINT64_MAX, 0);
    uint8_t *region = aligned_alloc(64, 65536);
    assert_non_null(region);
    memset(region, 0, 65536);
    uint8_t *bases[3] = {region, region, NULL};
    const uint32_t ranks[3] = {0, 1, 2};
    uint64_t places[3] = {32768, 32768, 32768}, counts[3], at[9];
    wefti_endpoint_t endpoint = {.world_size = 3};
    wefti_run_counters_t counters;
    assert_int_equal(wefti_run_counters_init(&counters, 3, 1, NULL), WEFT_OK);
    wefti_run_memory_t memory = {.endpoint = &endpoint,
                                 .ranks = ranks,
                                 .bases = bases,
                                 .limit = UINT64_MAX,
                                 .work = 4096,
                                 .work_bytes = 16384,
                                 .counters = &counters};
    for (uint64_t size = 0; size < 300; size++) {
        for (uint32_t i = 0; i < 9; i++) {
            counts[i % 3] = size * (1 + i) / 5;
            at[i] = i * 1000;
        }
        wefti_run_call_t call = {.dtype = WEFT_DTYPE_F32,
                                 .counts = {0, 0, counts},
                                 .displacements = {NULL, at, size % 2 == 0 ? 3 : 0},
                                 .send = places,
                                 .recv = places,
                                 .chunk = size / 7};
        assert_int_equal(wefti_run_start(run, &memory, &call), WEFT_OK);
    }
    wefti_run_destroy(run);
    assert_int_equal(budget.live_blocks, 0);
    wefti_run_counters_deinit(&counters);
    free(region);
}

static void test_algorithms_of_this_test_are_proved(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof laned / sizeof *laned; i++) {
        weft_algo_params_t params = {.struct_size = sizeof params, .group_size = 5};
        if (weft_algorithm_verify(&laned[i], &params) < 0) {
            fail_msg("%s", weft_last_error());
        }
    }
}

/* A new group finds the counters at 0, whatever groups before it on this memory did. */
static void test_a_cleared_area_has_no_counts(void **state)
{
    static const struct {
        uint32_t ranks, lanes;
    } worlds[] = {{2, LANES}, {8, LANES}, {65, 4}, {3, 1}};
    (void)state;
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        uint32_t ranks = worlds[w].ranks, lanes = worlds[w].lanes;
        const wefti_run_counters_t counters = {.group_size = ranks, .lanes = lanes};
        size_t bytes = wefti_run_area_bytes(ranks, lanes);
        uint8_t *area = aligned_alloc(128, (bytes + 127) / 128 * 128);
        assert_non_null(area);
        memset(area, 0xff, bytes);
        wefti_run_area_clear(area, ranks, lanes);
        for (uint32_t lane = 0; lane < lanes; lane++) {
            assert_int_equal(wefti_run_lane_signal(area, lane)->value, 0);
            for (uint32_t peer = 0; peer < ranks; peer++) {
                size_t at = wefti_run_arrival(&counters, lane, peer);
                assert_int_equal(((wefti_signal_t *)(void *)(area + at))->value, 0);
            }
        }
        free(area);
    }
}

int main(void)
{
    const char *given = getenv("WEFT_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_algorithms_of_this_test_are_proved),
        cmocka_unit_test(test_a_cleared_area_has_no_counts),
        cmocka_unit_test(test_what_cannot_run_is_refused),
        cmocka_unit_test(test_only_creating_allocates),
        cmocka_unit_test(test_every_algorithm_over_shared_memory),
        cmocka_unit_test(test_every_algorithm_over_links_that_put),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Same bits, always: every reduction of every type, on numbers with denormals, NaNs, infinities and
 * signed zeros among them, gives what an oracle of this test gives, whatever carries it out:
 * algorithm, size, offset within a bucket, in place or not, chunks, memory, waiting, stream,
 * instruction set, hosts, timing.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"

#include "ops/algo/table.h"
#include "runtime/context/context.h"
#include "runtime/group/group.h"
#include "runtime/collective/select.h"
#include "tests/ops/reduce_oracle.h"
#include "tests/support/support.h"

#if defined(__has_feature)
#define CLANG_SANITIZES (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define CLANG_SANITIZES 0
#endif
#if CLANG_SANITIZES || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 8u /* times as long */
#else
#define SLOW 1u
#endif

#define COUNT (SLOW == 1 ? 3001u : 1009u) /* elements of the whole bucket */
#define BYTES ((size_t)COUNT * 8)
#define MAX_RANKS 8u
#define REDUCTIONS 5u

static uint64_t random_state;

/* ---- what is reduced, and what must come out ---- */

typedef struct order {
    weft_order_t kind; /* any: the oracle is asked per call */
    uint32_t sizes[MAX_RANKS], count;
} order_t;

typedef struct data {
    uint32_t ranks;
    order_t order;
    uint8_t inputs[ORACLE_DTYPES][MAX_RANKS][BYTES];
    uint8_t expected[ORACLE_DTYPES][REDUCTIONS][BYTES];
} data_t;

/* Element i of all ranks, from first round to the one before. */
static void read_leaves(const data_t *data, size_t t, size_t i, uint32_t first, number_t *leaves)
{
    size_t bytes = weft_dtype_size_bytes(oracle_dtypes[t]);
    for (uint32_t k = 0; k < data->ranks; k++) {
        const uint8_t *input = data->inputs[t][(first + k) % data->ranks];
        leaves[k] = oracle_read(oracle_dtypes[t], input + i * bytes);
    }
}

static number_t in_order(const data_t *data, size_t t, weft_reduction_t reduction, size_t i)
{
    number_t leaves[MAX_RANKS], blocks[MAX_RANKS];
    uint32_t at = 0;
    read_leaves(data, t, i, 0, leaves);
    if (data->order.kind != WEFT_ORDER_BLOCKS) {
        return oracle_tree(oracle_dtypes[t], reduction, leaves, data->ranks);
    }
    for (uint32_t b = 0; b < data->order.count; at += data->order.sizes[b++]) {
        blocks[b] = oracle_tree(oracle_dtypes[t], reduction, leaves + at, data->order.sizes[b]);
    }
    return oracle_tree(oracle_dtypes[t], reduction, blocks, data->order.count);
}

/* Ring: the sum starts at the rank after the one where it ends, and grows by one rank at a time. */
static number_t around(const data_t *data, size_t t, weft_reduction_t reduction, size_t i,
                       uint32_t last)
{
    number_t leaves[MAX_RANKS];
    read_leaves(data, t, i, last + 1, leaves);
    for (uint32_t k = 1; k < data->ranks; k++) {
        leaves[0] = oracle_combine(oracle_dtypes[t], reduction, leaves[0], leaves[k]);
    }
    return leaves[0];
}

static data_t *make_data(uint32_t ranks, const order_t *order)
{
    data_t *data = calloc(1, sizeof *data);
    assert_non_null(data);
    data->ranks = ranks;
    data->order = *order;
    for (size_t t = 0; t < ORACLE_DTYPES; t++) {
        size_t bytes = weft_dtype_size_bytes(oracle_dtypes[t]);
        for (uint32_t r = 0; r < ranks; r++) {
            oracle_fill(oracle_dtypes[t], data->inputs[t][r], COUNT, &random_state);
        }
        for (uint32_t op = 0; op < REDUCTIONS && order->kind != WEFT_ORDER_ANY; op++) {
            for (size_t i = 0; i < COUNT; i++) {
                oracle_write(oracle_dtypes[t], (weft_reduction_t)op,
                             in_order(data, t, (weft_reduction_t)op, i), ranks,
                             data->expected[t][op] + i * bytes);
            }
        }
    }
    return data;
}

/* ---- one rank, one call ---- */

typedef enum memory { PLAIN, PEER, REGISTERED, MEMORIES } memory_t;
static const char *const memory_names[] = {"plain", "peer", "registered"};
typedef enum stream { CALLER, INLINE, THREAD, STREAMS } stream_t;
static const char *const stream_names[] = {"no", "inline", "thread"};

/* How a world runs; what is NULL or 0 is as always. */
typedef struct way {
    uint32_t ranks;
    const char *isa, *staging, *spin, *attach;
    uint32_t ranks_per_host; /* simulated: put and signal only between them */
    uint64_t delay_ns;
    bool processes;
} way_t;

typedef struct call {
    weft_collective_t op;
    size_t t; /* oracle_dtypes */
    weft_reduction_t reduction;
    size_t at, count; /* of the bucket */
    uint32_t root;
    bool in_place;
    memory_t memory;
    stream_t stream;
} call_t;

struct one;

typedef struct job { /* what the ranks of a world share */
    const way_t *way;
    const data_t *data;
    uint64_t seed;
    uint32_t runs; /* as run wants it */
    void (*run)(struct one *one);
} job_t;

typedef struct one { /* rank */
    rank_world_t *world;
    const job_t *job;
    const char *algorithm; /* set, for messages */
    uint64_t shared;       /* random, the same on all ranks */
    uint64_t own;
    uint8_t *send[MEMORIES], *recv[MEMORIES];
    weft_stream_t *streams[STREAMS];
} one_t;

static void wrong(const one_t *one, const call_t *call, const char *what, size_t byte)
{
    const way_t *way = one->job->way;
    fprintf(
        stderr,
        "rank %u of %u: %s %s %s, elements %zu to %zu, byte %zu: %s\n"
        "%s, %s memory, %s stream, root %u, algorithm %s, order %d, isa %s, staging %s, spin %s, "
        "attach %s, %u ranks per host, delays to %llu ns, %s\n",
        one->world->rank, one->world->size, weft_collective_name(call->op),
        weft_dtype_name(oracle_dtypes[call->t]), weft_reduction_name(call->reduction), call->at,
        call->at + call->count, byte, what, call->in_place ? "in place" : "apart",
        memory_names[call->memory], stream_names[call->stream], call->root,
        one->algorithm ? one->algorithm : "by cost", (int)weft_group_order(one->world->group),
        way->isa ? way->isa : "auto", way->staging ? way->staging : "as always",
        way->spin ? way->spin : "as always", way->attach ? way->attach : "auto",
        way->ranks_per_host, (unsigned long long)way->delay_ns,
        weft_group_last_path(one->world->group));
    RANK_CHECK(!"same bits");
}

static void compare(const one_t *one, const call_t *call, const uint8_t *got, const uint8_t *want,
                    size_t bytes)
{
    for (size_t i = 0; memcmp(got, want, bytes) != 0 && i < bytes; i++) {
        if (got[i] != want[i]) {
            wrong(one, call, "differs", i);
        }
    }
    if (got[bytes] != 0xa5 && !(call->op != WEFT_COLLECTIVE_ALL_REDUCE && call->in_place)) {
        wrong(one, call, "written behind the end", bytes);
    }
}

/* The elements of call that reach this rank: *first of the bucket. Shares of V are uneven. */
static size_t share(const one_t *one, const call_t *call, uint32_t rank, size_t *first,
                    uint64_t counts[MAX_RANKS])
{
    uint32_t n = one->world->size;
    size_t left = call->count;
    for (uint32_t r = 0; r < n; r++) {
        counts[r] = call->op == WEFT_COLLECTIVE_REDUCE_SCATTER ? call->count / n
                    : r + 1 == n                               ? left
                                                               : left * (r + 1) % (left / 2 + 1);
        left -= counts[r];
    }
    *first = call->at;
    for (uint32_t r = 0; r < rank; r++) {
        *first += counts[r];
    }
    return counts[rank];
}

/* Runs it; returns where the result is, or NULL where there is none. */
static const uint8_t *run_call(one_t *one, const call_t *call, size_t *first, size_t *count)
{
    weft_group_t *group = one->world->group;
    weft_stream_t *stream = one->streams[call->stream];
    weft_dtype_t dtype = oracle_dtypes[call->t];
    uint32_t rank = one->world->rank;
    size_t bytes = weft_dtype_size_bytes(dtype);
    uint64_t counts[MAX_RANKS];
    uint8_t *send = one->send[call->memory] + call->at * bytes;
    uint8_t *recv = one->recv[call->memory] + call->at * bytes;
    bool scatters =
        call->op == WEFT_COLLECTIVE_REDUCE_SCATTER || call->op == WEFT_COLLECTIVE_REDUCE_SCATTER_V;
    *first = call->at;
    *count = call->count;
    memset(one->recv[call->memory], 0xa5, BYTES + 64);
    memset(send + call->count * bytes, 0xa5, 64);
    memcpy(send, one->job->data->inputs[call->t][rank] + call->at * bytes, call->count * bytes);
    if (scatters) {
        *count = share(one, call, rank, first, counts);
    }
    if (call->in_place) {
        recv = send + (*first - call->at) * bytes;
    }
    switch (call->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        RANK_OK(weft_all_reduce(send, recv, call->count, dtype, call->reduction, group, stream));
        break;
    case WEFT_COLLECTIVE_REDUCE:
        RANK_OK(weft_reduce(send, recv, call->count, dtype, call->reduction, call->root, group,
                            stream));
        break;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        RANK_OK(weft_reduce_scatter(send, recv, *count, dtype, call->reduction, group, stream));
        break;
    default:
        RANK_OK(
            weft_reduce_scatter_v(send, recv, counts, NULL, dtype, call->reduction, group, stream));
        break;
    }
    if (stream != NULL) {
        RANK_OK(weft_stream_synchronize(stream));
    }
    return call->op == WEFT_COLLECTIVE_REDUCE && rank != call->root ? NULL : recv;
}

static void check_call(one_t *one, const call_t *call)
{
    size_t bytes = weft_dtype_size_bytes(oracle_dtypes[call->t]), first, count;
    const uint8_t *got = run_call(one, call, &first, &count);
    if (got != NULL) {
        compare(one, call, got, one->job->data->expected[call->t][call->reduction] + first * bytes,
                count * bytes);
    }
}

static const weft_collective_t operators[] = {WEFT_COLLECTIVE_ALL_REDUCE, WEFT_COLLECTIVE_REDUCE,
                                              WEFT_COLLECTIVE_REDUCE_SCATTER,
                                              WEFT_COLLECTIVE_REDUCE_SCATTER_V};

static call_t random_call(one_t *one)
{
    uint64_t x = test_next_random(&one->shared) >> 8, y = test_next_random(&one->shared) >> 8;
    size_t at = x % 3 == 0 ? 0 : y % COUNT;
    size_t most = COUNT - at;
    return (call_t){
        .op = operators[x >> 2 & 3],
        .t = (x >> 4) % ORACLE_DTYPES,
        .reduction = (weft_reduction_t)((x >> 12) % REDUCTIONS),
        .at = at,
        .count = 1 + (x >> 20 & 1 ? (y >> 20) % most : (y >> 20) % (most < 40 ? most : 40)),
        .root = (uint32_t)(x >> 24) % one->world->size,
        .in_place = x >> 32 & 1,
        .memory = (memory_t)((x >> 33) % MEMORIES),
        .stream = (stream_t)((x >> 40) % STREAMS),
    };
}

static bool mixes(const way_t *way)
{
    return way->isa != NULL && strcmp(way->isa, "mixed") == 0;
}

static void rank_main(rank_world_t *world)
{
    const job_t *job = world->user;
    one_t one = {.world = world, .job = job, .shared = job->seed};
    one.own = job->seed + world->rank + 1;
    if (mixes(job->way)) {
        uint32_t isas = wefti_isa_detect() + 1;
        world->context->settings.isa = (weft_isa_t)(world->rank % isas);
    }
    for (int m = 0; m < 2 * (int)MEMORIES; m++) {
        uint8_t **buffer = m % 2 ? &one.recv[m / 2] : &one.send[m / 2];
        void *address = NULL;
        if (m / 2 == (int)PEER) {
            RANK_OK(weft_mem_alloc(world->context, BYTES + 64, &address));
        } else {
            RANK_CHECK((address = malloc(BYTES + 64 + 4096)) != NULL);
        }
        if (m / 2 == (int)REGISTERED) {
            RANK_OK(weft_mem_register(world->context, address, BYTES + 64));
        }
        *buffer = address;
    }
    for (int s = INLINE; s < (int)STREAMS; s++) {
        weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
        params.name = "test";
        params.flags = s == THREAD ? WEFT_STREAM_THREAD : WEFT_STREAM_INLINE;
        RANK_OK(weft_stream_create(world->context, &params, &one.streams[s]));
    }
    job->run(&one);
    RANK_OK(weft_barrier(world->group, NULL));
    for (int s = INLINE; s < (int)STREAMS; s++) {
        weft_stream_destroy(one.streams[s]);
    }
    for (int m = 0; m < 2 * (int)MEMORIES; m++) {
        uint8_t *buffer = m % 2 ? one.recv[m / 2] : one.send[m / 2];
        if (m / 2 == (int)PEER) {
            RANK_OK(weft_mem_free(world->context, buffer));
            continue;
        }
        if (m / 2 == (int)REGISTERED) {
            RANK_OK(weft_mem_unregister(world->context, buffer));
        }
        free(buffer);
    }
}

/* NULL: as it was in the environment of the test. */
static void set(const char *name, const char *value)
{
    if (value != NULL) {
        setenv(name, value, 1);
    } else {
        unsetenv(name);
    }
}

static void run_job(const way_t *way, const data_t *data, uint32_t runs, void (*run)(one_t *))
{
    job_t job = {way, data, test_next_random(&random_state), runs, run};
    set("WEFT_ISA", mixes(way) ? NULL : way->isa);
    set("WEFT_STAGING_BYTES", way->staging);
    set("WEFT_SPIN_US", way->spin);
    set("WEFT_ATTACH", way->attach);
    if (way->processes) {
        assert_true(support_rank_processes(way->ranks, rank_main, &job));
    } else if (way->ranks_per_host != 0) {
        uint32_t host_of[MAX_RANKS];
        for (uint32_t r = 0; r < way->ranks; r++) {
            host_of[r] = r / way->ranks_per_host;
        }
        wefti_hub_links_t links = {host_of, job.seed, way->delay_ns};
        support_rank_threads_over(way->ranks, rank_main, &job, &links);
    } else {
        support_rank_threads(way->ranks, rank_main, &job);
    }
}

/* ---- the ways ---- */

/* Every type and reduction: the whole bucket, then parts of it in all kinds of calls. */
static void run_everything(one_t *one)
{
    for (size_t i = 0; i < ORACLE_DTYPES * REDUCTIONS; i++) {
        call_t call = {.op = WEFT_COLLECTIVE_ALL_REDUCE,
                       .t = i / REDUCTIONS,
                       .reduction = (weft_reduction_t)(i % REDUCTIONS),
                       .count = COUNT,
                       .in_place = i % 2,
                       .memory = (memory_t)(i % MEMORIES)};
        check_call(one, &call);
        call.op = operators[1 + i % 3];
        call.in_place = i / 2 % 2;
        call.memory = (memory_t)(i / 3 % MEMORIES);
        check_call(one, &call);
        for (uint32_t part = 0; part < one->job->runs; part++) {
            size_t t = call.t;
            weft_reduction_t reduction = call.reduction;
            call = random_call(one);
            call.t = t;
            call.reduction = reduction;
            check_call(one, &call);
        }
    }
}

static const way_t ways[] = {
    {.ranks = 0}, /* as always */
    {.isa = "portable"},
    {.isa = "avx2"},
    {.isa = "avx512"},
    {.isa = "mixed"}, /* another one on every rank */
    {.staging = "8K"},
    {.staging = "1M", .spin = "0"},
    {.spin = "1000"},
    {.ranks_per_host = 1},
    {.ranks_per_host = 2, .delay_ns = 20000},
    {.processes = true},
    {.processes = true, .attach = "off", .staging = "8K"},
    {.processes = true, .attach = "always"},
};

static bool cpu_has(const way_t *way)
{
    weft_isa_t parsed;
    return way->isa == NULL || mixes(way) || wefti_isa_parse(way->isa, &parsed) == WEFT_OK;
}

static void test_same_bits_every_way(void **in)
{
    static const uint32_t sizes[] = {2, 3, 5, 8, 1};
    const order_t tree = {.kind = WEFT_ORDER_TREE};
    (void)in;
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        data_t *data = make_data(sizes[n], &tree);
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            way_t way = ways[w];
            way.ranks = sizes[n];
            bool wanted = SLOW == 1 ? w == 0 || (w + n) % 3 == 0 : w % 5 == n;
            if (cpu_has(&way) && wanted) {
                run_job(&way, data, 1, run_everything);
            }
        }
        free(data);
    }
}

/* ---- orders and algorithms ---- */

static bool eligible(const one_t *one, const weft_algorithm_t *algorithm)
{
    weft_algo_params_t params;
    wefti_select_params(one->world->group, algorithm->op, 0, &params);
    return algorithm->eligible == NULL || algorithm->eligible(&params) == NULL;
}

static void run_algorithms(one_t *one)
{
    const order_t *order = &one->job->data->order;
    const weft_algorithm_t *algorithm;
    weft_group_t *group = one->world->group;
    if (order->kind != WEFT_ORDER_TREE) {
        RANK_OK(weft_group_set_order(group, order->kind, order->sizes, order->count));
    }
    for (size_t a = 0; (algorithm = wefti_algorithm_at(a)) != NULL; a++) {
        if (!wefti_collective_reduces(algorithm->op) || !eligible(one, algorithm)) {
            continue;
        }
        one->algorithm = algorithm->name;
        RANK_OK(weft_group_set_algorithm(group, algorithm->op, algorithm->name));
        for (size_t i = one->job->runs; i < ORACLE_DTYPES * REDUCTIONS; i += 2 * SLOW) {
            call_t call = random_call(one);
            call.op = algorithm->op;
            call.t = i / REDUCTIONS;
            call.reduction = (weft_reduction_t)(i % REDUCTIONS);
            check_call(one, &call);
        }
        RANK_OK(weft_group_set_algorithm(group, algorithm->op, NULL));
    }
    one->algorithm = NULL;
    for (uint32_t i = 0; i < 60 / SLOW; i++) { /* whatever is chosen */
        call_t call = random_call(one);
        check_call(one, &call);
    }
}

static void test_same_bits_every_algorithm(void **in)
{
    static const struct {
        uint32_t ranks;
        order_t order;
    } rows[] = {
        {2, {.kind = WEFT_ORDER_TREE}},
        {3, {.kind = WEFT_ORDER_TREE}},
        {5, {.kind = WEFT_ORDER_TREE}},
        {8, {.kind = WEFT_ORDER_TREE}},
        {3, {WEFT_ORDER_BLOCKS, {1, 2}, 2}},
        {5, {WEFT_ORDER_BLOCKS, {2, 3}, 2}},
        {7, {WEFT_ORDER_BLOCKS, {3, 1, 1, 2}, 4}},
        {8, {WEFT_ORDER_BLOCKS, {4, 4}, 2}}, /* subtrees: the tree by another name */
    };
    static const way_t links[] = {{.ranks = 0},
                                  {.staging = "8K"},
                                  {.ranks_per_host = 1, .delay_ns = 5000},
                                  {.ranks_per_host = 3, .staging = "8K"}};
    (void)in;
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        data_t *data = make_data(rows[n].ranks, &rows[n].order);
        for (size_t w = 0; w < sizeof links / sizeof links[0]; w++) {
            way_t way = links[w];
            way.ranks = rows[n].ranks;
            if (SLOW == 1 ? (w + n) % 2 == 0 : w == n % 4) {
                run_job(&way, data, w / 2, run_algorithms); /* half of the pairs each */
            }
        }
        free(data);
    }
}

/* order=any: every block in the order in which ring takes it round. */
static void run_ring(one_t *one)
{
    uint32_t n = one->world->size;
    weft_group_t *group = one->world->group;
    one->algorithm = "ring";
    RANK_OK(weft_group_set_order(group, WEFT_ORDER_ANY, NULL, 0));
    RANK_OK(weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_REDUCE, "ring"));
    RANK_OK(weft_group_set_algorithm(group, WEFT_COLLECTIVE_REDUCE_SCATTER, "ring"));
    for (size_t i = 0; i < 2 * ORACLE_DTYPES * REDUCTIONS; i++) {
        call_t call = random_call(one);
        size_t first, count;
        call.op = i % 2 ? WEFT_COLLECTIVE_REDUCE_SCATTER : WEFT_COLLECTIVE_ALL_REDUCE;
        call.t = i / 2 / REDUCTIONS;
        call.reduction = (weft_reduction_t)(i / 2 % REDUCTIONS);
        const uint8_t *got = run_call(one, &call, &first, &count);
        size_t bytes = weft_dtype_size_bytes(oracle_dtypes[call.t]);
        size_t unit = WEFTI_SHARD_BYTES / bytes; /* shards start on cache lines */
        size_t shard = ((call.count + n - 1) / n + unit - 1) / unit * unit;
        for (size_t e = 0; e < count; e++) {
            uint8_t want[8];
            uint32_t last = i % 2 ? one->world->rank : (uint32_t)(e / shard);
            oracle_write(oracle_dtypes[call.t], call.reduction,
                         around(one->job->data, call.t, call.reduction, first + e, last), n, want);
            if (memcmp(got + e * bytes, want, bytes) != 0) {
                wrong(one, &call, "is not in ring's order", e * bytes);
            }
        }
    }
}

static void test_same_bits_ring_in_its_own_order(void **in)
{
    static const uint32_t sizes[] = {2, 3, 5, 8};
    const order_t any = {.kind = WEFT_ORDER_ANY};
    (void)in;
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        data_t *data = make_data(sizes[n], &any);
        for (uint32_t each = 0; each < 2; each++) {
            const way_t way = {.ranks = sizes[n], .ranks_per_host = each};
            run_job(&way, data, 0, run_ring);
        }
        free(data);
    }
}

/* ---- timing ---- */

/* Ranks come when they want: at once, a little later, or when all others have been waiting. */
static void run_delayed(one_t *one)
{
    for (uint32_t i = 0; i < one->job->runs; i++) {
        call_t call = random_call(one);
        uint64_t naps = test_next_random(&one->own) >> 32;
        for (naps = naps % 4 == 0 ? naps / 4 % 64 : naps % 4 - 1; naps > 0; naps--) {
            sched_yield();
        }
        check_call(one, &call);
    }
}

static void test_same_bits_1000_runs_with_delays(void **in)
{
    static const way_t late[] = {
        {.ranks = 2},
        {.ranks = 4, .spin = "0"},
        {.ranks = 3, .ranks_per_host = 1, .delay_ns = 100000},
        {.ranks = 5, .ranks_per_host = 2, .delay_ns = 30000},
    };
    const order_t tree = {.kind = WEFT_ORDER_TREE};
    (void)in;
    for (size_t w = 0; w < sizeof late / sizeof late[0]; w++) {
        data_t *data = make_data(late[w].ranks, &tree);
        run_job(&late[w], data, 250 / SLOW, run_delayed);
        free(data);
    }
}

static int setup(void **out)
{
    const char *seed = getenv("WEFT_TEST_SEED");
    (void)out;
    random_state = seed ? strtoull(seed, NULL, 0) | 1 : 0x5eed2027;
    print_message("seed %llu\n", (unsigned long long)random_state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_every_way),
        cmocka_unit_test(test_same_bits_every_algorithm),
        cmocka_unit_test(test_same_bits_ring_in_its_own_order),
        cmocka_unit_test(test_same_bits_1000_runs_with_delays),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups whose ranks sit on simulated hosts and reach each other by put and signal only, over a
 * network that delays and reorders. What they compute is compared, bit by bit, with what the same
 * calls give on ranks that share memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_ranks.h"

#include "runtime/base/sync.h"
#include "ops/algo/table.h"
#include "runtime/collective/call.h"
#include "tests/support/support.h"

#define MAX_RANKS 8u
#define MAX_STEPS 400u
#define RANDOM_STEPS 30u
#define ROOM ((size_t)256 << 10)

static const uint32_t apart[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint32_t two_by_three[MAX_RANKS] = {0, 0, 0, 1, 1, 1};
static const uint32_t uneven[MAX_RANKS] = {4, 1, 1, 4, 1, 9, 9, 1};

/* ---- random programs ---- */

typedef struct step {
    weft_collective_t op;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root;
    uint64_t count; /* of one block; of the longest, in V forms */
    uint64_t seed;  /* of what is sent */
    bool in_place, registered;
    const weft_algorithm_t *algorithm; /* NULL: whatever is chosen */
    weft_order_t order;
} step_t;

typedef struct program {
    uint32_t size, count;
    step_t steps[MAX_STEPS];
    uint64_t (*digests)[MAX_STEPS]; /* [rank]: of what each step left in the receive buffer */
    bool over_puts;                 /* which of the two runs this is */
} program_t;

static const weft_collective_t operators[] = {
    WEFT_COLLECTIVE_ALL_REDUCE,       WEFT_COLLECTIVE_REDUCE_SCATTER, WEFT_COLLECTIVE_ALL_GATHER,
    WEFT_COLLECTIVE_BROADCAST,        WEFT_COLLECTIVE_REDUCE,         WEFT_COLLECTIVE_GATHER,
    WEFT_COLLECTIVE_SCATTER,          WEFT_COLLECTIVE_ALL_TO_ALL,     WEFT_COLLECTIVE_ALL_GATHER_V,
    WEFT_COLLECTIVE_REDUCE_SCATTER_V, WEFT_COLLECTIVE_ALL_TO_ALL_V,   WEFT_COLLECTIVE_BARRIER,
    WEFT_COLLECTIVE_SEND_RECV,
};
#define OPERATORS (sizeof operators / sizeof operators[0])

static void make_program(program_t *program, uint32_t size, uint32_t count, uint64_t seed,
                         uint64_t max_count)
{
    uint64_t state = seed * 2654435761u + 88172645463325252ull;
    program->size = size;
    program->count = count;
    for (uint32_t i = 0; i < count; i++) {
        step_t *step = &program->steps[i];
        *step = (step_t){.order = WEFT_ORDER_TREE};
        step->op = operators[i < OPERATORS ? i : test_next_random(&state) % OPERATORS];
        step->dtype = (weft_dtype_t)(1 + test_next_random(&state) % 12);
        step->reduction = (weft_reduction_t)(test_next_random(&state) % 5);
        step->root = (uint32_t)(test_next_random(&state) % size);
        step->seed = test_next_random(&state) | 1;
        step->in_place = test_next_random(&state) % 3 == 0;
        step->registered = test_next_random(&state) % 2 == 0;
        /* Mostly small, some at every scale, some none. */
        uint64_t scale = 1ull << test_next_random(&state) % 16;
        scale = scale < max_count ? scale : max_count;
        step->count = test_next_random(&state) % 9 == 0 ? 0 : test_next_random(&state) % scale + 1;
        size_t room = ROOM / weft_dtype_size_bytes(step->dtype) / size - 8;
        step->count = step->count < room ? step->count : room;
    }
}

static void fill(uint8_t *data, size_t bytes, uint64_t seed, uint32_t rank)
{
    uint64_t state = seed + rank * 0x9e3779b97f4a7c15ull;
    state = state != 0 ? state : 1;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = test_next_random(&state);
        memcpy(data + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static uint64_t digest(const uint8_t *data, size_t bytes)
{
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        hash = (hash ^ word) * 1099511628211ull;
        hash ^= hash >> 32;
    }
    return hash;
}

typedef struct rank_memory {
    uint8_t *plain[2], *shared[2];
} rank_memory_t;

static uint64_t v_count(const step_t *step, uint32_t a, uint32_t b)
{
    uint64_t state = step->seed ^ (a * 131 + b + 1) * 0x9e3779b97f4a7c15ull;
    return test_next_random(&state) % (step->count + 1);
}

static weft_status_t call_v(const step_t *step, uint8_t *send, uint8_t *recv, weft_group_t *group)
{
    uint32_t n = weft_group_size(group), rank = weft_group_rank(group);
    uint64_t counts[MAX_RANKS], in[MAX_RANKS], at[MAX_RANKS], total = 0;
    for (uint32_t r = 0; r < n; r++) {
        bool pairs = step->op == WEFT_COLLECTIVE_ALL_TO_ALL_V;
        counts[r] = v_count(step, pairs ? rank : 0, r);
        in[r] = v_count(step, r, rank);
    }
    const uint64_t *blocks = step->op == WEFT_COLLECTIVE_ALL_TO_ALL_V ? in : counts;
    for (uint32_t i = n; i > 0; i--) { /* blocks in reverse order */
        at[i - 1] = total;
        total += blocks[i - 1];
    }
    switch (step->op) {
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return weft_all_gather_v(send, recv, counts, at, step->dtype, group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(send, recv, counts, at, step->dtype, step->reduction, group,
                                     NULL);
    default:
        return weft_all_to_all_v(send, counts, NULL, recv, in, at, step->dtype, group, NULL);
    }
}

/* To the next, from the one before; and to and from the one opposite, twice. */
static weft_status_t exchange(const step_t *step, uint8_t *send, uint8_t *recv, weft_group_t *group)
{
    uint32_t n = weft_group_size(group), rank = weft_group_rank(group);
    uint32_t next = (rank + 1) % n, last = (rank + n - 1) % n, opposite = n - 1 - rank;
    size_t bytes = step->count * weft_dtype_size_bytes(step->dtype);
    if (n == 1) {
        return WEFT_OK;
    }
    RANK_OK(weft_batch_begin(group));
    RANK_OK(weft_recv(recv, step->count, step->dtype, last, group, NULL));
    RANK_OK(weft_send(send, step->count, step->dtype, next, group, NULL));
    for (uint32_t i = 0; i < 2 && opposite != rank && n > 2; i++) {
        RANK_OK(weft_send(send + i, 3, WEFT_DTYPE_U8, opposite, group, NULL));
        RANK_OK(weft_recv(recv + bytes + 8 * i, 3, WEFT_DTYPE_U8, opposite, group, NULL));
    }
    return weft_batch_end(group, NULL);
}

static weft_status_t call(const step_t *step, const rank_memory_t *memory, weft_group_t *group)
{
    uint8_t *const *buffers = step->registered ? memory->shared : memory->plain;
    uint8_t *send = buffers[0], *recv = buffers[1];
    uint32_t rank = weft_group_rank(group);
    bool root = rank == step->root;
    size_t block = step->count * weft_dtype_size_bytes(step->dtype);
    uint64_t count = step->count;
    weft_dtype_t dtype = step->dtype;
    uint8_t *same = step->in_place ? recv : send;
    fill(send, ROOM, step->seed, rank);
    fill(recv, ROOM, step->seed + 77, rank);
    switch (step->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(same, recv, count, dtype, step->reduction, group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(send, step->in_place ? send + rank * block : recv, count, dtype,
                                   step->reduction, group, NULL);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(step->in_place ? recv + rank * block : send, recv, count, dtype,
                               group, NULL);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(same, recv, count, dtype, step->root, group, NULL);
    case WEFT_COLLECTIVE_REDUCE:
        return weft_reduce(same, root ? recv : NULL, count, dtype, step->reduction, step->root,
                           group, NULL);
    case WEFT_COLLECTIVE_GATHER:
        return weft_gather(step->in_place && root ? recv + rank * block : send, root ? recv : NULL,
                           count, dtype, step->root, group, NULL);
    case WEFT_COLLECTIVE_SCATTER:
        return weft_scatter(root ? send : NULL, step->in_place && root ? send + rank * block : recv,
                            count, dtype, step->root, group, NULL);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(same, recv, count, dtype, group, NULL);
    case WEFT_COLLECTIVE_SEND_RECV:
        return exchange(step, send, recv, group);
    case WEFT_COLLECTIVE_BARRIER:
        return weft_barrier(group, NULL);
    default:
        return call_v(step, send, recv, group);
    }
}

static void open_memory(rank_world_t *world, rank_memory_t *memory)
{
    for (uint32_t i = 0; i < 2; i++) {
        void *shared = NULL;
        RANK_OK(weft_mem_alloc(world->context, ROOM, &shared));
        memory->shared[i] = shared;
        memory->plain[i] = malloc(ROOM);
        RANK_CHECK(memory->plain[i] != NULL);
    }
}

static void close_memory(rank_world_t *world, rank_memory_t *memory)
{
    for (uint32_t i = 0; i < 2; i++) {
        RANK_OK(weft_mem_free(world->context, memory->shared[i]));
        free(memory->plain[i]);
    }
}

/* On shared memory the bits of any algorithm, where the order says that they are all the same. */
static void choose(const step_t *step, weft_group_t *group, bool over_puts)
{
    if (step->algorithm != NULL) {
        bool any = over_puts || step->order == WEFT_ORDER_ANY;
        RANK_OK(weft_group_set_order(group, step->order, NULL, 0));
        RANK_OK(weft_group_set_algorithm(group, step->op, any ? step->algorithm->name : NULL));
    }
}

static void run_program(rank_world_t *world)
{
    program_t *program = world->user;
    rank_memory_t memory;
    open_memory(world, &memory);
    for (uint32_t i = 0; i < program->count; i++) {
        const step_t *step = &program->steps[i];
        choose(step, world->group, program->over_puts);
        RANK_OK(call(step, &memory, world->group));
        uint8_t *const *buffers = step->registered ? memory.shared : memory.plain;
        program->digests[world->rank][i] = digest(buffers[0], ROOM) ^ digest(buffers[1], ROOM) * 31;
        if (program->over_puts && world->size > 1) {
            RANK_CHECK(world->group->put_peer_count > 0);
            const char *path = weft_group_last_path(world->group);
            RANK_CHECK(strcmp(path, "direct") != 0 && strcmp(path, "staged") != 0);
        }
    }
    close_memory(world, &memory);
}

static program_t shared_program;

static void compare_runs(const wefti_hub_links_t *links)
{
    static uint64_t expected[MAX_RANKS][MAX_STEPS], got[MAX_RANKS][MAX_STEPS];
    program_t *program = &shared_program;
    program->digests = expected;
    program->over_puts = false;
    support_rank_threads_over(program->size, run_program, program, NULL);
    program->digests = got;
    program->over_puts = true;
    support_rank_threads_over(program->size, run_program, program, links);
    for (uint32_t r = 0; r < program->size; r++) {
        for (uint32_t i = 0; i < program->count; i++) {
            if (expected[r][i] != got[r][i]) {
                const step_t *s = &program->steps[i];
                fail_msg("rank %u, step %u: %s %s of %llu %s differs over put links", r, i,
                         weft_collective_name(s->op),
                         s->algorithm != NULL ? s->algorithm->name : "",
                         (unsigned long long)s->count, weft_dtype_name(s->dtype));
            }
        }
    }
}

static void check_same_bits(uint32_t size, const uint32_t *host_of, uint64_t seed,
                            uint64_t max_count, uint64_t max_delay_ns)
{
    wefti_hub_links_t links = {.host_of = host_of, .seed = seed, .max_delay_ns = max_delay_ns};
    print_message("%u ranks, seed %llu\n", size, (unsigned long long)seed);
    make_program(&shared_program, size, RANDOM_STEPS, seed, max_count);
    compare_runs(&links);
}

/* Every algorithm that an operator has, in both orders, is lowered to puts and gives its own bits.
 */
static void check_algorithms(uint32_t size, const uint32_t *host_of, const uint32_t *host_sizes,
                             uint32_t host_count, uint64_t seed)
{
    static const uint64_t counts[] = {1, 333, 6001};
    wefti_hub_links_t links = {.host_of = host_of, .seed = seed, .max_delay_ns = 10000};
    const weft_algorithm_t *algorithm;
    program_t *program = &shared_program;
    uint32_t at = 0;
    make_program(program, size, MAX_STEPS, seed, UINT64_MAX);
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        weft_algo_params_t params = {.struct_size = sizeof params,
                                     .op = algorithm->op,
                                     .group_size = size,
                                     .host_sizes = host_sizes,
                                     .host_count = host_count};
        bool tree = algorithm->eligible(&params) == NULL;
        params.order = WEFT_ORDER_ANY;
        if (algorithm->op == WEFT_COLLECTIVE_SEND_RECV ||
            (!tree && algorithm->eligible(&params) != NULL)) {
            continue;
        }
        for (uint32_t k = 0; k < 4; k++) {
            assert_true(at < MAX_STEPS);
            step_t *step = &program->steps[at++];
            step->op = algorithm->op;
            step->algorithm = algorithm;
            step->order = tree ? WEFT_ORDER_TREE : WEFT_ORDER_ANY;
            step->count = counts[k % 3];
            step->dtype = k % 2 == 0 ? WEFT_DTYPE_F32 : WEFT_DTYPE_BF16;
            if (!tree) { /* rings: which shard an element is in depends on the chunks that fit */
                step->dtype = WEFT_DTYPE_I32;
            }
            step->reduction = WEFT_REDUCTION_SUM;
        }
    }
    assert_true(at > 100);
    program->count = at;
    compare_runs(&links);
}

static void test_every_algorithm(void **state)
{
    (void)state;
    static const uint32_t ones[] = {1, 1, 1}, threes[] = {3, 3};
    if (!TEST_SANITIZED) {
        check_algorithms(3, apart, ones, 3, 31);
    }
    check_algorithms(6, two_by_three, threes, 2, 32);
}

/* What looks at hosts, where their ranks do not follow each other; large enough to lend. */
static void test_hierarchies_of_mixed_hosts(void **state)
{
    (void)state;
    static const uint32_t in_turn[MAX_RANKS] = {0, 1, 0, 1, 0, 1, 0, 1};
    static const uint32_t mixed[MAX_RANKS] = {2, 0, 0, 2, 0, 1, 1, 0};
    static const uint64_t counts[] = {1, 333, 9001, 30000};
    static const uint32_t *const placements[] = {in_turn, mixed};
    program_t *program = &shared_program;
    for (uint32_t p = TEST_SANITIZED; p < 2; p++) {
        wefti_hub_links_t links = {.host_of = placements[p], .seed = 40 + p, .max_delay_ns = 20000};
        const weft_algorithm_t *algorithm;
        uint32_t at = 0, size = p == 0 ? 4 : 8;
        make_program(program, size, MAX_STEPS, 50 + p, UINT64_MAX);
        for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
            bool looks = strcmp(algorithm->name, "hierarchical") == 0 ||
                         strcmp(algorithm->name, "rails") == 0;
            for (uint32_t k = 0; looks && k < 4; k++) {
                step_t *step = &program->steps[at++];
                uint64_t most = ROOM / size / 4 - 8;
                step->op = algorithm->op;
                step->algorithm = algorithm;
                step->order = WEFT_ORDER_TREE;
                step->count = counts[k] < most ? counts[k] : most;
                step->dtype = k == 1 ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32;
                step->reduction = WEFT_REDUCTION_SUM;
                step->registered = k != 2;
            }
        }
        assert_true(at >= 40);
        program->count = at;
        compare_runs(&links);
    }
}

/* ---- messages ---- */

static uint64_t sent_so_far(const rank_world_t *world)
{
    wefti_link_stats_t stats;
    wefti_endpoint_link_stats(world->group->endpoint, 1 - world->rank, &stats);
    return stats.messages_sent;
}

/* A small call is one put and one signal each way: what ranks say of it, with the data. */
static void run_small_calls(rank_world_t *world)
{
    static const uint64_t counts[] = {1, 16, 512, 2048};
    float x[2048] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        RANK_OK(weft_all_reduce(x, x, counts[i], WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group,
                                NULL));
        uint64_t before = sent_so_far(world);
        for (uint32_t call = 0; call < 10; call++) {
            RANK_OK(weft_all_reduce(x, x, counts[i], WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                                    world->group, NULL));
            RANK_CHECK(strcmp(weft_group_last_path(world->group), "posting") == 0);
        }
        RANK_CHECK(sent_so_far(world) - before == 20);
    }
}

static void test_small_calls_are_one_message_each_way(void **state)
{
    (void)state;
    if (getenv("WEFT_TEST_MESH_RANKS") != NULL) {
        return; /* hosted groups have no data in slots */
    }
    wefti_hub_links_t links = {.host_of = apart, .seed = 5};
    support_rank_threads_over(2, run_small_calls, NULL, &links);
}

/* Postings go to every rank of other hosts, so with more of them less goes along. */
static void run_posted_sizes(rank_world_t *world)
{
    static float x[MAX_RANKS][2048];
    RANK_CHECK(world->group->calls->slot_bytes < 8192);
    RANK_OK(weft_all_reduce(x[world->rank], x[world->rank], 2, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                            world->group, NULL));
    RANK_CHECK(strcmp(weft_group_last_path(world->group), "posting") == 0);
    RANK_OK(weft_all_reduce(x[world->rank], x[world->rank], 2048, WEFT_DTYPE_F32,
                            WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_CHECK(strcmp(weft_group_last_path(world->group), "schedule") == 0);
}

static void test_postings_to_many_ranks_are_short(void **state)
{
    (void)state;
    if (getenv("WEFT_TEST_MESH_RANKS") != NULL) {
        return; /* hosted groups have no data in slots */
    }
    wefti_hub_links_t links = {.host_of = two_by_three, .seed = 6};
    support_rank_threads_over(6, run_posted_sizes, NULL, &links);
}

static void test_same_bits_all_apart(void **state)
{
    (void)state;
    check_same_bits(2, apart, 1, UINT64_MAX, 0);
    check_same_bits(3, apart, 3, UINT64_MAX, 100000);
    if (!TEST_SANITIZED) {
        check_same_bits(4, apart, 2, UINT64_MAX, 30000);
    }
}

static void test_same_bits_two_hosts(void **state)
{
    (void)state;
    check_same_bits(6, two_by_three, 5, UINT64_MAX, 30000);
    if (!TEST_SANITIZED) {
        check_same_bits(6, two_by_three, 4, UINT64_MAX, 0);
    }
}

static void test_same_bits_uneven_hosts(void **state)
{
    (void)state;
    check_same_bits(5, uneven, 6, UINT64_MAX, 10000);
    check_same_bits(8, uneven, 7, 2000, 50000);
}

/* What fits a posting must not depend on where hosts end, either. */
static void test_same_bits_small(void **state)
{
    (void)state;
    for (uint64_t seed = TEST_SANITIZED ? 14 : 10; seed < 16; seed++) {
        check_same_bits(2 + seed % 5, seed % 2 ? apart : uneven, seed, 64, seed * 5000);
    }
}

/* ---- several groups ---- */

static void check_sum(weft_group_t *group, uint64_t count)
{
    float *x = malloc(count * sizeof *x), expected = 0;
    RANK_CHECK(x != NULL);
    for (uint32_t r = 0; r < weft_group_size(group); r++) {
        expected += (float)weft_group_world_rank(group, r) + 1;
    }
    for (uint64_t i = 0; i < count; i++) {
        x[i] = (float)weft_group_world_rank(group, weft_group_rank(group)) + 1;
    }
    RANK_OK(weft_all_reduce(x, x, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    for (uint64_t i = 0; i < count; i++) {
        RANK_CHECK(x[i] == expected);
    }
    free(x);
}

/* Groups of one host share memory, groups across hosts do not; channels are used again at once. */
static void run_splits(rank_world_t *world)
{
    weft_group_t *host = NULL, *across = NULL, *twin = NULL;
    uint32_t half = world->size / 2;
    for (uint32_t round = 0; round < 12; round++) {
        RANK_OK(weft_group_split(world->group, world->rank / half, 0, &host));
        RANK_OK(weft_group_split(world->group, world->rank % half, -(int64_t)world->rank, &across));
        RANK_OK(weft_group_duplicate(across, &twin));
        RANK_CHECK(host->put_peer_count == 0);
        RANK_CHECK(across->put_peer_count == 1);
        check_sum(host, 5 + round);
        check_sum(across, 5 + round);
        check_sum(twin, 1000);
        check_sum(host, 9000);
        check_sum(world->group, 40);
        check_sum(across, 20000);
        weft_group_destroy(round % 2 ? host : across);
        check_sum(twin, 70);
        weft_group_destroy(twin);
        weft_group_destroy(round % 2 ? across : host);
    }
}

static void test_groups_across_hosts(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        wefti_hub_links_t links = {
            .host_of = two_by_three, .seed = seed, .max_delay_ns = (seed - 1) * 40000};
        support_rank_threads_over(6, run_splits, NULL, &links);
    }
}

/* Calls of several groups in flight on streams, and a receiver that comes late. */
static void run_streams(rank_world_t *world)
{
    enum { CALLS = 30 };
    weft_group_t *groups[2] = {NULL, NULL};
    weft_stream_t *streams[2] = {NULL, NULL};
    weft_stream_params_t threaded = WEFT_STREAM_PARAMS_INIT;
    threaded.name = "comm";
    threaded.flags = WEFT_STREAM_THREAD;
    static const uint64_t counts[] = {1, 700, 5000};
    float *x[2][CALLS];
    for (uint32_t g = 0; g < 2; g++) {
        RANK_OK(weft_group_duplicate(world->group, &groups[g]));
        RANK_OK(weft_stream_create(world->context, g == 0 ? NULL : &threaded, &streams[g]));
    }
    for (uint32_t i = 0; i < CALLS; i++) {
        for (uint32_t g = 0; g < 2; g++) {
            uint64_t count = counts[i % 3];
            x[g][i] = malloc(count * sizeof(float));
            RANK_CHECK(x[g][i] != NULL);
            for (uint64_t k = 0; k < count; k++) {
                x[g][i][k] = (float)(world->rank + i + g);
            }
            RANK_OK(weft_all_reduce(x[g][i], x[g][i], count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                                    groups[g], streams[g]));
        }
    }
    for (uint32_t g = 0; g < 2; g++) {
        RANK_OK(weft_stream_synchronize(streams[g]));
        for (uint32_t i = 0; i < CALLS; i++) {
            float expected = 0;
            for (uint32_t r = 0; r < world->size; r++) {
                expected += (float)(r + i + g);
            }
            RANK_CHECK(x[g][i][0] == expected && x[g][i][counts[i % 3] - 1] == expected);
            free(x[g][i]);
        }
        weft_stream_destroy(streams[g]);
        weft_group_destroy(groups[g]);
    }
}

static void test_streams_over_put_links(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = uneven, .seed = 21, .max_delay_ns = 20000};
    support_rank_threads_over(3, run_streams, NULL, &links);
}

/* A long message through a mailbox whose receiver is slow, both ways at once. */
static void run_mailboxes(rank_world_t *world)
{
    size_t bytes = 130001;
    uint8_t *out = malloc(bytes), *in = malloc(bytes);
    RANK_CHECK(out != NULL && in != NULL);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t step = 1; step < world->size; step++) {
            uint32_t to = (world->rank + step) % world->size;
            uint32_t from = (world->rank + world->size - step) % world->size;
            fill(out, bytes, 100 + round, world->rank * 16 + to);
            memset(in, 0, bytes);
            RANK_OK(weft_batch_begin(world->group));
            RANK_OK(weft_send(out, bytes - round, WEFT_DTYPE_U8, to, world->group, NULL));
            RANK_OK(weft_recv(in, bytes - round, WEFT_DTYPE_U8, from, world->group, NULL));
            RANK_OK(weft_batch_end(world->group, NULL));
            fill(out, bytes, 100 + round, from * 16 + world->rank);
            RANK_CHECK(memcmp(out, in, bytes - round) == 0 && (round == 0 || in[bytes - 1] == 0));
        }
    }
    /* Sent, and never received. */
    if (world->rank == 0) {
        RANK_OK(weft_send(out, 1000, WEFT_DTYPE_U8, 1, world->group, NULL));
    }
    free(out);
    free(in);
}

static void test_send_and_receive(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        wefti_hub_links_t links = {
            .host_of = seed == 1 ? apart : uneven, .seed = seed, .max_delay_ns = 30000};
        support_rank_threads_over(3, run_mailboxes, NULL, &links);
    }
}

/* ---- errors ---- */

/* One rank calls something else: all learn, in this call or the next, at every size. */
static void run_disagreements(rank_world_t *world)
{
    uint64_t state = *(uint64_t *)world->user * 77 + 5;
    rank_memory_t memory;
    open_memory(world, &memory);
    program_t *program = malloc(sizeof *program);
    RANK_CHECK(program != NULL);
    for (uint32_t i = 0; i < 25; i++) {
        weft_group_t *group = NULL;
        RANK_OK(weft_group_duplicate(world->group, &group));
        make_program(program, world->size, OPERATORS, test_next_random(&state), UINT64_MAX);
        uint32_t victim = (uint32_t)(test_next_random(&state) % world->size);
        uint32_t which = (uint32_t)(test_next_random(&state) % (OPERATORS - 2)); /* no send */
        step_t step = program->steps[which];
        step.count += 1;
        step.dtype = WEFT_DTYPE_I32;
        if (world->rank == victim) {
            step.dtype = WEFT_DTYPE_U32;
        }
        if (step.op == WEFT_COLLECTIVE_BARRIER) {
            step.op = WEFT_COLLECTIVE_ALL_GATHER;
        }
        uint64_t start = wefti_now_ns();
        weft_status_t status = call(&step, &memory, group);
        status = status == WEFT_OK ? weft_barrier(group, NULL) : status;
        char text[32];
        snprintf(text, sizeof text, "rank %u", victim);
        if (status != WEFT_ERR_MISMATCH) {
            fprintf(stderr, "case %u, rank %u, victim %u: %s of %llu, root %u, path %s\n", i,
                    world->rank, victim, weft_collective_name(step.op),
                    (unsigned long long)step.count, step.root, weft_group_last_path(group));
        }
        RANK_CHECK(status == WEFT_ERR_MISMATCH);
        RANK_CHECK(strstr(weft_last_error(), text) != NULL);
        RANK_CHECK(weft_barrier(group, NULL) == WEFT_ERR_MISMATCH);
        RANK_CHECK(wefti_now_ns() - start < 300000000000ull);
        weft_group_destroy(group);
    }
    free(program);
    check_sum(world->group, 10); /* others are whole */
    close_memory(world, &memory);
}

static void test_disagreement_over_put_links(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        wefti_hub_links_t links = {.host_of = seed == 1   ? apart
                                              : seed == 2 ? uneven
                                                          : two_by_three,
                                   .seed = seed,
                                   .max_delay_ns = seed * 20000};
        support_rank_threads_over(seed == 3 ? 6 : 3, run_disagreements, &seed, &links);
    }
}

/* A rank that calls nothing is named by those who wait, and learns it itself. */
static void run_late(rank_world_t *world)
{
    float x = 1;
    weft_status_t status;
    if (world->rank == 1) {
        while ((status = weft_group_status(world->group)) == WEFT_OK) {
            wefti_signal_t never = {0};
            wefti_futex_wait(&never.value, 0, 1000000);
        }
    } else {
        status = weft_all_reduce(&x, &x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_TIMEOUT);
    RANK_CHECK(strstr(weft_last_error(), "late: rank 1") != NULL);
}

static void test_late_rank(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = apart, .seed = 3, .max_delay_ns = 50000};
    setenv("WEFT_TIMEOUT", "2", 1);
    support_rank_threads_over(3, run_late, NULL, &links);
    unsetenv("WEFT_TIMEOUT");
}

/* A rank that ends the world, and one that is gone while others call. */
static void run_abort(rank_world_t *world)
{
    float x[3000] = {1};
    uint64_t start = wefti_now_ns();
    weft_status_t status;
    if (world->rank == 2) {
        weft_context_abort(world->context, "rank 2 cannot go on");
        status = weft_group_status(world->group);
    } else {
        status =
            weft_all_reduce(x, x, 3000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    }
    RANK_CHECK(status == WEFT_ERR_ABORTED);
    RANK_CHECK(strstr(weft_last_error(), "rank 2 cannot go on") != NULL);
    RANK_CHECK(wefti_now_ns() - start < 300000000000ull);
}

static void run_gone(rank_world_t *world)
{
    float x[3000] = {1};
    check_sum(world->group, 4);
    if (world->rank == 1) {
        return; /* destroys the group, which waits for the others, and leaves */
    }
    weft_status_t status =
        weft_all_reduce(x, x, 3000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
    /* Ranks 0 and 1 wait for each other. Where that is not noticed (ThreadSanitizer has a thread
     * of its own, which never rests), rank 1 is late for one and gone for the other. */
    if (status == WEFT_ERR_MISMATCH) {
        RANK_CHECK(strstr(weft_last_error(), "group_destroy") != NULL);
    } else {
        RANK_CHECK(status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_PEER_DIED);
        RANK_CHECK(strstr(weft_last_error(), "rank 1") != NULL);
    }
}

static void test_abort_and_gone(void **state)
{
    (void)state;
    wefti_hub_links_t links = {.host_of = uneven, .seed = 3, .max_delay_ns = 50000};
    support_rank_threads_over(3, run_abort, NULL, &links);
    setenv("WEFT_TIMEOUT", "2", 1);
    support_rank_threads_over(3, run_gone, NULL, &links);
    unsetenv("WEFT_TIMEOUT");
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    setenv("WEFT_STAGING_BYTES", "64K", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_small),
        cmocka_unit_test(test_same_bits_all_apart),
        cmocka_unit_test(test_same_bits_two_hosts),
        cmocka_unit_test(test_same_bits_uneven_hosts),
        cmocka_unit_test(test_every_algorithm),
        cmocka_unit_test(test_hierarchies_of_mixed_hosts),
        cmocka_unit_test(test_small_calls_are_one_message_each_way),
        cmocka_unit_test(test_postings_to_many_ranks_are_short),
        cmocka_unit_test(test_groups_across_hosts),
        cmocka_unit_test(test_streams_over_put_links),
        cmocka_unit_test(test_send_and_receive),
        cmocka_unit_test(test_disagreement_over_put_links),
        cmocka_unit_test(test_late_rank),
        cmocka_unit_test(test_abort_and_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

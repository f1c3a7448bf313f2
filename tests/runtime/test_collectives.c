/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective against an oracle in plain C: ranks 1 to 9, all types and reductions, sizes
 * around every path's limits, in place and not, memory that peers reach and memory that they do
 * not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_ranks.h"

#include "ops/reduce/reduce.h"

#define MAX_RANKS 9u

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

/*
 * What rank r has at byte i in a call: numbers that do not overflow, or, in every third call, any
 * bits at all, NaNs, infinities, denormals and signed zeros among them.
 */
static void fill(void *data, uint64_t count, weft_dtype_t dtype, uint32_t rank, uint64_t seed)
{
    size_t elem_bytes = weft_dtype_size_bytes(dtype);
    uint64_t start = mix(seed * 1000003 + rank * 7919);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t x = (start + i) * 0x9e3779b97f4a7c15ull;
        x ^= x >> 32;
        switch (seed % 3 == 0 ? WEFT_DTYPE_NONE : dtype) {
        case WEFT_DTYPE_F64:
            ((double *)data)[i] = (double)(int64_t)(x % 2001) / 64 - 15;
            break;
        case WEFT_DTYPE_F32:
            ((float *)data)[i] = (float)(int64_t)(x % 200001) / 7777 - 12;
            break;
        case WEFT_DTYPE_F16:
            ((uint16_t *)data)[i] = (uint16_t)(0x3000 + x % 0x1000); /* 0.125 to 2 */
            break;
        case WEFT_DTYPE_BF16:
            ((uint16_t *)data)[i] = (uint16_t)(0x3f00 + x % 0x100); /* 0.5 to 2 */
            break;
        default:
            x = x % 5 == 0 ? x & 0x8000000080008080ull : x % 5 == 1 ? x | 0x7ff07f807f807f80ull : x;
            memcpy((uint8_t *)data + i * elem_bytes, &x, elem_bytes);
            break;
        }
    }
}

typedef struct sweep {
    bool registered;
    uint64_t *counts;
    uint32_t count_count;
    uint32_t seed;
    bool all_types;
} sweep_t;

typedef struct buffers {
    uint8_t *send, *recv;        /* as the call gets them */
    uint8_t *sources[MAX_RANKS]; /* what every rank sends, in private memory */
    uint8_t *expected;
} buffers_t;

#define ROOM ((size_t)2 << 20)

typedef struct one_rank {
    rank_world_t *world;
    sweep_t *sweep;
    buffers_t b;
    uint64_t seed;
} one_rank_t;

static size_t size_of(weft_dtype_t dtype)
{
    return weft_dtype_size_bytes(dtype);
}

static void make_sources(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    one->seed++;
    /* ranks come at different times, in an order of chance */
    for (uint64_t naps = mix(one->seed * 77 + one->world->rank) % 32; naps < 3; naps++) {
        sched_yield();
    }
    for (uint32_t r = 0; r < one->world->size; r++) {
        fill(one->b.sources[r], count, dtype, r, one->seed);
    }
    size_t used = (count + 16) * one->world->size * size_of(dtype);
    used = used < ROOM ? used : ROOM;
    memset(one->b.recv, 0xa5, used);
    memset(one->b.expected, 0xa5, used);
}

static void expect_reduced(one_rank_t *one, uint64_t from, uint64_t count, weft_dtype_t dtype,
                           weft_reduction_t reduction)
{
    const void *sources[MAX_RANKS];
    void *destination = one->b.expected;
    for (uint32_t r = 0; r < one->world->size; r++) {
        sources[r] = one->b.sources[r] + from * size_of(dtype);
    }
    weft_reduce_t reduce = {sources, one->world->size, &destination, 1, count, dtype, reduction};
    RANK_OK(wefti_reduce(&reduce, WEFTI_ISA_PORTABLE));
}

static void compare(one_rank_t *one, const uint8_t *got, uint64_t count, weft_dtype_t dtype,
                    const char *what)
{
    size_t bytes = count * size_of(dtype);
    if (memcmp(got, one->b.expected, bytes) != 0) {
        size_t at = 0;
        while (got[at] == one->b.expected[at]) {
            at++;
        }
        fprintf(stderr, "%s rank %u of %u, %llu of %s: byte %zu differs\n", what, one->world->rank,
                one->world->size, (unsigned long long)count, weft_dtype_name(dtype), at);
        RANK_CHECK(false);
    }
}

static void all_reduce(one_rank_t *one, uint64_t count, weft_dtype_t dtype,
                       weft_reduction_t reduction, bool in_place)
{
    rank_world_t *w = one->world;
    make_sources(one, count, dtype);
    uint8_t *send = in_place ? one->b.recv : one->b.send;
    memcpy(send, one->b.sources[w->rank], count * size_of(dtype));
    RANK_OK(weft_all_reduce(send, one->b.recv, count, dtype, reduction, w->group, NULL));
    expect_reduced(one, 0, count, dtype, reduction);
    compare(one, one->b.recv, count, dtype, "all-reduce");
}

static void reduce(one_rank_t *one, uint64_t count, weft_dtype_t dtype, weft_reduction_t reduction,
                   uint32_t root, bool in_place)
{
    rank_world_t *w = one->world;
    make_sources(one, count, dtype);
    uint8_t *send = in_place ? one->b.recv : one->b.send;
    memcpy(send, one->b.sources[w->rank], count * size_of(dtype));
    RANK_OK(weft_reduce(send, w->rank == root ? one->b.recv : NULL, count, dtype, reduction, root,
                        w->group, NULL));
    if (w->rank == root) {
        expect_reduced(one, 0, count, dtype, reduction);
        compare(one, one->b.recv, count, dtype, "reduce");
    } else {
        memcpy(one->b.expected, one->b.sources[w->rank], count * size_of(dtype));
        compare(one, send, count, dtype, "reduce's source");
    }
}

static void reduce_scatter(one_rank_t *one, uint64_t count, weft_dtype_t dtype,
                           weft_reduction_t reduction, bool in_place)
{
    rank_world_t *w = one->world;
    uint64_t total = count * w->size;
    make_sources(one, total, dtype);
    memcpy(one->b.send, one->b.sources[w->rank], total * size_of(dtype));
    uint8_t *recv = in_place ? one->b.send + w->rank * count * size_of(dtype) : one->b.recv;
    RANK_OK(weft_reduce_scatter(one->b.send, recv, count, dtype, reduction, w->group, NULL));
    expect_reduced(one, w->rank * count, count, dtype, reduction);
    compare(one, recv, count, dtype, "reduce-scatter");
}

static void expect_gathered(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    size_t bytes = count * size_of(dtype);
    for (uint32_t r = 0; r < one->world->size; r++) {
        memcpy(one->b.expected + r * bytes, one->b.sources[r], bytes);
    }
}

/* root UINT32_MAX: all-gather */
static void gather(one_rank_t *one, uint64_t count, weft_dtype_t dtype, uint32_t root,
                   bool in_place)
{
    rank_world_t *w = one->world;
    size_t bytes = count * size_of(dtype);
    bool receives = root == UINT32_MAX || root == w->rank;
    make_sources(one, count, dtype);
    uint8_t *send = in_place && receives ? one->b.recv + w->rank * bytes : one->b.send;
    memcpy(send, one->b.sources[w->rank], bytes);
    if (root == UINT32_MAX) {
        RANK_OK(weft_all_gather(send, one->b.recv, count, dtype, w->group, NULL));
    } else {
        RANK_OK(
            weft_gather(send, receives ? one->b.recv : NULL, count, dtype, root, w->group, NULL));
    }
    if (receives) {
        expect_gathered(one, count, dtype);
        compare(one, one->b.recv, count * w->size, dtype, "gather");
    }
}

static void scatter(one_rank_t *one, uint64_t count, weft_dtype_t dtype, uint32_t root,
                    bool in_place)
{
    rank_world_t *w = one->world;
    size_t bytes = count * size_of(dtype);
    make_sources(one, count * w->size, dtype);
    memcpy(one->b.send, one->b.sources[w->rank], bytes * w->size);
    bool shifted = in_place && w->rank == root;
    uint8_t *recv = shifted ? one->b.send + w->rank * bytes : one->b.recv;
    RANK_OK(weft_scatter(w->rank == root ? one->b.send : NULL, recv, count, dtype, root, w->group,
                         NULL));
    memcpy(one->b.expected, one->b.sources[root] + w->rank * bytes, bytes);
    compare(one, recv, count, dtype, "scatter");
}

static void broadcast(one_rank_t *one, uint64_t count, weft_dtype_t dtype, uint32_t root,
                      bool in_place)
{
    rank_world_t *w = one->world;
    make_sources(one, count, dtype);
    uint8_t *send = in_place ? one->b.recv : one->b.send;
    if (w->rank == root) {
        memcpy(send, one->b.sources[w->rank], count * size_of(dtype));
    }
    RANK_OK(weft_broadcast(w->rank == root ? send : NULL, one->b.recv, count, dtype, root, w->group,
                           NULL));
    memcpy(one->b.expected, one->b.sources[root], count * size_of(dtype));
    compare(one, one->b.recv, count, dtype, "broadcast");
}

static void all_to_all(one_rank_t *one, uint64_t count, weft_dtype_t dtype, bool in_place)
{
    rank_world_t *w = one->world;
    size_t bytes = count * size_of(dtype);
    make_sources(one, count * w->size, dtype);
    uint8_t *send = in_place ? one->b.recv : one->b.send;
    memcpy(send, one->b.sources[w->rank], bytes * w->size);
    RANK_OK(weft_all_to_all(send, one->b.recv, count, dtype, w->group, NULL));
    for (uint32_t r = 0; r < w->size; r++) {
        memcpy(one->b.expected + r * bytes, one->b.sources[r] + w->rank * bytes, bytes);
    }
    compare(one, one->b.recv, count * w->size, dtype, "all-to-all");
}

static void exchange(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    rank_world_t *w = one->world;
    if (w->size == 1) {
        return;
    }
    uint32_t next = (w->rank + 1) % w->size, last = (w->rank + w->size - 1) % w->size;
    make_sources(one, count, dtype);
    memcpy(one->b.send, one->b.sources[w->rank], count * size_of(dtype));
    RANK_OK(weft_batch_begin(w->group));
    RANK_OK(weft_recv(one->b.recv, count, dtype, last, w->group, NULL));
    RANK_OK(weft_send(one->b.send, count, dtype, next, w->group, NULL));
    RANK_OK(weft_batch_end(w->group, NULL));
    memcpy(one->b.expected, one->b.sources[last], count * size_of(dtype));
    compare(one, one->b.recv, count, dtype, "exchange");
}

/* Counts that differ from rank to rank, some zero, and blocks out of order in memory. */
static void variable(one_rank_t *one, uint64_t count, weft_dtype_t dtype, bool packed)
{
    rank_world_t *w = one->world;
    uint64_t counts[MAX_RANKS], at[MAX_RANKS], total = 0;
    size_t es = size_of(dtype);
    for (uint32_t r = 0; r < w->size; r++) {
        counts[r] = mix(count * 31 + r) % (count + 1);
    }
    for (uint32_t i = 0; i < w->size; i++) {
        uint32_t r = packed ? i : w->size - 1 - i;
        at[r] = total;
        total += counts[r] + (packed ? 0 : 1);
    }
    make_sources(one, total, dtype);
    memcpy(one->b.send, one->b.sources[w->rank], total * es);
    RANK_OK(weft_all_gather_v(one->b.send, one->b.recv, counts, packed ? NULL : at, dtype, w->group,
                              NULL));
    for (uint32_t r = 0; r < w->size; r++) {
        memcpy(one->b.expected + at[r] * es, one->b.sources[r], counts[r] * es);
    }
    compare(one, one->b.recv, total, dtype, "all-gather-v");
    make_sources(one, total, dtype);
    memcpy(one->b.send, one->b.sources[w->rank], total * es);
    RANK_OK(weft_reduce_scatter_v(one->b.send, one->b.recv, counts, packed ? NULL : at, dtype,
                                  WEFT_SUM, w->group, NULL));
    expect_reduced(one, at[w->rank], counts[w->rank], dtype, WEFT_SUM);
    compare(one, one->b.recv, counts[w->rank], dtype, "reduce-scatter-v");
}

static uint64_t pair_count(uint64_t count, uint32_t from, uint32_t to)
{
    return mix(count * 131 + from * 17 + to) % (count + 1);
}

static void all_to_all_v(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    rank_world_t *w = one->world;
    uint64_t out[MAX_RANKS], in[MAX_RANKS], in_at[MAX_RANKS], total_in = 0;
    size_t es = size_of(dtype);
    for (uint32_t r = 0; r < w->size; r++) {
        out[r] = pair_count(count, w->rank, r);
        in[r] = pair_count(count, r, w->rank);
        in_at[w->size - 1 - r] = 0;
    }
    for (uint32_t i = 0; i < w->size; i++) {
        uint32_t r = w->size - 1 - i;
        in_at[r] = total_in;
        total_in += in[r];
    }
    make_sources(one, count * w->size, dtype);
    memcpy(one->b.send, one->b.sources[w->rank], count * w->size * es);
    RANK_OK(
        weft_all_to_all_v(one->b.send, out, NULL, one->b.recv, in, in_at, dtype, w->group, NULL));
    for (uint32_t r = 0; r < w->size; r++) {
        uint64_t from = 0;
        for (uint32_t d = 0; d < w->rank; d++) {
            from += pair_count(count, r, d);
        }
        memcpy(one->b.expected + in_at[r] * es, one->b.sources[r] + from * es, in[r] * es);
    }
    compare(one, one->b.recv, total_in, dtype, "all-to-all-v");
}

static void run_all(one_rank_t *one, uint64_t count, weft_dtype_t dtype, weft_reduction_t reduction)
{
    uint32_t n = one->world->size;
    if (reduction != WEFT_SUM) { /* the other operators do not know it */
        all_reduce(one, count, dtype, reduction, count % 2 != 0);
        reduce(one, count, dtype, reduction, n - 1, count % 2 == 0);
        reduce_scatter(one, count, dtype, reduction, count % 2 != 0);
        return;
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        all_reduce(one, count, dtype, reduction, in_place);
        reduce(one, count, dtype, reduction, n - 1, in_place);
        reduce_scatter(one, count, dtype, reduction, in_place);
        gather(one, count, dtype, UINT32_MAX, in_place);
        gather(one, count, dtype, n / 2, in_place);
        scatter(one, count, dtype, n / 2, in_place);
        broadcast(one, count, dtype, n - 1, in_place);
        all_to_all(one, count, dtype, in_place);
        variable(one, count, dtype, in_place);
        all_to_all_v(one, count, dtype);
        exchange(one, count, dtype);
        RANK_OK(weft_barrier(one->world->group, NULL));
    }
}

static void run_sweep(rank_world_t *world)
{
    sweep_t *sweep = world->user;
    one_rank_t one = {.world = world, .sweep = sweep, .seed = sweep->seed};
    void *shared[2] = {NULL, NULL};
    one.b.expected = malloc(ROOM);
    RANK_CHECK(one.b.expected != NULL);
    for (uint32_t r = 0; r < world->size; r++) {
        one.b.sources[r] = malloc(ROOM);
        RANK_CHECK(one.b.sources[r] != NULL);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (sweep->registered) {
            RANK_OK(weft_mem_alloc(world->context, ROOM, &shared[i]));
        } else {
            shared[i] = malloc(ROOM);
            RANK_CHECK(shared[i] != NULL);
        }
    }
    one.b.send = shared[0];
    one.b.recv = shared[1];
    for (uint32_t c = 0; c < sweep->count_count; c++) {
        uint64_t count = sweep->counts[c];
        for (uint32_t t = WEFT_DTYPE_F64; t <= (sweep->all_types ? WEFT_DTYPE_U8 : WEFT_DTYPE_F32);
             t++) {
            for (uint32_t k = WEFT_SUM; k <= (sweep->all_types ? WEFT_MAX : WEFT_SUM); k++) {
                run_all(&one, count, (weft_dtype_t)t, (weft_reduction_t)k);
            }
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (sweep->registered) {
            RANK_OK(weft_mem_free(world->context, shared[i]));
        } else {
            free(shared[i]);
        }
    }
    for (uint32_t r = 0; r < world->size; r++) {
        free(one.b.sources[r]);
    }
    free(one.b.expected);
}

static uint64_t small_counts[] = {0, 1, 7, 1026};
static uint64_t large_counts[] = {3, 4097, 515, 20011};

static void test_every_type_and_reduction(void **state)
{
    (void)state;
    for (int registered = 0; registered < 2; registered++) {
        sweep_t sweep = {registered, small_counts, 4, 1, true};
        support_rank_threads(3, run_sweep, &sweep);
    }
}

static void test_every_group_size(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_RANKS; n++) {
        for (int registered = 0; registered < 2; registered++) {
            sweep_t sweep = {registered, large_counts, n < 5 ? 4 : 2, n * 100, false};
            support_rank_threads(n, run_sweep, &sweep);
        }
    }
}

static void test_processes(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n += 2) {
        for (int registered = 0; registered < 2; registered++) {
            sweep_t sweep = {registered, large_counts, 4, n * 1000, false};
            assert_true(support_rank_processes(n, run_sweep, &sweep));
        }
    }
}

int main(void)
{
    alarm(100); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_and_reduction),
        cmocka_unit_test(test_every_group_size),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "support_collectives.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/algo/table.h"
#include "ops/reduce/reduce.h"

uint64_t support_mix(uint64_t x)
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
    uint64_t start = support_mix(seed * 1000003 + rank * 7919);
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

static size_t size_of(weft_dtype_t dtype)
{
    return weft_dtype_size_bytes(dtype);
}

static void make_sources(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    one->seed++;
    /* ranks come at different times, in an order of chance */
    for (uint64_t naps = support_mix(one->seed * 77 + one->world->rank) % 32; naps < 3; naps++) {
        sched_yield();
    }
    for (uint32_t r = 0; r < one->world->size; r++) {
        fill(one->sources[r], count, dtype, r, one->seed);
    }
    size_t used = (count + 16) * one->world->size * size_of(dtype);
    used = used < SUPPORT_ROOM ? used : SUPPORT_ROOM;
    memset(one->recv, 0xa5, used);
    memset(one->expected, 0xa5, used);
}

static void expect_reduced(one_rank_t *one, uint64_t from, uint64_t count, weft_dtype_t dtype,
                           weft_reduction_t reduction)
{
    const void *sources[SUPPORT_MAX_RANKS];
    void *destination = one->expected;
    for (uint32_t r = 0; r < one->world->size; r++) {
        sources[r] = one->sources[r] + from * size_of(dtype);
    }
    weft_reduce_t reduce = {sources, one->world->size, &destination, 1, count, dtype, reduction, 0};
    RANK_OK(wefti_reduce(&reduce, WEFT_ISA_PORTABLE));
}

static void compare(one_rank_t *one, const uint8_t *got, uint64_t count, weft_dtype_t dtype,
                    const char *what)
{
    size_t bytes = count * size_of(dtype);
    if (memcmp(got, one->expected, bytes) != 0) {
        size_t at = 0;
        while (got[at] == one->expected[at]) {
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
    uint8_t *send = in_place ? one->recv : one->send;
    memcpy(send, one->sources[w->rank], count * size_of(dtype));
    RANK_OK(weft_all_reduce(send, one->recv, count, dtype, reduction, w->group, NULL));
    expect_reduced(one, 0, count, dtype, reduction);
    compare(one, one->recv, count, dtype, "all-reduce");
}

static void reduce(one_rank_t *one, uint64_t count, weft_dtype_t dtype, weft_reduction_t reduction,
                   uint32_t root, bool in_place)
{
    rank_world_t *w = one->world;
    make_sources(one, count, dtype);
    uint8_t *send = in_place ? one->recv : one->send;
    memcpy(send, one->sources[w->rank], count * size_of(dtype));
    RANK_OK(weft_reduce(send, w->rank == root ? one->recv : NULL, count, dtype, reduction, root,
                        w->group, NULL));
    if (w->rank == root) {
        expect_reduced(one, 0, count, dtype, reduction);
        compare(one, one->recv, count, dtype, "reduce");
    } else {
        memcpy(one->expected, one->sources[w->rank], count * size_of(dtype));
        compare(one, send, count, dtype, "reduce's source");
    }
}

static void reduce_scatter(one_rank_t *one, uint64_t count, weft_dtype_t dtype,
                           weft_reduction_t reduction, bool in_place)
{
    rank_world_t *w = one->world;
    uint64_t total = count * w->size;
    make_sources(one, total, dtype);
    memcpy(one->send, one->sources[w->rank], total * size_of(dtype));
    uint8_t *recv = in_place ? one->send + w->rank * count * size_of(dtype) : one->recv;
    RANK_OK(weft_reduce_scatter(one->send, recv, count, dtype, reduction, w->group, NULL));
    expect_reduced(one, w->rank * count, count, dtype, reduction);
    compare(one, recv, count, dtype, "reduce-scatter");
}

static void expect_gathered(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    size_t bytes = count * size_of(dtype);
    for (uint32_t r = 0; r < one->world->size; r++) {
        memcpy(one->expected + r * bytes, one->sources[r], bytes);
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
    uint8_t *send = in_place && receives ? one->recv + w->rank * bytes : one->send;
    memcpy(send, one->sources[w->rank], bytes);
    if (root == UINT32_MAX) {
        RANK_OK(weft_all_gather(send, one->recv, count, dtype, w->group, NULL));
    } else {
        RANK_OK(weft_gather(send, receives ? one->recv : NULL, count, dtype, root, w->group, NULL));
    }
    if (receives) {
        expect_gathered(one, count, dtype);
        compare(one, one->recv, count * w->size, dtype, "gather");
    }
}

static void scatter(one_rank_t *one, uint64_t count, weft_dtype_t dtype, uint32_t root,
                    bool in_place)
{
    rank_world_t *w = one->world;
    size_t bytes = count * size_of(dtype);
    make_sources(one, count * w->size, dtype);
    memcpy(one->send, one->sources[w->rank], bytes * w->size);
    bool shifted = in_place && w->rank == root;
    uint8_t *recv = shifted ? one->send + w->rank * bytes : one->recv;
    RANK_OK(
        weft_scatter(w->rank == root ? one->send : NULL, recv, count, dtype, root, w->group, NULL));
    memcpy(one->expected, one->sources[root] + w->rank * bytes, bytes);
    compare(one, recv, count, dtype, "scatter");
}

static void broadcast(one_rank_t *one, uint64_t count, weft_dtype_t dtype, uint32_t root,
                      bool in_place)
{
    rank_world_t *w = one->world;
    make_sources(one, count, dtype);
    uint8_t *send = in_place ? one->recv : one->send;
    if (w->rank == root) {
        memcpy(send, one->sources[w->rank], count * size_of(dtype));
    }
    RANK_OK(weft_broadcast(w->rank == root ? send : NULL, one->recv, count, dtype, root, w->group,
                           NULL));
    memcpy(one->expected, one->sources[root], count * size_of(dtype));
    compare(one, one->recv, count, dtype, "broadcast");
}

static void all_to_all(one_rank_t *one, uint64_t count, weft_dtype_t dtype, bool in_place)
{
    rank_world_t *w = one->world;
    size_t bytes = count * size_of(dtype);
    make_sources(one, count * w->size, dtype);
    uint8_t *send = in_place ? one->recv : one->send;
    memcpy(send, one->sources[w->rank], bytes * w->size);
    RANK_OK(weft_all_to_all(send, one->recv, count, dtype, w->group, NULL));
    for (uint32_t r = 0; r < w->size; r++) {
        memcpy(one->expected + r * bytes, one->sources[r] + w->rank * bytes, bytes);
    }
    compare(one, one->recv, count * w->size, dtype, "all-to-all");
}

void support_exchange(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    rank_world_t *w = one->world;
    if (w->size == 1) {
        return;
    }
    uint32_t next = (w->rank + 1) % w->size, last = (w->rank + w->size - 1) % w->size;
    make_sources(one, count, dtype);
    memcpy(one->send, one->sources[w->rank], count * size_of(dtype));
    RANK_OK(weft_batch_begin(w->group));
    RANK_OK(weft_recv(one->recv, count, dtype, last, w->group, NULL));
    RANK_OK(weft_send(one->send, count, dtype, next, w->group, NULL));
    RANK_OK(weft_batch_end(w->group, NULL));
    memcpy(one->expected, one->sources[last], count * size_of(dtype));
    compare(one, one->recv, count, dtype, "exchange");
}

/* Counts that differ from rank to rank, some zero; not packed: blocks out of order in memory, with
 * gaps. Returns elements in all. */
static uint64_t variable_blocks(const one_rank_t *one, uint64_t count, bool packed,
                                uint64_t *counts, uint64_t *at)
{
    uint32_t n = one->world->size;
    uint64_t total = 0;
    for (uint32_t r = 0; r < n; r++) {
        counts[r] = support_mix(count * 31 + r) % (count + 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = packed ? i : n - 1 - i;
        at[r] = total;
        total += counts[r] + (packed ? 0 : 1);
    }
    return total;
}

static void all_gather_v(one_rank_t *one, uint64_t count, weft_dtype_t dtype, bool in_place)
{
    rank_world_t *w = one->world;
    uint64_t counts[SUPPORT_MAX_RANKS], at[SUPPORT_MAX_RANKS];
    bool packed = one->seed % 2 == 0;
    uint64_t total = variable_blocks(one, count, packed, counts, at);
    size_t es = size_of(dtype);
    make_sources(one, total, dtype);
    uint8_t *send = in_place ? one->recv + at[w->rank] * es : one->send;
    memcpy(send, one->sources[w->rank], counts[w->rank] * es);
    RANK_OK(weft_all_gather_v(send, one->recv, counts, packed ? NULL : at, dtype, w->group, NULL));
    for (uint32_t r = 0; r < w->size; r++) {
        memcpy(one->expected + at[r] * es, one->sources[r], counts[r] * es);
    }
    compare(one, one->recv, total, dtype, "all-gather-v");
}

static void reduce_scatter_v(one_rank_t *one, uint64_t count, weft_dtype_t dtype,
                             weft_reduction_t reduction, bool in_place)
{
    rank_world_t *w = one->world;
    uint64_t counts[SUPPORT_MAX_RANKS], at[SUPPORT_MAX_RANKS];
    bool packed = one->seed % 2 == 0;
    uint64_t total = variable_blocks(one, count, packed, counts, at);
    size_t es = size_of(dtype);
    make_sources(one, total, dtype);
    memcpy(one->send, one->sources[w->rank], total * es);
    uint8_t *recv = in_place ? one->send + at[w->rank] * es : one->recv;
    RANK_OK(weft_reduce_scatter_v(one->send, recv, counts, packed ? NULL : at, dtype, reduction,
                                  w->group, NULL));
    expect_reduced(one, at[w->rank], counts[w->rank], dtype, reduction);
    compare(one, recv, counts[w->rank], dtype, "reduce-scatter-v");
}

static uint64_t pair_count(uint64_t count, uint32_t from, uint32_t to)
{
    return support_mix(count * 131 + from * 17 + to) % (count + 1);
}

static void all_to_all_v(one_rank_t *one, uint64_t count, weft_dtype_t dtype)
{
    rank_world_t *w = one->world;
    uint64_t out[SUPPORT_MAX_RANKS], in[SUPPORT_MAX_RANKS], in_at[SUPPORT_MAX_RANKS], total_in = 0;
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
    memcpy(one->send, one->sources[w->rank], count * w->size * es);
    if (one->seed % 2 == 0) {
        for (uint32_t r = 0; r < w->size; r++) {
            in_at[r] = r == 0 ? 0 : in_at[r - 1] + in[r - 1];
        }
    }
    RANK_OK(weft_all_to_all_v(one->send, out, NULL, one->recv, in, in_at, dtype, w->group, NULL));
    for (uint32_t r = 0; r < w->size; r++) {
        uint64_t from = 0;
        for (uint32_t d = 0; d < w->rank; d++) {
            from += pair_count(count, r, d);
        }
        memcpy(one->expected + in_at[r] * es, one->sources[r] + from * es, in[r] * es);
    }
    compare(one, one->recv, total_in, dtype, "all-to-all-v");
}

void support_call(one_rank_t *one, weft_collective_t op, uint64_t count, weft_dtype_t dtype,
                  weft_reduction_t reduction, uint32_t root, bool in_place)
{
    switch (op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        all_reduce(one, count, dtype, reduction, in_place);
        break;
    case WEFT_COLLECTIVE_REDUCE:
        reduce(one, count, dtype, reduction, root, in_place);
        break;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        reduce_scatter(one, count, dtype, reduction, in_place);
        break;
    case WEFT_COLLECTIVE_ALL_GATHER:
        gather(one, count, dtype, UINT32_MAX, in_place);
        break;
    case WEFT_COLLECTIVE_GATHER:
        gather(one, count, dtype, root, in_place);
        break;
    case WEFT_COLLECTIVE_SCATTER:
        scatter(one, count, dtype, root, in_place);
        break;
    case WEFT_COLLECTIVE_BROADCAST:
        broadcast(one, count, dtype, root, in_place);
        break;
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        all_to_all(one, count, dtype, in_place);
        break;
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        all_gather_v(one, count, dtype, in_place);
        break;
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        reduce_scatter_v(one, count, dtype, reduction, in_place);
        break;
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        all_to_all_v(one, count, dtype);
        break;
    default:
        RANK_OK(weft_barrier(one->world->group, NULL));
        break;
    }
}

void support_one_init(one_rank_t *one, rank_world_t *world, bool registered, uint64_t seed)
{
    uint8_t **buffers[] = {&one->send, &one->recv};
    *one = (one_rank_t){.world = world, .registered = registered, .seed = seed};
    one->expected = malloc(SUPPORT_ROOM);
    RANK_CHECK(one->expected != NULL);
    for (uint32_t r = 0; r < world->size; r++) {
        one->sources[r] = malloc(SUPPORT_ROOM);
        RANK_CHECK(one->sources[r] != NULL);
    }
    for (uint32_t i = 0; i < 2; i++) {
        void *memory = NULL;
        if (registered) {
            RANK_OK(weft_mem_alloc(world->context, SUPPORT_ROOM, &memory));
        } else {
            memory = malloc(SUPPORT_ROOM);
            RANK_CHECK(memory != NULL);
        }
        *buffers[i] = memory;
    }
}

void support_one_deinit(one_rank_t *one)
{
    uint8_t *buffers[] = {one->send, one->recv};
    for (uint32_t i = 0; i < 2; i++) {
        if (one->registered) {
            RANK_OK(weft_mem_free(one->world->context, buffers[i]));
        } else {
            free(buffers[i]);
        }
    }
    for (uint32_t r = 0; r < one->world->size; r++) {
        free(one->sources[r]);
    }
    free(one->expected);
}

static weft_registry_t *schedules;
static weft_algorithm_t copies[2 * WEFTI_OPS];

int support_add_schedules(void **state)
{
    (void)state;
    size_t count = 0;
    RANK_OK(weft_registry_create(NULL, &schedules));
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        for (uint32_t i = 0; i < 2; i++) {
            const weft_algorithm_t *algorithm =
                wefti_algorithm_find((weft_collective_t)op, i == 0 ? "mesh" : "one-shot");
            if (algorithm != NULL) {
                copies[count] = *algorithm;
                copies[count].name = i == 0 ? "mesh as schedule" : "one-shot as schedule";
                RANK_OK(weft_registry_add_algorithm(schedules, &copies[count++]));
            }
        }
    }
    support_ranks_registry = schedules;
    return 0;
}

int support_remove_schedules(void **state)
{
    (void)state;
    weft_registry_destroy(schedules);
    support_ranks_registry = NULL;
    return 0;
}

const weft_algorithm_t *support_as_schedule(const weft_algorithm_t *algorithm)
{
    char name[64];
    snprintf(name, sizeof name, "%s as schedule", algorithm->name);
    const weft_algorithm_t *copy = weft_registry_find_algorithm(schedules, algorithm->op, name);
    return copy != NULL ? copy : algorithm;
}

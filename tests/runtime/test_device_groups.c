/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of groups on a card: every operator against its definition, streams and events, and
 * what goes wrong. Device memory is written and read by copies only.
 */
#include "runtime/stream/stream.h"
#include "support_cards.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GAP 3 /* elements between blocks of the V forms */

static int32_t value(uint32_t rank, uint64_t i)
{
    return (int32_t)((i * 37 + rank * 1009 + i / 7) % 4001) - 2000;
}

/* Element i of what rank s has for rank d. */
static int32_t pair_value(uint32_t s, uint32_t d, uint64_t i)
{
    return value(s * 64 + d, i);
}

/* Device memory of int32_t with a view on the host. */
typedef struct buffer {
    rank_world_t *world;
    int32_t *device, *host;
    size_t count;
} buffer_t;

static buffer_t buffer_of(rank_world_t *world, size_t count)
{
    buffer_t buffer = {world, NULL, calloc(count + 1, sizeof(int32_t)), count};
    RANK_CHECK(buffer.host != NULL);
    RANK_OK(
        weft_device_alloc(world->context, (count + 1) * sizeof(int32_t), (void **)&buffer.device));
    return buffer;
}

static void upload(const buffer_t *buffer)
{
    RANK_OK(weft_mem_copy(buffer->world->context, buffer->device, buffer->host,
                          buffer->count * sizeof(int32_t)));
}

static void download(const buffer_t *buffer)
{
    memset(buffer->host, 0x77, buffer->count * sizeof(int32_t));
    RANK_OK(weft_mem_copy(buffer->world->context, buffer->host, buffer->device,
                          buffer->count * sizeof(int32_t)));
}

static void buffer_free(buffer_t *buffer)
{
    RANK_OK(weft_device_free(buffer->world->context, buffer->device));
    free(buffer->host);
}

static int32_t sum_at(uint32_t size, uint64_t i)
{
    int32_t sum = 0;
    for (uint32_t r = 0; r < size; r++) {
        sum += value(r, i);
    }
    return sum;
}

typedef struct round {
    rank_world_t *world;
    weft_stream_t *stream; /* NULL: calls that wait */
    uint64_t count;
    uint32_t root;
} round_t;

static void done(const round_t *round, weft_status_t status)
{
    RANK_OK(status);
    if (round->stream != NULL) {
        RANK_OK(weft_stream_synchronize(round->stream));
    }
}

static void check_all_reduce(const round_t *round, bool in_place)
{
    rank_world_t *world = round->world;
    buffer_t send = buffer_of(world, round->count), recv = buffer_of(world, round->count);
    for (uint64_t i = 0; i < round->count; i++) {
        send.host[i] = value(world->rank, i);
    }
    upload(&send);
    buffer_t *to = in_place ? &send : &recv;
    done(round, weft_all_reduce(send.device, to->device, round->count, WEFT_DTYPE_I32,
                                WEFT_REDUCTION_SUM, world->group, round->stream));
    download(to);
    for (uint64_t i = 0; i < round->count; i++) {
        RANK_CHECK(to->host[i] == sum_at(world->size, i));
    }
    buffer_free(&send);
    buffer_free(&recv);
}

static void check_rooted_vectors(const round_t *round, bool in_place)
{
    rank_world_t *world = round->world;
    bool root = world->rank == round->root;
    buffer_t send = buffer_of(world, round->count), recv = buffer_of(world, round->count);
    for (uint64_t i = 0; i < round->count; i++) {
        send.host[i] = value(world->rank, i);
    }
    upload(&send);
    upload(&recv);
    buffer_t *to = in_place && root ? &send : &recv;
    done(round, weft_reduce(send.device, root ? to->device : NULL, round->count, WEFT_DTYPE_I32,
                            WEFT_REDUCTION_SUM, round->root, world->group, round->stream));
    download(to);
    for (uint64_t i = 0; i < round->count; i++) {
        RANK_CHECK(to->host[i] == (root ? sum_at(world->size, i) : 0));
    }
    for (uint64_t i = 0; i < round->count; i++) {
        send.host[i] = value(world->rank, i);
    }
    upload(&send);
    to = in_place ? &send : &recv;
    done(round, weft_broadcast(root ? send.device : NULL, to->device, round->count, WEFT_DTYPE_I32,
                               round->root, world->group, round->stream));
    download(to);
    for (uint64_t i = 0; i < round->count; i++) {
        RANK_CHECK(to->host[i] == value(round->root, i));
    }
    buffer_free(&send);
    buffer_free(&recv);
}

static void check_reduce_scatter(const round_t *round, bool in_place)
{
    rank_world_t *world = round->world;
    uint64_t n = round->count;
    buffer_t send = buffer_of(world, n * world->size), recv = buffer_of(world, n);
    for (uint64_t i = 0; i < n * world->size; i++) {
        send.host[i] = value(world->rank, i);
    }
    upload(&send);
    int32_t *to = in_place ? send.device + n * world->rank : recv.device;
    done(round, weft_reduce_scatter(send.device, to, n, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                                    world->group, round->stream));
    download(in_place ? &send : &recv);
    const int32_t *got = in_place ? send.host + n * world->rank : recv.host;
    for (uint64_t i = 0; i < n; i++) {
        RANK_CHECK(got[i] == sum_at(world->size, n * world->rank + i));
    }
    if (in_place && world->rank > 0 && n > 0) { /* the rest of send stays */
        RANK_CHECK(send.host[0] == value(world->rank, 0));
    }
    buffer_free(&send);
    buffer_free(&recv);
}

static void check_gathers(const round_t *round, bool in_place)
{
    rank_world_t *world = round->world;
    uint64_t n = round->count;
    for (int all = 0; all < 2; all++) {
        bool gets = all || world->rank == round->root;
        buffer_t send = buffer_of(world, n), recv = buffer_of(world, n * world->size);
        for (uint64_t i = 0; i < n; i++) {
            send.host[i] = recv.host[n * world->rank + i] = value(world->rank, i);
        }
        upload(&send);
        upload(&recv);
        int32_t *from = in_place && gets ? recv.device + n * world->rank : send.device;
        done(round, all ? weft_all_gather(from, recv.device, n, WEFT_DTYPE_I32, world->group,
                                          round->stream)
                        : weft_gather(from, gets ? recv.device : NULL, n, WEFT_DTYPE_I32,
                                      round->root, world->group, round->stream));
        download(&recv);
        for (uint32_t r = 0; r < world->size; r++) {
            for (uint64_t i = 0; i < n; i++) {
                int32_t want = gets || r == world->rank ? value(r, i) : 0;
                RANK_CHECK(recv.host[r * n + i] == want);
            }
        }
        buffer_free(&send);
        buffer_free(&recv);
    }
}

static void check_scatter(const round_t *round, bool in_place)
{
    rank_world_t *world = round->world;
    uint64_t n = round->count;
    bool root = world->rank == round->root;
    buffer_t send = buffer_of(world, n * world->size), recv = buffer_of(world, n);
    for (uint64_t i = 0; i < n * world->size; i++) {
        send.host[i] = value(world->rank, i);
    }
    upload(&send);
    bool placed = in_place && root;
    done(round, weft_scatter(root ? send.device : NULL,
                             placed ? send.device + n * world->rank : recv.device, n,
                             WEFT_DTYPE_I32, round->root, world->group, round->stream));
    download(placed ? &send : &recv);
    const int32_t *got = placed ? send.host + n * world->rank : recv.host;
    for (uint64_t i = 0; i < n; i++) {
        RANK_CHECK(got[i] == value(round->root, n * world->rank + i));
    }
    buffer_free(&send);
    buffer_free(&recv);
}

static void check_all_to_all(const round_t *round, bool in_place)
{
    rank_world_t *world = round->world;
    uint64_t n = round->count;
    buffer_t send = buffer_of(world, n * world->size), recv = buffer_of(world, n * world->size);
    for (uint32_t d = 0; d < world->size; d++) {
        for (uint64_t i = 0; i < n; i++) {
            send.host[d * n + i] = pair_value(world->rank, d, i);
        }
    }
    upload(&send);
    buffer_t *to = in_place ? &send : &recv;
    done(round,
         weft_all_to_all(send.device, to->device, n, WEFT_DTYPE_I32, world->group, round->stream));
    download(to);
    for (uint32_t s = 0; s < world->size; s++) {
        for (uint64_t i = 0; i < n; i++) {
            RANK_CHECK(to->host[s * n + i] == pair_value(s, world->rank, i));
        }
    }
    buffer_free(&send);
    buffer_free(&recv);
}

/* Lengths count + r, in reverse order with gaps: what lies in the gaps must stay. */
static uint64_t lay_out(const round_t *round, uint64_t *counts, uint64_t *displacements)
{
    uint64_t next = GAP;
    for (uint32_t r = round->world->size; r-- > 0;) {
        counts[r] = r % 3 == 2 ? 0 : round->count + r;
        displacements[r] = next;
        next += counts[r] + GAP;
    }
    return next;
}

static void check_v_forms(const round_t *round)
{
    rank_world_t *world = round->world;
    uint64_t counts[16], at[16];
    uint64_t total = lay_out(round, counts, at);
    uint64_t own = counts[world->rank];
    buffer_t big = buffer_of(world, total), small = buffer_of(world, own);
    for (uint64_t i = 0; i < total; i++) {
        big.host[i] = -7;
    }
    for (uint64_t i = 0; i < own; i++) {
        small.host[i] = value(world->rank, i);
    }
    upload(&big);
    upload(&small);
    done(round, weft_all_gather_v(small.device, big.device, counts, at, WEFT_DTYPE_I32,
                                  world->group, round->stream));
    download(&big);
    for (uint32_t r = 0; r < world->size; r++) {
        RANK_CHECK(big.host[at[r] - 1] == -7 && big.host[at[r] + counts[r]] == -7);
        for (uint64_t i = 0; i < counts[r]; i++) {
            RANK_CHECK(big.host[at[r] + i] == value(r, i));
        }
    }
    for (uint32_t r = 0; r < world->size; r++) {
        for (uint64_t i = 0; i < counts[r]; i++) {
            big.host[at[r] + i] = value(world->rank, r * 100 + i);
        }
    }
    upload(&big);
    done(round, weft_reduce_scatter_v(big.device, small.device, counts, at, WEFT_DTYPE_I32,
                                      WEFT_REDUCTION_SUM, world->group, round->stream));
    download(&small);
    for (uint64_t i = 0; i < own; i++) {
        RANK_CHECK(small.host[i] == sum_at(world->size, world->rank * 100 + i));
    }
    buffer_free(&big);
    buffer_free(&small);
}

static void check_all_to_all_v(const round_t *round)
{
    rank_world_t *world = round->world;
    uint64_t out[16], in[16], out_at[16], in_at[16], out_total = 0, in_total = 0;
    for (uint32_t r = 0; r < world->size; r++) {
        out[r] = (world->rank + 2 * r) % 3 * round->count;
        in[r] = (r + 2 * world->rank) % 3 * round->count;
        out_at[r] = out_total + GAP;
        in_at[r] = in_total + GAP;
        out_total = out_at[r] + out[r];
        in_total = in_at[r] + in[r];
    }
    buffer_t send = buffer_of(world, out_total), recv = buffer_of(world, in_total);
    for (uint32_t d = 0; d < world->size; d++) {
        for (uint64_t i = 0; i < out[d]; i++) {
            send.host[out_at[d] + i] = pair_value(world->rank, d, i);
        }
    }
    upload(&send);
    done(round, weft_all_to_all_v(send.device, out, out_at, recv.device, in, in_at, WEFT_DTYPE_I32,
                                  world->group, round->stream));
    download(&recv);
    for (uint32_t s = 0; s < world->size; s++) {
        RANK_CHECK(recv.host[in_at[s] - 1] == 0);
        for (uint64_t i = 0; i < in[s]; i++) {
            RANK_CHECK(recv.host[in_at[s] + i] == pair_value(s, world->rank, i));
        }
    }
    buffer_free(&send);
    buffer_free(&recv);
}

/* Everybody to everybody in one batch, then a ring of single sends. */
static void check_pairs(const round_t *round)
{
    rank_world_t *world = round->world;
    uint64_t n = round->count;
    buffer_t send = buffer_of(world, n * world->size), recv = buffer_of(world, n * world->size);
    for (uint32_t d = 0; d < world->size; d++) {
        for (uint64_t i = 0; i < n; i++) {
            send.host[d * n + i] = pair_value(world->rank, d, i);
        }
    }
    upload(&send);
    RANK_OK(weft_batch_begin(world->group));
    for (uint32_t r = 0; r < world->size; r++) {
        if (r != world->rank) {
            RANK_OK(weft_send(send.device + r * n, n, WEFT_DTYPE_I32, r, world->group, NULL));
            RANK_OK(weft_recv(recv.device + r * n, n, WEFT_DTYPE_I32, r, world->group, NULL));
        }
    }
    done(round, weft_batch_end(world->group, round->stream));
    download(&recv);
    for (uint32_t s = 0; s < world->size; s++) {
        for (uint64_t i = 0; i < n && s != world->rank; i++) {
            RANK_CHECK(recv.host[s * n + i] == pair_value(s, world->rank, i));
        }
    }
    if (world->rank > 0) {
        done(round, weft_recv(recv.device, n, WEFT_DTYPE_I32, world->rank - 1, world->group,
                              round->stream));
        download(&recv);
        for (uint64_t i = 0; i < n; i++) {
            RANK_CHECK(recv.host[i] == pair_value(world->rank - 1, world->rank, i));
        }
    }
    if (world->rank + 1 < world->size) {
        done(round, weft_send(send.device + (world->rank + 1) * n, n, WEFT_DTYPE_I32,
                              world->rank + 1, world->group, round->stream));
    }
    buffer_free(&send);
    buffer_free(&recv);
}

static void run_operators(rank_world_t *world)
{
    static const uint64_t counts[] = {0, 1, 5, 1000, 9001};
    weft_stream_t *stream = NULL;
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        round_t round = {world, i % 2 == 0 ? stream : NULL, counts[i], i % world->size};
        for (int in_place = 0; in_place < 2; in_place++) {
            check_all_reduce(&round, in_place);
            check_rooted_vectors(&round, in_place);
            check_reduce_scatter(&round, in_place);
            check_gathers(&round, in_place);
            check_scatter(&round, in_place);
            check_all_to_all(&round, in_place);
        }
        check_v_forms(&round);
        check_all_to_all_v(&round);
        check_pairs(&round);
        done(&round, weft_barrier(world->group, round.stream));
    }
    weft_stream_destroy(stream);
}

static void test_device_groups_operators(void **state)
{
    (void)state;
    support_card_threads(1, run_operators, NULL);
    support_card_threads(2, run_operators, NULL);
    support_card_threads(5, run_operators, NULL);
}

/* ---- streams ---- */

/* A chain over two streams in turn, more calls than there are places: x := sum x, on and on. */
static void run_chain(rank_world_t *world)
{
    enum { COUNT = 777, CALLS = 60 };
    weft_stream_t *streams[2] = {NULL, NULL};
    weft_event_t *events[2] = {NULL, NULL};
    buffer_t x = buffer_of(world, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        x.host[i] = world->rank == 0 ? (int32_t)i : 0;
    }
    upload(&x);
    for (int i = 0; i < 2; i++) {
        RANK_OK(weft_stream_create(world->context, NULL, &streams[i]));
        RANK_OK(weft_event_create(world->context, &events[i]));
    }
    for (uint32_t call = 0; call < CALLS; call++) {
        uint32_t s = call & 1;
        if (call > 0) {
            RANK_OK(weft_stream_wait_event(streams[s], events[1 - s]));
        }
        weft_status_t status;
        do {
            status = weft_all_reduce(x.device, x.device, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_MAX,
                                     world->group, streams[s]);
            if (status == WEFT_AGAIN) {
                weft_stream_query(streams[s]);
            }
        } while (status == WEFT_AGAIN);
        RANK_OK(status);
        /* only rank call % size spoils its copy: the next call brings the maximum back */
        if (call % world->size != world->rank) {
            RANK_OK(weft_stream_fill(streams[s], x.device, 0, sizeof(int32_t)));
        }
        RANK_OK(weft_event_record(events[s], streams[s]));
    }
    RANK_OK(weft_event_synchronize(events[(CALLS - 1) & 1]));
    RANK_OK(weft_event_query(events[(CALLS - 1) & 1]));
    download(&x);
    for (uint32_t i = 1; i < COUNT; i++) {
        RANK_CHECK(x.host[i] == (int32_t)i);
    }
    for (int i = 0; i < 2; i++) {
        RANK_OK(weft_stream_synchronize(streams[i]));
        weft_stream_destroy(streams[i]);
        weft_event_destroy(events[i]);
    }
    buffer_free(&x);
}

static void test_device_groups_streams(void **state)
{
    (void)state;
    support_card_threads(3, run_chain, NULL);
}

/* Groups of a group, calls on both in flight; a group destroyed right behind its calls. */
static void run_groups(rank_world_t *world)
{
    enum { COUNT = 100 };
    weft_group_t *half = NULL, *copy = NULL;
    weft_stream_t *stream = NULL;
    buffer_t a = buffer_of(world, COUNT), b = buffer_of(world, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        a.host[i] = b.host[i] = 1;
    }
    upload(&a);
    upload(&b);
    RANK_OK(weft_group_split(world->group, world->rank & 1, 0, &half));
    RANK_OK(weft_group_duplicate(half, &copy));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_all_reduce(a.device, a.device, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, half,
                            stream));
    RANK_OK(
        weft_all_reduce(b.device, b.device, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, copy, NULL));
    RANK_OK(weft_all_reduce(b.device, b.device, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, copy,
                            stream));
    RANK_OK(weft_batch_begin(copy));
    RANK_OK(weft_all_reduce(a.device, a.device, COUNT / 2, WEFT_DTYPE_I32, WEFT_REDUCTION_MAX, copy,
                            NULL));
    RANK_OK(weft_all_reduce(a.device + COUNT / 2, a.device + COUNT / 2, COUNT / 2, WEFT_DTYPE_I32,
                            WEFT_REDUCTION_MAX, copy, NULL));
    RANK_OK(weft_batch_end(copy, stream));
    weft_group_destroy(copy);
    weft_group_destroy(half);
    RANK_OK(weft_stream_synchronize(stream));
    download(&a);
    download(&b);
    int32_t size = (int32_t)(world->size / 2 + (world->rank % 2 == 0 ? world->size % 2 : 0));
    for (uint32_t i = 0; i < COUNT; i++) {
        RANK_CHECK(a.host[i] == size && b.host[i] == size * size);
    }
    weft_stream_destroy(stream);
    buffer_free(&a);
    buffer_free(&b);
}

static void test_device_groups_of_groups(void **state)
{
    (void)state;
    support_card_threads(5, run_groups, NULL);
}

/* A group of one that has as many calls in flight as a device has places for. */
static void run_full_parent(rank_world_t *world)
{
    enum { COUNT = 100, CALLS = 16 };
    weft_group_t *half = NULL, *copy = NULL;
    weft_stream_t *stream = NULL;
    buffer_t a = buffer_of(world, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        a.host[i] = (int32_t)i;
    }
    upload(&a);
    RANK_OK(weft_group_split(world->group, world->rank & 1, 0, &half));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    for (uint32_t round = 0; round < 10; round++) {
        for (uint32_t call = 0; call < CALLS;) {
            weft_status_t status = weft_all_reduce(a.device, a.device, COUNT, WEFT_DTYPE_I32,
                                                   WEFT_REDUCTION_MAX, half, stream);
            RANK_CHECK(status >= WEFT_OK);
            call += status == WEFT_OK;
        }
        RANK_OK(weft_group_duplicate(half, &copy));
        RANK_OK(weft_all_reduce(a.device, a.device, COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_MAX, copy,
                                stream));
        RANK_OK(weft_stream_synchronize(stream));
        weft_group_destroy(copy);
    }
    download(&a);
    for (uint32_t i = 0; i < COUNT; i++) {
        RANK_CHECK(a.host[i] == (int32_t)i);
    }
    weft_stream_destroy(stream);
    weft_group_destroy(half);
    buffer_free(&a);
}

static void test_device_groups_of_full_groups(void **state)
{
    (void)state;
    support_card_threads(5, run_full_parent, NULL);
}

/* ---- the same bits as on the CPU device ---- */

typedef struct bits {
    uint16_t half[2][3][2000]; /* device, rank */
    float full[2][3][2000];
} bits_t;

static void run_bits(rank_world_t *world)
{
    bits_t *bits = world->user;
    uint32_t on_card = weft_context_device(world->context) != NULL;
    uint16_t *half = bits->half[on_card][world->rank];
    float *full = bits->full[on_card][world->rank];
    uint64_t seed = 99 + world->rank;
    void *device = NULL;
    for (uint32_t i = 0; i < 2000; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        half[i] = (uint16_t)(seed >> 40);
        uint32_t word = (uint32_t)(seed >> 20);
        memcpy(&full[i], &word, sizeof word);
    }
    RANK_OK(weft_device_alloc(world->context, 8000, &device));
    RANK_OK(weft_mem_copy(world->context, device, half, 4000));
    RANK_OK(weft_all_reduce(device, device, 2000, WEFT_DTYPE_BF16, WEFT_REDUCTION_AVG, world->group,
                            NULL));
    RANK_OK(weft_mem_copy(world->context, half, device, 4000));
    RANK_OK(weft_mem_copy(world->context, device, full, 8000));
    RANK_OK(weft_all_reduce(device, device, 2000, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group,
                            NULL));
    RANK_OK(weft_mem_copy(world->context, full, device, 8000));
    RANK_OK(weft_device_free(world->context, device));
}

static void test_device_groups_same_bits(void **state)
{
    (void)state;
    bits_t *bits = calloc(1, sizeof *bits);
    assert_non_null(bits);
    support_rank_threads(3, run_bits, bits);
    support_card_threads(3, run_bits, bits);
    assert_memory_equal(bits->half[0], bits->half[1], sizeof bits->half[0]);
    assert_memory_equal(bits->full[0], bits->full[1], sizeof bits->full[0]);
    free(bits);
}

/* ---- what goes wrong ---- */

/* Rank 1 disagrees in the second of three calls. */
static void run_disagreement(rank_world_t *world)
{
    weft_stream_t *stream = NULL, *other = NULL;
    weft_event_t *event = NULL;
    buffer_t x = buffer_of(world, 100), y = buffer_of(world, 100);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_stream_create(world->context, NULL, &other));
    RANK_OK(weft_event_create(world->context, &event));
    RANK_OK(weft_all_reduce(x.device, x.device, 100, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                            world->group, stream));
    RANK_OK(weft_all_reduce(x.device, x.device, 100, WEFT_DTYPE_I32,
                            world->rank == 1 ? WEFT_REDUCTION_MAX : WEFT_REDUCTION_SUM,
                            world->group, stream));
    RANK_OK(weft_event_record(event, stream));
    weft_status_t third = weft_all_reduce(y.device, y.device, 100, WEFT_DTYPE_I32,
                                          WEFT_REDUCTION_SUM, world->group, other);
    RANK_CHECK(third == WEFT_OK || third == WEFT_ERR_MISMATCH);
    RANK_CHECK(weft_event_synchronize(event) == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "100 x i32 (max)") != NULL &&
               strstr(weft_last_error(), "rank 1 ") != NULL);
    RANK_CHECK(weft_stream_synchronize(stream) == WEFT_ERR_MISMATCH);
    RANK_CHECK(weft_stream_synchronize(other) == (third == WEFT_OK ? WEFT_ERR_MISMATCH : WEFT_OK));
    RANK_CHECK(weft_event_query(event) == WEFT_ERR_MISMATCH);
    RANK_CHECK(weft_barrier(world->group, NULL) == WEFT_ERR_MISMATCH);
    RANK_CHECK(weft_group_status(world->group) == WEFT_ERR_MISMATCH);
    weft_stream_destroy(stream);
    weft_group_destroy(world->group);
    world->group = NULL;
    weft_stream_destroy(other);
    weft_event_destroy(event);
    buffer_free(&y);
    buffer_free(&x);
    /* The world goes on. */
    RANK_OK(weft_group_create_world(world->context, &world->group));
    RANK_OK(weft_barrier(world->group, NULL));
}

static void test_device_groups_disagreement(void **state)
{
    (void)state;
    support_card_threads(2, run_disagreement, NULL);
    support_card_threads(4, run_disagreement, NULL);
}

/* The last rank ends the world while the others are in a call, one with work behind it. */
static void run_abort(rank_world_t *world)
{
    weft_stream_t *stream = NULL;
    buffer_t x = buffer_of(world, 10000);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    if (world->rank == world->size - 1) {
        weft_context_abort(world->context, "enough");
    } else {
        weft_status_t status =
            weft_all_reduce(x.device, x.device, 10000, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                            world->group, world->rank == 0 ? stream : NULL);
        if (world->rank == 0 && status == WEFT_OK) {
            status = weft_stream_synchronize(stream);
        }
        RANK_CHECK(status == WEFT_ERR_ABORTED && strstr(weft_last_error(), "enough") != NULL);
    }
    weft_group_destroy(world->group);
    world->group = NULL;
    weft_stream_destroy(stream);
    buffer_free(&x);
}

static void test_device_groups_abort(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        support_card_threads(3, run_abort, NULL);
    }
}

/* A stream that is destroyed, or whose group is, while the call before it cannot be over. */
static void run_stuck(rank_world_t *world)
{
    weft_stream_t *stream = NULL, *waiting = NULL;
    weft_notify_t *never = NULL;
    buffer_t x = buffer_of(world, 10);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_stream_create(world->context, NULL, &waiting));
    RANK_OK(weft_notify_create(world->context, &never));
    RANK_OK(weft_notify_wait(never, waiting));
    if (world->rank == 0) { /* its data never comes */
        RANK_OK(weft_all_reduce(x.device, x.device, 10, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                                world->group, waiting));
        weft_context_abort(world->context, "stuck");
    } else {
        weft_status_t status = weft_all_reduce(x.device, x.device, 10, WEFT_DTYPE_I32,
                                               WEFT_REDUCTION_SUM, world->group, stream);
        RANK_CHECK(status == WEFT_OK || status == WEFT_ERR_ABORTED);
    }
    if (world->rank == 1) {
        weft_stream_destroy(stream);
        stream = NULL;
    }
    weft_group_destroy(world->group);
    world->group = NULL;
    weft_stream_destroy(waiting);
    weft_stream_destroy(stream);
    weft_notify_destroy(never);
    buffer_free(&x);
}

static void test_device_groups_destroyed_in_flight(void **state)
{
    (void)state;
    support_card_threads(3, run_stuck, NULL);
}

/* Some command of rank 0's card fails: an error on all ranks or a right result on all. */
static void run_failing(rank_world_t *world)
{
    int after = *(const int *)world->user;
    weft_stream_t *stream = NULL;
    buffer_t x = buffer_of(world, 100);
    for (uint32_t i = 0; i < 100; i++) {
        x.host[i] = 1;
    }
    upload(&x);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    weft_device_t *card = weft_context_device(world->context);
    RANK_OK(weft_context_barrier(world->context));
    if (world->rank == 0) {
        fake_card_fail(card, after);
    }
    weft_status_t status = weft_all_reduce(x.device, x.device, 100, WEFT_DTYPE_I32,
                                           WEFT_REDUCTION_SUM, world->group, stream);
    status = status == WEFT_OK ? weft_stream_synchronize(stream) : status;
    if (world->rank == 0) {
        fake_card_fail(card, -1);
        if (status < 0 && weft_group_status(world->group) == WEFT_OK) {
            weft_context_abort(world->context, "the call did not start here"); /* as programs do */
        }
    }
    /* Rank 0 may have ended the world meanwhile. */
    if (status == WEFT_OK &&
        weft_mem_copy(world->context, x.host, x.device, 100 * sizeof(int32_t)) == WEFT_OK) {
        RANK_CHECK(x.host[0] == (int32_t)world->size && x.host[99] == (int32_t)world->size);
    }
    weft_stream_destroy(stream);
    weft_group_destroy(world->group);
    world->group = NULL;
    buffer_free(&x);
}

static void test_device_groups_failing_card(void **state)
{
    (void)state;
    if (!support_card_is_fake()) {
        print_message("skipped: nothing makes commands of a real device fail\n");
        skip();
    }
    for (int after = 0; after < 24; after += 2) {
        support_card_threads(2, run_failing, &after);
    }
}

static void run_wrong(rank_world_t *world)
{
    buffer_t x = buffer_of(world, 10);
    RANK_CHECK(weft_all_reduce(NULL, x.device, 10, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group,
                               NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_all_reduce(x.device, x.device, UINT64_MAX, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                               world->group, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_broadcast(x.device, x.device, 10, WEFT_DTYPE_I32, 9, world->group, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    if (!support_host_reaches(world->context)) {
        /* More host memory than there is: before anything is queued. */
        RANK_CHECK(weft_all_reduce(x.device, x.device, (uint64_t)1 << 46, WEFT_DTYPE_I32,
                                   WEFT_REDUCTION_SUM, world->group, NULL) == WEFT_ERR_NO_MEMORY);
    }
    RANK_OK(weft_all_reduce(x.device, x.device, 10, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                            world->group, NULL));
    buffer_free(&x);
}

/* A message that was kept, into memory of the device. */
static void run_tags(rank_world_t *world)
{
    buffer_t x = buffer_of(world, 10);
    for (int32_t tag = 5; tag <= 7; tag += 2) {
        int32_t own = world->rank == 0 ? tag : 12 - tag; /* 5 7, received 7 5 */
        for (uint32_t i = 0; i < 10; i++) {
            x.host[i] = world->rank == 0 ? tag : 0;
        }
        upload(&x);
        if (world->rank == 0) {
            RANK_OK(weft_send_tagged(x.device, 10, WEFT_DTYPE_I32, 1, (uint32_t)own, world->group,
                                     NULL));
        } else {
            RANK_OK(weft_recv_tagged(x.device, 10, WEFT_DTYPE_I32, 0, (uint32_t)own, world->group,
                                     NULL));
            download(&x);
            RANK_CHECK(x.host[0] == own && x.host[9] == own);
        }
    }
    buffer_free(&x);
}

static void test_device_groups_tags(void **state)
{
    (void)state;
    support_card_threads(2, run_tags, NULL);
}

static void test_device_groups_wrong_arguments(void **state)
{
    (void)state;
    support_card_threads(2, run_wrong, NULL);
}

/* A process with a card of its own; rank 1 dies between two calls. */
static void run_process(uint32_t rank, const char *address, const int *pipe_fds)
{
    weft_device_t *card = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    rank_world_t world = {.rank = rank, .size = 3};
    weft_stream_t *stream = NULL;
    RANK_OK(support_card_open(&card));
    params.rank = (int32_t)rank;
    params.world_size = 3;
    params.address = address;
    params.device = card;
    RANK_OK(weft_context_create(&params, &world.context));
    RANK_OK(weft_group_create_world(world.context, &world.group));
    RANK_OK(weft_stream_create(world.context, NULL, &stream));
    round_t round = {&world, stream, 5000, 0};
    check_all_reduce(&round, true);
    /* It lives until the others are done with what they have of it. */
    char done[2];
    if (rank == 1) {
        RANK_CHECK(read(pipe_fds[0], &done[0], 1) == 1 && read(pipe_fds[0], &done[1], 1) == 1);
        _exit(0); /* without a word */
    }
    RANK_CHECK(write(pipe_fds[1], "", 1) == 1);
    buffer_t x = buffer_of(&world, 5000);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    weft_status_t status =
        weft_all_reduce(x.device, x.device, 5000, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world.group,
                        rank == 0 ? stream : NULL);
    status = status == WEFT_OK ? weft_stream_synchronize(stream) : status;
    clock_gettime(CLOCK_MONOTONIC, &end);
    RANK_CHECK(status == WEFT_ERR_PEER_DIED && strstr(weft_last_error(), "rank 1") != NULL);
    RANK_CHECK(end.tv_sec - begin.tv_sec < 10);
    RANK_CHECK(weft_barrier(world.group, NULL) == WEFT_ERR_PEER_DIED);
    weft_group_destroy(world.group);
    weft_stream_destroy(stream);
    buffer_free(&x);
    weft_context_release(world.context);
    RANK_CHECK(support_card_close(card) == 0);
}

static void test_device_groups_dead_peer(void **state)
{
    (void)state;
    char address[64];
    pid_t pids[3];
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    snprintf(address, sizeof address, "unix:@weft-test-cards-%d", (int)getpid());
    fflush(NULL);
    for (uint32_t r = 0; r < 3; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            run_process(r, address, pipe_fds);
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < 3; r++) {
        int status = -1;
        waitpid(pids[r], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

/* ---- the host's part on a thread ---- */

/* Rank 0 only enqueues, then calls nothing of the library until the others have their results. */
static void run_apart(rank_world_t *world)
{
    _Atomic uint32_t *finished = world->user;
    weft_stream_t *stream = NULL;
    buffer_t x = buffer_of(world, 100);
    for (uint32_t i = 0; i < 100; i++) {
        x.host[i] = 1;
    }
    upload(&x);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_all_reduce(x.device, x.device, 100, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                            world->group, stream));
    if (world->rank != 0) {
        RANK_OK(weft_stream_synchronize(stream));
        atomic_fetch_add(finished, 1);
    }
    while (atomic_load(finished) < world->size - 1) {
        sched_yield();
    }
    RANK_OK(weft_stream_synchronize(stream));
    download(&x);
    RANK_CHECK(x.host[0] == (int32_t)world->size && x.host[99] == (int32_t)world->size);
    weft_stream_destroy(stream);
    buffer_free(&x);
}

static void test_device_groups_on_threads(void **state)
{
    (void)state;
    _Atomic uint32_t finished = 0;
    setenv("WEFT_PROGRESS", "thread", 1);
    support_card_threads(3, run_apart, &finished);
    support_card_threads(3, run_chain, NULL);
    support_card_threads(4, run_groups, NULL);
    support_card_threads(3, run_disagreement, NULL);
    support_card_threads(3, run_abort, NULL);
    support_card_threads(3, run_stuck, NULL);
    for (int after = 1; after < 24 && support_card_is_fake(); after += 6) {
        support_card_threads(2, run_failing, &after);
    }
    unsetenv("WEFT_PROGRESS");
}

/* ---- a stream that is polled while something is queued ---- */

typedef struct queued {
    const weft_device_ops_t *ops; /* of the card */
    weft_stream_t *stream;        /* NULL: nothing is queued any more */
    uint8_t *device, host[4096];
} queued_t;
static queued_t queued;

/* Another thread would queue at this moment: the answer does not speak of it. */
static weft_status_t query_then_queue(weft_queue_t *queue)
{
    weft_status_t status = queued.ops->query(queue);
    weft_stream_t *stream = queued.stream;
    if (status == WEFT_OK && stream != NULL) {
        queued.stream = NULL;
        RANK_OK(weft_stream_copy(stream, queued.device, queued.host, sizeof queued.host));
    }
    return status;
}

static void run_queued_meanwhile(rank_world_t *world)
{
    weft_device_t *card = weft_context_device(world->context);
    weft_device_ops_t ops = *card->ops;
    weft_stream_t *stream = NULL;
    queued = (queued_t){.ops = card->ops};
    ops.query = query_then_queue;
    RANK_OK(weft_device_alloc(world->context, sizeof queued.host, (void **)&queued.device));
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    RANK_OK(weft_stream_copy(stream, queued.device, queued.host, sizeof queued.host));
    queued.stream = stream;
    card->ops = &ops;
    while (queued.stream != NULL) {
        wefti_stream_poll(stream);
    }
    card->ops = queued.ops;
    RANK_CHECK(atomic_load(&stream->done.signal.value) ==
               atomic_load(&stream->tail.signal.value) - 1);
    RANK_OK(weft_stream_synchronize(stream));
    weft_stream_destroy(stream);
    RANK_OK(weft_device_free(world->context, queued.device));
}

static void test_device_groups_queued_meanwhile(void **state)
{
    (void)state;
    setenv("WEFT_PROGRESS", "inline", 1); /* nobody else polls the stream */
    support_card_threads(1, run_queued_meanwhile, NULL);
    unsetenv("WEFT_PROGRESS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_groups_dead_peer), /* forks, before drivers have threads */
        cmocka_unit_test(test_device_groups_operators),
        cmocka_unit_test(test_device_groups_streams),
        cmocka_unit_test(test_device_groups_tags),
        cmocka_unit_test(test_device_groups_of_groups),
        cmocka_unit_test(test_device_groups_of_full_groups),
        cmocka_unit_test(test_device_groups_same_bits),
        cmocka_unit_test(test_device_groups_disagreement),
        cmocka_unit_test(test_device_groups_abort),
        cmocka_unit_test(test_device_groups_destroyed_in_flight),
        cmocka_unit_test(test_device_groups_failing_card),
        cmocka_unit_test(test_device_groups_wrong_arguments),
        cmocka_unit_test(test_device_groups_on_threads),
        cmocka_unit_test(test_device_groups_queued_meanwhile),
    };
    support_card_or_skip();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine allows: the movement of data that an operator cannot do without, on the same
 * pinned ranks, written directly. No agreement, no errors, no waiting for anybody but those whose
 * memory is touched, one flag per step. Up to 4 KiB ranks show their data beside a flag; from there
 * on they work in place, between two flags. Sums are of 32-bit integers, whatever the type: they
 * cost no more than reading and writing does.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"
#include "tools/bench.h"

#define SHOWN_BYTES 4096u
#define TILE_BYTES 4096u
#define PAGE_BYTES ((size_t)4096)

typedef struct side {
    _Alignas(128) _Atomic uint32_t meet;
    _Alignas(128) _Atomic uint32_t ready;
    _Alignas(128) _Atomic uint32_t finished;
    _Alignas(128) uint8_t shown[SHOWN_BYTES];
} side_t;

struct bench_floor {
    uint8_t *memory; /* shared by all ranks: sides, then a send and a receive buffer of each */
    size_t bytes, buffers, buffer_bytes;
    uint32_t ranks, spins; /* before a rank gives its core to another */
};

/* One rank at work. */
typedef struct worker {
    const bench_rank_t *self;
    bench_floor_t *floor;
    weft_collective_t op;
    uint32_t rank, ranks;
    uint64_t bytes;      /* of the vector or of one block */
    bench_case_t *cases; /* where every rank's buffers are */
    wefti_isa_t isa;
} worker_t;

static side_t *side_of(const bench_floor_t *floor, uint32_t rank)
{
    return (side_t *)(void *)floor->memory + rank;
}

bench_floor_t *wefti_bench_floor_create(uint32_t ranks, uint64_t max_bytes)
{
    bench_floor_t *floor = calloc(1, sizeof *floor);
    if (floor == NULL || max_bytes > (SIZE_MAX >> 12)) {
        free(floor);
        return NULL;
    }
    floor->ranks = ranks;
    floor->spins = wefti_bench_shares_cores(ranks) ? 0 : UINT32_MAX;
    floor->buffer_bytes = wefti_align_up((size_t)max_bytes, PAGE_BYTES);
    floor->buffers = wefti_align_up(ranks * sizeof(side_t), PAGE_BYTES);
    floor->bytes = floor->buffers + 2ul * ranks * floor->buffer_bytes;
    floor->memory = mmap(NULL, floor->bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (floor->memory == MAP_FAILED) {
        free(floor);
        return NULL;
    }
    return floor;
}

void wefti_bench_floor_destroy(bench_floor_t *floor)
{
    if (floor != NULL) {
        munmap(floor->memory, floor->bytes);
        free(floor);
    }
}

static void tell(_Atomic uint32_t *own, uint32_t value)
{
    /* release: what was written before is seen by whoever sees the value */
    atomic_store_explicit(own, value, memory_order_release);
}

static void see(const bench_floor_t *floor, const _Atomic uint32_t *theirs, uint32_t value)
{
    uint32_t tries = 0;
    while (!wefti_signal_reached(atomic_load_explicit(theirs, memory_order_acquire), value)) {
        if (tries++ >= floor->spins) {
            sched_yield();
        }
    }
}

/* ---- sums ---- */

typedef uint32_t words_t __attribute__((vector_size(64), aligned(1), may_alias));

static inline __attribute__((always_inline)) void
add_bytes(uint8_t *to, uint8_t *also, const uint8_t *a, const uint8_t *b, size_t bytes)
{
    size_t i = 0;
    for (; i + sizeof(words_t) <= bytes; i += sizeof(words_t)) {
        words_t sum =
            *(const words_t *)(const void *)(a + i) + *(const words_t *)(const void *)(b + i);
        *(words_t *)(void *)(to + i) = sum;
        if (also != NULL) {
            *(words_t *)(void *)(also + i) = sum;
        }
    }
    for (; i < bytes; i++) {
        uint8_t sum = (uint8_t)(a[i] + b[i]);
        to[i] = sum;
        if (also != NULL) {
            also[i] = sum;
        }
    }
}

static void add_portable(uint8_t *to, uint8_t *also, const uint8_t *a, const uint8_t *b,
                         size_t bytes)
{
    add_bytes(to, also, a, b, bytes);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_avx2(uint8_t *to, uint8_t *also, const uint8_t *a,
                                                     const uint8_t *b, size_t bytes)
{
    add_bytes(to, also, a, b, bytes);
}

__attribute__((target("avx512f"))) static void
add_avx512(uint8_t *to, uint8_t *also, const uint8_t *a, const uint8_t *b, size_t bytes)
{
    add_bytes(to, also, a, b, bytes);
}
#endif

/* to and, unless it is NULL, also: the sum of a and b. */
static void add(const worker_t *w, uint8_t *to, uint8_t *also, const uint8_t *a, const uint8_t *b,
                size_t bytes)
{
#if defined(__x86_64__)
    if (w->isa == WEFTI_ISA_AVX512) {
        add_avx512(to, also, a, b, bytes);
        return;
    }
    if (w->isa == WEFTI_ISA_AVX2) {
        add_avx2(to, also, a, b, bytes);
        return;
    }
#else
    (void)w;
#endif
    add_portable(to, also, a, b, bytes);
}

/* Bytes [at, at + bytes) of every rank's send buffer, summed, to those of the receive buffers of
 * ranks [first, first + count), which begin skip bytes earlier. */
static void reduce(const worker_t *w, uint64_t at, uint64_t bytes, uint32_t first, uint32_t count,
                   uint64_t skip)
{
    uint8_t sum[TILE_BYTES];
    if (w->ranks == 2) { /* in one go */
        uint8_t *to = w->cases[first].recv + at - skip;
        uint8_t *also = count == 2 ? w->cases[1].recv + at - skip : NULL;
        add(w, to, also, w->cases[0].send + at, w->cases[1].send + at, bytes);
        return;
    }
    for (uint64_t end = at + bytes, tile; at < end; at += tile) {
        tile = end - at < TILE_BYTES ? end - at : TILE_BYTES;
        memcpy(sum, w->cases[0].send + at, tile);
        for (uint32_t r = 1; r < w->ranks; r++) {
            add(w, sum, NULL, sum, w->cases[r].send + at, tile);
        }
        for (uint32_t r = first; r < first + count; r++) {
            memcpy(w->cases[r].recv + at - skip, sum, tile);
        }
    }
}

/* ---- operators ---- */

static bool rooted(weft_collective_t op)
{
    return op == WEFT_OP_BROADCAST || op == WEFT_OP_SCATTER || op == WEFT_OP_GATHER;
}

/* Whether rank a reads or writes rank b's memory; rank 0 is the root. */
static bool touches(const worker_t *w, uint32_t a, uint32_t b)
{
    return a != b && (!rooted(w->op) || b == 0);
}

static void copy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (to != from) {
        memcpy(to, from, bytes);
    }
}

/* This rank's part, in place of all it has to do with. */
static void move(const worker_t *w)
{
    const bench_case_t *own = &w->cases[w->rank], *root = &w->cases[0];
    uint64_t bytes = w->bytes, mine = w->rank * bytes;
    uint64_t shard = wefti_align_up((size_t)((bytes + w->ranks - 1) / w->ranks), 64);
    uint64_t at = w->rank * shard < bytes ? w->rank * shard : bytes;
    shard = bytes - at < shard ? bytes - at : shard;
    switch (w->op) {
    case WEFT_OP_ALL_REDUCE:
        reduce(w, at, shard, 0, w->ranks, 0);
        break;
    case WEFT_OP_REDUCE:
        reduce(w, at, shard, 0, 1, 0);
        break;
    case WEFT_OP_REDUCE_SCATTER:
        reduce(w, mine, bytes, w->rank, 1, mine);
        break;
    case WEFT_OP_BROADCAST:
        copy(own->recv, root->send, bytes);
        break;
    case WEFT_OP_SCATTER:
        copy(own->recv, root->send + mine, bytes);
        break;
    case WEFT_OP_GATHER:
        copy(root->recv + mine, own->send, bytes);
        break;
    default:
        for (uint32_t i = 0; i < w->ranks; i++) {
            uint32_t from = (w->rank + i) % w->ranks;
            copy(own->recv + from * bytes,
                 w->cases[from].send + (w->op == WEFT_OP_ALL_TO_ALL ? mine : 0), bytes);
        }
        break;
    }
}

static void call_in_place(const worker_t *w, uint32_t k)
{
    side_t *own = side_of(w->floor, w->rank);
    tell(&own->ready, k);
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (touches(w, w->rank, r)) {
            see(w->floor, &side_of(w->floor, r)->ready, k);
        }
    }
    move(w);
    tell(&own->finished, k);
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (touches(w, r, w->rank)) {
            see(w->floor, &side_of(w->floor, r)->finished, k);
        }
    }
}

/* What rank shows: its block or vector, or a block for each. */
static uint64_t shown_bytes(const worker_t *w, uint32_t rank)
{
    bool each =
        w->op == WEFT_OP_REDUCE_SCATTER || w->op == WEFT_OP_SCATTER || w->op == WEFT_OP_ALL_TO_ALL;
    bool root_only = w->op == WEFT_OP_BROADCAST || w->op == WEFT_OP_SCATTER;
    return root_only && rank != 0 ? 0 : each ? w->bytes * w->ranks : w->bytes;
}

static void take_shown(const worker_t *w, uint32_t from)
{
    const bench_case_t *own = &w->cases[w->rank];
    const uint8_t *shown = side_of(w->floor, from)->shown;
    uint64_t bytes = w->bytes, mine = w->rank * bytes;
    switch (w->op) {
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_REDUCE:
        add(w, own->recv, NULL, own->recv, shown, bytes);
        break;
    case WEFT_OP_REDUCE_SCATTER:
        add(w, own->recv, NULL, own->recv, shown + mine, bytes);
        break;
    case WEFT_OP_BROADCAST:
        memcpy(own->recv, shown, bytes);
        break;
    case WEFT_OP_SCATTER:
        memcpy(own->recv, shown + mine, bytes);
        break;
    default:
        memcpy(own->recv + from * bytes, shown + (w->op == WEFT_OP_ALL_TO_ALL ? mine : 0), bytes);
        break;
    }
}

static void call_by_showing(const worker_t *w, uint32_t k)
{
    side_t *own = side_of(w->floor, w->rank);
    bool takes = (w->op != WEFT_OP_REDUCE && w->op != WEFT_OP_GATHER) || w->rank == 0;
    uint64_t bytes = shown_bytes(w, w->rank);
    if (bytes > 0) {
        memcpy(own->shown, w->cases[w->rank].send, bytes);
        tell(&own->ready, k);
    }
    for (uint32_t i = 1; takes && i < w->ranks; i++) {
        uint32_t from = (w->rank + i) % w->ranks;
        if (shown_bytes(w, from) > 0) {
            see(w->floor, &side_of(w->floor, from)->ready, k);
            take_shown(w, from);
        }
    }
}

static void meet(const bench_floor_t *floor, uint32_t rank, uint32_t k)
{
    tell(&side_of(floor, rank)->meet, k);
    for (uint32_t r = 0; r < floor->ranks; r++) {
        see(floor, &side_of(floor, r)->meet, k);
    }
}

weft_status_t wefti_bench_floor_time(bench_rank_t *self, uint64_t bytes, uint64_t warm,
                                     uint64_t iterations)
{
    const bench_t *bench = self->bench;
    bench_floor_t *floor = bench->floor;
    worker_t w = {self,         floor, bench->op->op, self->rank,
                  bench->ranks, 0,     NULL,          wefti_isa_detect()};
    w.cases = calloc(bench->ranks, sizeof *w.cases);
    if (w.cases == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "no memory for the benchmark's tables");
    }
    for (uint32_t r = 0; r < bench->ranks; r++) {
        uint8_t *at = floor->memory + floor->buffers + 2ul * r * floor->buffer_bytes;
        w.cases[r] = wefti_bench_case(bench, r, at, at + floor->buffer_bytes, bytes);
    }
    const bench_case_t *own = &w.cases[self->rank];
    side_t *side = side_of(floor, self->rank);
    w.bytes = (bench->op->per_rank ? own->each : own->count) * self->elem_bytes;
    uint32_t k = atomic_load_explicit(&side->meet, memory_order_relaxed);
    bool shared_cores = wefti_bench_shares_cores(bench->ranks);
    for (uint64_t i = 0; i < warm + iterations; i++) {
        wefti_bench_produce(self, own, i);
        meet(floor, self->rank, ++k);
        uint64_t start = wefti_now_ns();
        if (bytes < SHOWN_BYTES) {
            call_by_showing(&w, k);
        } else {
            call_in_place(&w, k);
        }
        self->times[i < warm ? 0 : i - warm] = (double)(wefti_now_ns() - start) / 1e3;
        if (shared_cores) {
            meet(floor, self->rank, ++k); /* as in time_calls */
        }
    }
    free(w.cases);
    return WEFT_OK;
}

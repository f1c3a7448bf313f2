/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor: the least data movement of an operator, on the same pinned ranks, without the library.
 * There is no agreement and no error handling; ranks wait only for owners of memory that they read
 * or write, with one flag per step. Small data travels next to a flag; other data is moved in
 * place, between two flags. The faster way is the floor. Sums are of 32-bit integers for all types,
 * since memory access dominates.
 *
 * In place, the work has one part per rank. If ranks share cores, a running rank takes the next
 * part, since the others may not be scheduled.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"
#include "tools/bench/bench.h"
#include "tools/bench/sum.h"

#define SHOWN_BYTES 8192u
#define PUSH_BYTES ((uint64_t)1 << 20)
#define PAGE_BYTES ((size_t)4096)

typedef struct side {
    _Alignas(128) _Atomic uint32_t meet;
    _Alignas(128) _Atomic uint32_t ready;
    _Alignas(128) _Atomic uint32_t finished;
    /* Of rank 0: parts taken, and parts done, in all calls so far. */
    _Alignas(128) _Atomic uint64_t taken;
    _Alignas(128) _Atomic uint64_t done;
    uint64_t shared_calls; /* this rank's */
    /* The first bytes come with the flag, in one cache line. */
    _Alignas(128) _Atomic uint32_t told;
    uint8_t shown[SHOWN_BYTES];
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
    weft_isa_t isa;
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
    /* release: a rank that reads the value also sees what was written before it */
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

/* Bytes [at, at + bytes) of every rank's send buffer, summed, to those of the receive buffers of
 * ranks [first, first + count), which begin skip bytes earlier. */
static void reduce(const worker_t *w, uint64_t at, uint64_t bytes, uint32_t first, uint32_t count,
                   uint64_t skip)
{
    const uint8_t *from[BENCH_MAX_RANKS];
    uint8_t *to[BENCH_MAX_RANKS];
    for (uint32_t r = 0; r < w->ranks; r++) {
        from[r] = w->cases[r].send + at;
    }
    for (uint32_t r = 0; r < count; r++) {
        to[r] = w->cases[first + r].recv + at - skip;
    }
    wefti_bench_sum(w->isa, to, count, from, w->ranks, bytes);
}

/* ---- operators ---- */

/* Whether rank a reads or writes rank b's memory; rank 0 is the root. */
static bool touches(const worker_t *w, uint32_t a, uint32_t b)
{
    bool between = wefti_collective_rooted(w->op) && !wefti_collective_reduces(w->op);
    return a != b && (!between || a == 0 || b == 0);
}

static void copy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (to != from) {
        memcpy(to, from, bytes);
    }
}

/* Bytes [at, end) of what goes between the root and rank. */
static void move_between(const worker_t *w, uint32_t rank, uint64_t at, uint64_t end)
{
    const bench_case_t *root = &w->cases[0], *other = &w->cases[rank];
    uint64_t block = rank * w->bytes + at;
    if (w->op == WEFT_COLLECTIVE_BROADCAST) {
        copy(other->recv + at, root->send + at, end - at);
    } else if (w->op == WEFT_COLLECTIVE_SCATTER) {
        copy(other->recv + at, root->send + block, end - at);
    } else {
        copy(root->recv + block, other->send + at, end - at);
    }
}

/* The root moves its share of every block. A small block of a gather is written by its owner alone,
 * whose cache has the lines from the last call. */
static void move_rooted(const worker_t *w, uint32_t part)
{
    uint64_t theirs = wefti_align_up((size_t)(w->bytes / w->ranks * (w->ranks - 1)), 64);
    if (theirs > w->bytes || (w->op == WEFT_COLLECTIVE_GATHER && w->bytes < PUSH_BYTES)) {
        theirs = w->bytes;
    }
    if (part > 0) {
        move_between(w, part, 0, theirs);
        return;
    }
    move_between(w, 0, 0, w->bytes);
    for (uint32_t r = 1; r < w->ranks; r++) {
        move_between(w, r, theirs, w->bytes);
    }
}

/* A part of the work, normally that of the rank of this number. */
static void move(const worker_t *w, uint32_t part)
{
    const bench_case_t *own = &w->cases[part];
    uint64_t bytes = w->bytes, mine = part * bytes;
    uint64_t shard = wefti_align_up((size_t)((bytes + w->ranks - 1) / w->ranks), 64);
    uint64_t at = part * shard < bytes ? part * shard : bytes;
    shard = bytes - at < shard ? bytes - at : shard;
    switch (w->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        reduce(w, at, shard, 0, w->ranks, 0);
        break;
    case WEFT_COLLECTIVE_REDUCE:
        reduce(w, at, shard, 0, 1, 0);
        break;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        reduce(w, mine, bytes, part, 1, mine);
        break;
    case WEFT_COLLECTIVE_BROADCAST:
    case WEFT_COLLECTIVE_SCATTER:
    case WEFT_COLLECTIVE_GATHER:
        move_rooted(w, part);
        break;
    default:
        for (uint32_t i = 0; i < w->ranks; i++) {
            uint32_t from = (part + i) % w->ranks;
            copy(own->recv + from * bytes,
                 w->cases[from].send + (w->op == WEFT_COLLECTIVE_ALL_TO_ALL ? mine : 0), bytes);
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
    move(w, w->rank);
    tell(&own->finished, k);
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (touches(w, r, w->rank)) {
            see(w->floor, &side_of(w->floor, r)->finished, k);
        }
    }
}

/* The same where ranks share cores. Every rank asks for a part once in vain. */
static void call_together(const worker_t *w, uint32_t k)
{
    side_t *own = side_of(w->floor, w->rank), *first = side_of(w->floor, 0);
    uint64_t call = own->shared_calls++, base = call * 2 * w->ranks, part;
    tell(&own->ready, k);
    for (uint32_t r = 0; r < w->ranks; r++) {
        see(w->floor, &side_of(w->floor, r)->ready, k);
    }
    /* relaxed: what parts read was published by the flags above */
    while ((part = atomic_fetch_add_explicit(&first->taken, 1, memory_order_relaxed) - base) <
           w->ranks) {
        move(w, (uint32_t)part);
        /* release and acquire: a part is there once it counts as done */
        atomic_fetch_add_explicit(&first->done, 1, memory_order_release);
    }
    while (atomic_load_explicit(&first->done, memory_order_acquire) < (call + 1) * w->ranks) {
        sched_yield();
    }
}

/* What rank shows: its block or vector, or a block for each. */
static uint64_t shown_bytes(const worker_t *w, uint32_t rank)
{
    return wefti_send_shape(w->op, rank, 0, w->ranks, 1, NULL).blocks * w->bytes;
}

static void add_shown(const worker_t *w, const uint8_t *shown)
{
    uint8_t *own = w->cases[w->rank].recv;
    const uint8_t *from[] = {own, shown};
    wefti_bench_sum(w->isa, &own, 1, from, 2, w->bytes);
}

static void take_shown(const worker_t *w, uint32_t from)
{
    const bench_case_t *own = &w->cases[w->rank];
    const uint8_t *shown = side_of(w->floor, from)->shown;
    uint64_t bytes = w->bytes, mine = w->rank * bytes;
    switch (w->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
    case WEFT_COLLECTIVE_REDUCE:
        add_shown(w, shown);
        break;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        add_shown(w, shown + mine);
        break;
    case WEFT_COLLECTIVE_BROADCAST:
        memcpy(own->recv, shown, bytes);
        break;
    case WEFT_COLLECTIVE_SCATTER:
        memcpy(own->recv, shown + mine, bytes);
        break;
    default:
        memcpy(own->recv + from * bytes, shown + (w->op == WEFT_COLLECTIVE_ALL_TO_ALL ? mine : 0),
               bytes);
        break;
    }
}

/* What this rank has for itself; in place it is there already. */
static void take_own(const worker_t *w)
{
    const bench_case_t *own = &w->cases[w->rank];
    uint64_t mine = w->rank * w->bytes;
    const wefti_collective_t *op = wefti_collective_of(w->op);
    bool sends_each = op->send.extent == WEFT_EXTENT_BLOCKS;
    bool gets_each = op->recv.extent == WEFT_EXTENT_BLOCKS;
    if (wefti_side_is_on(op->recv, w->rank == 0) && shown_bytes(w, w->rank) > 0) {
        copy(own->recv + (gets_each ? mine : 0), own->send + (sends_each ? mine : 0), w->bytes);
    }
}

static void call_by_showing(const worker_t *w, uint32_t k)
{
    side_t *own = side_of(w->floor, w->rank);
    bool takes = wefti_side_is_on(wefti_collective_of(w->op)->recv, w->rank == 0);
    uint64_t bytes = shown_bytes(w, w->rank);
    if (bytes > 0) {
        memcpy(own->shown, w->cases[w->rank].send, bytes);
        tell(&own->told, k);
    }
    take_own(w);
    for (uint32_t i = 1; takes && i < w->ranks; i++) {
        uint32_t from = (w->rank + i) % w->ranks;
        if (shown_bytes(w, from) > 0) {
            see(w->floor, &side_of(w->floor, from)->told, k);
            take_shown(w, from);
        }
    }
}

/* The floor copies anything, but adds integers of 32 bits. */
static bool is_exact(const bench_t *bench)
{
    bool adds = wefti_collective_reduces(bench->op);
    bool words = bench->dtype == WEFT_DTYPE_I32 || bench->dtype == WEFT_DTYPE_U32;
    return !adds || (words && bench->reduction == WEFT_REDUCTION_SUM);
}

static void meet(const bench_floor_t *floor, uint32_t rank, uint32_t k)
{
    tell(&side_of(floor, rank)->meet, k);
    for (uint32_t r = 0; r < floor->ranks; r++) {
        see(floor, &side_of(floor, r)->meet, k);
    }
}

bool wefti_bench_floor_shows(uint64_t bytes)
{
    return bytes <= SHOWN_BYTES;
}

weft_status_t wefti_bench_floor_time(bench_rank_t *self, uint64_t bytes, bool shows, uint64_t warm,
                                     uint64_t iterations, uint64_t *wrong)
{
    const bench_t *bench = self->bench;
    bench_floor_t *floor = bench->floor;
    worker_t w = {self, floor, bench->op, self->rank, bench->ranks, 0, NULL, wefti_isa_detect()};
    w.cases = calloc(bench->ranks, sizeof *w.cases);
    if (w.cases == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: tables of the benchmark");
    }
    for (uint32_t r = 0; r < bench->ranks; r++) {
        uint8_t *at = floor->memory + floor->buffers + 2ul * r * floor->buffer_bytes;
        w.cases[r] = wefti_bench_case(bench, r, at, at + floor->buffer_bytes, bytes);
    }
    const bench_case_t *own = &w.cases[self->rank];
    side_t *side = side_of(floor, self->rank);
    w.bytes = (wefti_collective_is_vector(bench->op) ? own->count : own->each) * self->elem_bytes;
    uint32_t k = atomic_load_explicit(&side->meet, memory_order_relaxed);
    bool shared_cores = wefti_bench_shares_cores(bench->ranks);
    for (uint64_t i = 0; i < warm + iterations; i++) {
        wefti_bench_produce(self, own, i);
        meet(floor, self->rank, ++k);
        uint64_t start = wefti_now_ns();
        if (shows) {
            call_by_showing(&w, k);
        } else if (shared_cores) {
            call_together(&w, k);
        } else {
            call_in_place(&w, k);
        }
        self->times[i < warm ? 0 : i - warm] = (double)(wefti_now_ns() - start) / 1e3;
        if (shared_cores) {
            meet(floor, self->rank, ++k); /* as in time_calls */
        }
    }
    if (bench->check && is_exact(bench)) {
        *wrong += wefti_bench_check(self, own, warm + iterations - 1);
    }
    free(w.cases);
    return WEFT_OK;
}

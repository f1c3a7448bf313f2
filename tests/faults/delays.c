/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/delays.h"

#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define SPLIT_MIN_BYTES 16u
#define PIECES_MAX 3u

/* A piece of a put, or a signal, on its way. */
typedef struct entry {
    uint64_t due_ns, number; /* delivered in this order */
    wefti_parcel_t parcel;
    const void *source; /* lent, or data */
    uint8_t data[];
} entry_t;

/* One lane from one rank to another. */
typedef struct lane {
    uint64_t count;      /* of entries so far: with the seed it gives each its delay */
    uint64_t latest_due; /* of all of them: no signal comes before it */
} lane_t;

/* From one rank to another; made at first use. */
typedef struct pair {
    lane_t lanes[WEFTI_LINK_LANES];
    uint64_t free_ns; /* when the link has carried what it was given, where it has a rate */
    uint64_t bytes, messages;
    uint64_t busy_ns, busy_since_ns;
    uint32_t under_way;
} pair_t;

struct wefti_delays {
    uint32_t world_size;
    uint64_t seed;
    wefti_deliver_fn deliver;
    void *user;
    pid_t pid; /* whose thread it is: a forked child has none to wait for */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t sent, landed;
    pair_t **pairs;      /* [from * world_size + to] */
    uint32_t *under_way; /* [from] */
    entry_t **heap;      /* the next to be delivered first */
    size_t heap_count, heap_capacity;
    uint64_t number;
    bool busy; /* an entry is being delivered */
    bool stop;
};

/* ---- order ---- */

/* splitmix64: equal inputs, equal delays, whatever the threads do. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static bool goes_before(const entry_t *a, const entry_t *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void heap_push(wefti_delays_t *delays, entry_t *entry)
{
    size_t at = delays->heap_count++;
    for (; at > 0 && goes_before(entry, delays->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        delays->heap[at] = delays->heap[(at - 1) / 2];
    }
    delays->heap[at] = entry;
}

static entry_t *heap_pop(wefti_delays_t *delays)
{
    entry_t *first = delays->heap[0];
    entry_t *last = delays->heap[--delays->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= delays->heap_count) {
            break;
        }
        if (child + 1 < delays->heap_count &&
            goes_before(delays->heap[child + 1], delays->heap[child])) {
            child++;
        }
        if (!goes_before(delays->heap[child], last)) {
            break;
        }
        delays->heap[at] = delays->heap[child];
        at = child;
    }
    delays->heap[at] = last;
    return first;
}

/* ---- delivery ---- */

/* It was delivered or lost. Called with the lock held. */
static void finish(wefti_delays_t *delays, entry_t *entry)
{
    const wefti_parcel_t *parcel = &entry->parcel;
    pair_t *pair = delays->pairs[(size_t)parcel->from * delays->world_size + parcel->to];
    delays->under_way[parcel->from]--;
    if (--pair->under_way == 0) {
        pair->busy_ns += wefti_now_ns() - pair->busy_since_ns;
    }
    if (parcel->lent != NULL) {
        wefti_source_release(parcel->lent, 1);
    }
    wefti_free(NULL, entry);
}

/* Until something is due, sent, or to be stopped. Called with the lock held. */
static void rest(wefti_delays_t *delays)
{
    if (delays->heap_count == 0) {
        pthread_cond_wait(&delays->sent, &delays->lock);
        return;
    }
    uint64_t due = delays->heap[0]->due_ns;
    struct timespec at = {.tv_sec = (time_t)(due / 1000000000ull),
                          .tv_nsec = (long)(due % 1000000000ull)};
    pthread_cond_timedwait(&delays->sent, &delays->lock, &at);
}

static void *run(void *argument)
{
    wefti_delays_t *delays = argument;
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul); /* delays are microseconds */
    pthread_mutex_lock(&delays->lock);
    while (!delays->stop) {
        if (delays->heap_count == 0 || delays->heap[0]->due_ns > wefti_now_ns()) {
            rest(delays);
            continue;
        }
        entry_t *entry = heap_pop(delays);
        delays->busy = true;
        pthread_mutex_unlock(&delays->lock);
        delays->deliver(delays->user, &entry->parcel, entry->source);
        pthread_mutex_lock(&delays->lock);
        delays->busy = false;
        finish(delays, entry);
        pthread_cond_broadcast(&delays->landed);
    }
    pthread_mutex_unlock(&delays->lock);
    return NULL;
}

/* ---- sending ---- */

static uint64_t due_at(wefti_delays_t *delays, pair_t *pair, const wefti_parcel_t *parcel,
                       const wefti_delay_t *delay)
{
    lane_t *lane = &pair->lanes[parcel->lane];
    size_t index = (size_t)parcel->from * delays->world_size + parcel->to;
    uint64_t id = mix(delays->seed ^ mix(index * WEFTI_LINK_LANES + parcel->lane));
    uint64_t most = delay->uneven ? delay->random_ns >> (id & 3u) : delay->random_ns;
    uint64_t start = wefti_now_ns();
    if (delay->rate_bytes_per_s != 0) {
        start = start > pair->free_ns ? start : pair->free_ns;
        start += (uint64_t)((double)parcel->bytes * 1e9 / (double)delay->rate_bytes_per_s);
        pair->free_ns = start;
    }
    uint64_t due = start + delay->fixed_ns + mix(id + lane->count++) % (most + 1);
    if (parcel->is_signal && due < lane->latest_due) {
        due = lane->latest_due;
    }
    lane->latest_due = due > lane->latest_due ? due : lane->latest_due;
    return due;
}

/* Called with the lock held; takes the entry over. */
static weft_status_t queue(wefti_delays_t *delays, entry_t *entry, const wefti_delay_t *delay)
{
    const wefti_parcel_t *parcel = &entry->parcel;
    size_t index = (size_t)parcel->from * delays->world_size + parcel->to;
    weft_status_t status = wefti_array_reserve(NULL, &delays->heap, &delays->heap_capacity,
                                               delays->heap_count + 1, sizeof *delays->heap);
    if (status == WEFT_OK && delays->pairs[index] == NULL) {
        delays->pairs[index] = wefti_alloc(NULL, sizeof(pair_t));
        status = delays->pairs[index] != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    if (status < 0) {
        wefti_free(NULL, entry);
        return status;
    }
    if (parcel->lent != NULL) {
        wefti_source_acquire(parcel->lent, 1);
    }
    pair_t *pair = delays->pairs[index];
    entry->number = delays->number++;
    entry->due_ns = due_at(delays, pair, parcel, delay);
    pair->bytes += parcel->bytes;
    pair->messages++;
    if (pair->under_way++ == 0) {
        pair->busy_since_ns = wefti_now_ns();
    }
    delays->under_way[parcel->from]++;
    heap_push(delays, entry);
    if (delays->heap[0] == entry) {
        pthread_cond_signal(&delays->sent);
    }
    return WEFT_OK;
}

static weft_status_t send_piece(wefti_delays_t *delays, const wefti_parcel_t *parcel,
                                const void *data, const wefti_delay_t *delay)
{
    bool copies = parcel->lent == NULL && parcel->bytes > 0;
    entry_t *entry = wefti_alloc(NULL, sizeof *entry + (copies ? parcel->bytes : 0));
    if (entry == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    entry->parcel = *parcel;
    entry->source = copies ? entry->data : data;
    if (copies) {
        memcpy(entry->data, data, parcel->bytes);
    }
    pthread_mutex_lock(&delays->lock);
    weft_status_t status = queue(delays, entry, delay);
    pthread_mutex_unlock(&delays->lock);
    return status;
}

weft_status_t wefti_delays_send(wefti_delays_t *delays, const wefti_parcel_t *parcel,
                                const void *data, const wefti_delay_t *delay)
{
    /* Pieces of one put land at different times, so that who looks too early sees half of it. */
    uint64_t random = mix(delays->seed ^ (uint64_t)parcel->bytes);
    size_t bytes = parcel->bytes;
    size_t pieces =
        delay->random_ns > 0 && bytes >= SPLIT_MIN_BYTES ? 1 + (size_t)(random % PIECES_MAX) : 1;
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < pieces && status == WEFT_OK; i++) {
        wefti_parcel_t piece = *parcel;
        size_t begin = bytes / pieces * i;
        piece.place += begin;
        piece.bytes = i + 1 == pieces ? bytes - begin : bytes / pieces;
        status =
            send_piece(delays, &piece, data != NULL ? (const uint8_t *)data + begin : NULL, delay);
    }
    return status;
}

void wefti_delays_flush(wefti_delays_t *delays, uint32_t from)
{
    pthread_mutex_lock(&delays->lock);
    while (delays->under_way[from] > 0) {
        pthread_cond_wait(&delays->landed, &delays->lock);
    }
    pthread_mutex_unlock(&delays->lock);
}

/* Loses what is on its way between a and b; of all ranks where they are equal. */
static void lose(wefti_delays_t *delays, uint32_t a, uint32_t b, void (*then)(void *user),
                 void *user)
{
    pthread_mutex_lock(&delays->lock);
    entry_t **heap = delays->heap;
    size_t count = delays->heap_count;
    delays->heap_count = 0;
    for (size_t i = 0; i < count; i++) { /* what stays is pushed to places that were read before */
        entry_t *entry = heap[i];
        uint32_t from = entry->parcel.from, to = entry->parcel.to;
        if (a != b && !(from == a && to == b) && !(from == b && to == a)) {
            heap_push(delays, entry);
        } else {
            finish(delays, entry);
        }
    }
    if (then != NULL) {
        then(user);
    }
    while (delays->busy) {
        pthread_cond_wait(&delays->landed, &delays->lock);
    }
    pthread_cond_broadcast(&delays->landed);
    pthread_mutex_unlock(&delays->lock);
}

void wefti_delays_lose(wefti_delays_t *delays, uint32_t a, uint32_t b, void (*then)(void *user),
                       void *user)
{
    lose(delays, a, b, then, user);
}

void wefti_delays_clear(wefti_delays_t *delays)
{
    if (delays != NULL && delays->pid == getpid()) {
        lose(delays, 0, 0, NULL, NULL);
    }
}

void wefti_delays_stats(wefti_delays_t *delays, uint32_t from, uint32_t to, wefti_link_stats_t *out)
{
    pthread_mutex_lock(&delays->lock);
    const pair_t *there = delays->pairs[(size_t)from * delays->world_size + to];
    const pair_t *back = delays->pairs[(size_t)to * delays->world_size + from];
    if (there != NULL) {
        out->bytes_sent = there->bytes;
        out->messages_sent = there->messages;
        out->busy_ns = there->busy_ns;
        if (there->under_way > 0) {
            out->busy_ns += wefti_now_ns() - there->busy_since_ns;
        }
    }
    if (back != NULL) {
        out->bytes_received = back->bytes;
        out->messages_received = back->messages;
    }
    pthread_mutex_unlock(&delays->lock);
}

/* ---- making and unmaking ---- */

weft_status_t wefti_delays_create(uint32_t world_size, uint64_t seed, wefti_deliver_fn deliver,
                                  void *user, wefti_delays_t **out_delays)
{
    pthread_condattr_t attributes;
    wefti_delays_t *delays = wefti_alloc(NULL, sizeof *delays);
    *out_delays = NULL;
    if (delays == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    delays->world_size = world_size;
    delays->seed = seed;
    delays->deliver = deliver;
    delays->user = user;
    delays->pid = getpid();
    pthread_mutex_init(&delays->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&delays->sent, &attributes);
    pthread_cond_init(&delays->landed, NULL);
    pthread_condattr_destroy(&attributes);
    delays->under_way = wefti_alloc(NULL, world_size * sizeof *delays->under_way);
    delays->pairs = wefti_alloc(NULL, (size_t)world_size * world_size * sizeof *delays->pairs);
    if (delays->under_way == NULL || delays->pairs == NULL) {
        wefti_delays_destroy(delays);
        return WEFT_ERR_NO_MEMORY;
    }
    int error = pthread_create(&delays->thread, NULL, run, delays);
    if (error != 0) {
        wefti_delays_destroy(delays);
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, error, "cannot create the thread for delays");
    }
    delays->started = true;
    *out_delays = delays;
    return WEFT_OK;
}

static void stop(wefti_delays_t *delays)
{
    wefti_delays_clear(delays);
    pthread_mutex_lock(&delays->lock);
    delays->stop = true;
    pthread_cond_signal(&delays->sent);
    pthread_mutex_unlock(&delays->lock);
    pthread_join(delays->thread, NULL);
}

void wefti_delays_destroy(wefti_delays_t *delays)
{
    if (delays == NULL) {
        return;
    }
    bool own = delays->pid == getpid(); /* a forked child would wait for a thread that it has not */
    if (delays->started && own) {
        stop(delays);
    }
    size_t pairs = (size_t)delays->world_size * delays->world_size;
    for (size_t i = 0; delays->pairs != NULL && i < pairs; i++) {
        wefti_free(NULL, delays->pairs[i]);
    }
    if (own) {
        pthread_cond_destroy(&delays->sent);
        pthread_cond_destroy(&delays->landed);
        pthread_mutex_destroy(&delays->lock);
    }
    wefti_free(NULL, delays->pairs);
    wefti_free(NULL, delays->under_way);
    wefti_free(NULL, delays->heap);
    wefti_free(NULL, delays);
}

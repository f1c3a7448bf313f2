/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/network.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define SPLIT_MIN_BYTES 16u
#define PIECES_MAX 3u

/* One piece of a put, or one signal. */
typedef struct parcel {
    uint64_t due_ns, number; /* delivered in this order */
    uint32_t from;
    uint32_t value;
    wefti_signal_t *signal; /* NULL: a put */
    uint8_t *address;
    size_t bytes;
    uint8_t data[];
} parcel_t;

/* One lane from one rank to another. */
typedef struct lane {
    uint64_t count;      /* of parcels so far: with the seed it gives each its delay */
    uint64_t latest_due; /* of all of them: no signal comes before it */
} lane_t;

struct wefti_network {
    uint32_t world_size;
    uint32_t *host_of; /* [world_size] */
    uint64_t seed, max_delay_ns;
    pid_t pid; /* whose thread it is: a forked child has none to wait for */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t sent, landed;
    lane_t **lanes;      /* [from * world_size + to], made at first use: [WEFTI_LINK_LANES] */
    uint32_t *under_way; /* [from] parcels */
    parcel_t **heap;     /* the next to be delivered first */
    size_t heap_count, heap_capacity;
    uint64_t number;
    bool busy; /* a parcel is being delivered */
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

static bool goes_before(const parcel_t *a, const parcel_t *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void heap_push(wefti_network_t *network, parcel_t *parcel)
{
    size_t at = network->heap_count++;
    for (; at > 0 && goes_before(parcel, network->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        network->heap[at] = network->heap[(at - 1) / 2];
    }
    network->heap[at] = parcel;
}

static parcel_t *heap_pop(wefti_network_t *network)
{
    parcel_t *first = network->heap[0];
    parcel_t *last = network->heap[--network->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= network->heap_count) {
            break;
        }
        if (child + 1 < network->heap_count &&
            goes_before(network->heap[child + 1], network->heap[child])) {
            child++;
        }
        if (!goes_before(network->heap[child], last)) {
            break;
        }
        network->heap[at] = network->heap[child];
        at = child;
    }
    network->heap[at] = last;
    return first;
}

/* ---- delivery ---- */

static void deliver(const parcel_t *parcel)
{
    if (parcel->signal != NULL) {
        wefti_link_raise(parcel->signal, parcel->value);
    } else {
        memcpy(parcel->address, parcel->data, parcel->bytes);
    }
}

/* Until something is due, sent, or to be stopped. Called with the lock held. */
static void rest(wefti_network_t *network)
{
    if (network->heap_count == 0) {
        pthread_cond_wait(&network->sent, &network->lock);
        return;
    }
    uint64_t due = network->heap[0]->due_ns;
    struct timespec at = {.tv_sec = (time_t)(due / 1000000000ull),
                          .tv_nsec = (long)(due % 1000000000ull)};
    pthread_cond_timedwait(&network->sent, &network->lock, &at);
}

static void *run(void *argument)
{
    wefti_network_t *network = argument;
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul); /* delays are microseconds */
    pthread_mutex_lock(&network->lock);
    while (!network->stop) {
        if (network->heap_count == 0 || network->heap[0]->due_ns > wefti_now_ns()) {
            rest(network);
            continue;
        }
        parcel_t *parcel = heap_pop(network);
        network->busy = true;
        pthread_mutex_unlock(&network->lock);
        deliver(parcel);
        pthread_mutex_lock(&network->lock);
        network->busy = false;
        network->under_way[parcel->from]--;
        wefti_free(NULL, parcel);
        pthread_cond_broadcast(&network->landed);
    }
    pthread_mutex_unlock(&network->lock);
    return NULL;
}

/* ---- sending ---- */

/* Called with the lock held; takes the parcel over. */
static weft_status_t send(wefti_network_t *network, uint32_t to, uint32_t lane_number,
                          parcel_t *parcel)
{
    size_t pair = (size_t)parcel->from * network->world_size + to;
    weft_status_t status = wefti_array_reserve(NULL, &network->heap, &network->heap_capacity,
                                               network->heap_count + 1, sizeof *network->heap);
    if (status == WEFT_OK && network->lanes[pair] == NULL) {
        network->lanes[pair] = wefti_alloc(NULL, WEFTI_LINK_LANES * sizeof(lane_t));
        status = network->lanes[pair] != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    if (status < 0) {
        wefti_free(NULL, parcel);
        return status;
    }
    lane_t *lane = &network->lanes[pair][lane_number];
    uint64_t id = mix(network->seed ^ mix(pair * WEFTI_LINK_LANES + lane_number));
    uint64_t most = network->max_delay_ns >> (id & 3u); /* some lanes are slower than others */
    uint64_t delay = mix(id + lane->count++) % (most + 1);
    parcel->number = network->number++;
    parcel->due_ns = wefti_now_ns() + delay;
    if (parcel->signal != NULL && parcel->due_ns < lane->latest_due) {
        parcel->due_ns = lane->latest_due;
    }
    lane->latest_due = parcel->due_ns > lane->latest_due ? parcel->due_ns : lane->latest_due;
    network->under_way[parcel->from]++;
    heap_push(network, parcel);
    if (network->heap[0] == parcel) {
        pthread_cond_signal(&network->sent);
    }
    return WEFT_OK;
}

static weft_status_t put_piece(wefti_network_t *network, uint32_t from, uint32_t to, uint32_t lane,
                               uint8_t *address, const uint8_t *data, size_t bytes)
{
    parcel_t *parcel = wefti_alloc(NULL, sizeof *parcel + bytes);
    if (parcel == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    parcel->from = from;
    parcel->address = address;
    parcel->bytes = bytes;
    memcpy(parcel->data, data, bytes);
    pthread_mutex_lock(&network->lock);
    weft_status_t status = send(network, to, lane, parcel);
    pthread_mutex_unlock(&network->lock);
    return status;
}

weft_status_t wefti_network_put(wefti_network_t *network, uint32_t from, uint32_t to, uint32_t lane,
                                uint8_t *address, const void *data, size_t bytes)
{
    /* Pieces of one put land at different times, so that who looks too early sees half of it. */
    uint64_t random = mix(network->seed ^ (uintptr_t)bytes);
    size_t pieces = network->max_delay_ns > 0 && bytes >= SPLIT_MIN_BYTES
                        ? 1 + (size_t)(random % PIECES_MAX)
                        : 1;
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < pieces && status == WEFT_OK; i++) {
        size_t begin = bytes / pieces * i;
        size_t end = i + 1 == pieces ? bytes : bytes / pieces * (i + 1);
        status = put_piece(network, from, to, lane, address + begin, (const uint8_t *)data + begin,
                           end - begin);
    }
    return status;
}

weft_status_t wefti_network_signal(wefti_network_t *network, uint32_t from, uint32_t to,
                                   uint32_t lane, wefti_signal_t *signal, uint32_t value)
{
    parcel_t *parcel = wefti_alloc(NULL, sizeof *parcel);
    if (parcel == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    parcel->from = from;
    parcel->signal = signal;
    parcel->value = value;
    pthread_mutex_lock(&network->lock);
    weft_status_t status = send(network, to, lane, parcel);
    pthread_mutex_unlock(&network->lock);
    return status;
}

void wefti_network_flush(wefti_network_t *network, uint32_t from)
{
    pthread_mutex_lock(&network->lock);
    while (network->under_way[from] > 0) {
        pthread_cond_wait(&network->landed, &network->lock);
    }
    pthread_mutex_unlock(&network->lock);
}

void wefti_network_clear(wefti_network_t *network)
{
    if (network == NULL || network->pid != getpid()) {
        return;
    }
    pthread_mutex_lock(&network->lock);
    while (network->heap_count > 0) {
        parcel_t *parcel = network->heap[--network->heap_count];
        network->under_way[parcel->from]--;
        wefti_free(NULL, parcel);
    }
    while (network->busy) {
        pthread_cond_wait(&network->landed, &network->lock);
    }
    pthread_mutex_unlock(&network->lock);
}

/* ---- making and unmaking ---- */

bool wefti_network_between(const wefti_network_t *network, uint32_t a, uint32_t b)
{
    return network != NULL && network->host_of[a] != network->host_of[b];
}

weft_status_t wefti_network_create(uint32_t world_size, const wefti_hub_links_t *links,
                                   wefti_network_t **out_network)
{
    pthread_condattr_t attributes;
    wefti_network_t *network = wefti_alloc(NULL, sizeof *network);
    *out_network = NULL;
    if (network == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    network->world_size = world_size;
    network->seed = links->seed;
    network->max_delay_ns = links->max_delay_ns;
    network->pid = getpid();
    pthread_mutex_init(&network->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&network->sent, &attributes);
    pthread_cond_init(&network->landed, NULL);
    pthread_condattr_destroy(&attributes);
    network->host_of = wefti_alloc(NULL, world_size * sizeof *network->host_of);
    network->under_way = wefti_alloc(NULL, world_size * sizeof *network->under_way);
    network->lanes = wefti_alloc(NULL, (size_t)world_size * world_size * sizeof *network->lanes);
    if (network->host_of == NULL || network->under_way == NULL || network->lanes == NULL) {
        wefti_network_destroy(network);
        return WEFT_ERR_NO_MEMORY;
    }
    memcpy(network->host_of, links->host_of, world_size * sizeof *network->host_of);
    int error = pthread_create(&network->thread, NULL, run, network);
    if (error != 0) {
        wefti_network_destroy(network);
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, error, "no thread for a hub's network");
    }
    network->started = true;
    *out_network = network;
    return WEFT_OK;
}

void wefti_network_destroy(wefti_network_t *network)
{
    if (network == NULL) {
        return;
    }
    if (network->started && network->pid == getpid()) {
        wefti_network_clear(network);
        pthread_mutex_lock(&network->lock);
        network->stop = true;
        pthread_cond_signal(&network->sent);
        pthread_mutex_unlock(&network->lock);
        pthread_join(network->thread, NULL);
    }
    for (size_t i = 0;
         network->lanes != NULL && i < (size_t)network->world_size * network->world_size; i++) {
        wefti_free(NULL, network->lanes[i]);
    }
    if (network->pid == getpid()) { /* a forked child would wait for a thread that it has not */
        pthread_cond_destroy(&network->sent);
        pthread_cond_destroy(&network->landed);
        pthread_mutex_destroy(&network->lock);
    }
    wefti_free(NULL, network->lanes);
    wefti_free(NULL, network->under_way);
    wefti_free(NULL, network->host_of);
    wefti_free(NULL, network->heap);
    wefti_free(NULL, network);
}

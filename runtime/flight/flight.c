/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/flight/flight.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/memory.h"
#include "transport/endpoint.h"

#define TAKEN 16u /* places that a writer takes at a time */

static void describe(wefti_flight_header_t *header, const wefti_endpoint_t *endpoint,
                     const char *world, const char *launcher)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    header->ticks = wefti_flight_ticks();
    header->monotonic_ns = wefti_now_ns();
    header->unix_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    header->rank = endpoint->rank;
    header->world_size = endpoint->world_size;
    header->pid = (uint32_t)getpid();
    if (endpoint->host_names != NULL) {
        snprintf(header->host, sizeof header->host, "%s",
                 endpoint->host_names[endpoint->host_of[endpoint->rank]]);
    } else if (gethostname(header->host, sizeof header->host - 1) != 0) {
        header->host[0] = '\0';
    }
    snprintf(header->world, sizeof header->world, "%s", world);
    snprintf(header->transport, sizeof header->transport, "%s", endpoint->ops->name);
    snprintf(header->launcher, sizeof header->launcher, "%s", launcher);
    header->world_key = endpoint->world_key;
    memcpy(header->ask_name, endpoint->ask_name, sizeof header->ask_name);
}

static uint32_t begin(wefti_flight_t *flight, wefti_flight_kind_t kind, uint64_t what,
                      uint64_t count, uint32_t group, _Atomic uint32_t *numbers)
{
    /* relaxed: each number is taken once */
    uint32_t serial = atomic_fetch_add_explicit(&flight->image->next, 1, memory_order_relaxed);
    uint32_t seq = atomic_fetch_add_explicit(numbers, 1, memory_order_relaxed) + 1;
    wefti_flight_fill(flight->image, serial, kind, what, count, group, seq, WEFTI_FLIGHT_NO_RANK);
    return serial;
}

static uint32_t begin_control(void *user, wefti_control_kind_t name)
{
    wefti_flight_t *flight = user;
    if (!wefti_endpoint_owned(flight->endpoint)) {
        return 0;
    }
    return begin(flight, WEFTI_FLIGHT_CONTROL, name, 0, WEFTI_FLIGHT_ALONE, &flight->alone_seq);
}

static void control_meets(void *user, uint32_t record, uint32_t number)
{
    wefti_flight_image_t *image = ((wefti_flight_t *)user)->image;
    wefti_flight_call_t *call = wefti_flight_find(image, record);
    if (call != NULL && number != 0) {
        atomic_store_explicit(&call->serial, 0, memory_order_relaxed);
        /* a reader that sees any of the following sees that the record is being written */
        atomic_thread_fence(memory_order_release);
        atomic_store_explicit(&call->group, WEFTI_FLIGHT_CONTROLS, memory_order_relaxed);
        atomic_store_explicit(&call->seq, number, memory_order_relaxed);
        atomic_store_explicit(&call->serial, record, memory_order_release);
    }
    wefti_flight_block(image, record, WEFTI_FLIGHT_WAITING, WEFTI_FLIGHT_NO_RANK);
}

static void control_met(void *user, uint32_t record)
{
    wefti_flight_image_t *image = ((wefti_flight_t *)user)->image;
    wefti_flight_block(image, record, WEFTI_FLIGHT_RUNNING, WEFTI_FLIGHT_NO_RANK);
}

/* The status of the call is not known here. The error that ended the world is, and the message that
 * the caller is about to return stays. */
static void end_control(void *user, uint32_t record)
{
    wefti_flight_t *flight = user;
    const wefti_endpoint_t *endpoint = flight->endpoint;
    const wefti_fault_t *abort = &endpoint->control[endpoint->rank]->abort;
    char text[WEFTI_ERROR_TEXT_BYTES];
    if (atomic_load_explicit(&abort->state, memory_order_relaxed) == 0) {
        wefti_flight_leave(flight, record, WEFT_OK);
        return;
    }
    snprintf(text, sizeof text, "%s", weft_last_error());
    weft_status_t status = wefti_flight_leave(flight, record, wefti_fault_get(abort));
    wefti_error_adopt(status, text);
}

weft_status_t wefti_flight_init(wefti_flight_t *flight, wefti_endpoint_t *endpoint,
                                const char *world, const char *launcher)
{
    size_t words = (endpoint->world_size + 63) / 64;
    size_t bytes = sizeof *flight->image + WEFTI_FLIGHT_GROUPS * words * sizeof(uint64_t);
    flight->fd = -1;
    flight->endpoint = endpoint;
    flight->log = endpoint->log;
    flight->folder = endpoint->settings->dump;
    flight->bytes = wefti_align_up(bytes, 4096);
    /* Without a descriptor tools do not find it: no reason to fail. */
    int shared = wefti_memfd_create(WEFTI_FLIGHT_NAME, flight->bytes, &flight->fd) == WEFT_OK
                     ? 0
                     : MAP_ANONYMOUS;
    void *memory =
        mmap(NULL, flight->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | shared, flight->fd, 0);
    if (memory == MAP_FAILED) {
        if (flight->fd >= 0) {
            close(flight->fd);
        }
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot map %zu bytes",
                           flight->bytes);
    }
    madvise(memory, flight->bytes, MADV_DONTFORK);
    pthread_mutex_init(&flight->lock, NULL);
    flight->image = memory;
    describe(&flight->image->header, endpoint, world, launcher);
    flight->image->header.bytes = flight->bytes;
    flight->image->header.member_words = (uint32_t)words;
    atomic_init(&flight->image->next, 1);
    /* what a tool finds by it is written */
    atomic_thread_fence(memory_order_release);
    flight->image->header.magic = WEFTI_FLIGHT_MAGIC;
    endpoint->control_log =
        (wefti_control_log_t){flight, begin_control, control_meets, control_met, end_control};
    weft_status_t status = flight->folder[0] != '\0' ? wefti_flight_watch(flight) : WEFT_OK;
    flight->watched = flight->folder[0] != '\0' && status == WEFT_OK;
    return status;
}

void wefti_flight_deinit(wefti_flight_t *flight)
{
    if (flight->image == NULL) {
        return;
    }
    bool owned = wefti_endpoint_owned(flight->endpoint); /* a forked child has no mapping */
    if (owned && flight->watched) {
        wefti_flight_unwatch(flight);
    }
    if (owned) {
        munmap(flight->image, flight->bytes);
    }
    flight->endpoint->control_log = (wefti_control_log_t){.user = NULL};
    if (flight->fd >= 0) {
        close(flight->fd);
    }
    pthread_mutex_destroy(&flight->lock);
    flight->image = NULL;
}

/* ---- groups ---- */

static uint32_t identify(const uint32_t *ranks, uint32_t size, uint32_t channel)
{
    uint64_t hash = wefti_hash_word(WEFTI_HASH_START, channel);
    for (uint32_t i = 0; i < size; i++) {
        hash = wefti_hash_word(hash, ranks[i]);
    }
    uint32_t id = (uint32_t)(hash ^ hash >> 32);
    return id > WEFTI_FLIGHT_ALONE ? id : id + WEFTI_FLIGHT_ALONE + 1;
}

/* A place with this id, else a free one, else one of a group that was destroyed, else none. */
static uint32_t find_place(const wefti_flight_image_t *image, uint32_t id)
{
    uint32_t place = WEFTI_FLIGHT_GROUPS;
    bool is_free = false;
    for (uint32_t i = 0; i < WEFTI_FLIGHT_GROUPS; i++) {
        const wefti_flight_group_t *group = &image->groups[i];
        uint32_t other = atomic_load_explicit(&group->id, memory_order_relaxed);
        if (other == id) {
            return i;
        }
        if (!is_free && (other == 0 || group->open == 0)) {
            place = i;
            is_free = other == 0;
        }
    }
    return place;
}

static void write_group(wefti_flight_image_t *image, uint32_t place, uint32_t id,
                        const wefti_flight_group_t *facts, const uint32_t *ranks)
{
    wefti_flight_group_t *group = &image->groups[place];
    uint32_t words = image->header.member_words;
    uint64_t *members = image->members + (size_t)place * words;
    atomic_store_explicit(&group->id, 0, memory_order_relaxed);
    group->size = facts->size;
    group->rank = facts->rank;
    group->channel = facts->channel;
    group->open = 1;
    memset(members, 0, words * sizeof *members);
    for (uint32_t i = 0; i < facts->size; i++) {
        members[ranks[i] / 64] |= 1ull << ranks[i] % 64;
    }
    /* release: who finds the id finds the facts */
    atomic_store_explicit(&group->id, id, memory_order_release);
}

wefti_flight_writer_t wefti_flight_add_group(wefti_flight_t *flight, const uint32_t *ranks,
                                             uint32_t size, uint32_t rank, uint32_t channel,
                                             const wefti_fault_t *fault)
{
    wefti_flight_writer_t writer = {.image = flight->image,
                                    .group = identify(ranks, size, channel)};
    const wefti_flight_group_t facts = {.size = size, .rank = rank, .channel = channel};
    pthread_mutex_lock(&flight->lock);
    uint32_t place = find_place(flight->image, writer.group);
    if (place < WEFTI_FLIGHT_GROUPS) { /* else its calls name a group that is not described */
        write_group(flight->image, place, writer.group, &facts, ranks);
        flight->faults[place] = fault != NULL ? &fault->state : NULL;
    }
    pthread_mutex_unlock(&flight->lock);
    return writer;
}

void wefti_flight_remove_group(wefti_flight_t *flight, const wefti_flight_writer_t *writer)
{
    if (writer->image == NULL || !wefti_endpoint_owned(flight->endpoint)) {
        return;
    }
    bool failed = false;
    pthread_mutex_lock(&flight->lock);
    uint32_t place = find_place(flight->image, writer->group);
    if (place < WEFTI_FLIGHT_GROUPS && flight->image->groups[place].id == writer->group) {
        flight->image->groups[place].open = 0; /* its calls stay in the ring for a while */
        failed = wefti_flight_take_fault(flight, place);
        flight->faults[place] = NULL;
    }
    pthread_mutex_unlock(&flight->lock);
    if (failed && flight->folder[0] != '\0') { /* the watcher has not seen it yet */
        wefti_flight_dump_due(flight, "a group has failed", WEFTI_FLIGHT_QUIET_NS);
    }
}

/* ---- records ---- */

void wefti_flight_take(wefti_flight_writer_t *writer)
{
    /* relaxed: each serial is taken once */
    writer->next = atomic_fetch_add_explicit(&writer->image->next, TAKEN, memory_order_relaxed);
    writer->end = writer->next + TAKEN;
}

uint32_t wefti_flight_enter(wefti_flight_t *flight, wefti_flight_kind_t kind, uint64_t count)
{
    uint32_t serial = begin(flight, kind, 0, count, WEFTI_FLIGHT_WORLD, &flight->world_seq);
    wefti_flight_block(flight->image, serial, WEFTI_FLIGHT_MOVING, WEFTI_FLIGHT_NO_RANK);
    return serial;
}

weft_status_t wefti_flight_leave(wefti_flight_t *flight, uint32_t serial, weft_status_t status)
{
    wefti_flight_end(flight->image, serial, status);
    if (status < 0) {
        wefti_flight_note(flight, status);
    }
    return status;
}

static bool is_fault(weft_status_t status)
{
    return status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_PEER_DIED ||
           status == WEFT_ERR_ABORTED || status == WEFT_ERR_MISMATCH || status == WEFT_ERR_LINK ||
           status == WEFT_ERR_SYSTEM || status == WEFT_ERR_INTERNAL;
}

void wefti_flight_note(wefti_flight_t *flight, weft_status_t status)
{
    if (!is_fault(status)) {
        return;
    }
    char text[WEFTI_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", weft_last_error());
    bool first = wefti_fault_set(&flight->image->header.fault, status, text);
    if (flight->folder[0] != '\0') { /* the first one also after a dump of the watcher */
        wefti_flight_dump_due(flight, text, first ? 0 : WEFTI_FLIGHT_QUIET_NS);
    }
    wefti_error_adopt(status, text);
}

void wefti_flight_note_failed(wefti_flight_t *flight, const wefti_flight_writer_t *writer,
                              weft_status_t status)
{
    pthread_mutex_lock(&flight->lock);
    uint32_t place = find_place(flight->image, writer->group);
    bool is_news = place < WEFTI_FLIGHT_GROUPS && wefti_flight_take_fault(flight, place);
    pthread_mutex_unlock(&flight->lock);
    const wefti_fault_t *first = &flight->image->header.fault;
    if (is_news || atomic_load_explicit(&first->state, memory_order_relaxed) == 0) {
        wefti_flight_note(flight, status);
    }
}

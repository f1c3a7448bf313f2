/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an image while its rank goes on writing, or after it was killed. */
#include "runtime/flight/flight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/signature.h"

bool wefti_flight_is_image(const wefti_flight_image_t *image, size_t bytes)
{
    if (bytes < sizeof *image || image->header.magic != WEFTI_FLIGHT_MAGIC) {
        return false;
    }
    const wefti_flight_header_t *header = &image->header;
    uint64_t words = header->member_words;
    return header->bytes == bytes && header->rank < header->world_size &&
           words == ((uint64_t)header->world_size + 63) / 64 &&
           sizeof *image + WEFTI_FLIGHT_GROUPS * words * sizeof(uint64_t) <= bytes &&
           memchr(header->host, '\0', sizeof header->host) != NULL &&
           memchr(header->world, '\0', sizeof header->world) != NULL &&
           memchr(header->transport, '\0', sizeof header->transport) != NULL &&
           memchr(header->launcher, '\0', sizeof header->launcher) != NULL &&
           memchr(header->ask_name, '\0', sizeof header->ask_name) != NULL;
}

wefti_flight_clock_t wefti_flight_clock(const wefti_flight_image_t *image)
{
    const wefti_flight_header_t *header = &image->header;
    uint64_t ticks = wefti_flight_ticks(), now = wefti_now_ns();
    wefti_flight_clock_t clock = {header->ticks, 1};
    if (ticks > header->ticks && now > header->monotonic_ns) {
        clock.ns_per_tick = (double)(now - header->monotonic_ns) / (double)(ticks - header->ticks);
    }
    return clock;
}

static int64_t at(const wefti_flight_clock_t *clock, uint64_t ticks)
{
    return (int64_t)((double)(int64_t)(ticks - clock->start) * clock->ns_per_tick);
}

int64_t wefti_flight_now(const wefti_flight_clock_t *clock)
{
    return at(clock, wefti_flight_ticks());
}

/* False: the place is empty, or its record is being written. */
static bool read_record(const wefti_flight_call_t *call, const wefti_flight_clock_t *clock,
                        wefti_flight_record_t *out)
{
    /* acquire pairs with the release of who filled it in */
    out->serial = atomic_load_explicit(&call->serial, memory_order_acquire);
    if (out->serial == 0) {
        return false;
    }
    uint64_t ended = atomic_load_explicit(&call->ended, memory_order_relaxed);
    uint32_t kind = atomic_load_explicit(&call->kind, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&call->state, memory_order_relaxed);
    out->seq = atomic_load_explicit(&call->seq, memory_order_relaxed);
    out->group = atomic_load_explicit(&call->group, memory_order_relaxed);
    out->awaits = atomic_load_explicit(&call->awaits, memory_order_relaxed);
    out->peer = atomic_load_explicit(&call->peer, memory_order_relaxed);
    out->what = atomic_load_explicit(&call->what, memory_order_relaxed);
    out->count = atomic_load_explicit(&call->count, memory_order_relaxed);
    out->issued_ns = at(clock, atomic_load_explicit(&call->issued, memory_order_relaxed));
    out->ended_ns = ended != 0 ? at(clock, ended) : -1;
    out->stream = kind >> 16;
    kind &= 0xffffu;
    out->kind = kind < WEFTI_FLIGHT_KIND_COUNT ? kind : 0;
    out->state = (state & 0xff) < WEFTI_FLIGHT_STATES ? state & 0xff : 0;
    out->status = -(weft_status_t)(state >> 8 & 0xff);
    /* the fields were read before the serial is read again */
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&call->serial, memory_order_relaxed) == out->serial;
}

static int by_time(const void *a, const void *b)
{
    const wefti_flight_record_t *x = a, *y = b;
    if (x->issued_ns != y->issued_ns) {
        return x->issued_ns < y->issued_ns ? -1 : 1;
    }
    return x->serial < y->serial ? -1 : x->serial > y->serial;
}

uint32_t wefti_flight_records(const wefti_flight_image_t *image, wefti_flight_record_t *out)
{
    wefti_flight_clock_t clock = wefti_flight_clock(image);
    uint32_t count = 0;
    for (uint32_t i = 0; i < WEFTI_FLIGHT_CALLS; i++) {
        count += read_record(&image->calls[i], &clock, &out[count]);
    }
    qsort(out, count, sizeof *out, by_time);
    return count;
}

bool wefti_flight_is_member(const wefti_flight_image_t *image, const wefti_flight_group_t *group,
                            uint32_t rank)
{
    const uint64_t *members =
        image->members + (size_t)(group - image->groups) * image->header.member_words;
    return (members[rank / 64] >> rank % 64 & 1) != 0;
}

const char *wefti_flight_kind_name(const wefti_flight_record_t *record)
{
    static const char *const names[] = {
#define WEFTI_FLIGHT_KIND(name, text) text,
        WEFTI_FLIGHT_KINDS(WEFTI_FLIGHT_KIND)
#undef WEFTI_FLIGHT_KIND
    };
    switch (record->kind) {
    case WEFTI_FLIGHT_COLLECTIVE:
        return wefti_what_control(record->what) != 0
                   ? wefti_control_name(wefti_what_control(record->what))
                   : wefti_what_function(record->what);
    case WEFTI_FLIGHT_CONTROL:
        return wefti_control_name((uint32_t)record->what);
    default:
        return names[record->kind];
    }
}

const char *wefti_flight_state_name(wefti_flight_state_t state)
{
    static const char *const names[WEFTI_FLIGHT_STATES] = {"running", "queued",     "waiting",
                                                           "moving",  "recovering", "done"};
    return names[state];
}

const char *wefti_flight_text(const wefti_flight_record_t *record, char *out)
{
    const char *name = wefti_flight_kind_name(record);
    const char *dtype = weft_dtype_name((weft_dtype_t)(record->what >> 8 & 0xff));
    switch (record->kind) {
    case WEFTI_FLIGHT_COLLECTIVE:
        if (wefti_what_control(record->what) == 0) {
            return wefti_what_text(record->what, record->count, out);
        }
        snprintf(out, 160, "%s", name);
        break;
    case WEFTI_FLIGHT_SEND:
    case WEFTI_FLIGHT_RECV:
        snprintf(out, 160, "%s of %llu x %s %s rank %u", name, (unsigned long long)record->count,
                 dtype, record->kind == WEFTI_FLIGHT_SEND ? "to" : "from", record->peer);
        break;
    case WEFTI_FLIGHT_SESSION_STEP:
        snprintf(out, 160, "%s %llu", name, (unsigned long long)record->count);
        break;
    case WEFTI_FLIGHT_SESSION_RUN:
        snprintf(out, 160, "%s of program %llu", name, (unsigned long long)record->count);
        break;
    default:
        snprintf(out, 160, "%s", name);
        break;
    }
    return out;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a flight recorder: a memfd named weft-flight, mapped by its rank, and read-only by
 * tools through /proc/PID/fd. Written without locks; a reader copies records and skips those that
 * change meanwhile.
 *
 *   header     who this rank is, written once; its first error
 *   calls      [WEFTI_FLIGHT_CALLS] a ring of records, one cache line each
 *   groups     [WEFTI_FLIGHT_GROUPS] groups and sessions that calls name by id
 *   members    [WEFTI_FLIGHT_GROUPS] a bit per rank of the world
 */
#ifndef WEFT_RUNTIME_FLIGHT_IMAGE_H
#define WEFT_RUNTIME_FLIGHT_IMAGE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/base/fault.h"
#include "runtime/base/sync.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define WEFTI_FLIGHT_NAME "weft-flight"
#define WEFTI_FLIGHT_MAGIC 0x3274666c74666577ull /* "weftlft2" */
#define WEFTI_FLIGHT_CALLS 4096u                 /* a power of two */
#define WEFTI_FLIGHT_GROUPS 128u
/* Ids of calls that are not of a group. */
#define WEFTI_FLIGHT_WORLD 1u    /* steps and runs, in the order in which a rank makes them */
#define WEFTI_FLIGHT_CONTROLS 2u /* control calls, numbered by the world's all-gathers */
#define WEFTI_FLIGHT_ALONE 3u    /* control calls without one, which each rank counts for itself */
#define WEFTI_FLIGHT_NO_RANK UINT32_MAX

/* What a record is of: name as the public function's, without prefix. */
#define WEFTI_FLIGHT_KINDS(X)                                                                      \
    X(COLLECTIVE, "collective")                                                                    \
    X(SEND, "send")                                                                                \
    X(RECV, "recv")                                                                                \
    X(CONTROL, "control call")                                                                     \
    X(SESSION_STEP, "session_step")                                                                \
    X(SESSION_RUN, "session_run")

typedef enum wefti_flight_kind {
#define WEFTI_FLIGHT_KIND(name, text) WEFTI_FLIGHT_##name,
    WEFTI_FLIGHT_KINDS(WEFTI_FLIGHT_KIND)
#undef WEFTI_FLIGHT_KIND
        WEFTI_FLIGHT_KIND_COUNT,
} wefti_flight_kind_t;

typedef enum wefti_flight_state {
    WEFTI_FLIGHT_RUNNING,    /* has not been found blocked */
    WEFTI_FLIGHT_QUEUED,     /* behind earlier calls of its group */
    WEFTI_FLIGHT_WAITING,    /* for ranks that have not come to this call */
    WEFTI_FLIGHT_MOVING,     /* for data of ranks that have */
    WEFTI_FLIGHT_RECOVERING, /* from a link that broke */
    WEFTI_FLIGHT_DONE,
    WEFTI_FLIGHT_STATES,
} wefti_flight_state_t;

/* All fields are written by one thread at a time, and read by any. */
typedef struct wefti_flight_call {
    _Atomic uint32_t serial; /* 0: being written. The place in the ring is its lowest bits */
    _Atomic uint32_t seq;    /* within its group; of sends and receives: to or from their peer */
    _Atomic uint64_t issued; /* ticks */
    _Atomic uint64_t ended;  /* ticks; 0: not yet, or at once: a small call that did not wait */
    _Atomic uint64_t what;   /* of collectives: the signature; of control calls: their kind */
    _Atomic uint64_t count;  /* elements; bytes of memory */
    _Atomic uint32_t group;  /* id */
    _Atomic uint32_t kind;   /* wefti_flight_kind_t, and from bit 16 on the stream; 0: none */
    _Atomic uint32_t state;  /* wefti_flight_state_t, and from bit 8 on the status, negated */
    _Atomic uint32_t awaits; /* rank of the world that it waits for, or WEFTI_FLIGHT_NO_RANK */
    _Atomic uint32_t peer;   /* rank of the world that data goes to or comes from */
    uint32_t pad;
} wefti_flight_call_t;
_Static_assert(sizeof(wefti_flight_call_t) == 64, "one cache line is written per call");

typedef struct wefti_flight_group {
    _Atomic uint32_t id; /* the same on all ranks of it; 0: a free place */
    uint32_t size, rank;
    uint32_t channel; /* UINT32_MAX: not a group but the world, or a session */
    uint32_t open;    /* 0: destroyed */
    uint8_t pad[44];
} wefti_flight_group_t;
_Static_assert(sizeof(wefti_flight_group_t) == 64, "places are found by their number");

typedef struct wefti_flight_header {
    uint64_t magic; /* last to be written */
    uint64_t bytes; /* of the image */
    uint32_t rank, world_size, pid;
    uint32_t member_words;                 /* uint64_t per group */
    uint64_t ticks, monotonic_ns, unix_us; /* one moment */
    char host[64], world[128], transport[16], launcher[24];
    uint64_t world_key;  /* equal on all ranks of a world of several hosts; else 0 */
    char ask_name[16];   /* as the endpoint's */
    wefti_fault_t fault; /* the first error that ended a call */
} wefti_flight_header_t;

#define WEFTI_FLIGHT_HEADER_BYTES 1024u
typedef struct wefti_flight_image {
    union {
        wefti_flight_header_t header;
        uint8_t header_pad[WEFTI_FLIGHT_HEADER_BYTES];
    };
    _Atomic uint32_t next; /* the serial that the next taker gets */
    uint8_t pad[60];
    wefti_flight_call_t calls[WEFTI_FLIGHT_CALLS];
    wefti_flight_group_t groups[WEFTI_FLIGHT_GROUPS];
    uint64_t members[];
} wefti_flight_image_t;
_Static_assert(sizeof(wefti_flight_header_t) <= WEFTI_FLIGHT_HEADER_BYTES, "it fits");
_Static_assert(sizeof(wefti_flight_image_t) % 64 == 0, "records are cache lines");

/* Quick to read, equal on all cores; wefti_flight_clock turns it into nanoseconds. */
static inline uint64_t wefti_flight_ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return wefti_now_ns();
#endif
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight recorder of a rank: what it called last, and how far each call is.
 *
 *   image.h   the memory, which tools read from outside
 *   flight.c  the recorder of a context: groups, records of calls that are not of groups
 *   read.c    records of an image, also of another process
 *   dump.c    an image as JSON, to a file
 *   watch.c   dumps on faults that this rank does not see itself, and on SIGUSR1
 */
#ifndef WEFT_RUNTIME_FLIGHT_H
#define WEFT_RUNTIME_FLIGHT_H

#include <pthread.h>

#include "runtime/base/text.h"
#include "runtime/flight/image.h"
#include "transport/transport.h"

/* Of a group: takes several places of the ring at a time, so that a call needs no atomic operation.
 * One thread at a time. */
typedef struct wefti_flight_writer {
    wefti_flight_image_t *image;
    uint32_t next, end; /* serials that it has taken */
    uint32_t group;     /* id */
} wefti_flight_writer_t;

#define WEFTI_FLIGHT_QUIET_NS 1000000000ull /* between dumps: one fault ends many calls */

typedef struct wefti_flight {
    wefti_flight_image_t *image;
    size_t bytes;
    int fd; /* -1: memory of this process only */
    _Atomic uint32_t world_seq, alone_seq;
    const wefti_log_t *log;
    wefti_endpoint_t *endpoint;
    pthread_mutex_t lock; /* guards groups, faults, dumped_ns, and files while they are written */
    const _Atomic uint32_t *faults[WEFTI_FLIGHT_GROUPS]; /* states; NULL: nothing to look for */
    uint64_t dumped_ns;                                  /* 0: never */
    bool watched;
    bool aborted;              /* the end of the world was seen; of the watcher */
    const char *folder;        /* WEFT_DUMP; "": none */
    struct wefti_flight *next; /* watch.c */
} wefti_flight_t;

/* Zero at first. host: this rank's, or NULL: the machine's name. The endpoint stays longer. */
weft_status_t wefti_flight_init(wefti_flight_t *flight, wefti_endpoint_t *endpoint,
                                const char *world, const char *launcher);
void wefti_flight_deinit(wefti_flight_t *flight);

/*
 * A group of this rank: ranks of the world, and what makes two groups of the same ranks two.
 * fault: of the group, or NULL. Returns a writer for its calls.
 */
wefti_flight_writer_t wefti_flight_add_group(wefti_flight_t *flight, const uint32_t *ranks,
                                             uint32_t size, uint32_t rank, uint32_t channel,
                                             const wefti_fault_t *fault);
void wefti_flight_remove_group(wefti_flight_t *flight, const wefti_flight_writer_t *writer);

void wefti_flight_take(wefti_flight_writer_t *writer);

/* Fills in the record of a serial; its state is RUNNING. */
static inline void wefti_flight_fill(wefti_flight_image_t *image, uint32_t serial, uint32_t kind,
                                     uint64_t what, uint64_t count, uint32_t group, uint32_t seq,
                                     uint32_t peer)
{
    wefti_flight_call_t *call = &image->calls[serial % WEFTI_FLIGHT_CALLS];
    atomic_store_explicit(&call->serial, 0, memory_order_relaxed);
    /* a reader that sees any of the following sees that the record is being written */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&call->seq, seq, memory_order_relaxed);
    atomic_store_explicit(&call->issued, wefti_flight_ticks(), memory_order_relaxed);
    atomic_store_explicit(&call->ended, 0, memory_order_relaxed);
    atomic_store_explicit(&call->what, what, memory_order_relaxed);
    atomic_store_explicit(&call->count, count, memory_order_relaxed);
    atomic_store_explicit(&call->group, group, memory_order_relaxed);
    atomic_store_explicit(&call->kind, kind, memory_order_relaxed);
    atomic_store_explicit(&call->state, WEFTI_FLIGHT_RUNNING, memory_order_relaxed);
    atomic_store_explicit(&call->awaits, WEFTI_FLIGHT_NO_RANK, memory_order_relaxed);
    atomic_store_explicit(&call->peer, peer, memory_order_relaxed);
    /* release: the record is whole */
    atomic_store_explicit(&call->serial, serial, memory_order_release);
}

/* A call of a group; returns its serial. stream: 0 for none. */
static inline uint32_t wefti_flight_begin(wefti_flight_writer_t *writer, uint32_t kind,
                                          uint32_t stream, uint64_t what, uint64_t count,
                                          uint32_t seq, uint32_t peer)
{
    if (writer->next == writer->end) {
        wefti_flight_take(writer);
    }
    uint32_t serial = writer->next++;
    wefti_flight_fill(writer->image, serial, kind | stream << 16, what, count, writer->group, seq,
                      peer);
    return serial;
}

/* NULL: later calls have taken the place. */
static inline wefti_flight_call_t *wefti_flight_find(wefti_flight_image_t *image, uint32_t serial)
{
    wefti_flight_call_t *call = &image->calls[serial % WEFTI_FLIGHT_CALLS];
    return atomic_load_explicit(&call->serial, memory_order_relaxed) == serial ? call : NULL;
}

/* The call is blocked. */
static inline void wefti_flight_block(wefti_flight_image_t *image, uint32_t serial,
                                      wefti_flight_state_t state, uint32_t awaits)
{
    wefti_flight_call_t *call = wefti_flight_find(image, serial);
    if (call != NULL) {
        atomic_store_explicit(&call->awaits, awaits, memory_order_relaxed);
        atomic_store_explicit(&call->state, state, memory_order_relaxed);
    }
}

/*
 * The call has ended. Reading the clock is half of what a record costs, so small calls that did not
 * wait have no end of their own.
 */
#define WEFTI_FLIGHT_SMALL 1024u
static inline void wefti_flight_end(wefti_flight_image_t *image, uint32_t serial,
                                    weft_status_t status)
{
    wefti_flight_call_t *call = wefti_flight_find(image, serial);
    if (call == NULL) {
        return;
    }
    uint32_t failed = status < 0 ? (uint32_t)-status << 8 : 0;
    if (failed != 0 ||
        atomic_load_explicit(&call->state, memory_order_relaxed) != WEFTI_FLIGHT_RUNNING ||
        atomic_load_explicit(&call->count, memory_order_relaxed) > WEFTI_FLIGHT_SMALL) {
        atomic_store_explicit(&call->ended, wefti_flight_ticks(), memory_order_relaxed);
    }
    atomic_store_explicit(&call->state, WEFTI_FLIGHT_DONE | failed, memory_order_relaxed);
}

/* A call of the whole world that is numbered here: enter, then leave with its status, which is
 * returned. Neither in a forked child. */
uint32_t wefti_flight_enter(wefti_flight_t *flight, wefti_flight_kind_t kind, uint64_t count);
weft_status_t wefti_flight_leave(wefti_flight_t *flight, uint32_t serial, weft_status_t status);

/* A call ended with status, whose message is this thread's: keeps the first one, and dumps where
 * WEFT_DUMP says so, unless the caller alone is at fault. */
void wefti_flight_note(wefti_flight_t *flight, weft_status_t status);

/* A call has not begun, since its group had failed before: as wefti_flight_note, once. */
void wefti_flight_note_failed(wefti_flight_t *flight, const wefti_flight_writer_t *writer,
                              weft_status_t status);

/* Under the lock: whether the group of a place has failed, and nobody has asked since. */
static inline bool wefti_flight_take_fault(wefti_flight_t *flight, uint32_t place)
{
    const _Atomic uint32_t *state = flight->faults[place];
    bool failed = state != NULL && atomic_load_explicit(state, memory_order_relaxed) == 2;
    flight->faults[place] = failed ? NULL : state;
    return failed;
}

/* ---- read.c ---- */

/* A copy of a record, with times in nanoseconds since the context was created. */
typedef struct wefti_flight_record {
    uint32_t serial, seq, group, stream, awaits, peer;
    wefti_flight_kind_t kind;
    wefti_flight_state_t state;
    weft_status_t status;
    uint64_t what, count;
    int64_t issued_ns, ended_ns; /* ended_ns -1: not ended, or at once */
} wefti_flight_record_t;

typedef struct wefti_flight_clock {
    uint64_t start;
    double ns_per_tick;
} wefti_flight_clock_t;

/* False: not an image of this version. */
bool wefti_flight_is_image(const wefti_flight_image_t *image, size_t bytes);
wefti_flight_clock_t wefti_flight_clock(const wefti_flight_image_t *image);
/* Nanoseconds since the context was created. */
int64_t wefti_flight_now(const wefti_flight_clock_t *clock);
/* All records, the oldest first. out: [WEFTI_FLIGHT_CALLS]; returns how many. */
uint32_t wefti_flight_records(const wefti_flight_image_t *image, wefti_flight_record_t *out);
bool wefti_flight_is_member(const wefti_flight_image_t *image, const wefti_flight_group_t *group,
                            uint32_t rank);
const char *wefti_flight_kind_name(const wefti_flight_record_t *record);
const char *wefti_flight_state_name(wefti_flight_state_t state);
/* "all_reduce with 16 x f32 (sum)"; returns out, of at least 160 bytes. */
const char *wefti_flight_text(const wefti_flight_record_t *record, char *out);

/* ---- dump.c ---- */

/* An image as JSON; reason: why it is written. */
weft_status_t wefti_flight_write(const wefti_flight_image_t *image, const char *reason,
                                 wefti_text_t *out);
/* To path; where that is a folder, as wefti_flight_dump_in. */
weft_status_t wefti_flight_dump(const wefti_flight_image_t *image, const char *path,
                                const char *reason);

/* weft-rank3-HOST-PID.json in folder, which is made if it does not exist. */
weft_status_t wefti_flight_dump_path(const char *folder, uint32_t rank, const char *host_name,
                                     uint32_t pid, char *out, size_t bytes);
/* To that file. */
weft_status_t wefti_flight_dump_in(const wefti_flight_image_t *image, const char *folder,
                                   const char *reason);

/* To the folder of WEFT_DUMP, unless it was done less than quiet_ns ago. */
void wefti_flight_dump_due(wefti_flight_t *flight, const char *reason, uint64_t quiet_ns);

/* ---- watch.c ---- */

/* Where WEFT_DUMP is set: a thread of the process watches all its recorders. */
weft_status_t wefti_flight_watch(wefti_flight_t *flight);
void wefti_flight_unwatch(wefti_flight_t *flight);

#endif

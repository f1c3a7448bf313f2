/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stream did last: the flight recorder, printed when a step fails, and, when it is made long
 * enough, the timeline. Written by the thread that runs the stream; read when nothing runs or after
 * a failure.
 */
#ifndef WEFT_RUNTIME_HISTORY_H
#define WEFT_RUNTIME_HISTORY_H

#include <weft/types.h>

#define WEFTI_HISTORY_RECORDER 64u
#define WEFTI_HISTORY_TRACE 16384u

typedef enum wefti_history_kind {
    WEFTI_HISTORY_KERNEL = 1,
    WEFTI_HISTORY_COLLECTIVE = 2,
    WEFTI_HISTORY_WAIT = 3,   /* from blocking to going on; name is the event's */
    WEFTI_HISTORY_SIGNAL = 4, /* an event was recorded */
    WEFTI_HISTORY_OTHER = 5,
} wefti_history_kind_t;

typedef struct wefti_history_entry {
    uint64_t start_ns, end_ns;
    const char *name;
    uint64_t bytes; /* of a collective */
    uint32_t run;   /* number of the run, over all programs */
    uint32_t event; /* SIGNAL and WAIT: links the two */
    uint32_t kind;
    const char *command; /* of a queue of a device; NULL: else */
    uint32_t step;       /* the step that the run belongs to, from 1; 0: init, eval, flush */
} wefti_history_entry_t;

typedef struct wefti_history {
    wefti_history_entry_t *entries;
    uint32_t capacity; /* a power of two */
    uint64_t count;    /* ever added */
} wefti_history_t;

/* The number of the oldest entry that is still there. */
static inline uint64_t wefti_history_oldest(const wefti_history_t *history)
{
    return history->count > history->capacity ? history->count - history->capacity : 0;
}

static inline const wefti_history_entry_t *wefti_history_at(const wefti_history_t *history,
                                                            uint64_t number)
{
    return &history->entries[number & (history->capacity - 1)];
}

static inline void wefti_history_add(wefti_history_t *history, const wefti_history_entry_t *entry)
{
    history->entries[history->count++ & (history->capacity - 1)] = *entry;
}

#endif

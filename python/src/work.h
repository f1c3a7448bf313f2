/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a Work: work.c (its beginning and end), work_type.c (what Python sees). */
#ifndef WEFT_PYTHON_WORK_H
#define WEFT_PYTHON_WORK_H

#include "python/src/stream.h"

/* All under the GIL. */
struct wp_work {
    PyObject_HEAD wp_state_t *state;
    wp_stream_t *stream; /* owned */
    wp_work_t *next;     /* in the stream's list */
    uint64_t number;     /* by which that is sorted */
    wp_call_t call;      /* until it is done */
    wp_group_t *group;   /* owned, until it is done */
    wp_batch_t *batch;   /* NULL, or what is done instead of call; owned, until it is done */
    weft_event_t
        *event;       /* behind it on the stream; NULL once it is done and nobody looks any more */
    uint32_t waiters; /* threads that look at event without the GIL */
    bool done, failed;
    weft_collective_t op;
    PyObject *result, *error; /* once it is done: one of them */
};

/* An event to look at without the GIL, where it stays until end_look, which is told what was seen
 * of the work. */
weft_event_t *wp_work_begin_look(wp_work_t *work);
void wp_work_end_look(wp_work_t *work, weft_status_t seen);
/* Of one that is done: its result, or NULL and its error. */
PyObject *wp_work_outcome(wp_work_t *work);
/* It never began, or is done: gives back what it owns for being in flight. */
void wp_work_abandon(wp_work_t *work);
int wp_work_type_init(PyObject *module, wp_state_t *state);

#endif

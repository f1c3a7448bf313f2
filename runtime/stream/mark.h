/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A counter that streams post and others wait for, with its fault: what events and notifies are.
 * Counted, because queued records may outlive the program's handle.
 */
#ifndef WEFT_RUNTIME_MARK_H
#define WEFT_RUNTIME_MARK_H

#include "runtime/context/context.h"
#include "runtime/stream/record.h"

typedef struct wefti_mark {
    wefti_signal_line_t local; /* on the CPU device */
    wefti_signal_t *signal;    /* &local, or on the device */
    weft_context_t *context;
    _Atomic uint32_t references;
    _Atomic uint32_t seen;           /* the device's counter as last copied to the host */
    _Atomic uint64_t time_ns;        /* when the last record was reached */
    wefti_fault_t fault;             /* of the stream that recorded it; stays */
    _Atomic uint32_t recorded;       /* value of the latest record */
    _Atomic uint32_t waited;         /* a notify: value of the latest wait */
    _Atomic(weft_stream_t *) stream; /* an event: which recorded it; looked into on devices only */
    struct wefti_mark *next;         /* an event: another one of its marks */
} wefti_mark_t;

weft_status_t wefti_mark_create(weft_context_t *context, wefti_mark_t **out_mark);
void wefti_mark_retain(wefti_mark_t *mark);
void wefti_mark_release(wefti_mark_t *mark); /* accepts NULL */
bool wefti_mark_reached(const wefti_mark_t *mark, uint32_t target);

/* The counter for commands of a device. Only its address is taken: it may lie in memory that the
 * host cannot touch. */
static inline uint32_t *wefti_mark_counter(const wefti_mark_t *mark)
{
    return (uint32_t *)&mark->signal->value;
}

#endif

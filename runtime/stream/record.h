/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything a stream runs is one of a few prefilled records. Executor and public streams share
 * them.
 *
 * Counter values are epoch * stride + offset, epoch being the number of the run: a record of a plan
 * never changes between steps. Values wrap like the counters do.
 */
#ifndef WEFT_RUNTIME_RECORD_H
#define WEFT_RUNTIME_RECORD_H

#include <stdbool.h>

#include <weft/stream.h>

#include "runtime/base/error.h"
#include "runtime/base/fault.h"
#include "runtime/base/sync.h"
#include "transport/transport.h"

/*
 * Work that a stream runs without knowing it. A stream uses run or poll, depending on who runs it,
 * and drop instead of both after an error; a stream on a device uses enqueue alone.
 */
typedef struct wefti_opaque_ops {
    /* To the end, on the stream's own thread. An error breaks the stream. */
    weft_status_t (*run)(void *user);
    /* The same without blocking. WEFT_IN_PROGRESS: blocked, on *out_blocked. */
    weft_status_t (*poll)(void *user, wefti_blocked_t *out_blocked);
    /* The stream is broken, with this status. WEFT_IN_PROGRESS: not yet, to be called again. */
    weft_status_t (*drop)(void *user, weft_status_t status);
    /* Commands in its place. */
    weft_status_t (*enqueue)(void *user, const weft_device_ops_t *ops, weft_queue_t *queue);
    /* After poll was blocked: what it waits for, for transport/waits.h; false: it may go on. NULL:
     * it is not known. */
    bool (*describe)(void *user, wefti_wait_t *out);
} wefti_opaque_ops_t;

typedef enum wefti_record_kind {
    WEFTI_RECORD_KERNEL = 1,
    WEFTI_RECORD_SIGNAL = 2,
    WEFTI_RECORD_WAIT = 3,
    WEFTI_RECORD_REDUCE = 4,
    WEFTI_RECORD_COPY = 5,
    WEFTI_RECORD_HOST = 6,
    WEFTI_RECORD_OPAQUE = 7,   /* public streams only: wefti_opaque_ops_t */
    WEFTI_RECORD_SCHEDULE = 8, /* plans only: a collective that the interpreter runs */
    WEFTI_RECORD_SWEEP = 9,    /* plans only: reduces, updates and gives, block by block */
} wefti_record_kind_t;

#define WEFTI_RECORD_FIRST (1u << 0)       /* first record of a collective */
#define WEFTI_RECORD_LAST (1u << 1)        /* its last one */
#define WEFTI_RECORD_EVENT (1u << 2)       /* SIGNAL or WAIT of an event between streams */
#define WEFTI_RECORD_FUSION_COPY (1u << 3) /* COPY that exists only to fuse: counted */

typedef struct wefti_record {
    uint8_t kind; /* wefti_record_kind_t */
    uint8_t flags;
    uint16_t source;  /* WAIT: stream that posts it, UINT16_MAX: another rank */
    uint32_t event;   /* with WEFTI_RECORD_EVENT: its number, for the timeline's arrows */
    const char *name; /* kernel, collective or event, for messages and the timeline */
    uint64_t bytes;   /* what a collective moves, for the timeline */
    union {
        struct {
            const weft_kernel_t *kernel;
            weft_kernel_call_t call;
            uint32_t input_count, output_count;
        } kernel;
        struct {
            wefti_signal_t *signal;
            uint32_t stride, offset;
        } signal;
        struct {
            wefti_signal_t *const *signals;
            uint32_t count, stride, offset;
        } wait;
        weft_reduce_t reduce;
        struct {
            void *dst;
            const void *src;
            size_t size_bytes;
        } copy;
        struct {
            weft_host_fn fn;
            void *user;
        } host;
        struct {
            const wefti_opaque_ops_t *ops;
            void *user;
        } opaque;
        struct {
            struct wefti_bound_run *bound;
        } schedule;
        struct {
            const struct wefti_sweep *sweep;
        } sweep;
    };
} wefti_record_t;

/* Slots of work for one kind of stream only: not for devices; not for the host. */
weft_status_t wefti_opaque_not_enqueued(void *user, const weft_device_ops_t *ops,
                                        weft_queue_t *queue);
weft_status_t wefti_opaque_not_run(void *user);
weft_status_t wefti_opaque_not_polled(void *user, wefti_blocked_t *out_blocked);
weft_status_t wefti_opaque_not_dropped(void *user, weft_status_t status);

/* Runs a record other than WAIT on the calling thread; host memory only. */
weft_status_t wefti_record_run(const wefti_record_t *record, uint32_t epoch, weft_isa_t isa);
/* Hands a record to a device's queue. HOST cannot be: WEFT_ERR_UNSUPPORTED. */
weft_status_t wefti_record_enqueue(const wefti_record_t *record, uint32_t epoch,
                                   const weft_device_ops_t *ops, weft_queue_t *queue);

#endif

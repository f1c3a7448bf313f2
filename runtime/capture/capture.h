/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of captures.
 *
 *   capture.c    begin, recording, end, destroy
 *   agree.c      ranks compare what they recorded, and learn what others know
 *   conflicts.c  which calls use memory that earlier ones write
 *   plan.c       calls to units: a view, Weft's public passes, one order
 *   pieces.c     buckets (runtime/collective/bucket.h): which pieces are packed; the digest
 *   run.c        replays: hands units to a stream, in one order on all ranks
 *   explain.c    what was planned, for people and as JSON
 *
 *   call   one captured collective                       0 1 2 3 4 5 6 7
 *   unit   what runs as one: a bucket, or a call alone   [0 1 3] [2] [4 5 6] [7]
 *   piece  one call of a bucket                          in place | packed | in place
 *
 * The planner is fusion's, by weft/passes.h: a captured sequence is a small graph, and this folder
 * is its host compiler. The runtime knows only the recorder of a group
 * (runtime/collective/recorder.h).
 */
#ifndef WEFT_CAPTURE_CAPTURE_H
#define WEFT_CAPTURE_CAPTURE_H

#include <assert.h>
#include <stddef.h>

#include <weft/capture.h>
#include <weft/passes.h>

#include "runtime/base/text.h"
#include "runtime/collective/agree.h"
#include "runtime/collective/bucket.h"
#include "runtime/collective/submit.h"

#define WEFTI_CAPTURE_CALLS 65536u
#define WEFTI_CAPTURE_NONE UINT32_MAX

typedef struct wefti_captured {
    wefti_batched_t batched; /* as the call was made; counts are the capture's */
    uint64_t at_ns;          /* since the begin; after the agreement the latest of all ranks */
    uint64_t key;            /* where it lies on rank 0: members of a bucket are in that order */
    uint32_t unit;
    bool is_ready, is_waited; /* in the replay that is under way */
    bool has_event;           /* the program called weft_capture_ready after it */
    weft_event_t *event;      /* from the first such replay on */
} wefti_captured_t;

/* A group's open capture. */
typedef struct wefti_recording {
    wefti_recorder_t recorder;
    weft_capture_params_t params; /* strings are its own */
    uint64_t begun_ns;
    wefti_captured_t *calls;
    size_t count, capacity;
} wefti_recording_t;
static_assert(offsetof(wefti_recording_t, recorder) == 0, "a recorder is cast to its recording");

/* Call b runs behind call a. */
typedef struct wefti_conflict {
    uint32_t a, b;
} wefti_conflict_t;

typedef struct wefti_capture_unit {
    wefti_captured_t **members;
    uint32_t member_count;
    uint32_t parts;     /* of a split tensor; else 1 */
    const char *reason; /* why a bucket ends; NULL: a call alone */
    uint64_t ready_ns;
    wefti_bucket_t bucket; /* a part per member */
    uint32_t missing;      /* members that are not ready in this replay */
    weft_event_t *event;   /* recorded after it, in replays by weft_capture_ready */
} wefti_capture_unit_t;

/* What is handed to a stream next. */
typedef struct wefti_capture_cursor {
    weft_stream_t *stream;
    bool gradual; /* by weft_capture_ready: waits for members, records events */
    uint32_t unit;
    uint32_t member;              /* gradual: the data of those before it is waited for */
    wefti_bucket_cursor_t bucket; /* of a bucket */
    bool has_run;                 /* only the unit's event is left */
} wefti_capture_cursor_t;

struct weft_capture {
    weft_context_t *context;
    wefti_bucket_runner_t runner; /* its stream: that of gradual replays */
    wefti_arena_t arena;
    wefti_captured_t *calls;
    uint32_t call_count;
    wefti_capture_unit_t *units; /* as they run */
    uint32_t unit_count;
    weft_bucket_forecast_t forecast;
    const char *policy;
    weft_capture_info_t info;

    bool active; /* a gradual replay */
    uint32_t waited;
    wefti_capture_cursor_t cursor; /* of it */
    weft_stream_t *last_stream;    /* of the last replay; only compared */
    weft_event_t *over;            /* after the last replay; that of the last unit, too */
};

static inline uint32_t wefti_capture_index(const weft_capture_t *capture,
                                           const wefti_captured_t *call)
{
    return (uint32_t)(call - capture->calls);
}

static inline uint64_t wefti_capture_bytes(const wefti_capture_unit_t *unit)
{
    return unit->bucket.count * unit->bucket.elem_bytes;
}

/* agree.c: all ranks noted the same; else the same error on all. status: this rank's own so
 * far. */
weft_status_t wefti_capture_compare(weft_capture_t *capture, const wefti_recording_t *recording,
                                    weft_status_t status);
/* Ready times become those of the latest rank, keys those of rank 0, conflicts those of any. */
weft_status_t wefti_capture_share(weft_capture_t *capture, wefti_conflict_t **conflicts,
                                  size_t *count);

/* conflicts.c: from this rank's addresses, without repeats; freed with the allocator, also on
 * failure. */
weft_status_t wefti_capture_conflicts(const weft_capture_t *capture, wefti_conflict_t **out,
                                      size_t *out_count);

/* plan.c */
weft_status_t wefti_capture_plan(weft_capture_t *capture, const weft_capture_params_t *params,
                                 const wefti_conflict_t *conflicts, size_t count);

/* pieces.c. Collective. */
weft_status_t wefti_capture_cut(weft_capture_t *capture);

/* explain.c: "call 3, AllReduce of 100 f32". */
void wefti_capture_describe(const weft_capture_t *capture, const wefti_captured_t *call, char *text,
                            size_t bytes);

#endif

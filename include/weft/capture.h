/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file capture.h A sequence of eager calls becomes a plan that is replayed.
 *
 * For callers without any graph: run one step whose collectives on a group are captured instead of
 * carried out, and replay them from then on, in buckets that the planner chose.
 *
 *     weft_capture_begin(group, NULL);
 *     backward(..);                  weft_all_reduce(g, g, n, .., group, stream) in between is noted
 *     weft_capture_end(group, &capture);        ranks agree on the sequence, buckets are planned
 *
 *     each step   weft_capture_launch(capture, stream);         all at once, in stream's order
 *     or          weft_capture_ready(capture, call, stream);    call by call, as data appears: a bucket
 *                 weft_capture_wait(capture, call, stream);     goes when all its members are there
 *
 * What may be captured: every collective of collective.h on this group but weft_send and weft_recv; with any
 * stream, which is not looked at. Not batches, fusers, and what makes or changes groups: these are
 * WEFT_ERR_STATE in between. Other groups' calls run as ever. A captured call moves no data, so what
 * the captured step computes from results is worth nothing.
 *
 * Replays of one capture run one behind the other, whatever their streams.
 *
 * Buffers: their addresses are captured, so they must stay where they are until the capture is
 * destroyed; contents are read and written when replayed. Memory that peers reach (weft_mem_alloc,
 * weft_mem_register) is quickest, as for any call.
 *
 * Agreement: all ranks capture the same operators, types, counts, reductions and roots in the same
 * order, or weft_capture_end is WEFT_ERR_MISMATCH on all of them, naming the call and both sides.
 * A call that uses a buffer that an earlier one writes (on any rank) runs after it; others may be
 * reordered and fused: all-reduces of one type and reduction become buckets. A barrier stays where it is.
 * Times between the captured calls, the longest of all ranks, are when the planner takes data to be ready,
 * so capture a step like those to come. Results have the same bits as the calls one by one (unless
 * the group's order is WEFT_ORDER_ANY).
 *
 * Equivalent to: a CUDA graph captured from NCCL calls, but with buckets
 */
#ifndef WEFT_CAPTURE_H
#define WEFT_CAPTURE_H

#include <weft/collective.h>

typedef struct weft_capture weft_capture_t;

/** Zero and NULL mean the default; equal on all ranks. */
typedef struct weft_capture_params {
    size_t struct_size;
    const char *bucket;     /**< policy, see weft_bucket_policy_check; NULL: "auto" */
    const char *costs_path; /**< measured costs (`weft tune`); NULL: the defaults */
    int no_times;           /**< 1: all data is taken to be ready at once; what is planned then depends on the calls alone */
    /**
     * Where calls run that weft_capture_ready starts: after what was enqueued there before, so one that is used
     * for nothing else is best; with a thread, the caller's thread stays free. It must outlive the
     * capture. NULL: an inline stream of the capture's own.
     */
    weft_stream_t *stream;
} weft_capture_params_t;

#define WEFT_CAPTURE_PARAMS_INIT {sizeof(weft_capture_params_t), 0, 0, 0, 0}

/** Facts about a capture. */
typedef struct weft_capture_info {
    size_t struct_size;
    uint32_t call_count;   /**< as captured; they are numbered from 0 in that order */
    uint32_t bucket_count; /**< all-reduces after fusion */
    uint32_t run_count;    /**< what a replay issues: buckets (a large one in several calls) and all other calls */
    uint64_t largest_bucket_bytes;
    uint64_t buffer_bytes; /**< memory of the capture's own, for members of buckets that do not lie side by side */
    uint64_t copied_bytes; /**< into and out of it, by each replay on this rank */
    uint64_t replays;      /**< launched or finished so far */
    char digest[65];       /**< hex, of the plan: equal on all ranks */
} weft_capture_info_t;

#define WEFT_CAPTURE_INFO_INIT {sizeof(weft_capture_info_t), 0, 0, 0, 0, 0, 0, 0, {0}}

WEFT_EXTERN_C_BEGIN
/**
 * From here on calls on group are captured. Not collective; all ranks do it between the same calls.
 * @param[in] params NULL: defaults; strings are copied
 * @return WEFT_ERR_STATE when a capture or batch was begun already
 */
WEFT_API weft_status_t weft_capture_begin(weft_group_t *group, const weft_capture_params_t *params);
/**
 * Ends it: ranks agree on the sequence and on the plan. Collective over group. The capture's calls are its own and do
 * not mix with others on group, which may go before the capture; they have the order of reductions and the
 * algorithms that group has now.
 * @return WEFT_ERR_STATE when none was begun; WEFT_ERR_MISMATCH, on all ranks, naming the call and both sides (group
 *         stays usable); WEFT_ERR_INVALID_ARGUMENT, on all ranks, when the policy does not fit
 */
WEFT_API weft_status_t weft_capture_end(weft_group_t *group, weft_capture_t **out_capture);
/** Forgets what was captured and captures no more: for when the caller's step failed. Not collective. */
WEFT_API weft_status_t weft_capture_cancel(weft_group_t *group);
/**
 * Replays all of it in stream's order, as one call would run. All ranks launch the same captures of overlapping
 * ranks in the same order. Returns when everything is enqueued: it waits where stream or group are full.
 * @param[in] stream NULL: returns when it is done
 * @return WEFT_ERR_STATE when a replay by weft_capture_ready is under way
 * Equivalent to: cudaGraphLaunch
 */
WEFT_API weft_status_t weft_capture_launch(weft_capture_t *capture, weft_stream_t *stream);
/**
 * The data of call (its buffers) is there once what was enqueued on stream is done, NULL: now. Nobody else uses its
 * buffers until weft_capture_wait. A replay is under way from the first of these calls until every call was
 * made ready and waited for; calls are made ready in any order. Does not block; makes progress.
 * @return WEFT_AGAIN when a stream is full: again after progress; WEFT_ERR_INVALID_ARGUMENT when there is no such call; WEFT_ERR_STATE when it was made ready already
 */
WEFT_API weft_status_t weft_capture_ready(weft_capture_t *capture, uint32_t call, weft_stream_t *stream);
/**
 * Later work of stream runs behind call; NULL: returns when it is done. Waits where the capture's stream or group
 * are full.
 * @return WEFT_AGAIN when stream is full; WEFT_ERR_STATE when it cannot run yet, naming a call that was not made ready and that it is in a bucket with
 *         or comes behind in the agreed order
 */
WEFT_API weft_status_t weft_capture_wait(weft_capture_t *capture, uint32_t call, weft_stream_t *stream);
/** Waits for all of a replay's calls, and ends it; when none is under way, for the last replay to be over. */
WEFT_API weft_status_t weft_capture_wait_all(weft_capture_t *capture);
/** @param[in,out] info struct_size set by the caller */
WEFT_API weft_status_t weft_capture_get_info(const weft_capture_t *capture, weft_capture_info_t *info);
/**
 * Says what is replayed: buckets with members, bytes, ready times and why each ends where it ends, and the calls
 * in between, in the order in which they run.
 * @param[in]  json     0: text for people; 1: one JSON object with stable keys
 * @param[out] out_text from malloc; the caller frees it
 */
WEFT_API weft_status_t weft_capture_explain(const weft_capture_t *capture, int json, char **out_text);
/** Collective; NULL is fine. Waits for replays in flight. */
WEFT_API void weft_capture_destroy(weft_capture_t *capture);
WEFT_EXTERN_C_END

#endif

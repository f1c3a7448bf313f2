/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file capture.h
 * Captures a sequence of eager calls as a plan that is replayed.
 *
 * For callers without a graph: run one step while the collectives of a group are captured instead
 * of executed. Later steps replay them in buckets that the planner chose.
 *
 *     weft_capture_begin(group, NULL);
 *     backward(..);                 // weft_all_reduce(g, g, n, .., group, stream) is recorded
 *     weft_capture_end(group, &capture);     // ranks agree on the sequence; buckets are planned
 *
 *     // each step: either all at once, in stream's order,
 *     weft_capture_launch(capture, stream);
 *     // or call by call as data appears; a bucket starts when all its members are ready
 *     weft_capture_ready(capture, call, stream);
 *     weft_capture_wait(capture, call, stream);
 *
 * All collectives of collective.h on this group can be captured, except weft_send and weft_recv.
 * Their streams are ignored. Batches, fusers, and calls that create or change groups return
 * WEFT_ERR_STATE meanwhile. Calls on other groups run as usual. A captured call moves no data, so
 * results of the captured step are meaningless.
 *
 * Replays of one capture run one after the other, whatever their streams.
 *
 * Buffers. Their addresses are captured: they must stay valid until the capture is destroyed.
 * Contents are read and written by each replay. Memory that peers access (weft_mem_alloc,
 * weft_mem_register) is fastest.
 *
 * Agreement. All ranks capture the same operators, types, counts, reductions and roots in the same
 * order. Otherwise weft_capture_end returns WEFT_ERR_MISMATCH on all of them and names the call and
 * both sides. If weft_capture_begin or a captured call had a wrong argument on one rank,
 * weft_capture_end returns that error on all ranks that began, and the group stays usable. A call
 * that uses a buffer that an earlier call writes (on any rank) runs after it.
 * Other calls may be reordered and fused: all-reduces of one type and reduction become buckets. A
 * barrier keeps its place. The planner takes the times between the captured calls, the longest of
 * all ranks, as the times at which data is ready; so capture a typical step. Results have the bits
 * of the separate calls, except with WEFT_ORDER_ANY.
 *
 * Equivalent to: a CUDA graph captured from NCCL calls, with buckets
 */
#ifndef WEFT_CAPTURE_H
#define WEFT_CAPTURE_H

#include <weft/collective.h>

/** A captured sequence of calls. */
typedef struct weft_capture weft_capture_t;

/** Parameters of weft_capture_begin, equal on all ranks except stream. Zero means the default. */
typedef struct weft_capture_params {
    size_t struct_size;     /**< size of this struct */
    const char *bucket;     /**< policy, see weft_bucket_policy_check; NULL: "auto" */
    const char *costs_path; /**< measured costs (`weft tune`); NULL: default costs */
    int no_times; /**< 1: all data is ready at once; the plan then depends on calls only */
    /**
     * Stream of the calls that weft_capture_ready starts, ordered after its earlier work; best used
     * for nothing else. With a thread it keeps the caller's thread free. Must outlive the capture.
     * NULL: an inline stream of the capture.
     */
    weft_stream_t *stream;
} weft_capture_params_t;

/** Defaults of weft_capture_params_t. */
#define WEFT_CAPTURE_PARAMS_INIT WEFT_STRUCT_INIT(weft_capture_params_t, 0, 0, 0, 0)

/** Facts about a capture. */
typedef struct weft_capture_info {
    size_t struct_size;            /**< size of this struct */
    uint32_t call_count;           /**< captured calls, numbered from 0 in the order of capture */
    uint32_t bucket_count;         /**< all-reduces after fusion */
    uint32_t run_count;            /**< calls of a replay: pieces of buckets and other calls */
    uint64_t largest_bucket_bytes; /**< bytes of the largest bucket */
    uint64_t buffer_bytes;         /**< memory of the capture for scattered members of buckets */
    uint64_t copied_bytes;         /**< bytes that a replay copies into and out of that memory */
    uint64_t replays;              /**< replays launched or finished so far */
    char digest[65];               /**< digest of the plan in hex, equal on all ranks */
} weft_capture_info_t;

/** Initial value of weft_capture_info_t. */
#define WEFT_CAPTURE_INFO_INIT WEFT_STRUCT_INIT(weft_capture_info_t, 0, 0, 0, 0, 0, 0, 0, {0})

WEFT_EXTERN_C_BEGIN
/**
 * Starts to capture calls on group. Local; all ranks do it between the same calls.
 * @param[in] group  the group
 * @param[in] params strings are copied; NULL: defaults
 * @return WEFT_ERR_STATE if a capture or a batch is open; WEFT_ERR_INVALID_ARGUMENT for a policy or
 *         a stream of another context; WEFT_ERR_NO_MEMORY; the last two are told to the other
 *         ranks, which get them from weft_capture_end, and may be WEFT_AGAIN instead if the group is
 *         full; the error that broke group
 *
 * Equivalent to: cudaStreamBeginCapture
 */
WEFT_API weft_status_t weft_capture_begin(weft_group_t *group, const weft_capture_params_t *params);
/**
 * Ends a capture: ranks agree on the sequence and on the plan. Collective over group, blocking. The
 * capture's calls do not mix with other calls on group, which may be destroyed first. They use the
 * reduction order and the algorithms that group has now.
 * @param[in]  group       the group
 * @param[out] out_capture the capture; the caller destroys it
 * @return WEFT_ERR_STATE if no capture is open; on all ranks: WEFT_ERR_MISMATCH naming the call and
 *         both sides (the group stays usable), WEFT_ERR_INVALID_ARGUMENT if the policy does not fit
 *
 * Equivalent to: cudaStreamEndCapture, cudaGraphInstantiate
 */
WEFT_API weft_status_t weft_capture_end(weft_group_t *group, weft_capture_t **out_capture);
/**
 * Drops the open capture, for a caller whose step failed. Local.
 * @param[in] group the group
 * @return WEFT_ERR_STATE if no capture is open
 */
WEFT_API weft_status_t weft_capture_cancel(weft_group_t *group);
/**
 * Replays all calls as one call ordered in stream. Collective. All ranks launch captures of
 * overlapping ranks in the same order. Returns when all calls are enqueued; waits while stream or
 * group is full.
 * @param[in] capture the capture
 * @param[in] stream  NULL: blocking
 * @return WEFT_ERR_STATE during a replay by weft_capture_ready; WEFT_ERR_INVALID_ARGUMENT for a
 *         stream of another context; the error that broke the capture's group
 *
 * Equivalent to: cudaGraphLaunch
 */
WEFT_API weft_status_t weft_capture_launch(weft_capture_t *capture, weft_stream_t *stream);
/**
 * Marks the data of a call as ready once earlier work of stream is done. Nothing else may use its
 * buffers until weft_capture_wait. The first such call starts a replay; it ends when every call was
 * made ready and waited for. Calls are made ready in any order. Local, non-blocking; makes
 * progress.
 * @param[in] capture the capture
 * @param[in] call    index of the call
 * @param[in] stream  stream that produces the data; NULL: the data is ready now
 * @return WEFT_AGAIN if a stream is full: retry after progress; WEFT_ERR_INVALID_ARGUMENT if there
 *         is no such call; WEFT_ERR_STATE if it is ready already
 */
WEFT_API weft_status_t weft_capture_ready(weft_capture_t *capture, uint32_t call,
                                          weft_stream_t *stream);
/**
 * Makes later work of stream wait for a call. Non-blocking with a stream, except that it waits
 * while the capture's stream or group is full.
 * @param[in] capture the capture
 * @param[in] call    index of the call
 * @param[in] stream  stream that waits; NULL: blocking
 * @return WEFT_AGAIN if stream is full; WEFT_ERR_STATE if the call cannot run yet, naming a call
 *         that is not ready and shares its bucket or precedes it in the agreed order
 */
WEFT_API weft_status_t weft_capture_wait(weft_capture_t *capture, uint32_t call,
                                         weft_stream_t *stream);
/**
 * Waits for all calls of the replay and ends it. Blocking. Without a replay by weft_capture_ready:
 * waits for the last launched replay.
 * @param[in] capture the capture
 * @return WEFT_ERR_STATE as weft_capture_wait, or the error that broke the group
 */
WEFT_API weft_status_t weft_capture_wait_all(weft_capture_t *capture);
/**
 * Returns facts about a capture. Local.
 * @param[in]  capture the capture
 * @param[out] info    set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT
 */
WEFT_API weft_status_t weft_capture_get_info(const weft_capture_t *capture,
                                             weft_capture_info_t *info);
/**
 * Explains a replay: buckets with members, bytes, ready times and the reason for each end, and the
 * other calls, in the order in which they run. Local.
 * @param[in]  capture  the capture
 * @param[in]  format   form of the report
 * @param[out] out_text the caller frees it
 * @return WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_capture_explain(const weft_capture_t *capture, weft_format_t format,
                                            char **out_text);
/**
 * Destroys a capture after its replays are done. Collective, blocking.
 * @param[in] capture NULL: nothing happens
 *
 * Equivalent to: cudaGraphExecDestroy
 */
WEFT_API void weft_capture_destroy(weft_capture_t *capture);
/**
 * Releases a capture without the other ranks, as weft_group_leave does a group: for the end of a
 * program, and for garbage collectors. Not collective; waits until launched replays are done.
 * @param[in] capture NULL: nothing happens
 */
WEFT_API void weft_capture_leave(weft_capture_t *capture);
WEFT_EXTERN_C_END

#endif

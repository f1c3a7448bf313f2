/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fuser.h
 * Gradient buckets without a graph, for callers that only see gradients appear.
 *
 * Every rank adds each gradient to the fuser when it is computed. weft_fuser_wait ends the step;
 * all gradients then hold their reduction over the group. Gradients travel in buckets, each in as
 * few calls as its size allows, while the caller computes the next gradient.
 *
 * First step. Rank 0 decides. It closes a bucket when the next tensor would make it larger than
 * `bytes`, when its time window ends, on weft_fuser_flush, and at the end of the step. It
 * broadcasts names and bucket boundaries during the step; other ranks may add in any order.
 *
 * Later steps replay these buckets without messages and without allocation. A bucket starts when
 * this rank has added all its tensors and the earlier buckets have started. Every step adds the
 * same names with the same counts, types and reductions. Anything else breaks the fuser on all
 * ranks, with a message that names rank and tensor (weft_fuser_reset allows a new set). Addresses
 * may change.
 *
 * A bucket holds one type and one reduction. A tensor larger than `bytes` is split. Results have
 * the bits of weft_all_reduce of each tensor, whatever its bucket, except with WEFT_ORDER_ANY.
 * Tensors of a bucket that are adjacent in memory, in the order of their addresses on rank 0, and
 * large tensors are reduced in place. Small scattered tensors are copied through a buffer of the
 * fuser, and the copies are counted. Memory that peers access (weft_mem_alloc, weft_mem_register)
 * is fastest.
 *
 * Progress happens inside add, flush, query and wait, and on the fuser's stream if that has a
 * thread. Only these calls read the clock: a tensor added after the window goes to the next bucket.
 * One thread at a time uses a fuser.
 *
 * Equivalent to: gradient buckets of PyTorch DDP, tensor fusion of Horovod
 */
#ifndef WEFT_FUSER_H
#define WEFT_FUSER_H

#include <weft/group.h>

/** Reduces gradients of a group in buckets. */
typedef struct weft_fuser weft_fuser_t;

/** Longest name of a tensor, in bytes. */
#define WEFT_FUSER_NAME_BYTES 1023u
/** weft_fuser_params_t.window_ns: time closes no bucket. */
#define WEFT_FUSER_WINDOW_NONE UINT64_MAX
/** Default of weft_fuser_params_t.bytes: 32 MiB. */
#define WEFT_FUSER_BYTES_DEFAULT ((uint64_t)32 << 20)
/** Default of weft_fuser_params_t.window_ns: 5 ms. */
#define WEFT_FUSER_WINDOW_NS_DEFAULT ((uint64_t)5000000)

/** Parameters of weft_fuser_create, equal on all ranks except stream. Zero means the default. */
typedef struct weft_fuser_params {
    size_t struct_size; /**< size of this struct */
    uint64_t bytes;     /**< largest bucket, at least 8 bytes; 0: 32 MiB */
    uint64_t window_ns; /**< nanoseconds from a bucket's first tensor until it closes; 0: 5 ms */
    /**
     * Stream of the calls, ordered after its earlier work; best used for nothing else. With a
     * thread it keeps the caller's thread free. Must outlive the fuser. NULL: an inline stream of
     * the fuser.
     */
    weft_stream_t *stream;
} weft_fuser_params_t;
/** Defaults of weft_fuser_params_t. */
#define WEFT_FUSER_PARAMS_INIT WEFT_STRUCT_INIT(weft_fuser_params_t, 0, 0, 0)

/** Counters of a fuser. */
typedef struct weft_fuser_stats {
    size_t struct_size;            /**< size of this struct */
    uint64_t step_count;           /**< finished steps */
    uint64_t tensor_count;         /**< tensors per step; 0 in the first step */
    uint64_t bucket_count;         /**< buckets per step; 0 in the first step */
    uint64_t largest_bucket_bytes; /**< bytes of the largest bucket; 0 in the first step */
    uint64_t call_count;           /**< all-reduces so far */
    uint64_t reduced_bytes;        /**< bytes of tensors so far */
    uint64_t copied_bytes;         /**< bytes into and out of the fuser's buffer so far */
} weft_fuser_stats_t;
/** Initial value of weft_fuser_stats_t. */
#define WEFT_FUSER_STATS_INIT WEFT_STRUCT_INIT(weft_fuser_stats_t, 0, 0, 0, 0, 0, 0, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Creates a fuser. Collective over group, blocking. The fuser's calls do not mix with other calls
 * on group, which may be destroyed first. They use the reduction order and the algorithms that
 * group has now.
 * @param[in]  group     the group
 * @param[in]  params    NULL: defaults
 * @param[out] out_fuser the fuser; the caller destroys it
 * @return WEFT_ERR_MISMATCH, on all ranks, if parameters differ; WEFT_ERR_INVALID_ARGUMENT;
 *         else as weft_group_duplicate
 */
WEFT_API weft_status_t weft_fuser_create(weft_group_t *group, const weft_fuser_params_t *params,
                                         weft_fuser_t **out_fuser);
/**
 * Adds a gradient of this rank that is computed, or will be by work enqueued earlier on the fuser's
 * stream. Non-blocking. Nothing else may use the tensor until weft_fuser_wait returns (if that
 * fails: weft_fuser_destroy).
 * @param[in]     fuser     the fuser
 * @param[in,out] tensor    count elements; in the end their reduction over the group
 * @param[in]     count     elements, equal on all ranks and in all steps
 * @param[in]     dtype     type of the elements
 * @param[in]     reduction operation
 * @param[in]     name      name of the tensor, equal on all ranks, copied; at most
 *                          WEFT_FUSER_NAME_BYTES
 * @return WEFT_ERR_INVALID_ARGUMENT, also for a name added twice in a step: the fuser stays usable;
 *         WEFT_ERR_MISMATCH if the first step did not have the name, or had it with another count,
 *         type or reduction: the fuser is broken on all ranks
 */
WEFT_API weft_status_t weft_fuser_add(weft_fuser_t *fuser, void *tensor, uint64_t count,
                                      weft_dtype_t dtype, weft_reduction_t reduction,
                                      const char *name);
/**
 * In the first step on rank 0: closes the open buckets. Otherwise only makes progress.
 * Non-blocking.
 * @param[in] fuser the fuser
 * @return the error that broke the fuser
 */
WEFT_API weft_status_t weft_fuser_flush(weft_fuser_t *fuser);
/**
 * Tests whether all tensors added so far are reduced; makes progress. Non-blocking.
 * @param[in] fuser the fuser
 * @return WEFT_OK, WEFT_IN_PROGRESS, or the error that broke the fuser
 */
WEFT_API weft_status_t weft_fuser_query(weft_fuser_t *fuser);
/**
 * Ends the step: waits until all tensors are reduced. Collective, blocking; once per step.
 * @param[in] fuser the fuser
 * @return WEFT_ERR_MISMATCH, on all ranks, naming a rank and the tensor that it did not add; or the
 *         error that broke the fuser
 */
WEFT_API weft_status_t weft_fuser_wait(weft_fuser_t *fuser);
/**
 * Drops the buckets between two steps: the next step chooses new ones for the tensors that it adds.
 * Local; every rank calls it between the same two steps.
 * @param[in] fuser the fuser
 * @return WEFT_ERR_STATE inside a step, or the error that broke the fuser
 */
WEFT_API weft_status_t weft_fuser_reset(weft_fuser_t *fuser);
/**
 * Returns the counters of a fuser. Local.
 * @param[in]  fuser the fuser
 * @param[out] stats set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT
 */
WEFT_API weft_status_t weft_fuser_get_stats(weft_fuser_t *fuser, weft_fuser_stats_t *stats);
/**
 * Destroys a fuser. Collective, blocking. In the middle of a step, the other ranks' fusers return
 * WEFT_ERR_ABORTED, and so does a stream with calls in flight.
 * @param[in] fuser NULL: nothing happens
 */
WEFT_API void weft_fuser_destroy(weft_fuser_t *fuser);
/**
 * Releases a fuser without the other ranks, as weft_group_leave does a group: for the end of a
 * program, and for garbage collectors. Not collective. In the middle of a step as
 * weft_fuser_destroy.
 * @param[in] fuser NULL: nothing happens
 */
WEFT_API void weft_fuser_leave(weft_fuser_t *fuser);
WEFT_EXTERN_C_END

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective.h
 * Collectives without a graph.
 *
 * Rules for all calls of this header:
 *
 * Order and threads. All functions of this header are collective except weft_batch_begin,
 * weft_batch_cancel and weft_probe: all ranks of the group issue its calls in the same order.
 * weft_send and weft_recv concern two ranks only: calls from one to the other with the same tag
 * match in order. One thread of a rank at a time issues calls on a group.
 *
 * Blocking. stream NULL: the call runs on the calling thread and returns when this rank is done
 * with its buffers, which is the fastest way for small sizes. stream not NULL: the call returns at
 * once and runs after the earlier work of stream and the earlier calls of the group. stream belongs
 * to the group's context.
 *
 * Buffers. Counts are elements. Arguments are borrowed: buffers must stay valid until the call is
 * done, nothing else may write send meanwhile, and nothing else may use recv. Lists of counts are
 * copied. A buffer may be NULL if it holds no elements, or if only the root uses it and this rank
 * is not the root.
 *
 * In place. send == recv for all-reduce, broadcast, reduce and all-to-all. For all-gather and
 * gather, send is this rank's block of recv. For reduce-scatter and scatter, recv is this rank's
 * block of send. Otherwise buffers must not overlap; apart from weft_all_to_all_v the library does
 * not check this. Each rank may be in place or not, whatever the others do.
 *
 * Bits. Reductions combine ranks in the group's order (weft_group_set_order; the in-order tree by
 * default). Bits then depend neither on the algorithm, nor on the data path, nor on timing, except
 * with WEFT_ORDER_ANY. The algorithm is chosen by cost or set by weft_group_set_algorithm.
 *
 * Status of every call.
 * - WEFT_AGAIN: the stream or the group (64 calls in flight) is full; nothing was issued: retry
 *   after progress
 * - WEFT_ERR_INVALID_ARGUMENT: a NULL buffer, an unknown type, reduction or rank, a reduction of
 *   WEFT_DTYPE_BOOL, a size beyond the address space, or a stream of another context
 * - WEFT_ERR_NO_MEMORY
 *   Both are told to the other ranks (weft_group_refuse): their call returns the same status with
 *   "rank <number>: <message>". The call counts on all ranks, and the group stays usable. In a batch
 *   or capture, its end returns that status on all ranks (weft_batch_begin). Of a send, the matching
 *   receive does. After a wrong peer, or a wrong argument of a receive, nothing is issued, and the
 *   rank may make the right call. A rank that waits for it in a send or receive of the group before
 *   that, for some 10 ms, gets the same status and message, and the group is broken.
 * - WEFT_ERR_UNSUPPORTED, on all ranks: the algorithm that was set is not eligible; the group stays
 *   usable
 * - WEFT_ERR_MISMATCH, on all ranks: operators, counts, types, reductions, roots, orders or
 *   algorithms that were set differ; the group is broken
 * - WEFT_ERR_PEER_DIED, WEFT_ERR_TIMEOUT, WEFT_ERR_ABORTED: the group is broken, on all ranks
 * - WEFT_ERR_LINK: see below
 *
 * A call with a stream may return WEFT_OK and fail later; the stream (weft_stream_synchronize) and
 * the group (weft_group_status) then report the error.
 *
 * After an error the results of calls in flight are undefined. A peer that was moving data may
 * still read or write this rank's buffers of these calls until it notices.
 *
 * WEFT_ERR_LINK: a link between two ranks of the group broke, but both live. On each rank the calls
 * in flight end with this error, or the next call does. Within the next call of every rank the
 * group recovers and continues over the remaining path (WEFT_FALLBACK=off: it stays broken). Calls
 * of the ranks stay in step by their sequence numbers, failed calls included, and the last call
 * that fails is the same on all ranks. A program that starts over after each such error therefore
 * starts over together with the others. Sends that were not received are lost. A stream that had
 * such a call stays broken: destroy it and create another. Until a later call succeeds, peers may
 * still write to the buffers of failed calls.
 *
 * Accelerators. Buffers are device or host memory. Calls are staged through the host, ordered in
 * stream like its other work, and give the bits of the CPU device. 16 calls may be in flight. An
 * error breaks stream: work queued after the call does not run. The host's part progresses inside
 * calls that wait or query (weft_stream_query, weft_stream_synchronize, ...), or on a thread of the
 * group with WEFT_PROGRESS_THREAD.
 *
 * Equivalents name MPI's blocking form; with a stream a call corresponds to the form with I, such
 * as MPI_Iallreduce.
 */
#ifndef WEFT_COLLECTIVE_H
#define WEFT_COLLECTIVE_H

#include <weft/group.h>

WEFT_EXTERN_C_BEGIN
/**
 * All-reduce: every rank receives the reduction of all ranks' vectors.
 * @param[in]  send      count elements, shape [count]; may be recv (in place)
 * @param[out] recv      count elements, shape [count]
 * @param[in]  count     elements, equal on all ranks
 * @param[in]  dtype     type of the elements
 * @param[in]  reduction operation
 * @param[in]  group     the group
 * @param[in]  stream    NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Allreduce, ncclAllReduce
 */
WEFT_API weft_status_t weft_all_reduce(const void *send, void *recv, uint64_t count,
                                       weft_dtype_t dtype, weft_reduction_t reduction,
                                       weft_group_t *group, weft_stream_t *stream);
/**
 * Reduce-scatter: rank r receives block r of the reduction of all ranks' vectors.
 * @param[in]  send      size * count elements, shape [size, count]
 * @param[out] recv      count elements, shape [count]; may be send + rank * count (in place)
 * @param[in]  count     elements per block, equal on all ranks
 * @param[in]  dtype     type of the elements
 * @param[in]  reduction operation
 * @param[in]  group     the group, of size ranks
 * @param[in]  stream    NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Reduce_scatter_block, ncclReduceScatter
 */
WEFT_API weft_status_t weft_reduce_scatter(const void *send, void *recv, uint64_t count,
                                           weft_dtype_t dtype, weft_reduction_t reduction,
                                           weft_group_t *group, weft_stream_t *stream);
/**
 * All-gather: every rank receives the blocks of all ranks in rank order.
 * @param[in]  send   count elements, shape [count]; may be recv + rank * count (in place)
 * @param[out] recv   size * count elements, shape [size, count]
 * @param[in]  count  elements per block, equal on all ranks
 * @param[in]  dtype  type of the elements
 * @param[in]  group  the group, of size ranks
 * @param[in]  stream NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Allgather, ncclAllGather
 */
WEFT_API weft_status_t weft_all_gather(const void *send, void *recv, uint64_t count,
                                       weft_dtype_t dtype, weft_group_t *group,
                                       weft_stream_t *stream);
/**
 * Broadcast: every rank receives the root's vector.
 * @param[in]  send   root: count elements, shape [count]; may be recv (in place); else unused
 * @param[out] recv   count elements, shape [count], also on the root
 * @param[in]  count  elements, equal on all ranks
 * @param[in]  dtype  type of the elements
 * @param[in]  root   rank in group that sends, equal on all ranks
 * @param[in]  group  the group
 * @param[in]  stream NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Bcast, ncclBroadcast
 */
WEFT_API weft_status_t weft_broadcast(const void *send, void *recv, uint64_t count,
                                      weft_dtype_t dtype, uint32_t root, weft_group_t *group,
                                      weft_stream_t *stream);
/**
 * Reduce: the root receives the reduction of all ranks' vectors.
 * @param[in]  send      count elements, shape [count]; root: may be recv (in place)
 * @param[out] recv      root: count elements, shape [count]; else unused
 * @param[in]  count     elements, equal on all ranks
 * @param[in]  dtype     type of the elements
 * @param[in]  reduction operation
 * @param[in]  root      rank in group that receives, equal on all ranks
 * @param[in]  group     the group
 * @param[in]  stream    NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Reduce, ncclReduce
 */
WEFT_API weft_status_t weft_reduce(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                                   weft_reduction_t reduction, uint32_t root, weft_group_t *group,
                                   weft_stream_t *stream);
/**
 * Gather: the root receives the blocks of all ranks in rank order.
 * @param[in]  send   count elements, shape [count]; root: may be recv + root * count (in place)
 * @param[out] recv   root: size * count elements, shape [size, count]; else unused
 * @param[in]  count  elements per block, equal on all ranks
 * @param[in]  dtype  type of the elements
 * @param[in]  root   rank in group that receives, equal on all ranks
 * @param[in]  group  the group, of size ranks
 * @param[in]  stream NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Gather, ncclGather
 */
WEFT_API weft_status_t weft_gather(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                                   uint32_t root, weft_group_t *group, weft_stream_t *stream);
/**
 * Scatter: rank r receives block r of the root's vector.
 * @param[in]  send   root: size * count elements, shape [size, count]; else unused
 * @param[out] recv   count elements, shape [count]; root: may be send + root * count (in place)
 * @param[in]  count  elements per block, equal on all ranks
 * @param[in]  dtype  type of the elements
 * @param[in]  root   rank in group that sends, equal on all ranks
 * @param[in]  group  the group, of size ranks
 * @param[in]  stream NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Scatter, ncclScatter
 */
WEFT_API weft_status_t weft_scatter(const void *send, void *recv, uint64_t count,
                                    weft_dtype_t dtype, uint32_t root, weft_group_t *group,
                                    weft_stream_t *stream);
/**
 * All-to-all: block d of rank s becomes block s of rank d.
 * @param[in]  send   size * count elements, shape [size, count]: block d goes to rank d; may be
 *                    recv (in place)
 * @param[out] recv   size * count elements, shape [size, count]: block s comes from rank s
 * @param[in]  count  elements per block, equal on all ranks
 * @param[in]  dtype  type of the elements
 * @param[in]  group  the group, of size ranks
 * @param[in]  stream NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Alltoall, ncclAlltoAll
 */
WEFT_API weft_status_t weft_all_to_all(const void *send, void *recv, uint64_t count,
                                       weft_dtype_t dtype, weft_group_t *group,
                                       weft_stream_t *stream);
/**
 * All-gather of blocks of different lengths: every rank receives the blocks of all ranks.
 * @param[in]  send          counts[rank] elements; may be this rank's block of recv (in place)
 * @param[out] recv          rank r's block has counts[r] elements and starts at displacements[r]
 * @param[in]  counts        [size] elements per block, equal on all ranks, copied
 * @param[in]  displacements [size] elements, of this rank only, copied; NULL: one block after the
 *                           other
 * @param[in]  dtype         type of the elements
 * @param[in]  group         the group, of size ranks
 * @param[in]  stream        NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Allgatherv
 */
WEFT_API weft_status_t weft_all_gather_v(const void *send, void *recv, const uint64_t *counts,
                                         const uint64_t *displacements, weft_dtype_t dtype,
                                         weft_group_t *group, weft_stream_t *stream);
/**
 * Reduce-scatter of blocks of different lengths: rank r receives block r of the reduction of all
 * ranks' vectors.
 * @param[in]  send          block r has counts[r] elements and starts at displacements[r]
 * @param[out] recv          counts[rank] elements; may be this rank's block of send (in place)
 * @param[in]  counts        [size] elements per block, equal on all ranks, copied
 * @param[in]  displacements [size] elements, of this rank only, copied; NULL: one block after the
 *                           other
 * @param[in]  dtype         type of the elements
 * @param[in]  reduction     operation
 * @param[in]  group         the group, of size ranks
 * @param[in]  stream        NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Reduce_scatter
 */
WEFT_API weft_status_t weft_reduce_scatter_v(const void *send, void *recv, const uint64_t *counts,
                                             const uint64_t *displacements, weft_dtype_t dtype,
                                             weft_reduction_t reduction, weft_group_t *group,
                                             weft_stream_t *stream);
/**
 * All-to-all of blocks of different lengths: block d of rank s becomes block s of rank d, so that
 * send_counts[d] of rank s equals recv_counts[s] of rank d. Not in place.
 * @param[in]  send               block d goes to rank d and starts at send_displacements[d]
 * @param[in]  send_counts        [size] elements of each block of send, copied
 * @param[in]  send_displacements [size] elements, copied; NULL: one block after the other
 * @param[out] recv               block s comes from rank s and starts at recv_displacements[s]
 * @param[in]  recv_counts        [size] elements of each block of recv, copied
 * @param[in]  recv_displacements [size] elements, copied; NULL: one block after the other
 * @param[in]  dtype              type of the elements
 * @param[in]  group              the group, of size ranks
 * @param[in]  stream             NULL: blocking
 * @return status of every call, see the top of this file; WEFT_ERR_INVALID_ARGUMENT if send is
 *         recv, WEFT_ERR_UNSUPPORTED for a group of more than 508 ranks
 *
 * Equivalent to: MPI_Alltoallv
 */
WEFT_API weft_status_t weft_all_to_all_v(const void *send, const uint64_t *send_counts,
                                         const uint64_t *send_displacements, void *recv,
                                         const uint64_t *recv_counts,
                                         const uint64_t *recv_displacements, weft_dtype_t dtype,
                                         weft_group_t *group, weft_stream_t *stream);
/**
 * Sends a vector to one rank. Done when data may be overwritten; the receiver may still lack a
 * small vector then. Not between weft_capture_begin and weft_capture_end.
 * @param[in] data   count elements, shape [count]
 * @param[in] count  elements, equal to that of the matching weft_recv
 * @param[in] dtype  type of the elements
 * @param[in] peer   rank in group that receives, not this rank
 * @param[in] group  the group
 * @param[in] stream NULL: blocking
 * @return status of every call, see the top of this file; WEFT_ERR_INVALID_ARGUMENT if peer is this
 *         rank; in a batch: WEFT_AGAIN after 64 sends and receives; in a capture: WEFT_ERR_STATE
 *
 * Equivalent to: MPI_Send, ncclSend
 */
WEFT_API weft_status_t weft_send(const void *data, uint64_t count, weft_dtype_t dtype,
                                 uint32_t peer, weft_group_t *group, weft_stream_t *stream);
/**
 * Receives a vector from one rank. Not between weft_capture_begin and weft_capture_end.
 * @param[out] data   count elements, shape [count]
 * @param[in]  count  elements, equal to that of the matching weft_send
 * @param[in]  dtype  type of the elements
 * @param[in]  peer   rank in group that sends, not this rank
 * @param[in]  group  the group
 * @param[in]  stream NULL: blocking
 * @return status of every call, see the top of this file; WEFT_ERR_INVALID_ARGUMENT if peer is this
 *         rank; in a batch: WEFT_AGAIN after 64 sends and receives; in a capture: WEFT_ERR_STATE
 *
 * Equivalent to: MPI_Recv, ncclRecv
 */
WEFT_API weft_status_t weft_recv(void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                                 weft_group_t *group, weft_stream_t *stream);
/** Any tag, for weft_probe. */
#define WEFT_ANY_TAG UINT32_MAX
/** Any rank but this one, for weft_probe. */
#define WEFT_ANY_RANK UINT32_MAX
/**
 * weft_send with a tag, which says which receive of the peer the data is for: that of the same tag.
 * weft_send is this function with tag 0.
 * @param[in] data   count elements, shape [count]
 * @param[in] count  elements, equal to that of the matching receive
 * @param[in] dtype  type of the elements
 * @param[in] peer   rank in group that receives, not this rank
 * @param[in] tag    any number but WEFT_ANY_TAG
 * @param[in] group  the group
 * @param[in] stream NULL: blocking
 * @return as weft_send
 *
 * Equivalent to: MPI_Send
 */
WEFT_API weft_status_t weft_send_tagged(const void *data, uint64_t count, weft_dtype_t dtype,
                                        uint32_t peer, uint32_t tag, weft_group_t *group,
                                        weft_stream_t *stream);
/**
 * weft_recv of the peer's first message with a tag. Messages with other tags that come before it
 * are kept in memory of the library until they are received. weft_recv is this function with tag 0.
 * Receives complete in the order in which they were issued on the group, like all calls. A blocking
 * one whose message was kept returns at once, unless an earlier one of the same tag is in flight or
 * the memory is that of a device.
 * @param[out] data   count elements, shape [count]
 * @param[in]  count  elements, equal to that of the matching send
 * @param[in]  dtype  type of the elements
 * @param[in]  peer   rank in group that sends, not this rank
 * @param[in]  tag    any number but WEFT_ANY_TAG
 * @param[in]  group  the group
 * @param[in]  stream NULL: blocking
 * @return as weft_recv; WEFT_ERR_NO_MEMORY if a message cannot be kept, and the group is broken
 *
 * Equivalent to: MPI_Recv
 */
WEFT_API weft_status_t weft_recv_tagged(void *data, uint64_t count, weft_dtype_t dtype,
                                        uint32_t peer, uint32_t tag, weft_group_t *group,
                                        weft_stream_t *stream);

/** A message that has come and was not received. */
typedef struct weft_message {
    size_t struct_size; /**< size of this struct */
    uint32_t peer;      /**< rank in the group that sent it */
    uint32_t tag;       /**< its tag */
    uint64_t count;     /**< elements */
    weft_dtype_t
        dtype; /**< their type; WEFT_DTYPE_NONE: the receive will tell the sender's error */
} weft_message_t;
/** Initial value of weft_message_t. */
#define WEFT_MESSAGE_INIT WEFT_STRUCT_INIT(weft_message_t, 0, 0, 0, WEFT_DTYPE_NONE)
/**
 * Looks whether a message has come that no receive in flight is for. A blocking receive of it does
 * not wait for the peer. While calls of the group are in flight, only messages count that came
 * before one with another tag. Local, does not wait, issues nothing; streams make progress as in
 * weft_stream_query.
 * @param[in]  peer        rank in group, or WEFT_ANY_RANK
 * @param[in]  tag         tag, or WEFT_ANY_TAG
 * @param[in]  group       the group
 * @param[out] out_message set struct_size before the call; NULL: not needed
 * @return WEFT_OK, WEFT_IN_PROGRESS if none has come, WEFT_ERR_INVALID_ARGUMENT if peer is this
 *         rank or none of the group, WEFT_ERR_NO_MEMORY, WEFT_ERR_PEER_DIED if the peer (with
 *         WEFT_ANY_RANK: every other rank) has left the world and none of its messages is left, or
 *         the error that broke the group
 *
 * Equivalent to: MPI_Iprobe
 */
WEFT_API weft_status_t weft_probe(uint32_t peer, uint32_t tag, weft_group_t *group,
                                  weft_message_t *out_message);
/**
 * Barrier: done when all ranks of the group have reached it.
 * @param[in] group  the group
 * @param[in] stream NULL: blocking
 * @return status of every call, see the top of this file
 *
 * Equivalent to: MPI_Barrier
 */
WEFT_API weft_status_t weft_barrier(weft_group_t *group, weft_stream_t *stream);
/**
 * Begins a batch. Local. Calls on group until weft_batch_end only check their arguments.
 * weft_batch_end submits them on the stream that it gets; their own streams are ignored. No call of
 * a batch may use memory that another one writes.
 *
 * Sends and receives (at most 64) come first and run concurrently, so that an exchange needs no
 * order. Then the collectives run. Small ones (together up to about 7 KiB per rank, at most 64) of
 * the same operator, type, reduction and root become one call; the others follow one by one. All
 * ranks issue the same collectives in the same order. A mismatch names the call by its index among
 * the collectives of the batch, from 0. Bits are those without a batch, except with WEFT_ORDER_ANY.
 *
 * A call with a wrong argument ends its batch: none of this rank's calls are made, and
 * weft_batch_end returns the status of that call, on the other ranks with "rank <number>:
 * <message>". They learn it when this rank ends or cancels its batch. The group stays usable, unless
 * the batch has sends or receives, or the other ranks end theirs on a stream.
 * @param[in] group the group
 * @return WEFT_ERR_STATE if a batch or a capture is open; WEFT_ERR_NO_MEMORY
 *
 * Equivalent to: ncclGroupStart
 */
WEFT_API weft_status_t weft_batch_begin(weft_group_t *group);
/**
 * Submits the calls of a batch and ends it, see weft_batch_begin.
 * @param[in] group  the group
 * @param[in] stream NULL: blocking
 * @return WEFT_AGAIN if the stream or the group is full: the batch is still open, end it again
 *         after progress; WEFT_ERR_STATE if no batch is open; else the status of the first call
 *         that failed, and the batch is closed
 *
 * Equivalent to: ncclGroupEnd
 */
WEFT_API weft_status_t weft_batch_end(weft_group_t *group, weft_stream_t *stream);
/**
 * Drops the calls of a batch instead of submitting them, for a caller that detects an error in
 * between. Local, unless one of the calls had a wrong argument, which the other ranks learn: the
 * caller must know whether they still make these calls.
 * @param[in] group the group
 * @return WEFT_ERR_STATE if no batch is open, or if weft_batch_end returned WEFT_AGAIN after it
 *         submitted part of it
 */
WEFT_API weft_status_t weft_batch_cancel(weft_group_t *group);
WEFT_EXTERN_C_END

#endif

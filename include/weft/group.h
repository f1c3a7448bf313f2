/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file group.h
 * Groups: ordered sets of ranks that collectives run over, as MPI communicators.
 *
 * All ranks of a group create it together, from the world or from another group. Several groups may
 * exist at once, also over the same ranks. All ranks of a group issue its calls in the same order;
 * a call gets its sequence number when it is issued. One thread at a time issues calls on a group:
 * concurrent threads use duplicates of it. One thread of a rank at a time creates and destroys
 * groups.
 *
 * The first rank that detects an error (ranks that disagree, a rank that died or left, a rank that
 * is late by more than WEFT_TIMEOUT) records it for the group. Calls of all ranks then return it,
 * calls in flight included.
 */
#ifndef WEFT_GROUP_H
#define WEFT_GROUP_H

#include <weft/stream.h>

/** An ordered set of ranks. Equivalent to: MPI_Comm, ncclComm_t. */
typedef struct weft_group weft_group_t;

/** Colour of weft_group_split: no group for this rank. Equivalent to: MPI_UNDEFINED. */
#define WEFT_COLOR_NONE UINT32_MAX

/** Parameters of weft_group_create. Start from WEFT_GROUP_PARAMS_INIT. */
typedef struct weft_group_params {
    size_t struct_size;   /**< size of this struct */
    weft_group_t *parent; /**< the group to split; NULL: all ranks of the context */
    int64_t key;          /**< as in weft_group_split */
    /**
     * Bytes that this rank keeps for collectives on memory that is not registered, equal on all
     * ranks; 0: as parent has, without one by the setting WEFT_STAGING_BYTES. Larger buffers mean
     * fewer rounds. Memory is taken by the first call that needs it. Groups that are split from
     * this one, or duplicate or shrink it, have as much.
     */
    uint64_t staging_bytes;
    uint32_t color; /**< as in weft_group_split */
} weft_group_params_t;
/** Defaults of weft_group_params_t. */
#define WEFT_GROUP_PARAMS_INIT WEFT_STRUCT_INIT(weft_group_params_t, 0, 0, 0, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Creates one group per colour from the ranks that passed it, with parameters. Collective over the
 * parent, blocking.
 * @param[in]  context   the context of the parent
 * @param[in]  params    NULL: the defaults, a group of all ranks
 * @param[out] out_group the group, which the caller destroys; NULL for WEFT_COLOR_NONE
 * @return WEFT_ERR_INVALID_ARGUMENT for a parent of another context, on this rank alone; else as
 *         weft_group_split
 *
 * Equivalent to: MPI_Comm_split with MPI_Info, ncclCommSplit with ncclConfig_t
 */
WEFT_API weft_status_t weft_group_create(weft_context_t *context, const weft_group_params_t *params,
                                         weft_group_t **out_group);
/**
 * Creates a group of all ranks of the context, in their order. Collective over the world, blocking.
 * @param[in]  context   retained by the group
 * @param[out] out_group the group; the caller destroys it
 * @return on all ranks: WEFT_ERR_NO_MEMORY, WEFT_ERR_INVALID_ARGUMENT if the setting WEFT_ORDER
 *         does not fit the world, WEFT_ERR_MISMATCH as weft_group_split, or what ended the world
 *
 * Equivalent to: MPI_Comm_dup(MPI_COMM_WORLD), ncclCommInitRank
 */
WEFT_API weft_status_t weft_group_create_world(weft_context_t *context, weft_group_t **out_group);
/**
 * Creates one group per colour from the ranks that passed it. Collective over parent, blocking.
 * @param[in]  parent    the group to split
 * @param[in]  color     ranks with equal colours form a group; WEFT_COLOR_NONE: no group
 * @param[in]  key       order of the ranks in their group; equal keys keep the order of parent
 * @param[out] out_group the group, which the caller destroys; NULL for WEFT_COLOR_NONE
 * @return WEFT_ERR_MISMATCH, on all ranks, if they create it in different ways; WEFT_ERR_NO_MEMORY,
 *         on all ranks, if the memory for groups of parents other than the world is used up: create
 *         it from the world; WEFT_ERR_STATE if a batch or capture is open; parent's error
 *
 * Equivalent to: MPI_Comm_split, ncclCommSplit
 */
WEFT_API weft_status_t weft_group_split(weft_group_t *parent, uint32_t color, int64_t key,
                                        weft_group_t **out_group);
/**
 * Creates a group of given ranks of parent. Collective over parent, blocking: all ranks of parent
 * pass the same list.
 * @param[in]  parent    the group to choose from
 * @param[in]  ranks     [count] ranks in parent, in the order of the new group
 * @param[in]  count     1 to the size of parent
 * @param[out] out_group the group, which the caller destroys; NULL on ranks outside the list
 * @return WEFT_ERR_INVALID_ARGUMENT for an empty list, an unknown rank or a duplicate, on this rank
 *         alone; WEFT_ERR_MISMATCH also if lists differ; else as weft_group_split
 *
 * Equivalent to: MPI_Comm_create
 */
WEFT_API weft_status_t weft_group_create_ranks(weft_group_t *parent, const uint32_t *ranks,
                                               uint32_t count, weft_group_t **out_group);
/**
 * Creates a group of the same ranks in the same order, with calls of its own. Collective over
 * group, blocking.
 * @param[in]  group     the group to duplicate
 * @param[out] out_group the new group; the caller destroys it
 * @return as weft_group_split
 *
 * Equivalent to: MPI_Comm_dup
 */
WEFT_API weft_status_t weft_group_duplicate(weft_group_t *group, weft_group_t **out_group);
/**
 * Creates a group of processes that share only a name: for processes of one user on one host that
 * are started by hand in several terminals. Collective, blocking. The group has a context of its
 * own (weft_group_context).
 * @param[in]  name      name of the group, printable characters, equal on all ranks
 * @param[in]  size      number of ranks
 * @param[in]  rank      this rank, 0 to size - 1
 * @param[in]  params    of the context, such as its device; rank, world_size, address and hub are
 *                       not read; NULL: defaults
 * @param[out] out_group the group; the caller destroys it
 * @return as weft_context_create: WEFT_ERR_TIMEOUT naming the missing ranks,
 *         WEFT_ERR_INVALID_ARGUMENT
 */
WEFT_API weft_status_t weft_group_create_named(const char *name, uint32_t size, uint32_t rank,
                                               const weft_context_params_t *params,
                                               weft_group_t **out_group);
/**
 * Creates a group of the ranks of a group that are left, after a rank has died (or been
 * interrupted, or the world aborted). Collective over the ranks of the world that live, blocking:
 * each passes a group that it is in; several groups at once are possible where no rank is in two of
 * them. The world is replaced by one of its survivors (weft_context_shrink describes how, and what
 * becomes of what was made before), and the group by one of its survivors, in their order, with a
 * context of its own (weft_group_context), which the group retains. Reduction order, algorithms and
 * staging_bytes (of several groups the largest) are inherited as by weft_group_split. The former
 * group stays broken; destroy it at any time.
 * @param[in]  group     the group, broken or not
 * @param[out] out_group the new group; the caller destroys it
 * @return as weft_context_shrink; WEFT_ERR_MISMATCH, on all ranks, if the ranks that are left of
 *         the groups passed are some but not all the same. After an error other than
 *         WEFT_ERR_TIMEOUT no rank has a new group. If a rank dies at the end of the call, a rank
 *         may get a group that is broken already: it calls weft_group_shrink again with that one,
 *         and meets ranks whose first call has not ended
 *
 * Equivalent to: MPIX_Comm_revoke and MPIX_Comm_shrink (ULFM)
 */
WEFT_API weft_status_t weft_group_shrink(weft_group_t *group, weft_group_t **out_group);
/**
 * Creates a group of all ranks of a larger world: the ranks of the world, which keep their numbers,
 * and ranks that join. Collective over the world, blocking: all of its ranks pass a group of all of
 * them. The processes that join call weft_context_create, then weft_group_create_world as their
 * first call. The new group has a context of its own (weft_group_context), which it retains, and
 * the reduction order and algorithms of the settings; the former one still works.
 * @param[in]  group     a group of all ranks of the world, in their order
 * @param[in]  params    where to meet, as weft_context_grow describes
 * @param[out] out_group the new group; the caller destroys it
 * @return as weft_context_grow; WEFT_ERR_INVALID_ARGUMENT also if ranks are missing in group
 *
 * Equivalent to: MPI_Comm_spawn or MPI_Comm_accept, then MPI_Intercomm_merge
 */
WEFT_API weft_status_t weft_group_grow(weft_group_t *group, const weft_context_params_t *params,
                                       weft_group_t **out_group);
/**
 * Destroys a group. Collective, blocking: waits until this rank's calls are done and all ranks have
 * called it, unless the group is broken. Streams may still be in use, but not for calls of this
 * group. Waits at most WEFT_TIMEOUT; once a peer has not answered in that time, destroying further
 * groups and releasing the context take less than two seconds in all.
 * @param[in] group NULL: nothing happens
 *
 * Equivalent to: MPI_Comm_free, ncclCommDestroy
 */
WEFT_API void weft_group_destroy(weft_group_t *group);
/**
 * Releases a group without the other ranks, for the end of a program that does not know the state
 * of its peers. Not collective; waits until this rank's calls are done. The other ranks may
 * continue with calls that this rank has issued. A rank that calls weft_group_destroy waits until
 * this rank has left the world. The group's share of the context's memory is freed with the
 * context.
 * @param[in] group NULL: nothing happens
 */
WEFT_API void weft_group_leave(weft_group_t *group);

/**
 * Returns the number of ranks of a group. Any thread.
 * @param[in] group the group
 * @return at least 1; 0 if group is NULL
 *
 * Equivalent to: MPI_Comm_size, ncclCommCount
 */
WEFT_API uint32_t weft_group_size(const weft_group_t *group);
/**
 * Returns the caller's rank in a group. Any thread.
 * @param[in] group the group
 * @return 0 to size - 1; UINT32_MAX if group is NULL
 *
 * Equivalent to: MPI_Comm_rank, ncclCommUserRank
 */
WEFT_API uint32_t weft_group_rank(const weft_group_t *group);
/**
 * Translates a rank of a group to a rank of the world. Any thread.
 * @param[in] group the group
 * @param[in] rank  rank in group
 * @return the rank in the world; UINT32_MAX if rank is not in the group or group is NULL
 *
 * Equivalent to: MPI_Group_translate_ranks
 */
WEFT_API uint32_t weft_group_world_rank(const weft_group_t *group, uint32_t rank);
/**
 * Returns the context of a group. Any thread.
 * @param[in] group the group
 * @return the context, borrowed, valid as long as group; NULL if group is NULL
 */
WEFT_API weft_context_t *weft_group_context(const weft_group_t *group);
/**
 * Returns the error that broke a group. Local, non-blocking. Later calls return the same error,
 * except WEFT_ERR_LINK, from which later calls recover (collective.h).
 * @param[in] group the group
 * @return WEFT_OK or the error
 *
 * Equivalent to: ncclCommGetAsyncError
 */
WEFT_API weft_status_t weft_group_status(weft_group_t *group);
/** Rank of weft_group_set_shape for a call that exchanges shapes. */
#define WEFT_SHAPE_EXCHANGE UINT32_MAX
/**
 * Names the shape of the tensors of the next collective that the caller issues on a group, for
 * bindings of languages that have shapes. Local. Ranks compare it as they compare counts: (32, 32)
 * on one rank and (1024) or (16, 64) on another is WEFT_ERR_MISMATCH on all ranks. A shape of fewer
 * than two dimensions is the same as none. Calls of a batch compare it at weft_batch_end, those of a
 * capture at weft_capture_end. Calls with counts per rank do not, nor do sends and receives: as in
 * MPI and other backends of torch, a message may be received in another shape.
 * @param[in] group the group
 * @param[in] dims  [rank] dimensions; may be NULL if rank is less than 2
 * @param[in] rank  number of dimensions; WEFT_SHAPE_EXCHANGE: the elements are themselves shapes,
 *                  which ranks exchange before a call; messages about ranks that differ say so
 * @return WEFT_ERR_INVALID_ARGUMENT if dims is needed and NULL
 */
WEFT_API weft_status_t weft_group_set_shape(weft_group_t *group, const int64_t *dims,
                                            uint32_t rank);
/**
 * Takes the place of this rank's next collective of a group with an error, for bindings and
 * libraries that find a wrong argument before they call Weft. The other ranks' call at that place
 * ends with the error and "rank <number in the world>: <message>"; the group stays usable. A rank
 * of a rooted call of at most 8 KiB that needs nothing of this rank completes the call. Collectives
 * do the same with their own wrong arguments (collective.h). Non-blocking, except that without a
 * stream it waits for this rank's earlier calls, and until the others have begun the call before a
 * rooted or refused one. In a batch or capture, the end of that tells them (weft_batch_begin).
 * @param[in] group   the group
 * @param[in] error   a negative status
 * @param[in] message why, at most 511 bytes are kept
 * @param[in] stream  that of the call, or NULL
 * @return error, with message as weft_last_error(); WEFT_AGAIN if the stream or the group is full;
 *         the error of a broken group
 *
 * Equivalent to: nothing in MPI or NCCL, where the other ranks wait
 */
WEFT_API weft_status_t weft_group_refuse(weft_group_t *group, weft_status_t error,
                                         const char *message, weft_stream_t *stream);
/**
 * Sets the order in which reductions of a group combine ranks, from the next call on. Local. The
 * order is part of the bits of the results. All ranks set it alike, between the same calls; calls
 * of ranks that differ are an error. A new group of the world has the order of the setting
 * WEFT_ORDER (tree). A group made from another group inherits its order, except that
 * WEFT_ORDER_BLOCKS is inherited only by the same ranks and becomes the tree otherwise.
 * WEFT_ORDER_ANY admits algorithms that follow no tree (ring, log-step); bits then depend on the
 * algorithm, hence on size and group, and on the hosts and racks that its ranks are on. Waits until
 * this rank's calls in flight are done.
 * @param[in] group       the group
 * @param[in] order       the order
 * @param[in] block_sizes WEFT_ORDER_BLOCKS: [count] ranks of each block, in all the group size;
 *                        else ignored and may be NULL
 * @param[in] count       WEFT_ORDER_BLOCKS: number of blocks
 * @return WEFT_ERR_INVALID_ARGUMENT, WEFT_ERR_STATE if a batch or a capture is open, or the error
 *         that broke the group
 */
WEFT_API weft_status_t weft_group_set_order(weft_group_t *group, weft_order_t order,
                                            const uint32_t *block_sizes, uint32_t count);
/**
 * Returns the order of a group's reductions. Local.
 * @param[in] group the group
 * @return the order; WEFT_ORDER_TREE if group is NULL
 */
WEFT_API weft_order_t weft_group_order(const weft_group_t *group);
/**
 * Sets the algorithm of an operator, from the next call on. Local. All ranks set it alike; calls of
 * ranks that differ are an error. If the algorithm is not eligible for a call (order, ranks or
 * links of the group), that call returns WEFT_ERR_UNSUPPORTED with the reason on every rank, at
 * every size, and the group stays usable. The setting WEFT_ALGO does the same for all groups. A
 * group made from this one inherits the choice. Waits until this rank's calls in flight are done.
 * @param[in] group the group
 * @param[in] op    the operator
 * @param[in] name  a built-in algorithm (`weft algos` lists them), one of the context's registry,
 *                  which is verified before it runs, or a path that ends in .xml, which is loaded
 *                  as weft_registry_load_algorithm does; NULL: choose by cost again
 * @return WEFT_ERR_INVALID_ARGUMENT if op has no algorithm of that name, the error of a file,
 *         WEFT_ERR_STATE if a batch or a capture is open, or the error that broke the group
 */
WEFT_API weft_status_t weft_group_set_algorithm(weft_group_t *group, weft_collective_t op,
                                                const char *name);
/**
 * Returns the algorithm of the group's last collective on this rank. Local.
 * @param[in] group the group
 * @return its name; "mesh" and "one-shot" may be hand-written executors (see weft_group_last_path).
 *         A suffix such as "ring (order any)" means that the bits depend on the algorithm. "none"
 *         before the first collective or if group is NULL
 */
WEFT_API const char *weft_group_last_algorithm(const weft_group_t *group);
/**
 * Returns the data path of the group's last collective on this rank, for tuning. Local.
 * @param[in] group the group
 * @return "posting" (data next to the signal), "direct" (in place), "attached" (plain memory, read
 *         or written in one copy), "staged", "schedule" (an interpreted schedule), or "none" before
 *         the first collective or if group is NULL
 */
WEFT_API const char *weft_group_last_path(const weft_group_t *group);
WEFT_EXTERN_C_END

#endif

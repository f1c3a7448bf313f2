/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file group.h Groups: ordered sets of ranks that collectives run over.
 *
 * A group is made by all its ranks together, from the world or from another group; several are
 * alive at once, also over the same ranks. All ranks of a group issue its calls in the same order;
 * a call takes its number when it is issued. One thread at a time issues calls on a group:
 * concurrent threads use duplicates of it. One thread of a rank at a time makes and destroys groups.
 *
 * Whoever first finds something wrong (ranks that disagree, one that died or left, one that is late for longer than
 * WEFT_TIMEOUT) writes it down for the group: every rank's calls, those in flight too, return it.
 */
#ifndef WEFT_GROUP_H
#define WEFT_GROUP_H

#include <weft/algo.h>
#include <weft/stream.h>

typedef struct weft_group weft_group_t;

#define WEFT_COLOR_NONE UINT32_MAX /**< weft_group_split: no group for this rank */

WEFT_EXTERN_C_BEGIN
/** All ranks of the context, in their order. Collective over the world. */
WEFT_API weft_status_t weft_group_create_world(weft_context_t *context, weft_group_t **out_group);
/**
 * One group per colour, of the ranks that gave it, ordered by key and then by rank in parent.
 * Collective over parent. *out_group is NULL for WEFT_COLOR_NONE.
 * @return WEFT_ERR_NO_MEMORY when parent is not the world and the memory for groups made from such
 * parents is used up: make the group from the world, or destroy one
 */
WEFT_API weft_status_t weft_group_split(weft_group_t *parent, uint32_t color, int64_t key,
                                        weft_group_t **out_group);
/**
 * The group of these ranks of parent, in this order. Collective over parent: all its ranks pass the
 * same list, and those not in it get NULL.
 */
WEFT_API weft_status_t weft_group_create_ranks(weft_group_t *parent, const uint32_t *ranks,
                                               uint32_t count, weft_group_t **out_group);
/** The same ranks in the same order, with calls of its own. Collective over group. */
WEFT_API weft_status_t weft_group_duplicate(weft_group_t *group, weft_group_t **out_group);
/**
 * A group of processes of one user on one host that know nothing but its name, their number and the
 * size: started by hand in several terminals. Brings a context of its own (weft_group_context).
 * Collective.
 * @return WEFT_ERR_TIMEOUT naming who is missing
 */
WEFT_API weft_status_t weft_group_create_named(const char *name, uint32_t size, uint32_t rank,
                                               weft_group_t **out_group);
/**
 * Waits until this rank's calls are done and all ranks got here (unless the group is broken);
 * collective. NULL is fine. Streams may still be in use, but not for calls of this group.
 */
WEFT_API void weft_group_destroy(weft_group_t *group);
/**
 * Lets go of group without the others, who may go on with calls that this rank has issued: for the end of a program that
 * does not know where its peers are. Waits until this rank's calls are done; not collective. Who destroys the group in
 * place of that waits for this rank until it has left the world. The group's share of the context's memory comes back
 * with the context only. NULL is fine.
 */
WEFT_API void weft_group_leave(weft_group_t *group);

WEFT_API uint32_t weft_group_size(const weft_group_t *group);
/** @return the caller's rank in group. */
WEFT_API uint32_t weft_group_rank(const weft_group_t *group);
/** @return the rank in the world of a rank in group, UINT32_MAX when there is no such rank. */
WEFT_API uint32_t weft_group_world_rank(const weft_group_t *group, uint32_t rank);
/** @return the context that group belongs to; alive as long as group. */
WEFT_API weft_context_t *weft_group_context(const weft_group_t *group);
/** @return WEFT_OK, or the error that broke the group, which every later call returns too; but for WEFT_ERR_LINK, which
 * later calls get over (collective.h). */
WEFT_API weft_status_t weft_group_status(weft_group_t *group);
/**
 * In which order the group's reductions combine ranks, from the next call on: part of their bits.
 * All ranks set it alike, between the same calls: calls of ranks that differ are an error. A new
 * group of the world has what WEFT_ORDER says (tree); one made from another has that one's order,
 * but blocks only where it has the same ranks, else the tree. WEFT_ORDER_ANY admits algorithms that
 * follow no tree (ring, log-step): then bits depend on the algorithm, and so on size and group.
 * Waits until this rank's calls in flight are done.
 * @param[in] block_sizes WEFT_ORDER_BLOCKS: ranks of each of count blocks, group size in all; else ignored
 */
WEFT_API weft_status_t weft_group_set_order(weft_group_t *group, weft_order_t order,
                                            const uint32_t *block_sizes, uint32_t count);
WEFT_API weft_order_t weft_group_order(const weft_group_t *group);
/**
 * Carries out op by the algorithm called name (`weft algos` lists them; or one of the context's registry, which is proved
 * before it runs) from the next call on; NULL: chosen by
 * the cost table again. All ranks set it alike; calls of ranks that differ are an error. A call for which
 * it cannot be honoured (it is not eligible for the group's order, ranks or links) is WEFT_ERR_UNSUPPORTED with
 * the reason on every rank, at every size; the group stays usable. WEFT_ALGO does the same for all
 * groups; groups made from this one start with what it has. Waits until this rank's calls in
 * flight are done.
 * @return WEFT_ERR_INVALID_ARGUMENT when op has no algorithm of that name
 */
WEFT_API weft_status_t weft_group_set_algorithm(weft_group_t *group, weft_collective_t op,
                                                const char *name);
/**
 * @return the algorithm of the group's last collective on this rank: "mesh" and "one-shot" may be hand-written
 *         executors (weft_group_last_path tells), else a schedule was run. "ring (order any)" and
 *         the like say that the result's bits depend on the algorithm. "none" before the first.
 */
WEFT_API const char *weft_group_last_algorithm(const weft_group_t *group);
/**
 * @return how the group's last collective went on this rank, for those who tune: "posting" (data beside the
 *         signal), "direct" (in place), "attached" (plain memory, read or written in one copy), "staged",
 *         "schedule" (an algorithm as data, interpreted), or "none".
 */
WEFT_API const char *weft_group_last_path(const weft_group_t *group);
WEFT_EXTERN_C_END

#endif

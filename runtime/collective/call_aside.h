/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that were set aside: this rank waited for another tag of the same peer when they came.
 * MPI calls them unexpected.
 *
 *   rank 0   send(tag 5)  send(tag 7)
 *   rank 1   recv(tag 7): sets 5 aside, takes 7    recv(tag 5): takes it from here
 *
 * Whoever advances a receive adds to the list. The thread that issues calls takes from it, too.
 */
#ifndef WEFT_RUNTIME_CALL_ASIDE_H
#define WEFT_RUNTIME_CALL_ASIDE_H

#include "runtime/collective/call.h"

typedef struct wefti_aside {
    struct wefti_aside *next;
    bool whole;
    wefti_pair_t message; /* its data is at data */
    uint8_t data[];
} wefti_aside_t;

void wefti_asides_init(weft_group_t *group);
void wefti_asides_free(weft_group_t *group);

static inline bool wefti_aside_any(weft_group_t *group)
{
    /* acquire: the message is read next */
    return atomic_load_explicit(&group->calls->asides.first, memory_order_acquire) != NULL;
}

/* Memory for a message of which no piece was taken yet; becomes *out_message. */
weft_status_t wefti_aside_begin(weft_group_t *group, const wefti_pair_t *message,
                                wefti_pair_t **out_message);
/* That of peer of which pieces are missing, or NULL. */
wefti_pair_t *wefti_aside_unfinished(weft_group_t *group, uint32_t peer);
/* It is whole now. */
void wefti_aside_finish(weft_group_t *group, uint32_t peer);
/* Links broke: the rest of messages will not come. */
void wefti_asides_drop_unfinished(weft_group_t *group);

/* Whether a receive with tag from peer is in flight: messages with it are for that one. */
typedef bool (*wefti_is_awaited_fn)(const weft_group_t *group, uint32_t peer, uint32_t tag);
/* The first whole message of peer with tag, or any, that is not awaited; false: there is none. */
bool wefti_aside_find(weft_group_t *group, uint32_t peer, uint32_t tag,
                      wefti_is_awaited_fn is_awaited, wefti_pair_t *out_message);
/* The first whole one of peer with tag, taken from the list, for wefti_aside_free; NULL: there is
 * none. */
wefti_aside_t *wefti_aside_take(weft_group_t *group, uint32_t peer, uint32_t tag);
void wefti_aside_free(weft_group_t *group, wefti_aside_t *aside);

#endif

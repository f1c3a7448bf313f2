/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives in a batch.
 *
 *   begin   all_reduce  all_gather  barrier  all_reduce  send ..  end
 *           every call is checked and noted                       first sends and receives, side by
 *                                                                 side; then collectives in order,
 *                                                                 small ones of a kind as one call
 *
 * A fused call has the members' data packed one after the other, block by block. Its signature is a
 * hash of the members' counts, and its call slot lists them ahead of the data, so that ranks that
 * disagree can say where.
 */
#ifndef WEFT_RUNTIME_FUSED_H
#define WEFT_RUNTIME_FUSED_H

#include "runtime/collective/call.h"

#define WEFTI_FUSED_MEMBERS 64u

typedef struct wefti_fused_member {
    const uint8_t *send;
    uint8_t *recv;
    uint64_t count; /* elements of one block */
    uint32_t index; /* in the batch */
    uint32_t shape_tag;
    uint64_t dims; /* of the shape, 16 bits each, 0xffff: no more; all ones: none or more than 4 */
} wefti_fused_member_t;

/* Of one place of a group's ring, from the first fused call in it. */
typedef struct wefti_fused {
    uint32_t count; /* of members */
    bool shaped;    /* some have a shape */
    wefti_fused_member_t members[WEFTI_FUSED_MEMBERS];
    uint8_t *packed; /* what the call sends and receives */
    size_t capacity;
} wefti_fused_t;

/* In a call slot's data, ahead of everything else; a whole number of lines. */
typedef struct wefti_fused_list {
    uint32_t count, shaped;
    /* index << 32 | tag of the shape << 16 | count; where shaped, the count members' dims follow */
    uint64_t members[2 * WEFTI_FUSED_MEMBERS];
} wefti_fused_list_t;

static inline size_t wefti_fused_bytes_of_list(uint32_t count, bool shaped)
{
    return wefti_align_up(
        offsetof(wefti_fused_list_t, members) + count * (shaped ? 2u : 1u) * sizeof(uint64_t), 64);
}

static inline size_t wefti_fused_list_bytes(const wefti_call_t *call)
{
    return call->fused == NULL ? 0
                               : wefti_fused_bytes_of_list(call->fused->count, call->fused->shaped);
}

static inline uint8_t *wefti_call_slot_area(const wefti_call_t *call, wefti_call_slot_t *slot)
{
    return call->area_bytes <= WEFTI_SLOT_TINY ? slot->tiny
                                               : slot->data + wefti_fused_list_bytes(call);
}

/* call_fused.c. Before a fused call is posted, and after its end. */
void wefti_fused_pack(const wefti_call_t *call);
void wefti_fused_unpack(const wefti_call_t *call);
void wefti_fused_post(const wefti_call_t *call, wefti_call_slot_t *slot);
/* Where the lists of two fused calls differ; false when they do not. Text holds bytes. */
bool wefti_fused_difference(const wefti_fused_list_t *low, uint32_t low_rank,
                            const wefti_fused_list_t *high, uint32_t high_rank, char *text,
                            size_t bytes);
void wefti_fused_free(const weft_allocator_t *allocator, wefti_fused_t *fused);

#endif

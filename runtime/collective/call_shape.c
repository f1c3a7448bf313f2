/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of tensors: a digest in the signature, the dimensions in the call slot for messages. */
#include "runtime/collective/call.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

weft_status_t weft_group_set_shape(weft_group_t *group, const int64_t *dims, uint32_t rank)
{
    WEFT_CHECK_ARG(group);
    wefti_shape_note_t *shape = &group->calls->shape;
    shape->tag = 0;
    if (rank < 2) {
        return WEFT_OK;
    }
    WEFT_CHECK_ARG(dims);
    uint64_t hash = wefti_hash_word(WEFTI_HASH_START, rank);
    memset(shape, 0, sizeof *shape);
    shape->rank = rank;
    for (uint32_t i = 0; i < rank; i++) {
        hash = wefti_hash_word(hash, (uint64_t)dims[i]);
        if (i < WEFTI_SHAPE_DIMS) {
            shape->dims[i] = (uint32_t)dims[i];
        }
    }
    shape->tag = (uint32_t)(hash >> WEFTI_COUNT_SHAPE_SHIFT) | 1u;
    return WEFT_OK;
}

void wefti_call_take_shape(wefti_call_t *call)
{
    wefti_shape_note_t *shape = &call->group->calls->shape;
    if (!wefti_call_op(call)->variable && call->posted_count <= WEFTI_COUNT_MASK) {
        call->posted_count |= (uint64_t)shape->tag << WEFTI_COUNT_SHAPE_SHIFT;
    }
    call->group->calls->posted_shape = *shape;
    shape->tag = 0;
}

/* In the last line of the data, behind wefti_addresses_t. */
static wefti_shape_note_t *note_of(wefti_call_slot_t *slot)
{
    return (void *)(slot->data + WEFTI_SLOT_ADDRESSES + sizeof(wefti_addresses_t));
}

void wefti_call_post_shape(const wefti_call_t *call, wefti_call_slot_t *slot)
{
    const wefti_shape_note_t *shape = &call->group->calls->posted_shape;
    uint64_t tag = call->posted_count >> WEFTI_COUNT_SHAPE_SHIFT;
    bool free = (call->flags & WEFTI_POSTED_DATA) == 0 || call->area_bytes <= WEFTI_SLOT_ADDRESSES;
    if (free && shape->tag == tag) { /* else a later call has been issued since */
        *note_of(slot) = *shape;
    }
}

void wefti_note_text(const wefti_shape_note_t *shape, uint64_t count, char *out, size_t bytes)
{
    if (shape->tag == 0) {
        snprintf(out, bytes, " of shape (%llu)", (unsigned long long)count);
        return;
    }
    if (shape->rank == 0 || shape->rank > WEFTI_SHAPE_DIMS) {
        snprintf(out, bytes, " of another shape");
        return;
    }
    size_t used = (size_t)snprintf(out, bytes, " of shape (");
    for (uint32_t i = 0; i < shape->rank && used < bytes; i++) {
        used +=
            (size_t)snprintf(out + used, bytes - used, "%s%u", i > 0 ? ", " : "", shape->dims[i]);
    }
    if (used < bytes) {
        snprintf(out + used, bytes - used, ")");
    }
}

void wefti_shape_text(uint64_t count, const wefti_call_slot_t *slot, char *out, size_t bytes)
{
    wefti_shape_note_t shape = *note_of((wefti_call_slot_t *)(uintptr_t)slot);
    uint32_t tag = (uint32_t)(count >> WEFTI_COUNT_SHAPE_SHIFT);
    shape.rank = shape.tag == tag ? shape.rank : 0; /* it was not sent along */
    shape.tag = tag;
    wefti_note_text(&shape, count, out, bytes);
}

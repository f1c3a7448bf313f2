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
    memset(shape, 0, sizeof *shape);
    if (rank < 2 || rank == WEFT_SHAPE_EXCHANGE) {
        shape->tag = rank == WEFT_SHAPE_EXCHANGE ? WEFTI_COUNT_SHAPES : 0;
        return WEFT_OK;
    }
    WEFT_CHECK_ARG(dims);
    uint64_t hash = wefti_hash_word(WEFTI_HASH_START, rank);
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
    wefti_calls_t *calls = call->group->calls;
    if (!wefti_call_op(call)->variable && call->posted_count <= WEFTI_COUNT_MASK) {
        call->posted_count |= (uint64_t)calls->shape.tag << WEFTI_COUNT_SHAPE_SHIFT;
        calls->posted_shapes[call - calls->ring] = calls->shape;
    }
    calls->shape.tag = 0;
}

/* In the last line of the data, behind wefti_addresses_t; where slots are put to other hosts, behind
 * what is put. Ranks that differ in the shape only have it at the same place. */
static wefti_shape_note_t *note_of(const weft_group_t *group, wefti_call_slot_t *slot)
{
    return (void *)(slot->data + group->calls->shape_at);
}

size_t wefti_call_post_shape(const wefti_call_t *call, wefti_call_slot_t *slot, size_t data_bytes)
{
    const weft_group_t *group = call->group;
    const wefti_shape_note_t *shape = &group->calls->posted_shapes[call - group->calls->ring];
    bool puts = group->put_peer_count > 0 && !wefti_group_is_hosted(group);
    size_t at = group->calls->shape_at;
    size_t used = (call->flags & WEFTI_POSTED_DATA) != 0 ? call->area_bytes : 0;
    if (shape->rank == 0) { /* the digest says it all */
        return data_bytes;
    }
    bool free = puts ? at + sizeof *shape <= WEFTI_SLOT_DATA : used <= WEFTI_SLOT_ADDRESSES;
    if (!free) {
        return data_bytes;
    }
    *note_of(group, slot) = *shape;
    return puts ? at + sizeof *shape : data_bytes;
}

void wefti_note_text(const wefti_shape_note_t *shape, uint64_t count, char *out, size_t bytes)
{
    if (shape->tag == WEFTI_COUNT_SHAPES) {
        out[0] = '\0'; /* said with the count */
        return;
    }
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

const wefti_shape_note_t *wefti_shape_of_slot(const weft_group_t *group,
                                              const wefti_call_slot_t *slot)
{
    return group->calls->shape_at + sizeof(wefti_shape_note_t) <= WEFTI_SLOT_DATA
               ? note_of(group, (wefti_call_slot_t *)(uintptr_t)slot)
               : NULL;
}

void wefti_shape_text(uint64_t count, const wefti_shape_note_t *note, char *out, size_t bytes)
{
    wefti_shape_note_t shape = note != NULL ? *note : (wefti_shape_note_t){0};
    uint32_t tag = (uint32_t)(count >> WEFTI_COUNT_SHAPE_SHIFT);
    shape.rank = shape.tag == tag ? shape.rank : 0; /* it was not sent along */
    shape.tag = tag;
    wefti_note_text(&shape, count, out, bytes);
}

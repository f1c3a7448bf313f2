/* SPDX-License-Identifier: Apache-2.0 */
/* Small collectives of a batch as one: members' blocks lie one after the other in a packed buffer.
 */
#include "runtime/collective/fused.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

void wefti_fused_free(const weft_allocator_t *allocator, wefti_fused_t *fused)
{
    if (fused != NULL) {
        wefti_free(allocator, fused->packed);
        wefti_free(allocator, fused);
    }
}

/* Block by block, between the members' buffers and packed. */
static inline void move(const wefti_call_t *call, uint8_t *packed, uint32_t blocks, bool out)
{
    const wefti_fused_t *fused = call->fused;
    for (uint32_t block = 0; block < blocks; block++) {
        for (uint32_t i = 0; i < fused->count; i++) {
            const wefti_fused_member_t *member = &fused->members[i];
            const size_t bytes = (size_t)member->count * call->elem_bytes;
            if (bytes == 0) {
                continue;
            }
            if (out) {
                memcpy(member->recv + block * bytes, packed, bytes);
            } else {
                memcpy(packed, member->send + block * bytes, bytes);
            }
            packed += bytes;
        }
    }
}

void wefti_fused_pack(const wefti_call_t *call)
{
    move(call, call->fused->packed, wefti_call_send_shape(call).blocks, false);
}

void wefti_fused_unpack(const wefti_call_t *call)
{
    move(call, call->request.recv, wefti_call_recv_shape(call).blocks, true);
}

void wefti_fused_post(const wefti_call_t *call, wefti_call_slot_t *slot)
{
    const wefti_fused_t *fused = call->fused;
    wefti_fused_list_t *list = (wefti_fused_list_t *)(void *)slot->data;
    list->count = fused->count;
    list->shaped = fused->shaped;
    for (uint32_t i = 0; i < fused->count; i++) {
        const wefti_fused_member_t *member = &fused->members[i];
        list->members[i] =
            (uint64_t)member->index << 32 | (uint64_t)member->shape_tag << 16 | member->count;
        if (fused->shaped) {
            list->members[fused->count + i] = member->dims;
        }
    }
}

/* ---- when ranks disagree ---- */

static uint32_t count_of(uint64_t member)
{
    return (uint32_t)member & 0xffffu;
}

/* " of shape (8, 4)" of one member, or "". */
static void shape_text(const wefti_fused_list_t *list, uint32_t count, uint32_t member, char *out,
                       size_t bytes)
{
    wefti_shape_note_t shape = {.tag = (uint32_t)list->members[member] >> 16};
    uint64_t dims = list->shaped != 0 ? list->members[count + member] : UINT64_MAX;
    for (; shape.rank < 4 && (dims & 0xffff) != 0xffff; dims >>= 16) {
        shape.dims[shape.rank++] = (uint32_t)dims & 0xffff;
    }
    wefti_note_text(&shape, count_of(list->members[member]), out, bytes);
}

/* Values read from the lists, which peers wrote, are only printed. */
bool wefti_fused_difference(const wefti_fused_list_t *a, uint32_t low_rank,
                            const wefti_fused_list_t *b, uint32_t high_rank, char *text,
                            size_t bytes)
{
    uint32_t a_count = a->count < WEFTI_FUSED_MEMBERS ? a->count : WEFTI_FUSED_MEMBERS;
    uint32_t b_count = b->count < WEFTI_FUSED_MEMBERS ? b->count : WEFTI_FUSED_MEMBERS;
    for (uint32_t i = 0; i < a_count && i < b_count; i++) {
        uint64_t x = a->members[i], y = b->members[i];
        if ((uint32_t)x != (uint32_t)y) {
            char low_text[80] = "", high_text[80] = "";
            if (count_of(x) == count_of(y)) {
                shape_text(a, a_count, i, low_text, sizeof low_text);
                shape_text(b, b_count, i, high_text, sizeof high_text);
            }
            snprintf(text, bytes,
                     "call %u of the batch has %u elements%s on rank %u, call %u of the batch has "
                     "%u%s on rank %u",
                     (unsigned)(x >> 32), count_of(x), low_text, low_rank, (unsigned)(y >> 32),
                     count_of(y), high_text, high_rank);
            return true;
        }
    }
    if (a_count != b_count) {
        bool a_longer = a_count > b_count;
        uint64_t more = a_longer ? a->members[b_count] : b->members[a_count];
        snprintf(text, bytes,
                 "call %u of the batch, with %u elements, exists on rank %u but not on "
                 "rank %u",
                 (unsigned)(more >> 32), count_of(more), a_longer ? low_rank : high_rank,
                 a_longer ? high_rank : low_rank);
        return true;
    }
    return false;
}

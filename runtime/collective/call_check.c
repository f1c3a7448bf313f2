/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WEFT_CHECK=results: after a call whose result must be equal on all ranks, they post digests of
 * pieces of it and compare. For finding memory that somebody else writes to, or a machine that
 * computes wrongly.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_steps.h"
#include "runtime/group/mirror.h"

#define PIECES ((uint64_t)(WEFTI_SLOT_DATA / sizeof(uint64_t)))

bool wefti_call_is_checked(const wefti_call_t *call)
{
    if (call->group->context->settings.check != WEFTI_CHECK_RESULTS) {
        return false;
    }
    const wefti_collective_t *op = wefti_collective_of(call->request.op);
    bool equal = op->recv.holder == WEFT_HOLDER_ALL &&
                 (op->send.extent == WEFT_EXTENT_VECTOR || op->send.extent == WEFT_EXTENT_BLOCK);
    return equal && (!op->variable || call->group->size <= PIECES);
}

static uint64_t digest(const uint8_t *data, uint64_t bytes)
{
    uint64_t hash = WEFTI_HASH_START, word;
    for (; bytes >= sizeof word; bytes -= sizeof word, data += sizeof word) {
        memcpy(&word, data, sizeof word);
        hash = wefti_hash_word(hash, word);
    }
    return wefti_hash_bytes(hash, data, (size_t)bytes);
}

/* Elements [*out_first, *out_first + *out_count) of the result are piece number index. */
static uint64_t piece(const wefti_call_t *call, uint64_t index, uint64_t *out_first,
                      uint64_t *out_count)
{
    uint32_t n = call->group->size;
    if (wefti_collective_is_variable(call->request.op)) {
        *out_count = index < n ? call->counts[2 * n + index] : 0;
        *out_first = index < n ? call->counts[3 * n + index] : 0;
        return n;
    }
    uint64_t total =
        wefti_collective_gathers(call->request.op) ? call->request.count * n : call->request.count;
    uint64_t each = (total + PIECES - 1) / PIECES;
    each = each > 64 ? each : 64;
    *out_first = index * each < total ? index * each : total;
    *out_count = total - *out_first < each ? total - *out_first : each;
    return (total + each - 1) / each;
}

static void publish(wefti_call_t *call, wefti_call_slot_t *own, uint64_t pieces)
{
    own->what = call->what;
    own->count = call->posted_count;
    wefti_call_slot_publish(call->group, own, call->number, (size_t)pieces * sizeof(uint64_t));
}

void wefti_call_post_no_digests(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    publish(call, wefti_call_slot_of(group, group->rank, call->number), 0);
    group->calls->deferred =
        (wefti_deferred_t){true, call->number, 1, call->what, call->posted_count};
}

void wefti_call_post_digests(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_call_slot_t *own = wefti_call_slot_of(group, group->rank, call->number);
    uint64_t *digests = (uint64_t *)(void *)own->data;
    uint64_t first, count, pieces = piece(call, 0, &first, &count);
    for (uint64_t i = 0; i < pieces; i++) {
        piece(call, i, &first, &count);
        const uint8_t *at = count > 0 ? call->request.recv + first * call->elem_bytes : own->data;
        digests[i] = digest(at, count * call->elem_bytes);
    }
    publish(call, own, pieces);
}

weft_status_t wefti_call_compare_digests(wefti_call_t *call, uint32_t peer)
{
    weft_group_t *group = call->group;
    const uint64_t *own =
        (const uint64_t *)(const void *)wefti_call_slot_of(group, group->rank, call->number)->data;
    const uint64_t *theirs =
        (const uint64_t *)(const void *)wefti_call_slot_of(group, peer, call->number)->data;
    uint64_t first, count, pieces = piece(call, 0, &first, &count);
    char text[160];
    for (uint64_t i = 0; i < pieces; i++) {
        if (own[i] != theirs[i]) {
            uint32_t a = group->rank < peer ? group->rank : peer;
            piece(call, i, &first, &count);
            return wefti_error(WEFT_ERR_MISMATCH,
                               "call %u of the group, %s: results of ranks %u and %u differ in "
                               "elements %llu to %llu",
                               call->order, wefti_what_text(call->what, call->posted_count, text),
                               a, group->rank + peer - a, (unsigned long long)first,
                               (unsigned long long)(first + count - 1));
        }
    }
    return WEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives. Every ordered pair of ranks has a mailbox in the sender's channel with two
 * buffers, which the sender fills in turn, and a counter in the receiver's channel that says how
 * many were emptied. A first piece says what is sent; if the receiver reaches the sender's memory
 * that piece is all there is, and the receiver takes the data from where it lies.
 */
#include <weft/collective.h>

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/call_steps.h"
#include "runtime/interpreter/interpreter.h"
#include "runtime/group/mirror.h"

#define FLAG_DIRECT ((uint64_t)1 << 63)
#define FLAG_REFUSED ((uint64_t)1 << 62) /* the rest is an error, the data its message */

enum { PAIR_FIRST = 0, PAIR_MOVING, PAIR_EMPTYING, PAIR_DONE };

static uint8_t *buffer_of(const weft_group_t *group, wefti_mailbox_t *mailbox, uint32_t piece)
{
    return (uint8_t *)(mailbox + 1) + (piece & 1u) * wefti_mailbox_bytes(&group->layout);
}

static size_t next_bytes(const weft_group_t *group, const wefti_pair_t *pair)
{
    uint64_t left = pair->bytes - pair->moved;
    return left < wefti_mailbox_bytes(&group->layout) ? (size_t)left
                                                      : wefti_mailbox_bytes(&group->layout);
}

static weft_status_t post_piece(weft_group_t *group, const wefti_pair_t *pair,
                                wefti_mailbox_t *mailbox, uint32_t piece, size_t bytes)
{
    const uint8_t *from = pair->data + pair->moved;
    if (wefti_group_puts(group, pair->peer)) {
        return wefti_mirror_posted(group, pair->peer, mailbox, piece, from, bytes);
    }
    if (bytes > 0) {
        memcpy(buffer_of(group, mailbox, piece), from, bytes);
    }
    wefti_signal_post(&mailbox->posted.signal, piece);
    return WEFT_OK;
}

/* Blocked: WEFT_IN_PROGRESS with the signal. */
static weft_status_t advance_send(weft_group_t *group, wefti_pair_t *pair, wefti_blocked_t *blocked)
{
    wefti_mailbox_t *mailbox = wefti_mailbox_of(group, group->rank, pair->peer);
    wefti_signal_t *consumed = &wefti_mailbox_of(group, pair->peer, group->rank)->consumed.signal;
    while (pair->state != PAIR_EMPTYING) {
        uint32_t piece = group->calls->sent[pair->peer] + 1;
        if (!wefti_signal_comes_soon(group->endpoint, consumed,
                                     piece - 2)) { /* the buffer's last piece was taken */
            blocked->signal = consumed;
            blocked->target = piece - 2;
            return WEFT_IN_PROGRESS;
        }
        if (pair->state == PAIR_FIRST) {
            uint32_t lead, trail;
            uint64_t offset = 0;
            pair->direct = pair->refused == 0 && !wefti_group_puts(group, pair->peer) &&
                           pair->bytes > wefti_mailbox_bytes(&group->layout) &&
                           wefti_memory_reach(group->context, pair->data, (size_t)pair->bytes,
                                              &offset, &lead, &trail) &&
                           lead + trail == 0;
            mailbox->head[piece & 1u].what =
                pair->refused != 0 ? (uint64_t)-pair->refused | FLAG_REFUSED
                                   : (uint64_t)pair->dtype | (pair->direct ? FLAG_DIRECT : 0);
            mailbox->head[piece & 1u].count = pair->count;
            mailbox->head[piece & 1u].send = offset;
        }
        size_t bytes = pair->direct ? 0 : next_bytes(group, pair);
        weft_status_t status = post_piece(group, pair, mailbox, piece, bytes);
        if (status < 0) {
            return status;
        }
        pair->moved += bytes;
        group->calls->sent[pair->peer] = piece;
        pair->state = pair->direct || pair->moved == pair->bytes ? PAIR_EMPTYING : PAIR_MOVING;
    }
    /* In place, the data must stay until it was taken; otherwise it is in the mailbox. */
    if (pair->direct &&
        !wefti_signal_comes_soon(group->endpoint, consumed, group->calls->sent[pair->peer])) {
        blocked->signal = consumed;
        blocked->target = group->calls->sent[pair->peer];
        return WEFT_IN_PROGRESS;
    }
    pair->state = PAIR_DONE;
    return WEFT_OK;
}

bool wefti_pair_is_done(const wefti_pair_t *pair)
{
    return pair->state == PAIR_DONE;
}

static weft_status_t check_head(weft_group_t *group, wefti_pair_t *pair,
                                const wefti_mailbox_t *mailbox, uint32_t piece)
{
    uint64_t what = mailbox->head[piece & 1u].what, count = mailbox->head[piece & 1u].count;
    weft_dtype_t dtype = (weft_dtype_t)(what & 0xff);
    if (count != pair->count || dtype != pair->dtype) {
        return wefti_error(WEFT_ERR_MISMATCH,
                           "rank %u called send with %llu x %s, rank %u recv with %llu x %s",
                           group->ranks[pair->peer], (unsigned long long)count,
                           weft_dtype_name(dtype), group->ranks[group->rank],
                           (unsigned long long)pair->count, weft_dtype_name(pair->dtype));
    }
    pair->direct = (what & FLAG_DIRECT) != 0;
    return WEFT_OK;
}

static weft_status_t take_piece(weft_group_t *group, wefti_pair_t *pair, wefti_mailbox_t *mailbox,
                                uint32_t piece)
{
    uint8_t *to = (uint8_t *)(uintptr_t)pair->data;
    if (pair->direct) {
        if (wefti_group_broken(group)) { /* the sender may have given it up, and freed it */
            return wefti_group_check(group);
        }
        const uint8_t *from =
            wefti_memory_of_peer(group, pair->peer, mailbox->head[piece & 1u].send, pair->bytes);
        if (from == NULL) {
            return wefti_group_bad_address(group->ranks[pair->peer]);
        }
        memcpy(to, from, (size_t)pair->bytes);
        pair->moved = pair->bytes;
        return WEFT_OK;
    }
    size_t bytes = next_bytes(group, pair);
    if (bytes > 0) {
        memcpy(to + pair->moved, buffer_of(group, mailbox, piece), bytes);
    }
    pair->moved += bytes;
    return WEFT_OK;
}

/* The sender could not send. Its message stays with the call, whose other pairs go on. */
static weft_status_t take_refusal(wefti_call_t *call, wefti_pair_t *pair,
                                  const wefti_mailbox_t *mailbox, uint32_t piece)
{
    weft_group_t *group = call->group;
    char text[WEFTI_REFUSAL_BYTES];
    const uint8_t *from =
        (const uint8_t *)(mailbox + 1) + (piece & 1u) * wefti_mailbox_bytes(&group->layout);
    uint64_t error = mailbox->head[piece & 1u].what & INT8_MAX;
    snprintf(text, sizeof text, "rank %u: %.*s", group->ranks[pair->peer], (int)(sizeof text - 20),
             (const char *)from);
    pair->refused = error != 0 ? (int8_t) - (int64_t)error : WEFT_ERR_INVALID_ARGUMENT;
    pair->bytes = 0;
    return wefti_call_keep_refusal(call, text, sizeof text) ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t take_first(wefti_call_t *call, wefti_pair_t *pair,
                                const wefti_mailbox_t *mailbox, uint32_t piece)
{
    return (mailbox->head[piece & 1u].what & FLAG_REFUSED) != 0
               ? take_refusal(call, pair, mailbox, piece)
               : check_head(call->group, pair, mailbox, piece);
}

static weft_status_t advance_recv(wefti_call_t *call, wefti_pair_t *pair, wefti_blocked_t *blocked)
{
    weft_group_t *group = call->group;
    wefti_mailbox_t *mailbox = wefti_mailbox_of(group, pair->peer, group->rank);
    while (pair->state != PAIR_DONE) {
        uint32_t piece = group->calls->received[pair->peer] + 1;
        if (!wefti_signal_comes_soon(group->endpoint, &mailbox->posted.signal, piece)) {
            blocked->signal = &mailbox->posted.signal;
            blocked->target = piece;
            return WEFT_IN_PROGRESS;
        }
        weft_status_t status = WEFT_OK;
        if (pair->state == PAIR_FIRST) {
            status = take_first(call, pair, mailbox, piece);
        }
        if (status == WEFT_OK) {
            status = take_piece(group, pair, mailbox, piece);
        }
        if (status < 0) {
            return wefti_group_fail(group, status);
        }
        group->calls->received[pair->peer] = piece;
        if (wefti_group_puts(group, pair->peer)) {
            status = wefti_mirror_consumed(group, pair->peer, piece);
        } else {
            wefti_signal_post(&wefti_mailbox_of(group, group->rank, pair->peer)->consumed.signal,
                              piece);
        }
        if (status < 0) {
            return status;
        }
        pair->state = pair->moved == pair->bytes ? PAIR_DONE : PAIR_MOVING;
    }
    return WEFT_OK;
}

/* Those between the same two ranks, in the same direction, keep their order. */
static bool is_behind(const wefti_call_t *call, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (call->pairs.list[i].state != PAIR_DONE &&
            call->pairs.list[i].peer == call->pairs.list[index].peer &&
            call->pairs.list[i].sends == call->pairs.list[index].sends) {
            return true;
        }
    }
    return false;
}

weft_status_t wefti_pairs_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_group_t *group = call->group;
    bool open;
    bool moved;
    do {
        open = moved = false;
        for (uint32_t i = 0; i < call->pairs.count; i++) {
            wefti_pair_t *pair = &call->pairs.list[i];
            if (pair->state == PAIR_DONE || is_behind(call, i)) {
                continue;
            }
            uint64_t before = pair->moved + pair->state;
            pair->blocked.signal = NULL;
            weft_status_t status = pair->sends ? advance_send(group, pair, out_blocked)
                                               : advance_recv(call, pair, out_blocked);
            if (status < 0) {
                return status;
            }
            if (status == WEFT_IN_PROGRESS) {
                pair->blocked = *out_blocked;
                open = true;
            }
            moved |= before != pair->moved + pair->state;
        }
    } while (open && moved);
    for (uint32_t i = 0; !open && i < call->pairs.count; i++) {
        const wefti_pair_t *pair = &call->pairs.list[i];
        if (pair->refused != 0 && !pair->sends) {
            return wefti_error_adopt((weft_status_t)pair->refused,
                                     group->calls->refusals[call - group->calls->ring]);
        }
    }
    return open ? WEFT_IN_PROGRESS : WEFT_OK;
}

bool wefti_pairs_ready(const wefti_call_t *call)
{
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        const wefti_blocked_t *blocked = &call->pairs.list[i].blocked;
        /* relaxed: going on looks again */
        if (blocked->signal != NULL &&
            wefti_signal_reached(
                atomic_load_explicit(&blocked->signal->value, memory_order_relaxed),
                blocked->target)) {
            return true;
        }
    }
    return false;
}

/* All ranks come to a collective; else the call is like the refused one. */
void wefti_call_retries(const wefti_call_t *call, bool ended)
{
    weft_group_t *group = call->group;
    uint32_t refused = atomic_load_explicit(&group->calls->refused, memory_order_relaxed);
    bool retries = call->pairs.count == 0 && ended && !call->refuses;
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        const wefti_pair_t *pair = &call->pairs.list[i];
        bool like_it = refused == 1 + group->size || (!pair->sends && refused == 1 + pair->peer);
        retries = retries || (like_it && pair->refused == 0);
    }
    if (retries && ended) {
        atomic_store_explicit(&group->calls->refused, 0, memory_order_relaxed);
    }
    if (retries) {
        wefti_endpoint_retry_refusal(group->endpoint, WEFTI_WAIT_SEND, group->channel,
                                     ended ? WEFTI_REFUSAL_NONE : WEFTI_REFUSAL_RETRIED);
    }
}

void wefti_pairs_fill(wefti_call_t *call, wefti_pair_t *pairs, uint32_t count)
{
    call->request.op = WEFT_COLLECTIVE_SEND_RECV;
    call->request.dtype = pairs[0].dtype;
    call->what = (uint64_t)WEFT_COLLECTIVE_SEND_RECV | (uint64_t)pairs[0].dtype << 8;
    call->posted_count = pairs[0].count;
    call->pairs.list = pairs;
    call->pairs.count = count;
}

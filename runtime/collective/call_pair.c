/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives. Every ordered pair of ranks has a mailbox in the sender's channel with two
 * buffers, which the sender fills in turn, and a counter in the receiver's channel that says how
 * many were emptied. A first piece says what is sent; if the receiver reaches the sender's memory
 * that piece is all there is, and the receiver takes the data from where it lies. A message whose
 * tag the receiver does not wait for is set aside (call_aside.c).
 */
#include <weft/collective.h>

#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/copy.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/collective/call_aside.h"
#include "runtime/collective/call_steps.h"
#include "runtime/interpreter/interpreter.h"
#include "runtime/group/mirror.h"

/* What the head of a message says: its type (refused: the error, its data being the text), its tag
 * and flags. */
#define TAG_SHIFT 8u
#define FLAG_DIRECT ((uint64_t)1 << 63)
#define FLAG_REFUSED ((uint64_t)1 << 62)

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
                (uint64_t)pair->tag << TAG_SHIFT |
                (pair->refused != 0 ? (uint64_t)-pair->refused | FLAG_REFUSED
                                    : (uint64_t)pair->dtype | (pair->direct ? FLAG_DIRECT : 0));
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

/* Whether the message that sent describes is as long as pair, and of its type. */
static weft_status_t check_message(weft_group_t *group, const wefti_pair_t *pair,
                                   const wefti_pair_t *sent)
{
    if (sent->count != pair->count || sent->dtype != pair->dtype) {
        return wefti_error(
            WEFT_ERR_MISMATCH, "rank %u called send with %llu x %s, rank %u recv with %llu x %s",
            group->ranks[pair->peer], (unsigned long long)sent->count,
            weft_dtype_name((weft_dtype_t)sent->dtype), group->ranks[group->rank],
            (unsigned long long)pair->count, weft_dtype_name((weft_dtype_t)pair->dtype));
    }
    return WEFT_OK;
}

/* The message that begins with a piece in a mailbox. Of one that was refused the text is the data,
 * which is short, whatever the head says. */
static wefti_pair_t message_at(const weft_group_t *group, const wefti_mailbox_t *mailbox,
                               uint32_t peer, uint32_t piece)
{
    uint64_t what = mailbox->head[piece & 1u].what, count = mailbox->head[piece & 1u].count;
    wefti_pair_t message = {.peer = peer,
                            .tag = (uint32_t)(what >> TAG_SHIFT),
                            .dtype = (uint8_t)what,
                            .count = count,
                            .direct = (what & FLAG_DIRECT) != 0};
    if ((what & FLAG_REFUSED) != 0) {
        uint64_t error = what & INT8_MAX;
        uint64_t room = wefti_mailbox_bytes(&group->layout);
        room = room < WEFTI_REFUSAL_BYTES ? room : WEFTI_REFUSAL_BYTES;
        message.refused = error != 0 ? (int8_t) - (int64_t)error : WEFT_ERR_INVALID_ARGUMENT;
        message.dtype = WEFT_DTYPE_U8;
        message.count = count < room ? count : room;
        message.direct = false;
    }
    return message;
}

/* tag: that of a receive, or any. What was refused for its tag has no receive of its own. */
static bool is_for(const wefti_pair_t *message, uint32_t tag)
{
    return tag == WEFT_ANY_TAG || message->tag == tag ||
           (message->refused != 0 && message->tag == WEFT_ANY_TAG);
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
        wefti_copy(to, from, (size_t)pair->bytes);
        pair->moved = pair->bytes;
        return WEFT_OK;
    }
    size_t bytes = next_bytes(group, pair);
    if (bytes > 0) {
        wefti_copy(to + pair->moved, buffer_of(group, mailbox, piece), bytes);
    }
    pair->moved += bytes;
    return WEFT_OK;
}

/* The sender could not send, and says why in text. With a call that stays with it, whose other pairs
 * go on. */
static weft_status_t take_refusal(wefti_call_t *call, const weft_group_t *group, wefti_pair_t *pair,
                                  const wefti_pair_t *message, const uint8_t *text)
{
    char whole[WEFTI_REFUSAL_BYTES];
    size_t bytes = message->count < sizeof whole - 20 ? (size_t)message->count : sizeof whole - 20;
    snprintf(whole, sizeof whole, "rank %u: %.*s", group->ranks[pair->peer], (int)bytes,
             (const char *)text);
    pair->refused = message->refused;
    pair->bytes = 0;
    if (call == NULL) {
        return wefti_error_adopt((weft_status_t)message->refused, whole);
    }
    return wefti_call_keep_refusal(call, whole, sizeof whole) ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* The first piece of a message: who takes it, pair or a new message aside, which NULL stands for. */
static weft_status_t take_first(wefti_call_t *call, weft_group_t *group, wefti_pair_t **pair,
                                uint32_t peer, wefti_mailbox_t *mailbox, uint32_t piece)
{
    wefti_pair_t message = message_at(group, mailbox, peer, piece);
    if (*pair == NULL || !is_for(&message, (*pair)->tag)) {
        return wefti_aside_begin(group, &message, pair);
    }
    if (message.refused != 0) {
        return take_refusal(call, group, *pair, &message, buffer_of(group, mailbox, piece));
    }
    (*pair)->direct = message.direct;
    return check_message(group, *pair, &message);
}

/* Takes the next piece from peer, which is there. It belongs to the message that is being set
 * aside, to pair, or to a message that is set aside from here on. */
static weft_status_t take_next(wefti_call_t *call, weft_group_t *group, wefti_pair_t *pair,
                               uint32_t peer)
{
    wefti_mailbox_t *mailbox = wefti_mailbox_of(group, peer, group->rank);
    uint32_t piece = group->calls->received[peer] + 1;
    wefti_pair_t *to = wefti_aside_unfinished(group, peer);
    weft_status_t status = WEFT_OK;
    if (to == NULL) {
        to = pair;
        if (pair == NULL || pair->state == PAIR_FIRST) {
            status = take_first(call, group, &to, peer, mailbox, piece);
        }
    }
    if (status == WEFT_OK) {
        status = take_piece(group, to, mailbox, piece);
    }
    if (status < 0) {
        return wefti_group_fail(group, status);
    }
    group->calls->received[peer] = piece;
    if (wefti_group_puts(group, peer)) {
        status = wefti_mirror_consumed(group, peer, piece);
    } else {
        wefti_signal_post(&wefti_mailbox_of(group, group->rank, peer)->consumed.signal, piece);
    }
    to->state = to->moved == to->bytes ? PAIR_DONE : PAIR_MOVING;
    if (to != pair && to->state == PAIR_DONE) {
        wefti_aside_finish(group, peer);
    }
    return status;
}

/* From those that were set aside, if it is there. call: NULL, or the pair's. */
static weft_status_t take_aside(wefti_call_t *call, weft_group_t *group, wefti_pair_t *pair)
{
    wefti_aside_t *aside = wefti_aside_take(group, pair->peer, pair->tag);
    if (aside == NULL) {
        return WEFT_OK;
    }
    bool refused = aside->message.refused != 0;
    weft_status_t status = refused ? take_refusal(call, group, pair, &aside->message, aside->data)
                                   : check_message(group, pair, &aside->message);
    if (status == WEFT_OK && pair->bytes > 0) {
        memcpy((uint8_t *)(uintptr_t)pair->data, aside->data, (size_t)pair->bytes);
    }
    pair->state = PAIR_DONE;
    wefti_aside_free(group, aside);
    return status < 0 && (call != NULL || !refused) ? wefti_group_fail(group, status) : status;
}

static weft_status_t advance_recv(wefti_call_t *call, wefti_pair_t *pair, wefti_blocked_t *blocked)
{
    weft_group_t *group = call->group;
    wefti_signal_t *posted = &wefti_mailbox_of(group, pair->peer, group->rank)->posted.signal;
    while (pair->state != PAIR_DONE) {
        if (pair->state == PAIR_FIRST && wefti_aside_any(group)) {
            WEFT_RETURN_IF_ERROR(take_aside(call, group, pair));
            if (pair->state == PAIR_DONE) {
                break;
            }
        }
        uint32_t piece = group->calls->received[pair->peer] + 1;
        if (!wefti_signal_comes_soon(group->endpoint, posted, piece)) {
            blocked->signal = posted;
            blocked->target = piece;
            return WEFT_IN_PROGRESS;
        }
        WEFT_RETURN_IF_ERROR(take_next(call, group, pair, pair->peer));
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

/* Whether refusals of the group are left. */
static bool retry(weft_group_t *group, uint32_t kind, uint32_t peer, wefti_refusal_state_t state)
{
    return wefti_endpoint_retry_refusal(group->endpoint, kind, group->channel, peer, state);
}

static bool retry_pair(weft_group_t *group, const wefti_pair_t *pair, wefti_refusal_state_t state)
{
    return retry(group, pair->sends ? WEFTI_WAIT_RECV : WEFTI_WAIT_SEND, group->ranks[pair->peer],
                 state);
}

static void set_refused(weft_group_t *group, bool left)
{
    if (!left) {
        atomic_store_explicit(&group->calls->refused, false, memory_order_relaxed);
    }
}

/* All ranks come to a collective; else the call is like those refused with this peer. */
void wefti_call_retries(const wefti_call_t *call, bool ended)
{
    weft_group_t *group = call->group;
    wefti_refusal_state_t state = ended ? WEFTI_REFUSAL_NONE : WEFTI_REFUSAL_RETRIED;
    bool left = true;
    if (call->pairs.count == 0 && ended && !call->refuses) {
        left = retry(group, WEFTI_WAIT_CALL, UINT32_MAX, state);
    }
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        const wefti_pair_t *pair = &call->pairs.list[i];
        if (pair->refused == 0) {
            left = retry_pair(group, pair, state);
        }
    }
    set_refused(group, left);
}

void wefti_pairs_fill(wefti_call_t *call, wefti_pair_t *pairs, uint32_t count)
{
    call->request.op = WEFT_COLLECTIVE_SEND_RECV;
    call->request.dtype = (weft_dtype_t)pairs[0].dtype;
    call->what = (uint64_t)WEFT_COLLECTIVE_SEND_RECV | (uint64_t)pairs[0].dtype << 8;
    call->posted_count = pairs[0].count;
    call->pairs.list = pairs;
    call->pairs.count = count;
}

/* ---- what has come ---- */

/* A receive with tag from peer is in flight: messages with it are for that one. */
static bool is_awaited(const weft_group_t *group, uint32_t peer, uint32_t tag)
{
    const wefti_calls_t *calls = group->calls;
    uint32_t issued = atomic_load_explicit(&calls->issued, memory_order_relaxed);
    uint32_t done = atomic_load_explicit(&calls->completed.signal.value, memory_order_acquire);
    for (uint32_t order = done + 1; order != issued + 1; order++) {
        const wefti_call_t *call = &calls->ring[order & (WEFTI_CALLS - 1)];
        for (uint32_t i = 0; i < call->pairs.count; i++) {
            const wefti_pair_t *pair = &call->pairs.list[i];
            if (!pair->sends && pair->peer == peer && pair->tag == tag) {
                return true;
            }
        }
    }
    return false;
}

bool wefti_pair_take_early(weft_group_t *group, wefti_pair_t *pair, weft_status_t *out_status)
{
    if (pair->sends || group->context->device != NULL || !wefti_aside_any(group) ||
        is_awaited(group, pair->peer, pair->tag)) {
        return false;
    }
    *out_status = wefti_group_check(group);
    if (*out_status == WEFT_OK) {
        *out_status = take_aside(NULL, group, pair);
    }
    /* relaxed: as in wefti_call_note_retry */
    if (pair->state == PAIR_DONE && *out_status == WEFT_OK &&
        atomic_load_explicit(&group->calls->refused, memory_order_relaxed)) {
        set_refused(group, retry_pair(group, pair, WEFTI_REFUSAL_NONE));
    }
    return *out_status < 0 || pair->state == PAIR_DONE;
}

static bool is_idle(const weft_group_t *group)
{
    const wefti_calls_t *calls = group->calls;
    return atomic_load_explicit(&calls->completed.signal.value, memory_order_acquire) ==
           atomic_load_explicit(&calls->issued, memory_order_relaxed);
}

/* The peer has left, and what it sent before has arrived. */
static bool is_gone(weft_group_t *group, uint32_t peer)
{
    if (!wefti_endpoint_has_left(group->endpoint, group->ranks[peer])) {
        return false;
    }
    uint64_t *gone_ns = &group->calls->gone_ns[peer];
    uint64_t now = wefti_now_ns();
    *gone_ns = *gone_ns != 0 ? *gone_ns : now;
    return !wefti_group_puts(group, peer) || now - *gone_ns >= WEFTI_ARRIVES_NS;
}

/* Looks at what is in the mailbox from peer; messages with other tags are set aside. */
static weft_status_t look(weft_group_t *group, uint32_t peer, uint32_t tag, wefti_pair_t *out)
{
    const wefti_mailbox_t *mailbox = wefti_mailbox_of(group, peer, group->rank);
    /* First: if so, nobody else takes pieces or sets messages aside while this looks. */
    bool idle = is_idle(group), gone = is_gone(group, peer);
    for (;;) {
        if (wefti_aside_any(group) && wefti_aside_find(group, peer, tag, is_awaited, out)) {
            return WEFT_OK;
        }
        if (!idle) {
            return WEFT_IN_PROGRESS;
        }
        uint32_t piece = group->calls->received[peer] + 1;
        if (!wefti_signal_has_reached(&mailbox->posted.signal, piece)) {
            return gone ? wefti_error(WEFT_ERR_PEER_DIED,
                                      "rank %u has left the world, and no message from it is left",
                                      group->ranks[peer])
                        : WEFT_IN_PROGRESS;
        }
        if (wefti_aside_unfinished(group, peer) == NULL) {
            *out = message_at(group, mailbox, peer, piece);
            if (is_for(out, tag)) {
                return WEFT_OK;
            }
        }
        WEFT_RETURN_IF_ERROR(take_next(NULL, group, NULL, peer));
    }
}

weft_status_t weft_probe(uint32_t peer, uint32_t tag, weft_group_t *group,
                         weft_message_t *out_message)
{
    WEFT_CHECK_ARG(group);
    WEFT_RETURN_IF_ERROR(wefti_report_check("out_message", out_message));
    if (peer != WEFT_ANY_RANK && (peer >= group->size || peer == group->rank)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "probe: invalid peer %u for rank %u of a group of %u ranks", peer,
                           group->rank, group->size);
    }
    WEFT_RETURN_IF_ERROR(wefti_group_check(group));
    if (!wefti_context_progress(group->context)) { /* which this rank's sends may need */
        wefti_endpoint_progress(group->endpoint);
    }
    uint32_t gone = 0;
    for (uint32_t k = 1; k < group->size; k++) {
        uint32_t from = peer != WEFT_ANY_RANK ? peer : wefti_group_nth_peer(group, k);
        wefti_pair_t message;
        weft_status_t status = look(group, from, tag, &message);
        if (status == WEFT_OK) {
            weft_message_t own = WEFT_MESSAGE_INIT;
            own.peer = from;
            own.tag = message.tag;
            own.dtype = message.refused != 0 ? WEFT_DTYPE_NONE : (weft_dtype_t)message.dtype;
            own.count = message.refused != 0 ? 0 : message.count;
            wefti_report_write(out_message, &own, sizeof own);
        }
        gone += status == WEFT_ERR_PEER_DIED;
        if (peer != WEFT_ANY_RANK || gone == group->size - 1 ||
            (status != WEFT_IN_PROGRESS && status != WEFT_ERR_PEER_DIED)) {
            return status;
        }
    }
    return WEFT_IN_PROGRESS;
}

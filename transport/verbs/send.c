/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and signals as work requests.
 *
 * A put is one RDMA write, or several (messages, memory regions and buffers have an end): small
 * ones inline, lent ones of registered memory from where they are, others through a chunk of the
 * pool. A signal is an RDMA write with immediate, which takes a receive on the other side and makes
 * it look. What is put is kept back until its signal comes (or the chain is long, or somebody makes
 * progress): the last put then carries the signal, and one doorbell rings for all.
 *
 * An immediate has 32 bits, a signal needs more. So both ends of a queue pair keep a table of
 * counters by number, in step because its messages come in order:
 *     0 number value     the counter of that number now ends in these 16 bits
 *     1 number slot      slot has the offset and value of the counter that gets the number
 *     2 count            credits: so many receives were posted again
 */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"

#define KIND_NEAR 0u
#define KIND_SLOT 1u
#define KIND_CREDIT 2u
#define KIND_SHIFT 30u
#define NUMBER_SHIFT 16u
#define NUMBER_MASK 0x3fffu
#define LOW_MASK 0xffffu
/* So much in a chain is worth a doorbell of its own. */
#define CHAIN_BYTES ((size_t)128 << 10)

/* ---- the chain ---- */

void wefti_verbs_todo(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    if (!pair->in_todo) {
        pair->in_todo = true;
        pair->next_todo = verbs->todo;
        verbs->todo = pair;
    }
}

static bool has_room(const wefti_verbs_t *verbs, const wefti_verbs_queue_pair_t *pair)
{
    return pair->posted - pair->done < verbs->send_depth;
}

static wefti_verbs_record_t *record_of(const wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                                       uint32_t number)
{
    return &pair->records[number & (verbs->send_depth - 1)]; /* a power of two */
}

/* Completions are asked for where something is to be given back, and often enough for the send
 * queue to be seen emptying. */
static void sign_last(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    bool holds = false;
    for (uint32_t i = 0; i < pair->chain_count; i++) {
        const wefti_verbs_record_t *record = record_of(verbs, pair, pair->posted - 1 - i);
        holds = holds || record->lent != NULL || record->chunk >= 0;
    }
    pair->unsignalled += pair->chain_count;
    if (holds || pair->unsignalled >= verbs->send_depth / 4) {
        wefti_verbs_peer_t *peer = &verbs->peers[pair->peer];
        pair->chain[pair->chain_count - 1].send_flags |= IBV_SEND_SIGNALED;
        record_of(verbs, pair, pair->posted - 1)->signalled = true;
        pair->unsignalled = 0;
        if (peer->signalled++ == 0) {
            peer->busy_since_ns = wefti_now_ns();
        }
    }
}

/* False: the link broke. */
static bool ring(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    struct ibv_send_wr *bad = NULL;
    uint32_t count = pair->chain_count;
    if (count == 0) {
        return true;
    }
    sign_last(verbs, pair);
    for (uint32_t i = 0; i < count; i++) {
        pair->chain[i].next = i + 1 < count ? &pair->chain[i + 1] : NULL;
    }
    pair->chain_count = 0;
    pair->chain_bytes = 0;
    pair->joinable = false;
    int error = ibv_post_send(pair->qp, pair->chain, &bad);
    if (error != 0) {
        char what[120];
        snprintf(what, sizeof what, "ibv_post_send failed: %s", strerror(error));
        wefti_verbs_break_pair(verbs, pair, what);
        return false;
    }
    return true;
}

/* The caller has looked for room. */
static struct ibv_send_wr *chain_add(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                                     enum ibv_wr_opcode opcode)
{
    struct ibv_send_wr *request = &pair->chain[pair->chain_count++];
    uint32_t number = pair->posted++;
    *request = (struct ibv_send_wr){
        .wr_id = (uint64_t)(number & 0x7fffffffu) << 32 | pair->number,
        .opcode = opcode,
    };
    *record_of(verbs, pair, number) = (wefti_verbs_record_t){.chunk = -1};
    pair->joinable = false;
    wefti_verbs_todo(verbs, pair);
    return request;
}

static void attach(wefti_verbs_queue_pair_t *pair, struct ibv_send_wr *request, const void *data,
                   size_t bytes, uint32_t lkey)
{
    struct ibv_sge *piece = &pair->pieces[request - pair->chain];
    *piece = (struct ibv_sge){(uintptr_t)data, (uint32_t)bytes, lkey};
    request->sg_list = piece;
    request->num_sge = 1;
    pair->chain_bytes += bytes;
}

static void attach_small(wefti_verbs_queue_pair_t *pair, struct ibv_send_wr *request,
                         const void *data, size_t bytes)
{
    uint8_t *copy = pair->small[request - pair->chain];
    memcpy(copy, data, bytes);
    attach(pair, request, copy, bytes, 0);
    request->send_flags |= IBV_SEND_INLINE;
}

void wefti_verbs_retire(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t end)
{
    wefti_verbs_peer_t *peer = &verbs->peers[pair->peer];
    for (; pair->done != end; pair->done++) {
        wefti_verbs_record_t *record = record_of(verbs, pair, pair->done);
        if (record->lent != NULL) {
            wefti_source_release(record->lent, 1);
        }
        if (record->chunk >= 0) {
            verbs->free_chunks[verbs->free_count++] = (uint16_t)record->chunk;
        }
        if (record->signalled && peer->signalled > 0 && --peer->signalled == 0) {
            peer->stats.busy_ns += wefti_now_ns() - peer->busy_since_ns;
        }
        *record = (wefti_verbs_record_t){.chunk = -1};
    }
}

/* ---- puts ---- */

typedef struct span {
    size_t offset, bytes;
    const uint8_t *data;
    wefti_signal_t *lent;
} span_t;

/* Where lent data is registered: its key, and how much of bytes it covers. */
static bool registered(const wefti_verbs_t *verbs, const uint8_t *data, size_t *bytes,
                       uint32_t *lkey)
{
    uintptr_t at = (uintptr_t)data - (uintptr_t)verbs->base;
    const wefti_verbs_piece_t *piece =
        verbs->base != NULL && data >= verbs->base ? wefti_verbs_piece_at(verbs, at) : NULL;
    if (piece == NULL) {
        return false;
    }
    *bytes = *bytes < piece->to - at ? *bytes : piece->to - at;
    *lkey = piece->mr->lkey;
    return true;
}

/* One work request from the front of span: how many bytes, 0 when there is no buffer. */
static size_t put_part(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                       const wefti_verbs_piece_t *there, const span_t *span)
{
    size_t bytes = span->bytes < there->to - span->offset ? span->bytes : there->to - span->offset;
    bytes = bytes < verbs->message_bytes ? bytes : verbs->message_bytes;
    uint32_t lkey = 0;
    bool is_small = bytes <= verbs->inline_bytes;
    bool in_place = !is_small && span->lent != NULL && registered(verbs, span->data, &bytes, &lkey);
    if (!is_small && !in_place && verbs->free_count == 0) {
        return 0;
    }
    struct ibv_send_wr *request = chain_add(verbs, pair, IBV_WR_RDMA_WRITE);
    wefti_verbs_record_t *record = record_of(verbs, pair, pair->posted - 1);
    if (is_small) {
        attach_small(pair, request, span->data, bytes);
    } else if (in_place) {
        wefti_source_acquire(span->lent, 1);
        record->lent = span->lent;
        attach(pair, request, span->data, bytes, lkey);
    } else {
        record->chunk = verbs->free_chunks[--verbs->free_count];
        uint8_t *chunk = verbs->pool + (size_t)record->chunk * WEFTI_VERBS_CHUNK_BYTES;
        bytes = bytes < WEFTI_VERBS_CHUNK_BYTES ? bytes : WEFTI_VERBS_CHUNK_BYTES;
        memcpy(chunk, span->data, bytes);
        attach(pair, request, chunk, bytes, verbs->pool_mr->lkey);
    }
    request->wr.rdma.remote_addr = verbs->peers[pair->peer].base + span->offset;
    request->wr.rdma.rkey = there->rkeys[pair->peer];
    pair->joinable = true;
    return bytes;
}

/* As much as there is room for; moves span on. False: the link broke. */
static bool put_some(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, span_t *span)
{
    while (span->bytes > 0 && has_room(verbs, pair)) {
        const wefti_verbs_piece_t *there = wefti_verbs_piece_at(verbs, span->offset);
        if (there == NULL) {
            char what[120];
            snprintf(what, sizeof what, "put to offset %zu: the memory is not registered",
                     span->offset);
            wefti_verbs_break_pair(verbs, pair, what);
            return false;
        }
        size_t bytes = put_part(verbs, pair, there, span);
        if (bytes == 0) {
            break;
        }
        span->offset += bytes;
        span->data += bytes;
        span->bytes -= bytes;
        if ((pair->chain_count == WEFTI_VERBS_CHAIN || pair->chain_bytes >= CHAIN_BYTES) &&
            !ring(verbs, pair)) {
            return false;
        }
    }
    return true;
}

/* ---- signals ---- */

static uint32_t number_of(size_t offset)
{
    uint64_t hash = (uint64_t)(offset / 8) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(hash >> 32) % WEFTI_VERBS_COUNTERS;
}

static void announce(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t number,
                     size_t offset, uint32_t value)
{
    wefti_verbs_slot_t slot = {.offset = offset, .value = value};
    struct ibv_send_wr *request = chain_add(verbs, pair, IBV_WR_RDMA_WRITE_WITH_IMM);
    uint32_t place = pair->next_slot++ % pair->mailbox_slots;
    attach_small(pair, request, &slot, sizeof slot);
    request->wr.rdma.remote_addr = pair->mailbox + (uint64_t)place * sizeof slot;
    request->wr.rdma.rkey = pair->mailbox_rkey;
    request->imm_data = htonl(KIND_SLOT << KIND_SHIFT | number << NUMBER_SHIFT | place);
}

/* False: no room. */
static bool signal_some(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, size_t offset,
                        uint32_t value)
{
    uint32_t number = number_of(offset);
    wefti_verbs_counter_t *counter = &pair->told[number];
    int32_t step = (int32_t)(value - counter->value);
    bool near = counter->known && counter->offset == offset && step > -0x8000 && step < 0x8000;
    bool joins = near && pair->joinable && pair->chain_count > 0;
    if (pair->credits == 0 || (!joins && !has_room(verbs, pair))) {
        return false;
    }
    pair->credits--;
    if (near) {
        struct ibv_send_wr *request = joins ? &pair->chain[pair->chain_count - 1]
                                            : chain_add(verbs, pair, IBV_WR_RDMA_WRITE_WITH_IMM);
        request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        request->imm_data =
            htonl(KIND_NEAR << KIND_SHIFT | number << NUMBER_SHIFT | (value & LOW_MASK));
        pair->joinable = false;
    } else {
        announce(verbs, pair, number, offset, value);
    }
    *counter = (wefti_verbs_counter_t){offset, value, true};
    verbs->peers[pair->peer].stats.messages_sent++;
    return true;
}

static bool raise_own(wefti_verbs_t *verbs, const wefti_verbs_counter_t *counter)
{
    if (!counter->known || counter->offset % 8 != 0 ||
        wefti_verbs_piece_at(verbs, counter->offset) == NULL) {
        return false;
    }
    wefti_link_raise((wefti_signal_t *)(void *)(verbs->base + counter->offset), counter->value);
    return true;
}

bool wefti_verbs_receive(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t immediate,
                         bool *out_credited)
{
    uint32_t kind = immediate >> KIND_SHIFT, low = immediate & LOW_MASK;
    uint32_t number = immediate >> NUMBER_SHIFT & NUMBER_MASK;
    *out_credited = kind == KIND_CREDIT;
    if (kind == KIND_CREDIT) {
        pair->credits += low;
        if (pair->first != NULL) {
            wefti_verbs_todo(verbs, pair);
        }
        return pair->credits <= pair->mailbox_slots;
    }
    if (number >= WEFTI_VERBS_COUNTERS) {
        return false;
    }
    wefti_verbs_counter_t *counter = &pair->heard[number];
    if (kind == KIND_SLOT && low < verbs->recv_depth) {
        *counter = (wefti_verbs_counter_t){pair->slots[low].offset, pair->slots[low].value, true};
    } else if (kind == KIND_NEAR) {
        counter->value += (uint32_t)(int32_t)(int16_t)(uint16_t)(low - counter->value);
    } else {
        return false;
    }
    verbs->peers[pair->peer].stats.messages_received++;
    return raise_own(verbs, counter);
}

/* ---- what waits ---- */

/* False: the link broke. Stops where there is no room. */
static bool run_queue(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    while (pair->first != NULL) {
        wefti_verbs_op_t *op = pair->first;
        if (op->is_signal) {
            if (!signal_some(verbs, pair, op->offset, op->value)) {
                return true;
            }
        } else {
            span_t span = {op->offset, op->bytes, op->data, op->lent};
            if (!put_some(verbs, pair, &span)) {
                return false; /* op is gone */
            }
            op->offset = span.offset;
            op->data = span.data;
            op->bytes = span.bytes;
            if (span.bytes > 0) {
                return true;
            }
        }
        pair->first = op->next;
        pair->last = pair->first == NULL ? NULL : pair->last;
        if (op->lent != NULL) {
            wefti_source_release(op->lent, 1);
        }
        wefti_free(verbs->params.allocator, op);
        if (pair->chain_count == WEFTI_VERBS_CHAIN && !ring(verbs, pair)) {
            return false;
        }
    }
    return true;
}

static void give_credits(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    if (pair->owed >= verbs->recv_depth / 2 && has_room(verbs, pair)) {
        struct ibv_send_wr *request = chain_add(verbs, pair, IBV_WR_RDMA_WRITE_WITH_IMM);
        request->imm_data = htonl(KIND_CREDIT << KIND_SHIFT | pair->owed);
        pair->owed = 0;
    }
}

bool wefti_verbs_post_waiting(wefti_verbs_t *verbs)
{
    wefti_verbs_queue_pair_t *pair = verbs->todo;
    bool moved = false;
    verbs->todo = NULL;
    while (pair != NULL) {
        wefti_verbs_queue_pair_t *next = pair->next_todo;
        pair->in_todo = false;
        if (pair->qp != NULL) {
            uint32_t before = pair->posted - pair->chain_count;
            if (ring(verbs, pair) && run_queue(verbs, pair)) {
                give_credits(verbs, pair);
                (void)ring(verbs, pair);
            }
            moved = moved || pair->posted != before;
            if (pair->qp != NULL && (pair->first != NULL || pair->owed >= verbs->recv_depth / 2)) {
                wefti_verbs_todo(verbs, pair);
            }
        }
        pair = next;
    }
    return moved;
}

bool wefti_verbs_settle(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    if (pair->qp == NULL || (pair->posted == pair->done && pair->first == NULL)) {
        return true;
    }
    if (!ring(verbs, pair)) {
        return true;
    }
    if (pair->posted != pair->done && pair->unsignalled > 0 && has_room(verbs, pair)) {
        /* An empty write: it is done when all before it is. */
        (void)chain_add(verbs, pair, IBV_WR_RDMA_WRITE);
        pair->unsignalled = verbs->send_depth;
        (void)ring(verbs, pair);
    }
    return pair->qp == NULL;
}

/* ---- the driver's put and signal ---- */

/* The rest of a put that found no room, or a signal behind it. NULL: no memory. */
static bool queue_up(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, const span_t *span,
                     bool is_signal, uint32_t value)
{
    size_t copy = is_signal || span->lent != NULL ? 0 : span->bytes;
    wefti_verbs_op_t *op = wefti_alloc(verbs->params.allocator, sizeof *op + copy);
    if (op == NULL) {
        return false;
    }
    op->offset = span->offset;
    op->bytes = span->bytes;
    op->data = span->data;
    op->lent = span->lent;
    op->is_signal = is_signal;
    op->value = value;
    if (copy > 0) {
        memcpy(op->copy, span->data, copy);
        op->data = op->copy;
    }
    if (op->lent != NULL) {
        wefti_source_acquire(op->lent, 1);
    }
    *(pair->last != NULL ? &pair->last->next : &pair->first) = op;
    pair->last = op;
    wefti_verbs_todo(verbs, pair);
    return true;
}

static weft_status_t broken(const wefti_verbs_t *verbs, uint32_t peer)
{
    return wefti_error(WEFT_ERR_LINK, "%s", verbs->peers[peer].text);
}

weft_status_t wefti_verbs_put(void *driver, uint32_t peer, size_t offset, const void *data,
                              size_t bytes, uint32_t lane, wefti_signal_t *lent)
{
    wefti_verbs_t *verbs = driver;
    weft_status_t status = WEFT_OK;
    span_t span = {offset, bytes, data, lent};
    pthread_mutex_lock(&verbs->lock);
    if (!verbs->peers[peer].served || verbs->peers[peer].broken) {
        status = broken(verbs, peer);
        wefti_verbs_unlock(verbs);
        return status;
    }
    wefti_verbs_queue_pair_t *pair =
        verbs->queue_pairs[peer * verbs->per_peer + lane % verbs->per_peer];
    if (pair->first == NULL && !put_some(verbs, pair, &span)) {
        status = broken(verbs, peer);
    } else if (span.bytes > 0 && !queue_up(verbs, pair, &span, false, 0)) {
        status = WEFT_ERR_NO_MEMORY;
    }
    if (status == WEFT_OK) {
        verbs->peers[peer].stats.bytes_sent += bytes;
        verbs->peers[peer].stats.messages_sent++;
    }
    wefti_verbs_unlock(verbs);
    return status;
}

weft_status_t wefti_verbs_signal(void *driver, uint32_t peer, size_t offset, uint32_t value,
                                 uint32_t lane)
{
    wefti_verbs_t *verbs = driver;
    weft_status_t status = WEFT_OK;
    span_t span = {.offset = offset};
    pthread_mutex_lock(&verbs->lock);
    if (!verbs->peers[peer].served || verbs->peers[peer].broken) {
        status = broken(verbs, peer);
        wefti_verbs_unlock(verbs);
        return status;
    }
    wefti_verbs_queue_pair_t *pair =
        verbs->queue_pairs[peer * verbs->per_peer + lane % verbs->per_peer];
    if ((pair->first != NULL || !signal_some(verbs, pair, offset, value)) &&
        !queue_up(verbs, pair, &span, true, value)) {
        status = WEFT_ERR_NO_MEMORY;
    }
    if (status == WEFT_OK && !ring(verbs, pair)) {
        status = broken(verbs, peer);
    }
    wefti_verbs_unlock(verbs);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and signals as work requests.
 *
 * A put is one RDMA write, or several (messages, memory regions and buffers have an end): small
 * data is sent inline, registered zero-copy data from where it lies, other data through a chunk of
 * the pool. A signal is an RDMA write with immediate, which consumes a receive of the peer. Puts
 * are held back until their signal, a long chain, or progress: the last put then carries the
 * signal, and one doorbell posts all of them.
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
/* Bytes in a chain that are posted without waiting for the signal. */
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

/* Completions are requested where a source or chunk must be released, and often enough to notice
 * room in the send queue. */
static void request_completion(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    bool holds = false;
    for (uint32_t i = 0; i < pair->chain_count; i++) {
        const wefti_verbs_record_t *record = record_of(verbs, pair, pair->posted - 1 - i);
        holds = holds || record->in_use != NULL || record->chunk >= 0;
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
    request_completion(verbs, pair);
    for (uint32_t i = 0; i < count; i++) {
        pair->chain[i].next = i + 1 < count ? &pair->chain[i + 1] : NULL;
    }
    pair->chain_count = 0;
    pair->chain_bytes = 0;
    pair->joinable = false;
    int error = ibv_post_send(pair->qp, pair->chain, &bad);
    if (error != 0) {
        wefti_verbs_break_pair(verbs, pair, "ibv_post_send failed: %s", strerror(error));
        return false;
    }
    return true;
}

/* The caller has checked that there is room. */
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
        if (record->in_use != NULL) {
            wefti_source_release(record->in_use, 1);
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

/* The key of the registered memory that holds data, and how many of the bytes it covers. */
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

/* One work request from the front of span. Returns its bytes, 0 when no chunk is free. */
static size_t put_part(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                       const wefti_verbs_piece_t *there, const wefti_verbs_span_t *span)
{
    size_t bytes = span->bytes < there->to - span->offset ? span->bytes : there->to - span->offset;
    bytes = bytes < verbs->port_attr.max_msg_sz ? bytes : verbs->port_attr.max_msg_sz;
    uint32_t lkey = 0;
    bool is_small = bytes <= verbs->inline_bytes;
    bool in_place =
        !is_small && span->in_use != NULL && registered(verbs, span->data, &bytes, &lkey);
    if (!is_small && !in_place && verbs->free_count == 0) {
        return 0;
    }
    struct ibv_send_wr *request = chain_add(verbs, pair, IBV_WR_RDMA_WRITE);
    wefti_verbs_record_t *record = record_of(verbs, pair, pair->posted - 1);
    if (is_small) {
        attach_small(pair, request, span->data, bytes);
    } else if (in_place) {
        wefti_source_acquire(span->in_use, 1);
        record->in_use = span->in_use;
        attach(pair, request, span->data, bytes, lkey);
    } else {
        record->chunk = verbs->free_chunks[--verbs->free_count];
        uint8_t *chunk = verbs->pool.data + (size_t)record->chunk * WEFTI_VERBS_CHUNK_BYTES;
        bytes = bytes < WEFTI_VERBS_CHUNK_BYTES ? bytes : WEFTI_VERBS_CHUNK_BYTES;
        memcpy(chunk, span->data, bytes);
        attach(pair, request, chunk, bytes, verbs->pool.mr->lkey);
    }
    request->wr.rdma.remote_addr = verbs->peers[pair->peer].base + span->offset;
    request->wr.rdma.rkey = there->rkeys[pair->peer];
    pair->joinable = true;
    return bytes;
}

/* As much as there is room for; span becomes the rest. False: the link broke. */
static bool put_some(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, wefti_verbs_span_t *span)
{
    while (span->bytes > 0 && has_room(verbs, pair)) {
        const wefti_verbs_piece_t *there = wefti_verbs_piece_at(verbs, span->offset);
        if (there == NULL) {
            wefti_verbs_break_pair(verbs, pair, "put to offset %zu: the memory is not registered",
                                   span->offset);
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
    wefti_verbs_counter_t *counter = &pair->sent_counters[number];
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

bool wefti_verbs_receive(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t immediate)
{
    uint32_t kind = immediate >> KIND_SHIFT, low = immediate & LOW_MASK;
    uint32_t number = immediate >> NUMBER_SHIFT & NUMBER_MASK;
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
    wefti_verbs_counter_t *counter = &pair->received_counters[number];
    if (kind == KIND_SLOT && low < verbs->recv_depth) {
        *counter = (wefti_verbs_counter_t){pair->slots[low].offset, pair->slots[low].value, true};
    } else if (kind == KIND_NEAR) {
        counter->value += (uint32_t)(int32_t)(int16_t)(uint16_t)(low - counter->value);
    } else {
        return false;
    }
    pair->owed++;
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
            if (!signal_some(verbs, pair, op->span.offset, op->value)) {
                return true;
            }
        } else if (!put_some(verbs, pair, &op->span)) {
            return false; /* op is freed */
        } else if (op->span.bytes > 0) {
            return true;
        }
        pair->first = op->next;
        pair->last = pair->first == NULL ? NULL : pair->last;
        if (op->span.in_use != NULL) {
            wefti_source_release(op->span.in_use, 1);
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
            if (wefti_verbs_post_receives(pair) < 0) {
                wefti_verbs_break_pair(verbs, pair, "%s", weft_last_error());
            } else if (ring(verbs, pair) && run_queue(verbs, pair)) {
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

bool wefti_verbs_pair_flushed(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    if (pair->qp == NULL || (pair->posted == pair->done && pair->first == NULL)) {
        return true;
    }
    if (!ring(verbs, pair)) {
        return true;
    }
    if (pair->posted != pair->done && pair->unsignalled > 0 && has_room(verbs, pair)) {
        /* An empty write: it completes after all earlier requests. */
        (void)chain_add(verbs, pair, IBV_WR_RDMA_WRITE);
        pair->unsignalled = verbs->send_depth;
        (void)ring(verbs, pair);
    }
    return pair->qp == NULL;
}

/* ---- the driver's put and signal ---- */

/* Appends the rest of a put that found no room, or a signal after it. False: no memory. */
static bool queue_up(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                     const wefti_verbs_span_t *span, bool is_signal, uint32_t value)
{
    size_t copy = span->in_use != NULL ? 0 : span->bytes;
    wefti_verbs_op_t *op = wefti_alloc(verbs->params.allocator, sizeof *op + copy);
    if (op == NULL) {
        return false;
    }
    op->span = *span;
    op->is_signal = is_signal;
    op->value = value;
    if (copy > 0) {
        memcpy(op->copy, span->data, copy);
        op->span.data = op->copy;
    }
    if (span->in_use != NULL) {
        wefti_source_acquire(span->in_use, 1);
    }
    *(pair->last != NULL ? &pair->last->next : &pair->first) = op;
    pair->last = op;
    wefti_verbs_todo(verbs, pair);
    return true;
}

/* NULL: the link is broken. */
static wefti_verbs_queue_pair_t *pair_of(const wefti_verbs_t *verbs, uint32_t peer, uint32_t lane)
{
    return verbs->peers[peer].served && !verbs->peers[peer].broken
               ? verbs->queue_pairs[peer * verbs->per_peer + lane % verbs->per_peer]
               : NULL;
}

/* Unlocks. queued: everything without room for a request is in the list. */
static weft_status_t finish(wefti_verbs_t *verbs, uint32_t peer, bool queued)
{
    weft_status_t status = queued ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (pair_of(verbs, peer, 0) == NULL) {
        status = wefti_error(WEFT_ERR_LINK, "%s", verbs->peers[peer].text);
    }
    wefti_verbs_unlock(verbs);
    return status;
}

weft_status_t wefti_verbs_put(void *driver, uint32_t peer, size_t offset, const void *data,
                              size_t bytes, uint32_t lane, wefti_signal_t *in_use)
{
    wefti_verbs_t *verbs = driver;
    wefti_verbs_span_t span = {offset, bytes, data, in_use};
    bool queued = true;
    pthread_mutex_lock(&verbs->lock);
    wefti_verbs_queue_pair_t *pair = pair_of(verbs, peer, lane);
    if (pair != NULL) {
        verbs->peers[peer].stats.bytes_sent += bytes;
        verbs->peers[peer].stats.messages_sent++;
        if ((pair->first != NULL || put_some(verbs, pair, &span)) && span.bytes > 0) {
            queued = queue_up(verbs, pair, &span, false, 0);
        }
    }
    return finish(verbs, peer, queued);
}

weft_status_t wefti_verbs_signal(void *driver, uint32_t peer, size_t offset, uint32_t value,
                                 uint32_t lane)
{
    wefti_verbs_t *verbs = driver;
    const wefti_verbs_span_t span = {.offset = offset};
    bool queued = true;
    pthread_mutex_lock(&verbs->lock);
    wefti_verbs_queue_pair_t *pair = pair_of(verbs, peer, lane);
    if (pair != NULL) {
        if (pair->first != NULL || !signal_some(verbs, pair, offset, value)) {
            queued = queue_up(verbs, pair, &span, true, value);
        }
        (void)ring(verbs, pair);
    }
    return finish(verbs, peer, queued);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: their depths, creating, connecting and destroying them. */
#include "runtime/base/hash.h"
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

#define HOP_LIMIT 64u
/* 0.64 ms until a message without a receive is sent again; credits make that rare. */
#define RECEIVER_NOT_READY_TIMER 12u
#define RECEIVER_NOT_READY_RETRY 7u /* no limit */

/* ---- sizes ---- */

/* Numbers that wrap around address queues. */
static uint32_t power_of_two(uint32_t most)
{
    uint32_t power = 1;
    while (power <= most / 2) {
        power *= 2;
    }
    return most == 0 ? 0 : power;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t served_count(const wefti_verbs_t *verbs)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < verbs->params.world_size; r++) {
        count += verbs->peers[r].served;
    }
    return count;
}

/* Every request may complete at once (they do when a link breaks), and a completion queue that
 * overflows is lost: so depths follow what it can hold. */
static weft_status_t choose_depths(wefti_verbs_t *verbs, uint32_t pairs, uint32_t *out_entries)
{
    const struct ibv_device_attr *limits = &verbs->limits;
    uint32_t most = (uint32_t)limits->max_cqe / (pairs == 0 ? 1 : pairs);
    uint32_t send = power_of_two(least(WEFTI_VERBS_SEND_DEPTH, (uint32_t)limits->max_qp_wr));
    uint32_t spare = (uint32_t)limits->max_qp_wr > WEFTI_VERBS_RECV_EXTRA
                         ? (uint32_t)limits->max_qp_wr - WEFTI_VERBS_RECV_EXTRA
                         : 0;
    uint32_t recv = power_of_two(least(WEFTI_VERBS_RECV_DEPTH, spare));
    while (send + recv + WEFTI_VERBS_RECV_EXTRA > most &&
           (recv > WEFTI_VERBS_DEPTH_MIN || send > WEFTI_VERBS_DEPTH_MIN)) {
        send = send / 2 < WEFTI_VERBS_DEPTH_MIN ? WEFTI_VERBS_DEPTH_MIN : send / 2;
        recv = recv / 2 < WEFTI_VERBS_DEPTH_MIN ? WEFTI_VERBS_DEPTH_MIN : recv / 2;
    }
    if (send + recv + WEFTI_VERBS_RECV_EXTRA > most || recv < WEFTI_VERBS_DEPTH_MIN ||
        send < WEFTI_VERBS_DEPTH_MIN || pairs > (uint32_t)limits->max_qp) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "device %s is too small: %d queue pairs, %d requests per queue pair, %d completions "
            "per queue, but %u queue pairs are required; lower WEFT_VERBS_QUEUE_PAIRS",
            verbs->own.device, limits->max_qp, limits->max_qp_wr, limits->max_cqe, pairs);
    }
    verbs->send_depth = send;
    verbs->recv_depth = recv;
    *out_entries = pairs == 0 ? 1 : pairs * (send + recv + WEFTI_VERBS_RECV_EXTRA);
    return WEFT_OK;
}

/* ---- making ---- */

static struct ibv_qp *make(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    for (uint32_t inline_bytes = WEFTI_VERBS_INLINE;; inline_bytes /= 2) {
        struct ibv_qp_init_attr attr = {
            .qp_context = pair,
            .send_cq = verbs->cq,
            .recv_cq = verbs->cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = verbs->send_depth,
                    .max_recv_wr = verbs->recv_depth + WEFTI_VERBS_RECV_EXTRA,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = inline_bytes},
        };
        errno = 0;
        struct ibv_qp *qp = ibv_create_qp(verbs->pd, &attr);
        if (qp != NULL) {
            verbs->inline_bytes = least(verbs->inline_bytes, attr.cap.max_inline_data);
        }
        /* a device with less room for inline data fails instead of reporting its limit */
        if (qp != NULL || inline_bytes < sizeof(wefti_verbs_slot_t) * 2) {
            return qp;
        }
    }
}

static weft_status_t to_init(const wefti_verbs_t *verbs, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = 0,
        .port_num = verbs->own.port,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };
    int error = ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return error == 0 ? WEFT_OK
                      : wefti_error_errno(WEFT_ERR_UNSUPPORTED, error,
                                          "%s port %u: ibv_modify_qp to INIT failed",
                                          verbs->own.device, verbs->own.port);
}

static weft_status_t create_one(wefti_verbs_t *verbs, uint32_t peer, uint32_t index)
{
    uint32_t number = peer * verbs->per_peer + index;
    wefti_verbs_queue_pair_t *pair = wefti_alloc(verbs->params.allocator, sizeof *pair);
    WEFT_RETURN_IF_NO_MEMORY(pair);
    verbs->queue_pairs[number] = pair;
    pair->peer = peer;
    pair->index = index;
    pair->number = number;
    pair->slots =
        (wefti_verbs_slot_t *)(void *)verbs->mailbox.data + (size_t)number * verbs->recv_depth;
    pair->qp = make(verbs, pair);
    if (pair->qp == NULL) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno,
                                 "ibv_create_qp failed on %s for rank %u", verbs->own.device, peer);
    }
    WEFT_RETURN_IF_ERROR(to_init(verbs, pair->qp));
    pair->receives_used = verbs->recv_depth + WEFTI_VERBS_RECV_EXTRA;
    return wefti_verbs_post_receives(pair);
}

weft_status_t wefti_verbs_queue_pairs_create(wefti_verbs_t *verbs)
{
    uint32_t world = verbs->params.world_size, entries = 0;
    WEFT_RETURN_IF_ERROR(choose_depths(verbs, served_count(verbs) * verbs->per_peer, &entries));
    verbs->queue_pairs = wefti_alloc(verbs->params.allocator,
                                     (size_t)world * verbs->per_peer * sizeof *verbs->queue_pairs);
    WEFT_RETURN_IF_NO_MEMORY(verbs->queue_pairs);
    errno = 0;
    verbs->cq = ibv_create_cq(verbs->context, (int)entries, NULL, verbs->channel, 0);
    if (verbs->cq == NULL) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno,
                                 "ibv_create_cq failed on %s for %u entries", verbs->own.device,
                                 entries);
    }
    WEFT_RETURN_IF_ERROR(wefti_verbs_mailbox_create(verbs));
    verbs->inline_bytes = WEFTI_VERBS_INLINE;
    for (uint32_t r = 0; r < world; r++) {
        for (uint32_t q = 0; verbs->peers[r].served && q < verbs->per_peer; q++) {
            WEFT_RETURN_IF_ERROR(create_one(verbs, r, q));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_verbs_post_receives(wefti_verbs_queue_pair_t *pair)
{
    /* Without buffers: only immediates arrive. The top bit distinguishes receives from sends. */
    struct ibv_recv_wr requests[WEFTI_VERBS_CHAIN], *bad;
    while (pair->receives_used > 0) {
        uint32_t batch = least(pair->receives_used, WEFTI_VERBS_CHAIN);
        for (uint32_t i = 0; i < batch; i++) {
            requests[i] = (struct ibv_recv_wr){
                .wr_id = 1ull << 63 | pair->number,
                .next = i + 1 < batch ? &requests[i + 1] : NULL,
            };
        }
        int error = ibv_post_recv(pair->qp, requests, &bad);
        if (error != 0) {
            return wefti_error_errno(WEFT_ERR_LINK, error, "ibv_post_recv failed");
        }
        pair->receives_used -= batch;
    }
    return WEFT_OK;
}

/* ---- connecting ---- */

/* Derived from the world's key: equal on both ends, unknown to other processes. */
static uint32_t first_packet(const wefti_verbs_t *verbs, uint32_t from, uint32_t to, uint32_t index)
{
    uint64_t ends = (uint64_t)from << 40 | (uint64_t)to << 8 | index;
    uint64_t hash =
        wefti_hash_bytes(WEFTI_HASH_START ^ ends, verbs->params.key, WEFTI_LINK_KEY_BYTES);
    hash ^= hash >> 29;
    return (uint32_t)(hash & 0xffffffu);
}

static enum ibv_mtu mtu_code(uint32_t bytes)
{
    uint32_t code = IBV_MTU_256; /* each of the next ones is twice as large */
    while (code < IBV_MTU_4096 && 256u << code <= bytes) {
        code++;
    }
    return (enum ibv_mtu)code;
}

static void fill_address(const wefti_verbs_t *verbs, const wefti_verbs_address_t *address,
                         wefti_verbs_gid_kind_t kind, struct ibv_ah_attr *out)
{
    const wefti_verbs_settings_t *settings = &verbs->params.settings->verbs;
    const wefti_verbs_address_t *own = &verbs->own;
    out->port_num = verbs->own.port;
    out->sl = (uint8_t)settings->service_level;
    out->dlid = address->lid;
    if (kind == WEFTI_VERBS_GID_KINDS) {
        return; /* InfiniBand without GIDs */
    }
    /* Within an InfiniBand subnet (equal prefixes) LIDs are enough. */
    out->is_global = !(kind == WEFTI_VERBS_GID_INFINIBAND && own->lid != 0 && address->lid != 0 &&
                       memcmp(own->gids[kind], address->gids[kind], 8) == 0);
    memcpy(out->grh.dgid.raw, address->gids[kind], sizeof out->grh.dgid.raw);
    out->grh.sgid_index = (uint8_t)verbs->gid_index[kind];
    out->grh.hop_limit = HOP_LIMIT;
    out->grh.traffic_class = (uint8_t)settings->traffic_class;
}

static int to_ready(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t number,
                    wefti_verbs_gid_kind_t kind)
{
    const wefti_verbs_settings_t *settings = &verbs->params.settings->verbs;
    const wefti_verbs_address_t *address = &verbs->addresses[pair->peer];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu_code(least(verbs->own.mtu, address->mtu)),
        .dest_qp_num = number,
        .rq_psn = first_packet(verbs, pair->peer, verbs->params.rank, pair->index),
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = RECEIVER_NOT_READY_TIMER,
    };
    fill_address(verbs, address, kind, &attr.ah_attr);
    int error = ibv_modify_qp(pair->qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error != 0) {
        return error;
    }
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)settings->timeout,
        .retry_cnt = (uint8_t)settings->retry,
        .rnr_retry = RECEIVER_NOT_READY_RETRY,
        .sq_psn = first_packet(verbs, verbs->params.rank, pair->peer, pair->index),
        .max_rd_atomic = 1,
    };
    return ibv_modify_qp(pair->qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

weft_status_t wefti_verbs_connect(wefti_verbs_t *verbs, uint32_t peer,
                                  const wefti_verbs_offer_t *offer, const uint32_t *numbers)
{
    const wefti_verbs_address_t *own = &verbs->own;
    const wefti_verbs_address_t *address = &verbs->addresses[peer];
    wefti_verbs_gid_kind_t kind = wefti_verbs_gid_common(own, address);
    if (kind == WEFTI_VERBS_GID_KINDS && (own->lid == 0 || address->lid == 0)) {
        wefti_verbs_break(verbs, peer, "the two devices have no kind of GID in common");
        return WEFT_OK;
    }
    if (offer->depth < WEFTI_VERBS_DEPTH_MIN || offer->depth > WEFTI_VERBS_RECV_DEPTH) {
        return wefti_error(WEFT_ERR_MISMATCH, "invalid endpoint address from rank %u: %u receives",
                           peer, offer->depth);
    }
    for (uint32_t q = 0; q < verbs->per_peer; q++) {
        wefti_verbs_queue_pair_t *pair = verbs->queue_pairs[peer * verbs->per_peer + q];
        int error = to_ready(verbs, pair, numbers[q], kind);
        if (error != 0) {
            wefti_verbs_break_pair(verbs, pair, "ibv_modify_qp failed: %s", strerror(error));
            return WEFT_OK; /* of one peer: the others are still served */
        }
        pair->credits = offer->depth;
        pair->mailbox_slots = offer->depth;
        pair->mailbox = offer->mailbox + (uint64_t)q * offer->depth * sizeof *pair->slots;
        pair->mailbox_rkey = offer->rkey;
    }
    return WEFT_OK;
}

/* ---- breaking ---- */

static void end_pair(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair)
{
    if (pair->qp != NULL) {
        /* From here on the device neither reads zero-copy sources nor writes here. */
        ibv_destroy_qp(pair->qp);
        pair->qp = NULL;
    }
    pair->chain_count = 0;
    wefti_verbs_retire(verbs, pair, pair->posted);
    while (pair->first != NULL) {
        wefti_verbs_op_t *op = pair->first;
        pair->first = op->next;
        if (op->span.in_use != NULL) {
            wefti_source_release(op->span.in_use, 1);
        }
        wefti_free(verbs->params.allocator, op);
    }
    pair->last = NULL;
    pair->owed = pair->receives_used = 0;
}

void wefti_verbs_break(wefti_verbs_t *verbs, uint32_t peer, const char *text)
{
    wefti_verbs_peer_t *it = &verbs->peers[peer];
    if (!it->served || it->broken) {
        return;
    }
    it->broken = true;
    for (uint32_t q = 0; verbs->queue_pairs != NULL && q < verbs->per_peer; q++) {
        wefti_verbs_queue_pair_t *pair = verbs->queue_pairs[peer * verbs->per_peer + q];
        if (pair != NULL) {
            end_pair(verbs, pair);
        }
    }
    it->signalled = 0;
    snprintf(it->text, sizeof it->text, "%s%s%s", it->path, text != NULL ? ", " : "",
             text != NULL ? text : "");
    if (text != NULL) {
        it->report = true;
        verbs->reports++;
    }
}

void wefti_verbs_break_pair(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                            const char *format, ...)
{
    char what[160], text[WEFTI_VERBS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "queue pair %u (0x%x): %s", pair->index,
             pair->qp != NULL ? pair->qp->qp_num : 0, what);
    wefti_verbs_break(verbs, pair->peer, text);
}

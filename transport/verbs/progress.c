/* SPDX-License-Identifier: Apache-2.0 */
/* Completions, events of the device, and arming them before a thread sleeps. */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "runtime/base/error.h"

#define BATCH 16
/* Per call: threads that put wait for the lock meanwhile. */
#define BATCHES_MAX 16u
/* Events of the device are rare, and reading them costs a system call. */
#define LOOKS_PER_EVENT 4096u

static void complete_receive(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                             const struct ibv_wc *wc)
{
    uint32_t immediate = ntohl(wc->imm_data);
    if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || !wefti_verbs_receive(verbs, pair, immediate)) {
        wefti_verbs_break_pair(
            verbs, pair, "protocol error: unexpected immediate 0x%08x from the peer", immediate);
        return;
    }
    verbs->peers[pair->peer].stats.bytes_received += wc->byte_len;
    pair->receives_used++;
    wefti_verbs_todo(verbs, pair);
}

static void complete(wefti_verbs_t *verbs, const struct ibv_wc *wc)
{
    wefti_verbs_queue_pair_t *pair = verbs->queue_pairs[(uint32_t)wc->wr_id];
    bool is_receive = wc->wr_id >> 63 != 0;
    if (pair->qp == NULL) {
        return; /* it broke before */
    }
    if (wc->status != IBV_WC_SUCCESS) {
        wefti_verbs_break_pair(verbs, pair, "%s: %s (completion status %d, vendor error %u)",
                               is_receive ? "receive" : "send", ibv_wc_status_str(wc->status),
                               (int)wc->status, wc->vendor_err);
    } else if (is_receive) {
        complete_receive(verbs, pair, wc);
    } else {
        uint32_t number = (uint32_t)(wc->wr_id >> 32);
        wefti_verbs_retire(verbs, pair, pair->done + ((number + 1 - pair->done) & 0x7fffffffu));
    }
}

static void break_all(wefti_verbs_t *verbs, const char *what)
{
    for (uint32_t r = 0; r < verbs->params.world_size; r++) {
        wefti_verbs_break(verbs, r, what);
    }
}

static bool poll_completions(wefti_verbs_t *verbs)
{
    struct ibv_wc completions[BATCH];
    bool moved = false;
    int count = BATCH;
    for (uint32_t batch = 0; batch < BATCHES_MAX && count == BATCH && verbs->cq != NULL; batch++) {
        count = ibv_poll_cq(verbs->cq, BATCH, completions);
        for (int i = 0; i < count; i++) {
            complete(verbs, &completions[i]);
        }
        moved = moved || count > 0;
    }
    if (count < 0) {
        break_all(verbs, "ibv_poll_cq failed");
    }
    return moved;
}

static bool look(wefti_verbs_t *verbs)
{
    bool moved = verbs->todo != NULL && wefti_verbs_post_waiting(verbs);
    if (poll_completions(verbs)) {
        moved = true;
        if (verbs->todo != NULL) {
            (void)wefti_verbs_post_waiting(verbs);
        }
    }
    return moved;
}

/* ---- events ---- */

static void take_event(wefti_verbs_t *verbs, enum ibv_event_type type)
{
    const char *text = ibv_event_type_str(type);
    if (type == IBV_EVENT_CQ_ERR || type == IBV_EVENT_DEVICE_FATAL) {
        char what[120];
        snprintf(what, sizeof what, "device %s: %s", verbs->own.device, text);
        break_all(verbs, what);
        return;
    }
    /* a port that went down may come back before requests time out */
    wefti_log(verbs->params.log,
              type == IBV_EVENT_PORT_ERR ? WEFT_LOG_LEVEL_WARN : WEFT_LOG_LEVEL_DEBUG,
              "verbs: device %s: %s", verbs->own.device, text);
}

static bool device_events(wefti_verbs_t *verbs)
{
    struct ibv_async_event event;
    bool any = false;
    while (ibv_get_async_event(verbs->context, &event) == 0) {
        enum ibv_event_type type = event.event_type;
        bool of_pair = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                       type == IBV_EVENT_QP_ACCESS_ERR;
        wefti_verbs_queue_pair_t *pair = of_pair ? event.element.qp->qp_context : NULL;
        ibv_ack_async_event(&event); /* first: destroying a queue pair waits for it */
        if (pair == NULL) {
            take_event(verbs, type);
        } else if (pair->qp != NULL) {
            wefti_verbs_break_pair(verbs, pair, "%s", ibv_event_type_str(type));
        }
        any = true;
    }
    return any;
}

weft_status_t wefti_verbs_events_open(wefti_verbs_t *verbs)
{
    struct epoll_event event = {.events = EPOLLIN};
    errno = 0;
    verbs->channel = ibv_create_comp_channel(verbs->context);
    if (verbs->channel == NULL) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno,
                                 "ibv_create_comp_channel failed on %s", verbs->own.device);
    }
    verbs->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int fds[2] = {verbs->channel->fd, verbs->context->async_fd};
    for (int i = 0; i < 2; i++) {
        int flags = fcntl(fds[i], F_GETFL);
        if (verbs->epoll_fd < 0 || flags < 0 || fcntl(fds[i], F_SETFL, flags | O_NONBLOCK) != 0 ||
            epoll_ctl(verbs->epoll_fd, EPOLL_CTL_ADD, fds[i], &event) != 0) {
            return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "cannot wait for events of %s",
                                     verbs->own.device);
        }
    }
    return WEFT_OK;
}

/* ---- the driver's part ---- */

void wefti_verbs_unlock(wefti_verbs_t *verbs)
{
    for (uint32_t r = 0; verbs->reports > 0 && r < verbs->params.world_size; r++) {
        wefti_verbs_peer_t *peer = &verbs->peers[r];
        if (peer->report) {
            peer->report = false;
            verbs->reports--;
            pthread_mutex_unlock(&verbs->lock);
            verbs->params.broken(verbs->params.owner, r, false, peer->text); /* does not change */
            pthread_mutex_lock(&verbs->lock);
        }
    }
    pthread_mutex_unlock(&verbs->lock);
}

bool wefti_verbs_progress(void *driver)
{
    wefti_verbs_t *verbs = driver;
    if (pthread_mutex_trylock(&verbs->lock) != 0) {
        return false;
    }
    bool moved = look(verbs);
    if (++verbs->looks % LOOKS_PER_EVENT == 0) {
        moved = device_events(verbs) || moved;
    }
    wefti_verbs_unlock(verbs);
    return moved;
}

bool wefti_verbs_arm(void *driver)
{
    wefti_verbs_t *verbs = driver;
    struct ibv_cq *cq;
    void *context;
    pthread_mutex_lock(&verbs->lock);
    /* Old events first: their completions are polled below. */
    while (verbs->cq != NULL && ibv_get_cq_event(verbs->channel, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        verbs->armed = false;
    }
    bool moved = device_events(verbs);
    if (verbs->cq != NULL && !verbs->armed) {
        if (ibv_req_notify_cq(verbs->cq, 0) != 0) {
            break_all(verbs, "ibv_req_notify_cq failed");
        }
        verbs->armed = true;
    }
    /* Earlier completions raise no event, so only an empty queue from here on allows sleeping. */
    moved = look(verbs) || moved;
    wefti_verbs_unlock(verbs);
    return !moved;
}

bool wefti_verbs_flushed(void *driver, uint32_t *out_peer)
{
    wefti_verbs_t *verbs = driver;
    bool done = true;
    pthread_mutex_lock(&verbs->lock);
    (void)look(verbs);
    for (uint32_t i = 0;
         verbs->queue_pairs != NULL && i < verbs->params.world_size * verbs->per_peer; i++) {
        if (verbs->queue_pairs[i] != NULL &&
            !wefti_verbs_pair_flushed(verbs, verbs->queue_pairs[i])) {
            *out_peer = i / verbs->per_peer;
            done = false;
        }
    }
    wefti_verbs_unlock(verbs);
    return done;
}

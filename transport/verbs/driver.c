/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs driver's table: opening, joining, what people are told, closing. */
#include "transport/verbs/verbs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

/* So many ranks may have two queue pairs per pair of ranks without being asked. */
#define SMALL_WORLD 64u

static uint32_t pairs_per_peer(const wefti_link_params_t *params)
{
    uint32_t wanted = params->settings->verbs.queue_pairs;
    return wanted != 0 ? wanted : params->world_size <= SMALL_WORLD ? 2 : 1;
}

static void verbs_close(void *driver, bool forked);

static weft_status_t verbs_open(const wefti_link_params_t *params, void **out_driver,
                                void *out_card)
{
    wefti_verbs_card_t card = {0};
    wefti_verbs_t *verbs = wefti_alloc(params->allocator, sizeof *verbs);
    *out_driver = NULL;
    if (verbs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    verbs->params = *params;
    verbs->epoll_fd = -1;
    verbs->per_peer = pairs_per_peer(params);
    pthread_mutex_init(&verbs->lock, NULL);
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    verbs->peers = wefti_alloc(params->allocator, params->world_size * sizeof *verbs->peers);
    verbs->cards = wefti_alloc(params->allocator, params->world_size * sizeof *verbs->cards);
    if (verbs->peers == NULL || verbs->cards == NULL) {
        goto fail;
    }
    WEFT_TRY(status, wefti_verbs_device_open(verbs, &card), fail);
    verbs->message_bytes = verbs->port_attr.max_msg_sz;
    verbs->pd = ibv_alloc_pd(verbs->context);
    if (verbs->pd == NULL) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "ibv_alloc_pd failed on %s", verbs->name);
        goto fail;
    }
    WEFT_TRY(status, wefti_verbs_events_open(verbs), fail);
    WEFT_TRY(status, wefti_verbs_pool_create(verbs), fail);
    memcpy(out_card, &card, sizeof card);
    *out_driver = verbs;
    return WEFT_OK;
fail:
    verbs_close(verbs, false);
    /* Nothing that another driver could not do instead. */
    return WEFT_ERR_UNSUPPORTED;
}

static weft_status_t verbs_join(void *driver, const uint8_t *cards, const bool *peers)
{
    wefti_verbs_t *verbs = driver;
    memcpy(verbs->cards, cards, verbs->params.world_size * sizeof *verbs->cards);
    for (uint32_t r = 0; r < verbs->params.world_size; r++) {
        wefti_verbs_card_t *card = &verbs->cards[r];
        if (!peers[r] || r == verbs->params.rank) {
            continue;
        }
        card->device[sizeof card->device - 1] = '\0';
        if (card->magic != WEFTI_VERBS_CARD_MAGIC || card->version != WEFTI_VERBS_CARD_VERSION) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "version mismatch: rank %u runs another version of Weft", r);
        }
        verbs->peers[r].served = true;
        wefti_verbs_describe_path(&verbs->cards[verbs->params.rank], card, verbs->peers[r].path,
                                  sizeof verbs->peers[r].path);
    }
    return wefti_verbs_queue_pairs_create(verbs);
}

static size_t verbs_offer_bytes(const wefti_link_params_t *params)
{
    /* A multiple of 8: offers lie side by side. */
    return sizeof(wefti_verbs_offer_t) +
           wefti_align_up(pairs_per_peer(params) * sizeof(uint32_t), 8);
}

static weft_status_t verbs_offer(void *driver, uint8_t *out_offers)
{
    wefti_verbs_t *verbs = driver;
    size_t each = verbs_offer_bytes(&verbs->params);
    for (uint32_t r = 0; r < verbs->params.world_size; r++) {
        if (!verbs->peers[r].served) {
            continue;
        }
        wefti_verbs_queue_pair_t **pairs = &verbs->queue_pairs[(size_t)r * verbs->per_peer];
        wefti_verbs_offer_t offer = {.mailbox = (uintptr_t)pairs[0]->slots,
                                     .rkey = verbs->mailbox_mr->rkey,
                                     .depth = verbs->recv_depth};
        uint8_t *at = out_offers + r * each;
        memcpy(at, &offer, sizeof offer);
        for (uint32_t q = 0; q < verbs->per_peer; q++) {
            memcpy(at + sizeof offer + q * sizeof(uint32_t), &pairs[q]->qp->qp_num,
                   sizeof(uint32_t));
        }
    }
    return WEFT_OK;
}

static weft_status_t verbs_offered(void *driver, const uint8_t *offers)
{
    wefti_verbs_t *verbs = driver;
    size_t each = verbs_offer_bytes(&verbs->params);
    weft_status_t status = WEFT_OK;
    pthread_mutex_lock(&verbs->lock);
    for (uint32_t r = 0; r < verbs->params.world_size && status == WEFT_OK; r++) {
        if (verbs->peers[r].served && !verbs->peers[r].broken) {
            wefti_verbs_offer_t offer;
            uint32_t numbers[WEFTI_VERBS_QUEUE_PAIRS_MAX];
            memcpy(&offer, offers + r * each, sizeof offer);
            memcpy(numbers, offers + r * each + sizeof offer, verbs->per_peer * sizeof numbers[0]);
            status = wefti_verbs_connect(verbs, r, &offer, numbers);
        }
    }
    pthread_mutex_unlock(&verbs->lock); /* the owner hears of breaks when it is ready: later */
    return status;
}

static int verbs_poll_fd(void *driver)
{
    return ((wefti_verbs_t *)driver)->epoll_fd;
}

static void verbs_drop(void *driver, uint32_t peer)
{
    wefti_verbs_t *verbs = driver;
    pthread_mutex_lock(&verbs->lock);
    wefti_verbs_break(verbs, peer, NULL);
    if (verbs->peers[peer].report) {
        verbs->peers[peer].report = false;
        verbs->reports--;
    }
    wefti_verbs_unlock(verbs);
}

static void verbs_describe(void *driver, uint32_t peer, char *text, size_t bytes)
{
    const wefti_verbs_t *verbs = driver;
    snprintf(text, bytes, "%s, %u queue pairs", verbs->peers[peer].path, verbs->per_peer);
}

static void verbs_stats(void *driver, uint32_t peer, wefti_link_stats_t *out)
{
    wefti_verbs_t *verbs = driver;
    pthread_mutex_lock(&verbs->lock);
    *out = verbs->peers[peer].stats;
    if (verbs->peers[peer].signalled > 0) {
        out->busy_ns += wefti_now_ns() - verbs->peers[peer].busy_since_ns;
    }
    pthread_mutex_unlock(&verbs->lock);
}

/* ---- closing ---- */

static void free_queue_pairs(wefti_verbs_t *verbs, bool forked)
{
    uint32_t count = verbs->params.world_size * verbs->per_peer;
    for (uint32_t r = 0; !forked && verbs->peers != NULL && r < verbs->params.world_size; r++) {
        wefti_verbs_break(verbs, r, NULL);
    }
    for (uint32_t i = 0; verbs->queue_pairs != NULL && i < count; i++) {
        wefti_verbs_queue_pair_t *pair = verbs->queue_pairs[i];
        while (pair != NULL && pair->first != NULL) { /* forked: copies of the parent's */
            wefti_verbs_op_t *op = pair->first;
            pair->first = op->next;
            wefti_free(verbs->params.allocator, op);
        }
        if (pair != NULL) {
            wefti_free(verbs->params.allocator, pair->records);
            wefti_free(verbs->params.allocator, pair);
        }
    }
    wefti_free(verbs->params.allocator, verbs->queue_pairs);
}

static void close_device(wefti_verbs_t *verbs)
{
    if (verbs->cq != NULL) {
        struct ibv_cq *cq;
        void *context;
        while (ibv_get_cq_event(verbs->channel, &cq, &context) == 0) {
            ibv_ack_cq_events(cq, 1); /* destroying waits for all of them */
        }
        ibv_destroy_cq(verbs->cq);
    }
    wefti_verbs_memory_free(verbs, false);
    if (verbs->channel != NULL) {
        ibv_destroy_comp_channel(verbs->channel);
    }
    if (verbs->pd != NULL) {
        ibv_dealloc_pd(verbs->pd);
    }
    if (verbs->context != NULL) {
        ibv_close_device(verbs->context);
    }
}

/* In a forked child libibverbs must not be asked for anything: its commands would reach the
 * parent's queue pairs. */
static void close_copies(wefti_verbs_t *verbs)
{
    wefti_verbs_memory_free(verbs, true);
    if (verbs->channel != NULL) {
        close(verbs->channel->fd);
    }
    if (verbs->context != NULL) {
        close(verbs->context->async_fd);
        close(verbs->context->cmd_fd);
    }
}

static void verbs_close(void *driver, bool forked)
{
    wefti_verbs_t *verbs = driver;
    if (verbs == NULL) {
        return;
    }
    free_queue_pairs(verbs, forked);
    if (forked) {
        close_copies(verbs);
    } else {
        close_device(verbs);
    }
    if (verbs->epoll_fd >= 0) {
        close(verbs->epoll_fd);
    }
    if (!forked) { /* there it may be held by a thread that the child has not */
        pthread_mutex_destroy(&verbs->lock);
    }
    wefti_free(verbs->params.allocator, verbs->cards);
    wefti_free(verbs->params.allocator, verbs->peers);
    wefti_free(verbs->params.allocator, verbs);
}

const wefti_link_driver_t wefti_link_verbs = {
    .name = "verbs",
    .caps = WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL,
    .address_bytes = sizeof(wefti_verbs_card_t),
    .key_bytes = sizeof(wefti_verbs_key_t),
    .open = verbs_open,
    .join = verbs_join,
    .offer_bytes = verbs_offer_bytes,
    .offer = verbs_offer,
    .offered = verbs_offered,
    .grow = wefti_verbs_grow,
    .grown = wefti_verbs_grown,
    .put = wefti_verbs_put,
    .signal = wefti_verbs_signal,
    .progress = wefti_verbs_progress,
    .poll_fd = verbs_poll_fd,
    .arm = wefti_verbs_arm,
    .flushed = wefti_verbs_flushed,
    .drop = verbs_drop,
    .describe = verbs_describe,
    .stats = verbs_stats,
    .close = verbs_close,
};

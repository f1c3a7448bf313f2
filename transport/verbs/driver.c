/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs driver's function table: open, join, describe, close. */
#include "transport/verbs/verbs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

/* Largest world that has two queue pairs per pair of ranks by default. */
#define SMALL_WORLD 64u

static uint32_t pairs_per_peer(const wefti_link_params_t *params)
{
    uint32_t wanted = params->settings->verbs.queue_pairs;
    return wanted != 0 ? wanted : params->world_size <= SMALL_WORLD ? 2 : 1;
}

static void verbs_close(void *driver, bool forked);

static weft_status_t open_all(wefti_verbs_t *verbs)
{
    const wefti_link_params_t *params = &verbs->params;
    verbs->peers = wefti_alloc(params->allocator, params->world_size * sizeof *verbs->peers);
    verbs->addresses =
        wefti_alloc(params->allocator, params->world_size * sizeof *verbs->addresses);
    WEFT_RETURN_IF_NO_MEMORY(verbs->peers != NULL && verbs->addresses != NULL);
    WEFT_RETURN_IF_ERROR(wefti_verbs_device_open(verbs));
    verbs->pd = ibv_alloc_pd(verbs->context);
    if (verbs->pd == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "ibv_alloc_pd failed on %s", verbs->own.device);
    }
    WEFT_RETURN_IF_ERROR(wefti_verbs_events_open(verbs));
    return wefti_verbs_pool_create(verbs);
}

static weft_status_t verbs_open(const wefti_link_params_t *params, void **out_driver,
                                void *out_address)
{
    wefti_verbs_t *verbs = wefti_alloc(params->allocator, sizeof *verbs);
    *out_driver = NULL;
    WEFT_RETURN_IF_NO_MEMORY(verbs);
    verbs->params = *params;
    verbs->epoll_fd = -1;
    verbs->per_peer = pairs_per_peer(params);
    pthread_mutex_init(&verbs->lock, NULL);
    if (open_all(verbs) < 0) {
        verbs_close(verbs, false);
        return WEFT_ERR_UNSUPPORTED; /* another driver can serve the peers, whatever failed */
    }
    memcpy(out_address, &verbs->own, sizeof verbs->own);
    *out_driver = verbs;
    return WEFT_OK;
}

static weft_status_t verbs_join(void *driver, const uint8_t *addresses, const bool *peers)
{
    wefti_verbs_t *verbs = driver;
    memcpy(verbs->addresses, addresses, verbs->params.world_size * sizeof *verbs->addresses);
    for (uint32_t r = 0; r < verbs->params.world_size; r++) {
        wefti_verbs_address_t *address = &verbs->addresses[r];
        if (!peers[r]) {
            continue;
        }
        address->device[sizeof address->device - 1] = '\0';
        if (address->magic != WEFTI_VERBS_ADDRESS_MAGIC ||
            address->version != WEFTI_VERBS_ADDRESS_VERSION) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "version mismatch: rank %u runs another version of Weft", r);
        }
        verbs->peers[r].served = true;
        wefti_verbs_describe_path(&verbs->own, address, verbs->peers[r].path,
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
                                     .rkey = verbs->mailbox.mr->rkey,
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
    pthread_mutex_unlock(&verbs->lock); /* breaks are reported later, when the owner is ready */
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

static void free_queue_pairs(wefti_verbs_t *verbs)
{
    for (uint32_t r = 0; verbs->peers != NULL && r < verbs->params.world_size; r++) {
        wefti_verbs_break(verbs, r, NULL);
    }
    for (uint32_t i = 0;
         verbs->queue_pairs != NULL && i < verbs->params.world_size * verbs->per_peer; i++) {
        wefti_free(verbs->params.allocator, verbs->queue_pairs[i]);
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
    wefti_verbs_memory_free(verbs);
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

/* In a forked child: commands of libibverbs would reach the parent's queue pairs, and its lock may
 * be held by a thread that the child does not have. Memory is freed when the child ends. */
static void close_copies(const wefti_verbs_t *verbs)
{
    close(verbs->channel->fd);
    close(verbs->context->async_fd);
    close(verbs->context->cmd_fd);
}

static void verbs_close(void *driver, bool forked)
{
    wefti_verbs_t *verbs = driver;
    if (verbs == NULL) {
        return;
    }
    if (verbs->epoll_fd >= 0) {
        close(verbs->epoll_fd);
    }
    if (forked) {
        close_copies(verbs);
        return;
    }
    free_queue_pairs(verbs);
    close_device(verbs);
    pthread_mutex_destroy(&verbs->lock);
    wefti_free(verbs->params.allocator, verbs->addresses);
    wefti_free(verbs->params.allocator, verbs->peers);
    wefti_free(verbs->params.allocator, verbs);
}

const wefti_link_driver_t wefti_link_verbs = {
    .name = "verbs",
    .caps = WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL,
    .address_bytes = sizeof(wefti_verbs_address_t),
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

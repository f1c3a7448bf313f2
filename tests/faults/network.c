/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/network.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tests/faults/delays.h"
#include "transport/hosts.h"

typedef struct network {
    wefti_hub_fabric_t fabric;
    wefti_transport_ops_t ops; /* inproc's, with what differs between hosts */
    uint32_t world_size;
    uint32_t *host_of;    /* [world_size] */
    _Atomic bool *broken; /* [world_size * world_size] */
    wefti_delay_t delay;
    wefti_delays_t *delays;
} network_t;
_Static_assert(offsetof(network_t, fabric) == 0, "a hub's fabric is its network");

static network_t *network_of(wefti_endpoint_t *endpoint)
{
    return (network_t *)wefti_hub_of(endpoint)->fabric;
}

static bool is_far(wefti_endpoint_t *endpoint, uint32_t peer)
{
    return endpoint->host_of[peer] != endpoint->host_of[endpoint->rank];
}

static _Atomic bool *broken_of(const network_t *network, uint32_t a, uint32_t b)
{
    uint32_t low = a < b ? a : b, high = a < b ? b : a;
    return &network->broken[(size_t)low * network->world_size + high];
}

/* ---- messages ---- */

static void deliver(void *user, const wefti_parcel_t *parcel, const void *data)
{
    (void)user;
    if (parcel->is_signal) {
        wefti_link_raise((wefti_signal_t *)parcel->place, parcel->value);
    } else {
        memcpy((void *)parcel->place, data, parcel->bytes);
    }
}

/* To a place in the peer's region; an error when the link is broken and has no replacement. */
static weft_status_t send_parcel(wefti_endpoint_t *endpoint, wefti_parcel_t *parcel, size_t offset,
                                 const void *data)
{
    network_t *network = network_of(endpoint);
    if (endpoint->settings->fallback == WEFTI_FALLBACK_OFF &&
        atomic_load_explicit(broken_of(network, endpoint->rank, parcel->to),
                             memory_order_acquire)) {
        return wefti_error(WEFT_ERR_LINK, "the link between rank %u and rank %u is broken",
                           endpoint->rank, parcel->to);
    }
    parcel->from = endpoint->rank;
    parcel->place = (uintptr_t)(wefti_hub_of(endpoint)->seats[parcel->to].range.base + offset);
    return wefti_delays_send(network->delays, parcel, data, &network->delay);
}

static weft_status_t network_put(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                 const void *data, size_t bytes, uint32_t lane,
                                 wefti_signal_t *lent)
{
    wefti_parcel_t parcel = {.to = peer, .lane = lane, .bytes = bytes, .lent = lent};
    return is_far(endpoint, peer)
               ? send_parcel(endpoint, &parcel, offset, data)
               : wefti_put_direct(endpoint, peer, offset, data, bytes, lane, lent);
}

static weft_status_t network_signal(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                    uint32_t value, uint32_t lane)
{
    wefti_parcel_t parcel = {.to = peer, .lane = lane, .is_signal = true, .value = value};
    return is_far(endpoint, peer) ? send_parcel(endpoint, &parcel, offset, NULL)
                                  : wefti_signal_direct(endpoint, peer, offset, value, lane);
}

static void network_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out)
{
    if (is_far(endpoint, peer)) {
        wefti_delays_stats(network_of(endpoint)->delays, endpoint->rank, peer, out);
    }
}

static bool network_flush(wefti_endpoint_t *endpoint)
{
    if (wefti_hub_of(endpoint) != NULL) {
        wefti_delays_flush(network_of(endpoint)->delays, endpoint->rank);
    }
    return true;
}

/* ---- worlds ---- */

/* Hosts numbered by their first ranks; memory of other hosts is not mapped. */
static weft_status_t hide_hosts(wefti_endpoint_t *endpoint)
{
    const uint32_t *host_of = network_of(endpoint)->host_of;
    endpoint->host_count = 0;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        uint32_t first = 0;
        while (host_of[first] != host_of[r]) {
            first++;
        }
        endpoint->host_of[r] = first < r ? endpoint->host_of[first] : endpoint->host_count++;
    }
    endpoint->caps &= endpoint->host_count > 1 ? ~WEFTI_CAP_DIRECT : ~0ull;
    if (endpoint->device != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "simulated hosts support host memory only");
    }
    return WEFT_OK;
}

static weft_status_t network_open(wefti_endpoint_t *endpoint, const wefti_endpoint_params_t *params)
{
    weft_status_t status = wefti_transport_inproc.open(endpoint, params);
    return status == WEFT_OK ? wefti_endpoint_agree(endpoint, hide_hosts(endpoint)) : status;
}

static void network_ended(wefti_hub_fabric_t *fabric)
{
    network_t *network = (network_t *)fabric;
    wefti_delays_clear(network->delays);
    for (size_t i = 0; i < (size_t)network->world_size * network->world_size; i++) {
        atomic_store_explicit(&network->broken[i], false, memory_order_relaxed);
    }
}

static void network_destroy(wefti_hub_fabric_t *fabric)
{
    network_t *network = (network_t *)fabric;
    wefti_delays_destroy(network->delays);
    wefti_free(NULL, (void *)network->broken);
    wefti_free(NULL, network->host_of);
    wefti_free(NULL, network);
}

static void fill_ops(network_t *network)
{
    wefti_transport_ops_t *ops = &network->ops;
    network->fabric = (wefti_hub_fabric_t){ops, network_ended, network_destroy};
    *ops = wefti_transport_inproc;
    ops->open = network_open;
    ops->put = network_put;
    ops->signal = network_signal;
    ops->flush = network_flush;
    ops->link_stats = network_link_stats;
}

weft_status_t wefti_hub_hide(weft_hub_t *hub, const wefti_hub_links_t *links)
{
    const uint32_t size = hub->world_size;
    network_t *network = wefti_alloc(NULL, sizeof *network);
    if (network == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    fill_ops(network);
    network->world_size = size;
    network->delay = (wefti_delay_t){.random_ns = links->max_delay_ns, .uneven = true};
    network->host_of = wefti_alloc(NULL, size * sizeof *network->host_of);
    network->broken = wefti_alloc(NULL, (size_t)size * size * sizeof *network->broken);
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    if (network->host_of != NULL && network->broken != NULL) {
        memcpy(network->host_of, links->host_of, size * sizeof *network->host_of);
        status = wefti_delays_create(size, links->seed, deliver, NULL, &network->delays);
    }
    if (status < 0) {
        network_destroy(&network->fabric);
        return status;
    }
    return wefti_hub_set_fabric(hub, &network->fabric);
}

/* ---- broken links ---- */

typedef struct break_news {
    weft_hub_t *hub;
    wefti_link_fault_t fault;
    weft_status_t status;
} break_news_t;

/* All ranks that are present learn of it. Called with the hub's lock held. */
static void report_break(void *user)
{
    break_news_t *news = user;
    for (uint32_t r = 0; r < news->hub->world_size; r++) {
        if (news->hub->seats[r].endpoint != NULL) {
            weft_status_t noted =
                wefti_endpoint_note_fault(news->hub->seats[r].endpoint, &news->fault);
            news->status = news->status == WEFT_OK ? noted : news->status;
        }
    }
}

/* What is under way between the two ranks is lost. What is sent later comes over another path, after
 * the fault was reported; senders that want no other path look at broken. */
static weft_status_t break_simulated(wefti_endpoint_t *endpoint, uint32_t peer, const char *text)
{
    weft_hub_t *hub = wefti_hub_of(endpoint);
    network_t *network = network_of(endpoint);
    uint32_t rank = endpoint->rank;
    break_news_t news = {
        hub, {.ranks = {rank < peer ? rank : peer, rank < peer ? peer : rank}}, WEFT_OK};
    snprintf(news.fault.text, sizeof news.fault.text, "%s", text);
    pthread_mutex_lock(&hub->lock);
    atomic_store_explicit(broken_of(network, endpoint->rank, peer), true, memory_order_release);
    wefti_delays_lose(network->delays, endpoint->rank, peer, report_break, &news);
    pthread_mutex_unlock(&hub->lock);
    return news.status;
}

static weft_status_t break_between_hosts(wefti_endpoint_t *endpoint, uint32_t peer,
                                         const char *text)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    uint8_t via = atomic_load_explicit(&hosts->via[peer], memory_order_acquire);
    if (via == WEFTI_HOSTS_NONE) {
        return wefti_hosts_broken_error(hosts, peer);
    }
    if (wefti_hosts_next_driver(hosts, peer, via + 1u) == WEFTI_HOSTS_NONE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "no fallback transport: rank %u reaches rank %u only by %s",
                           endpoint->rank, peer, hosts->drivers[via].ops->name);
    }
    wefti_hosts_broken(&hosts->drivers[via], peer, false, text);
    return WEFT_OK;
}

weft_status_t wefti_fault_break_link(wefti_endpoint_t *endpoint, uint32_t peer, const char *text)
{
    if (peer >= endpoint->world_size || peer == endpoint->rank ||
        wefti_endpoint_direct(endpoint, peer)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "rank %u has no link to rank %u", endpoint->rank,
                           peer);
    }
    return strcmp(endpoint->ops->name, wefti_transport_hosts.name) == 0
               ? break_between_hosts(endpoint, peer, text)
               : break_simulated(endpoint, peer, text);
}

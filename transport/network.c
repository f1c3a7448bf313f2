/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/network.h"

#include <string.h>

#include "runtime/base/error.h"
#include "transport/delays.h"

struct wefti_network {
    uint32_t world_size;
    uint32_t *host_of;    /* [world_size] */
    _Atomic bool *broken; /* [world_size * world_size] */
    wefti_delay_t delay;
    wefti_delays_t *delays;
};

static void deliver(void *user, const wefti_parcel_t *parcel, const void *data)
{
    (void)user;
    if (parcel->is_signal) {
        wefti_link_raise((wefti_signal_t *)parcel->place, parcel->value);
    } else {
        memcpy((void *)parcel->place, data, parcel->bytes);
    }
}

weft_status_t wefti_network_put(wefti_network_t *network, uint32_t from, uint32_t to, uint32_t lane,
                                uint8_t *address, const void *data, size_t bytes,
                                wefti_signal_t *lent)
{
    wefti_parcel_t parcel = {.from = from,
                             .to = to,
                             .lane = lane,
                             .place = (uintptr_t)address,
                             .bytes = bytes,
                             .lent = lent};
    return wefti_delays_send(network->delays, &parcel, data, &network->delay);
}

weft_status_t wefti_network_signal(wefti_network_t *network, uint32_t from, uint32_t to,
                                   uint32_t lane, wefti_signal_t *signal, uint32_t value)
{
    wefti_parcel_t parcel = {.from = from,
                             .to = to,
                             .lane = lane,
                             .is_signal = true,
                             .value = value,
                             .place = (uintptr_t)signal};
    return wefti_delays_send(network->delays, &parcel, NULL, &network->delay);
}

void wefti_network_flush(wefti_network_t *network, uint32_t from)
{
    wefti_delays_flush(network->delays, from);
}

static _Atomic bool *broken_of(const wefti_network_t *network, uint32_t a, uint32_t b)
{
    uint32_t low = a < b ? a : b, high = a < b ? b : a;
    return &network->broken[(size_t)low * network->world_size + high];
}

void wefti_network_break(wefti_network_t *network, uint32_t a, uint32_t b, void (*tell)(void *user),
                         void *user)
{
    atomic_store_explicit(broken_of(network, a, b), true, memory_order_release);
    wefti_delays_lose(network->delays, a, b, tell, user);
}

bool wefti_network_broken(const wefti_network_t *network, uint32_t a, uint32_t b)
{
    return atomic_load_explicit(broken_of(network, a, b), memory_order_acquire);
}

void wefti_network_stats(wefti_network_t *network, uint32_t from, uint32_t to,
                         wefti_link_stats_t *out)
{
    wefti_delays_stats(network->delays, from, to, out);
}

void wefti_network_clear(wefti_network_t *network)
{
    if (network == NULL) {
        return;
    }
    wefti_delays_clear(network->delays);
    for (size_t i = 0; i < (size_t)network->world_size * network->world_size; i++) {
        atomic_store_explicit(&network->broken[i], false, memory_order_relaxed);
    }
}

bool wefti_network_between(const wefti_network_t *network, uint32_t a, uint32_t b)
{
    return network != NULL && network->host_of[a] != network->host_of[b];
}

uint32_t wefti_network_host(const wefti_network_t *network, uint32_t rank)
{
    return network != NULL ? network->host_of[rank] : 0;
}

weft_status_t wefti_network_create(uint32_t world_size, const wefti_hub_links_t *links,
                                   wefti_network_t **out_network)
{
    wefti_network_t *network = wefti_alloc(NULL, sizeof *network);
    *out_network = NULL;
    if (network == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    network->world_size = world_size;
    network->delay = (wefti_delay_t){.random_ns = links->max_delay_ns, .uneven = true};
    network->host_of = wefti_alloc(NULL, world_size * sizeof *network->host_of);
    network->broken = wefti_alloc(NULL, (size_t)world_size * world_size * sizeof *network->broken);
    if (network->host_of == NULL || network->broken == NULL) {
        wefti_network_destroy(network);
        return WEFT_ERR_NO_MEMORY;
    }
    memcpy(network->host_of, links->host_of, world_size * sizeof *network->host_of);
    weft_status_t status =
        wefti_delays_create(world_size, links->seed, deliver, NULL, &network->delays);
    if (status < 0) {
        wefti_network_destroy(network);
        return status;
    }
    *out_network = network;
    return WEFT_OK;
}

void wefti_network_destroy(wefti_network_t *network)
{
    if (network != NULL) {
        wefti_delays_destroy(network->delays);
        wefti_free(NULL, (void *)network->broken);
        wefti_free(NULL, network->host_of);
        wefti_free(NULL, network);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which driver serves which pair of ranks of different hosts: opening, joining, memory. */
#include "transport/hosts.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

/* What a driver may say of itself to each peer. */
#define PART_BYTES_MAX 65536u

/* Sizes come from peers; what makes no sense is as if it were not there, for all alike. */
static void check_kits(wefti_hosts_t *hosts)
{
    for (size_t i = 0; i < (size_t)hosts->base.world_size * WEFTI_HOSTS_DRIVERS; i++) {
        wefti_hosts_kit_t *kit = &hosts->kits[i];
        if (kit->card_bytes > PART_BYTES_MAX || kit->key_bytes > PART_BYTES_MAX ||
            kit->offer_bytes > PART_BYTES_MAX) {
            kit->available = 0;
        }
    }
}

/* The rank's entry for the driver that is number d here; NULL when it has none that fits. */
static const wefti_hosts_kit_t *kit_of(const wefti_hosts_t *hosts, uint32_t rank, uint32_t d)
{
    const wefti_hosts_kit_t *own = &hosts->kits[hosts->base.rank * WEFTI_HOSTS_DRIVERS + d];
    for (uint32_t i = 0; i < WEFTI_HOSTS_DRIVERS; i++) {
        const wefti_hosts_kit_t *kit = &hosts->kits[rank * WEFTI_HOSTS_DRIVERS + i];
        if (strncmp(kit->name, hosts->drivers[d].ops->name, sizeof kit->name) == 0) {
            return kit->available && own->available && kit->card_bytes == own->card_bytes &&
                           kit->key_bytes == own->key_bytes && kit->offer_bytes == own->offer_bytes
                       ? kit
                       : NULL;
        }
    }
    return NULL;
}

/* The first driver from number d on that both have. */
static uint8_t next_common(const wefti_hosts_t *hosts, uint32_t rank, uint32_t d)
{
    for (; d < hosts->driver_count; d++) {
        if (kit_of(hosts, rank, d) != NULL) {
            return (uint8_t)d;
        }
    }
    return WEFTI_HOSTS_NONE;
}

uint8_t wefti_hosts_next_driver(const wefti_hosts_t *hosts, uint32_t rank, uint8_t after)
{
    return hosts->base.settings->fallback == WEFTI_FALLBACK_OFF
               ? WEFTI_HOSTS_NONE
               : next_common(hosts, rank, after + 1u);
}

/* ---- cards, offers and keys: what all ranks say of their drivers, side by side ---- */

typedef enum wefti_hosts_what { CARD, OFFER, KEY } what_t;

static size_t bytes_of(const wefti_hosts_t *hosts, const wefti_hosts_kit_t *kit, what_t what)
{
    if (!kit->available) {
        return 0;
    }
    return what == CARD  ? kit->card_bytes
           : what == KEY ? kit->key_bytes
                         : (size_t)kit->offer_bytes * hosts->base.world_size;
}

/* Where the kit's part begins among what its rank says. */
static size_t place_of(const wefti_hosts_t *hosts, const wefti_hosts_kit_t *kit, what_t what)
{
    size_t at = 0;
    size_t index = (size_t)(kit - hosts->kits);
    for (size_t i = index - index % WEFTI_HOSTS_DRIVERS; i < index; i++) {
        at += bytes_of(hosts, &hosts->kits[i], what);
    }
    return at;
}

/* What the rank with the most to say has. */
static size_t longest(const wefti_hosts_t *hosts, what_t what)
{
    size_t most = 0;
    for (uint32_t r = 0; r < hosts->base.world_size; r++) {
        size_t sum = 0;
        for (uint32_t i = 0; i < WEFTI_HOSTS_DRIVERS; i++) {
            sum += bytes_of(hosts, &hosts->kits[r * WEFTI_HOSTS_DRIVERS + i], what);
        }
        most = sum > most ? sum : most;
    }
    return most;
}

typedef struct table {
    size_t bytes;  /* per rank */
    uint8_t *own;  /* [bytes] */
    uint8_t *all;  /* [world_size * bytes] */
    uint8_t *part; /* [world_size * bytes]: one driver's, packed */
} table_t;

static weft_status_t table_init(const wefti_hosts_t *hosts, what_t what, table_t *table)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    size_t total;
    memset(table, 0, sizeof *table);
    table->bytes = longest(hosts, what);
    if (!wefti_mul_size(table->bytes, endpoint->world_size, &total)) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "out of memory: the table of driver addresses is too large");
    }
    table->own = wefti_alloc(endpoint->allocator, table->bytes + 1);
    table->all = wefti_alloc(endpoint->allocator, total + 1);
    table->part = wefti_alloc(endpoint->allocator, total + 1);
    return table->own != NULL && table->all != NULL && table->part != NULL ? WEFT_OK
                                                                           : WEFT_ERR_NO_MEMORY;
}

static void table_deinit(const wefti_hosts_t *hosts, table_t *table)
{
    wefti_free(hosts->base.allocator, table->own);
    wefti_free(hosts->base.allocator, table->all);
    wefti_free(hosts->base.allocator, table->part);
}

static uint8_t *own_part(const wefti_hosts_t *hosts, const table_t *table, uint32_t d, what_t what)
{
    return table->own +
           place_of(hosts, &hosts->kits[hosts->base.rank * WEFTI_HOSTS_DRIVERS + d], what);
}

/* One driver's parts, rank by rank; zero for those who have none. */
static const uint8_t *packed(const wefti_hosts_t *hosts, const table_t *table, uint32_t d,
                             what_t what)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    size_t bytes = bytes_of(hosts, &hosts->kits[endpoint->rank * WEFTI_HOSTS_DRIVERS + d], what);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        const wefti_hosts_kit_t *kit = kit_of(hosts, r, d);
        if (kit != NULL) {
            memcpy(table->part + r * bytes,
                   table->all + r * table->bytes + place_of(hosts, kit, what), bytes);
        } else {
            memset(table->part + r * bytes, 0, bytes);
        }
    }
    return table->part;
}

/* ---- opening ---- */

static wefti_link_params_t link_params(wefti_hosts_t *hosts, wefti_hosts_driver_t *driver)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    return (wefti_link_params_t){
        .rank = endpoint->rank,
        .world_size = endpoint->world_size,
        .host_of = endpoint->host_of,
        .host_names = (const char(*)[64])endpoint->host_names,
        .settings = endpoint->settings,
        .log = endpoint->log,
        .allocator = endpoint->allocator,
        .key = wefti_overlay_key(hosts->overlay),
        .owner = driver,
        .broken = wefti_hosts_broken,
        .heard = wefti_hosts_heard,
        .left = wefti_hosts_parting,
        .wake = wefti_hosts_wake,
    };
}

/* Opens what this rank may use and has; what it has not is no error. */
static weft_status_t open_driver(wefti_hosts_t *hosts, const wefti_link_params_t *params,
                                 wefti_hosts_driver_t *driver, wefti_hosts_kit_t *kit,
                                 uint8_t **card)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    const wefti_link_driver_t *ops = driver->ops;
    snprintf(kit->name, sizeof kit->name, "%s", ops->name);
    if (!wefti_hosts_allows(endpoint->settings, ops->name)) {
        snprintf(driver->reason, sizeof driver->reason, "not listed in WEFT_TRANSPORT");
        return WEFT_OK;
    }
    *card = wefti_alloc(endpoint->allocator, ops->card_bytes + 1);
    if (*card == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = ops->open(params, &driver->state, *card);
    if (status == WEFT_ERR_UNSUPPORTED) {
        snprintf(driver->reason, sizeof driver->reason, "%s", weft_last_error());
        wefti_log(endpoint->log, WEFT_LOG_LEVEL_DEBUG, "rank %u: transport %s is not available: %s",
                  endpoint->rank, ops->name, driver->reason);
        return WEFT_OK;
    }
    if (status < 0) {
        return wefti_error_prefix(status, "%s", ops->name);
    }
    kit->available = 1;
    kit->card_bytes = (uint32_t)ops->card_bytes;
    kit->key_bytes = (uint32_t)ops->key_bytes;
    kit->offer_bytes = (uint32_t)ops->offer_bytes(params);
    return WEFT_OK;
}

static weft_status_t open_drivers(wefti_hosts_t *hosts, uint8_t *cards[WEFTI_HOSTS_DRIVERS],
                                  wefti_hosts_kit_t own[WEFTI_HOSTS_DRIVERS])
{
    weft_status_t status = WEFT_OK;
    memset(own, 0, WEFTI_HOSTS_DRIVERS * sizeof *own);
    for (uint32_t d = 0; status == WEFT_OK && d < WEFTI_HOSTS_DRIVERS; d++) {
        if (wefti_link_drivers[d] == NULL) {
            break;
        }
        hosts->drivers[d].ops = wefti_link_drivers[d];
        hosts->drivers[d].hosts = hosts;
        hosts->driver_count = d + 1;
        const wefti_link_params_t params = link_params(hosts, &hosts->drivers[d]);
        status = open_driver(hosts, &params, &hosts->drivers[d], &own[d], &cards[d]);
    }
    return status;
}

static weft_status_t no_way(const wefti_hosts_t *hosts, uint32_t peer)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    char own[WEFTI_HOSTS_WHO_BYTES], other[WEFTI_HOSTS_WHO_BYTES], reasons[400] = "";
    size_t at = 0;
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        const wefti_hosts_driver_t *driver = &hosts->drivers[d];
        int length = snprintf(
            reasons + at, sizeof reasons - at, "%s%s: %s", at > 0 ? "; " : "", driver->ops->name,
            driver->state == NULL ? driver->reason : "the other rank has no matching device");
        at = at + (size_t)length < sizeof reasons ? at + (size_t)length : sizeof reasons - 1;
    }
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "no common transport for %s and %s (WEFT_TRANSPORT=%s): %s",
                       wefti_hosts_who(hosts, endpoint->rank, own),
                       wefti_hosts_who(hosts, peer, other), endpoint->settings->transport, reasons);
}

static weft_status_t choose(wefti_hosts_t *hosts)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if (!wefti_hosts_is_far(hosts, r)) {
            continue;
        }
        uint8_t d = next_common(hosts, r, 0);
        if (d == WEFTI_HOSTS_NONE) {
            return no_way(hosts, r);
        }
        atomic_store_explicit(&hosts->via[r], d, memory_order_relaxed);
    }
    return WEFT_OK;
}

/* The peers of the driver: those it serves, and those it would if their links broke. */
static weft_status_t join_driver(wefti_hosts_t *hosts, uint32_t d, const table_t *cards)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    wefti_hosts_driver_t *driver = &hosts->drivers[d];
    bool *peers = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *peers);
    if (peers == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        uint8_t via = atomic_load_explicit(&hosts->via[r], memory_order_relaxed);
        peers[r] = wefti_hosts_is_far(hosts, r) &&
                   (via == d || (endpoint->settings->fallback && kit_of(hosts, r, d) != NULL));
        driver->used = driver->used || peers[r];
    }
    weft_status_t status = WEFT_OK;
    if (driver->used) {
        status = driver->ops->join(driver->state, packed(hosts, cards, d, CARD), peers);
    }
    wefti_free(endpoint->allocator, peers);
    return status < 0 ? wefti_error_prefix(status, "%s", driver->ops->name) : WEFT_OK;
}

static weft_status_t join_all(wefti_hosts_t *hosts, const table_t *cards, const table_t *offers)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t d = 0; status == WEFT_OK && d < hosts->driver_count; d++) {
        wefti_hosts_driver_t *driver = &hosts->drivers[d];
        if (driver->state == NULL) {
            continue;
        }
        status = join_driver(hosts, d, cards);
        if (status == WEFT_OK && driver->used) {
            status = driver->ops->offer(driver->state, own_part(hosts, offers, d, OFFER));
        }
    }
    return status;
}

/* From what every rank offers everybody, takes what is for this rank. */
static weft_status_t take_offers(wefti_hosts_t *hosts, const table_t *offers)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    weft_status_t status = WEFT_OK;
    for (uint32_t d = 0; status == WEFT_OK && d < hosts->driver_count; d++) {
        wefti_hosts_driver_t *driver = &hosts->drivers[d];
        if (driver->state == NULL || !driver->used) {
            continue;
        }
        size_t bytes = hosts->kits[endpoint->rank * WEFTI_HOSTS_DRIVERS + d].offer_bytes;
        for (uint32_t r = 0; r < endpoint->world_size; r++) {
            const wefti_hosts_kit_t *kit = kit_of(hosts, r, d);
            memset(offers->part + r * bytes, 0, bytes);
            if (kit != NULL) {
                memcpy(offers->part + r * bytes,
                       offers->all + r * offers->bytes + place_of(hosts, kit, OFFER) +
                           endpoint->rank * bytes,
                       bytes);
            }
        }
        status = driver->ops->offered(driver->state, offers->part);
    }
    return status;
}

static weft_status_t connect_links(wefti_hosts_t *hosts, uint8_t *const *own_cards)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    table_t cards, offers;
    weft_status_t status = table_init(hosts, CARD, &cards);
    weft_status_t second = table_init(hosts, OFFER, &offers);
    status = status < 0 ? status : second;
    for (uint32_t d = 0; status == WEFT_OK && d < hosts->driver_count; d++) {
        if (hosts->drivers[d].state != NULL) {
            memcpy(own_part(hosts, &cards, d, CARD), own_cards[d],
                   hosts->drivers[d].ops->card_bytes);
        }
    }
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), done);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, cards.own, cards.bytes, cards.all), done);
    status = join_all(hosts, &cards, &offers);
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), done);
    if (offers.bytes > 0) {
        WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, offers.own, offers.bytes, offers.all),
                 done);
        status = wefti_endpoint_agree(endpoint, take_offers(hosts, &offers));
    }
done:
    table_deinit(hosts, &cards);
    table_deinit(hosts, &offers);
    return status;
}

weft_status_t wefti_hosts_links_open(wefti_hosts_t *hosts)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    uint8_t *cards[WEFTI_HOSTS_DRIVERS] = {NULL};
    wefti_hosts_kit_t own[WEFTI_HOSTS_DRIVERS];
    weft_status_t status = open_drivers(hosts, cards, own);
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), done);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, own, sizeof own, hosts->kits), done);
    check_kits(hosts);
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, choose(hosts)), done);
    status = connect_links(hosts, cards);
done:
    for (uint32_t d = 0; d < WEFTI_HOSTS_DRIVERS; d++) {
        wefti_free(endpoint->allocator, cards[d]);
    }
    return status;
}

void wefti_hosts_links_close(wefti_hosts_t *hosts, bool forked)
{
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        if (hosts->drivers[d].state != NULL) {
            hosts->drivers[d].ops->close(hosts->drivers[d].state, forked);
            hosts->drivers[d].state = NULL;
        }
    }
}

/* ---- memory ---- */

static weft_status_t grow_own(wefti_hosts_t *hosts, const table_t *keys, size_t from, size_t to)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        wefti_hosts_driver_t *driver = &hosts->drivers[d];
        if (driver->state != NULL && driver->used) {
            weft_status_t status =
                driver->ops->grow(driver->state, endpoint->region_of[endpoint->rank], from, to,
                                  own_part(hosts, keys, d, KEY));
            if (status < 0) {
                return wefti_error_prefix(status, "%s", driver->ops->name);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t take_keys(wefti_hosts_t *hosts, const table_t *keys)
{
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        wefti_hosts_driver_t *driver = &hosts->drivers[d];
        if (driver->state != NULL && driver->used) {
            weft_status_t status = driver->ops->grown(driver->state, packed(hosts, keys, d, KEY));
            if (status < 0) {
                return wefti_error_prefix(status, "%s", driver->ops->name);
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_hosts_links_grow(wefti_hosts_t *hosts, size_t from, size_t to)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    table_t keys;
    weft_status_t status = table_init(hosts, KEY, &keys);
    if (status == WEFT_OK) {
        status = grow_own(hosts, &keys, from, to);
    }
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), done);
    if (keys.bytes > 0) {
        WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, keys.own, keys.bytes, keys.all), done);
    }
    status = wefti_endpoint_agree(endpoint, take_keys(hosts, &keys));
done:
    table_deinit(hosts, &keys);
    return status;
}

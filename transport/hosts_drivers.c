/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which driver serves which pair of ranks of different hosts: opening, joining, memory.
 *
 * Every rank walks through the drivers in the same order, and for each of them exchanges endpoint
 * addresses, offers and keys with all ranks. A rank that lacks the driver contributes zeros.
 */
#include "transport/hosts.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

/* Longest endpoint address, key, or offer to one peer. */
#define PART_BYTES_MAX 65536u

/* What a rank reports of one of its drivers. Equal reports: the drivers work with each other. */
typedef struct report {
    char name[12];
    uint32_t available; /* it opened */
    uint32_t address_bytes, key_bytes, offer_bytes;
} report_t;

uint8_t wefti_hosts_next_driver(const wefti_hosts_t *hosts, uint32_t rank, uint32_t first)
{
    for (uint32_t d = first; d < hosts->driver_count; d++) {
        if (hosts->drivers[d].peers[rank]) {
            return (uint8_t)d;
        }
    }
    return WEFTI_HOSTS_NONE;
}

/* ---- one exchange: every rank's part, in rank order ---- */

typedef struct exchange {
    size_t bytes; /* of a part */
    uint8_t *own; /* [bytes] */
    uint8_t *all; /* [world_size * bytes] */
} exchange_t;

static weft_status_t exchange_init(const wefti_hosts_t *hosts, size_t bytes, exchange_t *exchange)
{
    const weft_allocator_t *allocator = hosts->base.allocator;
    *exchange = (exchange_t){.bytes = bytes,
                             .own = wefti_alloc(allocator, bytes + 1),
                             .all = wefti_alloc(allocator, bytes * hosts->base.world_size + 1)};
    return exchange->own != NULL && exchange->all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static void exchange_deinit(const wefti_hosts_t *hosts, exchange_t *exchange)
{
    wefti_free(hosts->base.allocator, exchange->own);
    wefti_free(hosts->base.allocator, exchange->all);
}

/* Collective; status: of preparing the own part. */
static weft_status_t exchange_run(wefti_hosts_t *hosts, weft_status_t status,
                                  const exchange_t *exchange)
{
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(&hosts->base, status));
    return exchange->bytes == 0 ? WEFT_OK
                                : wefti_endpoint_all_gather(&hosts->base, exchange->own,
                                                            exchange->bytes, exchange->all);
}

/* ---- opening ---- */

/* Opens the driver if this rank may use it and has a device for it. */
static weft_status_t open_driver(wefti_hosts_t *hosts, wefti_hosts_driver_t *driver,
                                 report_t *report)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    const wefti_link_driver_t *ops = driver->ops;
    const wefti_link_params_t params = {
        .rank = endpoint->rank,
        .world_size = endpoint->world_size,
        .host_of = endpoint->host_of,
        .settings = endpoint->settings,
        .log = endpoint->log,
        .allocator = endpoint->allocator,
        .key = wefti_overlay_key(hosts->overlay),
        .owner = driver,
        .broken = wefti_hosts_broken,
        .arriving = wefti_hosts_arriving,
        .leaving = wefti_hosts_leaving,
        .wake = wefti_hosts_wake,
    };
    driver->hosts = hosts;
    driver->address = wefti_alloc(endpoint->allocator, ops->address_bytes + 1);
    driver->peers = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *driver->peers);
    WEFT_RETURN_IF_NO_MEMORY(driver->address != NULL && driver->peers != NULL);
    snprintf(report->name, sizeof report->name, "%s", ops->name);
    if (!wefti_hosts_allows(endpoint->settings, ops->name)) {
        snprintf(driver->reason, sizeof driver->reason, "not listed in WEFT_TRANSPORT");
        return WEFT_OK;
    }
    weft_status_t status = ops->open(&params, &driver->state, driver->address);
    if (status == WEFT_ERR_UNSUPPORTED) {
        snprintf(driver->reason, sizeof driver->reason, "%s", weft_last_error());
        wefti_log(endpoint->log, WEFT_LOG_LEVEL_DEBUG, "rank %u: transport %s is not available: %s",
                  endpoint->rank, ops->name, driver->reason);
        return WEFT_OK;
    }
    if (status < 0) {
        return wefti_error_prefix(status, "%s", ops->name);
    }
    report->available = 1;
    report->address_bytes = (uint32_t)ops->address_bytes;
    report->key_bytes = (uint32_t)ops->key_bytes;
    report->offer_bytes = (uint32_t)ops->offer_bytes(&params);
    return WEFT_OK;
}

static weft_status_t open_drivers(wefti_hosts_t *hosts, report_t own[WEFTI_HOSTS_DRIVERS])
{
    for (uint32_t d = 0; d < WEFTI_HOSTS_DRIVERS && wefti_link_drivers[d] != NULL; d++) {
        hosts->drivers[d].ops = wefti_link_drivers[d];
        hosts->driver_count = d + 1;
        WEFT_RETURN_IF_ERROR(open_driver(hosts, &hosts->drivers[d], &own[d]));
    }
    return WEFT_OK;
}

/* Sizes come from peers. */
static bool usable(const report_t *report)
{
    return report->available != 0 && report->address_bytes <= PART_BYTES_MAX &&
           report->key_bytes <= PART_BYTES_MAX && report->offer_bytes <= PART_BYTES_MAX;
}

/* All ranks derive the same sizes: those of the first rank that has the driver. A rank with other
 * sizes counts as one without it. */
static void match_driver(wefti_hosts_t *hosts, const report_t *reports, uint32_t d)
{
    wefti_hosts_driver_t *driver = &hosts->drivers[d];
    const report_t *first = NULL, *own = &reports[hosts->base.rank * WEFTI_HOSTS_DRIVERS + d];
    for (uint32_t r = 0; r < hosts->base.world_size; r++) {
        const report_t *report = &reports[r * WEFTI_HOSTS_DRIVERS + d];
        first = first == NULL && usable(report) ? report : first;
        if (first != NULL && wefti_hosts_is_far(hosts, r) && driver->state != NULL) {
            driver->peers[r] = memcmp(report, first, sizeof *report) == 0 &&
                               memcmp(own, report, sizeof *report) == 0;
        }
    }
    if (first != NULL) {
        driver->present = true;
        driver->address_bytes = first->address_bytes;
        driver->key_bytes = first->key_bytes;
        driver->offer_bytes = first->offer_bytes;
    }
}

static weft_status_t no_common_driver(const wefti_hosts_t *hosts, uint32_t peer)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    char own[WEFTI_WHO_BYTES], other[WEFTI_WHO_BYTES], reasons[400] = "";
    size_t at = 0;
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        const wefti_hosts_driver_t *driver = &hosts->drivers[d];
        int length = snprintf(
            reasons + at, sizeof reasons - at, "%s%s: %s", at > 0 ? "; " : "", driver->ops->name,
            driver->state == NULL ? driver->reason : "the other rank has no matching device");
        at = at + (size_t)length < sizeof reasons ? at + (size_t)length : sizeof reasons - 1;
    }
    return wefti_error(
        WEFT_ERR_UNSUPPORTED, "no common transport for %s and %s (WEFT_TRANSPORT=%s): %s",
        wefti_endpoint_who(&hosts->base, endpoint->rank, 0, own),
        wefti_endpoint_who(&hosts->base, peer, 0, other), endpoint->settings->transport, reasons);
}

static weft_status_t choose_drivers(wefti_hosts_t *hosts)
{
    for (uint32_t r = 0; r < hosts->base.world_size; r++) {
        if (!wefti_hosts_is_far(hosts, r)) {
            continue;
        }
        uint8_t via = wefti_hosts_next_driver(hosts, r, 0);
        if (via == WEFTI_HOSTS_NONE) {
            return no_common_driver(hosts, r);
        }
        atomic_store_explicit(&hosts->via[r], via, memory_order_relaxed);
        for (uint32_t d = 0; d < hosts->driver_count; d++) {
            wefti_hosts_driver_t *driver = &hosts->drivers[d];
            driver->peers[r] = d == via || (driver->peers[r] &&
                                            hosts->base.settings->fallback != WEFTI_FALLBACK_OFF);
            driver->used = driver->used || driver->peers[r];
        }
    }
    return WEFT_OK;
}

/* Collective. Takes the part of each rank's offers that is for this rank. */
static weft_status_t join_driver(wefti_hosts_t *hosts, wefti_hosts_driver_t *driver)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    size_t each = driver->offer_bytes;
    exchange_t addresses, offers;
    weft_status_t status = exchange_init(hosts, driver->address_bytes, &addresses);
    weft_status_t second = exchange_init(hosts, each * endpoint->world_size, &offers);
    status = status < 0 ? status : second;
    if (status == WEFT_OK && driver->used) {
        memcpy(addresses.own, driver->address, addresses.bytes);
    }
    WEFT_TRY(status, exchange_run(hosts, status, &addresses), done);
    if (driver->used) {
        status = driver->ops->join(driver->state, addresses.all, driver->peers);
        status = status < 0 ? wefti_error_prefix(status, "%s", driver->ops->name)
                            : driver->ops->offer(driver->state, offers.own);
    }
    WEFT_TRY(status, exchange_run(hosts, status, &offers), done);
    if (driver->used) {
        for (uint32_t r = 0; r < endpoint->world_size; r++) {
            memmove(offers.all + r * each, offers.all + r * offers.bytes + endpoint->rank * each,
                    each);
        }
        status = driver->ops->offered(driver->state, offers.all);
    }
    status = wefti_endpoint_agree(&hosts->base, status);
done:
    exchange_deinit(hosts, &addresses);
    exchange_deinit(hosts, &offers);
    return status;
}

weft_status_t wefti_hosts_links_open(wefti_hosts_t *hosts)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    report_t own[WEFTI_HOSTS_DRIVERS] = {0};
    report_t *all = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof own);
    weft_status_t status = all == NULL ? WEFT_ERR_NO_MEMORY : open_drivers(hosts, own);
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), done);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, own, sizeof own, all), done);
    for (uint32_t d = 0; d < WEFTI_HOSTS_DRIVERS; d++) {
        match_driver(hosts, all, d);
    }
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, choose_drivers(hosts)), done);
    for (uint32_t d = 0; d < WEFTI_HOSTS_DRIVERS && status == WEFT_OK; d++) {
        status = hosts->drivers[d].present ? join_driver(hosts, &hosts->drivers[d]) : WEFT_OK;
    }
done:
    wefti_free(endpoint->allocator, all);
    return status;
}

void wefti_hosts_links_close(wefti_hosts_t *hosts, bool forked)
{
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        wefti_hosts_driver_t *driver = &hosts->drivers[d];
        if (driver->state != NULL) {
            driver->ops->close(driver->state, forked);
        }
        wefti_free(hosts->base.allocator, driver->address);
        wefti_free(hosts->base.allocator, driver->peers);
    }
}

/* ---- memory ---- */

static weft_status_t grow_driver(wefti_hosts_t *hosts, wefti_hosts_driver_t *driver, size_t from,
                                 size_t to)
{
    uint8_t *base = hosts->base.region_of[hosts->base.rank];
    exchange_t keys;
    weft_status_t status = exchange_init(hosts, driver->key_bytes, &keys);
    if (status == WEFT_OK && driver->used) {
        status = driver->ops->grow(driver->state, base, from, to, keys.own);
        status = status < 0 ? wefti_error_prefix(status, "%s", driver->ops->name) : status;
    }
    WEFT_TRY(status, exchange_run(hosts, status, &keys), done);
    if (driver->used) {
        status = driver->ops->grown(driver->state, keys.all);
        status = status < 0 ? wefti_error_prefix(status, "%s", driver->ops->name) : status;
    }
    status = wefti_endpoint_agree(&hosts->base, status);
done:
    exchange_deinit(hosts, &keys);
    return status;
}

weft_status_t wefti_hosts_links_grow(wefti_hosts_t *hosts, size_t from, size_t to)
{
    for (uint32_t d = 0; d < WEFTI_HOSTS_DRIVERS; d++) {
        if (hosts->drivers[d].present) {
            WEFT_RETURN_IF_ERROR(grow_driver(hosts, &hosts->drivers[d], from, to));
        }
    }
    return WEFT_OK;
}

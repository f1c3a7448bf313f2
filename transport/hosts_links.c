/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and signals between ranks of different hosts. */
#include "transport/hosts.h"

#include <stdio.h>
#include <string.h>

#define FLUSH_CHECK_NS 5000000ull

/* The driver of the peer's link; NULL: it is broken, and there is no other. */
static wefti_hosts_driver_t *driver_of(wefti_hosts_t *hosts, uint32_t peer)
{
    /* Acquire: the switch of the link is complete. */
    uint8_t via = atomic_load_explicit(&hosts->via[peer], memory_order_acquire);
    return via == WEFTI_HOSTS_NONE ? NULL : &hosts->drivers[via];
}

/* The driver has reported the peer as dead. Whether it died, or left and its goodbye is late, is
 * known after the grace, and waiters then get an error with its name. Until then data for it is
 * dropped. */
static weft_status_t lost_if_dead(weft_status_t status)
{
    return status == WEFT_ERR_PEER_DIED ? WEFT_OK : status;
}

weft_status_t wefti_hosts_put(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                              const void *data, size_t bytes, uint32_t lane, wefti_signal_t *in_use)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    if (endpoint->region_of[peer] != NULL) {
        return wefti_put_direct(endpoint, peer, offset, data, bytes, lane, in_use);
    }
    wefti_hosts_driver_t *driver = driver_of(hosts, peer);
    return driver == NULL ? wefti_hosts_broken_error(hosts, peer)
                          : lost_if_dead(driver->ops->put(driver->state, peer, offset, data, bytes,
                                                          lane, in_use));
}

weft_status_t wefti_hosts_signal(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                 uint32_t value, uint32_t lane)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    if (endpoint->region_of[peer] != NULL) {
        return wefti_signal_direct(endpoint, peer, offset, value, lane);
    }
    wefti_hosts_driver_t *driver = driver_of(hosts, peer);
    return driver == NULL
               ? wefti_hosts_broken_error(hosts, peer)
               : lost_if_dead(driver->ops->signal(driver->state, peer, offset, value, lane));
}

void wefti_hosts_turn(wefti_hosts_t *hosts)
{
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        if (hosts->drivers[d].used) {
            hosts->drivers[d].ops->progress(hosts->drivers[d].state);
        }
    }
}

static bool flushed(const wefti_hosts_t *hosts, uint32_t *out_peer)
{
    for (uint32_t d = 0; d < hosts->driver_count; d++) {
        if (hosts->drivers[d].used &&
            !hosts->drivers[d].ops->flushed(hosts->drivers[d].state, out_peer)) {
            return false;
        }
    }
    return true;
}

/* Puts to ranks that have left never land; those ranks have flushed their own. */
static void forget_left(wefti_hosts_t *hosts)
{
    for (uint32_t r = 0; r < hosts->base.world_size; r++) {
        uint8_t via = atomic_load_explicit(&hosts->via[r], memory_order_acquire);
        if (wefti_hosts_is_far(hosts, r) && via != WEFTI_HOSTS_NONE &&
            wefti_endpoint_has_left(&hosts->base, r)) {
            hosts->drivers[via].ops->drop(hosts->drivers[via].state, r);
        }
    }
}

typedef struct flush_wait {
    _Atomic uint32_t peer;
    uint64_t since_ns;
} flush_wait_t;

static bool describe_flush(void *user, wefti_wait_t *out)
{
    flush_wait_t *wait = user;
    out->kind = WEFTI_WAIT_DATA;
    out->channel = WEFTI_WAIT_WORLD;
    out->since_ns = wait->since_ns;
    out->late_count = 1;
    /* relaxed: it is only reported */
    out->late[0] = atomic_load_explicit(&wait->peer, memory_order_relaxed);
    snprintf(out->text, sizeof out->text, "sending what is left");
    return true;
}

static bool flush_posted(wefti_endpoint_t *endpoint, flush_wait_t *wait, wefti_waiter_t *waiter)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    uint64_t start = wait->since_ns, now = start, next_check = now + FLUSH_CHECK_NS;
    uint64_t spin_until = endpoint->may_spin ? now + endpoint->settings->spin_ns : now;
    uint32_t peer = endpoint->rank;
    /* Puts that follow take the new path around each fault that the caller has seen. */
    pthread_mutex_lock(&hosts->lock);
    pthread_mutex_unlock(&hosts->lock);
    while (!flushed(hosts, &peer)) {
        wefti_endpoint_progress(endpoint);
        now = wefti_now_ns();
        if (now >= next_check) {
            /* A world that ended lands nothing any more. */
            if (wefti_endpoint_check(endpoint) < 0) {
                return true;
            }
            if (now - start >= wefti_endpoint_patience(endpoint)) {
                wefti_endpoint_spend_patience(endpoint, now - start);
                wefti_waits_gave_up(endpoint, &peer, 1);
                return false;
            }
            atomic_store_explicit(&wait->peer, peer, memory_order_relaxed);
            if (now - start >= WEFTI_WAITS_AFTER_NS) {
                wefti_waits_look(waiter, endpoint, describe_flush, wait, now);
            }
            next_check = now + FLUSH_CHECK_NS;
            forget_left(hosts);
        }
        if (now < spin_until) {
            wefti_cpu_relax();
        } else {
            wefti_hosts_back_off(hosts);
        }
    }
    return true;
}

bool wefti_hosts_flush(wefti_endpoint_t *endpoint)
{
    flush_wait_t wait = {.since_ns = wefti_now_ns()};
    wefti_waiter_t waiter = {0};
    bool done = flush_posted(endpoint, &wait, &waiter);
    wefti_waits_end(&waiter);
    return done;
}

void wefti_hosts_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                          char *reason, size_t reason_bytes)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    if (!wefti_hosts_is_far(hosts, peer)) {
        snprintf(name, name_bytes, "shm");
        snprintf(reason, reason_bytes, "processes of one host");
        return;
    }
    wefti_hosts_driver_t *driver = driver_of(hosts, peer);
    char path[128] = "", was[WEFTI_HOSTS_WHY_BYTES];
    pthread_mutex_lock(&hosts->lock);
    snprintf(was, sizeof was, "%s", hosts->peers[peer].why);
    pthread_mutex_unlock(&hosts->lock);
    if (driver == NULL) {
        snprintf(name, name_bytes, "none");
        snprintf(reason, reason_bytes, "%s", was);
        return;
    }
    driver->ops->describe(driver->state, peer, path, sizeof path);
    snprintf(name, name_bytes, "%s", driver->ops->name);
    snprintf(reason, reason_bytes, "%s%sother host%s%s", path, path[0] != '\0' ? "; " : "",
             was[0] != '\0' ? "; " : "", was);
}

void wefti_hosts_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    for (uint32_t d = 0; wefti_hosts_is_far(hosts, peer) && d < hosts->driver_count; d++) {
        wefti_link_stats_t one = {0};
        if (!hosts->drivers[d].used) {
            continue;
        }
        hosts->drivers[d].ops->stats(hosts->drivers[d].state, peer, &one);
        out->bytes_sent += one.bytes_sent;
        out->bytes_received += one.bytes_received;
        out->messages_sent += one.messages_sent;
        out->messages_received += one.messages_received;
        out->busy_ns += one.busy_ns;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gathers of the world. While ranks find out who is on which host, all of them exchange
 * messages over the overlay. Later those of a host exchange their parts in shared memory:
 *
 *   host a   0 1 2 3   1  all-gather in shared memory: each rank has the parts of its host
 *            |
 *            |         2  first ranks: all-gather of these over the overlay, O(log hosts) messages
 *            |
 *   host b   4 5 6     3  the first rank writes all parts into shared memory
 */
#include "transport/hosts.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "transport/deadlock.h"

struct wefti_host_gather {
    uint32_t *starts; /* [host_count + 1] ranks on earlier hosts */
    uint32_t *places; /* [world_size] of a rank among all, host by host */
};

/* An all-gather over the overlay that this rank waits in. */
typedef struct gather_wait {
    wefti_endpoint_t *endpoint;
    uint32_t kind; /* wefti_control_kind_t */
    uint64_t since_ns;
    wefti_waiter_t waiter;
} gather_wait_t;

static wefti_hosts_t *hosts_of(wefti_endpoint_t *endpoint)
{
    return (wefti_hosts_t *)endpoint;
}

/* ---- over the overlay ---- */

static bool describe(void *user, wefti_wait_t *out)
{
    const gather_wait_t *wait = user;
    out->kind = WEFTI_WAIT_CONTROL;
    out->channel = WEFTI_WAIT_WORLD;
    out->late_count = 1;
    out->since_ns = wait->since_ns;
    snprintf(out->text, sizeof out->text, "%s", wefti_control_name(wait->kind));
    return wefti_overlay_gather_waits(hosts_of(wait->endpoint)->overlay, &out->late[0],
                                      &out->number);
}

/* WEFT_IN_PROGRESS: there is something to be done meanwhile. */
static weft_status_t check(void *user)
{
    gather_wait_t *wait = user;
    uint64_t now = wefti_now_ns();
    bool busy = wefti_endpoint_meanwhile(wait->endpoint);
    weft_status_t status = wefti_endpoint_check(wait->endpoint);
    if (status == WEFT_OK && now - wait->since_ns >= WEFTI_WAITS_AFTER_NS) {
        wefti_wait_t known = {0};
        wefti_waits_look(&wait->waiter, wait->endpoint, describe, wait, now);
        if (describe(wait, &known)) {
            wefti_endpoint_report_late(wait->endpoint, &known, now - wait->since_ns);
        }
    }
    return status == WEFT_OK && busy ? WEFT_IN_PROGRESS : status;
}

static weft_status_t gather_far(wefti_endpoint_t *endpoint, const wefti_members_t *members,
                                const void *send, size_t bytes, void *recv)
{
    uint64_t timeout = endpoint->settings->timeout_ns;
    gather_wait_t wait = {
        .endpoint = endpoint, .kind = wefti_control_kind(), .since_ns = wefti_now_ns()};
    const wefti_gather_t gather = {.members = members,
                                   .kind = wait.kind,
                                   .send = send,
                                   .bytes = bytes,
                                   .recv = recv,
                                   .timeout_ns = timeout != 0 ? timeout : UINT64_MAX,
                                   .check = check,
                                   .user = &wait};
    wefti_hosts_yield_progress(endpoint);
    weft_status_t status = wefti_overlay_all_gather(hosts_of(endpoint)->overlay, &gather);
    wefti_wait_t late = {0};
    if (status == WEFT_ERR_TIMEOUT && wefti_endpoint_check_all(endpoint) == WEFT_OK) {
        (void)describe(&wait, &late); /* false: the parcel has come since */
        status = wefti_waits_timed_out(endpoint, &late);
    }
    /* Messages in flight belong to this call: no rank may go on. */
    status = status < 0 ? wefti_hosts_end_world(endpoint, status) : status;
    wefti_waits_end(&wait.waiter); /* after the abort: others look for the causes until then */
    return status;
}

bool wefti_hosts_control_sent(wefti_endpoint_t *endpoint, uint32_t number)
{
    return wefti_overlay_gather_sent(hosts_of(endpoint)->overlay, number);
}

/* ---- by hosts ---- */

weft_status_t wefti_hosts_gather_begin(wefti_hosts_t *hosts)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    uint32_t count = endpoint->world_size, host_count = endpoint->host_count;
    if (host_count == 1 || host_count == count) {
        return WEFT_OK;
    }
    size_t words = host_count + 1 + (size_t)count;
    wefti_host_gather_t *gather =
        wefti_alloc(endpoint->allocator, sizeof *gather + words * sizeof(uint32_t));
    if (gather == NULL) { /* without a vote: this rank's host would wait for it there */
        return wefti_hosts_end_world(&hosts->base, WEFT_ERR_NO_MEMORY);
    }
    gather->starts = (uint32_t *)(gather + 1);
    gather->places = gather->starts + host_count + 1;
    for (uint32_t r = 0; r < count; r++) { /* places on the host, and how many it has */
        gather->places[r] = gather->starts[endpoint->host_of[r] + 1]++;
    }
    for (uint32_t h = 0; h < host_count; h++) {
        gather->starts[h + 1] += gather->starts[h];
    }
    for (uint32_t r = 0; r < count; r++) {
        gather->places[r] += gather->starts[endpoint->host_of[r]];
    }
    hosts->gather = gather;
    return WEFT_OK;
}

void wefti_hosts_gather_end(wefti_hosts_t *hosts)
{
    wefti_free(hosts->base.allocator, hosts->gather);
    hosts->gather = NULL;
}

/* The host's part has ended: other hosts do not know. */
static weft_status_t near(wefti_endpoint_t *endpoint, weft_status_t status)
{
    return status < 0 ? wefti_hosts_end_world(endpoint, status) : status;
}

/* parts: [world_size * bytes], which gets those of all ranks, host by host. */
static weft_status_t gather_by_host(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                    uint8_t *parts)
{
    const wefti_hosts_t *hosts = hosts_of(endpoint);
    wefti_endpoint_t *inner = endpoint->inner;
    uint32_t host = endpoint->host_of[endpoint->rank];
    const wefti_members_t members = {.count = endpoint->host_count,
                                     .own = host,
                                     .ranks = hosts->firsts,
                                     .starts = hosts->gather->starts};
    uint8_t *own = parts + members.starts[host] * bytes;
    wefti_overlay_gather_moves(hosts->overlay);
    wefti_link_order();
    WEFT_RETURN_IF_ERROR(near(endpoint, wefti_mapped_all_gather(inner, send, bytes, own)));
    if (inner->rank == 0) {
        WEFT_RETURN_IF_ERROR(gather_far(endpoint, &members, own, bytes, parts));
    }
    weft_status_t status = wefti_mapped_broadcast(inner, parts, endpoint->world_size * bytes);
    wefti_link_order();
    return near(endpoint, status);
}

weft_status_t wefti_hosts_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                     void *recv)
{
    const wefti_hosts_t *hosts = hosts_of(endpoint);
    if (hosts->gather == NULL) {
        return gather_far(endpoint, NULL, send, bytes, recv);
    }
    size_t total;
    weft_status_t status = wefti_overlay_gather_total(bytes, endpoint->world_size, &total);
    uint8_t *parts = status == WEFT_OK ? wefti_alloc(endpoint->allocator, total + 1) : NULL;
    if (parts == NULL) {
        return wefti_hosts_end_world(endpoint, status < 0 ? status : WEFT_ERR_NO_MEMORY);
    }
    status = gather_by_host(endpoint, send, bytes, parts);
    for (uint32_t r = 0; status == WEFT_OK && bytes > 0 && r < endpoint->world_size; r++) {
        memcpy((uint8_t *)recv + r * bytes, parts + hosts->gather->places[r] * bytes, bytes);
    }
    wefti_free(endpoint->allocator, parts);
    return status;
}

/* As above, with one bit of each host. */
static weft_status_t any_by_host(wefti_endpoint_t *endpoint, bool own, bool *out_any)
{
    const wefti_hosts_t *hosts = hosts_of(endpoint);
    wefti_endpoint_t *inner = endpoint->inner;
    const wefti_members_t members = {.count = endpoint->host_count,
                                     .own = endpoint->host_of[endpoint->rank],
                                     .ranks = hosts->firsts};
    wefti_overlay_gather_moves(hosts->overlay);
    wefti_link_order();
    WEFT_RETURN_IF_ERROR(near(endpoint, wefti_mapped_any(inner, own, &own)));
    if (inner->rank == 0) {
        const uint8_t mine = own;
        uint8_t *all = endpoint->verdicts; /* of more bytes per rank */
        WEFT_RETURN_IF_ERROR(gather_far(endpoint, &members, &mine, sizeof mine, all));
        own = memchr(all, true, endpoint->host_count) != NULL;
    }
    weft_status_t status = wefti_mapped_any(inner, own, out_any);
    wefti_link_order();
    return near(endpoint, status);
}

weft_status_t wefti_hosts_any(wefti_endpoint_t *endpoint, bool own, bool *out_any)
{
    const uint8_t mine = own;
    uint8_t *all = endpoint->verdicts; /* of more bytes per rank */
    if (hosts_of(endpoint)->gather != NULL) {
        return any_by_host(endpoint, own, out_any);
    }
    weft_status_t status = gather_far(endpoint, NULL, &mine, sizeof mine, all);
    *out_any = status == WEFT_OK && memchr(all, true, endpoint->world_size) != NULL;
    return status;
}

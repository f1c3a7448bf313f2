/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong between hosts: ranks that leave or die, links that break, worlds that end. */
#include "transport/hosts.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "transport/deadlock.h"

/* A goodbye may arrive this much later than the end of the connections; later in large worlds. */
#define GRACE_NS 300000000ull

typedef struct abort_message {
    int32_t status;
    uint32_t rank;
    char text[WEFTI_ERROR_TEXT_BYTES];
} abort_message_t;
_Static_assert(sizeof(abort_message_t) <= WEFTI_FLOOD_BYTES, "floods are short");

_Static_assert(sizeof(wefti_link_fault_t) <= WEFTI_FLOOD_BYTES, "floods are short");

/* ---- the end of the world ---- */

static abort_message_t message_of(const wefti_endpoint_t *endpoint, weft_status_t status,
                                  const char *text)
{
    abort_message_t message = {.status = status, .rank = endpoint->rank};
    snprintf(message.text, sizeof message.text, "%s", text);
    return message;
}

void wefti_hosts_aborted(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    if (hosts->overlay == NULL ||
        atomic_exchange_explicit(&hosts->abort_sent, 1, memory_order_relaxed) != 0) {
        return;
    }
    const abort_message_t message = message_of(endpoint, status, text);
    wefti_overlay_flood(hosts->overlay, WEFTI_HOSTS_ABORT, &message, sizeof message);
}

static void receive_abort(wefti_hosts_t *hosts, const void *data, size_t bytes)
{
    abort_message_t message;
    if (bytes != sizeof message) {
        return;
    }
    memcpy(&message, data, sizeof message);
    message.text[sizeof message.text - 1] = '\0';
    /* The flood reaches all ranks. */
    atomic_store_explicit(&hosts->abort_sent, 1, memory_order_relaxed);
    wefti_endpoint_abort_here(&hosts->base, (weft_status_t)message.status, message.text);
}

/* ---- what ranks wait in ---- */

typedef struct waits_message {
    uint32_t generation, count, moves, vain_count;
    uint64_t agreed, concluded;
    uint64_t sent_ns; /* by the clock that since_ns and vain_ns are of */
    uint64_t vain_ns;
    uint32_t vain_late[WEFTI_WAIT_RANKS];
    wefti_wait_t list[WEFTI_WAITS];
} waits_message_t;
_Static_assert(sizeof(waits_message_t) <= WEFTI_FLOOD_BYTES, "floods are short");

void wefti_hosts_waits_posted(wefti_endpoint_t *endpoint)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    const wefti_waits_block_t *own = &endpoint->control[endpoint->rank]->waits;
    wefti_waits_view_t view;
    waits_message_t message = {.count = wefti_waits_load(own, &view), .sent_ns = wefti_now_ns()};
    message.generation = view.generation;
    message.moves = atomic_load_explicit(&own->moves, memory_order_relaxed);
    message.agreed = atomic_load_explicit(&own->agreed, memory_order_relaxed);
    message.concluded = atomic_load_explicit(&own->concluded, memory_order_relaxed);
    /* acquire: the rest is of this count */
    message.vain_count = atomic_load_explicit(&own->vain_count, memory_order_acquire);
    message.vain_ns = atomic_load_explicit(&own->vain_ns, memory_order_relaxed);
    for (uint32_t i = 0; i < WEFTI_WAIT_RANKS; i++) {
        message.vain_late[i] = atomic_load_explicit(&own->vain_late[i], memory_order_relaxed);
    }
    if (message.generation == hosts->waits_sent.generation &&
        message.moves == hosts->waits_sent.moves && message.agreed == hosts->waits_sent.agreed &&
        message.concluded == hosts->waits_sent.concluded) {
        return;
    }
    hosts->waits_sent.generation = message.generation;
    hosts->waits_sent.moves = message.moves;
    hosts->waits_sent.agreed = message.agreed;
    hosts->waits_sent.concluded = message.concluded;
    memcpy(message.list, view.list, message.count * sizeof *view.list);
    wefti_overlay_flood(hosts->overlay, WEFTI_HOSTS_WAITS, &message,
                        offsetof(waits_message_t, list) + message.count * sizeof *view.list);
}

/* A time of another host, by the clock of this one, without the time that the message took. */
static uint64_t here(uint64_t time_ns, uint64_t sent_ns, uint64_t now)
{
    uint64_t age_ns = sent_ns - time_ns;
    return age_ns < now ? now - age_ns : 1;
}

/* Floods may overtake each other: an older one is dropped. By the thread that makes progress. */
static void receive_waits(wefti_hosts_t *hosts, uint32_t origin, const void *data, size_t bytes)
{
    waits_message_t message;
    if (bytes < offsetof(waits_message_t, list) || bytes > sizeof message ||
        origin >= hosts->base.world_size ||
        hosts->base.control[origin] != &hosts->peers[origin].control) {
        return; /* mapped: the rank itself writes there */
    }
    memcpy(&message, data, bytes);
    wefti_waits_block_t *waits = &hosts->base.control[origin]->waits;
    uint32_t known = atomic_load_explicit(&waits->generation, memory_order_relaxed);
    if (message.count > WEFTI_WAITS || (message.generation & 1) != 0 ||
        bytes != offsetof(waits_message_t, list) + message.count * sizeof *message.list ||
        !wefti_signal_reached(message.generation, known)) {
        return;
    }
    uint64_t now = wefti_now_ns();
    for (uint32_t i = 0; i < message.count; i++) {
        message.list[i].since_ns = here(message.list[i].since_ns, message.sent_ns, now);
    }
    wefti_waits_store_vain(waits, here(message.vain_ns, message.sent_ns, now), message.vain_late,
                           message.vain_count);
    wefti_waits_store(waits, message.generation, message.list, message.count);
    atomic_store_explicit(&waits->moves, message.moves, memory_order_relaxed);
    atomic_store_explicit(&waits->concluded, message.concluded, memory_order_relaxed);
    atomic_store_explicit(&waits->agreed, message.agreed, memory_order_release);
}

/* ---- errors of groups ---- */

void wefti_hosts_error_noted(wefti_endpoint_t *endpoint)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    const wefti_fault_t *cause = &endpoint->control[endpoint->rank]->cause;
    if (hosts->overlay != NULL) {
        const abort_message_t message = message_of(endpoint, cause->status, cause->text);
        wefti_overlay_flood(hosts->overlay, WEFTI_HOSTS_CAUSE, &message, sizeof message);
    }
}

static void receive_cause(wefti_hosts_t *hosts, uint32_t origin, const void *data, size_t bytes)
{
    abort_message_t message;
    if (bytes != sizeof message || origin >= hosts->base.world_size ||
        !wefti_hosts_is_far(hosts, origin)) {
        return;
    }
    memcpy(&message, data, sizeof message);
    message.text[sizeof message.text - 1] = '\0';
    wefti_fault_set(&hosts->base.control[origin]->cause, message.status, message.text);
}

typedef struct refusal_message {
    uint64_t serial;
    uint64_t place;
    wefti_refusal_t refusal;
} refusal_message_t;
_Static_assert(sizeof(refusal_message_t) <= WEFTI_FLOOD_BYTES, "floods are short");

/* All of them: there are few, and seldom any. */
void wefti_hosts_refusal_changed(wefti_endpoint_t *endpoint)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    const wefti_refusal_block_t *own = endpoint->control[endpoint->rank]->refusals;
    refusal_message_t message;
    for (message.place = 0; hosts->overlay != NULL && message.place < WEFTI_REFUSALS;
         message.place++) {
        if (wefti_refusal_load(&own[message.place], &message.serial, &message.refusal) &&
            message.serial != 0) {
            wefti_overlay_flood(hosts->overlay, WEFTI_HOSTS_REFUSAL, &message, sizeof message);
        }
    }
}

/* By the thread that makes progress; an older one is dropped. */
static void receive_refusal(wefti_hosts_t *hosts, uint32_t origin, const void *data, size_t bytes)
{
    refusal_message_t message;
    if (bytes != sizeof message || origin >= hosts->base.world_size ||
        !wefti_hosts_is_far(hosts, origin)) {
        return;
    }
    memcpy(&message, data, sizeof message);
    if (message.place >= WEFTI_REFUSALS) {
        return;
    }
    wefti_refusal_block_t *block = &hosts->base.control[origin]->refusals[message.place];
    if (message.serial > atomic_load_explicit(&block->serial, memory_order_relaxed)) {
        wefti_refusal_store(block, message.serial, &message.refusal);
    }
}

/* ---- attempts outside of the world ---- */

void wefti_hosts_gave_up(wefti_endpoint_t *endpoint)
{
    wefti_hosts_t *hosts = (wefti_hosts_t *)endpoint;
    uint32_t attempt =
        atomic_load_explicit(&endpoint->control[endpoint->rank]->gave_up, memory_order_relaxed);
    wefti_overlay_flood(hosts->overlay, WEFTI_HOSTS_GAVE_UP, &attempt, sizeof attempt);
}

static void receive_gave_up(wefti_hosts_t *hosts, uint32_t origin, const void *data, size_t bytes)
{
    uint32_t attempt;
    if (bytes == sizeof attempt && origin < hosts->base.world_size &&
        wefti_hosts_is_far(hosts, origin)) {
        memcpy(&attempt, data, sizeof attempt);
        atomic_store_explicit(&hosts->base.control[origin]->gave_up, attempt, memory_order_relaxed);
    }
}

/* ---- who left, who died ---- */

void wefti_hosts_left(void *owner, uint32_t rank)
{
    wefti_hosts_t *hosts = owner;
    /* On one host, ranks leave the overlay when they are done with it. */
    if (rank >= hosts->base.world_size ||
        (hosts->base.host_count == 1 && !wefti_hosts_is_far(hosts, rank))) {
        return;
    }
    /* Release: as the rank itself does it where control blocks are shared. */
    atomic_store_explicit(&hosts->base.control[rank]->left, 1, memory_order_release);
}

static void report_dead(wefti_hosts_t *hosts, uint32_t rank, const char *how)
{
    char who[WEFTI_WHO_BYTES], text[WEFTI_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s died%s%s", wefti_endpoint_who(&hosts->base, rank, 0, who),
             how[0] != '\0' ? ": " : "", how);
    wefti_endpoint_abort(&hosts->base, WEFT_ERR_PEER_DIED, text);
}

void wefti_hosts_died(void *owner, uint32_t rank, const char *how)
{
    wefti_hosts_t *hosts = owner;
    if (rank < hosts->base.world_size && !wefti_endpoint_has_left(&hosts->base, rank)) {
        report_dead(hosts, rank, how != NULL ? how : "");
    }
}

static void suspect(wefti_hosts_t *hosts, uint32_t rank, const char *text)
{
    wefti_hosts_peer_t *peer = &hosts->peers[rank];
    pthread_mutex_lock(&hosts->lock);
    if (peer->suspect_ns == 0) {
        peer->suspect_ns = wefti_now_ns();
        snprintf(peer->suspicion, sizeof peer->suspicion, "%s", text);
        atomic_store_explicit(&hosts->suspect_any, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&hosts->lock);
}

weft_status_t wefti_hosts_check_suspects(wefti_hosts_t *hosts)
{
    if (atomic_load_explicit(&hosts->suspect_any, memory_order_relaxed) == 0) {
        return WEFT_OK;
    }
    char who[WEFTI_WHO_BYTES];
    weft_status_t status = WEFT_OK;
    uint64_t now = wefti_now_ns(),
             grace = GRACE_NS + wefti_overlay_gone_delay(hosts->base.world_size);
    pthread_mutex_lock(&hosts->lock);
    for (uint32_t r = 0; status == WEFT_OK && r < hosts->base.world_size; r++) {
        const wefti_hosts_peer_t *peer = &hosts->peers[r];
        if (peer->suspect_ns == 0 || wefti_endpoint_has_left(&hosts->base, r) ||
            now - peer->suspect_ns < grace) {
            continue;
        }
        if (peer->suspicion[0] != '\0') {
            status = wefti_error(WEFT_ERR_PEER_DIED, "%s died: %s",
                                 wefti_endpoint_who(&hosts->base, r, 0, who), peer->suspicion);
        } else {
            wefti_hosts_left(hosts, r);
        }
    }
    pthread_mutex_unlock(&hosts->lock);
    return status;
}

/* ---- links ---- */

weft_status_t wefti_hosts_broken_error(wefti_hosts_t *hosts, uint32_t peer)
{
    char own[WEFTI_WHO_BYTES], other[WEFTI_WHO_BYTES], was[WEFTI_HOSTS_WHY_BYTES];
    pthread_mutex_lock(&hosts->lock);
    snprintf(was, sizeof was, "%s", hosts->peers[peer].why);
    pthread_mutex_unlock(&hosts->lock);
    return wefti_error(WEFT_ERR_LINK, "the link between %s and %s is broken: %s",
                       wefti_endpoint_who(&hosts->base, hosts->base.rank, 0, own),
                       wefti_endpoint_who(&hosts->base, peer, 0, other), was);
}

/* Records a fault once, though several ranks report it. False: it is known. Under the lock. */
static bool record(wefti_endpoint_t *endpoint, const wefti_link_fault_t *fault,
                   weft_status_t *out_status)
{
    uint32_t count = atomic_load_explicit(&endpoint->link_faults, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_link_fault_t *known = &endpoint->faults[i];
        if (known->ranks[0] == fault->ranks[0] && known->ranks[1] == fault->ranks[1] &&
            strcmp(known->driver, fault->driver) == 0) {
            return false;
        }
    }
    *out_status = wefti_endpoint_note_fault(endpoint, fault);
    return true;
}

/* The other end, if the link is this rank's to a rank on another host. */
static uint32_t far_end(const wefti_hosts_t *hosts, const wefti_link_fault_t *fault)
{
    uint32_t end = fault->ranks[0] == hosts->base.rank ? 1 : 0, peer = fault->ranks[end];
    bool own = fault->ranks[1 - end] == hosts->base.rank;
    return own && wefti_hosts_is_far(hosts, peer) ? peer : WEFTI_HOSTS_FAR;
}

/* Moves the pair's traffic to the next driver that both have; both ends do so on their own. Returns
 * the driver before. NULL: the pair does not use the fault's driver. Under the lock. */
static wefti_hosts_driver_t *switch_over(wefti_hosts_t *hosts, uint32_t peer,
                                         const wefti_link_fault_t *fault)
{
    uint8_t via = peer != WEFTI_HOSTS_FAR
                      ? atomic_load_explicit(&hosts->via[peer], memory_order_relaxed)
                      : WEFTI_HOSTS_NONE;
    if (via == WEFTI_HOSTS_NONE || strcmp(hosts->drivers[via].ops->name, fault->driver) != 0) {
        return NULL;
    }
    snprintf(hosts->peers[peer].why, sizeof hosts->peers[peer].why, "%s", fault->text);
    atomic_store_explicit(&hosts->via[peer], wefti_hosts_next_driver(hosts, peer, via + 1u),
                          memory_order_release);
    return &hosts->drivers[via];
}

static void log_switch(wefti_hosts_t *hosts, uint32_t peer, const wefti_link_fault_t *fault)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    char own[WEFTI_WHO_BYTES], other[WEFTI_WHO_BYTES];
    uint8_t via = atomic_load_explicit(&hosts->via[peer], memory_order_relaxed);
    wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN, "%s; %s and %s continue %s%s", fault->text,
              wefti_endpoint_who(endpoint, endpoint->rank, 0, own),
              wefti_endpoint_who(endpoint, peer, 0, other),
              via == WEFTI_HOSTS_NONE ? "without a link" : "over ",
              via == WEFTI_HOSTS_NONE ? "" : hosts->drivers[via].ops->name);
}

/*
 * A fault that this rank noticed (told: false) or received. The record comes first: whatever
 * arrives over the next driver comes after it. One section of the lock has both, so that
 * wefti_hosts_flush can wait for the switch of a fault that it sees.
 */
static void take_fault(wefti_hosts_t *hosts, const wefti_link_fault_t *fault, bool told)
{
    uint32_t peer = far_end(hosts, fault);
    weft_status_t status = WEFT_OK;
    pthread_mutex_lock(&hosts->lock);
    bool fresh = record(&hosts->base, fault, &status);
    wefti_hosts_driver_t *before = switch_over(hosts, peer, fault);
    pthread_mutex_unlock(&hosts->lock);
    if (status < 0) {
        wefti_endpoint_abort(&hosts->base, status, weft_last_error());
    }
    if (fresh && !told) {
        wefti_overlay_flood(hosts->overlay, WEFTI_HOSTS_FAULT, fault, sizeof *fault);
    }
    if (before != NULL) {
        before->ops->drop(before->state, peer);
        log_switch(hosts, peer, fault);
    }
}

/* One driver of this rank lost its link to peer. */
static void link_fault(wefti_hosts_t *hosts, uint32_t peer, const char *driver, const char *text)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    uint32_t low = peer < endpoint->rank ? peer : endpoint->rank;
    uint32_t high = peer < endpoint->rank ? endpoint->rank : peer;
    char first[WEFTI_WHO_BYTES], second[WEFTI_WHO_BYTES];
    wefti_link_fault_t fault = {.ranks = {low, high}};
    snprintf(fault.driver, sizeof fault.driver, "%s", driver);
    snprintf(fault.text, sizeof fault.text, "the %s link between %s and %s broke: %s", driver,
             wefti_endpoint_who(&hosts->base, low, 0, first),
             wefti_endpoint_who(&hosts->base, high, 0, second), text);
    take_fault(hosts, &fault, false);
}

void wefti_hosts_arriving(void *owner, uint32_t peer)
{
    wefti_hosts_driver_t *driver = owner;
    wefti_hosts_t *hosts = driver->hosts;
    uint8_t via = peer < hosts->base.world_size
                      ? atomic_load_explicit(&hosts->via[peer], memory_order_acquire)
                      : WEFTI_HOSTS_NONE;
    if (via != WEFTI_HOSTS_NONE && &hosts->drivers[via] < driver) { /* a better one */
        link_fault(hosts, peer, hosts->drivers[via].ops->name, "the other end closed it");
    }
}

void wefti_hosts_leaving(void *owner, uint32_t peer)
{
    wefti_hosts_t *hosts = ((wefti_hosts_driver_t *)owner)->hosts;
    if (peer < hosts->base.world_size && !wefti_endpoint_has_left(&hosts->base, peer)) {
        suspect(hosts, peer, "");
        wefti_hosts_wake(owner);
    }
}

void wefti_hosts_broken(void *owner, uint32_t peer, bool died, const char *text)
{
    wefti_hosts_driver_t *driver = owner;
    wefti_hosts_t *hosts = driver->hosts;
    if (peer >= hosts->base.world_size || wefti_endpoint_has_left(&hosts->base, peer)) {
        return;
    }
    if (died) {
        suspect(hosts, peer, text);
        wefti_hosts_wake(driver);
    } else {
        link_fault(hosts, peer, driver->ops->name, text);
    }
}

static void receive_fault(wefti_hosts_t *hosts, const void *data, size_t bytes)
{
    wefti_link_fault_t fault;
    if (bytes != sizeof fault) {
        return;
    }
    memcpy(&fault, data, sizeof fault);
    fault.text[sizeof fault.text - 1] = '\0';
    fault.driver[sizeof fault.driver - 1] = '\0';
    if (fault.ranks[0] >= fault.ranks[1] || fault.ranks[1] >= hosts->base.world_size) {
        return;
    }
    take_fault(hosts, &fault, true);
}

void wefti_hosts_received(void *owner, uint32_t origin, uint32_t kind, const void *data,
                          size_t bytes)
{
    wefti_hosts_t *hosts = owner;
    if (origin == hosts->base.rank) {
        return;
    }
    if (kind == WEFTI_HOSTS_ABORT) {
        receive_abort(hosts, data, bytes);
    } else if (kind == WEFTI_HOSTS_FAULT) {
        receive_fault(hosts, data, bytes);
    } else if (kind == WEFTI_HOSTS_WAITS) {
        receive_waits(hosts, origin, data, bytes);
    } else if (kind == WEFTI_HOSTS_CAUSE) {
        receive_cause(hosts, origin, data, bytes);
    } else if (kind == WEFTI_HOSTS_REFUSAL) {
        receive_refusal(hosts, origin, data, bytes);
    } else if (kind == WEFTI_HOSTS_GAVE_UP) {
        receive_gave_up(hosts, origin, data, bytes);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/hook.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tests/faults/delays.h"
#include "tests/faults/network.h"
#include "transport/endpoint.h"

/* From this rank to a peer. */
typedef struct link {
    _Atomic uint64_t counts[WEFTI_HOOK_SIGNAL + 1]; /* of puts and of signals so far */
    _Atomic uint64_t messages;                      /* of both */
    wefti_delay_t delay;
    bool delays; /* its messages go through the queue, all of them */
} link_t;

typedef struct hook {
    wefti_transport_ops_t ops; /* what the endpoint calls; found from there */
    const wefti_transport_ops_t *inner;
    wefti_endpoint_t *endpoint;
    wefti_hook_rules_t rules;
    link_t *links; /* [world_size] */
    _Atomic uint64_t calls[WEFTI_HOOK_CALLS];
    wefti_delays_t *delays; /* NULL: nothing takes longer */
} hook_t;
_Static_assert(offsetof(hook_t, ops) == 0, "an endpoint's table is its hook");

static hook_t *hook_of(const wefti_endpoint_t *endpoint)
{
    return (hook_t *)(uintptr_t)endpoint->ops;
}

static bool matches(uint32_t wanted, uint32_t rank)
{
    return wanted == WEFTI_HOOK_ANY || wanted == rank;
}

/* The first rule of a kind between this rank and peer, or NULL. */
static const wefti_hook_rule_t *rule_for(const hook_t *hook, wefti_hook_kind_t kind, uint32_t peer)
{
    for (uint32_t i = 0; i < hook->rules.count; i++) {
        const wefti_hook_rule_t *rule = &hook->rules.rules[i];
        if (rule->kind == kind && matches(rule->from, hook->endpoint->rank) &&
            matches(rule->to, peer)) {
            return rule;
        }
    }
    return NULL;
}

/* Counts a call of this rank; an error when a rule says that it fails. */
static weft_status_t count_call(hook_t *hook, wefti_hook_call_t call, const char *name)
{
    uint64_t number = atomic_fetch_add(&hook->calls[call], 1) + 1;
    for (uint32_t i = 0; i < hook->rules.count; i++) {
        const wefti_hook_rule_t *rule = &hook->rules.rules[i];
        if (rule->kind == WEFTI_HOOK_FAIL && rule->call == call &&
            matches(rule->from, hook->endpoint->rank) && rule->amount == number) {
            return wefti_error(rule->status, "injected fault: %s number %llu of rank %u", name,
                               (unsigned long long)number, hook->endpoint->rank);
        }
    }
    return WEFT_OK;
}

/* Counts a message to peer. WEFT_IN_PROGRESS: it is lost. */
static weft_status_t count_message(hook_t *hook, uint32_t peer, wefti_hook_call_t call)
{
    uint32_t own = hook->endpoint->rank;
    uint64_t number = atomic_fetch_add(&hook->links[peer].counts[call], 1) + 1;
    uint64_t message = atomic_fetch_add(&hook->links[peer].messages, 1) + 1;
    weft_status_t status = count_call(hook, call, call == WEFTI_HOOK_PUT ? "put" : "signal");
    if (status < 0) {
        return status;
    }
    for (uint32_t i = 0; i < hook->rules.count; i++) {
        const wefti_hook_rule_t *rule = &hook->rules.rules[i];
        if (!matches(rule->from, hook->endpoint->rank) || !matches(rule->to, peer)) {
            continue;
        }
        if (rule->kind == WEFTI_HOOK_DROP && rule->call == call && rule->amount == number) {
            return WEFT_IN_PROGRESS;
        }
        if (rule->kind == WEFTI_HOOK_BREAK && rule->amount == message) {
            char text[120];
            snprintf(text, sizeof text,
                     "injected fault: the link between rank %u and rank %u broke at message %llu",
                     peer < own ? peer : own, peer < own ? own : peer, (unsigned long long)message);
            if (hook->delays != NULL) {
                wefti_delays_lose(hook->delays, hook->endpoint->rank, peer, NULL, NULL);
            }
            status = wefti_fault_break_link(hook->endpoint, peer, text);
            return status < 0 ? status : WEFT_IN_PROGRESS;
        }
    }
    return WEFT_OK;
}

/* ---- messages ---- */

/* A link that breaks meanwhile says so by itself. */
static void deliver(void *user, const wefti_parcel_t *parcel, const void *data)
{
    hook_t *hook = user;
    if (parcel->is_signal) {
        hook->inner->signal(hook->endpoint, parcel->to, parcel->place, parcel->value, parcel->lane);
    } else {
        hook->inner->put(hook->endpoint, parcel->to, parcel->place, data, parcel->bytes,
                         parcel->lane, NULL);
    }
}

static weft_status_t hook_put(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                              const void *data, size_t bytes, uint32_t lane, wefti_signal_t *lent)
{
    hook_t *hook = hook_of(endpoint);
    weft_status_t status = count_message(hook, peer, WEFTI_HOOK_PUT);
    if (status != WEFT_OK) {
        return status < 0 ? status : WEFT_OK;
    }
    if (hook->links[peer].delays) { /* lent until it is delivered */
        wefti_parcel_t parcel = {.from = endpoint->rank,
                                 .to = peer,
                                 .lane = lane,
                                 .place = offset,
                                 .bytes = bytes,
                                 .lent = lent};
        return wefti_delays_send(hook->delays, &parcel, data, &hook->links[peer].delay);
    }
    return hook->inner->put(endpoint, peer, offset, data, bytes, lane, lent);
}

static weft_status_t hook_signal(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                 uint32_t value, uint32_t lane)
{
    hook_t *hook = hook_of(endpoint);
    weft_status_t status = count_message(hook, peer, WEFTI_HOOK_SIGNAL);
    if (status != WEFT_OK) {
        return status < 0 ? status : WEFT_OK;
    }
    if (hook->links[peer].delays) {
        wefti_parcel_t parcel = {.from = endpoint->rank,
                                 .to = peer,
                                 .lane = lane,
                                 .is_signal = true,
                                 .value = value,
                                 .place = offset};
        return wefti_delays_send(hook->delays, &parcel, NULL, &hook->links[peer].delay);
    }
    return hook->inner->signal(endpoint, peer, offset, value, lane);
}

static bool hook_flush(wefti_endpoint_t *endpoint)
{
    hook_t *hook = hook_of(endpoint);
    if (hook->delays != NULL) {
        wefti_delays_flush(hook->delays, endpoint->rank);
    }
    return hook->inner->flush(endpoint);
}

static void hook_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out)
{
    hook_t *hook = hook_of(endpoint);
    hook->inner->link_stats(endpoint, peer, out);
    if (hook->links[peer].delays) { /* the time that it spends here counts, too */
        wefti_link_stats_t waited = {0};
        wefti_delays_stats(hook->delays, endpoint->rank, peer, &waited);
        out->bytes_sent = waited.bytes_sent;
        out->messages_sent = waited.messages_sent;
        out->busy_ns += waited.busy_ns;
    }
}

/* ---- collective calls ---- */

/* Of all-gathers and barriers a failure ends the world, as of every transport. */
static weft_status_t refuse(wefti_endpoint_t *endpoint, weft_status_t status)
{
    wefti_endpoint_abort(endpoint, status, weft_last_error());
    return status;
}

static weft_status_t hook_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                     void *recv)
{
    hook_t *hook = hook_of(endpoint);
    weft_status_t status = bytes > 0 ? count_call(hook, WEFTI_HOOK_ALL_GATHER, "all-gather")
                                     : count_call(hook, WEFTI_HOOK_BARRIER, "barrier");
    return status < 0 ? refuse(endpoint, status)
                      : hook->inner->all_gather(endpoint, send, bytes, recv);
}

static weft_status_t hook_any(wefti_endpoint_t *endpoint, bool own, bool *out_any)
{
    hook_t *hook = hook_of(endpoint);
    weft_status_t status = count_call(hook, WEFTI_HOOK_ALL_GATHER, "all-gather");
    return status < 0 ? refuse(endpoint, status) : hook->inner->any(endpoint, own, out_any);
}

/* The rank that fails says so to the others, who wait for its part in the growth. */
static weft_status_t hook_region_grow(wefti_endpoint_t *endpoint, size_t bytes, bool later)
{
    hook_t *hook = hook_of(endpoint);
    weft_status_t status = count_call(hook, WEFTI_HOOK_GROW, "growth");
    return status < 0 ? refuse(endpoint, status) : hook->inner->region_grow(endpoint, bytes, later);
}

/* ---- making and unmaking ---- */

static void hook_free(hook_t *hook)
{
    wefti_delays_destroy(hook->delays);
    wefti_free(NULL, hook->links);
    wefti_free(NULL, hook);
}

static void hook_close(wefti_endpoint_t *endpoint)
{
    hook_t *hook = hook_of(endpoint);
    /* What is delayed goes to an endpoint that is open; a thread of that may ask until it is not. */
    wefti_delays_destroy(hook->delays);
    hook->delays = NULL;
    hook->inner->close(endpoint);
    hook_free(hook);
}

static void measure_link(hook_t *hook, uint32_t peer)
{
    const wefti_hook_rule_t *fixed = rule_for(hook, WEFTI_HOOK_DELAY, peer);
    const wefti_hook_rule_t *jitter = rule_for(hook, WEFTI_HOOK_JITTER, peer);
    const wefti_hook_rule_t *rate = rule_for(hook, WEFTI_HOOK_RATE, peer);
    link_t *link = &hook->links[peer];
    link->delay.fixed_ns = fixed != NULL ? fixed->amount : 0;
    link->delay.random_ns = jitter != NULL ? jitter->amount : 0;
    link->delay.rate_bytes_per_s = rate != NULL ? rate->amount : 0;
    link->delays = fixed != NULL || jitter != NULL || rate != NULL;
}

weft_status_t wefti_hook_attach(wefti_endpoint_t *endpoint, const wefti_hook_rules_t *rules)
{
    hook_t *hook = wefti_alloc(NULL, sizeof *hook);
    if (hook == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    hook->inner = endpoint->ops;
    hook->endpoint = endpoint;
    hook->rules = *rules;
    hook->links = wefti_alloc(NULL, endpoint->world_size * sizeof *hook->links);
    if (hook->links == NULL) {
        hook_free(hook);
        return WEFT_ERR_NO_MEMORY;
    }
    bool delays = false;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        measure_link(hook, r);
        delays = delays || hook->links[r].delays;
    }
    weft_status_t status = WEFT_OK;
    if (delays) {
        status =
            wefti_delays_create(endpoint->world_size, rules->seed, deliver, hook, &hook->delays);
    }
    if (status < 0) {
        hook_free(hook);
        return status;
    }
    hook->ops = *endpoint->ops;
    hook->ops.close = hook_close;
    hook->ops.all_gather = hook_all_gather;
    hook->ops.any = hook_any;
    hook->ops.region_grow = hook_region_grow;
    hook->ops.put = hook_put;
    hook->ops.signal = hook_signal;
    hook->ops.flush = hook_flush;
    hook->ops.link_stats = hook_link_stats;
    endpoint->ops = &hook->ops;
    return WEFT_OK;
}

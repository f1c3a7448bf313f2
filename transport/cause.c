/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a rank left or died: the first error that it had in one of its groups. Ranks that wait for it
 * elsewhere report that, too, and not only the consequence.
 */
#include "transport/transport.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "transport/endpoint.h"

#define MARK " had an error before: "

/* A world that has ended tells all ranks why. */
static bool is_worth_it(const wefti_endpoint_t *endpoint, weft_status_t status)
{
    const wefti_control_t *own = endpoint->control[endpoint->rank];
    return status != WEFT_ERR_LINK && wefti_endpoint_owned(endpoint) &&
           atomic_load_explicit(&own->abort.state, memory_order_relaxed) == 0;
}

void wefti_endpoint_note_error(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    wefti_fault_t *cause = &endpoint->control[endpoint->rank]->cause;
    if (is_worth_it(endpoint, status) && wefti_fault_set(cause, status, text)) {
        endpoint->ops->error_noted(endpoint->host);
    }
}

/* ---- refusals ---- */

#define STATES 4u
#define LOAD_TRIES 100u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* threads of a rank that refuse */

void wefti_refusal_store(wefti_refusal_block_t *block, uint64_t serial,
                         const wefti_refusal_t *refusal)
{
    uint64_t words[WEFTI_REFUSAL_WORDS];
    memcpy(words, refusal, sizeof words);
    /* another serial first: readers that see new words see that */
    atomic_store_explicit(&block->serial, serial - serial % STATES, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t w = 0; w < WEFTI_REFUSAL_WORDS; w++) {
        atomic_store_explicit(&block->words[w], words[w], memory_order_relaxed);
    }
    atomic_store_explicit(&block->serial, serial, memory_order_release);
}

bool wefti_refusal_load(const wefti_refusal_block_t *block, uint64_t *out_serial,
                        wefti_refusal_t *out)
{
    for (uint32_t try = 0; try < LOAD_TRIES; try++) {
        /* acquire: the words of this serial; the fence: not those of a later one */
        uint64_t serial = atomic_load_explicit(&block->serial, memory_order_acquire);
        uint64_t words[WEFTI_REFUSAL_WORDS];
        for (size_t w = 0; w < WEFTI_REFUSAL_WORDS; w++) {
            words[w] = atomic_load_explicit(&block->words[w], memory_order_relaxed);
        }
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&block->serial, memory_order_relaxed) == serial) {
            memcpy(out, words, sizeof *out);
            out->text[sizeof out->text - 1] = '\0'; /* another process wrote it */
            out->status =
                out->status >= 0 || out->status < WEFT_ERR_LINK ? WEFT_ERR_ABORTED : out->status;
            *out_serial = serial;
            return true;
        }
        wefti_cpu_relax();
    }
    return false;
}

static uint64_t serial_of(const wefti_refusal_block_t *block)
{
    return atomic_load_explicit(&block->serial, memory_order_relaxed);
}

/* Under the lock. Serials of all places count together: the greatest one is of the last change. */
static void change(wefti_endpoint_t *endpoint, uint32_t place, const wefti_refusal_t *refusal,
                   wefti_refusal_state_t state)
{
    wefti_refusal_block_t *own = endpoint->control[endpoint->rank]->refusals;
    uint64_t last = 0;
    for (uint32_t i = 0; i < WEFTI_REFUSALS; i++) {
        last = serial_of(&own[i]) > last ? serial_of(&own[i]) : last;
    }
    wefti_refusal_store(&own[place], last - last % STATES + STATES + state, refusal);
}

/* False: there is none. */
static bool load_noted(const wefti_refusal_block_t *block, uint64_t *out_serial,
                       wefti_refusal_t *out)
{
    /* relaxed: mostly there is none */
    return serial_of(block) % STATES != WEFTI_REFUSAL_NONE &&
           wefti_refusal_load(block, out_serial, out) && *out_serial % STATES != WEFTI_REFUSAL_NONE;
}

/* For what has the same kind, channel and peer; else for a new one. WEFTI_REFUSALS: none is left. */
static uint32_t find_place(const wefti_refusal_block_t *own, const wefti_refusal_t *refusal)
{
    uint32_t place = WEFTI_REFUSALS;
    for (uint32_t i = 0; i < WEFTI_REFUSALS; i++) {
        wefti_refusal_t other;
        uint64_t serial;
        if (!load_noted(&own[i], &serial, &other)) {
            place = place < i ? place : i;
        } else if (other.kind == refusal->kind && other.channel == refusal->channel &&
                   other.peer == refusal->peer) {
            return i;
        }
    }
    return place;
}

bool wefti_endpoint_note_refusal(wefti_endpoint_t *endpoint, const wefti_refusal_t *refusal)
{
    if (!is_worth_it(endpoint, (weft_status_t)refusal->status)) {
        return true;
    }
    pthread_mutex_lock(&lock);
    uint32_t place = find_place(endpoint->control[endpoint->rank]->refusals, refusal);
    if (place < WEFTI_REFUSALS) {
        change(endpoint, place, refusal, WEFTI_REFUSAL_OPEN);
    }
    pthread_mutex_unlock(&lock);
    if (place < WEFTI_REFUSALS) {
        endpoint->ops->refusal_changed(endpoint->host);
    }
    return place < WEFTI_REFUSALS;
}

bool wefti_endpoint_retry_refusal(wefti_endpoint_t *endpoint, uint32_t kind, uint32_t channel,
                                  uint32_t peer, wefti_refusal_state_t state)
{
    const wefti_refusal_block_t *own = endpoint->control[endpoint->rank]->refusals;
    bool changed = false, left = false;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < WEFTI_REFUSALS; i++) {
        wefti_refusal_t refusal;
        uint64_t serial;
        if (!load_noted(&own[i], &serial, &refusal) || refusal.channel != channel ||
            (refusal.kind == WEFTI_WAIT_STEP) != (kind == WEFTI_WAIT_STEP)) {
            continue;
        }
        bool is_meant = (kind == refusal.kind || kind == WEFTI_WAIT_CALL) &&
                        (peer == UINT32_MAX || refusal.peer == UINT32_MAX || refusal.peer == peer);
        left = left || !is_meant || state != WEFTI_REFUSAL_NONE;
        if (is_meant && serial % STATES != state) {
            change(endpoint, i, &refusal, state);
            changed = true;
        }
    }
    pthread_mutex_unlock(&lock);
    if (changed) {
        endpoint->ops->refusal_changed(endpoint->host);
    }
    return left;
}

/* late: the place of the rank that refused. */
static bool is_for(const wefti_refusal_t *refusal, const wefti_wait_t *wait, uint32_t late,
                   uint32_t waiter)
{
    bool is_pair = wait->kind == WEFTI_WAIT_SEND || wait->kind == WEFTI_WAIT_RECV;
    return wait->channel == refusal->channel &&
           (refusal->peer == UINT32_MAX || refusal->peer == waiter) &&
           refusal->kind == (is_pair ? wait->came[late] : wait->kind);
}

static weft_status_t check_refusals(const wefti_endpoint_t *endpoint, const wefti_wait_t *wait,
                                    uint32_t late)
{
    uint32_t rank = wait->late[late];
    for (uint32_t i = 0; i < WEFTI_REFUSALS; i++) {
        wefti_refusal_t refusal;
        uint64_t serial;
        if (load_noted(&endpoint->control[rank]->refusals[i], &serial, &refusal) &&
            serial % STATES == WEFTI_REFUSAL_OPEN && is_for(&refusal, wait, late, endpoint->rank)) {
            return wefti_error((weft_status_t)refusal.status, "rank %u: %s", rank, refusal.text);
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_endpoint_refused(const wefti_endpoint_t *endpoint, const wefti_wait_t *wait)
{
    for (uint32_t l = 0; l < wait->late_count; l++) {
        if (wait->late[l] < endpoint->world_size && wait->late[l] != endpoint->rank) {
            WEFT_RETURN_IF_ERROR(check_refusals(endpoint, wait, l));
        }
    }
    return WEFT_OK;
}

/* ---- of ranks that are gone ---- */

/* That r is gone: it has left, or text begins with its number. */
static bool is_gone(const wefti_endpoint_t *endpoint, uint32_t r, const char *text)
{
    unsigned first = 0;
    return wefti_endpoint_has_left(endpoint, r) ||
           (sscanf(text, "rank %u", &first) == 1 && first == wefti_endpoint_number(endpoint, r));
}

static weft_status_t adopt_last_refusal(const wefti_control_t *control)
{
    wefti_refusal_t last, refusal;
    uint64_t last_serial = 0, serial;
    for (uint32_t i = 0; i < WEFTI_REFUSALS; i++) {
        if (load_noted(&control->refusals[i], &serial, &refusal) && serial > last_serial) {
            last_serial = serial;
            last = refusal;
        }
    }
    return last_serial > 0 ? wefti_error_adopt((weft_status_t)last.status, last.text) : WEFT_OK;
}

weft_status_t wefti_endpoint_add_error_of(const wefti_endpoint_t *endpoint, uint32_t rank,
                                          char *text, size_t bytes)
{
    const wefti_control_t *control = endpoint->control[rank];
    weft_status_t status = control != NULL ? wefti_fault_get(&control->cause) : WEFT_OK;
    if (control != NULL && status == WEFT_OK) {
        status = adopt_last_refusal(control);
    }
    if (status != WEFT_OK) {
        const char *error = weft_last_error(), *before = strstr(error, MARK);
        snprintf(text, bytes, "; rank %u" MARK "%s", wefti_endpoint_number(endpoint, rank),
                 before != NULL ? before + strlen(MARK) : error);
    }
    return status;
}

void wefti_endpoint_add_cause(const wefti_endpoint_t *endpoint, char *text, size_t bytes)
{
    if (strstr(text, MARK) != NULL) {
        return;
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        size_t used = strlen(text);
        if (r != endpoint->rank && endpoint->control[r] != NULL && is_gone(endpoint, r, text) &&
            wefti_endpoint_add_error_of(endpoint, r, text + used, bytes - used) != WEFT_OK) {
            return;
        }
    }
}

/* ---- of ranks that shrink the world ---- */

#define SHRINKS "rank %u shrinks the world"

void wefti_endpoint_abort_to_shrink(wefti_endpoint_t *endpoint)
{
    char text[WEFTI_ERROR_TEXT_BYTES];
    const wefti_control_t *own = endpoint->control[endpoint->rank];
    if (wefti_fault_get(&own->abort) == WEFT_ERR_PEER_DIED) { /* which others may not know yet */
        snprintf(text, sizeof text, "%s", weft_last_error());
        wefti_endpoint_abort(endpoint, WEFT_ERR_PEER_DIED, text);
        return;
    }
    int used = snprintf(text, sizeof text, SHRINKS, endpoint->rank);
    wefti_endpoint_add_error_of(endpoint, endpoint->rank, text + used, sizeof text - (size_t)used);
    wefti_endpoint_abort(endpoint, WEFT_ERR_ABORTED, text);
}

bool wefti_endpoint_shrinks(const wefti_endpoint_t *endpoint)
{
    unsigned rank;
    int end = 0;
    return wefti_fault_get(&endpoint->control[endpoint->rank]->abort) == WEFT_ERR_ABORTED &&
           sscanf(weft_last_error(), SHRINKS "%n", &rank, &end) == 1 && end > 0;
}

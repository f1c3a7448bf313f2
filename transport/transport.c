/* SPDX-License-Identifier: Apache-2.0 */
/* The front: chooses a backend, checks arguments once for all of them, and holds what they share.
 */
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "transport/endpoint.h"
#include "transport/hosts.h"
#include "transport/hub.h"
#include "transport/world.h"

#define VERDICT_TEXT_BYTES 760u
/* A link breaks once or twice: more is a network that should not be used. */
#define LINK_FAULTS_MAX 256u

/* One rank's part of wefti_endpoint_agree. */
typedef struct verdict {
    int32_t status;
    uint32_t agreed; /* text begins with the rank that failed: ranks have agreed on it before */
    char text[VERDICT_TEXT_BYTES];
} verdict_t;
#define VERDICT_PIECE_BYTES 128u
_Static_assert(sizeof(verdict_t) % VERDICT_PIECE_BYTES == 0, "whole pieces");

/* A digest of the last error of this thread that ranks agreed on. A host's ranks agree first, then
 * all ranks, then those that make a group: the first rank that failed is named once. */
static _Thread_local uint64_t agreed_text;

static uint64_t digest_of(const char *text)
{
    return wefti_hash_memory(WEFTI_HASH_START, (const uint8_t *)text, strlen(text)) | 1;
}

weft_status_t wefti_error_agreed(weft_status_t status, uint32_t rank, bool agreed, const char *text)
{
    status =
        agreed ? wefti_error_adopt(status, text) : wefti_error(status, "rank %u: %s", rank, text);
    agreed_text = digest_of(weft_last_error());
    return status;
}

bool wefti_error_is_agreed(void)
{
    return digest_of(weft_last_error()) == agreed_text;
}

uint64_t wefti_endpoint_deadline(const wefti_endpoint_t *endpoint)
{
    uint64_t timeout = endpoint->settings->timeout_ns;
    uint64_t now = wefti_now_ns();
    return timeout == 0 || timeout > UINT64_MAX - now ? UINT64_MAX : now + timeout;
}

uint64_t wefti_endpoint_patience(const wefti_endpoint_t *endpoint)
{
    /* relaxed, here and below: nothing else depends on it */
    return atomic_load_explicit(&endpoint->host->patience_ns, memory_order_relaxed);
}

static void limit_patience(wefti_endpoint_t *endpoint, uint64_t limit_ns)
{
    _Atomic uint64_t *patience = &endpoint->host->patience_ns;
    uint64_t now = atomic_load_explicit(patience, memory_order_relaxed);
    while (now > limit_ns &&
           !atomic_compare_exchange_weak_explicit(patience, &now, limit_ns, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void wefti_endpoint_lose_patience(wefti_endpoint_t *endpoint)
{
    limit_patience(endpoint, WEFTI_FAREWELL_NS);
}

void wefti_endpoint_spend_patience(wefti_endpoint_t *endpoint, uint64_t waited_ns)
{
    uint64_t left = wefti_endpoint_patience(endpoint);
    left = left < WEFTI_FAREWELL_NS ? left : WEFTI_FAREWELL_NS;
    limit_patience(endpoint, waited_ns < left ? left - waited_ns : 0);
}

static weft_status_t forked_error(const wefti_endpoint_t *endpoint)
{
    return wefti_error(WEFT_ERR_STATE,
                       "forked child of rank %u: the parent's context cannot be used after fork",
                       endpoint->rank);
}

static bool is_unix(const char *address)
{
    return address != NULL && strncmp(address, "unix:", 5) == 0;
}

static weft_status_t check_params(const wefti_endpoint_params_t *params)
{
    if (params->settings == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "settings: is NULL");
    }
    if (params->world_size == 0 || params->world_size > WEFTI_MAX_WORLD) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid world size %u: must be between 1 and %u", params->world_size,
                           WEFTI_MAX_WORLD);
    }
    if (params->rank >= params->world_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid rank %u for world size %u",
                           params->rank, params->world_size);
    }
    if (params->hub == NULL && params->world_size > 1 &&
        (params->address == NULL || params->address[0] == '\0') && params->job == NULL) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "no rendezvous address for a world of %u ranks; set WEFT_ADDRESS or pass a hub",
            params->world_size);
    }
    if (params->hub == NULL && params->numbers == NULL && is_unix(params->address) &&
        !wefti_hosts_allows(params->settings, "shm")) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "WEFT_TRANSPORT=%s excludes shm, but the address %s is for ranks of one "
                           "host; add shm or use host:port or file:///path",
                           params->settings->transport, params->address);
    }
    return WEFT_OK;
}

static const wefti_transport_ops_t *choose_backend(const wefti_endpoint_params_t *params)
{
    if (params->hub != NULL) {
        return params->hub->fabric->ops;
    }
    /* One host's part of a world is shm even for one rank: all ranks' memory has the same
     * abilities.
     */
    if (params->world_size == 1 && params->numbers == NULL) {
        return &wefti_transport_null;
    }
    /* One host, as the address says; anything else is found out when ranks meet. */
    return is_unix(params->address) ? &wefti_transport_shm : &wefti_transport_hosts;
}

/* A page that the kernel clears in forked children, so that they can be told apart for the price of
 * a load. */
static weft_status_t map_owner_word(wefti_endpoint_t *endpoint)
{
    uint32_t *page =
        mmap(NULL, WEFTI_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot allocate a page");
    }
    *page = 1;
    endpoint->owner_word = page;
    if (madvise(page, WEFTI_PAGE_BYTES, MADV_WIPEONFORK) != 0) {
        wefti_log(endpoint->log, WEFT_LOG_LEVEL_DEBUG,
                  "MADV_WIPEONFORK is not available: forked children are not detected");
    }
    return WEFT_OK;
}

static weft_status_t endpoint_alloc(const wefti_endpoint_params_t *params,
                                    const wefti_transport_ops_t *ops,
                                    wefti_endpoint_t **out_endpoint)
{
    wefti_endpoint_t *endpoint = wefti_alloc(params->allocator, ops->endpoint_bytes);
    *out_endpoint = endpoint;
    if (endpoint == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    uint32_t count = params->world_size;
    pthread_mutex_init(&endpoint->blocks_lock, NULL);
    endpoint->ops = ops;
    endpoint->host = endpoint;
    endpoint->rank = params->rank;
    endpoint->world_size = count;
    endpoint->caps = ops->caps;
    endpoint->local_rank_count = count;
    endpoint->host_count = 1;
    endpoint->numbers = params->numbers;
    endpoint->outer = params->outer;
    endpoint->host_name = params->host_name;
    endpoint->settings = params->settings;
    endpoint->log = params->log;
    endpoint->allocator = params->allocator;
    endpoint->interrupt = params->interrupt;
    endpoint->answer = params->answer;
    uint64_t timeout = params->settings->timeout_ns;
    atomic_init(&endpoint->patience_ns, timeout != 0 ? timeout : UINT64_MAX);
    endpoint->control = wefti_alloc(params->allocator, count * sizeof *endpoint->control);
    endpoint->region_of = wefti_alloc(params->allocator, count * sizeof *endpoint->region_of);
    endpoint->verdicts = wefti_alloc(params->allocator, count * VERDICT_PIECE_BYTES);
    endpoint->host_of = wefti_alloc(params->allocator, count * sizeof *endpoint->host_of);
    if (endpoint->control == NULL || endpoint->region_of == NULL || endpoint->verdicts == NULL ||
        endpoint->host_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    endpoint->host_caps = endpoint->caps;
    WEFT_RETURN_IF_ERROR(map_owner_word(endpoint));
    return params->settings->late_stacks != 0 ? wefti_stacks_begin(endpoint) : WEFT_OK;
}

static void endpoint_free(wefti_endpoint_t *endpoint)
{
    const weft_allocator_t *allocator = endpoint->allocator;
    wefti_stacks_end(endpoint);
    if (endpoint->owner_word != NULL) {
        munmap((void *)(uintptr_t)endpoint->owner_word, WEFTI_PAGE_BYTES);
    }
    pthread_mutex_destroy(&endpoint->blocks_lock);
    wefti_free(allocator, endpoint->blocks);
    wefti_free(allocator, endpoint->faults);
    wefti_free(allocator, endpoint->host_names);
    wefti_free(allocator, endpoint->host_of);
    wefti_free(allocator, endpoint->verdicts);
    wefti_free(allocator, endpoint->region_of);
    wefti_free(allocator, endpoint->control);
    wefti_free(allocator, endpoint);
}

weft_status_t wefti_endpoint_open(const wefti_endpoint_params_t *params,
                                  wefti_endpoint_t **out_endpoint)
{
    weft_status_t status;
    wefti_endpoint_t *endpoint = NULL;
    *out_endpoint = NULL;
    status = check_params(params);
    if (status < 0) {
        return status;
    }
    const wefti_transport_ops_t *ops = choose_backend(params);
    status = endpoint_alloc(params, ops, &endpoint);
    if (status < 0) {
        if (endpoint != NULL) {
            endpoint_free(endpoint);
        }
        return status;
    }
    WEFT_TRY(status, ops->open(endpoint, params), fail);
    if (endpoint->inner != NULL && endpoint->host_count == 1) {
        /* All ranks turned out to share one host: what remains is shm. */
        *out_endpoint = wefti_hosts_detach_inner(endpoint);
        ops->close(endpoint);
        endpoint_free(endpoint);
        return WEFT_OK;
    }
    WEFT_TRY(status, wefti_world_agree(endpoint), fail);
    wefti_log(endpoint->log, WEFT_LOG_LEVEL_DEBUG, "rank %u of %u joined over %s", endpoint->rank,
              endpoint->world_size, ops->name);
    *out_endpoint = endpoint;
    return WEFT_OK;
fail:
    wefti_endpoint_close(endpoint);
    return status;
}

void wefti_endpoint_close(wefti_endpoint_t *endpoint)
{
    if (endpoint == NULL) {
        return;
    }
    endpoint->waits_hooks = (wefti_waits_hooks_t){0}; /* their owner is going */
    wefti_stacks_end(endpoint);
    if (wefti_endpoint_owned(endpoint)) {
        endpoint->ops->flush(endpoint);
        wefti_control_t *control = endpoint->control[endpoint->rank];
        if (control != NULL) {
            /* Release: whoever sees it also sees everything this rank posted. */
            atomic_store_explicit(&control->left, 1, memory_order_release);
        }
    }
    endpoint->ops->close(endpoint);
    endpoint_free(endpoint);
}

void wefti_endpoint_while_waiting(wefti_endpoint_t *endpoint, bool (*fn)(void *user), void *user)
{
    for (wefti_endpoint_t *each = endpoint; each != NULL; each = each->inner) {
        each->meanwhile_user = user;
        each->meanwhile = fn;
    }
}

static weft_status_t begin_control(wefti_endpoint_t *endpoint)
{
    WEFT_RETURN_IF_ERROR(wefti_endpoint_check(endpoint));
    wefti_control_meets(endpoint->host);
    return WEFT_OK;
}

weft_status_t wefti_endpoint_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                        void *recv)
{
    if (!wefti_endpoint_owned(endpoint)) {
        return forked_error(endpoint);
    }
    size_t total;
    if (!wefti_mul_size(bytes, endpoint->world_size, &total) ||
        (bytes > 0 && (send == NULL || recv == NULL))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "control all-gather: invalid buffers for %zu bytes", bytes);
    }
    WEFT_RETURN_IF_ERROR(begin_control(endpoint));
    weft_status_t status = endpoint->ops->all_gather(endpoint->host, send, bytes, recv);
    wefti_control_met(endpoint->host);
    return status;
}

/* The first failing rank's text, gathered only after a failure, piece by piece: one piece of each
 * rank is all the memory that it needs. */
static weft_status_t explain(wefti_endpoint_t *endpoint, const verdict_t *own)
{
    verdict_t found = {0};
    uint32_t first = endpoint->world_size;
    bool ended = false;
    for (size_t at = 0; at < sizeof *own && !ended; at += VERDICT_PIECE_BYTES) {
        uint8_t *pieces = endpoint->verdicts, *piece = (uint8_t *)&found + at;
        WEFT_RETURN_IF_ERROR(wefti_endpoint_all_gather(endpoint, (const uint8_t *)own + at,
                                                       VERDICT_PIECE_BYTES, pieces));
        for (uint32_t r = 0; r < endpoint->world_size && first == endpoint->world_size; r++) {
            int32_t status;
            memcpy(&status, pieces + r * VERDICT_PIECE_BYTES, sizeof status);
            first = status < 0 ? r : first;
        }
        if (first == endpoint->world_size) {
            return wefti_error(WEFT_ERR_INTERNAL, "ranks disagree on whether a rank failed");
        }
        memcpy(piece, pieces + first * VERDICT_PIECE_BYTES, VERDICT_PIECE_BYTES);
        size_t read = at + VERDICT_PIECE_BYTES - offsetof(verdict_t, text);
        ended = memchr(found.text, '\0', read) != NULL;
    }
    found.text[VERDICT_TEXT_BYTES - 1] = '\0';
    return wefti_error_agreed((weft_status_t)found.status, wefti_endpoint_number(endpoint, first),
                              found.agreed != 0, found.text);
}

/* This rank may end its process as soon as it knows what the others know: those that are late see
 * its death before they have heard its error. */
static void note_failure(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    wefti_endpoint_t *host = endpoint->host;
    char own[24];
    size_t length = (size_t)snprintf(own, sizeof own, "rank %u: ", host->rank);
    /* Not for one host's ranks: all ranks agree afterwards. */
    if (endpoint->numbers == NULL && host->control != NULL && host->control[host->rank] != NULL) {
        wefti_endpoint_note_error(host, status,
                                  strncmp(text, own, length) == 0 ? text + length : text);
    }
}

weft_status_t wefti_endpoint_agree(wefti_endpoint_t *endpoint, weft_status_t status)
{
    verdict_t own = {.status = status < 0 ? status : WEFT_OK};
    bool any = false;
    if (status < 0) {
        snprintf(own.text, sizeof own.text, "%s", weft_last_error());
        own.agreed = wefti_error_is_agreed();
        note_failure(endpoint, status, own.text);
    }
    WEFT_RETURN_IF_ERROR(begin_control(endpoint));
    weft_status_t gathered = endpoint->ops->any(endpoint->host, status < 0, &any);
    wefti_control_met(endpoint->host);
    return gathered < 0 ? gathered : any ? explain(endpoint, &own) : WEFT_OK;
}

bool wefti_endpoint_given_up(const wefti_endpoint_t *endpoint, uint32_t attempt)
{
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        /* relaxed: what the rank has done is told by agreeing */
        if (atomic_load_explicit(&endpoint->control[r]->gave_up, memory_order_relaxed) == attempt) {
            return true;
        }
    }
    return false;
}

bool wefti_endpoint_give_up(wefti_endpoint_t *endpoint, uint32_t attempt)
{
    bool first = !wefti_endpoint_given_up(endpoint, attempt);
    atomic_store_explicit(&endpoint->control[endpoint->rank]->gave_up, attempt,
                          memory_order_relaxed);
    endpoint->ops->gave_up(endpoint);
    return first;
}

void wefti_endpoint_abort_here(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        wefti_control_t *control = endpoint->control[r];
        if (control != NULL) {
            wefti_fault_set(&control->abort, status, text);
            wefti_futex_wake_all(&control->complete.value);
        }
    }
}

void wefti_endpoint_abort(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    if (!wefti_endpoint_owned(endpoint)) {
        return;
    }
    char silent[48];
    snprintf(silent, sizeof silent, "rank %u aborted the world",
             wefti_endpoint_number(endpoint, endpoint->rank));
    text = text[0] != '\0' ? text : silent;
    char caused[WEFTI_ERROR_TEXT_BYTES];
    if (status == WEFT_ERR_PEER_DIED) {
        snprintf(caused, sizeof caused, "%s", text);
        wefti_endpoint_add_cause(endpoint, caused, sizeof caused);
        text = caused;
    }
    /* To other hosts first: a rank of this one may leave as soon as it sees the record, and its
     * goodbye must not come before the reason. */
    endpoint->ops->aborted(endpoint->host, status, text);
    wefti_endpoint_abort_here(endpoint, status, text);
}

const char *wefti_endpoint_who(const wefti_endpoint_t *endpoint, uint32_t rank, int32_t pid,
                               char *buffer)
{
    const char *host = endpoint->host_count > 1 && endpoint->host_names != NULL
                           ? endpoint->host_names[endpoint->host_of[rank]]
                           : endpoint->host_name;
    char process[24] = "";
    uint32_t number = wefti_endpoint_number(endpoint, rank);
    if (pid > 0) {
        snprintf(process, sizeof process, "%spid %d", host != NULL ? ", " : "", pid);
    }
    if (host == NULL && pid <= 0) {
        snprintf(buffer, WEFTI_WHO_BYTES, "rank %u", number);
    } else {
        snprintf(buffer, WEFTI_WHO_BYTES, "rank %u (%s%s%s)", number, host != NULL ? "host " : "",
                 host != NULL ? host : "", process);
    }
    return buffer;
}

weft_status_t wefti_endpoint_interrupted(const wefti_endpoint_t *endpoint)
{
    weft_status_t status =
        endpoint->outer != NULL ? wefti_endpoint_check(endpoint->outer) : WEFT_OK;
    return status < 0 ? status
                      : wefti_interrupt_error(wefti_endpoint_number(endpoint, endpoint->rank));
}

static weft_status_t check_by(wefti_endpoint_t *endpoint,
                              weft_status_t (*check_peers)(wefti_endpoint_t *endpoint))
{
    if (!wefti_endpoint_owned(endpoint)) {
        return forked_error(endpoint);
    }
    wefti_control_t *own = endpoint->control[endpoint->rank];
    weft_status_t status = wefti_fault_get(&own->abort);
    if (status < 0) {
        return status;
    }
    status = wefti_interrupted(&endpoint->interrupt) ? wefti_endpoint_interrupted(endpoint)
                                                     : check_peers(endpoint->host);
    if (status < 0) {
        wefti_endpoint_abort(endpoint, status, weft_last_error());
        /* Another rank's finding may have come first: all report the same one. */
        status = wefti_fault_get(&own->abort);
    }
    return status;
}

weft_status_t wefti_endpoint_check(wefti_endpoint_t *endpoint)
{
    return check_by(endpoint, endpoint->ops->check_peers);
}

weft_status_t wefti_endpoint_check_all(wefti_endpoint_t *endpoint)
{
    return check_by(endpoint, endpoint->ops->check_all_peers);
}

bool wefti_endpoint_has_left(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    /* Acquire: what the rank posted before is visible. */
    return atomic_load_explicit(&endpoint->control[rank]->left, memory_order_acquire) != 0;
}

bool wefti_endpoint_deserted(wefti_endpoint_t *endpoint)
{
    uint32_t left = 0;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        left += r != endpoint->rank && wefti_endpoint_has_left(endpoint, r);
    }
    if (left > 0) { /* relaxed: whoever reads it looks at each rank */
        atomic_store_explicit(&endpoint->departed, true, memory_order_relaxed);
    }
    return left > 0 && left == endpoint->world_size - 1;
}

bool wefti_endpoint_link_fault(wefti_endpoint_t *endpoint, uint32_t *at, wefti_link_fault_t *out)
{
    /* Acquire: the record is complete before it is counted. */
    uint32_t count = atomic_load_explicit(&endpoint->link_faults, memory_order_acquire);
    if (*at >= count) {
        return false;
    }
    *out = endpoint->faults[(*at)++];
    return true;
}

weft_status_t wefti_endpoint_note_fault(wefti_endpoint_t *endpoint, const wefti_link_fault_t *fault)
{
    /* relaxed: only whoever holds the lock adds */
    uint32_t count = atomic_load_explicit(&endpoint->link_faults, memory_order_relaxed);
    if (endpoint->faults == NULL) { /* it never moves: readers hold no lock */
        endpoint->faults =
            wefti_alloc(endpoint->allocator, LINK_FAULTS_MAX * sizeof *endpoint->faults);
    }
    if (endpoint->faults == NULL || count == LINK_FAULTS_MAX) {
        return wefti_error(WEFT_ERR_LINK, "%u links are broken; the last: %s", count + 1,
                           fault->text);
    }
    endpoint->faults[count] = *fault;
    /* Release: the record is complete before it is counted. */
    atomic_store_explicit(&endpoint->link_faults, count + 1, memory_order_release);
    return WEFT_OK;
}

void wefti_endpoint_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name,
                             size_t name_bytes, char *reason, size_t reason_bytes)
{
    snprintf(reason, reason_bytes, "%s", "");
    if (peer == endpoint->rank) {
        snprintf(name, name_bytes, "self");
    } else {
        endpoint->ops->describe(endpoint->host, peer, name, name_bytes, reason, reason_bytes);
    }
}

void wefti_endpoint_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out)
{
    memset(out, 0, sizeof *out);
    if (peer != endpoint->rank) {
        endpoint->ops->link_stats(endpoint->host, peer, out);
    }
}

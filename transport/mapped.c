/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a backend in whose worlds all control blocks and regions are mapped.
 *
 * An all-gather, in pieces: each rank writes its piece into its control block and counts itself in
 * rank 0's; who comes last wakes all.
 */
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"

typedef struct gather_wait {
    wefti_endpoint_t *endpoint;
    uint32_t epoch;
    uint32_t kind; /* wefti_control_kind_t */
    uint64_t since_ns;
    uint32_t arrived;  /* how many had come when poll looked last */
    uint64_t moved_ns; /* when that changed */
} gather_wait_t;

static bool has_published(const wefti_endpoint_t *endpoint, uint32_t rank, uint32_t epoch)
{
    /* acquire: the piece, and all that the rank did before */
    return wefti_signal_reached(
        atomic_load_explicit(&endpoint->control[rank]->gathered, memory_order_acquire), epoch);
}

static bool describe(void *user, wefti_wait_t *out)
{
    const gather_wait_t *wait = user;
    const wefti_endpoint_t *endpoint = wait->endpoint;
    out->kind = WEFTI_WAIT_CONTROL;
    out->channel = WEFTI_WAIT_WORLD;
    out->number = wait->epoch;
    out->waiter = endpoint->outer != NULL;
    out->since_ns = wait->since_ns;
    snprintf(out->text, sizeof out->text, "%s", wefti_control_name(wait->kind));
    for (uint32_t r = 0; r < endpoint->world_size && out->late_count < WEFTI_WAIT_RANKS; r++) {
        if (!has_published(endpoint, r, wait->epoch)) {
            out->late[out->late_count++] = r;
        }
    }
    return out->late_count > 0;
}

/* The deadline counts from the last rank that came, here or, as far as known, on another host. */
static void note_moves(gather_wait_t *wait)
{
    const wefti_endpoint_t *endpoint = wait->endpoint;
    uint32_t arrived = atomic_load_explicit(&endpoint->control[0]->arrived, memory_order_relaxed);
    if (arrived != wait->arrived) {
        wait->arrived = arrived;
        wait->moved_ns = wefti_now_ns();
    }
    if (endpoint->gather_moved_ns != NULL) {
        uint64_t far_ns = atomic_load_explicit(endpoint->gather_moved_ns, memory_order_relaxed);
        wait->moved_ns = far_ns > wait->moved_ns ? far_ns : wait->moved_ns;
    }
}

/* Whether a rank has left without its piece. */
static weft_status_t poll_ranks(void *user)
{
    gather_wait_t *wait = user;
    wefti_endpoint_t *endpoint = wait->endpoint;
    wefti_endpoint_meanwhile(endpoint);
    note_moves(wait);
    if (!atomic_load_explicit(&endpoint->departed, memory_order_relaxed)) {
        return WEFT_OK;
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if (!wefti_endpoint_has_left(endpoint, r) || has_published(endpoint, r, wait->epoch)) {
            continue;
        }
        /* A rank that ends the world does so before it leaves: its reason goes first. */
        WEFT_RETURN_IF_ERROR(wefti_endpoint_check(endpoint));
        WEFT_RETURN_IF_ERROR(wefti_fault_get(&endpoint->control[r]->abort));
        return wefti_error(WEFT_ERR_PEER_DIED,
                           "rank %u left the world while rank %u was waiting for it in a control "
                           "all-gather or barrier",
                           wefti_endpoint_number(endpoint, r),
                           wefti_endpoint_number(endpoint, endpoint->rank));
    }
    return WEFT_OK;
}

/* Compares this rank's call with that of the first rank that came: others need not have come. */
static weft_status_t compare_with_first(wefti_endpoint_t *endpoint, uint32_t epoch)
{
    uint32_t half = epoch % 2;
    _Atomic uint64_t *word = &endpoint->control[0]->first[half];
    const uint64_t own = (uint64_t)epoch << 32 | endpoint->rank;
    /* acq_rel: what the first rank has published */
    uint64_t known = atomic_load_explicit(word, memory_order_acquire);
    while (known >> 32 != epoch) {
        if (atomic_compare_exchange_weak_explicit(word, &known, own, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            return WEFT_OK;
        }
    }
    uint32_t first = (uint32_t)known % endpoint->world_size; /* memory that peers write */
    const wefti_control_t *mine = endpoint->control[endpoint->rank];
    const wefti_control_t *theirs = endpoint->control[first];
    if (theirs->gather_kind[half] != mine->gather_kind[half]) {
        return wefti_control_mismatch(endpoint, first, theirs->gather_kind[half]);
    }
    return theirs->gather_bytes[half] == mine->gather_bytes[half]
               ? WEFT_OK
               : wefti_error(WEFT_ERR_MISMATCH,
                             "control all-gather: size mismatch: rank %u has %llu bytes, rank %u "
                             "has %llu bytes",
                             wefti_endpoint_number(endpoint, first),
                             (unsigned long long)theirs->gather_bytes[half],
                             wefti_endpoint_number(endpoint, endpoint->rank),
                             (unsigned long long)mine->gather_bytes[half]);
}

/*
 * The last rank that publishes a piece wakes all others: each sleeps once, however many ranks there
 * are.
 */
static weft_status_t publish_and_wait(wefti_endpoint_t *endpoint, uint32_t epoch)
{
    wefti_control_t *first = endpoint->control[0];
    /* release: the piece */
    atomic_store_explicit(&endpoint->control[endpoint->rank]->gathered, epoch,
                          memory_order_release);
    WEFT_RETURN_IF_ERROR(compare_with_first(endpoint, epoch));
    /* acq_rel: the last one passes on what all have published. The count wraps. */
    uint32_t arrived = atomic_fetch_add_explicit(&first->arrived, 1, memory_order_acq_rel) + 1;
    if (arrived == epoch * endpoint->world_size) {
        wefti_signal_post(&first->complete, epoch);
        return WEFT_OK;
    }
    if (wefti_signal_has_reached(&first->complete, epoch)) {
        return WEFT_OK;
    }
    gather_wait_t wait = {.endpoint = endpoint,
                          .epoch = epoch,
                          .kind = wefti_control_kind(),
                          .since_ns = wefti_now_ns()};
    return wefti_wait_signal_moving(endpoint, &first->complete, epoch,
                                    "all ranks in a control all-gather or barrier", poll_ranks,
                                    describe, &wait, &wait.moved_ns);
}

static wefti_mapped_control_t *mapped_of(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    return (wefti_mapped_control_t *)(void *)endpoint->control[rank];
}

/* Publishes this rank's piece from byte at on and copies those of all ranks to recv. failed: noted
 * for the others. */
static weft_status_t gather_piece(wefti_endpoint_t *endpoint, const uint8_t *send, size_t bytes,
                                  uint8_t *recv, size_t at, bool failed)
{
    uint32_t epoch = ++endpoint->gather_epoch, half = epoch % 2;
    size_t piece = bytes - at < WEFTI_PIECE_BYTES ? bytes - at : WEFTI_PIECE_BYTES;
    wefti_mapped_control_t *own = mapped_of(endpoint, endpoint->rank);
    own->control.gather_bytes[half] = bytes;
    own->control.gather_kind[half] = wefti_control_kind();
    if (piece > 0) {
        memcpy(own->pieces[half], send + at, piece);
    }
    if (failed) { /* release, and read, with the count of ranks */
        atomic_store_explicit(&endpoint->control[0]->failed[half], epoch, memory_order_relaxed);
    }
    WEFT_RETURN_IF_ERROR(publish_and_wait(endpoint, epoch));
    for (uint32_t r = 0; piece > 0 && r < endpoint->world_size; r++) {
        memcpy(recv + r * bytes + at, mapped_of(endpoint, r)->pieces[half], piece);
    }
    return WEFT_OK;
}

/* The others would wait for pieces that this rank will not publish. */
static weft_status_t end_world(wefti_endpoint_t *endpoint, weft_status_t status)
{
    if (status < 0) {
        wefti_endpoint_abort(endpoint, status, weft_last_error());
    }
    return status;
}

/*
 * Two pieces per rank are enough: a rank publishes piece k + 2 only after it saw all ranks at k +
 * 1, and a rank is at k + 1 only after it copied all pieces k.
 */
weft_status_t wefti_mapped_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                      void *recv)
{
    weft_status_t status;
    size_t at = 0;
    do { /* once if there are no bytes: that is a barrier */
        status = gather_piece(endpoint, send, bytes, recv, at, false);
        at += WEFTI_PIECE_BYTES;
    } while (status == WEFT_OK && at < bytes);
    return end_world(endpoint, status);
}

/* In a time that does not depend on the number of ranks. */
weft_status_t wefti_mapped_any(wefti_endpoint_t *endpoint, bool own, bool *out_any)
{
    weft_status_t status = gather_piece(endpoint, NULL, 0, NULL, 0, own);
    uint32_t epoch = endpoint->gather_epoch;
    *out_any = atomic_load_explicit(&endpoint->control[0]->failed[epoch % 2],
                                    memory_order_relaxed) == epoch;
    return end_world(endpoint, status);
}

/* Copies data from byte at on to the slots of all ranks, as far as it fits there, or back. */
static void spread(wefti_endpoint_t *endpoint, uint32_t half, uint8_t *data, size_t at,
                   size_t bytes, bool out)
{
    for (uint32_t r = 0; r < endpoint->world_size && at < bytes; r++, at += WEFTI_PIECE_BYTES) {
        size_t piece = bytes - at < WEFTI_PIECE_BYTES ? bytes - at : WEFTI_PIECE_BYTES;
        uint8_t *slot = mapped_of(endpoint, r)->pieces[half];
        memcpy(out ? slot : data + at, out ? data + at : slot, piece);
    }
}

/*
 * Rank 0's bytes to all ranks, in the slots of all of them: as for an all-gather, no rank reads
 * them any more when rank 0 has seen all ranks at the piece before.
 */
weft_status_t wefti_mapped_broadcast(wefti_endpoint_t *endpoint, uint8_t *data, size_t bytes)
{
    wefti_mapped_control_t *own = mapped_of(endpoint, endpoint->rank);
    weft_status_t status;
    size_t at = 0;
    do {
        uint32_t epoch = ++endpoint->gather_epoch, half = epoch % 2;
        own->control.gather_bytes[half] = bytes;
        own->control.gather_kind[half] = wefti_control_kind();
        if (endpoint->rank == 0) {
            spread(endpoint, half, data, at, bytes, true);
        }
        status = publish_and_wait(endpoint, epoch);
        if (status == WEFT_OK && endpoint->rank != 0) {
            spread(endpoint, half, data, at, bytes, false);
        }
        at += endpoint->world_size * WEFTI_PIECE_BYTES;
    } while (status == WEFT_OK && at < bytes);
    return end_world(endpoint, status);
}

void wefti_mapped_aborted(wefti_endpoint_t *endpoint, weft_status_t status, const char *text)
{
    (void)endpoint, (void)status, (void)text;
}

void wefti_mapped_nothing(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
}

bool wefti_mapped_control_sent(wefti_endpoint_t *endpoint, uint32_t number)
{
    return has_published(endpoint, endpoint->rank, number);
}

bool wefti_mapped_flush(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
    return true;
}

weft_status_t wefti_mapped_all_alive(wefti_endpoint_t *endpoint)
{
    (void)endpoint;
    return WEFT_OK;
}

void wefti_mapped_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                           char *reason, size_t reason_bytes)
{
    bool threads = endpoint->control[peer]->pid == endpoint->control[endpoint->rank]->pid;
    snprintf(name, name_bytes, "%s", endpoint->ops->name);
    snprintf(reason, reason_bytes, "%s", threads ? "" : "processes of one host");
}

void wefti_mapped_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out)
{
    (void)endpoint, (void)peer, (void)out; /* zero already */
}

void wefti_mapped_bind_progress(wefti_endpoint_t *endpoint, const uint32_t *cpus,
                                uint32_t cpu_count)
{
    (void)endpoint, (void)cpus, (void)cpu_count;
}

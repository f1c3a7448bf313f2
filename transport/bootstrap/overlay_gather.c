/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather by the algorithm of Bruck and others (IEEE Transactions on Parallel and Distributed
 * Systems 8, 1997): in step k a rank sends the blocks it has to the rank 2^k before it and receives
 * as many from the rank 2^k behind it, so that the blocks of 2^(k+1) ranks from its own on are
 * there. Any number of ranks, ceil(log2 n) messages each.
 */
#include "transport/bootstrap/overlay.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "transport/waits.h"

#define LOOK_MS 50
#define BUSY_MS 1

typedef struct parcel_head {
    uint32_t sequence, step;
    uint32_t kind, zero;
    uint64_t block_bytes;
} parcel_head_t;
_Static_assert(sizeof(parcel_head_t) == 24, "parcels travel");

/* Parcels of one rank, in the order in which it sends them. */
#define STEPS 16u /* in an all-gather, at most */
static uint32_t position_of(uint32_t sequence, uint32_t step)
{
    return sequence * STEPS + step;
}

/* Ranks are at most one all-gather apart, and each sends a rank at most two parcels of one. */
#define PARCELS_MAX 64u

weft_status_t wefti_overlay_receive_parcel(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                           const wefti_frame_t *frame)
{
    parcel_head_t head;
    uint32_t waiting = 0;
    if (frame->bytes < sizeof head) {
        return WEFT_ERR_FORMAT;
    }
    memcpy(&head, frame->body, sizeof head);
    for (const wefti_parcel_t *parcel = from->parcels; parcel != NULL; parcel = parcel->next) {
        waiting++;
    }
    size_t bytes = frame->bytes - sizeof head;
    wefti_parcel_t *parcel = waiting < PARCELS_MAX
                                 ? wefti_alloc(overlay->params.allocator, sizeof *parcel + bytes)
                                 : NULL;
    if (parcel == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *parcel = (wefti_parcel_t){.next = from->parcels,
                               .sequence = head.sequence,
                               .step = head.step,
                               .kind = head.kind,
                               .block_bytes = head.block_bytes,
                               .bytes = bytes};
    memcpy(parcel->data, frame->body + sizeof head, bytes);
    from->parcels = parcel;
    if (overlay->gather_waits) {
        (void)eventfd_write(overlay->wake_fd, 1); /* the counter does not overflow */
    }
    return WEFT_OK;
}

static wefti_overlay_link_t *link_to(wefti_overlay_t *overlay, uint32_t rank)
{
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        if (overlay->links[i].rank == rank) {
            return &overlay->links[i];
        }
    }
    return NULL;
}

/* Takes a parcel out of the link's list; NULL: it has not arrived. Under the lock. */
static wefti_parcel_t *find_parcel(wefti_overlay_link_t *link, uint32_t sequence, uint32_t step)
{
    for (wefti_parcel_t **at = &link->parcels; *at != NULL; at = &(*at)->next) {
        wefti_parcel_t *parcel = *at;
        if (parcel->sequence == sequence && parcel->step == step) {
            *at = parcel->next;
            return parcel;
        }
    }
    return NULL;
}

typedef struct gather {
    wefti_overlay_t *overlay;
    uint32_t sequence, kind;
    size_t bytes;
    uint64_t deadline_ns;
    weft_status_t (*check)(void *user);
    void *user;
} gather_t;

static weft_status_t await_parcel(const gather_t *gather, wefti_overlay_link_t *link, uint32_t step,
                                  wefti_parcel_t **out_parcel)
{
    wefti_overlay_t *overlay = gather->overlay;
    weft_status_t status = WEFT_OK;
    for (bool waits = false;; waits = true) {
        wefti_overlay_progress(overlay);
        pthread_mutex_lock(&overlay->lock);
        wefti_parcel_t *parcel = find_parcel(link, gather->sequence, step);
        bool up = link->up, left = wefti_bit(overlay->gone, link->rank);
        overlay->gather_waits = parcel == NULL && up;
        overlay->gather_peer = link->rank;
        overlay->gather_position = position_of(gather->sequence, step);
        pthread_mutex_unlock(&overlay->lock);
        if (parcel != NULL) {
            *out_parcel = parcel;
            return WEFT_OK;
        }
        if (status < 0) {
            return status;
        }
        status = waits && gather->check != NULL ? gather->check(gather->user) : WEFT_OK;
        if (status < 0) {
            continue; /* a peer may have sent its parcel, gone on, and failed in a later call */
        }
        if (!up) {
            return wefti_error(WEFT_ERR_PEER_DIED, "rank %u %s while rank %u was waiting for it",
                               link->rank, left ? "left" : "died", overlay->rank);
        }
        if (wefti_now_ns() >= gather->deadline_ns) {
            return wefti_error(WEFT_ERR_TIMEOUT, "rank %u: timed out waiting for rank %u",
                               overlay->rank, link->rank);
        }
        /* wake_fd: another thread that makes progress has received the parcel. */
        struct pollfd fds[2] = {{.fd = overlay->epoll_fd, .events = POLLIN},
                                {.fd = overlay->wake_fd, .events = POLLIN}};
        if (poll(fds, 2, status == WEFT_IN_PROGRESS ? BUSY_MS : LOOK_MS) > 0 &&
            fds[1].revents != 0) {
            uint64_t wakes;
            (void)eventfd_read(overlay->wake_fd, &wakes);
        }
    }
}

/* The higher rank first, so that both sides report the same text. */
static weft_status_t mismatch(const gather_t *gather, uint32_t peer, uint32_t kind)
{
    uint32_t own = gather->overlay->rank;
    bool high = peer > own;
    return wefti_error(WEFT_ERR_MISMATCH, "rank %u called %s, rank %u called %s", high ? peer : own,
                       wefti_control_name(high ? kind : gather->kind), high ? own : peer,
                       wefti_control_name(high ? gather->kind : kind));
}

bool wefti_overlay_gather_waits(wefti_overlay_t *overlay, uint32_t *out_rank,
                                uint32_t *out_position)
{
    pthread_mutex_lock(&overlay->lock);
    bool waits = overlay->gather_waits;
    uint32_t sequence = overlay->gather_position / STEPS, step = overlay->gather_position % STEPS;
    const wefti_overlay_link_t *link = waits ? link_to(overlay, overlay->gather_peer) : NULL;
    for (const wefti_parcel_t *at = link != NULL ? link->parcels : NULL; at != NULL;
         at = at->next) {
        waits = waits && !(at->sequence == sequence && at->step == step);
    }
    *out_rank = overlay->gather_peer;
    *out_position = overlay->gather_position;
    pthread_mutex_unlock(&overlay->lock);
    return waits;
}

bool wefti_overlay_gather_sent(wefti_overlay_t *overlay, uint32_t position)
{
    pthread_mutex_lock(&overlay->lock);
    bool sent = wefti_signal_reached(overlay->gather_sent, position);
    pthread_mutex_unlock(&overlay->lock);
    return sent;
}

static weft_status_t run_steps(const gather_t *gather, uint8_t *blocks)
{
    wefti_overlay_t *overlay = gather->overlay;
    uint32_t n = overlay->world_size, step = 0;
    for (uint32_t have = 1; have < n; have *= 2, step++) {
        uint32_t more = have < n - have ? have : n - have;
        wefti_overlay_link_t *to = link_to(overlay, (overlay->rank + n - have) % n);
        wefti_overlay_link_t *from = link_to(overlay, (overlay->rank + have) % n);
        const parcel_head_t head = {gather->sequence, step, gather->kind, 0, gather->bytes};
        wefti_parcel_t *parcel = NULL;
        pthread_mutex_lock(&overlay->lock);
        wefti_overlay_send(overlay, to, WEFTI_GATHER, &head, sizeof head, blocks,
                           more * gather->bytes);
        overlay->gather_sent = position_of(gather->sequence, step);
        pthread_mutex_unlock(&overlay->lock);
        weft_status_t status = await_parcel(gather, from, step, &parcel);
        if (status < 0) {
            return status;
        }
        uint64_t theirs = parcel->block_bytes;
        if (parcel->kind != gather->kind) {
            status = mismatch(gather, from->rank, parcel->kind);
        } else if (theirs == gather->bytes && parcel->bytes == more * gather->bytes) {
            memcpy(blocks + have * gather->bytes, parcel->data, parcel->bytes);
        } else {
            status =
                wefti_error(WEFT_ERR_MISMATCH,
                            "control all-gather: size mismatch: rank %u has %zu bytes per rank, "
                            "rank %u has %llu",
                            overlay->rank, gather->bytes, from->rank, (unsigned long long)theirs);
        }
        wefti_free(overlay->params.allocator, parcel);
        if (status < 0) {
            return status;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_overlay_all_gather(wefti_overlay_t *overlay, uint32_t kind, const void *send,
                                       size_t bytes, void *recv, uint64_t deadline_ns,
                                       weft_status_t (*check)(void *user), void *user)
{
    uint32_t n = overlay->world_size, rank = overlay->rank;
    size_t total;
    if (__builtin_mul_overflow(bytes, (size_t)n, &total) || total > (size_t)1 << 31) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "control all-gather: %zu bytes from each of %u ranks exceed 2 GiB",
                           bytes, n);
    }
    const gather_t gather = {overlay, ++overlay->gather_sequence, kind, bytes, deadline_ns, check,
                             user};
    /* Blocks from this rank's on; turned to their places at the end. */
    uint8_t *blocks = wefti_alloc(overlay->params.allocator, total > 0 ? total : 1);
    if (blocks == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (bytes > 0) {
        memcpy(blocks, send, bytes);
    }
    weft_status_t status = run_steps(&gather, blocks);
    if (status == WEFT_OK) { /* else others still look for the causes */
        pthread_mutex_lock(&overlay->lock);
        overlay->gather_waits = false;
        pthread_mutex_unlock(&overlay->lock);
    }
    if (status == WEFT_OK && bytes > 0) {
        uint8_t *out = recv;
        memcpy(out + rank * bytes, blocks, (n - rank) * bytes);
        memcpy(out, blocks + (n - rank) * bytes, rank * bytes);
    }
    wefti_free(overlay->params.allocator, blocks);
    return status;
}

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

/* ---- time ---- */

/* From one message about it to the next: many hops of it are less than the time-out. */
static uint64_t quantum_ns(const wefti_overlay_t *overlay)
{
    return overlay->params.settings->timeout_ns / 16;
}

/* Longer than the way between any two ranks. A message takes time that its age does not count, so
 * where that is longer than the quantum it would go round for ever. */
#define HOPS_MAX 32u

typedef struct moved_message {
    uint64_t age_ns;
    uint32_t hops, zero;
} moved_message_t;
_Static_assert(sizeof(moved_message_t) == 16, "these travel");

/* An all-gather went on at this time, as hops ranks have passed on. A rank that hears of it later
 * than of another such time by less than the quantum keeps it: the messages of one quantum reach
 * each rank once. Under the lock. */
static void moved(wefti_overlay_t *overlay, const wefti_overlay_link_t *from, uint64_t at_ns,
                  uint32_t hops)
{
    uint64_t quantum = quantum_ns(overlay), now = wefti_now_ns();
    /* relaxed: only this section writes */
    if (at_ns > atomic_load_explicit(&overlay->moved_ns, memory_order_relaxed)) {
        atomic_store_explicit(&overlay->moved_ns, at_ns, memory_order_relaxed);
    }
    if (quantum == 0 || at_ns < overlay->moved_sent_ns + quantum || hops >= HOPS_MAX) {
        return;
    }
    const moved_message_t message = {.age_ns = now > at_ns ? now - at_ns : 0, .hops = hops + 1};
    bool first = overlay->moved_sent_ns == 0; /* nothing has waited for long yet */
    overlay->moved_sent_ns = at_ns;
    for (uint32_t i = 0; i < overlay->link_count && !first; i++) {
        if (&overlay->links[i] != from) {
            wefti_overlay_send(overlay, &overlay->links[i], WEFTI_MOVED, &message, sizeof message,
                               NULL, 0);
        }
    }
}

weft_status_t wefti_overlay_receive_moved(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                          const wefti_frame_t *frame)
{
    moved_message_t message;
    uint64_t now = wefti_now_ns();
    if (frame->bytes != sizeof message) {
        return WEFT_ERR_FORMAT;
    }
    memcpy(&message, frame->body, sizeof message);
    moved(overlay, from, message.age_ns < now ? now - message.age_ns : 1, message.hops);
    return WEFT_OK;
}

void wefti_overlay_gather_moves(wefti_overlay_t *overlay)
{
    pthread_mutex_lock(&overlay->lock);
    moved(overlay, NULL, wefti_now_ns(), 0);
    pthread_mutex_unlock(&overlay->lock);
}

const _Atomic uint64_t *wefti_overlay_moved(const wefti_overlay_t *overlay)
{
    return &overlay->moved_ns;
}

/* ---- parcels ---- */

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
    moved(overlay, NULL, wefti_now_ns(), 0);
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
    const wefti_gather_t *params;
    uint32_t sequence;
    uint64_t began_ns;
} gather_t;

static uint64_t deadline_of(const gather_t *gather)
{
    /* relaxed: a time and no more */
    uint64_t moved_ns = atomic_load_explicit(&gather->overlay->moved_ns, memory_order_relaxed);
    uint64_t from = moved_ns > gather->began_ns ? moved_ns : gather->began_ns;
    uint64_t timeout = gather->params->timeout_ns;
    return timeout > UINT64_MAX - from ? UINT64_MAX : from + timeout;
}

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
        status = waits && gather->params->check != NULL
                     ? gather->params->check(gather->params->user)
                     : WEFT_OK;
        if (status < 0) {
            continue; /* a peer may have sent its parcel, gone on, and failed in a later call */
        }
        if (!up) {
            return wefti_error(WEFT_ERR_PEER_DIED, "rank %u %s while rank %u was waiting for it",
                               link->rank, left ? "left" : "died", overlay->rank);
        }
        if (wefti_now_ns() >= deadline_of(gather)) {
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
    uint32_t own = gather->overlay->rank, own_kind = gather->params->kind;
    bool high = peer > own;
    return wefti_error(WEFT_ERR_MISMATCH, "rank %u called %s, rank %u called %s", high ? peer : own,
                       wefti_control_name(high ? kind : own_kind), high ? own : peer,
                       wefti_control_name(high ? own_kind : kind));
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

/* Members of an all-gather of all ranks. */
static uint32_t rank_of(const wefti_members_t *members, uint32_t member)
{
    return members->ranks != NULL ? members->ranks[member] : member;
}

/* Before a member's blocks; of no member: of all. */
static size_t blocks_before(const wefti_members_t *members, uint32_t member)
{
    return members->starts != NULL ? members->starts[member] : member;
}

/* Of count members from first on, around the end. */
static size_t blocks_of(const wefti_members_t *members, uint32_t first, uint32_t count)
{
    uint32_t last = first + count;
    size_t before = blocks_before(members, first);
    return last <= members->count ? blocks_before(members, last) - before
                                  : blocks_before(members, members->count) - before +
                                        blocks_before(members, last - members->count);
}

/* Takes what member from sent: expected blocks. */
static weft_status_t take_parcel(const gather_t *gather, const wefti_overlay_link_t *from,
                                 const wefti_parcel_t *parcel, uint8_t *to, size_t expected)
{
    size_t bytes = gather->params->bytes;
    if (parcel->kind != gather->params->kind) {
        return mismatch(gather, from->rank, parcel->kind);
    }
    if (parcel->block_bytes != bytes || parcel->bytes != expected * bytes) {
        return wefti_error(WEFT_ERR_MISMATCH,
                           "control all-gather: size mismatch: rank %u has %zu bytes per rank, "
                           "rank %u has %llu",
                           gather->overlay->rank, bytes, from->rank,
                           (unsigned long long)parcel->block_bytes);
    }
    memcpy(to, parcel->data, parcel->bytes);
    return WEFT_OK;
}

static weft_status_t run_steps(const gather_t *gather, const wefti_members_t *members,
                               uint8_t *blocks)
{
    wefti_overlay_t *overlay = gather->overlay;
    const wefti_gather_t *params = gather->params;
    uint32_t n = members->count, own = members->own, step = 0;
    for (uint32_t have = 1; have < n; have *= 2, step++) {
        uint32_t more = have < n - have ? have : n - have;
        wefti_overlay_link_t *to = link_to(overlay, rank_of(members, (own + n - have) % n));
        wefti_overlay_link_t *from = link_to(overlay, rank_of(members, (own + have) % n));
        const parcel_head_t head = {gather->sequence, step, params->kind, 0, params->bytes};
        wefti_parcel_t *parcel = NULL;
        if (to == NULL || from == NULL) { /* rank 0 and this rank count hosts differently */
            return wefti_error(WEFT_ERR_INTERNAL, "rank %u has no link to rank %u", overlay->rank,
                               rank_of(members, (own + (to == NULL ? n - have : have)) % n));
        }
        pthread_mutex_lock(&overlay->lock);
        wefti_overlay_send(overlay, to, WEFTI_GATHER, &head, sizeof head, blocks,
                           blocks_of(members, own, more) * params->bytes);
        overlay->gather_sent = position_of(gather->sequence, step);
        pthread_mutex_unlock(&overlay->lock);
        WEFT_RETURN_IF_ERROR(await_parcel(gather, from, step, &parcel));
        weft_status_t status = take_parcel(gather, from, parcel,
                                           blocks + blocks_of(members, own, have) * params->bytes,
                                           blocks_of(members, (own + have) % n, more));
        wefti_free(overlay->params.allocator, parcel);
        WEFT_RETURN_IF_ERROR(status);
    }
    return WEFT_OK;
}

weft_status_t wefti_overlay_gather_total(size_t bytes, size_t ranks, size_t *out_total)
{
    if (__builtin_mul_overflow(bytes, ranks, out_total) || *out_total > (size_t)1 << 31) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "control all-gather: %zu bytes from each of %zu ranks exceed 2 GiB",
                           bytes, ranks);
    }
    return WEFT_OK;
}

weft_status_t wefti_overlay_all_gather(wefti_overlay_t *overlay, const wefti_gather_t *params)
{
    const wefti_members_t everyone = {.count = overlay->world_size, .own = overlay->rank};
    const wefti_members_t *members = params->members != NULL ? params->members : &everyone;
    size_t before = blocks_before(members, members->own), bytes = params->bytes;
    size_t all = blocks_before(members, members->count), total;
    WEFT_RETURN_IF_ERROR(wefti_overlay_gather_total(bytes, all, &total));
    const gather_t gather = {overlay, params, ++overlay->gather_sequence, wefti_now_ns()};
    wefti_overlay_gather_moves(overlay);
    /* Blocks from this member's on; turned to their places at the end. */
    uint8_t *blocks = wefti_alloc(overlay->params.allocator, total > 0 ? total : 1);
    if (blocks == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (bytes > 0) {
        memcpy(blocks, params->send, blocks_of(members, members->own, 1) * bytes);
    }
    weft_status_t status = run_steps(&gather, members, blocks);
    if (status == WEFT_OK) { /* else others still look for the causes */
        pthread_mutex_lock(&overlay->lock);
        overlay->gather_waits = false;
        pthread_mutex_unlock(&overlay->lock);
    }
    if (status == WEFT_OK && bytes > 0) {
        uint8_t *out = params->recv;
        memcpy(out + before * bytes, blocks, (all - before) * bytes);
        memcpy(out, blocks + (all - before) * bytes, before * bytes);
    }
    wefti_free(overlay->params.allocator, blocks);
    return status;
}

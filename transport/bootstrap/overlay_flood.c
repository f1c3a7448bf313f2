/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to all ranks. Each rank forwards a flood that it has not seen over all its other links,
 * so it arrives although ranks on the way are gone. Departures travel as bitmaps of all ranks that
 * left, at most one per link in GONE_NS (more in large worlds): if all ranks leave at once, each sends a few bitmaps
 * instead of one message per rank.
 */
#include "transport/bootstrap/overlay.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"

#define GONE_NS 20000000ull
/* In larger worlds more bitmaps go around for each rank that leaves: they go less often. */
#define GONE_RANKS 64u
#define GONE_MAX_NS 500000000ull
/* Kinds of our own, next to the callers'. */
#define KIND_OWN 0x80000000u
#define KIND_DIED KIND_OWN
#define KIND_ASK (KIND_OWN | 1u)

typedef struct flood {
    uint32_t origin, sequence, kind, zero;
} flood_t;
_Static_assert(sizeof(flood_t) == 16, "floods travel");

typedef struct death {
    uint32_t rank;
    char how[200];
} death_t;

/* True once per flood. */
static bool first_sight(wefti_seen_t *seen, uint32_t sequence)
{
    uint32_t ahead = sequence - seen->highest;
    if (ahead != 0 && ahead < 0x80000000u) {
        seen->mask = ahead < 64 ? seen->mask << ahead : 0;
        seen->mask |= 1;
        seen->highest = sequence;
        return true;
    }
    uint32_t behind = seen->highest - sequence;
    if (behind >= 64 || (seen->mask >> behind & 1) != 0) {
        return false;
    }
    seen->mask |= 1ull << behind;
    return true;
}

static void forward(wefti_overlay_t *overlay, const wefti_overlay_link_t *from, const flood_t *head,
                    const void *data, size_t bytes)
{
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        if (&overlay->links[i] != from) {
            wefti_overlay_send(overlay, &overlay->links[i], WEFTI_FLOOD, head, sizeof *head, data,
                               bytes);
        }
    }
}

static void begin_flood(wefti_overlay_t *overlay, uint32_t kind, const void *data, size_t bytes)
{
    const flood_t head = {overlay->rank, ++overlay->flood_sequence, kind, 0};
    first_sight(&overlay->seen[overlay->rank], head.sequence);
    forward(overlay, NULL, &head, data, bytes);
}

void wefti_overlay_flood(wefti_overlay_t *overlay, uint32_t kind, const void *data, size_t bytes)
{
    bytes = bytes < WEFTI_FLOOD_BYTES ? bytes : WEFTI_FLOOD_BYTES;
    pthread_mutex_lock(&overlay->lock);
    begin_flood(overlay, kind & ~KIND_OWN, data, bytes);
    pthread_mutex_unlock(&overlay->lock);
}

uint32_t wefti_overlay_flood_question(wefti_overlay_t *overlay, uint32_t turn)
{
    begin_flood(overlay, KIND_ASK, &turn, sizeof turn);
    return overlay->flood_sequence;
}

static void died_event(wefti_event_t *event, uint32_t rank, const char *how)
{
    event->kind = WEFTI_EVENT_DIED;
    event->rank = rank;
    snprintf((char *)event->data, sizeof event->data, "%s", how);
}

weft_status_t wefti_overlay_receive_flood(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                          const wefti_frame_t *frame, wefti_event_t *out_event,
                                          bool *out_has_event)
{
    flood_t head;
    if (frame->bytes < sizeof head || frame->bytes > sizeof head + WEFTI_FLOOD_BYTES) {
        return WEFT_ERR_FORMAT;
    }
    memcpy(&head, frame->body, sizeof head);
    const uint8_t *data = frame->body + sizeof head;
    uint32_t bytes = frame->bytes - (uint32_t)sizeof head;
    if (head.origin >= overlay->world_size) {
        return WEFT_ERR_FORMAT;
    }
    if (!first_sight(&overlay->seen[head.origin], head.sequence)) {
        return WEFT_OK;
    }
    if (head.kind == KIND_DIED) {
        /* Many notice one death; each rank passes it on once. */
        death_t death;
        if (bytes != sizeof death) {
            return WEFT_ERR_FORMAT;
        }
        memcpy(&death, data, sizeof death);
        death.how[sizeof death.how - 1] = '\0';
        if (death.rank >= overlay->world_size) {
            return WEFT_ERR_FORMAT;
        }
        if (death.rank == overlay->rank || wefti_bit(overlay->dead, death.rank)) {
            return WEFT_OK;
        }
        wefti_bit_set(overlay->dead, death.rank);
        died_event(out_event, death.rank, death.how);
        *out_has_event = true;
    } else if (head.kind == KIND_ASK) {
        if (bytes != sizeof(uint32_t)) {
            return WEFT_ERR_FORMAT;
        }
        overlay->routes[overlay->next_route++ % WEFTI_ROUTES] =
            (wefti_route_t){head.origin, head.sequence, from};
        *out_event = (wefti_event_t){
            .kind = WEFTI_EVENT_ASKED, .rank = head.origin, .sequence = head.sequence};
        memcpy(out_event->data, data, bytes);
        *out_has_event = true;
    } else {
        *out_event = (wefti_event_t){.kind = WEFTI_EVENT_FLOOD,
                                     .rank = head.origin,
                                     .flood_kind = head.kind,
                                     .bytes = bytes};
        memcpy(out_event->data, data, bytes);
        *out_has_event = true;
    }
    forward(overlay, from, &head, data, bytes);
    return WEFT_OK;
}

bool wefti_overlay_lost(wefti_overlay_t *overlay, wefti_overlay_link_t *link,
                        wefti_event_t *out_event)
{
    death_t death = {.rank = link->rank};
    link->up = false;
    int problem = link->wire.error;
    wefti_wire_deinit(&link->wire);
    if (wefti_bit(overlay->gone, link->rank) || wefti_bit(overlay->dead, link->rank)) {
        return false;
    }
    if (problem == 0) {
        snprintf(death.how, sizeof death.how, "its process exited without leaving the world");
    } else if (problem == ETIMEDOUT || problem == EHOSTUNREACH || problem == ENETUNREACH) {
        snprintf(death.how, sizeof death.how, "its host did not answer for %.3g s: %s",
                 (double)overlay->params.settings->link_timeout_ns * 1e-9, strerror(problem));
    } else {
        snprintf(death.how, sizeof death.how, "its connection broke: %s", strerror(problem));
    }
    wefti_bit_set(overlay->dead, link->rank);
    begin_flood(overlay, KIND_DIED, &death, sizeof death);
    died_event(out_event, link->rank, death.how);
    return true;
}

/* ---- departures ---- */

static void set_timer(wefti_overlay_t *overlay, uint64_t wait_ns)
{
    const struct itimerspec when = {.it_value = {.tv_nsec = (long)(wait_ns > 0 ? wait_ns : 1)}};
    timerfd_settime(overlay->timer_fd, 0, &when, NULL);
    overlay->timer_set = true;
}

static uint64_t gone_pause(uint32_t world_size)
{
    uint64_t pause_ns = GONE_NS * (1 + world_size / GONE_RANKS);
    return pause_ns < GONE_MAX_NS ? pause_ns : GONE_MAX_NS;
}

uint64_t wefti_overlay_gone_delay(uint32_t world_size)
{
    uint64_t hops = 0; /* links are at distances 1, 2, 4, .. */
    while (1ull << hops < world_size) {
        hops++;
    }
    return hops * (gone_pause(world_size) - GONE_NS);
}

void wefti_overlay_send_gone(wefti_overlay_t *overlay)
{
    uint64_t now = wefti_now_ns(), next = overlay->gone_sent_ns + gone_pause(overlay->world_size);
    bool due = now >= next;
    bool waiting = false;
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        wefti_overlay_link_t *link = &overlay->links[i];
        if (!link->up || !link->gone_due) {
            continue;
        }
        if (due) {
            wefti_overlay_send(overlay, link, WEFTI_GONE, overlay->gone,
                               overlay->gone_words * sizeof(uint64_t), NULL, 0);
            overlay->gone_sent_ns = now;
            link->gone_due = false;
        } else {
            waiting = true;
        }
    }
    if (due) {
        overlay->timer_set = false;
    }
    if (waiting && !overlay->timer_set) {
        set_timer(overlay, next - now);
    }
}

weft_status_t wefti_overlay_receive_gone(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                         const wefti_frame_t *frame)
{
    bool fresh = false;
    if (frame->bytes != overlay->gone_words * sizeof(uint64_t)) {
        return WEFT_ERR_FORMAT;
    }
    for (uint32_t i = 0; i < overlay->gone_words; i++) {
        uint64_t word;
        memcpy(&word, frame->body + i * sizeof word, sizeof word);
        /* Only this rank itself decides that it leaves. */
        if (overlay->rank / 64 == i) {
            word &= ~(1ull << (overlay->rank % 64));
        }
        if (i == overlay->gone_words - 1 && overlay->world_size % 64 != 0) {
            word &= (1ull << (overlay->world_size % 64)) - 1;
        }
        if ((word & ~overlay->gone[i]) != 0) {
            fresh = true;
            overlay->gone[i] |= word;
            overlay->gone_scan = i < overlay->gone_scan ? i : overlay->gone_scan;
        }
    }
    if (frame->kind == WEFTI_BYE) {
        if (!wefti_bit(overlay->gone, from->rank)) {
            return WEFT_ERR_FORMAT;
        }
        from->up = false;
        wefti_wire_deinit(&from->wire);
    }
    for (uint32_t i = 0; fresh && i < overlay->link_count; i++) {
        overlay->links[i].gone_due = true;
    }
    return WEFT_OK;
}

bool wefti_overlay_next_gone(wefti_overlay_t *overlay, wefti_event_t *out_event)
{
    for (; overlay->gone_scan < overlay->gone_words; overlay->gone_scan++) {
        uint32_t i = overlay->gone_scan;
        uint64_t fresh = overlay->gone[i] & ~overlay->gone_reported[i];
        if (fresh != 0) {
            uint32_t bit = (uint32_t)__builtin_ctzll(fresh);
            overlay->gone_reported[i] |= 1ull << bit;
            out_event->kind = WEFTI_EVENT_LEFT;
            out_event->rank = i * 64 + bit;
            return true;
        }
    }
    return false;
}

void wefti_overlay_send_goodbye(wefti_overlay_t *overlay)
{
    pthread_mutex_lock(&overlay->lock);
    wefti_bit_set(overlay->gone, overlay->rank);
    for (uint32_t i = 0; i < overlay->link_count; i++) {
        wefti_overlay_send(overlay, &overlay->links[i], WEFTI_BYE, overlay->gone,
                           overlay->gone_words * sizeof(uint64_t), NULL, 0);
    }
    pthread_mutex_unlock(&overlay->lock);
}

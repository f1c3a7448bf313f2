/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The overlay's parts.
 *
 *   overlay.c         opening, progress, closing
 *   overlay_gather.c  all-gather
 *   overlay_news.c    floods, who left, who died
 *
 * lock guards everything below it; nobody is called back under it. busy is held by the thread that
 * makes progress: it alone receives and calls back.
 */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_OVERLAY_H
#define WEFT_TRANSPORT_BOOTSTRAP_OVERLAY_H

#include <pthread.h>

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/mesh.h"

/* A part of an all-gather that came before it was asked for. */
typedef struct wefti_parcel {
    struct wefti_parcel *next;
    uint32_t sequence, step;
    uint64_t block_bytes;
    size_t bytes;
    uint8_t data[];
} wefti_parcel_t;

typedef struct wefti_overlay_link {
    uint32_t rank;
    wefti_wire_t wire;
    bool up;      /* neither left nor broken */
    bool writing; /* waits until the socket takes more */
    bool news;    /* has not been told of everybody who left */
    wefti_parcel_t *first, **last;
} wefti_overlay_link_t;

/* Which floods of a rank were seen: the highest number, and the 64 up to it. */
typedef struct wefti_seen {
    uint32_t highest;
    uint64_t mask;
} wefti_seen_t;

/* Something to call back for, once the lock is let go. */
typedef struct wefti_event {
    enum { WEFTI_EVENT_TOLD, WEFTI_EVENT_LEFT, WEFTI_EVENT_DIED } kind;
    uint32_t rank, what;
    uint32_t bytes;
    uint8_t data[WEFTI_FLOOD_BYTES];
} wefti_event_t;

struct wefti_overlay {
    uint32_t rank, world_size;
    const wefti_settings_t *settings;
    const wefti_log_t *log;
    const weft_allocator_t *allocator;
    void *user;
    void (*told)(void *user, uint32_t origin, uint32_t kind, const void *data, size_t bytes);
    void (*left)(void *user, uint32_t rank);
    void (*died)(void *user, uint32_t rank, const char *how);
    uint8_t key[WEFTI_WORLD_KEY_BYTES];
    char local_address[WEFTI_ADDRESS_TEXT];
    int epoll_fd, timer_fd;
    int wake_fd; /* readable when a parcel came that somebody waits for */
    uint64_t meeting_sent, meeting_received;
    _Atomic uint32_t busy;

    pthread_mutex_t lock;
    wefti_overlay_link_t *links;
    uint32_t link_count;
    /* news */
    uint32_t flood_sequence;
    wefti_seen_t *seen;    /* [world_size] */
    uint64_t *gone, *dead; /* bitmaps of ranks: left, died */
    uint64_t *gone_told;   /* ranks that left was called for */
    uint32_t gone_words;
    uint32_t gone_scan; /* left is still to be called for some from this word on */
    bool timer_set;
    uint64_t news_ns; /* when bitmaps were sent last */
    /* gather */
    uint32_t gather_sequence;
    bool gather_waits; /* somebody sleeps until a parcel comes */
};

static inline bool wefti_bit(const uint64_t *bits, uint32_t index)
{
    return (bits[index / 64] >> (index % 64) & 1) != 0;
}

static inline void wefti_bit_set(uint64_t *bits, uint32_t index)
{
    bits[index / 64] |= 1ull << (index % 64);
}

/* All of these: under the lock. */
/* Sends a frame on a link; a link that breaks is found so by progress. */
void wefti_overlay_send(wefti_overlay_t *overlay, wefti_overlay_link_t *link, uint32_t kind,
                        const void *head, size_t head_bytes, const void *data, size_t bytes);
/* A frame came. True: *out_event is to be called back. WEFT_ERR_FORMAT: the link is of no use. */
weft_status_t wefti_overlay_hear_flood(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                       const wefti_frame_t *frame, wefti_event_t *out_event,
                                       bool *out_has_event);
weft_status_t wefti_overlay_hear_gone(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                      const wefti_frame_t *frame);
weft_status_t wefti_overlay_hear_parcel(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                        const wefti_frame_t *frame);
/* A link broke without a goodbye. True: its rank was not known to be dead or gone. */
bool wefti_overlay_lost(wefti_overlay_t *overlay, wefti_overlay_link_t *link,
                        wefti_event_t *out_event);
/* The next rank that left and has not been called back for. */
bool wefti_overlay_next_gone(wefti_overlay_t *overlay, wefti_event_t *out_event);
/* Sends bitmaps that are due, or sets the timer. */
void wefti_overlay_tell_gone(wefti_overlay_t *overlay);
void wefti_overlay_say_goodbye(wefti_overlay_t *overlay);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The overlay's parts.
 *
 *   overlay.c         opening, progress, closing
 *   overlay_gather.c  all-gather
 *   overlay_flood.c   floods, departures, deaths
 *   overlay_ask.c     questions from other processes
 *
 * lock guards everything below it; callbacks run without it. busy is held by the thread that makes
 * progress: it alone receives and calls back.
 */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_OVERLAY_H
#define WEFT_TRANSPORT_BOOTSTRAP_OVERLAY_H

#include <pthread.h>

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/mesh.h"
#include "transport/helper.h"

/* A part of an all-gather that arrived before this rank needs it. */
typedef struct wefti_parcel {
    struct wefti_parcel *next;
    uint32_t sequence, step, kind;
    uint64_t block_bytes;
    size_t bytes;
    uint8_t data[];
} wefti_parcel_t;

typedef struct wefti_overlay_link {
    uint32_t rank;
    wefti_wire_t wire;
    int pid_fd;    /* of its process, if that runs under this kernel; -1: none */
    bool up;       /* neither left nor broken */
    bool writing;  /* waits until the socket takes more */
    bool gone_due; /* the bitmap of ranks that left has changed since it was sent here */
    wefti_parcel_t *parcels;
} wefti_overlay_link_t;

/* Which floods of a rank were seen: the highest number, and the 64 up to it. */
typedef struct wefti_seen {
    uint32_t highest;
    uint64_t mask;
} wefti_seen_t;

/* Another process, which asks. */
typedef struct wefti_asker {
    wefti_wire_t wire;
    uint32_t first, last; /* sequence numbers of its questions; 0: none */
    bool writing;         /* waits until the socket takes more */
    bool paused;          /* its next question is too early; the helper reads it later */
} wefti_asker_t;

/* By which link a question of another rank came: its answers go back there. */
typedef struct wefti_route {
    uint32_t origin, sequence;
    wefti_overlay_link_t *link; /* NULL: none */
} wefti_route_t;

/* That this rank may have to answer. */
typedef struct wefti_question {
    uint32_t origin, sequence, turn;
} wefti_question_t;

#define WEFTI_ASKERS 4u
#define WEFTI_ROUTES 32u
/* From one question that a rank passes on to the next: ranks must not notice who asks. */
#define WEFTI_ASK_PAUSE_NS 100000000ull
#define WEFTI_QUESTIONS 16u /* that wait for an answer; later ones get none */

/* A callback that is due once the lock is released. */
typedef struct wefti_event {
    enum { WEFTI_EVENT_FLOOD, WEFTI_EVENT_LEFT, WEFTI_EVENT_DIED, WEFTI_EVENT_ASKED } kind;
    uint32_t rank, flood_kind, sequence;
    uint32_t bytes;
    uint8_t data[WEFTI_FLOOD_BYTES];
} wefti_event_t;

struct wefti_overlay {
    uint32_t rank, world_size;
    wefti_overlay_params_t params; /* but for the job */
    uint8_t key[WEFTI_WORLD_KEY_BYTES];
    wefti_endpoint_address_t address;
    char local_address[WEFTI_ADDRESS_TEXT];
    int epoll_fd, timer_fd;
    int wake_fd; /* readable when a parcel arrived that another thread waits for */
    _Atomic uint32_t busy;

    pthread_mutex_t lock;
    wefti_overlay_link_t *links;
    uint32_t link_count;
    /* overlay_flood.c */
    uint32_t flood_sequence;
    wefti_seen_t *seen;      /* [world_size] */
    uint64_t *gone, *dead;   /* bitmaps of ranks: left, died */
    uint64_t *gone_reported; /* ranks that left was called for */
    uint32_t gone_words;
    uint32_t gone_scan; /* first word that may have ranks to call left for */
    bool timer_set;
    uint64_t gone_sent_ns; /* when bitmaps were sent last */
    /* overlay_gather.c */
    uint32_t gather_sequence;
    bool gather_waits;                     /* for a parcel; also after it gave up */
    uint32_t gather_peer, gather_position; /* whose, and which */
    uint32_t gather_sent;                  /* the position of the last parcel that was sent */
    _Atomic uint64_t moved_ns;             /* when some all-gather last went on */
    uint64_t moved_sent_ns;                /* the last time that neighbours know of */
    /* overlay_ask.c */
    int ask_fd; /* listens; -1: no */
    wefti_asker_t askers[WEFTI_ASKERS];
    wefti_route_t routes[WEFTI_ROUTES];
    wefti_question_t questions[WEFTI_QUESTIONS];
    uint32_t next_asker, next_route, question_count, resumed;
    uint64_t ask_pause_ns, asked_ns; /* between questions; when one was passed on last */
    wefti_helper_t answering;        /* answers them */
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
/* Sends a frame on a link; progress finds links that break. */
void wefti_overlay_send(wefti_overlay_t *overlay, wefti_overlay_link_t *link, uint32_t kind,
                        const void *head, size_t head_bytes, const void *data, size_t bytes);
/* A frame arrived. *out_has_event: *out_event is due. WEFT_ERR_FORMAT: the link is unusable. */
weft_status_t wefti_overlay_receive_flood(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                          const wefti_frame_t *frame, wefti_event_t *out_event,
                                          bool *out_has_event);
weft_status_t wefti_overlay_receive_gone(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                         const wefti_frame_t *frame);
weft_status_t wefti_overlay_receive_parcel(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                           const wefti_frame_t *frame);
weft_status_t wefti_overlay_receive_moved(wefti_overlay_t *overlay, wefti_overlay_link_t *from,
                                          const wefti_frame_t *frame);
/* A link broke without a goodbye. True: its rank was not known to be dead or gone. */
bool wefti_overlay_lost(wefti_overlay_t *overlay, wefti_overlay_link_t *link,
                        wefti_event_t *out_event);
/* Sends a question to all ranks; returns its sequence number. */
uint32_t wefti_overlay_flood_question(wefti_overlay_t *overlay, uint32_t turn);
weft_status_t wefti_overlay_receive_answer(wefti_overlay_t *overlay, const wefti_frame_t *frame);
/* The next rank that left and has not been reported. */
bool wefti_overlay_next_gone(wefti_overlay_t *overlay, wefti_event_t *out_event);
/* Sends bitmaps that are due, or sets the timer. */
void wefti_overlay_send_gone(wefti_overlay_t *overlay);
void wefti_overlay_send_goodbye(wefti_overlay_t *overlay);

/* overlay_ask.c, by the thread that makes progress, without the lock: an event of ask_fd (place
 * WEFTI_ASKERS) or of an asker; a question arrived, which the helper answers. */
#define WEFTI_ASK_TAG 0x20000000u /* and the place */
void wefti_overlay_serve(wefti_overlay_t *overlay, uint32_t place);
void wefti_overlay_asked(wefti_overlay_t *overlay, uint32_t origin, uint32_t sequence,
                         uint32_t turn);
void wefti_overlay_answer(void *overlay);
void wefti_overlay_stop_serving(wefti_overlay_t *overlay);

#endif

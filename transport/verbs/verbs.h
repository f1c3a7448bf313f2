/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs driver's inside: one device port per rank, reliable connected queue pairs to every
 * peer.
 *
 *   device.c      which device, port and GID
 *   memory.c      registered memory: pieces of the region, chunks that unlent puts go through
 *   queue_pair.c  making, connecting and breaking queue pairs
 *   send.c        puts and signals to work requests; what waits for room
 *   progress.c    completions, events of the device, falling asleep
 *   driver.c      the table of functions
 *
 * One mutex guards everything below; what breaks is reported after it is released.
 */
#ifndef WEFT_TRANSPORT_VERBS_VERBS_H
#define WEFT_TRANSPORT_VERBS_VERBS_H

#include "transport/links.h"

#include <infiniband/verbs.h>
#include <pthread.h>

#define WEFTI_VERBS_CARD_MAGIC 0x56424357u
#define WEFTI_VERBS_CARD_VERSION 1u

#define WEFTI_VERBS_QUEUE_PAIRS_MAX 16u
#define WEFTI_VERBS_SEND_DEPTH 128u /* work requests on their way per queue pair */
#define WEFTI_VERBS_RECV_DEPTH 64u  /* signals that may be on their way to a queue pair */
#define WEFTI_VERBS_DEPTH_MIN 8u    /* of both, where completion queues are short */
#define WEFTI_VERBS_RECV_EXTRA 4u   /* for messages that give credits, which need none */
#define WEFTI_VERBS_CHAIN 16u       /* work requests per doorbell */
#define WEFTI_VERBS_INLINE 220u     /* asked for; less where the device has less */
#define WEFTI_VERBS_CHUNK_BYTES 32768u
#define WEFTI_VERBS_CHUNKS 64u
#define WEFTI_VERBS_COUNTERS 128u /* that a queue pair knows by number */
#define WEFTI_VERBS_TEXT_BYTES 240u

/* GIDs are compared within a kind: both ends must have one. The best kind first. */
typedef enum wefti_verbs_gid_kind {
    WEFTI_VERBS_GID_INFINIBAND = 0,
    WEFTI_VERBS_GID_V2_IPV4 = 1, /* RoCE version 2 */
    WEFTI_VERBS_GID_V2_IPV6 = 2,
    WEFTI_VERBS_GID_V2_LINK_LOCAL = 3,
    WEFTI_VERBS_GID_V1 = 4,
    WEFTI_VERBS_GID_KINDS = 5,
} wefti_verbs_gid_kind_t;

/* What all ranks know of a rank. */
typedef struct wefti_verbs_card {
    uint32_t magic, version;
    uint32_t mtu; /* bytes */
    uint32_t gid_mask;
    uint16_t lid;
    uint8_t link_layer, port;
    uint8_t pad[4];
    uint8_t gids[WEFTI_VERBS_GID_KINDS][16];
    char device[32];
} wefti_verbs_card_t;
_Static_assert(sizeof(wefti_verbs_card_t) == 136, "cards have no holes");

/* What one peer is told besides; followed by the numbers of the queue pairs. */
typedef struct wefti_verbs_offer {
    uint64_t mailbox; /* address of the slots of the first queue pair */
    uint32_t rkey;
    uint32_t depth; /* receives posted on each queue pair: slots, credits */
} wefti_verbs_offer_t;

typedef struct wefti_verbs_key {
    uint64_t base, from, to;
    uint32_t rkey, reserved;
} wefti_verbs_key_t;

/* A counter's place and value, for a signal that its number does not say. */
typedef struct wefti_verbs_slot {
    uint64_t offset;
    uint32_t value, reserved;
} wefti_verbs_slot_t;
_Static_assert(sizeof(wefti_verbs_slot_t) == 16, "slots are written by peers");

typedef struct wefti_verbs_counter {
    uint64_t offset;
    uint32_t value; /* of the latest signal */
    bool known;
} wefti_verbs_counter_t;

/* A put or signal that waits for room. */
typedef struct wefti_verbs_op {
    struct wefti_verbs_op *next;
    size_t offset, bytes;
    const uint8_t *data;
    wefti_signal_t *lent;
    uint32_t value;
    bool is_signal;
    uint8_t copy[];
} wefti_verbs_op_t;

/* What is given back when a work request has been carried out. */
typedef struct wefti_verbs_record {
    wefti_signal_t *lent;
    int32_t chunk; /* -1: none */
    bool signalled;
} wefti_verbs_record_t;

typedef struct wefti_verbs_queue_pair {
    struct ibv_qp *qp; /* NULL: broken, or never was */
    uint32_t peer, index, number;

    /* Sending. Work requests are numbered; [done, posted) are on their way, and the last
     * chain_count of them not yet given to the device. */
    uint32_t posted, done;
    wefti_verbs_record_t *records; /* [send_depth] */
    uint32_t chain_count, unsignalled;
    size_t chain_bytes;
    struct ibv_send_wr chain[WEFTI_VERBS_CHAIN];
    struct ibv_sge pieces[WEFTI_VERBS_CHAIN];
    uint8_t small[WEFTI_VERBS_CHAIN][WEFTI_VERBS_INLINE];
    bool joinable; /* the chain's last is a put that may carry a signal */
    wefti_verbs_op_t *first, *last;
    uint32_t credits; /* signals that the peer has receives for */
    wefti_verbs_counter_t told[WEFTI_VERBS_COUNTERS];
    uint64_t mailbox; /* the peer's slots */
    uint32_t mailbox_rkey, mailbox_slots, next_slot;

    /* Receiving. */
    wefti_verbs_slot_t *slots; /* [recv_depth] written by the peer */
    wefti_verbs_counter_t heard[WEFTI_VERBS_COUNTERS];
    uint32_t owed; /* credits to give back */

    struct wefti_verbs_queue_pair *next_todo;
    bool in_todo;
} wefti_verbs_queue_pair_t;

typedef struct wefti_verbs_peer {
    bool served, broken, report;
    char text[WEFTI_VERBS_TEXT_BYTES]; /* of the break */
    uint64_t base;                     /* of its region, there */
    char path[120];                    /* for people: devices and addresses of both ends */
    wefti_link_stats_t stats;
    uint32_t signalled; /* completions to come */
    uint64_t busy_since_ns;
} wefti_verbs_peer_t;

/* The part of all regions that one growth added. */
typedef struct wefti_verbs_piece {
    size_t from, to;
    struct ibv_mr *mr;
    uint32_t *rkeys; /* [world_size] */
} wefti_verbs_piece_t;

typedef struct wefti_verbs {
    wefti_link_params_t params;
    pthread_mutex_t lock;

    struct ibv_context *context;
    struct ibv_device_attr limits;
    struct ibv_port_attr port_attr;
    uint8_t port;
    char name[32]; /* of the device */
    int gid_index[WEFTI_VERBS_GID_KINDS];
    wefti_verbs_card_t *cards; /* [world_size] */
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    int epoll_fd;
    bool armed;
    uint32_t looks;

    wefti_verbs_peer_t *peers; /* [world_size] */
    uint32_t per_peer;         /* queue pairs */
    uint32_t send_depth, recv_depth, inline_bytes;
    size_t message_bytes;                   /* most in one work request */
    wefti_verbs_queue_pair_t **queue_pairs; /* [world_size * per_peer], NULL for others */
    wefti_verbs_queue_pair_t *todo;         /* have something to post */
    uint32_t reports;                       /* breaks that the owner was not told of */

    uint8_t *base; /* the own region */
    wefti_verbs_piece_t *pieces;
    size_t piece_count, piece_capacity;
    uint8_t *pool; /* chunks */
    struct ibv_mr *pool_mr;
    uint16_t free_chunks[WEFTI_VERBS_CHUNKS];
    uint32_t free_count;
    wefti_verbs_slot_t *mailbox;
    size_t mailbox_bytes;
    struct ibv_mr *mailbox_mr;
} wefti_verbs_t;

/* device.c */
/* Opens the device that suits this rank best. WEFT_ERR_UNSUPPORTED says why there is none. */
weft_status_t wefti_verbs_device_open(wefti_verbs_t *verbs, wefti_verbs_card_t *out_card);
/* The kind of GID to reach a peer by; WEFTI_VERBS_GID_KINDS: none in common. */
wefti_verbs_gid_kind_t wefti_verbs_gid_common(const wefti_verbs_card_t *a,
                                              const wefti_verbs_card_t *b);
void wefti_verbs_describe_path(const wefti_verbs_card_t *a, const wefti_verbs_card_t *b, char *text,
                               size_t bytes);

/* memory.c */
weft_status_t wefti_verbs_pool_create(wefti_verbs_t *verbs);
weft_status_t wefti_verbs_mailbox_create(wefti_verbs_t *verbs);
weft_status_t wefti_verbs_grow(void *driver, uint8_t *base, size_t from, size_t to, void *out_key);
weft_status_t wefti_verbs_grown(void *driver, const uint8_t *keys);
/* The piece that offset lies in, NULL when there is none. */
const wefti_verbs_piece_t *wefti_verbs_piece_at(const wefti_verbs_t *verbs, size_t offset);
void wefti_verbs_memory_free(wefti_verbs_t *verbs, bool forked);

/* queue_pair.c */
/* Sizes of queues by what the device has, the completion queue, all queue pairs, receives. */
weft_status_t wefti_verbs_queue_pairs_create(wefti_verbs_t *verbs);
weft_status_t wefti_verbs_connect(wefti_verbs_t *verbs, uint32_t peer,
                                  const wefti_verbs_offer_t *offer, const uint32_t *numbers);
weft_status_t wefti_verbs_post_receives(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                                        uint32_t count);
/* The peer cannot be reached any more: destroys its queue pairs and gives back all that was lent.
 * text NULL: nobody needs to know. */
void wefti_verbs_break(wefti_verbs_t *verbs, uint32_t peer, const char *text);
/* The same, naming the queue pair: "device, queue pair, peer: what". */
void wefti_verbs_break_pair(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, const char *what);

/* send.c */
weft_status_t wefti_verbs_put(void *driver, uint32_t peer, size_t offset, const void *data,
                              size_t bytes, uint32_t lane, wefti_signal_t *lent);
weft_status_t wefti_verbs_signal(void *driver, uint32_t peer, size_t offset, uint32_t value,
                                 uint32_t lane);
/* Posts what waits, as far as there is room. True: something was posted. */
bool wefti_verbs_post_waiting(wefti_verbs_t *verbs);
void wefti_verbs_todo(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair);
/* Gives back what the requests up to end (a number) held. */
void wefti_verbs_retire(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t end);
/* Makes the last request tell when it is done. True: nothing is on its way. */
bool wefti_verbs_settle(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair);
/* What an immediate says; a false one is a peer's error. */
bool wefti_verbs_receive(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t immediate,
                         bool *out_credited);

/* progress.c */
bool wefti_verbs_progress(void *driver);
bool wefti_verbs_arm(void *driver);
bool wefti_verbs_flushed(void *driver);
weft_status_t wefti_verbs_events_open(wefti_verbs_t *verbs);
void wefti_verbs_unlock(wefti_verbs_t *verbs); /* and reports what broke */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the verbs driver: one device port per rank, reliable connected queue pairs to every
 * peer. README.md lists the files. One mutex guards everything below; broken links are reported
 * after it is released.
 */
#ifndef WEFT_TRANSPORT_VERBS_VERBS_H
#define WEFT_TRANSPORT_VERBS_VERBS_H

#include "transport/links.h"

#include <infiniband/verbs.h>
#include <pthread.h>

#define WEFTI_VERBS_ADDRESS_MAGIC 0x56424357u
#define WEFTI_VERBS_ADDRESS_VERSION 1u

#define WEFTI_VERBS_QUEUE_PAIRS_MAX 16u
#define WEFTI_VERBS_SEND_DEPTH 128u /* work requests in flight per queue pair */
#define WEFTI_VERBS_RECV_DEPTH 64u  /* signals in flight to a queue pair */
#define WEFTI_VERBS_DEPTH_MIN 8u    /* of both, where completion queues are short */
#define WEFTI_VERBS_RECV_EXTRA 4u   /* for messages that return credits, which need none */
#define WEFTI_VERBS_CHAIN 16u       /* work requests per doorbell */
#define WEFTI_VERBS_INLINE 220u     /* requested; the device may have less */
#define WEFTI_VERBS_CHUNK_BYTES 32768u
#define WEFTI_VERBS_CHUNKS 64u
#define WEFTI_VERBS_COUNTERS 128u /* in the table of a queue pair */
#define WEFTI_VERBS_TEXT_BYTES 240u

/* Both ends need a GID of the same kind. The best kind first. */
typedef enum wefti_verbs_gid_kind {
    WEFTI_VERBS_GID_INFINIBAND = 0,
    WEFTI_VERBS_GID_V2_IPV4 = 1, /* RoCE version 2 */
    WEFTI_VERBS_GID_V2_IPV6 = 2,
    WEFTI_VERBS_GID_V2_LINK_LOCAL = 3,
    WEFTI_VERBS_GID_V1 = 4,
    WEFTI_VERBS_GID_KINDS = 5,
} wefti_verbs_gid_kind_t;

/* The endpoint address of a rank, known to all ranks. */
typedef struct wefti_verbs_address {
    uint32_t magic, version;
    uint32_t mtu; /* bytes */
    uint32_t gid_mask;
    uint16_t lid;
    uint8_t port, pad[5];
    uint8_t gids[WEFTI_VERBS_GID_KINDS][16];
    char device[32];
} wefti_verbs_address_t;
_Static_assert(sizeof(wefti_verbs_address_t) == 136, "addresses are sent between ranks");

/* Sent to one peer; followed by the numbers of the queue pairs. */
typedef struct wefti_verbs_offer {
    uint64_t mailbox; /* address of the slots of the first queue pair */
    uint32_t rkey;
    uint32_t depth; /* receives posted on each queue pair: slots, credits */
} wefti_verbs_offer_t;

typedef struct wefti_verbs_key {
    uint64_t base, from, to;
    uint32_t rkey, reserved;
} wefti_verbs_key_t;

/* Announces the offset and value of a counter that is not in the table of the queue pair. */
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

/* The bytes of a put, or those that are left. */
typedef struct wefti_verbs_span {
    size_t offset, bytes;
    const uint8_t *data;
    wefti_signal_t *in_use; /* counts the uses of data; NULL: data is copied */
} wefti_verbs_span_t;

/* A put or signal that waits for room. */
typedef struct wefti_verbs_op {
    struct wefti_verbs_op *next;
    wefti_verbs_span_t span; /* of a signal: the offset only */
    uint32_t value;
    bool is_signal;
    uint8_t copy[];
} wefti_verbs_op_t;

/* What is released when a work request has completed. */
typedef struct wefti_verbs_record {
    wefti_signal_t *in_use;
    int32_t chunk; /* -1: none */
    bool signalled;
} wefti_verbs_record_t;

typedef struct wefti_verbs_queue_pair {
    struct ibv_qp *qp; /* NULL: broken, or not created */
    uint32_t peer, index, number;

    /* Sending. Work requests are numbered; [done, posted) are in flight, and the last chain_count
     * of them not yet posted to the device. */
    uint32_t posted, done;
    wefti_verbs_record_t records[WEFTI_VERBS_SEND_DEPTH]; /* a ring of send_depth */
    uint32_t chain_count, unsignalled;
    size_t chain_bytes;
    struct ibv_send_wr chain[WEFTI_VERBS_CHAIN];
    struct ibv_sge pieces[WEFTI_VERBS_CHAIN];
    uint8_t small[WEFTI_VERBS_CHAIN][WEFTI_VERBS_INLINE];
    bool joinable; /* the chain's last is a put that may carry a signal */
    wefti_verbs_op_t *first, *last;
    uint32_t credits; /* signals that the peer has receives for */
    wefti_verbs_counter_t sent_counters[WEFTI_VERBS_COUNTERS];
    uint64_t mailbox; /* the peer's slots */
    uint32_t mailbox_rkey, mailbox_slots, next_slot;

    /* Receiving. */
    wefti_verbs_slot_t *slots; /* [recv_depth] written by the peer */
    wefti_verbs_counter_t received_counters[WEFTI_VERBS_COUNTERS];
    uint32_t owed;          /* credits to return */
    uint32_t receives_used; /* to be posted again */

    struct wefti_verbs_queue_pair *next_todo;
    bool in_todo;
} wefti_verbs_queue_pair_t;

typedef struct wefti_verbs_peer {
    bool served, broken, report;
    char text[WEFTI_VERBS_TEXT_BYTES]; /* why it broke */
    uint64_t base;                     /* of its region, there */
    char path[120];                    /* devices and addresses of both ends, for messages */
    wefti_link_stats_t stats;
    uint32_t signalled; /* completions to come */
    uint64_t busy_since_ns;
} wefti_verbs_peer_t;

/* Pages that are registered but not a part of the region. */
typedef struct wefti_verbs_buffer {
    uint8_t *data;
    size_t bytes;
    struct ibv_mr *mr;
} wefti_verbs_buffer_t;

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
    wefti_verbs_address_t own; /* the port; with its device's name */
    int gid_index[WEFTI_VERBS_GID_KINDS];
    wefti_verbs_address_t *addresses; /* [world_size] */
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    int epoll_fd;
    bool armed;
    uint32_t looks;

    wefti_verbs_peer_t *peers; /* [world_size] */
    uint32_t per_peer;         /* queue pairs */
    uint32_t send_depth, recv_depth, inline_bytes;
    wefti_verbs_queue_pair_t **queue_pairs; /* [world_size * per_peer], NULL for others */
    wefti_verbs_queue_pair_t *todo;         /* have something to post */
    uint32_t reports;                       /* broken links to be reported */

    uint8_t *base; /* the own region */
    wefti_verbs_piece_t *pieces;
    size_t piece_count, piece_capacity;
    wefti_verbs_buffer_t pool, mailbox; /* chunks; slots of all queue pairs */
    uint16_t free_chunks[WEFTI_VERBS_CHUNKS];
    uint32_t free_count;
} wefti_verbs_t;

/* device.c */
/* Opens the best device for this rank, fills own. WEFT_ERR_UNSUPPORTED: none is usable. */
weft_status_t wefti_verbs_load(void); /* libibverbs, before any call of it */
weft_status_t wefti_verbs_device_open(wefti_verbs_t *verbs);
/* The best kind that both ends have; WEFTI_VERBS_GID_KINDS: none. */
wefti_verbs_gid_kind_t wefti_verbs_gid_common(const wefti_verbs_address_t *a,
                                              const wefti_verbs_address_t *b);
void wefti_verbs_describe_path(const wefti_verbs_address_t *a, const wefti_verbs_address_t *b,
                               char *text, size_t bytes);

/* memory.c */
weft_status_t wefti_verbs_pool_create(wefti_verbs_t *verbs);
weft_status_t wefti_verbs_mailbox_create(wefti_verbs_t *verbs);
weft_status_t wefti_verbs_grow(void *driver, uint8_t *base, size_t from, size_t to, void *out_key);
weft_status_t wefti_verbs_grown(void *driver, const uint8_t *keys);
/* The piece that contains offset, or NULL. */
const wefti_verbs_piece_t *wefti_verbs_piece_at(const wefti_verbs_t *verbs, size_t offset);
void wefti_verbs_memory_free(wefti_verbs_t *verbs);

/* queue_pair.c */
/* Chooses depths that the device has; creates the completion queue and all queue pairs. */
weft_status_t wefti_verbs_queue_pairs_create(wefti_verbs_t *verbs);
weft_status_t wefti_verbs_connect(wefti_verbs_t *verbs, uint32_t peer,
                                  const wefti_verbs_offer_t *offer, const uint32_t *numbers);
/* Posts receives_used receives. */
weft_status_t wefti_verbs_post_receives(wefti_verbs_queue_pair_t *pair);
/* The peer cannot be reached any more: destroys its queue pairs and releases zero-copy sources.
 * text NULL: not to be reported. */
void wefti_verbs_break(wefti_verbs_t *verbs, uint32_t peer, const char *text);
/* The same; the text begins with the queue pair. */
void wefti_verbs_break_pair(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair,
                            const char *format, ...) WEFT_PRINTF(3, 4);

/* send.c */
weft_status_t wefti_verbs_put(void *driver, uint32_t peer, size_t offset, const void *data,
                              size_t bytes, uint32_t lane, wefti_signal_t *in_use);
weft_status_t wefti_verbs_signal(void *driver, uint32_t peer, size_t offset, uint32_t value,
                                 uint32_t lane);
/* Posts what waits, as far as there is room. True: something was posted. */
bool wefti_verbs_post_waiting(wefti_verbs_t *verbs);
void wefti_verbs_todo(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair);
/* Releases what the requests before number end held. */
void wefti_verbs_retire(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t end);
/* True: nothing is in flight. Else the last request has a completion from now on. */
bool wefti_verbs_pair_flushed(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair);
/* Executes an immediate. False: the peer's error. */
bool wefti_verbs_receive(wefti_verbs_t *verbs, wefti_verbs_queue_pair_t *pair, uint32_t immediate);

/* progress.c */
bool wefti_verbs_progress(void *driver);
bool wefti_verbs_arm(void *driver);
bool wefti_verbs_flushed(void *driver, uint32_t *out_peer);
weft_status_t wefti_verbs_events_open(wefti_verbs_t *verbs);
void wefti_verbs_unlock(wefti_verbs_t *verbs); /* and reports broken links */

#endif

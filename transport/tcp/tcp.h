/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp driver's parts; only transport/tcp/ includes it.
 *
 *   tcp.c        the driver's table; progress
 *   addresses.c  which interfaces; cards; which of a peer's addresses to connect to
 *   listen.c     pending connections, until the peer has authenticated itself
 *   connect.c    the other end: attempts to connect
 *   hello.c      the greeting of both (transport/socket/handshake.h); socket options
 *   send.c       frames out: queues, striping
 *   receive.c    frames in, into the region
 *   fault.c      broken connections, goodbyes
 *
 * Locks: `busy` is a try-lock around everything that receives or makes connections; a peer's lock
 * guards what is to be sent to it, taken inside `busy` or alone. Nothing is called back under
 * either.
 */
#ifndef WEFT_TRANSPORT_TCP_H
#define WEFT_TRANSPORT_TCP_H

#include <pthread.h>
#include <sys/socket.h>

#include "transport/links.h"
#include "transport/socket/handshake.h"

#define TCP_SOCKETS_MAX 8u
#define TCP_ADDRESSES_MAX 8u
#define TCP_IN_BYTES 16384u       /* receive buffer of a connection */
#define TCP_BLOCK_BYTES 65536u    /* copied data that waits to be sent */
#define TCP_HOLD_BYTES 8192u      /* that much waits for its signal or for progress */
#define TCP_LENT_BYTES 2048u      /* less of what is lent is copied: that is cheaper */
#define TCP_STRIPE_BYTES 1048576u /* puts from here on go over all sockets */
#define TCP_FRAME_MAX (1u << 30)
#define TCP_STRANGERS_MAX 64u /* and one per socket that the world may open */

/* ---- cards ---- */

typedef struct tcp_card {
    uint8_t network[16]; /* equal: the same network namespace of the same machine */
    uint32_t sockets;
    uint32_t address_count;
    wefti_interface_t addresses[TCP_ADDRESSES_MAX];
} tcp_card_t;

/* ---- frames: what goes over a connection, in the byte order of both ends ---- */

typedef enum tcp_kind {
    TCP_PUT = 0xa1,
    TCP_STRIPE = 0xa2,       /* a put that is counted: its signal goes over another connection */
    TCP_SIGNAL = 0xa3,       /* size: value */
    TCP_SIGNAL_AFTER = 0xa4, /* and uint32_t[sockets] follow: so many stripes of its lane first */
    TCP_MARK = 0xa5,         /* offset: to be said back once all before it has landed */
    TCP_MARKED = 0xa6,
    TCP_BYE = 0xa7, /* the end that follows is none to worry about */
} tcp_kind_t;

typedef struct tcp_frame {
    uint8_t kind, lane;
    uint16_t zero;
    uint32_t size; /* bytes that follow; value */
    uint64_t offset;
} tcp_frame_t;
_Static_assert(sizeof(tcp_frame_t) == 16, "frames travel");

/* ---- sending ---- */

/* Copied data; freed when its last segment is sent and nothing more is added. */
typedef struct tcp_block {
    uint32_t users; /* segments, and 1 while it is the one that is filled */
    size_t used, capacity;
    uint8_t data[];
} tcp_block_t;

typedef struct tcp_segment {
    const uint8_t *data;
    size_t bytes;
    tcp_block_t *block;   /* data is in it, or NULL */
    wefti_signal_t *lent; /* data is somebody's, or NULL */
} tcp_segment_t;

typedef struct tcp_peer tcp_peer_t;
typedef struct tcp tcp_t;

/* What a descriptor in the epoll set belongs to: member 0 of each. */
typedef enum tcp_source_kind {
    TCP_SOURCE_LISTENER,
    TCP_SOURCE_STRANGER,
    TCP_SOURCE_ATTEMPT,
    TCP_SOURCE_CONNECTION,
    TCP_SOURCE_BELL,
    TCP_SOURCE_TIMER,
} tcp_source_kind_t;
typedef struct tcp_source {
    tcp_source_kind_t kind;
    int fd; /* -1: none */
} tcp_source_t;

typedef struct tcp_connection {
    tcp_source_t source;
    tcp_peer_t *peer;
    uint32_t index;

    /* under the peer's lock */
    tcp_segment_t *queue; /* [capacity], a ring */
    size_t first, count, capacity;
    size_t queued_bytes;
    tcp_block_t *filling, *spare;
    bool ready;                    /* connected, and both ends have proved themselves */
    bool blocked;                  /* the kernel takes no more: armed for EPOLLOUT */
    bool sent_mark;                /* a mark is under way */
    int send_errno;                /* what broke it, seen by a sender */
    uint64_t frames;               /* queued so far */
    uint64_t marked, acknowledged; /* of frames */

    /* under busy */
    uint8_t *in; /* [TCP_IN_BYTES] */
    size_t in_from, in_to;
    uint8_t *into; /* the rest of a put goes here */
    size_t into_bytes;
    uint8_t into_kind, into_lane;
    uint32_t into_size;
    bool paused; /* a signal waits for stripes of other connections */
    bool hears;  /* connected, as far as receiving is concerned */
    wefti_address_t local, remote;
} tcp_connection_t;

typedef enum tcp_peer_state {
    TCP_PEER_IDLE,      /* nothing was sent yet */
    TCP_PEER_LINKED,    /* connections are made, or being made */
    TCP_PEER_PROBED,    /* broken: does it live? */
    TCP_PEER_BROKEN,    /* reported */
    TCP_PEER_LEFT,      /* said goodbye */
    TCP_PEER_FORGOTTEN, /* dropped by the owner */
} tcp_peer_state_t;

/* One try to connect; under busy. */
typedef struct tcp_attempt {
    tcp_source_t source;
    tcp_peer_t *peer;
    uint32_t index;
    uint32_t step;       /* tcp_attempt_step_t of connect.c */
    uint32_t candidate;  /* of the peer's addresses, in order */
    uint64_t until_ns;   /* this step's end; of a pause: when it goes on */
    uint64_t give_up_ns; /* the end of all tries */
    wefti_address_t last;
    wefti_handshake_t *shake; /* from the connection on; its wire has the same descriptor */
    bool probe;
} tcp_attempt_t;

struct tcp_peer {
    tcp_t *tcp;
    uint32_t rank;
    tcp_attempt_t attempts[TCP_SOCKETS_MAX]; /* under busy */
    tcp_peer_t *next_wanted, *next_dirty;    /* of the driver's lists */
    bool fault_pending;                      /* under busy: to be reported, died and text */
    bool died;
    char fault[240];

    pthread_mutex_t lock;
    tcp_peer_state_t state;
    bool wanted; /* was in the list of peers to connect to: attempts go on until it is */
    bool dirty;  /* in the list of peers with something held back */
    tcp_connection_t connections[TCP_SOCKETS_MAX];
    /* Stripes of a lane that were sent over each connection, and those its last signal told. */
    uint32_t (*stripes_sent)[TCP_SOCKETS_MAX];
    uint32_t stripes_untold;                            /* bit per lane */
    uint64_t busy_since_ns;                             /* 0: nothing waits */
    wefti_link_stats_t stats;                           /* but what is received, */
    _Atomic uint64_t bytes_received, messages_received; /* by one thread at a time */
    /* under busy: stripes of a lane that came over each connection */
    uint32_t (*stripes_landed)[TCP_SOCKETS_MAX];
};

/* An unauthenticated peer that connected; under busy. */
typedef struct tcp_stranger {
    tcp_source_t source;
    struct tcp_stranger *next, *previous;
    uint64_t until_ns;
    wefti_handshake_t shake; /* its wire has the same descriptor; -1: closed */
} tcp_stranger_t;

struct tcp {
    wefti_link_params_t params;
    uint32_t sockets;
    _Atomic bool busy;
    int epoll_fd;
    tcp_source_t bell, timer;
    tcp_source_t listeners[TCP_ADDRESSES_MAX];
    tcp_card_t card;
    tcp_card_t *cards;            /* [world_size], from join on */
    _Atomic(tcp_peer_t *) *peers; /* [world_size], made at first use, kept until close */
    pthread_mutex_t make_lock;    /* who makes one */
    uint8_t *base;
    _Atomic size_t region_bytes;

    pthread_mutex_t list_lock;
    tcp_peer_t *wanted;            /* to be connected to */
    _Atomic(tcp_peer_t *) dirty;   /* something is held back; pushed by any, taken as a whole */
    _Atomic uint32_t faults_noted; /* senders saw errors: look for them */

    /* under busy */
    tcp_stranger_t *strangers; /* the oldest first */
    tcp_stranger_t *latest_stranger;
    tcp_stranger_t *dismissed; /* freed when nothing names them any more */
    uint32_t stranger_count;
    uint32_t attempt_count;      /* under way: the timer is needed */
    uint64_t timer_ns;           /* set to; 0: off */
    tcp_connection_t *favourite; /* which had something last */
    uint32_t polls;
    uint32_t paused_count;
    bool fault_pending; /* some peer's */
};

/* ---- addresses.c ---- */
weft_status_t wefti_tcp_addresses_find(tcp_t *tcp);
void wefti_tcp_network_name(uint8_t *out_name);
/* The peer's addresses in the order to be tried for a socket; returns how many. */
uint32_t wefti_tcp_candidates(const tcp_t *tcp, uint32_t peer, uint32_t socket_index,
                              const wefti_address_t **out);

/* ---- hello.c ---- */
/* Which connection a greeting is for: the guest's `job` of a greeting. */
typedef struct tcp_hello {
    uint32_t to;
    uint16_t index, sockets;
    uint32_t probe; /* 1: only asks whether the process lives */
    uint32_t zero;
} tcp_hello_t;
_Static_assert(sizeof(tcp_hello_t) == WEFTI_JOB_ID_BYTES, "it is sent as a job");
/* hello NULL: the listening end. fd is closed on failure. */
weft_status_t wefti_tcp_greet(const tcp_t *tcp, int fd, const tcp_hello_t *hello,
                              wefti_handshake_t *out);
tcp_hello_t wefti_tcp_hello_of(const wefti_greeting_t *greeting);
/* An error when WEFT_TCP_CONGESTION is not available. */
weft_status_t wefti_tcp_congestion_check(const wefti_settings_t *settings);
void wefti_tcp_socket_tune(const tcp_t *tcp, int fd);

/* ---- listen.c; under busy ---- */
weft_status_t wefti_tcp_listen(tcp_t *tcp);
void wefti_tcp_listener_ready(tcp_t *tcp, tcp_source_t *listener);
void wefti_tcp_stranger_ready(tcp_t *tcp, tcp_stranger_t *stranger);
void wefti_tcp_strangers_expire(tcp_t *tcp, uint64_t now_ns, uint64_t *next_ns);
void wefti_tcp_strangers_free(tcp_t *tcp); /* the dismissed ones */
void wefti_tcp_strangers_close(tcp_t *tcp);

/* ---- connect.c; under busy ---- */
void wefti_tcp_connect_peer(tcp_t *tcp, tcp_peer_t *peer, bool probe);
void wefti_tcp_attempt_ready(tcp_t *tcp, tcp_attempt_t *attempt);
void wefti_tcp_attempt_end(tcp_t *tcp, tcp_attempt_t *attempt);
/* May a connection from the peer be taken, or is ours nearly made? Ends ours if it may. */
bool wefti_tcp_attempt_yield(tcp_t *tcp, tcp_attempt_t *attempt);
void wefti_tcp_attempts_expire(tcp_t *tcp, uint64_t now_ns, uint64_t *next_ns);
/* May a connection be made here, as far as the peer's state goes? */
bool wefti_tcp_connectable(tcp_peer_t *peer, uint32_t index);
/* Both ends have proved themselves: fd is the connection now. */
void wefti_tcp_connected(tcp_t *tcp, tcp_peer_t *peer, uint32_t index, int fd);

/* ---- send.c ---- */
weft_status_t wefti_tcp_put(void *driver, uint32_t peer, size_t offset, const void *data,
                            size_t bytes, uint32_t lane, wefti_signal_t *lent);
weft_status_t wefti_tcp_signal(void *driver, uint32_t peer, size_t offset, uint32_t value,
                               uint32_t lane);
/* With the peer's lock. */
bool wefti_tcp_send_queued(tcp_connection_t *connection);
weft_status_t wefti_tcp_queue_frame(tcp_connection_t *connection, const tcp_frame_t *frame,
                                    const void *more, size_t more_bytes);
void wefti_tcp_queue_clear(tcp_connection_t *connection);
void wefti_tcp_queue_deinit(tcp_connection_t *connection);
/* Sends what is held back by any peer. Any thread. */
bool wefti_tcp_send_held(tcp_t *tcp);
bool wefti_tcp_flushed(void *driver);

/* ---- receive.c; under busy ---- */
/* Reads what has come, as far as it is fair. True: something moved. */
bool wefti_tcp_receive(tcp_connection_t *connection);
/* Looks again at a signal that waited for other connections. */
bool wefti_tcp_receive_resume(tcp_connection_t *connection);

/* ---- fault.c; under busy ---- */
/* The connection ended: without errno by the other side. */
void wefti_tcp_connection_broken(tcp_connection_t *connection, int error, const char *what);
void wefti_tcp_peer_settle(tcp_t *tcp, tcp_peer_t *peer, bool died, const char *how);
void wefti_tcp_peer_disconnect(tcp_peer_t *peer, tcp_peer_state_t state);
void wefti_tcp_faults_look(tcp_t *tcp);

/* ---- tcp.c ---- */
/* Made when missing; NULL: no memory. Any thread. */
tcp_peer_t *wefti_tcp_peer(tcp_t *tcp, uint32_t rank);
void wefti_tcp_ring(tcp_t *tcp); /* progress is to look; any thread */
/* progress is to look at_ns at the latest; under busy */
void wefti_tcp_timer(tcp_t *tcp, uint64_t at_ns);
bool wefti_tcp_watch(tcp_t *tcp, tcp_source_t *source, uint32_t events);
void wefti_tcp_rewatch(tcp_t *tcp, tcp_source_t *source, uint32_t events);
void wefti_tcp_source_close(tcp_t *tcp, tcp_source_t *source);

#endif

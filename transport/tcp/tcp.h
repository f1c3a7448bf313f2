/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the tcp driver; only transport/tcp/ includes it. README.md lists the files.
 *
 * Locks: `busy` is a try-lock around everything that receives or makes connections; a peer's lock
 * guards what is to be sent to it. It is taken under `busy` or alone. `broken` is called without
 * either.
 */
#ifndef WEFT_TRANSPORT_TCP_H
#define WEFT_TRANSPORT_TCP_H

#include <pthread.h>
#include <sys/socket.h>

#include "transport/links.h"
#include "transport/socket/accept.h"

#define TCP_SOCKETS_MAX 8u
#define TCP_ADDRESSES_MAX 8u
#define TCP_IN_BYTES 16384u       /* receive buffer of a connection */
#define TCP_HOLD_BYTES 8192u      /* small puts that wait for their signal or for progress */
#define TCP_COPY_BYTES 2048u      /* zero-copy puts up to here are copied: that is cheaper */
#define TCP_STRIPE_BYTES 1048576u /* puts from here on go over all sockets */
#define TCP_FRAME_MAX (1u << 30)
#define TCP_PENDING_MAX 64u /* unauthenticated connections; and one per socket of the world */

/* Where a rank can be reached; sent to all ranks. */
typedef struct tcp_address {
    uint8_t network[16]; /* equal: the same network namespace of the same machine */
    uint32_t sockets;
    uint32_t interface_count;
    wefti_interface_t interfaces[TCP_ADDRESSES_MAX];
} tcp_address_t;

/* Where a peer is reached, which all ranks keep of all others: no more than was sent. */
typedef struct tcp_way {
    bool same_network;
    uint8_t count;  /* 0: not a peer of this driver */
    uint32_t first; /* of tcp->interfaces */
} tcp_way_t;

/* ---- frames: what is sent over a connection, in the byte order of both ends ---- */

typedef enum tcp_kind {
    TCP_PUT = 0xa1,
    TCP_STRIPE = 0xa2,       /* a counted put: its signal is sent over another connection */
    TCP_SIGNAL = 0xa3,       /* size: value */
    TCP_SIGNAL_AFTER = 0xa4, /* uint32_t[sockets] follow: stripes of its lane that precede it */
    TCP_MARK = 0xa5,         /* offset: to be returned when everything before has landed */
    TCP_MARKED = 0xa6,
    TCP_BYE = 0xa7, /* the connection ends without a fault */
} tcp_kind_t;

typedef struct tcp_frame {
    uint8_t kind, lane;
    uint16_t zero;
    uint32_t size; /* bytes that follow; value */
    uint64_t offset;
} tcp_frame_t;
_Static_assert(sizeof(tcp_frame_t) == 16, "frames travel");

/* Which connection a greeting is for: the initiator's `job` of a greeting. */
typedef struct tcp_hello {
    uint32_t to;
    uint16_t index, sockets;
    uint32_t probe; /* 1: only asks whether the process lives */
    uint32_t zero;
} tcp_hello_t;
_Static_assert(sizeof(tcp_hello_t) == WEFTI_JOB_ID_BYTES, "it is sent as a job");

/* ---- connections ---- */

typedef struct tcp_peer tcp_peer_t;
typedef struct tcp tcp_t;

/* A descriptor in the epoll set; member 0 of its owner. */
typedef struct tcp_source {
    int fd; /* -1: none */
    /* Under busy: fd is ready for events. True: something moved. */
    bool (*ready)(tcp_t *tcp, struct tcp_source *source, uint32_t events);
} tcp_source_t;

/* Bytes to be sent; an element of a connection's queue. */
typedef struct tcp_segment {
    size_t bytes;
    const uint8_t *data;    /* the caller's; NULL: the next bytes of the connection's `copied` */
    wefti_signal_t *in_use; /* counts uses of zero-copy data, or NULL */
} tcp_segment_t;

/*
 *   IDLE --> TRY --> WELCOME --> UP
 *            | ^        |
 *            v |        |       an address failed: the next one, after a pause
 *           PAUSE <-----+
 */
typedef enum tcp_step {
    TCP_IDLE = 0,
    TCP_PAUSE,
    TCP_TRY,     /* connects, and waits for the answer to the hello */
    TCP_WELCOME, /* the proof is sent */
    TCP_UP,
} tcp_step_t;

typedef struct tcp_connection {
    tcp_source_t source;
    tcp_peer_t *peer;
    uint32_t index;

    /* under the peer's lock */
    wefti_wire_buffer_t queue;  /* of tcp_segment_t */
    wefti_wire_buffer_t copied; /* the bytes of segments without data, in the order of the queue */
    size_t queued_bytes;        /* 0: the queue is empty */
    bool ready;                 /* up, and no error was seen */
    bool blocked;               /* the kernel's buffer is full: armed for EPOLLOUT */
    bool sent_mark;             /* a mark is in flight */
    int send_errno;             /* the error that a sender saw */
    uint64_t frames;            /* queued so far */
    uint64_t acknowledged;
    wefti_address_t local, remote;

    /* under busy: connecting */
    tcp_step_t step;
    bool probe;               /* only asks whether the peer's process lives */
    uint32_t candidate;       /* of the peer's addresses, in order */
    uint64_t until_ns;        /* the end of this step */
    uint64_t give_up_ns;      /* the end of all attempts */
    wefti_handshake_t *shake; /* TCP_TRY, TCP_WELCOME; its wire has the same descriptor */

    /* under busy: receiving */
    uint8_t *in; /* [TCP_IN_BYTES] */
    size_t in_from, in_to;
    tcp_frame_t put; /* the one whose bytes are arriving */
    uint8_t *into;   /* their destination */
    size_t into_bytes;
    bool paused; /* a signal waits for stripes of other connections */
} tcp_connection_t;

typedef enum tcp_peer_state {
    TCP_PEER_IDLE,      /* nothing was sent yet */
    TCP_PEER_LINKED,    /* connections are made, or being made */
    TCP_PEER_PROBED,    /* broken: does its process live? */
    TCP_PEER_BROKEN,    /* reported */
    TCP_PEER_LEFT,      /* sent a goodbye */
    TCP_PEER_FORGOTTEN, /* dropped by the owner */
} tcp_peer_state_t;

struct tcp_peer {
    tcp_t *tcp;
    uint32_t rank;
    tcp_peer_t *next; /* of all peers of the driver */
    tcp_peer_t *next_held;
    bool fault_pending; /* under busy: fault and died are to be reported */

    pthread_mutex_t lock;
    tcp_peer_state_t state;
    bool wanted; /* connections are needed */
    bool held;   /* in the driver's list */
    bool died;
    char fault[240];
    tcp_connection_t connections[TCP_SOCKETS_MAX];
    /* Stripes of a lane that were sent over each connection. */
    uint32_t stripes_sent[WEFTI_LINK_LANES][TCP_SOCKETS_MAX];
    uint32_t stripes_unsignalled;                       /* bit per lane */
    uint64_t busy_since_ns;                             /* 0: nothing waits */
    wefti_link_stats_t stats;                           /* without bytes and messages received, */
    _Atomic uint64_t bytes_received, messages_received; /* which are written under busy */
    /* under busy: stripes of a lane that arrived over each connection */
    uint32_t stripes_landed[WEFTI_LINK_LANES][TCP_SOCKETS_MAX];
};

struct tcp {
    wefti_link_params_t params;
    uint32_t sockets;
    _Atomic bool busy;
    int epoll_fd;
    tcp_source_t timer, pending; /* pending: the epoll set of the acceptor */
    int listeners[TCP_ADDRESSES_MAX];
    tcp_address_t own;
    tcp_way_t *ways;                 /* [world_size], from join on */
    wefti_interface_t *interfaces;   /* theirs */
    _Atomic(tcp_peer_t *) *peers;    /* [world_size], made at first use, kept until close */
    _Atomic(tcp_peer_t *) last_made; /* the list of them */
    pthread_mutex_t make_lock;       /* of threads that add to it */
    uint8_t *base;
    _Atomic size_t region_bytes;

    _Atomic(tcp_peer_t *) held; /* data is held back; pushed by any thread, taken as a whole */
    _Atomic bool attention;     /* a peer needs connections, or a sender saw an error */

    /* under busy */
    wefti_acceptor_t acceptor;
    uint64_t timer_ns;           /* set to; 0: off */
    tcp_connection_t *favourite; /* the last one that received something */
    uint32_t polls;
    uint32_t paused_count;
    bool fault_pending; /* some peer's */
};

/* ---- addresses.c ---- */
weft_status_t wefti_tcp_addresses_find(tcp_t *tcp);
/* Keeps those of peers. addresses: [world_size], as all ranks have sent them. */
weft_status_t wefti_tcp_addresses_keep(tcp_t *tcp, const tcp_address_t *addresses,
                                       const bool *peers);
/* The peer's addresses in the order to be tried for a socket; returns how many. */
uint32_t wefti_tcp_candidates(const tcp_t *tcp, uint32_t peer, uint32_t socket_index,
                              const wefti_address_t **out);

/* ---- hello.c ---- */
wefti_greeting_t wefti_tcp_greeting(const tcp_t *tcp);
/* For the listening end; owner: the driver. */
bool wefti_tcp_accepts(const void *owner, const wefti_greeting_t *greeting);
/* For the connecting end. fd is closed on failure. */
weft_status_t wefti_tcp_greet(const tcp_t *tcp, int fd, const tcp_hello_t *hello,
                              wefti_handshake_t *out);
tcp_hello_t wefti_tcp_hello_of(const wefti_greeting_t *greeting);
/* False, with errno: WEFT_TCP_CONGESTION is not available. */
bool wefti_tcp_socket_tune(const tcp_t *tcp, int fd);

/* ---- listen.c; under busy ---- */
weft_status_t wefti_tcp_listen(tcp_t *tcp);

/* ---- connect.c; under busy ---- */
void wefti_tcp_connect_peer(tcp_peer_t *peer, bool probe);
void wefti_tcp_attempt_end(tcp_connection_t *connection);
/* Ends the attempt in favour of a connection that the peer made. False: it may be made already. */
bool wefti_tcp_attempt_yield(tcp_connection_t *connection);
void wefti_tcp_attempts_expire(tcp_t *tcp, uint64_t now_ns, uint64_t *next_ns);
/* A connection that the peer made may become this one. */
bool wefti_tcp_connectable(tcp_connection_t *connection);
/* Both ends have authenticated themselves. */
void wefti_tcp_connected(tcp_connection_t *connection, int fd);

/* ---- send.c ---- */
weft_status_t wefti_tcp_put(void *driver, uint32_t peer, size_t offset, const void *data,
                            size_t bytes, uint32_t lane, wefti_signal_t *in_use);
weft_status_t wefti_tcp_signal(void *driver, uint32_t peer, size_t offset, uint32_t value,
                               uint32_t lane);
/* With the peer's lock. */
bool wefti_tcp_send_queued(tcp_connection_t *connection);
/* Queues a frame and bytes that are copied. False: no memory. */
bool wefti_tcp_queue_frame(tcp_connection_t *connection, const tcp_frame_t *frame, const void *more,
                           size_t more_bytes);
void wefti_tcp_queue_clear(tcp_connection_t *connection);
/* Sends the data that is held back for any peer. Any thread. */
bool wefti_tcp_send_held(tcp_t *tcp);
bool wefti_tcp_flushed(void *driver, uint32_t *out_peer);

/* ---- receive.c; under busy ---- */
/* The source of a connection that is up. */
bool wefti_tcp_connection_ready(tcp_t *tcp, tcp_source_t *source, uint32_t events);
/* Its events follow from paused and blocked; with the peer's lock. */
void wefti_tcp_connection_watch(tcp_connection_t *connection);
/* Receives a limited amount. True: something moved. */
bool wefti_tcp_receive(tcp_connection_t *connection);
/* Looks again at signals that waited for other connections. */
bool wefti_tcp_receive_resume(tcp_t *tcp);

/* ---- fault.c; under busy ---- */
/* The connection ended. what NULL: by error. */
void wefti_tcp_connection_broken(tcp_connection_t *connection, int error, const char *what);
/* Reports a broken link. how NULL: for the recorded reason. */
void wefti_tcp_peer_report(tcp_peer_t *peer, bool died, const char *how);
void wefti_tcp_peer_disconnect(tcp_peer_t *peer, tcp_peer_state_t state);
/* A sender saw an error, with the peer's lock; any thread. */
void wefti_tcp_send_failed(tcp_connection_t *connection, int error);

/* ---- tcp.c ---- */
/* Made when missing; NULL: no memory. Any thread. */
tcp_peer_t *wefti_tcp_peer(tcp_t *tcp, uint32_t rank);
/* The first of all peers that were made. */
static inline tcp_peer_t *wefti_tcp_peers(tcp_t *tcp)
{
    return atomic_load_explicit(&tcp->last_made, memory_order_acquire);
}
void wefti_tcp_call(tcp_t *tcp); /* progress gives the peers attention; any thread */
/* Progress looks at at_ns at the latest; under busy. */
void wefti_tcp_timer(tcp_t *tcp, uint64_t at_ns);
bool wefti_tcp_watch(tcp_t *tcp, tcp_source_t *source, uint32_t events);
void wefti_tcp_rewatch(tcp_t *tcp, tcp_source_t *source, uint32_t events);
void wefti_tcp_source_close(tcp_t *tcp, tcp_source_t *source);

#endif

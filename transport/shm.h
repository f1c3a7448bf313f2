/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory backend's parts: joining over a unix socket, packets, the transport
 * itself. */
#ifndef WEFT_TRANSPORT_SHM_H
#define WEFT_TRANSPORT_SHM_H

#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "transport/endpoint.h"

/* What one rank knows of another (and of itself). */
typedef struct wefti_shm_peer {
    int socket; /* of rank 0 to others, and to rank 0; else -1. It closes with the process, also
                 * when that executes another program, which keeps its pid */
    int pid_fd; /* of ranks that this rank watches all the time (shm.c); else -1 */
    pid_t pid;
    _Atomic uint64_t closed_ns; /* when the socket was seen to be closed; 0: not yet */
    bool joined;                /* its hello was good */
    bool ready;                 /* it has mapped the world's memory */
} wefti_shm_peer_t;

/* The memory of all ranks lies in two memfds that rank 0 creates: rank r's part of each is the r-th
 * of world_size equal ones. */
#define WEFTI_SHM_FDS 2u
#define WEFTI_SHM_CONTROL 0u
#define WEFTI_SHM_REGIONS 1u
typedef struct wefti_shm_world {
    int fds[WEFTI_SHM_FDS];
    wefti_shm_peer_t *peers; /* [world_size] */
    /* Maps what fds name. */
    weft_status_t (*map)(wefti_endpoint_t *endpoint);
} wefti_shm_world_t;

/* A rank that joins waits: rank 0 for those that are missing, others for rank 0. */
typedef struct wefti_shm_wait {
    wefti_endpoint_t *endpoint;
    wefti_shm_world_t *world;
    uint64_t since_ns;
    wefti_waiter_t waiter; /* in a world of several hosts */
    bool posted;           /* in another one */
} wefti_shm_wait_t;
/* Whether the rank is interrupted. Posts what it waits for: ranks that have joined may read that. */
bool wefti_shm_interrupted(wefti_shm_wait_t *wait);
/* It waits no more. */
void wefti_shm_waited(wefti_shm_wait_t *wait);
/* The error of a wait that reached its deadline in such a world; WEFT_OK: in another one. */
weft_status_t wefti_shm_timed_out(wefti_shm_wait_t *wait);

/* shm_bootstrap.c: returns when all ranks have mapped the world's memory. Rank 0 has mapped it
 * before; the others receive its descriptors. */
weft_status_t wefti_shm_join(wefti_endpoint_t *endpoint, const char *address,
                             wefti_shm_world_t *world);

/* shm_packet.c: messages of one fixed size while ranks join, with descriptors attached to some. */
#define WEFTI_SHM_MAGIC 0x54464557u /* "WEFT" */
#define WEFTI_SHM_VERSION 4u

typedef enum wefti_shm_kind {
    WEFTI_SHM_HELLO = 1,    /* rank r to 0 */
    WEFTI_SHM_ACCEPTED = 2, /* 0 to r: the hello was good; with the world's descriptors */
    WEFTI_SHM_READY = 3,    /* r to 0: it has mapped them */
    WEFTI_SHM_COMPLETE = 4, /* 0 to r: all ranks have */
    WEFTI_SHM_ERROR = 5,    /* 0 to r: the world does not come about; r to 0: because of r */
} wefti_shm_kind_t;

typedef struct wefti_shm_packet {
    uint32_t magic, version;
    uint32_t kind;
    uint32_t rank, world_size;
    int32_t status; /* of an error */
    uint32_t reserved[2];
    char text[480];
} wefti_shm_packet_t;
_Static_assert(sizeof(wefti_shm_packet_t) == 512, "packets are exchanged between builds");

/* shm_host.c: the same for rank 0. */
weft_status_t wefti_shm_host(wefti_endpoint_t *endpoint, const char *address,
                             wefti_shm_world_t *world, wefti_shm_wait_t *wait);
/* "unix:@name" (abstract: no file, gone with its socket) or "unix:/path". */
weft_status_t wefti_shm_parse_address(const char *address, struct sockaddr_un *out,
                                      socklen_t *out_length);
/* Who is at the other end; false when it is another user. */
bool wefti_shm_peer_credentials(int fd, pid_t *out_pid);
/* The process has ended, or is a zombie, of which other threads may still end. */
bool wefti_shm_is_gone(pid_t pid);
/* All of its threads have; where the kernel has no pidfds, as above. */
bool wefti_shm_is_dead(pid_t pid);
wefti_shm_packet_t wefti_shm_make_packet(const wefti_endpoint_t *endpoint, wefti_shm_kind_t kind);
/* status, with this thread's last error. */
wefti_shm_packet_t wefti_shm_make_error(const wefti_endpoint_t *endpoint, weft_status_t status);

/* fds NULL: none. Waits for room until deadline. WEFT_ERR_PEER_DIED when the other end is gone. */
weft_status_t wefti_shm_send(int fd, const wefti_shm_packet_t *packet, const int *fds,
                             uint64_t deadline);
/*
 * WEFT_OK; WEFT_AGAIN: nothing there; WEFT_ERR_PEER_DIED: the other end is gone; WEFT_ERR_FORMAT:
 * not one of our packets. fds are -1 where none came.
 */
weft_status_t wefti_shm_receive(int fd, wefti_shm_packet_t *packet, int fds[WEFTI_SHM_FDS]);
/* Waits until fd is ready for events, or hung up; false: not until deadline. */
bool wefti_shm_poll(int fd, short events, uint64_t deadline);
void wefti_close_fd(int *fd); /* accepts -1, leaves -1 */
void wefti_shm_close_fds(int fds[WEFTI_SHM_FDS]);

#endif

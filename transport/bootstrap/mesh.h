/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the overlay's connections: every rank has one to the ranks at distance +-1, +-2, +-4, ...;
 * the lower rank connects. Both prove that they know the world's key. Hosts are numbered by their
 * first ranks, which have connections at the same distances among hosts.
 */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_MESH_H
#define WEFT_TRANSPORT_BOOTSTRAP_MESH_H

#include "transport/bootstrap/bootstrap.h"
#include "transport/socket/accept.h"

#define WEFTI_WORLD_KEY_BYTES 32u
#define WEFTI_MESH_PEERS_MAX 64u /* two per bit of a rank's number, and of a host's */
#define WEFTI_MESH_RANKS_MAX (1u << WEFTI_MESH_PEERS_MAX / 4)

typedef struct wefti_mesh_peer {
    uint32_t rank;
    wefti_endpoint_address_t address;
    bool connects; /* this rank does; else the peer does */
    bool up;
    bool trying;
    bool refused;            /* the latest attempt was, at once */
    uint32_t at, rounds;     /* address that is tried; rounds over all of them */
    uint64_t next_ns;        /* when to try again, or to give this attempt up */
    wefti_handshake_t shake; /* this rank connects */
    wefti_wire_t wire;       /* up: the link */
    char why[128];           /* the latest failure */
} wefti_mesh_peer_t;

typedef struct wefti_mesh {
    const wefti_overlay_params_t *params;
    uint8_t key[WEFTI_WORLD_KEY_BYTES];
    int listener, epoll_fd;
    wefti_acceptor_t acceptor;
    wefti_mesh_peer_t *peers;
    uint32_t peer_count, up_count;
    uint64_t began_ns, deadline_ns;
} wefti_mesh_t;

/* Adds the members at distance 1, 2, 4, .. of member own to ranks, which has count of them and room
 * for WEFTI_MESH_PEERS_MAX; returns how many it has then. members NULL: each is its own number. */
uint32_t wefti_mesh_neighbours(const uint32_t *members, uint32_t member_count, uint32_t own,
                               uint32_t *ranks, uint32_t count);

/* Listens at an address (NULL: all of them) on any port; *out_bound has it. */
weft_status_t wefti_mesh_listen(wefti_mesh_t *mesh, const wefti_overlay_params_t *params,
                                const wefti_address_t *at, wefti_address_t *out_bound);
/* Connects to count ranks. */
weft_status_t wefti_mesh_begin(wefti_mesh_t *mesh, const uint8_t *key, const uint32_t *ranks,
                               const wefti_endpoint_address_t *addresses, uint32_t count,
                               uint64_t deadline_ns);
/* Without blocking: WEFT_OK when all connections are up, WEFT_IN_PROGRESS, or an error that names
 * the peer. *out_wait_ns: call again then, or when epoll_fd is readable. */
weft_status_t wefti_mesh_step(wefti_mesh_t *mesh, uint64_t *out_wait_ns);
/* All connections are up: whether a peer has sent more than that. */
bool wefti_mesh_hears(const wefti_mesh_t *mesh);
/* Also of one that is zero but for its descriptors, which are -1. */
void wefti_mesh_deinit(wefti_mesh_t *mesh);

#endif

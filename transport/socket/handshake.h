/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of a connection prove to each other that they know the same key:
 *
 *   initiator                                    acceptor
 *     HELLO   version, rank, world, nonce ------>
 *             <------ ANSWER  version, rank, world, nonce, job
 *     PROOF   HMAC(key, "guest", both, payload), payload ------>    (REFUSED when it is wrong)
 *             <------ WELCOME HMAC(key, "host", both, payload)
 *
 * The initiator, which connected, proves first: a process that only connects learns nothing that it
 * could test guesses with. Both nonces are in both proofs, so no recorded proof is valid again, and
 * neither end can return the other's proof as its own. What follows is neither encrypted nor
 * signed.
 */
#ifndef WEFT_TRANSPORT_SOCKET_HANDSHAKE_H
#define WEFT_TRANSPORT_SOCKET_HANDSHAKE_H

#include "transport/socket/address.h"
#include "transport/socket/wire.h"

#define WEFTI_BOOTSTRAP_VERSION 5u
#define WEFTI_JOB_ID_BYTES 16u
/* Longest frame from an unauthenticated peer. */
#define WEFTI_UNAUTHENTICATED_BYTES 256u
#define WEFTI_PAYLOAD_MAX 192u

typedef enum wefti_kind {
    WEFTI_HELLO = 1,
    WEFTI_ANSWER = 2,
    WEFTI_PROOF = 3,
    WEFTI_WELCOME = 4,
    WEFTI_REFUSED = 5,   /* text */
    WEFTI_DEFERRED = 11, /* PURPOSE_DATA, in place of WELCOME: the initiator tries again later */
    /* the rendezvous, once both ends are authenticated */
    WEFTI_TABLE = 6,  /* seed of the world's key, the neighbours and their endpoint addresses */
    WEFTI_READY = 7,  /* connected to all of them */
    WEFTI_FAILED = 8, /* verdict_t: this rank failed */
    WEFTI_GO = 9,
    WEFTI_ERROR = 10,   /* verdict_t: the world failed */
    WEFTI_WAITING = 12, /* this rank is not connected to all of its neighbours yet, but tries */
    /* survivors of a world (transport/survivors.c) */
    WEFTI_ARRIVED = 16, /* number and generation of a member */
    WEFTI_MEMBERS = 17, /* who is left; or verdict_t: nobody agreed */
    WEFTI_NOTICE = 18,  /* where the new world meets */
    WEFTI_JOINED = 19,  /* the sender is in it */
    /* the overlay */
    WEFTI_GATHER = 32,
    WEFTI_FLOOD = 33,
    WEFTI_GONE = 34, /* bitmap of the ranks that left */
    WEFTI_BYE = 35,  /* the same, and the sender leaves too */
    WEFTI_ASK = 36,  /* from another process: what do the ranks do? */
    WEFTI_REPLY = 37,
    WEFTI_MOVED = 38, /* how long ago an all-gather went on */
} wefti_kind_t;

typedef enum wefti_purpose {
    WEFTI_PURPOSE_MEET = 1,      /* the rendezvous at rank 0 */
    WEFTI_PURPOSE_LINK = 2,      /* a connection of the overlay */
    WEFTI_PURPOSE_DATA = 3,      /* a connection of the tcp driver */
    WEFTI_PURPOSE_SURVIVORS = 4, /* to the survivor that leads */
} wefti_purpose_t;

/* How both ends introduce themselves. The layout is the same in all versions. */
typedef struct wefti_greeting {
    uint32_t version, purpose, rank, world_size;
    uint8_t nonce[32];
    /* Acceptor: its job. Initiator: zero; with PURPOSE_DATA which connection it is. */
    uint8_t job[WEFTI_JOB_ID_BYTES];
} wefti_greeting_t;
_Static_assert(sizeof(wefti_greeting_t) == 64, "greetings travel");

typedef struct wefti_handshake {
    wefti_wire_t wire;
    bool initiator, connecting, hello_sent, proven;
    bool withheld; /* acceptor: the caller sends the welcome, after the initiator's proof */
    /* Acceptor: false ends the handshake before the greeting is answered. Init: accepts all. */
    bool (*accepts)(const void *owner, const wefti_greeting_t *greeting);
    const void *owner;
    uint8_t job[WEFTI_JOB_ID_BYTES]; /* initiator: the job that the acceptor must belong to */
    wefti_greeting_t greeting[2];    /* the initiator's, the acceptor's */
    char why[200];                   /* initiator: with WEFT_ERR_MISMATCH */
    /* The initiator's, sent with its proof. Another version's may be longer, and is proven alike.
     */
    uint8_t payload[WEFTI_PAYLOAD_MAX];
    uint32_t payload_bytes;
    const uint8_t *key; /* borrowed */
    size_t key_bytes;
} wefti_handshake_t;

/* Takes ownership of fd, also on failure. own: without nonce; its job is the acceptor's own, or the
 * one that an initiator looks for. */
weft_status_t wefti_handshake_init(wefti_handshake_t *shake, int fd, bool initiator,
                                   const wefti_greeting_t *own, const uint8_t *key,
                                   size_t key_bytes, const weft_allocator_t *allocator);
/* An initiator that begins to connect. WEFT_AGAIN with errno: nothing listens there. */
weft_status_t wefti_handshake_connect(wefti_handshake_t *shake, const wefti_address_t *to,
                                      const wefti_greeting_t *own, const uint8_t *key,
                                      size_t key_bytes, const weft_allocator_t *allocator);
void wefti_handshake_deinit(wefti_handshake_t *shake);
/* Initiator, before its first step after connecting. */
void wefti_handshake_set_payload(wefti_handshake_t *shake, const void *payload, uint32_t bytes);
/*
 * Progresses without blocking and without recording an error message. WEFT_AGAIN: wait until the
 * socket is readable, or writable while `connecting`. WEFT_IN_PROGRESS: just connected; call again.
 * WEFT_OK: both ends are authenticated; for an acceptor that withholds its welcome: the initiator
 * is. WEFT_ERR_MISMATCH: another key; `why` has the text. WEFT_ERR_NOT_FOUND: an acceptor of
 * another job, to which nothing was proved. WEFT_ERR_STATE: deferred. WEFT_ERR_FORMAT: the peer is
 * not Weft, or not accepted. WEFT_ERR_PEER_DIED: disconnected.
 */
weft_status_t wefti_handshake_step(wefti_handshake_t *shake);
/* What is wrong, for an error of step. */
const char *wefti_handshake_problem(const wefti_handshake_t *shake, weft_status_t status);
/* An acceptor that withholds its welcome: one of both ends the handshake. */
weft_status_t wefti_handshake_welcome(wefti_handshake_t *shake);
weft_status_t wefti_handshake_defer(wefti_handshake_t *shake);
/* Releases everything but the socket, which the caller owns now. */
int wefti_handshake_detach(wefti_handshake_t *shake);
/* Initiator: its proof is sent, so the acceptor may count the connection as made. */
static inline bool wefti_handshake_committed(const wefti_handshake_t *shake)
{
    return shake->greeting[1].version != 0;
}
static inline const wefti_greeting_t *wefti_handshake_peer(const wefti_handshake_t *shake)
{
    return &shake->greeting[shake->initiator ? 1 : 0];
}

#endif

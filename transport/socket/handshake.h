/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of a connection prove to each other that they know the same key:
 *
 *   guest                                        host
 *     HELLO   version, rank, world, nonce ------>
 *             <------ ANSWER  version, rank, world, nonce, job
 *     PROOF   HMAC(key, "guest", both, card), card ------>    (REFUSED when it is wrong)
 *             <------ WELCOME HMAC(key, "host", both, card)
 *
 * The guest, which connected, proves first: a process that only connects learns nothing that it
 * could test guesses with. Both nonces are in both proofs, so no recorded proof is valid again, and
 * neither end can return the other's proof as its own. What follows is neither encrypted nor signed.
 */
#ifndef WEFT_TRANSPORT_SOCKET_HANDSHAKE_H
#define WEFT_TRANSPORT_SOCKET_HANDSHAKE_H

#include "transport/socket/address.h"
#include "transport/socket/wire.h"

#define WEFTI_BOOTSTRAP_VERSION 1u
#define WEFTI_JOB_ID_BYTES 16u
/* Longest frame from an unauthenticated peer. */
#define WEFTI_STRANGER_BYTES 256u
#define WEFTI_CARD_MAX 192u

typedef enum wefti_kind {
    WEFTI_HELLO = 1,
    WEFTI_ANSWER = 2,
    WEFTI_PROOF = 3,
    WEFTI_WELCOME = 4,
    WEFTI_REFUSED = 5,   /* text */
    WEFTI_DEFERRED = 11, /* PURPOSE_DATA, in place of WELCOME: the guest tries again later */
    /* the rendezvous, when both have proved themselves */
    WEFTI_TABLE = 6,  /* whom to connect to: table_t and entries */
    WEFTI_READY = 7,  /* connected to all of them */
    WEFTI_FAILED = 8, /* verdict_t: cannot be */
    WEFTI_GO = 9,
    WEFTI_ERROR = 10, /* verdict_t: the world does not come about */
    /* the overlay */
    WEFTI_GATHER = 32,
    WEFTI_FLOOD = 33,
    WEFTI_GONE = 34, /* bitmap of the ranks that left */
    WEFTI_BYE = 35,  /* the same, and the sender leaves too */
} wefti_kind_t;

typedef enum wefti_purpose {
    WEFTI_PURPOSE_MEET = 1, /* the rendezvous at rank 0 */
    WEFTI_PURPOSE_LINK = 2, /* a connection of the overlay */
    WEFTI_PURPOSE_DATA = 3, /* a connection of the tcp driver */
} wefti_purpose_t;

/* How both ends introduce themselves. The layout is the same in all versions. */
typedef struct wefti_greeting {
    uint32_t version, purpose, rank, world_size;
    uint8_t nonce[32];
    /* Host: the job that it belongs to. Guest: zero; with PURPOSE_DATA which connection it is. */
    uint8_t job[WEFTI_JOB_ID_BYTES];
} wefti_greeting_t;
_Static_assert(sizeof(wefti_greeting_t) == 64, "greetings travel");

typedef struct wefti_handshake {
    wefti_wire_t wire;
    bool guest, hello_sent, proven;
    bool withheld; /* host: the caller sends the welcome, after the guest's proof */
    /* Host: false ends the handshake before the greeting is answered. Set by init to accept all. */
    bool (*accepts)(const void *owner, const wefti_greeting_t *greeting);
    const void *owner;
    uint8_t job[WEFTI_JOB_ID_BYTES]; /* guest: the job that the host must belong to */
    wefti_greeting_t greeting[2];    /* the guest's, the host's */
    char why[200];                   /* guest: with WEFT_ERR_MISMATCH */
    /* The guest's, sent with its proof. Another version's may be longer, and is proven alike. */
    uint8_t card[WEFTI_CARD_MAX];
    uint32_t card_bytes;
    const uint8_t *key; /* borrowed */
    size_t key_bytes;
} wefti_handshake_t;

/* Takes fd over. own: without nonce; its job is the host's own, or the one that a guest looks for.
 * card NULL: no card. */
weft_status_t wefti_handshake_init(wefti_handshake_t *shake, int fd, bool guest,
                                   const wefti_greeting_t *own, const wefti_card_t *card,
                                   const uint8_t *key, size_t key_bytes,
                                   const weft_allocator_t *allocator);
void wefti_handshake_deinit(wefti_handshake_t *shake);
/*
 * Progresses without blocking and without recording an error message; a guest's first call is made
 * when it is connected. WEFT_AGAIN: wait for more. WEFT_OK: both have proved themselves; a host that
 * withholds its welcome: the guest has. WEFT_ERR_MISMATCH: another key; `why` says so.
 * WEFT_ERR_NOT_FOUND: a host of another job, to which nothing was proved. WEFT_ERR_STATE: deferred.
 * WEFT_ERR_FORMAT: the other end is not Weft, or not accepted. WEFT_ERR_PEER_DIED: disconnected.
 */
weft_status_t wefti_handshake_step(wefti_handshake_t *shake);
/* A host that withholds its welcome: one of both ends the handshake. */
weft_status_t wefti_handshake_welcome(wefti_handshake_t *shake);
weft_status_t wefti_handshake_defer(wefti_handshake_t *shake);
/* Releases everything but the socket, which the caller owns now. */
int wefti_handshake_detach(wefti_handshake_t *shake);
/* Guest: its proof is sent, so the host may count the connection as made. */
static inline bool wefti_handshake_committed(const wefti_handshake_t *shake)
{
    return shake->greeting[1].version != 0;
}
/* The guest's card, as a host of the same version reads it; false: it is malformed. */
bool wefti_handshake_card(const wefti_handshake_t *shake, wefti_card_t *out_card);
static inline const wefti_greeting_t *wefti_handshake_peer(const wefti_handshake_t *shake)
{
    return &shake->greeting[shake->guest ? 1 : 0];
}

#endif

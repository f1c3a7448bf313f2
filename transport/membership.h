/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who the ranks of a world are, beyond that world: what survivors of a broken one need in order to
 * find each other and join a new one.
 *
 *   identity     this process's (or, with a hub, thread's) place among the members: its number, a
 *                key that all members share, and the sockets it listens on. It goes on from world
 *                to world.
 *   membership   the members of one world, in rank order: numbers and where each one listens
 *   meeting      survivors agree on who is left: the one with the lowest number leads, the others
 *                connect to it (survivors.c)
 *
 * A member that is gone no longer listens: its process has ended or its latest context is released.
 */
#ifndef WEFT_TRANSPORT_MEMBERSHIP_H
#define WEFT_TRANSPORT_MEMBERSHIP_H

#include "transport/transport.h"

typedef struct wefti_identity wefti_identity_t;
typedef struct wefti_member wefti_member_t;

/* All zero: none. */
typedef struct wefti_membership {
    wefti_identity_t *identity;
    uint32_t generation;     /* of the world: grows with each that replaces it */
    uint32_t next;           /* number of the next process that joins */
    uint32_t count;          /* world size */
    wefti_member_t *members; /* [count] by rank, hence by number */
} wefti_membership_t;

/*
 * Collective, once the world has met. former: of the world that this one replaces; NULL on ranks
 * that join. The world takes over the key and numbers of its ranks that have some. generation:
 * equal on all ranks with a former world.
 */
weft_status_t wefti_membership_join(wefti_endpoint_t *endpoint, const wefti_membership_t *former,
                                    uint32_t generation, wefti_membership_t *out);
/* The new world has come about: this rank is in it from now on. */
void wefti_membership_commit(const wefti_membership_t *membership);
/* This rank's context is released: if no later world replaced it, the rank is gone now. */
void wefti_membership_leave(wefti_membership_t *membership);
/* The member's number at a rank of the world. */
uint32_t wefti_membership_number(const wefti_membership_t *membership, uint32_t rank);
/* WEFT_ERR_STATE where a later world has replaced this one, unless this rank has left that.
 * *out_latest: the latest world's generation. */
weft_status_t wefti_membership_latest(const wefti_membership_t *membership, uint32_t *out_latest);
/* WEFT_ERR_STATE where a later world has replaced this one: its members listen elsewhere, or not. */
weft_status_t wefti_membership_check(const wefti_membership_t *membership);

/* Where survivors agreed to join their new world. */
typedef struct wefti_meeting wefti_meeting_t;

/*
 * The survivors' agreement; blocking. *out_meeting: who is left, until wefti_meeting_free.
 * generation: the latest that this rank has tried to join. WEFT_ERR_TIMEOUT names those who live
 * but did not come.
 */
weft_status_t wefti_meeting_hold(const wefti_membership_t *membership, wefti_endpoint_t *former,
                                 uint32_t generation, wefti_meeting_t **out_meeting);
uint32_t wefti_meeting_generation(const wefti_meeting_t *meeting);
/* Whether both found the same survivors. */
bool wefti_meeting_same(const wefti_meeting_t *a, const wefti_meeting_t *b);
/* Rank, world size and where to meet; borrowed from the meeting. */
weft_status_t wefti_meeting_params(wefti_meeting_t *meeting, wefti_endpoint_params_t *params);
/* A weft_interrupt_fn: whether another survivor gave up or died since. user: the meeting. */
int wefti_meeting_broken(void *user);
/* joined: this rank is in the new world. Otherwise the others give up as well. */
void wefti_meeting_leave(wefti_meeting_t *meeting, bool joined);
void wefti_meeting_free(wefti_meeting_t *meeting); /* accepts NULL */

#endif

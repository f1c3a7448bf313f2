/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of identities, for membership.c and survivors.c. */
#ifndef WEFT_TRANSPORT_SURVIVORS_H
#define WEFT_TRANSPORT_SURVIVORS_H

#include "transport/membership.h"
#include "transport/socket/address.h"

/* Sent between ranks. */
struct wefti_member {
    uint32_t number;
    char name[12];                    /* of an abstract socket, for members of one host; "": none */
    wefti_endpoint_address_t address; /* for members of other hosts; no addresses: none */
};

struct wefti_identity {
    _Atomic uint32_t references;
    _Atomic uint32_t generation; /* of the latest world that this rank is in, */
    _Atomic bool left;           /* or was: its context has been released */
    _Atomic uint32_t next;       /* number of the next member, as of that world */
    uint8_t key[32];             /* which only members have */
    wefti_member_t self;
    int local, tcp; /* listening sockets; -1: none */
};

#endif

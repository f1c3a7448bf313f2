/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous: ranks come to rank 0, which tells everyone whom to connect to and keeps them
 * together until all are connected, so that what goes wrong for one is an error for all.
 */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_MEET_H
#define WEFT_TRANSPORT_BOOTSTRAP_MEET_H

#include <sys/stat.h>

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/mesh.h"

#define WEFTI_PLACE_CANDIDATES 40u
#define WEFTI_VERDICT_TEXT 480u

/* Where rank 0 is to be found. */
typedef struct wefti_place {
    const wefti_job_t *job;
    const wefti_settings_t *settings;
    wefti_address_t candidates[WEFTI_PLACE_CANDIDATES];
    uint32_t count;
    bool scanned;  /* others may own the candidates' ports */
    bool loopback; /* it is for this host alone, by its address */
    uint8_t id[WEFTI_JOB_ID_BYTES];
    uint8_t secret[WEFTI_SECRET_BYTES];
    uint32_t secret_bytes;
    char text[WEFTI_ADDRESS_TEXT + 512]; /* for people */
    char why[160];                       /* why it was not found so far; or "" */
    /* rank 0 */
    int listener;
    const char *path; /* of the file written */
    struct stat written;
    uint32_t turn; /* which of this process's worlds, where a service knows */
} wefti_place_t;

weft_status_t wefti_place_init(wefti_place_t *place, const wefti_job_t *job,
                               const wefti_settings_t *settings);
/* Rank 0: listens, and says where. WEFT_AGAIN: the port is taken, why says by whom. */
weft_status_t wefti_place_open(wefti_place_t *place);
/* Others: fills candidates. WEFT_AGAIN: it is not known yet. */
weft_status_t wefti_place_find(wefti_place_t *place);
/* Rank 0: false when another rank 0 has taken the place over. */
bool wefti_place_held(const wefti_place_t *place);
void wefti_place_deinit(wefti_place_t *place);

/* place_file.c: "file:///path". */
weft_status_t wefti_place_write_file(wefti_place_t *place, const char *path);
weft_status_t wefti_place_read_file(wefti_place_t *place, const char *path);

/* What is published where a name leads to rank 0: addresses, identity, secret. One line of text. */
#define WEFTI_NOTICE_BYTES 768u
weft_status_t wefti_place_notice(const wefti_place_t *place, char *out);
/* False: not ours. */
bool wefti_place_read_notice(wefti_place_t *place, const char *text);
weft_status_t wefti_place_make_identity(wefti_place_t *place);
/* Rank 0: listens at all interfaces (WEFT_IFNAME), on any port. */
weft_status_t wefti_place_listen_anywhere(wefti_place_t *place);

typedef struct wefti_verdict {
    int32_t status;
    uint32_t again; /* the world belongs to another job: guests look for theirs */
    char text[WEFTI_VERDICT_TEXT];
} wefti_verdict_t;

typedef struct wefti_table_entry {
    uint32_t rank;
    wefti_card_t card;
} wefti_table_entry_t;
_Static_assert(sizeof(wefti_table_entry_t) == 128, "tables travel");

typedef struct wefti_table {
    uint8_t seed[32]; /* of the world's key */
    uint32_t count;
} wefti_table_t;

typedef struct wefti_meeting {
    uint32_t rank, world_size;
    const wefti_settings_t *settings;
    const wefti_log_t *log;
    const weft_allocator_t *allocator;
    wefti_interrupter_t interrupt;
    uint64_t began_ns, deadline_ns;
    wefti_place_t place;
    wefti_mesh_t mesh;
    wefti_address_t local;   /* as others see this rank */
    uint64_t sent, received; /* frames of the rendezvous */
} wefti_meeting_t;

/* Both end with the mesh complete on all ranks, or the same error on all that came. */
weft_status_t wefti_meet_host(wefti_meeting_t *meeting);
weft_status_t wefti_meet_guest(wefti_meeting_t *meeting);
/* One look for rank 0 by a rank 0 that found its port taken: an error if another one is there. */
weft_status_t wefti_meet_look(wefti_meeting_t *meeting);

/* The card of this rank, whose listening socket is bound: reached so far under local. */
weft_status_t wefti_meet_listen(wefti_meeting_t *meeting, const wefti_address_t *local,
                                wefti_card_t *out_card);
weft_status_t wefti_meet_world_key(const wefti_meeting_t *meeting, const uint8_t *seed,
                                   uint8_t *out_key);

#endif

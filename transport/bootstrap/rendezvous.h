/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous: every rank connects to rank 0, which sends each of them the addresses of its
 * neighbours and keeps the connections until all ranks are connected to theirs. So a failure of one
 * rank is an error on all ranks.
 *
 *   place.c, place_file.c   where rank 0 listens
 *   rendezvous_root.c       rank 0
 *   rendezvous_join.c       the other ranks
 */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_RENDEZVOUS_H
#define WEFT_TRANSPORT_BOOTSTRAP_RENDEZVOUS_H

#include <sys/stat.h>

#include "transport/bootstrap/mesh.h"

#define WEFTI_PLACE_CANDIDATES 40u
#define WEFTI_VERDICT_TEXT 480u

/* Where rank 0 listens. */
typedef struct wefti_place {
    const wefti_job_t *job;
    const wefti_settings_t *settings;
    wefti_address_t candidates[WEFTI_PLACE_CANDIDATES];
    uint32_t count;
    bool scanned;  /* the candidates' ports may belong to other programs */
    bool loopback; /* the address is of this host only */
    uint8_t id[WEFTI_JOB_ID_BYTES];
    uint8_t secret[WEFTI_SECRET_BYTES];
    uint32_t secret_bytes;
    char text[WEFTI_ADDRESS_TEXT + 512]; /* for messages */
    char why[160];                       /* why it was not found so far; or "" */
    /* rank 0 */
    int listener;
    const char *path; /* of the file written */
    struct stat written;
    uint32_t turn; /* number of this world among those of the process, for a launcher's service */
} wefti_place_t;

weft_status_t wefti_place_init(wefti_place_t *place, const wefti_job_t *job,
                               const wefti_settings_t *settings);
/* Rank 0: listens, and publishes where. WEFT_AGAIN: the port is in use, `why` says by what. */
weft_status_t wefti_place_open(wefti_place_t *place);
/* Others: fills candidates. WEFT_AGAIN: not published yet. */
weft_status_t wefti_place_find(wefti_place_t *place);
/* Rank 0: false when another rank 0 has replaced what this one published. */
bool wefti_place_held(const wefti_place_t *place);
void wefti_place_deinit(wefti_place_t *place);

/*
 * What is published: a notice, one line of text with addresses, job id and secret. Launchers use
 * spaces and '=' themselves, so it has neither.
 */
#define WEFTI_NOTICE_BYTES 768u
void wefti_place_write_notice(const wefti_place_t *place, char *out);
/* False: the text is not a notice. */
bool wefti_place_read_notice(wefti_place_t *place, const char *text);
weft_status_t wefti_place_write_file(wefti_place_t *place, const char *path, const char *notice);
weft_status_t wefti_place_read_file(wefti_place_t *place, const char *path);

/* Body of ERROR and FAILED. */
typedef struct wefti_verdict {
    int32_t status;
    uint32_t again; /* the world belongs to another job: joining ranks look for theirs */
    char text[WEFTI_VERDICT_TEXT];
} wefti_verdict_t;

/* The last rank to join gets this long to connect. */
uint64_t wefti_connect_least_ns(const wefti_settings_t *settings);

/* Of status and this thread's message. */
wefti_verdict_t wefti_verdict_of(weft_status_t status);
/* The verdict as this thread's error; from rank 0 also WEFT_AGAIN. */
weft_status_t wefti_verdict_adopt(const wefti_frame_t *frame, uint32_t from);

/* What a joining rank sends with its proof. */
typedef struct wefti_application {
    wefti_endpoint_address_t address;
    uint8_t host_key[WEFTI_HOST_KEY_BYTES]; /* as in wefti_overlay_params_t */
} wefti_application_t;
_Static_assert(sizeof(wefti_application_t) <= WEFTI_PAYLOAD_MAX, "sent with proofs");

/* Body of TABLE; the endpoint addresses of the neighbours follow. */
typedef struct wefti_table {
    uint8_t seed[32]; /* of the world's key */
    uint32_t count;
    uint32_t ranks[WEFTI_MESH_PEERS_MAX]; /* the neighbours */
} wefti_table_t;

typedef struct wefti_rendezvous {
    const wefti_overlay_params_t *params;
    uint64_t deadline_ns;
    wefti_place_t place;
    wefti_mesh_t mesh;
    wefti_endpoint_address_t address; /* this rank as others reach it */
} wefti_rendezvous_t;

/* Both end with the mesh complete on all ranks, or the same error on all ranks that joined. */
weft_status_t wefti_rendezvous_lead(wefti_rendezvous_t *rendezvous);
weft_status_t wefti_rendezvous_join(wefti_rendezvous_t *rendezvous);
/* One attempt to join, by a rank 0 whose port is in use: an error if that is another rank 0. */
weft_status_t wefti_rendezvous_try(wefti_rendezvous_t *rendezvous);

/* Starts the mesh's listening; local: this rank's address as far as known. */
weft_status_t wefti_rendezvous_listen(wefti_rendezvous_t *rendezvous, const wefti_address_t *local,
                                      wefti_endpoint_address_t *out_address);
/* Starts the mesh's connecting; the world's key follows from the seed. */
weft_status_t wefti_rendezvous_connect(wefti_rendezvous_t *rendezvous, const wefti_table_t *table,
                                       const wefti_endpoint_address_t *addresses);

#endif

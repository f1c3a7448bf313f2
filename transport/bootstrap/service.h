/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers that let ranks publish small texts: PMIx and PMI-1. Rank 0 publishes where it listens
 * and a secret made for this world, the others look it up.
 */
#ifndef WEFT_TRANSPORT_BOOTSTRAP_SERVICE_H
#define WEFT_TRANSPORT_BOOTSTRAP_SERVICE_H

#include "transport/bootstrap/bootstrap.h"

typedef struct wefti_service wefti_service_t;

/* Texts by number of the world in this process, the turn; names of one job do not meet another's.
 */
typedef struct wefti_service_ops {
    const char *launcher; /* as weft_context_launcher reports it */
    const char *address;  /* "pmix:" */
    /* This rank opens the world. WEFT_AGAIN: an earlier world of this process has the turn. */
    weft_status_t (*claim)(wefti_service_t *service, uint32_t turn);
    /* Rank 0. text: one line without spaces, at most 700 bytes. */
    weft_status_t (*publish)(wefti_service_t *service, uint32_t turn, const char *text);
    /* Others. WEFT_AGAIN: not published yet, after a short wait. */
    weft_status_t (*look_up)(wefti_service_t *service, uint32_t turn, char *out, size_t capacity);
    void (*close)(wefti_service_t *service);
} wefti_service_ops_t;

struct wefti_service {
    const wefti_service_ops_t *ops;
};

/* WEFT_OK: *out_service, rank and world size are set. WEFT_AGAIN: this launcher did not start us.
 */
weft_status_t wefti_service_pmix(const wefti_log_t *log, wefti_service_t **out_service,
                                 uint32_t *out_rank, uint32_t *out_world_size);
weft_status_t wefti_service_pmi_1(const wefti_log_t *log, wefti_service_t **out_service,
                                  uint32_t *out_rank, uint32_t *out_world_size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of a group as they are made, and who takes them instead of the group: an open batch
 * (call_batch.c) or an open capture (folder capture).
 */
#ifndef WEFT_RUNTIME_RECORDER_H
#define WEFT_RUNTIME_RECORDER_H

#include "runtime/collective/call.h"

/* A recorded call. */
typedef struct wefti_batched {
    wefti_request_t request;
    uint64_t *counts;         /* V forms: as in wefti_call_t */
    wefti_shape_note_t shape; /* of the tensors; tag 0: none */
    bool submitted;
} wefti_batched_t;

typedef struct wefti_recorder_ops {
    const char *name; /* "batch", for messages */
    /* A checked call; its shape is in calls->shape, and is forgotten afterwards. counts, of V
     * forms, become the recorder's, also on failure. */
    weft_status_t (*record)(weft_group_t *group, const wefti_request_t *request, uint64_t *counts);
    /* A checked pair; NULL: whether there is room for one. */
    weft_status_t (*record_pair)(weft_group_t *group, const wefti_pair_t *pair);
    void (*release)(weft_group_t *group); /* the group is destroyed */
} wefti_recorder_ops_t;

/* Member 0 of a recorder's own struct. */
typedef struct wefti_recorder {
    const wefti_recorder_ops_t *ops;
    weft_status_t
        refused;       /* of the first call that this rank could not make: the end tells others */
    bool refused_pair; /* it is a send or receive */
    char why[WEFTI_REFUSAL_BYTES];
} wefti_recorder_t;

/* call_refuse.c: notes that, with the last error. Returns status. */
weft_status_t wefti_recorder_refuse(wefti_recorder_t *recorder, bool is_pair, weft_status_t status);

/* call.c: WEFT_OK, or the error of a call that cannot be made while calls are recorded. */
weft_status_t wefti_recorder_check(const weft_group_t *group, const char *call);
/* record_pair of recorders that take collectives only. */
weft_status_t wefti_recorder_no_pairs(weft_group_t *group, const wefti_pair_t *pair);

/* call_batch.c: frees what a group keeps for batches. */
void wefti_batch_free(weft_group_t *group);

/* collective.c: checks and submits a recorded call as if it were made now. */
weft_status_t wefti_request_submit(const wefti_batched_t *batched, weft_group_t *group,
                                   weft_stream_t *stream);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives in a batch.
 *
 *   begin   all_reduce  all_gather  barrier  all_reduce  send ..  end
 *           every call is checked and noted                       first sends and receives, side by
 *                                                                 side; then collectives in order,
 *                                                                 small ones of a kind as one call
 *
 * A fused call has the members' data packed one after the other, block by block. Its signature is a
 * hash of the members' counts, and its posting lists them ahead of the data, so that ranks that
 * disagree can say where.
 */
#ifndef WEFT_RUNTIME_BATCH_H
#define WEFT_RUNTIME_BATCH_H

#include "runtime/group/group.h"

/* The arguments of a public call. */
typedef struct wefti_request {
    weft_collective_t op;
    const void *send;
    void *recv;
    uint64_t count;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root;
} wefti_request_t;

/* A call in an open batch. */
typedef struct wefti_batched {
    wefti_request_t request;
    uint64_t *counts; /* V forms: as in wefti_call_t */
    bool submitted;
} wefti_batched_t;

/* Takes a group's checked calls instead of the group (folder capture); first member of its own
 * struct. */
typedef struct wefti_recorder {
    /* counts, of V forms, become the recorder's, also on failure. */
    weft_status_t (*record)(weft_group_t *group, const wefti_request_t *request, uint64_t *counts);
    void (*release)(weft_group_t *group); /* the group is destroyed */
} wefti_recorder_t;

typedef struct wefti_batch {
    wefti_batched_t *list;
    size_t count, capacity;
    bool pairs_submitted;
} wefti_batch_t;

#define WEFTI_FUSED_MEMBERS 64u
#define WEFTI_FUSED_LIST_BYTES (WEFTI_FUSED_MEMBERS * sizeof(uint64_t) + 64)

typedef struct wefti_fused_member {
    const uint8_t *send;
    uint8_t *recv;
    uint64_t count; /* elements of one block */
    uint32_t index; /* in the batch */
} wefti_fused_member_t;

/* Of one place of a group's ring, from the first fused call in it. */
typedef struct wefti_fused {
    uint32_t count; /* of members */
    wefti_fused_member_t members[WEFTI_FUSED_MEMBERS];
    uint8_t *packed; /* what the call sends and receives */
    size_t capacity;
} wefti_fused_t;

/* In a posting's data, ahead of everything else; a whole number of lines. */
typedef struct wefti_fused_list {
    uint32_t count, reserved;
    uint64_t members[WEFTI_FUSED_MEMBERS]; /* index << 32 | count */
} wefti_fused_list_t;

static inline size_t wefti_fused_list_bytes(const wefti_call_t *call)
{
    return call->fused == NULL ? 0
                               : wefti_align_up(offsetof(wefti_fused_list_t, members) +
                                                    call->fused->count * sizeof(uint64_t),
                                                64);
}

/* collective.c: checks and submits it, as outside of a batch. counts: of V forms. */
weft_status_t wefti_request_submit(const wefti_batched_t *batched, weft_group_t *group,
                                   weft_stream_t *stream);
void wefti_request_fill(wefti_call_t *call, const wefti_request_t *request);

/* call_batch.c. Notes a checked call; V forms bring counts, which the batch then owns. */
weft_status_t wefti_batch_add(weft_group_t *group, const wefti_request_t *request,
                              uint64_t *counts);
void wefti_batch_free(weft_group_t *group);
/* The error of a call that cannot be recorded. */
weft_status_t wefti_recorder_refuse(const char *call);

/* call_fused.c. Before the posting, and after the end, of a fused call. */
void wefti_fused_pack(const wefti_call_t *call);
void wefti_fused_unpack(const wefti_call_t *call);
void wefti_fused_post(const wefti_call_t *call, wefti_posting_t *posting);
/* Where two postings of fused calls differ; false when they do not. Text holds bytes. */
bool wefti_fused_difference(const wefti_posting_t *low, uint32_t low_rank,
                            const wefti_posting_t *high, uint32_t high_rank, char *text,
                            size_t bytes);
/* As many of the batch from first on as go into one call with it; 1: not fused. */
uint32_t wefti_fused_collect(const weft_group_t *group, const wefti_batch_t *batch, size_t first,
                             uint32_t *out_members);
weft_status_t wefti_fused_submit(weft_group_t *group, wefti_batch_t *batch, const uint32_t *members,
                                 uint32_t count, weft_stream_t *stream);
void wefti_fused_free(const weft_allocator_t *allocator, wefti_fused_t *fused);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the bucketing pass share. */
#ifndef WEFT_FUSION_BUCKET_H
#define WEFT_FUSION_BUCKET_H

#include "fusion/dependence.h"
#include "fusion/fusion.h"
#include "fusion/planner.h"

/* One gradient's collective. Candidates are sorted by readiness. */
typedef struct wefti_gradient {
    uint32_t op;
    const char *name;   /* of the parameter */
    const char *value;  /* of the gradient itself */
    uint32_t producer;  /* position of the gradient's producer in the order of execution */
    uint32_t output;    /* which output of the producer */
    uint32_t fences[2]; /* fences before the producer and before the collective */
    weft_dtype_t dtype;
    uint64_t bytes; /* as laid out: padded */
    uint64_t ready_ns;
    uint32_t segment; /* which bucket the user or the planner wants it in */
    const char *cut;  /* last of a segment: why it ends there */
    uint32_t bucket;  /* which one it got */
    uint32_t
        first_with; /* the first candidate that may share a bucket with it and all in between */
    bool taken;
} wefti_gradient_t;

/* Pieces of one graph: enough for 64 MiB buckets of 4 TiB, and checking a plan stays quick. */
#define WEFTI_MAX_PIECES 65536u

typedef struct wefti_bucketing {
    const weft_graph_view_t *view;
    const wefti_policy_t *policy;
    const wefti_bucket_cost_t *cost; /* NULL: nothing is predicted */
    wefti_arena_t arena;
    wefti_gradient_t *candidates;
    uint32_t count;
    wefti_dependence_t dependence;
    uint32_t *members; /* candidates of the bucket being built */
    uint32_t member_count;
    uint64_t bytes;
    uint32_t bucket_count;
    uint64_t piece_count; /* of all gradients that are split */
    weft_edit_list_t *edits;
} wefti_bucketing_t;

/* bucket_cut.c: marks the segments that a policy names. */
weft_status_t wefti_bucket_cut_by_index(wefti_bucketing_t *b);
weft_status_t wefti_bucket_cut_by_percent(wefti_bucketing_t *b);
/* Of all bytes, the percentage at which a segment should end. */
unsigned wefti_bucket_percent(const wefti_policy_t *policy, uint32_t segment);

/* bucket.c: why two gradients may not share a bucket whatever the policy, or NULL. */
const char *wefti_bucket_incompatible(const wefti_bucketing_t *b, uint32_t first, uint32_t index);
/* Into how many pieces a cap (0: none) cuts a gradient. */
uint64_t wefti_bucket_parts(const wefti_gradient_t *gradient, uint64_t cap_bytes);

/* bucket_auto.c: the planner's segments: policies auto and mgwfbp. */
weft_status_t wefti_bucket_cut_by_plan(wefti_bucketing_t *b);
/* What the buckets that were made cost, and what others would. */
weft_status_t wefti_bucket_forecast(wefti_bucketing_t *b, wefti_arena_t *arena,
                                    wefti_plan_forecast_t *out_forecast);

#endif

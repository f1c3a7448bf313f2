/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the bucketing pass share. */
#ifndef WEFT_FUSION_BUCKET_H
#define WEFT_FUSION_BUCKET_H

#include "fusion/dependence.h"
#include "fusion/fusion.h"
#include "fusion/planner.h"

/* One collective of one tensor. Candidates of a kind are sorted by readiness. */
typedef struct wefti_bucket_candidate {
    uint32_t op;
    weft_collective_t kind;
    const char *name;   /* all-reduce: of the parameter; else of the input */
    const char *value;  /* of the input */
    uint32_t producer;  /* position of the input's producer in the order of execution */
    uint32_t output;    /* which output of the producer */
    uint32_t fences[2]; /* fences before the producer and before the collective */
    uint32_t begin;     /* position after all ops that it needs */
    uint32_t end;       /* position of the first op that needs it */
    weft_dtype_t dtype;
    uint64_t unit_bytes; /* pieces are multiples of it */
    uint64_t bytes;      /* of the whole range, padded to units */
    uint64_t ready_ns;   /* all-gathers: time from need to the end of the step */
    uint32_t segment;    /* which bucket the user or the planner wants it in */
    const char *cut;     /* last of a segment: why it ends there */
    uint32_t bucket;     /* which one it got */
    uint32_t
        first_with; /* the first candidate that may share a bucket with it and all in between */
    uint8_t apart;  /* see wefti_bucket_params_t */
    bool taken;
} wefti_bucket_candidate_t;

/* Pieces of one graph: enough for 64 MiB buckets of 4 TiB, and checking a plan stays quick. */
#define WEFTI_MAX_PIECES 65536u

typedef struct wefti_bucketing {
    const weft_graph_view_t *view;
    const wefti_policy_t *policy;
    const wefti_bucket_cost_t *cost;  /* NULL: nothing is predicted */
    const wefti_bucket_cost_t *alone; /* of a bucket of one tensor; NULL: the same */
    wefti_arena_t arena;
    wefti_bucket_candidate_t *candidates; /* of one kind, apart or not */
    uint32_t count;
    uint32_t base; /* of the first candidate, in dependence */
    wefti_dependence_t dependence;
    uint64_t end_ns;   /* of the step */
    uint32_t *members; /* candidates of the bucket being built */
    uint32_t member_count;
    uint32_t begin, end; /* of its members: the largest begin, the least end */
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

/* bucket_collect.c: finds and sorts the candidates of all kinds. */
weft_status_t wefti_bucket_collect(wefti_bucketing_t *b, const wefti_bucket_params_t *params);
/* What messages call a candidate: "gradient" or "tensor". */
const char *wefti_bucket_noun(const wefti_bucketing_t *b);
/* bucket_cut.c: into how many pieces a cap (0: none) cuts a tensor. */
uint64_t wefti_bucket_parts(const wefti_bucket_candidate_t *gradient, uint64_t cap_bytes);

/* bucket_auto.c: the planner's segments: policies auto and mgwfbp. */
weft_status_t wefti_bucket_cut_by_plan(wefti_bucketing_t *b);
/* What the buckets that were made cost, and what others would. */
weft_status_t wefti_bucket_forecast(wefti_bucketing_t *b, wefti_arena_t *arena,
                                    wefti_plan_forecast_t *out_forecast);

#endif

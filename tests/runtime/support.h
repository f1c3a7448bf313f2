/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training plan built by hand, kernels for it, a direct computation of the same numbers, and
 * worlds of ranks as threads or processes.
 *
 * The model: P parameter vectors; gradient g_j[i] = w_j[i] * 0.5 + x[i % n] * (j + 1); momentum
 * SGD; loss is the sum of x times w_0[0]. Odd sizes, so that shares and padding matter.
 */
#ifndef WEFT_TESTS_RUNTIME_SUPPORT_H
#define WEFT_TESTS_RUNTIME_SUPPORT_H

#include <weft/weft.h>

#include "ops/plan/plan.h"
#include "tests/support/support.h"

#define SUPPORT_PARAMS 5u
#define SUPPORT_INPUTS 37u
#define SUPPORT_LR 0.05
extern const uint32_t support_sizes[SUPPORT_PARAMS];

/* How a bucket's updates are carried out: whole everywhere, or each rank's shard of them. */
typedef enum support_mode {
    SUPPORT_WHOLE,     /* all-reduce, update */
    SUPPORT_SHARDED,   /* reduce-scatter, update, all-gather */
    SUPPORT_DECOUPLED, /* the same, gathered at the begin of the next step, or by flush */
    SUPPORT_SWEEP,     /* all three in one collective */
} support_mode_t;

typedef struct training {
    uint32_t world;
    uint32_t steps;
    uint32_t buckets; /* 1 to SUPPORT_PARAMS */
    uint32_t streams; /* 0: 2 ("compute", "comm"); 1: everything on one */
    support_mode_t mode;
    uint32_t divisor; /* of the average; 0: the world */
    bool reads;       /* evaluates, and reads weights, after every step */
    weft_progress_t progress;
    bool card;               /* on the fake card */
    int card_fails;          /* after so many commands and allocations of rank 0's; 0: never */
    const uint32_t *host_of; /* threads: ranks of different hosts only put; or NULL */
    int isa;                 /* as in weft_context_params_t; 0: portable */
    const char *trace;       /* path of a timeline */
    uint32_t repeats;        /* sessions after the first one, on the same context */
    /* what goes wrong */
    int bad_kernel_rank; /* 1 + the rank whose gradient kernel fails in step bad_step */
    int dead_rank;       /* 1 + the rank whose process kills itself in step bad_step */
    uint32_t bad_step;   /* 0-based */
    int other_plan_rank; /* 1 + the rank that has another plan */
    int no_kernel_rank;  /* 1 + the rank that lacks a kernel */
    bool wrong_world;    /* the plan is for one rank more */
    bool quiet;          /* drop log lines: failures are expected */
    bool shrinks;        /* after an error: goes on in a world of the ranks that are left */
} training_t;

typedef struct outcome {
    weft_status_t status;
    char message[512];
    char digest[65];
    float loss;
    double late_ms; /* from the failing step's start to its return */
    weft_session_stats_t stats;
    uint64_t after; /* status of a call after the end, as an unsigned number */
    uint32_t left;  /* ranks of the world in which a barrier worked afterwards */
} outcome_t;

weft_status_t support_registry(bool complete, weft_registry_t **out_registry);
weft_status_t support_plan(const training_t *training, bool other, weft_plan_t **out_plan);
/* What rank feeds in step. */
void support_inputs(uint32_t rank, uint32_t step, float *x);
/* The digest after training, computed directly. */
void support_expect(const training_t *training, char digest[65]);

/* Runs training on one rank of a world; *context's parameters are filled in by the caller. */
void support_rank(const training_t *training, const weft_context_params_t *params,
                  outcome_t *outcome);
/* Ranks as threads; outcomes[world]. */
void support_run_threads(const training_t *training, outcome_t *outcomes);
/* Ranks as processes; a rank that died keeps a status of 1. */
void support_run_processes(const training_t *training, outcome_t *outcomes);

void support_quiet(void *user, weft_log_level_t level, const char *line);

/* Fills every input of a plan with numbers that depend on rank, step and place only; labels stay
 * below 10. */
weft_status_t support_feed(weft_session_t *session, const weft_plan_t *plan, uint32_t rank,
                           uint32_t step);

#endif

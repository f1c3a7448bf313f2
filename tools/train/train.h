/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer of `weft run --data`: one rank feeds batches of a data set to a session, steps,
 * evaluates, saves and reports. A program that trains on other data uses weft/session.h the same
 * way.
 */
#ifndef WEFT_TOOLS_TRAIN_H
#define WEFT_TOOLS_TRAIN_H

#include <stdbool.h>

#include <weft/weft.h>

#include "tools/launch/board.h"
#include "tools/train/dataset.h"
#include "tools/links_report.h"
#include "tools/timeline.h"

typedef struct train_options {
    const char *command; /* for messages */
    weft_plan_t *plan;   /* shared by all ranks: loaded before the fork */
    const weft_registry_t *registry;
    const dataset_t *data;
    weft_context_t *world; /* the context if a launcher started this process, else NULL; borrowed */
    uint32_t epochs;       /* 0: steps decides */
    uint64_t steps;        /* 0: epochs decides */
    double lr;             /* negative: the plan's default */
    uint64_t seed;
    bool no_eval; /* do not evaluate the test set */
    bool json;
    const char *save_path, *trace_path, *profile_path, *checkpoint_path; /* NULL: not written */
    const char *report_path;       /* DIR/run.json; NULL: not written */
    uint64_t checkpoint_every;     /* steps; 0: at the end only */
    uint32_t checkpoint_keep;      /* 0: 1 */
    const char *resume_path;       /* NULL: from the beginning */
    weft_checkpoint_info_t resume; /* of resume_path, set by wefti_train_resume */
    uint32_t min_ranks;            /* 0: the run ends when a rank dies; else with fewer ranks */
    /* Elastic: makes the plan for another number of ranks. */
    weft_status_t (*replan)(void *user, uint32_t world_size, weft_plan_t **out_plan);
    void *replan_user;
    uint32_t max_ranks;
    launch_board_t *board; /* elastic: processes that wait to join; NULL: none do */
} train_options_t;

/* The plan's inputs for the data set. */
typedef struct train_binding {
    data_input_t inputs[DATA_MAX_INPUTS];
    uint32_t input_count;
    uint32_t label;        /* index of the labels among them; input_count: none */
    bool evaluates;        /* logits are compared with the labels of a test set */
    int64_t batch;         /* samples of a rank's micro-batch */
    uint32_t accumulate;   /* micro-batches of a rank and step */
    uint64_t global_batch; /* samples of all ranks per step */
    uint32_t batch_ranks;  /* that have parts of the weights and compute one batch together */
    int64_t class_count;   /* of the logits */
    bool has_lr, has_seed, has_lr_steps;
    double lr; /* the plan's default */
} train_binding_t;

/* Ranks that died or joined, and how training continued. */
typedef struct train_recovery {
    char dead[128], joined[128]; /* their member numbers, such as "1, 3" */
    uint32_t dead_count, joined_count;
    uint64_t step;       /* steps done before those that were lost */
    uint32_t world_size; /* ranks that continue */
    double seconds;      /* between two steps */
} train_recovery_t;

/* How long checkpoints kept training from going on. */
typedef struct train_pauses {
    uint32_t count;
    double copy_ms; /* of all together */
    double most_ms; /* of the longest */
    double wait_ms; /* until the files before them were written */
} train_pauses_t;

/* The final report. */
typedef struct train_report {
    uint32_t world_size;
    uint64_t steps;               /* of this run */
    uint64_t first_step;          /* steps before this run */
    double loss_first, loss_last; /* means over ranks */
    double test_accuracy;         /* negative: no test set */
    double step_ms_p50, step_ms_mean, images_per_s;
    weft_session_stats_t stats;
    uint64_t rss_bytes; /* the largest rank's peak */
    char param_digest[65];
    links_report_t links;
    bool saved, checkpointed, traced, reported; /* the files that were written */
    train_pauses_t pauses;
    timeline_t timeline;
    train_recovery_t *recoveries;
    uint32_t recovery_count;
    weft_snapshot_info_t snapshot; /* elastic */
    double snapshot_ms;            /* mean per step */
} train_report_t;

/* bind.c: the inputs of a plan, per sample. */
weft_status_t wefti_train_inputs(const weft_plan_t *plan, train_binding_t *out_binding);
/* Checks that plan and data fit. */
weft_status_t wefti_train_bind(const train_options_t *options, const weft_plan_t *plan,
                               train_binding_t *out_binding);
/* resume.c: checks that training can continue from options->resume_path: tensors fit the plan, and
 * the position fits data, seed and batch. Seed and learning rate come from the checkpoint unless
 * the command line sets them. *out_steps: at the end of training; no more than were done if it has
 * ended. */
weft_status_t wefti_train_resume(train_options_t *options, const train_binding_t *binding,
                                 bool seed_given, bool lr_given, uint64_t *out_steps);
/* Positions in the data: the first one; after one more step; the begin of the next step, which is
 * in the next epoch if this one has too few samples left. */
weft_checkpoint_info_t wefti_train_begin(const train_options_t *options,
                                         const train_binding_t *binding);
void wefti_train_advance(const train_options_t *options, const train_binding_t *binding,
                         weft_checkpoint_info_t *at);
void wefti_train_fit(const train_options_t *options, const train_binding_t *binding,
                     weft_checkpoint_info_t *at);
/* The number of steps at the end of training, from a position on. */
uint64_t wefti_train_steps(const train_options_t *options, const train_binding_t *binding,
                           const weft_checkpoint_info_t *at);
/* Trains one rank; world_size, rank and address come from the launcher (unused with
 * options->world). A process in place of a dead rank joins the world first. */
weft_status_t wefti_train_rank(const train_options_t *options, int32_t rank, int32_t world_size,
                               const char *address);

/* report.c */
weft_status_t wefti_report_print(const train_options_t *options, const train_report_t *report,
                                 const weft_context_t *context);
/* Members of an open object: what --json prints. */
void wefti_report_add_json(const train_options_t *options, const train_report_t *report,
                           const weft_context_t *context, wefti_json_t *json);
/* Progress on standard error: a live line on a terminal, else a line per second. */
typedef struct progress {
    bool terminal, quiet;
    const char *noun; /* of a sample */
    uint64_t next_ns, started_ns;
    uint64_t images_done;
} progress_t;
void wefti_progress_begin(progress_t *progress, bool quiet, const char *noun);
bool wefti_progress_due(const progress_t *progress, uint64_t now_ns);
void wefti_progress_show(progress_t *progress, uint64_t now_ns, uint32_t epoch, uint32_t epochs,
                         uint64_t step, uint64_t steps, double loss, double exposed_ms);
void wefti_progress_end(const progress_t *progress);
/* The library's log on a terminal: each line replaces the live one. */
void wefti_progress_log(void *user, weft_log_level_t level, const char *line);

#endif

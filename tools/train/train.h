/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The image trainer of `weft run --data`: one rank feeds batches of a data set to a session, steps,
 * evaluates, saves and reports. A program that trains on other data uses weft/session.h the same
 * way.
 */
#ifndef WEFT_TOOLS_TRAIN_H
#define WEFT_TOOLS_TRAIN_H

#include <stdbool.h>

#include <weft/weft.h>

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
    bool linear_lr;        /* the learning rate falls linearly to 0 */
    double lr;             /* negative: the plan's default */
    uint64_t seed;
    bool no_eval; /* do not evaluate the test set */
    bool json;
    const char *save_path, *trace_path, *profile_path, *checkpoint_path; /* NULL: not written */
    uint64_t checkpoint_every;     /* steps; 0: at the end only */
    const char *resume_path;       /* NULL: from the beginning */
    weft_checkpoint_info_t resume; /* of resume_path, set by wefti_train_resume */
} train_options_t;

/* The plan's inputs for the data set. */
typedef struct train_binding {
    const char *image_name, *label_name;
    int64_t batch;         /* samples of a rank's micro-batch */
    uint32_t accumulate;   /* micro-batches of a rank and step */
    uint64_t global_batch; /* samples of all ranks per step */
    int64_t class_count;   /* of the logits */
    bool has_lr, has_seed;
    double lr; /* the plan's default */
} train_binding_t;

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
    bool saved, checkpointed, traced; /* the files that were written */
    timeline_t timeline;
} train_report_t;

/* Checks that plan and data fit; called once, before ranks start. */
weft_status_t wefti_train_bind(const train_options_t *options, train_binding_t *out_binding);
/* resume.c: checks that training can continue from options->resume_path: tensors fit the plan, the
 * position fits data, seed and global batch, and steps are left. Seed and learning rate come from
 * the checkpoint unless the command line sets them. */
weft_status_t wefti_train_resume(train_options_t *options, const train_binding_t *binding,
                                 bool seed_given, bool lr_given);
/* Steps of a pass over the data, and of the whole training. */
uint64_t wefti_train_steps_per_epoch(const train_options_t *options,
                                     const train_binding_t *binding);
uint64_t wefti_train_steps(const train_options_t *options, const train_binding_t *binding);
/* The position in the data after done steps. */
weft_checkpoint_info_t wefti_train_position(const train_options_t *options,
                                            const train_binding_t *binding, uint64_t done);
/* Trains one rank; world_size, rank and address come from the launcher (unused with
 * options->world). */
weft_status_t wefti_train_rank(const train_options_t *options, int32_t rank, int32_t world_size,
                               const char *address);

/* report.c */
weft_status_t wefti_report_print(const train_options_t *options, const train_report_t *report,
                                 const weft_context_t *context);
/* Progress on standard error: a live line on a terminal, else a line per second. */
typedef struct progress {
    bool terminal, quiet;
    uint64_t next_ns, started_ns;
    uint64_t images_done;
} progress_t;
void wefti_progress_begin(progress_t *progress, bool quiet);
bool wefti_progress_due(const progress_t *progress, uint64_t now_ns);
void wefti_progress_show(progress_t *progress, uint64_t now_ns, uint32_t epoch, uint32_t epochs,
                         uint64_t step, uint64_t steps, double loss, double exposed_ms);
void wefti_progress_end(const progress_t *progress);
/* The library's log on a terminal: each line replaces the live one. */
void wefti_progress_log(void *user, weft_log_level_t level, const char *line);

#endif

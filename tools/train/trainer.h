/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one rank that trains, for the files of this folder. */
#ifndef WEFT_TOOLS_TRAINER_H
#define WEFT_TOOLS_TRAINER_H

#include "tools/train/train.h"

typedef struct trainer {
    const train_options_t *options;
    /* of the world, which is another one after a rank has died */
    weft_plan_t *plan; /* retained */
    train_binding_t binding;
    weft_context_t *context;
    weft_session_t *session;
    weft_group_t *group; /* elastic: all ranks */
    uint32_t rank, world_size;
    float *images;   /* the input's own memory */
    int64_t *labels; /* likewise */
    float *logits;

    weft_snapshot_t *snapshot; /* elastic: the state after the last steps */
    uint64_t snapshot_ns;      /* time in all snapshots */
    weft_checkpoint_info_t at; /* steps done, and where in the data the next one begins */
    uint64_t first_step;       /* steps before this run */
    uint64_t steps;            /* at the end of training */
    uint32_t *order;           /* of the samples in epoch order_epoch */
    uint64_t order_epoch;
    double *step_ms; /* [step - first_step] */
    size_t step_capacity;
    progress_t progress;
    train_report_t report;
    weft_status_t failed; /* the status of a file that could not be written */
    char failure[1024];
} trainer_t;

/* bind.c: session, group and inputs of the context and plan. */
weft_status_t wefti_trainer_enter(trainer_t *trainer);
void wefti_trainer_leave(trainer_t *trainer);
/* train.c: the number of steps from the position on, and room for their times. */
weft_status_t wefti_trainer_plan_steps(trainer_t *trainer);
/* elastic.c: keeps the state after a step, if the run is elastic. */
weft_status_t wefti_trainer_keep(trainer_t *trainer);
/* After cause, an error of a step: if it is the death of ranks and enough are left, the trainer
 * continues with them after the last step that is whole. Else returns cause, or why not. */
weft_status_t wefti_trainer_recover(trainer_t *trainer, weft_status_t cause);

#endif

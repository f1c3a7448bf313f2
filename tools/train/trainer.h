/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one rank that trains, for the files of this folder. */
#ifndef WEFT_TOOLS_TRAINER_H
#define WEFT_TOOLS_TRAINER_H

#include "tools/train/train.h"

/* What is kept of a step of this rank. */
typedef struct train_step {
    double ms, loss;
} train_step_t;

typedef struct trainer {
    const train_options_t *options;
    /* of the world, which is another one after a rank has died */
    weft_plan_t *plan; /* retained */
    train_binding_t binding;
    weft_context_t *context;
    weft_session_t *session;
    weft_checkpoint_writer_t *writer; /* NULL before the first checkpoint */
    weft_group_t *group;              /* elastic: all ranks */
    uint32_t rank, world_size;
    void *inputs[DATA_MAX_INPUTS];        /* the inputs' own memory */
    size_t copied_bytes[DATA_MAX_INPUTS]; /* not 0: inputs are copies, of a device out of reach */
    float *logits;

    bool joined;               /* it has taken a dead rank's place */
    uint32_t seat;             /* then, on the board */
    bool started;              /* it has done a step, or received the state of one */
    uint32_t refused;          /* processes that wait, but with which no plan suits */
    weft_snapshot_t *snapshot; /* elastic: the state after the last steps */
    uint64_t snapshot_ns;      /* time in all snapshots */
    train_recovery_t change;   /* of the world, not yet in the report */
    weft_checkpoint_info_t at; /* steps done, and where in the data the next one begins */
    uint64_t first_step;       /* steps before this run */
    uint64_t steps;            /* at the end of training */
    uint32_t *order;           /* of the samples in epoch order_epoch */
    uint64_t order_epoch;
    train_step_t *history; /* [step - first_step] */
    size_t history_capacity;
    progress_t progress;
    train_report_t report;
    uint64_t next_report_ns; /* when it is written to options->report_path again */
    weft_status_t failed;    /* the status of a file that could not be written */
    char failure[1024];
} trainer_t;

/* bind.c: session, group and inputs of the context and plan. */
weft_status_t wefti_trainer_enter(trainer_t *trainer);
void wefti_trainer_leave(trainer_t *trainer);
/* Unless it is open: the memory of checkpoints of this session. */
weft_status_t wefti_trainer_open_writer(trainer_t *trainer);
/* train.c: the first position, from options->resume_path if it is set; the first snapshot. */
weft_status_t wefti_trainer_begin(trainer_t *trainer);
/* The number of steps from the position on, and room for their times. */
weft_status_t wefti_trainer_plan_steps(trainer_t *trainer);
/* history.c: collective, after summaries: writes options->report_path with the steps of all ranks. */
weft_status_t wefti_trainer_write_report(trainer_t *trainer, uint64_t rss_bytes);
/* The same while steps go on, with the steps of this rank alone. */
weft_status_t wefti_trainer_write_so_far(trainer_t *trainer);
/* elastic.c: keeps the state after a step, if the run is elastic. */
weft_status_t wefti_trainer_keep(trainer_t *trainer);
/* The largest plan for low to high ranks; the same on all of them. */
weft_status_t wefti_trainer_replan(const trainer_t *trainer, uint32_t low, uint32_t high,
                                   weft_plan_t **out_plan, uint32_t *out_size);
/* Session and state in a new world. */
weft_status_t wefti_trainer_restore(trainer_t *trainer);
/* The ranks of context, up to count, that other does not have. */
void wefti_trainer_list_members(const weft_context_t *context, uint32_t count,
                                const weft_context_t *other, char *out, size_t bytes,
                                uint32_t *out_count);
/* Adds trainer->change to the report, shares and prints it. */
weft_status_t wefti_trainer_note(trainer_t *trainer, uint64_t started_ns);
/* join.c: between two steps: lets processes join that wait for it. */
weft_status_t wefti_trainer_admit_waiting(trainer_t *trainer);
/* The same without a session; low: waits for as many ranks. *out_grown: the trainer has their
 * context and plan, and no session. */
weft_status_t wefti_trainer_admit(trainer_t *trainer, uint32_t low, bool *out_grown);
/* After a change of the world: plans the steps; ranks that have joined receive what the report has
 * of those before. */
weft_status_t wefti_trainer_share(trainer_t *trainer);
/* In place of a dead rank: context and plan of the world that it joins. WEFT_ERR_ABORTED: the run
 * has ended without it. */
weft_status_t wefti_trainer_join(trainer_t *trainer, uint32_t seat, weft_log_fn log);
/* elastic.c: after cause, an error of a step: if it is the death of ranks and enough are left, the trainer
 * continues with them after the last step that is whole. Else returns cause, or why not. */
weft_status_t wefti_trainer_recover(trainer_t *trainer, weft_status_t cause);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random legal work of one rank, by the public API only.
 *
 * All ranks draw the same operations from the same seed, so nothing has to be agreed. Operation i
 * has a generator of its own: it may draw as many numbers as it likes. What an operation delivers is
 * compared with what it must be.
 */
#ifndef TESTS_FAULTS_MATRIX_WORK_H
#define TESTS_FAULTS_MATRIX_WORK_H

#include <weft/weft.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORK_GROUPS 6u
#define WORK_SLOTS 4u

/* A row of the program: the same on all ranks, with a group of its own on each, or none. */
typedef struct work_group {
    weft_group_t *group; /* NULL: this rank is in none of this row */
    bool is_made;        /* equal on all ranks */
} work_group_t;

typedef struct work {
    weft_context_t *context;
    uint32_t rank, size;
    uint64_t seed;
    work_group_t groups[WORK_GROUPS]; /* the first one is the world */
    weft_stream_t *streams[2];        /* inline, and with a thread */
    uint8_t *send[WORK_SLOTS], *recv[WORK_SLOTS];
    void *peer_memory; /* half of the slots: memory that peers access */
    const char *plan_path, *folder;
    const char *address; /* start of those where new ranks join */
    weft_plan_t *plan;
    bool over_world; /* operations are over the world, and have rows for new groups */
    char wrong[256]; /* the first wrong result; "" */
} work_t;

/* Numbers of one operation. */
typedef struct draw {
    uint64_t state;
} draw_t;

draw_t draw_begin(uint64_t seed, uint64_t number);
/* 0 to below - 1 */
uint32_t draw(draw_t *self, uint32_t below);

/* ---- single calls ---- */

typedef struct call {
    weft_collective_t kind;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root, rank, size, slot, salt; /* salt: of what it contributes */
    uint64_t count;                        /* of each block */
} call_t;

/* Any but send_recv; rank and size stay 0 if group is NULL. */
call_t work_pick_call(draw_t *d, const weft_group_t *group, uint32_t slot);
/* What the slot's buffers hold before the call. */
void work_fill(work_t *work, const call_t *call);
weft_status_t work_issue(work_t *work, const call_t *call, weft_group_t *group,
                         weft_stream_t *stream);
/* Compares what was received; the first fault goes to work->wrong. */
void work_check(work_t *work, const call_t *call);
weft_status_t work_open_session(work_t *work, weft_session_t **out_session);

/* ---- the program ---- */

/* Slots, streams and the group of the world; collective. */
weft_status_t work_begin(work_t *work);
/* Operation number of the program. Returns its status, and its name. */
weft_status_t work_run(work_t *work, uint64_t number, const char **name);
/* Operations by index, in no certain order; NULL: there are no more. */
const char *work_operation_name(uint32_t index);
weft_status_t work_run_operation(work_t *work, uint32_t index, draw_t *d);
/* Destroys, or leaves, what there is, then the context. */
void work_end(work_t *work, bool leaves);

#endif

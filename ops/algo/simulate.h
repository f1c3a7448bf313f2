/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the schedules of all ranks side by side on symbols, several runs in a row, and proves
  *   - every block a rank receives is what the operator defines, with exactly the group's reduction
 *     tree;
 *   - nobody waits for ever;
  *   - no rank reads or writes what another may be writing, nor writes what another may be reading:
 *     in this run and into the next, where the user overwrites buffers as soon as the rank is done;
 *   - every access lies inside its buffer, and lengths agree;
 *   - nothing unrounded reaches a user's buffer, nothing rounded is reduced again;
 *   - no PUT goes to an output of a reduction that may be repeated.
 *
 * Lengths are symbols, so a proof holds for all counts. Waits are for counters that only grow, so
 * what happens does not depend on the order in which ranks run: one interleaving, with vector
 * clocks to say which accesses are ordered in all of them, is enough.
 */
#ifndef WEFT_OPS_ALGO_SIMULATE_H
#define WEFT_OPS_ALGO_SIMULATE_H

#include "ops/algo/expression.h"
#include "ops/algo/schedule.h"

#define WEFTI_NOBODY UINT32_MAX

/* A block of a buffer: its contents, and who touched it last, for the race check. */
typedef struct wefti_cell {
    uint32_t value;               /* expression */
    uint32_t length;              /* symbol of what was written; scratch and staging only */
    uint32_t writer, write_clock; /* thread */
    uint32_t channel, put_signal; /* written by a PUT: landed with that signal of the channel */
    uint32_t reader, read_clock;  /* the only reader since, or */
    uint32_t readers;             /* head of a list of them; 0: none */
    uint8_t put_target, repeatable_output;
} wefti_cell_t;

typedef struct wefti_reader {
    uint32_t thread, clock, next;
} wefti_reader_t;

/* What a thread knew when it posted or signalled. */
typedef struct wefti_snapshot {
    uint32_t references; /* waits still to come */
    uint32_t clock[];    /* [thread] */
} wefti_snapshot_t;

typedef struct wefti_release {
    uint64_t value; /* counter after it: over all runs */
    uint32_t clock; /* of the thread, before it went on */
    uint32_t step;  /* what it was doing */
    wefti_snapshot_t *snapshot;
} wefti_release_t;

typedef struct wefti_release_log {
    wefti_release_t *entries;
    size_t count, capacity;
} wefti_release_log_t;

/* When a rank first learned that the signals up to value of a channel had come. */
typedef struct wefti_landing {
    uint64_t value;
    uint32_t thread, clock;
} wefti_landing_t;

/* Signals from one thread to one rank. */
typedef struct wefti_channel {
    wefti_release_log_t sent;
    wefti_landing_t *landed;
    size_t landed_count, landed_capacity;
    uint32_t per_run;
    uint32_t *wait_counts; /* [index]: how many waits in a run are for it */
    uint32_t waiter;       /* who waits for the next signal, + 1 */
} wefti_channel_t;

/* One lane of one rank: number rank * lanes + lane. */
typedef struct wefti_sim_thread {
    uint32_t rank, lane;
    uint32_t at, end; /* steps */
    uint32_t run;
    uint32_t waited;      /* ranks of the current WAIT that have been seen */
    uint32_t next_waiter; /* list of those blocked on the same counter, + 1 */
    uint32_t waiter;      /* head of those blocked on this thread's counter, + 1 */
    bool queued;
    uint64_t phase; /* own counter, over all runs */
    wefti_release_log_t posts;
    uint32_t *wait_counts; /* [phase]: how many waits in a run are for it */
} wefti_sim_thread_t;

typedef struct wefti_sim_rank {
    uint32_t lanes_left;
    uint32_t begin_clock[4]; /* [run]: of lane 0, for barriers */
    struct {
        uint32_t base, first, count;
    } buffer[WEFTI_BUFFER_COUNT];
} wefti_sim_rank_t;

typedef struct wefti_sim wefti_sim_t;
/* Called before each step that may run now. */
typedef weft_status_t (*wefti_sim_visit_fn)(void *user, wefti_sim_t *sim, uint32_t thread,
                                            const wefti_step_t *step);

struct wefti_sim {
    const weft_algo_params_t *params;
    const wefti_schedule_t *schedules; /* [ranks] */
    const weft_allocator_t *allocator;
    weft_algo_resources_t resources;
    uint32_t ranks, lanes, threads, runs, blocks;
    bool symbols;               /* memory is simulated, else only who waits for whom */
    const wefti_links_t *links; /* NULL: everything is reached */
    wefti_sim_visit_fn visit;
    void *user;

    wefti_exprs_t exprs;
    wefti_cell_t *cells;
    size_t cell_count;
    wefti_reader_t *readers;
    size_t reader_count, reader_capacity;
    uint32_t free_reader;
    wefti_sim_rank_t *rank;
    wefti_sim_thread_t *thread;
    uint32_t *clocks;          /* [thread][thread] */
    wefti_channel_t *channels; /* [thread][rank]; NULL when nothing signals */
    uint32_t *queue;
    size_t queue_head, queue_count;
    uint32_t *expected; /* [run][block]; under order=any what was found good */
    uint32_t *values;   /* sources of a reduction */
    size_t value_capacity;

    bool no_memory; /* found in a wait */
    uint64_t step_total, access_total;
};

typedef struct wefti_verify_stats {
    uint64_t steps, accesses;
} wefti_verify_stats_t;

/*
 * Proves the schedules of all ranks, or says which rank, lane and step is wrong and why. links, if
 * not NULL: what they must not ask of a link.
 */
weft_status_t wefti_schedules_verify(const weft_algo_params_t *params,
                                     const wefti_schedule_t *schedules, const wefti_links_t *links,
                                     const weft_allocator_t *allocator,
                                     wefti_verify_stats_t *out_stats);

/* The simulator itself, for passes that need to know who knows what. */
weft_status_t wefti_sim_init(wefti_sim_t *sim, const weft_algo_params_t *params,
                             const wefti_schedule_t *schedules, const weft_allocator_t *allocator,
                             bool symbols);
void wefti_sim_deinit(wefti_sim_t *sim);
weft_status_t wefti_sim_run(wefti_sim_t *sim);

/* simulate_memory.c */
weft_status_t wefti_sim_init_memory(wefti_sim_t *sim);
void wefti_sim_deinit_memory(wefti_sim_t *sim);
weft_status_t wefti_sim_move(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step);
/* The cell of a user's block: in place, a send block may share its memory with a receive block. */
wefti_cell_t *wefti_sim_user_cell(wefti_sim_t *sim, uint32_t rank, uint32_t buffer, uint32_t index);
/* An access to block index of the buffer that at names, on rank: a race is an error. */
weft_status_t wefti_sim_touch_read(wefti_sim_t *sim, uint32_t thread, wefti_cell_t *cell,
                                   const wefti_operand_t *at, uint32_t rank, uint64_t index);
weft_status_t wefti_sim_touch_write(wefti_sim_t *sim, uint32_t thread, wefti_cell_t *cell,
                                    const wefti_operand_t *at, uint32_t rank, uint64_t index);
/* simulate_user.c: buffers are filled for the next run, and later what came is looked at. */
weft_status_t wefti_sim_fill(wefti_sim_t *sim, uint32_t rank, uint32_t run);
weft_status_t wefti_sim_check(wefti_sim_t *sim, uint32_t rank, uint32_t run);
/* simulate_sync.c */
weft_status_t wefti_sim_post(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step);
weft_status_t wefti_sim_signal(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step);
/* False when it has to wait on: it is then queued where it will be woken. */
bool wefti_sim_wait(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step);
bool wefti_sim_await(wefti_sim_t *sim, uint32_t thread, const wefti_step_t *step);
weft_status_t wefti_sim_init_sync(wefti_sim_t *sim);
void wefti_sim_deinit_sync(wefti_sim_t *sim);
void wefti_sim_wake(wefti_sim_t *sim, uint32_t *waiters);
/* Whether thread knows of everything that other did up to clock. */
static inline bool wefti_sim_knows(const wefti_sim_t *sim, uint32_t thread, uint32_t other,
                                   uint32_t clock)
{
    return other == WEFTI_NOBODY || sim->clocks[(size_t)thread * sim->threads + other] >= clock;
}
/* Makes thread know all that is in clock[]. */
void wefti_sim_join(wefti_sim_t *sim, uint32_t thread, const uint32_t *clock);

/* Adds who and where to the message: "rank 2, lane 0, step 5 (copy ...): ". */
weft_status_t wefti_sim_error(const wefti_sim_t *sim, uint32_t thread, const char *format, ...)
    WEFT_PRINTF(3, 4);

#endif

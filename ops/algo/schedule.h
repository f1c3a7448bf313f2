/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of one rank: flat arrays of steps and operands, ids and counts only. Authors emit
 * COPY, REDUCE, POST and WAIT over places on any rank (include/weft/algo.h); lowering turns what a
 * link cannot do into PUT, SIGNAL and AWAIT; the interpreter walks the steps of each lane.
 */
#ifndef WEFT_OPS_ALGO_SCHEDULE_H
#define WEFT_OPS_ALGO_SCHEDULE_H

#include "ops/collective.h"
#include "runtime/base/memory.h"

#define WEFTI_MAX_GROUP 65536u
#define WEFTI_MAX_LANES 16u
#define WEFTI_MAX_PHASES (1u << 22)
#define WEFTI_MAX_BLOCKS (1u << 22)
#define WEFTI_MAX_MOVES ((uint64_t)1 << 23) /* of one rank: authors whose loops do not end */
#define WEFTI_SHARD_BYTES                                                                          \
    64u /* shards start on cache lines, so ranks never write the same line                         \
         */

typedef enum wefti_place_buffer {
    WEFTI_SEND = WEFT_ALGO_BUFFER_SEND,
    WEFTI_RECV = WEFT_ALGO_BUFFER_RECV,
    WEFTI_SCRATCH = WEFT_ALGO_BUFFER_SCRATCH,
    WEFTI_STAGE = 3,      /* slots that lowering adds, for elements as users see them */
    WEFTI_STAGE_WIDE = 4, /* and for those of scratch */
    WEFTI_BUFFER_COUNT = 5,
} wefti_place_buffer_t;

typedef enum wefti_step_op {
    WEFTI_DO_POST = 1,   /* own counter of the lane reaches phase */
    WEFTI_DO_WAIT = 2,   /* the counters of rank_count ranks from first_rank have reached phase */
    WEFTI_DO_COPY = 3,   /* one source, one destination */
    WEFTI_DO_REDUCE = 4, /* sources in the in-order tree over their list, to all destinations */
    WEFTI_DO_PUT = 5,    /* a copy whose destination is reached by a write over a link */
    WEFTI_DO_SIGNAL =
        6, /* number index of this lane to peer; what was put there before has landed */
    WEFTI_DO_AWAIT = 7, /* signal number index of peer's lane has come */
} wefti_step_op_t;

#define WEFTI_STEP_FINISH (1u << 0)     /* REDUCE: round and divide, to the users' type */
#define WEFTI_STEP_REPEATABLE (1u << 1) /* REDUCE: may run again with the same result */
/* Of a runtime that lends what it puts instead of having it copied: runtime/interpreter/lend.c. */
#define WEFTI_STEP_LEND (1u << 2)       /* PUT: nobody writes its source too early */
#define WEFTI_STEP_AFTER_LENT (1u << 3) /* COPY, REDUCE: writes what may be lent */

/* Why a signal is sent: names for traces; the mechanism is one. */
typedef enum wefti_signal_kind {
    WEFTI_SIGNAL_READY = 0,    /* what is known elsewhere as Ack: the buffer may be written */
    WEFTI_SIGNAL_DATA = 1,     /* DataSignal: what was put has landed */
    WEFTI_SIGNAL_CONSUMED = 2, /* DataAck: the staging slot may be used again */
} wefti_signal_kind_t;

typedef struct wefti_operand {
    uint32_t rank, rank_count;
    uint32_t block, step;
    uint32_t buffer; /* wefti_place_buffer_t */
} wefti_operand_t;

typedef struct wefti_step {
    uint8_t op;    /* wefti_step_op_t */
    uint8_t flags; /* WEFTI_STEP_*; SIGNAL and AWAIT: wefti_signal_kind_t */
    uint16_t lane; /* who runs it */
    union {
        struct {
            uint32_t phase;
        } post;
        struct {
            uint32_t first_rank, rank_count, phase;
            uint16_t lane, back;
        } wait;
        struct {
            uint32_t operand;            /* first of source_count + destination_count */
            uint32_t first, step, count; /* the operator's blocks: their lengths */
            uint16_t source_count, destination_count;
        } move; /* COPY, REDUCE, PUT */
        struct {
            uint32_t peer, index;
            uint16_t lane, back; /* AWAIT: of the peer */
        } signal;
    };
} wefti_step_t;

typedef struct wefti_schedule {
    const weft_allocator_t *allocator;
    const weft_algorithm_t *algorithm; /* that built it, or NULL */
    uint32_t rank;
    weft_algo_resources_t resources; /* equal on all ranks */
    uint32_t stage_slots, stage_wide_slots, stage_sets;
    uint32_t lane_begin[WEFTI_MAX_LANES + 1]; /* steps are sorted by lane */
    wefti_step_t *steps;
    size_t step_count, step_capacity;
    wefti_operand_t *operands;
    size_t operand_count, operand_capacity;
    /* Signals this rank's lane sends to a peer in one run: [lane * group_size + peer], or NULL. */
    uint32_t *signal_counts;
} wefti_schedule_t;

/* What builders carry. */
struct weft_schedule_builder {
    wefti_schedule_t *schedule;
    const weft_algo_params_t *params;
    weft_status_t status;
    uint64_t moves; /* steps and the blocks they move, so far */
};

/* What ranks can do with each other's memory. */
typedef struct wefti_links {
    /* Number of the memory that a rank's is in: ranks of another one cannot load and store it, but
     * put into it and signal: [rank]; NULL: all are in one. */
    const uint32_t *memory_of;
    /* Whether peers cannot reach the user's buffers on a rank: [rank]; NULL: they can on all. */
    const uint8_t *hidden;
} wefti_links_t;

static inline bool wefti_links_put(const wefti_links_t *links, uint32_t a, uint32_t b)
{
    return links->memory_of != NULL && links->memory_of[a] != links->memory_of[b];
}

/* Everything but eligibility; must be good before an algorithm sees it. */
weft_status_t wefti_algo_params_check(const weft_algo_params_t *params);
/* Arguments, eligibility and resources in one: WEFT_ERR_UNSUPPORTED with the algorithm's reason. */
weft_status_t wefti_schedule_build(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params,
                                   const weft_allocator_t *allocator, wefti_schedule_t *out);
/* The same for many ranks of a group: numbers of params, which may be empty. */
typedef struct wefti_rank_numbers {
    bool checked;      /* params are valid but for the rank: a check takes a loop over all ranks */
    uint32_t *rank_at; /* [number], or NULL: numbers are ranks */
    uint32_t *number_of; /* [rank] */
    uint32_t *host_of;   /* [number] as params have it by rank */
    uint32_t *rack_of;   /* [number] likewise; NULL: no racks */
} wefti_rank_numbers_t;
weft_status_t wefti_schedule_build_numbered(const weft_algorithm_t *algorithm,
                                            const weft_algo_params_t *params,
                                            const wefti_rank_numbers_t *numbers,
                                            const weft_allocator_t *allocator,
                                            wefti_schedule_t *out);
/* An error if schedules of two ranks have different resources. */
weft_status_t wefti_schedule_same_resources(const weft_algorithm_t *algorithm,
                                            const wefti_schedule_t *a, const wefti_schedule_t *b);
void wefti_schedule_deinit(wefti_schedule_t *schedule);
/* Puts the steps of each lane together, keeping their order. */
weft_status_t wefti_schedule_sort(wefti_schedule_t *schedule);

/* renumber.c: ranks by placement (algo.h); empty if hosts and racks are runs of ranks. */
weft_status_t wefti_rank_numbers_init(wefti_rank_numbers_t *numbers,
                                      const weft_algo_params_t *params);
void wefti_rank_numbers_deinit(wefti_rank_numbers_t *numbers);
/* Turns a schedule over numbers into one over ranks. */
weft_status_t wefti_schedule_renumber(wefti_schedule_t *schedule, const weft_algo_params_t *params,
                                      const wefti_rank_numbers_t *numbers);

/* For lowering: appends as it is; lanes must come in order. */
wefti_step_t *wefti_schedule_add(wefti_schedule_t *schedule, const wefti_step_t *step);
weft_status_t wefti_schedule_add_operands(wefti_schedule_t *schedule,
                                          const wefti_operand_t *operands, size_t count,
                                          uint32_t *out_first);

/* One line about a step: "reduce send[3] of ranks 0..7 -> recv[3] of ranks 0..7". Returns buffer.
 */
const char *wefti_step_text(const wefti_schedule_t *schedule, const wefti_step_t *step,
                            char *buffer, size_t bytes);
/* Records what is wrong with a step: "rank 2, lane 0, step 5 (copy ...), run 0: what". */
weft_status_t wefti_step_error(const wefti_schedule_t *schedule, uint32_t lane, uint32_t at,
                               uint32_t run, const char *what);

#endif

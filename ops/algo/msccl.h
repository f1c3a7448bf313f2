/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithms of MSCCL: an XML file becomes an algorithm that builds schedules, one lane for each
 * thread block.
 *
 *   msccl_read.c     text -> gpus, thread blocks, steps; sends matched with receives, steps in order
 *   msccl_convert.c  steps -> copies, reductions, posts and waits of all ranks
 *   msccl.c          the algorithm: proved, then built from what was converted
 */
#ifndef WEFT_OPS_ALGO_MSCCL_H
#define WEFT_OPS_ALGO_MSCCL_H

#include "ops/algo/schedule.h"

typedef struct wefti_msccl wefti_msccl_t;

/* Reads, converts and proves a file; path is for messages. */
weft_status_t wefti_msccl_parse(const char *path, const char *text, size_t size_bytes,
                                const weft_allocator_t *allocator, wefti_msccl_t **out_msccl);
/* Whether what stands for the name of an algorithm is the path of a file. */
bool wefti_msccl_is_path(const char *name);
/* Files with equal digests have the same text. */
uint64_t wefti_msccl_digest(const char *text, size_t size_bytes);
void wefti_msccl_destroy(wefti_msccl_t *msccl); /* accepts NULL */
const weft_algorithm_t *wefti_msccl_algorithm(const wefti_msccl_t *msccl);

/* ---- what the three files share ---- */

#define WEFTI_MSCCL_NONE UINT32_MAX

typedef enum wefti_msccl_type {
    WEFTI_MSCCL_NOP,
    WEFTI_MSCCL_SEND,
    WEFTI_MSCCL_RECV,
    WEFTI_MSCCL_COPY,
    WEFTI_MSCCL_REDUCE,
    WEFTI_MSCCL_RECV_COPY_SEND,
    WEFTI_MSCCL_RECV_REDUCE_COPY,
    WEFTI_MSCCL_RECV_REDUCE_SEND,
    WEFTI_MSCCL_RECV_REDUCE_COPY_SEND,
    WEFTI_MSCCL_TYPES
} wefti_msccl_type_t;

/* What a step of a type does with its operands. */
typedef struct wefti_msccl_type_info {
    const char *name; /* in files */
    bool receives, sends, reads_source, writes_target;
} wefti_msccl_type_info_t;

extern const wefti_msccl_type_info_t wefti_msccl_types[WEFTI_MSCCL_TYPES];

/* Chunks offset, offset + 1, ... of a buffer: 'i', 'o' or 's'. */
typedef struct wefti_msccl_chunks {
    char buffer;
    uint32_t offset;
} wefti_msccl_chunks_t;

typedef struct wefti_msccl_step {
    wefti_msccl_type_t type;
    wefti_msccl_chunks_t source, target;
    uint32_t count;
    uint32_t line;
    int32_t needs_block, needs_step; /* depid, deps; -1: none */
    uint32_t block;                  /* index of its thread block */
    uint32_t needs;                  /* index of the step that this one waits for, or NONE */
    uint32_t peer;    /* of a receive: index of the send; of a send: of the receive */
    uint32_t forward; /* of rrs and the like: index of the receive at the next hop */
    bool needed;      /* another step waits for it */
    uint32_t joined;  /* re: index of the step before that adds to the same chunks, or NONE */
    bool joins_next;  /* re: the next step of the block adds to the same chunks */
} wefti_msccl_step_t;

typedef struct wefti_msccl_block {
    uint32_t gpu, id, line;
    int32_t send, recv; /* gpus, or -1 */
    uint32_t channel;
    uint32_t first, count; /* steps */
} wefti_msccl_block_t;

typedef struct wefti_msccl_gpu {
    uint32_t line;                     /* 0: not seen */
    uint32_t inputs, outputs, scratch; /* chunks */
    uint32_t first, count;             /* thread blocks */
    uint32_t first_chunk;              /* of all gpus' chunks: inputs, outputs, scratch */
} wefti_msccl_gpu_t;

/* One action of a rank: a move of blocks, a post or a wait. */
typedef struct wefti_msccl_action {
    uint8_t op; /* wefti_step_op_t: POST, WAIT, COPY, REDUCE */
    uint8_t finish;
    uint16_t lane;
    uint32_t rank, phase;     /* WAIT, POST */
    uint16_t their_lane;      /* WAIT */
    weft_place_t target;      /* COPY, REDUCE */
    uint32_t source, sources; /* in places */
    weft_blocks_t blocks;
} wefti_msccl_action_t;

/* What a rank does, in an order in which no action waits for a later one. */
typedef struct wefti_msccl_list {
    wefti_msccl_action_t *actions;
    size_t count, capacity;
} wefti_msccl_list_t;

typedef struct wefti_msccl_program {
    wefti_msccl_list_t *ranks; /* [gpu_count] */
    weft_place_t *places;
    size_t place_count, place_capacity;
    uint32_t phases, slots;
} wefti_msccl_program_t;

/* How a program handles what the file leaves to MSCCL's connections and callers. */
typedef struct wefti_msccl_way {
    bool in_place; /* of the call */
    bool
        buffered; /* a sender keeps a copy of what it overwrites later, for the receiver to fetch */
    bool staged;  /* inputs are copied to scratch first: in place, results overwrite them */
} wefti_msccl_way_t;

struct wefti_msccl {
    weft_algorithm_t algorithm; /* first: callbacks find the rest by it */
    const weft_allocator_t *allocator;
    char *path, *name;
    uint64_t digest;                     /* of the text */
    char other_size[48], other_root[48]; /* why it is not eligible */
    uint32_t gpu_count, chunks;          /* nchunksperloop */
    bool in_place;                       /* of the file: outputs are inputs */
    uint32_t root;                       /* of broadcast and reduce */
    bool tree;                           /* sums follow the in-order tree */
    uint32_t lanes, parts;
    wefti_msccl_gpu_t *gpus;
    wefti_msccl_block_t *blocks;
    size_t block_count, block_capacity;
    wefti_msccl_step_t *steps;
    size_t step_count, step_capacity;
    uint32_t *order;                   /* [step_count] */
    uint32_t chunk_count;              /* of all gpus' buffers */
    wefti_msccl_program_t programs[2]; /* out of place, in place */
};

/* The other way round, of an algorithm that was read from a file. */
static inline const wefti_msccl_t *wefti_msccl_of(const weft_algorithm_t *algorithm)
{
    return (const wefti_msccl_t *)(const void *)algorithm;
}

weft_status_t wefti_msccl_read(wefti_msccl_t *msccl, const char *text, size_t size_bytes);
weft_status_t wefti_msccl_convert(wefti_msccl_t *msccl, const wefti_msccl_way_t *way,
                                  wefti_msccl_program_t *out_program);
void wefti_msccl_program_deinit(const wefti_msccl_t *msccl, wefti_msccl_program_t *program);
/* WEFT_ERR_FORMAT: "FILE:LINE: gpu 0, tb 1, step 2: " before the message. */
weft_status_t wefti_msccl_error(const wefti_msccl_t *msccl, uint32_t step, const char *format, ...)
    WEFT_PRINTF(3, 4);

#endif

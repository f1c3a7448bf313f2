/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mesh all-gather with one main lane and a side lane per peer.
 *
 * Every rank has a block, and every rank gets all blocks. With four ranks each has three links, one
 * to each peer, and all of them should be busy at once. So a rank has four lanes, sequences of
 * steps that run side by side:
 *
 *   lane 0      the main lane. It opens the run, moves the rank's own block, which needs no link,
 *               and closes the run when all side lanes are through.
  *   lane i > 0  the side lane of the link to peer (rank + i) % n. Its partner there is the lane
 *               that looks back: lane n - i of that peer, for (rank + i + n - i) % n is rank again.
 *
 * Accelerator programmers know this as a main stream and slave streams, which record and wait for
 * notifies. Here a record is a post, which raises the lane's own counter to a phase, and a wait
 * names whose lane must have reached which phase. A post publishes everything its lane did before
 * it.
 *
 *            rank r                                      peer p = (r + i) % n
 *   main     side i                                      side n - i              main
 *   post 1 ----> wait main 1                             wait main 1 <---- post 1     "go"
 *   own block    post 1 ------------.  .------------ post 1                own block
 *     |          wait partner 1 <----\/----> wait partner 1             "my block may be read"
 *     |                              /\                                   |
 *     |          copy block p from p    copy block r from r               |
 *     |          post 2 -------------.  .----------- post 2               |
 *     |          wait partner 2 <----\/----> wait partner 2             "I have read your block"
 *   wait i 3 <-- post 3                             post 3 ----> wait 3            "joined"
 *
 * The function below says this for one rank, in order. It never sees memory, counts or links: where
 * ranks cannot read each other's memory, Weft turns every copy from a peer into a put by that peer
 * with the signals it takes. What another link would call Ack and DataSignal are the phases 1
 * and 2.
 */
#include "algorithm.h"

#include <stddef.h>

#define MAIN 0u

enum {
    GO = 1,    /* main lane: the run has begun */
    READY = 1, /* side lane: the partner may read this rank's block */
    READ = 2,  /* side lane: this rank has read the partner's block */
    JOINED = 3 /* side lane: the partner has read this rank's block, too */
};

/* One lane per rank: the main lane and n - 1 side lanes. Sixteen lanes are the most there can be.
 */
static const char *eligible(const weft_algo_params_t *params)
{
    if (params->group_size < 2) {
        return "a mesh needs two ranks";
    }
    return params->group_size > 16 ? "more peers than side lanes" : NULL;
}

/* What all ranks need alike; params->rank must not be looked at. */
static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->lanes = params->group_size;
    out->phases = JOINED;
}

static void build_main(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t rank = params->rank;
    weft_blocks_t own = {rank, 0, 1}; /* the operator's block number rank, once */
    weft_place_t from = {rank, 1, WEFT_ALGO_BUFFER_SEND, rank, 0};
    weft_place_t to = {rank, 1, WEFT_ALGO_BUFFER_RECV, rank, 0};

    /* Like recording one notify for each side stream, but a post is seen by whoever waits for it.
     */
    weft_schedule_post(b, MAIN, GO);
    /* In place, the own block is where it belongs already. */
    if (!params->in_place) {
        weft_schedule_copy(b, MAIN, to, from, own);
    }
    /* Like waiting for the notify that each side stream records at its end. */
    for (uint32_t side = 1; side < params->group_size; side++) {
        weft_schedule_wait(b, MAIN, rank, 1, side, JOINED, 0);
    }
}

static void build_side(const weft_algo_params_t *params, weft_schedule_builder_t *b, uint32_t side)
{
    uint32_t rank = params->rank;
    uint32_t peer = (rank + side) % params->group_size;
    uint32_t partner = params->group_size - side; /* the peer's lane that looks back here */
    weft_blocks_t block = {peer, 0, 1};
    weft_place_t from = {peer, 1, WEFT_ALGO_BUFFER_SEND, peer, 0};
    weft_place_t to = {rank, 1, WEFT_ALGO_BUFFER_RECV, peer, 0};

    /* Not before the main lane says so. */
    weft_schedule_wait(b, side, rank, 1, MAIN, GO, 0);
    /* Shake hands: this rank's block may be read, and so may the peer's. */
    weft_schedule_post(b, side, READY);
    weft_schedule_wait(b, side, peer, 1, partner, READY, 0);
    weft_schedule_copy(b, side, to, from, block);
    /* A run must end only when nobody is at this rank's buffers any more. */
    weft_schedule_post(b, side, READ);
    weft_schedule_wait(b, side, peer, 1, partner, READ, 0);
    weft_schedule_post(b, side, JOINED);
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    build_main(params, b);
    for (uint32_t side = 1; side < params->group_size; side++) {
        build_side(params, b, side);
    }
}

const weft_algorithm_t side_lanes_algorithm = {
    .abi_version = WEFT_ALGO_ABI_VERSION,
    .op = WEFT_COLLECTIVE_ALL_GATHER,
    .name = "side-lanes",
    .doc = "every link of the mesh on a lane of its own",
    .eligible = eligible,
    .resources = resources,
    .build = build,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-reduce and reduce. On each host, block b belongs to one member.
 *
 *   1  ready        | the owner reduces its host's ranks
 *   2  host's sums  | who finishes the block reads all hosts' sums and joins them
 *   3  result       | rails: the owners on the other hosts copy it
 *   4  it is here   | the host's ranks copy from its owners
 *   5  copied
 *
 * Who finishes: the owner on every host (all-reduce), or on the root's (reduce), so that what
 * crosses hosts does so in one step; or, by rails, the owner on one host, another one for each
 * block: what crosses is 2 (hosts - 1) / hosts of the vector, the least there is for more than two
 * hosts. By rails the blocks are spread over lanes, so that one lane's ranks reduce while another
 * lane's sums are under way.
 */
#include "ops/algo/hierarchical.h"

#define RAIL_LANES 4u
#define PHASES 5u

typedef struct shape {
    wefti_hier_t h;
    bool single;                      /* one step between hosts */
    uint32_t lanes, per_lane, blocks; /* blocks: lanes * per_lane */
    uint32_t sum_slots;               /* of scratch; behind them, each lane's temporary ones */
} shape_t;

/* Whether one step moves no more bytes than two. */
static bool single_is_best(const wefti_hier_t *h)
{
    return h->most_sums * h->place.hosts <= h->most_sums + 1;
}

static bool shape_init(shape_t *s, const weft_algo_params_t *params, weft_schedule_builder_t *b,
                       bool rails)
{
    if (!wefti_hier_init(&s->h, params, b)) {
        return false;
    }
    const wefti_placement_t *place = &s->h.place;
    s->single = !rails || single_is_best(&s->h);
    s->lanes = !rails                                              ? 1
               : params->pieces > 0 && params->pieces < RAIL_LANES ? params->pieces
                                                                   : RAIL_LANES;
    s->per_lane = s->single ? place->largest : place->largest * place->hosts;
    s->blocks = s->lanes * s->per_lane;
    s->sum_slots = (s->blocks + place->smallest - 1) / place->smallest * s->h.most_sums;
    /* In one step owners would write, in place, what the owners of other hosts are reading. */
    s->h.direct = !s->single && wefti_hier_sums_nothing(&s->h);
    return true;
}

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out, bool rails)
{
    shape_t s;
    if (!shape_init(&s, params, NULL, rails)) {
        return; /* building says so */
    }
    out->lanes = s.lanes;
    out->phases = PHASES;
    out->blocks = s.blocks;
    out->scratch_slots = s.sum_slots + s.lanes * wefti_hier_temporaries(&s.h);
    /* With two sets nobody waits until the other hosts have read the sums: whose sums come in the
     * run between has done so. */
    out->scratch_sets = s.single && params->op == WEFT_COLLECTIVE_ALL_REDUCE ? 2 : 1;
    wefti_hier_deinit(&s.h);
}

void wefti_hier_reduce_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    resources(params, out, false);
}

void wefti_hier_rails_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    resources(params, out, true);
}

static uint32_t slot_of(const shape_t *s, uint32_t host, uint32_t block)
{
    return block / wefti_host_size(&s->h.place, host) * s->h.most_sums;
}

static weft_place_t sum_place(void *user, uint32_t host, uint32_t block,
                              const wefti_subtree_t *subtree, uint32_t number)
{
    const shape_t *s = user;
    (void)subtree;
    return wefti_at(wefti_owner(&s->h.place, host, block), WEFT_ALGO_BUFFER_SCRATCH,
                    slot_of(s, host, block) + number);
}

static bool is_reduce(const shape_t *s)
{
    return s->h.params->op == WEFT_COLLECTIVE_REDUCE;
}

/* The host whose owner finishes a block; of an all-reduce in one step every host's does. */
static uint32_t finishing_host(const shape_t *s, uint32_t block)
{
    if (s->single) {
        return is_reduce(s) ? s->h.place.host[s->h.params->root] : s->h.place.own;
    }
    return block % s->per_lane / s->h.place.largest;
}

static bool is_own(const shape_t *s, uint32_t block)
{
    return wefti_owner(&s->h.place, s->h.place.own, block) == s->h.params->rank;
}

/* The block's owners on all other hosts have reached phase. */
static void wait_owners(shape_t *s, uint32_t block, uint32_t phase)
{
    const wefti_placement_t *place = &s->h.place;
    for (uint32_t i = 1; i < place->hosts; i++) {
        uint32_t host = wefti_next(place->own, i, place->hosts);
        wefti_hier_wait(&s->h, wefti_owner(place, host, block), phase);
    }
}

/* What is joined is there: sums, or the ranks' own blocks. */
static void wait_sums(shape_t *s, uint32_t block)
{
    const wefti_placement_t *place = &s->h.place;
    if (!s->h.direct) {
        wait_owners(s, block, 2);
        return;
    }
    for (uint32_t i = 1; i < place->ranks; i++) {
        uint32_t rank = wefti_next(s->h.params->rank, i, place->ranks);
        if (place->host[rank] != place->own) {
            wefti_hier_wait(&s->h, rank, 1);
        }
    }
}

static void finish_blocks(shape_t *s, uint32_t first, uint32_t end)
{
    for (uint32_t block = first; block < end; block++) {
        if (is_own(s, block) && finishing_host(s, block) == s->h.place.own) {
            uint32_t to = is_reduce(s) ? s->h.params->root : s->h.params->rank;
            wait_sums(s, block);
            s->h.temporary = s->sum_slots + s->h.lane * wefti_hier_temporaries(&s->h);
            wefti_hier_join(&s->h, block, wefti_at(to, WEFT_ALGO_BUFFER_RECV, block), sum_place, s);
        }
    }
}

/* By rails: results that other hosts' owners finished. */
static void fetch_results(shape_t *s, uint32_t first, uint32_t end)
{
    for (uint32_t block = first; block < end; block++) {
        uint32_t host = finishing_host(s, block);
        if (is_own(s, block) && host != s->h.place.own) {
            uint32_t from = wefti_owner(&s->h.place, host, block);
            wefti_hier_wait(&s->h, from, 3);
            wefti_hier_copy(&s->h, wefti_at(s->h.params->rank, WEFT_ALGO_BUFFER_RECV, block),
                            wefti_at(from, WEFT_ALGO_BUFFER_RECV, block), wefti_one(block));
        }
    }
}

/* What others of the host own: of the lane's blocks [first, end). */
static void copy_in_host(shape_t *s, uint32_t first, uint32_t end, uint32_t phase)
{
    const wefti_placement_t *place = &s->h.place;
    uint32_t size = wefti_hier_size(&s->h), own = wefti_hier_member(&s->h), r = s->h.params->rank;
    for (uint32_t i = 1; i < size; i++) {
        uint32_t member = wefti_next(own, i, size);
        uint32_t from = wefti_member(place, place->own, member);
        uint32_t at = first + wefti_next(member, size - first % size, size);
        wefti_hier_wait(&s->h, from, phase);
        if (at < end) {
            wefti_hier_copy(&s->h, (weft_place_t){r, 1, WEFT_ALGO_BUFFER_RECV, at, size},
                            (weft_place_t){from, 1, WEFT_ALGO_BUFFER_RECV, at, size},
                            (weft_blocks_t){at, size, (end - at - 1) / size + 1});
        }
    }
}

static void reduce_own(shape_t *s, uint32_t first, uint32_t end)
{
    wefti_hier_post(&s->h, 1);
    wefti_hier_wait_host(&s->h, 1);
    for (uint32_t block = first; block < end && !s->h.direct; block++) {
        if (is_own(s, block)) {
            s->h.temporary = s->sum_slots + s->h.lane * wefti_hier_temporaries(&s->h);
            wefti_hier_reduce_own(&s->h, block, slot_of(s, s->h.place.own, block));
        }
    }
    wefti_hier_post(&s->h, 2);
}

static void all_reduce_lane(shape_t *s, uint32_t first, uint32_t end)
{
    reduce_own(s, first, end);
    finish_blocks(s, first, end);
    wefti_hier_post(&s->h, 3);
    if (!s->single) {
        fetch_results(s, first, end);
        wefti_hier_post(&s->h, 4);
    }
    copy_in_host(s, first, end, s->single ? 3 : 4);
    wefti_hier_post(&s->h, 5);
    wefti_hier_wait_host(&s->h, 5);
    for (uint32_t block = first; block < end && !s->single; block++) {
        if (is_own(s, block) && finishing_host(s, block) == s->h.place.own) {
            wait_owners(s, block, 4);
        }
    }
}

/* Results go to the root, wherever they are finished. */
static void reduce_lane(shape_t *s, uint32_t first, uint32_t end)
{
    bool root = s->h.params->rank == s->h.params->root;
    reduce_own(s, first, end);
    finish_blocks(s, first, end);
    wefti_hier_post(&s->h, 3);
    wefti_hier_wait_host(&s->h, 2); /* the owners have read this rank's blocks */
    for (uint32_t block = first; block < end; block++) {
        /* They are read no more: own sums, own blocks; or they are all there. */
        if (root || is_own(s, block) || s->h.direct) {
            wefti_hier_wait(&s->h, wefti_owner(&s->h.place, finishing_host(s, block), block), 3);
        }
    }
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b, bool rails)
{
    shape_t s;
    if (!shape_init(&s, params, b, rails)) {
        return;
    }
    for (s.h.lane = 0; s.h.lane < s.lanes; s.h.lane++) {
        uint32_t first = s.h.lane * s.per_lane;
        if (is_reduce(&s)) {
            reduce_lane(&s, first, first + s.per_lane);
        } else {
            all_reduce_lane(&s, first, first + s.per_lane);
        }
    }
    wefti_hier_deinit(&s.h);
}

void wefti_hier_reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    build(params, b, false);
}

void wefti_hier_reduce_rails(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    build(params, b, true);
}

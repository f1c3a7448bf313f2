/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather and broadcast: what is on one host gets to every other one once, and is copied there.
 *
 *   all-gather          each block is fetched by its collector on every other host; others of the
 *                       host copy it while the collector fetches the next one
 *   broadcast           one rank per host reads from the root
 *   broadcast by rails  from host to host in a row, cut into pieces that follow each other, each
 *                       carried by another member: every link carries the vector once
 */
#include "ops/algo/hierarchical.h"

/* ---- all-gather ---- */

#define FIRST 2u /* phase of the first turn */

void wefti_hier_all_gather_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    wefti_hier_t h;
    if (wefti_hier_init(&h, params, NULL)) {
        out->phases = FIRST + wefti_hier_turns(&h);
        wefti_hier_deinit(&h);
    }
}

static void copy_block(wefti_hier_t *h, uint32_t block, uint32_t from, weft_algo_buffer_t buffer)
{
    wefti_hier_copy(h, wefti_at(h->params->rank, WEFT_ALGO_BUFFER_RECV, block),
                    wefti_at(from, buffer, block), wefti_one(block));
}

static void copy_of_host(wefti_hier_t *h)
{
    uint32_t size = wefti_hier_size(h), own = wefti_hier_member(h);
    wefti_copy_own(h->params, h->b, wefti_one(h->params->rank));
    for (uint32_t i = 1; i < size; i++) {
        uint32_t from = wefti_member(&h->place, h->place.own, wefti_next(own, i, size));
        wefti_hier_wait(h, from, 1);
        copy_block(h, from, from, WEFT_ALGO_BUFFER_SEND);
    }
}

/* What the others of the host fetched in a turn. */
static void copy_turn(wefti_hier_t *h, uint32_t turn)
{
    uint32_t size = wefti_hier_size(h), own = wefti_hier_member(h), block;
    for (uint32_t i = 1; i < size; i++) {
        uint32_t from = wefti_member(&h->place, h->place.own, wefti_next(own, i, size));
        if (wefti_hier_collected(h, from, turn, &block)) {
            wefti_hier_wait(h, from, FIRST + turn);
            copy_block(h, block, from, WEFT_ALGO_BUFFER_RECV);
        }
    }
}

void wefti_hier_all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    wefti_hier_t h;
    uint32_t block, rank = params->rank;
    if (!wefti_hier_init(&h, params, b)) {
        return;
    }
    uint32_t turns = wefti_hier_turns(&h), done = FIRST + turns;
    wefti_hier_post(&h, 1);
    copy_of_host(&h);
    for (uint32_t turn = 0; turn <= turns; turn++) {
        if (wefti_hier_collected(&h, rank, turn, &block)) {
            wefti_hier_wait(&h, block, 1);
            copy_block(&h, block, block, WEFT_ALGO_BUFFER_SEND);
            wefti_hier_post(&h, FIRST + turn);
        }
        if (turn > 0) {
            copy_turn(&h, turn - 1);
        }
    }
    wefti_hier_post(&h, done);
    wefti_hier_wait_host(&h, done);
    for (uint32_t i = 1; i < h.place.hosts; i++) {
        uint32_t host = wefti_next(h.place.own, i, h.place.hosts);
        wefti_hier_wait(&h, wefti_hier_collector(&h, host, rank),
                        FIRST + wefti_hier_turn(&h, host, rank));
    }
    wefti_hier_deinit(&h);
}

/* ---- broadcast ---- */

void wefti_hier_broadcast_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->phases = 2;
}

/* Who of a host reads from the root, which is that itself on its own. */
static uint32_t leader_of(const wefti_hier_t *h, uint32_t host)
{
    uint32_t root = h->params->root;
    return host == h->place.host[root] ? root : wefti_hier_collector(h, host, root);
}

/* Phase 1: the data is here, 2: the rank has read what it wanted. */
void wefti_hier_broadcast(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    wefti_hier_t h;
    uint32_t rank = params->rank, root = params->root;
    if (!wefti_hier_init(&h, params, b)) {
        return;
    }
    uint32_t leader = leader_of(&h, h.place.own), from = rank == leader ? root : leader;
    if (rank != root) {
        wefti_hier_wait(&h, from, 1);
        copy_block(&h, 0, from, from == root ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV);
    }
    wefti_hier_post(&h, rank == leader ? 1 : 2);
    if (rank == root) {
        wefti_copy_own(params, b, wefti_one(0));
        for (uint32_t i = 1; i < h.place.hosts; i++) {
            wefti_hier_wait(&h, leader_of(&h, wefti_next(h.place.own, i, h.place.hosts)), 1);
        }
    }
    for (uint32_t i = 0; rank == leader && i < wefti_hier_size(&h); i++) {
        wefti_hier_wait(&h, wefti_member(&h.place, h.place.own, i), 2);
    }
    wefti_hier_deinit(&h);
}

/* ---- broadcast by rails ---- */

#define RAIL_LANES 4u

static uint32_t lanes_of(const weft_algo_params_t *params)
{
    return params->pieces > 0 && params->pieces < RAIL_LANES ? params->pieces : RAIL_LANES;
}

void wefti_hier_broadcast_rails_resources(const weft_algo_params_t *params,
                                          weft_algo_resources_t *out)
{
    wefti_hier_t h;
    if (wefti_hier_init(&h, params, NULL)) {
        out->lanes = lanes_of(params);
        out->phases = 3;
        out->blocks = out->lanes * h.place.largest;
        wefti_hier_deinit(&h);
    }
}

/* Blocks of a lane that fall to member i of the own host: as many as there are hosts' members. */
static weft_blocks_t carried(const wefti_hier_t *h, uint32_t member)
{
    uint32_t size = wefti_hier_size(h), count = h->place.largest, first = h->lane * count;
    uint32_t skip = wefti_next(member, size - first % size, size);
    uint32_t blocks = skip < count ? (count - skip - 1) / size + 1 : 0;
    return (weft_blocks_t){first + skip, size, blocks};
}

static void copy_blocks(wefti_hier_t *h, weft_blocks_t blocks, uint32_t from,
                        weft_algo_buffer_t buffer)
{
    weft_place_t to = {h->params->rank, 1, WEFT_ALGO_BUFFER_RECV, blocks.first, blocks.step};
    wefti_hier_copy(h, to, (weft_place_t){from, 1, buffer, blocks.first, blocks.step}, blocks);
}

/* What this rank carries, from the carriers of the host before in the row; on the root's, from the
 * root. */
static void fetch_carried(wefti_hier_t *h, uint32_t before, bool on_first)
{
    weft_blocks_t blocks = carried(h, wefti_hier_member(h));
    uint32_t root = h->params->root;
    if (on_first) {
        if (h->params->rank != root && blocks.count > 0) {
            wefti_hier_wait(h, root, 1);
            copy_blocks(h, blocks, root, WEFT_ALGO_BUFFER_SEND);
        }
        return;
    }
    for (uint32_t i = 0; i < blocks.count; i++) {
        uint32_t block = blocks.first + i * blocks.step;
        uint32_t from = wefti_owner(&h->place, before, block);
        wefti_hier_wait(h, from, from == root ? 1 : 2);
        copy_block(h, block, from, from == root ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV);
    }
}

/* Phase 1: the root's data is here, 2: what the rank carries, 3: the rank is done with others. */
static void broadcast_lane(wefti_hier_t *h)
{
    const wefti_placement_t *place = &h->place;
    uint32_t rank = h->params->rank, root = h->params->root, size = wefti_hier_size(h);
    uint32_t first_host = place->host[root], own = wefti_hier_member(h);
    uint32_t after = wefti_next(place->own, 1, place->hosts);
    bool on_first = place->own == first_host;
    if (rank == root) {
        wefti_hier_post(h, 1);
    }
    fetch_carried(h, wefti_next(place->own, place->hosts - 1, place->hosts), on_first);
    wefti_hier_post(h, 2);
    for (uint32_t i = 1; i < size && rank != root; i++) {
        uint32_t member = wefti_next(own, i, size);
        uint32_t from = wefti_member(place, place->own, member);
        weft_blocks_t blocks = carried(h, member);
        bool from_root = on_first && from == root;
        wefti_hier_wait(h, from, from_root ? 1 : 2);
        if (blocks.count > 0) {
            copy_blocks(h, blocks, from, from_root ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV);
        }
    }
    wefti_hier_post(h, 3);
    wefti_hier_wait_host(h, 3);
    weft_blocks_t mine = carried(h, own);
    for (uint32_t i = 0; i < mine.count && after != first_host; i++) {
        wefti_hier_wait(h, wefti_owner(place, after, mine.first + i * mine.step), 2);
    }
}

void wefti_hier_broadcast_rails(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    wefti_hier_t h;
    if (!wefti_hier_init(&h, params, b)) {
        return;
    }
    if (params->rank == params->root) {
        wefti_copy_own(params, b, (weft_blocks_t){0, 1, lanes_of(params) * h.place.largest});
    }
    for (h.lane = 0; h.lane < lanes_of(params); h.lane++) {
        broadcast_lane(&h);
    }
    wefti_hier_deinit(&h);
}

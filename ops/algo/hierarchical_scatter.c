/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter: for each rank of another host, its collector on this one reduces the block over
 * the host's ranks; the rank reads one sum from every other host and joins them with those of its
 * own. A collector's sums are posted one by one, so that one is under way while it reduces the
 * next, and the own host's part is done last.
 *
 *   1  ready | 2 + turn  the collector's sum | then  the own block is done
 */
#include "ops/algo/hierarchical.h"

#define FIRST 2u /* phase of the first turn */

typedef struct scattering {
    wefti_hier_t h;
    uint32_t turns;
    bool even; /* who reads a rank's sums is also read by it: two sets need no last wait */
} scattering_t;

static bool scattering_init(scattering_t *s, const weft_algo_params_t *params,
                            weft_schedule_builder_t *b)
{
    if (!wefti_hier_init(&s->h, params, b)) {
        return false;
    }
    s->turns = wefti_hier_turns(&s->h);
    s->even = s->h.place.largest == s->h.place.smallest;
    return true;
}

void wefti_hier_reduce_scatter_resources(const weft_algo_params_t *params,
                                         weft_algo_resources_t *out)
{
    scattering_t s;
    if (!scattering_init(&s, params, NULL)) {
        return; /* building says so */
    }
    out->phases = FIRST + s.turns;
    out->scratch_slots = s.turns * s.h.most_sums + wefti_hier_temporaries(&s.h) + s.h.most_sums;
    out->scratch_sets = s.even ? 2 : 1;
    wefti_hier_deinit(&s.h);
}

static weft_place_t sum_place(void *user, uint32_t host, uint32_t block,
                              const wefti_subtree_t *subtree, uint32_t number)
{
    scattering_t *s = user;
    wefti_hier_t *h = &s->h;
    if (host != h->place.own) {
        return wefti_at(wefti_hier_collector(h, host, block), WEFT_ALGO_BUFFER_SCRATCH,
                        wefti_hier_turn(h, host, block) * h->most_sums + number);
    }
    if (subtree->rank_count == 1) {
        return wefti_at(subtree->first_rank, WEFT_ALGO_BUFFER_SEND, block);
    }
    weft_place_t sum = wefti_at(h->params->rank, WEFT_ALGO_BUFFER_SCRATCH, h->temporary++);
    wefti_hier_reduce_subtree(h, subtree, block, sum);
    return sum;
}

void wefti_hier_reduce_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    scattering_t s;
    uint32_t rank = params->rank, other;
    if (!scattering_init(&s, params, b)) {
        return;
    }
    wefti_hier_t *h = &s.h;
    uint32_t temporaries = s.turns * h->most_sums, done = FIRST + s.turns;
    wefti_hier_post(h, 1);
    wefti_hier_wait_host(h, 1);
    for (uint32_t turn = 0; wefti_hier_collected(h, rank, turn, &other); turn++) {
        h->temporary = temporaries;
        wefti_hier_reduce_own(h, other, turn * h->most_sums);
        wefti_hier_post(h, FIRST + turn);
    }
    for (uint32_t i = 1; i < h->place.hosts; i++) {
        uint32_t host = wefti_next(h->place.own, i, h->place.hosts);
        wefti_hier_wait(h, wefti_hier_collector(h, host, rank),
                        FIRST + wefti_hier_turn(h, host, rank));
    }
    h->temporary = temporaries;
    wefti_hier_join(h, rank, wefti_at(rank, WEFT_ALGO_BUFFER_RECV, rank), sum_place, &s);
    wefti_hier_post(h, done);
    wefti_hier_wait_host(h, done);
    for (uint32_t turn = 0; !s.even && wefti_hier_collected(h, rank, turn, &other); turn++) {
        wefti_hier_wait(h, other, done);
    }
    wefti_hier_deinit(h);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Who of a host deals with the blocks of the others, and when. */
#include "ops/algo/hierarchical.h"

uint32_t wefti_hier_collector(const wefti_hier_t *h, uint32_t host, uint32_t rank)
{
    return wefti_owner(&h->place, host, h->place.member[rank]);
}

/* Members of a host of so many that fall to member number `own` of `size`. */
static uint32_t share(uint32_t members, uint32_t own, uint32_t size)
{
    return own < members ? (members - own - 1) / size + 1 : 0;
}

uint32_t wefti_hier_turn(const wefti_hier_t *h, uint32_t host, uint32_t rank)
{
    const wefti_placement_t *p = &h->place;
    uint32_t size = wefti_host_size(p, host), member = p->member[rank], turn = member / size;
    for (uint32_t i = 1; wefti_next(host, i, p->hosts) != p->host[rank]; i++) {
        uint32_t other = wefti_next(host, i, p->hosts);
        turn += share(wefti_host_size(p, other), member % size, size);
    }
    return turn;
}

bool wefti_hier_collected(const wefti_hier_t *h, uint32_t collector, uint32_t turn,
                          uint32_t *out_rank)
{
    const wefti_placement_t *p = &h->place;
    uint32_t host = p->host[collector], size = wefti_host_size(p, host);
    for (uint32_t i = 1; i < p->hosts; i++) {
        uint32_t other = wefti_next(host, i, p->hosts);
        uint32_t mine = share(wefti_host_size(p, other), p->member[collector], size);
        if (turn < mine) {
            *out_rank = wefti_member(p, other, p->member[collector] + turn * size);
            return true;
        }
        turn -= mine;
    }
    return false;
}

uint32_t wefti_hier_turns(const wefti_hier_t *h)
{
    const wefti_placement_t *p = &h->place;
    uint32_t most = 0;
    for (uint32_t host = 0; host < p->hosts; host++) {
        uint32_t turns = 0; /* member 0 has most */
        for (uint32_t other = 0; other < p->hosts; other++) {
            turns +=
                other != host ? share(wefti_host_size(p, other), 0, wefti_host_size(p, host)) : 0;
        }
        most = turns > most ? turns : most;
    }
    return most;
}

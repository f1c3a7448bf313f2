/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/placement.h"

#include "runtime/base/memory.h"

uint32_t wefti_placement_hosts(const weft_algo_params_t *params)
{
    uint32_t hosts = params->host_of != NULL ? params->host_of_count : params->host_count;
    return hosts > 0 ? hosts : 1;
}

uint32_t wefti_placement_host_of(const weft_algo_params_t *params, uint32_t rank)
{
    uint32_t host = 0;
    if (params->host_of != NULL) {
        return params->host_of[rank];
    }
    while (host + 1 < params->host_count && rank >= params->host_sizes[host]) {
        rank -= params->host_sizes[host++];
    }
    return host;
}

/* Ranks of each part, such as a host; 0: not all have as many. count: [ranks], zeros */
static uint32_t equal_parts(const uint32_t *part_of, uint32_t ranks, uint32_t *count)
{
    uint32_t each = 0;
    bool equal = true;
    for (uint32_t r = 0; r < ranks; r++) {
        equal = equal && part_of[r] < ranks;
        count[equal ? part_of[r] : 0]++;
    }
    for (uint32_t part = 0; part < ranks; part++) {
        each = each == 0 ? count[part] : each;
        equal = equal && (count[part] == 0 || count[part] == each);
    }
    return equal ? each : 0;
}

const char *wefti_placement_levels(const weft_algo_params_t *params, uint32_t sizes[WEFTI_LEVELS])
{
    uint32_t n = params->group_size;
    sizes[0] = sizes[1] = sizes[2] = 1;
    if (params->host_of == NULL || params->rack_of == NULL) {
        return "the group is in one rack, or its racks are not known";
    }
    uint32_t *count = wefti_alloc(NULL, 2ul * n * sizeof *count);
    if (count == NULL) {
        return NULL; /* no reason: the other ranks choose, and this one must not differ */
    }
    uint32_t in_host = equal_parts(params->host_of, n, count);
    uint32_t in_rack = equal_parts(params->rack_of, n, count + n);
    wefti_free(NULL, count);
    if (in_host == 0 || in_rack == 0 || in_rack % in_host != 0) {
        return in_host == 0 ? "its hosts have different numbers of ranks"
                            : "its racks have different numbers of hosts";
    }
    sizes[0] = in_host;
    sizes[1] = in_rack / in_host;
    sizes[2] = n / in_rack;
    return sizes[2] == 1   ? "the group is in one rack"
           : sizes[1] == 1 ? "each of its racks has one host"
                           : NULL;
}

static void find_hosts(wefti_placement_t *p, const weft_algo_params_t *params)
{
    uint32_t host = 0, left = params->host_count > 0 ? params->host_sizes[0] : p->ranks;
    for (uint32_t r = 0; r < p->ranks; r++, left--) {
        if (params->host_of != NULL) {
            p->host[r] = params->host_of[r];
            continue;
        }
        if (left == 0) {
            left = params->host_sizes[++host];
        }
        p->host[r] = host;
    }
    for (uint32_t r = p->ranks; r-- > 0;) {
        bool ends = r + 1 == p->ranks || p->host[r + 1] != p->host[r];
        p->run_end[r] = ends ? r + 1 : p->run_end[r + 1];
    }
}

static uint32_t rail_of(const weft_algo_params_t *params, uint32_t rank)
{
    return params->rail_of != NULL ? params->rail_of[rank] : 0;
}

/* Rows sorted by card, then rank: an insertion per rank, for hosts have few. */
static void find_rows(wefti_placement_t *p, const weft_algo_params_t *params)
{
    for (uint32_t r = 0; r < p->ranks; r++) {
        p->first[p->host[r] + 1]++;
    }
    p->smallest = p->ranks;
    for (uint32_t h = 0; h < p->hosts; h++) {
        uint32_t size = p->first[h + 1];
        p->largest = size > p->largest ? size : p->largest;
        p->smallest = size < p->smallest ? size : p->smallest;
        p->first[h + 1] += p->first[h];
    }
    for (uint32_t r = 0; r < p->ranks; r++) {
        p->member[p->host[r]]++; /* how many the row has; replaced below */
        uint32_t begin = p->first[p->host[r]], at = begin + p->member[p->host[r]] - 1;
        for (; at > begin && rail_of(params, p->rank[at - 1]) > rail_of(params, r); at--) {
            p->rank[at] = p->rank[at - 1];
        }
        p->rank[at] = r;
    }
    for (uint32_t h = 0; h < p->hosts; h++) {
        for (uint32_t i = p->first[h]; i < p->first[h + 1]; i++) {
            p->member[p->rank[i]] = i - p->first[h];
        }
    }
}

bool wefti_placement_init(wefti_placement_t *p, const weft_algo_params_t *params)
{
    uint32_t n = params->group_size, hosts = wefti_placement_hosts(params);
    *p = (wefti_placement_t){.ranks = n, .hosts = hosts};
    p->host = wefti_alloc(NULL, (5ul * n + hosts + 1) * sizeof *p->host);
    if (p->host == NULL) {
        return false;
    }
    p->member = p->host + n;
    p->rank = p->member + n;
    p->run_end = p->rank + n;
    p->first = p->run_end + n;
    find_hosts(p, params);
    find_rows(p, params);
    p->own = p->host[params->rank];
    return true;
}

void wefti_placement_deinit(wefti_placement_t *p)
{
    wefti_free(NULL, p->host);
    *p = (wefti_placement_t){0};
}

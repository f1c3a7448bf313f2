/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs per level of the ranks' cluster, by all-reduces of two ranks: a small one is one message
 * each way, which is the latency; a large one moves the vector both ways. Pairs that run at the
 * same time share the links of their part.
 *
 *   l3 .. host   pairs of ranks whose innermost common part is of the level
 *   link         a rank of each of two hosts; where that is much slower for some hosts than for
 *                others, hosts that are near each other form a rack
 *   rack         pairs of ranks of one rack's hosts and of other racks, all at once
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/simulate/simulate.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/sync.h"
#include "runtime/machine/place.h"
#include "tools/launch/world.h"
#include "tools/output.h"
#include "tools/tune/tune.h"

#define SMALL_CALLS 40u
#define LARGE_CALLS 8u
#define LARGE_BYTES ((uint64_t)1 << 20)
#define MOST_HOSTS 32u /* of which each pair is measured */
#define APART 1.5      /* times by which far hosts are slower than near ones */

typedef struct pair {
    uint32_t ranks[2];
} pair_t;

typedef struct pair_cost {
    double latency_ns, ns_per_byte;
} pair_cost_t;

typedef struct levels {
    weft_group_t *all;
    uint32_t rank;
    float *data;
    wefti_cluster_t cluster;
    sim_world_t world;
    pair_cost_t pairs[MOST_HOSTS][MOST_HOSTS]; /* [a][b], b < a: of two hosts */
} levels_t;

static weft_status_t time_all_reduce(weft_group_t *pair, float *data, uint64_t bytes,
                                     uint32_t calls, double *out_ns)
{
    double times[SMALL_CALLS];
    for (uint32_t i = 0; i <= calls; i++) { /* the first one warms up */
        WEFT_RETURN_IF_ERROR(weft_barrier(pair, NULL));
        uint64_t start = wefti_now_ns();
        WEFT_RETURN_IF_ERROR(weft_all_reduce(data, data, bytes / sizeof *data, WEFT_DTYPE_F32,
                                             WEFT_REDUCTION_MAX, pair, NULL));
        times[i > 0 ? i - 1 : 0] = (double)(wefti_now_ns() - start);
    }
    wefti_sort_doubles(times, calls);
    *out_ns = times[calls / 4];
    return WEFT_OK;
}

/* All pairs at once; the result is that of the slowest one, on all ranks. Collective. */
static weft_status_t time_pairs(const levels_t *l, const pair_t *pairs, uint32_t count,
                                pair_cost_t *out)
{
    uint32_t color = WEFT_COLOR_NONE;
    weft_group_t *pair = NULL;
    double times[2] = {0, 0}; /* small, large */
    for (uint32_t i = 0; i < count; i++) {
        bool mine = pairs[i].ranks[0] == l->rank || pairs[i].ranks[1] == l->rank;
        color = mine ? i : color;
    }
    weft_status_t status = weft_group_split(l->all, color, 0, &pair);
    if (status == WEFT_OK && pair != NULL) {
        status = time_all_reduce(pair, l->data, 8, SMALL_CALLS, &times[0]);
        status = status == WEFT_OK
                     ? time_all_reduce(pair, l->data, LARGE_BYTES, LARGE_CALLS, &times[1])
                     : status;
    }
    weft_group_destroy(pair);
    if (status == WEFT_OK) {
        status = weft_all_reduce(times, times, 2, WEFT_DTYPE_F64, WEFT_REDUCTION_MAX, l->all, NULL);
    }
    double moved = times[1] > times[0] ? times[1] - times[0] : times[1];
    *out = (pair_cost_t){times[0], moved / (double)LARGE_BYTES};
    return status;
}

/* ---- inside hosts ---- */

/* Disjoint pairs of ranks of a part at the level. */
static uint32_t match_part(const levels_t *l, wefti_topo_level_t level, uint32_t part,
                           pair_t out[BENCH_MAX_RANKS])
{
    bool used[BENCH_MAX_RANKS] = {false};
    const sim_world_t *w = &l->world;
    uint32_t count = 0;
    for (uint32_t a = 0; a < w->ranks; a++) {
        for (uint32_t b = a + 1; b < w->ranks && !used[a] && w->part[level][a] == part; b++) {
            if (!used[b] && (uint32_t)wefti_sim_distance(w, a, b) == (uint32_t)level) {
                used[a] = used[b] = true;
                out[count++] = (pair_t){{a, b}};
            }
        }
    }
    return count;
}

static wefti_topo_cost_t as_cost(double latency_ns, double bytes_per_ns)
{
    return (wefti_topo_cost_t){.bits_per_s = (uint64_t)(bytes_per_ns * 8e9),
                               .latency_ns = latency_ns > 1 ? (uint64_t)latency_ns : 1};
}

/* Of two ranks' all-reduce each moves half of the vector to itself and half to the other. */
static weft_status_t measure_part(levels_t *l, wefti_topo_level_t level)
{
    pair_t best[BENCH_MAX_RANKS], pairs[BENCH_MAX_RANKS];
    pair_cost_t alone, together;
    uint32_t count = 0;
    for (uint32_t part = 0; part < l->world.part_count[level]; part++) {
        uint32_t found = match_part(l, level, part, pairs);
        if (found > count) {
            count = found;
            memcpy(best, pairs, found * sizeof *best);
        }
    }
    if (count == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(time_pairs(l, best, 1, &alone));
    WEFT_RETURN_IF_ERROR(time_pairs(l, best, count, &together));
    l->cluster.levels[level] = as_cost(alone.latency_ns, 2 * count / together.ns_per_byte);
    return WEFT_OK;
}

/* ---- between hosts ---- */

static pair_t first_ranks(const levels_t *l, uint32_t a, uint32_t b)
{
    return (pair_t){{l->world.host_first[a], l->world.host_first[b]}};
}

static uint32_t *rack_of(levels_t *l, uint32_t host)
{
    return &l->cluster.hosts[l->cluster.ranks[l->world.host_first[host]].host].rack;
}

static double cost_of(const levels_t *l, uint32_t a, uint32_t b, bool latency)
{
    const pair_cost_t *cost = a > b ? &l->pairs[a][b] : &l->pairs[b][a];
    return latency ? cost->latency_ns : cost->ns_per_byte;
}

/* Above what pairs of hosts are far; 0: all are about equal. */
static double find_gap(const levels_t *l, bool latency)
{
    double costs[MOST_HOSTS * MOST_HOSTS], widest = APART, limit = 0;
    uint32_t count = 0;
    for (uint32_t a = 0; a < l->world.hosts; a++) {
        for (uint32_t b = 0; b < a; b++) {
            costs[count++] = cost_of(l, a, b, latency);
        }
    }
    wefti_sort_doubles(costs, count);
    for (uint32_t i = 1; i < count; i++) {
        if (costs[i] > costs[i - 1] * widest) {
            widest = costs[i] / costs[i - 1];
            limit = (costs[i] + costs[i - 1]) / 2;
        }
    }
    return limit;
}

/* Racks of hosts that are near each other; false, and none, if the costs are not those of racks. */
static bool find_racks(levels_t *l)
{
    bool latency = false, consistent = true;
    double limit = find_gap(l, false);
    if (limit <= 0) {
        latency = true;
        limit = find_gap(l, true);
    }
    uint32_t hosts = l->world.hosts, racks = 0;
    for (uint32_t a = 0; a < hosts && limit > 0; a++) {
        uint32_t near = 0;
        while (near < a && cost_of(l, a, near, latency) > limit) {
            near++;
        }
        *rack_of(l, a) = near < a ? *rack_of(l, near) : racks++;
    }
    for (uint32_t a = 0; a < hosts && racks > 1; a++) {
        for (uint32_t b = 0; b < a; b++) {
            bool far = cost_of(l, a, b, latency) > limit;
            consistent = consistent && far == (*rack_of(l, a) != *rack_of(l, b));
        }
    }
    for (uint32_t a = 0; a < hosts && (racks < 2 || !consistent); a++) {
        *rack_of(l, a) = WEFTI_TOPO_NONE;
    }
    return racks > 1 && consistent;
}

/* The median of pairs in one rack, or in different ones; false: there are none. */
static bool median(levels_t *l, bool apart, pair_cost_t *out)
{
    double latency[MOST_HOSTS * MOST_HOSTS], rate[MOST_HOSTS * MOST_HOSTS];
    uint32_t count = 0;
    for (uint32_t a = 0; a < l->world.hosts; a++) {
        for (uint32_t b = 0; b < a; b++) {
            if ((*rack_of(l, a) != *rack_of(l, b)) == apart) {
                latency[count] = l->pairs[a][b].latency_ns;
                rate[count++] = l->pairs[a][b].ns_per_byte;
            }
        }
    }
    wefti_sort_doubles(latency, count);
    wefti_sort_doubles(rate, count);
    *out = count > 0 ? (pair_cost_t){latency[count / 2], rate[count / 2]} : (pair_cost_t){0, 0};
    return count > 0;
}

static weft_status_t add_link(levels_t *l, uint32_t a, uint32_t b, const pair_cost_t *cost,
                              uint32_t capacity)
{
    uint32_t host_a = a == WEFTI_TOPO_NONE ? a : l->cluster.ranks[l->world.host_first[a]].host;
    uint32_t host_b = b == WEFTI_TOPO_NONE ? b : l->cluster.ranks[l->world.host_first[b]].host;
    wefti_topo_link_t link = {.hosts = {host_a, host_b}, .rails = 1};
    wefti_topo_cost_t numbers = as_cost(cost->latency_ns, 1 / cost->ns_per_byte);
    link.bits_per_s = numbers.bits_per_s;
    link.latency_ns = numbers.latency_ns;
    if (l->cluster.link_count == 0) {
        l->cluster.links = wefti_arena_array(&l->cluster.arena, capacity, sizeof link);
        WEFT_RETURN_IF_NO_MEMORY(l->cluster.links);
    }
    l->cluster.links[l->cluster.link_count++] = link;
    return WEFT_OK;
}

/* One link for all pairs of hosts in a rack; without racks one for each pair that differs. */
static weft_status_t write_links(levels_t *l, bool racks, const pair_cost_t *usual)
{
    uint32_t hosts = l->world.hosts, capacity = hosts * hosts + 1;
    l->cluster.link_count = 0;
    WEFT_RETURN_IF_ERROR(add_link(l, WEFTI_TOPO_NONE, WEFTI_TOPO_NONE, usual, capacity));
    for (uint32_t a = 0; a < hosts && !racks; a++) {
        for (uint32_t b = 0; b < a; b++) {
            const pair_cost_t *cost = &l->pairs[a][b];
            double more = cost->ns_per_byte / usual->ns_per_byte;
            if (more > APART || more < 1 / APART || cost->latency_ns > usual->latency_ns * APART) {
                WEFT_RETURN_IF_ERROR(add_link(l, a, b, cost, capacity));
            }
        }
    }
    return WEFT_OK;
}

/* The hosts of a rack each with one of another rack. */
static uint32_t match_rack(levels_t *l, uint32_t rack, pair_t out[MOST_HOSTS])
{
    bool used[MOST_HOSTS] = {false};
    uint32_t count = 0;
    for (uint32_t a = 0; a < l->world.hosts; a++) {
        for (uint32_t b = 0; b < l->world.hosts && *rack_of(l, a) == rack && !used[a]; b++) {
            if (*rack_of(l, b) != rack && !used[b]) {
                used[a] = used[b] = true;
                out[count++] = first_ranks(l, a, b);
            }
        }
    }
    return count;
}

/* All uplinks count as the slowest one. */
static weft_status_t measure_racks(levels_t *l, const pair_cost_t *near, const pair_cost_t *far)
{
    double slowest = 0;
    for (uint32_t a = 0; a < l->world.hosts; a++) {
        pair_t pairs[MOST_HOSTS];
        pair_cost_t together;
        uint32_t first = 0;
        while (*rack_of(l, first) != *rack_of(l, a)) {
            first++;
        }
        if (first < a) {
            continue;
        }
        uint32_t count = match_rack(l, *rack_of(l, a), pairs);
        WEFT_RETURN_IF_ERROR(time_pairs(l, pairs, count, &together));
        double rate = count / together.ns_per_byte;
        slowest = slowest <= 0 || rate < slowest ? rate : slowest;
    }
    l->cluster.levels[WEFTI_TOPO_RACK] = as_cost(far->latency_ns - near->latency_ns, slowest);
    return WEFT_OK;
}

static weft_status_t measure_hosts(levels_t *l)
{
    bool racks = l->world.racks;
    pair_cost_t near, far;
    if (l->world.hosts < 2) {
        return WEFT_OK;
    }
    if (l->world.hosts > MOST_HOSTS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "too many hosts to measure each pair: %u, at "
                           "most %u",
                           l->world.hosts, MOST_HOSTS);
    }
    for (uint32_t a = 0; a < l->world.hosts; a++) {
        for (uint32_t b = 0; b < a; b++) {
            pair_t pair = first_ranks(l, a, b);
            WEFT_RETURN_IF_ERROR(time_pairs(l, &pair, 1, &l->pairs[a][b]));
        }
    }
    racks = racks || find_racks(l);
    bool apart = racks && median(l, true, &far);
    if (!median(l, false, &near)) { /* every host is a rack */
        near = far;
    }
    WEFT_RETURN_IF_ERROR(write_links(l, racks, &near));
    return apart ? measure_racks(l, &near, &far) : WEFT_OK;
}

/* ---- all of it ---- */

static weft_status_t write_cluster(const wefti_cluster_t *cluster, const char *path)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, true);
    wefti_json_begin_object(&json, NULL);
    wefti_cluster_write(cluster, &json);
    wefti_json_end_object(&json);
    wefti_text_add(&text, "\n");
    weft_status_t status = wefti_file_write_text(path, &text);
    wefti_text_deinit(&text);
    return status;
}

/* What all ranks know of the cluster, and where they are in it. */
static weft_status_t find_cluster(levels_t *l, weft_context_t *context, const wefti_costs_t *costs)
{
    char *text = NULL;
    WEFT_RETURN_IF_ERROR(weft_context_topology(context, WEFT_FORMAT_JSON, 0, &text));
    weft_status_t status = wefti_cluster_decode(text, strlen(text), NULL, NULL, NULL, &l->cluster);
    free(text);
    if (status >= 0) {
        wefti_place_nics(&l->cluster);
        status = wefti_sim_world_init(&l->world, &l->cluster, costs, false);
    }
    return status;
}

static weft_status_t measure_levels(levels_t *l, weft_context_t *context,
                                    const wefti_costs_t *costs, const char *path)
{
    WEFT_RETURN_IF_ERROR(find_cluster(l, context, costs));
    for (uint32_t level = WEFTI_TOPO_L3; level <= WEFTI_TOPO_HOST; level++) {
        WEFT_RETURN_IF_ERROR(measure_part(l, (wefti_topo_level_t)level));
    }
    WEFT_RETURN_IF_ERROR(measure_hosts(l));
    return l->rank == 0 ? write_cluster(&l->cluster, path) : WEFT_OK;
}

weft_status_t wefti_tune_levels(weft_context_t *context, wefti_costs_t *costs, uint32_t other,
                                const char *path)
{
    pair_t pair = {{0, other}};
    pair_cost_t net;
    weft_status_t status;
    void *data = NULL;
    levels_t *l = calloc(1, sizeof *l);
    WEFT_RETURN_IF_NO_MEMORY(l);
    l->rank = weft_context_rank(context);
    wefti_cluster_init(&l->cluster, NULL);
    WEFT_TRY(status, weft_group_create_world(context, &l->all), out);
    WEFT_TRY(status, weft_mem_alloc(context, LARGE_BYTES, &data), out);
    memset(data, 0, LARGE_BYTES);
    l->data = data;
    if (other != 0) {
        WEFT_TRY(status, time_pairs(l, &pair, 1, &net), out);
        costs->level[WEFTI_LEVEL_NET] = (wefti_link_cost_t){net.latency_ns, net.ns_per_byte};
    }
    status = path != NULL ? measure_levels(l, context, costs, path) : WEFT_OK;
out:
    if (data != NULL) {
        weft_mem_free(context, data);
    }
    weft_group_destroy(l->all);
    wefti_sim_world_deinit(&l->world);
    wefti_cluster_deinit(&l->cluster);
    free(l);
    return status;
}

weft_status_t wefti_tune_levels_rank(void *user, uint32_t rank, uint32_t world_size,
                                     const char *address)
{
    tune_command_t *command = user;
    weft_context_t *context = NULL;
    weft_status_t status =
        wefti_launched_open(NULL, (int32_t)rank, (int32_t)world_size, address, NULL, &context);
    if (status >= 0) {
        status = wefti_tune_levels(context, &command->costs, 0, command->topology);
    }
    weft_context_release(context);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster that a plan is compiled for: the ranks of each host, their interfaces, the cost of
 * links between hosts. */
#include "fusion/compile.h"

#include <stdio.h>

#include "runtime/base/error.h"
#include "runtime/machine/place.h"

/* Of algorithms on more ranks, a rank stands for all with its place in the cluster. */
#define MOST_WORK ((uint64_t)1 << 16)

/* world_size, or the number of ranks of the description. */
static weft_status_t fit_world(wefti_compiler_t *c, wefti_cluster_t *cluster)
{
    if (cluster->rank_count == 0) {
        if (c->params.world_size == 0) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                     "must be set: %s has no ranks", c->params.topology_path);
        }
        return wefti_cluster_spread(cluster, c->params.world_size);
    }
    if (c->params.world_size == 0) {
        c->params.world_size = c->given.world_size = cluster->rank_count;
    }
    return c->params.world_size == cluster->rank_count
               ? WEFT_OK
               : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                   "does not match the topology: %u, %s has %u ranks",
                                   c->params.world_size, c->params.topology_path,
                                   cluster->rank_count);
}

/* Hosts as algorithms number them, by their first ranks; those without ranks are left out. */
static uint32_t number_hosts(const wefti_cluster_t *cluster, uint32_t *host_of)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < cluster->rank_count; r++) {
        const wefti_topo_host_t *host = &cluster->hosts[cluster->ranks[r].host];
        host_of[r] = host->ranks[0] == r ? count++ : host_of[host->ranks[0]];
    }
    return count;
}

static weft_status_t place_ranks(wefti_compiler_t *c, wefti_cluster_t *cluster)
{
    char summary[160], hex[65];
    wefti_digest_t digest;
    WEFT_RETURN_IF_ERROR(wefti_place_all(cluster, WEFTI_BIND_CORE));
    wefti_place_nics(cluster);
    WEFT_RETURN_IF_ERROR(wefti_cluster_placement_digest(cluster, &digest));
    wefti_plan_place_t *place = wefti_arena_alloc(&c->arena, sizeof *place);
    uint32_t *host_of = wefti_arena_array(&c->arena, cluster->rank_count, sizeof *host_of),
             *rail_of = wefti_arena_array(&c->arena, cluster->rank_count, sizeof *rail_of),
             *rack_of = wefti_arena_array(&c->arena, cluster->rank_count, sizeof *rack_of), racks;
    WEFT_RETURN_IF_NO_MEMORY(place && host_of && rail_of && rack_of);
    WEFT_RETURN_IF_ERROR(wefti_cluster_racks(cluster, rack_of, &racks));
    place->host_count = number_hosts(cluster, host_of);
    place->host_of = host_of;
    place->rail_of = wefti_place_rails(cluster, rail_of) > 1 ? rail_of : NULL;
    place->rack_of = racks > 1 ? rack_of : NULL;
    place->summary =
        wefti_arena_strdup(&c->arena, wefti_cluster_summary(cluster, summary, sizeof summary));
    place->digest = wefti_arena_strdup(&c->arena, wefti_digest_hex(&digest, hex));
    c->place = place;
    return place->summary != NULL && place->digest != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t wefti_compile_read_topology(wefti_compiler_t *c)
{
    wefti_cluster_t *cluster = &c->cluster;
    weft_status_t status = wefti_cluster_load(c->params.topology_path, NULL, c->allocator, cluster);
    if (status < 0) {
        return wefti_error_under_field(status, "topology_path");
    }
    WEFT_RETURN_IF_ERROR(fit_world(c, cluster));
    WEFT_RETURN_IF_ERROR(place_ranks(c, cluster));
    if (c->params.costs_path != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_costs_load(&c->costs, c->params.costs_path, c->allocator));
    } else {
        wefti_costs_default(&c->costs, c->allocator);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_sim_world_init(&c->world, cluster, &c->costs, c->params.costs_path != NULL));
    c->world.exact_ranks = WEFTI_MAX_PREDICTED_RANKS;
    c->world.most_work = MOST_WORK;
    c->described = (sim_group_t){&c->world, 1};
    return WEFT_OK;
}

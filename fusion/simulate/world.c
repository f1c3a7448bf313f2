/* SPDX-License-Identifier: Apache-2.0 */
/* From the description of a cluster to links that ranks share. */
#include "fusion/simulate/simulate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fusion/fusion.h"
#include "runtime/base/error.h"
#include "runtime/machine/place.h"

static const double ns_per_byte_of_bits = 8e9; /* per bit/s */

static double bytes_per_ns(uint64_t bits_per_s)
{
    return (double)bits_per_s / ns_per_byte_of_bits;
}

/* Which cache, NUMA node or socket of its host a rank is on; its processors may be on several. */
static uint32_t part_of_host(const wefti_hardware_t *hardware, const wefti_topo_rank_t *rank,
                             wefti_topo_level_t level)
{
    uint32_t found = WEFTI_TOPO_NONE;
    for (uint32_t i = 0; i < rank->cpu_count; i++) {
        uint32_t core = wefti_hardware_core_of(hardware, rank->cpus[i]);
        if (core == WEFTI_TOPO_NONE) {
            return WEFTI_TOPO_NONE;
        }
        const wefti_topo_core_t *at = &hardware->cores[core];
        uint32_t part = level == WEFTI_TOPO_L3     ? at->l3
                        : level == WEFTI_TOPO_NUMA ? at->numa
                                                   : at->socket;
        if (i > 0 && part != found) {
            return WEFTI_TOPO_NONE;
        }
        found = part;
    }
    return found;
}

/* The core that a rank shares with others, which the runtime binds to it in turn. */
static uint32_t shared_core(const sim_world_t *w, const wefti_topo_host_t *host, uint32_t index)
{
    const wefti_topo_rank_t *rank = &w->cluster->ranks[host->ranks[index]];
    uint32_t cores = w->costs->cores;
    if (host->hardware->core_count > 0) {
        return rank->cpu_count == 1 ? rank->cpus[0] : WEFTI_TOPO_NONE;
    }
    return cores > 0 && host->rank_count > cores && host->rank_count <= WEFTI_HOST_MAX_RANKS
               ? index % cores
               : WEFTI_TOPO_NONE;
}

/* Ranks whose part is not known have one of their own. */
static void number_parts(sim_world_t *w, sim_kind_t kind)
{
    const wefti_cluster_t *cluster = w->cluster;
    uint32_t next = 0;
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        const wefti_topo_host_t *host = &cluster->hosts[h];
        for (uint32_t i = 0; i < host->rank_count; i++) {
            uint32_t rank = host->ranks[i];
            uint32_t own = kind == SIM_NIC_OUT ? cluster->ranks[rank].nic
                           : kind == SIM_CORE  ? shared_core(w, host, i)
                                               : part_of_host(host->hardware, &cluster->ranks[rank],
                                                              (wefti_topo_level_t)kind);
            uint32_t known = WEFTI_TOPO_NONE;
            if (kind == SIM_NIC_OUT && own == WEFTI_TOPO_NONE) {
                own = 0; /* a host without described NICs has one */
            }
            for (uint32_t k = 0; k < i && own != WEFTI_TOPO_NONE && known == WEFTI_TOPO_NONE; k++) {
                /* seat holds what earlier ranks are on */
                known = w->seat[host->ranks[k]] == own ? w->part[kind][host->ranks[k]] : known;
            }
            w->seat[rank] = own;
            w->part[kind][rank] = known != WEFTI_TOPO_NONE ? known : next++;
        }
    }
    w->part_count[kind] = next;
}

static void number_hosts(sim_world_t *w)
{
    const wefti_cluster_t *cluster = w->cluster;
    for (uint32_t r = 0; r < w->ranks; r++) {
        const wefti_topo_host_t *host = &cluster->hosts[cluster->ranks[r].host];
        if (host->ranks[0] == r) {
            w->host_first[w->hosts] = r;
            w->host_size[w->hosts] = host->rank_count;
            if (host->rank_count > w->largest_host) {
                w->largest_host = host->rank_count;
                w->largest_host_cores = host->hardware->core_count;
            }
            w->racks = w->racks || host->rack != WEFTI_TOPO_NONE;
            w->hosts++;
        }
        w->host_of[r] = host->ranks[0] == r ? w->hosts - 1 : w->host_of[host->ranks[0]];
        w->part[SIM_HOST][r] = w->host_of[r];
    }
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        for (uint32_t i = 0; i < cluster->hosts[h].rank_count; i++) {
            w->seat[cluster->hosts[h].ranks[i]] = i;
        }
    }
    w->part_count[SIM_HOST] = w->hosts;
}

static weft_status_t number_racks(sim_world_t *w)
{
    uint32_t *rack_of = w->part[SIM_RACK_UP], *count = &w->part_count[SIM_RACK_UP];
    WEFT_RETURN_IF_ERROR(wefti_cluster_racks(w->cluster, rack_of, count));
    uint32_t *hosts_in = wefti_alloc(NULL, (*count + 1ul) * sizeof *hosts_in);
    WEFT_RETURN_IF_NO_MEMORY(hosts_in);
    for (uint32_t h = 0; h < w->hosts; h++) {
        w->stand[h] = w->racks ? hosts_in[rack_of[w->host_first[h]]]++ : 0;
    }
    wefti_free(NULL, hosts_in);
    return WEFT_OK;
}

/* The fastest link of a host: pairs of hosts with slower ones are slower by themselves. */
static wefti_topo_link_t fastest_link(const wefti_cluster_t *cluster, uint32_t host)
{
    uint32_t other = cluster->host_count > 1 && host == 0 ? 1 : 0;
    wefti_topo_link_t best = wefti_cluster_link(cluster, host, other);
    for (uint32_t i = 0; i < cluster->link_count; i++) {
        const wefti_topo_link_t *link = &cluster->links[i];
        bool of_host =
            link->hosts[0] == host || link->hosts[1] == host || link->hosts[0] == WEFTI_TOPO_NONE;
        best = of_host && link->bits_per_s > best.bits_per_s ? *link : best;
    }
    return best;
}

/* Of a NIC: what the description says of links, or the cost table, or the interface. */
static double nic_rate(const sim_world_t *w, uint32_t rank, bool priced)
{
    const wefti_topo_rank_t *at = &w->cluster->ranks[rank];
    const wefti_hardware_t *hardware = w->cluster->hosts[at->host].hardware;
    wefti_topo_link_t link = fastest_link(w->cluster, at->host);
    bool said = w->cluster->link_count > 0 && link.bits_per_s > 0;
    double measured = 1 / w->costs->level[WEFTI_LEVEL_NET].beta_ns_per_byte;
    if (!said && priced) {
        return measured;
    }
    if (!said && at->nic != WEFTI_TOPO_NONE && hardware->nics[at->nic].bits_per_s > 0) {
        return bytes_per_ns(hardware->nics[at->nic].bits_per_s);
    }
    return link.bits_per_s > 0 ? bytes_per_ns(link.bits_per_s) / link.rails : measured;
}

static void price(sim_world_t *w, bool priced)
{
    const wefti_topo_cost_t *levels = w->cluster->levels;
    wefti_topo_link_t slowest = wefti_cluster_slowest_link(w->cluster);
    double net = slowest.latency_ns > 0 ? (double)slowest.latency_ns
                                        : w->costs->level[WEFTI_LEVEL_NET].alpha_ns;
    for (uint32_t level = 0; level <= WEFTI_TOPO_HOST; level++) {
        w->latency_ns[level] = levels[level].latency_ns > 0
                                   ? (double)levels[level].latency_ns
                                   : w->costs->level[WEFTI_LEVEL_HOST].alpha_ns;
        for (uint32_t i = 0; i < w->part_count[level]; i++) {
            w->rate[level][i] = bytes_per_ns(levels[level].bits_per_s);
        }
    }
    w->latency_ns[SIM_IN_RACK] = net;
    w->latency_ns[SIM_APART] = net + (double)levels[WEFTI_TOPO_RACK].latency_ns;
    w->latency_ns[SIM_SELF] = w->costs->level[WEFTI_LEVEL_SELF].alpha_ns;
    for (uint32_t i = 0; i < w->part_count[SIM_RACK_UP]; i++) {
        w->rate[SIM_RACK_UP][i] = w->rate[SIM_RACK_DOWN][i] =
            bytes_per_ns(levels[WEFTI_TOPO_RACK].bits_per_s);
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        uint32_t nic = w->part[SIM_NIC_OUT][r];
        if (w->rate[SIM_NIC_OUT][nic] == 0) {
            w->rate[SIM_NIC_OUT][nic] = w->rate[SIM_NIC_IN][nic] = nic_rate(w, r, priced);
        }
    }
}

static void count_on_cores(sim_world_t *w)
{
    for (uint32_t r = 0; r < w->ranks; r++) {
        uint32_t core = w->part[SIM_CORE][r];
        w->rate[SIM_CORE][core] = ++w->on_core[core] > 1 ? 1 : 0;
        w->shares_cores = w->shares_cores || w->on_core[core] > 1;
    }
}

static weft_status_t fill(sim_world_t *w)
{
    size_t bytes = w->ranks * sizeof *w->host_of;
    for (uint32_t kind = 0; kind <= SIM_SOCKET; kind++) {
        number_parts(w, (sim_kind_t)kind);
    }
    number_parts(w, SIM_NIC_OUT);
    number_parts(w, SIM_CORE);
    count_on_cores(w);
    number_hosts(w);
    WEFT_RETURN_IF_ERROR(number_racks(w));
    memcpy(w->part[SIM_NIC_IN], w->part[SIM_NIC_OUT], bytes);
    memcpy(w->part[SIM_RACK_DOWN], w->part[SIM_RACK_UP], bytes);
    w->part_count[SIM_NIC_IN] = w->part_count[SIM_NIC_OUT];
    w->part_count[SIM_RACK_DOWN] = w->part_count[SIM_RACK_UP];
    return WEFT_OK;
}

weft_status_t wefti_sim_world_init(sim_world_t *w, const wefti_cluster_t *cluster,
                                   const wefti_costs_t *costs, bool priced)
{
    *w = (sim_world_t){.costs = costs,
                       .cluster = cluster,
                       .ranks = cluster->rank_count,
                       .exact_ranks = SIM_EXACT_RANKS,
                       .most_work = SIM_MOST_WORK};
    wefti_arena_init(&w->profile_arena, NULL, 0);
    for (uint32_t i = 0; i < cluster->link_count; i++) {
        w->pair_links = w->pair_links || cluster->links[i].hosts[0] != WEFTI_TOPO_NONE;
    }
    uint32_t **tables[] = {&w->host_of,    &w->seat,      &w->stand,
                           &w->host_first, &w->host_size, &w->on_core};
    bool room = true;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        *tables[i] = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof **tables[i]);
        room = room && *tables[i] != NULL;
    }
    for (uint32_t kind = 0; kind < SIM_KINDS; kind++) {
        w->part[kind] = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof *w->part[kind]);
        w->rate[kind] = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof *w->rate[kind]);
        w->carried[kind] = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof *w->carried[kind]);
        room = room && w->part[kind] != NULL && w->rate[kind] != NULL && w->carried[kind] != NULL;
    }
    w->rail_of = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof *w->rail_of);
    weft_status_t status = room && w->rail_of != NULL ? fill(w) : WEFT_ERR_NO_MEMORY;
    if (status < 0) {
        wefti_sim_world_deinit(w);
        return status;
    }
    if (wefti_place_rails(cluster, w->rail_of) <= 1) {
        wefti_free(NULL, w->rail_of);
        w->rail_of = NULL;
    }
    price(w, priced);
    return WEFT_OK;
}

weft_status_t wefti_sim_world_load_profile(sim_world_t *w, const char *path)
{
    return wefti_profile_load(path, &w->profile_arena, &w->profile);
}

void wefti_sim_schedules_deinit(sim_schedules_t *schedules)
{
    wefti_schedules_free(NULL, schedules->list, schedules->count);
    wefti_free(NULL, schedules->rank_of);
    *schedules = (sim_schedules_t){0};
}

void wefti_sim_world_deinit(sim_world_t *w)
{
    uint32_t *tables[] = {w->host_of,   w->seat,    w->stand,  w->host_first,
                          w->host_size, w->on_core, w->rail_of};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        wefti_free(NULL, tables[i]);
    }
    for (uint32_t kind = 0; kind < SIM_KINDS; kind++) {
        wefti_free(NULL, w->part[kind]);
        wefti_free(NULL, w->rate[kind]);
        wefti_free(NULL, w->carried[kind]);
    }
    wefti_sim_schedules_deinit(&w->schedules);
    wefti_arena_deinit(&w->profile_arena);
    *w = (sim_world_t){0};
}

sim_distance_t wefti_sim_distance(const sim_world_t *w, uint32_t a, uint32_t b)
{
    if (a == b) {
        return SIM_SELF;
    }
    if (w->host_of[a] != w->host_of[b]) {
        return w->part[SIM_RACK_UP][a] == w->part[SIM_RACK_UP][b] ? SIM_IN_RACK : SIM_APART;
    }
    uint32_t level = WEFTI_TOPO_L3;
    while (level < WEFTI_TOPO_HOST && w->part[level][a] != w->part[level][b]) {
        level++;
    }
    return (sim_distance_t)level;
}

double wefti_sim_latency_ns(const sim_world_t *w, uint32_t a, uint32_t b)
{
    sim_distance_t distance = wefti_sim_distance(w, a, b);
    double ns = w->latency_ns[distance];
    if (w->pair_links && (distance == SIM_IN_RACK || distance == SIM_APART)) {
        wefti_topo_link_t link =
            wefti_cluster_link(w->cluster, w->cluster->ranks[a].host, w->cluster->ranks[b].host);
        double more = w->latency_ns[SIM_APART] - w->latency_ns[SIM_IN_RACK];
        ns =
            link.latency_ns > 0 ? (double)link.latency_ns + (distance == SIM_APART ? more : 0) : ns;
    }
    return ns;
}

void wefti_sim_link_name(const sim_world_t *w, sim_kind_t kind, uint32_t part, char *out,
                         size_t bytes)
{
    static const char *const names[SIM_KINDS] = {"L3 cache", "NUMA node", "socket",
                                                 "memory",   "NIC, out",  "NIC, in",
                                                 "uplink",   "downlink",  "core"};
    uint32_t rank = 0;
    while (rank + 1 < w->ranks && w->part[kind][rank] != part) {
        rank++;
    }
    const wefti_topo_host_t *host = &w->cluster->hosts[w->cluster->ranks[rank].host];
    if (kind == SIM_RACK_UP || kind == SIM_RACK_DOWN) {
        snprintf(out, bytes, "rack %" PRIu32 ", %s", host->rack, names[kind]);
    } else {
        snprintf(out, bytes, "host %.63s, %s of rank %" PRIu32, host->name, names[kind], rank);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts, ranks and links put together, and what follows from them. */
#include "runtime/machine/cluster.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

/* Gigabytes of hosts are no description of a cluster. */
#define BUDGET_BYTES ((size_t)1 << 30)

void wefti_cluster_init(wefti_cluster_t *cluster, const weft_allocator_t *allocator)
{
    *cluster = (wefti_cluster_t){.name = ""};
    wefti_arena_init(&cluster->arena, allocator, BUDGET_BYTES);
}

void wefti_cluster_deinit(wefti_cluster_t *cluster)
{
    wefti_free(cluster->arena.allocator, cluster->hosts);
    wefti_arena_deinit(&cluster->arena);
    *cluster = (wefti_cluster_t){.name = ""};
}

weft_status_t wefti_cluster_add_host(wefti_cluster_t *cluster, const char *name,
                                     const wefti_hardware_t *hardware)
{
    static const wefti_hardware_t unknown = {.cpu = ""};
    if (cluster->host_count == WEFTI_TOPO_MAX_HOSTS) {
        return wefti_error(WEFT_ERR_FORMAT, "too many hosts: at most %u", WEFTI_TOPO_MAX_HOSTS);
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(cluster->arena.allocator, &cluster->hosts,
                                             &cluster->host_capacity, cluster->host_count + 1ul,
                                             sizeof *cluster->hosts));
    char *copy = wefti_arena_strdup(&cluster->arena, name);
    WEFT_RETURN_IF_NO_MEMORY(copy);
    cluster->hosts[cluster->host_count++] = (wefti_topo_host_t){
        .name = copy, .rack = WEFTI_TOPO_NONE, .hardware = hardware != NULL ? hardware : &unknown};
    return WEFT_OK;
}

weft_status_t wefti_cluster_set_ranks(wefti_cluster_t *cluster, const uint32_t *host_of,
                                      uint32_t rank_count)
{
    wefti_topo_rank_t *ranks = wefti_arena_array(&cluster->arena, rank_count, sizeof *ranks);
    uint32_t *lists = wefti_arena_array(&cluster->arena, rank_count, sizeof *lists);
    WEFT_RETURN_IF_NO_MEMORY(ranks && lists);
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        cluster->hosts[h].rank_count = 0;
    }
    for (uint32_t r = 0; r < rank_count; r++) {
        if (host_of[r] >= cluster->host_count) {
            return wefti_error(WEFT_ERR_FORMAT, "rank %u: invalid host %u of %u", r, host_of[r],
                               cluster->host_count);
        }
        cluster->hosts[host_of[r]].rank_count++;
        ranks[r] = (wefti_topo_rank_t){
            .host = host_of[r], .card = WEFTI_TOPO_NONE, .nic = WEFTI_TOPO_NONE};
    }
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        cluster->hosts[h].ranks = lists;
        lists += cluster->hosts[h].rank_count;
        cluster->hosts[h].rank_count = 0;
    }
    for (uint32_t r = 0; r < rank_count; r++) {
        wefti_topo_host_t *host = &cluster->hosts[host_of[r]];
        host->ranks[host->rank_count++] = r;
    }
    cluster->ranks = ranks;
    cluster->rank_count = rank_count;
    return WEFT_OK;
}

weft_status_t wefti_cluster_spread(wefti_cluster_t *cluster, uint32_t rank_count)
{
    uint64_t weight = 0, before = 0;
    if (cluster->host_count == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "no hosts for a world of %u ranks",
                           rank_count);
    }
    uint32_t *host_of = wefti_alloc(NULL, (rank_count + 1ul) * sizeof *host_of);
    WEFT_RETURN_IF_NO_MEMORY(host_of);
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        uint32_t cores = cluster->hosts[h].hardware->core_count;
        weight += cores > 0 ? cores : 1;
    }
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        uint32_t cores = cluster->hosts[h].hardware->core_count;
        uint64_t first = before * rank_count / weight;
        before += cores > 0 ? cores : 1;
        for (uint64_t r = first; r < before * rank_count / weight; r++) {
            host_of[r] = h;
        }
    }
    weft_status_t status = wefti_cluster_set_ranks(cluster, host_of, rank_count);
    wefti_free(NULL, host_of);
    return status;
}

/* Interfaces that carry what ranks send: those with a known speed, or with any link. */
static wefti_topo_link_t link_of(const wefti_hardware_t *hardware)
{
    uint64_t fastest = wefti_hardware_fastest(hardware);
    wefti_topo_link_t link = {.rails = 0};
    for (uint32_t i = 0; i < hardware->nic_count; i++) {
        const wefti_topo_device_t *nic = &hardware->nics[i];
        /* A slow one beside fast ones is for logging in. */
        if (!nic->down && nic->bits_per_s >= fastest / 2) {
            link.bits_per_s += nic->bits_per_s;
            link.rails++;
        }
    }
    link.rails = link.rails > 0 ? link.rails : 1;
    return link;
}

wefti_topo_link_t wefti_cluster_link(const wefti_cluster_t *cluster, uint32_t a, uint32_t b)
{
    const wefti_topo_link_t *common = NULL;
    for (uint32_t i = 0; i < cluster->link_count; i++) {
        const wefti_topo_link_t *link = &cluster->links[i];
        if ((link->hosts[0] == a && link->hosts[1] == b) ||
            (link->hosts[0] == b && link->hosts[1] == a)) {
            return *link;
        }
        common = link->hosts[0] == WEFTI_TOPO_NONE ? link : common;
    }
    if (common != NULL) {
        return *common;
    }
    wefti_topo_link_t of_a = link_of(cluster->hosts[a].hardware),
                      of_b = link_of(cluster->hosts[b].hardware);
    wefti_topo_link_t both = {.hosts = {a, b}};
    both.rails = of_a.rails < of_b.rails ? of_a.rails : of_b.rails;
    both.bits_per_s = of_a.bits_per_s < of_b.bits_per_s ? of_a.bits_per_s : of_b.bits_per_s;
    return both;
}

wefti_topo_link_t wefti_cluster_slowest_link(const wefti_cluster_t *cluster)
{
    wefti_topo_link_t slowest = {.hosts = {WEFTI_TOPO_NONE, WEFTI_TOPO_NONE}};
    uint32_t first = WEFTI_TOPO_NONE;
    bool all_pairs = cluster->link_count > 1 && cluster->host_count <= 256;
    for (uint32_t a = 0; a < cluster->host_count; a++) {
        if (cluster->hosts[a].rank_count == 0) {
            continue;
        }
        first = first == WEFTI_TOPO_NONE ? a : first;
        for (uint32_t b = all_pairs ? 0 : first; b < a; b = all_pairs ? b + 1 : a) {
            if (cluster->hosts[b].rank_count == 0) {
                continue;
            }
            wefti_topo_link_t link = wefti_cluster_link(cluster, a, b);
            if (slowest.bits_per_s == 0 ||
                (link.bits_per_s > 0 && link.bits_per_s < slowest.bits_per_s)) {
                slowest.bits_per_s = link.bits_per_s;
            }
            slowest.latency_ns =
                link.latency_ns > slowest.latency_ns ? link.latency_ns : slowest.latency_ns;
            slowest.rails =
                slowest.rails == 0 || link.rails < slowest.rails ? link.rails : slowest.rails;
        }
    }
    return slowest;
}

weft_status_t wefti_cluster_racks(const wefti_cluster_t *cluster, uint32_t *rack_of,
                                  uint32_t *out_count)
{
    uint32_t *number = wefti_alloc(NULL, (WEFTI_TOPO_MAX_RACKS + 1ul) * sizeof *number);
    WEFT_RETURN_IF_NO_MEMORY(number);
    *out_count = 0;
    for (uint32_t r = 0; r < cluster->rank_count; r++) {
        uint32_t rack = cluster->hosts[cluster->ranks[r].host].rack;
        uint32_t *at = &number[rack == WEFTI_TOPO_NONE ? WEFTI_TOPO_MAX_RACKS : rack];
        *at = *at == 0 ? ++*out_count : *at;
        rack_of[r] = *at - 1;
    }
    wefti_free(NULL, number);
    return WEFT_OK;
}

weft_status_t wefti_cluster_placement_digest(const wefti_cluster_t *cluster,
                                             wefti_digest_t *out_digest)
{
    uint32_t n = cluster->rank_count, racks = 0;
    uint64_t *numbers = wefti_alloc(NULL, (2ul * n + 1) * sizeof *numbers);
    uint32_t *rack_of = wefti_alloc(NULL, (n + 1ul) * sizeof *rack_of);
    weft_status_t status = numbers != NULL && rack_of != NULL
                               ? wefti_cluster_racks(cluster, rack_of, &racks)
                               : WEFT_ERR_NO_MEMORY;
    if (status >= 0) {
        numbers[0] = htole64(n);
        for (uint32_t r = 0; r < n; r++) {
            /* hosts are known by their lowest rank */
            numbers[1 + r] = htole64(cluster->hosts[cluster->ranks[r].host].ranks[0]);
            numbers[1 + n + r] = htole64(rack_of[r]);
        }
        size_t count = 1 + (size_t)n * (racks > 1 ? 2 : 1);
        status = wefti_digest_of(numbers, count * sizeof *numbers, out_digest);
    }
    wefti_free(NULL, rack_of);
    wefti_free(NULL, numbers);
    return status;
}

static uint32_t count_racks(const wefti_cluster_t *cluster)
{
    uint32_t racks = 0, *rack_of = wefti_alloc(NULL, (cluster->rank_count + 1ul) * sizeof *rack_of);
    bool known = rack_of != NULL && wefti_cluster_racks(cluster, rack_of, &racks) >= 0;
    wefti_free(NULL, rack_of);
    return known ? racks : 0;
}

const char *wefti_cluster_summary(const wefti_cluster_t *cluster, char *buffer, size_t bytes)
{
    uint32_t used = 0, first = 0, runs = 0;
    bool even = true;
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        uint32_t count = cluster->hosts[h].rank_count;
        even = even && (count == 0 || first == 0 || count == first);
        first = first == 0 ? count : first;
        used += count > 0;
    }
    for (uint32_t r = 0; r < cluster->rank_count; r++) {
        runs += r == 0 || cluster->ranks[r].host != cluster->ranks[r - 1].host;
    }
    const char *dealt = runs > used ? ", round-robin" : "";
    if (used <= 1) {
        snprintf(buffer, bytes, "1 host, %u rank%s", cluster->rank_count,
                 cluster->rank_count == 1 ? "" : "s");
    } else if (even) {
        snprintf(buffer, bytes, "%u hosts x %u rank%s%s", used, first, first == 1 ? "" : "s",
                 dealt);
    } else {
        size_t at = (size_t)snprintf(buffer, bytes, "%u hosts, ", used);
        uint32_t listed = 0;
        for (uint32_t h = 0; h < cluster->host_count && at + 40 < bytes; h++) {
            if (cluster->hosts[h].rank_count > 0 && listed++ < 8) {
                at += (size_t)snprintf(buffer + at, bytes - at, "%s%u", listed > 1 ? " + " : "",
                                       cluster->hosts[h].rank_count);
            }
        }
        snprintf(buffer + at, bytes - at, "%s ranks%s", listed < used ? " + .." : "", dealt);
    }
    uint32_t racks = count_racks(cluster);
    size_t end = strlen(buffer);
    if (racks > 1) {
        snprintf(buffer + end, bytes - end, ", %u racks", racks);
    }
    return buffer;
}

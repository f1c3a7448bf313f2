/* SPDX-License-Identifier: Apache-2.0 */
/* Cores for ranks. nics.c chooses their network interfaces. */
#include "runtime/machine/place.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* Looking for the best spread takes time with the square of the ranks. */
#define MOST_SPREAD 1024u

/* What cores may be divided by, from the outside in. */
typedef enum level { SOCKETS, NUMAS, L3S, L2S, CORES } level_t;

/* Where the search for one rank's share is: cores [first, first + count) of the usable ones. */
typedef struct share {
    uint32_t first, count;
} share_t;

typedef struct placer {
    const wefti_hardware_t *hardware;
    wefti_arena_t *arena;
    uint32_t *usable; /* cores with an allowed processor, in the machine's order */
    uint32_t usable_count;
    uint8_t *allowed; /* [position in hardware->cpus] */
} placer_t;

static uint32_t part_of(const wefti_topo_core_t *core, level_t level)
{
    return level == SOCKETS ? core->socket
           : level == NUMAS ? core->numa
           : level == L3S   ? core->l3
                            : core->l2;
}

/* The end of the run of usable cores from at on that share a part. */
static uint32_t run_end(const placer_t *placer, level_t level, uint32_t at, uint32_t end)
{
    const wefti_topo_core_t *cores = placer->hardware->cores;
    if (level == CORES) {
        return at + 1;
    }
    uint32_t part = part_of(&cores[placer->usable[at]], level), to = at + 1;
    while (to < end && part_of(&cores[placer->usable[to]], level) == part) {
        to++;
    }
    return to;
}

static uint32_t run_count(const placer_t *placer, level_t level, share_t share)
{
    uint32_t runs = 0, end = share.first + share.count;
    for (uint32_t at = share.first; at < end; at = run_end(placer, level, at, end)) {
        runs++;
    }
    return runs;
}

/* Of count ranks on runs of cores: those of each go by how many cores are before it. */
static bool step_into_run(const placer_t *placer, level_t level, share_t *share, uint32_t *index,
                          uint32_t *count)
{
    uint32_t end = share->first + share->count, total = share->count, base = share->first;
    for (uint32_t at = share->first, to; at < end; at = to) {
        to = run_end(placer, level, at, end);
        uint32_t first = (uint32_t)((uint64_t)(at - base) * *count / total),
                 next = (uint32_t)((uint64_t)(to - base) * *count / total);
        if (*index >= first && *index < next) {
            *share = (share_t){at, to - at};
            *index -= first;
            *count = next - first;
            return true;
        }
    }
    return false;
}

/* Fewer ranks than runs: as many whole runs for each as come out even. */
static void take_runs(const placer_t *placer, level_t level, share_t *share, uint32_t index,
                      uint32_t count, uint32_t runs)
{
    uint32_t from = (uint32_t)((uint64_t)index * runs / count),
             to = (uint32_t)((uint64_t)(index + 1) * runs / count);
    uint32_t end = share->first + share->count, run = 0, first = share->first, last = end;
    for (uint32_t at = share->first; at < end; run++) {
        first = run == from ? at : first;
        at = run_end(placer, level, at, end);
        last = run + 1 == to ? at : last;
    }
    *share = (share_t){first, last - first};
}

/* The cores of rank index of count, spread from the outside in. */
static share_t spread(const placer_t *placer, uint32_t index, uint32_t count)
{
    share_t share = {0, placer->usable_count};
    for (level_t level = SOCKETS; level <= CORES && count > 1; level++) {
        uint32_t runs = run_count(placer, level, share);
        if (runs <= 1) {
            continue;
        }
        if (count < runs) {
            take_runs(placer, level, &share, index, count, runs);
            return share;
        }
        if (!step_into_run(placer, level, &share, &index, &count)) {
            break;
        }
    }
    return share;
}

/* Equal shares: as many cores as the rank with the fewest has, unless that wastes too many. */
static share_t share_of(const placer_t *placer, uint32_t index, uint32_t count)
{
    uint32_t even = placer->usable_count / count, least = UINT32_MAX;
    if (count > MOST_SPREAD) {
        return (share_t){index * even, even};
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t cores = spread(placer, i, count).count;
        least = cores < least ? cores : least;
    }
    if ((uint64_t)least * 4 < (uint64_t)even * 3) {
        return (share_t){index * even, even};
    }
    share_t share = spread(placer, index, count);
    share.count = least < even ? least : even;
    return share;
}

static weft_status_t find_usable(placer_t *placer, const uint32_t *allowed, uint32_t allowed_count)
{
    const wefti_hardware_t *h = placer->hardware;
    placer->usable = wefti_arena_array(placer->arena, h->core_count + 1ul, sizeof(uint32_t));
    placer->allowed = wefti_arena_array(placer->arena, h->cpu_count + 1ul, 1);
    uint8_t *bits = wefti_arena_array(placer->arena, allowed != NULL ? WEFTI_TOPO_MAX_CPUS : 1, 1);
    if (placer->usable == NULL || placer->allowed == NULL || bits == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; allowed != NULL && i < allowed_count; i++) {
        if (allowed[i] < WEFTI_TOPO_MAX_CPUS) {
            bits[allowed[i]] = 1;
        }
    }
    for (uint32_t c = 0; c < h->core_count; c++) {
        const wefti_topo_core_t *core = &h->cores[c];
        bool any = false;
        for (uint32_t t = core->first_cpu; t < core->first_cpu + core->cpu_count; t++) {
            placer->allowed[t] = allowed == NULL || bits[h->cpus[t]] != 0;
            any = any || placer->allowed[t] != 0;
        }
        if (any) {
            placer->usable[placer->usable_count++] = c;
        }
    }
    return WEFT_OK;
}

/* The nth allowed processor of a core, or WEFTI_TOPO_NONE. */
static uint32_t nth_cpu(const placer_t *placer, uint32_t core, uint32_t nth)
{
    const wefti_topo_core_t *it = &placer->hardware->cores[core];
    for (uint32_t t = it->first_cpu; t < it->first_cpu + it->cpu_count; t++) {
        if (placer->allowed[t] != 0 && nth-- == 0) {
            return placer->hardware->cpus[t];
        }
    }
    return WEFTI_TOPO_NONE;
}

/* More ranks than cores: first threads, then second ones, then all over again. */
static uint32_t shared_cpu(const placer_t *placer, uint32_t index)
{
    uint32_t total = 0;
    for (uint32_t t = 0; t < placer->hardware->cpu_count; t++) {
        total += placer->allowed[t];
    }
    index %= total;
    for (uint32_t nth = 0;; nth++) {
        for (uint32_t u = 0; u < placer->usable_count; u++) {
            uint32_t cpu = nth_cpu(placer, placer->usable[u], nth);
            if (cpu != WEFTI_TOPO_NONE && index-- == 0) {
                return cpu;
            }
        }
    }
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* All allowed processors of the NUMA nodes that the share's cores are on. */
static uint32_t widen(const placer_t *placer, share_t share, uint32_t *cpus)
{
    const wefti_hardware_t *h = placer->hardware;
    uint32_t count = 0;
    for (uint32_t c = 0; c < h->core_count; c++) {
        bool wanted = false;
        for (uint32_t u = share.first; u < share.first + share.count && !wanted; u++) {
            wanted = h->cores[placer->usable[u]].numa == h->cores[c].numa;
        }
        for (uint32_t t = 0; wanted && t < h->cores[c].cpu_count; t++) {
            if (placer->allowed[h->cores[c].first_cpu + t] != 0) {
                cpus[count++] = h->cpus[h->cores[c].first_cpu + t];
            }
        }
    }
    return count;
}

weft_status_t wefti_place_cpus(const wefti_hardware_t *hardware, const uint32_t *allowed,
                               uint32_t allowed_count, uint32_t index, uint32_t count,
                               wefti_bind_t bind, wefti_arena_t *arena, uint32_t **out_cpus,
                               uint32_t *out_count)
{
    placer_t placer = {.hardware = hardware, .arena = arena};
    *out_cpus = NULL;
    *out_count = 0;
    if (bind == WEFTI_BIND_NONE || index >= count) {
        return WEFT_OK;
    }
    weft_status_t status = find_usable(&placer, allowed, allowed_count);
    uint32_t *cpus =
        status >= 0 ? wefti_arena_array(arena, hardware->cpu_count + 1ul, sizeof *cpus) : NULL;
    if (status < 0 || cpus == NULL || placer.usable_count == 0) {
        return status < 0 ? status : cpus == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    }
    bool crowded = count > placer.usable_count;
    share_t share = {0, 0};
    if (crowded) {
        cpus[0] = shared_cpu(&placer, index);
        *out_count = 1;
    } else {
        share = share_of(&placer, index, count);
        for (uint32_t i = 0; i < share.count; i++) {
            cpus[i] = nth_cpu(&placer, placer.usable[share.first + i], 0);
        }
        *out_count = share.count;
    }
    if (bind == WEFTI_BIND_NUMA) {
        uint32_t core = crowded ? wefti_hardware_core_of(hardware, cpus[0]) : 0;
        for (uint32_t u = 0; crowded && u < placer.usable_count; u++) {
            share = placer.usable[u] == core ? (share_t){u, 1} : share;
        }
        *out_count = widen(&placer, share, cpus);
    }
    qsort(cpus, *out_count, sizeof *cpus, compare);
    *out_cpus = cpus;
    return WEFT_OK;
}

weft_status_t wefti_place_all(wefti_cluster_t *cluster, wefti_bind_t bind)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        const wefti_topo_host_t *host = &cluster->hosts[h];
        for (uint32_t i = 0; i < host->rank_count && status >= 0; i++) {
            wefti_topo_rank_t *rank = &cluster->ranks[host->ranks[i]];
            if (rank->cpu_count == 0 && host->hardware->core_count > 0) {
                wefti_arena_t scratch;
                uint32_t *cpus, count;
                wefti_arena_init(&scratch, NULL, 0);
                status = wefti_place_cpus(host->hardware, NULL, 0, i, host->rank_count, bind,
                                          &scratch, &cpus, &count);
                if (status >= 0 && count > 0) {
                    rank->cpus = wefti_arena_memdup(&cluster->arena, cpus, count * sizeof *cpus);
                    rank->cpu_count = rank->cpus != NULL ? count : 0;
                    status = rank->cpus != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
                }
                wefti_arena_deinit(&scratch);
            }
        }
    }
    return status;
}

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

/* A processor that ranks may get. */
typedef struct slot {
    uint32_t core, cpu;
} slot_t;

typedef struct placer {
    const wefti_hardware_t *hardware;
    wefti_arena_t arena;
    slot_t *slots; /* first processors of all cores, then second ones, in the machine's order */
    uint32_t slot_count;
    uint32_t core_count; /* of which slots are the first */
} placer_t;

/* Where the search for one rank's share is: slots [first, first + count). */
typedef struct share {
    uint32_t first, count;
} share_t;

/* The part that slot at is in. */
static uint32_t part_of(const placer_t *placer, level_t level, uint32_t at)
{
    const wefti_topo_core_t *core = &placer->hardware->cores[placer->slots[at].core];
    return level == SOCKETS ? core->socket
           : level == NUMAS ? core->numa
           : level == L3S   ? core->l3
           : level == L2S   ? core->l2
                            : placer->slots[at].core;
}

/* The end of the run of slots from at on that share a part. */
static uint32_t run_end(const placer_t *placer, level_t level, uint32_t at, uint32_t end)
{
    uint32_t to = at + 1;
    while (to < end && part_of(placer, level, to) == part_of(placer, level, at)) {
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
    uint32_t end = share->first + share->count;
    for (uint32_t at = share->first, to; at < end; at = to) {
        to = run_end(placer, level, at, end);
        uint32_t first = (uint32_t)((uint64_t)(at - share->first) * *count / share->count),
                 next = (uint32_t)((uint64_t)(to - share->first) * *count / share->count);
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
    share_t share = {0, placer->core_count};
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
    uint32_t even = placer->core_count / count, least = UINT32_MAX;
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

/* allowed NULL: all processors are. */
static weft_status_t find_slots(placer_t *placer, const uint32_t *allowed, uint32_t allowed_count)
{
    const wefti_hardware_t *h = placer->hardware;
    placer->slots = wefti_arena_array(&placer->arena, h->cpu_count + 1ul, sizeof *placer->slots);
    uint8_t *is_allowed = wefti_arena_array(&placer->arena, WEFTI_TOPO_MAX_CPUS, 1);
    WEFT_RETURN_IF_NO_MEMORY(placer->slots && is_allowed);
    memset(is_allowed, allowed == NULL, WEFTI_TOPO_MAX_CPUS);
    for (uint32_t i = 0; allowed != NULL && i < allowed_count; i++) {
        if (allowed[i] < WEFTI_TOPO_MAX_CPUS) {
            is_allowed[allowed[i]] = 1;
        }
    }
    for (uint32_t nth = 0, before = UINT32_MAX; placer->slot_count != before; nth++) {
        before = placer->slot_count;
        for (uint32_t c = 0; c < h->core_count; c++) {
            const uint32_t *cpus = &h->cpus[h->cores[c].first_cpu];
            for (uint32_t t = 0, seen = 0; t < h->cores[c].cpu_count; t++) {
                if (is_allowed[cpus[t]] && seen++ == nth) {
                    placer->slots[placer->slot_count++] = (slot_t){c, cpus[t]};
                }
            }
        }
        placer->core_count = nth == 0 ? placer->slot_count : placer->core_count;
    }
    return WEFT_OK;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* All processors of the NUMA nodes that the share's cores are on. */
static uint32_t widen(const placer_t *placer, share_t share, uint32_t *cpus)
{
    uint32_t count = 0;
    const wefti_topo_core_t *cores = placer->hardware->cores;
    for (uint32_t s = 0; s < placer->slot_count; s++) {
        uint32_t u = share.first, end = share.first + share.count;
        while (u < end && cores[placer->slots[u].core].numa != cores[placer->slots[s].core].numa) {
            u++;
        }
        if (u < end) {
            cpus[count++] = placer->slots[s].cpu;
        }
    }
    return count;
}

weft_status_t wefti_place_cpus(const wefti_hardware_t *hardware, const uint32_t *allowed,
                               uint32_t allowed_count, uint32_t index, uint32_t count,
                               wefti_bind_t bind, wefti_arena_t *arena, uint32_t **out_cpus,
                               uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    placer_t placer = {.hardware = hardware};
    *out_cpus = NULL;
    *out_count = 0;
    if (bind == WEFTI_BIND_NONE || index >= count) {
        return WEFT_OK;
    }
    wefti_arena_init(&placer.arena, NULL, 0);
    WEFT_TRY(status, find_slots(&placer, allowed, allowed_count), out);
    uint32_t *cpus = wefti_arena_array(&placer.arena, placer.slot_count + 1ul, sizeof *cpus);
    WEFT_TRY(status, cpus != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, out);
    if (placer.slot_count > 0) {
        /* More ranks than cores: first threads, then second ones, then all over again. */
        share_t share = count > placer.core_count ? (share_t){index % placer.slot_count, 1}
                                                  : share_of(&placer, index, count);
        uint32_t found = bind == WEFTI_BIND_NUMA ? widen(&placer, share, cpus) : share.count;
        for (uint32_t i = 0; i < found && bind != WEFTI_BIND_NUMA; i++) {
            cpus[i] = placer.slots[share.first + i].cpu;
        }
        qsort(cpus, found, sizeof *cpus, compare);
        *out_cpus = wefti_arena_memdup(arena, cpus, found * sizeof *cpus);
        WEFT_TRY(status, *out_cpus != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, out);
        *out_count = found;
    }
out:
    wefti_arena_deinit(&placer.arena);
    return status;
}

weft_status_t wefti_place_all(wefti_cluster_t *cluster, wefti_bind_t bind)
{
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        const wefti_topo_host_t *host = &cluster->hosts[h];
        for (uint32_t i = 0; i < host->rank_count && host->hardware->core_count > 0; i++) {
            wefti_topo_rank_t *rank = &cluster->ranks[host->ranks[i]];
            if (rank->cpu_count == 0) {
                WEFT_RETURN_IF_ERROR(wefti_place_cpus(host->hardware, NULL, 0, i, host->rank_count,
                                                      bind, &cluster->arena, &rank->cpus,
                                                      &rank->cpu_count));
            }
        }
    }
    return WEFT_OK;
}

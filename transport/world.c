/* SPDX-License-Identifier: Apache-2.0 */
/* Once the ranks have joined: compares settings, and finds out which ranks have a core of their
 * own. */
#include "transport/world.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/machine/machine.h"
#include "transport/endpoint.h"

typedef struct introduction {
    uint64_t reserve_bytes; /* the settings flagged collective */
    uint64_t kernels;
    uint64_t machine;    /* whose processors they are, however its hosts are distinguished */
    cpu_set_t cpus;      /* where this rank may run */
    uint32_t quota_cpus; /* processor time its control group may use, 0: no limit */
    uint32_t pad;
} introduction_t;

static void introduce(const wefti_endpoint_t *endpoint, introduction_t *own)
{
    char machine[64];
    memset(own, 0, sizeof *own);
    wefti_machine_key(machine, sizeof machine);
    own->reserve_bytes = endpoint->settings->reserve_bytes;
    own->kernels = endpoint->settings->kernels;
    own->machine = wefti_hash_text(WEFTI_HASH_START, machine);
    own->quota_cpus = wefti_machine_quota();
    if (sched_getaffinity(0, sizeof own->cpus, &own->cpus) != 0) {
        CPU_ZERO(&own->cpus);
        CPU_SET(0, &own->cpus);
    }
}

/* Takes the lowest free processor that the rank may use. */
static bool take_cpu(const cpu_set_t *cpus, cpu_set_t *taken)
{
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, cpus) && !CPU_ISSET(cpu, taken)) {
            CPU_SET(cpu, taken);
            return true;
        }
    }
    return false;
}

/*
 * Can every rank have a processor of its own? Ranks with the fewest choices choose first, which is
 * exact when masks are equal, disjoint or nested, and errs towards not spinning otherwise.
 */
static bool cpus_for_all(const introduction_t *all, uint32_t count)
{
    cpu_set_t taken;
    CPU_ZERO(&taken);
    uint32_t served = 0;
    for (int choices = 1; served < count && choices <= CPU_SETSIZE; choices++) {
        for (uint32_t r = 0; r < count; r++) {
            if (CPU_COUNT(&all[r].cpus) != choices) {
                continue;
            }
            if (!take_cpu(&all[r].cpus, &taken)) {
                return false;
            }
            served++;
        }
    }
    return true;
}

/* The ranks on this rank's machine come first; returns their number. */
static uint32_t gather_neighbours(const wefti_endpoint_t *endpoint, introduction_t *all)
{
    uint64_t machine = all[endpoint->rank].machine;
    uint32_t count = 0;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if (all[r].machine == machine) {
            all[count++] = all[r];
        }
    }
    return count;
}

static void share_cores(wefti_endpoint_t *endpoint, introduction_t *all)
{
    uint32_t count = gather_neighbours(endpoint, all);
    cpu_set_t together;
    CPU_ZERO(&together);
    endpoint->local_rank_count = count;
    if (endpoint->inner != NULL) {
        endpoint->inner->local_rank_count = count; /* they share its memory as well */
    }
    for (uint32_t r = 0; r < count; r++) {
        CPU_OR(&together, &together, &all[r].cpus);
    }
    uint32_t cpus = (uint32_t)CPU_COUNT(&together);
    uint32_t quota = all[0].quota_cpus;
    cpus = quota != 0 && quota < cpus ? quota : cpus;
    endpoint->crowded = cpus < count || !cpus_for_all(all, count);
    endpoint->may_spin = !endpoint->crowded;
    endpoint->free_cores = endpoint->may_spin ? cpus / count - 1 : 0;
    if (endpoint->settings->progress == WEFT_PROGRESS_THREAD && endpoint->free_cores == 0) {
        /* A progress thread that spins would keep its own rank's kernels from running. */
        endpoint->may_spin = false;
    }
}

static weft_status_t compare(const wefti_endpoint_t *endpoint, const introduction_t *all)
{
    for (uint32_t r = 1; r < endpoint->world_size; r++) {
        if (all[r].reserve_bytes != all[0].reserve_bytes) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "WEFT_RESERVE_BYTES differs: rank 0 has %llu, rank %u has %llu",
                               (unsigned long long)all[0].reserve_bytes, r,
                               (unsigned long long)all[r].reserve_bytes);
        }
        if (all[r].kernels != all[0].kernels) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "WEFT_KERNELS differs: rank 0 has %s, rank %u has %s",
                               wefti_kernels_name((wefti_kernels_t)all[0].kernels), r,
                               wefti_kernels_name((wefti_kernels_t)all[r].kernels));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_world_agree(wefti_endpoint_t *endpoint)
{
    introduction_t own;
    introduction_t *all = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *all);
    weft_status_t status = all == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    introduce(endpoint, &own);
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), done);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, &own, sizeof own, all), done);
    WEFT_TRY(status, compare(endpoint, all), done);
    share_cores(endpoint, all);
done:
    wefti_free(endpoint->allocator, all);
    return status;
}

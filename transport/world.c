/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks settle once they have joined: equal settings, and who has a core of its own. */
#include "transport/world.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/machine/machine.h"
#include "transport/endpoint.h"

#define MASK_WORDS (CPU_SETSIZE / 64)

typedef struct introduction {
    uint64_t reserve_bytes; /* the settings flagged collective */
    uint64_t kernels;
    uint64_t machine;          /* whose processors they are, however its hosts are told apart */
    uint64_t cpus[MASK_WORDS]; /* where this rank may run */
    uint32_t quota_cpus;       /* processor time its control group may use, 0: no limit */
    uint32_t pad;
} introduction_t;

static uint64_t read_machine(void)
{
    char text[64];
    wefti_machine_key(text, sizeof text);
    return wefti_hash_text(WEFTI_HASH_START, text);
}

static void introduce(const wefti_endpoint_t *endpoint, introduction_t *own)
{
    cpu_set_t set;
    memset(own, 0, sizeof *own);
    own->reserve_bytes = endpoint->settings->reserve_bytes;
    own->kernels = endpoint->settings->kernels;
    own->machine = read_machine();
    own->quota_cpus = wefti_machine_quota();
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        CPU_ZERO(&set);
        CPU_SET(0, &set);
    }
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set)) {
            own->cpus[cpu / 64] |= 1ull << (cpu % 64);
        }
    }
}

static uint32_t count_bits(const uint64_t *mask)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < MASK_WORDS; i++) {
        count += (uint32_t)__builtin_popcountll(mask[i]);
    }
    return count;
}

/* Gives the rank the lowest free processor it may use. */
static bool take_cpu(const uint64_t *mask, uint64_t *taken)
{
    for (uint32_t i = 0; i < MASK_WORDS; i++) {
        uint64_t available = mask[i] & ~taken[i];
        if (available != 0) {
            taken[i] |= available & (~available + 1);
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
    uint64_t taken[MASK_WORDS] = {0};
    for (uint32_t choices = 1, served = 0; served < count && choices <= CPU_SETSIZE; choices++) {
        for (uint32_t r = 0; r < count; r++) {
            if (count_bits(all[r].cpus) != choices) {
                continue;
            }
            if (!take_cpu(all[r].cpus, taken)) {
                return false;
            }
            served++;
        }
    }
    return true;
}

/* The ranks on this rank's machine come first; returns how many they are. */
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
    uint64_t together[MASK_WORDS] = {0};
    uint32_t count = gather_neighbours(endpoint, all);
    endpoint->local_rank_count = count;
    if (endpoint->inner != NULL) {
        endpoint->inner->local_rank_count = count; /* they share its memory, too */
    }
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t i = 0; i < MASK_WORDS; i++) {
            together[i] |= all[r].cpus[i];
        }
    }
    uint32_t cpus = count_bits(together);
    uint32_t quota = all[0].quota_cpus;
    cpus = quota != 0 && quota < cpus ? quota : cpus;
    endpoint->may_spin = cpus >= count && cpus_for_all(all, count);
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
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK);
    if (status == WEFT_OK) {
        introduce(endpoint, &own);
        status = wefti_endpoint_all_gather(endpoint, &own, sizeof own, all);
    }
    if (status == WEFT_OK) {
        status = compare(endpoint, all);
    }
    if (status == WEFT_OK) {
        share_cores(endpoint, all);
    }
    wefti_free(endpoint->allocator, all);
    return status;
}

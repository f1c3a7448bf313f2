/* SPDX-License-Identifier: Apache-2.0 */
/* Threads and memory where they belong: what runtime/machine/place.h chooses, told to the system.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/machine/machine.h"

#define MOST_NODES 1024u
#define POLICY_PREFERRED 1 /* MPOL_PREFERRED: another node rather than none */

uint32_t wefti_binding_read(uint32_t cpus[WEFTI_AFFINITY_CPUS])
{
    cpu_set_t set[WEFTI_AFFINITY_CPUS / CPU_SETSIZE];
    uint32_t count = 0;
    if (sched_getaffinity(0, sizeof set, set) != 0) {
        return 0;
    }
    for (uint32_t cpu = 0; cpu < WEFTI_AFFINITY_CPUS; cpu++) {
        if (CPU_ISSET_S(cpu, sizeof set, set)) {
            cpus[count++] = cpu;
        }
    }
    return count;
}

/* Without hwloc every processor is a core. */
static weft_status_t plain_hardware(const uint32_t *cpus, uint32_t count, wefti_arena_t *arena,
                                    wefti_hardware_t *out)
{
    wefti_regular_t shape = {.sockets = 1, .numas = 1, .cores = count, .threads = 1};
    WEFT_RETURN_IF_ERROR(wefti_hardware_make(&shape, arena, out));
    memcpy(out->cpus, cpus, count * sizeof *cpus);
    return WEFT_OK;
}

/* True when each of the processors is on one of the machine's cores. */
static bool knows_all(const wefti_hardware_t *hardware, const uint32_t *cpus, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (wefti_hardware_core_of(hardware, cpus[i]) == WEFTI_TOPO_NONE) {
            return false;
        }
    }
    return true;
}

weft_status_t wefti_binding_choose(uint32_t index, uint32_t count, wefti_bind_t bind,
                                   wefti_arena_t *arena, uint32_t **out_cpus, uint32_t *out_count)
{
    uint32_t allowed[WEFTI_AFFINITY_CPUS], allowed_count = wefti_binding_read(allowed);
    wefti_hardware_t hardware;
    if (wefti_hardware_discover(false, arena, &hardware) < 0 ||
        !knows_all(&hardware, allowed, allowed_count)) {
        WEFT_RETURN_IF_ERROR(plain_hardware(allowed, allowed_count, arena, &hardware));
    }
    return wefti_place_cpus(&hardware, allowed, allowed_count, index, count, bind, arena, out_cpus,
                            out_count);
}

weft_status_t wefti_pin_thread(const uint32_t *cpus, uint32_t cpu_count)
{
    cpu_set_t set[WEFTI_AFFINITY_CPUS / CPU_SETSIZE];
    CPU_ZERO_S(sizeof set, set);
    for (uint32_t i = 0; i < cpu_count; i++) {
        if (cpus[i] >= CPU_SETSIZE && cpus[i] >= (uint32_t)sysconf(_SC_NPROCESSORS_CONF)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "cpu %u: no such processor on this machine", cpus[i]);
        }
        CPU_SET_S(cpus[i], sizeof set, set);
    }
    return sched_setaffinity(0, sizeof set, set) == 0
               ? WEFT_OK
               : wefti_error(WEFT_ERR_SYSTEM, "sched_setaffinity failed for a set of %u processors",
                             cpu_count);
}

weft_status_t wefti_binding_apply(uint32_t index, uint32_t count, wefti_bind_t bind)
{
    wefti_arena_t arena;
    uint32_t *cpus, found = 0;
    if (bind == WEFTI_BIND_NONE) {
        return WEFT_OK;
    }
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_binding_choose(index, count, bind, &arena, &cpus, &found);
    if (status >= 0 && found > 0) {
        status = wefti_pin_thread(cpus, found);
    }
    wefti_arena_deinit(&arena);
    return status;
}

/* Are all of cpus in the list? Both are growing. */
static bool all_within(const uint32_t *cpus, uint32_t count, const uint32_t *list, uint32_t length)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < length && found < count; i++) {
        found += list[i] == cpus[found];
    }
    return found == count;
}

int wefti_binding_node(const char *root)
{
    char text[4096];
    wefti_arena_t arena;
    uint32_t *nodes, node_count = 0, cpus[WEFTI_AFFINITY_CPUS], count = 0, *list, length;
    int found = -1;
    wefti_arena_init(&arena, NULL, 0);
    if (wefti_read_line(text, sizeof text, "%s/devices/system/node/online", root) &&
        wefti_cpulist_parse(text, MOST_NODES, &arena, &nodes, &node_count) == WEFT_OK &&
        node_count > 1 && (count = wefti_binding_read(cpus)) > 0) {
        for (uint32_t n = 0; n < node_count && found < 0; n++) {
            if (wefti_read_line(text, sizeof text, "%s/devices/system/node/node%u/cpulist", root,
                                nodes[n]) &&
                wefti_cpulist_parse(text, WEFTI_TOPO_MAX_CPUS, &arena, &list, &length) == WEFT_OK &&
                all_within(cpus, count, list, length)) {
                found = (int)nodes[n];
            }
        }
    }
    wefti_arena_deinit(&arena);
    return found;
}

void wefti_binding_prefer_near(void *address, size_t bytes)
{
    unsigned long mask[MOST_NODES / (8 * sizeof(unsigned long))] = {0};
    int node = wefti_binding_node("/sys");
    if (node >= 0 && bytes > 0) {
        size_t bits = 8 * sizeof *mask;
        mask[(size_t)node / bits] = 1ul << ((size_t)node % bits);
        /* A refusal (seccomp, no such call) leaves memory where the system puts it. */
        (void)syscall(SYS_mbind, address, bytes, POLICY_PREFERRED, mask, MOST_NODES + 1ul, 0u);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as hwloc sees it. The only file that includes hwloc. */
#include "transport/transport.h"

#include <hwloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"

static weft_status_t load(hwloc_topology_t *out_topology)
{
    hwloc_topology_t topology;
    *out_topology = NULL;
    if (hwloc_topology_init(&topology) != 0) {
        return wefti_error(WEFT_ERR_SYSTEM, "hwloc cannot be initialised");
    }
    if (hwloc_topology_load(topology) != 0) {
        hwloc_topology_destroy(topology);
        return wefti_error(WEFT_ERR_SYSTEM, "hwloc cannot read this machine's topology");
    }
    *out_topology = topology;
    return WEFT_OK;
}

static uint32_t count_of(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(topology, type);
    return count > 0 ? (uint32_t)count : 0;
}

static uint64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    return cache != NULL && cache->attr != NULL ? cache->attr->cache.size : 0;
}

weft_status_t wefti_machine_read(wefti_machine_t *out_machine)
{
    hwloc_topology_t topology;
    weft_status_t status = load(&topology);
    if (status < 0) {
        return status;
    }
    wefti_machine_t machine = {0};
    machine.socket_count = count_of(topology, HWLOC_OBJ_PACKAGE);
    machine.numa_count = count_of(topology, HWLOC_OBJ_NUMANODE);
    machine.core_count = count_of(topology, HWLOC_OBJ_CORE);
    machine.pu_count = count_of(topology, HWLOC_OBJ_PU);
    machine.l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE);
    machine.l3_bytes = cache_bytes(topology, HWLOC_OBJ_L3CACHE);
    /* Not hwloc's sum over nodes: memory added while the machine runs is missing there. */
    machine.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    snprintf(machine.cpu_name, sizeof machine.cpu_name, "%s", name != NULL ? name : "unknown");
    hwloc_topology_destroy(topology);
    /* Small or odd machines leave levels out; a machine has at least one of each. */
    machine.pu_count = machine.pu_count != 0 ? machine.pu_count : 1;
    machine.core_count = machine.core_count != 0 ? machine.core_count : machine.pu_count;
    machine.numa_count = machine.numa_count != 0 ? machine.numa_count : 1;
    machine.socket_count = machine.socket_count != 0 ? machine.socket_count : 1;
    *out_machine = machine;
    return WEFT_OK;
}

/*
 * The caller's processors in the machine's order, so that neighbours in the list share caches. A
 * core whose second hardware thread is also allowed comes once with its first, all second threads
 * after all first ones: ranks get cores before they get halves of cores.
 */
static uint32_t list_allowed(uint32_t *cpus, const cpu_set_t *allowed)
{
    hwloc_topology_t topology;
    uint32_t count = 0;
    if (load(&topology) == WEFT_OK) {
        cpu_set_t listed;
        CPU_ZERO(&listed);
        for (uint32_t thread = 0, found = 1; found != 0 && thread < 16; thread++) {
            found = 0;
            for (hwloc_obj_t core = NULL;
                 (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != NULL;) {
                uint32_t nth = 0;
                int cpu;
                for (cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
                     cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
                    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, allowed) && nth++ == thread) {
                        break;
                    }
                }
                if (cpu >= 0 && !CPU_ISSET(cpu, &listed)) {
                    CPU_SET(cpu, &listed);
                    cpus[count++] = (uint32_t)cpu;
                    found++;
                }
            }
        }
        hwloc_topology_destroy(topology);
        if (count == (uint32_t)CPU_COUNT(allowed)) {
            return count;
        }
    }
    count = 0;
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, allowed)) {
            cpus[count++] = cpu;
        }
    }
    return count;
}

uint32_t wefti_machine_cpus_of_rank(uint32_t rank, uint32_t count, uint32_t *out_cpus,
                                    uint32_t capacity)
{
    cpu_set_t allowed;
    uint32_t cpus[CPU_SETSIZE];
    if (count == 0 || rank >= count || sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return 0;
    }
    uint32_t available = list_allowed(cpus, &allowed);
    if (available == 0 || capacity == 0) {
        return 0;
    }
    if (count >= available) {
        out_cpus[0] = cpus[rank % available];
        return 1;
    }
    /* An equal share for everyone; what does not divide stays free for the rest of the machine. */
    uint32_t share = available / count;
    uint32_t filled = 0;
    for (; filled < share && filled < capacity; filled++) {
        out_cpus[filled] = cpus[rank * share + filled];
    }
    return filled;
}

weft_status_t wefti_pin_thread(const uint32_t *cpus, uint32_t cpu_count)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < cpu_count; i++) {
        if (cpus[i] >= CPU_SETSIZE) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "processor %u does not exist", cpus[i]);
        }
        CPU_SET(cpus[i], &set);
    }
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        return wefti_error(WEFT_ERR_SYSTEM, "cannot bind the thread to %u processors", cpu_count);
    }
    return WEFT_OK;
}

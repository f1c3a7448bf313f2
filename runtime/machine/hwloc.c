/* SPDX-License-Identifier: Apache-2.0 */
/* Machines as hwloc sees them, this one or one in a file. */
#include "runtime/machine/machine.h"

#include <dlfcn.h>
#include <hwloc.h>
#include <pthread.h>

#include "runtime/base/error.h"

#if HWLOC_API_VERSION < 0x00020000
#error "hwloc 2 is needed: before it NUMA nodes and devices were elsewhere in the tree"
#endif

/* Machines of the same make differ in some megabytes; they are to look the same. */
#define MEMORY_GRAIN ((uint64_t)256 << 20)

static pthread_mutex_t use = PTHREAD_MUTEX_INITIALIZER; /* held while a topology exists */

void wefti_hwloc_lock(void)
{
    pthread_mutex_lock(&use);
}

void wefti_hwloc_unlock(void)
{
    pthread_mutex_unlock(&use);
}

/* Parts of hwloc that start whole driver stacks to learn names of cards, which are found on PCI
 * anyway, and one that runs on every processor to learn what Linux says, too. */
static void leave_out(hwloc_topology_t topology)
{
#if HWLOC_API_VERSION >= 0x00020100
    static const char *const parts[] = {"opencl", "cuda", "nvml", "rsmi", "levelzero", "gl", "x86"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, parts[i]);
    }
#else
    (void)topology;
#endif
}

/* hwloc loads and unloads these with every topology, and what they have allocated for themselves is
 * lost each time; held once, they stay. Without them hwloc does without. */
static void hold_libraries(void)
{
    static const char *const names[] = {"libxml2.so.2", "libpciaccess.so.0"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *library = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
        if (library != NULL) {
            dlclose(library);
        }
    }
}

/* Ends with end(), also after an error. */
static weft_status_t begin(bool devices, hwloc_topology_t *out_topology)
{
    *out_topology = NULL;
    wefti_hwloc_lock();
    if (hwloc_get_api_version() >> 16 != HWLOC_API_VERSION >> 16) {
        return wefti_error(WEFT_ERR_SYSTEM,
                           "hwloc version mismatch: runtime API version %x differs from the one "
                           "Weft was built with",
                           hwloc_get_api_version());
    }
    hold_libraries();
    if (hwloc_topology_init(out_topology) != 0) {
        *out_topology = NULL;
        return wefti_error(WEFT_ERR_SYSTEM, "hwloc_topology_init failed");
    }
    if (devices) {
        hwloc_topology_set_io_types_filter(*out_topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    }
    leave_out(*out_topology);
    return WEFT_OK;
}

static void end(hwloc_topology_t topology)
{
    if (topology != NULL) {
        hwloc_topology_destroy(topology);
    }
    wefti_hwloc_unlock();
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

static const char *cpu_model(hwloc_topology_t topology)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    return name != NULL ? name : "";
}

static uint32_t index_of_ancestor(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t obj,
                                  uint32_t otherwise)
{
    hwloc_obj_t found = hwloc_get_ancestor_obj_by_type(topology, type, obj);
    return found != NULL ? found->logical_index : otherwise;
}

/* Of the NUMA nodes with this core the one with the fewest: a machine-wide one may lie around them,
 * and slower or faster memory beside them. */
static uint32_t numa_of(hwloc_topology_t topology, hwloc_obj_t core)
{
    uint32_t best = 0;
    int fewest = -1;
    for (hwloc_obj_t node = NULL;
         (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL;) {
        int weight = node->cpuset != NULL ? hwloc_bitmap_weight(node->cpuset) : 0;
        if (weight > 0 && hwloc_bitmap_intersects(node->cpuset, core->cpuset) &&
            (fewest < 0 || weight < fewest)) {
            best = node->logical_index;
            fewest = weight;
        }
    }
    return best;
}

static weft_status_t fill_cores(hwloc_topology_t topology, wefti_arena_t *arena,
                                wefti_hardware_t *out)
{
    /* Small or odd machines leave levels out. */
    hwloc_obj_type_t type = count_of(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    uint32_t most = count_of(topology, HWLOC_OBJ_PU);
    out->cores = wefti_arena_array(arena, count_of(topology, type) + 1ul, sizeof *out->cores);
    out->cpus = wefti_arena_array(arena, most + 1ul, sizeof *out->cpus);
    WEFT_RETURN_IF_NO_MEMORY(out->cores && out->cpus);
    for (hwloc_obj_t obj = NULL; (obj = hwloc_get_next_obj_by_type(topology, type, obj)) != NULL;) {
        wefti_topo_core_t *core = &out->cores[out->core_count];
        *core = (wefti_topo_core_t){
            .socket = index_of_ancestor(topology, HWLOC_OBJ_PACKAGE, obj, 0),
            .numa = numa_of(topology, obj),
            .l2 = index_of_ancestor(topology, HWLOC_OBJ_L2CACHE, obj, WEFTI_TOPO_NONE),
            .l3 = index_of_ancestor(topology, HWLOC_OBJ_L3CACHE, obj, WEFTI_TOPO_NONE),
            .first_cpu = out->cpu_count};
        for (int cpu = hwloc_bitmap_first(obj->cpuset); cpu >= 0 && out->cpu_count < most;
             cpu = hwloc_bitmap_next(obj->cpuset, cpu)) {
            out->cpus[out->cpu_count++] = (uint32_t)cpu;
            core->cpu_count++;
        }
        out->core_count += core->cpu_count > 0; /* all of it may be forbidden here */
    }
    return WEFT_OK;
}

static weft_status_t fill_numas(hwloc_topology_t topology, wefti_arena_t *arena,
                                wefti_hardware_t *out)
{
    uint32_t count = count_of(topology, HWLOC_OBJ_NUMANODE);
    out->numa_count = count > 0 ? count : 1;
    out->numas = wefti_arena_array(arena, out->numa_count, sizeof *out->numas);
    WEFT_RETURN_IF_NO_MEMORY(out->numas);
    for (uint32_t n = 0; n < count; n++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, n);
        out->numas[n] = (wefti_topo_numa_t){
            .os_index = node->os_index,
            .socket = index_of_ancestor(topology, HWLOC_OBJ_PACKAGE, node,
                                        out->socket_count == 1 ? 0 : WEFTI_TOPO_NONE),
            .memory_bytes = (node->attr->numanode.local_memory + MEMORY_GRAIN / 2) / MEMORY_GRAIN *
                            MEMORY_GRAIN};
    }
    return WEFT_OK;
}

static weft_status_t fill(hwloc_topology_t topology, bool devices, wefti_arena_t *arena,
                          wefti_hardware_t *out)
{
    uint32_t sockets = count_of(topology, HWLOC_OBJ_PACKAGE);
    *out = (wefti_hardware_t){.cpu = wefti_arena_printf(arena, "%.127s", cpu_model(topology)),
                              .socket_count = sockets > 0 ? sockets : 1,
                              .l1_bytes = cache_bytes(topology, HWLOC_OBJ_L1CACHE),
                              .l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE),
                              .l3_bytes = cache_bytes(topology, HWLOC_OBJ_L3CACHE)};
    WEFT_RETURN_IF_NO_MEMORY(out->cpu);
    WEFT_RETURN_IF_ERROR(fill_cores(topology, arena, out));
    WEFT_RETURN_IF_ERROR(fill_numas(topology, arena, out));
    if (devices) {
        WEFT_RETURN_IF_ERROR(wefti_hwloc_devices(topology, arena, out));
    }
    return wefti_hardware_check(out);
}

weft_status_t wefti_hardware_discover(bool devices, wefti_arena_t *arena, wefti_hardware_t *out)
{
    hwloc_topology_t topology;
    *out = (wefti_hardware_t){.cpu = ""};
    weft_status_t status = begin(devices, &topology);
    if (status >= 0) {
        status = hwloc_topology_load(topology) == 0
                     ? fill(topology, devices, arena, out)
                     : wefti_error(WEFT_ERR_SYSTEM, "hwloc_topology_load failed for this machine");
    }
    end(topology);
    if (status >= 0 && devices) {
        status = wefti_interfaces_read("/sys", arena, out);
    }
    return status;
}

weft_status_t wefti_hwloc_read_xml(const char *path, wefti_arena_t *arena, wefti_hardware_t *out)
{
    hwloc_topology_t topology;
    weft_status_t status = begin(true, &topology);
    if (status >= 0) {
        status = hwloc_topology_set_xml(topology, path) == 0 && hwloc_topology_load(topology) == 0
                     ? fill(topology, true, arena, out)
                     : wefti_error(WEFT_ERR_FORMAT, "invalid hwloc XML");
    }
    end(topology);
    return status;
}

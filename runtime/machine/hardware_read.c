/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/hardware_read.h"

#include <math.h>
#include <string.h>

#include "runtime/base/error.h"

bool wefti_topo_whole(const wefti_json_node_t *node, uint32_t most, uint32_t *out)
{
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= 0) || node->number > most ||
        node->number != (double)(uint32_t)node->number) {
        return false;
    }
    *out = (uint32_t)node->number;
    return true;
}

weft_status_t wefti_topo_number(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const char *key, double most, double *out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    if (node == NULL) {
        return WEFT_OK;
    }
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= 0) || node->number > most) {
        return wefti_error(WEFT_ERR_FORMAT, "key '%s': expected a number from 0 to %g", key, most);
    }
    *out = node->number;
    return WEFT_OK;
}

static weft_status_t read_count(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const char *key, uint32_t most, uint32_t *out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    return node == NULL || wefti_topo_whole(node, most, out)
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "key '%s': expected an integer from 0 to %u", key,
                             most);
}

static weft_status_t read_text(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                               const char *key, wefti_arena_t *arena, const char **out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    *out = "";
    if (node == NULL || node->kind == WEFTI_JSON_NULL) {
        return WEFT_OK;
    }
    if (node->kind != WEFTI_JSON_STRING || strlen(node->string) > 127) {
        return wefti_error(WEFT_ERR_FORMAT, "key '%s': expected a string of at most 127 characters",
                           key);
    }
    *out = wefti_arena_strdup(arena, node->string);
    return *out != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* The number of a thing, or of how many: null and none are WEFTI_TOPO_NONE. */
static weft_status_t read_index(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const char *key, uint32_t *out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    *out = WEFTI_TOPO_NONE;
    return node == NULL || node->kind == WEFTI_JSON_NULL
               ? WEFT_OK
               : read_count(tree, object, key, UINT32_MAX - 1, out);
}

static weft_status_t read_devices(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                  const char *key, wefti_arena_t *arena,
                                  wefti_topo_device_t **out_devices, uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    const wefti_json_node_t *list = wefti_json_get(tree, node, key);
    if (list == NULL) {
        return WEFT_OK;
    }
    if (list->kind != WEFTI_JSON_ARRAY || list->count > WEFTI_TOPO_MAX_DEVICES) {
        return wefti_error(WEFT_ERR_FORMAT, "key '%s': expected a list of at most %u entries", key,
                           WEFTI_TOPO_MAX_DEVICES);
    }
    wefti_topo_device_t *devices = wefti_arena_array(arena, list->count + 1ul, sizeof *devices);
    if (devices == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    const wefti_json_node_t *at = wefti_json_first(tree, list);
    for (uint32_t i = 0; at != NULL; at = wefti_json_after(tree, at), i++) {
        double gbit = 0;
        const wefti_json_node_t *down = wefti_json_get(tree, at, "down");
        if (at->kind != WEFTI_JSON_OBJECT) {
            return wefti_error(WEFT_ERR_FORMAT, "key '%s': entry %u: expected an object", key, i);
        }
        WEFT_TRY(status, read_text(tree, at, "name", arena, &devices[i].name), fail);
        WEFT_TRY(status, read_text(tree, at, "kind", arena, &devices[i].kind), fail);
        WEFT_TRY(status, read_text(tree, at, "rdma", arena, &devices[i].rdma), fail);
        WEFT_TRY(status, read_text(tree, at, "bus", arena, &devices[i].bus), fail);
        WEFT_TRY(status, wefti_topo_number(tree, at, "gbit_per_s", 1e6, &gbit), fail);
        WEFT_TRY(status, read_index(tree, at, "socket", &devices[i].socket), fail);
        WEFT_TRY(status, read_index(tree, at, "numa", &devices[i].numa), fail);
        WEFT_TRY(status, read_index(tree, at, "switch", &devices[i].pci_switch), fail);
        devices[i].bits_per_s = (uint64_t)llround(gbit * 1e9);
        devices[i].down = down != NULL && down->kind == WEFTI_JSON_BOOL && down->number != 0;
    }
    *out_devices = devices;
    *out_count = list->count;
fail:
    return status < 0 ? wefti_error_prefix(status, "%s", key) : status;
}

/* {"cpus": "0,64", "socket": 0, "numa": 0, "l2": 0, "l3": 0} */
static weft_status_t read_core(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                               wefti_topo_core_t *core, uint32_t cpus[16])
{
    weft_status_t status;
    uint32_t *list;
    wefti_arena_t scratch;
    const wefti_json_node_t *text = wefti_json_get(tree, node, "cpus");
    if (text == NULL || text->kind != WEFTI_JSON_STRING) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'cpus' is missing");
    }
    wefti_arena_init(&scratch, NULL, 1u << 20);
    WEFT_TRY(
        status,
        wefti_cpulist_parse(text->string, WEFTI_TOPO_MAX_CPUS, &scratch, &list, &core->cpu_count),
        fail);
    if (core->cpu_count == 0 || core->cpu_count > 16) {
        status = wefti_error(WEFT_ERR_FORMAT, "too many cpus on one core: %u", core->cpu_count);
    } else {
        memcpy(cpus, list, core->cpu_count * sizeof *list);
    }
    WEFT_TRY(status, status, fail);
    WEFT_TRY(status, read_count(tree, node, "socket", WEFTI_TOPO_MAX_CORES, &core->socket), fail);
    WEFT_TRY(status, read_count(tree, node, "numa", WEFTI_TOPO_MAX_CORES, &core->numa), fail);
    WEFT_TRY(status, read_index(tree, node, "l2", &core->l2), fail);
    WEFT_TRY(status, read_index(tree, node, "l3", &core->l3), fail);
fail:
    wefti_arena_deinit(&scratch);
    return status;
}

/* Core by core; sockets and NUMA nodes are as many as cores say. */
static weft_status_t read_cores(const wefti_json_tree_t *tree, const wefti_json_node_t *list,
                                wefti_arena_t *arena, wefti_hardware_t *out)
{
    if (list->count == 0 || list->count > WEFTI_TOPO_MAX_CORES) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'cores': expected 1 to %u cores",
                           WEFTI_TOPO_MAX_CORES);
    }
    out->core_count = list->count;
    out->cores = wefti_arena_array(arena, list->count, sizeof *out->cores);
    uint32_t *cpus = wefti_alloc(NULL, (size_t)list->count * 16 * sizeof *cpus);
    weft_status_t status = out->cores != NULL && cpus != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    const wefti_json_node_t *at = wefti_json_first(tree, list);
    for (uint32_t c = 0; at != NULL && status >= 0; at = wefti_json_after(tree, at), c++) {
        wefti_topo_core_t *core = &out->cores[c];
        core->first_cpu = out->cpu_count;
        status = read_core(tree, at, core, cpus + out->cpu_count);
        out->cpu_count += core->cpu_count;
        out->socket_count =
            core->socket >= out->socket_count ? core->socket + 1 : out->socket_count;
        out->numa_count = core->numa >= out->numa_count ? core->numa + 1 : out->numa_count;
        status = status < 0 ? wefti_error_prefix(status, "cores: %u", c) : status;
    }
    if (status >= 0) {
        out->cpus = wefti_arena_memdup(arena, cpus, out->cpu_count * sizeof *cpus);
        out->numas = wefti_arena_array(arena, out->numa_count, sizeof *out->numas);
        status = out->cpus != NULL && out->numas != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t n = 0; n < out->numa_count && status >= 0; n++) {
        out->numas[n].os_index = n;
    }
    wefti_free(NULL, cpus);
    return status;
}

static weft_status_t read_regular(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                  wefti_arena_t *arena, wefti_hardware_t *out)
{
    wefti_regular_t shape = {.sockets = 1, .threads = 1};
    const wefti_json_node_t *adjacent = wefti_json_get(tree, node, "threads_adjacent");
    uint32_t most = WEFTI_TOPO_MAX_CORES;
    WEFT_RETURN_IF_ERROR(read_count(tree, node, "cores", most, &shape.cores));
    WEFT_RETURN_IF_ERROR(read_count(tree, node, "sockets", most, &shape.sockets));
    shape.numas = shape.l3s = shape.sockets;
    shape.l2s = shape.cores;
    WEFT_RETURN_IF_ERROR(read_count(tree, node, "numa_nodes", most, &shape.numas));
    WEFT_RETURN_IF_ERROR(read_count(tree, node, "l3_caches", most, &shape.l3s));
    WEFT_RETURN_IF_ERROR(read_count(tree, node, "l2_caches", most, &shape.l2s));
    WEFT_RETURN_IF_ERROR(read_count(tree, node, "threads", 16, &shape.threads));
    shape.adjacent = adjacent != NULL && adjacent->kind == WEFTI_JSON_BOOL && adjacent->number != 0;
    return wefti_hardware_make(&shape, arena, out);
}

/* [bytes, ..] of each node, or [{"bytes": .., "socket": .., "os": ..}, ..] */
static weft_status_t read_numas(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                wefti_hardware_t *out)
{
    weft_status_t status = WEFT_OK;
    const wefti_json_node_t *list = wefti_json_get(tree, node, "numa");
    if (list == NULL) {
        return WEFT_OK;
    }
    if (list->kind != WEFTI_JSON_ARRAY || list->count != out->numa_count) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'numa': expected a list of the %u NUMA nodes",
                           out->numa_count);
    }
    const wefti_json_node_t *at = wefti_json_first(tree, list);
    for (uint32_t n = 0; at != NULL && status >= 0; at = wefti_json_after(tree, at), n++) {
        double bytes = at->kind == WEFTI_JSON_NUMBER ? at->number : 0;
        if (at->kind == WEFTI_JSON_OBJECT) {
            WEFT_TRY(status, wefti_topo_number(tree, at, "bytes", 0x1p60, &bytes), fail);
            WEFT_TRY(status, read_count(tree, at, "os", 65535, &out->numas[n].os_index), fail);
            WEFT_TRY(status, read_index(tree, at, "socket", &out->numas[n].socket), fail);
        }
        if (!(bytes >= 0 && bytes <= 0x1p60)) {
            status = wefti_error(WEFT_ERR_FORMAT, "key 'numa': invalid number of bytes %g", bytes);
        } else {
            out->numas[n].memory_bytes = (uint64_t)bytes;
        }
    }
fail:
    return status;
}

weft_status_t wefti_topo_read_hardware(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                       wefti_arena_t *arena, wefti_hardware_t *out)
{
    double l1 = 0, l2 = 0, l3 = 0;
    const wefti_json_node_t *cores = wefti_json_get(tree, node, "cores");
    *out = (wefti_hardware_t){.cpu = ""};
    if (cores != NULL && cores->kind == WEFTI_JSON_ARRAY) {
        WEFT_RETURN_IF_ERROR(read_cores(tree, cores, arena, out));
    } else if (cores != NULL) {
        WEFT_RETURN_IF_ERROR(read_regular(tree, node, arena, out));
    }
    WEFT_RETURN_IF_ERROR(read_text(tree, node, "cpu", arena, &out->cpu));
    WEFT_RETURN_IF_ERROR(wefti_topo_number(tree, node, "l1_bytes", 0x1p40, &l1));
    WEFT_RETURN_IF_ERROR(wefti_topo_number(tree, node, "l2_bytes", 0x1p40, &l2));
    WEFT_RETURN_IF_ERROR(wefti_topo_number(tree, node, "l3_bytes", 0x1p40, &l3));
    out->l1_bytes = (uint64_t)l1;
    out->l2_bytes = (uint64_t)l2;
    out->l3_bytes = (uint64_t)l3;
    WEFT_RETURN_IF_ERROR(read_numas(tree, node, out));
    WEFT_RETURN_IF_ERROR(read_devices(tree, node, "nics", arena, &out->nics, &out->nic_count));
    WEFT_RETURN_IF_ERROR(read_devices(tree, node, "cards", arena, &out->cards, &out->card_count));
    return wefti_hardware_check(out);
}

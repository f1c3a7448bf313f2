/* SPDX-License-Identifier: Apache-2.0 */
/* A host's hardware as JSON, short where it is regular: in files, and as ranks send it. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/machine/fields.h"

#define MAX_THREADS 16u /* of a core */
#define MAX_INDEX (UINT32_MAX - 1.0)

static const wefti_field_t device_fields[] = {
    {"name", WEFTI_FIELD_TEXT, offsetof(wefti_topo_device_t, name), 0, 1},
    {"kind", WEFTI_FIELD_TEXT, offsetof(wefti_topo_device_t, kind), 0, 1},
    {"rdma", WEFTI_FIELD_TEXT, offsetof(wefti_topo_device_t, rdma), 0, 1},
    {"bus", WEFTI_FIELD_TEXT, offsetof(wefti_topo_device_t, bus), 0, 1},
    {"gbit_per_s", WEFTI_FIELD_SIZE, offsetof(wefti_topo_device_t, bits_per_s), 1e6, 1e9},
    {"socket", WEFTI_FIELD_INDEX, offsetof(wefti_topo_device_t, socket), MAX_INDEX, 1},
    {"numa", WEFTI_FIELD_INDEX, offsetof(wefti_topo_device_t, numa), MAX_INDEX, 1},
    {"switch", WEFTI_FIELD_INDEX, offsetof(wefti_topo_device_t, pci_switch), MAX_INDEX, 1},
    {"down", WEFTI_FIELD_FLAG, offsetof(wefti_topo_device_t, down), 0, 1},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

/* After "cpus", the list of its processors. */
static const wefti_field_t core_fields[] = {
    {"socket", WEFTI_FIELD_COUNT, offsetof(wefti_topo_core_t, socket), WEFTI_TOPO_MAX_CORES, 1},
    {"numa", WEFTI_FIELD_COUNT, offsetof(wefti_topo_core_t, numa), WEFTI_TOPO_MAX_CORES, 1},
    {"l2", WEFTI_FIELD_INDEX, offsetof(wefti_topo_core_t, l2), MAX_INDEX, 1},
    {"l3", WEFTI_FIELD_INDEX, offsetof(wefti_topo_core_t, l3), MAX_INDEX, 1},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

static const wefti_field_t shape_fields[] = {
    {"cores", WEFTI_FIELD_COUNT, offsetof(wefti_regular_t, cores), WEFTI_TOPO_MAX_CORES, 1},
    {"threads", WEFTI_FIELD_COUNT, offsetof(wefti_regular_t, threads), MAX_THREADS, 1},
    {"sockets", WEFTI_FIELD_COUNT, offsetof(wefti_regular_t, sockets), WEFTI_TOPO_MAX_CORES, 1},
    {"numa_nodes", WEFTI_FIELD_COUNT, offsetof(wefti_regular_t, numas), WEFTI_TOPO_MAX_CORES, 1},
    {"l3_caches", WEFTI_FIELD_COUNT, offsetof(wefti_regular_t, l3s), WEFTI_TOPO_MAX_CORES, 1},
    {"l2_caches", WEFTI_FIELD_COUNT, offsetof(wefti_regular_t, l2s), WEFTI_TOPO_MAX_CORES, 1},
    {"threads_adjacent", WEFTI_FIELD_FLAG, offsetof(wefti_regular_t, adjacent), 0, 1},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

static const wefti_field_t numa_fields[] = {
    {"bytes", WEFTI_FIELD_SIZE, offsetof(wefti_topo_numa_t, memory_bytes), 0x1p60, 1},
    {"os", WEFTI_FIELD_COUNT, offsetof(wefti_topo_numa_t, os_index), 65535, 1},
    {"socket", WEFTI_FIELD_INDEX, offsetof(wefti_topo_numa_t, socket), MAX_INDEX, 1},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

static const wefti_field_t name_fields[] = {
    {"cpu", WEFTI_FIELD_TEXT, offsetof(wefti_hardware_t, cpu), 0, 1},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

static const wefti_field_t cache_fields[] = {
    {"l1_bytes", WEFTI_FIELD_SIZE, offsetof(wefti_hardware_t, l1_bytes), 0x1p40, 1},
    {"l2_bytes", WEFTI_FIELD_SIZE, offsetof(wefti_hardware_t, l2_bytes), 0x1p40, 1},
    {"l3_bytes", WEFTI_FIELD_SIZE, offsetof(wefti_hardware_t, l3_bytes), 0x1p40, 1},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

static weft_status_t read_devices(const wefti_json_tree_t *tree, const wefti_json_node_t *host,
                                  const char *key, wefti_arena_t *arena,
                                  wefti_topo_device_t **out_devices, uint32_t *out_count)
{
    const wefti_json_node_t *list = wefti_json_get(tree, host, key);
    if (list == NULL) {
        return WEFT_OK;
    }
    if (list->kind != WEFTI_JSON_ARRAY || list->count > WEFTI_TOPO_MAX_DEVICES) {
        return wefti_error(WEFT_ERR_FORMAT, "key '%s': expected a list of at most %u entries", key,
                           WEFTI_TOPO_MAX_DEVICES);
    }
    wefti_topo_device_t *device = wefti_arena_array(arena, list->count + 1ul, sizeof *device);
    WEFT_RETURN_IF_NO_MEMORY(device);
    *out_devices = device;
    *out_count = list->count;
    const wefti_json_node_t *at = wefti_json_first(tree, list);
    for (; at != NULL; at = wefti_json_after(tree, at), device++) {
        if (at->kind != WEFTI_JSON_OBJECT) {
            return wefti_error(WEFT_ERR_FORMAT, "key '%s': entry %u: expected an object", key,
                               (uint32_t)(device - *out_devices));
        }
        *device = WEFTI_TOPO_DEVICE_INIT;
        weft_status_t status = wefti_fields_read(tree, at, device_fields, arena, device);
        if (status < 0) {
            return wefti_error_prefix(status, "%s", key);
        }
    }
    return WEFT_OK;
}

/* Appends the core's processors to out->cpus. */
static weft_status_t read_core(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                               wefti_arena_t *arena, wefti_topo_core_t *core, wefti_hardware_t *out)
{
    uint32_t *list;
    const wefti_json_node_t *text = wefti_json_get(tree, node, "cpus");
    *core = (wefti_topo_core_t){
        .l2 = WEFTI_TOPO_NONE, .l3 = WEFTI_TOPO_NONE, .first_cpu = out->cpu_count};
    if (text == NULL || text->kind != WEFTI_JSON_STRING) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'cpus' is missing");
    }
    WEFT_RETURN_IF_ERROR(
        wefti_cpulist_parse(text->string, WEFTI_TOPO_MAX_CPUS, arena, &list, &core->cpu_count));
    if (core->cpu_count == 0 || core->cpu_count > MAX_THREADS) {
        return wefti_error(WEFT_ERR_FORMAT, "too many cpus on one core: %u", core->cpu_count);
    }
    memcpy(out->cpus + out->cpu_count, list, core->cpu_count * sizeof *list);
    out->cpu_count += core->cpu_count;
    return wefti_fields_read(tree, node, core_fields, arena, core);
}

/* Core by core; sockets are as many as cores and NUMA nodes say, NUMA nodes as many as cores say or
 * are listed: some have memory only. */
static weft_status_t read_cores(const wefti_json_tree_t *tree, const wefti_json_node_t *list,
                                uint32_t listed_numas, wefti_arena_t *arena, wefti_hardware_t *out)
{
    if (list->count == 0 || list->count > WEFTI_TOPO_MAX_CORES) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'cores': expected 1 to %u cores",
                           WEFTI_TOPO_MAX_CORES);
    }
    out->cores = wefti_arena_array(arena, list->count, sizeof *out->cores);
    out->cpus = wefti_arena_array(arena, list->count * MAX_THREADS, sizeof *out->cpus);
    WEFT_RETURN_IF_NO_MEMORY(out->cores && out->cpus);
    out->numa_count = listed_numas;
    const wefti_json_node_t *at = wefti_json_first(tree, list);
    for (; at != NULL; at = wefti_json_after(tree, at), out->core_count++) {
        wefti_topo_core_t *core = &out->cores[out->core_count];
        weft_status_t status = read_core(tree, at, arena, core, out);
        if (status < 0) {
            return wefti_error_prefix(status, "cores: %u", out->core_count);
        }
        out->socket_count = wefti_topo_count(out->socket_count, core->socket);
        out->numa_count = wefti_topo_count(out->numa_count, core->numa);
    }
    out->numas = wefti_arena_array(arena, out->numa_count, sizeof *out->numas);
    WEFT_RETURN_IF_NO_MEMORY(out->numas);
    for (uint32_t n = 0; n < out->numa_count; n++) {
        out->numas[n].os_index = n;
    }
    return WEFT_OK;
}

static weft_status_t read_regular(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                  wefti_arena_t *arena, wefti_hardware_t *out)
{
    wefti_regular_t shape = {.sockets = 1,
                             .threads = 1,
                             .numas = WEFTI_TOPO_NONE,
                             .l3s = WEFTI_TOPO_NONE,
                             .l2s = WEFTI_TOPO_NONE};
    WEFT_RETURN_IF_ERROR(wefti_fields_read(tree, node, shape_fields, arena, &shape));
    shape.numas = shape.numas == WEFTI_TOPO_NONE ? shape.sockets : shape.numas;
    shape.l3s = shape.l3s == WEFTI_TOPO_NONE ? shape.sockets : shape.l3s;
    shape.l2s = shape.l2s == WEFTI_TOPO_NONE ? shape.cores : shape.l2s;
    return wefti_hardware_make(&shape, arena, out);
}

/* [bytes, ..] of each node, or [{"bytes": .., "socket": .., "os": ..}, ..] */
static weft_status_t read_numas(const wefti_json_tree_t *tree, const wefti_json_node_t *list,
                                bool regular, wefti_arena_t *arena, wefti_hardware_t *out)
{
    if (list->kind != WEFTI_JSON_ARRAY || list->count != out->numa_count) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'numa': expected a list of the %u NUMA nodes",
                           out->numa_count);
    }
    wefti_topo_numa_t *numa = out->numas;
    const wefti_json_node_t *at = wefti_json_first(tree, list);
    for (; at != NULL; at = wefti_json_after(tree, at), numa++) {
        if (at->kind == WEFTI_JSON_OBJECT) {
            numa->socket = WEFTI_TOPO_NONE;
            WEFT_RETURN_IF_ERROR(wefti_fields_read(tree, at, numa_fields, arena, numa));
        } else if (at->kind == WEFTI_JSON_NUMBER) {
            if (!(at->number >= 0 && at->number <= 0x1p60)) {
                return wefti_error(WEFT_ERR_FORMAT, "key 'numa': invalid number of bytes %g",
                                   at->number);
            }
            numa->memory_bytes = (uint64_t)at->number;
        }
        out->socket_count =
            regular ? out->socket_count : wefti_topo_count(out->socket_count, numa->socket);
    }
    return WEFT_OK;
}

weft_status_t wefti_hardware_read(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                  wefti_arena_t *arena, wefti_hardware_t *out)
{
    const wefti_json_node_t *cores = wefti_json_get(tree, node, "cores"),
                            *numas = wefti_json_get(tree, node, "numa");
    bool regular = cores == NULL || cores->kind != WEFTI_JSON_ARRAY;
    *out = (wefti_hardware_t){.cpu = ""};
    if (!regular) {
        uint32_t listed = numas != NULL && numas->count <= WEFTI_TOPO_MAX_CORES ? numas->count : 0;
        WEFT_RETURN_IF_ERROR(read_cores(tree, cores, listed, arena, out));
    } else if (cores != NULL) {
        WEFT_RETURN_IF_ERROR(read_regular(tree, node, arena, out));
    }
    WEFT_RETURN_IF_ERROR(wefti_fields_read(tree, node, name_fields, arena, out));
    WEFT_RETURN_IF_ERROR(wefti_fields_read(tree, node, cache_fields, arena, out));
    if (numas != NULL) {
        WEFT_RETURN_IF_ERROR(read_numas(tree, numas, regular, arena, out));
    }
    WEFT_RETURN_IF_ERROR(read_devices(tree, node, "nics", arena, &out->nics, &out->nic_count));
    WEFT_RETURN_IF_ERROR(read_devices(tree, node, "cards", arena, &out->cards, &out->card_count));
    return wefti_hardware_check(out);
}

static void write_devices(wefti_json_t *json, const char *key, const wefti_topo_device_t *devices,
                          uint32_t count)
{
    if (count == 0) {
        return;
    }
    wefti_json_begin_array(json, key);
    for (uint32_t i = 0; i < count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_fields_write(json, device_fields, &devices[i]);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void write_cores(wefti_json_t *json, const wefti_hardware_t *hardware)
{
    char list[WEFTI_CPULIST_BYTES];
    wefti_json_begin_array(json, "cores");
    for (uint32_t c = 0; c < hardware->core_count; c++) {
        const wefti_topo_core_t *core = &hardware->cores[c];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "cpus",
                          wefti_cpulist_format(hardware->cpus + core->first_cpu, core->cpu_count,
                                               list, sizeof list));
        wefti_fields_write(json, core_fields, core);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

void wefti_hardware_write(wefti_json_t *json, const wefti_hardware_t *hardware, bool names)
{
    wefti_regular_t shape;
    if (names) {
        wefti_fields_write(json, name_fields, hardware);
    }
    if (wefti_hardware_is_regular(hardware, &shape)) {
        wefti_fields_write(json, shape_fields, &shape);
    } else if (hardware->core_count > 0) {
        write_cores(json, hardware);
    }
    wefti_fields_write(json, cache_fields, hardware);
    if (hardware->core_count > 0) {
        wefti_json_begin_array(json, "numa");
        for (uint32_t n = 0; n < hardware->numa_count; n++) {
            wefti_json_begin_object(json, NULL);
            wefti_fields_write(json, numa_fields, &hardware->numas[n]);
            wefti_json_end_object(json);
        }
        wefti_json_end_array(json);
    }
    write_devices(json, "nics", hardware->nics, hardware->nic_count);
    write_devices(json, "cards", hardware->cards, hardware->card_count);
}

weft_status_t wefti_hardware_encode(const wefti_hardware_t *hardware, wefti_text_t *out)
{
    wefti_json_t json;
    wefti_json_init(&json, out, false);
    wefti_json_begin_object(&json, NULL);
    wefti_hardware_write(&json, hardware, true);
    wefti_json_end_object(&json);
    return out->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_hardware_decode(const char *text, size_t bytes, wefti_arena_t *arena,
                                    wefti_hardware_t *out)
{
    wefti_json_tree_t tree;
    WEFT_RETURN_IF_ERROR(wefti_json_parse(text, bytes, arena->allocator, &tree));
    weft_status_t status = wefti_hardware_read(&tree, tree.nodes, arena, out);
    wefti_json_tree_deinit(&tree);
    return status;
}

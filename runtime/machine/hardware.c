/* SPDX-License-Identifier: Apache-2.0 */
/* What a host is made of: regular ones made by numbers, all of them checked, lists of processors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/machine/cluster.h"

static bool is_shape(const wefti_regular_t *s)
{
    return s->cores >= 1 && s->cores <= WEFTI_TOPO_MAX_CORES && s->threads >= 1 &&
           s->threads <= 16 && s->sockets >= 1 && s->numas >= 1 && s->sockets <= s->cores &&
           s->numas <= s->cores && s->l3s <= s->cores && s->l2s <= s->cores &&
           (uint64_t)s->cores * s->threads <= WEFTI_TOPO_MAX_CPUS;
}

/* Which of count equal parts of all cores core is in. */
static uint32_t part_of(uint32_t core, uint32_t count, uint32_t cores)
{
    return count == 0 ? WEFTI_TOPO_NONE : (uint32_t)((uint64_t)core * count / cores);
}

weft_status_t wefti_hardware_make(const wefti_regular_t *shape, wefti_arena_t *arena,
                                  wefti_hardware_t *out)
{
    *out = (wefti_hardware_t){.cpu = ""};
    if (!is_shape(shape)) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "invalid machine: %u cores, %u threads per core, %u sockets, %u NUMA "
                           "nodes, %u L3 and %u L2 caches",
                           shape->cores, shape->threads, shape->sockets, shape->numas, shape->l3s,
                           shape->l2s);
    }
    out->socket_count = shape->sockets;
    out->numa_count = shape->numas;
    out->core_count = shape->cores;
    out->cpu_count = shape->cores * shape->threads;
    out->numas = wefti_arena_array(arena, shape->numas, sizeof *out->numas);
    out->cores = wefti_arena_array(arena, shape->cores, sizeof *out->cores);
    out->cpus = wefti_arena_array(arena, out->cpu_count, sizeof *out->cpus);
    WEFT_RETURN_IF_NO_MEMORY(out->numas && out->cores && out->cpus);
    for (uint32_t c = 0; c < shape->cores; c++) {
        wefti_topo_core_t *core = &out->cores[c];
        *core = (wefti_topo_core_t){.socket = part_of(c, shape->sockets, shape->cores),
                                    .numa = part_of(c, shape->numas, shape->cores),
                                    .l2 = part_of(c, shape->l2s, shape->cores),
                                    .l3 = part_of(c, shape->l3s, shape->cores),
                                    .first_cpu = c * shape->threads,
                                    .cpu_count = shape->threads};
        for (uint32_t t = 0; t < shape->threads; t++) {
            out->cpus[c * shape->threads + t] =
                shape->adjacent ? c * shape->threads + t : t * shape->cores + c;
        }
        wefti_topo_numa_t *numa = &out->numas[core->numa];
        bool begins = c == 0 || core[-1].numa != core->numa;
        numa->os_index = core->numa;
        numa->socket = begins || numa->socket == core->socket ? core->socket : WEFTI_TOPO_NONE;
    }
    return WEFT_OK;
}

bool wefti_hardware_is_regular(const wefti_hardware_t *hardware, wefti_regular_t *out_shape)
{
    if (hardware->core_count == 0) {
        return false;
    }
    wefti_regular_t shape = {.sockets = hardware->socket_count,
                             .numas = hardware->numa_count,
                             .cores = hardware->core_count,
                             .threads = hardware->cores[0].cpu_count};
    shape.adjacent = shape.threads > 1 && hardware->cpus[1] == 1;
    for (uint32_t c = 0; c < shape.cores; c++) {
        shape.l3s = wefti_topo_count(shape.l3s, hardware->cores[c].l3);
        shape.l2s = wefti_topo_count(shape.l2s, hardware->cores[c].l2);
    }
    wefti_arena_t arena;
    wefti_hardware_t made;
    wefti_arena_init(&arena, NULL, 0);
    bool regular = is_shape(&shape) && hardware->cpu_count == shape.cores * shape.threads &&
                   wefti_hardware_make(&shape, &arena, &made) == WEFT_OK &&
                   memcmp(made.cores, hardware->cores, made.core_count * sizeof *made.cores) == 0 &&
                   memcmp(made.cpus, hardware->cpus, made.cpu_count * sizeof *made.cpus) == 0;
    wefti_arena_deinit(&arena);
    for (uint32_t n = 0; n < shape.numas && regular; n++) {
        regular = hardware->numas[n].os_index == n;
    }
    *out_shape = shape;
    return regular;
}

static bool within(uint32_t index, uint32_t count)
{
    return index == WEFTI_TOPO_NONE || index < count;
}

static weft_status_t check_devices(const wefti_hardware_t *h, const wefti_topo_device_t *devices,
                                   uint32_t count, const char *what)
{
    for (uint32_t i = 0; i < count; i++) {
        const wefti_topo_device_t *device = &devices[i];
        if (device->name == NULL || device->name[0] == '\0' ||
            !within(device->socket, h->socket_count) || !within(device->numa, h->numa_count) ||
            device->bits_per_s > 1ull << 50) {
            return wefti_error(
                WEFT_ERR_FORMAT,
                "%s %u (%s): the name is missing, or the socket, NUMA node or speed is invalid",
                what, i, device->name != NULL ? device->name : "");
        }
    }
    return WEFT_OK;
}

static weft_status_t check_cores(const wefti_hardware_t *h)
{
    uint32_t next = 0;
    for (uint32_t c = 0; c < h->core_count; c++) {
        const wefti_topo_core_t *core = &h->cores[c];
        if (core->socket >= h->socket_count || core->numa >= h->numa_count ||
            core->first_cpu != next || core->cpu_count == 0 ||
            core->cpu_count > h->cpu_count - next || !within(core->l2, h->core_count) ||
            !within(core->l3, h->core_count)) {
            return wefti_error(
                WEFT_ERR_FORMAT,
                "core %u: it has no cpu, or its socket, NUMA node or cache is invalid", c);
        }
        next += core->cpu_count;
    }
    return next == h->cpu_count
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "%u cpus are on no core", h->cpu_count - next);
}

/* Each processor is on one core. */
static weft_status_t check_cpus(const wefti_hardware_t *h)
{
    weft_status_t status = WEFT_OK;
    bool *seen = wefti_alloc(NULL, WEFTI_TOPO_MAX_CPUS * sizeof *seen);
    WEFT_RETURN_IF_NO_MEMORY(seen);
    for (uint32_t i = 0; i < h->cpu_count && status >= 0; i++) {
        bool fits = h->cpus[i] < WEFTI_TOPO_MAX_CPUS;
        if (!fits || seen[h->cpus[i]]) {
            status = wefti_error(WEFT_ERR_FORMAT, "cpu %u is %s", h->cpus[i],
                                 fits ? "on two cores" : "out of range");
        } else {
            seen[h->cpus[i]] = true;
        }
    }
    wefti_free(NULL, seen);
    return status;
}

weft_status_t wefti_hardware_check(const wefti_hardware_t *hardware)
{
    if (hardware->core_count > WEFTI_TOPO_MAX_CORES || hardware->cpu_count > WEFTI_TOPO_MAX_CPUS ||
        hardware->numa_count > WEFTI_TOPO_MAX_CORES ||
        hardware->socket_count > WEFTI_TOPO_MAX_CORES ||
        hardware->nic_count > WEFTI_TOPO_MAX_DEVICES ||
        hardware->card_count > WEFTI_TOPO_MAX_DEVICES) {
        return wefti_error(WEFT_ERR_FORMAT, "too many cores or devices for one host");
    }
    for (uint32_t n = 0; n < hardware->numa_count; n++) {
        if (!within(hardware->numas[n].socket, hardware->socket_count)) {
            return wefti_error(WEFT_ERR_FORMAT, "NUMA node %u: unknown socket %u", n,
                               hardware->numas[n].socket);
        }
    }
    WEFT_RETURN_IF_ERROR(check_cores(hardware));
    if (hardware->cpu_count > 0) {
        WEFT_RETURN_IF_ERROR(check_cpus(hardware));
    }
    WEFT_RETURN_IF_ERROR(check_devices(hardware, hardware->nics, hardware->nic_count, "interface"));
    return check_devices(hardware, hardware->cards, hardware->card_count, "card");
}

uint32_t wefti_hardware_core_of(const wefti_hardware_t *hardware, uint32_t cpu)
{
    for (uint32_t c = 0; c < hardware->core_count; c++) {
        const wefti_topo_core_t *core = &hardware->cores[c];
        for (uint32_t t = 0; t < core->cpu_count; t++) {
            if (hardware->cpus[core->first_cpu + t] == cpu) {
                return c;
            }
        }
    }
    return WEFTI_TOPO_NONE;
}

uint64_t wefti_hardware_fastest(const wefti_hardware_t *hardware)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < hardware->nic_count; i++) {
        const wefti_topo_device_t *nic = &hardware->nics[i];
        most = !nic->down && nic->bits_per_s > most ? nic->bits_per_s : most;
    }
    return most;
}

static bool read_number(const char **at, uint32_t limit, uint32_t *out)
{
    char *end;
    unsigned long value = **at >= '0' && **at <= '9' ? strtoul(*at, &end, 10) : limit;
    if (value >= limit) {
        return false;
    }
    *at = end;
    *out = (uint32_t)value;
    return true;
}

/* Runs over the list; cpus NULL: only counts. UINT32_MAX: it is none. */
static uint32_t walk_list(const char *text, uint32_t limit, uint32_t *cpus)
{
    uint32_t count = 0, least = 0;
    const char *at = text;
    while (*at != '\0') {
        uint32_t first, last;
        if (!read_number(&at, limit, &first) || first < least) {
            return UINT32_MAX;
        }
        last = first;
        if (*at == '-') {
            at++;
            if (!read_number(&at, limit, &last) || last < first) {
                return UINT32_MAX;
            }
        }
        for (uint32_t cpu = first; cpu <= last; cpu++, count++) {
            if (cpus != NULL) {
                cpus[count] = cpu;
            }
        }
        least = last + 1;
        if (*at != '\0' && (*at++ != ',' || *at == '\0')) {
            return UINT32_MAX;
        }
    }
    return count;
}

weft_status_t wefti_cpulist_parse(const char *text, uint32_t limit, wefti_arena_t *arena,
                                  uint32_t **out_cpus, uint32_t *out_count)
{
    uint32_t count = walk_list(text, limit, NULL);
    *out_cpus = NULL;
    *out_count = 0;
    if (count == UINT32_MAX) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "invalid cpu list '%.60s': expected a list such as 0-3,8", text);
    }
    uint32_t *cpus = wefti_arena_array(arena, count, sizeof *cpus);
    WEFT_RETURN_IF_NO_MEMORY(cpus);
    walk_list(text, limit, cpus);
    *out_cpus = cpus;
    *out_count = count;
    return WEFT_OK;
}

const char *wefti_cpulist_format(const uint32_t *cpus, uint32_t count, char *buffer, size_t bytes)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (uint32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && cpus[end] == cpus[end - 1] + 1; end++) {
        }
        char part[32];
        int length = end - i == 1 ? snprintf(part, sizeof part, "%s%u", i > 0 ? "," : "", cpus[i])
                                  : snprintf(part, sizeof part, "%s%u-%u", i > 0 ? "," : "",
                                             cpus[i], cpus[end - 1]);
        if (used + (size_t)length + 4 > bytes) {
            snprintf(buffer + used, bytes - used, "%s", used + 4 <= bytes ? ".." : "");
            break;
        }
        memcpy(buffer + used, part, (size_t)length + 1);
        used += (size_t)length;
    }
    return buffer;
}

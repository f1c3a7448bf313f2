/* SPDX-License-Identifier: Apache-2.0 */
/* Network interfaces as /sys/class/net and /sys/class/infiniband tell of them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/machine/machine.h"

static bool exists(const char *root, const char *name, const char *what)
{
    char path[512];
    snprintf(path, sizeof path, "%s/class/net/%s/%s", root, name, what);
    return access(path, F_OK) == 0;
}

/* The device's address on PCI, "" where it is on none: virtio and others lie one folder deeper. */
static void read_bus(const char *root, const char *name, char *bus, size_t bytes)
{
    char path[512], target[PATH_MAX];
    unsigned int number;
    snprintf(path, sizeof path, "%s/class/net/%s/device", root, name);
    bus[0] = '\0';
    if (realpath(path, target) == NULL) {
        return;
    }
    for (char *slash; bus[0] == '\0' && (slash = strrchr(target, '/')) != NULL; *slash = '\0') {
        if (strlen(slash + 1) == 12 &&
            sscanf(slash + 1, "%x:%x:%x.%x", &number, &number, &number, &number) == 4) {
            snprintf(bus, bytes, "%s", slash + 1);
        }
    }
}

static wefti_topo_device_t *find(wefti_hardware_t *hardware, const char *name, const char *bus)
{
    for (uint32_t i = 0; i < hardware->nic_count; i++) {
        if (strcmp(hardware->nics[i].name, name) == 0) {
            return &hardware->nics[i];
        }
    }
    for (uint32_t i = 0; bus[0] != '\0' && i < hardware->nic_count; i++) {
        /* hwloc knew the card's RDMA side only. */
        if (strcmp(hardware->nics[i].bus, bus) == 0 &&
            strcmp(hardware->nics[i].name, hardware->nics[i].rdma) == 0) {
            return &hardware->nics[i];
        }
    }
    return NULL;
}

/* Where the system says it is, if hwloc did not. */
static void locate(const char *root, const char *name, const wefti_hardware_t *hardware,
                   wefti_topo_device_t *nic)
{
    char line[64];
    wefti_read_line(line, sizeof line, "%s/class/net/%s/device/numa_node", root, name);
    long node = line[0] != '\0' ? strtol(line, NULL, 10) : -1;
    for (uint32_t n = 0; node >= 0 && nic->numa == WEFTI_TOPO_NONE && n < hardware->numa_count;
         n++) {
        if (hardware->numas[n].os_index == (uint32_t)node) {
            nic->numa = n;
            nic->socket = hardware->numas[n].socket;
        }
    }
}

static weft_status_t add(const char *root, const char *name, wefti_arena_t *arena,
                         wefti_hardware_t *hardware)
{
    char bus[64], line[64];
    read_bus(root, name, bus, sizeof bus);
    wefti_topo_device_t *nic = find(hardware, name, bus);
    if (nic == NULL && hardware->nic_count == WEFTI_TOPO_MAX_DEVICES) {
        return WEFT_OK;
    }
    if (nic == NULL) {
        nic = &hardware->nics[hardware->nic_count++];
        *nic = WEFTI_TOPO_DEVICE_INIT;
        nic->kind = "ethernet";
    }
    nic->name = wefti_arena_strdup(arena, name);
    nic->bus = nic->bus[0] == '\0' ? wefti_arena_strdup(arena, bus) : nic->bus;
    WEFT_RETURN_IF_NO_MEMORY(nic->name && nic->bus);
    wefti_read_line(line, sizeof line, "%s/class/net/%s/type", root, name);
    if (strcmp(line, "32") == 0) { /* ARPHRD_INFINIBAND */
        nic->kind = "infiniband";
    }
    /* Megabits; -1, or an error, where the driver does not know. */
    wefti_read_line(line, sizeof line, "%s/class/net/%s/speed", root, name);
    long long mbits = strtoll(line, NULL, 10);
    nic->bits_per_s = mbits > 0 && mbits < 100000000 ? (uint64_t)mbits * 1000000 : nic->bits_per_s;
    wefti_read_line(line, sizeof line, "%s/class/net/%s/operstate", root, name);
    nic->down = strcmp(line, "down") == 0 || strcmp(line, "lowerlayerdown") == 0 ||
                strcmp(line, "notpresent") == 0;
    locate(root, name, hardware, nic);
    return WEFT_OK;
}

/* What RDMA devices are called, and which interface they belong to. */
static weft_status_t add_rdma(const char *root, wefti_arena_t *arena, wefti_hardware_t *hardware)
{
    const char **names;
    uint32_t count;
    WEFT_RETURN_IF_ERROR(wefti_list_folder(arena, &names, &count, "%s/class/infiniband", root));
    for (uint32_t i = 0; i < count; i++) {
        char interface[64], rate[64];
        wefti_read_line(interface, sizeof interface,
                        "%s/class/infiniband/%s/ports/1/gid_attrs/ndevs/0", root, names[i]);
        wefti_read_line(rate, sizeof rate, "%s/class/infiniband/%s/ports/1/rate", root, names[i]);
        double gbits = strtod(rate, NULL);
        for (uint32_t n = 0; n < hardware->nic_count; n++) {
            wefti_topo_device_t *nic = &hardware->nics[n];
            if (strcmp(nic->name, interface) != 0 && strcmp(nic->rdma, names[i]) != 0) {
                continue;
            }
            nic->rdma = names[i];
            nic->kind = strcmp(nic->kind, "ethernet") == 0 ? "roce" : nic->kind;
            if (nic->bits_per_s == 0 && gbits > 0 && gbits < 1e5) {
                nic->bits_per_s = (uint64_t)(gbits * 1e9);
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_interfaces_read(const char *root, wefti_arena_t *arena,
                                    wefti_hardware_t *hardware)
{
    const char **names;
    uint32_t count, devices = 0;
    WEFT_RETURN_IF_ERROR(wefti_list_folder(arena, &names, &count, "%s/class/net", root));
    if (hardware->nics == NULL) {
        hardware->nics = wefti_arena_array(arena, WEFTI_TOPO_MAX_DEVICES, sizeof *hardware->nics);
        WEFT_RETURN_IF_NO_MEMORY(hardware->nics);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (exists(root, names[i], "device")) {
            WEFT_RETURN_IF_ERROR(add(root, names[i], arena, hardware));
            devices++;
        }
    }
    /* Virtual ones are what a container or a namespace has; elsewhere they would be listed for
     * nothing. Ports of a bridge lead to the bridge. */
    for (uint32_t i = 0; i < count && devices == 0; i++) {
        char state[32];
        wefti_read_line(state, sizeof state, "%s/class/net/%s/operstate", root, names[i]);
        if (strcmp(names[i], "lo") != 0 && !exists(root, names[i], "master") &&
            !exists(root, names[i], "bridge") && strcmp(state, "down") != 0) {
            WEFT_RETURN_IF_ERROR(add(root, names[i], arena, hardware));
        }
    }
    return add_rdma(root, arena, hardware);
}

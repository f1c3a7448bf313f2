/* SPDX-License-Identifier: Apache-2.0 */
/* Network interfaces and cards in hwloc's tree of devices, and where they are. */
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/machine/machine.h"

/* PCI classes of cards that compute and show nothing. */
#define CLASS_3D 0x0302u
#define CLASS_ACCELERATOR 0x1200u

static hwloc_obj_t pci_of(hwloc_obj_t device)
{
    while (device != NULL && device->type != HWLOC_OBJ_PCI_DEVICE) {
        device = device->parent;
    }
    return device;
}

/* The bridge nearest to the processor, as its number among all: devices with the same one share a
 * switch, or a root port. */
static uint32_t switch_of(hwloc_obj_t pci)
{
    uint32_t number = WEFTI_TOPO_NONE;
    for (hwloc_obj_t up = pci != NULL ? pci->parent : NULL;
         up != NULL && up->type == HWLOC_OBJ_BRIDGE; up = up->parent) {
        if (up->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
            number = up->logical_index;
        }
    }
    return number;
}

/* The NUMA node and the socket that are nearer than others; none where several are. */
static void locate(hwloc_topology_t topology, hwloc_obj_t device, const wefti_hardware_t *hardware,
                   wefti_topo_device_t *out)
{
    hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, device);
    out->numa = out->socket = WEFTI_TOPO_NONE;
    if (place == NULL || place->cpuset == NULL) {
        return;
    }
    for (uint32_t c = 0, cores = 0; c < hardware->core_count; c++) {
        const wefti_topo_core_t *core = &hardware->cores[c];
        if (!hwloc_bitmap_isset(place->cpuset, hardware->cpus[core->first_cpu])) {
            continue;
        }
        bool first = cores++ == 0;
        out->numa = first || out->numa == core->numa ? core->numa : WEFTI_TOPO_NONE;
        out->socket = first || out->socket == core->socket ? core->socket : WEFTI_TOPO_NONE;
    }
}

/* The device's address on PCI, "" where it is on none. */
static void bus_of(hwloc_obj_t device, char bus[32])
{
    hwloc_obj_t pci = pci_of(device);
    bus[0] = '\0';
    if (pci != NULL) {
        snprintf(bus, 32, "%04x:%02x:%02x.%01x", pci->attr->pcidev.domain, pci->attr->pcidev.bus,
                 pci->attr->pcidev.dev, pci->attr->pcidev.func);
    }
}

/* Adds a device to the interfaces or cards of hardware, unless there are too many. */
static weft_status_t add(hwloc_topology_t topology, hwloc_obj_t device, const char *name,
                         const char *kind, wefti_arena_t *arena, const wefti_hardware_t *hardware,
                         wefti_topo_device_t *devices, uint32_t *count)
{
    char bus[32];
    if (*count == WEFTI_TOPO_MAX_DEVICES) {
        return WEFT_OK;
    }
    const char *speed = hwloc_obj_get_info_by_name(device, "Speed");
    long long mbits = speed != NULL ? strtoll(speed, NULL, 10) : 0;
    wefti_topo_device_t *out = &devices[(*count)++];
    bus_of(device, bus);
    *out = (wefti_topo_device_t){.name = wefti_arena_strdup(arena, name),
                                 .kind = wefti_arena_strdup(arena, kind),
                                 .rdma = "",
                                 .bus = wefti_arena_strdup(arena, bus),
                                 .pci_switch = switch_of(pci_of(device))};
    out->bits_per_s = mbits > 0 && mbits < 1000000000 ? (uint64_t)mbits * 1000000 : 0;
    locate(topology, device, hardware, out);
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static uint32_t find_bus(const wefti_topo_device_t *devices, uint32_t count, hwloc_obj_t device)
{
    char bus[32];
    bus_of(device, bus);
    for (uint32_t i = 0; i < count && bus[0] != '\0'; i++) {
        if (strcmp(devices[i].bus, bus) == 0) {
            return i;
        }
    }
    return WEFTI_TOPO_NONE;
}

/* An RDMA device belongs to the interface of the same function of its card. */
static weft_status_t add_rdma(hwloc_topology_t topology, hwloc_obj_t device, wefti_arena_t *arena,
                              wefti_hardware_t *out)
{
    uint32_t nic = find_bus(out->nics, out->nic_count, device);
    if (nic == WEFTI_TOPO_NONE) {
        nic = out->nic_count; /* a card without an interface for addresses */
        WEFT_RETURN_IF_ERROR(add(topology, device, device->name, "infiniband", arena, out,
                                 out->nics, &out->nic_count));
    } else if (strcmp(out->nics[nic].kind, "ethernet") == 0) {
        out->nics[nic].kind = "roce";
    }
    if (nic < out->nic_count) {
        out->nics[nic].rdma = wefti_arena_strdup(arena, device->name);
    }
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t add_nics(hwloc_topology_t topology, wefti_arena_t *arena,
                              wefti_hardware_t *out)
{
    hwloc_obj_t device = NULL;
    while ((device = hwloc_get_next_osdev(topology, device)) != NULL) {
        if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && device->name != NULL &&
            strcmp(device->name, "lo") != 0) {
            const char *kind = strncmp(device->name, "ib", 2) == 0 ? "infiniband" : "ethernet";
            WEFT_RETURN_IF_ERROR(
                add(topology, device, device->name, kind, arena, out, out->nics, &out->nic_count));
        }
    }
    while ((device = hwloc_get_next_osdev(topology, device)) != NULL) {
        if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && device->name != NULL) {
            WEFT_RETURN_IF_ERROR(add_rdma(topology, device, arena, out));
        }
    }
    return WEFT_OK;
}

static bool computes(hwloc_obj_t device)
{
    return device->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC ||
           (device->attr->osdev.type == HWLOC_OBJ_OSDEV_GPU &&
            (strncmp(device->name, "nvml", 4) == 0 || strncmp(device->name, "rsmi", 4) == 0));
}

/* Several interfaces to one card (CUDA, OpenCL, NVML) are that card once, under the first name. */
static weft_status_t add_card(hwloc_topology_t topology, hwloc_obj_t device, const char *name,
                              const char *kind, wefti_arena_t *arena, wefti_hardware_t *out)
{
    return find_bus(out->cards, out->card_count, device) != WEFTI_TOPO_NONE
               ? WEFT_OK
               : add(topology, device, name, kind, arena, out, out->cards, &out->card_count);
}

static weft_status_t add_cards(hwloc_topology_t topology, wefti_arena_t *arena,
                               wefti_hardware_t *out)
{
    hwloc_obj_t device = NULL;
    while ((device = hwloc_get_next_osdev(topology, device)) != NULL) {
        if (device->name != NULL && computes(device) && pci_of(device) != NULL) {
            const char *kind = device->subtype != NULL ? device->subtype : "";
            WEFT_RETURN_IF_ERROR(add_card(topology, device, device->name, kind, arena, out));
        }
    }
    while ((device = hwloc_get_next_pcidev(topology, device)) != NULL) {
        unsigned short class_id = device->attr->pcidev.class_id;
        if (class_id == CLASS_3D || class_id == CLASS_ACCELERATOR) {
            char name[32];
            snprintf(name, sizeof name, "card%u", out->card_count);
            WEFT_RETURN_IF_ERROR(add_card(topology, device, name, "", arena, out));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_hwloc_devices(struct hwloc_topology *topology, wefti_arena_t *arena,
                                  wefti_hardware_t *out)
{
    out->nics = wefti_arena_array(arena, WEFTI_TOPO_MAX_DEVICES, sizeof *out->nics);
    out->cards = wefti_arena_array(arena, WEFTI_TOPO_MAX_DEVICES, sizeof *out->cards);
    WEFT_RETURN_IF_NO_MEMORY(out->nics && out->cards);
    WEFT_RETURN_IF_ERROR(add_nics(topology, arena, out));
    return add_cards(topology, arena, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Network interfaces for ranks, and processors next to them. */
#include "runtime/machine/place.h"

#include "runtime/base/error.h"

/* How near an interface is to a rank; more is nearer. */
typedef enum nearness {
    NEAR_UNKNOWN = 0,
    NEAR_OTHER_SOCKET = 1, /* known to be far */
    NEAR_SOCKET = 2,
    NEAR_PART = 3, /* one of the NUMA nodes that the rank is on */
    NEAR_NUMA = 4,
    NEAR_SWITCH = 5,
} nearness_t;

/* Where a rank is: its card's place, else that of its processors. */
typedef struct place {
    uint32_t socket, numa, pci_switch;
    const wefti_topo_rank_t *spread; /* over several nodes: by its processors; else NULL */
} place_t;

void wefti_place_locate(const wefti_hardware_t *hardware, const uint32_t *cpus, uint32_t count,
                        uint32_t *out_socket, uint32_t *out_numa)
{
    *out_socket = *out_numa = WEFTI_TOPO_NONE;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t core = wefti_hardware_core_of(hardware, cpus[i]);
        if (core == WEFTI_TOPO_NONE) {
            *out_socket = *out_numa = WEFTI_TOPO_NONE;
            return;
        }
        uint32_t socket = hardware->cores[core].socket, numa = hardware->cores[core].numa;
        *out_socket = i == 0 || *out_socket == socket ? socket : WEFTI_TOPO_NONE;
        *out_numa = i == 0 || *out_numa == numa ? numa : WEFTI_TOPO_NONE;
    }
}

static uint32_t socket_of_device(const wefti_hardware_t *h, const wefti_topo_device_t *device)
{
    return device->socket == WEFTI_TOPO_NONE && device->numa != WEFTI_TOPO_NONE
               ? h->numas[device->numa].socket
               : device->socket;
}

static place_t place_of(const wefti_hardware_t *h, const wefti_topo_rank_t *rank)
{
    if (rank->card != WEFTI_TOPO_NONE && rank->card < h->card_count) {
        const wefti_topo_device_t *card = &h->cards[rank->card];
        return (place_t){socket_of_device(h, card), card->numa, card->pci_switch, NULL};
    }
    place_t place = {.pci_switch = WEFTI_TOPO_NONE};
    wefti_place_locate(h, rank->cpus, rank->cpu_count, &place.socket, &place.numa);
    place.spread = place.numa == WEFTI_TOPO_NONE ? rank : NULL;
    return place;
}

bool wefti_place_is_near(const wefti_hardware_t *hardware, const wefti_topo_device_t *device,
                         uint32_t cpu)
{
    uint32_t core = wefti_hardware_core_of(hardware, cpu);
    return core != WEFTI_TOPO_NONE &&
           (device->numa != WEFTI_TOPO_NONE ? hardware->cores[core].numa == device->numa
                                            : device->socket == WEFTI_TOPO_NONE ||
                                                  hardware->cores[core].socket == device->socket);
}

static nearness_t nearness(const wefti_hardware_t *h, const place_t *place,
                           const wefti_topo_device_t *nic)
{
    uint32_t socket = socket_of_device(h, nic);
    if (place->pci_switch != WEFTI_TOPO_NONE && place->pci_switch == nic->pci_switch) {
        return NEAR_SWITCH;
    }
    if (place->numa != WEFTI_TOPO_NONE && place->numa == nic->numa) {
        return NEAR_NUMA;
    }
    for (uint32_t i = 0; place->spread != NULL && i < place->spread->cpu_count; i++) {
        if (nic->numa != WEFTI_TOPO_NONE && wefti_place_is_near(h, nic, place->spread->cpus[i])) {
            return NEAR_PART;
        }
    }
    if (place->socket != WEFTI_TOPO_NONE && place->socket == socket) {
        return NEAR_SOCKET;
    }
    bool known = place->socket != WEFTI_TOPO_NONE && socket != WEFTI_TOPO_NONE;
    return known ? NEAR_OTHER_SOCKET : NEAR_UNKNOWN;
}

/* Is interface a better than b at that place? Both have a link. Nearness counts only among fast or
 * slow ones: one for logging in is not taken because it happens to be near. */
static bool better(const wefti_hardware_t *h, const place_t *place, uint64_t most, uint32_t a,
                   uint32_t b, const uint32_t *users)
{
    const wefti_topo_device_t *x = &h->nics[a], *y = &h->nics[b];
    bool x_fast = x->bits_per_s >= most / 2, y_fast = y->bits_per_s >= most / 2;
    nearness_t x_near = nearness(h, place, x), y_near = nearness(h, place, y);
    if (x_fast != y_fast) {
        return x_fast;
    }
    if (x_near != y_near) {
        return x_near > y_near;
    }
    if (x->bits_per_s != y->bits_per_s) {
        return x->bits_per_s > y->bits_per_s;
    }
    return users[a] < users[b];
}

static void place_host(wefti_cluster_t *cluster, const wefti_topo_host_t *host)
{
    uint32_t users[WEFTI_TOPO_MAX_DEVICES] = {0};
    const wefti_hardware_t *h = host->hardware;
    uint64_t most = wefti_hardware_fastest(h);
    for (uint32_t i = 0; i < host->rank_count; i++) {
        wefti_topo_rank_t *rank = &cluster->ranks[host->ranks[i]];
        place_t place = place_of(h, rank);
        rank->nic = WEFTI_TOPO_NONE;
        for (uint32_t n = 0; n < h->nic_count; n++) {
            if (!h->nics[n].down &&
                (rank->nic == WEFTI_TOPO_NONE || better(h, &place, most, n, rank->nic, users))) {
                rank->nic = n;
            }
        }
        if (rank->nic != WEFTI_TOPO_NONE) {
            users[rank->nic]++;
        }
    }
}

void wefti_place_nics(wefti_cluster_t *cluster)
{
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        if (cluster->hosts[h].hardware->nic_count > 0) {
            place_host(cluster, &cluster->hosts[h]);
        }
    }
}

const char *wefti_place_nic_why(const wefti_cluster_t *cluster, uint32_t rank)
{
    static const char *const texts[] = {"",
                                        "other socket",
                                        "same socket",
                                        "one of its NUMA nodes",
                                        "same NUMA node",
                                        "same PCI switch"};
    const wefti_topo_rank_t *it = &cluster->ranks[rank];
    const wefti_hardware_t *h = cluster->hosts[it->host].hardware;
    if (it->nic == WEFTI_TOPO_NONE) {
        return "";
    }
    place_t place = place_of(h, it);
    return texts[nearness(h, &place, &h->nics[it->nic])];
}

uint32_t wefti_place_rails(const wefti_cluster_t *cluster, uint32_t *rail_of)
{
    uint32_t most = 1;
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        uint32_t number[WEFTI_TOPO_MAX_DEVICES] = {0}, used = 0;
        const wefti_topo_host_t *host = &cluster->hosts[h];
        for (uint32_t i = 0; i < host->rank_count; i++) {
            uint32_t nic = cluster->ranks[host->ranks[i]].nic;
            if (nic != WEFTI_TOPO_NONE) {
                number[nic] = 1;
            }
        }
        for (uint32_t n = 0; n < host->hardware->nic_count; n++) {
            used += number[n];
            number[n] = number[n] > 0 ? used - 1 : 0;
        }
        for (uint32_t i = 0; i < host->rank_count; i++) {
            uint32_t nic = cluster->ranks[host->ranks[i]].nic;
            rail_of[host->ranks[i]] = nic != WEFTI_TOPO_NONE ? number[nic] : 0;
        }
        most = used > most ? used : most;
    }
    return most;
}

uint32_t wefti_place_progress_cpu(const wefti_hardware_t *hardware, const wefti_topo_device_t *nic,
                                  const uint32_t *cpus, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) {
        if (nic == NULL || wefti_place_is_near(hardware, nic, cpus[i])) {
            return cpus[i];
        }
    }
    return count > 0 ? cpus[count - 1] : WEFTI_TOPO_NONE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters as JSON, short where they are regular. */
#include <stdio.h>
#include <string.h>

#include "runtime/machine/cluster.h"

#define LIST_BYTES 4096u

static void write_index(wefti_json_t *json, const char *key, uint32_t index)
{
    if (index != WEFTI_TOPO_NONE) {
        wefti_json_int(json, key, index);
    }
}

static void write_text(wefti_json_t *json, const char *key, const char *text)
{
    if (text[0] != '\0') {
        wefti_json_string(json, key, text);
    }
}

static void write_size(wefti_json_t *json, const char *key, uint64_t bytes)
{
    if (bytes > 0) {
        wefti_json_int(json, key, (int64_t)bytes);
    }
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
        wefti_json_string(json, "name", devices[i].name);
        write_text(json, "kind", devices[i].kind);
        write_text(json, "rdma", devices[i].rdma);
        write_text(json, "bus", devices[i].bus);
        if (devices[i].bits_per_s > 0) {
            wefti_json_double(json, "gbit_per_s", (double)devices[i].bits_per_s * 1e-9);
        }
        write_index(json, "socket", devices[i].socket);
        write_index(json, "numa", devices[i].numa);
        write_index(json, "switch", devices[i].pci_switch);
        if (devices[i].down) {
            wefti_json_bool(json, "down", true);
        }
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void write_cores(wefti_json_t *json, const wefti_hardware_t *hardware)
{
    char list[LIST_BYTES];
    wefti_json_begin_array(json, "cores");
    for (uint32_t c = 0; c < hardware->core_count; c++) {
        const wefti_topo_core_t *core = &hardware->cores[c];
        wefti_cpulist_format(hardware->cpus + core->first_cpu, core->cpu_count, list, sizeof list);
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "cpus", list);
        wefti_json_int(json, "socket", core->socket);
        wefti_json_int(json, "numa", core->numa);
        write_index(json, "l2", core->l2);
        write_index(json, "l3", core->l3);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void write_regular(wefti_json_t *json, const wefti_regular_t *shape)
{
    wefti_json_int(json, "cores", shape->cores);
    wefti_json_int(json, "threads", shape->threads);
    wefti_json_int(json, "sockets", shape->sockets);
    wefti_json_int(json, "numa_nodes", shape->numas);
    wefti_json_int(json, "l3_caches", shape->l3s);
    wefti_json_int(json, "l2_caches", shape->l2s);
    if (shape->adjacent) {
        wefti_json_bool(json, "threads_adjacent", true);
    }
}

static void write_hardware(wefti_json_t *json, const wefti_hardware_t *hardware)
{
    wefti_regular_t shape;
    write_text(json, "cpu", hardware->cpu);
    if (wefti_hardware_is_regular(hardware, &shape)) {
        write_regular(json, &shape);
    } else if (hardware->core_count > 0) {
        write_cores(json, hardware);
    }
    write_size(json, "l1_bytes", hardware->l1_bytes);
    write_size(json, "l2_bytes", hardware->l2_bytes);
    write_size(json, "l3_bytes", hardware->l3_bytes);
    if (hardware->core_count > 0) {
        wefti_json_begin_array(json, "numa");
        for (uint32_t n = 0; n < hardware->numa_count; n++) {
            wefti_json_begin_object(json, NULL);
            write_size(json, "bytes", hardware->numas[n].memory_bytes);
            wefti_json_int(json, "os", hardware->numas[n].os_index);
            write_index(json, "socket", hardware->numas[n].socket);
            wefti_json_end_object(json);
        }
        wefti_json_end_array(json);
    }
    write_devices(json, "nics", hardware->nics, hardware->nic_count);
    write_devices(json, "cards", hardware->cards, hardware->card_count);
}

/* The ranks, in short if they follow those of the hosts before; then what they are bound to. */
static void write_ranks(wefti_json_t *json, const wefti_cluster_t *cluster, uint32_t index,
                        uint32_t before)
{
    const wefti_topo_host_t *host = &cluster->hosts[index];
    bool bound = false, cards = false, follow = true;
    for (uint32_t i = 0; i < host->rank_count; i++) {
        const wefti_topo_rank_t *rank = &cluster->ranks[host->ranks[i]];
        bound = bound || rank->cpu_count > 0;
        cards = cards || rank->card != WEFTI_TOPO_NONE;
        follow = follow && host->ranks[i] == before + i;
    }
    if (follow) {
        wefti_json_int(json, "ranks", host->rank_count);
    } else {
        wefti_json_begin_array(json, "ranks");
        for (uint32_t i = 0; i < host->rank_count; i++) {
            wefti_json_int(json, NULL, host->ranks[i]);
        }
        wefti_json_end_array(json);
    }
    char list[LIST_BYTES];
    if (bound) {
        wefti_json_begin_array(json, "binding");
        for (uint32_t i = 0; i < host->rank_count; i++) {
            const wefti_topo_rank_t *rank = &cluster->ranks[host->ranks[i]];
            wefti_json_string(json, NULL,
                              wefti_cpulist_format(rank->cpus, rank->cpu_count, list, sizeof list));
        }
        wefti_json_end_array(json);
    }
    if (cards) {
        wefti_json_begin_array(json, "rank_cards");
        for (uint32_t i = 0; i < host->rank_count; i++) {
            uint32_t card = cluster->ranks[host->ranks[i]].card;
            if (card == WEFTI_TOPO_NONE) {
                wefti_json_null(json, NULL);
            } else {
                wefti_json_int(json, NULL, card);
            }
        }
        wefti_json_end_array(json);
    }
}

static void write_link(wefti_json_t *json, const char *key, const wefti_topo_link_t *link)
{
    wefti_json_begin_object(json, key);
    if (link->hosts[0] != WEFTI_TOPO_NONE) {
        wefti_json_begin_array(json, "hosts");
        wefti_json_int(json, NULL, link->hosts[0]);
        wefti_json_int(json, NULL, link->hosts[1]);
        wefti_json_end_array(json);
    }
    if (link->bits_per_s > 0) {
        wefti_json_double(json, "gbit_per_s", (double)link->bits_per_s * 1e-9);
    }
    if (link->latency_ns > 0) {
        wefti_json_double(json, "latency_us", link->latency_ns * 1e-3);
    }
    wefti_json_int(json, "rails", link->rails);
    wefti_json_end_object(json);
}

static void write_links(wefti_json_t *json, const wefti_cluster_t *cluster)
{
    uint32_t first = cluster->link_count > 0 && cluster->links[0].hosts[0] == WEFTI_TOPO_NONE;
    if (first > 0) {
        write_link(json, "link", &cluster->links[0]);
    }
    if (cluster->link_count > first) {
        wefti_json_begin_array(json, "links");
        for (uint32_t i = first; i < cluster->link_count; i++) {
            write_link(json, NULL, &cluster->links[i]);
        }
        wefti_json_end_array(json);
    }
}

/* The first host with the same hardware; itself if there is none, or if its name does not say
 * which. */
static uint32_t like_which(const wefti_cluster_t *cluster, uint32_t index)
{
    for (uint32_t h = 0; h < index; h++) {
        if (cluster->hosts[h].hardware == cluster->hosts[index].hardware) {
            for (uint32_t i = 0; i < h; i++) {
                if (strcmp(cluster->hosts[i].name, cluster->hosts[h].name) == 0) {
                    return index;
                }
            }
            return h;
        }
    }
    return index;
}

void wefti_cluster_write(const wefti_cluster_t *cluster, wefti_json_t *json)
{
    uint32_t before = 0;
    wefti_json_int(json, "format", 1);
    write_text(json, "name", cluster->name);
    wefti_json_begin_array(json, "hosts");
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        const wefti_topo_host_t *host = &cluster->hosts[h];
        uint32_t like = like_which(cluster, h);
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", host->name);
        if (cluster->rank_count > 0) {
            write_ranks(json, cluster, h, before);
        }
        before += host->rank_count;
        if (like != h) {
            wefti_json_string(json, "like", cluster->hosts[like].name);
        } else {
            write_hardware(json, host->hardware);
        }
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    write_links(json, cluster);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters as JSON, and the digest of that. */
#include <stddef.h>
#include <string.h>

#include "runtime/machine/fields.h"

const wefti_field_t wefti_link_fields[] = {
    {"gbit_per_s", WEFTI_FIELD_SIZE, offsetof(wefti_topo_link_t, bits_per_s), 1e6, 1e9},
    {"latency_us", WEFTI_FIELD_SIZE, offsetof(wefti_topo_link_t, latency_ns), 1e9, 1e3},
    {"rails", WEFTI_FIELD_COUNT, offsetof(wefti_topo_link_t, rails), 1024, 1},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

const wefti_field_t wefti_cost_fields[] = {
    {"gbit_per_s", WEFTI_FIELD_SIZE, offsetof(wefti_topo_cost_t, bits_per_s), 1e6, 1e9},
    {"latency_us", WEFTI_FIELD_SIZE, offsetof(wefti_topo_cost_t, latency_ns), 1e9, 1e3},
    {NULL, WEFTI_FIELD_TEXT, 0, 0, 1},
};

const char *const wefti_level_names[WEFTI_TOPO_LEVELS] = {"l3", "numa", "socket", "host", "rack"};

/* The ranks, in short if they follow those of the hosts before; then what they are bound to. */
static void write_ranks(wefti_json_t *json, const wefti_cluster_t *cluster, uint32_t index,
                        uint32_t before)
{
    const wefti_topo_host_t *host = &cluster->hosts[index];
    bool bound = false, cards = false, follow = true;
    char list[WEFTI_CPULIST_BYTES];
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
    if (bound) {
        wefti_json_begin_array(json, "binding");
        for (uint32_t i = 0; i < host->rank_count; i++) {
            const wefti_topo_rank_t *rank = &cluster->ranks[host->ranks[i]];
            wefti_cpulist_format(rank->cpus, rank->cpu_count, list, sizeof list);
            wefti_json_string(json, NULL, list);
        }
        wefti_json_end_array(json);
    }
    if (cards) {
        wefti_json_begin_array(json, "rank_cards");
        for (uint32_t i = 0; i < host->rank_count; i++) {
            uint32_t card = cluster->ranks[host->ranks[i]].card;
            if (card == WEFTI_TOPO_NONE) {
                wefti_json_string(json, NULL, NULL);
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
    wefti_fields_write(json, wefti_link_fields, link);
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

static void write_levels(wefti_json_t *json, const wefti_cluster_t *cluster)
{
    static const wefti_topo_cost_t unknown[WEFTI_TOPO_LEVELS];
    if (memcmp(cluster->levels, unknown, sizeof unknown) == 0) {
        return;
    }
    wefti_json_begin_object(json, "levels");
    for (uint32_t i = 0; i < WEFTI_TOPO_LEVELS; i++) {
        if (cluster->levels[i].bits_per_s == 0 && cluster->levels[i].latency_ns == 0) {
            continue;
        }
        wefti_json_begin_object(json, wefti_level_names[i]);
        wefti_fields_write(json, wefti_cost_fields, &cluster->levels[i]);
        wefti_json_end_object(json);
    }
    wefti_json_end_object(json);
}

/* The first host with the same hardware; itself if there is none, or if its name is ambiguous. */
static uint32_t like_which(const wefti_cluster_t *cluster, uint32_t index, bool names)
{
    uint32_t first = 0;
    while (cluster->hosts[first].hardware != cluster->hosts[index].hardware) {
        first++;
    }
    for (uint32_t h = 0; names && h < first; h++) {
        if (strcmp(cluster->hosts[h].name, cluster->hosts[first].name) == 0) {
            return index;
        }
    }
    return first;
}

/* names: those of hosts and processors' models, too. */
static void write_hosts(wefti_json_t *json, const wefti_cluster_t *cluster, bool names)
{
    uint32_t before = 0;
    wefti_json_begin_array(json, "hosts");
    for (uint32_t h = 0; h < cluster->host_count; h++) {
        const wefti_topo_host_t *host = &cluster->hosts[h];
        uint32_t like = like_which(cluster, h, names);
        wefti_json_begin_object(json, NULL);
        if (names) {
            wefti_json_string(json, "name", host->name);
        }
        if (cluster->rank_count > 0) {
            write_ranks(json, cluster, h, before);
        }
        before += host->rank_count;
        if (host->rack != WEFTI_TOPO_NONE) {
            wefti_json_int(json, "rack", host->rack);
        }
        if (like == h) {
            wefti_hardware_write(json, host->hardware, names);
        } else if (names) {
            wefti_json_string(json, "like", cluster->hosts[like].name);
        } else {
            wefti_json_int(json, "like", like);
        }
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

void wefti_cluster_write(const wefti_cluster_t *cluster, wefti_json_t *json)
{
    wefti_json_int(json, "format", 1);
    if (cluster->name[0] != '\0') {
        wefti_json_string(json, "name", cluster->name);
    }
    write_hosts(json, cluster, true);
    write_links(json, cluster);
    write_levels(json, cluster);
}

weft_status_t wefti_cluster_digest(const wefti_cluster_t *cluster, wefti_digest_t *out_digest)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_object(&json, NULL);
    write_hosts(&json, cluster, false);
    write_links(&json, cluster);
    write_levels(&json, cluster);
    wefti_json_end_object(&json);
    weft_status_t status =
        text.failed ? WEFT_ERR_NO_MEMORY : wefti_digest_of(text.data, text.length, out_digest);
    wefti_text_deinit(&text);
    return status;
}

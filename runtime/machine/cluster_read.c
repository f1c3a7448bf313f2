/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters from JSON: hosts, who runs there, links. What a host is made of: hardware_json.c. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/machine/fields.h"

#define FORMAT 1
#define MAX_CLUSTER_CORES 4194304u

typedef struct reader {
    const wefti_json_tree_t *tree;
    wefti_cluster_t *cluster;
    const char *path; /* of the file, or NULL */
    wefti_hardware_file_fn read_file;
    uint32_t *host_of; /* [rank] */
    uint32_t rank_count;
    uint64_t core_count;
} reader_t;

static weft_status_t bad_ranks(uint32_t host)
{
    return wefti_error(WEFT_ERR_FORMAT, "host %u: 'ranks' is missing or above %u", host,
                       WEFTI_TOPO_MAX_RANKS);
}

static weft_status_t take_rank(reader_t *reader, uint32_t rank, uint32_t host)
{
    if (reader->host_of[rank] != WEFTI_TOPO_NONE) {
        return wefti_error(WEFT_ERR_FORMAT, "duplicate rank %u: on hosts %u and %u", rank,
                           reader->host_of[rank], host);
    }
    reader->host_of[rank] = host;
    reader->rank_count++;
    return WEFT_OK;
}

/* A number of ranks, which follow those of the hosts before; or a list of ranks. */
static weft_status_t read_ranks(reader_t *reader, uint32_t host, const wefti_json_node_t *ranks)
{
    uint32_t number;
    if (ranks->kind == WEFTI_JSON_ARRAY) {
        const wefti_json_node_t *node = wefti_json_first(reader->tree, ranks);
        for (; node != NULL; node = wefti_json_after(reader->tree, node)) {
            if (!wefti_json_whole(node, WEFTI_TOPO_MAX_RANKS - 1, &number)) {
                return bad_ranks(host);
            }
            WEFT_RETURN_IF_ERROR(take_rank(reader, number, host));
        }
        return WEFT_OK;
    }
    if (!wefti_json_whole(ranks, WEFTI_TOPO_MAX_RANKS - reader->rank_count, &number) ||
        (number == 0 && ranks->key == NULL)) {
        return bad_ranks(host);
    }
    for (uint32_t end = reader->rank_count + number; reader->rank_count < end;) {
        WEFT_RETURN_IF_ERROR(take_rank(reader, reader->rank_count, host));
    }
    return WEFT_OK;
}

static weft_status_t read_file(const reader_t *reader, const wefti_json_node_t *file,
                               wefti_hardware_t *out)
{
    if (file->kind != WEFTI_JSON_STRING) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'hwloc': expected a file name");
    }
    if (reader->read_file == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: hwloc files are not supported here; convert them with `weft topo`",
                           file->string);
    }
    wefti_arena_t *arena = &reader->cluster->arena;
    const char *path = file->string,
               *slash = reader->path != NULL ? strrchr(reader->path, '/') : NULL;
    if (slash != NULL && path[0] != '/') {
        path =
            wefti_arena_printf(arena, "%.*s/%s", (int)(slash - reader->path), reader->path, path);
        WEFT_RETURN_IF_NO_MEMORY(path);
    }
    return reader->read_file(path, arena, out);
}

/* The host so far that has the name, or WEFTI_TOPO_NONE. */
static uint32_t host_called(const reader_t *reader, const wefti_json_node_t *name)
{
    const wefti_cluster_t *cluster = reader->cluster;
    for (uint32_t h = 0; name->kind == WEFTI_JSON_STRING && h < cluster->host_count; h++) {
        if (strcmp(cluster->hosts[h].name, name->string) == 0) {
            return h;
        }
    }
    return WEFTI_TOPO_NONE;
}

static weft_status_t read_hardware(reader_t *reader, const wefti_json_node_t *node,
                                   const wefti_hardware_t **out)
{
    const wefti_json_node_t *like = wefti_json_get(reader->tree, node, "like"),
                            *file = wefti_json_get(reader->tree, node, "hwloc");
    if (like != NULL) {
        uint32_t host = host_called(reader, like);
        if (host == WEFTI_TOPO_NONE) {
            return wefti_error(WEFT_ERR_FORMAT, "like: no host before it is called \"%.40s\"",
                               like->kind == WEFTI_JSON_STRING ? like->string : "");
        }
        *out = reader->cluster->hosts[host].hardware;
        return WEFT_OK;
    }
    wefti_arena_t *arena = &reader->cluster->arena;
    wefti_hardware_t *hardware = wefti_arena_alloc(arena, sizeof *hardware);
    WEFT_RETURN_IF_NO_MEMORY(hardware);
    WEFT_RETURN_IF_ERROR(file != NULL ? read_file(reader, file, hardware)
                                      : wefti_hardware_read(reader->tree, node, arena, hardware));
    reader->core_count += hardware->core_count;
    *out = hardware;
    return reader->core_count <= MAX_CLUSTER_CORES
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "too many cores: at most %u", MAX_CLUSTER_CORES);
}

static weft_status_t add_host(reader_t *reader, const wefti_json_node_t *node)
{
    const wefti_hardware_t *hardware = NULL;
    uint32_t index = reader->cluster->host_count;
    char name[32];
    snprintf(name, sizeof name, "host%u", index);
    const wefti_json_node_t *named = wefti_json_get(reader->tree, node, "name");
    if (node->kind == WEFTI_JSON_OBJECT) {
        weft_status_t status = read_hardware(reader, node, &hardware);
        if (status < 0) {
            return wefti_error_prefix(status, "host %u", index);
        }
    } else if (node->kind != WEFTI_JSON_NUMBER) {
        return bad_ranks(index);
    }
    const char *text = named != NULL && named->kind == WEFTI_JSON_STRING ? named->string : name;
    if (strlen(text) >= 64 || text[0] == '\0') {
        return wefti_error(WEFT_ERR_FORMAT, "host %u: key 'name': expected 1 to 63 characters",
                           index);
    }
    WEFT_RETURN_IF_ERROR(wefti_cluster_add_host(reader->cluster, text, hardware));
    const wefti_json_node_t *rack = wefti_json_get(reader->tree, node, "rack");
    if (rack != NULL &&
        !wefti_json_whole(rack, WEFTI_TOPO_MAX_RACKS - 1, &reader->cluster->hosts[index].rack)) {
        return wefti_error(WEFT_ERR_FORMAT, "host %u: key 'rack': expected a number from 0 to %u",
                           index, WEFTI_TOPO_MAX_RACKS - 1);
    }
    return WEFT_OK;
}

/* Who runs where. Hosts without ranks are good as long as no host has any. */
static weft_status_t read_placement(reader_t *reader, const wefti_json_node_t *hosts)
{
    uint32_t h = 0, without = WEFTI_TOPO_NONE;
    const wefti_json_node_t *node = wefti_json_first(reader->tree, hosts);
    for (; node != NULL; node = wefti_json_after(reader->tree, node), h++) {
        const wefti_json_node_t *ranks =
            node->kind == WEFTI_JSON_OBJECT ? wefti_json_get(reader->tree, node, "ranks") : node;
        if (ranks != NULL) {
            WEFT_RETURN_IF_ERROR(read_ranks(reader, h, ranks));
        } else if (without == WEFTI_TOPO_NONE) {
            without = h;
        }
    }
    if (without != WEFTI_TOPO_NONE && reader->rank_count > 0) {
        return bad_ranks(without);
    }
    for (uint32_t r = 0; r < reader->rank_count; r++) {
        if (reader->host_of[r] == WEFTI_TOPO_NONE) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "invalid description of %u ranks: rank %u is on no host",
                               reader->rank_count, r);
        }
    }
    return wefti_cluster_set_ranks(reader->cluster, reader->host_of, reader->rank_count);
}

/* The first entry of a list with one for each of the host's ranks; *out NULL: there is no list. */
static weft_status_t find_entries(const reader_t *reader, const wefti_json_node_t *node,
                                  const wefti_topo_host_t *host, const char *key,
                                  const wefti_json_node_t **out)
{
    const wefti_json_node_t *list = wefti_json_get(reader->tree, node, key);
    if (list != NULL && (list->kind != WEFTI_JSON_ARRAY || list->count != host->rank_count)) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "keys 'binding' and 'rank_cards': expected lists with one entry for "
                           "each of its %u ranks",
                           host->rank_count);
    }
    *out = list != NULL ? wefti_json_first(reader->tree, list) : NULL;
    return WEFT_OK;
}

static weft_status_t read_binding(reader_t *reader, const wefti_json_node_t *node,
                                  const wefti_topo_host_t *host)
{
    const wefti_json_node_t *list, *card;
    wefti_topo_rank_t *ranks = reader->cluster->ranks;
    WEFT_RETURN_IF_ERROR(find_entries(reader, node, host, "binding", &list));
    WEFT_RETURN_IF_ERROR(find_entries(reader, node, host, "rank_cards", &card));
    for (uint32_t i = 0; list != NULL; list = wefti_json_after(reader->tree, list), i++) {
        wefti_topo_rank_t *rank = &ranks[host->ranks[i]];
        WEFT_RETURN_IF_ERROR(wefti_cpulist_parse(
            list->kind == WEFTI_JSON_STRING ? list->string : "?", WEFTI_TOPO_MAX_CPUS,
            &reader->cluster->arena, &rank->cpus, &rank->cpu_count));
    }
    for (uint32_t i = 0; card != NULL; card = wefti_json_after(reader->tree, card), i++) {
        uint32_t *index = &ranks[host->ranks[i]].card;
        if (card->kind != WEFTI_JSON_NULL &&
            (!wefti_json_whole(card, WEFTI_TOPO_MAX_DEVICES, index) ||
             *index >= host->hardware->card_count)) {
            return wefti_error(WEFT_ERR_FORMAT, "rank %u: unknown device", host->ranks[i]);
        }
    }
    return WEFT_OK;
}

static weft_status_t find_host(const reader_t *reader, const wefti_json_node_t *node, uint32_t *out)
{
    if (wefti_json_whole(node, reader->cluster->host_count - 1, out)) {
        return WEFT_OK;
    }
    *out = host_called(reader, node);
    return *out != WEFTI_TOPO_NONE
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "key 'hosts': expected host names or indices");
}

static weft_status_t read_ends(const reader_t *reader, const wefti_json_node_t *node,
                               uint32_t *ends)
{
    const wefti_json_node_t *hosts = wefti_json_get(reader->tree, node, "hosts");
    if (hosts == NULL || hosts->kind != WEFTI_JSON_ARRAY || hosts->count != 2) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'hosts': expected two hosts");
    }
    const wefti_json_node_t *first = wefti_json_first(reader->tree, hosts);
    WEFT_RETURN_IF_ERROR(find_host(reader, first, &ends[0]));
    WEFT_RETURN_IF_ERROR(find_host(reader, wefti_json_after(reader->tree, first), &ends[1]));
    return ends[0] != ends[1]
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "key 'hosts': the two hosts must differ");
}

/* all: of every pair of hosts that has no link of its own. */
static weft_status_t read_link(reader_t *reader, const wefti_json_node_t *node, bool all)
{
    wefti_topo_link_t *link = &reader->cluster->links[reader->cluster->link_count++];
    *link = (wefti_topo_link_t){.hosts = {WEFTI_TOPO_NONE, WEFTI_TOPO_NONE}};
    if (node->kind != WEFTI_JSON_OBJECT) {
        return wefti_error(WEFT_ERR_FORMAT, "expected an object");
    }
    if (!all) {
        WEFT_RETURN_IF_ERROR(read_ends(reader, node, link->hosts));
    }
    WEFT_RETURN_IF_ERROR(wefti_fields_read(reader->tree, node, wefti_link_fields, NULL, link));
    link->rails = link->rails > 0 ? link->rails : 1;
    return WEFT_OK;
}

static weft_status_t read_links(reader_t *reader, const wefti_json_node_t *top)
{
    weft_status_t status;
    wefti_cluster_t *cluster = reader->cluster;
    const wefti_json_node_t *one = wefti_json_get(reader->tree, top, "link"),
                            *list = wefti_json_get(reader->tree, top, "links");
    if (list != NULL && list->kind != WEFTI_JSON_ARRAY) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'links': expected a list");
    }
    uint32_t count = (list != NULL ? list->count : 0) + (one != NULL);
    cluster->links = wefti_arena_array(&cluster->arena, count + 1ul, sizeof *cluster->links);
    WEFT_RETURN_IF_NO_MEMORY(cluster->links);
    if (one != NULL && (status = read_link(reader, one, true)) < 0) {
        return wefti_error_prefix(status, "link");
    }
    const wefti_json_node_t *at = list != NULL ? wefti_json_first(reader->tree, list) : NULL;
    for (uint32_t i = 0; at != NULL; at = wefti_json_after(reader->tree, at), i++) {
        if ((status = read_link(reader, at, false)) < 0) {
            return wefti_error_prefix(status, "links: %u", i);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_levels(reader_t *reader, const wefti_json_node_t *top)
{
    const wefti_json_node_t *levels = wefti_json_get(reader->tree, top, "levels");
    if (levels != NULL && levels->kind != WEFTI_JSON_OBJECT) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'levels': expected an object");
    }
    for (uint32_t i = 0; levels != NULL && i < WEFTI_TOPO_LEVELS; i++) {
        const wefti_json_node_t *level = wefti_json_get(reader->tree, levels, wefti_level_names[i]);
        if (level == NULL) {
            continue;
        }
        weft_status_t status = level->kind == WEFTI_JSON_OBJECT
                                   ? wefti_fields_read(reader->tree, level, wefti_cost_fields, NULL,
                                                       &reader->cluster->levels[i])
                                   : wefti_error(WEFT_ERR_FORMAT, "expected an object");
        if (status < 0) {
            return wefti_error_prefix(status, "levels: %s", wefti_level_names[i]);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_cluster(reader_t *reader)
{
    wefti_cluster_t *cluster = reader->cluster;
    const wefti_json_node_t *top = reader->tree->nodes;
    const wefti_json_node_t *format = wefti_json_get(reader->tree, top, "format"),
                            *hosts = wefti_json_get(reader->tree, top, "hosts"),
                            *name = wefti_json_get(reader->tree, top, "name");
    if (format == NULL || format->kind != WEFTI_JSON_NUMBER || format->number != FORMAT ||
        hosts == NULL || hosts->kind != WEFTI_JSON_ARRAY || hosts->count == 0 ||
        hosts->count > WEFTI_TOPO_MAX_HOSTS) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "not a topology description: expected format %d and a list of hosts",
                           FORMAT);
    }
    if (name != NULL && name->kind == WEFTI_JSON_STRING) {
        cluster->name = wefti_arena_strdup(&cluster->arena, name->string);
    }
    reader->host_of =
        wefti_arena_array(&cluster->arena, WEFTI_TOPO_MAX_RANKS, sizeof *reader->host_of);
    WEFT_RETURN_IF_NO_MEMORY(!cluster->arena.failed);
    memset(reader->host_of, 0xff, WEFTI_TOPO_MAX_RANKS * sizeof *reader->host_of);
    const wefti_json_node_t *node = wefti_json_first(reader->tree, hosts);
    for (; node != NULL; node = wefti_json_after(reader->tree, node)) {
        WEFT_RETURN_IF_ERROR(add_host(reader, node));
    }
    WEFT_RETURN_IF_ERROR(read_placement(reader, hosts));
    node = wefti_json_first(reader->tree, hosts);
    for (uint32_t h = 0; node != NULL; node = wefti_json_after(reader->tree, node), h++) {
        weft_status_t status = read_binding(reader, node, &cluster->hosts[h]);
        if (status < 0) {
            return wefti_error_prefix(status, "host %u", h);
        }
    }
    WEFT_RETURN_IF_ERROR(read_levels(reader, top));
    return read_links(reader, top);
}

weft_status_t wefti_cluster_decode(const char *text, size_t bytes, const char *path,
                                   wefti_hardware_file_fn file, const weft_allocator_t *allocator,
                                   wefti_cluster_t *out)
{
    wefti_json_tree_t tree;
    wefti_cluster_init(out, allocator);
    WEFT_RETURN_IF_ERROR(wefti_json_parse(text, bytes, allocator, &tree));
    reader_t reader = {.tree = &tree, .cluster = out, .path = path, .read_file = file};
    weft_status_t status = read_cluster(&reader);
    wefti_json_tree_deinit(&tree);
    if (status < 0) {
        wefti_cluster_deinit(out);
    }
    return status;
}

weft_status_t wefti_cluster_load(const char *path, wefti_hardware_file_fn file,
                                 const weft_allocator_t *allocator, wefti_cluster_t *out)
{
    wefti_mapping_t mapping;
    wefti_cluster_init(out, allocator);
    WEFT_RETURN_IF_ERROR(wefti_file_map(path, &mapping));
    weft_status_t status = wefti_cluster_decode((const char *)mapping.data, mapping.size_bytes,
                                                path, file, allocator, out);
    wefti_file_unmap(&mapping);
    return status < 0 ? wefti_error_prefix(status, "%s", path) : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters from JSON: hosts, who runs there, links. What a host is made of: hardware_read.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/machine/hardware_read.h"

#define FORMAT 1
#define MAX_CLUSTER_CORES 4194304u

typedef struct reader {
    const wefti_json_tree_t *tree;
    wefti_cluster_t *cluster;
    const char *base;
    wefti_hardware_file_fn read_file;
    const wefti_json_node_t **nodes; /* [host] */
    uint32_t *host_of;               /* [rank] */
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
    weft_status_t status = WEFT_OK;
    if (ranks->kind == WEFTI_JSON_ARRAY) {
        const wefti_json_node_t *node = wefti_json_first(reader->tree, ranks);
        for (; node != NULL && status >= 0; node = wefti_json_after(reader->tree, node)) {
            status = wefti_topo_whole(node, WEFTI_TOPO_MAX_RANKS - 1, &number)
                         ? take_rank(reader, number, host)
                         : bad_ranks(host);
        }
        return status;
    }
    if (!wefti_topo_whole(ranks, WEFTI_TOPO_MAX_RANKS - reader->rank_count, &number) ||
        (number == 0 && ranks->key == NULL)) {
        return bad_ranks(host);
    }
    for (uint32_t i = 0, first = reader->rank_count; i < number && status >= 0; i++) {
        status = take_rank(reader, first + i, host);
    }
    return status;
}

static weft_status_t read_file(reader_t *reader, const char *name, wefti_hardware_t *out)
{
    char path[1024];
    if (reader->read_file == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: hwloc files are not supported here; convert them with `weft topo`",
                           name);
    }
    int length = snprintf(path, sizeof path, "%s%s%s",
                          reader->base != NULL && name[0] != '/' ? reader->base : "",
                          reader->base != NULL && name[0] != '/' ? "/" : "", name);
    if (length < 0 || (size_t)length >= sizeof path) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'hwloc': the path is too long");
    }
    weft_status_t status = reader->read_file(path, &reader->cluster->arena, out);
    return status < 0 ? status : wefti_hardware_check(out);
}

/* "like": the host before that has the name. */
static weft_status_t find_like(const reader_t *reader, const wefti_json_node_t *like,
                               const wefti_hardware_t **out)
{
    for (uint32_t h = 0; like->kind == WEFTI_JSON_STRING && h < reader->cluster->host_count; h++) {
        if (strcmp(reader->cluster->hosts[h].name, like->string) == 0) {
            *out = reader->cluster->hosts[h].hardware;
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_FORMAT, "like: no host before it is called \"%.40s\"",
                       like->kind == WEFTI_JSON_STRING ? like->string : "");
}

static weft_status_t read_hardware(reader_t *reader, const wefti_json_node_t *node,
                                   const wefti_hardware_t **out)
{
    const wefti_json_node_t *like = wefti_json_get(reader->tree, node, "like"),
                            *file = wefti_json_get(reader->tree, node, "hwloc");
    *out = NULL;
    if (like != NULL) {
        return find_like(reader, like, out);
    }
    wefti_hardware_t *hardware = wefti_arena_alloc(&reader->cluster->arena, sizeof *hardware);
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    if (hardware != NULL && file != NULL) {
        status = file->kind == WEFTI_JSON_STRING
                     ? read_file(reader, file->string, hardware)
                     : wefti_error(WEFT_ERR_FORMAT, "key 'hwloc': expected a file name");
    } else if (hardware != NULL) {
        status = wefti_topo_read_hardware(reader->tree, node, &reader->cluster->arena, hardware);
    }
    reader->core_count += status >= 0 ? hardware->core_count : 0;
    if (reader->core_count > MAX_CLUSTER_CORES) {
        status = wefti_error(WEFT_ERR_FORMAT, "too many cores: at most %u", MAX_CLUSTER_CORES);
    }
    *out = hardware;
    return status;
}

static weft_status_t add_host(reader_t *reader, const wefti_json_node_t *node)
{
    const wefti_hardware_t *hardware = NULL;
    uint32_t index = reader->cluster->host_count;
    char name[32];
    snprintf(name, sizeof name, "host%u", index);
    const wefti_json_node_t *named = wefti_json_get(reader->tree, node, "name");
    weft_status_t status = WEFT_OK;
    if (node->kind == WEFTI_JSON_OBJECT) {
        status = read_hardware(reader, node, &hardware);
    } else if (node->kind != WEFTI_JSON_NUMBER) {
        return bad_ranks(index);
    }
    if (status < 0) {
        return wefti_error_prefix(status, "host %u", index);
    }
    const char *text = named != NULL && named->kind == WEFTI_JSON_STRING ? named->string : name;
    if (strlen(text) >= 64 || text[0] == '\0') {
        return wefti_error(WEFT_ERR_FORMAT, "host %u: key 'name': expected 1 to 63 characters",
                           index);
    }
    reader->nodes[index] = node;
    return wefti_cluster_add_host(reader->cluster, text, hardware);
}

/* Who runs where. Hosts without ranks are good as long as no host has any. */
static weft_status_t read_placement(reader_t *reader)
{
    uint32_t without = WEFTI_TOPO_NONE, host_count = reader->cluster->host_count;
    weft_status_t status = WEFT_OK;
    for (uint32_t h = 0; h < host_count && status >= 0; h++) {
        const wefti_json_node_t *node = reader->nodes[h];
        const wefti_json_node_t *ranks =
            node->kind == WEFTI_JSON_OBJECT ? wefti_json_get(reader->tree, node, "ranks") : node;
        without = ranks == NULL && without == WEFTI_TOPO_NONE ? h : without;
        status = ranks != NULL ? read_ranks(reader, h, ranks) : WEFT_OK;
    }
    if (status >= 0 && without != WEFTI_TOPO_NONE && reader->rank_count > 0) {
        status = bad_ranks(without);
    }
    for (uint32_t r = 0; r < reader->rank_count && status >= 0; r++) {
        if (reader->host_of[r] == WEFTI_TOPO_NONE) {
            status = wefti_error(WEFT_ERR_FORMAT,
                                 "invalid description of %u ranks: rank %u is on no host",
                                 reader->rank_count, r);
        }
    }
    return status < 0
               ? status
               : wefti_cluster_set_ranks(reader->cluster, reader->host_of, reader->rank_count);
}

static weft_status_t read_binding(reader_t *reader, uint32_t host)
{
    weft_status_t status = WEFT_OK;
    wefti_cluster_t *cluster = reader->cluster;
    const wefti_topo_host_t *it = &cluster->hosts[host];
    const wefti_json_node_t *node = reader->nodes[host];
    const wefti_json_node_t *binding = wefti_json_get(reader->tree, node, "binding"),
                            *cards = wefti_json_get(reader->tree, node, "rank_cards");
    if ((binding != NULL &&
         (binding->kind != WEFTI_JSON_ARRAY || binding->count != it->rank_count)) ||
        (cards != NULL && (cards->kind != WEFTI_JSON_ARRAY || cards->count != it->rank_count))) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "host %u: keys 'binding' and 'rank_cards': expected lists with one "
                           "entry for each of its %u ranks",
                           host, it->rank_count);
    }
    const wefti_json_node_t *at = binding != NULL ? wefti_json_first(reader->tree, binding) : NULL;
    for (uint32_t i = 0; at != NULL && status >= 0; at = wefti_json_after(reader->tree, at), i++) {
        wefti_topo_rank_t *rank = &cluster->ranks[it->ranks[i]];
        status = wefti_cpulist_parse(at->kind == WEFTI_JSON_STRING ? at->string : "?",
                                     WEFTI_TOPO_MAX_CPUS, &cluster->arena, &rank->cpus,
                                     &rank->cpu_count);
    }
    at = cards != NULL ? wefti_json_first(reader->tree, cards) : NULL;
    for (uint32_t i = 0; at != NULL && status >= 0; at = wefti_json_after(reader->tree, at), i++) {
        uint32_t card = WEFTI_TOPO_NONE;
        if (at->kind != WEFTI_JSON_NULL &&
            (it->hardware->card_count == 0 ||
             !wefti_topo_whole(at, it->hardware->card_count - 1, &card))) {
            status = wefti_error(WEFT_ERR_FORMAT, "rank %u: unknown device", it->ranks[i]);
        }
        cluster->ranks[it->ranks[i]].card = card;
    }
    return status < 0 ? wefti_error_prefix(status, "host %u", host) : WEFT_OK;
}

static weft_status_t find_host(const reader_t *reader, const wefti_json_node_t *node, uint32_t *out)
{
    const wefti_cluster_t *cluster = reader->cluster;
    if (wefti_topo_whole(node, cluster->host_count - 1, out)) {
        return WEFT_OK;
    }
    for (uint32_t h = 0; node->kind == WEFTI_JSON_STRING && h < cluster->host_count; h++) {
        if (strcmp(cluster->hosts[h].name, node->string) == 0) {
            *out = h;
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_FORMAT, "key 'hosts': expected host names or indices");
}

static weft_status_t read_link(reader_t *reader, const wefti_json_node_t *node, bool all,
                               wefti_topo_link_t *out)
{
    double gbit = 0, latency_us = 0, rails = 1;
    const wefti_json_node_t *hosts = wefti_json_get(reader->tree, node, "hosts");
    *out = (wefti_topo_link_t){.hosts = {WEFTI_TOPO_NONE, WEFTI_TOPO_NONE}};
    if (node->kind != WEFTI_JSON_OBJECT) {
        return wefti_error(WEFT_ERR_FORMAT, "expected an object");
    }
    if (!all) {
        if (hosts == NULL || hosts->kind != WEFTI_JSON_ARRAY || hosts->count != 2) {
            return wefti_error(WEFT_ERR_FORMAT, "key 'hosts': expected two hosts");
        }
        const wefti_json_node_t *first = wefti_json_first(reader->tree, hosts);
        WEFT_RETURN_IF_ERROR(find_host(reader, first, &out->hosts[0]));
        WEFT_RETURN_IF_ERROR(
            find_host(reader, wefti_json_after(reader->tree, first), &out->hosts[1]));
        if (out->hosts[0] == out->hosts[1]) {
            return wefti_error(WEFT_ERR_FORMAT, "key 'hosts': the two hosts must differ");
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_topo_number(reader->tree, node, "gbit_per_s", 1e6, &gbit));
    WEFT_RETURN_IF_ERROR(wefti_topo_number(reader->tree, node, "latency_us", 1e9, &latency_us));
    WEFT_RETURN_IF_ERROR(wefti_topo_number(reader->tree, node, "rails", 1024, &rails));
    out->bits_per_s = (uint64_t)llround(gbit * 1e9);
    out->latency_ns = latency_us * 1e3;
    out->rails = rails >= 1 ? (uint32_t)rails : 1;
    return WEFT_OK;
}

static weft_status_t read_links(reader_t *reader, const wefti_json_node_t *top)
{
    weft_status_t status = WEFT_OK;
    wefti_cluster_t *cluster = reader->cluster;
    const wefti_json_node_t *one = wefti_json_get(reader->tree, top, "link"),
                            *list = wefti_json_get(reader->tree, top, "links");
    if (list != NULL && list->kind != WEFTI_JSON_ARRAY) {
        return wefti_error(WEFT_ERR_FORMAT, "key 'links': expected a list");
    }
    uint32_t count = (list != NULL ? list->count : 0) + (one != NULL);
    cluster->links = wefti_arena_array(&cluster->arena, count + 1ul, sizeof *cluster->links);
    if (cluster->links == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (one != NULL) {
        status = read_link(reader, one, true, &cluster->links[cluster->link_count++]);
        status = status < 0 ? wefti_error_prefix(status, "link") : status;
    }
    const wefti_json_node_t *at = list != NULL ? wefti_json_first(reader->tree, list) : NULL;
    for (uint32_t i = 0; at != NULL && status >= 0; at = wefti_json_after(reader->tree, at), i++) {
        status = read_link(reader, at, false, &cluster->links[cluster->link_count++]);
        status = status < 0 ? wefti_error_prefix(status, "links: %u", i) : status;
    }
    return status;
}

static weft_status_t read_cluster(reader_t *reader)
{
    weft_status_t status = WEFT_OK;
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
    wefti_arena_t *arena = &reader->cluster->arena;
    reader->nodes = wefti_arena_array(arena, hosts->count, sizeof(*reader->nodes));
    reader->host_of = wefti_arena_array(arena, WEFTI_TOPO_MAX_RANKS, sizeof *reader->host_of);
    if (reader->nodes == NULL || reader->host_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(reader->host_of, 0xff, WEFTI_TOPO_MAX_RANKS * sizeof *reader->host_of);
    if (name != NULL && name->kind == WEFTI_JSON_STRING) {
        reader->cluster->name = wefti_arena_strdup(arena, name->string);
        WEFT_TRY(status, reader->cluster->name != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, fail);
    }
    const wefti_json_node_t *node = wefti_json_first(reader->tree, hosts);
    for (; node != NULL && status >= 0; node = wefti_json_after(reader->tree, node)) {
        status = add_host(reader, node);
    }
    WEFT_TRY(status, status, fail);
    WEFT_TRY(status, read_placement(reader), fail);
    for (uint32_t h = 0; h < reader->cluster->host_count; h++) {
        WEFT_TRY(status, read_binding(reader, h), fail);
    }
    WEFT_TRY(status, read_links(reader, top), fail);
fail:
    return status;
}

weft_status_t wefti_cluster_decode(const char *text, size_t bytes, const char *base,
                                   wefti_hardware_file_fn file, const weft_allocator_t *allocator,
                                   wefti_cluster_t *out)
{
    wefti_json_tree_t tree;
    wefti_cluster_init(out, allocator);
    weft_status_t status = wefti_json_parse(text, bytes, allocator, &tree);
    if (status < 0) {
        return status;
    }
    reader_t reader = {.tree = &tree, .cluster = out, .base = base, .read_file = file};
    status = read_cluster(&reader);
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
    char base[1024] = ".";
    const char *slash = strrchr(path, '/');
    wefti_cluster_init(out, allocator);
    weft_status_t status = wefti_file_map(path, &mapping);
    if (status < 0) {
        return status;
    }
    if (slash != NULL) {
        snprintf(base, sizeof base, "%.*s", (int)(slash - path), path);
    }
    status = wefti_cluster_decode((const char *)mapping.data, mapping.size_bytes, base, file,
                                  allocator, out);
    wefti_file_unmap(&mapping);
    return status < 0 ? wefti_error_prefix(status, "%s", path) : status;
}

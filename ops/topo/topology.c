/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/topo/topology.h"

#include "ops/cost/json_read.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"

#define FORMAT 1
#define MAX_RANKS 65536u

static weft_status_t make(uint32_t host_count, const weft_allocator_t *allocator,
                          wefti_topology_t *out)
{
    *out = (wefti_topology_t){.allocator = allocator};
    out->host_sizes = wefti_alloc(allocator, (host_count + 1ul) * sizeof *out->host_sizes);
    return out->host_sizes != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t wefti_topology_from_hosts(const uint64_t *host_of_rank, uint32_t rank_count,
                                        const weft_allocator_t *allocator, wefti_topology_t *out)
{
    weft_status_t status = make(rank_count, allocator, out);
    for (uint32_t rank = 0; rank < rank_count && status >= 0; rank++) {
        if (rank == 0 || host_of_rank[rank] != host_of_rank[rank - 1]) {
            out->host_count++;
        }
        out->host_sizes[out->host_count - 1]++;
    }
    out->rank_count = status >= 0 ? rank_count : 0;
    return status;
}

static weft_status_t add_host(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                              wefti_topology_t *out)
{
    const wefti_json_node_t *ranks =
        node->kind == WEFTI_JSON_OBJECT ? wefti_json_get(tree, node, "ranks") : node;
    if (ranks == NULL || ranks->kind != WEFTI_JSON_NUMBER || !(ranks->number >= 1) ||
        ranks->number > MAX_RANKS - out->rank_count ||
        ranks->number != (double)(uint32_t)ranks->number) {
        return wefti_error(WEFT_ERR_FORMAT, "host %u has no number of ranks, or there are over %u",
                           out->host_count, MAX_RANKS);
    }
    out->host_sizes[out->host_count++] = (uint32_t)ranks->number;
    out->rank_count += (uint32_t)ranks->number;
    return WEFT_OK;
}

weft_status_t wefti_topology_decode(const char *text, size_t bytes,
                                    const weft_allocator_t *allocator, wefti_topology_t *out)
{
    wefti_json_tree_t tree;
    *out = (wefti_topology_t){.allocator = allocator};
    weft_status_t status = wefti_json_parse(text, bytes, allocator, &tree);
    if (status < 0) {
        return status;
    }
    const wefti_json_node_t *format = wefti_json_get(&tree, tree.nodes, "format");
    const wefti_json_node_t *hosts = wefti_json_get(&tree, tree.nodes, "hosts");
    if (format == NULL || format->kind != WEFTI_JSON_NUMBER || format->number != FORMAT ||
        hosts == NULL || hosts->kind != WEFTI_JSON_ARRAY || hosts->count == 0) {
        status = wefti_error(WEFT_ERR_FORMAT, "no topology of format %d with hosts", FORMAT);
    } else {
        status = make(hosts->count, allocator, out);
    }
    const wefti_json_node_t *node = status >= 0 ? wefti_json_first(&tree, hosts) : NULL;
    for (; node != NULL && status >= 0; node = wefti_json_after(&tree, node)) {
        status = add_host(&tree, node, out);
    }
    wefti_json_tree_deinit(&tree);
    if (status < 0) {
        wefti_topology_deinit(out);
    }
    return status;
}

weft_status_t wefti_topology_load(const char *path, const weft_allocator_t *allocator,
                                  wefti_topology_t *out)
{
    wefti_mapping_t mapping;
    *out = (wefti_topology_t){.allocator = allocator};
    weft_status_t status = wefti_file_map(path, &mapping);
    if (status < 0) {
        return status;
    }
    status = wefti_topology_decode((const char *)mapping.data, mapping.size_bytes, allocator, out);
    wefti_file_unmap(&mapping);
    return status < 0 ? wefti_error_prefix(status, "%s", path) : status;
}

void wefti_topology_deinit(wefti_topology_t *topology)
{
    wefti_free(topology->allocator, topology->host_sizes);
    *topology = (wefti_topology_t){0};
}

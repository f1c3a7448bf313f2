/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts of a large group. */
#include "runtime/group/mirror.h"

uint32_t wefti_mesh_ranks = WEFTI_MESH_RANKS;

static uint32_t host_of(const weft_group_t *group, uint32_t rank)
{
    return group->endpoint->host_of[group->ranks[rank]];
}

weft_status_t wefti_group_find_hosts(weft_group_t *group)
{
    wefti_group_hosts_t *hosts = &group->hosts;
    if (group->put_peer_count == 0 || group->size <= wefti_mesh_ranks) {
        return WEFT_OK;
    }
    uint32_t *lists = wefti_alloc(group->context->allocator, 2ul * group->size * sizeof *lists);
    WEFT_RETURN_IF_NO_MEMORY(lists != NULL);
    hosts->firsts = lists;
    hosts->locals = lists + group->size;
    for (uint32_t r = 0; r < group->size; r++) {
        uint32_t host = 0;
        while (host < hosts->count && host_of(group, hosts->firsts[host]) != host_of(group, r)) {
            host++;
        }
        if (host == hosts->count) {
            hosts->firsts[hosts->count++] = r;
        }
        if (!wefti_group_puts(group, r)) {
            hosts->locals[hosts->local_count++] = r;
            hosts->own = host;
        }
    }
    return WEFT_OK;
}

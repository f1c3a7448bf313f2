/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The groups of a plan as this rank sees them: the ranks of its group of each axis, and where they
 * are. Hosts, NICs and links are the same for all groups of an axis, so that all ranks select the
 * same algorithms and divide their memory in the same way.
 */
#include "runtime/plan/session.h"

#include "runtime/base/error.h"

static weft_status_t find_hosts(weft_session_t *session, wefti_bound_group_t *group)
{
    const wefti_endpoint_t *endpoint = session->context->endpoint;
    uint32_t *host_of = wefti_arena_array(&session->arena, group->axis.size, sizeof *host_of);
    WEFT_RETURN_IF_NO_MEMORY(host_of);
    uint32_t count = 1;
    if (endpoint->host_count > 1) {
        WEFT_RETURN_IF_ERROR(wefti_axis_hosts(&group->axis, endpoint->world_size, endpoint->host_of,
                                              host_of, &count));
    }
    if (count > 1) {
        group->host_of = host_of;
        group->host_count = count;
    }
    return WEFT_OK;
}

/* The NIC next to each rank of the first group, if some host has several. */
static weft_status_t find_rails(weft_session_t *session, wefti_bound_group_t *group)
{
    uint32_t n = group->axis.size;
    uint32_t *of_world =
        wefti_arena_array(&session->arena, session->endpoint->world_size, sizeof *of_world);
    uint32_t *rail_of = wefti_arena_array(&session->arena, n, sizeof *rail_of);
    WEFT_RETURN_IF_NO_MEMORY(of_world && rail_of);
    if (group->host_of == NULL || wefti_place_rails(&session->context->cluster, of_world) < 2) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < n; i++) {
        rail_of[i] = of_world[i * group->axis.stride];
    }
    group->rail_of = rail_of;
    return WEFT_OK;
}

/* Known only where WEFT_TOPOLOGY describes the cluster. */
static weft_status_t find_racks(weft_session_t *session, wefti_bound_group_t *group)
{
    uint32_t world = session->endpoint->world_size, count;
    uint32_t *of_world = wefti_arena_array(&session->arena, world, sizeof *of_world);
    uint32_t *rack_of = wefti_arena_array(&session->arena, group->axis.size, sizeof *rack_of);
    WEFT_RETURN_IF_NO_MEMORY(of_world && rack_of);
    if (group->host_of == NULL) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_cluster_racks(&session->context->cluster, of_world, &count));
    if (count > 1) {
        WEFT_RETURN_IF_ERROR(wefti_axis_hosts(&group->axis, world, of_world, rack_of, &count));
        group->rack_of = count > 1 ? rack_of : NULL;
    }
    return WEFT_OK;
}

static weft_status_t bind_group(weft_session_t *session, uint32_t id)
{
    wefti_bound_group_t *group = &session->groups[id];
    uint32_t own = session->endpoint->rank;
    group->axis = wefti_mesh_axis(&session->plan->mesh, session->endpoint->world_size, id);
    uint32_t n = group->axis.size;
    group->rank = wefti_axis_place(&group->axis, own);
    group->ranks = wefti_arena_array(&session->arena, n, sizeof *group->ranks);
    group->bases = wefti_arena_array(&session->arena, n, sizeof *group->bases);
    WEFT_RETURN_IF_NO_MEMORY(group->ranks && group->bases);
    for (uint32_t i = 0; i < n; i++) {
        group->ranks[i] = wefti_axis_rank(&group->axis, own, i);
    }
    WEFT_RETURN_IF_ERROR(find_hosts(session, group));
    WEFT_RETURN_IF_ERROR(find_rails(session, group));
    return find_racks(session, group);
}

weft_status_t wefti_bind_groups(weft_session_t *session)
{
    uint32_t count = session->plan->mesh.axis_count + 1;
    session->groups = wefti_arena_array(&session->arena, count, sizeof *session->groups);
    WEFT_RETURN_IF_NO_MEMORY(session->groups);
    for (uint32_t g = 0; g < count; g++) {
        WEFT_RETURN_IF_ERROR(bind_group(session, g));
    }
    return WEFT_OK;
}

void wefti_bind_group_memory(weft_session_t *session)
{
    for (uint32_t g = 0; g <= session->plan->mesh.axis_count; g++) {
        wefti_bound_group_t *group = &session->groups[g];
        for (uint32_t i = 0; i < group->axis.size; i++) {
            bool far = group->host_of != NULL && group->host_of[group->rank] != group->host_of[i];
            group->bases[i] = far ? NULL : session->endpoint->region_of[group->ranks[i]];
        }
    }
}

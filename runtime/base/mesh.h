/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of ranks of a plan: the axes of a mesh. Rank r of a mesh "data:2,tensor:3" is at
 * (r / 3 % 2, r % 3): the last axis is the one whose ranks are neighbours.
 *
 *             tensor
 *          0   1   2        groups of axis tensor (stride 1): 0 1 2 | 3 4 5
 *   data   3   4   5        groups of axis data (stride 3):   0 3 | 1 4 | 2 5
 *
 * Group 0 of a plan has all ranks; group k is the one of axis k - 1 that the rank is in.
 */
#ifndef WEFT_RUNTIME_BASE_MESH_H
#define WEFT_RUNTIME_BASE_MESH_H

#include <stdint.h>

#include <weft/status.h>

#define WEFTI_MAX_AXES 8u

typedef struct wefti_axis {
    const char *name;      /* "data" */
    uint32_t size, stride; /* of ranks; size * stride divides the number of all ranks */
} wefti_axis_t;

typedef struct wefti_mesh {
    const wefti_axis_t *axes;
    uint32_t axis_count;
} wefti_mesh_t;

/* How a whole tensor is divided over ranks: of each segment of an axis a rank has an equal part. */
typedef struct wefti_division {
    uint32_t axis, count; /* count: segments; 0: it is not divided */
    int64_t *sizes;       /* [count] of the whole axis */
} wefti_division_t;

/* group must be at most axis_count. */
static inline wefti_axis_t wefti_mesh_axis(const wefti_mesh_t *mesh, uint32_t world_size,
                                           uint32_t group)
{
    return group == 0 ? (wefti_axis_t){"all", world_size, 1} : mesh->axes[group - 1];
}

/* The number of a rank in its group. */
static inline uint32_t wefti_axis_place(const wefti_axis_t *axis, uint32_t rank)
{
    return rank / axis->stride % axis->size;
}

/* The rank with number place in the group of rank. */
static inline uint32_t wefti_axis_rank(const wefti_axis_t *axis, uint32_t rank, uint32_t place)
{
    return rank + (place - wefti_axis_place(axis, rank)) * axis->stride;
}

/* Places of an axis on hosts, the same for all its groups, which so run the same schedules: two are on
 * one host if they are in every group. Hosts are numbered by their first places. host_of: below
 * world_size. */
weft_status_t wefti_axis_hosts(const wefti_axis_t *axis, uint32_t world_size,
                               const uint32_t *host_of, uint32_t *out_host_of, uint32_t *out_count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/mesh.h"

#include <stdbool.h>

static bool share_host(const wefti_axis_t *axis, uint32_t world_size, const uint32_t *host_of,
                       uint32_t a, uint32_t b)
{
    for (uint32_t first = a * axis->stride; first < world_size;
         first += axis->size * axis->stride) {
        for (uint32_t rank = first; rank < first + axis->stride; rank++) {
            if (host_of[rank] != host_of[wefti_axis_rank(axis, rank, b)]) {
                return false;
            }
        }
    }
    return true;
}

uint32_t wefti_axis_hosts(const wefti_axis_t *axis, uint32_t world_size, const uint32_t *host_of,
                          uint32_t *out_host_of)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < axis->size; i++) {
        uint32_t first = 0;
        while (first < i && !share_host(axis, world_size, host_of, first, i)) {
            first++;
        }
        out_host_of[i] = first < i ? out_host_of[first] : count++;
    }
    return count;
}

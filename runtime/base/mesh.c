/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/mesh.h"

#include <stdbool.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

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

weft_status_t wefti_axis_hosts(const wefti_axis_t *axis, uint32_t world_size,
                               const uint32_t *host_of, uint32_t *out_host_of, uint32_t *out_count)
{
    /* Places that share a host do so in the first group: [host] the first place of a list, + 1. */
    uint32_t *first = wefti_alloc(NULL, (world_size + (size_t)axis->size) * sizeof *first);
    WEFT_RETURN_IF_NO_MEMORY(first);
    uint32_t *next = first + world_size; /* [place] */
    *out_count = 0;
    for (uint32_t i = 0; i < axis->size; i++) {
        uint32_t *at = &first[host_of[(size_t)i * axis->stride]];
        while (*at != 0 && !share_host(axis, world_size, host_of, *at - 1, i)) {
            at = &next[*at - 1];
        }
        if (*at == 0) {
            *at = i + 1;
            out_host_of[i] = (*out_count)++;
        } else {
            out_host_of[i] = out_host_of[*at - 1];
        }
    }
    wefti_free(NULL, first);
    return WEFT_OK;
}

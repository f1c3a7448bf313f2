/* SPDX-License-Identifier: Apache-2.0 */
/* The updates of the parameters whose gradients one all-reduce reduces. */
#ifndef WEFT_FUSION_UPDATE_GROUP_H
#define WEFT_FUSION_UPDATE_GROUP_H

#include "fusion/fusion.h"

typedef struct wefti_update_group {
    uint32_t node; /* the all-reduce */
    uint32_t count;
    uint32_t *params;  /* by output of the node */
    uint32_t *updates; /* nodes; WEFTI_NONE: no update, or several */
    bool uniform;      /* one operator with the same settings: element-wise, or takes norms */
    bool norms;        /* it takes norms of each parameter: only with these it may run on a range */
} wefti_update_group_t;

/* By STATE value its position among the states of its parameter, if it has the parameter's size and
 * a node reads it; else WEFTI_NONE. */
weft_status_t wefti_state_slots(const wefti_graph_t *graph, wefti_arena_t *arena,
                                uint32_t **out_slots, uint32_t *out_slot_count);
/* The group of a node that reduces gradients; arrays come from arena. */
weft_status_t wefti_update_group(const wefti_graph_t *graph, const wefti_readers_t *readers,
                                 const uint32_t *slots, uint32_t node, wefti_arena_t *arena,
                                 wefti_update_group_t *out);

#endif

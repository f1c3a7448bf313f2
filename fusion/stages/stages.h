/* SPDX-License-Identifier: Apache-2.0 */
/* What the passes of pipelines and of several models share. */
#ifndef WEFT_FUSION_STAGES_H
#define WEFT_FUSION_STAGES_H

#include "fusion/compile.h"

/* send.c: adds a Transfer of a value of place from to another place, or to all (to WEFTI_NONE), as
 * soon as it is computed; its result is name, or is named after the value (NULL). */
weft_status_t wefti_stages_send(wefti_graph_t *graph, uint32_t value, uint32_t from, uint32_t to,
                                const char *name, uint32_t *out_value);
/* Output index, of place from, is sent to all ranks; what they receive has its name and marks. */
weft_status_t wefti_stages_share_output(wefti_graph_t *graph, uint32_t index, uint32_t from);

/* join.c: makes one graph of those of all models, which have no collectives but Send and Recv. */
weft_status_t wefti_stages_join(wefti_compiler_t *compiler);

/* pair.c: is a node Send or Recv, one half of a transfer between two models? */
bool wefti_node_is_sent(const wefti_node_t *node);
/* Each Send and the Recv that it meets become a Transfer; first_node: of each model. */
weft_status_t wefti_stages_pair(wefti_compiler_t *compiler, const uint32_t *first_node);

/* micro.c: the part of the batch for which the graph was imported becomes the first of count parts:
 * all that depends on the batch is there once per part. */
typedef struct wefti_micro_batches {
    uint32_t count, stages;
    bool trains;
    const uint32_t *stage;      /* by node, but Transfers */
    const wefti_graph_t *whole; /* the same model, of the whole batch */
    bool inputs_only;           /* of whole, types of inputs alone are known */
} wefti_micro_batches_t;
weft_status_t wefti_stages_divide_batch(wefti_graph_t *graph, const wefti_micro_batches_t *params);

#endif

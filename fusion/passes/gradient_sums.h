/* SPDX-License-Identifier: Apache-2.0 */
/* What accumulate.c and wire.c share: collectives that reduce gradients, and folds in front of
 * them. */
#ifndef WEFT_FUSION_GRADIENT_SUMS_H
#define WEFT_FUSION_GRADIENT_SUMS_H

#include "fusion/fusion.h"

/* Is it the reduction of gradients alone? */
bool wefti_reduces_gradients(const wefti_graph_t *graph, const wefti_node_t *node);
/* All of them, in order; in arena. */
weft_status_t wefti_find_reductions(const wefti_graph_t *graph, wefti_arena_t *arena,
                                    uint32_t **out_nodes, uint32_t *out_count);

#define WEFTI_MAX_FOLD_GROUPS 33u /* gradients, and 32 levels */
typedef struct wefti_fold_params {
    uint32_t collective; /* that reduces the gradients: so many values per group, and its pieces */
    uint32_t group_count;
    const uint32_t *groups[WEFTI_MAX_FOLD_GROUPS]; /* gradients, then partial sums, lowest first */
    const char *const *output_names;
    const char *what; /* for the name of the node */
    bool bf16;        /* rounds to bf16 */
} wefti_fold_params_t;
/* Inserts weft::TreeFold of all gradients of a collective: output i is the sum of value i of each
 * group. */
weft_status_t wefti_add_fold(wefti_graph_t *graph, wefti_arena_t *arena,
                             const wefti_fold_params_t *params, uint32_t *out_node);

#endif

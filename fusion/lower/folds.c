/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft::TreeFold (fusion/passes/accumulate.c, wire.c): which folds belong to which bucket. A fold
 * of the gradients of a bucket is one kernel over the flat range of the bucket; of a split
 * gradient, one per piece.
 */
#include "fusion/lower/lower.h"

#include "runtime/base/error.h"

/* Notes the partial sums that a fold makes, and partial sum 0, which kernels make. */
static void note_sums(const wefti_lowering_t *l, wefti_folds_t *folds, uint32_t id, uint32_t level)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    for (uint32_t k = 0; level != WEFTI_NONE && k < node->output_count; k++) {
        folds->level_of[node->outputs[k]] = level;
        folds->first_of[node->inputs[k]] =
            level == 0 ? node->outputs[k] : folds->first_of[node->inputs[k]];
    }
    for (uint32_t k = node->output_count; k < node->input_count; k++) {
        uint32_t value = node->inputs[k], gradient = node->inputs[k % node->output_count];
        const wefti_value_t *sum = value == WEFTI_NONE ? NULL : &l->graph->values[value];
        if (sum != NULL && (sum->flags & WEFTI_VALUE_PERSISTENT) != 0 &&
            folds->level_of[value] == WEFTI_NONE) {
            folds->level_of[value] = 0;
            folds->first_of[gradient] = value;
        }
        uint32_t count = value == WEFTI_NONE ? 0 : folds->level_of[value] + 1; /* NONE: 0 */
        folds->level_count = count > folds->level_count ? count : folds->level_count;
    }
}

/* The bucket whose gradients the node folds; members are its outputs. */
static weft_status_t find_bucket(const wefti_lowering_t *l, const uint32_t *bucket_of_gradient,
                                 uint32_t id, uint32_t *out_bucket)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t b = node->inputs[0] == WEFTI_NONE ? WEFTI_NONE : bucket_of_gradient[node->inputs[0]];
    const wefti_bucket_t *bucket = b == WEFTI_NONE ? NULL : &l->buckets->list[b];
    uint32_t last = l->order->item_of[id] + (bucket == NULL ? 0 : bucket->parts - 1);
    bool same = bucket != NULL && bucket->member_count == node->output_count &&
                last < l->order->item_count && l->order->items[last].node == id &&
                (last + 1 == l->order->item_count || l->order->items[last + 1].node != id);
    for (uint32_t i = 0; same && i < bucket->member_count; i++) {
        same = bucket->members[i].value == node->inputs[i];
    }
    *out_bucket = b;
    return same ? WEFT_OK
                : wefti_error(WEFT_ERR_UNSUPPORTED,
                              "node '%s' (%s): does not fold the gradients of one collective",
                              node->name, node->def->name);
}

weft_status_t wefti_lower_find_folds(wefti_lowering_t *l, wefti_folds_t *out)
{
    const wefti_graph_t *graph = l->graph;
    const wefti_buckets_t *buckets = l->buckets;
    uint32_t *bucket_of_gradient = wefti_id_map(&l->arena, graph->value_count);
    out->list = wefti_arena_array(&l->arena, l->order->node_count, sizeof(*out->list));
    out->level_of = wefti_id_map(&l->arena, graph->value_count);
    out->first_of = wefti_id_map(&l->arena, graph->value_count);
    out->has = wefti_arena_array(&l->arena, buckets->count, sizeof(*out->has));
    WEFT_RETURN_IF_NO_MEMORY(bucket_of_gradient && out->list && out->level_of && out->first_of &&
                             out->has);
    for (uint32_t b = buckets->count; b-- > 0;) {
        for (uint32_t i = 0; i < buckets->list[b].member_count; i++) {
            bucket_of_gradient[buckets->list[b].members[i].value] = b;
        }
    }
    for (uint32_t i = 0; i < l->order->node_count; i++) {
        uint32_t id = l->order->nodes[i];
        const wefti_node_t *node = &graph->nodes[id];
        if (!wefti_lower_is_fold(l, id)) {
            continue;
        }
        wefti_fold_t *fold = &out->list[out->count++];
        *fold = (wefti_fold_t){.node = id, .level = WEFTI_NONE};
        WEFT_RETURN_IF_ERROR(find_bucket(l, bucket_of_gradient, id, &fold->bucket));
        if (wefti_graph_outside_step(graph, id)) {
            fold->level = node->input_count / node->output_count - 1;
        }
        note_sums(l, out, id, fold->level);
        for (uint32_t part = 0; part < buckets->list[fold->bucket].parts; part++) {
            out->has[fold->bucket + part] = true;
        }
    }
    return WEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Plan kernels, one per item; a bucket whose updates agree gets one kernel over flat ranges. */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

static uint32_t buffer_or_none(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t of = value == WEFTI_NONE ? WEFTI_NONE : l->graph->values[value].alias_of;
    value = of != WEFTI_NONE ? of : value;
    return value == WEFTI_NONE ? WEFTI_PLAN_NONE : l->buffers->of[value];
}

/* The first bucket of a value in shards: of gradients, parameters or a state; or WEFTI_NONE. */
static uint32_t sharded_bucket(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t bucket = value == WEFTI_NONE ? WEFTI_NONE : l->buckets->shard_of[value];
    return bucket != WEFTI_NONE || value == WEFTI_NONE ? bucket : l->buckets->state_of[value];
}

/* Of a value in shards a kernel reads the shard of every piece. */
static uint32_t count_buffers(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t bucket = sharded_bucket(l, value);
    return bucket == WEFTI_NONE ? 1 : l->buckets->list[bucket].parts;
}

/* The shard of one piece, which bucket index reduces. */
static weft_status_t shard_buffer(wefti_lowering_t *l, uint32_t value, uint32_t index,
                                  uint32_t *out_buffer)
{
    uint32_t producer = wefti_producer(l->graph, value);
    if (l->buckets->state_of[value] != WEFTI_NONE) {
        *out_buffer = l->regions->places[index].states[l->buckets->state_slot[value]];
        return WEFT_OK;
    }
    return producer != WEFTI_NONE && wefti_lower_is_view(&l->graph->nodes[producer])
               ? wefti_lower_param_shard(l, index, out_buffer)
               : wefti_lower_grad_shard(l, index, out_buffer);
}

static weft_status_t fill_inputs(wefti_lowering_t *l, const wefti_node_t *node,
                                 wefti_plan_kernel_t *kernel)
{
    uint32_t count = 0;
    for (uint32_t j = 0; j < node->input_count; j++) {
        count += count_buffers(l, node->inputs[j]);
    }
    kernel->input_count = 0;
    kernel->inputs = wefti_arena_array(&l->plan->arena, count, sizeof(*kernel->inputs));
    WEFT_RETURN_IF_NO_MEMORY(kernel->inputs);
    for (uint32_t j = 0; j < node->input_count; j++) {
        uint32_t value = node->inputs[j], pieces = count_buffers(l, value);
        uint32_t bucket = sharded_bucket(l, value);
        for (uint32_t part = 0; bucket != WEFTI_NONE && part < pieces; part++) {
            WEFT_RETURN_IF_ERROR(
                shard_buffer(l, value, bucket + part, &kernel->inputs[kernel->input_count++]));
        }
        if (bucket == WEFTI_NONE) {
            kernel->inputs[kernel->input_count++] = buffer_or_none(l, value);
        }
        if (value != WEFTI_NONE && kernel->inputs[kernel->input_count - 1] == WEFTI_PLAN_NONE) {
            return wefti_error(WEFT_ERR_INTERNAL, "node '%s': input %u has no buffer", node->name,
                               j);
        }
    }
    while (kernel->input_count > 0 && kernel->inputs[kernel->input_count - 1] == WEFTI_PLAN_NONE) {
        kernel->input_count--; /* absent ones at the end, which a file does not have either */
    }
    return WEFT_OK;
}

static weft_status_t add_kernel(wefti_lowering_t *l, uint32_t id)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    wefti_plan_kernel_t *kernel = &l->plan->kernels[l->plan->kernel_count];
    WEFT_RETURN_IF_ERROR(wefti_lower_describe_kernel(l, node, node->name, kernel));
    WEFT_RETURN_IF_ERROR(fill_inputs(l, node, kernel));
    for (uint32_t j = 0; j < node->output_count; j++) {
        kernel->outputs[j] = buffer_or_none(l, node->outputs[j]);
    }
    kernel->place = wefti_lower_place_of(l, id);
    l->plan->kernel_count++;
    return WEFT_OK;
}

/* A state of the bucket: its range in a region, or a rank's share. */
static weft_status_t state_range(wefti_lowering_t *l, uint32_t index, uint32_t slot,
                                 uint32_t *out_buffer)
{
    const wefti_place_t *place = &l->regions->places[index];
    if (l->buckets->list[index].sharded) {
        *out_buffer = place->states[slot];
        return WEFT_OK;
    }
    char *name = wefti_arena_printf(&l->arena, "bucket %u state %u", index, slot);
    return name == NULL
               ? WEFT_ERR_NO_MEMORY
               : wefti_lower_add_range(l, name,
                                       wefti_lower_param_dtype(l, &l->buckets->list[index]),
                                       l->regions->state_begin[slot] + place->state_begin_bytes,
                                       wefti_lower_range_bytes(l, index), out_buffer);
}

/* What the update of a bucket reads as operand index: parameters, gradients, a state, or a scalar
 * that all members share. */
static weft_status_t find_operand(wefti_lowering_t *l, uint32_t index, uint32_t operand,
                                  uint32_t *out_buffer)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    uint32_t value = bucket->operands[operand];
    uint32_t slot = value == WEFTI_NONE ? WEFTI_NONE : l->buckets->state_slot[value];
    if (operand == 0) {
        return bucket->sharded ? wefti_lower_param_shard(l, index, out_buffer)
                               : wefti_lower_param_range(l, index, out_buffer);
    }
    if (operand == 1) {
        char *name = wefti_arena_printf(&l->arena, "bucket %u gradients", index);
        return name == NULL      ? WEFT_ERR_NO_MEMORY
               : bucket->sharded ? wefti_lower_grad_shard(l, index, out_buffer)
                                 : wefti_lower_grad_range(l, name, index, true, out_buffer);
    }
    if (slot != WEFTI_NONE) {
        return state_range(l, index, slot, out_buffer);
    }
    *out_buffer = buffer_or_none(l, value);
    return WEFT_OK;
}

/* The update that a fused node stands for: its operator, with the attributes that belong to it. */
static weft_status_t unfuse(wefti_lowering_t *l, const wefti_bucket_t *bucket,
                            const wefti_node_t *fused, wefti_node_t *out)
{
    const weft_op_def_t *def = bucket->update_def;
    *out = *fused;
    out->def = def;
    if (fused->def == def) {
        return WEFT_OK;
    }
    out->version = (int32_t)wefti_node_int(fused, "update_version");
    out->input_count = bucket->operand_count;
    out->output_count = def->outputs_min;
    out->attr_count = 0;
    out->attrs = wefti_arena_array(&l->arena, fused->attr_count, sizeof(*out->attrs));
    WEFT_RETURN_IF_NO_MEMORY(out->attrs);
    for (uint32_t i = 0; i < fused->attr_count; i++) {
        for (size_t k = 0; k < def->attr_count; k++) {
            if (strcmp(fused->attrs[i].name, def->attrs[k].name) == 0) {
                out->attrs[out->attr_count++] = fused->attrs[i];
            }
        }
    }
    return WEFT_OK;
}

/* Element-wise updates may run over padding: it is zero everywhere and stays zero. */
static weft_status_t add_range_update(wefti_lowering_t *l, uint32_t index)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    wefti_node_t node;
    wefti_plan_kernel_t *kernel = &l->plan->kernels[l->plan->kernel_count];
    char *name = wefti_arena_printf(&l->arena, "update of bucket %u", index);
    WEFT_RETURN_IF_NO_MEMORY(name);
    WEFT_RETURN_IF_ERROR(unfuse(l, bucket, &l->graph->nodes[bucket->update], &node));
    WEFT_RETURN_IF_ERROR(wefti_lower_describe_kernel(l, &node, name, kernel));
    for (uint32_t j = 0; j < bucket->operand_count; j++) {
        WEFT_RETURN_IF_ERROR(find_operand(l, index, j, &kernel->inputs[j]));
    }
    for (uint32_t j = 0; j < kernel->output_count; j++) {
        kernel->outputs[j] = kernel->inputs[node.def->in_place[j]];
    }
    kernel->place = wefti_lower_place_of(l, bucket->update);
    l->plan->kernel_count++;
    return WEFT_OK;
}

/* What other programs run in place of a node: it reads and writes the same memory. */
static weft_status_t add_variants(wefti_lowering_t *l, uint32_t node, wefti_kernels_t *out)
{
    for (uint32_t v = l->order->variant_of[node]; v != WEFTI_NONE; v = l->order->next_variant[v]) {
        out->of_variant[v] = l->plan->kernel_count;
        WEFT_RETURN_IF_ERROR(add_kernel(l, v));
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_kernels(wefti_lowering_t *l, wefti_kernels_t *out)
{
    const wefti_order_t *order = l->order;
    size_t most = (size_t)order->item_count + l->graph->node_count + l->buckets->count;
    l->plan->kernels = wefti_arena_array(&l->plan->arena, most, sizeof(*l->plan->kernels));
    out->of_item = wefti_id_map(&l->arena, order->item_count);
    out->of_variant = wefti_id_map(&l->arena, l->graph->node_count);
    out->of_bucket = wefti_id_map(&l->arena, l->buckets->count);
    WEFT_RETURN_IF_NO_MEMORY(l->plan->kernels && out->of_item && out->of_variant && out->of_bucket);
    for (uint32_t i = 0; i < order->item_count; i++) {
        uint32_t node = order->items[i].node, bucket = wefti_lower_item_bucket(l, i);
        if (wefti_lower_is_fold(l, node)) {
            continue; /* follows */
        }
        out->of_item[i] = l->plan->kernel_count;
        if (bucket == WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(add_kernel(l, node));
            WEFT_RETURN_IF_ERROR(add_variants(l, node, out));
        } else {
            WEFT_RETURN_IF_ERROR(add_range_update(l, bucket));
        }
    }
    for (uint32_t b = 0; b < l->buckets->count; b++) { /* of fused buckets: in no stream */
        if (l->buckets->list[b].fused) {
            out->of_bucket[b] = l->plan->kernel_count;
            WEFT_RETURN_IF_ERROR(add_range_update(l, b));
        }
    }
    return wefti_lower_folds(l, out);
}

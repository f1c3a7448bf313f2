/* SPDX-License-Identifier: Apache-2.0 */
/* Plan kernels, one per item; a bucket whose updates agree gets one kernel over flat ranges. */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

static weft_status_t copy_strings(wefti_arena_t *arena, const weft_attr_t *from, weft_attr_t *to)
{
    const char **strings = wefti_arena_array(arena, from->count, sizeof(*strings));
    for (size_t i = 0; strings != NULL && i < from->count; i++) {
        strings[i] = wefti_arena_strdup(arena, from->strings[i]);
        if (strings[i] == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    to->strings = strings;
    return strings == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t copy_attr(wefti_arena_t *arena, const wefti_node_t *node,
                               const weft_attr_t *from, weft_attr_t *to)
{
    const void *copy;
    *to = (weft_attr_t){.name = wefti_arena_strdup(arena, from->name),
                        .type = from->type,
                        .i = from->i,
                        .f = from->f,
                        .count = from->count};
    copy = to->name;
    switch (from->type) {
    case WEFT_ATTR_TYPE_INT:
    case WEFT_ATTR_TYPE_FLOAT:
        break;
    case WEFT_ATTR_TYPE_STRING:
        copy = to->s = wefti_arena_strdup(arena, from->s);
        break;
    case WEFT_ATTR_TYPE_INTS:
        copy = to->ints = wefti_arena_memdup(arena, from->ints, from->count * sizeof(*from->ints));
        break;
    case WEFT_ATTR_TYPE_FLOATS:
        copy = to->floats =
            wefti_arena_memdup(arena, from->floats, from->count * sizeof(*from->floats));
        break;
    case WEFT_ATTR_TYPE_STRINGS:
        return to->name == NULL ? WEFT_ERR_NO_MEMORY : copy_strings(arena, from, to);
    case WEFT_ATTR_TYPE_TENSOR:
    default:
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): attribute '%s': a plan cannot hold tensor attributes",
                           node->name, node->def->name, from->name);
    }
    return to->name == NULL || copy == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t copy_attrs(wefti_arena_t *arena, const wefti_node_t *node,
                                wefti_plan_kernel_t *kernel)
{
    weft_status_t status = WEFT_OK;
    kernel->attrs = wefti_arena_array(arena, node->attr_count, sizeof(*kernel->attrs));
    if (kernel->attrs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < node->attr_count; i++) {
        if (strcmp(node->attrs[i].name, "parts") != 0) { /* which is how many kernels there are */
            WEFT_TRY(status,
                     copy_attr(arena, node, &node->attrs[i], &kernel->attrs[kernel->attr_count++]),
                     fail);
        }
    }
fail:
    return status;
}

weft_status_t wefti_lower_describe_kernel(wefti_lowering_t *l, const wefti_node_t *node,
                                          const char *name, wefti_plan_kernel_t *kernel)
{
    wefti_arena_t *arena = &l->plan->arena;
    *kernel = (wefti_plan_kernel_t){.name = wefti_arena_strdup(arena, name),
                                    .domain = wefti_arena_strdup(arena, node->def->domain),
                                    .op = wefti_arena_strdup(arena, node->def->name),
                                    .version = node->version,
                                    .phase = (uint32_t)node->phase,
                                    .input_count = node->input_count,
                                    .output_count = node->output_count};
    kernel->inputs = wefti_arena_array(arena, node->input_count, sizeof(*kernel->inputs));
    kernel->outputs = wefti_arena_array(arena, node->output_count, sizeof(*kernel->outputs));
    if (kernel->name == NULL || kernel->domain == NULL || kernel->op == NULL ||
        kernel->inputs == NULL || kernel->outputs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    return copy_attrs(arena, node, kernel);
}

static uint32_t buffer_or_none(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t of = value == WEFTI_NONE ? WEFTI_NONE : l->graph->values[value].alias_of;
    value = of != WEFTI_NONE ? of : value;
    return value == WEFTI_NONE ? WEFTI_PLAN_NONE : l->buffer_of[value];
}

/* Of a value in shards a kernel reads the shard of every piece. */
static uint32_t count_buffers(const wefti_lowering_t *l, uint32_t value)
{
    uint32_t bucket = value == WEFTI_NONE ? WEFTI_NONE : l->shard_of[value];
    return bucket == WEFTI_NONE ? 1 : l->buckets[bucket].parts;
}

static weft_status_t fill_inputs(wefti_lowering_t *l, const wefti_node_t *node,
                                 wefti_plan_kernel_t *kernel)
{
    weft_status_t status = WEFT_OK;
    uint32_t count = 0;
    for (uint32_t j = 0; j < node->input_count; j++) {
        count += count_buffers(l, node->inputs[j]);
    }
    kernel->input_count = 0;
    kernel->inputs = wefti_arena_array(&l->plan->arena, count, sizeof(*kernel->inputs));
    if (kernel->inputs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t j = 0; j < node->input_count; j++) {
        uint32_t value = node->inputs[j], pieces = count_buffers(l, value);
        uint32_t bucket = value == WEFTI_NONE ? WEFTI_NONE : l->shard_of[value];
        for (uint32_t part = 0; bucket != WEFTI_NONE && part < pieces; part++) {
            WEFT_TRY(
                status,
                wefti_lower_grad_shard(l, bucket + part, &kernel->inputs[kernel->input_count++]),
                fail);
        }
        if (bucket == WEFTI_NONE) {
            kernel->inputs[kernel->input_count++] = buffer_or_none(l, value);
        }
        if (value != WEFTI_NONE && kernel->inputs[kernel->input_count - 1] == WEFTI_PLAN_NONE) {
            return wefti_error(WEFT_ERR_INTERNAL, "node '%s': input %u has no buffer", node->name,
                               j);
        }
    }
fail:
    return status;
}

static weft_status_t add_kernel(wefti_lowering_t *l, const wefti_node_t *node)
{
    weft_status_t status;
    wefti_plan_kernel_t *kernel = &l->plan->kernels[l->plan->kernel_count];
    WEFT_TRY(status, wefti_lower_describe_kernel(l, node, node->name, kernel), fail);
    WEFT_TRY(status, fill_inputs(l, node, kernel), fail);
    for (uint32_t j = 0; j < node->output_count; j++) {
        kernel->outputs[j] = buffer_or_none(l, node->outputs[j]);
    }
    l->plan->kernel_count++;
fail:
    return status;
}

weft_status_t wefti_lower_add_range(wefti_lowering_t *l, const char *name, weft_dtype_t dtype,
                                    uint64_t offset_bytes, uint64_t size_bytes,
                                    uint32_t *out_buffer)
{
    wefti_plan_buffer_t *buffer = &l->plan->buffers[l->plan->buffer_count];
    buffer->name = wefti_arena_strdup(&l->plan->arena, name);
    if (buffer->name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    buffer->kind = WEFTI_BUFFER_RANGE;
    buffer->dtype = dtype;
    buffer->rank = 1;
    buffer->dims[0] = (int64_t)(size_bytes / weft_dtype_size_bytes(dtype));
    buffer->offset_bytes = offset_bytes;
    buffer->size_bytes = size_bytes;
    *out_buffer = l->plan->buffer_count++;
    return WEFT_OK;
}

/* The range of the bucket in the region of operand slot: parameters, gradients or a state. */
static weft_status_t range_of(wefti_lowering_t *l, uint32_t bucket_index, uint32_t slot,
                              uint32_t *out_buffer)
{
    const wefti_bucket_t *bucket = &l->buckets[bucket_index];
    uint32_t value = bucket->operands[slot];
    weft_dtype_t dtype = wefti_lower_param_dtype(l, bucket);
    uint64_t begin, bytes = wefti_lower_range_bytes(bucket);
    const char *what;
    if (bucket->sharded) {
        return wefti_lower_shard_operand(l, bucket_index, slot, out_buffer);
    }
    if (slot == 0) {
        begin = l->param_begin + bucket->begin_bytes;
        what = "parameters";
    } else if (slot == 1) {
        begin = l->grad_begin + wefti_lower_grad_bytes(l, bucket->begin_bytes);
        bytes = wefti_lower_grad_bytes(l, bytes);
        dtype = wefti_lower_grad_dtype(l, bucket);
        what = "gradients";
    } else if (value != WEFTI_NONE && l->state_slot[value] != WEFTI_NONE) {
        begin = l->state_begin[l->state_slot[value]] + bucket->state_begin_bytes;
        what = wefti_arena_printf(&l->arena, "state %u", l->state_slot[value]);
    } else {
        *out_buffer = buffer_or_none(l, value); /* a scalar that all members share */
        return WEFT_OK;
    }
    what = what == NULL ? NULL : wefti_arena_printf(&l->arena, "bucket %u %s", bucket_index, what);
    return what == NULL ? WEFT_ERR_NO_MEMORY
                        : wefti_lower_add_range(l, what, dtype, begin, bytes, out_buffer);
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
    if (out->attrs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
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
    weft_status_t status;
    const wefti_bucket_t *bucket = &l->buckets[index];
    wefti_node_t node;
    wefti_plan_kernel_t *kernel = &l->plan->kernels[l->plan->kernel_count];
    char *name = wefti_arena_printf(&l->arena, "update of bucket %u", index);
    if (name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, unfuse(l, bucket, &l->graph->nodes[bucket->update], &node), fail);
    WEFT_TRY(status, wefti_lower_describe_kernel(l, &node, name, kernel), fail);
    for (uint32_t j = 0; j < bucket->operand_count; j++) {
        WEFT_TRY(status, range_of(l, index, j, &kernel->inputs[j]), fail);
    }
    for (uint32_t j = 0; j < kernel->output_count; j++) {
        kernel->outputs[j] = kernel->inputs[node.def->in_place[j]];
    }
    l->plan->kernel_count++;
fail:
    return status;
}

/* What other programs run in place of a node: it reads and writes the same memory. */
static weft_status_t add_variants(wefti_lowering_t *l, uint32_t node)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t v = l->variant_of[node]; v != WEFTI_NONE; v = l->next_variant[v]) {
        l->variant_kernel[v] = l->plan->kernel_count;
        WEFT_TRY(status, add_kernel(l, &l->graph->nodes[v]), fail);
    }
fail:
    return status;
}

weft_status_t wefti_lower_kernels(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    size_t most = (size_t)l->item_count + l->graph->node_count + l->bucket_count;
    l->plan->kernels = wefti_arena_array(&l->plan->arena, most, sizeof(*l->plan->kernels));
    if (l->plan->kernels == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < l->item_count; i++) {
        wefti_item_t *item = &l->items[i];
        item->kernel = l->plan->kernel_count;
        if (wefti_lower_is_fold(l, item->node)) {
            continue; /* follows */
        }
        if (item->bucket == WEFTI_NONE) {
            WEFT_TRY(status, add_kernel(l, &l->graph->nodes[item->node]), fail);
            WEFT_TRY(status, add_variants(l, item->node), fail);
        } else {
            WEFT_TRY(status, add_range_update(l, item->bucket), fail);
        }
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) { /* of fused buckets: in no stream */
        if (l->buckets[b].fused) {
            l->buckets[b].kernel = l->plan->kernel_count;
            WEFT_TRY(status, add_range_update(l, b), fail);
        }
    }
    WEFT_TRY(status, wefti_lower_folds(l), fail);
fail:
    return status;
}

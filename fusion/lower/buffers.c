/* SPDX-License-Identifier: Apache-2.0 */
/* The plan's buffers, and which values lie in them. */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

weft_status_t wefti_lower_create_buffers(wefti_lowering_t *l, wefti_buffers_t *out)
{
    /* Every value once, gradients once more in the type in which they travel and as a
     * micro-batch's, ranges of parameters, gradients, partial sums and states per bucket, and of
     * all parameters. */
    size_t values = l->graph->value_count, buckets = l->buckets->count;
    size_t per_bucket = (size_t)l->buckets->state_count + l->folds->level_count + 6;
    size_t most = values * 4 + buckets * per_bucket + 4 * (size_t)l->order->command_count + 1;
    l->plan->buffers = wefti_arena_array(&l->plan->arena, most, sizeof(*l->plan->buffers));
    out->of = wefti_id_map(&l->arena, values);
    out->of_bucket = wefti_arena_array(&l->arena, buckets, sizeof(*out->of_bucket));
    WEFT_RETURN_IF_NO_MEMORY(l->plan->buffers && out->of && out->of_bucket);
    for (size_t b = 0; b < buckets; b++) {
        out->of_bucket[b] = (wefti_bucket_buffers_t){WEFTI_NONE, WEFTI_NONE, WEFTI_NONE};
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_advance(wefti_lowering_t *l, uint64_t bytes)
{
    uint64_t padded;
    if (__builtin_add_overflow(bytes == 0 ? 1 : bytes, WEFTI_PLAN_ALIGNMENT - 1, &padded) ||
        __builtin_add_overflow(l->buffers->cursor,
                               padded / WEFTI_PLAN_ALIGNMENT * WEFTI_PLAN_ALIGNMENT,
                               &l->buffers->cursor) ||
        l->buffers->cursor > INT64_MAX) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "model too large: size of the arena overflows");
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_add_buffer(wefti_lowering_t *l, uint32_t value, wefti_buffer_kind_t kind,
                                     uint64_t offset)
{
    const wefti_value_t *v = &l->graph->values[value];
    wefti_plan_buffer_t *buffer = &l->plan->buffers[l->plan->buffer_count];
    if (v->type.dtype == WEFT_DTYPE_NONE || weft_tensor_elem_count(&v->type) < 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "tensor '%s': unknown shape", v->name);
    }
    buffer->name = wefti_arena_strdup(&l->plan->arena, v->name);
    WEFT_RETURN_IF_NO_MEMORY(buffer->name);
    buffer->kind = kind;
    buffer->dtype = v->type.dtype;
    buffer->layout = v->type.layout;
    buffer->rank = v->type.rank;
    memcpy(buffer->dims, v->type.dims, v->type.rank * sizeof(buffer->dims[0]));
    buffer->offset_bytes = offset;
    buffer->size_bytes = wefti_value_bytes(v);
    buffer->default_value = kind == WEFTI_BUFFER_SCALAR ? v->default_value : 0;
    l->buffers->of[value] = l->plan->buffer_count++;
    return WEFT_OK;
}

weft_status_t wefti_lower_add_range(wefti_lowering_t *l, const char *name, weft_dtype_t dtype,
                                    uint64_t offset_bytes, uint64_t size_bytes,
                                    uint32_t *out_buffer)
{
    wefti_plan_buffer_t *buffer = &l->plan->buffers[l->plan->buffer_count];
    buffer->name = wefti_arena_strdup(&l->plan->arena, name);
    WEFT_RETURN_IF_NO_MEMORY(buffer->name);
    buffer->kind = WEFTI_BUFFER_RANGE;
    buffer->dtype = dtype;
    buffer->rank = 1;
    buffer->dims[0] = (int64_t)(size_bytes / weft_dtype_size_bytes(dtype));
    buffer->offset_bytes = offset_bytes;
    buffer->size_bytes = size_bytes;
    *out_buffer = l->plan->buffer_count++;
    return WEFT_OK;
}

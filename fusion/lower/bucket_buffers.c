/* SPDX-License-Identifier: Apache-2.0 */
/* Plan buffers of the range of a bucket in the regions of parameters and gradients: all of it, or a
 * rank's shard; or in memory that is reused. */
#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

uint64_t wefti_lower_range_bytes(const wefti_lowering_t *l, uint32_t bucket)
{
    return l->regions->places[bucket].end_bytes - l->regions->places[bucket].begin_bytes;
}

/* "bucket 3 gradients, a shard"; ranks: that it is divided among. */
static weft_status_t add_once(wefti_lowering_t *l, uint32_t index, const char *what,
                              weft_dtype_t dtype, uint64_t begin, uint64_t bytes, uint32_t ranks,
                              uint32_t *buffer)
{
    if (*buffer != WEFTI_NONE) {
        return WEFT_OK;
    }
    char *name =
        wefti_arena_printf(&l->arena, "bucket %u %s%s", index, what, ranks > 1 ? ", a shard" : "");
    WEFT_RETURN_IF_NO_MEMORY(name);
    WEFT_RETURN_IF_ERROR(wefti_lower_add_range(l, name, dtype, begin, bytes / ranks, buffer));
    l->plan->buffers[*buffer].rank_stride_bytes = ranks > 1 ? bytes / ranks : 0;
    return WEFT_OK;
}

static weft_status_t add_params(wefti_lowering_t *l, uint32_t index, uint32_t ranks,
                                uint32_t *buffer)
{
    return add_once(l, index, "parameters", wefti_lower_param_dtype(l, &l->buckets->list[index]),
                    wefti_lower_param_offset(l, index), wefti_lower_range_bytes(l, index), ranks,
                    buffer);
}

weft_status_t wefti_lower_param_shard(wefti_lowering_t *l, uint32_t index, uint32_t *out_buffer)
{
    uint32_t *buffer = &l->buffers->of_bucket[index].param_shard;
    weft_status_t status = add_params(l, index, l->buckets->shards, buffer);
    *out_buffer = *buffer;
    return status;
}

weft_status_t wefti_lower_param_range(wefti_lowering_t *l, uint32_t index, uint32_t *out_buffer)
{
    uint32_t *buffer = &l->buffers->of_bucket[index].param_range;
    weft_status_t status = add_params(l, index, 1, buffer);
    *out_buffer = *buffer;
    return status;
}

weft_status_t wefti_lower_grad_shard(wefti_lowering_t *l, uint32_t index, uint32_t *out_buffer)
{
    uint32_t *buffer = &l->buffers->of_bucket[index].grad_shard;
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    uint64_t begin = l->regions->local_begin + l->regions->places[index].begin_bytes;
    uint64_t bytes = wefti_lower_range_bytes(l, index);
    if (wefti_lower_is_rounded(l, bucket)) {
        begin = l->regions->grad_begin +
                wefti_lower_grad_bytes(l, l->regions->places[index].begin_bytes);
        bytes = wefti_lower_grad_bytes(l, bytes);
    }
    weft_status_t status = add_once(l, index, "gradients", wefti_lower_grad_dtype(l, bucket), begin,
                                    bytes, l->buckets->shards, buffer);
    *out_buffer = *buffer;
    return status;
}

weft_status_t wefti_lower_grad_range(wefti_lowering_t *l, const char *name, uint32_t index,
                                     bool sent, uint32_t *out_buffer)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    uint64_t begin = l->regions->places[index].begin_bytes;
    uint64_t bytes = wefti_lower_range_bytes(l, index);
    if (bucket->passing) {
        const uint32_t *ranges = sent ? l->ranges->sent_of : l->ranges->own_of;
        return wefti_lower_add_piece(l, name, ranges[index - bucket->part], index, out_buffer);
    }
    return sent && wefti_lower_is_rounded(l, bucket)
               ? wefti_lower_add_range(l, name, wefti_lower_grad_dtype(l, bucket),
                                       l->regions->grad_begin + wefti_lower_grad_bytes(l, begin),
                                       wefti_lower_grad_bytes(l, bytes), out_buffer)
               : wefti_lower_add_range(l, name,
                                       sent ? wefti_lower_grad_dtype(l, bucket) : WEFT_DTYPE_F32,
                                       l->regions->local_begin + begin, bytes, out_buffer);
}

/* A shard that lasts though the range that it is of does not. */
static weft_status_t add_kept_shard(wefti_lowering_t *l, uint32_t index, const char *what,
                                    weft_dtype_t dtype, uint64_t bytes, uint64_t position,
                                    uint32_t *buffer)
{
    uint32_t ranks = l->buckets->shards;
    WEFT_RETURN_IF_ERROR(
        add_once(l, index, what, dtype, l->buffers->cursor, bytes * ranks, ranks, buffer));
    l->plan->buffers[*buffer].kind = WEFTI_BUFFER_SHARD;
    l->plan->buffers[*buffer].rank_stride_bytes = 0;
    l->plan->buffers[*buffer].whole_offset_bytes = position;
    return wefti_lower_advance(l, bytes);
}

weft_status_t wefti_lower_add_shards(wefti_lowering_t *l, uint32_t index,
                                     uint64_t *inout_kept_bytes)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    wefti_bucket_buffers_t *buffers = &l->buffers->of_bucket[index];
    uint64_t bytes = wefti_lower_range_bytes(l, index) / l->buckets->shards;
    WEFT_RETURN_IF_ERROR(add_kept_shard(l, index, "parameters", wefti_lower_param_dtype(l, bucket),
                                        bytes, wefti_lower_param_offset(l, index),
                                        &buffers->param_shard));
    *inout_kept_bytes += bytes;
    if (!bucket->passing) {
        return WEFT_OK;
    }
    bytes = wefti_lower_is_rounded(l, bucket) ? wefti_lower_grad_bytes(l, bytes) : bytes;
    *inout_kept_bytes += bytes;
    return add_kept_shard(l, index, "gradients", wefti_lower_grad_dtype(l, bucket), bytes, 0,
                          &buffers->grad_shard);
}

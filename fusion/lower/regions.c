/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the arena that is there all the time:
 *
 *   | parameters | gradients | state 0 | state 1 ... | inputs, scalars, constants |
 *
 * The regions have the members of all buckets in the order of the comm stream, each padded to the
 * alignment, so a bucket is one range at the same place of every region, and a piece of a split
 * tensor is a part of such a range. All regions have one size. Where updates are sharded, the range
 * of a bucket is padded so that it divides into shards, and a state region has only a rank's share.
 * Where parameters are sharded, shards of parameters and gradients take the place of the bucket in
 * their regions.
 */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

#define PADDING_SHARE 32u /* of a region may be padding: one in so many bytes */

weft_status_t wefti_lower_advance(wefti_lowering_t *l, uint64_t bytes)
{
    uint64_t padded;
    if (__builtin_add_overflow(bytes == 0 ? 1 : bytes, WEFTI_PLAN_ALIGNMENT - 1, &padded) ||
        __builtin_add_overflow(l->arena_cursor,
                               padded / WEFTI_PLAN_ALIGNMENT * WEFTI_PLAN_ALIGNMENT,
                               &l->arena_cursor) ||
        l->arena_cursor > INT64_MAX) {
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
    if (buffer->name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    buffer->kind = kind;
    buffer->dtype = v->type.dtype;
    buffer->layout = v->type.layout;
    buffer->rank = v->type.rank;
    memcpy(buffer->dims, v->type.dims, v->type.rank * sizeof(buffer->dims[0]));
    buffer->offset_bytes = offset;
    buffer->size_bytes = wefti_value_bytes(v);
    buffer->default_value = kind == WEFTI_BUFFER_SCALAR ? v->default_value : 0;
    l->buffer_of[value] = l->plan->buffer_count++;
    return WEFT_OK;
}

/* A buffer with memory of its own, alive all the time. */
static weft_status_t add_kept(wefti_lowering_t *l, uint32_t value, wefti_buffer_kind_t kind)
{
    weft_status_t status;
    WEFT_TRY(status, wefti_lower_add_buffer(l, value, kind, l->arena_cursor), fail);
    l->kept_bytes += wefti_value_bytes(&l->graph->values[value]);
    return wefti_lower_advance(l, wefti_value_bytes(&l->graph->values[value]));
fail:
    return status;
}

/* Members that lie in regions; pieces of one share the first one's. */
static uint32_t own_members(const wefti_bucket_t *bucket)
{
    return bucket->gradients && bucket->part == 0 ? bucket->member_count : 0;
}

static weft_status_t check_gradient(const wefti_lowering_t *l, const wefti_member_t *member)
{
    const wefti_value_t *grad = &l->graph->values[member->value],
                        *param = &l->graph->values[member->param];
    char texts[2][WEFTI_TYPE_TEXT_BYTES];
    if (param->kind != WEFTI_VALUE_PARAM || wefti_value_bytes(grad) != wefti_value_bytes(param) ||
        grad->type.dtype != param->type.dtype || grad->type.layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "gradient '%s': type, shape or layout does not match parameter '%s': %s, parameter %s",
            grad->name, param->name, wefti_type_text(&grad->type, texts[0]),
            wefti_type_text(&param->type, texts[1]));
    }
    if (wefti_value_bytes(grad) == 0) { /* given with the graph */
        return wefti_error_empty_param(param->name);
    }
    if (l->buffer_of[member->param] != WEFTI_NONE || l->buffer_of[member->value] != WEFTI_NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "parameter '%s': duplicate gradient '%s'",
                           param->name, grad->name);
    }
    return WEFT_OK;
}

/* Members begin at multiples of so many bytes: where what is reduced has half the size of a
 * gradient, it begins at whole units, too. */
static uint64_t member_unit(const wefti_lowering_t *l)
{
    return WEFTI_PLAN_ALIGNMENT * WEFTI_PLAN_ALIGNMENT /
           wefti_lower_grad_bytes(l, WEFTI_PLAN_ALIGNMENT);
}

/* Of a split member each piece gets its share of units; the others get all of it. state_begin:
 * where all of it begins in the state regions. */
static void place_bucket(const wefti_lowering_t *l, wefti_bucket_t *bucket, uint64_t begin,
                         uint64_t end, uint64_t state_begin)
{
    uint64_t unit = wefti_lower_unit_bytes(l, bucket), units = (end - begin) / unit;
    bucket->begin_bytes = begin + units * bucket->part / bucket->parts * unit;
    bucket->end_bytes = begin + units * (bucket->part + 1) / bucket->parts * unit;
    bucket->state_begin_bytes =
        state_begin + (bucket->begin_bytes - begin) / (bucket->sharded ? l->shards : 1);
}

/* Pads what lies in the region of parameters so far to whole units. */
static weft_status_t pad_region(wefti_lowering_t *l, uint64_t unit)
{
    uint64_t rest = (l->arena_cursor - l->param_begin) % unit;
    return rest == 0 ? WEFT_OK : wefti_lower_advance(l, unit - rest);
}

/*
 * The regions' size: what lies in them, padded so that every rank can have an equal shard of whole
 * units. A model too small for its number of ranks is left alone, its memory would be mostly
 * padding.
 */
static uint64_t region_bytes(const wefti_lowering_t *l, uint64_t bytes)
{
    uint64_t shards = l->params->world_size * member_unit(l);
    uint64_t padding = (shards - bytes % shards) % shards;
    return padding <= bytes / PADDING_SHARE ? bytes + padding : bytes;
}

/* Parameters of sharded buckets have positions only. */
static weft_status_t add_param(wefti_lowering_t *l, const wefti_bucket_t *bucket, uint32_t param)
{
    uint64_t position = WEFTI_PLAN_NOWHERE + l->arena_cursor - l->param_begin;
    if (!bucket->gathered) {
        return add_kept(l, param, WEFTI_BUFFER_PARAM);
    }
    weft_status_t status = wefti_lower_add_buffer(l, param, WEFTI_BUFFER_PARAM, position);
    return status < 0 ? status
                      : wefti_lower_advance(l, wefti_value_bytes(&l->graph->values[param]));
}

/* Parameters of the buckets that are gathered, or of the others; fixes where buckets lie in every
 * region. */
static weft_status_t place_buckets(wefti_lowering_t *l, bool gathered)
{
    weft_status_t status = WEFT_OK;
    uint64_t begin = 0, state_begin = 0;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        wefti_bucket_t *bucket = &l->buckets[b];
        uint64_t unit = wefti_lower_unit_bytes(l, bucket);
        if (bucket->gathered != gathered) {
            continue;
        }
        WEFT_TRY(status, pad_region(l, unit), fail);
        if (bucket->part == 0) {
            begin = l->arena_cursor - l->param_begin;
            state_begin = l->state_region_bytes;
        }
        for (uint32_t i = 0; i < own_members(bucket); i++) {
            WEFT_TRY(status, check_gradient(l, &bucket->members[i]), fail);
            WEFT_TRY(status, add_param(l, bucket, bucket->members[i].param), fail);
            WEFT_TRY(status, pad_region(l, member_unit(l)), fail);
        }
        WEFT_TRY(status, pad_region(l, unit), fail);
        place_bucket(l, bucket, begin, l->arena_cursor - l->param_begin, state_begin);
        l->state_region_bytes =
            bucket->state_begin_bytes +
            (bucket->end_bytes - bucket->begin_bytes) / (bucket->sharded ? l->shards : 1);
    }
fail:
    return status;
}

/* Positions of sharded parameters follow the region of the others. */
static weft_status_t place_sharded(wefti_lowering_t *l)
{
    weft_status_t status = place_buckets(l, true);
    l->arena_cursor = l->param_begin + l->region_bytes;
    l->grad_region_bytes = l->region_bytes;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (l->buckets[b].gathered && !l->buckets[b].passing) {
            l->grad_region_bytes = l->buckets[b].end_bytes;
        }
    }
    return status;
}

/* Parameters of all buckets, then those without a gradient, then shards. */
static weft_status_t add_params(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    l->param_begin = l->arena_cursor;
    WEFT_TRY(status, place_buckets(l, false), fail);
    l->region_bytes = region_bytes(l, l->arena_cursor - l->param_begin);
    l->arena_cursor = l->param_begin + l->region_bytes;
    WEFT_TRY(status, place_sharded(l), fail);
    if (l->shards == 1) { /* states lie where their parameters do */
        l->state_region_bytes = l->region_bytes;
    }
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (l->graph->values[v].kind == WEFTI_VALUE_PARAM && l->buffer_of[v] == WEFTI_NONE) {
            WEFT_TRY(status, add_kept(l, v, WEFTI_BUFFER_PARAM), fail);
        }
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (l->buckets[b].gathered) {
            WEFT_TRY(status, wefti_lower_add_shards(l, b), fail);
        }
    }
fail:
    return status;
}

static void set_reduced(wefti_lowering_t *l, const wefti_member_t *member, uint32_t buffer)
{
    l->buffer_of[member->sent] = buffer;
    if (member->reduced != WEFTI_NONE) {
        l->buffer_of[member->reduced] = buffer;
    }
}

/* What is reduced in place of a gradient, in another type and in another region. */
static weft_status_t add_wire_gradient(wefti_lowering_t *l, const wefti_bucket_t *bucket,
                                       const wefti_member_t *member)
{
    weft_status_t status;
    uint32_t own = l->buffer_of[member->value];
    wefti_plan_buffer_t *wire = &l->plan->buffers[l->plan->buffer_count];
    uint64_t place = l->plan->buffers[own].offset_bytes - l->local_begin;
    WEFT_TRY(status,
             wefti_lower_add_buffer(l, member->value, WEFTI_BUFFER_GRAD,
                                    l->grad_begin + wefti_lower_grad_bytes(l, place)),
             fail);
    wire->dtype = wefti_lower_grad_dtype(l, bucket);
    wire->size_bytes = wefti_lower_grad_bytes(l, wire->size_bytes);
    l->kept_bytes += wire->size_bytes;
    set_reduced(l, member, l->buffer_of[member->value]);
    l->buffer_of[member->value] = own;
    l->plan->buffers[own].name =
        wefti_arena_printf(&l->plan->arena, "%s, own", l->plan->buffers[own].name);
    return l->plan->buffers[own].name == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
fail:
    return status;
}

static weft_status_t add_wire_gradients(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    l->grad_begin = l->arena_cursor;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const wefti_bucket_t *bucket = &l->buckets[b];
        for (uint32_t i = 0; i < own_members(bucket) && !bucket->passing; i++) {
            WEFT_TRY(status, add_wire_gradient(l, bucket, &bucket->members[i]), fail);
        }
    }
    l->arena_cursor = l->grad_begin + wefti_lower_grad_bytes(l, l->grad_region_bytes);
fail:
    return status;
}

static weft_status_t add_gradients(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    l->grad_begin = l->local_begin = l->arena_cursor;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        wefti_bucket_t *bucket = &l->buckets[b];
        for (uint32_t i = 0; i < own_members(bucket) && !bucket->passing; i++) {
            const wefti_plan_buffer_t *param =
                &l->plan->buffers[l->buffer_of[bucket->members[i].param]];
            l->arena_cursor = param->offset_bytes - wefti_lower_param_offset(l, bucket) +
                              bucket->begin_bytes + l->grad_begin;
            WEFT_TRY(status, add_kept(l, bucket->members[i].value, WEFTI_BUFFER_GRAD), fail);
            set_reduced(l, &bucket->members[i], l->buffer_of[bucket->members[i].value]);
        }
    }
    l->arena_cursor = l->grad_begin + l->grad_region_bytes;
    if (l->params->gradients.wire == WEFT_DTYPE_BF16) {
        WEFT_TRY(status, add_wire_gradients(l), fail);
    }
    WEFT_TRY(status, wefti_lower_levels(l), fail);
fail:
    return status;
}

/* One state region: the state of every parameter at the parameter's place. */
static weft_status_t add_state_region(wefti_lowering_t *l, uint32_t slot, uint32_t *state_of)
{
    weft_status_t status = WEFT_OK;
    l->state_begin[slot] = l->arena_cursor;
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (l->graph->values[v].kind == WEFTI_VALUE_STATE && l->state_slot[v] == slot) {
            state_of[l->graph->values[v].state_of] = v;
        }
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const wefti_bucket_t *bucket = &l->buckets[b];
        for (uint32_t i = 0; i < own_members(bucket) && !bucket->sharded; i++) {
            uint32_t v = state_of[bucket->members[i].param];
            uint32_t param = l->buffer_of[bucket->members[i].param];
            uint64_t offset = l->plan->buffers[param].offset_bytes - l->param_begin -
                              bucket->begin_bytes + bucket->state_begin_bytes + l->arena_cursor;
            if (v != WEFTI_NONE && l->state_slot[v] == slot) {
                WEFT_TRY(status, wefti_lower_add_buffer(l, v, WEFTI_BUFFER_STATE, offset), fail);
                l->kept_bytes += wefti_value_bytes(&l->graph->values[v]);
            }
        }
    }
    return wefti_lower_advance(l, l->state_region_bytes);
fail:
    return status;
}

static weft_status_t add_states(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    uint32_t *state_of = wefti_lower_map(l, l->graph->value_count); /* of a parameter */
    l->state_begin = wefti_arena_array(&l->arena, l->state_count, sizeof(*l->state_begin));
    if (state_of == NULL || l->state_begin == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t k = 0; k < l->state_count && l->state_region_bytes > 0; k++) {
        WEFT_TRY(status, add_state_region(l, k, state_of), fail);
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (l->buckets[b].sharded) {
            WEFT_TRY(status, wefti_lower_add_shard_states(l, b), fail);
        }
    }
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (l->graph->values[v].kind == WEFTI_VALUE_STATE && l->buffer_of[v] == WEFTI_NONE &&
            l->readers.first[v] < l->readers.first[v + 1]) {
            WEFT_TRY(status, add_kept(l, v, WEFTI_BUFFER_STATE), fail);
        }
    }
fail:
    return status;
}

/* The constants that a node reads. */
static weft_status_t add_constants(wefti_lowering_t *l, uint32_t id)
{
    weft_status_t status = WEFT_OK;
    const wefti_node_t *node = &l->graph->nodes[id];
    for (uint32_t j = 0; j < node->input_count; j++) {
        uint32_t v = node->inputs[j];
        if (v != WEFTI_NONE && l->graph->values[v].kind == WEFTI_VALUE_CONST &&
            l->buffer_of[v] == WEFTI_NONE) {
            WEFT_TRY(status, add_kept(l, v, WEFTI_BUFFER_CONST), fail);
        }
    }
fail:
    return status;
}

/* Inputs, scalars and the constants that a kernel or a collective reads. */
static weft_status_t add_fed(wefti_lowering_t *l)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *graph = l->graph;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_INPUT) {
            WEFT_TRY(status, add_kept(l, v, WEFTI_BUFFER_INPUT), fail);
        }
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_SCALAR) {
            WEFT_TRY(status, add_kept(l, v, WEFTI_BUFFER_SCALAR), fail);
        }
    }
    for (uint32_t i = 0; i < l->item_count; i++) {
        WEFT_TRY(status, add_constants(l, l->items[i].node), fail);
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        WEFT_TRY(status, add_constants(l, l->buckets[b].node), fail);
    }
fail:
    return status;
}

weft_status_t wefti_lower_regions(wefti_lowering_t *l)
{
    weft_status_t status;
    WEFT_TRY(status, add_params(l), fail);
    WEFT_TRY(status, add_gradients(l), fail);
    WEFT_TRY(status, add_states(l), fail);
    WEFT_TRY(status, add_fed(l), fail);
fail:
    return status;
}

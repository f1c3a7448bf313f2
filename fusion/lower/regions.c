/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the arena that is there all the time:
 *
 *   | parameters | gradients | bf16 | partial sums | state 0 | state 1 .. | inputs, .. |
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

#define PADDING_SHARE 32u /* at most 1/32 of a region is padding */

/* A buffer with memory of its own, alive all the time. */
static weft_status_t add_kept(wefti_lowering_t *l, wefti_regions_t *r, uint32_t value,
                              wefti_buffer_kind_t kind)
{
    WEFT_RETURN_IF_ERROR(wefti_lower_add_buffer(l, value, kind, l->buffers->cursor));
    r->kept_bytes += wefti_value_bytes(&l->graph->values[value]);
    return wefti_lower_advance(l, wefti_value_bytes(&l->graph->values[value]));
}

/* Members that lie in regions; pieces of one share the first one's. */
static uint32_t own_members(const wefti_bucket_t *bucket)
{
    return bucket->part == 0 ? bucket->member_count : 0;
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
    if (l->buffers->of[member->param] != WEFTI_NONE ||
        l->buffers->of[member->value] != WEFTI_NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "parameter '%s': duplicate gradient '%s'",
                           param->name, grad->name);
    }
    return WEFT_OK;
}

/* Alignment of members. What is reduced may have half the size of a gradient; its members also
 * begin at multiples of WEFTI_PLAN_ALIGNMENT. */
static uint64_t member_unit(const wefti_lowering_t *l)
{
    return WEFTI_PLAN_ALIGNMENT * WEFTI_PLAN_ALIGNMENT /
           wefti_lower_grad_bytes(l, WEFTI_PLAN_ALIGNMENT);
}

/* The size of a bucket's range is a multiple of this. */
static uint64_t unit_bytes(const wefti_lowering_t *l, const wefti_bucket_t *bucket)
{
    return member_unit(l) * (bucket->sharded ? l->buckets->shards : 1);
}

/* Of a split member each piece gets its share of units; the others get all of it. state_begin:
 * where all of it begins in the state regions. */
static wefti_place_t place_bucket(const wefti_lowering_t *l, const wefti_bucket_t *bucket,
                                  uint64_t begin, uint64_t end, uint64_t state_begin)
{
    uint64_t unit = unit_bytes(l, bucket), units = (end - begin) / unit;
    uint64_t first = units * bucket->part / bucket->parts * unit;
    return (wefti_place_t){.begin_bytes = begin + first,
                           .end_bytes = begin + units * (bucket->part + 1) / bucket->parts * unit,
                           .state_begin_bytes =
                               state_begin + first / (bucket->sharded ? l->buckets->shards : 1)};
}

/* Pads what lies in the region of parameters so far to whole units. */
static weft_status_t pad_region(wefti_lowering_t *l, wefti_regions_t *r, uint64_t unit)
{
    uint64_t rest = (l->buffers->cursor - r->param_begin) % unit;
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
static weft_status_t add_param(wefti_lowering_t *l, wefti_regions_t *r,
                               const wefti_bucket_t *bucket, uint32_t param)
{
    uint64_t position = WEFTI_PLAN_NOWHERE + l->buffers->cursor - r->param_begin;
    if (!bucket->gathered) {
        return add_kept(l, r, param, WEFTI_BUFFER_PARAM);
    }
    weft_status_t status = wefti_lower_add_buffer(l, param, WEFTI_BUFFER_PARAM, position);
    return status < 0 ? status
                      : wefti_lower_advance(l, wefti_value_bytes(&l->graph->values[param]));
}

/* Parameters of the buckets that are gathered, or of the others; fixes where buckets lie in every
 * region. */
static weft_status_t place_buckets(wefti_lowering_t *l, wefti_regions_t *r, bool gathered)
{
    uint64_t begin = 0, state_begin = 0;
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        const wefti_bucket_t *bucket = &l->buckets->list[b];
        uint64_t unit = unit_bytes(l, bucket);
        if (bucket->gathered != gathered) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(pad_region(l, r, unit));
        if (bucket->part == 0) {
            begin = l->buffers->cursor - r->param_begin;
            state_begin = r->state_bytes;
        }
        for (uint32_t i = 0; i < own_members(bucket); i++) {
            WEFT_RETURN_IF_ERROR(check_gradient(l, &bucket->members[i]));
            WEFT_RETURN_IF_ERROR(add_param(l, r, bucket, bucket->members[i].param));
            WEFT_RETURN_IF_ERROR(pad_region(l, r, member_unit(l)));
        }
        WEFT_RETURN_IF_ERROR(pad_region(l, r, unit));
        const wefti_place_t place =
            place_bucket(l, bucket, begin, l->buffers->cursor - r->param_begin, state_begin);
        r->places[b] = place;
        r->state_bytes = place.state_begin_bytes + (place.end_bytes - place.begin_bytes) /
                                                       (bucket->sharded ? l->buckets->shards : 1);
    }
    return WEFT_OK;
}

/* Positions of sharded parameters follow the region of the others. */
static weft_status_t place_sharded(wefti_lowering_t *l, wefti_regions_t *r)
{
    weft_status_t status = place_buckets(l, r, true);
    l->buffers->cursor = r->param_begin + r->bytes;
    r->grad_bytes = r->bytes;
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        if (l->buckets->list[b].gathered && !l->buckets->list[b].passing) {
            r->grad_bytes = r->places[b].end_bytes;
        }
    }
    return status;
}

/* Parameters of all buckets, then those without a gradient, then shards. */
static weft_status_t add_params(wefti_lowering_t *l, wefti_regions_t *r)
{
    r->param_begin = l->buffers->cursor;
    r->places = wefti_arena_array(&l->arena, l->buckets->count, sizeof(*r->places));
    WEFT_RETURN_IF_NO_MEMORY(r->places);
    WEFT_RETURN_IF_ERROR(place_buckets(l, r, false));
    r->bytes = region_bytes(l, l->buffers->cursor - r->param_begin);
    l->buffers->cursor = r->param_begin + r->bytes;
    WEFT_RETURN_IF_ERROR(place_sharded(l, r));
    if (l->buckets->shards == 1) { /* states lie where their parameters do */
        r->state_bytes = r->bytes;
    }
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (l->graph->values[v].kind == WEFTI_VALUE_PARAM && l->buffers->of[v] == WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(add_kept(l, r, v, WEFTI_BUFFER_PARAM));
        }
    }
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        if (l->buckets->list[b].gathered) {
            WEFT_RETURN_IF_ERROR(wefti_lower_add_shards(l, b, &r->kept_bytes));
        }
    }
    return WEFT_OK;
}

static void set_reduced(wefti_lowering_t *l, const wefti_member_t *member, uint32_t buffer)
{
    l->buffers->of[member->sent] = buffer;
    if (member->reduced != WEFTI_NONE) {
        l->buffers->of[member->reduced] = buffer;
    }
}

/* What is reduced in place of a gradient, in another type and in another region. */
static weft_status_t add_wire_gradient(wefti_lowering_t *l, wefti_regions_t *r,
                                       const wefti_bucket_t *bucket, const wefti_member_t *member)
{
    uint32_t own = l->buffers->of[member->value];
    wefti_plan_buffer_t *wire = &l->plan->buffers[l->plan->buffer_count];
    uint64_t place = l->plan->buffers[own].offset_bytes - r->local_begin;
    WEFT_RETURN_IF_ERROR(wefti_lower_add_buffer(l, member->value, WEFTI_BUFFER_GRAD,
                                                r->grad_begin + wefti_lower_grad_bytes(l, place)));
    wire->dtype = wefti_lower_grad_dtype(l, bucket);
    wire->size_bytes = wefti_lower_grad_bytes(l, wire->size_bytes);
    r->kept_bytes += wire->size_bytes;
    set_reduced(l, member, l->buffers->of[member->value]);
    l->buffers->of[member->value] = own;
    l->plan->buffers[own].name =
        wefti_arena_printf(&l->plan->arena, "%s, own", l->plan->buffers[own].name);
    return l->plan->buffers[own].name == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t add_wire_gradients(wefti_lowering_t *l, wefti_regions_t *r)
{
    r->grad_begin = l->buffers->cursor;
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        const wefti_bucket_t *bucket = &l->buckets->list[b];
        bool sends = !bucket->passing && wefti_lower_is_rounded(l, bucket);
        for (uint32_t i = 0; i < own_members(bucket) && sends; i++) {
            WEFT_RETURN_IF_ERROR(add_wire_gradient(l, r, bucket, &bucket->members[i]));
        }
    }
    l->buffers->cursor = r->grad_begin + wefti_lower_grad_bytes(l, r->grad_bytes);
    return WEFT_OK;
}

/* A region like that of gradients. */
static weft_status_t add_first_level(wefti_lowering_t *l, wefti_regions_t *r)
{
    r->first_begin = l->buffers->cursor;
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        const wefti_bucket_t *bucket = &l->buckets->list[b];
        for (uint32_t i = 0; i < own_members(bucket); i++) {
            uint32_t gradient = bucket->members[i].value, sum = l->folds->first_of[gradient];
            const wefti_plan_buffer_t *own = &l->plan->buffers[l->buffers->of[gradient]];
            if (sum == WEFTI_NONE) {
                return wefti_error(WEFT_ERR_UNSUPPORTED, "gradient '%s': no partial sum",
                                   l->graph->values[gradient].name);
            }
            WEFT_RETURN_IF_ERROR(wefti_lower_add_buffer(
                l, sum, WEFTI_BUFFER_GRAD, r->first_begin + own->offset_bytes - r->local_begin));
            r->kept_bytes += own->size_bytes;
        }
    }
    l->buffers->cursor = r->first_begin + r->grad_bytes;
    return WEFT_OK;
}

/* Partial sums of one bucket above the first; they are there all the time. */
static weft_status_t add_levels(wefti_lowering_t *l, wefti_regions_t *r, uint32_t index)
{
    wefti_place_t *place = &r->places[index];
    uint64_t bytes = place->end_bytes - place->begin_bytes;
    place->levels = wefti_id_map(&l->arena, l->folds->level_count);
    WEFT_RETURN_IF_NO_MEMORY(place->levels);
    for (uint32_t t = 1; t < l->folds->level_count; t++) {
        char *name = wefti_arena_printf(&l->arena, "bucket %u, sum of %u micro-batches", index,
                                        (uint32_t)1 << t);
        WEFT_RETURN_IF_NO_MEMORY(name);
        WEFT_RETURN_IF_ERROR(wefti_lower_add_range(l, name, WEFT_DTYPE_F32, l->buffers->cursor,
                                                   bytes, &place->levels[t]));
        l->plan->buffers[place->levels[t]].kind = WEFTI_BUFFER_GRAD;
        r->kept_bytes += bytes;
        WEFT_RETURN_IF_ERROR(wefti_lower_advance(l, bytes));
    }
    return WEFT_OK;
}

static weft_status_t add_partial_sums(wefti_lowering_t *l, wefti_regions_t *r)
{
    if (l->folds->level_count > 0) {
        WEFT_RETURN_IF_ERROR(add_first_level(l, r));
    }
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        if (l->folds->has[b]) {
            WEFT_RETURN_IF_ERROR(add_levels(l, r, b));
        }
    }
    for (uint32_t i = 0; i < l->folds->count; i++) { /* in the range of their bucket */
        const wefti_fold_t *fold = &l->folds->list[i];
        const wefti_node_t *node = &l->graph->nodes[fold->node];
        for (uint32_t k = 0; fold->level != WEFTI_NONE && fold->level > 0 && k < node->output_count;
             k++) {
            l->buffers->of[node->outputs[k]] = r->places[fold->bucket].levels[fold->level];
        }
    }
    return WEFT_OK;
}

static weft_status_t add_gradients(wefti_lowering_t *l, wefti_regions_t *r)
{
    r->grad_begin = r->local_begin = l->buffers->cursor;
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        const wefti_bucket_t *bucket = &l->buckets->list[b];
        for (uint32_t i = 0; i < own_members(bucket) && !bucket->passing; i++) {
            const wefti_plan_buffer_t *param =
                &l->plan->buffers[l->buffers->of[bucket->members[i].param]];
            l->buffers->cursor = param->offset_bytes - wefti_lower_param_offset(l, b) +
                                 r->places[b].begin_bytes + r->grad_begin;
            WEFT_RETURN_IF_ERROR(add_kept(l, r, bucket->members[i].value, WEFTI_BUFFER_GRAD));
            set_reduced(l, &bucket->members[i], l->buffers->of[bucket->members[i].value]);
        }
    }
    l->buffers->cursor = r->grad_begin + r->grad_bytes;
    if (l->buckets->half) {
        WEFT_RETURN_IF_ERROR(add_wire_gradients(l, r));
    }
    WEFT_RETURN_IF_ERROR(add_partial_sums(l, r));
    return WEFT_OK;
}

/* "momentum" of the state "w_shard_momentum" of parameter "w". */
static const char *slot_name(const wefti_lowering_t *l, uint32_t state)
{
    const char *name = l->graph->values[state].name;
    const char *param = l->graph->values[l->graph->values[state].state_of].name;
    size_t skip = strlen(param);
    if (strncmp(name, param, skip) == 0 && strncmp(name + skip, "_shard_", 7) == 0) {
        name += skip + 7;
    }
    return name;
}

/* A rank's share of the states of a sharded bucket. */
static weft_status_t add_shard_states(wefti_lowering_t *l, wefti_regions_t *r, uint32_t index)
{
    const wefti_bucket_t *bucket = &l->buckets->list[index];
    wefti_place_t *place = &r->places[index];
    uint64_t bytes = (place->end_bytes - place->begin_bytes) / l->buckets->shards;
    place->states = wefti_id_map(&l->arena, l->buckets->state_count);
    WEFT_RETURN_IF_NO_MEMORY(place->states);
    for (uint32_t j = 0; j < bucket->operand_count; j++) {
        uint32_t v = bucket->operands[j];
        uint32_t slot = v == WEFTI_NONE || l->graph->values[v].kind != WEFTI_VALUE_STATE
                            ? WEFTI_NONE
                            : l->buckets->state_slot[v];
        if (slot == WEFTI_NONE) {
            continue;
        }
        char *name = wefti_arena_printf(&l->arena, "bucket %u %s", index, slot_name(l, v));
        WEFT_RETURN_IF_NO_MEMORY(name);
        WEFT_RETURN_IF_ERROR(wefti_lower_add_range(l, name, wefti_lower_param_dtype(l, bucket),
                                                   r->state_begin[slot] + place->state_begin_bytes,
                                                   bytes, &place->states[slot]));
        l->plan->buffers[place->states[slot]].kind = WEFTI_BUFFER_STATE;
        r->kept_bytes += bytes;
        l->buffers->of[v] =
            l->buffers->of[v] == WEFTI_NONE ? place->states[slot] : l->buffers->of[v];
    }
    return WEFT_OK;
}

/* One state region: the state of every parameter at the parameter's place. */
static weft_status_t add_state_region(wefti_lowering_t *l, wefti_regions_t *r, uint32_t slot,
                                      uint32_t *state_of)
{
    r->state_begin[slot] = l->buffers->cursor;
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (l->graph->values[v].kind == WEFTI_VALUE_STATE && l->buckets->state_slot[v] == slot) {
            state_of[l->graph->values[v].state_of] = v;
        }
    }
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        const wefti_bucket_t *bucket = &l->buckets->list[b];
        for (uint32_t i = 0; i < own_members(bucket) && !bucket->sharded; i++) {
            uint32_t v = state_of[bucket->members[i].param];
            uint32_t param = l->buffers->of[bucket->members[i].param];
            uint64_t offset = l->plan->buffers[param].offset_bytes - r->param_begin -
                              r->places[b].begin_bytes + r->places[b].state_begin_bytes +
                              l->buffers->cursor;
            if (v != WEFTI_NONE && l->buckets->state_slot[v] == slot) {
                WEFT_RETURN_IF_ERROR(wefti_lower_add_buffer(l, v, WEFTI_BUFFER_STATE, offset));
                r->kept_bytes += wefti_value_bytes(&l->graph->values[v]);
            }
        }
    }
    return wefti_lower_advance(l, r->state_bytes);
}

static weft_status_t add_states(wefti_lowering_t *l, wefti_regions_t *r)
{
    uint32_t *state_of = wefti_id_map(&l->arena, l->graph->value_count); /* of a parameter */
    r->state_begin = wefti_arena_array(&l->arena, l->buckets->state_count, sizeof(*r->state_begin));
    WEFT_RETURN_IF_NO_MEMORY(state_of && r->state_begin);
    for (uint32_t k = 0; k < l->buckets->state_count && r->state_bytes > 0; k++) {
        WEFT_RETURN_IF_ERROR(add_state_region(l, r, k, state_of));
    }
    for (uint32_t b = 0; b < l->buckets->count; b++) {
        if (l->buckets->list[b].sharded) {
            WEFT_RETURN_IF_ERROR(add_shard_states(l, r, b));
        }
    }
    for (uint32_t v = 0; v < l->graph->value_count; v++) {
        if (l->graph->values[v].kind == WEFTI_VALUE_STATE && l->buffers->of[v] == WEFTI_NONE &&
            l->order->readers.first[v] < l->order->readers.first[v + 1]) {
            WEFT_RETURN_IF_ERROR(add_kept(l, r, v, WEFTI_BUFFER_STATE));
        }
    }
    return WEFT_OK;
}

/* The constants that a node reads. */
static weft_status_t add_constants(wefti_lowering_t *l, wefti_regions_t *r, uint32_t id)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    for (uint32_t j = 0; j < node->input_count; j++) {
        uint32_t v = node->inputs[j];
        if (v != WEFTI_NONE && l->graph->values[v].kind == WEFTI_VALUE_CONST &&
            l->buffers->of[v] == WEFTI_NONE) {
            WEFT_RETURN_IF_ERROR(add_kept(l, r, v, WEFTI_BUFFER_CONST));
        }
    }
    return WEFT_OK;
}

/* Inputs, scalars and the constants that a kernel or a collective reads. */
static weft_status_t add_fed(wefti_lowering_t *l, wefti_regions_t *r)
{
    const wefti_graph_t *graph = l->graph;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_INPUT) {
            WEFT_RETURN_IF_ERROR(add_kept(l, r, v, WEFTI_BUFFER_INPUT));
        }
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_SCALAR) {
            WEFT_RETURN_IF_ERROR(add_kept(l, r, v, WEFTI_BUFFER_SCALAR));
        }
    }
    for (uint32_t i = 0; i < l->order->item_count; i++) {
        WEFT_RETURN_IF_ERROR(add_constants(l, r, l->order->items[i].node));
    }
    for (uint32_t c = 0; c < l->order->command_count; c++) {
        WEFT_RETURN_IF_ERROR(add_constants(l, r, l->order->commands[c].node));
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_regions(wefti_lowering_t *l, wefti_regions_t *r)
{
    WEFT_RETURN_IF_ERROR(add_params(l, r));
    WEFT_RETURN_IF_ERROR(add_gradients(l, r));
    WEFT_RETURN_IF_ERROR(add_states(l, r));
    WEFT_RETURN_IF_ERROR(add_fed(l, r));
    return WEFT_OK;
}

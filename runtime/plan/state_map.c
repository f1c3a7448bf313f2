/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/state_map.h"

#include <stdlib.h>
#include <string.h>

#include "ops/optimizer_slot.h"
#include "runtime/base/error.h"

#define GRADIENT 0u
#define PARAMETER UINT32_MAX

/* A piece before it is known how many there are. */
typedef struct found {
    uint32_t param; /* index into params */
    uint32_t slot;  /* output of the update operator; GRADIENT, PARAMETER */
    uint32_t kernel, state;
    bool own_shape; /* the state's, not the parameter's */
    wefti_state_piece_t piece;
} found_t;

typedef struct mapper {
    const weft_plan_t *plan;
    uint32_t *params; /* buffers, by offset */
    uint32_t param_count;
    found_t *found;
    size_t found_count, found_capacity;
} mapper_t;

/* What one output of an update kernel says: parameters and their state. */
typedef struct update {
    uint32_t kernel, slot;
    uint32_t param, state; /* buffers */
} update_t;

static int by_offset(const void *a, const void *b, void *user)
{
    const wefti_plan_buffer_t *buffers = user;
    uint64_t x = buffers[*(const uint32_t *)a].offset_bytes;
    uint64_t y = buffers[*(const uint32_t *)b].offset_bytes;
    return (x > y) - (x < y);
}

static weft_status_t list_params(mapper_t *mapper, wefti_arena_t *arena)
{
    const weft_plan_t *plan = mapper->plan;
    mapper->params = wefti_arena_array(arena, plan->buffer_count + 1u, sizeof *mapper->params);
    if (mapper->params == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM && plan->buffers[i].size_bytes > 0) {
            mapper->params[mapper->param_count++] = i;
        }
    }
    qsort_r(mapper->params, mapper->param_count, sizeof *mapper->params, by_offset, plan->buffers);
    return WEFT_OK;
}

/* The first parameter that ends behind offset. */
static uint32_t first_param(const mapper_t *mapper, uint64_t offset)
{
    uint32_t low = 0, high = mapper->param_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const wefti_plan_buffer_t *param = &mapper->plan->buffers[mapper->params[middle]];
        if (param->offset_bytes + param->size_bytes <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static uint64_t elem_count(const wefti_plan_buffer_t *buffer)
{
    size_t bytes = weft_dtype_size_bytes(buffer->dtype);
    return bytes > 0 ? buffer->size_bytes / bytes : 0;
}

static weft_status_t add_piece(mapper_t *mapper, const update_t *update, uint32_t param,
                               bool own_shape, const wefti_state_piece_t *piece)
{
    weft_status_t status = wefti_array_reserve(NULL, &mapper->found, &mapper->found_capacity,
                                               mapper->found_count + 1, sizeof *mapper->found);
    if (status >= 0) {
        mapper->found[mapper->found_count++] =
            (found_t){param, update->slot, update->kernel, update->state, own_shape, *piece};
    }
    return status;
}

static bool is_per_rank(const wefti_plan_buffer_t *buffer)
{
    return buffer->rank_stride_bytes != 0 || buffer->kind == WEFTI_BUFFER_SHARD;
}

/* Where the parameters of rank's range are, as offsets of parameters. */
static uint64_t position_of(const wefti_plan_buffer_t *range, uint32_t rank)
{
    return range->kind == WEFTI_BUFFER_SHARD
               ? range->whole_offset_bytes + rank * range->size_bytes
               : range->offset_bytes + rank * range->rank_stride_bytes;
}

/* State that mirrors parameters: rank's range cut at the parameters it covers. */
static weft_status_t add_range(mapper_t *mapper, const update_t *update, uint32_t rank)
{
    const wefti_plan_buffer_t *buffers = mapper->plan->buffers;
    const wefti_plan_buffer_t *range = &buffers[update->param], *state = &buffers[update->state];
    uint32_t of = rank == WEFTI_ALL_RANKS ? 0 : rank;
    uint64_t begin = position_of(range, of);
    uint64_t end = begin + range->size_bytes;
    uint64_t elem = weft_dtype_size_bytes(range->dtype);
    uint64_t state_elem = weft_dtype_size_bytes(state->dtype);
    for (uint32_t i = first_param(mapper, begin); i < mapper->param_count; i++) {
        const wefti_plan_buffer_t *param = &buffers[mapper->params[i]];
        uint64_t param_end = param->offset_bytes + param->size_bytes;
        uint64_t from = param->offset_bytes > begin ? param->offset_bytes : begin;
        uint64_t to = param_end < end ? param_end : end;
        if (param->offset_bytes >= end) {
            break;
        }
        wefti_state_piece_t piece = {
            .begin_bytes = (from - param->offset_bytes) / elem * state_elem,
            .size_bytes = (to - from) / elem * state_elem,
            .offset_bytes = state->offset_bytes + of * state->rank_stride_bytes +
                            (from - begin) / elem * state_elem,
            .rank = rank};
        weft_status_t status = add_piece(mapper, update, i, false, &piece);
        if (status < 0) {
            return status;
        }
    }
    return WEFT_OK;
}

/* State of another shape, of exactly one parameter. */
static weft_status_t add_own(mapper_t *mapper, const update_t *update)
{
    const wefti_plan_buffer_t *buffers = mapper->plan->buffers;
    const wefti_plan_buffer_t *state = &buffers[update->state];
    uint32_t i = first_param(mapper, buffers[update->param].offset_bytes);
    if (i == mapper->param_count || mapper->params[i] != update->param) {
        return WEFT_OK;
    }
    wefti_state_piece_t piece = {.size_bytes = state->size_bytes,
                                 .offset_bytes = state->offset_bytes,
                                 .rank = WEFTI_ALL_RANKS};
    return add_piece(mapper, update, i, true, &piece);
}

static weft_status_t add_update(mapper_t *mapper, const update_t *update)
{
    const wefti_plan_buffer_t *param = &mapper->plan->buffers[update->param];
    const wefti_plan_buffer_t *state = &mapper->plan->buffers[update->state];
    weft_status_t status = WEFT_OK;
    if (elem_count(param) == 0) {
        return WEFT_OK;
    }
    if (elem_count(param) != elem_count(state)) {
        return add_own(mapper, update);
    }
    if (!is_per_rank(param) && !is_per_rank(state)) {
        return add_range(mapper, update, WEFTI_ALL_RANKS);
    }
    for (uint32_t r = 0; r < mapper->plan->world_size && status >= 0; r++) {
        status = add_range(mapper, update, r);
    }
    return status;
}

static bool is_written_over(const weft_op_def_t *def, uint32_t input)
{
    for (size_t k = 0; k < sizeof def->in_place / sizeof *def->in_place; k++) {
        if (def->in_place[k] == (int)input) {
            return true;
        }
    }
    return false;
}

/* The first input beside parameter and states that has as many elements as the parameter. */
static weft_status_t add_gradient(mapper_t *mapper, const weft_op_def_t *def, uint32_t index,
                                  uint32_t param)
{
    const wefti_plan_kernel_t *kernel = &mapper->plan->kernels[index];
    const wefti_plan_buffer_t *buffers = mapper->plan->buffers;
    for (uint32_t i = 0; i < kernel->input_count; i++) {
        uint32_t input = kernel->inputs[i];
        if (input != WEFTI_PLAN_NONE && !is_written_over(def, i) &&
            elem_count(&buffers[input]) == elem_count(&buffers[param])) {
            return add_update(
                mapper,
                &(update_t){.kernel = index, .slot = GRADIENT, .param = param, .state = input});
        }
    }
    return WEFT_OK;
}

/* The outputs of a kernel that are written over parameters and their states. */
static weft_status_t visit_kernel(mapper_t *mapper, const weft_registry_t *registry, uint32_t index)
{
    const wefti_plan_kernel_t *kernel = &mapper->plan->kernels[index];
    const weft_op_def_t *def =
        weft_registry_find_op(registry, kernel->domain, kernel->op, kernel->version);
    weft_status_t status = WEFT_OK;
    if (def == NULL || !(def->effects & WEFT_EFFECT_UPDATES) || def->in_place[0] < 0 ||
        (uint32_t)def->in_place[0] >= kernel->input_count) {
        return WEFT_OK;
    }
    uint32_t param = kernel->inputs[def->in_place[0]];
    if (param == WEFTI_PLAN_NONE) {
        return WEFT_OK;
    }
    status = add_gradient(mapper, def, index, param);
    for (uint32_t k = 1; k < kernel->output_count && k < 4 && status >= 0; k++) {
        int place = def->in_place[k];
        if (place < 0 || (uint32_t)place >= kernel->input_count ||
            kernel->inputs[place] == WEFTI_PLAN_NONE) {
            continue;
        }
        status = add_update(mapper, &(update_t){.kernel = index,
                                                .slot = k,
                                                .param = param,
                                                .state = kernel->inputs[place]});
    }
    return status;
}

/* params are in plan order again by then. */
static int by_tensor(const void *a, const void *b)
{
    const found_t *x = a, *y = b;
    if (x->param != y->param) {
        return x->param < y->param ? -1 : 1;
    }
    if (x->slot != y->slot) {
        return x->slot < y->slot ? -1 : 1;
    }
    return (x->piece.begin_bytes > y->piece.begin_bytes) -
           (x->piece.begin_bytes < y->piece.begin_bytes);
}

static weft_status_t make_state(const mapper_t *mapper, const found_t *first, uint32_t count,
                                wefti_arena_t *arena, wefti_state_t *state)
{
    const wefti_plan_buffer_t *param = &mapper->plan->buffers[first->param];
    const wefti_plan_buffer_t *buffer = &mapper->plan->buffers[first->state];
    const wefti_plan_kernel_t *kernel =
        first->slot == PARAMETER ? NULL : &mapper->plan->kernels[first->kernel];
    uint64_t elem = weft_dtype_size_bytes(buffer->dtype), at = 0;
    wefti_state_piece_t *pieces = wefti_arena_array(arena, count, sizeof *pieces);
    const char *slot =
        kernel == NULL ? NULL : wefti_optimizer_slot(kernel->domain, kernel->op, first->slot);
    state->param = first->param;
    state->name = slot != NULL ? wefti_arena_printf(arena, "%s.%s", param->name, slot)
                               : wefti_arena_strdup(arena, param->name);
    if (pieces == NULL || state->name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    const wefti_plan_buffer_t *shape = first->own_shape ? buffer : param;
    state->desc =
        (weft_tensor_desc_t){.dtype = buffer->dtype,
                             .layout = first->slot == GRADIENT ? WEFT_LAYOUT_PLAIN : shape->layout,
                             .rank = shape->rank};
    memcpy(state->desc.dims, shape->dims, sizeof state->desc.dims);
    state->size_bytes = elem_count(shape) * elem;
    state->whole = true;
    for (uint32_t i = 0; i < count; i++) {
        pieces[i] = first[i].piece;
        state->whole = state->whole && pieces[i].begin_bytes == at;
        state->sharded = state->sharded || pieces[i].rank != WEFTI_ALL_RANKS;
        at = pieces[i].begin_bytes + pieces[i].size_bytes;
    }
    state->whole = state->whole && at == state->size_bytes;
    state->pieces = pieces;
    state->piece_count = count;
    return WEFT_OK;
}

static weft_status_t make_states(mapper_t *mapper, wefti_arena_t *arena, wefti_state_map_t *map)
{
    weft_status_t status = WEFT_OK;
    map->states = wefti_arena_array(arena, mapper->found_count + 1, sizeof *map->states);
    map->gradients = wefti_arena_array(arena, mapper->param_count + 1u, sizeof *map->gradients);
    map->params = wefti_arena_array(arena, mapper->param_count + 1u, sizeof *map->params);
    if (map->states == NULL || map->gradients == NULL || map->params == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < mapper->found_count; i++) {
        mapper->found[i].param = mapper->params[mapper->found[i].param];
    }
    if (mapper->found_count > 0) {
        qsort(mapper->found, mapper->found_count, sizeof *mapper->found, by_tensor);
    }
    for (size_t i = 0, end; i < mapper->found_count && status >= 0; i = end) {
        const found_t *first = &mapper->found[i];
        for (end = i + 1; end < mapper->found_count && mapper->found[end].param == first->param &&
                          mapper->found[end].slot == first->slot;
             end++) {
        }
        wefti_state_t *state = first->slot == GRADIENT    ? &map->gradients[map->gradient_count++]
                               : first->slot == PARAMETER ? &map->params[map->param_count++]
                                                          : &map->states[map->count++];
        status = make_state(mapper, first, (uint32_t)(end - i), arena, state);
    }
    return status;
}

weft_status_t wefti_state_not_whole(const wefti_state_t *state)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "state \"%s\": updates write only a part of it, or some elements twice",
                       state->name);
}

/* The parameters of which each rank has a shard. */
static weft_status_t visit_shards(mapper_t *mapper)
{
    const weft_plan_t *plan = mapper->plan;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < plan->buffer_count && status >= 0; i++) {
        if (plan->buffers[i].whole_offset_bytes != 0) {
            status = add_update(mapper, &(update_t){.slot = PARAMETER, .param = i, .state = i});
        }
    }
    return status;
}

const wefti_state_t *wefti_state_map_param(const wefti_state_map_t *map, uint32_t buffer)
{
    uint32_t low = 0, high = map->param_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (map->params[middle].param < buffer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < map->param_count && map->params[low].param == buffer ? &map->params[low] : NULL;
}

weft_status_t wefti_state_map_build(const weft_plan_t *plan, const weft_registry_t *registry,
                                    wefti_arena_t *arena, wefti_state_map_t *out_map)
{
    mapper_t mapper = {.plan = plan};
    *out_map = (wefti_state_map_t){0};
    weft_status_t status = list_params(&mapper, arena);
    for (uint32_t i = 0; i < plan->kernel_count && status >= 0; i++) {
        status = visit_kernel(&mapper, registry, i);
    }
    if (status >= 0) {
        status = visit_shards(&mapper);
    }
    if (status >= 0) {
        status = make_states(&mapper, arena, out_map);
    }
    wefti_free(NULL, mapper.found);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/state_map.h"

#include <stdlib.h>
#include <string.h>

#include "ops/optimizers.h"
#include "runtime/base/error.h"

#define GRADIENT 0u
#define PARAMETER UINT32_MAX

/* What one output of an update kernel says: parameters and their state. */
typedef struct update {
    uint32_t kernel;
    uint32_t slot;         /* output of the operator; GRADIENT, PARAMETER */
    uint32_t param, state; /* buffers */
} update_t;

/* A piece before it is known how many its tensor has. */
typedef struct found {
    uint32_t param; /* number of the parameter */
    update_t update;
    wefti_state_piece_t piece;
} found_t;

typedef struct mapper {
    const weft_plan_t *plan;
    wefti_state_map_t *map;
    uint32_t *by_offset; /* numbers of parameters, but for empty ones */
    uint32_t placed_count;
    const uint32_t *places; /* of buffers; NULL: all ranks have all of them */
    found_t *found;
    size_t found_count, found_capacity;
} mapper_t;

/* The first rank that has a tensor: that of its place, in all axes but that of places the first. */
static uint32_t rank_at(const weft_plan_t *plan, uint32_t place)
{
    return place == 0 ? WEFTI_ALL_RANKS
                      : (place - 1) * plan->mesh.axes[plan->place_group - 1].stride;
}

static uint64_t elem_count(const wefti_plan_buffer_t *buffer)
{
    size_t bytes = weft_dtype_size_bytes(buffer->dtype);
    return bytes > 0 ? buffer->size_bytes / bytes : 0;
}

/* A tensor with the shape of one buffer and the type of another. */
static wefti_state_t tensor_of(const wefti_plan_buffer_t *param, const wefti_plan_buffer_t *shape,
                               weft_dtype_t dtype)
{
    wefti_state_t tensor = {.name = param->name,
                            .param = param,
                            .desc = {.dtype = dtype, .layout = shape->layout, .rank = shape->rank},
                            .size_bytes = elem_count(shape) * weft_dtype_size_bytes(dtype)};
    memcpy(tensor.desc.dims, shape->dims, sizeof tensor.desc.dims);
    return tensor;
}

static const wefti_plan_buffer_t *placed_param(const mapper_t *mapper, uint32_t place)
{
    return mapper->map->params.tensors[mapper->by_offset[place]].param;
}

static int by_offset(const void *a, const void *b, void *user)
{
    const wefti_state_t *params = user;
    uint64_t x = params[*(const uint32_t *)a].param->offset_bytes;
    uint64_t y = params[*(const uint32_t *)b].param->offset_bytes;
    return (x > y) - (x < y);
}

static weft_status_t list_params(mapper_t *mapper, wefti_arena_t *arena)
{
    const weft_plan_t *plan = mapper->plan;
    wefti_state_map_t *map = mapper->map;
    size_t count = 1;
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        count += plan->buffers[i].kind == WEFTI_BUFFER_PARAM;
    }
    map->params.tensors = wefti_arena_array(arena, count, sizeof *map->params.tensors);
    map->gradients.tensors = wefti_arena_array(arena, count, sizeof *map->gradients.tensors);
    mapper->by_offset = wefti_arena_array(arena, count, sizeof *mapper->by_offset);
    WEFT_RETURN_IF_NO_MEMORY(map->params.tensors && map->gradients.tensors && mapper->by_offset);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *param = &plan->buffers[i];
        if (param->kind == WEFTI_BUFFER_PARAM) {
            if (param->size_bytes > 0) {
                mapper->by_offset[mapper->placed_count++] = map->params.count;
            }
            map->params.tensors[map->params.count++] = tensor_of(param, param, param->dtype);
        }
    }
    map->gradients.count = map->params.count;
    qsort_r(mapper->by_offset, mapper->placed_count, sizeof *mapper->by_offset, by_offset,
            map->params.tensors);
    return WEFT_OK;
}

/* The place of the first parameter that ends behind offset. */
static uint32_t first_place(const mapper_t *mapper, uint64_t offset)
{
    uint32_t low = 0, high = mapper->placed_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const wefti_plan_buffer_t *param = placed_param(mapper, middle);
        if (param->offset_bytes + param->size_bytes <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static weft_status_t add_piece(mapper_t *mapper, const update_t *update, uint32_t param,
                               const wefti_state_piece_t *piece)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &mapper->found, &mapper->found_capacity,
                                             mapper->found_count + 1, sizeof *mapper->found));
    mapper->found[mapper->found_count++] = (found_t){param, *update, *piece};
    return WEFT_OK;
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
    uint32_t owner = rank == WEFTI_ALL_RANKS
                         ? rank_at(mapper->plan, mapper->plan->kernels[update->kernel].place)
                         : rank;
    uint64_t begin = position_of(range, of);
    uint64_t end = begin + range->size_bytes;
    uint64_t elem = weft_dtype_size_bytes(range->dtype);
    uint64_t state_elem = weft_dtype_size_bytes(state->dtype);
    for (uint32_t i = first_place(mapper, begin); i < mapper->placed_count; i++) {
        const wefti_plan_buffer_t *param = placed_param(mapper, i);
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
            .rank = owner};
        WEFT_RETURN_IF_ERROR(add_piece(mapper, update, mapper->by_offset[i], &piece));
    }
    return WEFT_OK;
}

/* State of another shape, of exactly one parameter. */
static weft_status_t add_own(mapper_t *mapper, const update_t *update)
{
    const wefti_plan_buffer_t *buffers = mapper->plan->buffers;
    const wefti_plan_buffer_t *state = &buffers[update->state];
    uint32_t i = first_place(mapper, buffers[update->param].offset_bytes);
    if (i == mapper->placed_count || placed_param(mapper, i) != &buffers[update->param]) {
        return WEFT_OK;
    }
    wefti_state_piece_t piece = {
        .size_bytes = state->size_bytes,
        .offset_bytes = state->offset_bytes,
        .rank = rank_at(mapper->plan, mapper->plan->kernels[update->kernel].place)};
    return add_piece(mapper, update, mapper->by_offset[i], &piece);
}

static weft_status_t add_update(mapper_t *mapper, const update_t *update)
{
    const wefti_plan_buffer_t *param = &mapper->plan->buffers[update->param];
    const wefti_plan_buffer_t *state = &mapper->plan->buffers[update->state];
    if (elem_count(param) == 0) {
        return WEFT_OK;
    }
    if (elem_count(param) != elem_count(state)) {
        return add_own(mapper, update);
    }
    if (!is_per_rank(param) && !is_per_rank(state)) {
        return add_range(mapper, update, WEFTI_ALL_RANKS);
    }
    for (uint32_t r = 0; r < mapper->plan->world_size; r++) {
        WEFT_RETURN_IF_ERROR(add_range(mapper, update, r));
    }
    return WEFT_OK;
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
    const bool averages = wefti_optimizer_averages(kernel->domain, kernel->op);
    for (uint32_t i = 0; !averages && i < kernel->input_count; i++) {
        uint32_t input = kernel->inputs[i];
        if (input != WEFTI_PLAN_NONE && !is_written_over(def, i) &&
            elem_count(&buffers[input]) == elem_count(&buffers[param])) {
            return add_update(mapper, &(update_t){index, GRADIENT, param, input});
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
    if (def == NULL || !(def->effects & WEFT_EFFECT_UPDATES) || def->in_place[0] < 0 ||
        (uint32_t)def->in_place[0] >= kernel->input_count) {
        return WEFT_OK;
    }
    uint32_t param = kernel->inputs[def->in_place[0]];
    if (param == WEFTI_PLAN_NONE) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(add_gradient(mapper, def, index, param));
    for (uint32_t k = 1; k < kernel->output_count && k < 4; k++) {
        int place = def->in_place[k];
        if (place >= 0 && (uint32_t)place < kernel->input_count &&
            kernel->inputs[place] != WEFTI_PLAN_NONE) {
            WEFT_RETURN_IF_ERROR(
                add_update(mapper, &(update_t){index, k, param, kernel->inputs[place]}));
        }
    }
    return WEFT_OK;
}

/* Where parameters lie: whole on every rank, or as shards. */
static weft_status_t visit_params(mapper_t *mapper)
{
    const weft_plan_t *plan = mapper->plan;
    for (uint32_t i = 0, p = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        const update_t update = {.slot = PARAMETER, .param = i, .state = i};
        if (buffer->whole_offset_bytes != 0) {
            WEFT_RETURN_IF_ERROR(add_update(mapper, &update));
        }
        if (buffer->kind == WEFTI_BUFFER_PARAM && buffer->offset_bytes < WEFTI_PLAN_NOWHERE) {
            wefti_state_piece_t piece = {
                .size_bytes = buffer->size_bytes,
                .offset_bytes = buffer->offset_bytes,
                .rank = rank_at(plan, mapper->places == NULL ? 0 : mapper->places[i])};
            WEFT_RETURN_IF_ERROR(add_piece(mapper, &update, p, &piece));
        }
        p += buffer->kind == WEFTI_BUFFER_PARAM;
    }
    return WEFT_OK;
}

static int by_tensor(const void *a, const void *b)
{
    const found_t *x = a, *y = b;
    if (x->param != y->param) {
        return x->param < y->param ? -1 : 1;
    }
    if (x->update.slot != y->update.slot) {
        return x->update.slot < y->update.slot ? -1 : 1;
    }
    return (x->piece.begin_bytes > y->piece.begin_bytes) -
           (x->piece.begin_bytes < y->piece.begin_bytes);
}

/*
 * The whole of a tensor of which each rank has a part: runs of bytes, one per row, segment and rank,
 * meet the pieces of the part.
 */
static weft_status_t join_parts(const mapper_t *mapper, wefti_state_t *tensor, wefti_arena_t *arena)
{
    const wefti_division_t *parts = &tensor->param->parts;
    const uint64_t ranks = wefti_plan_batch_ranks(mapper->plan);
    uint64_t rows = 1, elem = weft_dtype_size_bytes(tensor->desc.dtype), begin = 0, from = 0;
    for (uint32_t d = 0; d < tensor->desc.rank; d++) {
        rows *= d < parts->axis ? (uint64_t)tensor->desc.dims[d] : 1;
        elem *= d > parts->axis ? (uint64_t)tensor->desc.dims[d] : 1;
    }
    const uint64_t most = ranks * (rows * parts->count + tensor->piece_count);
    wefti_state_piece_t *pieces = wefti_arena_array(arena, (size_t)most, sizeof *pieces);
    WEFT_RETURN_IF_NO_MEMORY(pieces);
    uint32_t count = 0, first = 0;
    for (uint64_t run = 0; run < rows * parts->count; run++) {
        const uint64_t bytes = (uint64_t)parts->sizes[run % parts->count] / ranks * elem;
        while (first < tensor->piece_count &&
               tensor->pieces[first].begin_bytes + tensor->pieces[first].size_bytes <= from) {
            first++;
        }
        for (uint32_t rank = 0; rank < ranks; rank++, begin += bytes) {
            for (uint32_t i = first;
                 i < tensor->piece_count && tensor->pieces[i].begin_bytes < from + bytes; i++) {
                const wefti_state_piece_t *piece = &tensor->pieces[i];
                const uint64_t end = piece->begin_bytes + piece->size_bytes;
                const uint64_t low = piece->begin_bytes > from ? piece->begin_bytes : from;
                const uint64_t high = end < from + bytes ? end : from + bytes;
                pieces[count++] = (wefti_state_piece_t){.begin_bytes = begin + low - from,
                                                        .size_bytes = high - low,
                                                        .offset_bytes = piece->offset_bytes + low -
                                                                        piece->begin_bytes,
                                                        .rank = rank};
            }
        }
        from += bytes;
    }
    tensor->desc.dims[parts->axis] *= (int64_t)ranks;
    tensor->size_bytes *= ranks;
    tensor->pieces = pieces;
    tensor->piece_count = count;
    tensor->sharded = true;
    return WEFT_OK;
}

static weft_status_t make_tensor(const mapper_t *mapper, const found_t *first, uint32_t count,
                                 wefti_arena_t *arena)
{
    wefti_state_map_t *map = mapper->map;
    const update_t *update = &first->update;
    const wefti_plan_buffer_t *param = map->params.tensors[first->param].param;
    const wefti_plan_buffer_t *buffer = &mapper->plan->buffers[update->state];
    bool own_shape = elem_count(&mapper->plan->buffers[update->param]) != elem_count(buffer);
    wefti_state_t tensor = tensor_of(param, own_shape ? buffer : param, buffer->dtype);
    wefti_state_piece_t *pieces = wefti_arena_array(arena, count, sizeof *pieces);
    WEFT_RETURN_IF_NO_MEMORY(pieces);
    uint64_t at = 0;
    tensor.whole = true;
    for (uint32_t i = 0; i < count; i++) {
        pieces[i] = first[i].piece;
        tensor.whole = tensor.whole && pieces[i].begin_bytes == at;
        tensor.sharded = tensor.sharded || pieces[i].rank != WEFTI_ALL_RANKS;
        at = pieces[i].begin_bytes + pieces[i].size_bytes;
    }
    tensor.whole = tensor.whole && at == tensor.size_bytes;
    tensor.pieces = pieces;
    tensor.piece_count = count;
    if (param->parts.count > 0 && !own_shape) {
        WEFT_RETURN_IF_ERROR(join_parts(mapper, &tensor, arena));
    }
    if (update->slot == PARAMETER) {
        map->params.tensors[first->param] = tensor;
        map->params.sharded = map->params.sharded || tensor.sharded;
        return WEFT_OK;
    }
    if (update->slot == GRADIENT) {
        tensor.desc.layout = WEFT_LAYOUT_PLAIN;
        map->gradients.tensors[first->param] = tensor;
        /* Shards of an optimizer are not read. */
        map->gradients.sharded = map->gradients.sharded || param->parts.count > 0 ||
                                 (tensor.sharded && mapper->plan->place_group != 0);
        return WEFT_OK;
    }
    const wefti_plan_kernel_t *kernel = &mapper->plan->kernels[update->kernel];
    const char *slot = wefti_optimizer_slot(kernel->domain, kernel->op, update->slot);
    if (slot != NULL) {
        tensor.name = wefti_arena_printf(arena, "%s.%s", param->name, slot);
        WEFT_RETURN_IF_NO_MEMORY(tensor.name);
    }
    map->states.tensors[map->states.count++] = tensor;
    map->states.sharded = map->states.sharded || tensor.sharded;
    return WEFT_OK;
}

static weft_status_t make_tensors(mapper_t *mapper, wefti_arena_t *arena)
{
    const found_t *found = mapper->found;
    wefti_state_list_t *states = &mapper->map->states;
    if (mapper->found_count > 0) {
        qsort(mapper->found, mapper->found_count, sizeof *found, by_tensor);
    }
    states->tensors = wefti_arena_array(arena, mapper->found_count, sizeof *states->tensors);
    WEFT_RETURN_IF_NO_MEMORY(states->tensors);
    for (size_t i = 0, end; i < mapper->found_count; i = end) {
        for (end = i + 1; end < mapper->found_count && found[end].param == found[i].param &&
                          found[end].update.slot == found[i].update.slot;
             end++) {
        }
        WEFT_RETURN_IF_ERROR(make_tensor(mapper, &found[i], (uint32_t)(end - i), arena));
    }
    return WEFT_OK;
}

int wefti_state_by_name(const void *a, const void *b)
{
    return strcmp((*(const wefti_state_t *const *)a)->name,
                  (*(const wefti_state_t *const *)b)->name);
}

weft_status_t wefti_state_not_whole(const wefti_state_t *state)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "state \"%s\": updates write only a part of it, or some elements twice",
                       state->name);
}

weft_status_t wefti_state_map_build(const weft_plan_t *plan, const weft_registry_t *registry,
                                    wefti_arena_t *arena, wefti_state_map_t *out_map)
{
    mapper_t mapper = {.plan = plan, .map = out_map};
    weft_status_t status;
    *out_map = (wefti_state_map_t){
        .params.kind = "parameter", .gradients.kind = "gradient of", .states.kind = "state"};
    WEFT_TRY(status, list_params(&mapper, arena), out);
    if (plan->place_group != 0) {
        mapper.places = wefti_plan_buffer_places(plan, arena);
        WEFT_TRY(status, mapper.places == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK, out);
    }
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        WEFT_TRY(status, visit_kernel(&mapper, registry, i), out);
    }
    WEFT_TRY(status, visit_params(&mapper), out);
    status = make_tensors(&mapper, arena);
out:
    wefti_free(NULL, mapper.found);
    return status;
}

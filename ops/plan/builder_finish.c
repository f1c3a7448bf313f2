/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what a builder has to a plan. Memory, in this order:
 *
 *     weights, gradients, states   by type; the members of a bucket side by side, then the others
 *     inputs, scalars, constants, temporaries, outputs     apart, or where another one lies
 */
#include "ops/plan/builder.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

static weft_status_t place(weft_plan_builder_t *builder, uint32_t id)
{
    weft_plan_t *plan = builder->plan;
    wefti_plan_buffer_t *buffer = &builder->buffers[id];
    wefti_builder_buffer_t *source = &builder->sources[id];
    if (source->is_placed) {
        return WEFT_OK;
    }
    source->is_placed = true;
    if (source->reuses != 0) { /* of an earlier buffer, which is placed */
        buffer->offset_bytes = builder->buffers[source->reuses - 1].offset_bytes;
        return WEFT_OK;
    }
    buffer->offset_bytes = plan->arena_bytes;
    plan->arena_bytes += wefti_plan_padded_bytes(buffer->size_bytes);
    return plan->arena_bytes < WEFTI_PLAN_NOWHERE
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "builder: buffers are too large together");
}

/* All buffers of one kind and type: those of buckets first. */
static weft_status_t place_region(weft_plan_builder_t *builder, wefti_buffer_kind_t kind,
                                  weft_dtype_t dtype)
{
    const weft_plan_t *plan = builder->plan;
    for (uint32_t c = 0; c < plan->collective_count; c++) {
        const wefti_plan_collective_t *collective = &builder->collectives[c];
        for (uint32_t i = 0; i < collective->member_count && collective->member_count > 1; i++) {
            const wefti_plan_buffer_t *buffer = &builder->buffers[collective->members[i]];
            if (buffer->kind == kind && buffer->dtype == dtype) {
                WEFT_RETURN_IF_ERROR(place(builder, collective->members[i]));
            }
        }
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (builder->buffers[i].kind == kind && builder->buffers[i].dtype == dtype) {
            WEFT_RETURN_IF_ERROR(place(builder, i));
        }
    }
    return WEFT_OK;
}

static weft_status_t place_all(weft_plan_builder_t *builder)
{
    for (int kind = WEFTI_BUFFER_PARAM; kind <= (int)WEFTI_BUFFER_STATE; kind++) {
#define REGION(name, value, bytes, text, onnx)                                                     \
    WEFT_RETURN_IF_ERROR(place_region(builder, (wefti_buffer_kind_t)kind, WEFT_DTYPE_##name));
        WEFT_DTYPE_MAP(REGION)
#undef REGION
    }
    for (uint32_t i = 0; i < builder->plan->buffer_count; i++) {
        WEFT_RETURN_IF_ERROR(place(builder, i));
    }
    builder->plan->live_bytes = builder->plan->arena_bytes;
    return WEFT_OK;
}

/* The flat range from the first member to the end of the last one. Members that do not lie side by
 * side are found by verification. */
static weft_status_t add_range(weft_plan_builder_t *builder, wefti_plan_collective_t *collective)
{
    static const weft_plan_buffer_params_t none = WEFT_PLAN_BUFFER_PARAMS_INIT;
    const wefti_plan_buffer_t *first = &builder->buffers[collective->members[0]];
    const wefti_plan_buffer_t *last =
        &builder->buffers[collective->members[collective->member_count - 1]];
    uint64_t begin = first->offset_bytes;
    uint64_t end = last->offset_bytes + wefti_plan_padded_bytes(last->size_bytes);
    uint64_t bytes = end > begin ? end - begin : 0;
    wefti_plan_buffer_t range = {
        .name = collective->name,
        .kind = WEFTI_BUFFER_RANGE,
        .dtype = collective->dtype,
        .rank = 1,
        .dims = {(int64_t)(bytes / weft_dtype_size_bytes(collective->dtype))},
        .offset_bytes = begin,
        .size_bytes = bytes,
    };
    uint32_t id;
    WEFT_RETURN_IF_ERROR(wefti_builder_add(builder, &none, &range, &id));
    collective->source = collective->buffer = id;
    return WEFT_OK;
}

/* Ranges of buckets, counts of blocks, and on which side the members are. */
static weft_status_t complete(weft_plan_builder_t *builder, wefti_plan_collective_t *collective)
{
    if (collective->member_count > 1) {
        WEFT_RETURN_IF_ERROR(add_range(builder, collective));
    } else if (wefti_collective_gathers(collective->op)) {
        collective->members[0] = collective->buffer;
    }
    const wefti_collective_t *shape = wefti_collective_of(collective->op);
    uint32_t blocks = wefti_side_blocks(shape->send, builder->plan->world_size);
    uint64_t bytes = builder->buffers[collective->source].size_bytes;
    collective->elem_count = bytes / weft_dtype_size_bytes(collective->dtype) / blocks;
    return WEFT_OK;
}

/* Program init of training: weights of one type are one range. */
static weft_status_t add_init(weft_plan_builder_t *builder, weft_dtype_t dtype)
{
    weft_plan_t *plan = builder->plan;
    wefti_plan_place_t *places =
        wefti_arena_array(&plan->arena, plan->buffer_count, sizeof *places);
    wefti_plan_collective_t collective = {
        .name = "weights",
        .op = WEFT_COLLECTIVE_BROADCAST,
        .dtype = dtype,
        .update = WEFTI_PLAN_NONE,
        .order = "tree",
        .members = wefti_arena_array(&plan->arena, plan->buffer_count, sizeof(uint32_t)),
        .reason = "",
    };
    uint32_t stream = 0, id;
    WEFT_RETURN_IF_NO_MEMORY(places && collective.members);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (builder->buffers[i].kind == WEFTI_BUFFER_PARAM && builder->buffers[i].dtype == dtype) {
            places[collective.member_count++] =
                (wefti_plan_place_t){builder->buffers[i].offset_bytes, i};
        }
    }
    if (collective.member_count == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_plan_sort_places(plan, places, collective.member_count));
    for (uint32_t i = 0; i < collective.member_count; i++) {
        collective.members[i] = places[i].id;
    }
    collective.source = collective.buffer = collective.members[0];
    while (stream + 1 < plan->stream_count && !builder->streams[stream].communicates) {
        stream++;
    }
    WEFT_RETURN_IF_ERROR(wefti_builder_algorithms(builder, NULL, &collective));
    WEFT_RETURN_IF_ERROR(complete(builder, &collective));
    WEFT_RETURN_IF_ERROR(wefti_builder_add_collective(builder, &collective, &id));
    return wefti_builder_append(builder, "init", stream, WEFTI_STEP_COLLECTIVE, id);
}

static weft_status_t add_inits(weft_plan_builder_t *builder)
{
    bool wanted = builder->plan->kind == WEFT_PLAN_KIND_TRAINING && builder->plan->stream_count > 0;
#define INIT(name, value, bytes, text, onnx)                                                       \
    if (wanted) {                                                                                  \
        WEFT_RETURN_IF_ERROR(add_init(builder, WEFT_DTYPE_##name));                                \
    }
    WEFT_DTYPE_MAP(INIT)
#undef INIT
    return WEFT_OK;
}

/* Contents of weights and constants, one after the other. */
static weft_status_t add_contents(weft_plan_builder_t *builder)
{
    weft_plan_t *plan = builder->plan;
    uint64_t total = 0;
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        wefti_plan_buffer_t *buffer = &builder->buffers[i];
        if (buffer->kind == WEFTI_BUFFER_PARAM || buffer->kind == WEFTI_BUFFER_CONST) {
            buffer->data_offset_bytes = total;
            total += wefti_plan_padded_bytes(buffer->size_bytes);
        }
    }
    uint8_t *weights = wefti_arena_alloc(&plan->arena, total > 0 ? total : 1);
    WEFT_RETURN_IF_NO_MEMORY(weights);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &builder->buffers[i];
        if ((buffer->kind == WEFTI_BUFFER_PARAM || buffer->kind == WEFTI_BUFFER_CONST) &&
            builder->sources[i].data != NULL) {
            memcpy(weights + buffer->data_offset_bytes, builder->sources[i].data,
                   buffer->size_bytes);
        }
    }
    plan->weights = weights;
    plan->weights_bytes = total;
    return WEFT_OK;
}

static void *own(weft_plan_t *plan, const void *array, uint32_t count, size_t bytes)
{
    void *copy = wefti_arena_array(&plan->arena, count + 1u, bytes);
    if (copy != NULL && count > 0) {
        memcpy(copy, array, count * bytes);
    }
    return copy;
}

/* The builder's arrays become the plan's. */
static weft_status_t move_arrays(weft_plan_builder_t *builder)
{
    weft_plan_t *plan = builder->plan;
    plan->buffers = own(plan, builder->buffers, plan->buffer_count, sizeof *plan->buffers);
    plan->kernels = own(plan, builder->kernels, plan->kernel_count, sizeof *plan->kernels);
    plan->collectives =
        own(plan, builder->collectives, plan->collective_count, sizeof *plan->collectives);
    plan->bindings = own(plan, builder->bindings, plan->binding_count, sizeof *plan->bindings);
    plan->streams = own(plan, builder->streams, plan->stream_count, sizeof *plan->streams);
    plan->programs =
        wefti_arena_array(&plan->arena, plan->program_count + 1u, sizeof *plan->programs);
    for (uint32_t p = 0; p < plan->program_count && !plan->arena.failed; p++) {
        wefti_plan_program_t *program = &plan->programs[p];
        program->name = builder->programs[p]->name;
        program->streams =
            wefti_arena_array(&plan->arena, plan->stream_count + 1u, sizeof *program->streams);
        for (uint32_t s = 0; s < plan->stream_count && program->streams != NULL; s++) {
            const wefti_builder_steps_t *steps = &builder->programs[p]->streams[s];
            program->streams[s].step_count = steps->count;
            program->streams[s].steps = own(plan, steps->steps, steps->count, sizeof *steps->steps);
        }
    }
    return plan->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t finish(weft_plan_builder_t *builder)
{
    uint32_t count = builder->plan->collective_count;
    WEFT_RETURN_IF_ERROR(place_all(builder));
    for (uint32_t c = 0; c < count; c++) {
        WEFT_RETURN_IF_ERROR(complete(builder, &builder->collectives[c]));
    }
    WEFT_RETURN_IF_ERROR(add_inits(builder));
    WEFT_RETURN_IF_ERROR(add_contents(builder));
    WEFT_RETURN_IF_ERROR(move_arrays(builder));
    WEFT_RETURN_IF_ERROR(wefti_plan_verify(builder->plan, builder->registry));
    return wefti_plan_seal(builder->plan);
}

weft_status_t weft_plan_builder_finish(weft_plan_builder_t *builder, weft_plan_t **out_plan)
{
    WEFT_CHECK_OUT(out_plan);
    WEFT_CHECK_ARG(builder);
    if (builder->plan == NULL) {
        return wefti_error(WEFT_ERR_STATE, "builder: its plan is finished");
    }
    weft_status_t status = finish(builder);
    weft_plan_t *plan = builder->plan;
    builder->plan = NULL;
    if (status == WEFT_OK) {
        *out_plan = plan;
    } else {
        weft_plan_release(plan);
    }
    return status;
}

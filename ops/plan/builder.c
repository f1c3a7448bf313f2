/* SPDX-License-Identifier: Apache-2.0 */
/* Plans without ONNX: what a caller adds, checked as far as later calls and placement rely on it. */
#include "ops/plan/builder.h"

#include <string.h>

#include "ops/algo/table.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

/* ---- life ---- */

static char *copy_text(weft_plan_t *plan, const char *text, const char *otherwise)
{
    return wefti_arena_strdup(&plan->arena, text != NULL ? text : otherwise);
}

static weft_status_t describe(weft_plan_builder_t *builder,
                              const weft_plan_builder_params_t *params)
{
    weft_plan_t *plan = builder->plan;
    plan->world_size = params->world_size;
    plan->kind = params->kind;
    plan->batch = params->batch;
    plan->policy = "none";
    plan->model_name = copy_text(plan, params->name, "");
    plan->optimizer = copy_text(plan, params->optimizer, "");
    builder->registry = params->registry;
    return plan->arena.failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t weft_plan_builder_create(const weft_plan_builder_params_t *params,
                                       weft_plan_builder_t **out_builder)
{
    WEFT_CHECK_OUT(out_builder);
    WEFT_CHECK_ARG(params);
    weft_plan_builder_params_t own = WEFT_PLAN_BUILDER_PARAMS_INIT;
    weft_status_t status;
    weft_plan_builder_t *builder = NULL;
    WEFT_TRY(status, WEFTI_PARAMS_READ(params, &own), fail);
    if (own.world_size == 0 || own.world_size > WEFTI_PLAN_MAX_WORLD) {
        status = wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size", "invalid value: %u",
                                   own.world_size);
        goto fail;
    }
    if (own.kind != WEFT_PLAN_KIND_TRAINING && own.kind != WEFT_PLAN_KIND_INFERENCE) {
        status = wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "kind", "unknown value: %d",
                                   (int)own.kind);
        goto fail;
    }
    builder = wefti_alloc(NULL, sizeof *builder);
    status = builder == NULL ? WEFT_ERR_NO_MEMORY : wefti_plan_create(NULL, &builder->plan);
    status = status == WEFT_OK ? describe(builder, &own) : status;
    if (status == WEFT_OK) {
        *out_builder = builder;
        return WEFT_OK;
    }
fail:
    weft_plan_builder_destroy(builder);
    return status;
}

void weft_plan_builder_destroy(weft_plan_builder_t *builder)
{
    if (builder == NULL) {
        return;
    }
    for (uint32_t p = 0; p < WEFTI_PLAN_MAX_PROGRAMS && builder->programs[p] != NULL; p++) {
        for (uint32_t s = 0; s < WEFTI_PLAN_MAX_STREAMS; s++) {
            wefti_free(NULL, builder->programs[p]->streams[s].steps);
        }
        wefti_free(NULL, builder->programs[p]);
    }
    wefti_free(NULL, builder->buffers);
    wefti_free(NULL, builder->sources);
    wefti_free(NULL, builder->kernels);
    wefti_free(NULL, builder->collectives);
    wefti_free(NULL, builder->bindings);
    weft_plan_release(builder->plan);
    wefti_free(NULL, builder);
}

/* Nothing is added to a plan that was finished. */
#define CHECK_BUILDER(builder)                                                                     \
    do {                                                                                           \
        WEFT_CHECK_ARG(builder);                                                                   \
        if ((builder)->plan == NULL) {                                                             \
            return wefti_error(WEFT_ERR_STATE, "builder: its plan is finished");                   \
        }                                                                                          \
    } while (0)

/* Numbers and limits of the format are of 32 bits. */
static weft_status_t reserve(void *array, size_t *capacity, uint32_t count, size_t bytes)
{
    return count < UINT32_MAX - 1
               ? wefti_array_reserve(NULL, array, capacity, (size_t)count + 1, bytes)
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "builder: too many objects: %u", count);
}

/* ---- streams, events, buffers ---- */

weft_status_t weft_plan_builder_add_stream(weft_plan_builder_t *builder, const char *name,
                                           uint32_t *out_stream)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(name);
    WEFT_CHECK_ARG(out_stream);
    weft_plan_t *plan = builder->plan;
    if (plan->stream_count == WEFTI_PLAN_MAX_STREAMS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "builder: too many streams: at most %u",
                           WEFTI_PLAN_MAX_STREAMS);
    }
    char *copy = copy_text(plan, name, "");
    WEFT_RETURN_IF_NO_MEMORY(copy);
    builder->streams[plan->stream_count] = (wefti_plan_stream_t){.name = copy};
    *out_stream = plan->stream_count++;
    return WEFT_OK;
}

weft_status_t weft_plan_builder_add_event(weft_plan_builder_t *builder, uint32_t *out_event)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(out_event);
    *out_event = builder->plan->event_count++;
    return WEFT_OK;
}

weft_status_t wefti_builder_add(weft_plan_builder_t *builder,
                                const weft_plan_buffer_params_t *params,
                                const wefti_plan_buffer_t *buffer, uint32_t *out)
{
    weft_plan_t *plan = builder->plan;
    WEFT_RETURN_IF_ERROR(reserve(&builder->buffers, &builder->buffer_capacity, plan->buffer_count,
                                 sizeof *builder->buffers));
    WEFT_RETURN_IF_ERROR(reserve(&builder->sources, &builder->source_capacity, plan->buffer_count,
                                 sizeof *builder->sources));
    wefti_plan_buffer_t *own = &builder->buffers[plan->buffer_count];
    *own = *buffer;
    own->name = copy_text(plan, buffer->name, "");
    WEFT_RETURN_IF_NO_MEMORY(own->name);
    builder->sources[plan->buffer_count] =
        (wefti_builder_buffer_t){params->desc.data, params->reuses, false};
    *out = plan->buffer_count++;
    return WEFT_OK;
}

static weft_status_t check_buffer(const weft_plan_builder_t *builder,
                                  const weft_plan_buffer_params_t *params)
{
    const weft_plan_t *plan = builder->plan;
    bool passes = params->kind == WEFT_BUFFER_KIND_TEMP || params->kind == WEFT_BUFFER_KIND_OUTPUT;
    const char *name = params->name != NULL ? params->name : "";
    if ((int)params->kind < (int)WEFT_BUFFER_KIND_PARAM ||
        (int)params->kind > (int)WEFT_BUFFER_KIND_OUTPUT) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "kind", "buffer %.100s: unknown: %d",
                                 name, (int)params->kind);
    }
    if (weft_dtype_size_bytes(params->desc.dtype) == 0 || params->desc.rank > WEFT_MAX_DIMS) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "desc",
                                 "buffer %.100s: unknown type, or more than %d dimensions", name,
                                 WEFT_MAX_DIMS);
    }
    int64_t count = weft_tensor_elem_count(&params->desc);
    uint64_t bytes;
    if (count < 0 ||
        __builtin_mul_overflow((uint64_t)count, weft_dtype_size_bytes(params->desc.dtype),
                               &bytes) ||
        bytes > WEFTI_PLAN_NOWHERE) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "desc",
                                 "buffer %.100s: unknown dimensions, or too large", name);
    }
    if (params->reuses == 0) {
        return WEFT_OK;
    }
    const wefti_plan_buffer_t *other =
        params->reuses <= plan->buffer_count ? &builder->buffers[params->reuses - 1] : NULL;
    if (!passes || other == NULL ||
        (other->kind != WEFTI_BUFFER_TEMP && other->kind != WEFTI_BUFFER_OUTPUT) ||
        bytes > other->size_bytes) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "reuses",
                                 "buffer %.100s: expected 1 + an earlier temporary or output that "
                                 "is at least as large: %u",
                                 name, params->reuses);
    }
    return WEFT_OK;
}

static weft_binding_role_t role_of(const weft_plan_buffer_params_t *params)
{
    switch (params->kind) {
    case WEFT_BUFFER_KIND_INPUT:
        return params->role != 0 ? params->role : WEFT_BINDING_ROLE_INPUT;
    case WEFT_BUFFER_KIND_SCALAR:
        return params->role != 0 ? params->role : WEFT_BINDING_ROLE_SCALAR;
    case WEFT_BUFFER_KIND_OUTPUT:
        return params->role != 0 ? params->role : WEFT_BINDING_ROLE_OUTPUT;
    default:
        return (weft_binding_role_t)0;
    }
}

weft_status_t weft_plan_builder_add_buffer(weft_plan_builder_t *builder,
                                           const weft_plan_buffer_params_t *params,
                                           uint32_t *out_buffer)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(params);
    WEFT_CHECK_ARG(out_buffer);
    weft_plan_buffer_params_t own = WEFT_PLAN_BUFFER_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    WEFT_RETURN_IF_ERROR(check_buffer(builder, &own));
    weft_plan_t *plan = builder->plan;
    weft_binding_role_t role = role_of(&own);
    WEFT_RETURN_IF_ERROR(reserve(&builder->bindings, &builder->binding_capacity,
                                 plan->binding_count, sizeof *builder->bindings));
    wefti_plan_buffer_t buffer = {
        .name = own.name,
        .kind = (wefti_buffer_kind_t)own.kind,
        .dtype = own.desc.dtype,
        .layout = own.desc.layout,
        .rank = own.desc.rank,
        .size_bytes =
            (uint64_t)weft_tensor_elem_count(&own.desc) * weft_dtype_size_bytes(own.desc.dtype),
        .default_value = own.default_value,
    };
    memcpy(buffer.dims, own.desc.dims, own.desc.rank * sizeof *buffer.dims);
    uint32_t id;
    WEFT_RETURN_IF_ERROR(wefti_builder_add(builder, &own, &buffer, &id));
    if (role != 0) {
        builder->bindings[plan->binding_count++] =
            (wefti_plan_binding_t){builder->buffers[id].name, role, id};
    }
    *out_buffer = id;
    return WEFT_OK;
}

/* ---- kernels ---- */

/* What an attribute points to, in the plan. */
static weft_status_t copy_attr(weft_plan_t *plan, const weft_attr_t *attr, weft_attr_t *out)
{
    wefti_arena_t *arena = &plan->arena;
    *out = *attr;
    out->tensor = NULL;
    bool is_list = attr->type >= WEFT_ATTR_TYPE_INTS && attr->type <= WEFT_ATTR_TYPE_STRINGS;
    const void *list = attr->type == WEFT_ATTR_TYPE_INTS     ? (const void *)attr->ints
                       : attr->type == WEFT_ATTR_TYPE_FLOATS ? (const void *)attr->floats
                                                             : (const void *)attr->strings;
    if (attr->name == NULL || attr->type == WEFT_ATTR_TYPE_TENSOR ||
        (attr->type == WEFT_ATTR_TYPE_STRING && attr->s == NULL) ||
        (is_list && attr->count > 0 && list == NULL)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "attrs",
                                 "attribute %.60s: no name, no value, or a tensor",
                                 attr->name != NULL ? attr->name : "");
    }
    out->name = wefti_arena_strdup(arena, attr->name);
    switch (attr->type) {
    case WEFT_ATTR_TYPE_STRING:
        out->s = wefti_arena_strdup(arena, attr->s);
        break;
    case WEFT_ATTR_TYPE_INTS:
        out->ints = wefti_arena_memdup(arena, attr->ints, attr->count * sizeof *attr->ints);
        break;
    case WEFT_ATTR_TYPE_FLOATS:
        out->floats = wefti_arena_memdup(arena, attr->floats, attr->count * sizeof *attr->floats);
        break;
    case WEFT_ATTR_TYPE_STRINGS: {
        const char **texts = wefti_arena_array(arena, attr->count, sizeof *texts);
        for (size_t i = 0; texts != NULL && i < attr->count; i++) {
            texts[i] = copy_text(plan, attr->strings[i], "");
        }
        out->strings = texts;
        break;
    }
    default:
        break;
    }
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t weft_plan_builder_add_kernel(weft_plan_builder_t *builder,
                                           const weft_plan_kernel_params_t *params,
                                           uint32_t *out_kernel)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(params);
    WEFT_CHECK_ARG(out_kernel);
    weft_plan_kernel_params_t own = WEFT_PLAN_KERNEL_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    weft_plan_t *plan = builder->plan;
    wefti_arena_t *arena = &plan->arena;
    if (own.op == NULL || (own.inputs == NULL && own.input_count > 0) ||
        (own.outputs == NULL && own.output_count > 0) ||
        (own.attrs == NULL && own.attr_count > 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "params: op, or a list that has entries, is NULL");
    }
    wefti_plan_kernel_t kernel = {
        .name = copy_text(plan, own.name, own.op),
        .domain = copy_text(plan, own.domain, ""),
        .op = copy_text(plan, own.op, ""),
        .version = own.version,
        .phase = (uint32_t)own.phase,
        .input_count = own.input_count,
        .output_count = own.output_count,
        .attr_count = own.attr_count,
        .inputs = wefti_arena_array(arena, own.input_count + 1u, sizeof(uint32_t)),
        .outputs = wefti_arena_array(arena, own.output_count + 1u, sizeof(uint32_t)),
        .attrs = wefti_arena_array(arena, own.attr_count + 1u, sizeof(weft_attr_t)),
    };
    WEFT_RETURN_IF_NO_MEMORY(!arena->failed);
    for (uint32_t i = 0; i < own.input_count; i++) {
        kernel.inputs[i] = own.inputs[i];
    }
    for (uint32_t i = 0; i < own.output_count; i++) {
        kernel.outputs[i] = own.outputs[i];
    }
    for (uint32_t i = 0; i < own.attr_count; i++) {
        WEFT_RETURN_IF_ERROR(copy_attr(plan, &own.attrs[i], &kernel.attrs[i]));
    }
    WEFT_RETURN_IF_ERROR(reserve(&builder->kernels, &builder->kernel_capacity, plan->kernel_count,
                                 sizeof *builder->kernels));
    builder->kernels[plan->kernel_count] = kernel;
    *out_kernel = plan->kernel_count++;
    return WEFT_OK;
}

/* ---- collectives ---- */

static bool can_run(const weft_algorithm_t *algorithm, const wefti_plan_collective_t *collective,
                    uint32_t ranks)
{
    weft_algo_params_t params = WEFT_ALGO_PARAMS_INIT;
    params.op = collective->op;
    params.group_size = ranks;
    return algorithm->op == collective->op &&
           (ranks == 1 || wefti_algorithm_order_refusal(algorithm, &params) == NULL);
}

/* Those of a list, which the session looks up, or the built-in ones. The session takes the one that
 * costs least. */
weft_status_t wefti_builder_algorithms(const weft_plan_builder_t *builder, const char *list,
                                       wefti_plan_collective_t *collective)
{
    wefti_arena_t *arena = &builder->plan->arena;
    size_t most = list != NULL ? strlen(list) + 1 : 0;
    for (size_t i = 0; list == NULL && wefti_algorithm_at(i) != NULL; i++) {
        most++;
    }
    wefti_plan_algorithm_t *out = wefti_arena_array(arena, most, sizeof *out);
    WEFT_RETURN_IF_NO_MEMORY(out);
    collective->algorithms = out;
    for (size_t i = 0; list == NULL && i < most; i++) {
        if (can_run(wefti_algorithm_at(i), collective, builder->plan->world_size)) {
            out[collective->algorithm_count++].name = wefti_algorithm_at(i)->name;
        }
    }
    for (size_t length; list != NULL && *list != '\0'; list += length + (list[length] == ',')) {
        length = strcspn(list, ",");
        out[collective->algorithm_count++].name =
            wefti_arena_printf(arena, "%.*s", (int)length, list);
    }
    for (uint32_t i = 0; i < collective->algorithm_count; i++) {
        out[i].capabilities = WEFTI_PLAN_CAP_DIRECT | WEFTI_PLAN_CAP_SIGNAL;
    }
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_builder_add_collective(weft_plan_builder_t *builder,
                                           const wefti_plan_collective_t *collective, uint32_t *out)
{
    weft_plan_t *plan = builder->plan;
    WEFT_RETURN_IF_ERROR(reserve(&builder->collectives, &builder->collective_capacity,
                                 plan->collective_count, sizeof *builder->collectives));
    builder->collectives[plan->collective_count] = *collective;
    *out = plan->collective_count++;
    return WEFT_OK;
}

/* What placement relies on; the rest is for verification. */
static weft_status_t check_collective(const weft_plan_builder_t *builder,
                                      const weft_plan_collective_params_t *params)
{
    const weft_plan_t *plan = builder->plan;
    if (!wefti_collective_has_one_count(params->op)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "op",
                                 "invalid value: %d: expected a collective with one count",
                                 (int)params->op);
    }
    const wefti_collective_t *shape = wefti_collective_of(params->op);
    bool is_bucket = params->send_count > 1;
    if (params->send_count == 0 || params->sends == NULL ||
        (is_bucket &&
         (shape->send.extent != WEFT_EXTENT_VECTOR || shape->recv.extent != WEFT_EXTENT_VECTOR))) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "sends",
                                 "%u buffers: expected one, or several of a collective whose "
                                 "result is like its operand",
                                 params->send_count);
    }
    for (uint32_t i = 0; i < params->send_count; i++) {
        uint32_t id = params->sends[i], first = params->sends[0];
        if (id >= plan->buffer_count || first >= plan->buffer_count ||
            (is_bucket && (builder->buffers[id].kind > WEFTI_BUFFER_STATE ||
                           builder->buffers[id].kind != builder->buffers[first].kind ||
                           builder->buffers[id].dtype != builder->buffers[first].dtype))) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "sends",
                                     "entry %u: no such buffer, or another kind or type than the "
                                     "first: only weights, gradients or states form a bucket",
                                     i);
        }
    }
    if (params->recv != WEFT_PLAN_NO_BUFFER && (is_bucket || params->recv >= plan->buffer_count)) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "recv",
            "invalid value: %u: no such buffer, or a bucket, which is in place", params->recv);
    }
    return WEFT_OK;
}

weft_status_t weft_plan_builder_add_collective(weft_plan_builder_t *builder,
                                               const weft_plan_collective_params_t *params,
                                               uint32_t *out_collective)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(params);
    WEFT_CHECK_ARG(out_collective);
    weft_plan_collective_params_t own = WEFT_PLAN_COLLECTIVE_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    WEFT_RETURN_IF_ERROR(check_collective(builder, &own));
    weft_plan_t *plan = builder->plan;
    wefti_plan_collective_t collective = {
        .name = copy_text(plan, own.name, weft_collective_name(own.op)),
        .op = own.op,
        .reduction = own.reduction,
        .dtype = builder->buffers[own.sends[0]].dtype,
        .root = own.root,
        .source = own.sends[0],
        .buffer = own.recv != WEFT_PLAN_NO_BUFFER ? own.recv : own.sends[0],
        .update = WEFTI_PLAN_NONE,
        .order = "tree",
        .member_count = own.send_count,
        .members = wefti_arena_memdup(&plan->arena, own.sends, own.send_count * sizeof(uint32_t)),
        .reason = copy_text(plan, own.reason, ""),
    };
    WEFT_RETURN_IF_NO_MEMORY(!plan->arena.failed);
    WEFT_RETURN_IF_ERROR(wefti_builder_algorithms(builder, own.algorithms, &collective));
    return wefti_builder_add_collective(builder, &collective, out_collective);
}

/* ---- programs ---- */

static weft_status_t find_program(weft_plan_builder_t *builder, const char *name,
                                  wefti_builder_program_t **out)
{
    weft_plan_t *plan = builder->plan;
    for (uint32_t i = 0; i < plan->program_count; i++) {
        if (strcmp(builder->programs[i]->name, name) == 0) {
            *out = builder->programs[i];
            return WEFT_OK;
        }
    }
    if (plan->program_count == WEFTI_PLAN_MAX_PROGRAMS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "builder: too many programs: at most %u",
                           WEFTI_PLAN_MAX_PROGRAMS);
    }
    *out = wefti_alloc(NULL, sizeof **out);
    char *copy = copy_text(plan, name, "");
    if (*out == NULL || copy == NULL) {
        wefti_free(NULL, *out);
        return WEFT_ERR_NO_MEMORY;
    }
    (*out)->name = copy;
    builder->programs[plan->program_count++] = *out;
    return WEFT_OK;
}

weft_status_t wefti_builder_append(weft_plan_builder_t *builder, const char *program,
                                   uint32_t stream, wefti_step_kind_t kind, uint32_t index)
{
    wefti_builder_program_t *own = NULL;
    if (stream >= builder->plan->stream_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "stream: no such number: %u", stream);
    }
    WEFT_RETURN_IF_ERROR(find_program(builder, program, &own));
    wefti_builder_steps_t *steps = &own->streams[stream];
    WEFT_RETURN_IF_ERROR(
        reserve(&steps->steps, &steps->capacity, steps->count, sizeof *steps->steps));
    steps->steps[steps->count++] = (wefti_plan_step_t){kind, index};
    builder->streams[stream].communicates |= kind == WEFTI_STEP_COLLECTIVE;
    return WEFT_OK;
}

/* An index that is too large is left for verification. */
weft_status_t weft_plan_builder_append_kernel(weft_plan_builder_t *builder, const char *program,
                                              uint32_t stream, uint32_t kernel)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(program);
    return wefti_builder_append(builder, program, stream, WEFTI_STEP_KERNEL, kernel);
}

weft_status_t weft_plan_builder_append_collective(weft_plan_builder_t *builder, const char *program,
                                                  uint32_t stream, uint32_t collective)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(program);
    return wefti_builder_append(builder, program, stream, WEFTI_STEP_COLLECTIVE, collective);
}

weft_status_t weft_plan_builder_append_record(weft_plan_builder_t *builder, const char *program,
                                              uint32_t stream, uint32_t event)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(program);
    return wefti_builder_append(builder, program, stream, WEFTI_STEP_RECORD, event);
}

weft_status_t weft_plan_builder_append_wait(weft_plan_builder_t *builder, const char *program,
                                            uint32_t stream, uint32_t event)
{
    CHECK_BUILDER(builder);
    WEFT_CHECK_ARG(program);
    return wefti_builder_append(builder, program, stream, WEFTI_STEP_WAIT, event);
}

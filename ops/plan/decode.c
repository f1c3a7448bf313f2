/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file to a plan. protobuf-c unpacks straight into the plan's arena, so strings and id arrays are
 * borrowed from the message and everything goes with the plan. Two bytes of file can become a
 * message of 150 bytes, so the arena has a budget in proportion to the section.
 */
#include "ops/plan/plan_internal.h"

#include <string.h>

#include "ops/plan/container.h"
#include "plan.pb-c.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

/* Measured on plans of real models: about 12 bytes of memory per byte of file. */
#define BUDGET_BASE_BYTES ((size_t)1 << 20)
#define BUDGET_FACTOR 32u

/* protobuf-c gives up without a reason: remember whether memory was it. */
typedef struct source {
    wefti_arena_t *arena;
    int ran_out;
} source_t;

static void *source_alloc(void *user, size_t bytes)
{
    source_t *source = user;
    void *ptr = wefti_arena_alloc(source->arena, bytes);
    source->ran_out |= ptr == NULL;
    return ptr;
}

static void source_free(void *user, void *ptr)
{
    (void)user;
    (void)ptr;
}

static weft_status_t decode_buffers(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    plan->buffers = wefti_arena_array(&plan->arena, message->n_buffers, sizeof *plan->buffers);
    if (!plan->buffers) {
        return WEFT_ERR_NO_MEMORY;
    }
    plan->buffer_count = (uint32_t)message->n_buffers;
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const Weft__Plan__Buffer *in = message->buffers[i];
        wefti_plan_buffer_t *buffer = &plan->buffers[i];
        if (in->n_dims > WEFT_MAX_DIMS) {
            return wefti_error(WEFT_ERR_FORMAT, "buffer %u: %zu dimensions, at most %d are allowed",
                               i, in->n_dims, WEFT_MAX_DIMS);
        }
        *buffer = (wefti_plan_buffer_t){
            .name = in->name,
            .kind = (wefti_buffer_kind_t)in->kind,
            .dtype = (weft_dtype_t)in->dtype,
            .layout = (weft_layout_t)in->layout,
            .rank = (uint32_t)in->n_dims,
            .offset_bytes = in->offset_bytes,
            .size_bytes = in->size_bytes,
            .data_offset_bytes = in->data_offset_bytes,
            .default_value = in->default_value,
            .rank_stride_bytes = in->rank_stride_bytes,
            .rank_data_stride_bytes = in->rank_data_stride_bytes,
            .whole_offset_bytes = in->whole_offset_bytes,
            .range = in->range,
            .parts = {in->parts_axis, (uint32_t)in->n_parts_sizes, in->parts_sizes},
        };
        if (in->n_dims) {
            memcpy(buffer->dims, in->dims, in->n_dims * sizeof in->dims[0]);
        }
    }
    return WEFT_OK;
}

static weft_status_t decode_attr(const Weft__Plan__Attr *in, weft_attr_t *out)
{
    *out = (weft_attr_t){.name = in->name, .type = (weft_attr_type_t)in->type};
    switch (in->type) {
    case WEFT_ATTR_TYPE_INT:
        out->i = in->i;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_FLOAT:
        out->f = in->f;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_STRING:
        out->s = in->s;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_INTS:
        out->count = in->n_ints;
        out->ints = in->ints;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_FLOATS:
        out->count = in->n_floats;
        out->floats = in->floats;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_STRINGS:
        out->count = in->n_strings;
        out->strings = (const char *const *)in->strings;
        return WEFT_OK;
    default:
        return wefti_error(WEFT_ERR_FORMAT, "attribute %.100s: unknown type %u", in->name,
                           in->type);
    }
}

static weft_status_t decode_kernels(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    plan->kernels = wefti_arena_array(&plan->arena, message->n_kernels, sizeof *plan->kernels);
    if (!plan->kernels) {
        return WEFT_ERR_NO_MEMORY;
    }
    plan->kernel_count = (uint32_t)message->n_kernels;
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        const Weft__Plan__Kernel *in = message->kernels[i];
        wefti_plan_kernel_t *kernel = &plan->kernels[i];
        *kernel = (wefti_plan_kernel_t){
            .name = in->name,
            .domain = in->domain,
            .op = in->op,
            .version = in->version,
            .phase = in->phase,
            .place = in->place,
            .predicted_ps = in->predicted_ps,
            .input_count = (uint32_t)in->n_inputs,
            .output_count = (uint32_t)in->n_outputs,
            .attr_count = (uint32_t)in->n_attrs,
            .inputs = in->inputs,
            .outputs = in->outputs,
            .attrs = wefti_arena_array(&plan->arena, in->n_attrs, sizeof *kernel->attrs),
        };
        if (!kernel->attrs) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (uint32_t a = 0; a < kernel->attr_count; a++) {
            weft_status_t status = decode_attr(in->attrs[a], &kernel->attrs[a]);
            if (status != WEFT_OK) {
                return wefti_error_prefix(status, "kernel %u (%.100s)", i, kernel->name);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t decode_collectives(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    size_t count = message->n_collectives;
    plan->collectives = wefti_arena_array(&plan->arena, count, sizeof *plan->collectives);
    if (!plan->collectives) {
        return WEFT_ERR_NO_MEMORY;
    }
    plan->collective_count = (uint32_t)count;
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const Weft__Plan__Collective *in = message->collectives[i];
        wefti_plan_collective_t *collective = &plan->collectives[i];
        wefti_plan_algorithm_t *algorithms =
            wefti_arena_array(&plan->arena, in->n_algorithms, sizeof *algorithms);
        if (!algorithms) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (size_t a = 0; a < in->n_algorithms; a++) {
            algorithms[a] =
                (wefti_plan_algorithm_t){.name = in->algorithms[a]->name,
                                         .capabilities = in->algorithms[a]->capabilities,
                                         .predicted_ps = in->algorithms[a]->predicted_ps};
        }
        *collective = (wefti_plan_collective_t){
            .name = in->name,
            .op = (weft_collective_t)in->op,
            .reduction = (weft_reduction_t)in->reduction,
            .dtype = (weft_dtype_t)in->dtype,
            .group = in->group,
            .root = in->root,
            .buffer = in->buffer,
            .source = in->source,
            .divisor = in->divisor,
            .update = in->update - 1,
            .place = in->place,
            .elem_count = in->elem_count,
            .order = in->order,
            .member_count = (uint32_t)in->n_members,
            .members = in->members,
            .algorithm_count = (uint32_t)in->n_algorithms,
            .algorithms = algorithms,
            .reason = in->reason,
        };
    }
    return WEFT_OK;
}

static weft_status_t decode_program(weft_plan_t *plan, uint32_t index,
                                    const Weft__Plan__Program *in)
{
    wefti_plan_program_t *program = &plan->programs[index];
    if (in->n_streams != plan->stream_count) {
        return wefti_error(WEFT_ERR_FORMAT, "program %u (%.100s): %zu streams, the plan has %u",
                           index, in->name, in->n_streams, plan->stream_count);
    }
    program->name = in->name;
    program->streams = wefti_arena_array(&plan->arena, in->n_streams, sizeof *program->streams);
    if (!program->streams) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        const Weft__Plan__StreamProgram *from = in->streams[s];
        wefti_plan_step_t *steps = wefti_arena_array(&plan->arena, from->n_steps, sizeof *steps);
        if (!steps) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (size_t i = 0; i < from->n_steps; i++) {
            steps[i] =
                (wefti_plan_step_t){(wefti_step_kind_t)(from->steps[i] & 15u), from->steps[i] >> 4};
        }
        program->streams[s] = (wefti_plan_stream_program_t){(uint32_t)from->n_steps, steps};
    }
    return WEFT_OK;
}

static weft_status_t decode_programs(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    weft_status_t status = WEFT_OK;
    plan->event_count = message->event_count;
    plan->streams = wefti_arena_array(&plan->arena, message->n_streams, sizeof *plan->streams);
    plan->programs = wefti_arena_array(&plan->arena, message->n_programs, sizeof *plan->programs);
    plan->bindings = wefti_arena_array(&plan->arena, message->n_bindings, sizeof *plan->bindings);
    if (!plan->streams || !plan->programs || !plan->bindings) {
        return WEFT_ERR_NO_MEMORY;
    }
    plan->stream_count = (uint32_t)message->n_streams;
    for (uint32_t i = 0; i < plan->stream_count; i++) {
        plan->streams[i] =
            (wefti_plan_stream_t){message->streams[i]->name, message->streams[i]->communicates};
    }
    plan->program_count = (uint32_t)message->n_programs;
    for (uint32_t i = 0; i < plan->program_count && status == WEFT_OK; i++) {
        status = decode_program(plan, i, message->programs[i]);
    }
    plan->binding_count = (uint32_t)message->n_bindings;
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        const Weft__Plan__Binding *in = message->bindings[i];
        plan->bindings[i] =
            (wefti_plan_binding_t){in->name, (weft_binding_role_t)in->role, in->buffer};
    }
    return status;
}

/* Older files have none. Nothing but reports reads them. */
static weft_status_t decode_parameters(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    plan->parameters =
        wefti_arena_array(&plan->arena, message->n_parameters, sizeof *plan->parameters);
    WEFT_RETURN_IF_NO_MEMORY(plan->parameters);
    for (size_t i = 0; i < message->n_parameters; i++) {
        const Weft__Plan__Parameter *in = message->parameters[i];
        wefti_plan_parameter_t *out = &plan->parameters[plan->parameter_count++];
        if (in->n_dims > WEFT_MAX_DIMS) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "parameter '%s': too many dimensions: %zu, limit %d", in->name,
                               in->n_dims, WEFT_MAX_DIMS);
        }
        *out = (wefti_plan_parameter_t){.name = in->name,
                                        .why = in->why,
                                        .dtype = (weft_dtype_t)in->dtype,
                                        .rank = (uint32_t)in->n_dims,
                                        .trained = in->trained != 0,
                                        .guess = in->guess != 0};
        for (size_t d = 0; d < in->n_dims; d++) {
            out->dims[d] = in->dims[d];
        }
    }
    return WEFT_OK;
}

static weft_status_t decode_recomputed(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    plan->kept_arena_bytes = message->kept_arena_bytes;
    plan->recomputed =
        wefti_arena_array(&plan->arena, message->n_recomputed, sizeof *plan->recomputed);
    WEFT_RETURN_IF_NO_MEMORY(plan->recomputed);
    for (size_t i = 0; i < message->n_recomputed; i++) {
        const Weft__Plan__Recomputed *in = message->recomputed[i];
        plan->recomputed[plan->recomputed_count++] =
            (wefti_plan_recomputed_t){.name = in->name, .ps = in->ps, .bytes = in->bytes};
    }
    return WEFT_OK;
}

/* Older files have none. */
/* Lists of unequal length, and points whose bytes do not rise, are no costs: then none are known. */
static weft_status_t decode_cost(weft_plan_t *plan, const Weft__Plan__BucketCost *in,
                                 weft_bucket_cost_t *out)
{
    if (!in || in->n_alpha_ps != in->n_beta_ps_per_kib || in->n_point_bytes != in->n_point_ps) {
        return WEFT_OK;
    }
    for (size_t i = 1; i < in->n_point_bytes; i++) {
        if (in->point_bytes[i] <= in->point_bytes[i - 1]) {
            return WEFT_OK;
        }
    }
    weft_bucket_piece_t *pieces = wefti_arena_array(&plan->arena, in->n_alpha_ps, sizeof *pieces);
    weft_bucket_point_t *points =
        wefti_arena_array(&plan->arena, in->n_point_bytes, sizeof *points);
    WEFT_RETURN_IF_NO_MEMORY(pieces && points);
    for (size_t i = 0; i < in->n_alpha_ps; i++) {
        pieces[i] = (weft_bucket_piece_t){in->alpha_ps[i], in->beta_ps_per_kib[i]};
    }
    for (size_t i = 0; i < in->n_point_bytes; i++) {
        points[i] = (weft_bucket_point_t){in->point_bytes[i], in->point_ps[i]};
    }
    *out =
        (weft_bucket_cost_t){pieces, (uint32_t)in->n_alpha_ps, points, (uint32_t)in->n_point_bytes};
    return WEFT_OK;
}

static weft_status_t decode_forecast(weft_plan_t *plan, const Weft__Plan__Forecast *in)
{
    if (!in) {
        return WEFT_OK;
    }
    wefti_plan_forecast_t *out = &plan->forecast;
    *out = (wefti_plan_forecast_t){.ready_ps = in->ready_ps,
                                   .optimum_ps = in->optimum_ps,
                                   .chosen_ps = in->chosen_ps,
                                   .lower_bound_ps = in->lower_bound_ps,
                                   .compute_ps = in->compute_ps,
                                   .comm_ps = in->comm_ps,
                                   .update_ps = in->update_ps,
                                   .costs = in->costs,
                                   .optimum_count = in->optimum_count,
                                   .chosen_count = in->chosen_count};
    if (in->progress <= WEFTI_FORECAST_THREAD) { /* else of a later version: unknown */
        out->progress = (wefti_forecast_progress_t)in->progress;
    }
    for (size_t i = 0; i < 2 && i < in->n_chosen_slow_ps && i < in->n_comm_slow_ps; i++) {
        out->chosen_slow_ps[i] = in->chosen_slow_ps[i];
        out->comm_slow_ps[i] = in->comm_slow_ps[i];
    }
    out->rows = wefti_arena_array(&plan->arena, in->n_rows, sizeof *out->rows);
    if (!out->rows) {
        return WEFT_ERR_NO_MEMORY;
    }
    out->row_count = (uint32_t)in->n_rows;
    for (uint32_t i = 0; i < out->row_count; i++) {
        out->rows[i] = (wefti_plan_forecast_row_t){in->rows[i]->policy, in->rows[i]->bucket_count,
                                                   in->rows[i]->finish_ps};
    }
    out->gradients = wefti_arena_array(&plan->arena, in->n_gradients, sizeof *out->gradients);
    if (!out->gradients) {
        return WEFT_ERR_NO_MEMORY;
    }
    out->gradient_count = (uint32_t)in->n_gradients;
    for (uint32_t i = 0; i < out->gradient_count; i++) {
        const Weft__Plan__ForecastGradient *gradient = in->gradients[i];
        out->gradients[i] = (wefti_plan_forecast_gradient_t){
            gradient->name, gradient->ready_ps, gradient->bytes, gradient->unit_bytes,
            gradient->first_with <= i ? gradient->first_with : i};
    }
    out->cap_bytes = in->cap_bytes;
    WEFT_RETURN_IF_ERROR(decode_cost(plan, in->cost, &out->cost));
    return decode_cost(plan, in->alone, &out->alone);
}

static weft_status_t decode_mesh(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    if (message->n_axes > WEFTI_MAX_AXES) {
        return wefti_error(WEFT_ERR_FORMAT, "plan: too many axes: %zu, limit %u", message->n_axes,
                           WEFTI_MAX_AXES);
    }
    wefti_axis_t *axes = wefti_arena_array(&plan->arena, message->n_axes, sizeof *axes);
    WEFT_RETURN_IF_NO_MEMORY(axes);
    for (size_t i = 0; i < message->n_axes; i++) {
        const Weft__Plan__Axis *in = message->axes[i];
        axes[i] = (wefti_axis_t){in->name, in->size, in->stride};
    }
    plan->mesh = (wefti_mesh_t){axes, (uint32_t)message->n_axes};
    plan->data_group = message->data_group;
    plan->place_group = message->place_group;
    return WEFT_OK;
}

static weft_status_t decode_algorithm_files(weft_plan_t *plan, const Weft__Plan__Plan *message)
{
    size_t count = message->n_algorithm_files;
    if (count > WEFTI_PLAN_MAX_ALGORITHM_FILES) {
        return wefti_error(WEFT_ERR_FORMAT, "plan: too many algorithm files: %zu, limit %u", count,
                           WEFTI_PLAN_MAX_ALGORITHM_FILES);
    }
    plan->algorithm_files = wefti_arena_array(&plan->arena, count, sizeof *plan->algorithm_files);
    WEFT_RETURN_IF_NO_MEMORY(plan->algorithm_files);
    plan->algorithm_file_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const Weft__Plan__AlgorithmFile *in = message->algorithm_files[i];
        plan->algorithm_files[i] = (wefti_plan_algorithm_file_t){
            .name = in->name,
            .text = in->text.len > 0 ? (const char *)in->text.data : "",
            .size_bytes = in->text.len};
    }
    return WEFT_OK;
}

weft_status_t wefti_plan_decode_structure(weft_plan_t *plan, const uint8_t *data, size_t bytes)
{
    source_t source = {&plan->arena, 0};
    ProtobufCAllocator allocator = {source_alloc, source_free, &source};
    if (bytes > WEFTI_PLAN_MAX_STRUCTURE_BYTES) {
        return wefti_error(WEFT_ERR_FORMAT, "structure section too large: %zu bytes, at most %zu",
                           bytes, WEFTI_PLAN_MAX_STRUCTURE_BYTES);
    }
    plan->arena.budget_bytes = BUDGET_BASE_BYTES + BUDGET_FACTOR * bytes;
    Weft__Plan__Plan *message = weft__plan__plan__unpack(&allocator, bytes, data);
    if (!message && source.ran_out) {
        return wefti_error_prefix(WEFT_ERR_NO_MEMORY, "the structure section of %zu bytes", bytes);
    }
    if (!message) {
        return wefti_error(WEFT_ERR_FORMAT, "malformed structure section");
    }
    plan->model_name = message->model_name;
    plan->world_size = message->world_size;
    plan->batch = message->batch;
    plan->policy = message->policy;
    plan->optimizer = message->optimizer;
    plan->arena_bytes = message->arena_bytes;
    plan->live_bytes = message->live_bytes;
    plan->fusion_copied_bytes = message->fusion_copied_bytes;
    plan->kind = (weft_plan_kind_t)message->kind;
    plan->accumulate = message->accumulate;
    plan->global_micro_batches = message->global_micro_batches;
    plan->flags = message->flags;
    plan->clip_norm = message->clip_norm;
    plan->topology = message->topology;
    plan->bits = message->bits == WEFT_BITS_CPU ? WEFT_BITS_CPU : WEFT_BITS_DEVICE;
    plan->device = message->device[0] != '\0' ? message->device : "cpu"; /* of older files */
    plan->placement = message->placement;
    plan->no_eval_model = message->no_eval_model;
    WEFT_RETURN_IF_ERROR(decode_mesh(plan, message));
    WEFT_RETURN_IF_ERROR(decode_buffers(plan, message));
    WEFT_RETURN_IF_ERROR(decode_kernels(plan, message));
    WEFT_RETURN_IF_ERROR(decode_collectives(plan, message));
    WEFT_RETURN_IF_ERROR(decode_programs(plan, message));
    WEFT_RETURN_IF_ERROR(decode_parameters(plan, message));
    WEFT_RETURN_IF_ERROR(decode_recomputed(plan, message));
    WEFT_RETURN_IF_ERROR(decode_algorithm_files(plan, message));
    return decode_forecast(plan, message->forecast);
}

static weft_status_t compare(const char *what, const wefti_digest_t *found,
                             const wefti_digest_t *stored)
{
    char found_hex[65], stored_hex[65];
    if (memcmp(found, stored, sizeof *found) == 0) {
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_FORMAT,
                       "corrupt file: the digest of %s is %.16s, the header has %.16s", what,
                       wefti_digest_hex(found, found_hex), wefti_digest_hex(stored, stored_hex));
}

weft_status_t wefti_plan_decode(weft_plan_t *plan, const uint8_t *data, size_t bytes)
{
    wefti_section_t sections[WEFTI_SECTION_COUNT];
    wefti_digest_t structure, weights;
    WEFT_RETURN_IF_ERROR(wefti_container_read(data, bytes, sections, &structure, &weights));
    WEFT_RETURN_IF_ERROR(
        wefti_plan_decode_structure(plan, sections[0].data, sections[0].size_bytes));
    plan->weights = sections[1].data;
    plan->weights_bytes = sections[1].size_bytes;
    plan->eval_model = sections[2].data;
    plan->eval_model_bytes = sections[2].size_bytes;
    WEFT_RETURN_IF_ERROR(wefti_plan_seal(plan));
    WEFT_RETURN_IF_ERROR(compare("the structure", &plan->structure_digest, &structure));
    WEFT_RETURN_IF_ERROR(compare("the weights", &plan->weights_digest, &weights));
    return wefti_plan_load_algorithms(plan);
}

weft_status_t weft_plan_load(const char *path, const weft_registry_t *registry,
                             weft_plan_t **out_plan)
{
    WEFT_CHECK_OUT(out_plan);
    WEFT_CHECK_ARG(path);
    weft_status_t status;
    weft_plan_t *plan = NULL;
    WEFT_TRY(status, wefti_plan_create(NULL, &plan), fail);
    WEFT_TRY(status, wefti_file_map(path, &plan->mapping), fail);
    status = wefti_plan_decode(plan, plan->mapping.data, plan->mapping.size_bytes);
    wefti_file_release_pages(&plan->mapping); /* digests have read the weights */
    if (status == WEFT_OK) {
        status = wefti_plan_verify(plan, registry);
    }
    if (status != WEFT_OK) {
        wefti_error_prefix(status, "%s", path);
        goto fail;
    }
    *out_plan = plan;
    return WEFT_OK;
fail:
    weft_plan_release(plan);
    return status;
}

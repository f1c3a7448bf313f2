/* SPDX-License-Identifier: Apache-2.0 */
/* A plan to a file: the protobuf message of the structure section, then the container around it. */
#include "ops/plan/plan_internal.h"

#include <limits.h>
#include <string.h>

#include "ops/plan/container.h"
#include "plan.pb-c.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

/* protobuf-c's strings are not const, though packing only reads them. */
static char *text_of(const char *text)
{
    return (char *)(uintptr_t)(text ? text : "");
}

/* An array of count pointers to count messages of bytes each; the message array goes to
 * *out_messages. */
static void *pointer_array(wefti_arena_t *arena, size_t count, size_t bytes, void *out_messages)
{
    uint8_t *messages = wefti_arena_array(arena, count, bytes);
    uint8_t **pointers = wefti_arena_array(arena, count, sizeof *pointers);
    if (!messages || !pointers) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        pointers[i] = messages + i * bytes;
    }
    memcpy(out_messages, &messages, sizeof messages);
    return pointers;
}

static weft_status_t encode_buffers(const weft_plan_t *plan, wefti_arena_t *arena,
                                    Weft__Plan__Plan *message)
{
    Weft__Plan__Buffer *out;
    message->n_buffers = plan->buffer_count;
    message->buffers = pointer_array(arena, plan->buffer_count, sizeof *out, &out);
    if (!message->buffers) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        weft__plan__buffer__init(&out[i]);
        out[i].name = text_of(buffer->name);
        out[i].kind = (uint32_t)buffer->kind;
        out[i].dtype = (uint32_t)buffer->dtype;
        out[i].layout = (uint32_t)buffer->layout;
        out[i].n_dims = buffer->rank;
        out[i].dims = (int64_t *)(uintptr_t)buffer->dims;
        out[i].offset_bytes = buffer->offset_bytes;
        out[i].size_bytes = buffer->size_bytes;
        out[i].data_offset_bytes = buffer->data_offset_bytes;
        out[i].default_value = buffer->default_value;
        out[i].rank_stride_bytes = buffer->rank_stride_bytes;
        out[i].rank_data_stride_bytes = buffer->rank_data_stride_bytes;
        out[i].whole_offset_bytes = buffer->whole_offset_bytes;
        out[i].range = buffer->range;
        out[i].parts_axis = buffer->parts.axis;
        out[i].n_parts_sizes = buffer->parts.count;
        out[i].parts_sizes = buffer->parts.sizes;
    }
    return WEFT_OK;
}

static weft_status_t encode_attr(const weft_attr_t *attr, Weft__Plan__Attr *out)
{
    weft__plan__attr__init(out);
    out->name = text_of(attr->name);
    out->type = (uint32_t)attr->type;
    switch (attr->type) {
    case WEFT_ATTR_TYPE_INT:
        out->i = attr->i;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_FLOAT:
        out->f = attr->f;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_STRING:
        out->s = text_of(attr->s);
        return WEFT_OK;
    case WEFT_ATTR_TYPE_INTS:
        out->n_ints = attr->count;
        out->ints = (int64_t *)(uintptr_t)attr->ints;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_FLOATS:
        out->n_floats = attr->count;
        out->floats = (float *)(uintptr_t)attr->floats;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_STRINGS:
        out->n_strings = attr->count;
        out->strings = (char **)(uintptr_t)attr->strings;
        return WEFT_OK;
    case WEFT_ATTR_TYPE_TENSOR:
        break;
    }
    return wefti_error(WEFT_ERR_UNSUPPORTED, "attribute %s: unsupported type %d", attr->name,
                       (int)attr->type);
}

static weft_status_t encode_kernels(const weft_plan_t *plan, wefti_arena_t *arena,
                                    Weft__Plan__Plan *message)
{
    Weft__Plan__Kernel *out;
    message->n_kernels = plan->kernel_count;
    message->kernels = pointer_array(arena, plan->kernel_count, sizeof *out, &out);
    if (!message->kernels) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[i];
        Weft__Plan__Attr *attrs;
        weft__plan__kernel__init(&out[i]);
        out[i].name = text_of(kernel->name);
        out[i].domain = text_of(kernel->domain);
        out[i].op = text_of(kernel->op);
        out[i].version = kernel->version;
        out[i].phase = kernel->phase;
        out[i].place = kernel->place;
        out[i].predicted_ps = kernel->predicted_ps;
        out[i].n_inputs = kernel->input_count;
        out[i].inputs = kernel->inputs;
        out[i].n_outputs = kernel->output_count;
        out[i].outputs = kernel->outputs;
        out[i].n_attrs = kernel->attr_count;
        out[i].attrs = pointer_array(arena, kernel->attr_count, sizeof *attrs, &attrs);
        if (!out[i].attrs) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (uint32_t a = 0; a < kernel->attr_count; a++) {
            weft_status_t status = encode_attr(&kernel->attrs[a], &attrs[a]);
            if (status != WEFT_OK) {
                return wefti_error_prefix(status, "kernel %u (%s)", i, kernel->name);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t encode_collectives(const weft_plan_t *plan, wefti_arena_t *arena,
                                        Weft__Plan__Plan *message)
{
    Weft__Plan__Collective *out;
    message->n_collectives = plan->collective_count;
    message->collectives = pointer_array(arena, plan->collective_count, sizeof *out, &out);
    if (!message->collectives) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        Weft__Plan__Algorithm *algorithms;
        weft__plan__collective__init(&out[i]);
        out[i].name = text_of(collective->name);
        out[i].op = (uint32_t)collective->op;
        out[i].reduction = (uint32_t)collective->reduction;
        out[i].dtype = (uint32_t)collective->dtype;
        out[i].group = collective->group;
        out[i].root = collective->root;
        out[i].buffer = collective->buffer;
        out[i].source = collective->source;
        out[i].divisor = collective->divisor;
        out[i].update = collective->update + 1;
        out[i].place = collective->place;
        out[i].elem_count = collective->elem_count;
        out[i].order = text_of(collective->order);
        out[i].n_members = collective->member_count;
        out[i].members = collective->members;
        out[i].reason = text_of(collective->reason);
        out[i].n_algorithms = collective->algorithm_count;
        out[i].algorithms =
            pointer_array(arena, collective->algorithm_count, sizeof *algorithms, &algorithms);
        if (!out[i].algorithms) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (uint32_t a = 0; a < collective->algorithm_count; a++) {
            weft__plan__algorithm__init(&algorithms[a]);
            algorithms[a].name = text_of(collective->algorithms[a].name);
            algorithms[a].capabilities = collective->algorithms[a].capabilities;
            algorithms[a].predicted_ps = collective->algorithms[a].predicted_ps;
        }
    }
    return WEFT_OK;
}

static weft_status_t encode_stream_program(const wefti_plan_stream_program_t *program,
                                           wefti_arena_t *arena, Weft__Plan__StreamProgram *out)
{
    weft__plan__stream_program__init(out);
    out->n_steps = program->step_count;
    out->steps = wefti_arena_array(arena, program->step_count, sizeof *out->steps);
    if (!out->steps) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < program->step_count; i++) {
        if (program->steps[i].index > UINT32_MAX >> 4) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "step index too large: %u",
                               program->steps[i].index);
        }
        out->steps[i] = program->steps[i].index << 4 | ((uint32_t)program->steps[i].kind & 15u);
    }
    return WEFT_OK;
}

static weft_status_t encode_programs(const weft_plan_t *plan, wefti_arena_t *arena,
                                     Weft__Plan__Plan *message)
{
    Weft__Plan__Stream *streams = NULL;
    Weft__Plan__Program *programs = NULL;
    message->event_count = plan->event_count;
    message->n_streams = plan->stream_count;
    message->streams = pointer_array(arena, plan->stream_count, sizeof *streams, &streams);
    message->n_programs = plan->program_count;
    message->programs = pointer_array(arena, plan->program_count, sizeof *programs, &programs);
    if (!message->streams || !message->programs) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->stream_count; i++) {
        weft__plan__stream__init(&streams[i]);
        streams[i].name = text_of(plan->streams[i].name);
        streams[i].communicates = plan->streams[i].communicates;
    }
    for (uint32_t i = 0; i < plan->program_count; i++) {
        Weft__Plan__StreamProgram *parts;
        weft__plan__program__init(&programs[i]);
        programs[i].name = text_of(plan->programs[i].name);
        programs[i].n_streams = plan->stream_count;
        programs[i].streams = pointer_array(arena, plan->stream_count, sizeof *parts, &parts);
        if (!programs[i].streams) {
            return WEFT_ERR_NO_MEMORY;
        }
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            weft_status_t status =
                encode_stream_program(&plan->programs[i].streams[s], arena, &parts[s]);
            if (status != WEFT_OK) {
                return status;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t encode_bindings(const weft_plan_t *plan, wefti_arena_t *arena,
                                     Weft__Plan__Plan *message)
{
    Weft__Plan__Binding *out;
    message->n_bindings = plan->binding_count;
    message->bindings = pointer_array(arena, plan->binding_count, sizeof *out, &out);
    if (!message->bindings) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        weft__plan__binding__init(&out[i]);
        out[i].name = text_of(plan->bindings[i].name);
        out[i].role = (uint32_t)plan->bindings[i].role;
        out[i].buffer = plan->bindings[i].buffer;
    }
    return WEFT_OK;
}

static Weft__Plan__BucketCost *encode_cost(const weft_bucket_cost_t *cost, wefti_arena_t *arena)
{
    Weft__Plan__BucketCost *out = wefti_arena_alloc(arena, sizeof *out);
    uint64_t *numbers = wefti_arena_array(
        arena, 2 * ((size_t)cost->piece_count + cost->point_count), sizeof *numbers);
    if (!out || !numbers) {
        return NULL;
    }
    weft__plan__bucket_cost__init(out);
    out->n_alpha_ps = out->n_beta_ps_per_kib = cost->piece_count;
    out->n_point_bytes = out->n_point_ps = cost->point_count;
    out->alpha_ps = numbers;
    out->beta_ps_per_kib = out->alpha_ps + cost->piece_count;
    out->point_bytes = out->beta_ps_per_kib + cost->piece_count;
    out->point_ps = out->point_bytes + cost->point_count;
    for (uint32_t i = 0; i < cost->piece_count; i++) {
        out->alpha_ps[i] = cost->pieces[i].alpha_ps;
        out->beta_ps_per_kib[i] = cost->pieces[i].beta_ps_per_kib;
    }
    for (uint32_t i = 0; i < cost->point_count; i++) {
        out->point_bytes[i] = cost->points[i].bytes;
        out->point_ps[i] = cost->points[i].ps;
    }
    return out;
}

static weft_status_t encode_forecast(const weft_plan_t *plan, wefti_arena_t *arena,
                                     Weft__Plan__Plan *message)
{
    const wefti_plan_forecast_t *forecast = &plan->forecast;
    Weft__Plan__Forecast *out = wefti_arena_alloc(arena, sizeof *out);
    Weft__Plan__ForecastRow *rows;
    if (!out) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft__plan__forecast__init(out);
    out->ready_ps = forecast->ready_ps;
    out->optimum_ps = forecast->optimum_ps;
    out->chosen_ps = forecast->chosen_ps;
    out->lower_bound_ps = forecast->lower_bound_ps;
    out->compute_ps = forecast->compute_ps;
    out->comm_ps = forecast->comm_ps;
    out->update_ps = forecast->update_ps;
    out->costs = text_of(forecast->costs);
    out->progress = (uint32_t)forecast->progress;
    out->n_chosen_slow_ps = out->n_comm_slow_ps = 2;
    out->chosen_slow_ps = (uint64_t *)(uintptr_t)forecast->chosen_slow_ps;
    out->comm_slow_ps = (uint64_t *)(uintptr_t)forecast->comm_slow_ps;
    out->optimum_count = forecast->optimum_count;
    out->chosen_count = forecast->chosen_count;
    out->n_rows = forecast->row_count;
    out->rows = pointer_array(arena, forecast->row_count, sizeof *rows, &rows);
    if (!out->rows) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < forecast->row_count; i++) {
        weft__plan__forecast_row__init(&rows[i]);
        rows[i].policy = text_of(forecast->rows[i].policy);
        rows[i].bucket_count = forecast->rows[i].bucket_count;
        rows[i].finish_ps = forecast->rows[i].finish_ps;
    }
    Weft__Plan__ForecastGradient *gradients;
    out->n_gradients = forecast->gradient_count;
    out->gradients = pointer_array(arena, forecast->gradient_count, sizeof *gradients, &gradients);
    if (!out->gradients) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < forecast->gradient_count; i++) {
        weft__plan__forecast_gradient__init(&gradients[i]);
        gradients[i].name = text_of(forecast->gradients[i].name);
        gradients[i].ready_ps = forecast->gradients[i].ready_ps;
        gradients[i].bytes = forecast->gradients[i].bytes;
        gradients[i].unit_bytes = forecast->gradients[i].unit_bytes;
        gradients[i].first_with = forecast->gradients[i].first_with;
    }
    out->cap_bytes = forecast->cap_bytes;
    out->cost = encode_cost(&forecast->cost, arena);
    out->alone = encode_cost(&forecast->alone, arena);
    WEFT_RETURN_IF_NO_MEMORY(out->cost && out->alone);
    message->forecast = out;
    return WEFT_OK;
}

static weft_status_t encode_parameters(const weft_plan_t *plan, wefti_arena_t *arena,
                                       Weft__Plan__Plan *message)
{
    Weft__Plan__Parameter *parameters;
    message->n_parameters = plan->parameter_count;
    message->parameters =
        pointer_array(arena, plan->parameter_count, sizeof *parameters, &parameters);
    WEFT_RETURN_IF_NO_MEMORY(message->parameters);
    for (uint32_t i = 0; i < plan->parameter_count; i++) {
        wefti_plan_parameter_t *in = &plan->parameters[i];
        weft__plan__parameter__init(&parameters[i]);
        parameters[i].name = text_of(in->name);
        parameters[i].why = text_of(in->why);
        parameters[i].dtype = (uint32_t)in->dtype;
        parameters[i].n_dims = in->rank;
        parameters[i].dims = in->dims;
        parameters[i].trained = in->trained;
        parameters[i].guess = in->guess;
    }
    return WEFT_OK;
}

static weft_status_t encode_recomputed(const weft_plan_t *plan, wefti_arena_t *arena,
                                       Weft__Plan__Plan *message)
{
    Weft__Plan__Recomputed *recomputed;
    message->kept_arena_bytes = plan->kept_arena_bytes;
    message->n_recomputed = plan->recomputed_count;
    message->recomputed =
        pointer_array(arena, plan->recomputed_count, sizeof *recomputed, &recomputed);
    WEFT_RETURN_IF_NO_MEMORY(message->recomputed);
    for (uint32_t i = 0; i < plan->recomputed_count; i++) {
        const wefti_plan_recomputed_t *in = &plan->recomputed[i];
        weft__plan__recomputed__init(&recomputed[i]);
        recomputed[i].name = text_of(in->name);
        recomputed[i].ps = in->ps;
        recomputed[i].bytes = in->bytes;
    }
    return WEFT_OK;
}

static weft_status_t encode_mesh(const weft_plan_t *plan, wefti_arena_t *arena,
                                 Weft__Plan__Plan *message)
{
    Weft__Plan__Axis *axes;
    message->data_group = plan->data_group;
    message->place_group = plan->place_group;
    message->n_axes = plan->mesh.axis_count;
    message->axes = pointer_array(arena, plan->mesh.axis_count, sizeof *axes, &axes);
    WEFT_RETURN_IF_NO_MEMORY(message->axes);
    for (uint32_t i = 0; i < plan->mesh.axis_count; i++) {
        weft__plan__axis__init(&axes[i]);
        axes[i].name = text_of(plan->mesh.axes[i].name);
        axes[i].size = plan->mesh.axes[i].size;
        axes[i].stride = plan->mesh.axes[i].stride;
    }
    return WEFT_OK;
}

static weft_status_t encode_algorithm_files(const weft_plan_t *plan, wefti_arena_t *arena,
                                            Weft__Plan__Plan *message)
{
    Weft__Plan__AlgorithmFile *files;
    message->n_algorithm_files = plan->algorithm_file_count;
    message->algorithm_files =
        pointer_array(arena, plan->algorithm_file_count, sizeof *files, &files);
    WEFT_RETURN_IF_NO_MEMORY(message->algorithm_files);
    for (uint32_t i = 0; i < plan->algorithm_file_count; i++) {
        const wefti_plan_algorithm_file_t *in = &plan->algorithm_files[i];
        weft__plan__algorithm_file__init(&files[i]);
        files[i].name = text_of(in->name);
        files[i].text = (ProtobufCBinaryData){in->size_bytes, (uint8_t *)(uintptr_t)in->text};
    }
    return WEFT_OK;
}

weft_status_t wefti_plan_encode_structure(const weft_plan_t *plan, wefti_arena_t *arena,
                                          const uint8_t **out_data, size_t *out_bytes)
{
    Weft__Plan__Plan message = WEFT__PLAN__PLAN__INIT;
    message.model_name = text_of(plan->model_name);
    message.world_size = plan->world_size;
    message.batch = plan->batch;
    message.policy = text_of(plan->policy);
    message.optimizer = text_of(plan->optimizer);
    message.arena_bytes = plan->arena_bytes;
    message.live_bytes = plan->live_bytes;
    message.fusion_copied_bytes = plan->fusion_copied_bytes;
    message.kind = (uint32_t)plan->kind;
    message.accumulate = plan->accumulate;
    message.global_micro_batches = plan->global_micro_batches;
    message.flags = plan->flags;
    message.clip_norm = plan->clip_norm;
    message.topology = text_of(plan->topology);
    message.bits = (uint32_t)plan->bits;
    message.device = text_of(plan->device);
    message.placement = text_of(plan->placement);
    message.no_eval_model = text_of(plan->no_eval_model);
    WEFT_RETURN_IF_ERROR(encode_mesh(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_buffers(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_kernels(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_collectives(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_programs(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_bindings(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_forecast(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_parameters(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_recomputed(plan, arena, &message));
    WEFT_RETURN_IF_ERROR(encode_algorithm_files(plan, arena, &message));
    *out_bytes = weft__plan__plan__get_packed_size(&message);
    if (*out_bytes > WEFTI_PLAN_MAX_STRUCTURE_BYTES) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "structure section too large: %zu bytes, at most %zu", *out_bytes,
                           WEFTI_PLAN_MAX_STRUCTURE_BYTES);
    }
    uint8_t *data = wefti_arena_alloc(arena, *out_bytes);
    if (!data) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft__plan__plan__pack(&message, data);
    *out_data = data;
    return WEFT_OK;
}

weft_status_t weft_plan_save(const weft_plan_t *plan, const char *path)
{
    WEFT_CHECK_ARG(plan);
    WEFT_CHECK_ARG(path);
    weft_status_t status;
    wefti_arena_t arena;
    wefti_digest_t structure, weights;
    wefti_section_t sections[WEFTI_SECTION_COUNT] = {0};
    wefti_arena_init(&arena, plan->arena.allocator, 0);
    WEFT_TRY(status, wefti_plan_digests(plan, &structure, &weights), done);
    if (memcmp(&structure, &plan->structure_digest, sizeof structure) != 0 ||
        memcmp(&weights, &plan->weights_digest, sizeof weights) != 0) {
        status = wefti_error(WEFT_ERR_STATE, "plan: changed after it was sealed");
        goto done;
    }
    WEFT_TRY(status,
             wefti_plan_encode_structure(plan, &arena, &sections[0].data, &sections[0].size_bytes),
             done);
    sections[1] = (wefti_section_t){plan->weights, (size_t)plan->weights_bytes};
    sections[2] = (wefti_section_t){plan->eval_model, (size_t)plan->eval_model_bytes};
    uint64_t features = (plan->mesh.axis_count > 0 ? WEFTI_FEATURE_MESH : 0) |
                        (plan->place_group != 0 ? WEFTI_FEATURE_PLACES : 0) |
                        (plan->algorithm_file_count > 0 ? WEFTI_FEATURE_FILES : 0);
    status = wefti_container_write(path, features, sections, &structure, &weights);
done:
    wefti_arena_deinit(&arena);
    return status;
}

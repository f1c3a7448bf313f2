/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests. The structure digest runs over a canonical encoding of its own, README.md has it,
 * because protobuf promises no canonical bytes: integers as 8 bytes little endian, text and arrays
 * behind their length, fields in the order of plan.proto, and the "names only" fields left out.
 */
#include "ops/plan/plan_internal.h"

#include <string.h>

static void add_int(wefti_hasher_t *hasher, uint64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    wefti_hasher_add(hasher, bytes, sizeof bytes);
}

static void add_double(wefti_hasher_t *hasher, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_int(hasher, bits);
}

static void add_float(wefti_hasher_t *hasher, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_int(hasher, bits);
}

static void add_text(wefti_hasher_t *hasher, const char *text)
{
    size_t length = text ? strlen(text) : 0;
    add_int(hasher, length);
    wefti_hasher_add(hasher, text, length);
}

static void add_ids(wefti_hasher_t *hasher, const uint32_t *ids, uint32_t count)
{
    add_int(hasher, count);
    for (uint32_t i = 0; i < count; i++) {
        add_int(hasher, ids[i]);
    }
}

static void add_buffer(wefti_hasher_t *hasher, const wefti_plan_buffer_t *buffer)
{
    add_int(hasher, (uint64_t)buffer->kind);
    add_int(hasher, (uint64_t)buffer->dtype);
    add_int(hasher, (uint64_t)buffer->layout);
    add_int(hasher, buffer->rank);
    for (uint32_t i = 0; i < buffer->rank && i < WEFT_MAX_DIMS; i++) {
        add_int(hasher, (uint64_t)buffer->dims[i]);
    }
    add_int(hasher, buffer->offset_bytes);
    add_int(hasher, buffer->size_bytes);
    add_int(hasher, buffer->data_offset_bytes);
    add_double(hasher, buffer->default_value);
    add_int(hasher, buffer->rank_stride_bytes);
    add_int(hasher, buffer->rank_data_stride_bytes);
    for (uint32_t i = 0; i < buffer->parts.count; i++) {
        add_int(hasher, i == 0 ? buffer->parts.axis : 0);
        add_int(hasher, (uint64_t)buffer->parts.sizes[i]);
    }
}

static void add_attr(wefti_hasher_t *hasher, const weft_attr_t *attr)
{
    add_text(hasher, attr->name);
    add_int(hasher, (uint64_t)attr->type);
    switch (attr->type) {
    case WEFT_ATTR_TYPE_INT:
        add_int(hasher, (uint64_t)attr->i);
        break;
    case WEFT_ATTR_TYPE_FLOAT:
        add_float(hasher, attr->f);
        break;
    case WEFT_ATTR_TYPE_STRING:
        add_text(hasher, attr->s);
        break;
    case WEFT_ATTR_TYPE_INTS:
        add_int(hasher, attr->count);
        for (size_t i = 0; i < attr->count; i++) {
            add_int(hasher, (uint64_t)attr->ints[i]);
        }
        break;
    case WEFT_ATTR_TYPE_FLOATS:
        add_int(hasher, attr->count);
        for (size_t i = 0; i < attr->count; i++) {
            add_float(hasher, attr->floats[i]);
        }
        break;
    case WEFT_ATTR_TYPE_STRINGS:
        add_int(hasher, attr->count);
        for (size_t i = 0; i < attr->count; i++) {
            add_text(hasher, attr->strings[i]);
        }
        break;
    case WEFT_ATTR_TYPE_TENSOR: /* plans have none; verify says so */
        break;
    }
}

static void add_kernel(wefti_hasher_t *hasher, const wefti_plan_kernel_t *kernel)
{
    add_text(hasher, kernel->domain);
    add_text(hasher, kernel->op);
    add_int(hasher, (uint64_t)(int64_t)kernel->version);
    add_int(hasher, kernel->phase);
    add_ids(hasher, kernel->inputs, kernel->input_count);
    add_ids(hasher, kernel->outputs, kernel->output_count);
    add_int(hasher, kernel->attr_count);
    for (uint32_t i = 0; i < kernel->attr_count; i++) {
        add_attr(hasher, &kernel->attrs[i]);
    }
}

static void add_collective(wefti_hasher_t *hasher, const wefti_plan_collective_t *collective)
{
    add_int(hasher, (uint64_t)collective->op);
    add_int(hasher, (uint64_t)collective->reduction);
    add_int(hasher, (uint64_t)collective->dtype);
    add_int(hasher, collective->group);
    add_int(hasher, collective->root);
    add_int(hasher, collective->buffer);
    add_int(hasher, collective->elem_count);
    add_text(hasher, collective->order);
    add_ids(hasher, collective->members, collective->member_count);
    add_int(hasher, collective->algorithm_count);
    for (uint32_t i = 0; i < collective->algorithm_count; i++) {
        add_text(hasher, collective->algorithms[i].name);
        add_int(hasher, collective->algorithms[i].capabilities);
    }
    add_int(hasher, collective->source);
    add_int(hasher, collective->divisor);
    add_int(hasher, (uint64_t)collective->update + 1);
}

static void add_program(wefti_hasher_t *hasher, const wefti_plan_program_t *program,
                        uint32_t stream_count)
{
    add_text(hasher, program->name);
    add_int(hasher, stream_count);
    for (uint32_t s = 0; s < stream_count; s++) {
        const wefti_plan_stream_program_t *stream = &program->streams[s];
        add_int(hasher, stream->step_count);
        for (uint32_t i = 0; i < stream->step_count; i++) {
            add_int(hasher, (uint64_t)stream->steps[i].kind);
            add_int(hasher, stream->steps[i].index);
        }
    }
}

static void add_places(wefti_hasher_t *hasher, const weft_plan_t *plan)
{
    add_int(hasher, plan->place_group);
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        add_int(hasher, plan->kernels[i].place);
    }
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        add_int(hasher, plan->collectives[i].place);
    }
}

static void add_structure(wefti_hasher_t *hasher, const weft_plan_t *plan)
{
    add_text(hasher, "weft plan structure 2");
    add_int(hasher, plan->world_size);
    add_int(hasher, (uint64_t)plan->batch);
    add_text(hasher, plan->optimizer);
    add_int(hasher, plan->arena_bytes);
    add_int(hasher, plan->live_bytes);
    add_int(hasher, plan->fusion_copied_bytes);
    add_int(hasher, plan->buffer_count);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        add_buffer(hasher, &plan->buffers[i]);
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        if ((plan->flags & WEFTI_PLAN_SHARDED_PARAMETERS) != 0 || buffer->range != 0 ||
            buffer->whole_offset_bytes != 0) {
            add_int(hasher, buffer->whole_offset_bytes);
            add_int(hasher, buffer->range);
        }
    }
    add_int(hasher, plan->kernel_count);
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        add_kernel(hasher, &plan->kernels[i]);
    }
    add_int(hasher, plan->collective_count);
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        add_collective(hasher, &plan->collectives[i]);
    }
    add_int(hasher, plan->stream_count);
    for (uint32_t i = 0; i < plan->stream_count; i++) {
        add_int(hasher, plan->streams[i].communicates);
    }
    add_int(hasher, plan->event_count);
    add_int(hasher, plan->program_count);
    for (uint32_t i = 0; i < plan->program_count; i++) {
        add_program(hasher, &plan->programs[i], plan->stream_count);
    }
    add_int(hasher, plan->binding_count);
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        add_text(hasher, plan->bindings[i].name);
        add_int(hasher, (uint64_t)plan->bindings[i].role);
        add_int(hasher, plan->bindings[i].buffer);
    }
    add_int(hasher, (uint64_t)plan->kind);
    add_int(hasher, plan->accumulate);
    add_int(hasher, plan->global_micro_batches);
    add_int(hasher, plan->flags);
    add_double(hasher, plan->clip_norm);
    for (uint32_t i = 0; i < plan->mesh.axis_count; i++) {
        add_int(hasher, plan->mesh.axes[i].size);
        add_int(hasher, plan->mesh.axes[i].stride);
    }
    if (plan->mesh.axis_count > 0) {
        add_int(hasher, plan->data_group);
    }
    if (plan->place_group != 0) {
        add_places(hasher, plan);
    }
    for (uint32_t i = 0; i < plan->algorithm_file_count; i++) {
        add_int(hasher, plan->algorithm_files[i].size_bytes);
        wefti_hasher_add(hasher, plan->algorithm_files[i].text,
                         plan->algorithm_files[i].size_bytes);
    }
}

weft_status_t wefti_plan_digests(const weft_plan_t *plan, wefti_digest_t *out_structure,
                                 wefti_digest_t *out_weights)
{
    wefti_hasher_t *hasher;
    weft_status_t status = wefti_hasher_create(&hasher);
    if (status != WEFT_OK) {
        return status;
    }
    add_structure(hasher, plan);
    wefti_hasher_finish(hasher, out_structure);
    wefti_hasher_destroy(hasher);
    status = wefti_hasher_create(&hasher);
    if (status != WEFT_OK) {
        return status;
    }
    add_text(hasher, "weft plan weights 1");
    add_int(hasher, plan->weights_bytes);
    wefti_hasher_add(hasher, plan->weights, plan->weights_bytes);
    add_int(hasher, plan->eval_model_bytes);
    wefti_hasher_add(hasher, plan->eval_model, plan->eval_model_bytes);
    wefti_hasher_finish(hasher, out_weights);
    wefti_hasher_destroy(hasher);
    return WEFT_OK;
}

weft_status_t wefti_plan_seal(weft_plan_t *plan)
{
    return wefti_plan_digests(plan, &plan->structure_digest, &plan->weights_digest);
}

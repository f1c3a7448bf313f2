/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into a session and comes out of it: first contents, inputs, scalars, outputs. */
#include "runtime/plan/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/plan/session_state.h"

#include <math.h>
#include <string.h>

#define INPUT_ROLES (1u << WEFT_BINDING_ROLE_INPUT | 1u << WEFT_BINDING_ROLE_LABEL)
#define OUTPUT_ROLES                                                                               \
    (1u << WEFT_BINDING_ROLE_LOSS | 1u << WEFT_BINDING_ROLE_LOGITS | 1u << WEFT_BINDING_ROLE_OUTPUT)

/* The first binding of a role in the mask (1u << role) and of this name (NULL: of any), or NULL. */
static const wefti_plan_binding_t *find_binding(const weft_session_t *session, const char *name,
                                                uint32_t roles)
{
    for (uint32_t i = 0; i < session->plan->binding_count; i++) {
        const wefti_plan_binding_t *binding = &session->plan->bindings[i];
        if ((roles & (1u << binding->role)) != 0 &&
            (name == NULL || strcmp(binding->name, name) == 0)) {
            return binding;
        }
    }
    return NULL;
}

/* The buffer of a call's input or scalar, unless the session has failed. */
static weft_status_t find_fed(const weft_session_t *session, const char *kind, uint32_t roles,
                              const char *name, uint32_t *out_buffer)
{
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    const wefti_plan_binding_t *binding = find_binding(session, name, roles);
    if (binding == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "plan: no %s \"%s\"", kind, name);
    }
    *out_buffer = binding->buffer;
    return WEFT_OK;
}

weft_status_t wefti_session_bad_size(const char *kind, const char *name, uint64_t tensor_bytes,
                                     size_t buffer_bytes)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "%s \"%s\": size mismatch: the tensor has %llu bytes, the caller's buffer "
                       "%zu bytes",
                       kind, name, (unsigned long long)tensor_bytes, buffer_bytes);
}

/* ---- scalars ---- */

uint32_t wefti_session_find_scalar(const weft_session_t *session, const char *name)
{
    const wefti_plan_binding_t *binding =
        find_binding(session, name, 1u << WEFT_BINDING_ROLE_SCALAR);
    return binding != NULL ? binding->buffer : WEFTI_PLAN_NONE;
}

/* A double in the range of an integer type; NaN is 0. */
static int64_t clamp(double value, double low, double high)
{
    if (!(value == value)) {
        return 0;
    }
    return (int64_t)(value < low ? low : value > high ? high : value);
}

weft_status_t wefti_session_write_scalar(weft_session_t *session, uint32_t buffer, double value)
{
    weft_dtype_t dtype = session->plan->buffers[buffer].dtype;
    float f32 = (float)value;
    int64_t i64 = clamp(value, -9.2e18, 9.2e18);
    int32_t i32 = (int32_t)clamp(value, INT32_MIN, INT32_MAX);
    const void *bytes = dtype == WEFT_DTYPE_F64                              ? (void *)&value
                        : dtype == WEFT_DTYPE_F32                            ? (void *)&f32
                        : dtype == WEFT_DTYPE_I64 || dtype == WEFT_DTYPE_U64 ? (void *)&i64
                                                                             : (void *)&i32;
    return wefti_session_copy(session, wefti_session_buffer(session, buffer), bytes,
                              weft_dtype_size_bytes(dtype));
}

static double scalar_value(weft_dtype_t dtype, const uint8_t *bytes)
{
    double f64;
    float f32;
    int64_t i64;
    int32_t i32;
    memcpy(&f64, bytes, sizeof f64);
    memcpy(&f32, bytes, sizeof f32);
    memcpy(&i64, bytes, sizeof i64);
    memcpy(&i32, bytes, sizeof i32);
    return dtype == WEFT_DTYPE_F64                              ? f64
           : dtype == WEFT_DTYPE_F32                            ? (double)f32
           : dtype == WEFT_DTYPE_I64 || dtype == WEFT_DTYPE_U64 ? (double)i64
                                                                : (double)i32;
}

/* What a scalar starts with: its default, but "rank" is the number of this rank's batch, "shard"
 * that of its shard. */
static weft_status_t start_scalar(weft_session_t *session, uint32_t index)
{
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[index];
    const uint32_t known = WEFT_DTYPE_BIT(WEFT_DTYPE_F64) | WEFT_DTYPE_BIT(WEFT_DTYPE_F32) |
                           WEFT_DTYPE_BIT(WEFT_DTYPE_I64) | WEFT_DTYPE_BIT(WEFT_DTYPE_U64) |
                           WEFT_DTYPE_BIT(WEFT_DTYPE_I32) | WEFT_DTYPE_BIT(WEFT_DTYPE_U32);
    if (!(WEFT_DTYPE_BIT(buffer->dtype) & known)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "scalar \"%s\": unsupported dtype %s",
                           buffer->name != NULL ? buffer->name : "scalar",
                           weft_dtype_name(buffer->dtype));
    }
    return wefti_session_write_scalar(
        session, index,
        index == session->rank_scalar
            ? (double)wefti_plan_batch_of(session->plan, session->endpoint->rank)
        : index == session->shard_scalar ? (double)session->endpoint->rank
                                         : buffer->default_value);
}

weft_status_t weft_session_set_scalar(weft_session_t *session, const char *name, double value)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    uint32_t buffer = 0;
    WEFT_RETURN_IF_ERROR(
        find_fed(session, "scalar", 1u << WEFT_BINDING_ROLE_SCALAR, name, &buffer));
    return wefti_session_write_scalar(session, buffer, value);
}

weft_status_t weft_session_get_scalar(weft_session_t *session, const char *name, double *out_value)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    WEFT_CHECK_ARG(out_value);
    uint32_t buffer = 0;
    uint8_t bytes[8] = {0};
    WEFT_RETURN_IF_ERROR(
        find_fed(session, "scalar", 1u << WEFT_BINDING_ROLE_SCALAR, name, &buffer));
    weft_dtype_t dtype = session->plan->buffers[buffer].dtype;
    WEFT_RETURN_IF_ERROR(wefti_session_copy(session, bytes, wefti_session_buffer(session, buffer),
                                            weft_dtype_size_bytes(dtype)));
    *out_value = scalar_value(dtype, bytes);
    return WEFT_OK;
}

/* ---- first contents ---- */

/* This rank's pieces of the parameters that no rank has whole. No program gives ranks those of rank
 * 0: ranks have compared the digests of their weights. */
static weft_status_t load_shards(weft_session_t *session, const wefti_state_t *param)
{
    const uint8_t *from = session->plan->weights + param->param->data_offset_bytes;
    const bool placed = param->param->offset_bytes < WEFTI_PLAN_NOWHERE;
    for (uint32_t k = 0; !placed && k < param->piece_count; k++) {
        const wefti_state_piece_t *piece = &param->pieces[k];
        if (piece->rank == session->endpoint->rank) {
            WEFT_RETURN_IF_ERROR(wefti_session_copy(session, session->base + piece->offset_bytes,
                                                    from + piece->begin_bytes, piece->size_bytes));
        }
    }
    return WEFT_OK;
}

/* So that weights of a file are not in memory twice: they are read now and never again. */
static void release_pages(const weft_plan_t *plan, uint64_t read_bytes)
{
    if (read_bytes >= (1u << 20)) {
        wefti_file_release_pages(&plan->mapping);
    }
}

weft_status_t wefti_session_load(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    uint32_t rank = session->endpoint->rank;
    /* Without a program that broadcasts them, every rank reads the weights. */
    bool params = rank == 0 || wefti_plan_program(plan, "init") == NULL ||
                  (plan->flags & WEFTI_PLAN_RANK_DATA) != 0;
    const uint32_t *places =
        plan->place_group == 0 ? NULL : wefti_plan_buffer_places(plan, &session->arena);
    WEFT_RETURN_IF_NO_MEMORY(places != NULL || plan->place_group == 0);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        bool placed =
            buffer->kind == WEFTI_BUFFER_CONST || (buffer->kind == WEFTI_BUFFER_PARAM && params &&
                                                   buffer->offset_bytes < WEFTI_PLAN_NOWHERE);
        placed = placed && (places == NULL || wefti_plan_runs(plan, places[i], rank));
        if (buffer->kind == WEFTI_BUFFER_SCALAR) {
            WEFT_RETURN_IF_ERROR(start_scalar(session, i));
        } else if (buffer->size_bytes > 0 && placed) {
            uint64_t from = buffer->data_offset_bytes +
                            wefti_plan_contents_of(plan, rank) * buffer->rank_data_stride_bytes;
            WEFT_RETURN_IF_ERROR(wefti_session_copy(session, wefti_session_buffer(session, i),
                                                    plan->weights + from, buffer->size_bytes));
            release_pages(plan, buffer->size_bytes);
        }
    }
    for (uint32_t i = 0; i < session->states.params.count && plan->place_group == 0; i++) {
        WEFT_RETURN_IF_ERROR(load_shards(session, &session->states.params.tensors[i]));
    }
    release_pages(plan, plan->weights_bytes);
    return WEFT_OK;
}

/* ---- inputs and outputs ---- */

weft_status_t weft_session_set_input(weft_session_t *session, const char *name, const void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    if (bytes > 0) {
        WEFT_CHECK_ARG(data);
    }
    uint32_t buffer = 0;
    WEFT_RETURN_IF_ERROR(find_fed(session, "input", INPUT_ROLES, name, &buffer));
    uint64_t input_bytes = session->plan->buffers[buffer].size_bytes;
    if (bytes != input_bytes) {
        return wefti_session_bad_size("input", name, input_bytes, bytes);
    }
    return wefti_session_copy(session, wefti_session_buffer(session, buffer), data, bytes);
}

weft_status_t weft_session_input_memory(weft_session_t *session, const char *name, void **out_data,
                                        size_t *out_bytes)
{
    WEFT_CHECK_OUT(out_data);
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    WEFT_CHECK_ARG(out_bytes);
    uint32_t buffer = 0;
    const weft_device_t *device = session->context->device;
    WEFT_RETURN_IF_ERROR(find_fed(session, "input", INPUT_ROLES, name, &buffer));
    if (!wefti_context_host_reaches(session->context)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "input memory: device \"%s\" is not accessible by the host; use "
                           "weft_session_set_input",
                           device->ops->name);
    }
    *out_data = wefti_staged_address(session, wefti_session_buffer(session, buffer));
    *out_bytes = session->plan->buffers[buffer].size_bytes;
    return WEFT_OK;
}

weft_status_t weft_session_get_output(weft_session_t *session, const char *name, void *data,
                                      size_t bytes, weft_tensor_desc_t *out_desc)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    if (bytes > 0) {
        WEFT_CHECK_ARG(data);
    }
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    const wefti_plan_binding_t *binding = find_binding(session, name, OUTPUT_ROLES);
    if (binding == NULL && strcmp(name, "loss") == 0) {
        binding = find_binding(session, NULL, 1u << WEFT_BINDING_ROLE_LOSS);
    }
    if (binding == NULL && strcmp(name, "logits") == 0) {
        binding = find_binding(session, NULL, 1u << WEFT_BINDING_ROLE_LOGITS);
    }
    if (binding == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "plan: no output \"%s\"", name);
    }
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[binding->buffer];
    if (bytes < buffer->size_bytes) {
        return wefti_session_bad_size("output", name, buffer->size_bytes, bytes);
    }
    const wefti_state_piece_t piece = {.size_bytes = buffer->size_bytes,
                                       .offset_bytes =
                                           wefti_session_offset(buffer, session->endpoint->rank),
                                       .rank = WEFTI_ALL_RANKS};
    wefti_state_t output = {
        .desc = {.dtype = buffer->dtype, .layout = buffer->layout, .rank = buffer->rank},
        .size_bytes = buffer->size_bytes,
        .pieces = &piece,
        .piece_count = 1};
    memcpy(output.desc.dims, buffer->dims, sizeof output.desc.dims);
    if (out_desc != NULL) {
        *out_desc = output.desc;
        out_desc->layout = WEFT_LAYOUT_PLAIN;
    }
    return wefti_session_collect(session, &output, data);
}

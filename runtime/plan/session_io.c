/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into a session and comes out of it: first contents, inputs, scalars, outputs. */
#include "runtime/plan/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/plan/session_state.h"

#include <math.h>
#include <string.h>

static uint8_t *address_of(const weft_session_t *session, const wefti_plan_buffer_t *buffer)
{
    return session->base + wefti_session_offset(buffer, session->endpoint->rank);
}

/* A double in the range of an integer type; NaN is 0. */
static int64_t clamp(double value, double low, double high)
{
    if (!(value == value)) {
        return 0;
    }
    return (int64_t)(value < low ? low : value > high ? high : value);
}

void wefti_session_scalar_bytes(weft_dtype_t dtype, double value, uint8_t out_bytes[8])
{
    float f32 = (float)value;
    int64_t i64 = clamp(value, -9.2e18, 9.2e18);
    int32_t i32 = (int32_t)clamp(value, INT32_MIN, INT32_MAX);
    memset(out_bytes, 0, 8);
    switch (dtype) {
    case WEFT_DTYPE_F64:
        memcpy(out_bytes, &value, sizeof(value));
        break;
    case WEFT_DTYPE_F32:
        memcpy(out_bytes, &f32, sizeof(f32));
        break;
    case WEFT_DTYPE_I64:
    case WEFT_DTYPE_U64:
        memcpy(out_bytes, &i64, sizeof(i64));
        break;
    case WEFT_DTYPE_I32:
    case WEFT_DTYPE_U32:
        memcpy(out_bytes, &i32, sizeof(i32));
        break;
    default:
        break; /* refused by scalar_check */
    }
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

static weft_status_t scalar_check(const char *name, weft_dtype_t dtype)
{
    const uint32_t known = WEFT_DTYPE_BIT(WEFT_DTYPE_F64) | WEFT_DTYPE_BIT(WEFT_DTYPE_F32) |
                           WEFT_DTYPE_BIT(WEFT_DTYPE_I64) | WEFT_DTYPE_BIT(WEFT_DTYPE_U64) |
                           WEFT_DTYPE_BIT(WEFT_DTYPE_I32) | WEFT_DTYPE_BIT(WEFT_DTYPE_U32);
    if (!(WEFT_DTYPE_BIT(dtype) & known)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "scalar \"%s\": unsupported dtype %s", name,
                           weft_dtype_name(dtype));
    }
    return WEFT_OK;
}

/* What a scalar starts with: its default, but "rank" is this rank's number. */
static double scalar_start(const weft_session_t *session, uint32_t index)
{
    const weft_plan_t *plan = session->plan;
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        if (plan->bindings[i].buffer == index &&
            plan->bindings[i].role == WEFT_BINDING_ROLE_SCALAR &&
            strcmp(plan->bindings[i].name, "rank") == 0) {
            return (double)session->endpoint->rank;
        }
    }
    return plan->buffers[index].default_value;
}

/* This rank's pieces of the parameters that no rank has whole. No program gives ranks those of rank
 * 0: ranks have compared the digests of their weights. */
static weft_status_t load_shards(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < session->states.param_count; i++) {
        const wefti_state_t *param = &session->states.params[i];
        const uint8_t *from = plan->weights + plan->buffers[param->param].data_offset_bytes;
        for (uint32_t k = 0; k < param->piece_count && status >= 0; k++) {
            const wefti_state_piece_t *piece = &param->pieces[k];
            if (piece->rank == session->endpoint->rank) {
                status = wefti_session_copy(session, session->base + piece->offset_bytes,
                                            from + piece->begin_bytes, piece->size_bytes);
            }
        }
    }
    return status;
}

weft_status_t wefti_session_load(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    /* Without a program that broadcasts them, every rank reads the weights. */
    bool params = session->endpoint->rank == 0 || wefti_plan_program(plan, "init") == NULL ||
                  (plan->flags & WEFTI_PLAN_RANK_DATA) != 0;
    uint8_t scalar[8];
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < plan->buffer_count && status >= 0; i++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[i];
        const char *name = buffer->name != NULL ? buffer->name : "scalar";
        if (buffer->kind == WEFTI_BUFFER_SCALAR) {
            status = scalar_check(name, buffer->dtype);
            if (status >= 0) {
                wefti_session_scalar_bytes(buffer->dtype, scalar_start(session, i), scalar);
                status = wefti_session_copy(session, address_of(session, buffer), scalar,
                                            weft_dtype_size_bytes(buffer->dtype));
            }
        } else if (buffer->size_bytes > 0 && (buffer->kind == WEFTI_BUFFER_CONST ||
                                              (buffer->kind == WEFTI_BUFFER_PARAM && params &&
                                               buffer->offset_bytes < WEFTI_PLAN_NOWHERE))) {
            uint64_t from = buffer->data_offset_bytes +
                            session->endpoint->rank * buffer->rank_data_stride_bytes;
            status = wefti_session_copy(session, address_of(session, buffer), plan->weights + from,
                                        buffer->size_bytes);
        }
    }
    return status < 0 ? status : load_shards(session);
}

/* The binding called name whose role is in the mask (1u << role), or NULL. */
static const wefti_plan_binding_t *find_binding(const weft_session_t *session, const char *name,
                                                uint32_t roles)
{
    for (uint32_t i = 0; i < session->plan->binding_count && name != NULL; i++) {
        const wefti_plan_binding_t *binding = &session->plan->bindings[i];
        if ((roles & (1u << binding->role)) != 0 && strcmp(binding->name, name) == 0) {
            return binding;
        }
    }
    return NULL;
}

#define INPUT_ROLES (1u << WEFT_BINDING_ROLE_INPUT | 1u << WEFT_BINDING_ROLE_LABEL)
#define OUTPUT_ROLES                                                                               \
    (1u << WEFT_BINDING_ROLE_LOSS | 1u << WEFT_BINDING_ROLE_LOGITS | 1u << WEFT_BINDING_ROLE_OUTPUT)

weft_status_t wefti_session_bad_size(const char *kind, const char *name, uint64_t tensor_bytes,
                                     size_t buffer_bytes)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "%s \"%s\": size mismatch: the tensor has %llu bytes, the caller's buffer "
                       "%zu bytes",
                       kind, name, (unsigned long long)tensor_bytes, buffer_bytes);
}

static weft_status_t find_input(const weft_session_t *session, const char *name,
                                const wefti_plan_buffer_t **out_buffer)
{
    const wefti_plan_binding_t *binding = find_binding(session, name, INPUT_ROLES);
    if (binding == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "plan: no input \"%s\"",
                           name != NULL ? name : "(null)");
    }
    *out_buffer = &session->plan->buffers[binding->buffer];
    return WEFT_OK;
}

static void describe(const wefti_plan_buffer_t *buffer, weft_tensor_desc_t *out_desc)
{
    if (out_desc != NULL) {
        *out_desc = (weft_tensor_desc_t){.dtype = buffer->dtype, .rank = buffer->rank};
        memcpy(out_desc->dims, buffer->dims, sizeof(out_desc->dims));
    }
}

weft_status_t weft_session_set_input(weft_session_t *session, const char *name, const void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    if (bytes > 0) {
        WEFT_CHECK_ARG(data);
    }
    const wefti_plan_buffer_t *buffer = NULL;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0 || (status = find_input(session, name, &buffer)) < 0) {
        return status;
    }
    if (bytes != buffer->size_bytes) {
        return wefti_session_bad_size("input", name, buffer->size_bytes, bytes);
    }
    return wefti_session_copy(session, address_of(session, buffer), data, bytes);
}

weft_status_t weft_session_input_memory(weft_session_t *session, const char *name, void **out_data,
                                        size_t *out_bytes)
{
    WEFT_CHECK_OUT(out_data);
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    WEFT_CHECK_ARG(out_bytes);
    const wefti_plan_buffer_t *buffer = NULL;
    const weft_device_t *device = session->context->device;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0 || (status = find_input(session, name, &buffer)) < 0) {
        return status;
    }
    if (device != NULL && !(device->ops->caps & WEFT_DEVICE_HOST_ACCESS)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "input memory: device \"%s\" is not accessible by the host; use "
                           "weft_session_set_input",
                           device->ops->name);
    }
    *out_data = address_of(session, buffer);
    *out_bytes = buffer->size_bytes;
    return WEFT_OK;
}

static weft_status_t find_scalar(const weft_session_t *session, const char *name,
                                 const wefti_plan_buffer_t **out_buffer)
{
    const wefti_plan_binding_t *binding =
        find_binding(session, name, 1u << WEFT_BINDING_ROLE_SCALAR);
    if (binding == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "plan: no scalar \"%s\"",
                           name != NULL ? name : "(null)");
    }
    *out_buffer = &session->plan->buffers[binding->buffer];
    return WEFT_OK;
}

weft_status_t weft_session_set_scalar(weft_session_t *session, const char *name, double value)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    const wefti_plan_buffer_t *buffer = NULL;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0 || (status = find_scalar(session, name, &buffer)) < 0) {
        return status;
    }
    uint8_t bytes[8];
    wefti_session_scalar_bytes(buffer->dtype, value, bytes);
    return wefti_session_copy(session, address_of(session, buffer), bytes,
                              weft_dtype_size_bytes(buffer->dtype));
}

weft_status_t weft_session_get_scalar(weft_session_t *session, const char *name, double *out_value)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    WEFT_CHECK_ARG(out_value);
    const wefti_plan_buffer_t *buffer = NULL;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0 || (status = find_scalar(session, name, &buffer)) < 0) {
        return status;
    }
    uint8_t bytes[8] = {0};
    status = wefti_session_copy(session, bytes, address_of(session, buffer),
                                weft_dtype_size_bytes(buffer->dtype));
    if (status >= 0) {
        *out_value = scalar_value(buffer->dtype, bytes);
    }
    return status;
}

weft_status_t weft_session_get_output(weft_session_t *session, const char *name, void *data,
                                      size_t bytes, weft_tensor_desc_t *out_desc)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(name);
    if (bytes > 0) {
        WEFT_CHECK_ARG(data);
    }
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0) {
        return status;
    }
    const wefti_plan_binding_t *binding = find_binding(session, name, OUTPUT_ROLES);
    for (uint32_t i = 0; binding == NULL && name != NULL && i < session->plan->binding_count; i++) {
        weft_binding_role_t role = session->plan->bindings[i].role;
        if ((role == WEFT_BINDING_ROLE_LOSS && strcmp(name, "loss") == 0) ||
            (role == WEFT_BINDING_ROLE_LOGITS && strcmp(name, "logits") == 0)) {
            binding = &session->plan->bindings[i];
        }
    }
    if (binding == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "plan: no output \"%s\"",
                           name != NULL ? name : "(null)");
    }
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[binding->buffer];
    if (bytes < buffer->size_bytes) {
        return wefti_session_bad_size("output", name, buffer->size_bytes, bytes);
    }
    describe(buffer, out_desc);
    return wefti_session_read_plain(session, buffer, data);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Trained parameters and their gradients, as the outside sees them. */
#include "runtime/plan/session_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/digest.h"
#include "runtime/base/error.h"

size_t weft_session_param_count(const weft_session_t *session)
{
    WEFT_CHECK_ARG_OR(session, 0);
    return session->param_count;
}

static weft_status_t check_param(const weft_session_t *session, size_t index)
{
    if (index >= session->param_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "index: invalid parameter index %zu: the plan has %u parameters", index,
                           session->param_count);
    }
    return WEFT_OK;
}

weft_status_t weft_session_param_info(const weft_session_t *session, size_t index,
                                      const char **out_name, weft_tensor_desc_t *out_desc)
{
    WEFT_CHECK_ARG(session);
    weft_status_t status = check_param(session, index);
    if (status < 0) {
        return status;
    }
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[session->params[index]];
    if (out_name != NULL) {
        *out_name = buffer->name;
    }
    if (out_desc != NULL) {
        *out_desc = (weft_tensor_desc_t){.dtype = buffer->dtype, .rank = buffer->rank};
        memcpy(out_desc->dims, buffer->dims, sizeof(out_desc->dims));
    }
    return WEFT_OK;
}

/* The buffer of parameter index, once nothing is wrong with a call for it. */
static weft_status_t check_call(weft_session_t *session, size_t index, size_t bytes,
                                const wefti_plan_buffer_t **out_buffer)
{
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0 || (status = check_param(session, index)) < 0) {
        return status;
    }
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[session->params[index]];
    if (bytes != buffer->size_bytes) {
        return wefti_session_bad_size("parameter", buffer->name, buffer->size_bytes, bytes);
    }
    *out_buffer = buffer;
    return wefti_session_gather_weights(session);
}

/* Of a parameter that no rank has whole; else NULL. Whether it is one is the same on all ranks, so
 * all of them meet, or none. */
static const wefti_state_t *find_shards(const weft_session_t *session, size_t index)
{
    return index < session->param_count
               ? wefti_state_map_param(&session->states, session->params[index])
               : NULL;
}

weft_status_t weft_session_get_param(weft_session_t *session, size_t index, void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    if (bytes > 0) {
        WEFT_CHECK_ARG(data);
    }
    const wefti_plan_buffer_t *buffer = NULL;
    const wefti_state_t *shards = find_shards(session, index);
    weft_status_t status = check_call(session, index, bytes, &buffer);
    if (shards == NULL) {
        return status < 0 ? status : wefti_session_read_plain(session, buffer, data);
    }
    status = wefti_endpoint_agree(session->endpoint, status);
    if (status < 0) {
        return status;
    }
    status = wefti_session_collect(session, shards, data);
    return wefti_endpoint_agree(session->endpoint, status);
}

weft_status_t weft_session_set_param(weft_session_t *session, size_t index, const void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    if (bytes > 0) {
        WEFT_CHECK_ARG(data);
    }
    const wefti_plan_buffer_t *buffer = NULL;
    const wefti_state_t *shards = find_shards(session, index);
    weft_status_t status = check_call(session, index, bytes, &buffer);
    return status < 0       ? status
           : shards != NULL ? wefti_session_distribute(session, shards, data)
                            : wefti_session_write_plain(session, buffer, data);
}

/* The gradient of a parameter's buffer, or NULL. */
static const wefti_state_t *find_gradient(const weft_session_t *session, uint32_t param)
{
    uint32_t low = 0, high = session->states.gradient_count;
    const wefti_state_t *gradients = session->states.gradients;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (gradients[middle].param < param) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < session->states.gradient_count && gradients[low].param == param ? &gradients[low]
                                                                                 : NULL;
}

weft_status_t weft_session_get_gradient(weft_session_t *session, size_t index, void *data,
                                        size_t bytes)
{
    WEFT_CHECK_ARG(session);
    weft_tensor_desc_t desc;
    const char *name = NULL;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status >= 0) {
        status = weft_session_param_info(session, index, &name, &desc);
    }
    if (status < 0) {
        return status;
    }
    const wefti_state_t *gradient = find_gradient(session, session->params[index]);
    if (gradient == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "parameter \"%s\": no gradient in the plan", name);
    }
    if (session->steps == 0) {
        return wefti_error(WEFT_ERR_STATE, "session: no gradients before the first step");
    }
    if (gradient->sharded || !gradient->whole || gradient->desc.dtype != desc.dtype) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "parameter \"%s\": the plan does not keep its whole gradient as %s",
                           name, weft_dtype_name(desc.dtype));
    }
    if (bytes != gradient->size_bytes) {
        return wefti_session_bad_size("gradient of", name, gradient->size_bytes, bytes);
    }
    WEFT_CHECK_ARG(data);
    return wefti_session_collect(session, gradient, data);
}

typedef struct named {
    const char *name;
    uint32_t index;
} named_t;

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const named_t *)a)->name, ((const named_t *)b)->name);
}

/* Plans may hold the same parameters in different orders. */
static named_t *sort_names(const weft_session_t *session)
{
    named_t *names = wefti_alloc(session->allocator, (session->param_count + 1u) * sizeof *names);
    for (uint32_t i = 0; names != NULL && i < session->param_count; i++) {
        names[i] = (named_t){session->plan->buffers[session->params[i]].name, i};
    }
    if (names != NULL) {
        qsort(names, session->param_count, sizeof *names, compare_names);
    }
    return names;
}

weft_status_t weft_session_param_digest(weft_session_t *session, char *buffer)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(buffer);
    named_t *names = NULL;
    wefti_hasher_t *hasher = NULL;
    wefti_digest_t digest;
    uint8_t *data = NULL;
    size_t largest = 1;
    weft_status_t status;
    for (uint32_t i = 0; i < session->param_count; i++) {
        size_t bytes = session->plan->buffers[session->params[i]].size_bytes;
        largest = bytes > largest ? bytes : largest;
    }
    WEFT_TRY(status, wefti_fault_get(&session->fault), out);
    WEFT_TRY(status, wefti_hasher_create(&hasher), out);
    data = wefti_alloc(session->allocator, largest);
    names = sort_names(session);
    status = data != NULL && names != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < session->param_count && status >= 0; i++) {
        uint32_t index = names[i].index;
        size_t bytes = session->plan->buffers[session->params[index]].size_bytes;
        status = weft_session_get_param(session, index, data, bytes);
        if (status >= 0) {
            wefti_hasher_add(hasher, data, bytes);
        }
    }
    if (status >= 0) {
        wefti_hasher_finish(hasher, &digest);
        wefti_digest_hex(&digest, buffer);
    }
out:
    wefti_free(session->allocator, names);
    wefti_free(session->allocator, data);
    wefti_hasher_destroy(hasher);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Trained parameters, as the outside sees them. */
#include "runtime/session_state.h"

#include <string.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"

size_t weft_session_param_count(const weft_session_t *session)
{
    return session->param_count;
}

static weft_status_t check_param(const weft_session_t *session, size_t index)
{
    if (index >= session->param_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "index %zu: the plan has %u parameters",
                           index, session->param_count);
    }
    return WEFT_OK;
}

weft_status_t weft_session_param_info(const weft_session_t *session, size_t index,
                                      const char **out_name, weft_tensor_desc_t *out_desc)
{
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
static weft_status_t check_call(weft_session_t *session, size_t index, const void *data,
                                size_t bytes, const wefti_plan_buffer_t **out_buffer)
{
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0 || (status = check_param(session, index)) < 0) {
        return status;
    }
    const wefti_plan_buffer_t *buffer = &session->plan->buffers[session->params[index]];
    if (bytes != buffer->size_bytes || (data == NULL && bytes > 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "parameter \"%s\" has %llu bytes, not %zu",
                           buffer->name, (unsigned long long)buffer->size_bytes,
                           data != NULL ? bytes : 0);
    }
    *out_buffer = buffer;
    return wefti_session_gather_weights(session);
}

weft_status_t weft_session_get_param(weft_session_t *session, size_t index, void *data,
                                     size_t bytes)
{
    const wefti_plan_buffer_t *buffer = NULL;
    weft_status_t status = check_call(session, index, data, bytes, &buffer);
    return status < 0 ? status : wefti_session_read_plain(session, buffer, data);
}

weft_status_t weft_session_set_param(weft_session_t *session, size_t index, const void *data,
                                     size_t bytes)
{
    const wefti_plan_buffer_t *buffer = NULL;
    weft_status_t status = check_call(session, index, data, bytes, &buffer);
    return status < 0 ? status : wefti_session_write_plain(session, buffer, data);
}

weft_status_t weft_session_param_digest(weft_session_t *session, char *buffer)
{
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
    status = data != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < session->param_count && status >= 0; i++) {
        size_t bytes = session->plan->buffers[session->params[i]].size_bytes;
        status = weft_session_get_param(session, i, data, bytes);
        if (status >= 0) {
            wefti_hasher_add(hasher, data, bytes);
        }
    }
    if (status >= 0) {
        wefti_hasher_finish(hasher, &digest);
        wefti_digest_hex(&digest, buffer);
    }
out:
    wefti_free(session->allocator, data);
    wefti_hasher_destroy(hasher);
    return status;
}

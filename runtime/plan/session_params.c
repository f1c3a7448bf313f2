/* SPDX-License-Identifier: Apache-2.0 */
/* Trained parameters, their gradients and optimizer states, as programs see them. */
#include "runtime/plan/session_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/digest.h"
#include "runtime/base/error.h"

/* Tensor number index of a list; NULL with an error if there is none. */
static const wefti_state_t *find(const wefti_state_list_t *list, size_t index)
{
    if (index < list->count) {
        return &list->tensors[index];
    }
    wefti_error(WEFT_ERR_INVALID_ARGUMENT, "index: invalid %s index %zu: the plan has %u",
                list->kind, index, list->count);
    return NULL;
}

static weft_status_t describe(const wefti_state_t *tensor, const char **out_name,
                              weft_tensor_desc_t *out_desc)
{
    if (tensor == NULL) {
        return WEFT_ERR_INVALID_ARGUMENT;
    }
    if (out_name != NULL) {
        *out_name = tensor->name;
    }
    if (out_desc != NULL) {
        *out_desc = tensor->desc;
        out_desc->layout = WEFT_LAYOUT_PLAIN;
    }
    return WEFT_OK;
}

/* What may be wrong with a call for one tensor. */
static weft_status_t check_call(const char *function, const wefti_state_list_t *list, size_t index,
                                const void *data, size_t bytes)
{
    if (data == NULL && bytes > 0) {
        return wefti_error_null(function, "data");
    }
    const wefti_state_t *tensor = find(list, index);
    if (tensor == NULL) {
        return WEFT_ERR_INVALID_ARGUMENT;
    }
    if (!tensor->whole) {
        return wefti_state_not_whole(tensor);
    }
    return bytes == tensor->size_bytes
               ? WEFT_OK
               : wefti_session_bad_size(list->kind, tensor->name, tensor->size_bytes, bytes);
}

/* Makes an error of one rank that of all where the call is collective. Whether it is, is the same
 * on all ranks, whatever their arguments are. */
static weft_status_t agree(weft_session_t *session, bool collective, weft_status_t status)
{
    return collective ? wefti_endpoint_agree(session->endpoint, status) : status;
}

static weft_status_t get_tensor(const char *function, weft_session_t *session,
                                const wefti_state_list_t *list, size_t index, void *data,
                                size_t bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    bool gathers = session->behind && list == &session->states.params;
    weft_status_t status = check_call(function, list, index, data, bytes);
    WEFT_RETURN_IF_ERROR(agree(session, gathers || list->sharded, status));
    WEFT_RETURN_IF_ERROR(gathers ? wefti_session_gather_weights(session) : WEFT_OK);
    status = wefti_session_collect(session, &list->tensors[index], data);
    return agree(session, list->sharded, status); /* no rank goes on before all have read */
}

static weft_status_t set_tensor(const char *function, weft_session_t *session,
                                const wefti_state_list_t *list, size_t index, const void *data,
                                size_t bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    bool gathers = session->behind && list == &session->states.params;
    weft_status_t status = check_call(function, list, index, data, bytes);
    WEFT_RETURN_IF_ERROR(agree(session, gathers, status));
    WEFT_RETURN_IF_ERROR(gathers ? wefti_session_gather_weights(session) : WEFT_OK);
    return wefti_session_distribute(session, &list->tensors[index], data);
}

size_t weft_session_param_count(const weft_session_t *session)
{
    WEFT_CHECK_ARG_OR(session, 0);
    return session->states.params.count;
}

weft_status_t weft_session_param_info(const weft_session_t *session, size_t index,
                                      const char **out_name, weft_tensor_desc_t *out_desc)
{
    WEFT_CHECK_ARG(session);
    return describe(find(&session->states.params, index), out_name, out_desc);
}

weft_status_t weft_session_get_param(weft_session_t *session, size_t index, void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_GET_PARAM);
    return get_tensor(__func__, session, &session->states.params, index, data, bytes);
}

weft_status_t weft_session_set_param(weft_session_t *session, size_t index, const void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_SET_PARAM);
    return set_tensor(__func__, session, &session->states.params, index, data, bytes);
}

size_t weft_session_state_count(const weft_session_t *session)
{
    WEFT_CHECK_ARG_OR(session, 0);
    return session->states.states.count;
}

weft_status_t weft_session_state_info(const weft_session_t *session, size_t index,
                                      const char **out_name, weft_tensor_desc_t *out_desc)
{
    WEFT_CHECK_ARG(session);
    return describe(find(&session->states.states, index), out_name, out_desc);
}

weft_status_t weft_session_get_state(weft_session_t *session, size_t index, void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_GET_STATE);
    return get_tensor(__func__, session, &session->states.states, index, data, bytes);
}

weft_status_t weft_session_set_state(weft_session_t *session, size_t index, const void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_SET_STATE);
    return set_tensor(__func__, session, &session->states.states, index, data, bytes);
}

weft_status_t weft_session_get_gradient(weft_session_t *session, size_t index, void *data,
                                        size_t bytes)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_GET_GRADIENT);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    const wefti_state_t *param = find(&session->states.params, index);
    if (param == NULL) {
        return WEFT_ERR_INVALID_ARGUMENT;
    }
    const wefti_state_t *gradient = &session->states.gradients.tensors[index];
    if (gradient->name == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "parameter \"%s\": no gradient in the plan",
                           param->name);
    }
    if (session->steps == 0) {
        return wefti_error(WEFT_ERR_STATE, "session: no gradients before the first step");
    }
    if ((gradient->sharded && !session->states.gradients.sharded) || !gradient->whole ||
        gradient->desc.dtype != param->desc.dtype) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "parameter \"%s\": the plan does not keep its whole gradient as %s",
                           param->name, weft_dtype_name(param->desc.dtype));
    }
    return get_tensor(__func__, session, &session->states.gradients, index, data, bytes);
}

/* Plans may hold the same parameters in different orders. */
static const wefti_state_t **sort_params(const weft_session_t *session, size_t *out_largest)
{
    const wefti_state_list_t *params = &session->states.params;
    const wefti_state_t **sorted =
        wefti_alloc(session->allocator, (params->count + 1u) * sizeof *sorted);
    *out_largest = 1;
    for (uint32_t i = 0; sorted != NULL && i < params->count; i++) {
        size_t bytes = params->tensors[i].size_bytes;
        sorted[i] = &params->tensors[i];
        *out_largest = bytes > *out_largest ? bytes : *out_largest;
    }
    if (sorted != NULL) {
        qsort(sorted, params->count, sizeof *sorted, wefti_state_by_name);
    }
    return sorted;
}

weft_status_t weft_session_param_digest(weft_session_t *session, char *buffer)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_DIGEST);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    const wefti_state_list_t *params = &session->states.params;
    wefti_hasher_t *hasher = NULL;
    wefti_digest_t digest;
    size_t largest;
    const wefti_state_t **sorted = sort_params(session, &largest);
    uint8_t *data = wefti_alloc(session->allocator, largest);
    weft_status_t status = buffer == NULL                   ? wefti_error_null(__func__, "buffer")
                           : sorted == NULL || data == NULL ? WEFT_ERR_NO_MEMORY
                                                            : wefti_hasher_create(&hasher);
    WEFT_TRY(status, agree(session, session->behind || params->sharded, status), out);
    for (uint32_t i = 0; i < params->count; i++) {
        size_t index = (size_t)(sorted[i] - params->tensors), bytes = sorted[i]->size_bytes;
        WEFT_TRY(status, weft_session_get_param(session, index, data, bytes), out);
        wefti_hasher_add(hasher, data, bytes);
    }
    wefti_hasher_finish(hasher, &digest);
    wefti_digest_hex(&digest, buffer);
out:
    wefti_free(session->allocator, sorted);
    wefti_free(session->allocator, data);
    wefti_hasher_destroy(hasher);
    return status;
}

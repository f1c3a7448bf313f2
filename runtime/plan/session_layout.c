/* SPDX-License-Identifier: Apache-2.0 */
/* Users see tensors in plain layout, whatever layout they have inside. */
#include <string.h>

#include "runtime/plan/session_state.h"

static bool is_plain(const weft_tensor_desc_t *desc)
{
    return desc->layout != WEFT_LAYOUT_CHANNELS_LAST || desc->rank != 4;
}

/* Either direction: plain element (n, c, i) is element (n, i, c) of channels-last. */
static void rearrange(const weft_tensor_desc_t *desc, const uint8_t *src, uint8_t *dst, bool out)
{
    size_t bytes = weft_dtype_size_bytes(desc->dtype);
    size_t channels = (size_t)desc->dims[1];
    size_t area = (size_t)desc->dims[2] * (size_t)desc->dims[3];
    for (size_t n = 0; n < (size_t)desc->dims[0]; n++) {
        for (size_t c = 0; c < channels; c++) {
            for (size_t i = 0; i < area; i++) {
                size_t plain = ((n * channels + c) * area + i) * bytes;
                size_t last = ((n * area + i) * channels + c) * bytes;
                memcpy(dst + (out ? plain : last), src + (out ? last : plain), bytes);
            }
        }
    }
}

static size_t desc_bytes(const weft_tensor_desc_t *desc)
{
    return (size_t)weft_tensor_elem_count(desc) * weft_dtype_size_bytes(desc->dtype);
}

void wefti_layout_to_plain(const weft_tensor_desc_t *desc, const uint8_t *src, uint8_t *dst)
{
    if (is_plain(desc)) {
        memcpy(dst, src, desc_bytes(desc));
    } else {
        rearrange(desc, src, dst, true);
    }
}

void wefti_layout_from_plain(const weft_tensor_desc_t *desc, const uint8_t *src, uint8_t *dst)
{
    if (is_plain(desc)) {
        memcpy(dst, src, desc_bytes(desc));
    } else {
        rearrange(desc, src, dst, false);
    }
}

static weft_tensor_desc_t describe(const wefti_plan_buffer_t *buffer)
{
    weft_tensor_desc_t desc = {
        .dtype = buffer->dtype, .layout = buffer->layout, .rank = buffer->rank};
    memcpy(desc.dims, buffer->dims, sizeof desc.dims);
    return desc;
}

weft_status_t wefti_session_read_plain(weft_session_t *session, const wefti_plan_buffer_t *buffer,
                                       void *data)
{
    const uint8_t *from = session->base + wefti_session_offset(buffer, session->endpoint->rank);
    weft_tensor_desc_t desc = describe(buffer);
    if (is_plain(&desc)) {
        return wefti_session_copy(session, data, from, buffer->size_bytes);
    }
    uint8_t *copy = wefti_alloc(session->allocator, buffer->size_bytes);
    if (copy == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = wefti_session_copy(session, copy, from, buffer->size_bytes);
    if (status >= 0) {
        wefti_layout_to_plain(&desc, copy, data);
    }
    wefti_free(session->allocator, copy);
    return status;
}

weft_status_t wefti_session_write_plain(weft_session_t *session, const wefti_plan_buffer_t *buffer,
                                        const void *data)
{
    uint8_t *to = session->base + wefti_session_offset(buffer, session->endpoint->rank);
    weft_tensor_desc_t desc = describe(buffer);
    if (is_plain(&desc)) {
        return wefti_session_copy(session, to, data, buffer->size_bytes);
    }
    uint8_t *copy = wefti_alloc(session->allocator, buffer->size_bytes);
    if (copy == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_layout_from_plain(&desc, data, copy);
    weft_status_t status = wefti_session_copy(session, to, copy, buffer->size_bytes);
    wefti_free(session->allocator, copy);
    return status;
}

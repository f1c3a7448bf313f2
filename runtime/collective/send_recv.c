/* SPDX-License-Identifier: Apache-2.0 */
/* Public sends and receives: arguments are checked here once. */
#include <weft/collective.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/collective/submit.h"

static weft_status_t make_pair(wefti_pair_t *pair, weft_group_t *group, bool sends,
                               const void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer)
{
    const char *name = sends ? "Send" : "Recv";
    size_t bytes;
    if (peer >= group->size || peer == group->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: invalid peer %u for rank %u of a group of %u ranks", name, peer,
                           group->rank, group->size);
    }
    if (weft_dtype_size_bytes(dtype) == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: invalid dtype %d: expected a weft_dtype_t", name, (int)dtype);
    }
    if (!wefti_mul_size((size_t)count, weft_dtype_size_bytes(dtype), &bytes) ||
        bytes > SIZE_MAX / 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: count too large: %llu x %s exceeds the address space", name,
                           (unsigned long long)count, weft_dtype_name(dtype));
    }
    if (data == NULL && count > 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: data is NULL", name);
    }
    *pair = (wefti_pair_t){
        .peer = peer, .sends = sends, .data = data, .count = count, .bytes = bytes, .dtype = dtype};
    return WEFT_OK;
}

static weft_status_t submit(weft_group_t *group, bool sends, const void *data, uint64_t count,
                            weft_dtype_t dtype, uint32_t peer, weft_stream_t *stream)
{
    wefti_call_t *call = NULL;
    wefti_pair_t pair;
    const wefti_recorder_t *recorder = group->calls->recorder;
    weft_status_t status = recorder != NULL ? recorder->ops->record_pair(group, NULL)
                                            : wefti_call_reserve(group, stream, &call);
    if (status == WEFT_OK) {
        status = make_pair(&pair, group, sends, data, count, dtype, peer);
    }
    if (status != WEFT_OK || recorder != NULL) {
        return status == WEFT_OK ? recorder->ops->record_pair(group, &pair) : status;
    }
    call->pairs.single = pair;
    wefti_pairs_fill(call, &call->pairs.single, 1);
    return wefti_call_submit(call, stream);
}

weft_status_t weft_send(const void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                        weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    return submit(group, true, data, count, dtype, peer, stream);
}

weft_status_t weft_recv(void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                        weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    return submit(group, false, data, count, dtype, peer, stream);
}

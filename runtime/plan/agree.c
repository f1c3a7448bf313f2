/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/session.h"

weft_status_t wefti_session_gather(wefti_endpoint_t *endpoint, wefti_arena_t *arena,
                                   weft_status_t status, const void *own, size_t bytes,
                                   void **out_all)
{
    *out_all = wefti_arena_array(arena, endpoint->world_size, bytes);
    status = status >= 0 && *out_all == NULL ? WEFT_ERR_NO_MEMORY : status;
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(endpoint, status));
    return wefti_endpoint_all_gather(endpoint, own, bytes, *out_all);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/bootstrap/service.h"

weft_status_t wefti_service_pmi_1(const wefti_log_t *log, wefti_service_t **out_service,
                                  uint32_t *out_rank, uint32_t *out_world_size)
{
    (void)log, (void)out_service, (void)out_rank, (void)out_world_size;
    return WEFT_AGAIN;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/plan/plan_internal.h"

weft_status_t wefti_plan_verify_races(const weft_plan_t *plan)
{
    (void)plan;
    return WEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/agree.h"

#include <stdio.h>

#include "runtime/base/error.h"

typedef struct outcome {
    int32_t status;
    char text[396];
} outcome_t;

weft_status_t wefti_group_agree(weft_group_t *group, weft_status_t status)
{
    outcome_t own = {.status = status < 0 ? status : WEFT_OK};
    snprintf(own.text, sizeof own.text, "%s", status < 0 ? weft_last_error() : "");
    outcome_t *all = wefti_alloc(group->context->allocator, group->size * sizeof *all);
    if (all == NULL) {
        return wefti_group_fail(group, WEFT_ERR_NO_MEMORY);
    }
    weft_status_t gathered = weft_all_gather(&own, all, sizeof own, WEFT_DTYPE_U8, group, NULL);
    for (uint32_t r = 0; gathered == WEFT_OK && r < group->size; r++) {
        if (all[r].status < 0) {
            all[r].text[sizeof all[r].text - 1] = '\0';
            gathered = wefti_error((weft_status_t)all[r].status, "rank %u: %s", group->ranks[r],
                                   all[r].text);
        }
    }
    wefti_free(group->context->allocator, all);
    return gathered;
}

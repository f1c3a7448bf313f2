/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of a world. */
#ifndef WEFT_RUNTIME_COLLECTIVE_GROUP_CREATE_H
#define WEFT_RUNTIME_COLLECTIVE_GROUP_CREATE_H

#include "runtime/collective/call.h"

/* As weft_group_split of a group of the world. staging_bytes: equal on all ranks; 0: by the setting.
 * model: whose order and algorithms the group has; NULL: those of the settings. */
weft_status_t wefti_group_create(weft_context_t *context, uint32_t color, int64_t key,
                                 uint64_t staging_bytes, const weft_group_t *model,
                                 weft_group_t **out_group);

#endif

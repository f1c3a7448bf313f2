/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEFT_RUNTIME_COLLECTIVE_AGREE_H
#define WEFT_RUNTIME_COLLECTIVE_AGREE_H

#include "runtime/group/group.h"

/* What the library itself needs of all ranks: whatever algorithm the program set. */
weft_status_t wefti_group_all_gather(weft_group_t *group, const void *own, size_t bytes,
                                     void *out_all);
/* A barrier, or the error of a rank with such a status. That rank does not wait for the others, and
 * nobody allocates. */
weft_status_t wefti_group_meet(weft_group_t *group, weft_status_t status);
/* As wefti_endpoint_agree, by calls of the group: WEFT_OK when status is WEFT_OK on all ranks, else
 * the lowest failing rank's error on all. */
weft_status_t wefti_group_agree(weft_group_t *group, weft_status_t status);
/* The same; then what all ranks have, bytes of each. out_all: a pointer, which the caller frees
 * with the allocator of the context; NULL on failure. */
weft_status_t wefti_group_gather(weft_group_t *group, weft_status_t status, const void *own,
                                 size_t bytes, void *out_all);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SAMPLE_BY_HAND_H
#define SAMPLE_BY_HAND_H

#include <weft/weft.h>

/* recv := the blocks of all ranks, rounds times over. Ranks are threads of one process. */
weft_status_t gather_by_hand(weft_group_t *group, uint8_t *block, uint8_t *recv, size_t bytes,
                             uint32_t rounds);

#endif

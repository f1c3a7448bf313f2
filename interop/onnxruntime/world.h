/* SPDX-License-Identifier: Apache-2.0 */
/* The world of a process: all sessions share its group. */
#ifndef WEFT_INTEROP_ONNXRUNTIME_WORLD_H
#define WEFT_INTEROP_ONNXRUNTIME_WORLD_H

#include <weft/group.h>

/* Joins the world with the first call; later ones find it. Blocking, collective. */
weft_status_t weft_ort_join(uint32_t *out_size, uint32_t *out_rank);

/*
 * Locks the world for one call of an operator. Two at a time have no order that is the same on all
 * ranks: the second one waits for the first, takes the place of a call, and fails on all ranks.
 * @return the error that ended the call; then nothing is locked
 */
weft_status_t weft_ort_begin(weft_group_t **out_group);
/* Unlocks it after weft_ort_begin has succeeded. */
void weft_ort_end(void);

#endif

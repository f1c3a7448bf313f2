/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and states of a session as whole tensors: what checkpoints are made of. */
#ifndef WEFT_RUNTIME_SESSION_STATE_H
#define WEFT_RUNTIME_SESSION_STATE_H

#include "runtime/plan/session.h"

/* session_layout.c: rank-4 contents between channels-last and plain; anything else is copied. */
void wefti_layout_to_plain(const weft_tensor_desc_t *desc, const uint8_t *src, uint8_t *dst);
void wefti_layout_from_plain(const weft_tensor_desc_t *desc, const uint8_t *src, uint8_t *dst);
/* Copies a buffer of this rank out or in, plain. */
weft_status_t wefti_session_read_plain(weft_session_t *session, const wefti_plan_buffer_t *buffer,
                                       void *data);
weft_status_t wefti_session_write_plain(weft_session_t *session, const wefti_plan_buffer_t *buffer,
                                        const void *data);

/* True when this rank reads what all ranks have where it lies, as an address of its own; the same
 * on all ranks. */
bool wefti_session_sees_all(const weft_session_t *session);
/* Where a piece lies; only of own ones unless the session sees all. */
const uint8_t *wefti_session_piece(const weft_session_t *session, const wefti_state_piece_t *piece);
/* All of a state, plain. The ranks' calls meet (all of them or none) if it is sharded and the
 * session does not see all; else no rank may change it meanwhile. */
weft_status_t wefti_session_collect(weft_session_t *session, const wefti_state_t *state,
                                    uint8_t *data);
/* What this rank has of a state, from all of it, plain. */
weft_status_t wefti_session_distribute(weft_session_t *session, const wefti_state_t *state,
                                       const uint8_t *data);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and states of a session as whole tensors, in the layout that programs see: plain. */
#ifndef WEFT_RUNTIME_SESSION_STATE_H
#define WEFT_RUNTIME_SESSION_STATE_H

#include "runtime/plan/session.h"

/* Whether the contents of a tensor lie as programs see them. */
bool wefti_layout_is_plain(const weft_tensor_desc_t *desc);
/* True when this rank reads what all ranks have where it lies, as an address of its own; the same
 * on all ranks. */
bool wefti_session_sees_all(const weft_session_t *session);
/* Where a piece lies; only of own ones unless the session sees all. */
const uint8_t *wefti_session_piece(const weft_session_t *session, const wefti_state_piece_t *piece);
/* Contents as they lie on the ranks, rearranged to plain; no change if they are. */
void wefti_state_to_plain(const wefti_state_t *state, const uint8_t *raw, uint8_t *plain);
/* All of a tensor, plain. The ranks' calls meet (all of them or none) if it is sharded and the
 * session does not see all; else no rank may change it meanwhile. */
weft_status_t wefti_session_collect(weft_session_t *session, const wefti_state_t *state,
                                    uint8_t *data);
/* What this rank has of a tensor, from all of it, plain. */
weft_status_t wefti_session_distribute(weft_session_t *session, const wefti_state_t *state,
                                       const uint8_t *data);

#endif

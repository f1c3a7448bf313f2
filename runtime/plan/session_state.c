/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer state and gradients as whole tensors, wherever their pieces lie. */
#include "runtime/plan/session_state.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

bool wefti_session_sees_all(const weft_session_t *session)
{
    return session->context->device == NULL && session->put_links == NULL;
}

static bool is_own(const weft_session_t *session, const wefti_state_piece_t *piece)
{
    return piece->rank == WEFTI_ALL_RANKS || piece->rank == session->endpoint->rank;
}

const uint8_t *wefti_session_piece(const weft_session_t *session, const wefti_state_piece_t *piece)
{
    const wefti_endpoint_t *endpoint = session->endpoint;
    uint32_t rank = piece->rank == WEFTI_ALL_RANKS ? endpoint->rank : piece->rank;
    return endpoint->region_of[rank] + session->region_offset + piece->offset_bytes;
}

/* Bytes of a state that only rank has. */
static size_t shard_bytes(const wefti_state_t *state, uint32_t rank)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < state->piece_count; i++) {
        bytes += state->pieces[i].rank == rank ? state->pieces[i].size_bytes : 0;
    }
    return bytes;
}

static weft_status_t copy_pieces(weft_session_t *session, const wefti_state_t *state, uint8_t *raw)
{
    weft_status_t status = WEFT_OK;
    bool all = wefti_session_sees_all(session);
    for (uint32_t i = 0; i < state->piece_count && status >= 0; i++) {
        const wefti_state_piece_t *piece = &state->pieces[i];
        if (all || is_own(session, piece)) {
            status = wefti_session_copy(session, raw + piece->begin_bytes,
                                        wefti_session_piece(session, piece), piece->size_bytes);
        }
    }
    return status;
}

/* Every rank sends its shard over the bootstrap channel: links without shared memory, and devices. */
static weft_status_t exchange_shards(weft_session_t *session, const wefti_state_t *state,
                                     uint8_t *raw)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    size_t largest = 1, at = 0;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        size_t bytes = shard_bytes(state, r);
        largest = bytes > largest ? bytes : largest;
    }
    uint8_t *own = wefti_alloc(session->allocator, largest);
    uint8_t *all =
        own != NULL ? wefti_alloc(session->allocator, largest * endpoint->world_size) : NULL;
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    for (uint32_t i = 0; i < state->piece_count && status >= 0; i++) {
        const wefti_state_piece_t *piece = &state->pieces[i];
        if (piece->rank == endpoint->rank) {
            memcpy(own + at, raw + piece->begin_bytes, piece->size_bytes);
            at += piece->size_bytes;
        }
    }
    if (status >= 0) {
        status = wefti_endpoint_all_gather(endpoint, own, largest, all);
    }
    for (uint32_t r = 0; r < endpoint->world_size && status >= 0; r++) {
        const uint8_t *from = all + r * largest;
        for (uint32_t i = 0; i < state->piece_count; i++) {
            if (state->pieces[i].rank == r) {
                memcpy(raw + state->pieces[i].begin_bytes, from, state->pieces[i].size_bytes);
                from += state->pieces[i].size_bytes;
            }
        }
    }
    wefti_free(session->allocator, all);
    wefti_free(session->allocator, own);
    return status;
}

weft_status_t wefti_session_collect(weft_session_t *session, const wefti_state_t *state,
                                    uint8_t *data)
{
    bool meets = state->sharded && !wefti_session_sees_all(session);
    uint8_t *raw = wefti_alloc(session->allocator, state->size_bytes + 1);
    weft_status_t status = raw != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status >= 0) {
        status = copy_pieces(session, state, raw);
    }
    if (meets) {
        status = wefti_endpoint_agree(session->endpoint, status);
        status = status < 0 ? status : exchange_shards(session, state, raw);
    }
    if (status >= 0) {
        wefti_layout_to_plain(&state->desc, raw, data);
    }
    wefti_free(session->allocator, raw);
    return status;
}

weft_status_t wefti_session_distribute(weft_session_t *session, const wefti_state_t *state,
                                       const uint8_t *data)
{
    uint8_t *raw = wefti_alloc(session->allocator, state->size_bytes + 1);
    weft_status_t status = raw != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status >= 0) {
        wefti_layout_from_plain(&state->desc, data, raw);
    }
    for (uint32_t i = 0; i < state->piece_count && status >= 0; i++) {
        const wefti_state_piece_t *piece = &state->pieces[i];
        if (is_own(session, piece)) {
            status = wefti_session_copy(session, session->base + piece->offset_bytes,
                                        raw + piece->begin_bytes, piece->size_bytes);
        }
    }
    wefti_free(session->allocator, raw);
    return status;
}

size_t weft_session_state_count(const weft_session_t *session)
{
    WEFT_CHECK_ARG_OR(session, 0);
    return session->states.count;
}

static weft_status_t find_state(const weft_session_t *session, size_t index,
                                const wefti_state_t **out_state)
{
    if (index >= session->states.count) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "index: invalid state index %zu: the plan has %u optimizer state tensors", index,
            session->states.count);
    }
    *out_state = &session->states.states[index];
    return WEFT_OK;
}

weft_status_t weft_session_state_info(const weft_session_t *session, size_t index,
                                      const char **out_name, weft_tensor_desc_t *out_desc)
{
    WEFT_CHECK_ARG(session);
    const wefti_state_t *state = NULL;
    weft_status_t status = find_state(session, index, &state);
    if (status < 0) {
        return status;
    }
    if (out_name != NULL) {
        *out_name = state->name;
    }
    if (out_desc != NULL) {
        *out_desc = state->desc;
        out_desc->layout = WEFT_LAYOUT_PLAIN;
    }
    return WEFT_OK;
}

/* What may be wrong with a call for one state. */
static weft_status_t check_call(const weft_session_t *session, size_t index, const void *data,
                                size_t bytes, const wefti_state_t **out_state)
{
    weft_status_t status = find_state(session, index, out_state);
    if (status < 0) {
        return status;
    }
    const wefti_state_t *state = *out_state;
    if (!state->whole) {
        return wefti_state_not_whole(state);
    }
    if (data == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "state \"%s\": data is NULL", state->name);
    }
    if (bytes != state->size_bytes) {
        return wefti_session_bad_size("state", state->name, state->size_bytes, bytes);
    }
    return WEFT_OK;
}

weft_status_t weft_session_get_state(weft_session_t *session, size_t index, void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    const wefti_state_t *state = NULL;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0) {
        return status;
    }
    status = check_call(session, index, data, bytes, &state);
    /* Whether it is sharded is the same on all ranks, so all of them meet, or none. */
    bool sharded = state != NULL && state->sharded;
    if (sharded) {
        status = wefti_endpoint_agree(session->endpoint, status);
    }
    if (status < 0) {
        return status;
    }
    status = wefti_session_collect(session, state, data);
    return sharded ? wefti_endpoint_agree(session->endpoint, status) : status;
}

weft_status_t weft_session_set_state(weft_session_t *session, size_t index, const void *data,
                                     size_t bytes)
{
    WEFT_CHECK_ARG(session);
    const wefti_state_t *state = NULL;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status >= 0) {
        status = check_call(session, index, data, bytes, &state);
    }
    return status < 0 ? status : wefti_session_distribute(session, state, data);
}

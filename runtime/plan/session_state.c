/* SPDX-License-Identifier: Apache-2.0 */
/* Whole tensors out of their pieces and back, wherever these lie. */
#include "runtime/plan/session_state.h"

#include <string.h>

#include "runtime/base/error.h"

bool wefti_layout_is_plain(const weft_tensor_desc_t *desc)
{
    return desc->layout != WEFT_LAYOUT_CHANNELS_LAST || desc->rank != 4;
}

/* Either direction: plain element (n, c, i) is element (n, i, c) of channels-last. */
static void rearrange(const weft_tensor_desc_t *desc, const uint8_t *src, uint8_t *dst, bool out)
{
    size_t bytes = weft_dtype_size_bytes(desc->dtype);
    size_t channels = (size_t)desc->dims[1];
    size_t area = (size_t)desc->dims[2] * (size_t)desc->dims[3];
    for (size_t n = 0; n < (size_t)desc->dims[0]; n++) {
        for (size_t c = 0; c < channels; c++) {
            for (size_t i = 0; i < area; i++) {
                size_t plain = ((n * channels + c) * area + i) * bytes;
                size_t last = ((n * area + i) * channels + c) * bytes;
                memcpy(dst + (out ? plain : last), src + (out ? last : plain), bytes);
            }
        }
    }
}

void wefti_state_to_plain(const wefti_state_t *state, const uint8_t *raw, uint8_t *plain)
{
    if (wefti_layout_is_plain(&state->desc)) {
        memcpy(plain, raw, state->size_bytes);
    } else {
        rearrange(&state->desc, raw, plain, true);
    }
}

bool wefti_session_sees_all(const weft_session_t *session)
{
    return session->context->device == NULL && !session->puts;
}

/* Ranks of other batches have the same parts of parameters as the first ones. */
static bool is_own(const weft_session_t *session, const wefti_state_piece_t *piece)
{
    uint32_t rank = session->endpoint->rank;
    return piece->rank == WEFTI_ALL_RANKS || piece->rank == rank ||
           (session->plan->data_group != 0 &&
            piece->rank == wefti_plan_contents_of(session->plan, rank));
}

const uint8_t *wefti_session_piece(const weft_session_t *session, const wefti_state_piece_t *piece)
{
    const wefti_endpoint_t *endpoint = session->endpoint;
    uint32_t rank = is_own(session, piece) ? endpoint->rank : piece->rank;
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
    bool all = wefti_session_sees_all(session);
    for (uint32_t i = 0; i < state->piece_count; i++) {
        const wefti_state_piece_t *piece = &state->pieces[i];
        if (all || is_own(session, piece)) {
            WEFT_RETURN_IF_ERROR(wefti_session_copy(session, raw + piece->begin_bytes,
                                                    wefti_session_piece(session, piece),
                                                    piece->size_bytes));
        }
    }
    return WEFT_OK;
}

/* Copies a rank's shard between the whole tensor and the shard by itself. */
static void pack_shard(const wefti_state_t *state, uint32_t rank, uint8_t *raw, uint8_t *shard,
                       bool out)
{
    for (uint32_t i = 0; i < state->piece_count; i++) {
        const wefti_state_piece_t *piece = &state->pieces[i];
        if (piece->rank == rank) {
            uint8_t *in_raw = raw + piece->begin_bytes;
            memcpy(out ? shard : in_raw, out ? in_raw : shard, piece->size_bytes);
            shard += piece->size_bytes;
        }
    }
}

/* Every rank sends its shard over the bootstrap channel: links without shared memory, and devices.
 */
static weft_status_t exchange_shards(weft_session_t *session, const wefti_state_t *state,
                                     uint8_t *raw)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    uint32_t n = endpoint->world_size;
    size_t largest = 1;
    for (uint32_t r = 0; r < n; r++) {
        size_t bytes = shard_bytes(state, r);
        largest = bytes > largest ? bytes : largest;
    }
    /* All ranks' shards, then the own one. */
    uint8_t *all = wefti_alloc(session->allocator, largest * (n + 1ul));
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status >= 0) {
        pack_shard(state, endpoint->rank, raw, all + n * largest, true);
        status = wefti_endpoint_all_gather(endpoint, all + n * largest, largest, all);
    }
    for (uint32_t r = 0; r < n && status >= 0; r++) {
        pack_shard(state, r, raw, all + r * largest, false);
    }
    wefti_free(session->allocator, all);
    return status;
}

weft_status_t wefti_session_collect(weft_session_t *session, const wefti_state_t *state,
                                    uint8_t *data)
{
    bool plain = wefti_layout_is_plain(&state->desc);
    uint8_t *raw = plain ? data : wefti_alloc(session->allocator, state->size_bytes + 1);
    weft_status_t status =
        raw != NULL || plain ? copy_pieces(session, state, raw) : WEFT_ERR_NO_MEMORY;
    if (state->sharded && !wefti_session_sees_all(session)) {
        status = wefti_endpoint_agree(session->endpoint, status);
        status = status < 0 ? status : exchange_shards(session, state, raw);
    }
    if (!plain) {
        if (status >= 0) {
            rearrange(&state->desc, raw, data, true);
        }
        wefti_free(session->allocator, raw);
    }
    return status;
}

static weft_status_t write_pieces(weft_session_t *session, const wefti_state_t *state,
                                  const uint8_t *raw)
{
    for (uint32_t i = 0; i < state->piece_count; i++) {
        const wefti_state_piece_t *piece = &state->pieces[i];
        if (is_own(session, piece)) {
            WEFT_RETURN_IF_ERROR(wefti_session_copy(session, session->base + piece->offset_bytes,
                                                    raw + piece->begin_bytes, piece->size_bytes));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_session_distribute(weft_session_t *session, const wefti_state_t *state,
                                       const uint8_t *data)
{
    if (wefti_layout_is_plain(&state->desc)) {
        return write_pieces(session, state, data);
    }
    uint8_t *raw = wefti_alloc(session->allocator, state->size_bytes + 1);
    WEFT_RETURN_IF_NO_MEMORY(raw);
    rearrange(&state->desc, data, raw, false);
    weft_status_t status = write_pieces(session, state, raw);
    wefti_free(session->allocator, raw);
    return status;
}

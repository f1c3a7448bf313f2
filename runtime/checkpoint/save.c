/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a checkpoint. Where rank 0 reads all ranks' memory nothing is copied: pieces of the file
 * are pieces of arenas. Else it takes copies, for which the ranks meet once for each sharded
 * tensor.
 */
#include "runtime/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/plan/session_state.h"

#define FIXED_TEXTS 16u

typedef struct saver {
    weft_session_t *session;
    wefti_arena_t arena;
    wefti_checkpoint_tensors_t tensors;
    uint8_t **copies;      /* [tensor] NULL: its pieces are read where they lie */
    wefti_piece_t *pieces; /* of all tensors */
    uint32_t *first_piece; /* [tensor], and the end */
    uint32_t piece_count;
    wefti_stored_text_t *texts; /* by key */
    uint32_t text_count;
} saver_t;

static bool is_writer(const saver_t *saver)
{
    return saver->session->endpoint->rank == 0;
}

/* Read where it lies, or copied first? The same on all ranks. */
static bool is_copied(const saver_t *saver, const wefti_state_t *tensor)
{
    return !wefti_session_sees_all(saver->session) || !wefti_layout_is_plain(&tensor->desc);
}

/* Do ranks meet to copy it? */
static bool is_met_for(const saver_t *saver, const wefti_state_t *tensor)
{
    return tensor->sharded && !wefti_session_sees_all(saver->session);
}

/* ---- what is said about it ---- */

static void add_text(saver_t *saver, const char *key, const char *value)
{
    saver->texts[saver->text_count++] = (wefti_stored_text_t){key, value};
}

static void add_number(saver_t *saver, const char *key, uint64_t value)
{
    add_text(saver, key, wefti_arena_printf(&saver->arena, "%" PRIu64, value));
}

/* As many digits as it takes, and a point whatever the host program's locale. */
static void add_real(saver_t *saver, const char *key, double value)
{
    char digits[40];
    snprintf(digits, sizeof digits, "%.15g", value);
    if (strtod(digits, NULL) < value || strtod(digits, NULL) > value) {
        snprintf(digits, sizeof digits, "%.17g", value);
    }
    char *text = wefti_arena_strdup(&saver->arena, digits);
    for (char *c = text; c != NULL && *c != '\0'; c++) {
        *c = *c == ',' ? '.' : *c;
    }
    add_text(saver, key, text);
}

static weft_status_t add_scalars(saver_t *saver)
{
    weft_session_t *session = saver->session;
    for (uint32_t i = 0; i < session->plan->binding_count; i++) {
        const wefti_plan_binding_t *binding = &session->plan->bindings[i];
        double value = 0;
        if (wefti_checkpoint_has_scalar(binding)) {
            WEFT_RETURN_IF_ERROR(weft_session_get_scalar(session, binding->name, &value));
            add_real(saver,
                     wefti_arena_printf(&saver->arena, WEFTI_CHECKPOINT_SCALAR "%s", binding->name),
                     value);
        }
    }
    return WEFT_OK;
}

static weft_status_t describe(saver_t *saver, const weft_checkpoint_info_t *info)
{
    const weft_session_t *session = saver->session;
    const weft_plan_t *plan = session->plan;
    uint64_t per_rank = (uint64_t)plan->batch * (plan->accumulate > 0 ? plan->accumulate : 1);
    saver->texts =
        wefti_arena_array(&saver->arena, FIXED_TEXTS + plan->binding_count, sizeof *saver->texts);
    WEFT_RETURN_IF_NO_MEMORY(saver->texts);
    add_number(saver, "weft.format", WEFTI_CHECKPOINT_FORMAT);
    add_number(saver, "weft.step", session->steps_before + session->steps);
    add_number(saver, "weft.seed", info->seed);
    add_number(saver, "weft.epoch", info->epoch);
    add_number(saver, "weft.sample", info->sample);
    add_number(saver, "weft.sample_count", info->sample_count);
    add_number(saver, "weft.global_batch",
               per_rank * (plan->world_size / wefti_plan_batch_ranks(plan)));
    add_number(saver, "weft.world_size", plan->world_size);
    add_text(saver, "weft.optimizer", plan->optimizer != NULL ? plan->optimizer : "");
    add_text(saver, "weft.model", plan->model_name != NULL ? plan->model_name : "");
    if (info->lr > 0) {
        add_real(saver, "weft.lr", info->lr);
    }
    WEFT_RETURN_IF_ERROR(add_scalars(saver));
    WEFT_RETURN_IF_NO_MEMORY(!saver->arena.failed);
    qsort(saver->texts, saver->text_count, sizeof *saver->texts, wefti_safetensors_by_name);
    return WEFT_OK;
}

/* ---- pieces ---- */

static void add_piece(saver_t *saver, const void *data, size_t bytes)
{
    if (bytes > 0) {
        saver->pieces[saver->piece_count++] = (wefti_piece_t){data, bytes};
    }
}

/* Room for everything, before ranks meet; all ranks but the writer need only what they meet with.
 */
static weft_status_t make_room(saver_t *saver)
{
    const wefti_checkpoint_tensors_t *tensors = &saver->tensors;
    size_t pieces = 1, largest = 0;
    saver->copies = wefti_arena_array(&saver->arena, tensors->count + 1u, sizeof(uint8_t *));
    saver->first_piece = wefti_arena_array(&saver->arena, tensors->count + 1u, sizeof(uint32_t));
    WEFT_RETURN_IF_NO_MEMORY(saver->copies && saver->first_piece);
    for (uint32_t i = 0; i < tensors->count; i++) {
        const wefti_state_t *tensor = tensors->list[i];
        pieces += tensor->piece_count + 1u;
        if (is_writer(saver) && is_copied(saver, tensor)) {
            saver->copies[i] = wefti_alloc(saver->session->allocator, tensor->size_bytes + 1);
            WEFT_RETURN_IF_NO_MEMORY(saver->copies[i]);
        } else if (is_met_for(saver, tensor) && tensor->size_bytes > largest) {
            largest = tensor->size_bytes;
        }
    }
    if (largest > 0) {
        saver->copies[0] = wefti_alloc(saver->session->allocator, largest);
        WEFT_RETURN_IF_NO_MEMORY(saver->copies[0]);
    }
    saver->pieces = wefti_arena_array(&saver->arena, pieces, sizeof *saver->pieces);
    WEFT_RETURN_IF_NO_MEMORY(saver->pieces);
    return WEFT_OK;
}

/* Copies of what cannot be read where it lies. An error of an agreement is that of all ranks; other
 * errors wait until the end. */
static weft_status_t take_copies(saver_t *saver)
{
    weft_status_t own = WEFT_OK;
    for (uint32_t i = 0; i < saver->tensors.count; i++) {
        const wefti_state_t *tensor = saver->tensors.list[i];
        uint8_t *copy = saver->copies[is_writer(saver) ? i : 0];
        if (is_met_for(saver, tensor)) {
            WEFT_RETURN_IF_ERROR(wefti_session_collect(saver->session, tensor, copy));
        } else if (is_writer(saver) && copy != NULL && own >= 0) {
            own = wefti_session_collect(saver->session, tensor, copy);
        }
    }
    return own;
}

static void list_pieces(saver_t *saver)
{
    for (uint32_t i = 0; i < saver->tensors.count; i++) {
        const wefti_state_t *tensor = saver->tensors.list[i];
        saver->first_piece[i] = saver->piece_count;
        if (saver->copies[i] != NULL) {
            add_piece(saver, saver->copies[i], tensor->size_bytes);
            continue;
        }
        for (uint32_t k = 0; k < tensor->piece_count; k++) {
            const wefti_state_piece_t *piece = &tensor->pieces[k];
            add_piece(saver, wefti_session_piece(saver->session, piece), piece->size_bytes);
        }
    }
    saver->first_piece[saver->tensors.count] = saver->piece_count;
}

static weft_status_t add_digest(saver_t *saver)
{
    wefti_hasher_t *hasher = NULL;
    wefti_digest_t digest;
    char *text = wefti_arena_alloc(&saver->arena, 65);
    WEFT_RETURN_IF_NO_MEMORY(text);
    WEFT_RETURN_IF_ERROR(wefti_hasher_create(&hasher));
    wefti_checkpoint_digest_texts(hasher, saver->texts, saver->text_count);
    for (uint32_t i = 0; i < saver->tensors.count; i++) {
        wefti_checkpoint_digest_name(hasher, saver->tensors.list[i]->name);
        for (uint32_t k = saver->first_piece[i]; k < saver->first_piece[i + 1]; k++) {
            wefti_hasher_add(hasher, saver->pieces[k].data, saver->pieces[k].size_bytes);
        }
    }
    wefti_hasher_finish(hasher, &digest);
    wefti_hasher_destroy(hasher);
    add_text(saver, WEFTI_CHECKPOINT_DIGEST, wefti_digest_hex(&digest, text));
    return WEFT_OK;
}

/* All pieces in the order of the file, after room for the header. */
static weft_status_t order_pieces(saver_t *saver, wefti_text_t *header, wefti_piece_t **out_pieces)
{
    uint32_t tensor_count = saver->tensors.count, count = 1;
    wefti_stored_tensor_t *stored =
        wefti_arena_array(&saver->arena, tensor_count + 1u, sizeof *stored);
    wefti_piece_t *pieces =
        wefti_arena_array(&saver->arena, saver->piece_count + 1u, sizeof *pieces);
    WEFT_RETURN_IF_NO_MEMORY(stored && pieces);
    for (uint32_t i = 0; i < tensor_count; i++) {
        const wefti_state_t *tensor = saver->tensors.list[i];
        stored[i] = (wefti_stored_tensor_t){.name = tensor->name, .desc = tensor->desc, .id = i};
    }
    WEFT_RETURN_IF_ERROR(
        wefti_safetensors_layout(stored, tensor_count, saver->texts, saver->text_count, header));
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint32_t id = stored[i].id;
        for (uint32_t k = saver->first_piece[id]; k < saver->first_piece[id + 1]; k++) {
            pieces[count++] = saver->pieces[k];
        }
    }
    pieces[0] = (wefti_piece_t){header->data, header->length};
    *out_pieces = pieces;
    return WEFT_OK;
}

static weft_status_t write_checkpoint(saver_t *saver, const char *path,
                                      const weft_checkpoint_info_t *info)
{
    wefti_text_t header;
    wefti_piece_t *pieces;
    list_pieces(saver);
    WEFT_RETURN_IF_ERROR(describe(saver, info));
    WEFT_RETURN_IF_ERROR(add_digest(saver));
    wefti_text_init(&header, saver->session->allocator);
    weft_status_t status = order_pieces(saver, &header, &pieces);
    if (status >= 0) {
        status = wefti_file_write(path, pieces, saver->piece_count + 1);
    }
    wefti_text_deinit(&header);
    return status;
}

/* What may fail before ranks meet. */
static weft_status_t prepare(saver_t *saver, const char *path, const weft_checkpoint_info_t *info,
                             weft_checkpoint_info_t *own)
{
    const weft_session_t *session = saver->session;
    if (is_writer(saver) && path == NULL) {
        return wefti_error_null("weft_session_save_checkpoint", "path");
    }
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(info, own));
    if (session->micro_count != 0) {
        return wefti_error(
            WEFT_ERR_STATE,
            "session: cannot save a checkpoint within a step: %u of %u micro-batches are done",
            session->micro_count, session->plan->accumulate);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_checkpoint_tensors(session->plan, &session->states, &saver->arena, &saver->tensors));
    return make_room(saver);
}

weft_status_t weft_session_save_checkpoint(weft_session_t *session, const char *path,
                                           const weft_checkpoint_info_t *info)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, CHECKPOINT_SAVE);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    saver_t saver = {.session = session};
    weft_checkpoint_info_t own = WEFT_CHECKPOINT_INFO_INIT;
    wefti_endpoint_t *endpoint = session->endpoint;
    weft_status_t status;
    wefti_arena_init(&saver.arena, session->allocator, 0);
    /* No rank is in a step any more once all are here. */
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, prepare(&saver, path, info, &own)), done);
    WEFT_TRY(status, wefti_session_gather_weights(session), done);
    status = take_copies(&saver);
    if (status >= 0 && is_writer(&saver)) {
        status = write_checkpoint(&saver, path, &own);
    }
    /* And no rank continues before rank 0 has read everything. */
    status = wefti_endpoint_agree(endpoint, status);
done:
    for (uint32_t i = 0; saver.copies != NULL && i < saver.tensors.count; i++) {
        wefti_free(session->allocator, saver.copies[i]);
    }
    wefti_arena_deinit(&saver.arena);
    return status;
}

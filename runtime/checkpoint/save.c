/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint file is made of. Where rank 0 reads all ranks' memory nothing is copied: pieces
 * of the file are pieces of arenas. Else, and where ranks go on before it is written, it takes
 * copies; ranks meet once for each sharded tensor whose memory rank 0 does not reach.
 */
#include "runtime/checkpoint/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/plan/session_state.h"

#define FIXED_TEXTS 16u

static bool is_writer(const wefti_saver_t *saver)
{
    return saver->session->endpoint->rank == 0;
}

/* Read where it lies, or copied first? The same on all ranks. */
static bool is_copied(const wefti_saver_t *saver, const wefti_state_t *tensor)
{
    return saver->copies_all || !wefti_session_sees_all(saver->session) ||
           !wefti_layout_is_plain(&tensor->desc);
}

/* Do ranks meet to copy it? */
static bool is_met_for(const wefti_saver_t *saver, const wefti_state_t *tensor)
{
    return tensor->sharded && !wefti_session_sees_all(saver->session);
}

/* ---- what is said about it ---- */

static void add_text(wefti_saver_t *saver, const char *key, const char *value)
{
    saver->texts[saver->text_count++] = (wefti_stored_text_t){key, value};
}

static void add_number(wefti_saver_t *saver, const char *key, uint64_t value)
{
    add_text(saver, key, wefti_arena_printf(&saver->arena, "%" PRIu64, value));
}

/* As many digits as it takes, and a point whatever the host program's locale. */
static void add_real(wefti_saver_t *saver, const char *key, double value)
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

static weft_status_t add_scalars(wefti_saver_t *saver)
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

static weft_status_t describe(wefti_saver_t *saver)
{
    const weft_checkpoint_info_t *info = &saver->info;
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

static void add_piece(wefti_saver_t *saver, const void *data, size_t bytes)
{
    if (bytes > 0) {
        saver->pieces[saver->piece_count++] = (wefti_piece_t){data, bytes};
    }
}

/* Memory stays for the next checkpoint of the same session. */
static weft_status_t want_copy(wefti_saver_t *saver, uint32_t i, size_t bytes)
{
    if (saver->copies[i] == NULL) {
        saver->copies[i] = wefti_alloc(saver->session->allocator, bytes);
        saver->copy_count = i + 1 > saver->copy_count ? i + 1 : saver->copy_count;
    }
    WEFT_RETURN_IF_NO_MEMORY(saver->copies[i]);
    return WEFT_OK;
}

/* Room for everything, before ranks meet; all ranks but the writer need only what they meet with.
 */
static weft_status_t make_room(wefti_saver_t *saver)
{
    const wefti_checkpoint_tensors_t *tensors = &saver->tensors;
    size_t pieces = 1, largest = 0;
    if (saver->copies == NULL) {
        saver->copies =
            wefti_alloc(saver->session->allocator, (tensors->count + 1u) * sizeof *saver->copies);
    }
    saver->first_piece = wefti_arena_array(&saver->arena, tensors->count + 1u, sizeof(uint32_t));
    WEFT_RETURN_IF_NO_MEMORY(saver->copies && saver->first_piece);
    for (uint32_t i = 0; i < tensors->count; i++) {
        const wefti_state_t *tensor = tensors->list[i];
        pieces += tensor->piece_count + 1u;
        if (is_writer(saver) && is_copied(saver, tensor)) {
            WEFT_RETURN_IF_ERROR(want_copy(saver, i, tensor->size_bytes + 1));
        } else if (is_met_for(saver, tensor) && tensor->size_bytes > largest) {
            largest = tensor->size_bytes;
        }
    }
    if (largest > 0) {
        WEFT_RETURN_IF_ERROR(want_copy(saver, 0, largest));
    }
    saver->pieces = wefti_arena_array(&saver->arena, pieces, sizeof *saver->pieces);
    WEFT_RETURN_IF_NO_MEMORY(saver->pieces);
    return WEFT_OK;
}

/* Copies of what cannot be read where it lies. An error of an agreement is that of all ranks; other
 * errors wait until the end. */
static weft_status_t take_copies(wefti_saver_t *saver)
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

static void list_pieces(wefti_saver_t *saver)
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

static weft_status_t add_digest(wefti_saver_t *saver)
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
static weft_status_t order_pieces(wefti_saver_t *saver, wefti_text_t *header,
                                  wefti_piece_t **out_pieces)
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

weft_status_t wefti_saver_write(wefti_saver_t *saver, const char *path)
{
    wefti_text_t header;
    wefti_piece_t *pieces;
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
static weft_status_t prepare(wefti_saver_t *saver, const char *path,
                             const weft_checkpoint_info_t *info)
{
    const weft_session_t *session = saver->session;
    if (is_writer(saver) && path == NULL) {
        return wefti_error_null(saver->function, "path");
    }
    saver->info = (weft_checkpoint_info_t)WEFT_CHECKPOINT_INFO_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(info, &saver->info));
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

void wefti_saver_reserve(wefti_saver_t *saver)
{
    weft_session_t *session = saver->session;
    wefti_arena_init(&saver->arena, session->allocator, 0);
    if (wefti_checkpoint_tensors(session->plan, &session->states, &saver->arena, &saver->tensors) ==
            WEFT_OK &&
        make_room(saver) == WEFT_OK && is_writer(saver)) {
        for (uint32_t i = 0; i < saver->copy_count; i++) {
            if (saver->copies[i] != NULL) {
                memset(saver->copies[i], 0, saver->tensors.list[i]->size_bytes);
            }
        }
    }
}

weft_status_t wefti_saver_begin(wefti_saver_t *saver, const char *path,
                                const weft_checkpoint_info_t *info)
{
    weft_session_t *session = saver->session;
    wefti_arena_deinit(&saver->arena);
    wefti_arena_init(&saver->arena, session->allocator, 0);
    saver->piece_count = saver->text_count = 0;
    /* No rank is in a step any more once all are here. */
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(session->endpoint, prepare(saver, path, info)));
    return wefti_session_gather_weights(session);
}

weft_status_t wefti_saver_collect(wefti_saver_t *saver)
{
    WEFT_RETURN_IF_ERROR(take_copies(saver));
    if (!is_writer(saver)) {
        return WEFT_OK;
    }
    list_pieces(saver);
    return describe(saver);
}

void wefti_saver_deinit(wefti_saver_t *saver)
{
    for (uint32_t i = 0; i < saver->copy_count; i++) {
        wefti_free(saver->session->allocator, saver->copies[i]);
    }
    wefti_free(saver->session->allocator, saver->copies);
    wefti_arena_deinit(&saver->arena);
}

weft_status_t weft_session_save_checkpoint(weft_session_t *session, const char *path,
                                           const weft_checkpoint_info_t *info)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, CHECKPOINT_SAVE);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    wefti_saver_t saver = {.session = session, .function = "weft_session_save_checkpoint"};
    weft_status_t status;
    WEFT_TRY(status, wefti_saver_begin(&saver, path, info), done);
    status = wefti_saver_collect(&saver);
    if (status >= 0 && is_writer(&saver)) {
        status = wefti_saver_write(&saver, path);
    }
    /* And no rank continues before rank 0 has read everything. */
    status = wefti_endpoint_agree(session->endpoint, status);
done:
    wefti_saver_deinit(&saver);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/plan/session_state.h"

typedef struct lister {
    const weft_plan_t *plan;
    wefti_arena_t *arena;
    wefti_checkpoint_tensors_t *out;
} lister_t;

/* The parts that ranks have of a tensor, one after the other; they are its first dimension. */
static weft_status_t stack(const lister_t *lister, const wefti_state_t *part,
                           const wefti_state_t **out_whole)
{
    uint32_t parts = wefti_plan_batch_ranks(lister->plan), count = 0;
    if (part->desc.rank == WEFT_MAX_DIMS || !wefti_layout_is_plain(&part->desc)) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "checkpoint: tensor \"%s\": parts of ranks must be in plain layout, with "
            "fewer than %d dimensions",
            part->name, WEFT_MAX_DIMS);
    }
    wefti_state_t *whole = wefti_arena_memdup(lister->arena, part, sizeof *whole);
    wefti_state_piece_t *pieces =
        wefti_arena_array(lister->arena, (size_t)parts * part->piece_count, sizeof *pieces);
    WEFT_RETURN_IF_NO_MEMORY(whole && pieces);
    for (uint32_t rank = 0; rank < parts; rank++) {
        for (uint32_t i = 0; i < part->piece_count; i++) {
            pieces[count] = part->pieces[i];
            pieces[count].rank = rank;
            pieces[count++].begin_bytes += rank * part->size_bytes;
        }
    }
    memmove(&whole->desc.dims[1], part->desc.dims, part->desc.rank * sizeof part->desc.dims[0]);
    whole->desc.dims[0] = parts;
    whole->desc.rank++;
    whole->size_bytes *= parts;
    whole->sharded = true;
    whole->pieces = pieces;
    whole->piece_count = count;
    *out_whole = whole;
    return WEFT_OK;
}

static weft_status_t add_list(const lister_t *lister, const wefti_state_list_t *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const wefti_state_t *tensor = &list->tensors[i];
        if (!tensor->whole) {
            return wefti_state_not_whole(tensor);
        }
        if (tensor->param->rank_data_stride_bytes != 0) {
            WEFT_RETURN_IF_ERROR(stack(lister, tensor, &tensor));
        }
        lister->out->list[lister->out->count++] = tensor;
    }
    return WEFT_OK;
}

weft_status_t wefti_checkpoint_tensors(const weft_plan_t *plan, const wefti_state_map_t *map,
                                       wefti_arena_t *arena, wefti_checkpoint_tensors_t *out)
{
    if (plan->kind == WEFT_PLAN_KIND_INFERENCE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "plan: not a training plan: it has no checkpoints");
    }
    size_t most = (size_t)map->params.count + map->states.count + 1;
    *out = (wefti_checkpoint_tensors_t){wefti_arena_array(arena, most, sizeof *out->list), 0};
    WEFT_RETURN_IF_NO_MEMORY(out->list);
    const lister_t lister = {plan, arena, out};
    WEFT_RETURN_IF_ERROR(add_list(&lister, &map->params));
    WEFT_RETURN_IF_ERROR(add_list(&lister, &map->states));
    qsort(out->list, out->count, sizeof *out->list, wefti_state_by_name);
    for (uint32_t i = 1; i < out->count; i++) {
        if (strcmp(out->list[i - 1]->name, out->list[i]->name) == 0) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "checkpoint: duplicate tensor name \"%s\"",
                               out->list[i]->name);
        }
    }
    return WEFT_OK;
}

bool wefti_checkpoint_has_scalar(const wefti_plan_binding_t *binding)
{
    return binding->role == WEFT_BINDING_ROLE_SCALAR && strcmp(binding->name, "step") != 0 &&
           strcmp(binding->name, "rank") != 0;
}

void wefti_checkpoint_digest_name(wefti_hasher_t *hasher, const char *name)
{
    wefti_hasher_add(hasher, name, strlen(name) + 1);
}

void wefti_checkpoint_digest_texts(wefti_hasher_t *hasher, const wefti_stored_text_t *texts,
                                   uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strncmp(texts[i].key, "weft.", 5) == 0 &&
            strcmp(texts[i].key, WEFTI_CHECKPOINT_DIGEST) != 0) {
            wefti_checkpoint_digest_name(hasher, texts[i].key);
            wefti_checkpoint_digest_name(hasher, texts[i].value);
        }
    }
}

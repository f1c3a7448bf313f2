/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

static weft_status_t add_list(const wefti_state_list_t *list, wefti_checkpoint_tensors_t *out)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const wefti_state_t *tensor = &list->tensors[i];
        if (!tensor->whole) {
            return wefti_state_not_whole(tensor);
        }
        if (tensor->param->rank_data_stride_bytes != 0 && tensor->param->parts.count == 0) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "checkpoint: tensor \"%s\": ranks have different contents",
                               tensor->name);
        }
        out->list[out->count++] = tensor;
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
    WEFT_RETURN_IF_ERROR(add_list(&map->params, out));
    WEFT_RETURN_IF_ERROR(add_list(&map->states, out));
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
           strcmp(binding->name, "rank") != 0 && strcmp(binding->name, "shard") != 0;
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(((const wefti_checkpoint_tensor_t *)a)->name,
                  ((const wefti_checkpoint_tensor_t *)b)->name);
}

static void add_param(wefti_checkpoint_tensor_t *tensor, const wefti_plan_buffer_t *param)
{
    tensor->name = param->name;
    tensor->param = param;
    tensor->desc = (weft_tensor_desc_t){.dtype = param->dtype, .rank = param->rank};
    memcpy(tensor->desc.dims, param->dims, sizeof tensor->desc.dims);
}

static weft_status_t add_state(wefti_checkpoint_tensor_t *tensor, const wefti_state_t *state)
{
    if (!state->whole) {
        return wefti_state_not_whole(state);
    }
    tensor->name = state->name;
    tensor->state = state;
    tensor->desc = state->desc;
    tensor->desc.layout = WEFT_LAYOUT_PLAIN;
    return WEFT_OK;
}

weft_status_t wefti_checkpoint_tensors(const weft_plan_t *plan, const wefti_state_map_t *states,
                                       wefti_arena_t *arena,
                                       wefti_checkpoint_tensor_t **out_tensors, uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    uint32_t count = 0;
    if (plan->kind == WEFT_PLAN_KIND_INFERENCE || (plan->flags & WEFTI_PLAN_RANK_DATA) != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "plan: not a training plan: it has no checkpoints");
    }
    wefti_checkpoint_tensor_t *tensors =
        wefti_arena_array(arena, (size_t)plan->buffer_count + states->count + 1, sizeof *tensors);
    if (tensors == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const wefti_state_t *shards = wefti_state_map_param(states, i);
        if (shards != NULL) {
            status = status < 0 ? status : add_state(&tensors[count++], shards);
        } else if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM) {
            add_param(&tensors[count++], &plan->buffers[i]);
        }
    }
    for (uint32_t i = 0; i < states->count && status >= 0; i++) {
        status = add_state(&tensors[count++], &states->states[i]);
    }
    qsort(tensors, count, sizeof *tensors, by_name);
    for (uint32_t i = 1; i < count && status >= 0; i++) {
        if (by_name(&tensors[i - 1], &tensors[i]) == 0) {
            status = wefti_error(WEFT_ERR_UNSUPPORTED, "checkpoint: duplicate tensor name \"%s\"",
                                 tensors[i].name);
        }
    }
    *out_tensors = tensors;
    *out_count = count;
    return status;
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

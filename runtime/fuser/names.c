/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors by name. Steps after the first look up without hashing as long as their order stays. */
#include "runtime/fuser/fuser.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

static uint64_t hash_name(const char *name, size_t length)
{
    uint64_t hash = wefti_hash_bytes(WEFTI_HASH_START, name, length);
    return hash ^ hash >> 29;
}

static bool is_called(const wefti_fuser_tensor_t *tensor, const char *name, size_t length)
{
    return strncmp(tensor->name, name, length) == 0 && tensor->name[length] == '\0';
}

wefti_fuser_tensor_t *wefti_fuser_find(const weft_fuser_t *fuser, const char *name, size_t length)
{
    wefti_fuser_tensor_t *tensor = *fuser->next_added;
    if (tensor != NULL && is_called(tensor, name, length)) {
        return tensor;
    }
    const uint64_t hash = hash_name(name, length);
    tensor = fuser->slots[hash % WEFTI_FUSER_SLOTS];
    while (tensor != NULL && (tensor->hash != hash || !is_called(tensor, name, length))) {
        tensor = tensor->same_slot;
    }
    return tensor;
}

weft_status_t wefti_fuser_new_tensor(weft_fuser_t *fuser, const char *name, size_t length,
                                     wefti_fuser_tensor_t **out_tensor)
{
    if (fuser->tensor_count == UINT32_MAX) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "fuser: too many tensors: at most %u", UINT32_MAX);
    }
    wefti_fuser_tensor_t *tensor = wefti_arena_alloc(&fuser->arena, sizeof *tensor);
    char *copy = wefti_arena_alloc(&fuser->arena, length + 1);
    WEFT_RETURN_IF_NO_MEMORY(tensor != NULL && copy != NULL);
    memcpy(copy, name, length);
    const uint64_t hash = hash_name(name, length);
    wefti_fuser_tensor_t **slot = &fuser->slots[hash % WEFTI_FUSER_SLOTS];
    *tensor = (wefti_fuser_tensor_t){
        .next = fuser->tensors, .same_slot = *slot, .name = copy, .hash = hash};
    fuser->tensors = *slot = tensor;
    fuser->tensor_count++;
    *out_tensor = tensor;
    return WEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors by name. Steps after the first look up without hashing as long as their order stays. */
#include "runtime/base/hash.h"
#include "runtime/fuser/fuser.h"

#include <string.h>

#include "runtime/base/error.h"

static uint64_t hash_name(const char *name, size_t length)
{
    uint64_t hash = wefti_hash_bytes(WEFTI_HASH_START, name, length);
    return hash ^ hash >> 29;
}

static bool is_called(const wefti_fuser_tensor_t *tensor, const char *name, size_t length)
{
    return strncmp(tensor->name, name, length) == 0 && tensor->name[length] == '\0';
}

/* The slot of name, or the empty one where it belongs. */
static size_t probe(const weft_fuser_t *fuser, const char *name, size_t length, uint64_t hash)
{
    size_t mask = fuser->slot_count - 1, slot = (size_t)hash & mask;
    while (fuser->slots[slot] != 0) {
        const wefti_fuser_tensor_t *tensor = &fuser->tensors[fuser->slots[slot] - 1];
        if (tensor->hash == hash && is_called(tensor, name, length)) {
            break;
        }
        slot = (slot + 1) & mask;
    }
    return slot;
}

uint32_t wefti_fuser_find(const weft_fuser_t *fuser, const char *name, size_t length)
{
    if (!fuser->learning && fuser->added < fuser->tensor_count) {
        uint32_t guess = fuser->order[fuser->added];
        if (is_called(&fuser->tensors[guess], name, length)) {
            return guess;
        }
    }
    if (fuser->slot_count == 0) {
        return WEFTI_FUSER_NONE;
    }
    uint32_t entry = fuser->slots[probe(fuser, name, length, hash_name(name, length))];
    return entry != 0 ? entry - 1 : WEFTI_FUSER_NONE;
}

static weft_status_t grow_slots(weft_fuser_t *fuser)
{
    size_t count = fuser->slot_count > 0 ? fuser->slot_count * 2 : 64;
    uint32_t *slots = wefti_alloc(fuser->context->allocator, count * sizeof *slots);
    if (slots == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_free(fuser->context->allocator, fuser->slots);
    fuser->slots = slots;
    fuser->slot_count = count;
    for (size_t i = 0; i < fuser->tensor_count; i++) {
        const wefti_fuser_tensor_t *tensor = &fuser->tensors[i];
        slots[probe(fuser, tensor->name, strlen(tensor->name), tensor->hash)] = (uint32_t)i + 1;
    }
    return WEFT_OK;
}

weft_status_t wefti_fuser_new_tensor(weft_fuser_t *fuser, const char *name, size_t length,
                                     uint32_t *out_tensor)
{
    const weft_allocator_t *allocator = fuser->context->allocator;
    size_t count = fuser->tensor_count + 1;
    if (count >= WEFTI_FUSER_NONE) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "fuser: too many tensors: at most %u",
                           WEFTI_FUSER_NONE);
    }
    weft_status_t status = wefti_array_reserve(allocator, &fuser->tensors, &fuser->tensor_capacity,
                                               count, sizeof *fuser->tensors);
    if (status == WEFT_OK) {
        status = wefti_array_reserve(allocator, &fuser->order, &fuser->order_capacity, count,
                                     sizeof *fuser->order);
    }
    if (status == WEFT_OK && count * 2 > fuser->slot_count) {
        status = grow_slots(fuser);
    }
    if (status < 0) {
        return status;
    }
    char *copy = wefti_arena_alloc(&fuser->names, length + 1);
    if (copy == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    memcpy(copy, name, length);
    uint64_t hash = hash_name(name, length);
    fuser->tensors[count - 1] =
        (wefti_fuser_tensor_t){.name = copy, .hash = hash, .last_bucket = WEFTI_FUSER_NONE};
    fuser->slots[probe(fuser, name, length, hash)] = (uint32_t)count;
    fuser->tensor_count = count;
    *out_tensor = (uint32_t)count - 1;
    return WEFT_OK;
}

void wefti_fuser_forget(weft_fuser_t *fuser)
{
    const weft_allocator_t *allocator = fuser->context->allocator;
    wefti_free(allocator, fuser->tensors);
    wefti_free(allocator, fuser->order);
    wefti_free(allocator, fuser->slots);
    wefti_arena_deinit(&fuser->names);
    wefti_arena_init(&fuser->names, allocator, 0);
    fuser->tensors = NULL;
    fuser->order = NULL;
    fuser->slots = NULL;
    fuser->tensor_count = fuser->tensor_capacity = fuser->order_capacity = fuser->slot_count = 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/name_index.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/sync.h"

#define NO_ID UINT32_MAX

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ (x >> 33);
}

/* Eight characters at a time. */
static uint64_t hash_name(const wefti_name_index_t *index, const char *name)
{
    uint64_t hash = index->seed, word;
    size_t left = strlen(name);
    for (; left >= sizeof(word); left -= sizeof(word), name += sizeof(word)) {
        memcpy(&word, name, sizeof(word));
        hash = wefti_hash_word(hash, word);
    }
    word = 0;
    memcpy(&word, name, left);
    return mix(wefti_hash_word(hash, word));
}

/* The entry of name with this hash, or the free entry for it. */
static wefti_name_entry_t *lookup_hashed(const wefti_name_index_t *index, const char *name,
                                         uint64_t hash)
{
    size_t mask = index->capacity - 1;
    size_t slot = (size_t)hash & mask;
    while (index->entries[slot].name &&
           (index->entries[slot].hash != hash || strcmp(index->entries[slot].name, name) != 0)) {
        slot = (slot + 1) & mask;
    }
    return &index->entries[slot];
}

static wefti_name_entry_t *lookup(const wefti_name_index_t *index, const char *name)
{
    return lookup_hashed(index, name, hash_name(index, name));
}

/* Where an entry whose name is not there yet goes: names need not be compared. */
static wefti_name_entry_t *free_entry(const wefti_name_index_t *index, uint64_t hash)
{
    size_t mask = index->capacity - 1;
    size_t slot = (size_t)hash & mask;
    while (index->entries[slot].name) {
        slot = (slot + 1) & mask;
    }
    return &index->entries[slot];
}

void wefti_name_index_init(wefti_name_index_t *index, const weft_allocator_t *allocator)
{
    memset(index, 0, sizeof(*index));
    index->allocator = allocator;
    index->seed = mix((uint64_t)(uintptr_t)index ^ wefti_now_ns());
}

void wefti_name_index_deinit(wefti_name_index_t *index)
{
    wefti_free(index->allocator, index->entries);
    index->entries = NULL;
    index->capacity = index->used = 0;
}

weft_status_t wefti_name_index_copy(const wefti_name_index_t *from, wefti_name_index_t *to)
{
    size_t bytes = from->capacity * sizeof(*from->entries);
    wefti_name_entry_t *entries = bytes > 0 ? wefti_alloc(to->allocator, bytes) : NULL;
    if (bytes > 0 && entries == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (bytes > 0) {
        memcpy(entries, from->entries, bytes);
    }
    *to = (wefti_name_index_t){to->allocator, entries, from->capacity, from->used, from->seed};
    return WEFT_OK;
}

static weft_status_t grow(wefti_name_index_t *index)
{
    if (index->capacity && index->used < index->capacity / 2) {
        return WEFT_OK;
    }
    wefti_name_index_t bigger = *index;
    bigger.capacity = index->capacity ? index->capacity * 2 : 64;
    size_t bytes;
    if (!wefti_mul_size(bigger.capacity, sizeof(*bigger.entries), &bytes)) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "too many names");
    }
    bigger.entries = wefti_alloc(index->allocator, bytes);
    WEFT_RETURN_IF_NO_MEMORY(bigger.entries);
    for (size_t i = 0; i < index->capacity; i++) {
        if (index->entries[i].name) {
            *free_entry(&bigger, index->entries[i].hash) = index->entries[i];
        }
    }
    wefti_free(index->allocator, index->entries);
    *index = bigger;
    return WEFT_OK;
}

uint32_t wefti_name_index_find(const wefti_name_index_t *index, const char *name)
{
    if (!index->capacity || !name) {
        return NO_ID;
    }
    const wefti_name_entry_t *entry = lookup(index, name);
    return entry->name ? entry->id : NO_ID;
}

weft_status_t wefti_name_index_add(wefti_name_index_t *index, wefti_arena_t *arena,
                                   const char *wanted, uint32_t id, const char **out_name)
{
    WEFT_RETURN_IF_ERROR(grow(index));
    const char *name = wanted;
    uint64_t hash = hash_name(index, name);
    wefti_name_entry_t *first = lookup_hashed(index, name, hash), *entry = first;
    while (entry->name && entry->id != NO_ID) {
        /* The entry remembers how far its suffixes went, so that many equal names stay cheap. */
        name = wefti_arena_printf(arena, "%s.%u", wanted, first->next_suffix++);
        WEFT_RETURN_IF_NO_MEMORY(name);
        hash = hash_name(index, name);
        entry = lookup_hashed(index, name, hash);
    }
    name = name == wanted ? wefti_arena_strdup(arena, wanted) : name;
    WEFT_RETURN_IF_NO_MEMORY(name);
    if (!entry->name) {
        index->used++;
        *entry = (wefti_name_entry_t){.name = name, .hash = hash, .next_suffix = 2};
    }
    entry->id = id;
    *out_name = name;
    return WEFT_OK;
}

void wefti_name_index_remove(wefti_name_index_t *index, const char *name)
{
    if (index->capacity) {
        wefti_name_entry_t *entry = lookup(index, name);
        if (entry->name) {
            entry->id = NO_ID;
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names to ids, with unique names made on demand. The hash is seeded per index, because names come
 * from files; nothing depends on the order of entries.
 */
#ifndef WEFT_GRAPH_NAME_INDEX_H
#define WEFT_GRAPH_NAME_INDEX_H

#include "runtime/base/memory.h"

typedef struct wefti_name_entry {
    const char *name; /* NULL: the entry is free; borrowed */
    uint64_t hash;
    uint32_t id; /* UINT32_MAX: the name was given up */
    uint32_t next_suffix;
} wefti_name_entry_t;

typedef struct wefti_name_index {
    const weft_allocator_t *allocator;
    wefti_name_entry_t *entries; /* a power of two of them, at most half used */
    size_t capacity;
    size_t used;
    uint64_t seed;
} wefti_name_index_t;

void wefti_name_index_init(wefti_name_index_t *index, const weft_allocator_t *allocator);
void wefti_name_index_deinit(wefti_name_index_t *index);
/* The id called name, or UINT32_MAX. */
uint32_t wefti_name_index_find(const wefti_name_index_t *index, const char *name);
/* Adds wanted, or wanted with the first free suffix ".2", ".3", ...; *out_name is a copy in arena.
 */
weft_status_t wefti_name_index_add(wefti_name_index_t *index, wefti_arena_t *arena,
                                   const char *wanted, uint32_t id, const char **out_name);
/* The same names and ids; names stay where they are. Into an initialised, empty index. */
weft_status_t wefti_name_index_copy(const wefti_name_index_t *from, wefti_name_index_t *to);
/* Frees a name for others. */
void wefti_name_index_remove(wefti_name_index_t *index, const char *name);

#endif

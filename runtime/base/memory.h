/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation: the caller's allocator, growing arrays, and arenas for what lives and dies together.
 */
#ifndef WEFT_RUNTIME_BASE_MEMORY_H
#define WEFT_RUNTIME_BASE_MEMORY_H

#include <stdarg.h>
#include <stdbool.h>

#include <weft/types.h>

/* malloc and free. */
const weft_allocator_t *wefti_allocator_default(void);

/* Zeroed memory, or NULL with a message recorded. allocator NULL: the default one. */
void *wefti_alloc(const weft_allocator_t *allocator, size_t bytes);
void wefti_free(const weft_allocator_t *allocator, void *ptr);
char *wefti_strdup(const weft_allocator_t *allocator, const char *text);

/* Makes room for need elements in *array (of *capacity), doubling; new elements are zeroed. */
weft_status_t wefti_array_reserve(const weft_allocator_t *allocator, void *array, size_t *capacity,
                                  size_t need, size_t elem_bytes);

/* Checked arithmetic on sizes that come from outside: true when *out is good, false on overflow. */
static inline bool wefti_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool wefti_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline size_t wefti_align_up(size_t value, size_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

/* Bump allocation in chunks; everything is zeroed and freed together. */
typedef struct wefti_arena_chunk wefti_arena_chunk_t;
typedef struct wefti_arena {
    const weft_allocator_t *allocator;
    wefti_arena_chunk_t *chunks;
    size_t used_bytes;   /* handed out so far */
    size_t budget_bytes; /* 0: no limit; beyond it allocation fails cleanly */
    bool failed;         /* an allocation did: one check after several is enough */
} wefti_arena_t;

void wefti_arena_init(wefti_arena_t *arena, const weft_allocator_t *allocator, size_t budget_bytes);
void wefti_arena_deinit(wefti_arena_t *arena);
/* Zeroed, aligned to 16 bytes; NULL with a message when out of memory or over budget. */
void *wefti_arena_alloc(wefti_arena_t *arena, size_t bytes);
void *wefti_arena_array(wefti_arena_t *arena, size_t count, size_t elem_bytes);
char *wefti_arena_strdup(wefti_arena_t *arena, const char *text);
void *wefti_arena_memdup(wefti_arena_t *arena, const void *data, size_t bytes);
char *wefti_arena_printf(wefti_arena_t *arena, const char *format, ...) WEFT_PRINTF(2, 3);

#endif

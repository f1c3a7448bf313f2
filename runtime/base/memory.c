/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define ARENA_ALIGNMENT 16u
#define CHUNK_MIN_BYTES ((size_t)4096)
#define CHUNK_MAX_BYTES ((size_t)1 << 20)

struct wefti_arena_chunk {
    wefti_arena_chunk_t *next;
    size_t capacity; /* bytes after the header */
    size_t used;
    size_t pad; /* keeps what follows aligned to 16 */
};
_Static_assert(sizeof(wefti_arena_chunk_t) % ARENA_ALIGNMENT == 0, "contents follow the header");

static void *default_alloc(void *user, size_t bytes)
{
    (void)user;
    return malloc(bytes);
}

static void *default_realloc(void *user, void *ptr, size_t old_bytes, size_t bytes)
{
    (void)user;
    (void)old_bytes;
    return realloc(ptr, bytes);
}

static void default_free(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

const weft_allocator_t *wefti_allocator_default(void)
{
    static const weft_allocator_t allocator = {default_alloc, default_realloc, default_free, NULL};
    return &allocator;
}

static const weft_allocator_t *or_default(const weft_allocator_t *allocator)
{
    return allocator ? allocator : wefti_allocator_default();
}

static void *no_memory(size_t bytes)
{
    wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot allocate %zu bytes", bytes);
    return NULL;
}

static weft_status_t no_array(size_t count, size_t elem_bytes)
{
    return wefti_error(WEFT_ERR_NO_MEMORY,
                       "out of memory: cannot allocate %zu elements of %zu bytes", count,
                       elem_bytes);
}

/* Memory straight from the allocator: not zeroed. */
static void *alloc_raw(const weft_allocator_t *allocator, size_t bytes)
{
    void *ptr = allocator->alloc(allocator->user, bytes ? bytes : 1);
    return ptr ? ptr : no_memory(bytes);
}

void *wefti_alloc(const weft_allocator_t *allocator, size_t bytes)
{
    allocator = or_default(allocator);
    if (allocator->alloc == default_alloc) { /* large ones take memory as they are touched */
        void *zeroed = calloc(1, bytes ? bytes : 1);
        return zeroed ? zeroed : no_memory(bytes);
    }
    void *ptr = alloc_raw(allocator, bytes);
    if (ptr) {
        memset(ptr, 0, bytes);
    }
    return ptr;
}

void wefti_free(const weft_allocator_t *allocator, void *ptr)
{
    if (ptr) {
        allocator = or_default(allocator);
        allocator->free(allocator->user, ptr);
    }
}

char *wefti_strdup(const weft_allocator_t *allocator, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = alloc_raw(or_default(allocator), bytes);
    if (copy) {
        memcpy(copy, text, bytes);
    }
    return copy;
}

weft_status_t wefti_array_reserve(const weft_allocator_t *allocator, void *array, size_t *capacity,
                                  size_t need, size_t elem_bytes)
{
    size_t bytes;
    size_t wanted = *capacity > SIZE_MAX / 2 ? need : *capacity * 2;
    void *old;
    if (need <= *capacity) {
        return WEFT_OK;
    }
    if (wanted < need) {
        wanted = need;
    }
    if (wanted < 8) {
        wanted = 8;
    }
    if (!wefti_mul_size(wanted, elem_bytes, &bytes)) {
        return no_array(wanted, elem_bytes);
    }
    allocator = or_default(allocator);
    memcpy(&old, array, sizeof old); /* array is a T **: no aliasing through void ** */
    size_t old_bytes = *capacity * elem_bytes;
    uint8_t *grown = old ? allocator->realloc(allocator->user, old, old_bytes, bytes)
                         : allocator->alloc(allocator->user, bytes);
    if (!grown) {
        no_memory(bytes);
        return WEFT_ERR_NO_MEMORY;
    }
    memset(grown + old_bytes, 0, bytes - old_bytes);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return WEFT_OK;
}

void wefti_arena_init(wefti_arena_t *arena, const weft_allocator_t *allocator, size_t budget_bytes)
{
    *arena = (wefti_arena_t){.allocator = or_default(allocator), .budget_bytes = budget_bytes};
}

void wefti_arena_deinit(wefti_arena_t *arena)
{
    wefti_arena_chunk_t *chunk = arena->chunks;
    while (chunk) {
        wefti_arena_chunk_t *next = chunk->next;
        wefti_free(arena->allocator, chunk);
        chunk = next;
    }
    arena->chunks = NULL;
    arena->used_bytes = 0;
}

/* A chunk with room for bytes becomes the first one. Chunks double, so their number stays small. */
static wefti_arena_chunk_t *add_chunk(wefti_arena_t *arena, size_t bytes)
{
    size_t capacity = CHUNK_MIN_BYTES;
    size_t total;
    wefti_arena_chunk_t *chunk;
    if (arena->chunks && arena->chunks->capacity > capacity / 2) {
        capacity = arena->chunks->capacity * 2;
    }
    if (capacity > CHUNK_MAX_BYTES) {
        capacity = CHUNK_MAX_BYTES;
    }
    if (capacity < bytes) {
        capacity = bytes;
    }
    if (!wefti_add_size(capacity, sizeof *chunk, &total)) {
        return no_memory(bytes);
    }
    chunk = alloc_raw(arena->allocator, total);
    if (chunk) {
        *chunk = (wefti_arena_chunk_t){.next = arena->chunks, .capacity = capacity};
        arena->chunks = chunk;
    }
    return chunk;
}

static void *arena_alloc(wefti_arena_t *arena, size_t bytes)
{
    wefti_arena_chunk_t *chunk = arena->chunks;
    size_t padded, used;
    if (bytes > SIZE_MAX - ARENA_ALIGNMENT) {
        return no_memory(bytes);
    }
    padded = wefti_align_up(bytes ? bytes : 1, ARENA_ALIGNMENT);
    if (!wefti_add_size(arena->used_bytes, padded, &used) ||
        (arena->budget_bytes && used > arena->budget_bytes)) {
        wefti_error(WEFT_ERR_NO_MEMORY,
                    "arena: %zu bytes in use, %zu more exceed the limit of %zu bytes",
                    arena->used_bytes, bytes, arena->budget_bytes);
        return NULL;
    }
    if (!chunk || chunk->capacity - chunk->used < padded) {
        chunk = add_chunk(arena, padded);
        if (!chunk) {
            return NULL;
        }
    }
    uint8_t *ptr = (uint8_t *)(chunk + 1) + chunk->used;
    chunk->used += padded;
    arena->used_bytes = used;
    memset(ptr, 0, padded);
    return ptr;
}

void *wefti_arena_alloc(wefti_arena_t *arena, size_t bytes)
{
    void *ptr = arena_alloc(arena, bytes);
    arena->failed = arena->failed || ptr == NULL;
    return ptr;
}

void *wefti_arena_array(wefti_arena_t *arena, size_t count, size_t elem_bytes)
{
    size_t bytes;
    if (!wefti_mul_size(count, elem_bytes, &bytes)) {
        no_array(count, elem_bytes);
        arena->failed = true;
        return NULL;
    }
    return wefti_arena_alloc(arena, bytes);
}

char *wefti_arena_strdup(wefti_arena_t *arena, const char *text)
{
    return wefti_arena_memdup(arena, text, strlen(text) + 1);
}

void *wefti_arena_memdup(wefti_arena_t *arena, const void *data, size_t bytes)
{
    void *copy = wefti_arena_alloc(arena, bytes);
    if (copy && bytes) {
        memcpy(copy, data, bytes);
    }
    return copy;
}

char *wefti_arena_printf(wefti_arena_t *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid format string: %s", format);
        return NULL;
    }
    char *text = wefti_arena_alloc(arena, (size_t)length + 1);
    if (text) {
        va_start(args, format);
        vsnprintf(text, (size_t)length + 1, format, args);
        va_end(args);
    }
    return text;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a in 64 bits, for tables and to compare what ranks have: finds mistakes, not attacks. */
#ifndef WEFT_RUNTIME_BASE_HASH_H
#define WEFT_RUNTIME_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WEFTI_HASH_START 0xcbf29ce484222325ull

static inline uint64_t wefti_hash_step(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x100000001b3ull;
}

static inline uint64_t wefti_hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = (const uint8_t *)data;
    for (size_t i = 0; i < bytes; i++) {
        hash = wefti_hash_step(hash, at[i]);
    }
    return hash;
}

static inline uint64_t wefti_hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = wefti_hash_step(hash, (uint8_t)*text);
    }
    return hash;
}

/* Upper bits only move up in a step: words need the shift. */
static inline uint64_t wefti_hash_word(uint64_t hash, uint64_t word)
{
    hash = wefti_hash_step(hash, word);
    return hash ^ hash >> 29;
}

static inline uint64_t wefti_hash_words(const uint64_t *words, size_t count)
{
    uint64_t hash = WEFTI_HASH_START;
    for (size_t i = 0; i < count; i++) {
        hash = wefti_hash_word(hash, words[i]);
    }
    return hash;
}

/* Of memory, word by word. */
static inline uint64_t wefti_hash_memory(uint64_t hash, const uint8_t *data, uint64_t bytes)
{
    uint64_t word;
    for (; bytes >= sizeof word; bytes -= sizeof word, data += sizeof word) {
        memcpy(&word, data, sizeof word);
        hash = wefti_hash_word(hash, word);
    }
    return wefti_hash_bytes(hash, data, (size_t)bytes);
}

#endif

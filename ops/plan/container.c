/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/plan/container.h"

#include <string.h>

#include "ops/plan/plan_internal.h"
#include "runtime/base/error.h"

/* Offsets in the header. */
enum {
    AT_MAGIC = 0,
    AT_FORMAT = 8,
    AT_SECTION_COUNT = 12,
    AT_FEATURES = 16,
    AT_FILE_BYTES = 24,
    AT_STRUCTURE_DIGEST = 32,
    AT_WEIGHTS_DIGEST = 64,
    AT_RESERVED = 96,
};
/* Offsets in an entry of the section table. */
enum {
    AT_KIND = 0,
    AT_FLAGS = 4,
    AT_OFFSET = 8,
    AT_SIZE = 16,
    AT_ENTRY_RESERVED = 24,
};

#define KNOWN_FEATURES (WEFTI_FEATURE_MESH | WEFTI_FEATURE_PLACES | WEFTI_FEATURE_FILES)
#define SECTION_OPTIONAL (1u << 0) /* a reader that does not know the kind may skip it */

static void put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

static void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)value);
    put32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get64(const uint8_t *at)
{
    return (uint64_t)get32(at) | (uint64_t)get32(at + 4) << 32;
}

weft_status_t wefti_container_write(const char *path, uint64_t features,
                                    const wefti_section_t *sections,
                                    const wefti_digest_t *structure, const wefti_digest_t *weights)
{
    static const uint8_t zeros[WEFTI_PLAN_ALIGNMENT];
    uint8_t head[WEFTI_CONTAINER_HEADER_BYTES + WEFTI_SECTION_COUNT * WEFTI_CONTAINER_ENTRY_BYTES] =
        {0};
    wefti_piece_t pieces[1 + 2 * WEFTI_SECTION_COUNT];
    size_t count = 0;
    uint64_t end = sizeof head;
    pieces[count++] = (wefti_piece_t){head, sizeof head};
    for (uint32_t i = 0; i < WEFTI_SECTION_COUNT; i++) {
        uint8_t *entry = head + WEFTI_CONTAINER_HEADER_BYTES + i * WEFTI_CONTAINER_ENTRY_BYTES;
        uint64_t offset = wefti_plan_padded_bytes(end);
        pieces[count++] = (wefti_piece_t){zeros, (size_t)(offset - end)};
        pieces[count++] = (wefti_piece_t){sections[i].data, sections[i].size_bytes};
        put32(entry + AT_KIND, i + 1);
        put64(entry + AT_OFFSET, offset);
        put64(entry + AT_SIZE, sections[i].size_bytes);
        end = offset + sections[i].size_bytes;
    }
    memcpy(head + AT_MAGIC, WEFTI_PLAN_MAGIC, 8);
    put32(head + AT_FORMAT, WEFTI_PLAN_FORMAT);
    put64(head + AT_FEATURES, features);
    put32(head + AT_SECTION_COUNT, WEFTI_SECTION_COUNT);
    put64(head + AT_FILE_BYTES, end);
    memcpy(head + AT_STRUCTURE_DIGEST, structure->bytes, sizeof structure->bytes);
    memcpy(head + AT_WEIGHTS_DIGEST, weights->bytes, sizeof weights->bytes);
    return wefti_file_write(path, pieces, count);
}

static int all_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i]) {
            return 0;
        }
    }
    return 1;
}

static weft_status_t read_header(const uint8_t *data, size_t size_bytes,
                                 uint32_t *out_section_count)
{
    if (size_bytes < 8 || memcmp(data + AT_MAGIC, WEFTI_PLAN_MAGIC, 8) != 0) {
        return wefti_error(WEFT_ERR_FORMAT, "not a plan: it does not start with %s",
                           WEFTI_PLAN_MAGIC);
    }
    if (size_bytes < WEFTI_CONTAINER_HEADER_BYTES) {
        return wefti_error(WEFT_ERR_FORMAT, "truncated: %zu bytes is shorter than the header",
                           size_bytes);
    }
    uint32_t format = get32(data + AT_FORMAT);
    uint64_t features = get64(data + AT_FEATURES);
    uint64_t file_bytes = get64(data + AT_FILE_BYTES);
    if (format != WEFTI_PLAN_FORMAT) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "unsupported plan format version %u: this build reads version %u; "
                           "compile the model again",
                           format, WEFTI_PLAN_FORMAT);
    }
    if (features & ~KNOWN_FEATURES) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "unsupported features %#llx: this build does not have them",
                           (unsigned long long)(features & ~KNOWN_FEATURES));
    }
    if (file_bytes != size_bytes) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %zu bytes, the header says %llu",
                           file_bytes > size_bytes ? "truncated" : "trailing bytes", size_bytes,
                           (unsigned long long)file_bytes);
    }
    uint32_t count = get32(data + AT_SECTION_COUNT);
    if (count > WEFTI_CONTAINER_MAX_SECTIONS ||
        WEFTI_CONTAINER_HEADER_BYTES + (size_t)count * WEFTI_CONTAINER_ENTRY_BYTES > size_bytes) {
        return wefti_error(WEFT_ERR_FORMAT, "too many sections: %u", count);
    }
    if (!all_zero(data + AT_RESERVED, WEFTI_CONTAINER_HEADER_BYTES - AT_RESERVED)) {
        return wefti_error(WEFT_ERR_FORMAT, "reserved bytes of the header are not zero");
    }
    *out_section_count = count;
    return WEFT_OK;
}

weft_status_t wefti_container_read(const uint8_t *data, size_t size_bytes,
                                   wefti_section_t *out_sections, wefti_digest_t *out_structure,
                                   wefti_digest_t *out_weights)
{
    uint32_t count = 0;
    weft_status_t status = read_header(data, size_bytes, &count);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t free_from =
        WEFTI_CONTAINER_HEADER_BYTES + (uint64_t)count * WEFTI_CONTAINER_ENTRY_BYTES;
    for (uint32_t i = 0; i < WEFTI_SECTION_COUNT; i++) {
        out_sections[i] = (wefti_section_t){0};
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *entry =
            data + WEFTI_CONTAINER_HEADER_BYTES + i * WEFTI_CONTAINER_ENTRY_BYTES;
        uint32_t kind = get32(entry + AT_KIND);
        uint32_t flags = get32(entry + AT_FLAGS);
        uint64_t offset = get64(entry + AT_OFFSET);
        uint64_t bytes = get64(entry + AT_SIZE);
        /* In file order without overlap: two sections never share bytes. */
        if (offset % WEFTI_PLAN_ALIGNMENT != 0 || offset < free_from || offset > size_bytes ||
            bytes > size_bytes - offset || !all_zero(entry + AT_ENTRY_RESERVED, 8)) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "section %u (kind %u): %llu bytes at offset %llu are out of range",
                               i, kind, (unsigned long long)bytes, (unsigned long long)offset);
        }
        free_from = offset + bytes;
        if (kind == 0 || kind > WEFTI_SECTION_COUNT) {
            if (flags != SECTION_OPTIONAL) {
                return wefti_error(WEFT_ERR_UNSUPPORTED, "section %u has unknown kind %u", i, kind);
            }
            continue;
        }
        if (flags & ~SECTION_OPTIONAL || out_sections[kind - 1].data) {
            return wefti_error(WEFT_ERR_FORMAT, "section %u (kind %u) %s", i, kind,
                               out_sections[kind - 1].data ? "is a duplicate"
                                                           : "has unknown flags");
        }
        out_sections[kind - 1] = (wefti_section_t){data + offset, (size_t)bytes};
    }
    memcpy(out_structure->bytes, data + AT_STRUCTURE_DIGEST, sizeof out_structure->bytes);
    memcpy(out_weights->bytes, data + AT_WEIGHTS_DIGEST, sizeof out_weights->bytes);
    return WEFT_OK;
}

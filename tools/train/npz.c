/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of .npz files, which are zip archives: stored or deflated, with zip64 sizes.
 *
 *   | local header, name, contents | .. | directory: an entry per member | end of the directory |
 */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime/base/error.h"
#include "tools/train/data.h"

#define END 0x06054b50u
#define END64 0x06064b50u
#define LOCATOR64 0x07064b50u
#define ENTRY 0x02014b50u
#define LOCAL 0x04034b50u
#define END_BYTES 22u
#define MAX_COMMENT 65535u
#define MAX_RATIO 1032u /* of deflate */

typedef struct {
    const uint8_t *bytes;
    size_t size;
    const char *label;
} archive_t;

typedef struct {
    uint64_t offset, packed, size;
    uint32_t method, flags;
} member_t;

static uint64_t number(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

/* NULL unless the archive has so many bytes there. */
static const uint8_t *at(const archive_t *a, uint64_t offset, uint64_t bytes)
{
    return offset <= a->size && bytes <= a->size - offset ? a->bytes + offset : NULL;
}

static weft_status_t damaged(const archive_t *a, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "%s: not a .npz file, or truncated: %s", a->label, what);
}

static weft_status_t find_directory(const archive_t *a, uint64_t *out_offset, uint64_t *out_count)
{
    size_t last = a->size >= END_BYTES ? a->size - END_BYTES : 0;
    size_t first = last > MAX_COMMENT ? last - MAX_COMMENT : 0, end = last;
    while (a->size >= END_BYTES && end > first && number(a->bytes + end, 4) != END) {
        end--;
    }
    if (a->size < END_BYTES || number(a->bytes + end, 4) != END) {
        return damaged(a, "no directory");
    }
    *out_count = number(a->bytes + end + 10, 2);
    *out_offset = number(a->bytes + end + 16, 4);
    if (*out_offset == UINT32_MAX || *out_count == UINT16_MAX) {
        const uint8_t *locator = end >= 20 ? at(a, end - 20, 20) : NULL;
        const uint8_t *record = locator != NULL && number(locator, 4) == LOCATOR64
                                    ? at(a, number(locator + 8, 8), 56)
                                    : NULL;
        if (record == NULL || number(record, 4) != END64) {
            return damaged(a, "no zip64 directory");
        }
        *out_count = number(record + 32, 8);
        *out_offset = number(record + 48, 8);
    }
    return WEFT_OK;
}

/* Sizes of 4 GiB and more are in an extra field, in this order. */
static bool read_extra(const uint8_t *extra, size_t bytes, member_t *m)
{
    uint64_t *fields[] = {&m->size, &m->packed, &m->offset};
    while (bytes >= 4) {
        size_t id = number(extra, 2), length = number(extra + 2, 2), used = 0;
        if (length > bytes - 4) {
            return false;
        }
        for (size_t i = 0; i < 3 && id == 1; i++) {
            if (*fields[i] == UINT32_MAX && used + 8 <= length) {
                *fields[i] = number(extra + 4 + used, 8);
                used += 8;
            }
        }
        extra += 4 + length;
        bytes -= 4 + length;
    }
    return true;
}

/* Finds the entry of a name in the directory. */
static weft_status_t find_entry(const archive_t *a, const char *name, member_t *out)
{
    uint64_t offset = 0, count = 0;
    size_t length = strlen(name);
    WEFT_RETURN_IF_ERROR(find_directory(a, &offset, &count));
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *entry = at(a, offset, 46);
        if (entry == NULL || number(entry, 4) != ENTRY) {
            return damaged(a, "an entry of the directory");
        }
        size_t name_bytes = number(entry + 28, 2), extra = number(entry + 30, 2);
        uint64_t bytes = 46u + name_bytes + extra + number(entry + 32, 2);
        if (at(a, offset, bytes) == NULL) {
            return damaged(a, "an entry of the directory");
        }
        if (name_bytes == length && memcmp(entry + 46, name, length) == 0) {
            *out = (member_t){.offset = number(entry + 42, 4),
                              .packed = number(entry + 20, 4),
                              .size = number(entry + 24, 4),
                              .method = (uint32_t)number(entry + 10, 2),
                              .flags = (uint32_t)number(entry + 8, 2)};
            return read_extra(entry + 46 + name_bytes, extra, out) ? WEFT_OK
                                                                   : damaged(a, "an extra field");
        }
        offset += bytes;
    }
    return wefti_error(WEFT_ERR_NOT_FOUND, "%s: no array '%.*s'", a->label,
                       length > 4 ? (int)(length - 4) : (int)length, name);
}

static weft_status_t inflate_member(const archive_t *a, const char *name, const member_t *m,
                                    const uint8_t *packed, uint8_t *out)
{
    z_stream stream = {0};
    uint64_t in = 0, done = 0;
    int code = inflateInit2(&stream, -MAX_WBITS);
    while (code == Z_OK) {
        if (stream.avail_in == 0) {
            stream.next_in = (Bytef *)(uintptr_t)(packed + in);
            stream.avail_in = (uInt)(m->packed - in < (1u << 30) ? m->packed - in : 1u << 30);
            in += stream.avail_in;
        }
        stream.next_out = out + done;
        stream.avail_out = (uInt)(m->size - done < (1u << 30) ? m->size - done : 1u << 30);
        uInt room = stream.avail_out;
        code = inflate(&stream, Z_NO_FLUSH);
        done += room - stream.avail_out;
    }
    inflateEnd(&stream);
    return code == Z_STREAM_END && done == m->size
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "%s: '%s' is corrupt", a->label, name);
}

weft_status_t wefti_npz_find(const uint8_t *bytes, size_t size_bytes, const char *label,
                             const char *member, const uint8_t **out_data, size_t *out_bytes,
                             void **out_block)
{
    const archive_t a = {bytes, size_bytes, label};
    member_t m;
    *out_block = NULL;
    WEFT_RETURN_IF_ERROR(find_entry(&a, member, &m));
    const uint8_t *local = at(&a, m.offset, 30);
    if (local == NULL || number(local, 4) != LOCAL) {
        return damaged(&a, "a header");
    }
    uint64_t begin = m.offset + 30 + number(local + 26, 2) + number(local + 28, 2);
    const uint8_t *packed = at(&a, begin, m.packed);
    if (packed == NULL) {
        return damaged(&a, "the contents of a member");
    }
    *out_data = packed;
    *out_bytes = (size_t)m.size;
    if ((m.flags & 1) != 0 || (m.method != 0 && m.method != 8)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: '%s' is %s", label, member,
                           (m.flags & 1) != 0 ? "encrypted" : "compressed in an unknown way");
    }
    if (m.method == 0) {
        return m.packed == m.size ? WEFT_OK : damaged(&a, "two sizes of a member");
    }
    if (m.packed == 0 || m.size / MAX_RATIO > m.packed) {
        return damaged(&a, "the size of a member");
    }
    uint8_t *block = malloc((size_t)m.size + 1);
    if (block == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "%s: out of memory: cannot allocate %llu bytes",
                           label, (unsigned long long)m.size);
    }
    *out_data = *out_block = block;
    weft_status_t status = inflate_member(&a, member, &m, packed, block);
    if (status < 0) {
        free(block);
        *out_block = NULL;
    }
    return status;
}

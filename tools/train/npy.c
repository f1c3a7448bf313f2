/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The .npy format of numpy:
 *
 *   | \x93NUMPY | version | length of the header | {'descr': '<f4', 'fortran_order': False,
 *                                                   'shape': (3, 4), } | contents |
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "tools/train/data.h"

typedef struct {
    const char *at, *end;
} text_t;

static void skip_spaces(text_t *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t')) {
        t->at++;
    }
}

static bool take(text_t *t, char c)
{
    skip_spaces(t);
    if (t->at < t->end && *t->at == c) {
        t->at++;
        return true;
    }
    return false;
}

static bool take_word(text_t *t, const char *word)
{
    size_t length = strlen(word);
    skip_spaces(t);
    if ((size_t)(t->end - t->at) < length || memcmp(t->at, word, length) != 0) {
        return false;
    }
    t->at += length;
    return true;
}

/* 'text' into out. */
static bool take_string(text_t *t, char *out, size_t bytes)
{
    size_t used = 0;
    skip_spaces(t);
    char quote = t->at < t->end ? *t->at : '\0';
    if ((quote != '\'' && quote != '"') || !take(t, quote)) {
        return false;
    }
    while (t->at < t->end && *t->at != quote && used + 1 < bytes) {
        out[used++] = *t->at++;
    }
    out[used] = '\0';
    return take(t, quote);
}

/* (3, 4), (3,) or () */
static bool take_shape(text_t *t, data_array_t *out)
{
    out->rank = 0;
    if (!take(t, '(')) {
        return false;
    }
    while (!take(t, ')')) {
        uint64_t dim = 0;
        const char *first;
        skip_spaces(t);
        first = t->at;
        for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
            dim = dim * 10 + (uint64_t)(*t->at - '0');
            if (dim > INT64_MAX / 16) {
                return false;
            }
        }
        if (t->at == first || out->rank == WEFT_MAX_DIMS) {
            return false;
        }
        out->dims[out->rank++] = dim;
        if (!take(t, ',')) {
            return take(t, ')');
        }
    }
    return true;
}

static weft_dtype_t dtype_of(const char *descr)
{
    static const struct {
        const char *descr;
        weft_dtype_t dtype;
    } types[] = {
        {"<f4", WEFT_DTYPE_F32}, {"<f8", WEFT_DTYPE_F64}, {"<f2", WEFT_DTYPE_F16},
        {"|i1", WEFT_DTYPE_I8},  {"|u1", WEFT_DTYPE_U8},  {"|b1", WEFT_DTYPE_BOOL},
        {"<i2", WEFT_DTYPE_I16}, {"<u2", WEFT_DTYPE_U16}, {"<i4", WEFT_DTYPE_I32},
        {"<u4", WEFT_DTYPE_U32}, {"<i8", WEFT_DTYPE_I64}, {"<u8", WEFT_DTYPE_U64},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].descr, descr) == 0) {
            return types[i].dtype;
        }
    }
    return WEFT_DTYPE_NONE;
}

/* NULL, or what is wrong with the header. */
static const char *read_header(text_t *t, data_array_t *out, char *descr, size_t descr_bytes)
{
    bool has_type = false, has_order = false, has_shape = false;
    char key[32];
    if (!take(t, '{')) {
        return "no dictionary";
    }
    while (!take(t, '}')) {
        if (!take_string(t, key, sizeof key) || !take(t, ':')) {
            return "malformed dictionary";
        }
        if (strcmp(key, "descr") == 0 && take_string(t, descr, descr_bytes)) {
            has_type = true;
        } else if (strcmp(key, "fortran_order") == 0 && take_word(t, "False")) {
            has_order = true;
        } else if (strcmp(key, "fortran_order") == 0 && take_word(t, "True")) {
            return "fortran_order is True: write it with numpy.ascontiguousarray";
        } else if (strcmp(key, "shape") == 0 && take_shape(t, out)) {
            has_shape = true;
        } else {
            return "malformed dictionary";
        }
        if (!take(t, ',')) {
            if (!take(t, '}')) {
                return "malformed dictionary";
            }
            break;
        }
    }
    return has_type && has_order && has_shape ? NULL : "incomplete dictionary";
}

weft_status_t wefti_npy_read(const uint8_t *bytes, size_t size_bytes, const char *label,
                             data_array_t *out)
{
    char descr[16] = "";
    size_t head, length, contents;
    memset(out, 0, sizeof *out);
    if (size_bytes < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0 || bytes[6] < 1 || bytes[6] > 3) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: not a .npy file", label);
    }
    head = bytes[6] == 1 ? 10 : 12;
    length = bytes[8] | (size_t)bytes[9] << 8;
    if (head == 12) {
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    }
    if (length > size_bytes - head) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: truncated in its header", label);
    }
    text_t text = {(const char *)bytes + head, (const char *)bytes + head + length};
    const char *wrong = read_header(&text, out, descr, sizeof descr);
    if (wrong != NULL) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %s", label, wrong);
    }
    out->dtype = dtype_of(descr);
    if (out->dtype == WEFT_DTYPE_NONE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: unsupported dtype '%s'", label, descr);
    }
    contents = weft_dtype_size_bytes(out->dtype);
    bool fits = true;
    for (uint32_t i = 0; i < out->rank; i++) {
        fits = fits && wefti_mul_size(contents, (size_t)out->dims[i], &contents);
    }
    if (!fits || contents != size_bytes - head - length) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: %zu bytes of contents, but its shape has %s%zu",
                           label, size_bytes - head - length, fits ? "" : "more than ",
                           fits ? contents : SIZE_MAX);
    }
    out->data = bytes + head + length;
    return WEFT_OK;
}

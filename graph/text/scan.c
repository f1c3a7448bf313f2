/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the text form: names, numbers, types, contents, attributes. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/text/text.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

#define INVALID(...) wefti_error(WEFT_ERR_INVALID_ARGUMENT, __VA_ARGS__)
#define MAX_CONTENTS_BYTES ((size_t)256 << 20)

static void skip_spaces(wefti_scan_t *scan)
{
    while (scan->at < scan->end && strchr(" \t\r", *scan->at) && *scan->at) {
        scan->at++;
    }
}

static bool in_name(const wefti_scan_t *scan, const char *at)
{
    return at < scan->end && (unsigned char)*at > ' ' && *at != 127 &&
           (*at == '\\' || !strchr(WEFTI_TEXT_ENDS_NAME, *at));
}

/* Bytes of the next name, escapes included. It does not end with ':'. */
static size_t name_length(const wefti_scan_t *scan)
{
    const char *at = scan->at;
    while (in_name(scan, at)) {
        at++;
    }
    while (at > scan->at && at[-1] == ':') {
        at--;
    }
    return (size_t)(at - scan->at);
}

weft_status_t wefti_scan_unexpected(wefti_scan_t *scan, const char *expected)
{
    if (wefti_scan_ends(scan)) {
        return INVALID("expected %s, got the end of the line", expected);
    }
    if (!isgraph((unsigned char)*scan->at)) {
        return INVALID("expected %s, got byte 0x%02x", expected, (unsigned char)*scan->at);
    }
    size_t length = name_length(scan);
    return INVALID("expected %s, got '%.*s'", expected,
                   length > 40 ? 40
                   : length    ? (int)length
                               : 1,
                   scan->at);
}

bool wefti_scan_ends(wefti_scan_t *scan)
{
    skip_spaces(scan);
    return scan->at == scan->end || *scan->at == '#';
}

bool wefti_scan_accept(wefti_scan_t *scan, char symbol)
{
    skip_spaces(scan);
    if (scan->at == scan->end || *scan->at != symbol) {
        return false;
    }
    scan->at++;
    return true;
}

weft_status_t wefti_scan_expect(wefti_scan_t *scan, char symbol)
{
    const char quoted[] = {'\'', symbol, '\'', '\0'};
    return wefti_scan_accept(scan, symbol) ? WEFT_OK : wefti_scan_unexpected(scan, quoted);
}

bool wefti_scan_word(wefti_scan_t *scan, const char *word)
{
    return wefti_scan_choice(scan, (const char *const[]){word, NULL}) == 0;
}

int wefti_scan_choice(wefti_scan_t *scan, const char *const *list)
{
    skip_spaces(scan);
    size_t length = name_length(scan);
    for (int i = 0; list[i]; i++) {
        if (strlen(list[i]) == length && memcmp(scan->at, list[i], length) == 0) {
            scan->at += length;
            return i;
        }
    }
    return -1;
}

/* Copies bytes up to end, turning \xNN into bytes; NUL is not allowed. */
static weft_status_t unescape(wefti_scan_t *scan, const char *end, const char **out_text)
{
    char *text = wefti_arena_alloc(scan->words, (size_t)(end - scan->at) + 1);
    if (!text) {
        return WEFT_ERR_NO_MEMORY;
    }
    *out_text = text;
    while (scan->at < end) {
        unsigned byte = (unsigned char)*scan->at++;
        if (byte == '\\') {
            char hex[3] = {0};
            if (end - scan->at < 3 || *scan->at != 'x' || !isxdigit((unsigned char)scan->at[1]) ||
                !isxdigit((unsigned char)scan->at[2])) {
                return INVALID("'\\' begins an escape, which has the form \\xNN");
            }
            memcpy(hex, scan->at + 1, 2);
            byte = (unsigned)strtoul(hex, NULL, 16);
            scan->at += 3;
        }
        if (byte == 0) {
            return INVALID("a name has a zero byte");
        }
        *text++ = (char)byte;
    }
    return WEFT_OK;
}

static weft_status_t scan_string(wefti_scan_t *scan, const char **out_text)
{
    const char *end = scan->at;
    while (end < scan->end && *end != '"') {
        end++;
    }
    if (end == scan->end) {
        return INVALID("a string has no closing '\"'");
    }
    weft_status_t status = unescape(scan, end, out_text);
    scan->at = end + 1;
    return status;
}

weft_status_t wefti_scan_name(wefti_scan_t *scan, const char *what, const char **out_name)
{
    if (wefti_scan_accept(scan, '"')) {
        return scan_string(scan, out_name);
    }
    size_t length = name_length(scan);
    return length ? unescape(scan, scan->at + length, out_name) : wefti_scan_unexpected(scan, what);
}

/* The next name as terminated text, for strtod and the like. */
static weft_status_t scan_digits(wefti_scan_t *scan, char digits[64])
{
    skip_spaces(scan);
    size_t length = name_length(scan);
    if (length == 0 || length >= 64) {
        return wefti_scan_unexpected(scan, "a number");
    }
    memcpy(digits, scan->at, length);
    digits[length] = '\0';
    scan->at += length;
    return WEFT_OK;
}

static weft_status_t to_int(const char *digits, int64_t low, int64_t high, int64_t *out_number)
{
    char *end;
    errno = 0;
    long long number = strtoll(digits, &end, 10);
    if (*end || end == digits) {
        return INVALID("not a whole number: '%s'", digits);
    }
    if (errno == ERANGE || number < low || number > high) {
        return INVALID("number out of range: %s, expected %" PRId64 " to %" PRId64, digits, low,
                       high);
    }
    *out_number = number;
    return WEFT_OK;
}

weft_status_t wefti_scan_int(wefti_scan_t *scan, int64_t low, int64_t high, int64_t *out_number)
{
    char digits[64];
    weft_status_t status = scan_digits(scan, digits);
    return status < 0 ? status : to_int(digits, low, high, out_number);
}

static weft_status_t to_double(const char *digits, double *out_number)
{
    char *end;
    *out_number = strtod(digits, &end);
    return *end || end == digits ? INVALID("not a number: '%s'", digits) : WEFT_OK;
}

weft_status_t wefti_scan_double(wefti_scan_t *scan, double *out_number)
{
    char digits[64];
    weft_status_t status = scan_digits(scan, digits);
    return status < 0 ? status : to_double(digits, out_number);
}

static weft_status_t scan_dim(wefti_scan_t *scan, const char **dim_names, uint32_t d, int64_t *dim)
{
    weft_status_t status;
    const char *name;
    skip_spaces(scan);
    if (scan->at < scan->end && isdigit((unsigned char)*scan->at)) {
        return wefti_scan_int(scan, 0, INT64_MAX, dim);
    }
    *dim = -1;
    if (wefti_scan_word(scan, "?")) {
        return WEFT_OK;
    }
    WEFT_TRY(status, wefti_scan_name(scan, "a dimension", &name), fail);
    if (!dim_names) {
        return INVALID("dimension '%s' has a name, which only inputs may have", name);
    }
    dim_names[d] = wefti_arena_strdup(scan->kept, name);
    return dim_names[d] ? WEFT_OK : WEFT_ERR_NO_MEMORY;
fail:
    return status;
}

weft_status_t wefti_scan_type(wefti_scan_t *scan, weft_tensor_desc_t *type, const char **dim_names)
{
    weft_status_t status;
    const char *name;
    *type = (weft_tensor_desc_t){0};
    if (wefti_scan_word(scan, "?")) {
        return WEFT_OK;
    }
    WEFT_TRY(status, wefti_scan_name(scan, "a type", &name), fail);
    type->dtype = weft_dtype_from_name(name);
    if (type->dtype == WEFT_DTYPE_NONE) {
        return INVALID("unknown type '%s'", name);
    }
    WEFT_TRY(status, wefti_scan_expect(scan, '['), fail);
    if (!wefti_scan_accept(scan, ']')) {
        do {
            if (type->rank == WEFT_MAX_DIMS) {
                return INVALID("too many dimensions: limit %d", WEFT_MAX_DIMS);
            }
            uint32_t d = type->rank++;
            WEFT_TRY(status, scan_dim(scan, dim_names, d, &type->dims[d]), fail);
        } while (wefti_scan_accept(scan, ','));
        WEFT_TRY(status, wefti_scan_expect(scan, ']'), fail);
    }
    type->layout = wefti_scan_word(scan, "nhwc") ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    return WEFT_OK;
fail:
    return status;
}

static weft_status_t store_int(const char *digits, weft_dtype_t dtype, uint8_t *to)
{
    size_t bits = 8 * weft_dtype_size_bytes(dtype);
    bool is_signed = dtype >= WEFT_DTYPE_I64 && dtype <= WEFT_DTYPE_I8;
    int64_t high = dtype == WEFT_DTYPE_BOOL ? 1
                   : bits == 64             ? INT64_MAX
                                            : (INT64_C(1) << (is_signed ? bits - 1 : bits)) - 1;
    int64_t number = 0;
    char *end;
    if (dtype == WEFT_DTYPE_U64 && isdigit((unsigned char)*digits)) {
        errno = 0;
        number = (int64_t)strtoull(digits, &end, 10);
        if (*end || errno) {
            return INVALID("number out of range: %s", digits);
        }
    } else {
        weft_status_t status = to_int(digits, is_signed ? -high - 1 : 0, high, &number);
        if (status < 0) {
            return status;
        }
    }
    for (size_t i = 0; i < bits / 8; i++) {
        to[i] = (uint8_t)((uint64_t)number >> (8 * i));
    }
    return WEFT_OK;
}

static weft_status_t store_element(const char *digits, weft_dtype_t dtype, uint8_t *to)
{
    double f64;
    if (dtype > WEFT_DTYPE_BF16) {
        return store_int(digits, dtype, to);
    }
    weft_status_t status = to_double(digits, &f64);
    float f32 = strtof(digits, NULL);
    uint16_t half = dtype == WEFT_DTYPE_F16 ? wefti_f16_from_f32(f32) : wefti_bf16_from_f32(f32);
    const void *from = dtype == WEFT_DTYPE_F64   ? (const void *)&f64
                       : dtype == WEFT_DTYPE_F32 ? (const void *)&f32
                                                 : &half;
    memcpy(to, from, weft_dtype_size_bytes(dtype));
    return status;
}

static weft_status_t scan_hex(wefti_scan_t *scan, uint8_t *to, size_t bytes)
{
    for (size_t i = 0; i < 2 * bytes; i++, scan->at++) {
        if (scan->at == scan->end || !isxdigit((unsigned char)*scan->at)) {
            return INVALID("contents: expected %zu hexadecimal digits, got %zu", 2 * bytes, i);
        }
        unsigned digit = (unsigned char)*scan->at;
        digit = digit <= '9' ? digit - '0' : (digit | 32u) - 'a' + 10;
        to[i / 2] = (uint8_t)(to[i / 2] << 4 | digit);
    }
    return WEFT_OK;
}

/* One number for all elements. */
static weft_status_t scan_fill(wefti_scan_t *scan, weft_dtype_t dtype, uint8_t *to, size_t bytes)
{
    char digits[64];
    uint8_t element[8];
    size_t size = weft_dtype_size_bytes(dtype);
    weft_status_t status;
    WEFT_TRY(status, scan_digits(scan, digits), fail);
    WEFT_TRY(status, store_element(digits, dtype, element), fail);
    for (size_t at = 0; at < bytes; at += size) {
        memcpy(to + at, element, size);
    }
fail:
    return status;
}

static weft_status_t scan_list(wefti_scan_t *scan, weft_dtype_t dtype, uint8_t *to, size_t bytes)
{
    char digits[64];
    weft_status_t status;
    size_t size = weft_dtype_size_bytes(dtype), at = 0;
    bool more = !wefti_scan_accept(scan, ']');
    for (; more; at += size) {
        WEFT_TRY(status, scan_digits(scan, digits), fail);
        if (at == bytes) {
            return INVALID("contents: too many elements, expected %zu", bytes / size);
        }
        WEFT_TRY(status, store_element(digits, dtype, to + at), fail);
        more = wefti_scan_accept(scan, ',');
        WEFT_TRY(status, more ? WEFT_OK : wefti_scan_expect(scan, ']'), fail);
    }
    return at == bytes ? WEFT_OK
                       : INVALID("contents: %zu elements, expected %zu", at / size, bytes / size);
fail:
    return status;
}

weft_status_t wefti_scan_contents(wefti_scan_t *scan, weft_tensor_desc_t *type)
{
    int64_t count = weft_tensor_elem_count(type);
    size_t bytes = 0;
    if (wefti_scan_word(scan, "...")) {
        return WEFT_OK;
    }
    if (type->dtype == WEFT_DTYPE_NONE || count < 0) {
        return INVALID("contents of an unknown shape");
    }
    if (!wefti_mul_size((size_t)count, weft_dtype_size_bytes(type->dtype), &bytes) ||
        bytes > MAX_CONTENTS_BYTES - scan->contents_bytes) {
        return INVALID("contents too large: limit %zu bytes in sum", MAX_CONTENTS_BYTES);
    }
    scan->contents_bytes += bytes;
    uint8_t *data = wefti_arena_alloc(scan->kept, bytes);
    if (!data) {
        return WEFT_ERR_NO_MEMORY;
    }
    type->data = data;
    if (wefti_scan_accept(scan, '[')) {
        return scan_list(scan, type->dtype, data, bytes);
    }
    return wefti_scan_accept(scan, 'x') ? scan_hex(scan, data, bytes)
                                        : scan_fill(scan, type->dtype, data, bytes);
}

/* ---- attributes ---- */

static bool is_float_text(const char *digits)
{
    return strpbrk(digits, ".enN") != NULL;
}

static weft_status_t scan_number_attr(wefti_scan_t *scan, bool is_float, weft_attr_t *attr)
{
    char digits[64];
    double number;
    weft_status_t status = scan_digits(scan, digits);
    if (status < 0) {
        return status;
    }
    attr->type = is_float || is_float_text(digits) ? WEFT_ATTR_FLOAT : WEFT_ATTR_INT;
    if (attr->type == WEFT_ATTR_INT) {
        return to_int(digits, INT64_MIN, INT64_MAX, &attr->i);
    }
    status = to_double(digits, &number);
    attr->f = strtof(digits, NULL);
    return status;
}

/* Elements of a list that are still to come, at most: room for them. */
static size_t count_commas(const wefti_scan_t *scan)
{
    size_t count = 1;
    for (const char *at = scan->at; at < scan->end; at++) {
        count += *at == ',';
    }
    return count;
}

/* type: of the elements, as an attribute of its own; 0: that of the first one. */
static weft_status_t scan_list_attr(wefti_scan_t *scan, int type, weft_attr_t *attr)
{
    weft_status_t status;
    size_t room = count_commas(scan);
    int64_t *ints = wefti_arena_array(scan->words, room, sizeof(*ints));
    float *floats = wefti_arena_array(scan->words, room, sizeof(*floats));
    const char **strings = wefti_arena_array(scan->words, room, sizeof(*strings));
    if (!ints || !floats || !strings) {
        return WEFT_ERR_NO_MEMORY;
    }
    bool more = !wefti_scan_accept(scan, ']');
    for (; more; attr->count++) {
        weft_attr_t one = {0};
        if (wefti_scan_accept(scan, '"')) {
            one.type = WEFT_ATTR_STRING;
            WEFT_TRY(status, scan_string(scan, &strings[attr->count]), fail);
        } else {
            WEFT_TRY(status, scan_number_attr(scan, type == WEFT_ATTR_FLOAT, &one), fail);
        }
        type = type ? type : (int)one.type;
        if (type != (int)one.type) {
            return INVALID("attribute '%s': elements of several types", attr->name);
        }
        ints[attr->count] = one.i;
        floats[attr->count] = one.f;
        more = wefti_scan_accept(scan, ',');
        WEFT_TRY(status, more ? WEFT_OK : wefti_scan_expect(scan, ']'), fail);
    }
    attr->ints = ints;
    attr->floats = floats;
    attr->strings = strings;
    attr->type = type == WEFT_ATTR_STRING  ? WEFT_ATTR_STRINGS
                 : type == WEFT_ATTR_FLOAT ? WEFT_ATTR_FLOATS
                                           : WEFT_ATTR_INTS;
    return WEFT_OK;
fail:
    return status;
}

static weft_status_t scan_tensor_attr(wefti_scan_t *scan, weft_attr_t *attr)
{
    weft_status_t status;
    weft_tensor_desc_t *tensor = wefti_arena_alloc(scan->words, sizeof(*tensor));
    if (!tensor) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_scan_type(scan, tensor, NULL), fail);
    if (wefti_scan_accept(scan, '=')) {
        WEFT_TRY(status, wefti_scan_contents(scan, tensor), fail);
    }
    attr->type = WEFT_ATTR_TENSOR;
    attr->tensor = tensor;
fail:
    return status;
}

/* The type that the definition gives the attribute; 0: unknown. */
static int defined_type(const weft_op_def_t *def, const char *name)
{
    for (size_t i = 0; def && i < def->attr_count; i++) {
        if (strcmp(def->attrs[i].name, name) == 0) {
            return (int)def->attrs[i].type;
        }
    }
    return 0;
}

weft_status_t wefti_scan_attr(wefti_scan_t *scan, const weft_op_def_t *def, weft_attr_t *out_attr)
{
    weft_status_t status;
    *out_attr = (weft_attr_t){0};
    WEFT_TRY(status, wefti_scan_name(scan, "an attribute", &out_attr->name), fail);
    WEFT_TRY(status, wefti_scan_expect(scan, '='), fail);
    int type = defined_type(def, out_attr->name);
    if (wefti_scan_accept(scan, '"')) {
        out_attr->type = WEFT_ATTR_STRING;
        return scan_string(scan, &out_attr->s);
    }
    if (wefti_scan_accept(scan, '[')) {
        return scan_list_attr(scan, type == WEFT_ATTR_FLOATS ? WEFT_ATTR_FLOAT : 0, out_attr);
    }
    static const char *const lists[] = {"floats", "strings", NULL};
    int list = wefti_scan_choice(scan, lists);
    if (list >= 0) {
        WEFT_TRY(status, wefti_scan_expect(scan, '['), fail);
        return scan_list_attr(scan, list == 0 ? WEFT_ATTR_FLOAT : WEFT_ATTR_STRING, out_attr);
    }
    const char *end = scan->at + name_length(scan);
    return end < scan->end && *end == '['
               ? scan_tensor_attr(scan, out_attr)
               : scan_number_attr(scan, type == WEFT_ATTR_FLOAT, out_attr);
fail:
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the text form: names, numbers, types, contents, attributes. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/text/text.h"
#include "runtime/base/half.h"

#define FAIL WEFTI_SCAN_FAIL
#define MAX_CONTENTS_BYTES ((size_t)256 << 20)
#define DIGITS_BYTES 64

void wefti_scan_fail(wefti_scan_t *scan, weft_status_t status)
{
    scan->status = status;
    scan->at = scan->end;
}

static void *take(wefti_scan_t *scan, wefti_arena_t *arena, size_t bytes)
{
    void *memory = scan->status < 0 ? NULL : wefti_arena_alloc(arena, bytes);
    if (!memory && scan->status >= 0) {
        wefti_scan_fail(scan, WEFT_ERR_NO_MEMORY);
    }
    return memory;
}

/* Bytes of the next name. It does not end with ':'. */
static size_t name_length(const wefti_scan_t *scan)
{
    const char *at = scan->at;
    while (at < scan->end && (unsigned char)*at > ' ' && *at != 127 &&
           !strchr(WEFTI_TEXT_ENDS_NAME, *at)) {
        at++;
    }
    while (at > scan->at && at[-1] == ':') {
        at--;
    }
    return (size_t)(at - scan->at);
}

bool wefti_scan_ends(wefti_scan_t *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r')) {
        scan->at++;
    }
    return scan->at == scan->end || *scan->at == '#';
}

void wefti_scan_unexpected(wefti_scan_t *scan, const char *expected)
{
    if (wefti_scan_ends(scan)) {
        FAIL(scan, "expected %s, got the end of the line", expected);
    } else if (!isgraph((unsigned char)*scan->at)) {
        FAIL(scan, "expected %s, got byte 0x%02x", expected, (unsigned char)*scan->at);
    } else {
        size_t length = name_length(scan);
        FAIL(scan, "expected %s, got '%.*s'", expected,
             length > 40 ? 40
             : length    ? (int)length
                         : 1,
             scan->at);
    }
}

bool wefti_scan_accept(wefti_scan_t *scan, char symbol)
{
    (void)wefti_scan_ends(scan); /* skips spaces */
    bool accepted = scan->at < scan->end && *scan->at == symbol;
    scan->at += accepted;
    return accepted;
}

void wefti_scan_expect(wefti_scan_t *scan, char symbol)
{
    const char quoted[] = {'\'', symbol, '\'', '\0'};
    if (!wefti_scan_accept(scan, symbol)) {
        wefti_scan_unexpected(scan, quoted);
    }
}

bool wefti_scan_word(wefti_scan_t *scan, const char *word)
{
    return wefti_scan_choice(scan, (const char *const[]){word, NULL}) == 0;
}

int wefti_scan_choice(wefti_scan_t *scan, const char *const *list)
{
    (void)wefti_scan_ends(scan);
    size_t length = name_length(scan);
    for (int i = 0; list[i]; i++) {
        if (strlen(list[i]) == length && memcmp(scan->at, list[i], length) == 0) {
            scan->at += length;
            return i;
        }
    }
    return -1;
}

void *wefti_scan_array(wefti_scan_t *scan, char symbol, size_t elem_bytes)
{
    size_t count = 1;
    bool quoted = false;
    for (const char *at = scan->at; at < scan->end && (quoted || *at != symbol); at++) {
        quoted ^= *at == '"';
        count += *at == ',';
    }
    return take(scan, &scan->words, count * elem_bytes); /* a line is shorter than 4 GiB */
}

/* The bytes up to end, \xNN turned into bytes. */
static const char *unescape(wefti_scan_t *scan, const char *end)
{
    char *text = take(scan, &scan->words, (size_t)(end - scan->at) + 1), *to = text;
    while (text && scan->at < end) {
        unsigned byte = (unsigned char)*scan->at++;
        if (byte == '\\') {
            char hex[3] = {0};
            if (end - scan->at < 3 || *scan->at != 'x' || !isxdigit((unsigned char)scan->at[1]) ||
                !isxdigit((unsigned char)scan->at[2])) {
                FAIL(scan, "'\\' begins an escape, which has the form \\xNN");
                return "";
            }
            memcpy(hex, scan->at + 1, 2);
            byte = (unsigned)strtoul(hex, NULL, 16);
            scan->at += 3;
        }
        if (byte == 0) {
            FAIL(scan, "a name has a zero byte");
            return "";
        }
        *to++ = (char)byte;
    }
    return text ? text : "";
}

static const char *scan_string(wefti_scan_t *scan)
{
    const char *end = scan->at;
    while (end < scan->end && *end != '"') {
        end++;
    }
    if (end == scan->end) {
        FAIL(scan, "a string has no closing '\"'");
        return "";
    }
    const char *text = unescape(scan, end);
    wefti_scan_expect(scan, '"');
    return text;
}

const char *wefti_scan_name(wefti_scan_t *scan, const char *what)
{
    if (wefti_scan_accept(scan, '"')) {
        return scan_string(scan);
    }
    size_t length = name_length(scan);
    if (length == 0) {
        wefti_scan_unexpected(scan, what);
        return "";
    }
    return unescape(scan, scan->at + length);
}

/* The next name as terminated text, for strtod and the like; "0" after a failure. */
static void scan_digits(wefti_scan_t *scan, char digits[DIGITS_BYTES])
{
    (void)wefti_scan_ends(scan);
    size_t length = name_length(scan);
    strcpy(digits, "0");
    if (length == 0 || length >= DIGITS_BYTES) {
        wefti_scan_unexpected(scan, "a number");
        return;
    }
    memcpy(digits, scan->at, length);
    digits[length] = '\0';
    scan->at += length;
}

static int64_t to_int(wefti_scan_t *scan, const char *digits, int64_t low, int64_t high)
{
    char *end;
    errno = 0;
    long long number = strtoll(digits, &end, 10);
    if (*end || end == digits) {
        FAIL(scan, "not a whole number: '%s'", digits);
    } else if (errno == ERANGE || number < low || number > high) {
        FAIL(scan, "number out of range: %s, expected %" PRId64 " to %" PRId64, digits, low, high);
    }
    return number;
}

int64_t wefti_scan_int(wefti_scan_t *scan, int64_t low, int64_t high)
{
    char digits[DIGITS_BYTES];
    scan_digits(scan, digits);
    return to_int(scan, digits, low, high);
}

static double to_double(wefti_scan_t *scan, const char *digits)
{
    char *end;
    double number = strtod(digits, &end);
    if (*end || end == digits) {
        FAIL(scan, "not a number: '%s'", digits);
    }
    return number;
}

double wefti_scan_double(wefti_scan_t *scan)
{
    char digits[DIGITS_BYTES];
    scan_digits(scan, digits);
    return to_double(scan, digits);
}

static int64_t scan_dim(wefti_scan_t *scan, const char **out_name)
{
    if (!wefti_scan_ends(scan) && isdigit((unsigned char)*scan->at)) {
        return wefti_scan_int(scan, 0, INT64_MAX);
    }
    if (wefti_scan_word(scan, "?")) {
        return -1;
    }
    const char *name = wefti_scan_name(scan, "a dimension");
    char *copy = take(scan, scan->kept, strlen(name) + 1);
    if (!out_name) {
        FAIL(scan, "dimension '%s' has a name, which only inputs may have", name);
    } else if (copy) {
        *out_name = strcpy(copy, name);
    }
    return -1;
}

weft_tensor_desc_t wefti_scan_type(wefti_scan_t *scan, const char **dim_names)
{
    weft_tensor_desc_t type = {0};
    if (wefti_scan_word(scan, "?")) {
        return type;
    }
    const char *name = wefti_scan_name(scan, "a type");
    type.dtype = weft_dtype_from_name(name);
    if (type.dtype == WEFT_DTYPE_NONE) {
        FAIL(scan, "unknown type '%s'", name);
    }
    wefti_scan_expect(scan, '[');
    bool more = !wefti_scan_accept(scan, ']');
    for (; more && scan->status >= 0; type.rank++) {
        if (type.rank == WEFT_MAX_DIMS) {
            FAIL(scan, "too many dimensions: limit %d", WEFT_MAX_DIMS);
            break;
        }
        type.dims[type.rank] = scan_dim(scan, dim_names ? &dim_names[type.rank] : NULL);
        more = wefti_scan_accept(scan, ',');
        if (!more) {
            wefti_scan_expect(scan, ']');
        }
    }
    type.layout = wefti_scan_word(scan, "nhwc") ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN;
    return type;
}

/* ---- contents ---- */

static uint64_t element_int(wefti_scan_t *scan, const char *digits, weft_dtype_t dtype)
{
    size_t bits = 8 * weft_dtype_size_bytes(dtype);
    if (dtype == WEFT_DTYPE_U64 && isdigit((unsigned char)*digits)) {
        errno = 0;
        uint64_t number = strtoull(digits, NULL, 10);
        if (errno || strspn(digits, "0123456789") != strlen(digits)) {
            FAIL(scan, "number out of range: %s", digits);
        }
        return number;
    }
    bool is_signed = dtype >= WEFT_DTYPE_I64 && dtype <= WEFT_DTYPE_I8;
    int64_t high = dtype == WEFT_DTYPE_BOOL ? 1 : (int64_t)(UINT64_MAX >> (64 - bits + is_signed));
    return (uint64_t)to_int(scan, digits, is_signed ? -high - 1 : 0, high);
}

static void scan_element(wefti_scan_t *scan, weft_dtype_t dtype, uint8_t *to)
{
    char digits[DIGITS_BYTES];
    scan_digits(scan, digits);
    size_t size = weft_dtype_size_bytes(dtype);
    if (dtype > WEFT_DTYPE_BF16) {
        uint64_t number = element_int(scan, digits, dtype);
        for (size_t i = 0; i < size; i++) {
            to[i] = (uint8_t)(number >> (8 * i));
        }
        return;
    }
    double f64 = to_double(scan, digits);
    float f32 = strtof(digits, NULL);
    uint16_t half = dtype == WEFT_DTYPE_F16 ? wefti_f16_from_f32(f32) : wefti_bf16_from_f32(f32);
    const void *const by_size[] = {[2] = &half, [4] = &f32, [8] = &f64};
    memcpy(to, by_size[size], size);
}

static void scan_hex(wefti_scan_t *scan, uint8_t *to, size_t bytes)
{
    for (size_t i = 0; i < 2 * bytes; i++, scan->at++) {
        if (scan->at == scan->end || !isxdigit((unsigned char)*scan->at)) {
            FAIL(scan, "contents: expected %zu hexadecimal digits, got %zu", 2 * bytes, i);
            return;
        }
        unsigned digit = (unsigned char)*scan->at;
        digit = digit <= '9' ? digit - '0' : (digit | 32u) - 'a' + 10;
        to[i / 2] = (uint8_t)(to[i / 2] << 4 | digit);
    }
}

static void scan_list(wefti_scan_t *scan, weft_dtype_t dtype, uint8_t *to, size_t count)
{
    size_t size = weft_dtype_size_bytes(dtype), i = 0;
    bool more = !wefti_scan_accept(scan, ']');
    for (; more && i < count; i++) {
        scan_element(scan, dtype, to + i * size);
        more = wefti_scan_accept(scan, ',');
        if (!more) {
            wefti_scan_expect(scan, ']');
        }
    }
    if (more || i < count) {
        FAIL(scan, "contents: %s than %zu elements", more ? "more" : "fewer", count);
    }
}

void wefti_scan_contents(wefti_scan_t *scan, weft_tensor_desc_t *type)
{
    int64_t count = weft_tensor_elem_count(type);
    size_t size = weft_dtype_size_bytes(type->dtype), bytes = 0;
    if (wefti_scan_word(scan, "...")) {
        return;
    }
    if (type->dtype == WEFT_DTYPE_NONE || count < 0) {
        FAIL(scan, "contents of an unknown shape");
    } else if (!wefti_mul_size((size_t)count, size, &bytes) ||
               bytes > MAX_CONTENTS_BYTES - scan->contents_bytes) {
        FAIL(scan, "contents too large: limit %zu bytes in sum", MAX_CONTENTS_BYTES);
    }
    uint8_t *data = take(scan, scan->kept, bytes);
    if (!data) {
        return;
    }
    scan->contents_bytes += bytes;
    type->data = data;
    if (wefti_scan_accept(scan, '[')) {
        scan_list(scan, type->dtype, data, (size_t)count);
    } else if (wefti_scan_accept(scan, 'x')) {
        scan_hex(scan, data, bytes);
    } else { /* one number for all elements */
        uint8_t element[8];
        scan_element(scan, type->dtype, element);
        for (size_t at = 0; at < bytes; at += size) {
            memcpy(data + at, element, size);
        }
    }
}

/* ---- attributes ---- */

static void scan_number_attr(wefti_scan_t *scan, bool is_float, weft_attr_t *attr)
{
    char digits[DIGITS_BYTES];
    scan_digits(scan, digits);
    attr->type = is_float || strpbrk(digits, ".enN") ? WEFT_ATTR_TYPE_FLOAT : WEFT_ATTR_TYPE_INT;
    if (attr->type == WEFT_ATTR_TYPE_INT) {
        attr->i = to_int(scan, digits, INT64_MIN, INT64_MAX);
    } else {
        (void)to_double(scan, digits);
        attr->f = strtof(digits, NULL);
    }
}

/* type: of an element; 0: that of the first one. */
static void scan_list_attr(wefti_scan_t *scan, int type, weft_attr_t *attr)
{
    int64_t *ints = wefti_scan_array(scan, ']', sizeof(*ints));
    float *floats = wefti_scan_array(scan, ']', sizeof(*floats));
    const char **strings = wefti_scan_array(scan, ']', sizeof(*strings));
    bool more = !wefti_scan_accept(scan, ']');
    for (; more && scan->status >= 0; attr->count++) {
        weft_attr_t one = {.type = WEFT_ATTR_TYPE_STRING};
        if (wefti_scan_accept(scan, '"')) {
            strings[attr->count] = scan_string(scan);
        } else {
            scan_number_attr(scan, type == WEFT_ATTR_TYPE_FLOAT, &one);
            ints[attr->count] = one.i;
            floats[attr->count] = one.f;
        }
        type = type ? type : (int)one.type;
        if (type != (int)one.type) {
            FAIL(scan, "attribute '%s': elements of several types", attr->name);
        }
        more = wefti_scan_accept(scan, ',');
        if (!more) {
            wefti_scan_expect(scan, ']');
        }
    }
    attr->ints = ints;
    attr->floats = floats;
    attr->strings = strings;
    attr->type = type == WEFT_ATTR_TYPE_STRING  ? WEFT_ATTR_TYPE_STRINGS
                 : type == WEFT_ATTR_TYPE_FLOAT ? WEFT_ATTR_TYPE_FLOATS
                                                : WEFT_ATTR_TYPE_INTS;
}

static void scan_tensor_attr(wefti_scan_t *scan, weft_attr_t *attr)
{
    weft_tensor_desc_t type = wefti_scan_type(scan, NULL);
    weft_tensor_desc_t *tensor = take(scan, &scan->words, sizeof(*tensor));
    if (wefti_scan_accept(scan, '=')) {
        wefti_scan_contents(scan, &type);
    }
    if (tensor) {
        *tensor = type;
    }
    attr->type = WEFT_ATTR_TYPE_TENSOR;
    attr->tensor = tensor;
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

weft_attr_t wefti_scan_attr(wefti_scan_t *scan, const weft_op_def_t *def)
{
    static const char *const lists[] = {"floats", "strings", NULL};
    weft_attr_t attr = {.name = wefti_scan_name(scan, "an attribute")};
    int type = defined_type(def, attr.name);
    wefti_scan_expect(scan, '=');
    int list = wefti_scan_choice(scan, lists);
    if (wefti_scan_accept(scan, '"')) {
        attr.type = WEFT_ATTR_TYPE_STRING;
        attr.s = scan_string(scan);
    } else if (wefti_scan_accept(scan, '[')) {
        bool is_float = list == 0 || type == WEFT_ATTR_TYPE_FLOATS;
        scan_list_attr(scan,
                       is_float    ? WEFT_ATTR_TYPE_FLOAT
                       : list == 1 ? WEFT_ATTR_TYPE_STRING
                                   : 0,
                       &attr);
    } else {
        const char *end = scan->at + name_length(scan);
        if (end < scan->end && *end == '[') {
            scan_tensor_attr(scan, &attr);
        } else {
            scan_number_attr(scan, type == WEFT_ATTR_TYPE_FLOAT, &attr);
        }
    }
    return attr;
}

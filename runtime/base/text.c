/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/memory.h"

void wefti_text_init(wefti_text_t *text, const weft_allocator_t *allocator)
{
    *text = (wefti_text_t){.allocator = allocator};
}

void wefti_text_deinit(wefti_text_t *text)
{
    wefti_free(text->allocator, text->data);
    text->data = NULL;
    text->length = 0;
    text->capacity = 0;
}

/* Makes room for more bytes and the terminator; after one failure every call returns false. */
static bool reserve(wefti_text_t *text, size_t more)
{
    size_t need;
    if (text->failed) {
        return false;
    }
    if (!wefti_add_size(text->length, more, &need) || !wefti_add_size(need, 1, &need) ||
        wefti_array_reserve(text->allocator, &text->data, &text->capacity, need, 1) != WEFT_OK) {
        text->failed = true;
    }
    return !text->failed;
}

void wefti_text_add_bytes(wefti_text_t *text, const void *bytes, size_t count)
{
    if (!reserve(text, count)) {
        return;
    }
    if (count) {
        memcpy(text->data + text->length, bytes, count);
    }
    text->length += count;
    text->data[text->length] = '\0';
}

void wefti_text_add(wefti_text_t *text, const char *string)
{
    wefti_text_add_bytes(text, string, strlen(string));
}

void wefti_text_printf(wefti_text_t *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        text->failed = true;
        return;
    }
    if (reserve(text, (size_t)length)) {
        va_start(args, format);
        vsnprintf(text->data + text->length, (size_t)length + 1, format, args);
        va_end(args);
        text->length += (size_t)length;
    }
}

size_t wefti_utf8_length(const unsigned char *text)
{
    size_t length;
    uint32_t code, least;
    if (text[0] < 0x80) {
        return 1;
    }
    if ((text[0] & 0xe0) == 0xc0) {
        length = 2, code = text[0] & 0x1fu, least = 0x80;
    } else if ((text[0] & 0xf0) == 0xe0) {
        length = 3, code = text[0] & 0x0fu, least = 0x800;
    } else if ((text[0] & 0xf8) == 0xf0) {
        length = 4, code = text[0] & 0x07u, least = 0x10000;
    } else {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) { /* the terminator too */
            return 0;
        }
        code = code << 6 | (text[i] & 0x3fu);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least || code > 0x10ffff || surrogate ? 0 : length;
}

bool wefti_utf8_control(const unsigned char *text, size_t length)
{
    return (length == 1 && (*text < 0x20 || *text == 0x7f)) ||
           (length == 2 && text[0] == 0xc2 && text[1] < 0xa0);
}

void wefti_text_add_printable(wefti_text_t *text, const char *string)
{
    const unsigned char *at = (const unsigned char *)string;
    while (*at) {
        size_t length = wefti_utf8_length(at);
        bool shown = length > 0 && !wefti_utf8_control(at, length);
        wefti_text_add_bytes(text, shown ? (const void *)at : "?", shown ? length : 1);
        at += length > 0 ? length : 1;
    }
}

char *wefti_text_take(wefti_text_t *text)
{
    char *data;
    wefti_text_add(text, ""); /* so that nothing added is "" and not NULL */
    if (text->failed) {
        wefti_text_deinit(text);
        return NULL;
    }
    data = text->data;
    text->data = NULL;
    text->length = 0;
    text->capacity = 0;
    return data;
}

bool wefti_double_parse(const char *text, double *out)
{
    char digits[64], *end;
    size_t length = strlen(text);
    if (length == 0 || length >= sizeof digits) {
        return false;
    }
    memcpy(digits, text, length + 1);
    *out = strtod(digits, &end);
    if (*end == '.') { /* only a decimal comma stops there */
        *end = ',';
        *out = strtod(digits, &end);
    }
    return end != digits && *end == '\0';
}

const char *wefti_format_bytes(uint64_t bytes, char *buffer)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    /* 1023.95 would print as "1024.0". */
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    snprintf(buffer, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 63u /* has_items has a bit per depth */

void wefti_json_init(wefti_json_t *json, wefti_text_t *out, bool pretty)
{
    *json = (wefti_json_t){.out = out, .pretty = pretty};
}

static void new_line(wefti_json_t *json)
{
    wefti_text_add(json->out, "\n");
    for (uint32_t i = 0; i < json->depth; i++) {
        wefti_text_add(json->out, "  ");
    }
}

/* Names come from model files: bytes that are not UTF-8 become U+FFFD, so that the output always
 * parses. */
static void add_quoted(wefti_text_t *out, const char *value)
{
    const unsigned char *text = (const unsigned char *)value;
    wefti_text_add(out, "\"");
    while (*text) {
        size_t length = wefti_utf8_length(text);
        if (length == 0) {
            wefti_text_add(out, "\\ufffd");
            length = 1;
        } else if (*text == '"' || *text == '\\') {
            wefti_text_printf(out, "\\%c", *text);
        } else if (*text == '\n') {
            wefti_text_add(out, "\\n");
        } else if (*text == '\t') {
            wefti_text_add(out, "\\t");
        } else if (*text < 0x20 || *text == 0x7f) {
            wefti_text_printf(out, "\\u%04x", *text);
        } else if (wefti_utf8_control(text, length)) {
            wefti_text_printf(out, "\\u%04x", text[1]); /* C1: U+0080 to U+009F */
        } else {
            wefti_text_add_bytes(out, text, length);
        }
        text += length;
    }
    wefti_text_add(out, "\"");
}

/* Comma, line and key: everything before a value. */
static void begin_item(wefti_json_t *json, const char *key)
{
    uint64_t bit = 1ull << json->depth;
    if (json->has_items & bit) {
        wefti_text_add(json->out, json->pretty ? "," : ", ");
    }
    if (json->pretty && json->depth > 0) {
        new_line(json);
    }
    json->has_items |= bit;
    if (key) {
        add_quoted(json->out, key);
        wefti_text_add(json->out, ": ");
    }
}

static void begin(wefti_json_t *json, const char *key, const char *bracket)
{
    begin_item(json, key);
    wefti_text_add(json->out, bracket);
    if (json->depth == MAX_DEPTH) {
        json->out->failed = true;
        return;
    }
    json->depth++;
    json->has_items &= ~(1ull << json->depth);
}

static void end(wefti_json_t *json, const char *bracket)
{
    if (json->depth == 0) {
        json->out->failed = true;
        return;
    }
    bool had_items = json->has_items & (1ull << json->depth);
    json->depth--;
    if (json->pretty && had_items) {
        new_line(json);
    }
    wefti_text_add(json->out, bracket);
}

void wefti_json_begin_object(wefti_json_t *json, const char *key)
{
    begin(json, key, "{");
}

void wefti_json_end_object(wefti_json_t *json)
{
    end(json, "}");
}

void wefti_json_begin_array(wefti_json_t *json, const char *key)
{
    begin(json, key, "[");
}

void wefti_json_end_array(wefti_json_t *json)
{
    end(json, "]");
}

void wefti_json_string(wefti_json_t *json, const char *key, const char *value)
{
    begin_item(json, key);
    if (value) {
        add_quoted(json->out, value);
    } else {
        wefti_text_add(json->out, "null");
    }
}

void wefti_json_int(wefti_json_t *json, const char *key, int64_t value)
{
    begin_item(json, key);
    wefti_text_printf(json->out, "%" PRId64, value);
}

void wefti_json_double(wefti_json_t *json, const char *key, double value)
{
    char digits[40];
    begin_item(json, key);
    if (!isfinite(value)) {
        wefti_text_add(json->out, "null");
        return;
    }
    /* The shortest of two lengths that reads back as the same number. */
    snprintf(digits, sizeof digits, "%.15g", value);
    if (strtod(digits, NULL) < value || strtod(digits, NULL) > value) {
        snprintf(digits, sizeof digits, "%.17g", value);
    }
    /* A host program may have set a locale with a decimal comma. */
    for (char *c = digits; *c; c++) {
        if (*c == ',') {
            *c = '.';
        }
    }
    wefti_text_add(json->out, digits);
}

void wefti_json_bool(wefti_json_t *json, const char *key, bool value)
{
    begin_item(json, key);
    wefti_text_add(json->out, value ? "true" : "false");
}

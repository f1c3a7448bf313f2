/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/version.h>

#include "runtime/base/check.h"

#define MESSAGE_BYTES 1024

static _Thread_local char message[MESSAGE_BYTES];
static _Thread_local char field[64]; /* the parameter that message is about, or "" */

static _Thread_local weft_status_t recorded_status;
static _Thread_local uint32_t recorded_count;

const char *weft_version(void)
{
    return WEFT_VERSION_STRING;
}

const char *weft_status_name(weft_status_t status)
{
    switch (status) {
#define STATUS_NAME(name, value, text)                                                             \
    case WEFT_##name:                                                                              \
        return #name;
        WEFT_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "unknown";
}

const char *weft_status_text(weft_status_t status)
{
    switch (status) {
#define STATUS_TEXT(name, value, text)                                                             \
    case WEFT_##name:                                                                              \
        return text;
        WEFT_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

const char *weft_last_error(void)
{
    return message;
}

const char *weft_last_error_field(void)
{
    return field[0] != '\0' ? field : NULL;
}

/* Messages contain names from files: keep them on one line and free of control characters. */
static void record(const char *text)
{
    snprintf(message, sizeof message, "%s", text);
    for (char *at = message; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ' || *at == 127) {
            *at = '?';
        }
    }
}

weft_status_t wefti_error(weft_status_t status, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return wefti_error_adopt(status, text);
}

weft_status_t wefti_error_field(weft_status_t status, const char *name, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    wefti_error(status, "%s: %s", name, text);
    snprintf(field, sizeof field, "%s", name);
    return status;
}

weft_status_t wefti_error_errno(weft_status_t status, int error_number, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    char reason[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *explained = strerror_r(error_number, reason, sizeof reason);
    return wefti_error(status, "%.800s: %s", text, explained);
}

weft_status_t wefti_error_prefix(weft_status_t status, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof text) {
        snprintf(text + used, sizeof text - (size_t)used, ": %s", message);
    }
    record(text);
    return status;
}

weft_status_t wefti_error_adopt(weft_status_t status, const char *text)
{
    record(text);
    field[0] = '\0';
    recorded_status = status;
    recorded_count++;
    return status;
}

uint32_t wefti_error_count(weft_status_t *out_status)
{
    *out_status = recorded_status;
    return recorded_count;
}

weft_status_t wefti_error_format(const char *function, int format)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "%s: invalid format %d: expected 0 (text) or 1 (JSON)", function, format);
}

weft_status_t wefti_error_null(const char *function, const char *argument)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: %s is NULL", function, argument);
}

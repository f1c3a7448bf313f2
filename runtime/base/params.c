/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/params.h"

#include <stdint.h>
#include <string.h>

/* No struct of ours comes near: a larger size is an uninitialised one. */
#define MAX_BYTES ((size_t)1 << 16)

static size_t size_of(const void *caller)
{
    size_t bytes;
    memcpy(&bytes, caller, sizeof bytes);
    return bytes;
}

/* A struct that holds a size_t ends where a size_t may end. */
static weft_status_t check_size(const char *name, size_t bytes)
{
    if (bytes < sizeof(size_t) || bytes > MAX_BYTES || bytes % _Alignof(size_t) != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: invalid struct_size %zu; set it to the size of the struct", name,
                           bytes);
    }
    return WEFT_OK;
}

weft_status_t wefti_params_check(const char *name, const void *params, size_t own_bytes)
{
    const uint8_t *bytes = params;
    size_t size = size_of(params);
    weft_status_t status = check_size(name, size);
    for (size_t i = own_bytes; status == WEFT_OK && i < size; i++) {
        if (bytes[i] != 0) {
            status = wefti_error(WEFT_ERR_UNSUPPORTED,
                                 "%s: unsupported field at byte %zu: struct_size is %zu, this "
                                 "library has %zu; leave newer fields zero",
                                 name, i, size, own_bytes);
        }
    }
    return status;
}

weft_status_t wefti_params_read(const char *name, const void *params, void *own, size_t own_bytes)
{
    if (params == NULL) {
        return WEFT_OK;
    }
    weft_status_t status = wefti_params_check(name, params, own_bytes);
    if (status == WEFT_OK) {
        size_t size = size_of(params);
        memcpy((uint8_t *)own + sizeof size, (const uint8_t *)params + sizeof size,
               (size < own_bytes ? size : own_bytes) - sizeof size);
    }
    return status;
}

weft_status_t wefti_params_reach(const char *name, const void *params, size_t end_bytes)
{
    size_t size = size_of(params);
    weft_status_t status = check_size(name, size);
    if (status == WEFT_OK && size < end_bytes) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "%s: invalid struct_size %zu: the field ends at byte %zu", name, size,
                             end_bytes);
    }
    return status;
}

weft_status_t wefti_report_check(const char *name, const void *report)
{
    return report != NULL ? check_size(name, size_of(report)) : WEFT_OK;
}

void wefti_report_write(void *report, const void *own, size_t own_bytes)
{
    if (report != NULL) {
        size_t size = size_of(report);
        memcpy((uint8_t *)report + sizeof size, (const uint8_t *)own + sizeof size,
               (size < own_bytes ? size : own_bytes) - sizeof size);
    }
}

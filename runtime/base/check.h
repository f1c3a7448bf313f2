/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first lines of a public function: a NULL pointer gets an error, not a crash. The message
 * names the function and the argument: "weft_session_step: session is NULL". One predictable
 * branch per argument.
 */
#ifndef WEFT_RUNTIME_BASE_CHECK_H
#define WEFT_RUNTIME_BASE_CHECK_H

#include <stddef.h>

#include "runtime/base/error.h"

/* Records "<function>: <argument> is NULL"; returns WEFT_ERR_INVALID_ARGUMENT. */
weft_status_t wefti_error_null(const char *function, const char *argument);
/* Records "<function>: invalid format <format>: .."; returns WEFT_ERR_INVALID_ARGUMENT. */
weft_status_t wefti_error_format(const char *function, int format);

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#else
#define WEFT_UNLIKELY(condition) (condition)
#endif

/* In a function that returns weft_status_t: returns WEFT_ERR_INVALID_ARGUMENT if pointer is NULL.
 */
#define WEFT_CHECK_ARG(pointer)                                                                    \
    do {                                                                                           \
        if (WEFT_UNLIKELY((pointer) == NULL)) {                                                    \
            return wefti_error_null(__func__, #pointer);                                           \
        }                                                                                          \
    } while (0)

/* The same for a form of a report that does not exist. */
#define WEFT_CHECK_FORMAT(format)                                                                  \
    do {                                                                                           \
        if (WEFT_UNLIKELY((format) != WEFT_FORMAT_TEXT && (format) != WEFT_FORMAT_JSON)) {         \
            return wefti_error_format(__func__, (int)(format));                                    \
        }                                                                                          \
    } while (0)

/* The same for an output that holds a pointer; sets that to NULL, its value on failure. */
#define WEFT_CHECK_OUT(out_pointer)                                                                \
    do {                                                                                           \
        WEFT_CHECK_ARG(out_pointer);                                                               \
        *(out_pointer) = NULL;                                                                     \
    } while (0)

/* In a function that returns a value: records the error and returns value if pointer is NULL. */
#define WEFT_CHECK_ARG_OR(pointer, value)                                                          \
    do {                                                                                           \
        if (WEFT_UNLIKELY((pointer) == NULL)) {                                                    \
            wefti_error_null(__func__, #pointer);                                                  \
            return (value);                                                                        \
        }                                                                                          \
    } while (0)

/* In a void function: records the error and returns if pointer is NULL. */
#define WEFT_CHECK_ARG_VOID(pointer)                                                               \
    do {                                                                                           \
        if (WEFT_UNLIKELY((pointer) == NULL)) {                                                    \
            wefti_error_null(__func__, #pointer);                                                  \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#endif

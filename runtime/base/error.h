/* SPDX-License-Identifier: Apache-2.0 */
/* One failure, one line: the place that first decides an error calls wefti_error; callers pass it
 * up. */
#ifndef WEFT_RUNTIME_BASE_ERROR_H
#define WEFT_RUNTIME_BASE_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/status.h>

#define WEFTI_ERROR_TEXT_BYTES 480u /* a message kept for later */

/* Evaluates expr into status; on an error goes to label. Positive codes fall through. */
#define WEFT_TRY(status, expr, label)                                                              \
    do {                                                                                           \
        (status) = (expr);                                                                         \
        if ((status) < 0) {                                                                        \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* Returns the status of expr from the calling function if it is an error. For functions that have
 * nothing to release; the others use WEFT_TRY. */
#define WEFT_RETURN_IF_ERROR(expr)                                                                 \
    do {                                                                                           \
        const weft_status_t weft_status_ = (expr);                                                 \
        if (weft_status_ < 0) {                                                                    \
            return weft_status_;                                                                   \
        }                                                                                          \
    } while (0)

/* The same where an allocation failed; allocated: its result, or several joined by &&. */
#define WEFT_RETURN_IF_NO_MEMORY(allocated)                                                        \
    do {                                                                                           \
        if (!(allocated)) {                                                                        \
            return WEFT_ERR_NO_MEMORY;                                                             \
        }                                                                                          \
    } while (0)

/* Records the calling thread's message and returns status. */
weft_status_t wefti_error(weft_status_t status, const char *format, ...) WEFT_PRINTF(2, 3);

/*
 * Records "<name>: <message>" and marks name as the parameter field that the error is about
 * (weft_last_error_field). Callers that spell the field differently, as a command-line flag or a
 * keyword, add their own spelling; the message names the field.
 */
weft_status_t wefti_error_field(weft_status_t status, const char *name, const char *format, ...)
    WEFT_PRINTF(3, 4);

/* The same as wefti_error with ": <text of errno>" appended; errno is kept. */
weft_status_t wefti_error_errno(weft_status_t status, int error_number, const char *format, ...)
    WEFT_PRINTF(3, 4);

/* Puts "prefix: " before the recorded message, to add the place (file, node) on the way up. */
weft_status_t wefti_error_prefix(weft_status_t status, const char *format, ...) WEFT_PRINTF(2, 3);

/* Errors that mean the same on all ranks, whichever had them first. */
static inline bool wefti_error_is_shared(weft_status_t status)
{
    return status == WEFT_ERR_MISMATCH || status == WEFT_ERR_PEER_DIED ||
           status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_LINK;
}

/* Messages that the calling thread has recorded so far; out_status: of the last one. */
uint32_t wefti_error_count(weft_status_t *out_status);

/* Records a message that another thread or rank produced. */
weft_status_t wefti_error_adopt(weft_status_t status, const char *message);

#endif

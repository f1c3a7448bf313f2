/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h Status codes: 0 is ok, positive is "not yet", negative is an error.
 *
 * A code says what the caller should do; the message of weft_last_error() says exactly what went
 * wrong. The place that first decides an error records its message; everyone above passes the code up.
 */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

#include <weft/attributes.h>

/* name, value, what the caller should do */
#define WEFT_STATUS_MAP(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(IN_PROGRESS, 1, "not finished yet, ask again")                                               \
    X(AGAIN, 2, "no room at the moment, retry after progress")                                     \
    X(ERR_INVALID_ARGUMENT, -1, "an argument is wrong, fix the call")                              \
    X(ERR_UNSUPPORTED, -2, "not supported, choose something else")                                 \
    X(ERR_NO_MEMORY, -3, "out of memory, free some or ask for less")                               \
    X(ERR_NOT_FOUND, -4, "something named does not exist")                                         \
    X(ERR_FORMAT, -5, "a file or message is malformed")                                            \
    X(ERR_SYSTEM, -6, "a system call failed")                                                      \
    X(ERR_MISMATCH, -7, "ranks disagree, make them call the same thing")                           \
    X(ERR_PEER_DIED, -8, "a rank is gone, rebuild the group without it")                           \
    X(ERR_TIMEOUT, -9, "the deadline passed")                                                      \
    X(ERR_ABORTED, -10, "another rank or the caller ended the group")                              \
    X(ERR_STATE, -11, "the object is not in a state for this call")                                \
    X(ERR_INTERNAL, -12, "a bug in Weft, please report it")                                        \
    X(ERR_LINK, -13, "a link between two live ranks broke, call again: another path is taken")

typedef enum weft_status {
#define WEFT_STATUS_ENUM(name, value, text) WEFT_##name = (value),
    WEFT_STATUS_MAP(WEFT_STATUS_ENUM)
#undef WEFT_STATUS_ENUM
} weft_status_t;

WEFT_EXTERN_C_BEGIN
/** @return the code's name, such as "ERR_FORMAT"; "unknown" for anything else. */
WEFT_API const char *weft_status_name(weft_status_t status);
/** @return one line saying what to do; never NULL. */
WEFT_API const char *weft_status_text(weft_status_t status);
/**
 * @return the message of the last error on the calling thread (one line, no newline), "" if there was
 * none; valid until the next Weft call on this thread.
 */
WEFT_API const char *weft_last_error(void);
/**
 * @return the field of a parameter struct that the last error on the calling thread is about, such as "in_flight"; NULL
 * if the error is not about a field; valid until the next Weft call on this thread. Front ends use it to name their own
 * spelling of the field: `weft compile` adds "--in-flight", Python the keyword.
 */
WEFT_API const char *weft_last_error_field(void);
WEFT_EXTERN_C_END

#endif

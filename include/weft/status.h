/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h
 * Status codes and error messages.
 *
 * 0 is success, a positive code means "not yet", a negative code is an error. The code states
 * what the caller should do, weft_last_error() what went wrong, in one line. The function that
 * detects an error records its message; every caller above passes the code up.
 *
 * Rules for all functions of this interface:
 * - A pointer argument must not be NULL unless its description allows NULL. A function that returns
 *   a status then returns WEFT_ERR_INVALID_ARGUMENT with the message "<function>: <argument> is
 *   NULL". A function that returns a value returns the neutral value in its description.
 * - Release and destroy functions accept NULL and do nothing.
 * - On failure an output that holds a handle, an address or a text is NULL. Other outputs are
 *   unchanged.
 * - A function that allocates may return WEFT_ERR_NO_MEMORY, also where its description does not
 *   list it.
 * - Pointer arguments are borrowed for the duration of the call unless the description states
 *   otherwise.
 * - One thread at a time uses an object; different objects are independent. "Any thread": threads
 *   may make the call at the same time, also on one object.
 *
 * Words of the descriptions:
 * - Local: the call concerns the calling rank only and waits for no other rank.
 * - Collective: every rank of the group or of the world makes the call, and all ranks make such
 *   calls in the same order.
 * - Blocking: the call returns when its work is done. Non-blocking: it enqueues or tests work.
 */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

#include <weft/attributes.h>

/** All status codes: name, value, what the caller should do. */
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

/** Result of a call: 0 success, positive "not yet", negative an error. */
typedef enum weft_status {
/** One value of WEFT_STATUS_MAP. */
#define WEFT_STATUS_ENUM(name, value, text) WEFT_##name = (value), /**< text */
    WEFT_STATUS_MAP(WEFT_STATUS_ENUM)
#undef WEFT_STATUS_ENUM
} weft_status_t;

WEFT_EXTERN_C_BEGIN
/**
 * Returns the name of a status code. Any thread.
 * @param[in] status any value
 * @return name without prefix, such as "ERR_FORMAT"; "unknown" for an unknown value; static storage
 *
 * Equivalent to: ncclGetErrorString, MPI_Error_string
 */
WEFT_API const char *weft_status_name(weft_status_t status);
/**
 * Returns what the caller should do about a status code. Any thread.
 * @param[in] status any value
 * @return one line, never NULL, static storage
 */
WEFT_API const char *weft_status_text(weft_status_t status);
/**
 * Returns the message of the last error on the calling thread. Any thread.
 * @return one line without a newline, "" before the first error; valid until the next Weft call on
 *         this thread
 *
 * Equivalent to: ncclGetLastError
 */
WEFT_API const char *weft_last_error(void);
/**
 * Returns the parameter field that the last error on the calling thread is about. Any thread.
 *
 * A front end adds its own name of the field: `weft compile` adds "--in-flight", Python its
 * keyword.
 * @return name of the field, such as "in_flight"; NULL if the error is not about a field; valid
 *         until the next Weft call on this thread
 */
WEFT_API const char *weft_last_error_field(void);
WEFT_EXTERN_C_END

#endif

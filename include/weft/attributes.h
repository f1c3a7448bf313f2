/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attributes.h
 * Compiler attributes and helper macros. The public headers stay valid C99 and C++.
 */
#ifndef WEFT_ATTRIBUTES_H
#define WEFT_ATTRIBUTES_H

#if defined(__GNUC__) || defined(__clang__)
/** Marks a function that the library exports. */
#define WEFT_API __attribute__((visibility("default")))
/** Checks the arguments of a function that takes a printf format. */
#define WEFT_PRINTF(format_index, first_arg)                                                       \
    __attribute__((format(printf, format_index, first_arg)))
/** Warns when a caller ignores the return value. */
#define WEFT_NODISCARD __attribute__((warn_unused_result))
/** Warns when a caller uses the function; message names the replacement. */
#define WEFT_DEPRECATED(message) __attribute__((deprecated(message)))
#else
#define WEFT_API
#define WEFT_PRINTF(format_index, first_arg)
#define WEFT_NODISCARD
#define WEFT_DEPRECATED(message)
#endif

#ifndef __cplusplus
/** Opens the block of C declarations of a header. */
#define WEFT_EXTERN_C_BEGIN
/** Closes the block of C declarations of a header. */
#define WEFT_EXTERN_C_END
#else
#define WEFT_EXTERN_C_BEGIN extern "C" {
#define WEFT_EXTERN_C_END }
#endif

/* clang-format off */
/** Initialiser of a parameter struct: its size, then the values of all its other fields. */
#define WEFT_STRUCT_INIT(type, ...) {sizeof(type), __VA_ARGS__}
/* clang-format on */

#endif

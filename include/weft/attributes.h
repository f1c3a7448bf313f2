/* SPDX-License-Identifier: Apache-2.0 */
/** @file attributes.h Compiler attributes, so that public headers stay valid C99 and C++. */
#ifndef WEFT_ATTRIBUTES_H
#define WEFT_ATTRIBUTES_H

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_API __attribute__((visibility("default")))
#define WEFT_PRINTF(format_index, first_arg) \
    __attribute__((format(printf, format_index, first_arg)))
#define WEFT_NODISCARD __attribute__((warn_unused_result))
#define WEFT_DEPRECATED(message) __attribute__((deprecated(message)))
#else
#define WEFT_API
#define WEFT_PRINTF(format_index, first_arg)
#define WEFT_NODISCARD
#define WEFT_DEPRECATED(message)
#endif

#ifdef __cplusplus
#define WEFT_EXTERN_C_BEGIN extern "C" {
#define WEFT_EXTERN_C_END }
#else
#define WEFT_EXTERN_C_BEGIN
#define WEFT_EXTERN_C_END
#endif

#endif

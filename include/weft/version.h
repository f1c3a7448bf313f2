/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file version.h
 * The semantic version, at build time and at run time.
 */
#ifndef WEFT_VERSION_H
#define WEFT_VERSION_H

#include <weft/attributes.h>

/** Major version of these headers. Changes when the interface breaks. */
#define WEFT_VERSION_MAJOR 0
/** Minor version of these headers. Changes when the interface grows. */
#define WEFT_VERSION_MINOR 1
/** Patch version of these headers. */
#define WEFT_VERSION_PATCH 0
/** Version of these headers as text. */
#define WEFT_VERSION_STRING "0.1.0"

WEFT_EXTERN_C_BEGIN
/**
 * Returns the version of the loaded library. Any thread.
 * @return "major.minor.patch", static storage
 */
WEFT_API const char *weft_version(void);
WEFT_EXTERN_C_END

#endif

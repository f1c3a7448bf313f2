/* SPDX-License-Identifier: Apache-2.0 */
/** @file version.h The semantic version, at build time and at run time. */
#ifndef WEFT_VERSION_H
#define WEFT_VERSION_H

#include <weft/attributes.h>

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION_STRING "0.1.0"

WEFT_EXTERN_C_BEGIN
/** @return the version of the library that is loaded, "major.minor.patch". */
WEFT_API const char *weft_version(void);
WEFT_EXTERN_C_END

#endif

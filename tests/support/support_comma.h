/* SPDX-License-Identifier: Apache-2.0 */
/* A locale with a decimal comma, which few machines have: for one source of a test that is linked
 * with --wrap=strtod. */
#ifndef WEFT_TESTS_SUPPORT_SUPPORT_COMMA_H
#define WEFT_TESTS_SUPPORT_SUPPORT_COMMA_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

static bool decimal_comma;
double __real_strtod(const char *text, char **end);
double __wrap_strtod(const char *text, char **end);
double __wrap_strtod(const char *text, char **end)
{
    char copy[128], *stop;
    if (!decimal_comma) {
        return __real_strtod(text, end);
    }
    snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c != '\0'; c++) {
        *c = *c == '.' ? ';' : *c == ',' ? '.' : *c;
    }
    double value = __real_strtod(copy, &stop);
    if (end != NULL) {
        *end = (char *)(uintptr_t)text + (stop - copy);
    }
    return value;
}

#endif

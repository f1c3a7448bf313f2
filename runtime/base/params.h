/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that begin with struct_size, the size that the caller was compiled with (weft/types.h has
 * the rule).
 *
 *   parameters   caller's shorter   the rest keeps the defaults of own
 *                caller's longer    its rest must be zero
 *   reports      caller's shorter   it receives what fits
 *                caller's longer    its rest is left as it is
 *
 * Every public function reads and writes these structs by the functions below.
 */
#ifndef WEFT_RUNTIME_BASE_PARAMS_H
#define WEFT_RUNTIME_BASE_PARAMS_H

#include <stddef.h>

#include "runtime/base/error.h"

/* Whether own_bytes of a library's struct can represent params; the error names it. */
weft_status_t wefti_params_check(const char *name, const void *params, size_t own_bytes);

/* Copies params into own, which holds the defaults (its _INIT); own's struct_size stays. NULL is
 * valid: the defaults. */
weft_status_t wefti_params_read(const char *name, const void *params, void *own, size_t own_bytes);

/* Whether params, which the caller has the library change, has the field that ends at end_bytes. */
weft_status_t wefti_params_reach(const char *name, const void *params, size_t end_bytes);

/* Before the work that fills a report: its struct_size is set. NULL is valid: not needed. */
weft_status_t wefti_report_check(const char *name, const void *report);

/* Copies own into a checked report, which may be NULL; the report's struct_size stays. */
void wefti_report_write(void *report, const void *own, size_t own_bytes);

/* wefti_params_read of an argument with its name. */
#define WEFTI_PARAMS_READ(params, own) wefti_params_read(#params, (params), (own), sizeof *(own))

#endif

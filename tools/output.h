/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of several commands: JSON results, elements and bindings of plans, sorted times. */
#ifndef WEFT_TOOLS_OUTPUT_H
#define WEFT_TOOLS_OUTPUT_H

#include <weft/plan.h>

#include "runtime/base/json.h"

typedef struct output_object {
    wefti_text_t text;
    wefti_json_t json;
} output_object_t;

/* Opens the object; members go to the result. */
wefti_json_t *wefti_output_begin(output_object_t *object);
/* Closes and prints the object; false, and "{}", if memory ran out. */
bool wefti_output_end(output_object_t *object);

/* Writes a number as an element of dtype: value if that is a floating point type, else the low
 * bytes of bits. */
void wefti_put_number(uint8_t *at, weft_dtype_t dtype, double value, uint64_t bits);
/* The next binding from *index on that has one of the roles (bits 1 << role); false at the end. */
bool wefti_next_binding(const weft_plan_t *plan, uint32_t roles, size_t *index,
                        weft_binding_t *out_binding);
#define BINDINGS_OF_INPUTS (1u << WEFT_BINDING_ROLE_INPUT | 1u << WEFT_BINDING_ROLE_LABEL)
/* Ascending. */
void wefti_sort_doubles(double *values, size_t count);

#endif

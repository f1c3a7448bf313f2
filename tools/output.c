/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"

wefti_json_t *wefti_output_begin(output_object_t *object)
{
    wefti_text_init(&object->text, NULL);
    wefti_json_init(&object->json, &object->text, true);
    wefti_json_begin_object(&object->json, NULL);
    return &object->json;
}

bool wefti_output_end(output_object_t *object)
{
    wefti_json_end_object(&object->json);
    bool complete = !object->text.failed;
    puts(complete ? object->text.data : "{}");
    wefti_text_deinit(&object->text);
    return complete;
}

void wefti_put_number(uint8_t *at, weft_dtype_t dtype, double value, uint64_t bits)
{
    union {
        double f64;
        float f32;
        uint16_t half;
        uint64_t bits;
    } x = {.bits = bits};
    switch (dtype) {
    case WEFT_DTYPE_F64:
        x.f64 = value;
        break;
    case WEFT_DTYPE_F32:
        x.f32 = (float)value;
        break;
    case WEFT_DTYPE_F16:
        x.half = wefti_f16_from_f32((float)value);
        break;
    case WEFT_DTYPE_BF16:
        x.half = wefti_bf16_from_f32((float)value);
        break;
    default:
        break; /* little-endian: the lowest bytes */
    }
    memcpy(at, &x, weft_dtype_size_bytes(dtype));
}

bool wefti_next_binding(const weft_plan_t *plan, uint32_t roles, size_t *index,
                        weft_binding_t *out_binding)
{
    while (*index < weft_plan_binding_count(plan)) {
        *out_binding = (weft_binding_t){.struct_size = sizeof *out_binding};
        if (weft_plan_get_binding(plan, (*index)++, out_binding) >= 0 &&
            (roles >> out_binding->role & 1) != 0) {
            return true;
        }
    }
    return false;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void wefti_sort_doubles(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
}

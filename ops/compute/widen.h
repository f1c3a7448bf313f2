/* SPDX-License-Identifier: Apache-2.0 */
/* Narrow types by blocks of a wide one: f16 and bf16 by f32, integers below 64 bits by i64. */
#ifndef WEFT_OPS_COMPUTE_WIDEN_H
#define WEFT_OPS_COMPUTE_WIDEN_H

#include <weft/types.h>

#define WEFTI_WIDE_BLOCK 512

typedef union wefti_wide {
    double f64[WEFTI_WIDE_BLOCK];
    float f32[WEFTI_WIDE_BLOCK];
    int64_t i64[WEFTI_WIDE_BLOCK];
} wefti_wide_t;

/* The type that dtype is widened to; dtype itself if that is none of the above. */
static inline weft_dtype_t wefti_wide_dtype(weft_dtype_t dtype)
{
    switch (dtype) {
    case WEFT_DTYPE_F16:
    case WEFT_DTYPE_BF16:
        return WEFT_DTYPE_F32;
    case WEFT_DTYPE_I32:
    case WEFT_DTYPE_I16:
    case WEFT_DTYPE_I8:
    case WEFT_DTYPE_U32:
    case WEFT_DTYPE_U16:
    case WEFT_DTYPE_U8:
        return WEFT_DTYPE_I64;
    default:
        return dtype;
    }
}

/* cast.c: count elements, at most WEFTI_WIDE_BLOCK, of a type that widens; integers wrap. */
void wefti_widen(weft_isa_t isa, weft_dtype_t dtype, const void *x, int64_t count,
                 wefti_wide_t *out);
void wefti_narrow(weft_isa_t isa, weft_dtype_t dtype, const wefti_wide_t *in, int64_t count,
                  void *y);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a result is the reduction of its sources: for WEFT_CHECK. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "ops/reduce/reduce.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

/* f16, bf16, f32 and f64 only. */
static double value_of(weft_dtype_t dtype, const uint8_t *at)
{
    double wide;
    float word;
    uint16_t half;
    switch (dtype) {
    case WEFT_DTYPE_F16:
    case WEFT_DTYPE_BF16:
        memcpy(&half, at, sizeof half);
        return dtype == WEFT_DTYPE_F16 ? wefti_f16_to_f32(half) : wefti_bf16_to_f32(half);
    case WEFT_DTYPE_F32:
        memcpy(&word, at, sizeof word);
        return word;
    default:
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
}

typedef struct range {
    double epsilon, least, largest; /* the smallest normal value; the largest value */
} range_t;

/* epsilon 0: not a floating-point type. */
static range_t range_of(weft_dtype_t dtype)
{
    switch (dtype) {
    case WEFT_DTYPE_F16:
        return (range_t){0x1p-10, 0x1p-14, 65504};
    case WEFT_DTYPE_BF16:
        return (range_t){0x1p-7, FLT_MIN, FLT_MAX};
    case WEFT_DTYPE_F32:
        return (range_t){FLT_EPSILON, FLT_MIN, FLT_MAX};
    case WEFT_DTYPE_F64:
        return (range_t){DBL_EPSILON, DBL_MIN, DBL_MAX};
    default:
        return (range_t){0};
    }
}

/* The same bits, or both NaN, whose payloads may differ. */
static bool is_same(weft_dtype_t dtype, const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, weft_dtype_size_bytes(dtype)) == 0 ||
           (range_of(dtype).epsilon > 0 && isnan(value_of(dtype, a)) && isnan(value_of(dtype, b)));
}

/* Each of the n - 1 operations of an order rounds by at most epsilon of a partial result, which is
 * no larger than the sum of magnitudes; those of a product lose at most epsilon of the product
 * (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1 and 4.2). Where a
 * partial result may leave the type's range nothing is known, but that NaN and infinities stay. */
static bool is_close(const weft_reduce_t *reduce, size_t at, const uint8_t *again,
                     const uint8_t *result)
{
    const range_t range = range_of(reduce->dtype);
    const double a = value_of(reduce->dtype, again), b = value_of(reduce->dtype, result);
    double sum = 0, low = 1, high = 1; /* bounds of partial sums and products */
    if (a == b || reduce->reduction == WEFT_REDUCTION_MIN ||
        reduce->reduction == WEFT_REDUCTION_MAX) {
        return a == b;
    }
    for (uint32_t r = 0; r < reduce->source_count; r++) {
        double x = fabs(value_of(reduce->dtype, (const uint8_t *)reduce->sources[r] + at));
        if (isnan(x) || (isinf(x) && isfinite(b))) { /* b is not NaN too: is_same */
            return false;
        }
        sum += x;
        low *= x < 1 ? x : 1;
        high *= x > 1 ? x : 1;
    }
    double scale = reduce->reduction == WEFT_REDUCTION_AVG ? sum / reduce->divisor : sum;
    bool inside = sum < range.largest / 2;
    if (reduce->reduction == WEFT_REDUCTION_PROD) {
        scale = fabs(a);
        inside = low > range.least && high < range.largest / 2;
    }
    return !inside ||
           fabs(a - b) <= 2.0 * reduce->source_count * range.epsilon * scale + range.least;
}

weft_status_t wefti_reduce_compare(const weft_reduce_t *reduce, const void *result, bool any_order,
                                   uint64_t *out_first)
{
    _Alignas(64) uint8_t again[WEFTI_COMPARED_BYTES];
    void *destination = again;
    weft_reduce_t same = *reduce;
    same.destinations = &destination;
    same.destination_count = 1;
    same.divisor = reduce->divisor != 0 ? reduce->divisor : reduce->source_count;
    WEFT_RETURN_IF_ERROR(wefti_reduce(&same, WEFT_ISA_PORTABLE));
    const size_t elem = weft_dtype_size_bytes(reduce->dtype);
    const bool rounds = any_order && range_of(reduce->dtype).epsilon > 0;
    uint64_t i = 0;
    for (; i < reduce->elem_count; i++) {
        const uint8_t *b = (const uint8_t *)result + i * elem;
        if (!is_same(reduce->dtype, again + i * elem, b) &&
            !(rounds && is_close(&same, i * elem, again + i * elem, b))) {
            break;
        }
    }
    *out_first = i;
    return WEFT_OK;
}

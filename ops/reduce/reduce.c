/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "ops/reduce/reduce_internal.h"
#include "runtime/base/error.h"

/* isa is one that this CPU has. */
static wefti_reduce_f32_fn kernel_of(wefti_isa_t isa)
{
#if defined(__x86_64__)
    if (isa == WEFTI_ISA_AVX512) {
        return wefti_reduce_f32_avx512;
    }
    if (isa == WEFTI_ISA_AVX2) {
        return wefti_reduce_f32_avx2;
    }
#else
    (void)isa;
#endif
    return wefti_reduce_f32_portable;
}

wefti_reduce_f32_fn wefti_reduce_f32_kernel(wefti_isa_t isa)
{
    wefti_isa_t best = wefti_isa_detect();
    return kernel_of(isa > best ? best : isa);
}

static weft_status_t check_addresses(const char *what, const void *const *addresses, uint32_t count,
                                     uint64_t elem_count)
{
    if (count == 0 || count > WEFT_MAX_GROUP_DIRECT || !addresses) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: %u %ss, must be 1 to %u", count,
                           what, WEFT_MAX_GROUP_DIRECT);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!addresses[i] && elem_count > 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: %s %u is NULL", what, i);
        }
    }
    return WEFT_OK;
}

static weft_status_t check(const weft_reduce_t *reduce)
{
    weft_status_t status;
    size_t elem_bytes = weft_dtype_size_bytes(reduce->dtype);
    if (elem_bytes == 0 || reduce->dtype == WEFT_DTYPE_BOOL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "reduce: no reductions of dtype %s (%d)",
                           weft_dtype_name(reduce->dtype), (int)reduce->dtype);
    }
    if ((int)reduce->reduction < (int)WEFT_SUM || (int)reduce->reduction > (int)WEFT_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: unknown reduction %d",
                           (int)reduce->reduction);
    }
    if (reduce->elem_count > SIZE_MAX / elem_bytes) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: %llu elements are too many",
                           (unsigned long long)reduce->elem_count);
    }
    status = check_addresses("source", reduce->sources, reduce->source_count, reduce->elem_count);
    if (status != WEFT_OK) {
        return status;
    }
    return check_addresses("destination", (const void *const *)reduce->destinations,
                           reduce->destination_count, reduce->elem_count);
}

/* NULL: the portable one. */
static wefti_reduce_half_fn half_kernel_of(weft_dtype_t dtype, wefti_isa_t isa)
{
#if defined(__x86_64__)
    wefti_half_t kind = dtype == WEFT_DTYPE_F16 ? WEFTI_HALF_F16 : WEFTI_HALF_BF16;
    if (isa == WEFTI_ISA_AVX512) {
        return wefti_reduce_half_avx512(kind);
    }
    if (isa == WEFTI_ISA_AVX2) {
        return wefti_reduce_half_avx2(kind);
    }
#else
    (void)dtype;
    (void)isa;
#endif
    return NULL;
}

static int run_half(const weft_reduce_t *reduce, wefti_isa_t isa)
{
    wefti_reduce_half_fn kernel = half_kernel_of(reduce->dtype, isa);
    if (kernel == NULL) {
        return 0;
    }
    kernel((uint16_t *const *)reduce->destinations, reduce->destination_count,
           (const uint16_t *const *)reduce->sources, reduce->source_count,
           (size_t)reduce->elem_count,
           reduce->reduction == WEFT_AVG ? (float)reduce->source_count : 1.0f);
    return 1;
}

static void run_other(const weft_reduce_t *reduce, wefti_isa_t isa)
{
    wefti_reduce_native_fn kernel = NULL;
#if defined(__x86_64__)
    if (isa == WEFTI_ISA_AVX512) {
        kernel = wefti_reduce_native_avx512(reduce->dtype, reduce->reduction);
    } else if (isa == WEFTI_ISA_AVX2) {
        kernel = wefti_reduce_native_avx2(reduce->dtype, reduce->reduction);
    }
#else
    (void)isa;
#endif
    if (kernel != NULL) {
        kernel(reduce);
    } else {
        wefti_reduce_portable(reduce);
    }
}

static void run(const weft_reduce_t *reduce, wefti_isa_t isa)
{
    int halves = reduce->dtype == WEFT_DTYPE_F16 || reduce->dtype == WEFT_DTYPE_BF16;
    int sums = reduce->reduction == WEFT_SUM || reduce->reduction == WEFT_AVG;
    if (halves && sums && run_half(reduce, isa)) {
        return;
    }
    if (reduce->dtype != WEFT_DTYPE_F32 || !sums) {
        run_other(reduce, isa);
        return;
    }
    kernel_of(isa)((float *const *)reduce->destinations, reduce->destination_count,
                   (const float *const *)reduce->sources, reduce->source_count,
                   (size_t)reduce->elem_count,
                   reduce->reduction == WEFT_AVG ? (float)reduce->source_count : 1.0f);
}

weft_status_t wefti_reduce(const weft_reduce_t *reduce, wefti_isa_t isa)
{
    weft_status_t status = check(reduce);
    if (status != WEFT_OK || reduce->elem_count == 0) {
        return status;
    }
#if defined(__x86_64__)
    /* Rounding to nearest, denormals kept: a host program may have set this thread otherwise. */
    const unsigned int mode_bits = _MM_ROUND_MASK | _MM_FLUSH_ZERO_MASK | 0x0040u;
    unsigned int mode = _mm_getcsr();
    if (mode & mode_bits) {
        _mm_setcsr(mode & ~mode_bits);
        run(reduce, isa);
        _mm_setcsr(mode);
        return WEFT_OK;
    }
#endif
    run(reduce, isa);
    return WEFT_OK;
}

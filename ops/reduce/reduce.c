/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce.h"

#include <string.h>

#include "ops/reduce/reduce_internal.h"
#include "runtime/base/error.h"
#include "runtime/base/float_mode.h"

static bool is_half(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F16 || dtype == WEFT_DTYPE_BF16;
}

weft_dtype_t wefti_accumulator_dtype(weft_dtype_t dtype, weft_reduction_t reduction)
{
    if (is_half(dtype)) {
        return reduction == WEFT_REDUCTION_MIN || reduction == WEFT_REDUCTION_MAX ? dtype
                                                                                  : WEFT_DTYPE_F32;
    }
    if (reduction != WEFT_REDUCTION_AVG || dtype == WEFT_DTYPE_F64 || dtype == WEFT_DTYPE_F32) {
        return dtype;
    }
    return dtype >= WEFT_DTYPE_U64 ? WEFT_DTYPE_U64 : WEFT_DTYPE_I64;
}

size_t wefti_accumulator_bytes(weft_dtype_t dtype, weft_reduction_t reduction)
{
    if (weft_dtype_size_bytes(dtype) == 0 || dtype == WEFT_DTYPE_BOOL) {
        return 0;
    }
    return weft_dtype_size_bytes(wefti_accumulator_dtype(dtype, reduction));
}

static weft_status_t check_addresses(const char *what, const void *const *addresses, uint32_t count,
                                     uint64_t elem_count)
{
    if (count == 0 || count > WEFT_MAX_GROUP_DIRECT || !addresses) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "reduce: invalid number %u of %ss: must be between 1 and %u", count,
                           what, WEFT_MAX_GROUP_DIRECT);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!addresses[i] && elem_count > 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: %s %u is NULL", what, i);
        }
    }
    return WEFT_OK;
}

static weft_status_t check(const wefti_reduce_step_t *step)
{
    weft_status_t status;
    const size_t most_bytes = 8; /* of an element, wide or not */
    if (step->dtype < WEFT_DTYPE_F64 || step->dtype > WEFT_DTYPE_U8) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "reduce: unsupported dtype %s (%d)",
                           weft_dtype_name(step->dtype), (int)step->dtype);
    }
    if ((int)step->reduction < (int)WEFT_REDUCTION_SUM ||
        (int)step->reduction > (int)WEFT_REDUCTION_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: unknown reduction %d",
                           (int)step->reduction);
    }
    if (step->elem_count > SIZE_MAX / most_bytes) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: too many elements: %llu",
                           (unsigned long long)step->elem_count);
    }
    if (step->reduction == WEFT_REDUCTION_AVG && step->finish &&
        (step->divisor == 0 || step->divisor > 1u << 24)) { /* exact in f32 */
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "reduce: invalid average over %u ranks",
                           step->divisor);
    }
    status = check_addresses("source", step->sources, step->source_count, step->elem_count);
    if (status != WEFT_OK) {
        return status;
    }
    return check_addresses("destination", (const void *const *)step->destinations,
                           step->destination_count, step->elem_count);
}

/* isa is one that this CPU has. */
static wefti_reduce_fn kernel_of(const wefti_reduce_step_t *step, weft_isa_t isa)
{
#if defined(__x86_64__)
    wefti_reduce_fn kernel = NULL;
    if (isa == WEFT_ISA_AVX512) {
        kernel = wefti_reduce_float_avx512(step);
        kernel = kernel ? kernel : wefti_reduce_native_avx512(step);
        return kernel ? kernel : wefti_reduce_blocks_avx512;
    }
    if (isa == WEFT_ISA_AVX2) {
        kernel = wefti_reduce_float_avx2(step);
        kernel = kernel ? kernel : wefti_reduce_native_avx2(step);
        return kernel ? kernel : wefti_reduce_blocks_avx2;
    }
#else
    (void)step;
    (void)isa;
#endif
    return wefti_reduce_portable;
}

static void run(const wefti_reduce_step_t *step, weft_isa_t isa)
{
    const unsigned int before = wefti_float_mode_begin();
    kernel_of(step, isa)(step);
    wefti_float_mode_end(before);
}

/* Sources and destinations that are wide anyway make a step of the wide type. */
static void simplify(wefti_reduce_step_t *step)
{
    const weft_dtype_t wide = wefti_accumulator_dtype(step->dtype, step->reduction);
    uint32_t wide_count = 0;
    for (uint32_t k = 0; step->wide && k < step->source_count; k++) {
        wide_count += step->wide[k] != 0;
    }
    if (!step->finish && wide_count == step->source_count) {
        step->dtype = wide;
    }
    if (wide_count == 0 || step->dtype == wide) {
        step->wide = NULL;
    }
    if (!step->finish && step->reduction == WEFT_REDUCTION_AVG && step->dtype == wide) {
        step->reduction = WEFT_REDUCTION_SUM;
    }
}

weft_status_t wefti_reduce_step(const wefti_reduce_step_t *step, weft_isa_t isa)
{
    wefti_reduce_step_t simple = *step;
    weft_status_t status = check(step);
    if (status == WEFT_OK && step->elem_count > 0) {
        simplify(&simple);
        run(&simple, isa);
    }
    return status;
}

weft_status_t wefti_reduce(const weft_reduce_t *reduce, weft_isa_t isa)
{
    const wefti_reduce_step_t step = {
        .sources = reduce->sources,
        .source_count = reduce->source_count,
        .destination_count = reduce->destination_count,
        .destinations = reduce->destinations,
        .elem_count = reduce->elem_count,
        .dtype = reduce->dtype,
        .reduction = reduce->reduction,
        .divisor = reduce->divisor != 0 ? reduce->divisor : reduce->source_count,
        .finish = true,
    };
    weft_status_t status = check(&step);
    if (status == WEFT_OK && step.elem_count > 0) {
        run(&step, isa); /* as simple as it gets */
    }
    return status;
}

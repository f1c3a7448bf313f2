/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of n ranks' copies of a range, in the in-order tree over ranks split at the largest
 * power of two (n = 5: ((x0 + x1) + (x2 + x3)) + x4), written to every destination in one pass.
 * Bits do not depend on instruction set, length or alignment. Sum and avg of f32, f16 and bf16 have
 * AVX2 and AVX-512 kernels; all other types and reductions are portable C.
 */
#ifndef WEFT_OPS_REDUCE_REDUCE_H
#define WEFT_OPS_REDUCE_REDUCE_H

#include <stdbool.h>

#include <weft/device.h>

#include "runtime/base/sync.h"

/*
 * Half types are accumulated in f32 and rounded once; integers in 64 bits, so only the result
 * wraps, and avg truncates toward zero. isa must be one that the CPU has: parsed or detected, not
 * asked for again on the hot path.
 */
weft_status_t wefti_reduce(const weft_reduce_t *reduce, weft_isa_t isa);

/* Of a result that wefti_reduce_compare takes, at most. */
#define WEFTI_COMPARED_BYTES 8192u

/*
 * The first element of result that is not the reduction of the sources; elem_count: there is none.
 * The bits must be those of wefti_reduce, but for the payload of NaN. any_order: floats may have
 * been added in another order, with its rounding errors. Destinations are not read.
 */
weft_status_t wefti_reduce_compare(const weft_reduce_t *reduce, const void *result, bool any_order,
                                   uint64_t *out_first);

/*
 * One step of a reduction that several steps carry out. Between steps a value is *wide*: of the
 * type in which it is accumulated, not rounded and not divided yet, so that any way of cutting the
 * tree into steps gives the bits of wefti_reduce over all ranks. The tree is that of wefti_reduce,
 * over the list of sources.
 */
typedef struct wefti_reduce_step {
    const void *const *sources; /* elem_count elements each, at any alignment */
    const uint8_t *wide;        /* [source_count]: 1 where a source is wide; NULL: none is */
    uint32_t source_count;
    uint32_t destination_count;
    void *const *
        destinations; /* all wide, or with finish all of dtype; may be a source of the same width */
    uint64_t elem_count;
    weft_dtype_t dtype; /* the user's type */
    weft_reduction_t reduction;
    uint32_t divisor; /* avg with finish: what the sum is divided by; else ignored */
    bool finish;      /* rounds to dtype, after dividing for avg */
} wefti_reduce_step_t;

/* isa as for wefti_reduce. WEFT_ERR_UNSUPPORTED or WEFT_ERR_INVALID_ARGUMENT with a message. */
weft_status_t wefti_reduce_step(const wefti_reduce_step_t *step, weft_isa_t isa);

/*
 * The type of wide elements: f32 for sums, averages and products of half types, 64 bits for
 * averages of integers, else dtype itself (minimum and maximum are exact, sums and products of
 * integers wrap). 0 where dtype has no reductions.
 */
weft_dtype_t wefti_accumulator_dtype(weft_dtype_t dtype, weft_reduction_t reduction);
size_t wefti_accumulator_bytes(weft_dtype_t dtype, weft_reduction_t reduction);

#endif

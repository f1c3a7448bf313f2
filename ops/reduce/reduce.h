/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of n ranks' copies of a range, in the in-order tree over ranks split at the largest power of
 * two (n = 5: ((x0 + x1) + (x2 + x3)) + x4), written to every destination in one pass. Bits do not depend on
 * instruction set, length or alignment. Sum and avg of f32, f16 and bf16 have AVX2 and AVX-512 kernels; all other
 * types and reductions are portable C.
 */
#ifndef WEFT_OPS_REDUCE_REDUCE_H
#define WEFT_OPS_REDUCE_REDUCE_H

#include <weft/device.h>

#include "runtime/base/sync.h"

/*
 * Half types are accumulated in f32 and rounded once; integers in 64 bits, so only the result wraps, and avg
 * truncates toward zero. isa must be one that the CPU has: parsed or detected, not asked for again on the hot path.
 */
weft_status_t wefti_reduce(const weft_reduce_t *reduce, wefti_isa_t isa);

/* One implementation of dst[d] = tree over src for f32 sum, then times or divided: used by wefti_reduce.
 * Here isa is lowered to what the CPU has. */
typedef void (*wefti_reduce_f32_fn)(float *const *destinations, uint32_t destination_count,
                                    const float *const *sources, uint32_t source_count, size_t elem_count,
                                    float divisor);
wefti_reduce_f32_fn wefti_reduce_f32_kernel(wefti_isa_t isa);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Sums for the floor: what adding cannot do without, which is reading and writing. */
#ifndef WEFT_TOOLS_BENCH_SUM_H
#define WEFT_TOOLS_BENCH_SUM_H

#include "runtime/base/sync.h"

/* The sum of 32-bit integers (of bytes at the end) of from_count sources to to_count destinations,
 * which may be sources. Nothing need be aligned. */
void wefti_bench_sum(weft_isa_t isa, uint8_t *const *to, uint32_t to_count,
                     const uint8_t *const *from, uint32_t from_count, uint64_t bytes);

#endif

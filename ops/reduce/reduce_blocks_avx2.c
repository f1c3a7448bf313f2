/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx2")))
#define NAME wefti_reduce_blocks_avx2
#include "ops/reduce/reduce_blocks.h"

#else
typedef int wefti_reduce_blocks_avx2_absent_t;
#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define NAME wefti_reduce_blocks_avx512
#include "ops/reduce/reduce_blocks.h"

#else
typedef int wefti_reduce_blocks_avx512_absent_t;
#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx2")))
#define TABLE wefti_reduce_native_avx2
#include "ops/reduce/reduce_native.h"

#else
typedef int wefti_reduce_native_avx2_absent_t;
#endif

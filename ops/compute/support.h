/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU kernels share: clones per instruction set, argument checks, loops over dimensions.
 */
#ifndef WEFT_OPS_COMPUTE_SUPPORT_H
#define WEFT_OPS_COMPUTE_SUPPORT_H

#include <stdbool.h>

#include <weft/registry.h>

/*
 * WEFTI_CLONES(name, (parameters), (arguments)) compiles the inline function name_body once per
 * instruction set; name[isa] are the clones. All of them do the same operations on every element in
 * the same order (no contraction, fixed shapes of sums), so only speed differs.
 */
#define WEFTI_INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define WEFTI_TARGET_AVX2 __attribute__((target("avx2")))
#define WEFTI_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define WEFTI_TARGET_AVX2
#define WEFTI_TARGET_AVX512
#endif
#define WEFTI_CLONES(name, params, args)                                                           \
    static void name##_portable params                                                             \
    {                                                                                              \
        name##_body args;                                                                          \
    }                                                                                              \
    WEFTI_TARGET_AVX2 static void name##_avx2 params                                               \
    {                                                                                              \
        name##_body args;                                                                          \
    }                                                                                              \
    WEFTI_TARGET_AVX512 static void name##_avx512 params                                           \
    {                                                                                              \
        name##_body args;                                                                          \
    }                                                                                              \
    static void(*const name[3]) params = {name##_portable, name##_avx2, name##_avx512}

/* Before a loop whose iterations touch different elements, also where output and input are the
 * same. */
#if defined(__clang__)
/* Where a loop cannot be vectorised after all (sanitizers, -O0), that is no mistake of ours. */
#pragma clang diagnostic ignored "-Wpass-failed"
#define WEFTI_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFTI_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Requests bytes at an address that are needed soon, or will be written; any address is allowed.
 * Loops that compute much per element do not run far enough ahead for memory, and the processor's
 * own prefetching ends at each page. */
WEFTI_INLINE void wefti_prefetch(const void *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)i));
    }
}

/* The clone to use. */
static inline weft_isa_t wefti_kernel_isa(const weft_kernel_env_t *env)
{
    if (env == NULL || env->isa < WEFT_ISA_PORTABLE) {
        return WEFT_ISA_PORTABLE;
    }
    return env->isa > WEFT_ISA_AVX512 ? WEFT_ISA_AVX512 : env->isa;
}

/* Elements that are worth a thread of their own: waking it takes as long as some 10,000. */
#define WEFTI_GRAIN 32768

/* At least 1. */
static inline uint32_t wefti_kernel_threads(const weft_kernel_env_t *env)
{
    return env == NULL || env->thread_count == 0 ? 1 : env->thread_count;
}

/* Rows of length elements that are worth a thread. */
static inline int64_t wefti_grain_rows(int64_t length)
{
    return length >= WEFTI_GRAIN ? 1 : WEFTI_GRAIN / (length > 0 ? length : 1);
}

/* Tensor index of a prepared node is there, f32 and has a known size. */
weft_status_t wefti_need_f32(const weft_node_desc_t *node, uint32_t input);
weft_status_t wefti_need_f32_output(const weft_node_desc_t *node, uint32_t output);
/* Tensor present; size known; layout sane. what is "input" or "output". */
weft_status_t wefti_need_known(const weft_tensor_desc_t *desc, const char *what, uint32_t index);
/* Shapes and layouts of both are equal. */
bool wefti_same_shape(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b);
const weft_tensor_desc_t *wefti_node_output(const weft_node_desc_t *node, uint32_t index);
/* Zeroed state of bytes; NULL with a message when there is no memory. */
void *wefti_state_alloc(size_t bytes);
void wefti_state_free(void *state);

/* Order in which dimensions lie in memory, outermost first, and the stride of each dimension. */
void wefti_memory_order(const weft_tensor_desc_t *desc, uint32_t *out_order);
void wefti_strides(const weft_tensor_desc_t *desc, int64_t *out_strides);
/* The stride of from for each dimension of to, 0 where it is broadcast. what: from, for the error. */
weft_status_t wefti_broadcast_strides(const weft_tensor_desc_t *from, const weft_tensor_desc_t *to,
                                      const char *what, int64_t *out_strides);

/* A nest of loops over up to three operands with strides; dimensions of size 1 are gone, mergeable
 * ones merged. */
typedef struct wefti_nest {
    uint32_t rank; /* at least 1 */
    int64_t dims[WEFT_MAX_DIMS], a[WEFT_MAX_DIMS], b[WEFT_MAX_DIMS], c[WEFT_MAX_DIMS];
    bool empty; /* no elements at all */
} wefti_nest_t;
void wefti_nest_init(wefti_nest_t *nest);
/* Adds a dimension inside those added before. */
void wefti_nest_add(wefti_nest_t *nest, int64_t size, int64_t stride_a, int64_t stride_b);
void wefti_nest_add3(wefti_nest_t *nest, int64_t size, int64_t stride_a, int64_t stride_b,
                     int64_t stride_c);
/* Copies elements from a to b; strides are in elements, and elements lie elem_bytes apart. */
void wefti_nest_copy(const wefti_nest_t *nest, const void *a, void *b, size_t elem_bytes);
/* The same, and count bytes that are adjacent on both sides, by several threads. */
void wefti_nest_copy_by(uint32_t threads, const wefti_nest_t *nest, const void *a, void *b,
                        size_t elem_bytes);
void wefti_copy_by(uint32_t threads, const void *a, void *b, size_t count);

/* The odometer over all but the innermost dimension. */
typedef struct wefti_nest_at {
    int64_t index[WEFT_MAX_DIMS];
    int64_t a, b, c; /* offsets of the innermost loop's first element */
} wefti_nest_at_t;
static inline bool wefti_nest_next(const wefti_nest_t *nest, wefti_nest_at_t *at)
{
    for (uint32_t d = nest->rank - 1; d-- > 0;) {
        at->a += nest->a[d];
        at->b += nest->b[d];
        at->c += nest->c[d];
        if (++at->index[d] < nest->dims[d]) {
            return true;
        }
        at->a -= nest->a[d] * nest->dims[d];
        at->b -= nest->b[d] * nest->dims[d];
        at->c -= nest->c[d] * nest->dims[d];
        at->index[d] = 0;
    }
    return false;
}

#define WEFTI_KERNEL_VALUE(space, operator, prepare_fn, run_fn)                                    \
    {                                                                                              \
        .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = space, .op = operator,                   \
        .since_version = 1, .prepare = prepare_fn, .run = run_fn, .destroy = wefti_state_free      \
    }
#define WEFTI_KERNEL(symbol, space, operator, prepare_fn, run_fn)                                  \
    const weft_kernel_t symbol = WEFTI_KERNEL_VALUE(space, operator, prepare_fn, run_fn)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounding to nearest, denormals kept. A host program may have set its thread otherwise; then bits
 * would depend on which thread executes a part, and differ between ranks.
 */
#ifndef WEFT_RUNTIME_BASE_FLOAT_MODE_H
#define WEFT_RUNTIME_BASE_FLOAT_MODE_H

#include <weft/registry.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Rounding, flush to zero, denormals are zero. */
#define WEFTI_FLOAT_MODE_BITS (_MM_ROUND_MASK | _MM_FLUSH_ZERO_MASK | 0x0040u)

/* Sets the mode of the calling thread; returns what it was. */
static inline unsigned int wefti_float_mode_begin(void)
{
    const unsigned int before = _mm_getcsr();
    if ((before & WEFTI_FLOAT_MODE_BITS) != 0) {
        _mm_setcsr(before & ~WEFTI_FLOAT_MODE_BITS);
    }
    return before;
}

static inline void wefti_float_mode_end(unsigned int before)
{
    if ((before & WEFTI_FLOAT_MODE_BITS) != 0) {
        _mm_setcsr(before);
    }
}
#else
static inline unsigned int wefti_float_mode_begin(void)
{
    return 0;
}

static inline void wefti_float_mode_end(unsigned int before)
{
    (void)before;
}
#endif

static inline weft_status_t wefti_run_kernel(const weft_kernel_t *kernel,
                                             const weft_kernel_call_t *call)
{
    const unsigned int before = wefti_float_mode_begin();
    const weft_status_t status = kernel->run(call);
    wefti_float_mode_end(before);
    return status;
}

#endif

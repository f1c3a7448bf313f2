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

static inline unsigned int wefti_float_mode(void)
{
    return _mm_getcsr();
}

static inline void wefti_float_mode_set(unsigned int mode)
{
    _mm_setcsr(mode);
}
#elif defined(__aarch64__)
/* FPCR: default NaN, flush to zero, rounding, flush f16 to zero. */
#define WEFTI_FLOAT_MODE_BITS (1u << 25 | 1u << 24 | 3u << 22 | 1u << 19)

static inline unsigned int wefti_float_mode(void)
{
    unsigned long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (unsigned int)mode;
}

static inline void wefti_float_mode_set(unsigned int mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((unsigned long)mode));
}
#else
#define WEFTI_FLOAT_MODE_BITS 0u

static inline unsigned int wefti_float_mode(void)
{
    return 0;
}

static inline void wefti_float_mode_set(unsigned int mode)
{
    (void)mode;
}
#endif

/* Sets the mode of the calling thread; returns what it was. */
static inline unsigned int wefti_float_mode_begin(void)
{
    const unsigned int before = wefti_float_mode();
    if ((before & WEFTI_FLOAT_MODE_BITS) != 0) {
        wefti_float_mode_set(before & ~WEFTI_FLOAT_MODE_BITS);
    }
    return before;
}

static inline void wefti_float_mode_end(unsigned int before)
{
    if ((before & WEFTI_FLOAT_MODE_BITS) != 0) {
        wefti_float_mode_set(before);
    }
}

static inline weft_status_t wefti_run_kernel(const weft_kernel_t *kernel,
                                             const weft_kernel_call_t *call)
{
    const unsigned int before = wefti_float_mode_begin();
    const weft_status_t status = kernel->run(call);
    wefti_float_mode_end(before);
    return status;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/sync.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define NS_PER_S 1000000000ull
#define PROMPT_SLICE_NS 100000ull /* the shortest there is */

uint64_t wefti_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void wefti_futex_wait(const _Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                               .tv_nsec = (long)(timeout_ns % NS_PER_S)};
    /* Not FUTEX_PRIVATE: the word may lie in memory that processes share. Every outcome is a
     * wake-up. */
    syscall(SYS_futex, (uintptr_t)word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void wefti_futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uintptr_t)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void wefti_sleep_ns(uint64_t ns)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)},
        NULL);
}

void wefti_signal_post(wefti_signal_t *signal, uint32_t value)
{
    /*
     * Sequentially consistent on both sides: the waiter adds itself to waiters and then reads
     * value, we store value and then read waiters, so one of us sees the other and no wake-up is
     * lost. The store also releases what was written before.
     */
    atomic_store_explicit(&signal->value, value, memory_order_seq_cst);
    if (atomic_load_explicit(&signal->waiters, memory_order_seq_cst) != 0) {
        wefti_futex_wake_all(&signal->value);
    }
}

void wefti_signal_raise(wefti_signal_t *signal, uint32_t value)
{
    uint32_t seen = atomic_load_explicit(&signal->value, memory_order_relaxed);
    do {
        if (wefti_signal_reached(seen, value)) {
            return;
        }
        /* seq_cst: ordered against the sleeper's increment of waiters, as in wefti_signal_post */
    } while (!atomic_compare_exchange_weak_explicit(&signal->value, &seen, value,
                                                    memory_order_seq_cst, memory_order_relaxed));
    if (atomic_load_explicit(&signal->waiters, memory_order_seq_cst) != 0) {
        wefti_futex_wake_all(&signal->value);
    }
}

void wefti_signal_sleep(wefti_signal_t *signal, uint32_t target, uint64_t timeout_ns)
{
    /*
     * Both sequentially consistent, as in wefti_signal_post: either the poster sees us in waiters
     * and wakes us, or we see its value here (or the kernel does, comparing) and do not sleep.
     */
    atomic_fetch_add_explicit(&signal->waiters, 1, memory_order_seq_cst);
    uint32_t value = atomic_load_explicit(&signal->value, memory_order_seq_cst);
    if (!wefti_signal_reached(value, target)) {
        wefti_futex_wait(&signal->value, value, timeout_ns);
    }
    atomic_fetch_sub_explicit(&signal->waiters, 1, memory_order_relaxed);
}

static const char *const isa_names[] = {"portable", "avx2", "avx512"};

weft_isa_t wefti_isa_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return WEFT_ISA_AVX512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return WEFT_ISA_AVX2;
    }
#endif
    return WEFT_ISA_PORTABLE;
}

const char *wefti_isa_name(weft_isa_t isa)
{
    size_t index = (size_t)isa;
    return index < sizeof isa_names / sizeof isa_names[0] ? isa_names[index] : "unknown";
}

weft_status_t wefti_isa_parse(const char *text, weft_isa_t *out_isa)
{
    if (strcmp(text, "auto") == 0) {
        *out_isa = wefti_isa_detect();
        return WEFT_OK;
    }
    for (size_t i = 0; i < sizeof isa_names / sizeof isa_names[0]; i++) {
        if (strcmp(text, isa_names[i]) != 0) {
            continue;
        }
        if ((weft_isa_t)i > wefti_isa_detect()) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "this CPU supports %s at most",
                               wefti_isa_name(wefti_isa_detect()));
        }
        *out_isa = (weft_isa_t)i;
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "expected 'auto', 'portable', 'avx2' or 'avx512'");
}

void wefti_thread_be_prompt(void)
{
#ifdef SYS_sched_setattr
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes};
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 &&
        attributes.policy == 0) {
        attributes.size = sizeof attributes;
        attributes.runtime = PROMPT_SLICE_NS;
        (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
    }
#endif
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Time, futex words shared between threads or processes, CPU features. */
#ifndef WEFT_RUNTIME_BASE_SYNC_H
#define WEFT_RUNTIME_BASE_SYNC_H

#include <stdatomic.h>
#include <stdint.h>

#include <weft/types.h>

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t wefti_now_ns(void);

/* Sleeps while *word == expected, at most timeout_ns; may wake early. Processes may share word. */
void wefti_futex_wait(const _Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
/* Wakes all threads that sleep on word. */
void wefti_futex_wake_all(_Atomic uint32_t *word);
/* Sleeps for ns; may wake early. */
void wefti_sleep_ns(uint64_t ns);

/*
 * For a thread that works little and often while others compute on the same core: requests short
 * time slices, so that it runs soon after it wakes. No effect before Linux 6.12.
 * Needs no privilege.
 */
void wefti_thread_be_prompt(void);

static inline void wefti_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* A counter that others wait for: its value, and how many sleep. */
typedef struct wefti_signal {
    _Atomic uint32_t value;
    _Atomic uint32_t waiters;
} wefti_signal_t;
_Static_assert(sizeof(wefti_signal_t) == 8, "signals are laid out in shared memory");

/* With a line pair of its own: adjacent-line prefetch would couple neighbours. */
typedef struct wefti_signal_line {
    wefti_signal_t signal;
    uint8_t pad[120];
} wefti_signal_line_t;
_Static_assert(sizeof(wefti_signal_line_t) == 128, "signals are laid out in shared memory");

/* True once value has reached target; counters wrap, so distance is compared. */
static inline int wefti_signal_reached(uint32_t value, uint32_t target)
{
    return (int32_t)(value - target) >= 0;
}

/* Publishes everything written before and wakes sleepers; no system call if there are none. */
void wefti_signal_post(wefti_signal_t *signal, uint32_t value);
/* The same, but never moves the counter back: for counters that several threads post. */
void wefti_signal_raise(wefti_signal_t *signal, uint32_t value);

/* Sleeps until signal changes or timeout_ns pass, if target is not reached; may wake early. */
void wefti_signal_sleep(wefti_signal_t *signal, uint32_t target, uint64_t timeout_ns);

/*
 * wefti_signal_post in parts, for posters that have work before they look for sleepers: publish,
 * then a fence, then settle.
 */
static inline void wefti_signal_publish(wefti_signal_t *signal, uint32_t value)
{
    atomic_store_explicit(&signal->value, value, memory_order_release);
}

/* Orders publishes before the looks at waiters. The later the cheaper: by then the store has left
 * the core while lines of peers were on their way. */
static inline void wefti_fence(void)
{
#if defined(__SANITIZE_THREAD__)
    _Atomic uint32_t word = 0;
    atomic_fetch_add_explicit(&word, 1, memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Wakes sleepers. */
static inline void wefti_signal_settle(wefti_signal_t *signal)
{
    if (atomic_load_explicit(&signal->waiters, memory_order_relaxed) != 0) {
        wefti_futex_wake_all(&signal->value);
    }
}

/* What work that does not block waits for; signal NULL: unknown. */
typedef struct wefti_blocked {
    wefti_signal_t *signal;
    uint32_t target;
} wefti_blocked_t;

/* The best this CPU has. */
weft_isa_t wefti_isa_detect(void);
const char *wefti_isa_name(weft_isa_t isa);
/* "portable", "avx2", "avx512" or "auto" (the best there is); naming one that the CPU lacks is
 * WEFT_ERR_UNSUPPORTED, never a silent fallback. */
weft_status_t wefti_isa_parse(const char *text, weft_isa_t *out_isa);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/fault.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/base/sync.h"

#define WRITTEN 2u
/* A few hundred bytes are written meanwhile, but the writer may have lost its core. */
#define WRITING_NS 500000000ull
/* While its process lives; but it may be stopped, or the record may be damaged. */
#define WRITING_ALIVE_NS 5000000000ull

static uint32_t being_written(void)
{
    return ((uint32_t)getpid() << 2) + 1;
}

/* In another namespace of processes it cannot be seen, so it is not waited for either. */
static bool writer_lives(uint32_t state)
{
    pid_t pid = (pid_t)(state >> 2);
    return pid > 0 && kill(pid, 0) == 0;
}

bool wefti_fault_set(wefti_fault_t *fault, weft_status_t status, const char *text)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong_explicit(&fault->state, &none, being_written(),
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return false;
    }
    fault->status = status;
    snprintf(fault->text, sizeof fault->text, "%s", text);
    /* release: readers that see it see the record */
    atomic_store_explicit(&fault->state, WRITTEN, memory_order_release);
    return true;
}

weft_status_t wefti_fault_adopt(const wefti_fault_t *fault)
{
    char text[WEFTI_ERROR_TEXT_BYTES];
    uint64_t start = wefti_now_ns();
    uint32_t state;
    /* acquire pairs with the release in set */
    while ((state = atomic_load_explicit(&fault->state, memory_order_acquire)) != WRITTEN) {
        uint64_t waited = wefti_now_ns() - start;
        if (waited >= (writer_lives(state) ? WRITING_ALIVE_NS : WRITING_NS)) {
            return wefti_error(WEFT_ERR_ABORTED, "another rank ended while it reported an error");
        }
        sched_yield();
    }
    int32_t status = fault->status;
    snprintf(text, sizeof text, "%.*s", (int)sizeof fault->text - 1, fault->text);
    return wefti_error_adopt(
        status >= 0 || status < WEFT_ERR_LINK ? WEFT_ERR_ABORTED : (weft_status_t)status, text);
}

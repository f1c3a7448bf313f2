/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/fault.h"

#include <sched.h>
#include <stdio.h>

#include "runtime/base/sync.h"

/* A few hundred bytes are written meanwhile, but the writer may have lost its core. */
#define WRITING_NS 500000000ull

bool wefti_fault_set(wefti_fault_t *fault, weft_status_t status, const char *text)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong_explicit(&fault->state, &none, 1, memory_order_acq_rel,
                                                 memory_order_relaxed)) {
        return false;
    }
    fault->status = status;
    snprintf(fault->text, sizeof fault->text, "%s", text);
    /* release: readers that see 2 see the record */
    atomic_store_explicit(&fault->state, 2, memory_order_release);
    return true;
}

weft_status_t wefti_fault_adopt(const wefti_fault_t *fault)
{
    char text[WEFTI_ERROR_TEXT_BYTES];
    uint64_t end = wefti_now_ns() + WRITING_NS;
    /* acquire pairs with the release in set */
    while (atomic_load_explicit(&fault->state, memory_order_acquire) != 2) {
        if (wefti_now_ns() >= end) {
            return wefti_error(WEFT_ERR_ABORTED, "another rank ended while it reported an error");
        }
        sched_yield();
    }
    int32_t status = fault->status;
    snprintf(text, sizeof text, "%.*s", (int)sizeof fault->text - 1, fault->text);
    return wefti_error_adopt(
        status >= 0 || status < WEFT_ERR_LINK ? WEFT_ERR_ABORTED : (weft_status_t)status, text);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/fault.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/sync.h"

/* A few hundred bytes are written meanwhile, but the writer may have lost its core. */
#define WRITING_NS 500000000ull

bool wefti_fault_claim(wefti_fault_t *fault)
{
    uint32_t none = 0;
    return atomic_compare_exchange_strong_explicit(&fault->state, &none, 1, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

void wefti_fault_publish(wefti_fault_t *fault, weft_status_t status, const char *text)
{
    fault->status = status;
    snprintf(fault->text, sizeof fault->text, "%s", text);
    /* release: readers that see 2 see the record */
    atomic_store_explicit(&fault->state, 2, memory_order_release);
}

bool wefti_fault_set(wefti_fault_t *fault, weft_status_t status, const char *text)
{
    bool first = wefti_fault_claim(fault);
    if (first) {
        wefti_fault_publish(fault, status, text);
    }
    return first;
}

weft_status_t wefti_fault_get(const wefti_fault_t *fault)
{
    /* acquire pairs with the release in publish */
    uint32_t state = atomic_load_explicit(&fault->state, memory_order_acquire);
    if (state == 0) {
        return WEFT_OK;
    }
    while (state != 2) {
        wefti_cpu_relax();
        state = atomic_load_explicit(&fault->state, memory_order_acquire);
    }
    return wefti_error_adopt((weft_status_t)fault->status, fault->text);
}

uint32_t wefti_fault_state(const wefti_fault_t *fault)
{
    /* acquire pairs with the release in publish */
    uint32_t state = atomic_load_explicit(&fault->state, memory_order_acquire);
    if (state == 1) {
        uint64_t end = wefti_now_ns() + WRITING_NS;
        while (state == 1 && wefti_now_ns() < end) {
            sched_yield();
            state = atomic_load_explicit(&fault->state, memory_order_acquire);
        }
    }
    return state;
}

weft_status_t wefti_fault_read(const wefti_fault_t *fault, char text[WEFTI_ERROR_TEXT_BYTES])
{
    int32_t status = fault->status;
    memcpy(text, fault->text, WEFTI_ERROR_TEXT_BYTES);
    text[WEFTI_ERROR_TEXT_BYTES - 1] = '\0';
    return status >= 0 || status < WEFT_ERR_LINK ? WEFT_ERR_ABORTED : (weft_status_t)status;
}

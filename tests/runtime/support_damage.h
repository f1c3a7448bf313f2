/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damages the result of a collective of a plan on the rank that is its root (0 where it has none),
 * after the collective and before WEFT_CHECK=results looks at it. Each test that includes it is
 * linked with --wrap=wefti_bind_check_after.
 */
#ifndef WEFT_TESTS_RUNTIME_SUPPORT_DAMAGE_H
#define WEFT_TESTS_RUNTIME_SUPPORT_DAMAGE_H

#include "runtime/plan/bind.h"
#include "support_ranks.h"

static _Atomic uint32_t damaged = UINT32_MAX; /* the collective; UINT32_MAX: none */
static _Atomic uint64_t damaged_run = 1;      /* of sessions: from this one on */

/* Of 4-byte elements another sign of the exponent, which no rounding explains. */
static weft_status_t damage(void *user)
{
    const wefti_result_check_t *check = user;
    for (size_t at = 3; at < check->bytes && check->session->run_count >= damaged_run; at += 4) {
        ((uint8_t *)(uintptr_t)check->data)[at] ^= 0x40;
    }
    return WEFT_OK;
}

weft_status_t __real_wefti_bind_check_after(wefti_lowering_t *lowering);
weft_status_t __wrap_wefti_bind_check_after(wefti_lowering_t *lowering);
weft_status_t __wrap_wefti_bind_check_after(wefti_lowering_t *lowering)
{
    wefti_result_check_t *check = lowering->checked;
    const weft_session_t *session = lowering->session;
    if (check != NULL && check->planned - session->plan->collectives == damaged &&
        check->place == check->planned->root) {
        const wefti_record_t record = {
            .kind = WEFTI_RECORD_HOST, .name = "damage", .host = {.fn = damage, .user = check}};
        RANK_OK(wefti_bind_add(lowering, &record));
    }
    return __real_wefti_bind_check_after(lowering);
}

#endif

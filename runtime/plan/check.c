/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WEFT_CHECK=results in plans: after a collective whose result is equal on all ranks, a record of
 * its stream takes the digest; at the end of the run ranks exchange them. With results:N, in every
 * Nth run. On the CPU device.
 */
#include "runtime/plan/bind.h"

#include "ops/collective.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "transport/waits.h"

static weft_status_t take_digest(void *user)
{
    wefti_result_check_t *check = user;
    if (check->session->checks_now) {
        check->digest = wefti_hash_memory(WEFTI_HASH_START, check->data, check->bytes);
    }
    return WEFT_OK;
}

weft_status_t wefti_bind_checks(weft_session_t *session, size_t uses)
{
    if (session->context->settings.check_every == 0 || session->endpoint->world_size == 1 ||
        session->context->device != NULL || uses == 0) {
        return WEFT_OK;
    }
    session->checks = wefti_arena_array(&session->arena, uses, sizeof *session->checks);
    session->digests = wefti_arena_array(
        &session->arena, uses * (session->endpoint->world_size + 1u), sizeof *session->digests);
    WEFT_RETURN_IF_NO_MEMORY(session->checks && session->digests);
    return WEFT_OK;
}

weft_status_t wefti_bind_check(wefti_lowering_t *lowering, uint32_t collective)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const wefti_collective_t *op = wefti_collective_of(planned->op);
    if (session->checks == NULL || op->recv.holder != WEFT_HOLDER_ALL ||
        op->send.extent == WEFT_EXTENT_BLOCKS || op->send.extent == WEFT_EXTENT_NOTHING) {
        return WEFT_OK;
    }
    uint64_t blocks = wefti_collective_gathers(planned->op) ? session->endpoint->world_size : 1;
    wefti_result_check_t *check = &session->checks[session->check_count++];
    *check = (wefti_result_check_t){
        .session = session,
        .data = wefti_bind_at(session, session->endpoint->rank,
                              wefti_session_offset(&session->plan->buffers[planned->buffer],
                                                   session->endpoint->rank)),
        .bytes = (size_t)(blocks * planned->elem_count * weft_dtype_size_bytes(planned->dtype)),
        .name = planned->name,
        .program = lowering->program,
    };
    wefti_record_t record = {.kind = WEFTI_RECORD_HOST, .name = planned->name};
    record.host.fn = take_digest;
    record.host.user = check;
    return wefti_bind_add(lowering, &record);
}

void wefti_checks_begin(weft_session_t *session)
{
    uint32_t every = session->context->settings.check_every;
    session->checks_now = session->check_count > 0 && session->run_count % every == 0;
}

weft_status_t wefti_checks_compare(weft_session_t *session, uint32_t program)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    if (!session->checks_now) {
        return WEFT_OK;
    }
    uint32_t count = session->check_count;
    uint64_t *own = session->digests, *all = own + count;
    for (uint32_t i = 0; i < count; i++) {
        own[i] = session->checks[i].program == program ? session->checks[i].digest : 0;
    }
    WEFTI_IN_CONTROL(endpoint, SESSION_CHECK);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_all_gather(endpoint, own, count * sizeof *own, all));
    for (uint32_t r = 1; r < endpoint->world_size; r++) {
        for (uint32_t i = 0; i < count; i++) {
            if (all[(size_t)r * count + i] != all[i]) {
                return wefti_error(WEFT_ERR_MISMATCH,
                                   "program \"%s\": results of ranks 0 and %u differ in "
                                   "collective \"%s\" (%zu bytes)",
                                   session->plan->programs[program].name, r,
                                   session->checks[i].name, session->checks[i].bytes);
            }
        }
    }
    return WEFT_OK;
}

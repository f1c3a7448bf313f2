/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WEFT_CHECK=results in plans: records around a collective take what its result is compared with; at
 * the end of the run ranks exchange it. With results:N, in every Nth run.
 *
 *   EQUAL     all ranks have the same result     a digest of it
 *   REDUCED   each rank, or the root, has a      a window of each part before the collective, and of
 *             reduced part                       the result; all ranks' windows are reduced again
 *
 * In the order of ranks bits are equal whatever the algorithm is. The window is elsewhere in every
 * run. Not checked: collectives that only move blocks; what one place sends to others, whose memory
 * the sender uses again; parts in another order; collectives with a fused update, which leave no
 * result; parts among more than MOST_PARTS ranks; plans on devices,
 * whose streams do not run records of the host.
 */
#include <string.h>

#include "runtime/plan/bind.h"

#include "ops/collective.h"
#include "ops/reduce/reduce.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "transport/waits.h"

#define WINDOW ((size_t)64)
#define MOST_PARTS 64u

/* ---- records ---- */

static weft_status_t take_digest(void *user)
{
    wefti_result_check_t *check = user;
    if (check->session->checks_now) {
        check->digest = wefti_hash_memory(WEFTI_HASH_START, check->data, check->bytes);
    }
    return WEFT_OK;
}

/* Bytes from the start of a part to its window, equal on all ranks in a run. */
static size_t window_at(const wefti_result_check_t *check)
{
    size_t elem = weft_dtype_size_bytes(check->planned->dtype);
    uint64_t places = (check->bytes - check->window) / elem + 1;
    return (size_t)(wefti_hash_word(WEFTI_HASH_START, check->session->run_count) % places) * elem;
}

static weft_status_t keep_windows(void *user)
{
    const wefti_result_check_t *check = user;
    if (check->session->checks_now) {
        size_t at = window_at(check);
        for (uint32_t p = 0; p < check->parts; p++) {
            memcpy(check->kept + p * WINDOW, check->source + p * check->bytes + at, check->window);
        }
    }
    return WEFT_OK;
}

static weft_status_t take_window(void *user)
{
    wefti_result_check_t *check = user;
    if (check->session->checks_now && check->owns) {
        memcpy(check->kept + check->parts * WINDOW, check->data + window_at(check), check->window);
    }
    return WEFT_OK;
}

/* ---- binding ---- */

weft_status_t wefti_bind_checks(weft_session_t *session, size_t uses)
{
    if (session->context->settings.check_every == 0 || session->endpoint->world_size == 1 ||
        session->context->device != NULL || uses == 0) {
        return WEFT_OK;
    }
    session->checks = wefti_arena_array(&session->arena, uses, sizeof *session->checks);
    WEFT_RETURN_IF_NO_MEMORY(session->checks);
    return WEFT_OK;
}

static uint8_t *buffer_at(const weft_session_t *session, uint32_t buffer)
{
    uint32_t rank = session->endpoint->rank;
    return wefti_bind_at(session, rank,
                         wefti_session_offset(&session->plan->buffers[buffer], rank));
}

static weft_status_t add(wefti_lowering_t *lowering, wefti_result_check_t *check,
                         weft_status_t (*fn)(void *user))
{
    wefti_record_t record = {.kind = WEFTI_RECORD_HOST, .name = check->planned->name};
    record.host.fn = fn;
    record.host.user = check;
    return wefti_bind_add(lowering, &record);
}

/* parts 0: EQUAL. */
static wefti_result_check_t *add_check(wefti_lowering_t *lowering,
                                       const wefti_plan_collective_t *planned, uint64_t blocks,
                                       uint32_t parts)
{
    weft_session_t *session = lowering->session;
    wefti_result_check_t *check = &session->checks[session->check_count++];
    *check = (wefti_result_check_t){
        .session = session,
        .planned = planned,
        .data = buffer_at(session, planned->buffer),
        .bytes = (size_t)(blocks * planned->elem_count * weft_dtype_size_bytes(planned->dtype)),
        .program = lowering->program,
        .parts = parts,
    };
    return check;
}

/* All ranks have the same result. */
static bool is_equal(const wefti_collective_t *op)
{
    return op->recv.holder == WEFT_HOLDER_ALL && op->send.extent != WEFT_EXTENT_BLOCKS &&
           op->send.extent != WEFT_EXTENT_NOTHING;
}

weft_status_t wefti_bind_check_before(wefti_lowering_t *lowering, uint32_t collective)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const wefti_collective_t *op = wefti_collective_of(planned->op);
    const wefti_bound_group_t *group = wefti_session_group(session, planned);
    uint32_t ranks = group->axis.size, rank = group->rank;
    lowering->checked = NULL;
    if (session->checks == NULL || !op->reduces || is_equal(op) || op->variable ||
        session->orders[collective].order != WEFT_ORDER_TREE ||
        planned->update != WEFTI_PLAN_NONE || planned->elem_count == 0 || ranks > MOST_PARTS ||
        ranks == 1) {
        return WEFT_OK;
    }
    bool rooted = op->rooted;
    wefti_result_check_t *check = add_check(lowering, planned, 1, rooted ? 1 : ranks);
    check->source = buffer_at(session, planned->source);
    check->owns = !rooted || planned->root == rank;
    size_t elem = weft_dtype_size_bytes(planned->dtype);
    check->window = check->bytes < WINDOW ? check->bytes : WINDOW / elem * elem;
    check->kept = wefti_arena_array(&session->arena, check->parts + 1u, WINDOW);
    WEFT_RETURN_IF_NO_MEMORY(check->kept);
    lowering->checked = check;
    return add(lowering, check, keep_windows);
}

weft_status_t wefti_bind_check(wefti_lowering_t *lowering, uint32_t collective)
{
    const weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const wefti_collective_t *op = wefti_collective_of(planned->op);
    if (lowering->checked != NULL) {
        return add(lowering, lowering->checked, take_window);
    }
    if (session->checks == NULL || !is_equal(op) || wefti_plan_sends(session->plan, planned)) {
        return WEFT_OK;
    }
    uint32_t ranks = wefti_session_group(session, planned)->axis.size;
    uint64_t blocks = wefti_collective_gathers(planned->op) ? ranks : 1;
    return add(lowering, add_check(lowering, planned, blocks, 0), take_digest);
}

/* ---- the end of a run ---- */

void wefti_checks_begin(weft_session_t *session)
{
    uint32_t every = session->context->settings.check_every;
    session->checks_now = session->check_count > 0 && session->run_count % every == 0;
}

/* What a rank sends of a check: a digest; or a window of each part, then of the result. */
static size_t bytes_of(const wefti_result_check_t *check)
{
    return check->parts == 0 ? sizeof check->digest : (check->parts + 1) * WINDOW;
}

static weft_status_t compare_equal(const wefti_result_check_t *check, const uint8_t *all,
                                   size_t stride)
{
    const weft_session_t *session = check->session;
    const wefti_axis_t axis = wefti_plan_axis(session->plan, check->planned);
    for (uint32_t r = 1; r < session->endpoint->world_size; r++) {
        uint32_t first = wefti_axis_rank(&axis, r, 0);
        if (memcmp(all + first * stride, all + r * stride, sizeof check->digest) != 0) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "program \"%s\": results of ranks %u and %u differ in collective "
                               "\"%s\" (%zu bytes)",
                               session->plan->programs[check->program].name, first, r,
                               check->planned->name, check->bytes);
        }
    }
    return WEFT_OK;
}

/* The part of one rank, which is the same answer on all ranks. */
static weft_status_t compare_part(const wefti_result_check_t *check, uint32_t rank,
                                  const uint8_t *all, size_t stride)
{
    const weft_session_t *session = check->session;
    const wefti_plan_collective_t *planned = check->planned;
    const wefti_axis_t axis = wefti_plan_axis(session->plan, planned);
    const uint8_t *result = all + rank * stride + check->parts * WINDOW;
    uint32_t ranks = axis.size, place = wefti_axis_place(&axis, rank);
    const void *sources[MOST_PARTS];
    _Alignas(64) uint8_t again[WINDOW], copies[MOST_PARTS][WINDOW];
    void *destination = again;
    for (uint32_t r = 0; r < ranks; r++) {
        size_t part = check->parts == 1 ? 0 : place * WINDOW;
        const uint8_t *from = all + wefti_axis_rank(&axis, rank, r) * stride;
        memcpy(copies[r], from + part, check->window);
        sources[r] = copies[r];
    }
    size_t elem = weft_dtype_size_bytes(planned->dtype);
    const weft_reduce_t reduce = {.sources = sources,
                                  .source_count = ranks,
                                  .destinations = &destination,
                                  .destination_count = 1,
                                  .elem_count = check->window / elem,
                                  .dtype = planned->dtype,
                                  .reduction = planned->reduction,
                                  .divisor = planned->divisor};
    WEFT_RETURN_IF_ERROR(wefti_reduce(&reduce, WEFT_ISA_PORTABLE));
    for (size_t i = 0; i < check->window; i += elem) {
        if (!wefti_same_element(planned->dtype, again + i, result + i)) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "program \"%s\": element %zu of rank %u's result is not the "
                               "reduction of what ranks sent in collective \"%s\"",
                               session->plan->programs[check->program].name,
                               (window_at(check) + i) / elem, rank, planned->name);
        }
    }
    return WEFT_OK;
}

static weft_status_t compare_reduced(const wefti_result_check_t *check, const uint8_t *all,
                                     size_t stride)
{
    const wefti_plan_collective_t *planned = check->planned;
    weft_status_t status = WEFT_OK;
    const wefti_axis_t axis = wefti_plan_axis(check->session->plan, planned);
    bool rooted = wefti_collective_rooted(planned->op);
    for (uint32_t r = 0; r < check->session->endpoint->world_size && status == WEFT_OK; r++) {
        if (!rooted || wefti_axis_place(&axis, r) == planned->root) {
            status = compare_part(check, r, all, stride);
        }
    }
    return status;
}

static void fill(const wefti_result_check_t *check, bool ran, uint8_t *to)
{
    if (!ran) {
        memset(to, 0, bytes_of(check));
    } else if (check->parts == 0) {
        memcpy(to, &check->digest, sizeof check->digest);
    } else {
        memcpy(to, check->kept, bytes_of(check));
    }
}

weft_status_t wefti_checks_compare(weft_session_t *session, uint32_t program)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    size_t bytes = 0, at = 0;
    if (!session->checks_now) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < session->check_count; i++) {
        bytes += bytes_of(&session->checks[i]);
    }
    if (session->exchanged == NULL) {
        session->exchanged = wefti_arena_array(&session->arena, endpoint->world_size + 1u, bytes);
        WEFT_RETURN_IF_NO_MEMORY(session->exchanged);
    }
    uint8_t *own = session->exchanged, *all = own + bytes;
    for (uint32_t i = 0; i < session->check_count; at += bytes_of(&session->checks[i++])) {
        fill(&session->checks[i], session->checks[i].program == program, own + at);
    }
    WEFTI_IN_CONTROL(endpoint, SESSION_CHECK);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_all_gather(endpoint, own, bytes, all));
    weft_status_t status = WEFT_OK;
    at = 0;
    for (uint32_t i = 0; i < session->check_count && status == WEFT_OK; i++) {
        wefti_result_check_t *check = &session->checks[i];
        if (check->program == program) {
            status = check->parts == 0 ? compare_equal(check, all + at, bytes)
                                       : compare_reduced(check, all + at, bytes);
        }
        at += bytes_of(check);
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WEFT_CHECK=results in plans: records around a collective take what its result is compared with; at
 * the end of the run ranks exchange it. With results:N, in every Nth run.
 *
 *   EQUAL     all ranks have the same result     a digest of it; with an update, of the parameters
 *   MOVED     blocks go from rank to rank        a digest of each block, before it is sent and where
 *                                                it came
 *   REDUCED   each rank, or the root, has a      a window of each part before the collective, and of
 *             reduced part                       the result; all ranks' windows are reduced again
 *
 * In the order of ranks bits are equal whatever the algorithm is; floats in another order are equal
 * but for rounding. The window is elsewhere in every run, and so are, among more than MOST_PARTS
 * ranks, the blocks and parts that are looked at. Not checked: parts among more than
 * WEFT_MAX_GROUP_DIRECT ranks; plans on devices, whose streams do not run records of the host.
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

/* ---- who has what ---- */

static size_t elem_bytes(const wefti_result_check_t *check)
{
    return weft_dtype_size_bytes(check->planned->dtype);
}

/* A number that is equal on all ranks in a run. */
static uint64_t run_hash(const wefti_result_check_t *check)
{
    return wefti_hash_word(WEFTI_HASH_START, check->session->run_count);
}

/* Bytes from the start of a part to its window. */
static size_t window_at(const wefti_result_check_t *check)
{
    uint64_t places = (check->bytes - check->window) / elem_bytes(check) + 1;
    return (size_t)(run_hash(check) % places) * elem_bytes(check);
}

/* REDUCED: whose part is number i. MOVED: how far block number i goes, from place to place. */
static uint32_t nth(const wefti_result_check_t *check, uint32_t i)
{
    uint32_t first = check->ranks > MOST_PARTS ? (uint32_t)(run_hash(check) % check->ranks) : 0;
    return (first + i) % check->ranks;
}

static bool has(const wefti_result_check_t *check, wefti_side_t side, uint32_t place)
{
    return wefti_side_is_on(side, place == check->planned->root);
}

/* MOVED: a block goes from place to place. Who sends to others may use the memory again. */
static bool moves(const wefti_result_check_t *check, uint32_t from, uint32_t to)
{
    const wefti_collective_t *op = wefti_collective_of(check->planned->op);
    return has(check, op->send, from) && has(check, op->recv, to) &&
           (from != to || !wefti_plan_sends(check->session->plan, check->planned));
}

static uint64_t block_digest(const wefti_result_check_t *check, wefti_side_t side,
                             const uint8_t *buffer, uint32_t block)
{
    size_t at = side.extent == WEFT_EXTENT_BLOCKS ? block * check->bytes : 0;
    return wefti_hash_memory(WEFTI_HASH_START, buffer + at, check->bytes);
}

/* ---- records ---- */

static void keep_digests(const wefti_result_check_t *check)
{
    const wefti_side_t side = wefti_collective_of(check->planned->op)->send;
    const bool blocks = side.extent == WEFT_EXTENT_BLOCKS;
    uint64_t *sent = (uint64_t *)(void *)check->kept;
    uint64_t whole =
        !blocks && has(check, side, check->place) ? block_digest(check, side, check->source, 0) : 0;
    for (uint32_t i = 0; i < check->parts; i++) {
        uint32_t to = (check->place + nth(check, i)) % check->ranks;
        sent[i] = !moves(check, check->place, to) ? 0
                  : blocks                        ? block_digest(check, side, check->source, to)
                                                  : whole;
    }
}

static void take_digests(const wefti_result_check_t *check)
{
    const wefti_side_t side = wefti_collective_of(check->planned->op)->recv;
    uint64_t *received = (uint64_t *)(void *)check->kept + check->parts;
    for (uint32_t i = 0; i < check->parts; i++) {
        uint32_t from = (check->place + check->ranks - nth(check, i)) % check->ranks;
        received[i] =
            moves(check, from, check->place) ? block_digest(check, side, check->data, from) : 0;
    }
}

static void keep_windows(const wefti_result_check_t *check)
{
    size_t at = window_at(check);
    for (uint32_t i = 0; i < check->parts; i++) {
        size_t part = check->parts == 1 ? 0 : nth(check, i) * check->bytes;
        memcpy(check->kept + i * WINDOW, check->source + part + at, check->window);
    }
}

static weft_status_t keep_before(void *user)
{
    const wefti_result_check_t *check = user;
    if (check->session->checks_now) {
        (check->kind == WEFTI_RESULT_MOVED ? keep_digests : keep_windows)(check);
    }
    return WEFT_OK;
}

static weft_status_t take_after(void *user)
{
    const wefti_result_check_t *check = user;
    const bool owns = has(check, wefti_collective_of(check->planned->op)->recv, check->place);
    if (!check->session->checks_now) {
        return WEFT_OK;
    }
    if (check->kind == WEFTI_RESULT_EQUAL) {
        uint64_t digest = wefti_hash_memory(WEFTI_HASH_START, check->data, check->bytes);
        memcpy(check->kept, &digest, sizeof digest);
    } else if (check->kind == WEFTI_RESULT_MOVED) {
        take_digests(check);
    } else if (owns) {
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

static weft_status_t add(wefti_lowering_t *lowering, weft_status_t (*fn)(void *user))
{
    wefti_record_t record = {.kind = WEFTI_RECORD_HOST, .name = lowering->checked->planned->name};
    record.host.fn = fn;
    record.host.user = lowering->checked;
    return wefti_bind_add(lowering, &record);
}

static wefti_result_kind_t kind_of(const weft_session_t *session,
                                   const wefti_plan_collective_t *planned)
{
    const wefti_collective_t *op = wefti_collective_of(planned->op);
    bool equal = op->recv.holder == WEFT_HOLDER_ALL && op->send.extent != WEFT_EXTENT_BLOCKS;
    return equal && !wefti_plan_sends(session->plan, planned) ? WEFTI_RESULT_EQUAL
           : op->reduces                                      ? WEFTI_RESULT_REDUCED
                                                              : WEFTI_RESULT_MOVED;
}

/* What a rank sends of a check: a digest; digests of what it sent, then of what it received; or a
 * window of each part, then of the result. */
static size_t bytes_of(const wefti_result_check_t *check)
{
    return check->kind == WEFTI_RESULT_EQUAL   ? sizeof(uint64_t)
           : check->kind == WEFTI_RESULT_MOVED ? 2 * check->parts * sizeof(uint64_t)
                                               : (check->parts + 1) * WINDOW;
}

weft_status_t wefti_bind_check_before(wefti_lowering_t *lowering, uint32_t collective)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const wefti_bound_group_t *group = wefti_session_group(session, planned);
    const wefti_result_kind_t kind = kind_of(session, planned);
    const uint32_t ranks = group->axis.size;
    lowering->checked = NULL;
    if (session->checks == NULL || !wefti_collective_has_one_count(planned->op) ||
        planned->elem_count == 0 || ranks == 1 ||
        (kind == WEFTI_RESULT_REDUCED && ranks > WEFT_MAX_GROUP_DIRECT)) {
        return WEFT_OK;
    }
    wefti_result_check_t *check = &session->checks[session->check_count++];
    *check = (wefti_result_check_t){
        .session = session,
        .planned = planned,
        .kind = kind,
        .source = buffer_at(session, planned->source),
        .data = buffer_at(session, planned->buffer),
        .program = lowering->program,
        .ranks = ranks,
        .place = group->rank,
        .parts = ranks < MOST_PARTS ? ranks : MOST_PARTS,
    };
    const bool swept = planned->update != WEFTI_PLAN_NONE; /* parameters, of their own type */
    size_t elem = weft_dtype_size_bytes(swept ? session->plan->buffers[planned->buffer].dtype
                                              : planned->dtype);
    check->bytes = (size_t)planned->elem_count * elem;
    if (kind == WEFTI_RESULT_EQUAL && wefti_collective_gathers(planned->op)) {
        check->bytes *= ranks;
    }
    if (kind == WEFTI_RESULT_REDUCED) {
        check->parts = wefti_collective_rooted(planned->op) ? 1 : check->parts;
        check->window = check->bytes < WINDOW ? check->bytes : WINDOW / elem * elem;
        check->any_order = session->orders[collective].order != WEFT_ORDER_TREE;
        check->sources = wefti_arena_array(&session->arena, ranks, sizeof *check->sources);
        WEFT_RETURN_IF_NO_MEMORY(check->sources);
    }
    check->kept = wefti_arena_array(&session->arena, bytes_of(check), 1);
    WEFT_RETURN_IF_NO_MEMORY(check->kept);
    lowering->checked = check;
    return kind == WEFTI_RESULT_EQUAL ? WEFT_OK : add(lowering, keep_before);
}

weft_status_t wefti_bind_check_after(wefti_lowering_t *lowering)
{
    return lowering->checked == NULL ? WEFT_OK : add(lowering, take_after);
}

/* ---- the end of a run ---- */

void wefti_checks_begin(weft_session_t *session)
{
    uint32_t every = session->context->settings.check_every;
    session->checks_now = session->check_count > 0 && session->run_count % every == 0;
}

/* all + rank * stride: what a rank sent of the check. */
static weft_status_t compare_equal(const wefti_result_check_t *check, const wefti_axis_t *axis,
                                   uint32_t rank, const uint8_t *all, size_t stride)
{
    uint32_t first = wefti_axis_rank(axis, rank, 0);
    if (memcmp(all + first * stride, all + rank * stride, bytes_of(check)) == 0) {
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_MISMATCH,
                       "program \"%s\": results of ranks %u and %u differ in collective "
                       "\"%s\" (%zu bytes)",
                       check->session->plan->programs[check->program].name, first, rank,
                       check->planned->name, check->bytes);
}

/* What a rank received. */
static weft_status_t compare_moved(const wefti_result_check_t *check, const wefti_axis_t *axis,
                                   uint32_t rank, const uint8_t *all, size_t stride)
{
    const uint32_t place = wefti_axis_place(axis, rank);
    const uint8_t *received = all + rank * stride + check->parts * sizeof(uint64_t);
    for (uint32_t i = 0; i < check->parts; i++) {
        uint32_t from = (place + check->ranks - nth(check, i)) % check->ranks;
        uint32_t sender = wefti_axis_rank(axis, rank, from);
        if (moves(check, from, place) &&
            memcmp(all + sender * stride + i * sizeof(uint64_t), received + i * sizeof(uint64_t),
                   sizeof(uint64_t)) != 0) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "program \"%s\": what rank %u received in collective \"%s\" is not "
                               "what rank %u sent",
                               check->session->plan->programs[check->program].name, rank,
                               check->planned->name, sender);
        }
    }
    return WEFT_OK;
}

/* The part of a rank. */
static weft_status_t compare_reduced(const wefti_result_check_t *check, const wefti_axis_t *axis,
                                     uint32_t rank, const uint8_t *all, size_t stride)
{
    const wefti_plan_collective_t *planned = check->planned;
    const uint32_t place = wefti_axis_place(axis, rank);
    const uint32_t part =
        check->parts == 1 ? 0 : (place + check->ranks - nth(check, 0)) % check->ranks;
    if (part >= check->parts || !has(check, wefti_collective_of(planned->op)->recv, place)) {
        return WEFT_OK;
    }
    for (uint32_t r = 0; r < check->ranks; r++) {
        check->sources[r] = all + wefti_axis_rank(axis, rank, r) * stride + part * WINDOW;
    }
    const weft_reduce_t reduce = {.sources = check->sources,
                                  .source_count = check->ranks,
                                  .elem_count = check->window / elem_bytes(check),
                                  .dtype = planned->dtype,
                                  .reduction = planned->reduction,
                                  .divisor = planned->divisor};
    uint64_t wrong;
    WEFT_RETURN_IF_ERROR(wefti_reduce_compare(&reduce, all + rank * stride + check->parts * WINDOW,
                                              check->any_order, &wrong));
    if (wrong == reduce.elem_count) {
        return WEFT_OK;
    }
    return wefti_error(WEFT_ERR_MISMATCH,
                       "program \"%s\": element %zu of rank %u's result is not the reduction of "
                       "what ranks sent in collective \"%s\"",
                       check->session->plan->programs[check->program].name,
                       window_at(check) / elem_bytes(check) + (size_t)wrong, rank, planned->name);
}

/* The answer is the same on all ranks. */
static weft_status_t compare(const wefti_result_check_t *check, const uint8_t *all, size_t stride)
{
    const weft_session_t *session = check->session;
    const wefti_axis_t axis = wefti_plan_axis(session->plan, check->planned);
    for (uint32_t r = 0; r < session->endpoint->world_size; r++) {
        WEFT_RETURN_IF_ERROR((check->kind == WEFTI_RESULT_EQUAL ? compare_equal
                              : check->kind == WEFTI_RESULT_MOVED
                                  ? compare_moved
                                  : compare_reduced)(check, &axis, r, all, stride));
    }
    return WEFT_OK;
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
        memcpy(own + at, session->checks[i].kept, bytes_of(&session->checks[i]));
    }
    WEFTI_IN_CONTROL(endpoint, SESSION_CHECK);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_all_gather(endpoint, own, bytes, all));
    weft_status_t status = WEFT_OK;
    at = 0;
    for (uint32_t i = 0; i < session->check_count && status == WEFT_OK; i++) {
        const wefti_result_check_t *check = &session->checks[i];
        status = check->program == program ? compare(check, all + at, bytes) : WEFT_OK;
        at += bytes_of(check);
    }
    return status;
}

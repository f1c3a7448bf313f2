/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of a plan that the interpreter runs: each use in a program has a run of its own, with
 * counters and work memory of its own in the session's region. One with an update is two runs, the
 * update between them (bind_update.c).
 *
 * A rank that is done with a collective goes on to the next without a word, so a peer may still be
 * reading its scratch: nothing is shared between uses, and the runs of one use follow each other
 * across steps as the verifier has proved it for the runs of one schedule.
 */
#include "runtime/plan/session.h"

#include "ops/algo/algorithms.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"

#define LINE_BYTES 64u

/* Where all ranks have a buffer, or, with the bytes of a shard, its own shard of it: offsets from
 * the session's memory for now. */
static void find_offsets(const weft_session_t *session, const wefti_bound_group_t *group,
                         uint32_t buffer, uint64_t shard_bytes, uint64_t *offsets)
{
    for (uint32_t r = 0; r < group->axis.size; r++) {
        offsets[r] = wefti_session_offset(&session->plan->buffers[buffer], group->ranks[r]) +
                     r * shard_bytes;
    }
}

/* Blocks of a buffer of this rank. */
static uint32_t side_blocks(const wefti_side_t *side, const weft_algo_params_t *params)
{
    return (side->holder == WEFT_HOLDER_ROOT && params->rank != params->root) ||
                   side->extent == WEFT_EXTENT_NOTHING
               ? 0
           : side->extent == WEFT_EXTENT_BLOCKS ? params->group_size
                                                : 1;
}

static bool same_params(const weft_algo_params_t *a, const weft_algo_params_t *b)
{
    return a->op == b->op && a->root == b->root && a->peer == b->peer &&
           a->in_place == b->in_place && wefti_same_order(a, b);
}

/* The run of an earlier use of the group whose schedule is the same; NULL: there is none. */
static const wefti_run_t *find_like(const weft_session_t *session, const wefti_bound_run_t *bound)
{
    for (const wefti_bound_run_t *other = session->runs; other < bound; other++) {
        if (other->run != NULL && other->group == bound->group &&
            other->algorithm == bound->algorithm && same_params(&other->params, &bound->params)) {
            return other->run;
        }
    }
    return NULL;
}

/* The run of one use, whose call is filled in but for its offsets, and its memory: offsets for now.
 */
static weft_status_t make_run(weft_session_t *session, wefti_bound_run_t *bound,
                              const wefti_plan_collective_t *planned,
                              const weft_algorithm_t *algorithm, const weft_algo_params_t *params,
                              size_t *bytes)
{
    uint32_t n = params->group_size;
    const wefti_bound_group_t *group = wefti_session_group(session, planned);
    wefti_links_t links = {.memory_of = group->host_of};
    bound->group = group;
    bound->algorithm = algorithm;
    bound->params = *params;
    const wefti_run_call_t *call = &bound->call;
    bound->send_blocks = side_blocks(&wefti_collective_of(params->op)->send, params);
    bound->recv_blocks = side_blocks(&wefti_collective_of(params->op)->recv, params);
    if (session->staged) {
        bound->call.chunk = wefti_staged_chunk(params->op, call->dtype, n);
    }
    bound->offsets = wefti_arena_array(&session->arena, 2 * (size_t)n, sizeof(*bound->offsets));
    WEFT_RETURN_IF_NO_MEMORY(bound->offsets);
    bound->call.send = bound->offsets;
    bound->call.recv = bound->offsets + n;
    const wefti_run_t *like = find_like(session, bound);
    WEFT_RETURN_IF_ERROR(like != NULL ? wefti_run_create_like(like, &bound->run)
                                      : wefti_run_create(algorithm, params, &links,
                                                         session->allocator, &bound->run));
    uint32_t lanes = wefti_run_schedule(bound->run)->resources.lanes;
    WEFT_RETURN_IF_ERROR(wefti_run_counters_init(&bound->counters, n, lanes, session->allocator));
    /* As much as a group has: larger buckets go through it in chunks, which stay in cache. */
    size_t most = 2 * wefti_context_staging_bytes(session->context);
    size_t work = wefti_run_work_bytes(bound->run, call->dtype, call->reduction, &call->counts, 0);
    work = work < most ? work : most;
    if (wefti_run_chunk(bound->run, call->dtype, call->reduction, &call->counts, work) == 0) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s, algorithm %s: staging buffers too small for one element: %zu bytes; "
            "increase WEFT_STAGING_BYTES",
            planned->name, algorithm->name, work);
    }
    size_t area = wefti_align_up(*bytes, sizeof(wefti_signal_line_t));
    size_t after = wefti_align_up(area + wefti_run_area_bytes(n, lanes), LINE_BYTES);
    bound->memory = (wefti_run_memory_t){
        .endpoint = session->endpoint,
        .ranks = group->ranks,
        .bases = group->bases,
        .limit = UINT64_MAX, /* the plan was verified, and is equal on all ranks */
        .area = area,
        .work = after,
        .work_bytes = work,
        .counters = &bound->counters,
        .isa = session->context->settings.isa,
        .polls = true};
    *bytes = after + work;
    return WEFT_OK;
}

/* What scatters or gathers around an update: a mesh, or over several hosts what costs least. */
static weft_status_t make_part(weft_session_t *session, wefti_bound_run_t *bound,
                               const wefti_plan_collective_t *planned, weft_algo_params_t params,
                               weft_collective_t op, size_t *bytes)
{
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count = 0;
    wefti_counts_t counts = bound->call.counts;
    const wefti_choice_t choice = {.planned = true};
    counts.elem_bytes = (uint32_t)weft_dtype_size_bytes(bound->call.dtype);
    params.op = op;
    params.in_place = 1;
    if (params.host_of != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_bind_cheapest(session, &params, &counts, &choice, list, &count));
    }
    return make_run(session, bound, planned,
                    count > 0 ? list[0].algorithm : wefti_algorithm_find(op, "mesh"), &params,
                    bytes);
}

/* A use of a collective is one run; with an update, the collectives before and after the update. */
static weft_status_t make_runs(weft_session_t *session, wefti_bound_run_t *bound,
                               uint32_t collective, size_t *bytes)
{
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    const weft_algo_params_t params = wefti_bind_algo_params(session, collective);
    const wefti_bound_group_t *group = wefti_session_group(session, planned);
    uint32_t n = params.group_size, source = planned->source, buffer = planned->buffer;
    weft_dtype_t dtype = session->plan->buffers[buffer].dtype;
    uint64_t shard = planned->elem_count / n;
    bound->call = (wefti_run_call_t){.dtype = planned->dtype,
                                     .reduction = planned->reduction,
                                     .divisor = planned->divisor,
                                     .counts.elem_count = planned->elem_count};
    if (planned->update == WEFTI_PLAN_NONE) {
        WEFT_RETURN_IF_ERROR(
            make_run(session, bound, planned, session->algorithms[collective], &params, bytes));
        find_offsets(session, group, source, 0, bound->offsets);
        find_offsets(session, group, buffer, 0, bound->offsets + n);
        return WEFT_OK;
    }
    bound[0].call.counts.elem_count = shard;
    bound[1].call = bound[0].call;
    bound[1].call.dtype = dtype;
    WEFT_RETURN_IF_ERROR(
        make_part(session, &bound[0], planned, params, WEFT_COLLECTIVE_REDUCE_SCATTER, bytes));
    WEFT_RETURN_IF_ERROR(
        make_part(session, &bound[1], planned, params, WEFT_COLLECTIVE_ALL_GATHER, bytes));
    find_offsets(session, group, source, 0, bound[0].offsets);
    find_offsets(session, group, source,
                 shard * weft_dtype_size_bytes(session->plan->buffers[source].dtype),
                 bound[0].offsets + n);
    find_offsets(session, group, buffer, shard * weft_dtype_size_bytes(dtype), bound[1].offsets);
    find_offsets(session, group, buffer, 0, bound[1].offsets + n);
    return WEFT_OK;
}

static weft_status_t make_tables(weft_session_t *session)
{
    size_t slots = WEFTI_USE_RUNS * wefti_bind_count_collectives(session->plan);
    session->runs = wefti_arena_array(&session->arena, slots, sizeof(*session->runs));
    WEFT_RETURN_IF_NO_MEMORY(session->runs);
    session->run_slots = (uint32_t)slots;
    return WEFT_OK;
}

weft_status_t wefti_bind_schedules(weft_session_t *session, size_t *bytes)
{
    const weft_plan_t *plan = session->plan;
    if (!session->interprets) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(make_tables(session));
    wefti_bound_run_t *use = session->runs;
    for (uint32_t p = 0; p < plan->program_count; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            const wefti_plan_stream_program_t *program = &plan->programs[p].streams[s];
            for (uint32_t i = 0; i < program->step_count; i++) {
                const wefti_plan_step_t *step = &program->steps[i];
                if (step->kind != WEFTI_STEP_COLLECTIVE) {
                    continue;
                }
                if (session->interpreted[step->index]) {
                    WEFT_RETURN_IF_ERROR(make_runs(session, use, step->index, bytes));
                }
                use += WEFTI_USE_RUNS;
            }
        }
    }
    return WEFT_OK;
}

void wefti_bind_run_memory(weft_session_t *session)
{
    for (uint32_t i = 0; i < session->run_slots; i++) {
        wefti_bound_run_t *bound = &session->runs[i];
        uint32_t n = bound->group != NULL ? bound->group->axis.size : 0;
        bound->memory.area += session->region_offset;
        bound->memory.work += session->region_offset;
        for (uint32_t k = 0; bound->run != NULL && k < 2 * n; k++) {
            bound->offsets[k] += session->region_offset;
        }
    }
}

void wefti_unbind_schedules(weft_session_t *session)
{
    for (uint32_t i = 0; i < session->run_slots; i++) {
        wefti_run_destroy(session->runs[i].run);
        wefti_run_counters_deinit(&session->runs[i].counters);
    }
    session->run_slots = 0;
}

weft_status_t wefti_bound_run_advance(wefti_bound_run_t *bound)
{
    if (!bound->started) {
        WEFT_RETURN_IF_ERROR(wefti_run_start(bound->run, &bound->memory, &bound->call));
        bound->started = true;
    }
    weft_status_t status = wefti_run_advance(bound->run, &bound->blocked);
    if (status == WEFT_OK) {
        bound->started = false;
        bound->call.follows = true;
    }
    return status;
}

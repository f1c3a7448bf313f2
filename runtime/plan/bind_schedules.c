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

#include "ops/algo/table.h"

#include "runtime/base/error.h"

#define LINE_BYTES 64u

/* What a run executes. */
typedef struct run_form {
    const wefti_plan_collective_t *planned;
    const weft_algorithm_t *algorithm;
    weft_algo_params_t params;
    weft_dtype_t dtype;
    uint64_t elem_count;
    const uint64_t *send, *recv; /* offsets of all ranks */
} run_form_t;

/* The run of one use, and where its memory is from the session's region: offsets for now. */
static weft_status_t make_run(weft_session_t *session, wefti_bound_run_t *bound,
                              const run_form_t *form, size_t *bytes)
{
    const wefti_plan_collective_t *planned = form->planned;
    const weft_algo_params_t params = form->params;
    uint32_t n = params.group_size;
    wefti_links_t links = {.put = session->put_links};
    wefti_counts_t counts = {.elem_count = form->elem_count};
    weft_status_t status =
        wefti_run_create(form->algorithm, &params, &links, session->allocator, &bound->run);
    if (status < 0) {
        return status;
    }
    uint32_t lanes = wefti_run_schedule(bound->run)->resources.lanes;
    status = wefti_run_counters_init(&bound->counters, n, lanes, session->allocator);
    if (status < 0) {
        return status;
    }
    /* As much as a group has: larger buckets go through it in chunks, which stay in cache. */
    size_t most = 2 * wefti_context_staging_bytes(session->context);
    size_t work = wefti_run_work_bytes(bound->run, form->dtype, planned->reduction, &counts, 0);
    work = work < most ? work : most;
    if (wefti_run_chunk(bound->run, form->dtype, planned->reduction, &counts, work) == 0) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s, algorithm %s: staging buffers too small for one element: %zu bytes; "
            "increase WEFT_STAGING_BYTES",
            planned->name, form->algorithm->name, work);
    }
    *bytes = wefti_align_up(*bytes, sizeof(wefti_signal_line_t));
    bound->memory.area = *bytes;
    *bytes = wefti_align_up(*bytes + wefti_run_area_bytes(n, lanes), LINE_BYTES);
    bound->memory.work = *bytes;
    bound->memory.work_bytes = work;
    *bytes += work;
    bound->call = (wefti_run_call_t){.dtype = form->dtype,
                                     .reduction = planned->reduction,
                                     .divisor = planned->divisor,
                                     .counts = counts,
                                     .send = form->send,
                                     .recv = form->recv};
    return WEFT_OK;
}

/* [world_size] offsets, of which there are four for each collective: the source, the buffer, and
 * each rank's shard of these. */
static uint64_t *offsets_of(const weft_session_t *session, uint32_t collective, uint32_t what)
{
    return session->run_offsets + ((size_t)collective * 4 + what) * session->endpoint->world_size;
}

/* What scatters and gathers around an update: a mesh, or over several hosts what costs least. */
static weft_status_t choose_form(const weft_session_t *session, run_form_t *form,
                                 weft_collective_t op)
{
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count = 0;
    wefti_counts_t counts = {.elem_count = form->elem_count,
                             .elem_bytes = (uint32_t)weft_dtype_size_bytes(form->dtype)};
    const wefti_choice_t choice = {.planned = true};
    weft_status_t status = WEFT_OK;
    form->params.op = op;
    form->algorithm = wefti_algorithm_find(op, "mesh");
    if (form->params.host_of == NULL) {
        return WEFT_OK;
    }
    if (form->params.group_size <= WEFTI_MAX_PREDICTED_RANKS) {
        status = wefti_cost_choose(&session->context->costs, &form->params, &counts, &choice, list,
                                   &count);
        form->algorithm = count > 0 ? list[0].algorithm : form->algorithm;
    } else if (wefti_cost_few_steps(&form->params) != NULL) {
        form->algorithm = wefti_cost_few_steps(&form->params);
    }
    return status;
}

/* A use of a collective is one run; with an update, the collectives before and after the update. */
static weft_status_t make_runs(weft_session_t *session, wefti_bound_run_t *bound,
                               uint32_t collective, size_t *bytes)
{
    const wefti_plan_collective_t *planned = &session->plan->collectives[collective];
    run_form_t form = {.planned = planned,
                       .algorithm = session->algorithms[collective],
                       .params = wefti_bind_algo_params(session, collective),
                       .dtype = planned->dtype,
                       .elem_count = planned->elem_count,
                       .send = offsets_of(session, collective, 0),
                       .recv = offsets_of(session, collective, 1)};
    if (planned->update == WEFTI_PLAN_NONE) {
        return make_run(session, bound, &form, bytes);
    }
    form.params.in_place = 1;
    form.elem_count /= session->endpoint->world_size;
    form.recv = offsets_of(session, collective, 2);
    weft_status_t status = choose_form(session, &form, WEFT_COLLECTIVE_REDUCE_SCATTER);
    status = status < 0 ? status : make_run(session, &bound[0], &form, bytes);
    form.dtype = session->plan->buffers[planned->buffer].dtype;
    form.send = offsets_of(session, collective, 3);
    form.recv = offsets_of(session, collective, 1);
    status = status < 0 ? status : choose_form(session, &form, WEFT_COLLECTIVE_ALL_GATHER);
    return status < 0 ? status : make_run(session, &bound[1], &form, bytes);
}

static bool interprets(const weft_session_t *session)
{
    for (uint32_t i = 0; i < session->plan->collective_count; i++) {
        if (session->interpreted[i]) {
            return true;
        }
    }
    return false;
}

static weft_status_t make_tables(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    size_t n = session->endpoint->world_size, uses = 0;
    for (uint32_t p = 0; p < plan->program_count; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            uses += wefti_bind_count_collectives(plan, p, s);
        }
    }
    uses *= WEFTI_USE_RUNS;
    session->runs = wefti_arena_array(&session->arena, uses + 1, sizeof(*session->runs));
    session->run_offsets = wefti_arena_array(&session->arena, plan->collective_count * 4 * n,
                                             sizeof(*session->run_offsets));
    session->run_ranks = wefti_arena_array(&session->arena, n, sizeof(*session->run_ranks));
    if (session->runs == NULL || session->run_offsets == NULL || session->run_ranks == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    session->run_slots = (uint32_t)uses;
    for (uint32_t r = 0; r < n; r++) {
        session->run_ranks[r] = r;
    }
    return WEFT_OK;
}

weft_status_t wefti_bind_schedules(weft_session_t *session, size_t *bytes)
{
    const weft_plan_t *plan = session->plan;
    weft_status_t status = interprets(session) ? make_tables(session) : WEFT_OK;
    uint32_t use = 0;
    for (uint32_t p = 0; p < plan->program_count && session->runs != NULL; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            const wefti_plan_stream_program_t *program = &plan->programs[p].streams[s];
            for (uint32_t i = 0; i < program->step_count && status >= 0; i++) {
                const wefti_plan_step_t *step = &program->steps[i];
                if (step->kind != WEFTI_STEP_COLLECTIVE) {
                    continue;
                }
                if (session->interpreted[step->index]) {
                    status = make_runs(session, &session->runs[WEFTI_USE_RUNS * use], step->index,
                                       bytes);
                }
                use++;
            }
        }
    }
    return status;
}

void wefti_bind_run_memory(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    wefti_endpoint_t *endpoint = session->endpoint;
    uint32_t n = endpoint->world_size;
    for (uint32_t c = 0; c < plan->collective_count && session->runs != NULL; c++) {
        const wefti_plan_collective_t *planned = &plan->collectives[c];
        const uint32_t sides[] = {planned->source, planned->buffer};
        for (uint32_t side = 0; side < 2; side++) {
            const wefti_plan_buffer_t *buffer = &plan->buffers[sides[side]];
            uint64_t shard = planned->elem_count / n * weft_dtype_size_bytes(buffer->dtype);
            for (uint32_t r = 0; r < n; r++) {
                uint64_t at = session->region_offset + wefti_session_offset(buffer, r);
                offsets_of(session, c, side)[r] = at;
                offsets_of(session, c, 2 + side)[r] = at + r * shard;
            }
        }
    }
    for (uint32_t i = 0; i < session->run_slots; i++) {
        wefti_bound_run_t *bound = &session->runs[i];
        if (bound->run == NULL) {
            continue;
        }
        bound->memory.endpoint = endpoint;
        bound->memory.ranks = session->run_ranks;
        bound->memory.bases = endpoint->region_of;
        bound->memory.limit = UINT64_MAX; /* the plan was verified, and is equal on all ranks */
        bound->memory.area += session->region_offset;
        bound->memory.work += session->region_offset;
        bound->memory.counters = &bound->counters;
        bound->memory.isa = session->context->settings.isa;
        bound->memory.polls = true;
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
    weft_status_t status = WEFT_OK;
    if (!bound->started) {
        status = wefti_run_start(bound->run, &bound->memory, &bound->call);
        bound->started = true;
    }
    if (status >= 0) {
        status = wefti_run_advance(bound->run, &bound->blocked);
    }
    if (status == WEFT_OK) {
        bound->started = false;
        bound->call.follows = true;
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Binding a plan to a context, and taking it apart again. */
#include "runtime/plan/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PAGE_BYTES 4096u /* what memory of regions comes in */

/* What ranks must agree on before anything is mapped. */
typedef struct identity {
    uint32_t world_size;
    wefti_digest_t structure, weights;
    wefti_digest_t cluster; /* the hosts that ranks believe to be on */
} identity_t;

static weft_status_t bad_identity(const identity_t *first, const identity_t *other, uint32_t rank)
{
    char text[4][65];
    return wefti_error(WEFT_ERR_MISMATCH,
                       "ranks have different plans: rank 0 has digest %.16s/%.16s, rank %u has "
                       "%.16s/%.16s",
                       wefti_digest_hex(&first->structure, text[0]),
                       wefti_digest_hex(&first->weights, text[1]), rank,
                       wefti_digest_hex(&other->structure, text[2]),
                       wefti_digest_hex(&other->weights, text[3]));
}

static weft_status_t agree_on_plan(weft_session_t *session, weft_status_t status)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    const weft_plan_t *plan = session->plan;
    identity_t own;
    void *gathered;
    memset(&own, 0, sizeof(own)); /* padding is compared too */
    own.world_size = plan->world_size;
    own.structure = plan->structure_digest;
    own.weights = plan->weights_digest;
    own.cluster = session->context->cluster_digest;
    WEFT_RETURN_IF_ERROR(
        wefti_session_gather(endpoint, &session->arena, status, &own, sizeof(own), &gathered));
    const identity_t *all = gathered;
    for (uint32_t rank = 1; rank < endpoint->world_size; rank++) {
        if (memcmp(&all[rank].cluster, &all[0].cluster, sizeof(own.cluster)) != 0) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "ranks 0 and %u have different cluster descriptions; set "
                               "WEFT_TOPOLOGY to the same file on all ranks",
                               rank);
        }
        if (memcmp(&all[rank], &all[0], sizeof(own)) != 0) {
            return bad_identity(&all[0], &all[rank], rank);
        }
    }
    if (plan->world_size != endpoint->world_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "plan: compiled for %u ranks, world size is %u", plan->world_size,
                           endpoint->world_size);
    }
    wefti_context_compare_placement(session->context, plan);
    return WEFT_OK;
}

static weft_status_t make_histories(weft_session_t *session)
{
    uint32_t capacity = session->trace ? WEFTI_HISTORY_TRACE : WEFTI_HISTORY_RECORDER;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        wefti_history_t *history = &session->cursors[i].history;
        history->entries = wefti_alloc(session->allocator, capacity * sizeof(*history->entries));
        WEFT_RETURN_IF_NO_MEMORY(history->entries);
        if (session->trace) {
            memset(history->entries, 0xff, capacity * sizeof(*history->entries)); /* touched now */
        }
        history->capacity = capacity;
    }
    return WEFT_OK;
}

/* Arrays of the session; plan contents decide their sizes. */
static weft_status_t make_tables(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    wefti_arena_t *arena = &session->arena;
    size_t streams = plan->stream_count + 1u; /* never an empty array */
    size_t kernels = plan->kernel_count + 1u, collectives = plan->collective_count + 1u;
    session->kernels = wefti_arena_array(arena, kernels, sizeof(*session->kernels));
    session->kernel_stream = wefti_arena_array(arena, kernels, sizeof(uint32_t));
    session->scratch = wefti_arena_array(arena, streams, sizeof(void *));
    session->scratch_bytes = wefti_arena_array(arena, streams, sizeof(size_t));
    session->algorithms = wefti_arena_array(arena, collectives, sizeof(*session->algorithms));
    session->interpreted = wefti_arena_array(arena, collectives, sizeof(bool));
    session->orders = wefti_arena_array(arena, collectives, sizeof(*session->orders));
    session->sweeps = wefti_arena_array(arena, collectives, sizeof(*session->sweeps));
    session->programs =
        wefti_arena_array(arena, plan->program_count + 1u, sizeof(*session->programs));
    session->cursors = wefti_arena_array(arena, streams, sizeof(*session->cursors));
    session->workers = wefti_arena_array(arena, streams, sizeof(*session->workers));
    session->on_worker = wefti_arena_array(arena, streams, sizeof(bool));
    session->queues = wefti_arena_array(arena, streams, sizeof(*session->queues));
    session->times = wefti_alloc(session->allocator, WEFTI_STATS_STEPS * sizeof(*session->times));
    WEFT_RETURN_IF_NO_MEMORY(!arena->failed && session->times != NULL);
    if (session->registry == NULL) {
        WEFT_RETURN_IF_ERROR(weft_registry_create(session->allocator, &session->own_registry));
        session->registry = session->own_registry;
    }
    WEFT_RETURN_IF_ERROR(wefti_state_map_build(plan, session->registry, arena, &session->states));
    return make_histories(session);
}

static uint32_t find_program(const weft_plan_t *plan, const char *name)
{
    const wefti_plan_program_t *program = wefti_plan_program(plan, name);
    return program != NULL ? (uint32_t)(program - plan->programs) : WEFTI_PLAN_NONE;
}

static void find_entries(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    session->step_program = find_program(plan, "step");
    session->eval_program = find_program(plan, "eval");
    session->flush_program = find_program(plan, "flush");
    for (uint32_t t = 0; t < WEFTI_MICRO_PROGRAMS; t++) {
        char name[32];
        snprintf(name, sizeof(name), t == 0 ? "micro_step" : "micro_step.%u", t);
        session->micro_programs[t] = find_program(plan, name);
    }
    session->step_scalar = wefti_session_find_scalar(session, "step");
    session->rank_scalar = wefti_session_find_scalar(session, "rank");
    session->shard_scalar = wefti_session_find_scalar(session, "shard");
}

/* Bytes of the region: the plan's arena, signals, and what runs need. */
static weft_status_t count_bytes(weft_session_t *session, size_t *out_bytes)
{
    size_t arena_bytes = session->plan->arena_bytes;
    bool fits = arena_bytes < SIZE_MAX - sizeof(wefti_signal_line_t);
    uint64_t host_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (session->context->device == NULL && arena_bytes > host_bytes) { /* all of it is touched */
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "plan: arena too large: %zu bytes, this host has %llu bytes of memory",
                           arena_bytes, (unsigned long long)host_bytes);
    }
    session->signals_offset = fits ? wefti_align_up(arena_bytes, sizeof(wefti_signal_line_t)) : 0;
    if (!fits ||
        !wefti_add_size(session->signals_offset, wefti_bind_signal_bytes(session), out_bytes)) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "plan: arena too large: %zu bytes", arena_bytes);
    }
    return wefti_bind_schedules(session, out_bytes);
}

/* Where ranks run different kernels, a rank has memory for its own. Memory that a link or a device
 * registers is all there. */
static bool maps_parts(const weft_session_t *session)
{
    return session->plan->place_group != 0 && session->context->device == NULL && !session->puts;
}

/* Memory for the spans of this rank's place, and for what lies after the plan's arena. */
static weft_status_t commit_parts(weft_session_t *session, size_t bytes)
{
    const weft_plan_t *plan = session->plan;
    const wefti_axis_t axis = plan->mesh.axes[plan->place_group - 1];
    wefti_plan_span_t *spans;
    uint32_t count;
    size_t done = 0;
    WEFT_RETURN_IF_ERROR(
        wefti_plan_place_spans(plan, 1 + wefti_axis_place(&axis, session->endpoint->rank),
                               &session->arena, &spans, &count));
    for (uint32_t i = 0; i <= count; i++) {
        size_t begin = i < count ? spans[i].begin : session->signals_offset;
        size_t end = i < count ? spans[i].end : bytes;
        begin &= ~(size_t)(PAGE_BYTES - 1);
        begin = begin > done ? begin : done;
        end = wefti_align_up(end, PAGE_BYTES);
        if (end > begin) {
            WEFT_RETURN_IF_ERROR(wefti_region_commit(session->endpoint,
                                                     session->region_offset + begin, end - begin));
            done = end;
        }
    }
    return WEFT_OK;
}

static weft_status_t map_memory(weft_session_t *session)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    size_t bytes = 0;
    bool parts = maps_parts(session);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(endpoint, count_bytes(session, &bytes)));
    bytes = bytes > 0 ? bytes : 1; /* never none */
    WEFT_RETURN_IF_ERROR(parts ? wefti_region_reserve(endpoint, bytes, &session->region_offset)
                               : wefti_region_alloc(endpoint, bytes, &session->region_offset));
    if (parts) {
        WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(endpoint, commit_parts(session, bytes)));
    }
    session->base = endpoint->region_of[endpoint->rank] + session->region_offset;
    /* What was refused in a session that was here before is not for this one. */
    wefti_endpoint_retry_refusal(endpoint, WEFTI_WAIT_STEP, wefti_session_channel(session),
                                 UINT32_MAX, WEFTI_REFUSAL_NONE);
    wefti_bind_group_memory(session);
    wefti_bind_run_memory(session);
    return WEFT_OK;
}

/* Faults known to all ranks are ignored: a later one ends the session on all of them. */
static weft_status_t agree_on_links(weft_session_t *session)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    if (!session->puts) {
        return WEFT_OK;
    }
    void *gathered;
    uint32_t own = atomic_load_explicit(&endpoint->link_faults, memory_order_acquire);
    WEFT_RETURN_IF_ERROR(
        wefti_session_gather(endpoint, &session->arena, WEFT_OK, &own, sizeof own, &gathered));
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        uint32_t faults = ((const uint32_t *)gathered)[r];
        session->faults_seen = faults > session->faults_seen ? faults : session->faults_seen;
    }
    return WEFT_OK;
}

/* What may fail on one rank only; ranks agree on it before any rank waits for another. */
static weft_status_t bind_local(weft_session_t *session)
{
    WEFT_RETURN_IF_ERROR(wefti_bind_updates(session));
    WEFT_RETURN_IF_ERROR(wefti_bind_records(session));
    WEFT_RETURN_IF_ERROR(wefti_bind_scratch(session));
    if (session->context->device != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_exec_device_open(session));
    }
    if (session->staged) {
        WEFT_RETURN_IF_ERROR(wefti_staged_open(session));
    }
    if (session->context->device != NULL && session->trace) {
        WEFT_RETURN_IF_ERROR(wefti_exec_device_profile(session));
    }
    if (session->context->device == NULL || session->staged) {
        WEFT_RETURN_IF_ERROR(wefti_exec_host_open(session));
    }
    return wefti_session_load(session);
}

static weft_status_t bind(weft_session_t *session)
{
    weft_status_t status;
    WEFT_RETURN_IF_ERROR(wefti_staged_choose(session));
    WEFT_RETURN_IF_ERROR(agree_on_plan(session, make_tables(session)));
    find_entries(session);
    WEFT_RETURN_IF_ERROR(wefti_bind_algorithms(session));
    WEFT_RETURN_IF_ERROR(map_memory(session));
    WEFT_RETURN_IF_ERROR(agree_on_links(session));
    status = wefti_session_enlist(session);
    status = status < 0 ? status : bind_local(session);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(session->endpoint, status));
    uint32_t init = find_program(session->plan, "init");
    return init != WEFTI_PLAN_NONE ? wefti_exec_run(session, init) : WEFT_OK;
}

weft_status_t weft_session_create(const weft_session_params_t *params, weft_session_t **out_session)
{
    WEFT_CHECK_OUT(out_session);
    WEFT_CHECK_ARG(params);
    weft_session_params_t own = WEFT_SESSION_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    if (own.context == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "context", "must not be NULL");
    }
    const weft_allocator_t *allocator = own.context->allocator;
    wefti_endpoint_t *endpoint = own.context->memory; /* arena and signals are on the device */
    weft_session_t *session = wefti_alloc(allocator, sizeof(*session));
    weft_status_t status =
        own.plan == NULL  ? wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "plan", "must not be NULL")
        : session == NULL ? WEFT_ERR_NO_MEMORY
                          : WEFT_OK;
    WEFTI_IN_CONTROL(endpoint, SESSION_CREATE);
    status = wefti_endpoint_agree(endpoint, status);
    if (status < 0) {
        wefti_free(allocator, session);
        return status;
    }
    session->allocator = allocator;
    session->context = own.context;
    session->plan = own.plan;
    session->endpoint = endpoint;
    session->trace = own.trace != 0;
    session->registry = own.registry;
    weft_context_retain(session->context);
    weft_plan_retain(session->plan);
    wefti_arena_init(&session->arena, allocator, 0);
    status = bind(session);
    if (status < 0) {
        weft_session_destroy(session);
        return status;
    }
    *out_session = session;
    return WEFT_OK;
}

void weft_session_destroy(weft_session_t *session)
{
    if (session == NULL) {
        return;
    }
    wefti_session_delist(session);
    wefti_exec_host_close(session);
    wefti_exec_device_close(session);
    wefti_staged_close(session);
    wefti_unbind_updates(session);
    wefti_unbind_kernels(session);
    wefti_unbind_schedules(session);
    /* Nothing of this rank's comes to it later; else the memory gets no other use. */
    bool flushed = !session->puts || wefti_endpoint_flush(session->endpoint);
    if (session->base != NULL && flushed) {
        wefti_region_free(session->endpoint, session->region_offset);
    }
    for (uint32_t i = 0; session->cursors != NULL && i < session->plan->stream_count; i++) {
        wefti_free(session->allocator, session->cursors[i].history.entries);
    }
    wefti_free(session->allocator, session->times);
    wefti_arena_deinit(&session->arena);
    weft_registry_destroy(session->own_registry);
    weft_plan_release(session->plan);
    weft_context_t *context = session->context;
    wefti_free(session->allocator, session);
    weft_context_release(context); /* last: the allocator may be the context's */
}

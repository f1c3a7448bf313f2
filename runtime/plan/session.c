/* SPDX-License-Identifier: Apache-2.0 */
/* Binding a plan to a context, and taking it apart again. */
#include "runtime/plan/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

#include <stdio.h>
#include <string.h>

/* What ranks must agree on before anything is mapped. */
typedef struct identity {
    uint32_t world_size;
    wefti_digest_t structure, weights;
    wefti_digest_t cluster; /* the hosts that ranks believe to be on */
} identity_t;

static const char *identity_text(const identity_t *identity, char *buffer, size_t bytes)
{
    char structure[65], weights[65];
    wefti_digest_hex(&identity->structure, structure);
    wefti_digest_hex(&identity->weights, weights);
    snprintf(buffer, bytes, "%.16s/%.16s", structure, weights);
    return buffer;
}

static weft_status_t agree_on_plan(weft_session_t *session)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    const weft_plan_t *plan = session->plan;
    identity_t own;
    memset(&own, 0, sizeof(own)); /* padding is compared too */
    own.world_size = plan->world_size;
    own.structure = plan->structure_digest;
    own.weights = plan->weights_digest;
    own.cluster = session->context->cluster_digest;
    identity_t *all = wefti_arena_array(&session->arena, endpoint->world_size, sizeof(*all));
    weft_status_t status = all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, &own, sizeof(own), all), out);
    for (uint32_t rank = 1; rank < endpoint->world_size; rank++) {
        if (memcmp(&all[rank].cluster, &all[0].cluster, sizeof(own.cluster)) != 0) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "ranks 0 and %u have different cluster descriptions; set "
                               "WEFT_TOPOLOGY to the same file on all ranks",
                               rank);
        }
        if (memcmp(&all[rank], &all[0], sizeof(own)) != 0) {
            char first[64], other[64];
            return wefti_error(WEFT_ERR_MISMATCH,
                               "ranks have different plans: rank 0 has digest %s, rank %u has %s",
                               identity_text(&all[0], first, sizeof(first)), rank,
                               identity_text(&all[rank], other, sizeof(other)));
        }
    }
    if (plan->world_size != endpoint->world_size) {
        status =
            wefti_error(WEFT_ERR_INVALID_ARGUMENT, "plan: compiled for %u ranks, world size is %u",
                        plan->world_size, endpoint->world_size);
    } else {
        wefti_context_compare_placement(session->context, plan);
    }
out:
    return status;
}

static weft_status_t make_histories(weft_session_t *session)
{
    uint32_t capacity = session->trace ? WEFTI_HISTORY_TRACE : WEFTI_HISTORY_RECORDER;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        wefti_history_t *history = &session->cursors[i].history;
        history->entries = wefti_alloc(session->allocator, capacity * sizeof(*history->entries));
        if (history->entries == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
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
    session->kernels = wefti_arena_array(arena, plan->kernel_count + 1u, sizeof(*session->kernels));
    session->kernel_stream = wefti_arena_array(arena, plan->kernel_count + 1u, sizeof(uint32_t));
    session->scratch = wefti_arena_array(arena, streams, sizeof(void *));
    session->scratch_bytes = wefti_arena_array(arena, streams, sizeof(size_t));
    session->algorithms =
        wefti_arena_array(arena, plan->collective_count + 1u, sizeof(*session->algorithms));
    session->interpreted = wefti_arena_array(arena, plan->collective_count + 1u, sizeof(bool));
    session->programs =
        wefti_arena_array(arena, plan->program_count + 1u, sizeof(*session->programs));
    session->cursors = wefti_arena_array(arena, streams, sizeof(*session->cursors));
    session->workers = wefti_arena_array(arena, streams, sizeof(*session->workers));
    session->on_worker = wefti_arena_array(arena, streams, sizeof(bool));
    session->queues = wefti_arena_array(arena, streams, sizeof(*session->queues));
    session->params = wefti_arena_array(arena, plan->buffer_count + 1u, sizeof(uint32_t));
    if (!session->kernels || !session->kernel_stream || !session->interpreted ||
        !session->scratch || !session->scratch_bytes || !session->algorithms ||
        !session->programs || !session->cursors || !session->workers || !session->on_worker ||
        !session->queues || !session->params) {
        return WEFT_ERR_NO_MEMORY;
    }
    session->times = wefti_alloc(session->allocator, WEFTI_STATS_STEPS * sizeof(*session->times));
    if (session->times == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM) {
            session->params[session->param_count++] = i;
        }
    }
    weft_status_t status = wefti_state_map_build(plan, session->registry, arena, &session->states);
    return status < 0 ? status : make_histories(session);
}

static uint32_t find_program(const weft_plan_t *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->program_count; i++) {
        if (strcmp(plan->programs[i].name, name) == 0) {
            return i;
        }
    }
    return WEFTI_PLAN_NONE;
}

static uint32_t find_scalar(const weft_plan_t *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        if (plan->bindings[i].role == WEFT_BINDING_ROLE_SCALAR &&
            strcmp(plan->bindings[i].name, name) == 0) {
            return plan->bindings[i].buffer;
        }
    }
    return WEFTI_PLAN_NONE;
}

static weft_status_t find_entries(weft_session_t *session)
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
    session->step_scalar = find_scalar(plan, "step");
    session->rank_scalar = find_scalar(plan, "rank");
    return WEFT_OK;
}

static weft_status_t map_memory(weft_session_t *session)
{
    size_t bytes = 0, arena_bytes = session->plan->arena_bytes;
    bool fits = arena_bytes < SIZE_MAX - sizeof(wefti_signal_line_t);
    session->signals_offset = fits ? wefti_align_up(arena_bytes, sizeof(wefti_signal_line_t)) : 0;
    weft_status_t status = WEFT_OK;
    if (!fits ||
        !wefti_add_size(session->signals_offset, wefti_bind_signal_bytes(session), &bytes)) {
        status = wefti_error(WEFT_ERR_NO_MEMORY, "plan: arena too large: %zu bytes", arena_bytes);
    }
    if (status >= 0) {
        status = wefti_bind_schedules(session, &bytes);
    }
    WEFT_TRY(status, wefti_endpoint_agree(session->endpoint, status), out);
    WEFT_TRY(status,
             wefti_region_alloc(session->endpoint, bytes > 0 ? bytes : 1, /* never none */
                                &session->region_offset),
             out);
    session->region_held = true;
    session->base = session->endpoint->region_of[session->endpoint->rank] + session->region_offset;
    wefti_bind_run_memory(session);
out:
    return status;
}

/* Faults known to all ranks are ignored: a later one ends the session on all of them. */
static weft_status_t agree_on_links(weft_session_t *session)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    if (session->put_links == NULL) {
        return WEFT_OK;
    }
    uint32_t *all = wefti_arena_array(&session->arena, endpoint->world_size, sizeof *all);
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    uint32_t own = atomic_load_explicit(&endpoint->link_faults, memory_order_acquire);
    if (status == WEFT_OK) {
        status = wefti_endpoint_all_gather(endpoint, &own, sizeof own, all);
    }
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        session->faults_seen = all[r] > session->faults_seen ? all[r] : session->faults_seen;
    }
    return status;
}

static weft_status_t bind(weft_session_t *session)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    weft_status_t status = make_tables(session);
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);
    WEFT_TRY(status, agree_on_plan(session), out);
    WEFT_TRY(status, find_entries(session), out);
    WEFT_TRY(status, wefti_bind_algorithms(session), out);
    WEFT_TRY(status, map_memory(session), out);
    WEFT_TRY(status, agree_on_links(session), out);

    /* What may fail on one rank only; ranks agree on it before any rank waits for another. */
    status = wefti_bind_kernels(session);
    if (status >= 0) {
        status = wefti_bind_updates(session);
    }
    if (status >= 0) {
        status = wefti_bind_records(session);
    }
    if (status >= 0) {
        status = session->context->device == NULL ? wefti_exec_host_open(session)
                                                  : wefti_exec_device_open(session);
    }
    if (status >= 0) {
        status = wefti_session_load(session);
    }
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);

    uint32_t init = find_program(session->plan, "init");
    if (init != WEFTI_PLAN_NONE) {
        status = wefti_exec_run(session, init);
    }
out:
    return status;
}

weft_status_t weft_session_create(const weft_session_params_t *params, weft_session_t **out_session)
{
    WEFT_CHECK_OUT(out_session);
    WEFT_CHECK_ARG(params);
    weft_session_params_t own = WEFT_SESSION_PARAMS_INIT;
    weft_status_t status = WEFTI_PARAMS_READ(params, &own);
    if (status < 0) {
        return status;
    }
    params = &own;
    if (params->context == NULL || params->plan == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT,
                                 params->context == NULL ? "context" : "plan", "must not be NULL");
    }
    const weft_allocator_t *allocator = params->context->allocator;
    weft_session_t *session = wefti_alloc(allocator, sizeof(*session));
    if (session == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    session->allocator = allocator;
    session->context = params->context;
    session->plan = params->plan;
    session->endpoint = params->context->memory; /* arena and signals are on the device */
    session->trace = params->trace != 0;
    session->registry = params->registry;
    weft_context_retain(session->context);
    weft_plan_retain(session->plan);
    wefti_arena_init(&session->arena, allocator, 0);
    status = WEFT_OK;
    if (session->registry == NULL) {
        status = weft_registry_create(allocator, &session->own_registry);
        session->registry = session->own_registry;
    }
    WEFT_TRY(status, wefti_endpoint_agree(session->endpoint, status), fail);
    WEFT_TRY(status, bind(session), fail);
    *out_session = session;
    return WEFT_OK;
fail:
    weft_session_destroy(session);
    return status;
}

void weft_session_destroy(weft_session_t *session)
{
    if (session == NULL) {
        return;
    }
    if (session->context->device == NULL) {
        wefti_exec_host_close(session);
    } else {
        wefti_exec_device_close(session);
    }
    wefti_unbind_updates(session);
    wefti_unbind_kernels(session);
    wefti_unbind_schedules(session);
    if (session->put_links != NULL && wefti_endpoint_owned(session->endpoint)) {
        wefti_endpoint_flush(session->endpoint); /* nothing of this rank's comes to it later */
    }
    if (session->region_held) {
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

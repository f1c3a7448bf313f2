/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a plan: every stream of every rank in order, kernels by the cost table, collectives
 * simulated from when their ranks reach them. */
#include "fusion/simulate/simulate.h"

#include <math.h>
#include <string.h>

#include "fusion/fusion.h"
#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/order.h"

#define ARENA_BYTES ((size_t)1 << 26)
#define MOST_TIMES ((size_t)1 << 28) /* ranks times streams and events */

/* ---- kernels ---- */

/* Its result is another name of its input: nothing moves. */
static bool is_view(const weft_plan_t *plan, const wefti_plan_kernel_t *kernel,
                    const weft_op_def_t *def)
{
    if (!wefti_op_has(def, WEFT_FACT_VIEW) || kernel->input_count == 0 ||
        kernel->output_count != 1 || kernel->inputs[0] == WEFTI_PLAN_NONE ||
        kernel->outputs[0] == WEFTI_PLAN_NONE) {
        return false;
    }
    const wefti_plan_buffer_t *from = &plan->buffers[kernel->inputs[0]],
                              *to = &plan->buffers[kernel->outputs[0]];
    return from == to || (from->kind == to->kind && from->offset_bytes == to->offset_bytes);
}

static weft_status_t price_kernel(const weft_plan_t *plan, const weft_registry_t *registry,
                                  uint32_t index, const wefti_rates_t *rates, double *out_ns,
                                  double *out_update_bytes)
{
    wefti_arena_t arena;
    weft_node_desc_t desc;
    double flops = 0, bytes = 0;
    const wefti_plan_kernel_t *kernel = &plan->kernels[index];
    const weft_op_def_t *def =
        weft_registry_find_op(registry, kernel->domain, kernel->op, kernel->version);
    wefti_arena_init(&arena, NULL, ARENA_BYTES);
    weft_status_t status = wefti_plan_kernel_desc(plan, index, &arena, &desc);
    *out_update_bytes = 0;
    *out_ns = 0;
    if (status >= 0 && def != NULL && is_view(plan, kernel, def)) {
        double per_byte;
        wefti_move_ns(rates, out_ns, &per_byte);
    } else if (status >= 0 && def != NULL) {
        *out_ns = wefti_op_predict_ns(def, &desc, rates);
        if (wefti_op_facts(def).cost_curve == WEFT_COST_CURVE_UPDATE) {
            wefti_op_cost(def, &desc, &flops, &bytes);
            *out_update_bytes = bytes;
        }
    }
    wefti_arena_deinit(&arena);
    return status;
}

/* What a step touches between two updates of a parameter, as fusion/cost.c counts it. */
static double touched_bytes(const weft_plan_t *plan, const double *update_bytes)
{
    double updated = 0, values = 0;
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        updated += update_bytes[k];
    }
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        if (plan->buffers[b].kind != WEFTI_BUFFER_RANGE) {
            values += (double)plan->buffers[b].size_bytes;
        }
    }
    return updated > values ? updated : values;
}

/* Updates of another number of ranks may be divided otherwise: what is left of the profile for all
 * of them is divided by their bytes. */
static void take_profile(const weft_plan_t *plan, const wefti_profile_t *profile,
                         const double *update_bytes, double *ns)
{
    double updates = profile->compute_ns, bytes = 0;
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        double found;
        bytes += update_bytes[k];
        if (update_bytes[k] <= 0 &&
            wefti_profile_kernel_ns(profile, plan->kernels[k].name, &found)) {
            ns[k] = found;
            updates -= found;
        }
    }
    for (uint32_t k = 0; k < plan->kernel_count && updates > 0; k++) {
        ns[k] = update_bytes[k] > 0 ? updates * update_bytes[k] / bytes : ns[k];
    }
}

weft_status_t wefti_sim_kernel_ns(const sim_world_t *w, const weft_plan_t *plan,
                                  const weft_registry_t *registry, double **out_ns,
                                  bool *out_inline)
{
    /* The fullest host decides, as in the runtime. */
    wefti_rates_t rates =
        wefti_rates_of(w->costs, w->hosts, w->largest_host, w->largest_host_cores);
    rates.slowdown = 1; /* turns on cores are simulated */
    *out_inline = rates.inline_progress;
    double *ns = wefti_alloc(NULL, 2 * (plan->kernel_count + 1ul) * sizeof *ns);
    WEFT_RETURN_IF_NO_MEMORY(ns);
    double *update_bytes = ns + plan->kernel_count;
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        weft_status_t status = price_kernel(plan, registry, k, &rates, &ns[k], &update_bytes[k]);
        if (status < 0) {
            wefti_free(NULL, ns);
            return status;
        }
    }
    double per_byte = wefti_update_ns_per_byte(&rates, touched_bytes(plan, update_bytes));
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        ns[k] = update_bytes[k] > 0 ? update_bytes[k] * per_byte : ns[k];
    }
    if (w->profile.known) {
        take_profile(plan, &w->profile, update_bytes, ns);
    }
    *out_ns = ns;
    return WEFT_OK;
}

/* ---- calls ---- */

void wefti_sim_scratch_deinit(sim_scratch_t *scratch)
{
    wefti_free(NULL, scratch->host_of);
    wefti_free(NULL, scratch->rail_of);
    wefti_free(NULL, scratch->rack_of);
    wefti_free(NULL, scratch->order);
    *scratch = (sim_scratch_t){0};
}

static weft_status_t place_group(const sim_world_t *w, sim_scratch_t *scratch, sim_call_t *call)
{
    uint32_t n = call->params.group_size;
    wefti_axis_t axis = {"", n, call->stride};
    scratch->host_of = wefti_alloc(NULL, (n + 1ul) * sizeof *scratch->host_of);
    scratch->rail_of = wefti_alloc(NULL, (n + 1ul) * sizeof *scratch->rail_of);
    scratch->rack_of = wefti_alloc(NULL, (n + 1ul) * sizeof *scratch->rack_of);
    WEFT_RETURN_IF_NO_MEMORY(scratch->host_of && scratch->rail_of && scratch->rack_of);
    uint32_t hosts = w->hosts, racks = w->part_count[SIM_RACK_UP];
    if (n == w->ranks) {
        memcpy(scratch->host_of, w->host_of, n * sizeof *w->host_of);
        memcpy(scratch->rack_of, w->part[SIM_RACK_UP], n * sizeof *w->host_of);
    } else {
        WEFT_RETURN_IF_ERROR(
            wefti_axis_hosts(&axis, w->ranks, w->host_of, scratch->host_of, &hosts));
        WEFT_RETURN_IF_ERROR(
            wefti_axis_hosts(&axis, w->ranks, w->part[SIM_RACK_UP], scratch->rack_of, &racks));
    }
    for (uint32_t i = 0; i < n && w->rail_of != NULL; i++) {
        scratch->rail_of[i] = w->rail_of[(size_t)i * call->stride];
    }
    if (hosts > 1) {
        call->params.host_of = scratch->host_of;
        call->params.host_of_count = hosts;
        call->params.rail_of = w->rail_of != NULL ? scratch->rail_of : NULL;
        call->params.rack_of = racks > 1 ? scratch->rack_of : NULL;
    }
    return WEFT_OK;
}

/* The first that can run on this many ranks, as bind takes it. */
static const weft_algorithm_t *choose(const weft_plan_t *plan, const weft_registry_t *registry,
                                      const wefti_plan_collective_t *collective,
                                      const weft_algo_params_t *params)
{
    for (uint32_t i = 0; i < collective->algorithm_count; i++) {
        const weft_algorithm_t *found = wefti_plan_find_algorithm(plan, registry, collective->op,
                                                                  collective->algorithms[i].name);
        if (found != NULL && wefti_algorithm_reason(found, params) == NULL) {
            return found;
        }
    }
    return wefti_cost_few_steps(params);
}

weft_status_t wefti_sim_call(const sim_world_t *w, const weft_plan_t *plan,
                             const weft_registry_t *registry,
                             const wefti_plan_collective_t *collective, sim_scratch_t *scratch,
                             sim_call_t *out)
{
    wefti_axis_t axis = wefti_plan_axis(plan, collective);
    wefti_order_setting_t order;
    WEFT_RETURN_IF_ERROR(wefti_order_parse(collective->order, &order));
    uint32_t ranks = plan->mesh.axis_count == 0 ? w->ranks : axis.size;
    uint64_t count = collective->elem_count;
    *out = (sim_call_t){.stride = plan->mesh.axis_count == 0 ? 1 : axis.stride};
    if (!wefti_collective_is_vector(collective->op) && ranks != axis.size) {
        /* blocks of another number of ranks */
        count = (uint64_t)ceil((double)count * axis.size / ranks);
    }
    out->params = (weft_algo_params_t){.struct_size = sizeof out->params,
                                       .op = collective->op,
                                       .group_size = ranks,
                                       .root = collective->root < ranks ? collective->root : 0,
                                       .order = order.order};
    if (order.order == WEFT_ORDER_BLOCKS) {
        scratch->order = wefti_alloc(NULL, (order.count + 1ul) * sizeof *scratch->order);
        WEFT_RETURN_IF_NO_MEMORY(scratch->order);
        memcpy(scratch->order, order.sizes, order.count * sizeof *scratch->order);
        out->params.order_sizes = scratch->order;
        out->params.order_size_count = order.count;
    }
    const wefti_plan_buffer_t *source = &plan->buffers[collective->source],
                              *buffer = &plan->buffers[collective->buffer];
    out->params.in_place = source == buffer || source->offset_bytes == buffer->offset_bytes;
    out->counts = (wefti_counts_t){
        .elem_count = count, .elem_bytes = (uint32_t)weft_dtype_size_bytes(collective->dtype)};
    WEFT_RETURN_IF_ERROR(place_group(w, scratch, out));
    out->algorithm = choose(plan, registry, collective, &out->params);
    return out->algorithm != NULL
               ? wefti_algo_params_check(&out->params)
               : wefti_error(WEFT_ERR_UNSUPPORTED, "no algorithm of %s serves %u ranks",
                             wefti_collective_function(collective->op), ranks);
}

/* ---- streams ---- */

typedef struct replay {
    sim_world_t *world;
    const weft_plan_t *plan;
    const weft_registry_t *registry;
    const wefti_plan_program_t *program;
    sim_step_t *out;
    const double *kernel_ns;
    double **streams; /* [stream][rank]: when its last step was done */
    double **events;  /* [event][rank]; NULL: not recorded yet */
    double
        *cores; /* [part of SIM_CORE]: until when it is busy; NULL: has no ranks that wait for it */
    uint32_t *at;
} replay_t;

static double measured_ns(const replay_t *p, const sim_call_t *call)
{
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count = 0;
    wefti_choice_t choice = {.wanted = call->algorithm->name, .planned = true};
    choice.registry = wefti_plan_registry_of(p->plan, p->registry, call->algorithm);
    if (call->params.group_size > WEFTI_MAX_PREDICTED_RANKS || call->stride != 1 ||
        p->world->costs->measured_count == 0 ||
        wefti_cost_choose(p->world->costs, &call->params, &call->counts, &choice, list, &count) <
            0 ||
        count == 0 || !list[0].measured) {
        return -1;
    }
    return list[0].predicted_ns;
}

static double latest(const replay_t *p, const double *times)
{
    double most = 0;
    for (uint32_t r = 0; r < p->world->ranks; r++) {
        most = fmax(most, times[r]);
    }
    return most;
}

static double earliest(const replay_t *p, const double *times)
{
    double least = times[0];
    for (uint32_t r = 1; r < p->world->ranks; r++) {
        least = fmin(least, times[r]);
    }
    return least;
}

static sim_event_t *add_event(replay_t *p, uint32_t stream, bool collective, uint32_t index)
{
    sim_step_t *out = p->out;
    if (wefti_array_reserve(NULL, &out->events, &out->capacity, out->count + 1,
                            sizeof *out->events) < 0) {
        return NULL;
    }
    sim_event_t *event = &out->events[out->count++];
    *event = (sim_event_t){.stream = stream, .collective = collective, .index = index};
    return event;
}

/* A rank's core is busy for ns, once it is free. */
static void occupy(replay_t *p, uint32_t rank, double *now, double ns, double *out_begin)
{
    double *core = p->cores != NULL ? &p->cores[p->world->part[SIM_CORE][rank]] : NULL;
    double begin = core != NULL ? fmax(*now, *core) : *now;
    *now = begin + ns;
    if (core != NULL) {
        *core = *now;
    }
    if (out_begin != NULL) {
        *out_begin = begin;
    }
}

static weft_status_t run_kernel(replay_t *p, uint32_t stream, uint32_t index)
{
    double *now = p->streams[stream], ns = p->kernel_ns[index];
    const wefti_plan_kernel_t *kernel = &p->plan->kernels[index];
    sim_event_t *event = add_event(p, stream, false, index);
    WEFT_RETURN_IF_NO_MEMORY(event);
    event->begin_ns = earliest(p, now);
    event->rank0_begin_ns = now[0];
    for (uint32_t r = 0; r < p->world->ranks; r++) {
        if (wefti_plan_runs(p->plan, kernel->place, r)) {
            occupy(p, r, &now[r], ns, r == 0 ? &event->rank0_begin_ns : NULL);
        }
    }
    event->end_ns = latest(p, now);
    event->rank0_end_ns = now[0];
    p->out->compute_ns += ns;
    return WEFT_OK;
}

/* The update that runs on each rank's shard between reducing and gathering. */
static double update_ns(const replay_t *p, const wefti_plan_collective_t *collective,
                        uint32_t ranks)
{
    return collective->update == WEFTI_PLAN_NONE ? 0 : p->kernel_ns[collective->update] / ranks;
}

static weft_status_t simulate(replay_t *p, const sim_call_t *call, double *now, sim_event_t *event)
{
    sim_division_t division;
    WEFT_RETURN_IF_ERROR(wefti_sim_divide(p->world, call, &division));
    event->classes = division.count;
    event->by_place = division.by_place;
    event->exact = division.exact;
    event->merged = division.merged;
    event->algorithm = call->algorithm->name;
    double measured = measured_ns(p, call), begin = latest(p, now);
    weft_status_t status = wefti_sim_collective(p->world, call, &division, now);
    if (status >= 0 && measured >= 0) {
        event->measured = true;
        for (uint32_t r = 0; r < p->world->ranks; r++) {
            now[r] = begin + measured;
        }
    }
    wefti_sim_division_deinit(&division);
    return status;
}

static weft_status_t run_collective(replay_t *p, uint32_t stream, uint32_t index)
{
    const wefti_plan_collective_t *collective = &p->plan->collectives[index];
    double *now = p->streams[stream];
    sim_scratch_t scratch = {0};
    sim_call_t call;
    for (uint32_t r = 0; r < p->world->ranks && p->out->inline_progress; r++) {
        occupy(p, r, &now[r], 0, NULL);
    }
    sim_event_t *event = add_event(p, stream, true, index);
    WEFT_RETURN_IF_NO_MEMORY(event);
    event->begin_ns = earliest(p, now);
    event->rank0_begin_ns = now[0];
    weft_status_t status =
        wefti_sim_call(p->world, p->plan, p->registry, collective, &scratch, &call);
    event->exact = true; /* also where groups have one rank, and nothing moves */
    if (status >= 0 && call.params.group_size > 1) {
        status = simulate(p, &call, now, event);
    }
    if (status >= 0) {
        double update = update_ns(p, collective, call.params.group_size);
        for (uint32_t r = 0; r < p->world->ranks; r++) {
            if (update > 0 || p->out->inline_progress) {
                occupy(p, r, &now[r], update, NULL);
            }
        }
        event->end_ns = latest(p, now);
        event->rank0_end_ns = now[0];
        p->out->comm_ns += event->rank0_end_ns - event->rank0_begin_ns;
        p->out->classes = event->classes > p->out->classes ? event->classes : p->out->classes;
        p->out->exact = p->out->exact && event->exact;
    }
    wefti_sim_scratch_deinit(&scratch);
    return status < 0 ? wefti_error_prefix(status, "%s", collective->name) : status;
}

static weft_status_t run_step(replay_t *p, uint32_t stream, const wefti_plan_step_t *step)
{
    uint32_t ranks = p->world->ranks;
    double *now = p->streams[stream];
    switch (step->kind) {
    case WEFTI_STEP_KERNEL:
        return run_kernel(p, stream, step->index);
    case WEFTI_STEP_COLLECTIVE:
        return run_collective(p, stream, step->index);
    case WEFTI_STEP_RECORD:
        p->events[step->index] = wefti_alloc(NULL, (ranks + 1ul) * sizeof *now);
        WEFT_RETURN_IF_NO_MEMORY(p->events[step->index]);
        memcpy(p->events[step->index], now, ranks * sizeof *now);
        return WEFT_OK;
    default:
        for (uint32_t r = 0; r < ranks; r++) {
            now[r] = fmax(now[r], p->events[step->index][r]);
        }
        return WEFT_OK;
    }
}

/* The stream whose next step may begin first; communication before kernels at the same time. */
static uint32_t next_stream(const replay_t *p)
{
    uint32_t best = WEFTI_PLAN_NONE;
    for (uint32_t s = 0; s < p->plan->stream_count; s++) {
        const wefti_plan_stream_program_t *list = &p->program->streams[s];
        if (p->at[s] == list->step_count) {
            continue;
        }
        const wefti_plan_step_t *step = &list->steps[p->at[s]];
        if (step->kind == WEFTI_STEP_WAIT && p->events[step->index] == NULL) {
            continue;
        }
        bool first =
            best == WEFTI_PLAN_NONE || p->streams[s][0] < p->streams[best][0] ||
            (p->streams[s][0] <= p->streams[best][0] && p->plan->streams[s].communicates != 0);
        best = first ? s : best;
    }
    return best;
}

static weft_status_t replay(replay_t *p)
{
    uint32_t s;
    while ((s = next_stream(p)) != WEFTI_PLAN_NONE) {
        WEFT_RETURN_IF_ERROR(run_step(p, s, &p->program->streams[s].steps[p->at[s]++]));
    }
    for (s = 0; s < p->plan->stream_count; s++) {
        p->out->step_ns = fmax(p->out->step_ns, latest(p, p->streams[s]));
    }
    return WEFT_OK;
}

/* Of each collective, the time in which rank 0 runs no kernel. */
static void expose(sim_step_t *step)
{
    for (size_t i = 0; i < step->count; i++) {
        sim_event_t *event = &step->events[i];
        double covered = 0;
        for (size_t k = 0; k < step->count && event->collective; k++) {
            const sim_event_t *kernel = &step->events[k];
            double begin = fmax(event->rank0_begin_ns, kernel->rank0_begin_ns);
            double end = fmin(event->rank0_end_ns, kernel->rank0_end_ns);
            covered += !kernel->collective && end > begin ? end - begin : 0;
        }
        if (event->collective) {
            event->exposed_ns = fmax(0, event->rank0_end_ns - event->rank0_begin_ns - covered);
            step->exposed_ns += event->exposed_ns;
        }
    }
}

static weft_status_t prepare(replay_t *p)
{
    size_t ranks = p->world->ranks, events = 0;
    const weft_plan_t *plan = p->plan;
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < p->program->streams[s].step_count; i++) {
            events += p->program->streams[s].steps[i].kind == WEFTI_STEP_RECORD;
        }
    }
    if ((plan->stream_count + events + 1) > MOST_TIMES / (ranks + 1)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "plan: too many events for %zu ranks to be simulated: %zu", ranks,
                           events);
    }
    p->streams = wefti_alloc(NULL, (plan->stream_count + 1ul) * sizeof *p->streams);
    p->events = wefti_alloc(NULL, (plan->event_count + 1ul) * sizeof *p->events);
    p->at = wefti_alloc(NULL, (plan->stream_count + 1ul) * sizeof *p->at);
    bool room = p->streams != NULL && p->events != NULL && p->at != NULL;
    for (uint32_t s = 0; s < plan->stream_count && room; s++) {
        p->streams[s] = wefti_alloc(NULL, (ranks + 1) * sizeof **p->streams);
        room = p->streams[s] != NULL;
    }
    if (room && (p->out->inline_progress || p->world->shares_cores)) {
        p->cores = wefti_alloc(NULL, (ranks + 1) * sizeof *p->cores);
        room = p->cores != NULL;
    }
    return room ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static void clean_up(replay_t *p)
{
    for (uint32_t s = 0; p->streams != NULL && s < p->plan->stream_count; s++) {
        wefti_free(NULL, p->streams[s]);
    }
    for (uint32_t e = 0; p->events != NULL && e < p->plan->event_count; e++) {
        wefti_free(NULL, p->events[e]);
    }
    wefti_free(NULL, p->streams);
    wefti_free(NULL, p->events);
    wefti_free(NULL, p->at);
    wefti_free(NULL, p->cores);
}

weft_status_t wefti_sim_step(sim_world_t *world, const weft_plan_t *plan,
                             const weft_registry_t *registry, sim_step_t *out)
{
    *out = (sim_step_t){.exact = true};
    double *kernel_ns = NULL;
    replay_t p = {.world = world,
                  .plan = plan,
                  .registry = registry,
                  .program = wefti_plan_program(plan, "step"),
                  .out = out};
    if (p.program == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "plan: no program 'step' to simulate");
    }
    if (plan->mesh.axis_count > 0 && world->ranks != plan->world_size) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                 "cannot be changed: %u, the plan has groups for %u ranks",
                                 world->ranks, plan->world_size);
    }
    weft_status_t status;
    WEFT_TRY(status, wefti_sim_kernel_ns(world, plan, registry, &kernel_ns, &out->inline_progress),
             out);
    p.kernel_ns = kernel_ns;
    WEFT_TRY(status, prepare(&p), out);
    WEFT_TRY(status, replay(&p), out);
    expose(out);
out:
    clean_up(&p);
    wefti_free(NULL, kernel_ns);
    return status;
}

void wefti_sim_step_deinit(sim_step_t *step)
{
    wefti_free(NULL, step->events);
    *step = (sim_step_t){0};
}

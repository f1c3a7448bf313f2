/* SPDX-License-Identifier: Apache-2.0 */
#include "fusion/simulate/trace.h"

#include <math.h>
#include <string.h>

#include "ops/algo/table.h"
#include "runtime/base/error.h"

#define MOST_RANKS 4096u
#define MOST_MESSAGES ((size_t)1 << 22)
#define MOST_DEPENDS 2u

/* What a wait of one rank for another becomes; ranks are those of a group. */
typedef struct message {
    uint32_t to, to_step, from, from_lane, from_phase;
    double bytes;
} message_t;

typedef struct tracer {
    const sim_world_t *world;
    const weft_plan_t *plan;
    const weft_registry_t *registry;
    const wefti_plan_program_t *program;
    sim_node_fn add;
    void *user;
    const double *kernel_ns;
    uint32_t *numbers;  /* [rank]: nodes so far */
    uint32_t **streams; /* [stream][rank]: number of the last node, 0: none */
    uint32_t **events;  /* [event][rank]; NULL: not recorded yet */
    uint32_t *at;
    size_t messages; /* so far */
    /* of the collective at hand */
    sim_call_t call;
    wefti_schedule_t *schedules;
    message_t *list;
    size_t count, capacity;
    uint32_t *by_sender, *sender_begin; /* messages in the order of who sends them */
    uint32_t first_tag;
} tracer_t;

static weft_status_t add_node(tracer_t *t, uint32_t rank, sim_node_t node, uint32_t a, uint32_t b,
                              uint32_t *out_number)
{
    uint32_t depends[MOST_DEPENDS];
    node.depends = depends;
    if (a != 0) {
        depends[node.depend_count++] = a;
    }
    if (b != 0 && b != a) {
        depends[node.depend_count++] = b;
    }
    *out_number = ++t->numbers[rank];
    return t->add(t->user, rank, *out_number, &node);
}

/* One node that is done when both are. */
static weft_status_t join(tracer_t *t, uint32_t rank, uint32_t a, uint32_t *inout)
{
    if (a == 0 || *inout == 0 || a == *inout) {
        *inout = a != 0 ? a : *inout;
        return WEFT_OK;
    }
    return add_node(t, rank, (sim_node_t){.kind = SIM_CALC, .name = "join"}, a, *inout, inout);
}

/* ---- messages of a collective ---- */

static weft_status_t list_wait(tracer_t *t, uint32_t to, uint32_t index)
{
    const wefti_step_t *wait = &t->schedules[to].steps[index];
    for (uint32_t i = 0; i < wait->wait.rank_count && wait->wait.back == 0; i++) {
        uint32_t from = wait->wait.first_rank + i;
        if (from == to) {
            continue;
        }
        if (++t->messages > MOST_MESSAGES) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "plan: too many messages to write: more than %zu", MOST_MESSAGES);
        }
        WEFT_RETURN_IF_ERROR(
            wefti_array_reserve(NULL, &t->list, &t->capacity, t->count + 1, sizeof *t->list));
        t->list[t->count++] = (message_t){to, index, from, wait->wait.lane, wait->wait.phase, 0};
    }
    return WEFT_OK;
}

/* The message of a wait that brings what a step reads. */
static message_t *message_of(tracer_t *t, size_t begin, const wefti_step_t *wait,
                             const wefti_step_t *steps, uint32_t from)
{
    for (size_t m = begin; m < t->count; m++) {
        if (&steps[t->list[m].to_step] == wait && t->list[m].from == from) {
            return &t->list[m];
        }
    }
    return NULL;
}

static double bytes_of(const tracer_t *t, const wefti_schedule_t *schedule,
                       const wefti_step_t *step)
{
    return wefti_sim_block_bytes(&t->call, schedule, step->move.first, step->move.step,
                                 step->move.count);
}

static bool moves(const wefti_step_t *step)
{
    return step->op != WEFTI_DO_POST && step->op != WEFTI_DO_WAIT;
}

static weft_status_t list_rank(tracer_t *t, uint32_t to)
{
    const wefti_schedule_t *schedule = &t->schedules[to];
    size_t begin = t->count;
    for (uint32_t s = 0; s < schedule->step_count; s++) {
        if (schedule->steps[s].op == WEFTI_DO_WAIT) {
            WEFT_RETURN_IF_ERROR(list_wait(t, to, s));
        }
    }
    for (uint32_t s = 0; s < schedule->step_count; s++) {
        const wefti_step_t *step = &schedule->steps[s];
        uint32_t sources = moves(step) ? step->move.source_count : 0;
        for (uint32_t i = 0; i < sources; i++) {
            const wefti_operand_t *at = &schedule->operands[step->move.operand + i];
            for (uint32_t r = 0; r < at->rank_count; r++) {
                const wefti_step_t *wait = wefti_sim_wait_before(schedule, s, at->rank + r);
                message_t *message = wait != NULL && at->rank + r != to
                                         ? message_of(t, begin, wait, schedule->steps, at->rank + r)
                                         : NULL;
                if (message != NULL) {
                    message->bytes += bytes_of(t, schedule, step);
                }
            }
        }
    }
    return WEFT_OK;
}

/* Messages that a post of the lane lets go, among those of the sender. */
static bool lets_go(const message_t *message, uint32_t lane, uint32_t before, uint32_t phase)
{
    return message->from_lane == lane && message->from_phase > before &&
           message->from_phase <= phase;
}

/* What a rank writes to others goes with the next message to them. */
static void add_writes(tracer_t *t, uint32_t from, double *written)
{
    const wefti_schedule_t *schedule = &t->schedules[from];
    uint32_t before = 0, lane = 0;
    for (uint32_t s = 0; s < schedule->step_count; s++) {
        const wefti_step_t *step = &schedule->steps[s];
        before = step->lane != lane ? 0 : before;
        lane = step->lane;
        for (uint32_t i = 0; moves(step) && i < step->move.destination_count; i++) {
            const wefti_operand_t *at =
                &schedule->operands[step->move.operand + step->move.source_count + i];
            for (uint32_t r = 0; r < at->rank_count; r++) {
                written[at->rank + r] += bytes_of(t, schedule, step);
            }
        }
        for (uint32_t k = t->sender_begin[from];
             step->op == WEFTI_DO_POST && k < t->sender_begin[from + 1]; k++) {
            message_t *message = &t->list[t->by_sender[k]];
            if (lets_go(message, lane, before, step->post.phase)) {
                message->bytes += written[message->to];
                written[message->to] = 0;
            }
        }
        before = step->op == WEFTI_DO_POST ? step->post.phase : before;
    }
}

static weft_status_t list_messages(tracer_t *t)
{
    uint32_t n = t->call.params.group_size;
    t->count = 0;
    for (uint32_t to = 0; to < n; to++) {
        WEFT_RETURN_IF_ERROR(list_rank(t, to));
    }
    t->by_sender = wefti_alloc(NULL, (t->count + 1) * sizeof *t->by_sender);
    t->sender_begin = wefti_alloc(NULL, (n + 2ul) * sizeof *t->sender_begin);
    double *written = wefti_alloc(NULL, (n + 1ul) * sizeof *written);
    if (t->by_sender == NULL || t->sender_begin == NULL || written == NULL) {
        wefti_free(NULL, written);
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t m = 0; m < t->count; m++) {
        t->sender_begin[t->list[m].from + 2]++;
    }
    for (uint32_t r = 0; r < n; r++) {
        t->sender_begin[r + 2] += t->sender_begin[r + 1];
    }
    for (size_t m = 0; m < t->count; m++) {
        t->by_sender[t->sender_begin[t->list[m].from + 1]++] = (uint32_t)m;
    }
    for (uint32_t r = 0; r < n; r++) {
        memset(written, 0, n * sizeof *written);
        add_writes(t, r, written);
    }
    wefti_free(NULL, written);
    return WEFT_OK;
}

static uint64_t whole_bytes(double bytes)
{
    return bytes < 1 ? 1 : (uint64_t)bytes;
}

/* ---- nodes of a collective ---- */

static weft_status_t add_receives(tracer_t *t, uint32_t rank, uint32_t to, uint32_t step,
                                  size_t *inout_message, uint32_t *inout_last)
{
    uint32_t before = *inout_last, all = 0;
    for (; *inout_message < t->count && t->list[*inout_message].to == to &&
           t->list[*inout_message].to_step == step;
         ++*inout_message) {
        const message_t *message = &t->list[*inout_message];
        uint32_t number;
        sim_node_t node = {.kind = SIM_RECV,
                           .name = t->call.algorithm->name,
                           .bytes = whole_bytes(message->bytes),
                           .peer = wefti_sim_member(&t->call, rank, message->from),
                           .tag = t->first_tag + (uint32_t)*inout_message};
        WEFT_RETURN_IF_ERROR(add_node(t, rank, node, before, 0, &number));
        WEFT_RETURN_IF_ERROR(join(t, rank, number, &all));
    }
    *inout_last = all != 0 ? all : before;
    return WEFT_OK;
}

static weft_status_t add_sends(tracer_t *t, uint32_t rank, uint32_t from, uint32_t lane,
                               uint32_t before, uint32_t phase, uint32_t last)
{
    for (uint32_t k = t->sender_begin[from]; k < t->sender_begin[from + 1]; k++) {
        const message_t *message = &t->list[t->by_sender[k]];
        uint32_t number;
        sim_node_t node = {.kind = SIM_SEND,
                           .name = t->call.algorithm->name,
                           .bytes = whole_bytes(message->bytes),
                           .peer = wefti_sim_member(&t->call, rank, message->to),
                           .tag = t->first_tag + t->by_sender[k]};
        if (lets_go(message, lane, before, phase)) {
            WEFT_RETURN_IF_ERROR(add_node(t, rank, node, last, 0, &number));
        }
    }
    return WEFT_OK;
}

/* What arrived is next to the rank by then. */
static uint64_t move_ns(const tracer_t *t, const wefti_schedule_t *schedule,
                        const wefti_step_t *step)
{
    const wefti_costs_t *costs = t->world->costs;
    double bytes = bytes_of(t, schedule, step), reads = 0;
    for (uint32_t i = 0; i < step->move.source_count; i++) {
        reads += schedule->operands[step->move.operand + i].rank_count;
    }
    double ns = (reads + step->move.destination_count) * bytes *
                costs->level[WEFTI_LEVEL_SELF].beta_ns_per_byte;
    ns += step->op == WEFTI_DO_REDUCE ? reads * bytes * costs->gamma_ns_per_byte : 0;
    return (uint64_t)llround(ns + costs->step_ns);
}

static weft_status_t trace_rank(tracer_t *t, uint32_t rank, uint32_t begin, size_t message,
                                uint32_t *out_end)
{
    uint32_t own = wefti_sim_group_rank(&t->call, rank), end = 0;
    const wefti_schedule_t *schedule = &t->schedules[own];
    for (uint32_t lane = 0; lane < schedule->resources.lanes; lane++) {
        uint32_t last = begin, before = 0;
        for (uint32_t s = schedule->lane_begin[lane]; s < schedule->lane_begin[lane + 1]; s++) {
            const wefti_step_t *step = &schedule->steps[s];
            if (step->op == WEFTI_DO_WAIT) {
                WEFT_RETURN_IF_ERROR(add_receives(t, rank, own, s, &message, &last));
            } else if (step->op == WEFTI_DO_POST) {
                WEFT_RETURN_IF_ERROR(add_sends(t, rank, own, lane, before, step->post.phase, last));
                before = step->post.phase;
            } else if (bytes_of(t, schedule, step) > 0) {
                sim_node_t node = {.kind = SIM_CALC,
                                   .name = t->call.algorithm->name,
                                   .ns = move_ns(t, schedule, step)};
                WEFT_RETURN_IF_ERROR(add_node(t, rank, node, last, 0, &last));
            }
        }
        WEFT_RETURN_IF_ERROR(join(t, rank, last, &end));
    }
    *out_end = end;
    return WEFT_OK;
}

static weft_status_t trace_call(tracer_t *t, uint32_t *last)
{
    uint32_t n = t->call.params.group_size;
    weft_status_t status;
    size_t *first = wefti_alloc(NULL, (n + 1ul) * sizeof *first);
    WEFT_TRY(status, first != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, out);
    WEFT_TRY(status, wefti_schedules_build(t->call.algorithm, &t->call.params, NULL, &t->schedules),
             out);
    WEFT_TRY(status, list_messages(t), out);
    for (size_t m = t->count; m-- > 0;) {
        first[t->list[m].to] = m;
    }
    for (uint32_t r = 0; r < t->world->ranks && status >= 0; r++) {
        size_t message = first[wefti_sim_group_rank(&t->call, r)];
        status = trace_rank(t, r, last[r], message, &last[r]);
    }
    t->first_tag += (uint32_t)t->count;
out:
    wefti_free(NULL, first);
    wefti_schedules_free(NULL, t->schedules, n);
    wefti_free(NULL, t->by_sender);
    wefti_free(NULL, t->sender_begin);
    t->schedules = NULL;
    t->by_sender = t->sender_begin = NULL;
    return status;
}

/* ---- streams ---- */

/* Ranks of one core compute in turns. */
static uint64_t rank_ns(const tracer_t *t, uint32_t rank, double ns)
{
    return (uint64_t)llround(ns * t->world->on_core[t->world->part[SIM_CORE][rank]]);
}

static weft_status_t trace_collective(tracer_t *t, uint32_t index, uint32_t *last)
{
    const wefti_plan_collective_t *collective = &t->plan->collectives[index];
    sim_scratch_t scratch = {0};
    weft_status_t status =
        wefti_sim_call(t->world, t->plan, t->registry, collective, &scratch, &t->call);
    if (status >= 0 && t->call.params.group_size > 1) {
        status = trace_call(t, last);
    }
    wefti_sim_scratch_deinit(&scratch);
    bool updates = collective->update != WEFTI_PLAN_NONE;
    for (uint32_t r = 0; r < t->world->ranks && updates && status >= 0; r++) {
        sim_node_t node = {
            .kind = SIM_CALC,
            .name = t->plan->kernels[collective->update].name,
            .ns = rank_ns(t, r, t->kernel_ns[collective->update] / t->call.params.group_size)};
        status = add_node(t, r, node, last[r], 0, &last[r]);
    }
    return status < 0 ? wefti_error_prefix(status, "%s", collective->name) : status;
}

static weft_status_t trace_step(tracer_t *t, uint32_t stream, const wefti_plan_step_t *step)
{
    uint32_t ranks = t->world->ranks, *last = t->streams[stream];
    const wefti_plan_kernel_t *kernel = &t->plan->kernels[step->index];
    if (step->kind == WEFTI_STEP_COLLECTIVE) {
        return trace_collective(t, step->index, last);
    }
    if (step->kind == WEFTI_STEP_RECORD) {
        t->events[step->index] = wefti_alloc(NULL, (ranks + 1ul) * sizeof *last);
        WEFT_RETURN_IF_NO_MEMORY(t->events[step->index]);
        memcpy(t->events[step->index], last, ranks * sizeof *last);
        return WEFT_OK;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        if (step->kind == WEFTI_STEP_WAIT) {
            WEFT_RETURN_IF_ERROR(join(t, r, t->events[step->index][r], &last[r]));
        } else if (wefti_plan_runs(t->plan, kernel->place, r)) {
            sim_node_t node = {.kind = SIM_CALC,
                               .name = kernel->name,
                               .ns = rank_ns(t, r, t->kernel_ns[step->index])};
            WEFT_RETURN_IF_ERROR(add_node(t, r, node, last[r], 0, &last[r]));
        }
    }
    return WEFT_OK;
}

static weft_status_t walk(tracer_t *t)
{
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t s = 0; s < t->plan->stream_count; s++) {
            const wefti_plan_stream_program_t *list = &t->program->streams[s];
            while (t->at[s] < list->step_count &&
                   (list->steps[t->at[s]].kind != WEFTI_STEP_WAIT ||
                    t->events[list->steps[t->at[s]].index] != NULL)) {
                WEFT_RETURN_IF_ERROR(trace_step(t, s, &list->steps[t->at[s]++]));
                more = true;
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_sim_trace(const sim_world_t *world, const weft_plan_t *plan,
                              const weft_registry_t *registry, sim_node_fn add, void *user)
{
    double *kernel_ns = NULL;
    bool is_inline;
    wefti_arena_t arena;
    weft_status_t status;
    tracer_t t = {.world = world, .plan = plan, .registry = registry, .add = add, .user = user};
    if (world->ranks > MOST_RANKS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "traces of single ranks: too many ranks: %u, at most %u", world->ranks,
                           MOST_RANKS);
    }
    wefti_arena_init(&arena, NULL, 0);
    t.program = wefti_plan_program(plan, "step");
    WEFT_TRY(status, wefti_sim_kernel_ns(world, plan, registry, &kernel_ns, &is_inline), out);
    t.kernel_ns = kernel_ns;
    t.numbers = wefti_arena_array(&arena, world->ranks + 1ul, sizeof *t.numbers);
    t.streams = wefti_arena_array(&arena, plan->stream_count + 1ul, sizeof *t.streams);
    t.at = wefti_arena_array(&arena, plan->stream_count + 1ul, sizeof *t.at);
    t.events = wefti_arena_array(&arena, plan->event_count + 1ul, sizeof *t.events);
    for (uint32_t s = 0; t.streams != NULL && s < plan->stream_count; s++) {
        t.streams[s] = wefti_arena_array(&arena, world->ranks + 1ul, sizeof **t.streams);
    }
    status = arena.failed ? WEFT_ERR_NO_MEMORY : walk(&t);
out:
    for (uint32_t e = 0; t.events != NULL && e < plan->event_count; e++) {
        wefti_free(NULL, t.events[e]);
    }
    wefti_free(NULL, t.list);
    wefti_free(NULL, kernel_ns);
    wefti_arena_deinit(&arena);
    return status;
}

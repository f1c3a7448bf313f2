/* SPDX-License-Identifier: Apache-2.0 */
/* weft verify PLAN: proves a saved plan and the schedules that it may run. */
#include "tools/output.h"
#include "tools/verify_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/algo/sweep.h"
#include "ops/collective.h"
#include "ops/plan/prove.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/order.h"

#define MAX_RANKS 64u        /* beyond, schedules are proved over shared memory only, */
#define MAX_CELLS (1u << 20) /* up to this size; larger ones by symmetry, */
#define MAX_STEPS (1u << 24) /* up to this many steps of all ranks */
#define MAX_CASES 256u
/* A schedule has steps for every pair of ranks; a file of a kilobyte can claim a million ranks: no
 * more run on symbols. */
#define MAX_PROVED_RANKS 1024u

/* A schedule that a collective of the plan may run. */
typedef struct schedule {
    weft_collective_t op;
    const char *algorithm;
    uint32_t ranks, root, in_place, uses;
    const char *order;
    const char *left_out; /* NULL: proved */
} schedule_t;

typedef struct proof {
    wefti_plan_proof_t plan;
    schedule_t schedules[MAX_CASES];
    uint32_t schedule_count, proved, skipped; /* skipped: left out, or beyond MAX_CASES */
} proof_t;

/* Whether the rank's own block has its place in the other buffer. */
static uint32_t is_in_place(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    const wefti_plan_buffer_t *source = &plan->buffers[collective->source];
    const wefti_plan_buffer_t *buffer = &plan->buffers[collective->buffer];
    return source == buffer || source->offset_bytes == buffer->offset_bytes;
}

/* The case of a collective and algorithm, a new one if need be; NULL: there are too many. */
static schedule_t *find_case(proof_t *proof, const weft_plan_t *plan,
                             const wefti_plan_collective_t *collective, const char *algorithm)
{
    schedule_t wanted = {.op = collective->op,
                         .algorithm = algorithm,
                         .ranks = wefti_plan_axis(plan, collective).size,
                         .root = collective->root,
                         .in_place = is_in_place(plan, collective),
                         .order = collective->order};
    for (uint32_t i = 0; i < proof->schedule_count; i++) {
        schedule_t *known = &proof->schedules[i];
        if (known->op == wanted.op && known->ranks == wanted.ranks && known->root == wanted.root &&
            known->in_place == wanted.in_place && strcmp(known->algorithm, algorithm) == 0 &&
            strcmp(known->order, wanted.order) == 0) {
            return known;
        }
    }
    if (proof->schedule_count == MAX_CASES) {
        proof->skipped++;
        return NULL;
    }
    proof->schedules[proof->schedule_count] = wanted;
    return &proof->schedules[proof->schedule_count++];
}

/* Proves the schedule, or sets left_out; an error is a wrong schedule. */
static weft_status_t prove_schedule(schedule_t *schedule, const weft_plan_t *plan,
                                    const weft_registry_t *registry)
{
    uint32_t ranks = schedule->ranks;
    const weft_algorithm_t *algorithm =
        wefti_plan_find_algorithm(plan, registry, schedule->op, schedule->algorithm);
    wefti_order_setting_t order;
    WEFT_RETURN_IF_ERROR(wefti_order_parse(schedule->order, &order)); /* the plan was verified */
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = schedule->op,
                                 .group_size = ranks,
                                 .root = schedule->root,
                                 .in_place = schedule->in_place,
                                 .order = order.order,
                                 .order_sizes = order.sizes,
                                 .order_size_count = order.count};
    wefti_sweep_t sweep = {.op = schedule->op,
                           .algorithm = schedule->algorithm,
                           .root = &schedule->root,
                           .links = ranks > MAX_RANKS ? WEFTI_SWEEP_DIRECT : WEFTI_SWEEP_ALL,
                           .cell_limit = ranks > MAX_PROVED_RANKS ? 1
                                         : ranks > MAX_RANKS      ? MAX_CELLS
                                                                  : 0,
                           .step_limit = MAX_STEPS,
                           .placed = ""};
    if (algorithm == NULL || ranks > WEFTI_MAX_GROUP) {
        schedule->left_out = algorithm == NULL ? "unknown algorithm" : "too large, not symmetric";
        return WEFT_OK;
    }
    const char *reason = wefti_algorithm_reason(algorithm, &params);
    schedule->left_out = wefti_algorithm_order_refusal(algorithm, &params);
    if (schedule->left_out != NULL) {
        return WEFT_OK;
    }
    if (reason == NULL && ranks <= MAX_RANKS) {
        return weft_algorithm_verify(algorithm, &params);
    }
    /* An algorithm for several hosts: in all placements of ranks. */
    weft_status_t status = reason == NULL ? wefti_sweep_case(&sweep, algorithm, &params)
                                          : wefti_sweep_size(&sweep, ranks);
    schedule->left_out = sweep.left_out > 0  ? "too large, not symmetric"
                         : sweep.proved == 0 ? reason
                                             : NULL;
    return status;
}

static weft_status_t prove_schedules(proof_t *proof, const weft_plan_t *plan,
                                     const weft_registry_t *registry)
{
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        for (uint32_t a = 0; a < collective->algorithm_count; a++) {
            schedule_t *schedule =
                find_case(proof, plan, collective, collective->algorithms[a].name);
            if (schedule != NULL) {
                schedule->uses++;
            }
        }
    }
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < proof->schedule_count && status >= 0; i++) {
        status = prove_schedule(&proof->schedules[i], plan, registry);
        proof->proved += proof->schedules[i].left_out == NULL;
        proof->skipped += proof->schedules[i].left_out != NULL;
    }
    return status;
}

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static void tell_program(wefti_text_t *text, const proof_t *proof, const weft_plan_t *plan)
{
    const wefti_plan_proof_t *done = &proof->plan;
    char bytes[32], hex[65];
    wefti_text_add(text, "plan of ");
    wefti_text_add_printable(text, plan->model_name[0] ? plan->model_name : "(unnamed model)");
    wefti_text_printf(text, ": %" PRIu32 " rank%s, structure %.16s\n", plan->world_size,
                      plural(plan->world_size), wefti_digest_hex(&plan->structure_digest, hex));
    wefti_text_printf(text,
                      "  operators     %" PRIu32
                      " kernel%s: defined, with operands of the right types and shapes\n",
                      plan->kernel_count, plural(plan->kernel_count));
    wefti_text_printf(text,
                      "  dependencies  %" PRIu32 " programs, %" PRIu64 " steps, %" PRIu64
                      " waits: nothing is read before it is written, no two accesses race\n",
                      plan->program_count, done->steps, done->waits);
    wefti_text_printf(text, "  memory        %" PRIu32 " buffers in %" PRIu32 " pieces of %s",
                      plan->buffer_count, done->pieces,
                      wefti_format_bytes(plan->arena_bytes, bytes));
    wefti_text_printf(text, "; %s reused, never while in use\n",
                      wefti_format_bytes(done->shared_bytes, bytes));
}

/* Ranks that no other stands for, and that were not simulated: all others run the same programs as
 * some that were. */
static uint32_t ranks_left_out(const wefti_plan_proof_t *proof, const weft_plan_t *plan)
{
    return plan->place_group == 0 ? 0 : plan->world_size - proof->simulated_ranks;
}

static bool is_complete(const proof_t *proof, const weft_plan_t *plan)
{
    return proof->skipped == 0 && ranks_left_out(&proof->plan, plan) == 0;
}

static void tell_ranks(wefti_text_t *text, const proof_t *proof, const weft_plan_t *plan)
{
    const wefti_plan_proof_t *done = &proof->plan;
    char bytes[32];
    if (plan->kind == WEFT_PLAN_KIND_TRAINING) {
        wefti_text_printf(text, "  gradients     %" PRIu32 ", %s: ", done->gradients,
                          wefti_format_bytes(done->bucket_bytes, bytes));
        wefti_text_printf(text, "every byte in exactly one of %" PRIu32 " bucket%s\n",
                          done->buckets, plural(done->buckets));
    }
    if (plan->accumulate > 1) {
        wefti_text_printf(text,
                          "  micro-batches %" PRIu32
                          " per rank: each is added once, in the order of the tree\n",
                          plan->accumulate);
    }
    wefti_text_printf(
        text,
        "  deadlock      %" PRIu32 " rank%s, %" PRIu32
        " streams each, threads or inline: all complete, with %" PRIu64 " matched collectives\n",
        done->simulated_ranks, plural(done->simulated_ranks), plan->stream_count, done->meetings);
    if (done->simulated_ranks < plan->world_size && ranks_left_out(done, plan) == 0) {
        wefti_text_printf(text,
                          "                by symmetry the other %" PRIu32
                          " ranks: all run the same programs\n",
                          plan->world_size - done->simulated_ranks);
    }
}

static void tell_schedules(wefti_text_t *text, const proof_t *proof)
{
    wefti_text_printf(text, "  schedules     %" PRIu32 " proved", proof->proved);
    for (uint32_t i = 0; i < proof->schedule_count; i++) {
        const schedule_t *schedule = &proof->schedules[i];
        wefti_text_printf(text, "%s%s ", i == 0 ? ": " : ", ",
                          wefti_collective_function(schedule->op));
        wefti_text_add_printable(text, schedule->algorithm);
        wefti_text_add(text, schedule->in_place ? " in place" : "");
        if (schedule->left_out != NULL) {
            wefti_text_printf(text, " (skipped: %s)", schedule->left_out);
        }
    }
}

static void print_text(const proof_t *proof, const weft_plan_t *plan)
{
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    tell_program(&text, proof, plan);
    tell_ranks(&text, proof, plan);
    tell_schedules(&text, proof);
    uint32_t ranks = ranks_left_out(&proof->plan, plan);
    if (ranks > 0) {
        wefti_text_printf(&text, "\nnot proved: %" PRIu32 " rank%s not simulated", ranks,
                          plural(ranks));
    }
    if (proof->skipped > 0) {
        wefti_text_printf(&text, "\nnot proved: %" PRIu32 " schedule%s skipped\n", proof->skipped,
                          plural(proof->skipped));
    } else if (ranks > 0) {
        wefti_text_add(&text, "\n");
    } else {
        wefti_text_add(&text, "\nproved\n");
    }
    fputs(text.failed ? "" : text.data, stdout);
    wefti_text_deinit(&text);
}

static void add_schedules(wefti_json_t *json, const proof_t *proof)
{
    wefti_json_begin_array(json, "schedules");
    for (uint32_t i = 0; i < proof->schedule_count; i++) {
        const schedule_t *schedule = &proof->schedules[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "op", wefti_collective_function(schedule->op));
        wefti_json_string(json, "algorithm", schedule->algorithm);
        wefti_json_int(json, "root", schedule->root);
        wefti_json_bool(json, "in_place", schedule->in_place);
        wefti_json_int(json, "collectives", schedule->uses);
        wefti_json_bool(json, "proved", schedule->left_out == NULL);
        wefti_json_string(json, "left_out", schedule->left_out);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void add_numbers(wefti_json_t *json, const proof_t *proof, const weft_plan_t *plan)
{
    const wefti_plan_proof_t *done = &proof->plan;
    char hex[65];
    wefti_json_string(json, "model", plan->model_name);
    wefti_json_string(json, "structure_digest", wefti_digest_hex(&plan->structure_digest, hex));
    wefti_json_int(json, "world", plan->world_size);
    wefti_json_int(json, "accumulate", plan->accumulate);
    wefti_json_int(json, "kernels", plan->kernel_count);
    wefti_json_int(json, "programs", plan->program_count);
    wefti_json_int(json, "steps", (int64_t)done->steps);
    wefti_json_int(json, "waits", (int64_t)done->waits);
    wefti_json_int(json, "accesses", (int64_t)done->accesses);
    wefti_json_int(json, "buffers", plan->buffer_count);
    wefti_json_int(json, "pieces", done->pieces);
    wefti_json_int(json, "arena_bytes", (int64_t)plan->arena_bytes);
    wefti_json_int(json, "shared_bytes", (int64_t)done->shared_bytes);
    wefti_json_int(json, "gradients", done->gradients);
    wefti_json_int(json, "gradient_bytes", (int64_t)done->bucket_bytes);
    wefti_json_int(json, "buckets", done->buckets);
    wefti_json_int(json, "ranks", done->simulated_ranks);
    wefti_json_int(json, "ranks_left_out", ranks_left_out(done, plan));
    wefti_json_int(json, "streams", plan->stream_count);
    wefti_json_int(json, "meetings", (int64_t)done->meetings);
    add_schedules(json, proof);
    wefti_json_int(json, "schedules_skipped", proof->skipped);
}

static void print_json(const proof_t *proof, const weft_plan_t *plan, weft_status_t status)
{
    output_object_t object;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_bool(json, "ok", status >= 0 && is_complete(proof, plan));
    wefti_json_string(json, "error", status < 0 ? weft_last_error() : NULL);
    if (status >= 0) {
        add_numbers(json, proof, plan);
    }
    wefti_output_end(&object);
}

static weft_status_t prove(proof_t *proof, const weft_plan_t *plan, const weft_registry_t *registry)
{
    weft_status_t status = wefti_plan_prove(plan, registry, &proof->plan);
    return status >= 0 ? prove_schedules(proof, plan, registry) : status;
}

int wefti_verify_plan(const char *path, const weft_registry_t *registry, bool json)
{
    weft_plan_t *plan = NULL;
    proof_t *proof = calloc(1, sizeof(*proof));
    weft_status_t status =
        proof != NULL ? weft_plan_load(path, registry, &plan) : WEFT_ERR_NO_MEMORY;
    if (status >= 0) {
        status = prove(proof, plan, registry);
    }
    if (json) {
        print_json(proof, plan, status);
    } else if (status >= 0) {
        print_text(proof, plan);
    }
    bool complete = status >= 0 && is_complete(proof, plan);
    weft_plan_release(plan);
    free(proof);
    if (status == WEFT_ERR_FORMAT || status == WEFT_ERR_INVALID_ARGUMENT) {
        fprintf(stderr, "weft verify: %s\n", weft_last_error());
        return EXIT_RUN_FAILED; /* it could be read, and is wrong */
    }
    return status < 0 ? wefti_status_error("verify", status) : complete ? EXIT_OK : EXIT_RUN_FAILED;
}

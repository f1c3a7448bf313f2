/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "support_fake_card.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "tests/faults/network.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

const uint32_t support_sizes[SUPPORT_PARAMS] = {1000, 7, 4099, 64, 513};
#define MOMENTUM 0.9f

/* --- kernels ------------------------------------------------------------------------------- */

typedef struct kernel_state {
    uint32_t count, number;
    bool die;
} kernel_state_t;

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    kernel_state_t *state = calloc(1, sizeof(*state));
    if (state == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "no room for a kernel");
    }
    state->count = (uint32_t)weft_tensor_elem_count(&node->inputs[0]);
    state->number = (uint32_t)weft_node_attr_int(node, "number", 0);
    *out_state = state;
    *out_scratch_bytes = 100 + state->number;
    return WEFT_OK;
}

static float gradient(float w, float x, uint32_t number)
{
    return w * 0.5f + x * (float)(number + 1);
}

/* inputs w, x; a NaN in x[0] is an error, an infinity kills the process */
static weft_status_t run_gradient(const weft_kernel_call_t *call)
{
    const kernel_state_t *state = call->state;
    const float *w = call->inputs[0], *x = call->inputs[1];
    float *g = call->outputs[0];
    if (isinf(x[0])) {
        raise(SIGKILL);
    }
    if (!(x[0] == x[0])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "x[0] is not a number");
    }
    memset(call->scratch, 1, 100 + state->number);
    for (uint32_t i = 0; i < state->count; i++) {
        g[i] = gradient(w[i], x[i % SUPPORT_INPUTS], state->number);
    }
    return WEFT_OK;
}

/* inputs w, g, m, lr; outputs w, m in place */
static weft_status_t run_update(const weft_kernel_call_t *call)
{
    const kernel_state_t *state = call->state;
    float *w = call->outputs[0], *m = call->outputs[1];
    const float *g = call->inputs[1], *lr = call->inputs[3];
    for (uint32_t i = 0; i < state->count; i++) {
        m[i] = MOMENTUM * m[i] + g[i];
        w[i] = w[i] - lr[0] * m[i];
    }
    return WEFT_OK;
}

/* inputs x, w0, step; output loss */
static weft_status_t run_loss(const weft_kernel_call_t *call)
{
    const float *x = call->inputs[0], *w = call->inputs[1], *step = call->inputs[2];
    float sum = 0;
    for (uint32_t i = 0; i < SUPPORT_INPUTS; i++) {
        sum += x[i];
    }
    *(float *)call->outputs[0] = sum * w[0] + step[0];
    return WEFT_OK;
}

#define TEST_KERNEL(op_name, run_fn)                                                               \
    {                                                                                              \
        .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = "test", .op = (op_name),                 \
        .since_version = 1, .prepare = prepare, .run = (run_fn), .destroy = free                   \
    }

static const weft_kernel_t kernels[] = {
    TEST_KERNEL("Gradient", run_gradient),
    TEST_KERNEL("Update", run_update),
    TEST_KERNEL("Loss", run_loss),
};

weft_status_t support_registry(bool complete, weft_registry_t **out_registry)
{
    weft_status_t status = weft_registry_create(NULL, out_registry);
    for (size_t i = 0; i < 3 && status >= 0; i++) {
        if (complete || i != 1) {
            status = weft_registry_add_kernel(*out_registry, &kernels[i]);
        }
    }
    return status;
}

/* --- the same, directly -------------------------------------------------------------------- */

void support_inputs(uint32_t rank, uint32_t step_index, float *x)
{
    for (uint32_t i = 0; i < SUPPORT_INPUTS; i++) {
        x[i] = (float)((rank * 131 + step_index * 17 + i * 7) % 97) / 97.0f - 0.3f;
    }
}

/* In-order tree over values, split at the largest power of two below count. */
static float tree(const float *values, uint32_t count)
{
    if (count == 1) {
        return values[0];
    }
    uint32_t left = 1;
    while (left * 2 < count) {
        left *= 2;
    }
    return tree(values, left) + tree(values + left, count - left);
}

void support_expect(const training_t *training, char digest[65])
{
    wefti_hasher_t *hasher = NULL;
    wefti_digest_t bytes;
    assert_int_equal(wefti_hasher_create(&hasher), WEFT_OK);
    for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
        float *w = malloc(support_sizes[j] * sizeof(float));
        for (uint32_t i = 0; i < support_sizes[j]; i++) {
            float m = 0;
            w[i] = (float)((i * 37 + j * 11) % 101) / 101.0f - 0.5f;
            for (uint32_t s = 0; s < training->steps; s++) {
                float g[64];
                for (uint32_t r = 0; r < training->world; r++) {
                    float x[SUPPORT_INPUTS];
                    support_inputs(r, s, x);
                    g[r] = gradient(w[i], x[i % SUPPORT_INPUTS], j);
                }
                float divisor =
                    (float)(training->divisor != 0 ? training->divisor : training->world);
                m = MOMENTUM * m + tree(g, training->world) / divisor;
                w[i] = w[i] - (float)SUPPORT_LR * m;
            }
        }
        wefti_hasher_add(hasher, w, support_sizes[j] * sizeof(float));
        free(w);
    }
    wefti_hasher_finish(hasher, &bytes);
    wefti_hasher_destroy(hasher);
    wefti_digest_hex(&bytes, digest);
}

/* --- worlds -------------------------------------------------------------------------------- */

void support_quiet(void *user, weft_log_level_t level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static weft_status_t train(const training_t *training, weft_session_t *session, uint32_t rank,
                           outcome_t *outcome)
{
    float x[SUPPORT_INPUTS];
    weft_status_t status = WEFT_OK;
    for (uint32_t s = 0; s < training->steps && status >= 0; s++) {
        support_inputs(rank, s, x);
        if (s == training->bad_step) {
            x[0] = training->bad_kernel_rank == (int)rank + 1 ? NAN : x[0];
            x[0] = training->dead_rank == (int)rank + 1 ? INFINITY : x[0];
        }
        status = weft_session_set_input(session, "x", x, sizeof(x));
        uint64_t start_ns = wefti_now_ns();
        status = status >= 0 ? weft_session_step(session) : status;
        outcome->late_ms = (double)(wefti_now_ns() - start_ns) / 1e6;
        if (status >= 0 && training->reads) {
            status = weft_session_eval(session);
            status = status >= 0 ? weft_session_param_digest(session, outcome->digest) : status;
        }
    }
    if (status >= 0) {
        status = weft_session_get_output(session, "loss", &outcome->loss, sizeof(float), NULL);
    }
    if (status >= 0) {
        status = weft_session_param_digest(session, outcome->digest);
    }
    if (status >= 0 && training->trace != NULL) {
        status = weft_session_write_trace(session, training->trace);
    }
    outcome->stats.struct_size = sizeof(outcome->stats);
    weft_session_get_stats(session, &outcome->stats);
    return status;
}

static void go_on(weft_context_t *context, outcome_t *outcome)
{
    weft_context_t *next = NULL;
    if (weft_context_shrink(context, &next) == WEFT_OK && weft_context_barrier(next) == WEFT_OK) {
        outcome->left = weft_context_world_size(next);
    }
    weft_context_release(next);
}

void support_rank(const training_t *training, const weft_context_params_t *params,
                  outcome_t *outcome)
{
    weft_context_t *context = NULL;
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    weft_session_t *session = NULL;
    uint32_t rank = (uint32_t)params->rank;
    weft_status_t status;
    WEFT_TRY(status, weft_context_create(params, &context), out);
    WEFT_TRY(status, support_registry(training->no_kernel_rank != (int)rank + 1, &registry), out);
    WEFT_TRY(status, support_plan(training, training->other_plan_rank == (int)rank + 1, &plan),
             out);
    weft_session_params_t session_params = WEFT_SESSION_PARAMS_INIT;
    session_params.context = context;
    session_params.plan = plan;
    session_params.registry = registry;
    session_params.trace = training->trace != NULL;
    for (uint32_t i = 0; i <= training->repeats; i++) {
        weft_session_destroy(session);
        WEFT_TRY(status, weft_session_create(&session_params, &session), out);
        WEFT_TRY(status, train(training, session, rank, outcome), out);
    }
out:
    outcome->status = status;
    snprintf(outcome->message, sizeof(outcome->message), "%s", status < 0 ? weft_last_error() : "");
    outcome->after = session != NULL ? (uint64_t)(int64_t)weft_session_step(session) : 0;
    weft_session_destroy(session);
    if (status < 0 && training->shrinks) {
        go_on(context, outcome);
    }
    weft_plan_release(plan);
    weft_registry_destroy(registry);
    weft_context_release(context);
}

typedef struct thread_rank {
    const training_t *training;
    weft_context_params_t params;
    outcome_t *outcome;
    pthread_t thread;
} thread_rank_t;

static void *thread_main(void *user)
{
    thread_rank_t *rank = user;
    support_rank(rank->training, &rank->params, rank->outcome);
    return NULL;
}

static weft_context_params_t params_of(const training_t *training, uint32_t rank)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)training->world;
    params.progress = training->progress;
    params.isa = training->isa;
    params.log = training->quiet ? support_quiet : NULL;
    return params;
}

void support_run_threads(const training_t *training, outcome_t *outcomes)
{
    thread_rank_t ranks[64];
    weft_hub_t *hub = NULL;
    memset(outcomes, 0, training->world * sizeof(*outcomes));
    assert_int_equal(weft_hub_create(training->world, &hub), WEFT_OK);
    if (training->host_of != NULL) {
        wefti_hub_links_t links = {training->host_of, 23, 10000};
        assert_int_equal(wefti_hub_hide(hub, &links), WEFT_OK);
    }
    for (uint32_t r = 0; r < training->world; r++) {
        ranks[r] = (thread_rank_t){training, params_of(training, r), &outcomes[r], 0};
        ranks[r].params.hub = hub;
        if (training->card) {
            assert_int_equal(fake_card_create(&ranks[r].params.device), WEFT_OK);
            if (r == 0 && training->card_fails > 0) {
                fake_card_fail(ranks[r].params.device, training->card_fails);
            }
        }
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, thread_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < training->world; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    for (uint32_t r = 0; r < training->world && training->card; r++) {
        assert_int_equal(fake_card_destroy(ranks[r].params.device), 0);
    }
}

void support_run_processes(const training_t *training, outcome_t *outcomes)
{
    static uint32_t worlds;
    char address[64];
    pid_t pids[64];
    size_t bytes = training->world * sizeof(*outcomes);
    outcome_t *shared =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    snprintf(address, sizeof(address), "unix:@weft-test-%d-%u", (int)getpid(), worlds++);
    for (uint32_t r = 0; r < training->world; r++) {
        shared[r].status = WEFT_IN_PROGRESS;
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            weft_context_params_t params = params_of(training, r);
            params.address = address;
            support_rank(training, &params, &shared[r]);
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < training->world; r++) {
        int wait_status;
        assert_int_equal(waitpid(pids[r], &wait_status, 0), pids[r]);
        if (training->dead_rank != (int)r + 1) {
            assert_true(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
        }
    }
    memcpy(outcomes, shared, bytes);
    munmap(shared, bytes);
}

weft_status_t support_feed(weft_session_t *session, const weft_plan_t *plan, uint32_t rank,
                           uint32_t step)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < weft_plan_binding_count(plan) && status >= 0; i++) {
        weft_binding_t binding = WEFT_BINDING_INIT;
        weft_plan_get_binding(plan, i, &binding);
        if (binding.role != WEFT_BINDING_ROLE_INPUT && binding.role != WEFT_BINDING_ROLE_LABEL) {
            continue;
        }
        size_t count = (size_t)weft_tensor_elem_count(&binding.desc);
        size_t bytes = count * weft_dtype_size_bytes(binding.desc.dtype);
        void *data = calloc(1, bytes);
        assert_non_null(data);
        for (size_t j = 0; j < count; j++) {
            size_t mixed = rank * 31 + step * 7 + j * 13;
            switch (binding.desc.dtype) {
            case WEFT_DTYPE_F32:
                ((float *)data)[j] = (float)(mixed % 256) / 255.0f;
                break;
            case WEFT_DTYPE_I64:
                ((int64_t *)data)[j] = (int64_t)(mixed % 10);
                break;
            default:
                ((int32_t *)data)[j] = (int32_t)(mixed % 10);
                break;
            }
        }
        status = weft_session_set_input(session, binding.name, data, bytes);
        free(data);
    }
    return status;
}

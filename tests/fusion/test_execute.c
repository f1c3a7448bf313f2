/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans executed by the plainest executor there is: one rank, the compute stream's kernels one
 * after the other, collectives of one rank do nothing. Policies, memory sharing and saving must not
 * change a bit of the result.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fusion/fusion.h"
#include "runtime/base/sync.h"
#include "tests/fusion/support_view.h"
#include "tests/support/support.h"

#define MODEL(name) WEFT_SOURCE_DIR "/samples/models/" name
enum { BATCH = 8, STEPS = 4, CLASSES = 10, MAX_OPERANDS = 16 };

typedef struct machine {
    const weft_plan_t *plan;
    weft_registry_t *registry;
    wefti_arena_t arena;
    uint8_t *memory;
    uint8_t **at; /* address of every buffer */
    void **states, **scratch;
    const weft_kernel_t **kernels;
} machine_t;

static void *zeroed(size_t bytes)
{
    void *ptr = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(ptr);
    memset(ptr, 0, bytes);
    return ptr;
}

/* apart: every activation gets memory of its own, whatever the plan says. */
static void machine_init(machine_t *m, const weft_plan_t *plan, bool apart)
{
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = wefti_isa_detect();
    *m = (machine_t){.plan = plan};
    assert_int_equal(weft_registry_create(NULL, &m->registry), WEFT_OK);
    wefti_arena_init(&m->arena, NULL, 0);
    m->memory = zeroed(plan->arena_bytes);
    m->at = wefti_arena_array(&m->arena, plan->buffer_count, sizeof(*m->at));
    m->states = wefti_arena_array(&m->arena, plan->kernel_count, sizeof(*m->states));
    m->scratch = wefti_arena_array(&m->arena, plan->kernel_count, sizeof(*m->scratch));
    m->kernels = wefti_arena_array(&m->arena, plan->kernel_count, sizeof(*m->kernels));
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[b];
        bool own = apart && buffer->kind == WEFTI_BUFFER_TEMP;
        m->at[b] = own ? zeroed(buffer->size_bytes) : m->memory + buffer->offset_bytes;
        if (buffer->kind == WEFTI_BUFFER_PARAM || buffer->kind == WEFTI_BUFFER_CONST) {
            memcpy(m->at[b], plan->weights + buffer->data_offset_bytes, buffer->size_bytes);
        } else if (buffer->kind == WEFTI_BUFFER_SCALAR) {
            float value = (float)buffer->default_value;
            memcpy(m->at[b], &value, sizeof(value));
        }
    }
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[k];
        weft_node_desc_t desc;
        size_t bytes = 0;
        assert_int_equal(wefti_plan_kernel_desc(plan, k, &m->arena, &desc), WEFT_OK);
        m->kernels[k] =
            weft_registry_find_kernel(m->registry, kernel->domain, kernel->op, kernel->version);
        if (m->kernels[k] == NULL ||
            m->kernels[k]->prepare(&desc, &env, &m->states[k], &bytes) < 0) {
            fail_msg("%s (%s): %s", kernel->name, kernel->op, weft_last_error());
        }
        m->scratch[k] = zeroed(bytes);
    }
}

static void machine_deinit(machine_t *m)
{
    for (uint32_t k = 0; k < m->plan->kernel_count; k++) {
        if (m->kernels[k]->destroy != NULL) {
            m->kernels[k]->destroy(m->states[k]);
        }
        free(m->scratch[k]);
    }
    for (uint32_t b = 0; b < m->plan->buffer_count; b++) {
        if (m->at[b] != m->memory + m->plan->buffers[b].offset_bytes) {
            free(m->at[b]);
        }
    }
    free(m->memory);
    wefti_arena_deinit(&m->arena);
    weft_registry_destroy(m->registry);
}

static void run_program(machine_t *m, const char *name)
{
    const wefti_plan_stream_program_t *stream = &wefti_plan_program(m->plan, name)->streams[0];
    for (uint32_t i = 0; i < stream->step_count; i++) {
        uint32_t k = stream->steps[i].index;
        const wefti_plan_kernel_t *kernel = &m->plan->kernels[k];
        const void *inputs[MAX_OPERANDS];
        void *outputs[MAX_OPERANDS];
        weft_kernel_call_t call = {m->states[k], inputs, outputs, m->scratch[k]};
        if (stream->steps[i].kind != WEFTI_STEP_KERNEL) {
            continue;
        }
        assert_true(kernel->input_count <= MAX_OPERANDS && kernel->output_count <= MAX_OPERANDS);
        for (uint32_t j = 0; j < kernel->input_count; j++) {
            inputs[j] = kernel->inputs[j] == WEFTI_PLAN_NONE ? NULL : m->at[kernel->inputs[j]];
        }
        for (uint32_t j = 0; j < kernel->output_count; j++) {
            outputs[j] = kernel->outputs[j] == WEFTI_PLAN_NONE ? NULL : m->at[kernel->outputs[j]];
        }
        assert_int_equal(m->kernels[k]->run(&call), WEFT_OK);
    }
}

static void *bound(machine_t *m, weft_binding_role_t role, const char *name)
{
    for (uint32_t b = 0; b < m->plan->binding_count; b++) {
        const wefti_plan_binding_t *binding = &m->plan->bindings[b];
        if (binding->role == role && (name == NULL || strcmp(binding->name, name) == 0)) {
            return m->at[binding->buffer];
        }
    }
    return NULL;
}

/* Images with a bright row each, its height being the class: learnt in a few steps. */
static void feed(machine_t *m, uint64_t *random)
{
    float *images = bound(m, WEFT_BINDING_ROLE_INPUT, NULL);
    int64_t *labels = bound(m, WEFT_BINDING_ROLE_LABEL, NULL);
    for (uint32_t i = 0; i < BATCH; i++) {
        labels[i] = test_draw(random, CLASSES);
        for (uint32_t p = 0; p < 784; p++) {
            float noise = (float)test_draw(random, 1000) * 2e-4f;
            images[i * 784 + p] = noise + (p / 56 == (uint64_t)labels[i] ? 1.0f : 0.0f);
        }
    }
}

/* Trains and returns all parameters, one after the other in the order of the plan. */
static float *train(const weft_plan_t *plan, bool apart, size_t *out_count, float *out_losses,
                    float *out_logits)
{
    machine_t m;
    size_t count = 0, used = 0;
    float *params, *step;
    machine_init(&m, plan, apart);
    step = bound(&m, WEFT_BINDING_ROLE_SCALAR, "step");
    for (uint32_t s = 0; s < STEPS; s++) {
        uint64_t random = 88172645463325252u; /* the same batch every time: its loss falls */
        feed(&m, &random);
        if (step != NULL) {
            *step = (float)(s + 1);
        }
        run_program(&m, "step");
        memcpy(&out_losses[s], bound(&m, WEFT_BINDING_ROLE_LOSS, NULL), sizeof(float));
    }
    run_program(&m, "eval");
    memcpy(out_logits, bound(&m, WEFT_BINDING_ROLE_LOGITS, NULL), BATCH * CLASSES * sizeof(float));
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        count += plan->buffers[b].kind == WEFTI_BUFFER_PARAM ? plan->buffers[b].size_bytes : 0;
    }
    params = malloc(count);
    assert_non_null(params);
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        if (plan->buffers[b].kind == WEFTI_BUFFER_PARAM) {
            memcpy((uint8_t *)params + used, m.at[b], plan->buffers[b].size_bytes);
            used += plan->buffers[b].size_bytes;
        }
    }
    /* Updates over flat ranges pass over the padding: it must still be zero. */
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        const wefti_plan_buffer_t *buffer = &plan->buffers[b];
        bool region = buffer->kind >= WEFTI_BUFFER_PARAM && buffer->kind <= WEFTI_BUFFER_STATE;
        for (uint64_t i = buffer->size_bytes; region && i % 64 != 0; i++) {
            assert_int_equal(m.memory[buffer->offset_bytes + i], 0);
        }
    }
    machine_deinit(&m);
    *out_count = count;
    return params;
}

static weft_plan_t *compile(const char *model, const char *policy, const char *optimizer)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    params.model_path = model;
    params.world_size = 1;
    params.batch = BATCH;
    params.bucket = policy;
    params.optimizer = optimizer;
    if (weft_compile(&params, &plan) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return plan;
}

static void same_result(const weft_plan_t *plan, bool apart, const float *expected, size_t bytes,
                        const float *losses, const float *logits)
{
    float other_losses[STEPS], other_logits[BATCH * CLASSES];
    size_t other_bytes;
    float *params = train(plan, apart, &other_bytes, other_losses, other_logits);
    assert_int_equal(other_bytes, bytes);
    assert_memory_equal(params, expected, bytes);
    assert_memory_equal(other_losses, losses, sizeof(other_losses));
    assert_memory_equal(other_logits, logits, sizeof(other_logits));
    free(params);
}

static void check_model(const char *model, const char *optimizer)
{
    static const char *const policies[] = {"none", "bytes:64K", "bytes:7000", "index:1,3"};
    float losses[STEPS], logits[BATCH * CLASSES];
    size_t bytes;
    weft_plan_t *plan = compile(model, "bytes:25M", optimizer);
    float *expected = train(plan, true, &bytes, losses, logits);
    print_message("%s: loss %.4f to %.4f\n", optimizer, (double)losses[0],
                  (double)losses[STEPS - 1]);
    assert_true(losses[0] > 1.5f && losses[STEPS - 1] < losses[0]);
    same_result(plan, false, expected, bytes, losses, logits);
    weft_plan_release(plan);
    for (size_t p = 0; p < sizeof(policies) / sizeof(policies[0]); p++) {
        plan = compile(model, policies[p], optimizer);
        same_result(plan, false, expected, bytes, losses, logits);
        weft_plan_release(plan);
    }
    free(expected);
}

static void test_execute_mlp_gives_the_same_bits(void **state)
{
    (void)state;
    check_model(MODEL("mlp.onnx"), "sgd");
    check_model(MODEL("mlp.onnx"), "adam");
}

static void test_execute_lenet_gives_the_same_bits(void **state)
{
    (void)state;
    check_model(MODEL("lenet.onnx"), "momentum");
}

static void test_execute_loaded_plan_gives_the_same_bits(void **state)
{
    char path[] = "/tmp/weft-execute-XXXXXX";
    float losses[STEPS], logits[BATCH * CLASSES];
    size_t bytes;
    weft_plan_t *plan = compile(MODEL("lenet.onnx"), "bytes:64K", "momentum"), *loaded = NULL;
    float *expected = train(plan, true, &bytes, losses, logits);
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(weft_plan_save(plan, path), WEFT_OK);
    assert_int_equal(weft_plan_load(path, NULL, &loaded), WEFT_OK);
    unlink(path);
    same_result(loaded, false, expected, bytes, losses, logits);
    weft_plan_release(loaded);
    weft_plan_release(plan);
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_execute_mlp_gives_the_same_bits),
        cmocka_unit_test(test_execute_lenet_gives_the_same_bits),
        cmocka_unit_test(test_execute_loaded_plan_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

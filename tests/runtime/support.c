/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "support_fake_card.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "transport/hub.h"

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
#define LR 0.05

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

/* --- plan ---------------------------------------------------------------------------------- */

enum { GRADS = 0, PARAMS = SUPPORT_PARAMS, STATES = 2 * SUPPORT_PARAMS, REST = 3 * SUPPORT_PARAMS };
enum { X = REST, LR_SCALAR, STEP_SCALAR, LOSS, ALL_PARAMS, RANGES };
enum { UPDATES = SUPPORT_PARAMS };
/* Behind the ranges of buckets, for each bucket of a sharded plan. */
enum { GRAD_SHARD, PARAM_RANGE, PARAM_SHARD, SHARD_RANGES };

typedef struct builder {
    weft_plan_t *plan;
    wefti_arena_t *arena;
    uint32_t bucket_of[SUPPORT_PARAMS], bucket_count;
    support_mode_t mode;
    uint32_t divisor;
    uint32_t update_count, loss;    /* kernels */
    uint64_t bytes[SUPPORT_PARAMS]; /* of buckets, sharded */
} builder_t;

static bool begins_bucket(const builder_t *b, uint32_t j)
{
    return j == 0 || b->bucket_of[j - 1] != b->bucket_of[j];
}

static bool ends_bucket(const builder_t *b, uint32_t j)
{
    return j + 1 == SUPPORT_PARAMS || b->bucket_of[j + 1] != b->bucket_of[j];
}

static uint32_t shard_range(const builder_t *b, uint32_t bucket, uint32_t which)
{
    return RANGES + b->bucket_count + bucket * SHARD_RANGES + which;
}

static void add_buffer(builder_t *b, uint32_t index, const char *name, wefti_buffer_kind_t kind,
                       uint32_t count, uint64_t *offset)
{
    wefti_plan_buffer_t *buffer = &b->plan->buffers[index];
    buffer->name = name;
    buffer->kind = kind;
    buffer->dtype = WEFT_DTYPE_F32;
    buffer->rank = 1;
    buffer->dims[0] = count;
    buffer->offset_bytes = *offset;
    buffer->size_bytes = count * sizeof(float);
    *offset += wefti_align_up(buffer->size_bytes, WEFTI_PLAN_ALIGNMENT);
}

static uint32_t padded(uint32_t count)
{
    return (uint32_t)(wefti_align_up(count * sizeof(float), WEFTI_PLAN_ALIGNMENT) / sizeof(float));
}

static void add_buffers(builder_t *b, bool other)
{
    static const char *const names[] = {"w0", "w1", "w2", "w3", "w4"};
    static const wefti_buffer_kind_t kinds[] = {WEFTI_BUFFER_GRAD, WEFTI_BUFFER_PARAM,
                                                WEFTI_BUFFER_STATE};
    uint64_t offset = 0, data = 0, begin = 0;
    bool sharded = b->mode != SUPPORT_WHOLE;
    for (uint32_t k = 0; k < 3; k++) {
        for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
            const char *prefix = k == 0 ? "g." : k == 2 ? "m." : "";
            uint32_t count = support_sizes[j];
            if (sharded && k == 2) { /* one for each bucket */
                count = (uint32_t)(b->bytes[j] / b->plan->world_size / sizeof(float));
            }
            begin = begins_bucket(b, j) ? offset : begin;
            add_buffer(b, k * SUPPORT_PARAMS + j,
                       wefti_arena_printf(b->arena, "%s%s", prefix, names[j]), kinds[k], count,
                       &offset);
            if (sharded && k < 2 && ends_bucket(b, j)) {
                b->bytes[b->bucket_of[j]] = wefti_align_up(
                    offset - begin, (size_t)WEFTI_PLAN_ALIGNMENT * b->plan->world_size);
                offset = begin + b->bytes[b->bucket_of[j]];
            }
        }
    }
    add_buffer(b, X, "x", WEFTI_BUFFER_INPUT, SUPPORT_INPUTS, &offset);
    add_buffer(b, LR_SCALAR, "lr", WEFTI_BUFFER_SCALAR, 1, &offset);
    add_buffer(b, STEP_SCALAR, "step", WEFTI_BUFFER_SCALAR, 1, &offset);
    add_buffer(b, LOSS, "loss", WEFTI_BUFFER_OUTPUT, 1, &offset);
    b->plan->buffers[LR_SCALAR].default_value = LR;
    b->plan->buffers[LR_SCALAR].rank = b->plan->buffers[STEP_SCALAR].rank = 0;
    b->plan->buffers[LOSS].rank = 0;
    b->plan->arena_bytes = b->plan->live_bytes = offset;

    float *weights = wefti_arena_alloc(b->arena, offset);
    for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
        b->plan->buffers[PARAMS + j].data_offset_bytes = data;
        for (uint32_t i = 0; i < support_sizes[j]; i++) {
            weights[data / sizeof(float) + i] = (float)((i * 37 + j * 11) % 101) / 101.0f - 0.5f;
        }
        data += padded(support_sizes[j]) * sizeof(float);
    }
    weights[3] += other ? 1.0f : 0.0f;
    b->plan->weights = (const uint8_t *)weights;
    b->plan->weights_bytes = data;
}

/* A RANGE over buffers first .. first + count - 1, as buffer index. */
static void add_range(builder_t *b, uint32_t index, uint32_t first, uint32_t count)
{
    wefti_plan_buffer_t *range = &b->plan->buffers[index];
    const wefti_plan_buffer_t *last = &b->plan->buffers[first + count - 1];
    *range = b->plan->buffers[first];
    range->name = wefti_arena_printf(b->arena, "range %u", index);
    range->kind = WEFTI_BUFFER_RANGE;
    uint64_t end = last->offset_bytes + wefti_align_up(last->size_bytes, WEFTI_PLAN_ALIGNMENT);
    range->size_bytes = end - range->offset_bytes;
    range->dims[0] = (int64_t)(range->size_bytes / sizeof(float));
}

static void add_collective(builder_t *b, uint32_t index, const char *name, weft_collective_t op,
                           uint32_t buffer, uint32_t first, uint32_t count)
{
    wefti_plan_collective_t *collective = &b->plan->collectives[index];
    *collective =
        (wefti_plan_collective_t){.name = name,
                                  .op = op,
                                  .reduction = op == WEFT_OP_ALL_REDUCE ? WEFT_AVG : WEFT_SUM,
                                  .dtype = WEFT_DTYPE_F32,
                                  .buffer = buffer,
                                  .source = buffer,
                                  .divisor = op == WEFT_OP_ALL_REDUCE ? b->divisor : 0,
                                  .update = WEFTI_PLAN_NONE,
                                  .order = "tree",
                                  .member_count = count,
                                  .algorithm_count = 1,
                                  .reason = "test"};
    collective->elem_count = b->plan->buffers[buffer].size_bytes / sizeof(float);
    collective->members = wefti_arena_array(b->arena, count, sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        collective->members[i] = first + i;
    }
    collective->algorithms = wefti_arena_array(b->arena, 1, sizeof(wefti_plan_algorithm_t));
    collective->algorithms[0] =
        (wefti_plan_algorithm_t){"mesh", WEFTI_PLAN_CAP_DIRECT | WEFTI_PLAN_CAP_SIGNAL, 1};
}

static void add_kernel(builder_t *b, uint32_t index, const char *name, const char *op,
                       uint32_t number, uint32_t input_count, const uint32_t *inputs,
                       uint32_t output_count, const uint32_t *outputs)
{
    wefti_plan_kernel_t *kernel = &b->plan->kernels[index];
    kernel->name = wefti_arena_printf(b->arena, "%s %u", name, number);
    kernel->domain = "test";
    kernel->op = op;
    kernel->version = 1;
    kernel->input_count = input_count;
    kernel->output_count = output_count;
    kernel->inputs = wefti_arena_memdup(b->arena, inputs, input_count * sizeof(*inputs));
    kernel->outputs = wefti_arena_memdup(b->arena, outputs, output_count * sizeof(*outputs));
    kernel->attr_count = 1;
    kernel->attrs = wefti_arena_array(b->arena, 1, sizeof(weft_attr_t));
    kernel->attrs[0] = (weft_attr_t){.name = "number", .type = WEFT_ATTR_INT, .i = number};
}

static void add_kernels(builder_t *b)
{
    for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
        uint32_t gradient_inputs[] = {PARAMS + j, X}, gradient_outputs[] = {GRADS + j};
        add_kernel(b, j, "gradient", "Gradient", j, 2, gradient_inputs, 1, gradient_outputs);
    }
    for (uint32_t j = 0; j < b->update_count; j++) {
        bool sharded = b->mode != SUPPORT_WHOLE;
        uint32_t param = sharded ? shard_range(b, j, PARAM_SHARD) : PARAMS + j;
        uint32_t grad = sharded ? shard_range(b, j, GRAD_SHARD) : GRADS + j;
        uint32_t update_inputs[] = {param, grad, STATES + j, LR_SCALAR};
        uint32_t update_outputs[] = {param, STATES + j};
        add_kernel(b, UPDATES + j, "update", "Update", j, 4, update_inputs, 2, update_outputs);
    }
    uint32_t inputs[] = {X, PARAMS, STEP_SCALAR}, outputs[] = {LOSS};
    add_kernel(b, b->loss, "loss", "Loss", 0, 3, inputs, 1, outputs);
}

static void step(wefti_plan_stream_program_t *program, wefti_step_kind_t kind, uint32_t index)
{
    program->steps[program->step_count++] = (wefti_plan_step_t){kind, index};
}

static wefti_plan_stream_program_t *add_program(builder_t *b, const char *name)
{
    wefti_plan_program_t *program = &b->plan->programs[b->plan->program_count++];
    program->name = name;
    program->streams =
        wefti_arena_array(b->arena, b->plan->stream_count, sizeof(*program->streams));
    for (uint32_t s = 0; s < b->plan->stream_count; s++) {
        program->streams[s].steps = wefti_arena_array(b->arena, 64, sizeof(wefti_plan_step_t));
    }
    return program->streams;
}

/* Events 2 * bucket: gradients are ready; 2 * bucket + 1: the bucket is reduced. */
static void add_step(builder_t *b)
{
    wefti_plan_stream_program_t *streams = add_program(b, "step");
    bool two = b->plan->stream_count > 1;
    wefti_plan_stream_program_t *comm = &streams[two ? 1 : 0];
    step(&streams[0], WEFTI_STEP_KERNEL, b->loss);
    for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
        uint32_t bucket = b->bucket_of[j];
        step(&streams[0], WEFTI_STEP_KERNEL, j);
        if (!ends_bucket(b, j)) {
            continue;
        }
        if (two) {
            step(&streams[0], WEFTI_STEP_RECORD, 2 * bucket);
            step(comm, WEFTI_STEP_WAIT, 2 * bucket);
        }
        step(comm, WEFTI_STEP_COLLECTIVE, 1 + bucket);
        if (two) {
            step(comm, WEFTI_STEP_RECORD, 2 * bucket + 1);
        }
    }
    for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
        if (two && begins_bucket(b, j)) {
            step(&streams[0], WEFTI_STEP_WAIT, 2 * b->bucket_of[j] + 1);
        }
        step(&streams[0], WEFTI_STEP_KERNEL, UPDATES + j);
    }
}

/* --- sharded plans ------------------------------------------------------------------------- */

static void add_view(builder_t *b, uint32_t index, uint32_t first, uint64_t bytes, uint64_t stride)
{
    wefti_plan_buffer_t *range = &b->plan->buffers[index];
    *range = b->plan->buffers[first];
    range->name = wefti_arena_printf(b->arena, "range %u", index);
    range->kind = WEFTI_BUFFER_RANGE;
    range->size_bytes = bytes;
    range->dims[0] = (int64_t)(bytes / sizeof(float));
    range->rank_stride_bytes = stride;
}

static uint32_t gather_of(const builder_t *b, uint32_t bucket)
{
    return 1 + b->bucket_count + bucket;
}

/* Padding lies between buckets, so each has its weights from rank 0 by itself: 0, and the last. */
static uint32_t broadcast_of(const builder_t *b, uint32_t bucket)
{
    return bucket == 0 ? 0 : b->plan->collective_count - bucket;
}

/* The ranges of a bucket and what is done with them; collective 1 + bucket is there, unsharded. */
static void shard_bucket(builder_t *b, uint32_t k, uint32_t first, uint32_t count)
{
    wefti_plan_collective_t *bucket = &b->plan->collectives[1 + k];
    uint64_t bytes = b->bytes[k], shard = bytes / b->plan->world_size;
    add_view(b, RANGES + k, GRADS + first, bytes, 0);
    add_view(b, shard_range(b, k, GRAD_SHARD), GRADS + first, shard, shard);
    add_view(b, shard_range(b, k, PARAM_RANGE), PARAMS + first, bytes, 0);
    add_view(b, shard_range(b, k, PARAM_SHARD), PARAMS + first, shard, shard);
    bucket->elem_count = bytes / sizeof(float);
    add_collective(b, broadcast_of(b, k), "weights", WEFT_OP_BROADCAST,
                   shard_range(b, k, PARAM_RANGE), PARAMS + first, count);
    if (b->mode == SUPPORT_SWEEP) {
        bucket->buffer = shard_range(b, k, PARAM_RANGE);
        bucket->update = UPDATES + k;
        return;
    }
    bucket->op = WEFT_OP_REDUCE_SCATTER;
    bucket->buffer = shard_range(b, k, GRAD_SHARD);
    bucket->elem_count /= b->plan->world_size;
    add_collective(b, gather_of(b, k), wefti_arena_printf(b->arena, "weights %u", k),
                   WEFT_OP_ALL_GATHER, shard_range(b, k, PARAM_RANGE), PARAMS + first, count);
    b->plan->collectives[gather_of(b, k)].source = shard_range(b, k, PARAM_SHARD);
    b->plan->collectives[gather_of(b, k)].elem_count = shard / sizeof(float);
}

/* Between the two streams, where there are two. */
static void pass(wefti_plan_stream_program_t *from, wefti_plan_stream_program_t *to, uint32_t event)
{
    if (from != to) {
        step(from, WEFTI_STEP_RECORD, event);
        step(to, WEFTI_STEP_WAIT, event);
    }
}

/* Events: 4 * bucket, and on: gathered, gradients ready, reduced, updated. */
static void add_sharded_step(builder_t *b)
{
    wefti_plan_stream_program_t *compute = add_program(b, "step");
    wefti_plan_stream_program_t *comm = &compute[b->plan->stream_count > 1 ? 1 : 0];
    for (uint32_t k = 0; k < b->bucket_count && b->mode == SUPPORT_DECOUPLED; k++) {
        step(comm, WEFTI_STEP_COLLECTIVE, gather_of(b, k));
        pass(comm, compute, 4 * k);
    }
    step(compute, WEFTI_STEP_KERNEL, b->loss);
    for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
        step(compute, WEFTI_STEP_KERNEL, j);
        if (ends_bucket(b, j)) {
            uint32_t k = b->bucket_of[j];
            pass(compute, comm, 4 * k + 1);
            step(comm, WEFTI_STEP_COLLECTIVE, 1 + k);
            pass(comm, compute, 4 * k + 2);
        }
    }
    for (uint32_t k = 0; k < b->bucket_count && b->mode != SUPPORT_SWEEP; k++) {
        step(compute, WEFTI_STEP_KERNEL, UPDATES + k);
        if (b->mode == SUPPORT_SHARDED) {
            pass(compute, comm, 4 * k + 3);
            step(comm, WEFTI_STEP_COLLECTIVE, gather_of(b, k));
        }
    }
    if (b->mode == SUPPORT_DECOUPLED) {
        wefti_plan_stream_program_t *flush = add_program(b, "flush");
        for (uint32_t k = 0; k < b->bucket_count; k++) {
            step(&flush[b->plan->stream_count - 1], WEFTI_STEP_COLLECTIVE, gather_of(b, k));
        }
    }
}

weft_status_t support_plan(const training_t *training, bool other, weft_plan_t **out_plan)
{
    weft_status_t status = wefti_plan_create(NULL, out_plan);
    if (status < 0) {
        return status;
    }
    weft_plan_t *plan = *out_plan;
    builder_t b = {.plan = plan,
                   .arena = &plan->arena,
                   .bucket_count = training->buckets,
                   .mode = training->mode,
                   .divisor = training->divisor};
    bool sharded = b.mode != SUPPORT_WHOLE;
    b.update_count = sharded ? b.bucket_count : SUPPORT_PARAMS;
    b.loss = UPDATES + b.update_count;
    for (uint32_t j = 0; j < SUPPORT_PARAMS; j++) {
        b.bucket_of[j] = j * training->buckets / SUPPORT_PARAMS;
    }
    plan->model_name = "by hand";
    plan->policy = "one";
    plan->optimizer = "momentum";
    plan->world_size = training->world + training->wrong_world;
    plan->batch = 1;
    plan->stream_count = training->streams == 1 ? 1 : 2;
    plan->event_count = plan->stream_count > 1 ? (sharded ? 4 : 2) * b.bucket_count : 0;
    plan->buffer_count = RANGES + b.bucket_count * (sharded ? 1 + SHARD_RANGES : 1);
    plan->kernel_count = b.loss + 1;
    plan->collective_count = 1 + b.bucket_count * (sharded && b.mode != SUPPORT_SWEEP ? 2 : 1) +
                             (sharded ? b.bucket_count - 1 : 0);
    plan->flags = (sharded ? WEFTI_PLAN_SHARDED : 0) |
                  (b.mode == SUPPORT_DECOUPLED ? WEFTI_PLAN_DECOUPLED : 0);
    plan->buffers = wefti_arena_array(b.arena, plan->buffer_count, sizeof(*plan->buffers));
    plan->kernels = wefti_arena_array(b.arena, plan->kernel_count, sizeof(*plan->kernels));
    plan->collectives =
        wefti_arena_array(b.arena, plan->collective_count, sizeof(*plan->collectives));
    plan->streams = wefti_arena_array(b.arena, plan->stream_count, sizeof(*plan->streams));
    plan->programs = wefti_arena_array(b.arena, 4, sizeof(*plan->programs));
    plan->bindings = wefti_arena_array(b.arena, 4, sizeof(*plan->bindings));
    plan->streams[0] = (wefti_plan_stream_t){"compute", plan->stream_count == 1};
    if (plan->stream_count > 1) {
        plan->streams[1] = (wefti_plan_stream_t){"comm", 1};
    }
    add_buffers(&b, other);
    add_kernels(&b);
    add_range(&b, ALL_PARAMS, PARAMS, sharded ? 1 : SUPPORT_PARAMS);
    add_collective(&b, 0, "weights", WEFT_OP_BROADCAST, ALL_PARAMS, PARAMS, SUPPORT_PARAMS);
    for (uint32_t k = 0, first = 0; k < b.bucket_count; k++) {
        uint32_t count = 0;
        while (first + count < SUPPORT_PARAMS && b.bucket_of[first + count] == k) {
            count++;
        }
        add_range(&b, RANGES + k, GRADS + first, count);
        add_collective(&b, 1 + k, wefti_arena_printf(b.arena, "bucket %u", k), WEFT_OP_ALL_REDUCE,
                       RANGES + k, GRADS + first, count);
        if (sharded) {
            shard_bucket(&b, k, first, count);
        }
        first += count;
    }
    wefti_plan_stream_program_t *init = add_program(&b, "init");
    for (uint32_t k = 0; k < (sharded ? b.bucket_count : 1); k++) {
        step(&init[plan->stream_count - 1], WEFTI_STEP_COLLECTIVE, broadcast_of(&b, k));
    }
    if (sharded) {
        add_sharded_step(&b);
    } else {
        add_step(&b);
    }
    step(&add_program(&b, "eval")[0], WEFTI_STEP_KERNEL, b.loss);
    plan->binding_count = 4;
    plan->bindings[0] = (wefti_plan_binding_t){"x", WEFT_ROLE_INPUT, X};
    plan->bindings[1] = (wefti_plan_binding_t){"lr", WEFT_ROLE_SCALAR, LR_SCALAR};
    plan->bindings[2] = (wefti_plan_binding_t){"step", WEFT_ROLE_SCALAR, STEP_SCALAR};
    plan->bindings[3] = (wefti_plan_binding_t){"total", WEFT_ROLE_LOSS, LOSS};
    status = wefti_plan_seal(plan);
    if (status < 0) {
        weft_plan_release(plan);
        *out_plan = NULL;
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
                w[i] = w[i] - (float)LR * m;
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
    weft_session_params_t session_params = {sizeof(session_params), context, plan, registry,
                                            training->trace != NULL};
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
        weft_binding_t binding = {.struct_size = sizeof(binding)};
        weft_plan_get_binding(plan, i, &binding);
        if (binding.role != WEFT_ROLE_INPUT && binding.role != WEFT_ROLE_LABEL) {
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The training plan of support.h, whole and sharded. */
#include "support.h"

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
    b->plan->buffers[LR_SCALAR].default_value = SUPPORT_LR;
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
    *collective = (wefti_plan_collective_t){
        .name = name,
        .op = op,
        .reduction = op == WEFT_COLLECTIVE_ALL_REDUCE ? WEFT_REDUCTION_AVG : WEFT_REDUCTION_SUM,
        .dtype = WEFT_DTYPE_F32,
        .buffer = buffer,
        .source = buffer,
        .divisor = op == WEFT_COLLECTIVE_ALL_REDUCE ? b->divisor : 0,
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
    kernel->attrs[0] = (weft_attr_t){.name = "number", .type = WEFT_ATTR_TYPE_INT, .i = number};
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
    add_collective(b, broadcast_of(b, k), "weights", WEFT_COLLECTIVE_BROADCAST,
                   shard_range(b, k, PARAM_RANGE), PARAMS + first, count);
    if (b->mode == SUPPORT_SWEEP) {
        bucket->buffer = shard_range(b, k, PARAM_RANGE);
        bucket->update = UPDATES + k;
        return;
    }
    bucket->op = WEFT_COLLECTIVE_REDUCE_SCATTER;
    bucket->buffer = shard_range(b, k, GRAD_SHARD);
    bucket->elem_count /= b->plan->world_size;
    add_collective(b, gather_of(b, k), wefti_arena_printf(b->arena, "weights %u", k),
                   WEFT_COLLECTIVE_ALL_GATHER, shard_range(b, k, PARAM_RANGE), PARAMS + first,
                   count);
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
    add_collective(&b, 0, "weights", WEFT_COLLECTIVE_BROADCAST, ALL_PARAMS, PARAMS, SUPPORT_PARAMS);
    for (uint32_t k = 0, first = 0; k < b.bucket_count; k++) {
        uint32_t count = 0;
        while (first + count < SUPPORT_PARAMS && b.bucket_of[first + count] == k) {
            count++;
        }
        add_range(&b, RANGES + k, GRADS + first, count);
        add_collective(&b, 1 + k, wefti_arena_printf(b.arena, "bucket %u", k),
                       WEFT_COLLECTIVE_ALL_REDUCE, RANGES + k, GRADS + first, count);
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
    plan->bindings[0] = (wefti_plan_binding_t){"x", WEFT_BINDING_ROLE_INPUT, X};
    plan->bindings[1] = (wefti_plan_binding_t){"lr", WEFT_BINDING_ROLE_SCALAR, LR_SCALAR};
    plan->bindings[2] = (wefti_plan_binding_t){"step", WEFT_BINDING_ROLE_SCALAR, STEP_SCALAR};
    plan->bindings[3] = (wefti_plan_binding_t){"total", WEFT_BINDING_ROLE_LOSS, LOSS};
    status = wefti_plan_seal(plan);
    if (status < 0) {
        weft_plan_release(plan);
        *out_plan = NULL;
    }
    return status;
}

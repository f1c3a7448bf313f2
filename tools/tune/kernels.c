/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of kernels, measured through the registry as a session calls them. All ranks measure at the
 * same time, so that caches, memory and clock frequency are shared as in a step. Before each call the
 * caches of the cores are filled with other data, as by the rest of a step; then the first operand is
 * read, which the kernel before has just written.
 */
#include <stdio.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/base/sync.h"
#include "tools/output.h"
#include "tools/tune/tune.h"

#define MAX_CALLS 200u
#define LEAST_CALLS 3u
#define MAX_TENSORS 4u

/* What fills the caches between two calls: as many bytes per thread. */
typedef struct chill {
    uint8_t *data;
    size_t bytes;
} chill_t;

/* One kernel and its operands. */
typedef struct subject {
    const weft_registry_t *registry;
    const tune_kernels_t *run;
    const chill_t *chill;
    wefti_kernel_kind_t kind;
    weft_node_desc_t node;
    weft_tensor_desc_t in[MAX_TENSORS], out[MAX_TENSORS];
    weft_attr_t attrs[3];
    int64_t ints[8];
} subject_t;

static weft_tensor_desc_t tensor(uint32_t rank, const int64_t *dims)
{
    weft_tensor_desc_t desc = {.dtype = WEFT_DTYPE_F32, .rank = rank};
    memcpy(desc.dims, dims, rank * sizeof *dims);
    return desc;
}

/* Contents: all 0.5. A value of 0 or a denormal number could take another time. */
static void *operand(const weft_tensor_desc_t *desc)
{
    size_t count = (size_t)weft_tensor_elem_count(desc);
    size_t bytes = wefti_align_up(count * weft_dtype_size_bytes(desc->dtype), 64);
    void *data = aligned_alloc(64, bytes);
    if (data == NULL) {
        return NULL;
    }
    memset(data, 0, bytes);
    for (size_t i = 0; i < count && desc->dtype == WEFT_DTYPE_F32; i++) {
        ((float *)data)[i] = 0.5f;
    }
    return data;
}

/* A line of each 64 bytes of a thread's part. */
static void fill_cache(const void *job, int64_t part)
{
    const chill_t *chill = job;
    volatile uint8_t *at = chill->data + (size_t)part * chill->bytes;
    for (size_t i = 0; i < chill->bytes; i += 64) {
        at[i] += 1;
    }
}

static void chill(const subject_t *subject, const void *first, size_t bytes)
{
    const volatile uint8_t *at = first;
    wefti_parallel(subject->run->threads, fill_cache, subject->chill);
    for (size_t i = 0; i < bytes; i += 64) {
        (void)at[i];
    }
}

/* The median of the calls that fit the budget. After the deadline, which only a busy machine
 * reaches, every kernel is called once more. */
static double time_calls(const subject_t *subject, const weft_kernel_t *kernel,
                         const weft_kernel_call_t *call)
{
    double times[MAX_CALLS], sum = 0;
    uint32_t count = 0;
    size_t first_bytes = (size_t)weft_tensor_elem_count(&subject->in[0]) *
                         weft_dtype_size_bytes(subject->in[0].dtype);
    kernel->run(call);
    while (count < MAX_CALLS && (count < LEAST_CALLS || sum < subject->run->budget_ns) &&
           (count == 0 || wefti_now_ns() < subject->run->deadline_ns)) {
        uint64_t begin = wefti_now_ns();
        chill(subject, call->inputs[0], first_bytes);
        uint64_t start = wefti_now_ns(), end;
        kernel->run(call);
        end = wefti_now_ns();
        times[count++] = (double)(end - start);
        sum += (double)(end - begin);
    }
    wefti_sort_doubles(times, count);
    return times[count / 2];
}

/* Results take the place of operands where the operator allows it, as in a session. */
static bool fill_operands(const subject_t *subject, void *inputs[MAX_TENSORS],
                          void *outputs[MAX_TENSORS])
{
    const weft_op_def_t *def = weft_registry_find_op(subject->registry, subject->node.domain,
                                                     subject->node.op, subject->node.version);
    bool complete = def != NULL;
    for (uint32_t i = 0; i < subject->node.input_count; i++) {
        inputs[i] = operand(&subject->in[i]);
        complete = complete && inputs[i] != NULL;
    }
    for (uint32_t i = 0; complete && i < subject->node.output_count; i++) {
        int place = def->in_place[i];
        if (subject->out[i].dtype == WEFT_DTYPE_NONE) {
            continue;
        }
        outputs[i] = place >= 0 ? inputs[place] : operand(&subject->out[i]);
        complete = complete && outputs[i] != NULL;
    }
    return complete;
}

static void free_operands(const subject_t *subject, void *inputs[MAX_TENSORS],
                          void *outputs[MAX_TENSORS])
{
    for (uint32_t i = 0; i < subject->node.output_count; i++) {
        for (uint32_t j = 0; j < subject->node.input_count; j++) {
            outputs[i] = outputs[i] == inputs[j] ? NULL : outputs[i];
        }
        free(outputs[i]);
    }
    for (uint32_t i = 0; i < subject->node.input_count; i++) {
        free(inputs[i]);
    }
}

/* Waits until all ranks are at the same kernel. */
static void meet(tune_kernels_t *run, uint32_t ranks)
{
    uint32_t turn = atomic_load_explicit(&run->turn, memory_order_acquire);
    /* acq_rel: the last rank sees the others' arrival, and they see the new turn */
    if (atomic_fetch_add_explicit(&run->arrived, 1, memory_order_acq_rel) + 1 == ranks) {
        atomic_store_explicit(&run->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&run->turn, turn + 1, memory_order_release);
    }
    while (atomic_load_explicit(&run->turn, memory_order_acquire) == turn) {
        sched_yield();
    }
}

static weft_status_t prepare(const subject_t *subject, const weft_kernel_t **out_kernel,
                             void **out_state, size_t *out_scratch)
{
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = subject->run->isa;
    env.thread_count = subject->run->threads;
    const weft_node_desc_t *node = &subject->node;
    weft_status_t status = WEFT_ERR_UNSUPPORTED;
    for (int i = 0; i < 2 && status == WEFT_ERR_UNSUPPORTED; i++) {
        *out_kernel =
            weft_registry_find_kernel_of(subject->registry, i == 0 ? subject->run->family : NULL,
                                         node->domain, node->op, node->version);
        if (*out_kernel == NULL) {
            return wefti_error(WEFT_ERR_NOT_FOUND, "no kernel for operator %s", node->op);
        }
        status = (*out_kernel)->prepare != NULL
                     ? (*out_kernel)->prepare(node, &env, out_state, out_scratch)
                     : WEFT_OK;
    }
    return status;
}

/* Size by the operator's cost rule, which is what predictions ask for. */
static double size_of(const subject_t *subject)
{
    double flops = 0, bytes = 0;
    const weft_op_def_t *def = weft_registry_find_op(subject->registry, subject->node.domain,
                                                     subject->node.op, subject->node.version);
    def->cost(&subject->node, &flops, &bytes);
    return wefti_kernel_counts_flops(subject->kind) ? flops : bytes;
}

static weft_status_t measure(subject_t *subject, tune_kernels_t *run, uint32_t rank, uint32_t ranks)
{
    void *inputs[MAX_TENSORS] = {NULL}, *outputs[MAX_TENSORS] = {NULL}, *state = NULL,
         *scratch = NULL;
    const weft_kernel_t *kernel = NULL;
    size_t scratch_bytes = 0;
    weft_status_t status;
    subject->node.inputs = subject->in;
    subject->node.outputs = subject->out;
    subject->node.attrs = subject->attrs;
    WEFT_TRY(status, prepare(subject, &kernel, &state, &scratch_bytes), out);
    scratch = aligned_alloc(64, wefti_align_up(scratch_bytes + 1, 64));
    if (!fill_operands(subject, inputs, outputs) || scratch == NULL) {
        status = wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: operands of operator %s",
                             subject->node.op);
        goto out;
    }
    const weft_kernel_call_t call = {state, (const void *const *)inputs, outputs, scratch};
    meet(run, ranks);
    double ns = time_calls(subject, kernel, &call);
    if (rank == 0 && run->count < TUNE_KERNEL_POINTS) {
        run->points[run->count++] =
            (wefti_kernel_point_t){subject->kind, run->threads, size_of(subject), ns};
    }
out:
    if (kernel != NULL && kernel->destroy != NULL && state != NULL) {
        kernel->destroy(state);
    }
    free_operands(subject, inputs, outputs);
    free(scratch);
    return status;
}

static void set_node(subject_t *subject, wefti_kernel_kind_t kind, const char *domain,
                     const char *op, int32_t version, uint32_t inputs, uint32_t outputs)
{
    subject->kind = kind;
    subject->node = (weft_node_desc_t){.domain = domain,
                                       .op = op,
                                       .version = version,
                                       .name = op,
                                       .input_count = inputs,
                                       .output_count = outputs};
}

static void set_product(subject_t *subject, const int64_t size[4])
{
    int64_t m = size[0], n = size[1], k = size[2];
    set_node(subject, WEFTI_KERNEL_PRODUCT, "", "Gemm", 13, 3, 1);
    subject->in[0] = tensor(2, (int64_t[]){m, k});
    subject->in[1] = tensor(2, (int64_t[]){n, k});
    subject->in[2] = tensor(1, (int64_t[]){n});
    subject->out[0] = tensor(2, (int64_t[]){m, n});
    subject->attrs[0] = (weft_attr_t){.name = "transB", .type = WEFT_ATTR_TYPE_INT, .i = 1};
    subject->node.attr_count = 1;
}

/* Images, channels in and out, pixels of a side; windows of 5 x 5, from 32 channels on of 3 x 3. */
static void set_conv(subject_t *subject, const int64_t size[4], bool grad)
{
    int64_t window = size[1] >= 32 ? 3 : 5, pad = window / 2;
    weft_tensor_desc_t x = tensor(4, (int64_t[]){size[0], size[1], size[3], size[3]});
    weft_tensor_desc_t w = tensor(4, (int64_t[]){size[2], size[1], window, window});
    weft_tensor_desc_t b = tensor(1, (int64_t[]){size[2]});
    weft_tensor_desc_t y = tensor(4, (int64_t[]){size[0], size[2], size[3], size[3]});
    if (grad) {
        set_node(subject, WEFTI_KERNEL_CONV_GRAD, "com.microsoft", "ConvGrad", 11, 3, 3);
        memcpy(subject->in, (weft_tensor_desc_t[]){y, x, w}, 3 * sizeof x);
        memcpy(subject->out, (weft_tensor_desc_t[]){x, w, b}, 3 * sizeof x);
        /* The first convolution of a model has no gradient of its input. */
        subject->out[0].dtype = size[1] == 1 ? WEFT_DTYPE_NONE : WEFT_DTYPE_F32;
    } else {
        set_node(subject, WEFTI_KERNEL_CONV, "", "Conv", 11, 3, 1);
        memcpy(subject->in, (weft_tensor_desc_t[]){x, w, b}, 3 * sizeof x);
        subject->out[0] = y;
    }
    for (int i = 0; i < 4; i++) {
        subject->ints[i] = pad;
    }
    subject->attrs[0] = (weft_attr_t){
        .name = "pads", .type = WEFT_ATTR_TYPE_INTS, .count = 4, .ints = subject->ints};
    subject->node.attr_count = 1;
}

static void set_pool(subject_t *subject, const int64_t size[4])
{
    static const char *const names[] = {"kernel_shape", "strides"};
    set_node(subject, WEFTI_KERNEL_POOL, "weft", "MaxPoolMask", 1, 1, 2);
    subject->in[0] = tensor(4, (int64_t[]){size[0], size[1], size[2], size[2]});
    subject->out[0] = tensor(4, (int64_t[]){size[0], size[1], size[2] / 2, size[2] / 2});
    subject->out[1] = subject->out[0];
    subject->out[1].dtype = WEFT_DTYPE_U8;
    subject->ints[0] = subject->ints[1] = 2;
    for (int i = 0; i < 2; i++) {
        subject->attrs[i] = (weft_attr_t){
            .name = names[i], .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = subject->ints};
    }
    subject->node.attr_count = 2;
}

static void set_rows(subject_t *subject, wefti_kernel_kind_t kind, const int64_t size[4])
{
    if (kind == WEFTI_KERNEL_EXP) {
        set_node(subject, kind, "", "Softmax", 13, 1, 1);
    } else if (kind == WEFTI_KERNEL_MOVE) {
        set_node(subject, kind, "", "Add", 13, 2, 1);
    } else {
        set_node(subject, kind, "", "LayerNormalization", 17, 3, 1);
    }
    subject->in[0] = subject->out[0] = tensor(2, size);
    subject->in[1] = kind == WEFTI_KERNEL_MOVE ? subject->in[0] : tensor(1, &size[1]);
    subject->in[2] = tensor(1, &size[1]);
}

/* x (1 + tanh(x + x y)), much like a GELU. */
static void set_fused(subject_t *subject, const int64_t size[4])
{
    static const char *const steps[] = {"Mul", "Add", "Tanh", "Mul", "Add"};
    static const int64_t operands[] = {0, 1, 2, 0, 3, -1, 4, 0, 5, 0}, results[] = {4};
    set_node(subject, WEFTI_KERNEL_FUSED, "weft", "Fused", 1, 2, 1);
    subject->in[0] = subject->in[1] = subject->out[0] = tensor(2, size);
    subject->attrs[0] = (weft_attr_t){
        .name = "steps", .type = WEFT_ATTR_TYPE_STRINGS, .count = 5, .strings = steps};
    subject->attrs[1] = (weft_attr_t){
        .name = "operands", .type = WEFT_ATTR_TYPE_INTS, .count = 10, .ints = operands};
    subject->attrs[2] =
        (weft_attr_t){.name = "results", .type = WEFT_ATTR_TYPE_INTS, .count = 1, .ints = results};
    subject->node.attr_count = 3;
}

/* Samples, heads, words and columns of a head. */
static void set_attention(subject_t *subject, const int64_t size[4])
{
    set_node(subject, WEFTI_KERNEL_ATTENTION, "weft", "FlashAttention", 1, 3, 1);
    for (int i = 0; i < 3; i++) {
        subject->in[i] = tensor(4, size);
    }
    subject->out[0] = tensor(4, size);
    subject->attrs[0] = (weft_attr_t){.name = "scale", .type = WEFT_ATTR_TYPE_FLOAT, .f = 0.125f};
    subject->node.attr_count = 1;
}

static void set_update(subject_t *subject, const int64_t size[4])
{
    set_node(subject, WEFTI_KERNEL_UPDATE, "weft", "Momentum", 1, 4, 2);
    for (int i = 0; i < 3; i++) {
        subject->in[i] = tensor(1, size);
    }
    subject->in[3] = tensor(0, size); /* learning rate */
    subject->out[0] = subject->out[1] = subject->in[0];
}

static void set_subject(subject_t *subject, wefti_kernel_kind_t kind, const int64_t size[4])
{
    switch (kind) {
    case WEFTI_KERNEL_PRODUCT:
        set_product(subject, size);
        break;
    case WEFTI_KERNEL_CONV:
    case WEFTI_KERNEL_CONV_GRAD:
        set_conv(subject, size, kind == WEFTI_KERNEL_CONV_GRAD);
        break;
    case WEFTI_KERNEL_POOL:
        set_pool(subject, size);
        break;
    case WEFTI_KERNEL_UPDATE:
        set_update(subject, size);
        break;
    case WEFTI_KERNEL_ATTENTION:
        set_attention(subject, size);
        break;
    case WEFTI_KERNEL_FUSED:
        set_fused(subject, size);
        break;
    default:
        set_rows(subject, kind, size);
    }
}

/* Shapes of small and large models, growing; sizes of data from the first cache to memory. */
static const struct {
    wefti_kernel_kind_t kind;
    int64_t size[4];
} samples[] = {
    {WEFTI_KERNEL_PRODUCT, {16, 16, 16, 0}},   {WEFTI_KERNEL_PRODUCT, {64, 10, 256, 0}},
    {WEFTI_KERNEL_PRODUCT, {64, 120, 400, 0}}, {WEFTI_KERNEL_PRODUCT, {256, 384, 128, 0}},
    {WEFTI_KERNEL_PRODUCT, {64, 512, 784, 0}}, {WEFTI_KERNEL_PRODUCT, {256, 1024, 512, 0}},
    {WEFTI_KERNEL_CONV, {16, 1, 6, 28}},       {WEFTI_KERNEL_CONV, {64, 1, 6, 28}},
    {WEFTI_KERNEL_CONV, {64, 6, 16, 12}},      {WEFTI_KERNEL_CONV, {4, 64, 64, 14}},
    {WEFTI_KERNEL_CONV_GRAD, {16, 1, 6, 28}},  {WEFTI_KERNEL_CONV_GRAD, {64, 1, 6, 28}},
    {WEFTI_KERNEL_CONV_GRAD, {64, 6, 16, 12}}, {WEFTI_KERNEL_CONV_GRAD, {4, 64, 64, 14}},
    {WEFTI_KERNEL_EXP, {8, 8, 0, 0}},          {WEFTI_KERNEL_EXP, {64, 10, 0, 0}},
    {WEFTI_KERNEL_EXP, {128, 128, 0, 0}},      {WEFTI_KERNEL_POOL, {1, 6, 28, 0}},
    {WEFTI_KERNEL_ATTENTION, {1, 2, 16, 32}},  {WEFTI_KERNEL_ATTENTION, {4, 4, 64, 32}},
    {WEFTI_KERNEL_ATTENTION, {2, 8, 128, 64}}, {WEFTI_KERNEL_FUSED, {8, 64, 0, 0}},
    {WEFTI_KERNEL_FUSED, {64, 512, 0, 0}},     {WEFTI_KERNEL_FUSED, {512, 1024, 0, 0}},
    {WEFTI_KERNEL_NORM, {8, 64, 0, 0}},        {WEFTI_KERNEL_NORM, {256, 128, 0, 0}},
    {WEFTI_KERNEL_NORM, {512, 1024, 0, 0}},    {WEFTI_KERNEL_POOL, {16, 16, 14, 0}},
    {WEFTI_KERNEL_POOL, {64, 6, 28, 0}},       {WEFTI_KERNEL_MOVE, {8, 64, 0, 0}},
    {WEFTI_KERNEL_MOVE, {64, 512, 0, 0}},      {WEFTI_KERNEL_MOVE, {512, 1024, 0, 0}},
    {WEFTI_KERNEL_MOVE, {4096, 1024, 0, 0}},   {WEFTI_KERNEL_UPDATE, {1 << 10, 0, 0, 0}},
    {WEFTI_KERNEL_UPDATE, {1 << 16, 0, 0, 0}}, {WEFTI_KERNEL_UPDATE, {1 << 19, 0, 0, 0}},
    {WEFTI_KERNEL_UPDATE, {1 << 22, 0, 0, 0}},
};

weft_status_t wefti_tune_kernels_rank(void *user, uint32_t rank, uint32_t world_size,
                                      const char *address)
{
    tune_kernels_t *run = user;
    weft_registry_t *registry = NULL;
    weft_context_t *context = NULL; /* a world of one, which sets the threads of kernels */
    chill_t chill = {.bytes = wefti_align_up(2 * run->cache_bytes, 64)};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.device_name = "cpu";
    char threads[16];
    weft_status_t status;
    (void)address;
    snprintf(threads, sizeof threads, "%u", run->threads);
    setenv("WEFT_THREADS", threads, 1);
    params.rank = 0;
    params.world_size = 1;
    WEFT_TRY(status, weft_context_create(&params, &context), out);
    WEFT_TRY(status, weft_registry_create(NULL, &registry), out);
    chill.data = calloc(run->threads, chill.bytes);
    WEFT_TRY(status, chill.data != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, out);
    for (size_t i = 0; i < sizeof samples / sizeof *samples && status == WEFT_OK; i++) {
        subject_t subject = {.registry = registry, .run = run, .chill = &chill};
        set_subject(&subject, samples[i].kind, samples[i].size);
        if (rank == 0 && run->progress) {
            fprintf(stderr, "\r\033[K%3zu %%  kernels, %u rank%s of %u thread%s, %s",
                    100 * i / (sizeof samples / sizeof *samples), world_size,
                    wefti_plural(world_size), run->threads, wefti_plural(run->threads),
                    wefti_kernel_kind_name(samples[i].kind));
        }
        status = measure(&subject, run, rank, world_size);
    }
out:
    if (rank == 0 && run->progress) {
        fputs("\r\033[K", stderr);
    }
    free(chill.data);
    weft_registry_destroy(registry);
    weft_context_release(context);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Half types by a kernel of f32: every input is widened into scratch, every output is rounded from
 * it. Elements are rounded once, after all arithmetic of the kernel, and on every instruction set
 * in the same way, so bits are as well defined as those of the f32 kernel.
 *
 *   scratch: | addresses | f32 copies of half tensors | scratch of the f32 kernel |
 *
 * Kernels of the table below treat samples (dimension 0) one by one. They get as many samples at a
 * time as fit into the cache, so only half types are in memory, and scratch stays small.
 */
#include "ops/compute/halves.h"

#include <stdio.h>
#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define ALIGNMENT 64u

WEFTI_INLINE void widen_bf16_body(const uint16_t *x, int64_t count, float *out)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = wefti_bf16_to_f32(x[i]);
    }
}

WEFTI_INLINE void narrow_bf16_body(const float *x, int64_t count, uint16_t *out)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = wefti_f32_bits(x[i]);
        const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? WEFTI_BF16_NAN : rounded);
    }
}

/* Both results of a choice are computed, so that loops become vectors. */
WEFTI_INLINE void widen_f16_body(const uint16_t *x, int64_t count, float *out)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        const uint32_t sign = (uint32_t)(x[i] & 0x8000u) << 16, rest = x[i] & 0x7fffu;
        const uint32_t small = wefti_f32_bits((float)(int32_t)rest * 0x1p-24f);
        const uint32_t normal = (rest << 13) + (112u << 23);
        const uint32_t special = 0x7f800000u | (rest & 0x3ffu) << 13;
        const uint32_t bits = rest >= 0x7c00u ? special : rest < 0x400u ? small : normal;
        out[i] = wefti_f32_from_bits(sign | bits);
    }
}

WEFTI_INLINE void narrow_f16_body(const float *x, int64_t count, uint16_t *out)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = wefti_f32_bits(x[i]);
        const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
        const uint32_t low = rest < 0x38800000u ? rest : 0; /* the addition below rounds */
        const uint32_t small = wefti_f32_bits(wefti_f32_from_bits(low) + 0.5f) - 0x3f000000u;
        const uint32_t normal = (rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13;
        const uint32_t finite = rest < 0x38800000u ? small : normal;
        const uint32_t big = rest >= 0x477ff000u ? 0x7c00u : finite;
        out[i] = (uint16_t)(rest > 0x7f800000u ? WEFTI_F16_NAN : sign | big);
    }
}

WEFTI_CLONES(widen_bf16, (const uint16_t *x, int64_t count, float *out), (x, count, out));
WEFTI_CLONES(widen_f16, (const uint16_t *x, int64_t count, float *out), (x, count, out));
WEFTI_CLONES(narrow_bf16, (const float *x, int64_t count, uint16_t *out), (x, count, out));
WEFTI_CLONES(narrow_f16, (const float *x, int64_t count, uint16_t *out), (x, count, out));

void wefti_halves_widen(weft_isa_t isa, weft_dtype_t dtype, const void *x, int64_t count,
                        float *out)
{
    (dtype == WEFT_DTYPE_BF16 ? widen_bf16 : widen_f16)[isa](x, count, out);
}

void wefti_halves_narrow(weft_isa_t isa, weft_dtype_t dtype, const float *x, int64_t count,
                         void *out)
{
    (dtype == WEFT_DTYPE_BF16 ? narrow_bf16 : narrow_f16)[isa](x, count, out);
}

/* Bit i: dimension 0 of tensor i is that of samples, if attribute axis is another dimension. A node
 * with other outputs, such as indices of MaxPool, gets all samples at once. */
static const struct {
    const char *domain, *op;
    uint32_t inputs, outputs;
} by_sample[] = {
    {"", "Softmax", 1u, 1u},
    {"", "LogSoftmax", 1u, 1u},
    {"weft", "SoftmaxGrad", 3u, 1u},
    {"weft", "LogSoftmaxGrad", 3u, 1u},
    {"", "LayerNormalization", 1u, 7u},
    {"weft", "FlashAttention", 7u, 3u}, /* with a bias for each sample: all samples at once */
    {"weft", "FlashAttentionGrad", 0xddu, 7u},
    {"", "Conv", 1u, 1u},
    {"", "MaxPool", 1u, 1u},
    {"weft", "MaxPoolMask", 1u, 3u},
    {"", "AveragePool", 1u, 1u},
    {"", "GlobalAveragePool", 1u, 1u},
};
/* Tensors that a kernel reads and writes as they are, where it takes the shapes. */
static const struct {
    const char *domain, *op;
    uint32_t inputs, outputs;
} as_they_are[] = {
    {"", "Conv", 1u, 1u},
    {"com.microsoft", "ConvGrad", 3u, 1u},
};
#define CACHE_BYTES ((size_t)1 << 20) /* f32 copies for each thread */

/* A tensor of the node, or its part for some samples. */
typedef struct tensor {
    weft_dtype_t dtype; /* NONE where there is no copy */
    int64_t count;
    size_t offset; /* of its f32 copy in scratch */
    size_t step;   /* bytes to the next part; 0 where there is one */
} tensor_t;

typedef struct state {
    const weft_kernel_t *kernel; /* of f32 */
    void *state;
    weft_isa_t isa;
    uint32_t threads, input_count, output_count;
    int64_t parts;
    size_t scratch_offset; /* of the f32 kernel */
    tensor_t *inputs, *outputs;
    char name[48];
} state_t;

typedef struct job {
    weft_isa_t isa;
    weft_dtype_t dtype;
    const uint16_t *half;
    const float *wide;
    void *to;
} job_t;

static void widen_range(const void *context, wefti_range_t range)
{
    const job_t *job = context;
    wefti_halves_widen(job->isa, job->dtype, job->half + range.from, range.to - range.from,
                       (float *)job->to + range.from);
}

static void narrow_range(const void *context, wefti_range_t range)
{
    const job_t *job = context;
    wefti_halves_narrow(job->isa, job->dtype, job->wide + range.from, range.to - range.from,
                        (uint16_t *)job->to + range.from);
}

static const void *part_of(const tensor_t *t, const void *data, int64_t part)
{
    return data == NULL ? NULL : (const char *)data + (size_t)part * t->step;
}

static weft_status_t run_part(const state_t *s, const weft_kernel_call_t *call, int64_t part)
{
    char *scratch = call->scratch;
    const void **inputs = call->scratch;
    void **outputs = (void **)(inputs + s->input_count);
    for (uint32_t i = 0; i < s->input_count; i++) {
        const tensor_t *t = &s->inputs[i];
        const void *data = part_of(t, call->inputs[i], part);
        inputs[i] = data;
        if (t->dtype != WEFT_DTYPE_NONE && data != NULL) {
            const job_t job = {s->isa, t->dtype, data, NULL, scratch + t->offset};
            if (part == 0 || t->step > 0) {
                wefti_parallel_for(s->threads, t->count, WEFTI_GRAIN, widen_range, &job);
            }
            inputs[i] = job.to;
        }
    }
    for (uint32_t i = 0; i < s->output_count; i++) {
        const tensor_t *t = &s->outputs[i];
        outputs[i] = (void *)(uintptr_t)part_of(t, call->outputs[i], part);
        if (t->dtype != WEFT_DTYPE_NONE && outputs[i] != NULL) {
            outputs[i] = scratch + t->offset;
        }
    }
    const weft_kernel_call_t inner = {s->state, inputs, outputs, scratch + s->scratch_offset};
    WEFT_RETURN_IF_ERROR(s->kernel->run(&inner));
    for (uint32_t i = 0; i < s->output_count; i++) {
        const tensor_t *t = &s->outputs[i];
        if (t->dtype != WEFT_DTYPE_NONE && call->outputs[i] != NULL) {
            const job_t job = {s->isa, t->dtype, NULL, outputs[i],
                               (void *)(uintptr_t)part_of(t, call->outputs[i], part)};
            wefti_parallel_for(s->threads, t->count, WEFTI_GRAIN, narrow_range, &job);
        }
    }
    return WEFT_OK;
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    weft_status_t status = WEFT_OK;
    for (int64_t part = 0; part < s->parts && status >= 0; part++) {
        status = run_part(s, call, part);
    }
    return status;
}

static void destroy(void *state)
{
    state_t *s = state;
    if (s != NULL && s->kernel->destroy != NULL) {
        s->kernel->destroy(s->state);
    }
    wefti_state_free(s);
}

static const char *implementation(void *state)
{
    return ((const state_t *)state)->name;
}

/* Stands for any kernel; wefti_prepare_kernel makes its state. */
static const weft_kernel_t widened = {.abi_version = WEFT_KERNEL_ABI_VERSION,
                                      .domain = "weft",
                                      .op = "Widened",
                                      .since_version = 1,
                                      .run = run,
                                      .destroy = destroy,
                                      .implementation = implementation};

static bool has_halves(const weft_tensor_desc_t *tensors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (wefti_is_half(tensors[i].dtype)) {
            return true;
        }
    }
    return false;
}

/* Copies of half tensors but those of the mask stays, from *cursor on; their descriptions become those of f32. Contents that
 * are known at bind stay out: they are those of half types. */
static weft_status_t place(weft_tensor_desc_t *tensors, uint32_t count, uint32_t stays,
                           tensor_t *out, size_t *cursor)
{
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes;
        if (!wefti_is_half(tensors[i].dtype) || (i < 32 && (stays >> i & 1u) != 0)) {
            continue;
        }
        out[i].dtype = tensors[i].dtype;
        out[i].count = weft_tensor_elem_count(&tensors[i]);
        out[i].offset = *cursor;
        if (out[i].count < 0 ||
            __builtin_mul_overflow((size_t)out[i].count, sizeof(float), &bytes) ||
            bytes > SIZE_MAX / 4 - *cursor) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "a tensor is too large");
        }
        *cursor += wefti_align_up(bytes, ALIGNMENT);
        tensors[i].dtype = WEFT_DTYPE_F32;
        tensors[i].data = NULL;
    }
    return WEFT_OK;
}

/* Parts of equal size in which samples are computed: as few as fit into the cache. 1: they are not
 * independent, or few. */
static int64_t count_parts(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                           uint32_t *out_inputs, uint32_t *out_outputs)
{
    const size_t rows = sizeof(by_sample) / sizeof(by_sample[0]);
    const int64_t samples =
        node->input_count > 0 && node->inputs[0].rank > 1 ? node->inputs[0].dims[0] : 1;
    const int64_t axis = weft_node_attr_int(node, "axis", -1);
    double bytes = 0;
    size_t row = 0;
    while (row < rows && (strcmp(by_sample[row].domain, node->domain) != 0 ||
                          strcmp(by_sample[row].op, node->op) != 0)) {
        row++;
    }
    if (row == rows || samples < 2 || (axis < 0 ? axis + node->inputs[0].rank : axis) < 1) {
        return 1;
    }
    *out_inputs = by_sample[row].inputs;
    *out_outputs = by_sample[row].outputs;
    for (uint32_t i = 0; i < node->input_count + node->output_count; i++) {
        const uint32_t k = i < node->input_count ? i : i - node->input_count;
        const weft_tensor_desc_t *t = i < node->input_count ? &node->inputs[k] : &node->outputs[k];
        const uint32_t mask = i < node->input_count ? *out_inputs : *out_outputs;
        const bool divided = k < 32 && (mask >> k & 1u) != 0;
        if (t->dtype == WEFT_DTYPE_NONE || (!divided && i < node->input_count)) {
            continue;
        }
        if (!divided || t->rank < 1 || t->dims[0] != samples || weft_tensor_elem_count(t) < 0) {
            return 1;
        }
        bytes += (double)weft_tensor_elem_count(t) * sizeof(float);
    }
    const double room = (double)CACHE_BYTES * wefti_kernel_threads(env);
    int64_t parts = bytes > room ? (int64_t)(bytes / room) + 1 : 1;
    while (parts < samples && samples % parts != 0) {
        parts++;
    }
    return parts < samples ? parts : bytes > room ? samples : 1;
}

/* Tensors of mask become their first part. */
static void divide(weft_tensor_desc_t *tensors, uint32_t count, uint32_t mask, int64_t parts,
                   tensor_t *out)
{
    for (uint32_t i = 0; i < count && i < 32; i++) {
        if (parts > 1 && (mask >> i & 1u) != 0 && tensors[i].dtype != WEFT_DTYPE_NONE) {
            tensors[i].dims[0] /= parts;
            tensors[i].data = NULL;
            out[i].step = (size_t)weft_tensor_elem_count(&tensors[i]) *
                          weft_dtype_size_bytes(tensors[i].dtype);
        }
    }
}

typedef enum { AS_THEY_ARE, BY_PARTS, WHOLE, WAYS } way_t;

/* UNSUPPORTED also where the kernel is not listed. */
static weft_status_t find_stays(const weft_node_desc_t *node, uint32_t *out_inputs,
                                uint32_t *out_outputs)
{
    for (size_t i = 0; i < WEFTI_COUNT(as_they_are); i++) {
        if (strcmp(as_they_are[i].domain, node->domain) == 0 &&
            strcmp(as_they_are[i].op, node->op) == 0) {
            *out_inputs = as_they_are[i].inputs;
            *out_outputs = as_they_are[i].outputs;
            return WEFT_OK;
        }
    }
    return WEFT_ERR_UNSUPPORTED;
}

static weft_status_t prepare_widened(const weft_kernel_t *kernel, const weft_node_desc_t *node,
                                     const weft_kernel_env_t *env, way_t way, void **out_state,
                                     size_t *out_scratch_bytes)
{
    uint32_t in_mask = 0, out_mask = 0, in_stays = 0, out_stays = 0;
    if (way == AS_THEY_ARE) {
        WEFT_RETURN_IF_ERROR(find_stays(node, &in_stays, &out_stays));
    }
    const size_t count = (size_t)node->input_count + node->output_count;
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    weft_node_desc_t wide = *node;
    size_t bytes = 0, cursor = wefti_align_up(count * sizeof(void *), ALIGNMENT);
    state_t *s = wefti_state_alloc(sizeof(*s) + count * sizeof(tensor_t));
    weft_tensor_desc_t *tensors = wefti_alloc(NULL, (count + 1) * sizeof(*tensors));
    if (s == NULL || tensors == NULL) {
        goto done;
    }
    s->kernel = kernel;
    s->isa = wefti_kernel_isa(env);
    s->threads = wefti_kernel_threads(env);
    s->input_count = node->input_count;
    s->output_count = node->output_count;
    s->inputs = (tensor_t *)(s + 1);
    s->outputs = s->inputs + node->input_count;
    memcpy(tensors, node->inputs, node->input_count * sizeof(*tensors));
    memcpy(tensors + node->input_count, node->outputs, node->output_count * sizeof(*tensors));
    wide.inputs = tensors;
    wide.outputs = tensors + node->input_count;
    s->parts = way == BY_PARTS ? count_parts(node, env, &in_mask, &out_mask) : 1;
    divide(tensors, node->input_count, in_mask, s->parts, s->inputs);
    divide(tensors + node->input_count, node->output_count, out_mask, s->parts, s->outputs);
    WEFT_TRY(status, place(tensors, node->input_count, in_stays, s->inputs, &cursor), done);
    WEFT_TRY(status,
             place(tensors + node->input_count, node->output_count, out_stays, s->outputs, &cursor),
             done);
    s->scratch_offset = cursor;
    WEFT_TRY(status, kernel->prepare(&wide, env, &s->state, &bytes), done);
    const char *name = kernel->implementation != NULL ? kernel->implementation(s->state) : NULL;
    snprintf(s->name, sizeof(s->name), "%s in f32", name != NULL ? name : "built in");
    *out_state = s;
    *out_scratch_bytes = cursor + bytes;
    s = NULL;
done:
    wefti_free(NULL, tensors);
    wefti_state_free(s);
    return status;
}

weft_status_t wefti_prepare_kernel(const weft_kernel_t *kernel, const weft_node_desc_t *node,
                                   const weft_kernel_env_t *env, const weft_kernel_t **out_kernel,
                                   void **out_state, size_t *out_scratch_bytes)
{
    char message[200];
    *out_kernel = kernel;
    weft_status_t status = kernel->prepare(node, env, out_state, out_scratch_bytes);
    if (status != WEFT_ERR_UNSUPPORTED || (!has_halves(node->inputs, node->input_count) &&
                                           !has_halves(node->outputs, node->output_count))) {
        return status;
    }
    snprintf(message, sizeof(message), "%s", weft_last_error());
    for (way_t way = AS_THEY_ARE; way < WAYS; way++) {
        if (prepare_widened(kernel, node, env, way, out_state, out_scratch_bytes) >= 0) {
            *out_kernel = &widened;
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_UNSUPPORTED, "%s", message);
}

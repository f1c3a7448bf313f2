/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of products and convolutions, family against family, through the registry as a
 * session uses them: one line of JSON each, one thread.
 *
 * usage: bench_kernels [REPEATS]
 */
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/registry.h>

#include "runtime/base/sync.h"

enum { WARMUP = 3, TENSORS = 4 };

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (p == NULL) {
        fputs("bench_kernels: out of memory\n", stderr);
        exit(2);
    }
    memset(p, 0, bytes + 1);
    return p;
}

static float *numbers(const weft_tensor_desc_t *desc)
{
    const int64_t count = weft_tensor_elem_count(desc);
    float *p = zeroed((size_t)count * sizeof *p);
    uint32_t random = 1;
    for (int64_t i = 0; i < count; i++) {
        random = random * 1664525u + 1013904223u;
        p[i] = (float)(random >> 8) / 8388608.0f - 1.0f;
    }
    return p;
}

static weft_tensor_desc_t tensor(uint32_t rank, const int64_t *dims, weft_layout_t layout)
{
    weft_tensor_desc_t desc = {.dtype = WEFT_DTYPE_F32, .rank = rank, .layout = layout};
    memcpy(desc.dims, dims, rank * sizeof *dims);
    return desc;
}

static int compare(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

/* Times node by family ("exact": the kernel for every choice). */
static void bench(const weft_registry_t *registry, const char *label, const char *family,
                  const weft_node_desc_t *node, double flops, int repeats)
{
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = wefti_isa_detect();
    const bool exact = strcmp(family, "exact") == 0;
    const weft_kernel_t *kernel =
        weft_registry_find_kernel_of(registry, exact ? NULL : family, node->domain, node->op, 13);
    const void *inputs[TENSORS];
    void *outputs[TENSORS] = {NULL}, *state = NULL;
    uint64_t *ns = zeroed((size_t)repeats * sizeof *ns);
    size_t bytes = 0;
    if (kernel->prepare(node, &env, &state, &bytes) != WEFT_OK) {
        printf("{\"name\": \"%s\", \"by\": \"%s\", \"declined\": \"%s\"}\n", label, family,
               weft_last_error());
        free(ns);
        return;
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        inputs[i] = numbers(&node->inputs[i]);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i].dtype != WEFT_DTYPE_NONE) {
            outputs[i] = numbers(&node->outputs[i]);
        }
    }
    const weft_kernel_call_t call = {state, inputs, outputs, zeroed(bytes)};
    for (int i = -WARMUP; i < repeats; i++) {
        const uint64_t begin = wefti_now_ns();
        kernel->run(&call);
        if (i >= 0) {
            ns[i] = wefti_now_ns() - begin;
        }
    }
    qsort(ns, (size_t)repeats, sizeof *ns, compare);
    printf("{\"name\": \"%s\", \"by\": \"%s\", \"implementation\": \"%s\", \"dtype\": \"f32\", "
           "\"iterations\": %d, \"min_ns\": %llu, \"median_ns\": %llu, \"p90_ns\": %llu, "
           "\"gflops\": %.1f}\n",
           label, family, kernel->implementation(state), repeats, (unsigned long long)ns[0],
           (unsigned long long)ns[repeats / 2], (unsigned long long)ns[repeats * 9 / 10],
           flops / (double)ns[0]);
    fflush(stdout);
    kernel->destroy(state);
    for (uint32_t i = 0; i < node->input_count; i++) {
        free((void *)(uintptr_t)inputs[i]);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        free(outputs[i]);
    }
    free(call.scratch);
    free(ns);
}

static void both(const weft_registry_t *registry, const char *label, const weft_node_desc_t *node,
                 double flops, int repeats)
{
    bench(registry, label, "exact", node, flops, repeats);
    bench(registry, label, "onednn", node, flops, repeats);
}

static void product(const weft_registry_t *registry, const char *label, int64_t m, int64_t n,
                    int64_t k, bool ta, bool tb, int repeats)
{
    const weft_tensor_desc_t in[3] = {
        tensor(2, (int64_t[]){ta ? k : m, ta ? m : k}, WEFT_LAYOUT_PLAIN),
        tensor(2, (int64_t[]){tb ? n : k, tb ? k : n}, WEFT_LAYOUT_PLAIN),
        tensor(1, (int64_t[]){n}, WEFT_LAYOUT_PLAIN)};
    weft_tensor_desc_t out = tensor(2, (int64_t[]){m, n}, WEFT_LAYOUT_PLAIN);
    const weft_attr_t attrs[2] = {{.name = "transA", .type = WEFT_ATTR_TYPE_INT, .i = ta},
                                  {.name = "transB", .type = WEFT_ATTR_TYPE_INT, .i = tb}};
    const weft_node_desc_t node = {.domain = "",
                                   .op = "Gemm",
                                   .version = 13,
                                   .name = label,
                                   .input_count = tb ? 3 : 2, /* forward has a bias */
                                   .inputs = in,
                                   .output_count = 1,
                                   .outputs = &out,
                                   .attr_count = 2,
                                   .attrs = attrs};
    both(registry, label, &node, 2.0 * (double)m * (double)n * (double)k, repeats);
}

typedef struct conv {
    const char *name;
    int64_t images, in, out, size, kernel, pad;
    bool first; /* of the network: no gradient of the input */
} conv_t;

static void convolution(const weft_registry_t *registry, const conv_t *c, weft_layout_t layout,
                        int repeats)
{
    const int64_t size = c->size + 2 * c->pad - c->kernel + 1;
    const int64_t pads[4] = {c->pad, c->pad, c->pad, c->pad};
    const weft_tensor_desc_t x = tensor(4, (int64_t[]){c->images, c->in, c->size, c->size}, layout);
    const weft_tensor_desc_t w =
        tensor(4, (int64_t[]){c->out, c->in, c->kernel, c->kernel}, WEFT_LAYOUT_PLAIN);
    const weft_tensor_desc_t b = tensor(1, (int64_t[]){c->out}, WEFT_LAYOUT_PLAIN);
    weft_tensor_desc_t y = tensor(4, (int64_t[]){c->images, c->out, size, size}, layout);
    const weft_tensor_desc_t in[3] = {x, w, b}, grad_in[3] = {y, x, w};
    weft_tensor_desc_t grad_out[3] = {x, w, b};
    const weft_attr_t attr = {
        .name = "pads", .type = WEFT_ATTR_TYPE_INTS, .count = 4, .ints = pads};
    const double flops =
        2.0 * (double)(c->images * c->out * size * size) * (double)(c->in * c->kernel * c->kernel);
    const char *in_layout = layout == WEFT_LAYOUT_PLAIN ? "plain" : "channels-last";
    char label[96];
    weft_node_desc_t node = {.domain = "",
                             .op = "Conv",
                             .version = 11,
                             .name = label,
                             .input_count = 3,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &y,
                             .attr_count = 1,
                             .attrs = &attr};
    snprintf(label, sizeof label, "%s forward %s", c->name, in_layout);
    both(registry, label, &node, flops, repeats);
    node.domain = "com.microsoft";
    node.op = "ConvGrad";
    node.inputs = grad_in;
    node.outputs = grad_out;
    node.output_count = 3;
    grad_out[0].dtype = c->first ? WEFT_DTYPE_NONE : WEFT_DTYPE_F32;
    snprintf(label, sizeof label, "%s gradients %s", c->name, in_layout);
    both(registry, label, &node, c->first ? flops : 2 * flops, repeats);
}

int main(int argc, char **argv)
{
    const int repeats = argc > 1 ? atoi(argv[1]) : 41;
    weft_registry_t *registry = NULL;
    static const conv_t convs[] = {
        {"lenet conv1 1->6 28x28 5x5", 64, 1, 6, 28, 5, 2, true},
        {"lenet conv2 6->16 14x14 5x5", 64, 6, 16, 14, 5, 0, false},
        {"resnet 64->64 56x56 3x3 batch 4", 4, 64, 64, 56, 3, 1, false},
    };
    if (repeats < 1 || weft_registry_create(NULL, &registry) != WEFT_OK) {
        fputs("usage: bench_kernels [REPEATS]\n", stderr);
        return 2;
    }
    omp_set_num_threads(1);
    product(registry, "mlp 784->512 forward", 64, 512, 784, false, true, repeats);
    product(registry, "mlp 784->512 dW", 512, 784, 64, true, false, repeats);
    product(registry, "mlp 512->256 forward", 64, 256, 512, false, true, repeats);
    product(registry, "mlp 512->256 dX", 64, 512, 256, false, false, repeats);
    product(registry, "mlp 512->256 dW", 256, 512, 64, true, false, repeats);
    product(registry, "mlp 256->10 forward", 64, 10, 256, false, true, repeats);
    product(registry, "mlp 256->10 dX", 64, 256, 10, false, false, repeats);
    product(registry, "mlp 256->10 dW", 10, 256, 64, true, false, repeats);
    product(registry, "lenet 400->120 forward", 64, 120, 400, false, true, repeats);
    product(registry, "lenet 400->120 dW", 120, 400, 64, true, false, repeats);
    product(registry, "square 1024", 1024, 1024, 1024, false, false, repeats);
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++) {
        convolution(registry, &convs[i], WEFT_LAYOUT_PLAIN, repeats);
        convolution(registry, &convs[i], WEFT_LAYOUT_CHANNELS_LAST, repeats);
    }
    weft_registry_destroy(registry);
    return 0;
}

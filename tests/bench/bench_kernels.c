/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of products and convolutions, family against family, through the registry as a
 * session uses them: one line of JSON each, one thread.
 *
 * usage: bench_kernels [REPEATS [NETWORK [channels-last]]]
 *
 * NETWORK (resnet50, resnet18, mobilenet_v2, efficientnet, vgg16, lenet): the convolutions of that
 * network only, each pass alone with its share of all of them. Exact kernels have plain activations,
 * unless the last argument is there, and oneDNN channels-last ones.
 */
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

/* Times node by family ("exact": the kernel for every choice). Returns the fastest run in ns. */
static uint64_t bench(const weft_registry_t *registry, const char *label, const char *family,
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
        return 0;
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
           "\"gflops\": %.1f, \"scratch_bytes\": %zu}\n",
           label, family, kernel->implementation(state), repeats, (unsigned long long)ns[0],
           (unsigned long long)ns[repeats / 2], (unsigned long long)ns[repeats * 9 / 10],
           flops / (double)ns[0], bytes);
    fflush(stdout);
    const uint64_t fastest = ns[0];
    kernel->destroy(state);
    for (uint32_t i = 0; i < node->input_count; i++) {
        free((void *)(uintptr_t)inputs[i]);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        free(outputs[i]);
    }
    free(call.scratch);
    free(ns);
    return fastest;
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
    const char *network;
    int count; /* of this shape in the network */
    int64_t images, in, out, size, kernel, stride, pad;
    bool depthwise, first; /* first of the network: no gradient of the input */
} conv_t;

static const conv_t convs[] = {
    {"resnet50", 1, 8, 3, 64, 224, 7, 2, 3, false, true},
    {"resnet50", 1, 8, 64, 64, 56, 1, 1, 0, false, false},
    {"resnet50", 3, 8, 64, 64, 56, 3, 1, 1, false, false},
    {"resnet50", 4, 8, 64, 256, 56, 1, 1, 0, false, false},
    {"resnet50", 2, 8, 256, 64, 56, 1, 1, 0, false, false},
    {"resnet50", 1, 8, 256, 128, 56, 1, 1, 0, false, false},
    {"resnet50", 1, 8, 128, 128, 56, 3, 2, 1, false, false},
    {"resnet50", 4, 8, 128, 512, 28, 1, 1, 0, false, false},
    {"resnet50", 1, 8, 256, 512, 56, 1, 2, 0, false, false},
    {"resnet50", 3, 8, 512, 128, 28, 1, 1, 0, false, false},
    {"resnet50", 3, 8, 128, 128, 28, 3, 1, 1, false, false},
    {"resnet50", 1, 8, 512, 256, 28, 1, 1, 0, false, false},
    {"resnet50", 1, 8, 256, 256, 28, 3, 2, 1, false, false},
    {"resnet50", 6, 8, 256, 1024, 14, 1, 1, 0, false, false},
    {"resnet50", 1, 8, 512, 1024, 28, 1, 2, 0, false, false},
    {"resnet50", 5, 8, 1024, 256, 14, 1, 1, 0, false, false},
    {"resnet50", 5, 8, 256, 256, 14, 3, 1, 1, false, false},
    {"resnet50", 1, 8, 1024, 512, 14, 1, 1, 0, false, false},
    {"resnet50", 1, 8, 512, 512, 14, 3, 2, 1, false, false},
    {"resnet50", 3, 8, 512, 2048, 7, 1, 1, 0, false, false},
    {"resnet50", 1, 8, 1024, 2048, 14, 1, 2, 0, false, false},
    {"resnet50", 2, 8, 2048, 512, 7, 1, 1, 0, false, false},
    {"resnet50", 2, 8, 512, 512, 7, 3, 1, 1, false, false},
    {"resnet18", 1, 8, 3, 64, 224, 7, 2, 3, false, true},
    {"resnet18", 4, 8, 64, 64, 56, 3, 1, 1, false, false},
    {"resnet18", 1, 8, 64, 128, 56, 3, 2, 1, false, false},
    {"resnet18", 1, 8, 64, 128, 56, 1, 2, 0, false, false},
    {"resnet18", 3, 8, 128, 128, 28, 3, 1, 1, false, false},
    {"resnet18", 1, 8, 128, 256, 28, 3, 2, 1, false, false},
    {"resnet18", 1, 8, 128, 256, 28, 1, 2, 0, false, false},
    {"resnet18", 3, 8, 256, 256, 14, 3, 1, 1, false, false},
    {"resnet18", 1, 8, 256, 512, 14, 3, 2, 1, false, false},
    {"resnet18", 1, 8, 256, 512, 14, 1, 2, 0, false, false},
    {"resnet18", 3, 8, 512, 512, 7, 3, 1, 1, false, false},
    {"mobilenet_v2", 1, 8, 3, 32, 224, 3, 2, 1, false, true},
    {"mobilenet_v2", 1, 8, 32, 32, 112, 3, 1, 1, true, false},
    {"mobilenet_v2", 1, 8, 32, 16, 112, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 16, 96, 112, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 96, 96, 112, 3, 2, 1, true, false},
    {"mobilenet_v2", 1, 8, 96, 24, 56, 1, 1, 0, false, false},
    {"mobilenet_v2", 2, 8, 24, 144, 56, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 144, 144, 56, 3, 1, 1, true, false},
    {"mobilenet_v2", 1, 8, 144, 24, 56, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 144, 144, 56, 3, 2, 1, true, false},
    {"mobilenet_v2", 1, 8, 144, 32, 28, 1, 1, 0, false, false},
    {"mobilenet_v2", 3, 8, 32, 192, 28, 1, 1, 0, false, false},
    {"mobilenet_v2", 2, 8, 192, 192, 28, 3, 1, 1, true, false},
    {"mobilenet_v2", 2, 8, 192, 32, 28, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 192, 192, 28, 3, 2, 1, true, false},
    {"mobilenet_v2", 1, 8, 192, 64, 14, 1, 1, 0, false, false},
    {"mobilenet_v2", 4, 8, 64, 384, 14, 1, 1, 0, false, false},
    {"mobilenet_v2", 4, 8, 384, 384, 14, 3, 1, 1, true, false},
    {"mobilenet_v2", 3, 8, 384, 64, 14, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 384, 96, 14, 1, 1, 0, false, false},
    {"mobilenet_v2", 3, 8, 96, 576, 14, 1, 1, 0, false, false},
    {"mobilenet_v2", 2, 8, 576, 576, 14, 3, 1, 1, true, false},
    {"mobilenet_v2", 2, 8, 576, 96, 14, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 576, 576, 14, 3, 2, 1, true, false},
    {"mobilenet_v2", 1, 8, 576, 160, 7, 1, 1, 0, false, false},
    {"mobilenet_v2", 3, 8, 160, 960, 7, 1, 1, 0, false, false},
    {"mobilenet_v2", 3, 8, 960, 960, 7, 3, 1, 1, true, false},
    {"mobilenet_v2", 2, 8, 960, 160, 7, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 960, 320, 7, 1, 1, 0, false, false},
    {"mobilenet_v2", 1, 8, 320, 1280, 7, 1, 1, 0, false, false},
    /* Those of EfficientNet-B0 that are not among MobileNet's. */
    {"efficientnet", 1, 8, 144, 144, 56, 5, 2, 2, true, false},
    {"efficientnet", 1, 8, 240, 240, 28, 5, 1, 2, true, false},
    {"efficientnet", 1, 8, 240, 240, 28, 3, 2, 1, true, false},
    {"efficientnet", 3, 8, 480, 480, 14, 5, 1, 2, true, false},
    {"efficientnet", 2, 8, 672, 672, 14, 5, 1, 2, true, false},
    {"efficientnet", 1, 8, 672, 672, 14, 5, 2, 2, true, false},
    {"efficientnet", 3, 8, 1152, 1152, 7, 5, 1, 2, true, false},
    {"vgg16", 1, 8, 3, 64, 224, 3, 1, 1, false, true},
    {"vgg16", 1, 8, 64, 64, 224, 3, 1, 1, false, false},
    {"vgg16", 1, 8, 64, 128, 112, 3, 1, 1, false, false},
    {"vgg16", 1, 8, 128, 128, 112, 3, 1, 1, false, false},
    {"vgg16", 1, 8, 128, 256, 56, 3, 1, 1, false, false},
    {"vgg16", 2, 8, 256, 256, 56, 3, 1, 1, false, false},
    {"vgg16", 1, 8, 256, 512, 28, 3, 1, 1, false, false},
    {"vgg16", 2, 8, 512, 512, 28, 3, 1, 1, false, false},
    {"vgg16", 3, 8, 512, 512, 14, 3, 1, 1, false, false},
    {"lenet", 1, 64, 1, 6, 28, 5, 1, 2, false, true},
    {"lenet", 1, 64, 6, 16, 14, 5, 1, 0, false, false},
};
enum { CONVS = sizeof convs / sizeof *convs, PASSES = 3 };
static const char *const pass_names[PASSES] = {"forward", "dX", "dW"};

/* Fastest runs in ns of each pass; dX is what the gradients take more than dW alone. */
static void convolution(const weft_registry_t *registry, const conv_t *c, const char *family,
                        weft_layout_t layout, int repeats, double ns[PASSES])
{
    const int64_t size = (c->size + 2 * c->pad - c->kernel) / c->stride + 1;
    const int64_t pads[4] = {c->pad, c->pad, c->pad, c->pad}, strides[2] = {c->stride, c->stride};
    const int64_t groups = c->depthwise ? c->in : 1;
    const weft_tensor_desc_t x = tensor(4, (int64_t[]){c->images, c->in, c->size, c->size}, layout);
    const weft_tensor_desc_t w =
        tensor(4, (int64_t[]){c->out, c->in / groups, c->kernel, c->kernel}, WEFT_LAYOUT_PLAIN);
    const weft_tensor_desc_t b = tensor(1, (int64_t[]){c->out}, WEFT_LAYOUT_PLAIN);
    weft_tensor_desc_t y = tensor(4, (int64_t[]){c->images, c->out, size, size}, layout);
    const weft_tensor_desc_t in[3] = {x, w, b}, grad_in[3] = {y, x, w};
    weft_tensor_desc_t grad_out[3] = {x, w, b};
    const weft_attr_t attrs[] = {
        {.name = "pads", .type = WEFT_ATTR_TYPE_INTS, .count = 4, .ints = pads},
        {.name = "strides", .type = WEFT_ATTR_TYPE_INTS, .count = 2, .ints = strides},
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = groups}};
    const double flops = 2.0 * (double)(c->images * c->out * size * size) *
                         (double)(c->in / groups * c->kernel * c->kernel);
    char shape[96], label[160];
    snprintf(shape, sizeof shape, "%s %lld->%lld %lldx%lld %lldx%lld/%lld%s batch %lld %s",
             c->network, (long long)c->in, (long long)c->out, (long long)c->size,
             (long long)c->size, (long long)c->kernel, (long long)c->kernel, (long long)c->stride,
             c->depthwise ? " depthwise" : "", (long long)c->images,
             layout == WEFT_LAYOUT_PLAIN ? "plain" : "channels-last");
    weft_node_desc_t node = {.domain = "",
                             .op = "Conv",
                             .version = 11,
                             .name = label,
                             .input_count = 3,
                             .inputs = in,
                             .output_count = 1,
                             .outputs = &y,
                             .attr_count = 3,
                             .attrs = attrs};
    snprintf(label, sizeof label, "%s forward", shape);
    ns[0] = (double)bench(registry, label, family, &node, flops, repeats);
    node.domain = "com.microsoft";
    node.op = "ConvGrad";
    node.inputs = grad_in;
    node.outputs = grad_out;
    node.output_count = 3;
    grad_out[0].dtype = WEFT_DTYPE_NONE;
    snprintf(label, sizeof label, "%s dW", shape);
    ns[2] = (double)bench(registry, label, family, &node, flops, repeats);
    ns[1] = 0;
    if (!c->first) {
        grad_out[0].dtype = WEFT_DTYPE_F32;
        snprintf(label, sizeof label, "%s dX and dW", shape);
        ns[1] = (double)bench(registry, label, family, &node, 2 * flops, repeats) - ns[2];
    }
}

/* A line per shape and pass with its rate and its share of all convolutions of the network. */
static void network(const weft_registry_t *registry, const char *name, const char *family,
                    weft_layout_t layout, int repeats)
{
    static double ns[CONVS][PASSES];
    double total = 0, all_flops = 0, pass_ns[PASSES] = {0}, pass_flops[PASSES] = {0};
    for (int i = 0; i < CONVS; i++) {
        if (strcmp(convs[i].network, name) == 0) {
            convolution(registry, &convs[i], family, layout, repeats, ns[i]);
            total += convs[i].count * (ns[i][0] + ns[i][1] + ns[i][2]);
        }
    }
    for (int i = 0; i < CONVS; i++) {
        const conv_t *c = &convs[i];
        const int64_t size = (c->size + 2 * c->pad - c->kernel) / c->stride + 1;
        const double flops = 2.0 * (double)(c->images * c->out * size * size) *
                             (double)((c->depthwise ? 1 : c->in) * c->kernel * c->kernel);
        for (int p = 0; p < PASSES && strcmp(c->network, name) == 0; p++) {
            if (ns[i][p] > 0) {
                printf("{\"network\": \"%s\", \"by\": \"%s\", \"conv\": \"%lld->%lld %lld "
                       "%lldx%lld/%lld%s\", \"pass\": \"%s\", \"count\": %d, \"us\": %.0f, "
                       "\"gflops\": %.1f, \"share\": %.3f}\n",
                       name, family, (long long)c->in, (long long)c->out, (long long)c->size,
                       (long long)c->kernel, (long long)c->kernel, (long long)c->stride,
                       c->depthwise ? " depthwise" : "", pass_names[p], c->count, ns[i][p] / 1e3,
                       flops / ns[i][p], c->count * ns[i][p] / total);
                pass_ns[p] += c->count * ns[i][p];
                pass_flops[p] += c->count * flops;
            }
        }
    }
    for (int p = 0; p < PASSES; p++) {
        all_flops += pass_flops[p];
        printf("{\"network\": \"%s\", \"by\": \"%s\", \"all\": \"%s\", \"ms\": %.2f, \"gflops\": "
               "%.1f}\n",
               name, family, pass_names[p], pass_ns[p] / 1e6, pass_flops[p] / pass_ns[p]);
    }
    printf("{\"network\": \"%s\", \"by\": \"%s\", \"all\": \"step\", \"ms\": %.2f, \"gflops\": "
           "%.1f}\n",
           name, family, total / 1e6, all_flops / total);
}

int main(int argc, char **argv)
{
    const int repeats = argc > 1 ? atoi(argv[1]) : 41;
    weft_registry_t *registry = NULL;
    if (repeats < 1 || weft_registry_create(NULL, &registry) != WEFT_OK) {
        fputs("usage: bench_kernels [REPEATS [NETWORK [channels-last]]]\n", stderr);
        return 2;
    }
    if (argc > 2) {
        network(registry, argv[2], "exact",
                argc > 3 ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN, repeats);
        network(registry, argv[2], "onednn", WEFT_LAYOUT_CHANNELS_LAST, repeats);
        weft_registry_destroy(registry);
        return 0;
    }
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
    network(registry, "lenet", "exact", WEFT_LAYOUT_PLAIN, repeats);
    network(registry, "lenet", "exact", WEFT_LAYOUT_CHANNELS_LAST, repeats);
    network(registry, "lenet", "onednn", WEFT_LAYOUT_PLAIN, repeats);
    network(registry, "lenet", "onednn", WEFT_LAYOUT_CHANNELS_LAST, repeats);
    weft_registry_destroy(registry);
    return 0;
}

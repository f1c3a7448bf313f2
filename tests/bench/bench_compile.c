/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the compiler takes for large graphs: chains of layers of two parameters each, up to
 * NODES operators in the compiled graph (forward, backward, collectives, updates), for two ranks.
 * One line of JSON for each size: nodes, gradients, seconds to compile (planner and verifier
 * included), to save and to load and verify again; medians of five.
 *
 * usage: bench_compile [POLICY [NODES..]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/compile.h>

#include "ops/plan/plan.h"
#include "runtime/base/sync.h"
#include "tests/graph/support_layers.h"
#include "tests/support/support.h"

enum { REPEATS = 5, TANHS = 5, NODES_PER_LAYER = 20 };

typedef struct times {
    double compile, save, load;
} times_t;

static void check(weft_status_t status, const char *what)
{
    if (status != WEFT_OK) {
        fprintf(stderr, "bench_compile: %s: %s\n", what, weft_last_error());
        exit(2);
    }
}

static double seconds_since(uint64_t start)
{
    return (double)(wefti_now_ns() - start) * 1e-9;
}

static times_t measure(const char *model, const char *policy, uint32_t *out_kernels,
                       uint32_t *out_collectives)
{
    times_t times;
    char saved[] = "/tmp/bench_compile_XXXXXX";
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_t *plan = NULL, *loaded = NULL;
    int fd = mkstemp(saved);
    check(fd < 0 ? WEFT_ERR_SYSTEM : WEFT_OK, "temporary file");
    close(fd);
    params.model_path = model;
    params.world_size = 2;
    params.batch = 4;
    params.bucket = policy;
    uint64_t start = wefti_now_ns();
    check(weft_compile(&params, &plan), "compile");
    times.compile = seconds_since(start);
    start = wefti_now_ns();
    check(weft_plan_save(plan, saved), "save");
    times.save = seconds_since(start);
    start = wefti_now_ns();
    check(weft_plan_load(saved, NULL, &loaded), "load");
    times.load = seconds_since(start);
    *out_kernels = plan->kernel_count;
    *out_collectives = plan->collective_count;
    weft_plan_release(plan);
    weft_plan_release(loaded);
    unlink(saved);
    return times;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, REPEATS, sizeof *values, compare);
    return values[REPEATS / 2];
}

static void bench(uint32_t nodes, const char *policy)
{
    layers_shape_t shape = {.layers = nodes / NODES_PER_LAYER > 0 ? nodes / NODES_PER_LAYER : 1,
                            .width = 8,
                            .tanhs = TANHS};
    char model[] = "/tmp/bench_model_XXXXXX";
    double compile[REPEATS], save[REPEATS], load[REPEATS];
    uint32_t kernels = 0, collectives = 0;
    int fd = mkstemp(model);
    check(fd < 0 ? WEFT_ERR_SYSTEM : WEFT_OK, "temporary file");
    close(fd);
    wire_t file = onnx_layers(&shape);
    write_file(model, file.data, file.size);
    wire_free(&file);
    for (int i = 0; i < REPEATS; i++) {
        times_t times = measure(model, policy, &kernels, &collectives);
        compile[i] = times.compile;
        save[i] = times.save;
        load[i] = times.load;
    }
    unlink(model);
    printf("{\"policy\": \"%s\", \"layers\": %u, \"gradients\": %u, \"kernels\": %u, "
           "\"collectives\": %u, \"compile_s\": %.4f, \"save_s\": %.4f, \"load_s\": %.4f}\n",
           policy, shape.layers, 2 * shape.layers, kernels, collectives, median(compile),
           median(save), median(load));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *policy = argc > 1 ? argv[1] : "auto";
    if (argc <= 2) {
        bench(10000, policy);
        bench(100000, policy);
    }
    for (int i = 2; i < argc; i++) {
        bench((uint32_t)strtoul(argv[i], NULL, 10), policy);
    }
    return 0;
}

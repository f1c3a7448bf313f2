/* SPDX-License-Identifier: Apache-2.0 */
/* The options of compiling, for `weft compile` and `weft run MODEL.onnx`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tool.h"

enum {
    KEY_FIRST = 300,
    KEY_WORLD = KEY_FIRST,
    KEY_BATCH,
    KEY_SHAPE,
    KEY_LOSS,
    KEY_OPTIMIZER,
    KEY_LR,
    KEY_MOMENTUM,
    KEY_WEIGHT_DECAY,
    KEY_BUCKET,
    KEY_COSTS,
    KEY_TOPOLOGY,
    KEY_SHARD_OPTIMIZER,
    KEY_DECOUPLE,
    KEY_ACCUMULATE,
    KEY_GLOBAL_MICRO_BATCHES,
    KEY_WIRE,
    KEY_CLIP,
    KEY_GRADS,
    KEY_IN_FLIGHT,
    KEY_ARENA_LIMIT,
    KEY_INFER,
    KEY_SPLIT_BATCH,
    KEY_OPS,
    KEY_KERNELS,
    KEY_END,
};

const option_def_t wefti_compile_option_defs[] = {
    {KEY_WORLD, "world", "N", "ranks the plan is for"},
    {KEY_BATCH, "batch", "B", "samples per rank per step (per micro-batch)"},
    {KEY_SHAPE, "shape", "NAME=D,D,..", "shape of an input (repeatable)"},
    {KEY_LOSS, "loss", "NAME", "the loss output, where there are several loss nodes"},
    {KEY_OPTIMIZER, "optimizer", "NAME", "sgd, momentum (default) or adam"},
    {KEY_LR, "lr", "X", "learning rate (default 0.05, adam 0.001)"},
    {KEY_MOMENTUM, "momentum", "X", "momentum (default 0.9)"},
    {KEY_WEIGHT_DECAY, "weight-decay", "X", "weight decay (default 0)"},
    {KEY_BUCKET, "bucket", "POLICY",
     "auto[:CAP] (default auto: the fewest buckets within 0.1 % "
     "of the predicted optimum), mgwfbp[:CAP], "
     "bytes:25M[,time:5ms], "
     "index:0,4,9, percent:60,40, one or none"},
    {KEY_COSTS, "costs", "COSTS.json", "measured costs of collectives, by weft tune"},
    {KEY_TOPOLOGY, "topology", "FILE.json", "hosts, ranks and links that the plan is for"},
    {KEY_SHARD_OPTIMIZER, "shard-optimizer", NULL,
     "each rank updates its shard of the weights and keeps only "
     "that optimizer state"},
    {KEY_DECOUPLE, "decouple", NULL,
     "gather updated weights under the next forward pass "
     "(implies --shard-optimizer)"},
    {KEY_ACCUMULATE, "accumulate", "K", "micro-batches of a rank per step (default 1)"},
    {KEY_GLOBAL_MICRO_BATCHES, "global-micro-batches", "V",
     "micro-batches of all ranks per step: the same bits for one "
     "rank and any N with V / N a power of two"},
    {KEY_WIRE, "wire", "TYPE",
     "type in which gradients travel: f32 (default) or bf16, to "
     "which a rank's sum is rounded"},
    {KEY_CLIP, "clip", "NORM", "scale gradients down where their global norm is above this"},
    {KEY_GRADS, "grads", "MAP.json", "which tensors of the graph are the gradients of what"},
    {KEY_IN_FLIGHT, "in-flight", "K", "most collectives issued and not yet waited for"},
    {KEY_ARENA_LIMIT, "arena-limit", "BYTES", "most bytes of the arena (K, M, G)"},
    {KEY_INFER, "infer", NULL, "no training: run the graph as it is, with its collectives"},
    {KEY_SPLIT_BATCH, "split-batch", NULL,
     "with --infer: --batch is that of all ranks; rank 0's is scattered, "
     "its results are gathered"},
    {KEY_OPS, "ops", "OPS.json", "declare operators that Weft does not know"},
    {KEY_KERNELS, "kernels", "LIB.so", "load operators and kernels from a plugin (repeatable)"},
    {0, NULL, NULL, NULL},
};

int wefti_compile_options_init(compile_options_t *options)
{
    memset(options, 0, sizeof *options);
    options->params.struct_size = sizeof options->params;
    options->params.shapes = options->shapes;
    weft_status_t status = weft_registry_create(NULL, &options->registry);
    options->params.registry = options->registry;
    return status < 0 ? wefti_status_error("compile", status) : EXIT_OK;
}

void wefti_compile_options_deinit(compile_options_t *options)
{
    weft_registry_destroy(options->registry);
    options->registry = NULL;
}

bool wefti_is_compile_option(int key)
{
    return key >= KEY_FIRST && key < KEY_END;
}

/* NAME=D,D,.. into the next free shape. */
static int parse_shape(compile_options_t *options, const char *command, const char *value)
{
    uint32_t index = options->params.shape_count;
    const char *equals = strchr(value, '=');
    if (index >= sizeof options->shapes / sizeof *options->shapes) {
        return wefti_usage_error(command, "more than %u --shape options", index);
    }
    if (equals == NULL || equals == value ||
        (size_t)(equals - value) >= sizeof options->shape_names[0]) {
        return wefti_usage_error(command, "--shape '%s': expected NAME=D,D,..", value);
    }
    for (uint32_t i = 0; i < index; i++) {
        if (strlen(options->shape_names[i]) == (size_t)(equals - value) &&
            strncmp(options->shape_names[i], value, (size_t)(equals - value)) == 0) {
            return wefti_usage_error(command, "--shape '%s': %s has one already", value,
                                     options->shape_names[i]);
        }
    }
    weft_input_shape_t *shape = &options->shapes[index];
    snprintf(options->shape_names[index], sizeof options->shape_names[0], "%.*s",
             (int)(equals - value), value);
    shape->name = options->shape_names[index];
    char dims[256];
    snprintf(dims, sizeof dims, "%s", equals + 1);
    char *rest = NULL;
    for (char *part = strtok_r(dims, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        long long dim = 0;
        if (shape->rank >= WEFT_MAX_DIMS || !wefti_parse_int(part, 0, INT32_MAX, &dim)) {
            return wefti_usage_error(command, "--shape '%s': '%s' is not a dimension", value, part);
        }
        shape->dims[shape->rank++] = dim;
    }
    options->params.shape_count++;
    return EXIT_OK;
}

static int parse_number(const char *command, const char *option, const char *value, double low,
                        double *out_value)
{
    if (!wefti_parse_double(value, out_value) || *out_value < low) {
        return wefti_usage_error(command, "--%s '%s': expected a number of at least %g", option,
                                 value, low);
    }
    return EXIT_OK;
}

/* Zero means "the default" to the library, so that it cannot be asked for. */
static int parse_positive(const char *command, const char *option, const char *value,
                          double *out_value)
{
    if (!wefti_parse_double(value, out_value) || !(*out_value > 0)) {
        return wefti_usage_error(command, "--%s '%s': expected a number above 0", option, value);
    }
    return EXIT_OK;
}

static int parse_count(const char *command, const char *option, const char *value, long long most,
                       uint32_t *out_count)
{
    long long number = 0;
    if (!wefti_parse_int(value, 1, most, &number)) {
        return wefti_usage_error(command, "--%s '%s': expected 1 to %lld", option, value, most);
    }
    *out_count = (uint32_t)number;
    return EXIT_OK;
}

int wefti_compile_option(compile_options_t *options, const char *command, int key,
                         const char *value)
{
    weft_compile_params_t *params = &options->params;
    long long number = 0;
    weft_status_t status = WEFT_OK;
    options->used = options->used || (key != KEY_KERNELS && key != KEY_OPS && key != KEY_LR);
    switch (key) {
    case KEY_WORLD:
        if (!wefti_parse_int(value, 1, 1024, &number)) {
            return wefti_usage_error(command, "--world '%s': expected 1 to 1024 ranks", value);
        }
        params->world_size = (uint32_t)number;
        return EXIT_OK;
    case KEY_BATCH:
        if (!wefti_parse_int(value, 1, INT32_MAX, &number)) {
            return wefti_usage_error(command, "--batch '%s': expected a number of samples", value);
        }
        params->batch = number;
        return EXIT_OK;
    case KEY_SHAPE:
        return parse_shape(options, command, value);
    case KEY_LOSS:
        params->loss = value;
        return EXIT_OK;
    case KEY_OPTIMIZER:
        params->optimizer = value;
        return EXIT_OK;
    case KEY_LR:
        return parse_positive(command, "lr", value, &params->lr);
    case KEY_MOMENTUM:
        return parse_positive(command, "momentum", value, &params->momentum);
    case KEY_WEIGHT_DECAY:
        return parse_number(command, "weight-decay", value, 0, &params->weight_decay);
    case KEY_BUCKET:
        params->bucket = value;
        status = weft_bucket_policy_check(value);
        return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
    case KEY_COSTS:
        params->costs_path = value;
        return EXIT_OK;
    case KEY_TOPOLOGY:
        params->topology_path = value;
        return EXIT_OK;
    case KEY_SHARD_OPTIMIZER:
        params->shard_optimizer = 1;
        return EXIT_OK;
    case KEY_DECOUPLE:
        params->decouple = 1;
        return EXIT_OK;
    case KEY_ACCUMULATE:
        return parse_count(command, "accumulate", value, 65536, &params->accumulate);
    case KEY_GLOBAL_MICRO_BATCHES:
        return parse_count(command, "global-micro-batches", value, 65536,
                           &params->global_micro_batches);
    case KEY_WIRE:
        params->wire = value;
        return EXIT_OK;
    case KEY_CLIP:
        return parse_positive(command, "clip", value, &params->clip_norm);
    case KEY_GRADS:
        params->grads_path = value;
        return EXIT_OK;
    case KEY_IN_FLIGHT:
        return parse_count(command, "in-flight", value, 65536, &params->in_flight);
    case KEY_ARENA_LIMIT:
        return wefti_parse_size(command, "--arena-limit", value, &params->arena_limit);
    case KEY_INFER:
        params->infer = 1;
        return EXIT_OK;
    case KEY_SPLIT_BATCH:
        params->split_batch = 1;
        return EXIT_OK;
    case KEY_OPS: /* binding and verifying need them, too */
        status = weft_registry_load_ops(options->registry, value);
        return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
    case KEY_KERNELS:
        status = weft_registry_load_plugin(options->registry, value);
        return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
    default:
        return EXIT_OK;
    }
}

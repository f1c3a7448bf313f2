/* SPDX-License-Identifier: Apache-2.0 */
/* The options of compiling, for `weft compile` and `weft run MODEL.onnx`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tool.h"

#define MAX_WORLD 1024u
#define MAX_COUNT 65536u

enum {
    KEY_FIRST = 300,
    KEY_BATCH = KEY_FIRST,
    KEY_SHAPE,
    KEY_LOSS,
    KEY_OPTIMIZER,
    KEY_LR,
    KEY_MOMENTUM,
    KEY_WEIGHT_DECAY,
    KEY_BUCKET,
    KEY_COSTS,
    KEY_PROFILE,
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
    {'n', "world", "N", "number of ranks (world size)"},
    {KEY_BATCH, "batch", "B", "samples per rank and step; with micro-batches, per micro-batch"},
    {KEY_SHAPE, "shape", "NAME=D,D,..", "shape of an input (repeatable)"},
    {KEY_LOSS, "loss", "NAME", "the loss output; needed if the model has several loss nodes"},
    {KEY_OPTIMIZER, "optimizer", "NAME", "sgd, momentum or adam (default momentum)"},
    {KEY_LR, "lr", "X", "learning rate (default 0.05; adam: 0.001)"},
    {KEY_MOMENTUM, "momentum", "X", "momentum coefficient (default 0.9)"},
    {KEY_WEIGHT_DECAY, "weight-decay", "X", "weight decay coefficient (default 0)"},
    {KEY_BUCKET, "bucket", "POLICY",
     "how gradients are grouped into buckets: auto[:CAP] (default: the fewest buckets with a "
     "predicted step time within 0.1 % of the optimum), mgwfbp[:CAP], bytes:25M[,time:5ms], "
     "index:0,4,9, percent:60,40, one, or none"},
    {KEY_COSTS, "costs", "COSTS.json",
     "read measured costs (written by weft tune), or use default costs: default (default: "
     "WEFT_COSTS, "
     "else the calibration of this machine)"},
    {KEY_PROFILE, "profile", "P.json",
     "read measured times of kernels and collectives (written by weft run --write-profile)"},
    {KEY_TOPOLOGY, "topology", "FILE.json",
     "read the description of a cluster (written by weft topo --json)"},
    {KEY_SHARD_OPTIMIZER, "shard-optimizer", NULL,
     "each rank updates its shard of the weights and stores only that shard of the optimizer "
     "state"},
    {KEY_DECOUPLE, "decouple", NULL,
     "overlap the all-gather of updated weights with the next forward pass (implies "
     "--shard-optimizer)"},
    {KEY_ACCUMULATE, "accumulate", "K", "micro-batches per rank and step (default 1)"},
    {KEY_GLOBAL_MICRO_BATCHES, "global-micro-batches", "V",
     "micro-batches of all ranks per step; the weights have the same bits for 1 rank and for N "
     "ranks if V / N is a power of two"},
    {KEY_WIRE, "wire", "TYPE",
     "data type in which gradients are sent: f32 (default), or bf16 (each rank's sum is rounded to "
     "it)"},
    {KEY_CLIP, "clip", "NORM", "scale gradients down if their global norm is above NORM"},
    {KEY_GRADS, "grads", "MAP.json",
     "read which tensor of the graph is the gradient of which parameter"},
    {KEY_IN_FLIGHT, "in-flight", "K", "maximum number of collectives in flight"},
    {KEY_ARENA_LIMIT, "arena-limit", "BYTES", "maximum size of the arena, such as 512M or 4G"},
    {KEY_INFER, "infer", NULL,
     "compile for inference: the graph is used as it is, with its collectives"},
    {KEY_SPLIT_BATCH, "split-batch", "B",
     "with --infer: samples of all ranks together; rank 0 reads the inputs and scatters them, and "
     "gathers the outputs (excludes --batch)"},
    {KEY_OPS, "ops", "OPS.json", "declare operators from a file (repeatable)"},
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

/* NAME=D,D,.. into the next free shape. */
static int parse_shape(compile_options_t *options, const char *command, const char *value)
{
    uint32_t index = options->params.shape_count;
    const char *equals = strchr(value, '=');
    if (index >= sizeof options->shapes / sizeof *options->shapes) {
        return wefti_usage_error(command, "too many --shape options: at most %u", index);
    }
    if (equals == NULL || equals == value ||
        (size_t)(equals - value) >= sizeof options->shape_names[0]) {
        return wefti_usage_error(
            command, "--shape %s: must be NAME=D,D,.., such as image=64,1,28,28", value);
    }
    for (uint32_t i = 0; i < index; i++) {
        if (strlen(options->shape_names[i]) == (size_t)(equals - value) &&
            strncmp(options->shape_names[i], value, (size_t)(equals - value)) == 0) {
            return wefti_usage_error(command, "--shape %s: duplicate shape of input '%s'", value,
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
            return wefti_usage_error(command, "--shape %s: invalid dimension '%s'", value, part);
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
        return wefti_usage_error(command, "%s %s: must be a number of at least %g", option, value,
                                 low);
    }
    return EXIT_OK;
}

/* Zero means "the default" to the library and cannot be passed as a value. */
static int parse_positive(const char *command, const char *option, const char *value,
                          double *out_value)
{
    if (!wefti_parse_double(value, out_value) || !(*out_value > 0)) {
        return wefti_usage_error(command, "%s %s: must be a number above 0", option, value);
    }
    return EXIT_OK;
}

/* --batch counts the samples of a rank, --split-batch those of all ranks; the library has one field
 * and a flag for both. */
static int parse_batch(compile_options_t *options, const char *command, bool split,
                       const char *value)
{
    weft_compile_params_t *params = &options->params;
    long long number = 0;
    if (params->batch != 0 && (params->split_batch != 0) != split) {
        return wefti_usage_error(command, "--batch and --split-batch exclude each other");
    }
    int code = wefti_option_int(command, split ? "--split-batch" : "--batch", value, 1, INT32_MAX,
                                &number);
    params->batch = number;
    params->split_batch = split;
    return code;
}

int wefti_compile_option(compile_options_t *options, const char *command, int key,
                         const char *value)
{
    weft_compile_params_t *params = &options->params;
    weft_status_t status = WEFT_OK;
    for (const option_def_t *def = wefti_compile_option_defs; def->key != 0; def++) {
        bool of_plans = key == KEY_KERNELS || key == KEY_OPS || key == KEY_LR || key == 'n';
        if (def->key == key && !of_plans) {
            options->used = def->name;
        }
    }
    switch (key) {
    case 'n':
        return wefti_option_u32(command, "--world", value, 1, MAX_WORLD, &params->world_size);
    case KEY_BATCH:
        return parse_batch(options, command, false, value);
    case KEY_SHAPE:
        return parse_shape(options, command, value);
    case KEY_LOSS:
        params->loss = value;
        return EXIT_OK;
    case KEY_OPTIMIZER:
        params->optimizer = value;
        return EXIT_OK;
    case KEY_LR:
        return parse_positive(command, "--lr", value, &params->lr);
    case KEY_MOMENTUM:
        return parse_positive(command, "--momentum", value, &params->momentum);
    case KEY_WEIGHT_DECAY:
        return parse_number(command, "--weight-decay", value, 0, &params->weight_decay);
    case KEY_BUCKET:
        params->bucket = value;
        status = weft_bucket_policy_check(value);
        return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
    case KEY_COSTS:
        params->costs_path = value;
        return EXIT_OK;
    case KEY_PROFILE:
        params->profile_path = value;
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
        return wefti_option_u32(command, "--accumulate", value, 1, MAX_COUNT, &params->accumulate);
    case KEY_GLOBAL_MICRO_BATCHES:
        return wefti_option_u32(command, "--global-micro-batches", value, 1, MAX_COUNT,
                                &params->global_micro_batches);
    case KEY_WIRE:
        params->wire = value;
        return EXIT_OK;
    case KEY_CLIP:
        return parse_positive(command, "--clip", value, &params->clip_norm);
    case KEY_GRADS:
        params->grads_path = value;
        return EXIT_OK;
    case KEY_IN_FLIGHT:
        return wefti_option_u32(command, "--in-flight", value, 1, MAX_COUNT, &params->in_flight);
    case KEY_ARENA_LIMIT:
        return wefti_parse_size(command, "--arena-limit", value, &params->arena_limit);
    case KEY_INFER:
        params->infer = 1;
        return EXIT_OK;
    case KEY_SPLIT_BATCH:
        return parse_batch(options, command, true, value);
    case KEY_OPS: /* binding and verifying also need these */
        status = weft_registry_load_ops(options->registry, value);
        return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
    case KEY_KERNELS:
        status = weft_registry_load_plugin(options->registry, value);
        return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
    default:
        return EXIT_OK;
    }
}

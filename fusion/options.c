/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of weft_compile: one row per field. A new option is a field of weft_compile_params_t,
 * a row here, and its use. The command, the Python package, compiled graphs and docs read the rows.
 */
#include "fusion/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/optimizers.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/base/suggest.h"

#define MAX_STAGES 64
#define MAX_PIPELINED 256
#define MAX_WORLD_SIZE 65536
/* A float, by which updates divide, counts so far. */
#define MAX_MICRO_BATCHES (1 << 24)

#define MAX_WORDS 128u

#define FIELD(name) #name, offsetof(weft_compile_params_t, name)
#define TRAINING (WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_RECORDED)
#define INFERENCE (WEFT_OPTION_FLAG_INFERENCE | WEFT_OPTION_FLAG_RECORDED)

#define OPTIMIZER_NAME(kind, name, ...) name,
static const char *const optimizers[] = {WEFTI_OPTIMIZER_MAP(OPTIMIZER_NAME) NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", "step", NULL};
static const char *const wires[] = {"f32", "bf16", NULL};
static const char *const precisions[] = {"f32", "bf16", "f16", NULL};

/* In the order of help texts. Rows without a name are set by C programs only. */
static const weft_compile_option_t table[] = {
    {FIELD(model_path), WEFT_OPTION_TYPE_PATH, WEFT_OPTION_FLAG_POSITIONAL, "model", "MODEL.onnx",
     .help = "a model, or a compiled graph, which contains its options and accepts no others"},
    {FIELD(rank_models), WEFT_OPTION_TYPE_MODELS,
     WEFT_OPTION_FLAG_POSITIONAL | WEFT_OPTION_FLAG_INFERENCE | WEFT_OPTION_FLAG_IN_GRAPH, "model",
     "MODEL.onnx..",
     .help = "one model per rank: equal except for initializers, or different models, with no "
             "collectives but Send and Recv, of which every rank has the outputs"},
    {FIELD(print_after), WEFT_OPTION_TYPE_TEXT, WEFT_OPTION_FLAG_REPORTED, "print_after", "PASS",
     .help = "print the graph to standard error after this pass, or after every pass: all"},
    {FIELD(stop_after), WEFT_OPTION_TYPE_TEXT, WEFT_OPTION_FLAG_REPORTED, "stop_after", "PASS",
     .help = "stop after this pass and print the graph; no plan is written"},
    {FIELD(verify_each), WEFT_OPTION_TYPE_FLAG, .name = "verify_each",
     .help = "verify the graph after every pass"},
    {FIELD(emit_path), WEFT_OPTION_TYPE_PATH, .name = "emit_onnx", .arg = "OUT.onnx",
     .excludes = "rank_models", .reason = "one file cannot hold the weights of several models",
     .help = "also write the compiled graph as ONNX; compiling that file produces a plan of the "
             "same structure without further options"},
    {FIELD(world_size), WEFT_OPTION_TYPE_U32, WEFT_OPTION_FLAG_RECORDED, "world", "N", 'n', 1,
     MAX_WORLD_SIZE, .help = "number of ranks (world size)"},
    {FIELD(device), WEFT_OPTION_TYPE_TEXT, .name = "device", .arg = "DEVICE", .by_default = "cpu",
     .help = "device that will run the plan: cpu, opencl, opencl:INDEX, opencl:NAME or "
             "opencl:0,1; nodes that it does not support are an error"},
    {FIELD(batch), WEFT_OPTION_TYPE_I64, WEFT_OPTION_FLAG_RECORDED, "batch", "B", .low = 1,
     .high = INT32_MAX, .help = "samples per rank and step; with micro-batches, per micro-batch"},
    {FIELD(shapes), WEFT_OPTION_TYPE_SHAPES, WEFT_OPTION_FLAG_IN_GRAPH, "shape", "NAME=D,D,..",
     .help = "shape of an input"},
    {FIELD(loss), WEFT_OPTION_TYPE_TEXT, WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH,
     "loss", "NAME", .help = "the loss output; needed if the model has several loss nodes"},
    {FIELD(optimizer), WEFT_OPTION_TYPE_TEXT, TRAINING, "optimizer", "NAME", .choices = optimizers,
     .by_default = "momentum", .help = "update rule of the weights"},
    {FIELD(lr), WEFT_OPTION_TYPE_F64, TRAINING, "lr", "X",
     .by_default = "0.05, with adam, adamw and lamb 0.001, with adagrad 0.01",
     .help = "learning rate"},
    {FIELD(lr_schedule), WEFT_OPTION_TYPE_TEXT, TRAINING, "lr_schedule", "NAME",
     .choices = schedules, .by_default = "constant",
     .help = "how the learning rate changes, step by step"},
    {FIELD(lr_steps), WEFT_OPTION_TYPE_U32, TRAINING, "lr_steps", "N", .low = 1,
     .high = MAX_MICRO_BATCHES, .needs = "lr_schedule", .reason = "a constant rate has no end",
     .help = "linear, cosine: number of steps after which the rate is min_lr (weft run: all steps "
             "unless set); step: number of steps from one drop to the next"},
    {FIELD(warmup_steps), WEFT_OPTION_TYPE_U32, TRAINING, "warmup_steps", "N", .low = 1,
     .high = MAX_MICRO_BATCHES, .by_default = "none",
     .help = "number of first steps in which the learning rate rises linearly to lr"},
    {FIELD(min_lr), WEFT_OPTION_TYPE_F64, TRAINING | WEFT_OPTION_FLAG_ZERO, "min_lr", "X",
     .by_default = "0", .needs = "lr_schedule", .reason = "a constant rate does not fall",
     .help = "lowest learning rate of linear, cosine and step"},
    {FIELD(lr_gamma), WEFT_OPTION_TYPE_F64, TRAINING, "lr_gamma", "X", .high = 1,
     .by_default = "0.1", .needs = "lr_schedule", .reason = "a constant rate does not fall",
     .help = "step: factor of each drop of the learning rate"},
    {FIELD(momentum), WEFT_OPTION_TYPE_F64, TRAINING, "momentum", "X", .high = 1,
     .by_default = "0.9", .help = "momentum coefficient"},
    {FIELD(beta1), WEFT_OPTION_TYPE_F64, TRAINING, "beta1", "X", .high = 1, .by_default = "0.9",
     .needs = "optimizer", .reason = "momentum, the default, does not read it",
     .help = "adam, adamw, lamb: decay of the mean of gradients, per step"},
    {FIELD(beta2), WEFT_OPTION_TYPE_F64, TRAINING, "beta2", "X", .high = 1, .by_default = "0.999",
     .needs = "optimizer", .reason = "momentum, the default, does not read it",
     .help = "adam, adamw, lamb: decay of the mean of their squares"},
    {FIELD(epsilon), WEFT_OPTION_TYPE_F64, TRAINING, "epsilon", "X",
     .by_default = "1e-8, with adagrad 1e-10", .needs = "optimizer",
     .reason = "momentum, the default, does not read it",
     .help = "adam, adamw, lamb, adagrad: added to the divisor of updates"},
    {FIELD(weight_decay), WEFT_OPTION_TYPE_F64, TRAINING | WEFT_OPTION_FLAG_ZERO, "weight_decay",
     "X", .by_default = "0",
     .help = "weight decay coefficient, of all parameters unless no_decay is set"},
    {FIELD(no_decay), WEFT_OPTION_TYPE_TEXT,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH | WEFT_OPTION_FLAG_LIST, "no_decay",
     "PATTERN", .needs = "weight_decay", .reason = "nothing decays without it",
     .help = "no weight decay of the parameters whose names match; 1d: of those with at most one "
             "dimension, which are biases and the scales of normalizations"},
    {FIELD(bucket), WEFT_OPTION_TYPE_TEXT, WEFT_OPTION_FLAG_RECORDED, "bucket", "POLICY",
     .by_default = "auto",
     .help = "how gradients and blocks (reduce-scatter, all-gather) are grouped into buckets: "
             "auto[:CAP] (the fewest buckets with a "
             "predicted step time within 0.1 % of the optimum), mgwfbp[:CAP], "
             "bytes:25M[,time:5ms], index:0,4,9, percent:60,40, one, or none"},
    {FIELD(costs_path), WEFT_OPTION_TYPE_PATH, .name = "costs", .arg = "COSTS.json",
     .help = "read measured costs (written by weft tune); the command weft also accepts default "
             "for default costs, and without this option uses WEFT_COSTS, else the calibration of "
             "this machine"},
    {FIELD(profile_path), WEFT_OPTION_TYPE_PATH, .name = "profile", .arg = "P.json",
     .help = "read measured times of kernels and collectives (written by weft run "
             "--write-profile or Session.write_profile)"},
    {FIELD(topology_path), WEFT_OPTION_TYPE_PATH, .name = "topology", .arg = "FILE.json",
     .help = "read the description of a cluster (written by weft topo --json)"},
    {FIELD(shard_optimizer), WEFT_OPTION_TYPE_FLAG, TRAINING, "shard_optimizer",
     .help = "each rank updates its shard of the weights and stores only that shard of the "
             "optimizer state"},
    {FIELD(decouple), WEFT_OPTION_TYPE_FLAG, TRAINING, "decouple", .implies = "shard_optimizer",
     .help = "overlap the all-gather of updated weights with the next forward pass"},
    {FIELD(shard_parameters), WEFT_OPTION_TYPE_FLAG, TRAINING, "shard_parameters",
     .implies = "shard_optimizer", .excludes = "decouple",
     .reason = "weights are gathered before each pass, not after their update",
     .help = "each rank stores only its shard of the weights, their reduced gradients and the "
             "optimizer state; a bucket's weights are gathered before each pass that reads them"},
    {FIELD(sync_batch_norm), WEFT_OPTION_TYPE_FLAG,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH, "sync_batchnorm",
     .help = "BatchNormalization takes mean and variance over the batches of all ranks, by one "
             "all-reduce per layer and direction"},
    {FIELD(accumulate), WEFT_OPTION_TYPE_U32, TRAINING, "accumulate", "K", .low = 1,
     .high = MAX_MICRO_BATCHES, .by_default = "1", .help = "micro-batches per rank and step"},
    {FIELD(global_micro_batches), WEFT_OPTION_TYPE_U32, TRAINING, "global_micro_batches", "V",
     .low = 1, .high = MAX_MICRO_BATCHES, .excludes = "accumulate",
     .reason = "the micro-batches of a rank are the global number divided by world_size",
     .help = "micro-batches V of all ranks per step; the weights have the same bits for 1 rank and "
             "for N ranks if V / N is a power of two"},
    {FIELD(wire), WEFT_OPTION_TYPE_TEXT, TRAINING, "wire", "TYPE", .choices = wires,
     .by_default = "f32",
     .help = "data type in which gradients are sent; each rank's sum is rounded to it"},
    {FIELD(clip_norm), WEFT_OPTION_TYPE_F64, TRAINING, "clip", "NORM",
     .help = "scale gradients down if their global norm is above NORM"},
    {FIELD(label_smoothing), WEFT_OPTION_TYPE_F64,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_ZERO | WEFT_OPTION_FLAG_IN_GRAPH,
     "label_smoothing", "E", .high = 1, .by_default = "0",
     .help = "share of each label that all classes get alike in the loss"},
    {FIELD(grads_path), WEFT_OPTION_TYPE_PATH,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH, "grads", "MAP.json",
     .help = "read which tensor of the graph is the gradient of which parameter"},
    {FIELD(training_form), WEFT_OPTION_TYPE_FLAG,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH, "training_form",
     .help = "BatchNormalization and Dropout that the exporter wrote in the form for inference "
             "compute as in training"},
    {FIELD(train), WEFT_OPTION_TYPE_TEXT,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH | WEFT_OPTION_FLAG_LIST, "train",
     "PATTERN",
     .help =
         "train the initializers whose names match, whatever the model states; weft check lists "
         "what is trained, and why"},
    {FIELD(freeze), WEFT_OPTION_TYPE_TEXT,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH | WEFT_OPTION_FLAG_LIST, "freeze",
     "PATTERN",
     .help = "do not train the initializers whose names match; where both match, they are trained"},
    {FIELD(algo), WEFT_OPTION_TYPE_TEXT, WEFT_OPTION_FLAG_RECORDED | WEFT_OPTION_FLAG_LIST, "algo",
     "OP=NAME",
     .help =
         "algorithm of a collective, such as all_reduce=ring, or a file of MSCCL, such as "
         "ring.xml, "
         "which the plan then contains, in place of the choice by cost; an error if it cannot run "
         "on these ranks and hosts or does not keep the order"},
    {FIELD(order), WEFT_OPTION_TYPE_TEXT, WEFT_OPTION_FLAG_RECORDED, "order", "ORDER",
     .by_default = "tree",
     .help = "order in which reductions combine ranks: tree, any (admits all algorithms; bits "
             "depend on them) or blocks:N,N,.. (ranks of each block)"},
    {FIELD(in_flight), WEFT_OPTION_TYPE_U32, WEFT_OPTION_FLAG_RECORDED, "in_flight", "K", .low = 1,
     .high = UINT32_MAX, .by_default = "no bound; 2 with sharded parameters",
     .help = "maximum number of collectives in flight"},
    {FIELD(arena_limit), WEFT_OPTION_TYPE_BYTES, WEFT_OPTION_FLAG_RECORDED, "arena_limit", "BYTES",
     .low = 1, .help = "maximum size of the arena, such as 512M or 4G"},
    {FIELD(recompute), WEFT_OPTION_TYPE_TEXT,
     WEFT_OPTION_FLAG_TRAINING | WEFT_OPTION_FLAG_IN_GRAPH | WEFT_OPTION_FLAG_LIST, "recompute",
     "PATTERN",
     .help =
         "compute activations again in the backward pass instead of keeping them: auto (as few as "
         "arena_limit needs, where no order of operators fits it), or operators by name"},
    {FIELD(precision), WEFT_OPTION_TYPE_TEXT, WEFT_OPTION_FLAG_IN_GRAPH, "precision", "TYPE",
     .choices = precisions, .by_default = "f32",
     .help =
         "data type of weights and activations in products, convolutions and what follows them; "
         "accumulation, loss and trained weights are f32; f16 is for inference"},
    {FIELD(infer), WEFT_OPTION_TYPE_FLAG, WEFT_OPTION_FLAG_RECORDED, "infer",
     .help = "compile for inference: the graph is used as it is, with its collectives"},
    {FIELD(split_batch), WEFT_OPTION_TYPE_FLAG, INFERENCE, "split_batch", "B", .needs = "batch",
     .excludes = "rank_models", .reason = "one batch of all ranks is split, for one model",
     .help = "the batch is that of all ranks together; rank 0 reads the inputs and scatters them, "
             "and gathers the outputs"},
    {FIELD(tensor_parallel), WEFT_OPTION_TYPE_U32, WEFT_OPTION_FLAG_IN_GRAPH, "tensor_parallel",
     "N", .low = 1, .high = MAX_WORLD_SIZE, .excludes = "rank_models",
     .reason = "one model is divided over the ranks",
     .help =
         "divide the weights of products, and attention heads, over N ranks; collectives are "
         "inserted where they are needed; with N times D ranks, D batches are computed at a time; "
         "1 with infer: ignore multi-device annotations of the model"},
    {FIELD(pipeline), WEFT_OPTION_TYPE_U32, WEFT_OPTION_FLAG_IN_GRAPH, "pipeline", "N", .low = 1,
     .high = MAX_STAGES, .excludes = "rank_models", .reason = "one model is divided into stages",
     .help =
         "divide the operators into N stages of equal cost, each on a rank of its own, which send "
         "activations to the next one and gradients back; with N times D ranks, D batches are "
         "computed at a time"},
    {FIELD(pipeline_micro_batches), WEFT_OPTION_TYPE_U32, WEFT_OPTION_FLAG_IN_GRAPH,
     "pipeline_micro_batches", "M", .low = 1, .high = MAX_PIPELINED, .needs = "pipeline",
     .reason = "it divides the batch, so that stages work at the same time",
     .help = "divide the batch into M parts, which go through the stages one after the other"},
    {FIELD(ops_path), WEFT_OPTION_TYPE_OPS, .name = "ops", .arg = "OPS.json",
     .help = "declare operators from a file"},
    {FIELD(registry), WEFT_OPTION_TYPE_PLUGINS, .name = "kernels", .arg = "LIB.so",
     .help = "load operators and kernels from a plugin"},
    {FIELD(open_batch), WEFT_OPTION_TYPE_I64, .low = 1, .high = INT32_MAX,
     .help = "batch if the model leaves the batch open"},
    {FIELD(on_pass), WEFT_OPTION_TYPE_OBJECT, .help = "receives a report of every pass"},
    {FIELD(on_pass_user), WEFT_OPTION_TYPE_OBJECT, .help = "first argument of on_pass"},
    {FIELD(log), WEFT_OPTION_TYPE_OBJECT, .help = "receives log lines"},
    {FIELD(log_user), WEFT_OPTION_TYPE_OBJECT, .help = "first argument of log"},
    {FIELD(allocator), WEFT_OPTION_TYPE_OBJECT, .help = "allocates all memory of the compilation"},
    {FIELD(struct_size), WEFT_OPTION_TYPE_OBJECT, .help = "size of the struct of the caller"},
};
#define COUNT (sizeof table / sizeof *table)

const weft_compile_option_t *weft_compile_option(size_t index)
{
    return index < COUNT ? &table[index] : NULL;
}

static const weft_compile_option_t *find_field(const char *field)
{
    const weft_compile_option_t *option = table;
    while (strcmp(option->field, field) != 0) {
        option++; /* tables name fields that exist */
    }
    return option;
}

/* ---- values ---- */

static bool is_number(const weft_compile_option_t *option)
{
    return option->type <= WEFT_OPTION_TYPE_F64;
}

/* A field of 4 bytes; other numbers and pointers have 8. */
static bool is_short(const weft_compile_option_t *option)
{
    return option->type == WEFT_OPTION_TYPE_FLAG || option->type == WEFT_OPTION_TYPE_U32;
}

static double number_of(const weft_compile_option_t *option, const void *field)
{
    return option->type == WEFT_OPTION_TYPE_F64 ? *(const double *)field
           : is_short(option)                   ? *(const uint32_t *)field
                                                : (double)*(const int64_t *)field;
}

bool wefti_option_is_set(const weft_compile_option_t *option, const weft_compile_params_t *params)
{
    const void *field = (const char *)params + option->offset;
    return is_number(option)                         ? number_of(option, field) != 0
           : option->type == WEFT_OPTION_TYPE_SHAPES ? params->shape_count > 0
           : option->type == WEFT_OPTION_TYPE_MODELS ? params->rank_model_count > 0
                                                     : *(const void *const *)field != NULL;
}

weft_status_t wefti_option_format(const weft_compile_option_t *option,
                                  const weft_compile_params_t *params, wefti_arena_t *arena,
                                  const char **out_text)
{
    const void *field = (const char *)params + option->offset;
    *out_text = NULL;
    if (!wefti_option_is_set(option, params)) {
        return WEFT_OK;
    }
    *out_text = !is_number(option) ? *(const char *const *)field
                : option->type == WEFT_OPTION_TYPE_F64
                    ? wefti_arena_printf(arena, "%.17g", number_of(option, field))
                    : wefti_arena_printf(arena, "%.0f", number_of(option, field));
    return *out_text == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* ---- ranges ---- */

/* What the option allows: "a whole number between 1 and 65536", "sgd, momentum or adam". */
static const char *range_words(const weft_compile_option_t *option, char *out, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; option->choices != NULL && option->choices[i] != NULL && used < bytes; i++) {
        const char *between = i == 0 ? "" : option->choices[i + 1] != NULL ? ", " : " or ";
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", between, option->choices[i]);
    }
    if (option->type == WEFT_OPTION_TYPE_FLAG || option->type == WEFT_OPTION_TYPE_BYTES) {
        snprintf(out, bytes, "%s",
                 is_short(option) ? "0 or 1" : "a number of bytes such as 8, 4K or 64M");
    } else if (option->type == WEFT_OPTION_TYPE_F64) {
        used = (size_t)snprintf(
            out, bytes, "a number %s %g",
            (option->flags & WEFT_OPTION_FLAG_ZERO) != 0 ? "of at least" : "above", option->low);
        if (option->high != 0) {
            snprintf(out + used, bytes - used, " and below %g", option->high);
        }
    } else if (is_number(option)) {
        snprintf(out, bytes, "a whole number between %.0f and %.0f", option->low, option->high);
    }
    return out;
}

static weft_status_t refuse(const weft_compile_option_t *option, const char *text)
{
    char words[MAX_WORDS];
    return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, option->field, "must be %s: %s",
                             range_words(option, words, sizeof words), text);
}

static bool in_range(const weft_compile_option_t *option, double value)
{
    if (option->type ==
        WEFT_OPTION_TYPE_F64) { /* updates compute with floats: small numbers are 0 */
        bool zero = (option->flags & WEFT_OPTION_FLAG_ZERO) != 0 && value == 0;
        return isfinite(value) && (zero || (float)value > option->low) &&
               (option->high == 0 || (float)value < option->high);
    }
    double high = option->type == WEFT_OPTION_TYPE_FLAG    ? 1
                  : option->type == WEFT_OPTION_TYPE_BYTES ? (double)(INT64_MAX / 2)
                                                           : option->high;
    return value >= option->low && value <= high;
}

static bool is_choice(const weft_compile_option_t *option, const char *text)
{
    size_t i = 0;
    while (option->choices != NULL && option->choices[i] != NULL &&
           strcmp(option->choices[i], text) != 0) {
        i++;
    }
    return option->choices == NULL || option->choices[i] != NULL;
}

/* ---- help ---- */

static void append(char *out, size_t bytes, const char *format, ...) WEFT_PRINTF(3, 4);
static void append(char *out, size_t bytes, const char *format, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, bytes - used, format, args);
    va_end(args);
}

void weft_compile_option_help(size_t index, const char *prefix, char *out, size_t bytes)
{
    const weft_compile_option_t *option = weft_compile_option(index);
    char words[MAX_WORDS];
    WEFT_CHECK_ARG_VOID(prefix);
    WEFT_CHECK_ARG_VOID(out);
    snprintf(out, bytes, "%s", option != NULL ? option->help : "");
    if (option == NULL || bytes == 0) {
        return;
    }
    bool in_value =
        prefix[0] == '-' && option->type == WEFT_OPTION_TYPE_FLAG && option->arg != NULL;
    const char *const others[][2] = {
        {"requires", (option->flags & WEFT_OPTION_FLAG_INFERENCE) != 0 ? "infer" : NULL},
        {"requires", in_value ? NULL : option->needs},
        {"implies", option->implies},
        {"excludes", option->excludes},
    };
    const char *between = " (";
    if (option->choices != NULL) {
        append(out, bytes, ": %s", range_words(option, words, sizeof words));
    }
    if (option->by_default != NULL) {
        append(out, bytes, "%sdefault %s", between, option->by_default);
        between = "; ";
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const weft_compile_option_t *other = others[i][1] != NULL ? find_field(others[i][1]) : NULL;
        if (other != NULL && (other->flags & WEFT_OPTION_FLAG_POSITIONAL) == 0) {
            snprintf(words, sizeof words, "%s", other->name);
            for (char *at = words; prefix[0] == '-' && (at = strchr(at, '_')) != NULL;) {
                *at = '-';
            }
            append(out, bytes, "%s%s %s%s", between, others[i][0], prefix, words);
            between = "; ";
        }
    }
    append(out, bytes, "%s", between[0] == ';' ? ")" : "");
}

/* ---- text to field ---- */

static bool read_number(const weft_compile_option_t *option, const char *text, double *out)
{
    static const char units[] = "KMG";
    bool whole = option->type != WEFT_OPTION_TYPE_F64 && option->type != WEFT_OPTION_TYPE_BYTES;
    char *end = NULL;
    errno = 0;
    *out = strtod(text, &end);
    const char *unit =
        option->type == WEFT_OPTION_TYPE_BYTES && *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        *out *= (double)(UINT64_C(1) << (10 * (unit - units + 1)));
        end++;
    }
    return end != text && *end == '\0' && errno == 0 && in_range(option, *out) &&
           (!whole || strspn(text, "0123456789") == strlen(text));
}

static void write_number(const weft_compile_option_t *option, double number, void *field)
{
    if (option->type == WEFT_OPTION_TYPE_F64) {
        *(double *)field = number;
    } else if (is_short(option)) {
        *(uint32_t *)field = (uint32_t)number;
    } else {
        *(int64_t *)field = (int64_t)number;
    }
}

/* The option of that name, or NULL with an error. */
static const weft_compile_option_t *find_name(const char *name)
{
    wefti_suggestion_t near = {.word = name};
    for (size_t i = 0; i < COUNT; i++) {
        if (table[i].name == NULL) {
            continue;
        }
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
        wefti_suggestion_offer(&near, table[i].name);
    }
    wefti_error(WEFT_ERR_NOT_FOUND,
                near.best != NULL ? "unknown option '%s' (did you mean '%s'?)"
                                  : "unknown option '%s'",
                name, near.best);
    return NULL;
}

weft_status_t weft_compile_option_set(weft_compile_params_t *params, const char *name,
                                      const char *text)
{
    WEFT_CHECK_ARG(params);
    WEFT_CHECK_ARG(name);
    const weft_compile_option_t *option = find_name(name);
    if (option == NULL) {
        return WEFT_ERR_NOT_FOUND;
    }
    if (option->type != WEFT_OPTION_TYPE_FLAG) {
        WEFT_CHECK_ARG(text);
    }
    void *field = (char *)params + option->offset;
    weft_status_t status =
        wefti_params_reach("params", params, option->offset + (is_short(option) ? 4 : 8));
    if (status < 0) {
        return status;
    }
    if (is_number(option)) {
        double number = 1; /* a flag without text */
        if (text != NULL && !read_number(option, text, &number)) {
            return refuse(option, text);
        }
        write_number(option, number, field);
        return WEFT_OK;
    }
    if (option->type != WEFT_OPTION_TYPE_TEXT && option->type != WEFT_OPTION_TYPE_PATH) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, option->field, "cannot be set from text");
    }
    if (!is_choice(option, text)) {
        return refuse(option, text);
    }
    memcpy(field, &text, sizeof text);
    return strcmp(name, "bucket") == 0 ? weft_bucket_policy_check(text) : WEFT_OK;
}

/* ---- all fields ---- */

static weft_status_t check_value(const weft_compile_option_t *option, const void *field)
{
    char text[32];
    if (is_number(option)) {
        double number = number_of(option, field);
        snprintf(text, sizeof text, option->type == WEFT_OPTION_TYPE_F64 ? "%g" : "%.0f", number);
        return option->type == WEFT_OPTION_TYPE_FLAG || in_range(option, number)
                   ? WEFT_OK
                   : refuse(option, text);
    }
    const char *value = option->choices != NULL ? *(const char *const *)field : NULL;
    return value == NULL || is_choice(option, value) ? WEFT_OK : refuse(option, value);
}

static weft_status_t check_others(const weft_compile_option_t *option,
                                  const weft_compile_params_t *params)
{
    const weft_status_t error = WEFT_ERR_INVALID_ARGUMENT;
    if (params->infer && (option->flags & WEFT_OPTION_FLAG_TRAINING) != 0) {
        return wefti_error_field(error, option->field, "only for training, but infer is set");
    }
    if (!params->infer && (option->flags & WEFT_OPTION_FLAG_INFERENCE) != 0) {
        return wefti_error_field(error, option->field, "requires infer");
    }
    if (option->needs != NULL && !wefti_option_is_set(find_field(option->needs), params)) {
        return wefti_error_field(error, option->field, "requires %s: %s", option->needs,
                                 option->reason);
    }
    if (option->excludes != NULL && wefti_option_is_set(find_field(option->excludes), params)) {
        return wefti_error_field(error, option->field, "excludes %s: %s", option->excludes,
                                 option->reason);
    }
    return WEFT_OK;
}

weft_status_t wefti_options_complete(weft_compile_params_t *params)
{
    weft_status_t status = WEFT_OK;
    double number = 0;
    for (size_t i = 0; i < COUNT && status >= 0; i++) {
        if (wefti_option_is_set(&table[i], params)) {
            status = check_value(&table[i], (const char *)params + table[i].offset);
            status = status < 0 ? status : check_others(&table[i], params);
        }
    }
    for (size_t i = 0; i < COUNT && status >= 0; i++) {
        const weft_compile_option_t *option = &table[i];
        void *field = (char *)params + option->offset;
        if (wefti_option_is_set(option, params)) {
            if (option->implies != NULL) {
                *(int *)((char *)params + find_field(option->implies)->offset) = 1;
            }
        } else if (option->by_default != NULL && option->type == WEFT_OPTION_TYPE_TEXT) {
            memcpy(field, &option->by_default, sizeof option->by_default);
        } else if (option->by_default != NULL && read_number(option, option->by_default, &number)) {
            write_number(option, number, field);
        }
    }
    return status;
}

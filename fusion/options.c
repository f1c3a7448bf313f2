/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of weft_compile: one row per field. A new option is a field of weft_compile_params_t,
 * a row here, and its use. The command, the Python package, compiled graphs and docs read the rows.
 */
#include "fusion/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/base/suggest.h"
#include "runtime/base/text.h"

#define MAX_WORLD_SIZE 65536
/* A float, by which updates divide, counts so far. */
#define MAX_MICRO_BATCHES (1 << 24)

#define MAX_WORDS 128u

#define FIELD(name) #name, offsetof(weft_compile_params_t, name)
#define TRAINING (WEFT_OPTION_TRAINING | WEFT_OPTION_RECORDED)
#define INFERENCE (WEFT_OPTION_INFERENCE | WEFT_OPTION_RECORDED)

static const char *const optimizers[] = {"sgd", "momentum", "adam", NULL};
static const char *const wires[] = {"f32", "bf16", NULL};

/* In the order of help texts. Rows without a name are set by C programs only. */
static const weft_compile_option_t table[] = {
    {FIELD(model_path), WEFT_OPTION_PATH, WEFT_OPTION_POSITIONAL, "model", "MODEL.onnx",
     .help = "a model, or a compiled graph, which contains its options and accepts no others"},
    {FIELD(rank_models), WEFT_OPTION_MODELS,
     WEFT_OPTION_POSITIONAL | WEFT_OPTION_INFERENCE | WEFT_OPTION_IN_GRAPH, "model", "MODEL.onnx..",
     .help = "one model per rank, equal except for initializers"},
    {FIELD(print_after), WEFT_OPTION_TEXT, WEFT_OPTION_REPORTED, "print_after", "PASS",
     .help = "print the graph to standard error after this pass, or after every pass: all"},
    {FIELD(stop_after), WEFT_OPTION_TEXT, WEFT_OPTION_REPORTED, "stop_after", "PASS",
     .help = "stop after this pass and print the graph; no plan is written"},
    {FIELD(verify_each), WEFT_OPTION_FLAG, .name = "verify_each",
     .help = "verify the graph after every pass"},
    {FIELD(emit_path), WEFT_OPTION_PATH, .name = "emit_onnx", .arg = "OUT.onnx",
     .excludes = "rank_models", .reason = "one file cannot hold the weights of several models",
     .help = "also write the compiled graph as ONNX; compiling that file produces the same plan "
             "without further options"},
    {FIELD(world_size), WEFT_OPTION_U32, WEFT_OPTION_RECORDED, "world", "N", 'n', 1, MAX_WORLD_SIZE,
     .help = "number of ranks (world size)"},
    {FIELD(batch), WEFT_OPTION_I64, WEFT_OPTION_RECORDED, "batch", "B", .low = 1, .high = INT32_MAX,
     .help = "samples per rank and step; with micro-batches, per micro-batch"},
    {FIELD(shapes), WEFT_OPTION_SHAPES, WEFT_OPTION_IN_GRAPH, "shape", "NAME=D,D,..",
     .help = "shape of an input"},
    {FIELD(loss), WEFT_OPTION_TEXT, WEFT_OPTION_TRAINING | WEFT_OPTION_IN_GRAPH, "loss", "NAME",
     .help = "the loss output; needed if the model has several loss nodes"},
    {FIELD(optimizer), WEFT_OPTION_TEXT, TRAINING, "optimizer", "NAME", .choices = optimizers,
     .by_default = "momentum", .help = "update rule of the weights"},
    {FIELD(lr), WEFT_OPTION_F64, TRAINING, "lr", "X", .by_default = "0.05, with adam 0.001",
     .help = "learning rate"},
    {FIELD(momentum), WEFT_OPTION_F64, TRAINING, "momentum", "X", .high = 1, .by_default = "0.9",
     .help = "momentum coefficient"},
    {FIELD(weight_decay), WEFT_OPTION_F64, TRAINING | WEFT_OPTION_ZERO, "weight_decay", "X",
     .by_default = "0", .help = "weight decay coefficient"},
    {FIELD(bucket), WEFT_OPTION_TEXT, TRAINING, "bucket", "POLICY", .by_default = "auto",
     .help = "how gradients are grouped into buckets: auto[:CAP] (the fewest buckets with a "
             "predicted step time within 0.1 % of the optimum), mgwfbp[:CAP], "
             "bytes:25M[,time:5ms], index:0,4,9, percent:60,40, one, or none"},
    {FIELD(costs_path), WEFT_OPTION_PATH, .name = "costs", .arg = "COSTS.json",
     .help = "read measured costs (written by weft tune); the command weft also accepts default "
             "for default costs, and without this option uses WEFT_COSTS, else the calibration of "
             "this machine"},
    {FIELD(profile_path), WEFT_OPTION_PATH, .name = "profile", .arg = "P.json",
     .help = "read measured times of kernels and collectives (written by weft run "
             "--write-profile or Session.write_profile)"},
    {FIELD(topology_path), WEFT_OPTION_PATH, .name = "topology", .arg = "FILE.json",
     .help = "read the description of a cluster (written by weft topo --json)"},
    {FIELD(shard_optimizer), WEFT_OPTION_FLAG, TRAINING, "shard_optimizer",
     .help = "each rank updates its shard of the weights and stores only that shard of the "
             "optimizer state"},
    {FIELD(decouple), WEFT_OPTION_FLAG, TRAINING, "decouple", .implies = "shard_optimizer",
     .help = "overlap the all-gather of updated weights with the next forward pass"},
    {FIELD(accumulate), WEFT_OPTION_U32, TRAINING, "accumulate", "K", .low = 1,
     .high = MAX_MICRO_BATCHES, .by_default = "1", .help = "micro-batches per rank and step"},
    {FIELD(global_micro_batches), WEFT_OPTION_U32, TRAINING, "global_micro_batches", "V", .low = 1,
     .high = MAX_MICRO_BATCHES, .excludes = "accumulate",
     .reason = "the micro-batches of a rank are the global number divided by world_size",
     .help = "micro-batches V of all ranks per step; the weights have the same bits for 1 rank and "
             "for N ranks if V / N is a power of two"},
    {FIELD(wire), WEFT_OPTION_TEXT, TRAINING, "wire", "TYPE", .choices = wires, .by_default = "f32",
     .help = "data type in which gradients are sent; each rank's sum is rounded to it"},
    {FIELD(clip_norm), WEFT_OPTION_F64, TRAINING, "clip", "NORM",
     .help = "scale gradients down if their global norm is above NORM"},
    {FIELD(grads_path), WEFT_OPTION_PATH, WEFT_OPTION_TRAINING | WEFT_OPTION_IN_GRAPH, "grads",
     "MAP.json", .help = "read which tensor of the graph is the gradient of which parameter"},
    {FIELD(in_flight), WEFT_OPTION_U32, WEFT_OPTION_RECORDED, "in_flight", "K", .low = 1,
     .help = "maximum number of collectives in flight"},
    {FIELD(arena_limit), WEFT_OPTION_BYTES, WEFT_OPTION_RECORDED, "arena_limit", "BYTES", .low = 1,
     .help = "maximum size of the arena, such as 512M or 4G"},
    {FIELD(infer), WEFT_OPTION_FLAG, WEFT_OPTION_RECORDED, "infer",
     .help = "compile for inference: the graph is used as it is, with its collectives"},
    {FIELD(split_batch), WEFT_OPTION_FLAG, INFERENCE, "split_batch", "B", .needs = "batch",
     .excludes = "rank_models", .reason = "one batch of all ranks is split, for one model",
     .help = "the batch is that of all ranks together; rank 0 reads the inputs and scatters them, "
             "and gathers the outputs"},
    {FIELD(ops_path), WEFT_OPTION_OPS, .name = "ops", .arg = "OPS.json",
     .help = "declare operators from a file"},
    {FIELD(registry), WEFT_OPTION_PLUGINS, .name = "kernels", .arg = "LIB.so",
     .help = "load operators and kernels from a plugin"},
    {FIELD(open_batch), WEFT_OPTION_I64, .low = 1, .high = INT32_MAX,
     .help = "batch if the model leaves the batch open"},
    {FIELD(on_pass), WEFT_OPTION_OBJECT, .help = "receives a report of every pass"},
    {FIELD(on_pass_user), WEFT_OPTION_OBJECT, .help = "first argument of on_pass"},
    {FIELD(log), WEFT_OPTION_OBJECT, .help = "receives log lines"},
    {FIELD(log_user), WEFT_OPTION_OBJECT, .help = "first argument of log"},
    {FIELD(allocator), WEFT_OPTION_OBJECT, .help = "allocates all memory of the compilation"},
    {FIELD(struct_size), WEFT_OPTION_OBJECT, .help = "size of the struct of the caller"},
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

static const void *at(const weft_compile_option_t *option, const weft_compile_params_t *params)
{
    return (const char *)params + option->offset;
}

static bool is_number(const weft_compile_option_t *option)
{
    return option->type <= WEFT_OPTION_F64;
}

static double number_of(const weft_compile_option_t *option, const weft_compile_params_t *params)
{
    const void *value = at(option, params);
    switch (option->type) {
    case WEFT_OPTION_FLAG:
        return *(const int *)value;
    case WEFT_OPTION_U32:
        return *(const uint32_t *)value;
    case WEFT_OPTION_I64:
        return (double)*(const int64_t *)value;
    case WEFT_OPTION_BYTES:
        return (double)*(const uint64_t *)value;
    default:
        return *(const double *)value;
    }
}

bool wefti_option_is_set(const weft_compile_option_t *option, const weft_compile_params_t *params)
{
    const void *value = at(option, params);
    if (is_number(option)) {
        return !(number_of(option, params) == 0);
    }
    if (option->offset == offsetof(weft_compile_params_t, shapes)) {
        return params->shape_count > 0;
    }
    if (option->offset == offsetof(weft_compile_params_t, rank_models)) {
        return params->rank_model_count > 0;
    }
    return *(const void *const *)value != NULL;
}

weft_status_t wefti_option_format(const weft_compile_option_t *option,
                                  const weft_compile_params_t *params, wefti_arena_t *arena,
                                  const char **out_text)
{
    const void *value = at(option, params);
    *out_text = NULL;
    if (!wefti_option_is_set(option, params)) {
        return WEFT_OK;
    }
    switch (option->type) {
    case WEFT_OPTION_FLAG:
        *out_text = "1";
        break;
    case WEFT_OPTION_U32:
        *out_text = wefti_arena_printf(arena, "%" PRIu32, *(const uint32_t *)value);
        break;
    case WEFT_OPTION_I64:
        *out_text = wefti_arena_printf(arena, "%" PRId64, *(const int64_t *)value);
        break;
    case WEFT_OPTION_BYTES:
        *out_text = wefti_arena_printf(arena, "%" PRIu64, *(const uint64_t *)value);
        break;
    case WEFT_OPTION_F64:
        *out_text = wefti_arena_printf(arena, "%.17g", *(const double *)value);
        break;
    default:
        *out_text = *(const char *const *)value;
        break;
    }
    return *out_text == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* ---- ranges ---- */

/* What the option allows: "a whole number between 1 and 65536", "sgd, momentum or adam". */
static const char *range_words(const weft_compile_option_t *option, char *out, size_t bytes)
{
    size_t used = 0;
    if (option->choices != NULL) {
        for (size_t i = 0; option->choices[i] != NULL && used < bytes; i++) {
            const char *between = i == 0 ? "" : option->choices[i + 1] != NULL ? ", " : " or ";
            used += (size_t)snprintf(out + used, bytes - used, "%s%s", between, option->choices[i]);
        }
    } else if (option->type == WEFT_OPTION_FLAG) {
        snprintf(out, bytes, "0 or 1");
    } else if (option->type == WEFT_OPTION_BYTES) {
        snprintf(out, bytes, "a number of bytes such as 8, 4K or 64M");
    } else if (option->type == WEFT_OPTION_F64) {
        bool zero = (option->flags & WEFT_OPTION_ZERO) != 0;
        used = (size_t)snprintf(out, bytes, "a number %s %g", zero ? "of at least" : "above",
                                option->low);
        if (option->high != 0) {
            snprintf(out + used, bytes - used, " and below %g", option->high);
        }
    } else if (option->high != 0) {
        snprintf(out, bytes, "a whole number between %.0f and %.0f", option->low, option->high);
    } else {
        snprintf(out, bytes, "a whole number of at least %.0f", option->low);
    }
    return out;
}

weft_status_t wefti_option_refuse(const char *field, const char *text)
{
    char words[MAX_WORDS];
    return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, field, "must be %s: %s",
                             range_words(find_field(field), words, sizeof words), text);
}

static bool in_range(const weft_compile_option_t *option, double value)
{
    if (option->type == WEFT_OPTION_F64) {
        bool zero = (option->flags & WEFT_OPTION_ZERO) != 0;
        /* Updates compute with floats: what rounds to 0 there is 0. */
        return isfinite(value) && value >= option->low && (zero || (float)value > option->low) &&
               (option->high == 0 || value < option->high);
    }
    if (option->type == WEFT_OPTION_FLAG) {
        return value == 0 || value == 1;
    }
    return value >= option->low && (option->high == 0 || value <= option->high);
}

static bool is_choice(const weft_compile_option_t *option, const char *text)
{
    for (size_t i = 0; option->choices != NULL; i++) {
        if (option->choices[i] == NULL) {
            return false;
        }
        if (strcmp(option->choices[i], text) == 0) {
            break;
        }
    }
    return true;
}

/* ---- help ---- */

/* "; implies --shard-optimizer": words, and the name of the option that sets field. */
static void add_other(wefti_text_t *text, const char *words, const char *prefix, const char *field)
{
    if (field == NULL || (find_field(field)->flags & WEFT_OPTION_POSITIONAL) != 0) {
        return;
    }
    const char *name = find_field(field)->name;
    wefti_text_printf(text, "; %s %s", words, prefix);
    for (; *name != '\0'; name++) {
        wefti_text_add_bytes(text, *name == '_' && prefix[0] == '-' ? "-" : name, 1);
    }
}

void weft_compile_option_help(size_t index, const char *prefix, char *out, size_t bytes)
{
    const weft_compile_option_t *option = weft_compile_option(index);
    wefti_text_t facts;
    char choices[MAX_WORDS];
    WEFT_CHECK_ARG_VOID(prefix);
    WEFT_CHECK_ARG_VOID(out);
    if (option == NULL || bytes == 0) {
        snprintf(out, bytes, "%s", "");
        return;
    }
    wefti_text_init(&facts, NULL);
    if (option->by_default != NULL) {
        wefti_text_printf(&facts, "; default %s", option->by_default);
    }
    add_other(&facts, "requires", prefix,
              (option->flags & WEFT_OPTION_INFERENCE) != 0 ? "infer" : NULL);
    add_other(&facts, "implies", prefix, option->implies);
    bool has_needed = prefix[0] == '-' && option->type == WEFT_OPTION_FLAG && option->arg != NULL;
    add_other(&facts, "requires", prefix, has_needed ? NULL : option->needs);
    add_other(&facts, "excludes", prefix, option->excludes);
    bool some = facts.length > 0 && !facts.failed;
    snprintf(out, bytes, "%s%s%s%s%s%s", option->help, option->choices != NULL ? ": " : "",
             option->choices != NULL ? range_words(option, choices, sizeof choices) : "",
             some ? " (" : "", some ? facts.data + 2 : "", some ? ")" : "");
    wefti_text_deinit(&facts);
}

/* ---- text to field ---- */

/* The factor of the unit at *end, which moves behind it. */
static double unit_of(const weft_compile_option_t *option, char **end)
{
    static const char units[] = "KMG";
    const char *unit =
        option->type == WEFT_OPTION_BYTES && **end != '\0' ? strchr(units, **end) : NULL;
    *end += unit != NULL ? 1 : 0;
    return unit != NULL ? (double)(UINT64_C(1) << (10 * (unit - units + 1))) : 1;
}

static bool read_number(const weft_compile_option_t *option, const char *text, double *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtod(text, &end);
    if (end == text) {
        return false;
    }
    *out *= unit_of(option, &end);
    return *end == '\0' && errno == 0 && in_range(option, *out) &&
           (option->type == WEFT_OPTION_F64 || option->type == WEFT_OPTION_BYTES ||
            strspn(text, "0123456789") == strlen(text)) &&
           (option->type != WEFT_OPTION_U32 || *out <= UINT32_MAX) &&
           (option->type != WEFT_OPTION_BYTES || *out < 0x1p63);
}

static void write_number(const weft_compile_option_t *option, double value, void *field)
{
    switch (option->type) {
    case WEFT_OPTION_FLAG:
        *(int *)field = (int)value;
        break;
    case WEFT_OPTION_U32:
        *(uint32_t *)field = (uint32_t)value;
        break;
    case WEFT_OPTION_I64:
        *(int64_t *)field = (int64_t)value;
        break;
    case WEFT_OPTION_BYTES:
        *(uint64_t *)field = (uint64_t)value;
        break;
    default:
        *(double *)field = value;
        break;
    }
}

static weft_status_t unknown_option(const char *name)
{
    wefti_suggestion_t near = {.word = name};
    for (size_t i = 0; i < COUNT; i++) {
        if (table[i].name != NULL) {
            wefti_suggestion_offer(&near, table[i].name);
        }
    }
    return near.best == NULL
               ? wefti_error(WEFT_ERR_NOT_FOUND, "unknown option '%s'", name)
               : wefti_error(WEFT_ERR_NOT_FOUND, "unknown option '%s' (did you mean '%s'?)", name,
                             near.best);
}

weft_status_t weft_compile_option_set(weft_compile_params_t *params, const char *name,
                                      const char *text)
{
    WEFT_CHECK_ARG(params);
    WEFT_CHECK_ARG(name);
    const weft_compile_option_t *option = table;
    while (option < table + COUNT && (option->name == NULL || strcmp(option->name, name) != 0)) {
        option++;
    }
    if (option == table + COUNT) {
        return unknown_option(name);
    }
    void *field = (char *)params + option->offset;
    double number = 1;
    if (option->type != WEFT_OPTION_FLAG) {
        WEFT_CHECK_ARG(text);
    }
    bool is_short = option->type == WEFT_OPTION_FLAG || option->type == WEFT_OPTION_U32;
    weft_status_t status = wefti_params_reach(
        "params", params, option->offset + (is_short ? sizeof(int) : sizeof(void *)));
    if (status < 0) {
        return status;
    }
    if (is_number(option)) {
        if (text != NULL && !read_number(option, text, &number)) {
            return wefti_option_refuse(option->field, text);
        }
        write_number(option, number, field);
        return WEFT_OK;
    }
    if (option->type != WEFT_OPTION_TEXT && option->type != WEFT_OPTION_PATH) {
        return wefti_error_field(WEFT_ERR_UNSUPPORTED, option->field, "cannot be set from text");
    }
    if (!is_choice(option, text)) {
        return wefti_option_refuse(option->field, text);
    }
    memcpy(field, &text, sizeof text);
    return option->offset == offsetof(weft_compile_params_t, bucket)
               ? weft_bucket_policy_check(text)
               : WEFT_OK;
}

/* ---- all fields ---- */

static weft_status_t check_value(const weft_compile_option_t *option,
                                 const weft_compile_params_t *params)
{
    char text[32];
    if (is_number(option)) {
        double number = number_of(option, params);
        snprintf(text, sizeof text, option->type == WEFT_OPTION_F64 ? "%g" : "%.0f", number);
        return option->type == WEFT_OPTION_FLAG || in_range(option, number)
                   ? WEFT_OK
                   : wefti_option_refuse(option->field, text);
    }
    const char *value = option->choices != NULL ? *(const char *const *)at(option, params) : NULL;
    return value == NULL || is_choice(option, value) ? WEFT_OK
                                                     : wefti_option_refuse(option->field, value);
}

static weft_status_t check_others(const weft_compile_option_t *option,
                                  const weft_compile_params_t *params)
{
    if (params->infer && (option->flags & WEFT_OPTION_TRAINING) != 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, option->field,
                                 "only for training, but infer is set");
    }
    if (!params->infer && (option->flags & WEFT_OPTION_INFERENCE) != 0) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, option->field, "requires infer");
    }
    if (option->needs != NULL && !wefti_option_is_set(find_field(option->needs), params)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, option->field, "requires %s: %s",
                                 option->needs, option->reason);
    }
    return option->excludes != NULL && wefti_option_is_set(find_field(option->excludes), params)
               ? wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, option->field, "excludes %s: %s",
                                   option->excludes, option->reason)
               : WEFT_OK;
}

weft_status_t wefti_options_check(const weft_compile_params_t *params)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < COUNT && status >= 0; i++) {
        if (wefti_option_is_set(&table[i], params)) {
            status = check_value(&table[i], params);
            status = status < 0 ? status : check_others(&table[i], params);
        }
    }
    return status;
}

void wefti_options_imply(weft_compile_params_t *params)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (table[i].implies != NULL && wefti_option_is_set(&table[i], params)) {
            *(int *)((char *)params + find_field(table[i].implies)->offset) = 1;
        }
    }
}

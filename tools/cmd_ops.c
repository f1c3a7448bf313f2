/* SPDX-License-Identifier: Apache-2.0 */
/* weft ops: every operator definition. */
#include <stdio.h>

#include "ops/op_facts.h"
#include "runtime/base/json.h"
#include "tools/output.h"
#include "tools/tool.h"

enum { KEY_JSON = 256, KEY_KERNELS };

static const option_def_t own_options[] = {
    {KEY_KERNELS, "kernels", "LIB.so", "load operators and kernels from a plugin (repeatable)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_ops_command(int argc, char **argv);

const command_t wefti_ops_command = {
    .name = "ops",
    .brief = "list the operator definitions",
    .synopsis = "[--kernels LIB.so] [--json]",
    .summary = "Lists every operator definition: number of inputs and outputs, attributes, types, "
               "effects, facts, and the equivalent MPI or NCCL call.",
    .epilogue = NULL,
    .options = {own_options},
    .run = run_ops_command,
};

typedef struct ops_command {
    weft_registry_t *registry;
    bool json;
    wefti_json_t *json_out;
    const char *domain; /* last one printed */
} ops_command_t;

static int handle(void *user, int key, const char *value)
{
    ops_command_t *command = user;
    if (key == KEY_JSON) {
        command->json = true;
        return EXIT_OK;
    }
    weft_status_t status = weft_registry_load_plugin(command->registry, value);
    return status < 0 ? wefti_status_error("ops", status) : EXIT_OK;
}

static const char *attr_type_name(weft_attr_type_t type)
{
    static const char *const names[] = {"?",    "int",    "float",   "string",
                                        "ints", "floats", "strings", "tensor"};
    return (size_t)type < sizeof names / sizeof *names ? names[type] : names[0];
}

/* "2" or "1..3" or "1.." */
static const char *arity_text(uint8_t low, uint8_t high, char *buffer, size_t bytes)
{
    if (high == WEFT_VARIADIC) {
        snprintf(buffer, bytes, "%u..", low);
    } else if (low == high) {
        snprintf(buffer, bytes, "%u", low);
    } else {
        snprintf(buffer, bytes, "%u..%u", low, high);
    }
    return buffer;
}

static const char *effects_text(weft_effects_t effects)
{
    if (effects & WEFT_EFFECT_UNKNOWN) {
        return "unknown";
    }
    if (effects & WEFT_EFFECT_COMMUNICATES) {
        return "communicates";
    }
    if (effects & WEFT_EFFECT_UPDATES) {
        return "updates";
    }
    return effects & WEFT_EFFECT_RANDOM ? "random" : "pure";
}

static void print_fact(const char *name, void *user)
{
    int *count = user;
    printf("%*s%s", *count == 0 ? 64 : 0, "", *count == 0 ? "" : ", ");
    printf("%s", name);
    (*count)++;
}

static int print_text(const weft_op_def_t *def, void *user)
{
    ops_command_t *command = user;
    char inputs[16];
    char outputs[16];
    const char *domain = def->domain[0] == '\0' ? "ai.onnx" : def->domain;
    if (command->domain == NULL || command->domain != def->domain) {
        printf("%s%s\n", command->domain == NULL ? "" : "\n", domain);
        command->domain = def->domain;
    }
    printf("  %-28s v%-3d %4s -> %-4s %-13s%s%s\n", def->name, def->since_version,
           arity_text(def->inputs_min, def->inputs_max, inputs, sizeof inputs),
           arity_text(def->outputs_min, def->outputs_max, outputs, sizeof outputs),
           effects_text(def->effects), def->doc, "");
    if (def->equivalent != NULL) {
        printf("  %-48s %-13s%s\n", "", "", def->equivalent);
    }
    int facts = 0;
    wefti_op_each_fact(def, print_fact, &facts);
    if (facts > 0) {
        putchar('\n');
    }
    return 0;
}

static void write_attrs(wefti_json_t *json, const weft_op_def_t *def)
{
    wefti_json_begin_array(json, "attributes");
    for (size_t i = 0; i < def->attr_count; i++) {
        const weft_attr_def_t *attr = &def->attrs[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", attr->name);
        wefti_json_string(json, "type", attr_type_name(attr->type));
        wefti_json_bool(json, "required", attr->required != 0);
        if (!attr->required && attr->type == WEFT_ATTR_TYPE_INT) {
            wefti_json_int(json, "default", attr->default_i);
        } else if (!attr->required && attr->type == WEFT_ATTR_TYPE_FLOAT) {
            wefti_json_double(json, "default", (double)attr->default_f);
        } else if (!attr->required) {
            wefti_json_string(json, "default", attr->default_s);
        }
        wefti_json_string(json, "doc", attr->doc);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static const char *ordering_text(weft_ordering_t ordering)
{
    return ordering == WEFT_ORDERING_GROUP  ? "group"
           : ordering == WEFT_ORDERING_PAIR ? "pair"
                                            : "none";
}

static void write_fact(const char *name, void *user)
{
    wefti_json_string(user, NULL, name);
}

static int write_json(const weft_op_def_t *def, void *user)
{
    wefti_json_t *json = ((ops_command_t *)user)->json_out;
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "domain", def->domain);
    wefti_json_string(json, "name", def->name);
    wefti_json_int(json, "since_version", def->since_version);
    wefti_json_int(json, "inputs_min", def->inputs_min);
    wefti_json_int(json, "inputs_max", def->inputs_max == WEFT_VARIADIC ? -1 : def->inputs_max);
    wefti_json_int(json, "outputs_min", def->outputs_min);
    wefti_json_int(json, "outputs_max", def->outputs_max == WEFT_VARIADIC ? -1 : def->outputs_max);
    wefti_json_string(json, "effects", effects_text(def->effects));
    wefti_json_begin_array(json, "dtypes");
    for (int dtype = WEFT_DTYPE_F64; dtype <= WEFT_DTYPE_BOOL; dtype++) {
        if (def->dtypes & WEFT_DTYPE_BIT(dtype)) {
            wefti_json_string(json, NULL, weft_dtype_name((weft_dtype_t)dtype));
        }
    }
    wefti_json_end_array(json);
    write_attrs(json, def);
    wefti_json_begin_array(json, "facts");
    wefti_op_each_fact(def, write_fact, json);
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "linear_inputs");
    for (int i = 0; i < 32; i++) {
        if ((wefti_op_facts(def).linear_inputs >> i & 1) != 0) {
            wefti_json_int(json, NULL, i);
        }
    }
    wefti_json_end_array(json);
    wefti_json_string(json, "gradient", def->grad);
    wefti_json_string(json, "ordering", ordering_text(def->ordering));
    wefti_json_string(json, "start", def->start);
    wefti_json_string(json, "wait", def->wait);
    wefti_json_string(json, "equivalent", def->equivalent);
    wefti_json_string(json, "doc", def->doc);
    wefti_json_end_object(json);
    return 0;
}

static void print_json(ops_command_t *command)
{
    output_object_t object;
    command->json_out = wefti_output_begin(&object);
    wefti_json_begin_array(command->json_out, "operators");
    weft_op_registry_visit(command->registry, write_json, command);
    wefti_json_end_array(command->json_out);
    wefti_output_end(&object);
}

static int run_ops_command(int argc, char **argv)
{
    ops_command_t command = {0};
    int positional = 0;
    weft_status_t status = weft_registry_create(NULL, &command.registry);
    if (status < 0) {
        return wefti_status_error("ops", status);
    }
    int code = wefti_parse_options(argc, argv, &wefti_ops_command, handle, &command, &positional);
    if (code == EXIT_OK && positional != 0) {
        code = wefti_usage_error("ops", "unexpected argument '%s'", argv[1]);
    } else if (code == EXIT_OK && command.json) {
        print_json(&command);
    } else if (code == EXIT_OK) {
        weft_op_registry_visit(command.registry, print_text, &command);
    }
    weft_registry_destroy(command.registry);
    return code < 0 ? EXIT_OK : code;
}

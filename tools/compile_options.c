/* SPDX-License-Identifier: Apache-2.0 */
/* The options of compiling, for `weft compile`, `check` and `run MODEL.onnx`: the rows of
 * weft_compile_option that have a name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/text.h"
#include "tools/tool.h"

enum { KEY_FIRST = 300 }; /* + index of weft_compile_option */

option_def_t wefti_compile_option_defs[COMPILE_OPTIONS_MAX + 1];

static bool is_list(const weft_compile_option_t *option)
{
    return option->type == WEFT_OPTION_TYPE_SHAPES || option->type == WEFT_OPTION_TYPE_OPS ||
           option->type == WEFT_OPTION_TYPE_PLUGINS || (option->flags & WEFT_OPTION_FLAG_LIST) != 0;
}

void wefti_compile_options_load(void)
{
    static char names[COMPILE_OPTIONS_MAX][32], helps[COMPILE_OPTIONS_MAX][512];
    const weft_compile_option_t *option;
    size_t count = 0;
    for (size_t i = 0; (option = weft_compile_option(i)) != NULL; i++) {
        if (i >= COMPILE_OPTIONS_MAX) {
            abort(); /* a new option: the limit must rise with it */
        }
        if (option->name == NULL || (option->flags & WEFT_OPTION_FLAG_POSITIONAL) != 0) {
            continue;
        }
        char *help = helps[count];
        snprintf(names[count], sizeof *names, "%s", option->name);
        for (char *at = names[count]; *at != '\0'; at++) {
            *at = *at == '_' ? '-' : *at;
        }
        weft_compile_option_help(i, "--", help, sizeof *helps);
        snprintf(help + strlen(help), sizeof *helps - strlen(help), "%s",
                 is_list(option) ? " (repeatable)" : "");
        wefti_compile_option_defs[count] =
            (option_def_t){option->letter != 0 ? option->letter : KEY_FIRST + (int)i, names[count],
                           option->arg, help};
        count++;
    }
}

/* The option of a key: a letter, or its index. */
static const weft_compile_option_t *find_option(int key)
{
    const weft_compile_option_t *option;
    size_t i = 0;
    while ((option = weft_compile_option(i)) != NULL && option->letter != key &&
           KEY_FIRST + (int)i != key) {
        i++;
    }
    return option;
}

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
    for (size_t i = 0; i < COMPILE_OPTIONS_MAX; i++) {
        free(options->lists[i]);
        options->lists[i] = NULL;
    }
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

/* --batch counts the samples of a rank, --split-batch those of all ranks; the library has one field
 * and a flag for both. */
static int set_batch(compile_options_t *options, const char *command,
                     const weft_compile_option_t *option, const char *value)
{
    if (options->batch_option != NULL && options->batch_option != option) {
        return wefti_usage_error(command, "--batch and --split-batch exclude each other");
    }
    options->batch_option = option;
    options->params.split_batch = option->type == WEFT_OPTION_TYPE_FLAG;
    weft_status_t status = weft_compile_option_set(&options->params, "batch", value);
    return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
}

/* Notes an option that does not apply to a plan: all but the number of ranks, --lr, --ops and
 * --kernels. */
static void note_use(compile_options_t *options, const weft_compile_option_t *option, int key)
{
    bool of_plans = option->letter != 0 || option->type == WEFT_OPTION_TYPE_OPS ||
                    option->type == WEFT_OPTION_TYPE_PLUGINS || strcmp(option->name, "lr") == 0;
    for (const option_def_t *def = wefti_compile_option_defs; def->key != 0; def++) {
        options->used = def->key == key && !of_plans ? def->name : options->used;
    }
}

/* One more entry of a list. */
static weft_status_t add_entry(compile_options_t *options, const weft_compile_option_t *option,
                               const char *value)
{
    size_t index = 0;
    wefti_text_t text;
    while (weft_compile_option(index) != option) {
        index++;
    }
    char **list = &options->lists[index];
    wefti_text_init(&text, NULL);
    wefti_text_printf(&text, "%s%s%s", *list != NULL ? *list : "", *list != NULL ? "," : "", value);
    free(*list);
    *list = wefti_text_take(&text);
    return *list == NULL ? WEFT_ERR_NO_MEMORY
                         : weft_compile_option_set(&options->params, option->name, *list);
}

int wefti_compile_option(compile_options_t *options, const char *command, int key,
                         const char *value)
{
    const weft_compile_option_t *option = find_option(key);
    weft_status_t status;
    note_use(options, option, key);
    if (option->type == WEFT_OPTION_TYPE_SHAPES) {
        return parse_shape(options, command, value);
    }
    if (strcmp(option->field, "batch") == 0 || strcmp(option->field, "split_batch") == 0) {
        return set_batch(options, command, option, value);
    }
    if (option->type == WEFT_OPTION_TYPE_OPS) { /* binding and verifying also need operators */
        status = weft_registry_load_ops(options->registry, value);
    } else if (option->type == WEFT_OPTION_TYPE_PLUGINS) {
        status = weft_registry_load_plugin(options->registry, value);
    } else if ((option->flags & WEFT_OPTION_FLAG_LIST) != 0) {
        status = add_entry(options, option, value);
    } else {
        status = weft_compile_option_set(&options->params, option->name, value);
    }
    return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
}

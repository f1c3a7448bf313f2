/* SPDX-License-Identifier: Apache-2.0 */
/* weft explain: what a plan does and why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "tools/page.h"
#include "tools/tool.h"

enum {
    KEY_JSON = 256,
    KEY_COMPARE,
    KEY_WHY,
    KEY_KERNELS,
    KEY_OPS,
    KEY_HTML,
    KEY_PROFILE,
    KEY_COSTS
};

static const option_def_t own_options[] = {
    {KEY_COMPARE, "compare", NULL, "print only the predicted step time of each bucket policy"},
    {KEY_WHY, "why", "TENSOR",
     "print only when a gradient is communicated, and why that time is exposed; TENSOR is a "
     "gradient or its parameter"},
    {KEY_HTML, "html", "OUT.html",
     "write a page instead: graph, timeline, what-if, memory, algorithms; the file loads nothing"},
    {KEY_PROFILE, "profile", "FILE",
     "with --html: show measured times below predicted ones; FILE is of weft run --write-profile "
     "or --trace"},
    {KEY_COSTS, "costs", "COSTS.json",
     "with --html: costs of other numbers of ranks (default: WEFT_COSTS, or the built-in table)"},
    {KEY_OPS, "ops", "OPS.json", "declare operators from a file (repeatable)"},
    {KEY_KERNELS, "kernels", "LIB.so", "load operators and kernels from a plugin (repeatable)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_explain_command(int argc, char **argv);

const command_t wefti_explain_command = {
    .name = "explain",
    .brief = "show the decisions in a plan, and their reasons",
    .synopsis = "PLAN.weft [--compare | --why TENSOR] [--json]\n"
                "PLAN.weft --html OUT.html [--profile FILE] [--costs COSTS.json]",
    .summary =
        "Shows the contents of a plan: buckets and their gradients, sizes, algorithms, "
        "predicted times, streams, memory and copied bytes. A page (--html) is one file that "
        "any browser shows without a network.",
    .epilogue = "examples:\n"
                "  weft explain mlp.weft\n"
                "  weft explain mlp.weft --compare\n"
                "  weft explain mlp.weft --why fc1.weight\n"
                "  weft explain mlp.weft --html mlp.html --profile profile.json\n",
    .options = {own_options},
    .run = run_explain_command,
};

typedef struct explain_command {
    weft_registry_t *registry;
    const char *why, *html, *profile, *costs;
    bool json, compare;
} explain_command_t;

static int handle(void *user, int key, const char *value)
{
    explain_command_t *command = user;
    switch (key) {
    case KEY_WHY:
        command->why = value;
        return EXIT_OK;
    case KEY_HTML:
        command->html = value;
        return EXIT_OK;
    case KEY_PROFILE:
        command->profile = value;
        return EXIT_OK;
    case KEY_COSTS:
        command->costs = value;
        return EXIT_OK;
    case KEY_JSON:
        command->json = true;
        return EXIT_OK;
    case KEY_COMPARE:
        command->compare = true;
        return EXIT_OK;
    default:
        break;
    }
    weft_status_t status = key == KEY_OPS ? weft_registry_load_ops(command->registry, value)
                                          : weft_registry_load_plugin(command->registry, value);
    return status < 0 ? wefti_status_error("explain", status) : EXIT_OK;
}

/* {"tensor": "fc1.weight", "lines": [..]}: the text of --why, line by line */
static weft_status_t why_json(const char *tensor, char **text)
{
    wefti_text_t json_text;
    wefti_json_t json;
    wefti_text_init(&json_text, NULL);
    wefti_json_init(&json, &json_text, false);
    wefti_json_begin_object(&json, NULL);
    wefti_json_string(&json, "tensor", tensor);
    wefti_json_begin_array(&json, "lines");
    for (char *rest = *text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (*line != '\0') {
            wefti_json_string(&json, NULL, line);
        }
    }
    wefti_json_end_array(&json);
    wefti_json_end_object(&json);
    wefti_text_add(&json_text, "\n");
    free(*text);
    *text = wefti_text_take(&json_text);
    return *text != NULL ? WEFT_OK : wefti_error(WEFT_ERR_NO_MEMORY, "out of memory");
}

static int explain(const explain_command_t *command, const char *path)
{
    weft_plan_t *plan = NULL;
    char *text = NULL;
    weft_status_t status = weft_plan_load(path, command->registry, &plan);
    if (status >= 0 && command->html != NULL) {
        status = wefti_explain_page(plan, command->profile, command->costs, command->html);
    } else if (status >= 0) {
        status = command->why != NULL ? weft_plan_why(plan, command->why, &text)
                 : command->compare && !command->json
                     ? weft_plan_compare(plan, &text)
                     : weft_plan_explain(plan, command->json ? WEFT_FORMAT_JSON : WEFT_FORMAT_TEXT,
                                         &text);
    }
    if (status >= 0 && command->why != NULL && command->json) {
        status = why_json(command->why, &text);
    }
    weft_plan_release(plan);
    if (status < 0) {
        return wefti_status_error("explain", status);
    }
    if (command->html != NULL) {
        printf("wrote %s\n", command->html);
        return EXIT_OK;
    }
    fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

static int run_explain_command(int argc, char **argv)
{
    explain_command_t command = {0};
    int positional = 0;
    weft_status_t status = weft_registry_create(NULL, &command.registry);
    if (status < 0) {
        return wefti_status_error("explain", status);
    }
    int code =
        wefti_parse_options(argc, argv, &wefti_explain_command, handle, &command, &positional);
    if (code == EXIT_OK && positional != 1) {
        code = wefti_usage_error("explain", "expected one PLAN.weft, got %d arguments", positional);
    } else if (code == EXIT_OK && command.html == NULL && (command.profile || command.costs)) {
        code = wefti_usage_error("explain", "--profile and --costs require --html");
    } else if (code == EXIT_OK && command.html &&
               (command.json || command.compare || command.why)) {
        code = wefti_usage_error("explain", "--html excludes --json, --compare and --why");
    } else if (code == EXIT_OK) {
        code = explain(&command, argv[1]);
    }
    weft_registry_destroy(command.registry);
    return code < 0 ? EXIT_OK : code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* weft report: a page about a run, from what weft run --report has written. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/page.h"
#include "tools/tool.h"

#define FORMAT 1

static const option_def_t own_options[] = {
    {'o', "output", "OUT.html", "page to write (default: RUN_DIR/report.html)"},
    {0, NULL, NULL, NULL},
};

static int run_report_command(int argc, char **argv);

const command_t wefti_report_command = {
    .name = "report",
    .brief = "write a page about a training run",
    .synopsis = "RUN_DIR [-o OUT.html]",
    .summary =
        "Reads RUN_DIR/run.json, which weft run --report RUN_DIR has written, and writes a "
        "page that any browser shows without a network: loss, step times, skew of ranks, "
        "links between hosts, and how the run continued after ranks died. Of a run that goes on, "
        "or that was killed, it shows the steps of rank 0.",
    .epilogue = "examples:\n"
                "  weft run mlp.weft -n 2 --data /usr/share/datasets/fashion-mnist --report run\n"
                "  weft report run\n",
    .options = {own_options},
    .run = run_report_command,
};

static int handle(void *user, int key, const char *value)
{
    (void)key;
    *(const char **)user = value;
    return EXIT_OK;
}

static bool is(const wefti_json_tree_t *tree, const char *key, wefti_json_kind_t kind)
{
    const wefti_json_node_t *node =
        tree->nodes->kind == WEFTI_JSON_OBJECT ? wefti_json_get(tree, tree->nodes, key) : NULL;
    return node != NULL && node->kind == kind;
}

static weft_status_t check(const wefti_json_tree_t *tree, const char *path)
{
    if (!is(tree, "format", WEFTI_JSON_NUMBER) ||
        wefti_json_get(tree, tree->nodes, "format")->number != FORMAT) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: unsupported format: must be %d", path, FORMAT);
    }
    if (!is(tree, "report", WEFTI_JSON_OBJECT) || !is(tree, "steps", WEFTI_JSON_ARRAY) ||
        !is(tree, "ranks", WEFTI_JSON_ARRAY)) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: missing report, steps or ranks", path);
    }
    return WEFT_OK;
}

static weft_status_t write_page(const char *run, const char *output)
{
    static const char *const names[] = {"run.json", "report.html"};
    const char *const scripts[] = {page_base_js, page_report_js};
    char paths[2][4096];
    wefti_json_tree_t tree = {0};
    wefti_text_t text;
    for (size_t i = 0; i < 2; i++) {
        if ((size_t)snprintf(paths[i], sizeof paths[i], "%s/%s", run, names[i]) >=
            sizeof paths[i]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "path too long: %zu bytes", strlen(run));
        }
    }
    wefti_text_init(&text, NULL);
    weft_status_t status = wefti_page_read_json(paths[0], &tree, &text);
    if (status >= 0) {
        output = output != NULL ? output : paths[1];
        status = check(&tree, paths[0]);
        if (status >= 0) {
            status = wefti_page_write(output, "training run - weft report", scripts, 2, &text);
        }
        wefti_json_tree_deinit(&tree);
    }
    wefti_text_deinit(&text);
    if (status >= 0) {
        printf("wrote %s\n", output);
    }
    return status;
}

static int run_report_command(int argc, char **argv)
{
    const char *output = NULL;
    int positional = 0;
    int code = wefti_parse_options(argc, argv, &wefti_report_command, handle, &output, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 1) {
        return wefti_usage_error("report", "expected one RUN_DIR, got %d arguments", positional);
    }
    weft_status_t status = write_page(argv[1], output);
    return status < 0 ? wefti_status_error("report", status) : EXIT_OK;
}

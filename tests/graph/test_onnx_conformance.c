/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX's own test cases (Debian: libonnx-testdata). Every model is imported or refused cleanly;
 * every case whose operators have kernels here is run and compared with the recorded outputs.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/onnx/onnx.h"
#include "ops/compute/halves.h"
#include "runtime/base/half.h"
#include "runtime/base/sync.h"
#include "tests/support/support.h"

#define DATA "/usr/share/libonnx-testdata/data/"

/* Values that the expansion of operators adds. */
#define MOST_EXPANDED 1000
#define NEW_CASES 39

static weft_registry_t *registry;

typedef struct tally {
    size_t models, imported, refused, run, no_kernel, no_shape, other_type, wrong;
} tally_t;

/* Why cases are not run: the operator and the reason, as many times. */
#define MOST_REASONS 200
typedef struct reason {
    char text[120];
    size_t count;
} reason_t;
static reason_t reasons[MOST_REASONS];

/* "node 3 'fc1' (Gemm): what is wrong; more" counts as "Gemm: what is wrong". */
static void count_reason(const char *error)
{
    char text[sizeof(reasons[0].text)];
    const char *open = strstr(error, "' ("), *bare = strstr(error, "node 0 (");
    const char *colon = strstr(error, ": ");
    const char *from = open != NULL    ? open + 3
                       : bare != NULL  ? bare + 8
                       : colon != NULL ? colon + 2
                                       : error;
    snprintf(text, sizeof(text), "%.100s", from);
    text[strcspn(text, ";")] = '\0';
    char *close = strstr(text, "): ");
    if (close != NULL && (open != NULL || bare != NULL)) {
        memmove(close, close + 1, strlen(close));
    }
    size_t i = 0;
    while (i + 1 < MOST_REASONS && reasons[i].count > 0 && strcmp(reasons[i].text, text) != 0) {
        i++;
    }
    snprintf(reasons[i].text, sizeof(reasons[i].text), "%s", text);
    reasons[i].count++;
}

static int by_count(const void *a, const void *b)
{
    const reason_t *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count)
                                : strcmp(x->text, y->text);
}

static void print_reasons(void)
{
    qsort(reasons, MOST_REASONS, sizeof(reasons[0]), by_count);
    for (size_t i = 0; i < MOST_REASONS && reasons[i].count > 0; i++) {
        print_message("%6zu  %s\n", reasons[i].count, reasons[i].text);
    }
}

typedef void (*case_fn)(const char *folder, const char *name, tally_t *tally);

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Debian's cases; with WEFT_ONNX_CASES others with the same folders. */
static const char *folder_of_cases = DATA;
static const char *cases(void)
{
    return folder_of_cases;
}

static void each_case(const char *suite, case_fn fn, tally_t *tally)
{
    char folder[512], path[1024];
    struct dirent **entries;
    snprintf(folder, sizeof(folder), "%s%s", cases(), suite);
    int count = scandir(folder, &entries, NULL, by_name);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') {
            fn(path, entries[i]->d_name, tally);
        }
        free(entries[i]);
    }
    if (count >= 0) {
        free(entries);
    }
}

static void each_suite(case_fn fn, tally_t *tally)
{
    static const char *const suites[] = {"node", "simple", "pytorch-operator", "pytorch-converted"};
    if (access(cases(), R_OK) != 0) {
        print_message("skipped: no " DATA " (Debian: libonnx-testdata)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(suites) / sizeof(suites[0]); i++) {
        each_case(suites[i], fn, tally);
    }
}

static wefti_graph_t *import_case(const char *folder)
{
    char path[1100];
    snprintf(path, sizeof(path), "%s/model.onnx", folder);
    wefti_onnx_import_params_t params = {.path = path, .loss_optional = true};
    wefti_graph_t *graph = NULL;
    weft_status_t status = wefti_onnx_import(&params, NULL, registry, &graph);
    if (status < 0) {
        bool clean = status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_FORMAT ||
                     status == WEFT_ERR_INVALID_ARGUMENT;
        if (!clean || strstr(weft_last_error(), path) != weft_last_error()) {
            fail_msg("%s: %s: %s", folder, weft_status_name(status), weft_last_error());
        }
    }
    return graph;
}

static void import_one(const char *folder, const char *name, tally_t *tally)
{
    (void)name;
    wefti_graph_t *graph = import_case(folder);
    tally->models++;
    tally->imported += graph != NULL;
    if (graph != NULL && wefti_graph_verify(graph) != WEFT_OK) {
        fail_msg("%s: %s", folder, weft_last_error());
    }
    wefti_graph_destroy(graph);
}

static void test_onnx_conformance_imports(void **state)
{
    (void)state;
    tally_t tally = {0};
    each_suite(import_one, &tally);
    print_message("%zu models: %zu imported, the rest refused by name\n", tally.models,
                  tally.imported);
    assert_true(strcmp(cases(), DATA) != 0 || (tally.models > 1000 && tally.imported >= 909));
}

/* Reads FOLDER/test_data_set_0/KIND_INDEX.pb. */
static weft_status_t read_tensor(const char *folder, const char *kind, uint32_t index,
                                 wefti_arena_t *arena, weft_tensor_desc_t *out)
{
    char path[1200];
    snprintf(path, sizeof(path), "%s/test_data_set_0/%s_%u.pb", folder, kind, index);
    return wefti_onnx_read_tensor(path, arena, out);
}

/* Recorded tensors have u16 for bf16. */
static void recorded_bf16(const weft_tensor_desc_t *declared, weft_tensor_desc_t *recorded)
{
    if (declared->dtype == WEFT_DTYPE_BF16 && recorded->dtype == WEFT_DTYPE_U16) {
        recorded->dtype = WEFT_DTYPE_BF16;
    }
}

/* Inputs get their recorded contents and shapes; integers and single numbers become constants, so
 * that shapes given as inputs are known. data[] holds where each value lives. */
static weft_status_t bind_inputs(wefti_graph_t *graph, const char *folder, wefti_arena_t *arena,
                                 void **data)
{
    uint32_t kept = 0, count = graph->input_count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = graph->inputs[i];
        weft_tensor_desc_t type;
        weft_status_t status = read_tensor(folder, "input", i, arena, &type);
        if (status < 0) {
            return status;
        }
        /* Numbers, and the scales of Resize, may decide shapes; its kernel needs roi. */
        bool floating = (type.dtype == WEFT_DTYPE_F32 || type.dtype == WEFT_DTYPE_F64) &&
                        weft_tensor_elem_count(&type) != 1 &&
                        strcmp(graph->values[id].name, "scales") != 0 &&
                        strcmp(graph->values[id].name, "roi") != 0;
        recorded_bf16(&graph->values[id].type, &type);
        data[id] = (void *)(uintptr_t)type.data;
        graph->values[id].type = type;
        if (floating) {
            graph->values[id].type.data = NULL;
            graph->inputs[kept++] = id;
        } else {
            graph->values[id].kind = WEFTI_VALUE_CONST;
        }
    }
    graph->input_count = kept;
    weft_status_t status = wefti_graph_fold(graph);
    return status < 0 ? status : wefti_graph_expand(graph);
}

typedef enum outcome { RAN, NO_KERNEL, NO_SHAPE, OTHER_TYPE, WRONG } outcome_t;

static outcome_t run_node(const wefti_graph_t *graph, uint32_t id, wefti_arena_t *arena,
                          void **data)
{
    const wefti_node_t *node = &graph->nodes[id];
    const weft_kernel_t *kernel =
        weft_registry_find_kernel(registry, node->def->domain, node->def->name, node->version);
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = wefti_isa_detect();
    const void *inputs[64] = {NULL};
    void *outputs[64] = {NULL}, *kernel_state = NULL;
    size_t scratch_bytes = 0;
    weft_node_desc_t desc;
    if (kernel == NULL || node->input_count > 64 || node->output_count > 64) {
        return NO_KERNEL;
    }
    assert_int_equal(wefti_graph_node_desc(graph, id, arena, &desc), WEFT_OK);
    for (uint32_t i = 0; i < node->input_count; i++) {
        inputs[i] = node->inputs[i] == WEFTI_NONE ? NULL : data[node->inputs[i]];
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *value = &graph->values[node->outputs[i]];
        if (value->type.dtype == WEFT_DTYPE_NONE || weft_tensor_elem_count(&value->type) < 0) {
            return NO_SHAPE;
        }
        outputs[i] = wefti_arena_alloc(arena, wefti_value_bytes(value) + 64);
        outputs[i] = (void *)(((uintptr_t)outputs[i] + 63) & ~(uintptr_t)63);
        data[node->outputs[i]] = outputs[i];
    }
    weft_status_t status =
        wefti_prepare_kernel(kernel, &desc, &env, &kernel, &kernel_state, &scratch_bytes);
    if (status < 0) {
        return OTHER_TYPE;
    }
    uint8_t *scratch = wefti_arena_alloc(arena, scratch_bytes + 64);
    scratch += 63 & -(uintptr_t)scratch;
    weft_kernel_call_t call = {kernel_state, inputs, outputs, scratch};
    status = kernel->run(&call);
    if (kernel->destroy != NULL) {
        kernel->destroy(kernel_state);
    }
    assert_int_equal(status, WEFT_OK);
    return RAN;
}

static bool close_enough(double got, double want, double tolerance)
{
    return got == want || (isnan(got) && isnan(want)) ||
           fabs(got - want) <= 1e-5 + tolerance * fabs(want);
}

static bool compare(const char *name, const weft_tensor_desc_t *got_type, const void *got,
                    const weft_tensor_desc_t *want)
{
    if (got_type->dtype != want->dtype || got_type->rank != want->rank ||
        memcmp(got_type->dims, want->dims, want->rank * sizeof(want->dims[0])) != 0) {
        print_message("%s: wrong type or shape (rank %u, expected %u)\n", name, got_type->rank,
                      want->rank);
        return false;
    }
    size_t count = (size_t)weft_tensor_elem_count(want);
    const bool f16 = want->dtype == WEFT_DTYPE_F16, halves = f16 || want->dtype == WEFT_DTYPE_BF16;
    for (size_t i = 0; i < count && halves; i++) {
        uint16_t x = ((const uint16_t *)got)[i], y = ((const uint16_t *)want->data)[i];
        double a = (double)(f16 ? wefti_f16_to_f32(x) : wefti_bf16_to_f32(x));
        double b = (double)(f16 ? wefti_f16_to_f32(y) : wefti_bf16_to_f32(y));
        /* Old recorded tensors of bf16 were truncated instead of rounded. */
        if (!close_enough(a, b, f16 ? 2e-3 : 2e-2)) {
            print_message("%s: element %zu is %.9g, expected %.9g\n", name, i, a, b);
            return false;
        }
    }
    for (size_t i = 0; i < count && want->dtype == WEFT_DTYPE_F32; i++) {
        double a = ((const float *)got)[i], b = ((const float *)want->data)[i];
        if (!close_enough(a, b, 1e-3)) {
            print_message("%s: element %zu is %.9g, expected %.9g\n", name, i, a, b);
            return false;
        }
    }
    for (size_t i = 0; i < count && want->dtype == WEFT_DTYPE_F64; i++) {
        double a = ((const double *)got)[i], b = ((const double *)want->data)[i];
        if (!close_enough(a, b, 1e-7)) {
            print_message("%s: element %zu is %.17g, expected %.17g\n", name, i, a, b);
            return false;
        }
    }
    if (!halves && want->dtype != WEFT_DTYPE_F32 && want->dtype != WEFT_DTYPE_F64 && count > 0 &&
        memcmp(got, want->data, count * weft_dtype_size_bytes(want->dtype)) != 0) {
        print_message("%s: wrong contents\n", name);
        return false;
    }
    return true;
}

static outcome_t run_case(wefti_graph_t *graph, const char *folder, const char *name,
                          wefti_arena_t *arena)
{
    void **data = wefti_arena_array(arena, graph->value_count + MOST_EXPANDED, sizeof(void *));
    if (bind_inputs(graph, folder, arena, data) < 0) {
        return NO_SHAPE;
    }
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (graph->values[i].type.data != NULL) {
            /* Kernels may ask for the alignment of their element type. */
            data[i] = wefti_arena_memdup(arena, graph->values[i].type.data,
                                         wefti_value_bytes(&graph->values[i]));
        }
    }
    outcome_t outcome = RAN;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        outcome = run_node(graph, graph->order[i], arena, data);
        if (outcome != RAN) {
            return outcome;
        }
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        weft_tensor_desc_t want;
        if (read_tensor(folder, "output", i, arena, &want) != WEFT_OK) {
            fail_msg("%s: %s", name, weft_last_error());
        }
        recorded_bf16(&graph->values[graph->outputs[i]].type, &want);
        if (!compare(name, &graph->values[graph->outputs[i]].type, data[graph->outputs[i]],
                     &want)) {
            outcome = WRONG;
        }
    }
    return outcome;
}

static void run_one(const char *folder, const char *name, tally_t *tally)
{
    wefti_arena_t arena;
    wefti_graph_t *graph = import_case(folder);
    tally->models++;
    if (graph == NULL) {
        tally->refused++;
        count_reason(weft_last_error());
        return;
    }
    wefti_arena_init(&arena, wefti_allocator_default(), 0);
    outcome_t outcome = run_case(graph, folder, name, &arena);
    tally->run += outcome == RAN;
    if (outcome == NO_KERNEL) {
        count_reason("' (no kernel");
    } else if (outcome == NO_SHAPE || outcome == OTHER_TYPE) {
        count_reason(weft_last_error());
    }
    tally->no_kernel += outcome == NO_KERNEL;
    tally->no_shape += outcome == NO_SHAPE;
    tally->other_type += outcome == OTHER_TYPE;
    tally->wrong += outcome == WRONG;
    if (getenv("WEFT_TEST_VERBOSE") != NULL) {
        static const char *const words[] = {"ran", "no kernel", "no shape", "refused by kernel",
                                            "wrong"};
        print_message("%s: %s %s\n", name, words[outcome],
                      outcome == NO_SHAPE || outcome == OTHER_TYPE ? weft_last_error() : "");
    }
    wefti_arena_deinit(&arena);
    wefti_graph_destroy(graph);
}

/* Rows of docs/models.md, with a part of each reason that they count; the first one that fits. */
static struct {
    const char *row, *parts[5];
    size_t count;
} groups[] = {
    {.row = "strings, 8-bit and 4-bit floats, 2-bit and 4-bit integers",
     .parts = {"unsupported element type", "unsupported type"}},
    {.row = "operators of models before opset 7", .parts = {"or newer, the model imports"}},
    {.row = "sequences and optionals",
     .parts = {"not a tensor", "unsupported operator Sequence", "unsupported operator SplitToSeq",
               "unsupported operator ConcatFromSeq", "unsupported operator Optional"}},
    {.row = "operators that Weft does not have", .parts = {"unsupported operator"}},
    {.row = "Loop, If and Scan whose trip count, condition or body depends on data",
     .parts = {"Loop: ", "If: ", "Scan"}},
    {.row = "training operators (Adam, Gradient), and `ai.onnx.ml`, without kernels of their own",
     .parts = {"no kernel"}},
    {.row = "Dropout that drops: the mask is random", .parts = {"form of Dropout"}},
};

static void group_reason(const reason_t *reason)
{
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        for (size_t p = 0; p < 5 && groups[g].parts[p] != NULL; p++) {
            if (strstr(reason->text, groups[g].parts[p]) != NULL) {
                groups[g].count += reason->count;
                return;
            }
        }
    }
    fail_msg("no row of docs/models.md counts '%s'", reason->text);
}

static void find_row(const char *page, const char *row, size_t count)
{
    char line[200];
    snprintf(line, sizeof(line), "\n| %s | %zu |", row, count);
    print_message("%s\n", line + 1);
    if (strcmp(cases(), DATA) == 0 && strstr(page, line) == NULL) {
        fail_msg("docs/models.md does not have '%s'", line + 1);
    }
}

/* The table of docs/models.md, for its first column of numbers. */
static void check_table(const tally_t *tally)
{
    char page[32768];
    FILE *file = fopen(WEFT_SOURCE_DIR "/docs/models.md", "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
    fclose(file);
    for (size_t i = 0; i < MOST_REASONS && reasons[i].count > 0; i++) {
        group_reason(&reasons[i]);
    }
    find_row(page, "cases", tally->models);
    find_row(page, "agree", tally->run);
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        find_row(page, groups[g].row, groups[g].count);
    }
}

static void test_onnx_conformance_runs(void **state)
{
    (void)state;
    tally_t tally = {0};
    each_suite(run_one, &tally);
    print_message("%zu cases agree; of the others %zu were refused by the importer, %zu by a "
                  "kernel, %zu lack a "
                  "kernel, %zu a shape\n",
                  tally.run, tally.refused, tally.other_type, tally.no_kernel, tally.no_shape);
    print_reasons();
    assert_int_equal(tally.wrong, 0);
    check_table(&tally);
}

/* Cases of newer versions of ONNX than Debian's (onnx 1.23), of operators that become others and of
 * types; operators of com.microsoft as onnxruntime 1.32 computes them; Softmax of f64 by numpy. */
static void test_onnx_conformance_of_new_operators(void **state)
{
    tally_t tally = {0};
    (void)state;
    const char *before = folder_of_cases;
    folder_of_cases = WEFT_SOURCE_DIR "/tests/data/onnx_cases/";
    each_case("node", run_one, &tally);
    folder_of_cases = before;
    assert_int_equal(tally.models, NEW_CASES);
    assert_int_equal(tally.run, NEW_CASES);
}

static int setup(void **state)
{
    if (getenv("WEFT_ONNX_CASES") != NULL) {
        folder_of_cases = getenv("WEFT_ONNX_CASES");
    }

    (void)state;
    return weft_registry_create(NULL, &registry);
}

static int teardown(void **state)
{
    (void)state;
    weft_registry_destroy(registry);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_onnx_conformance_imports),
        cmocka_unit_test(test_onnx_conformance_runs),
        cmocka_unit_test(test_onnx_conformance_of_new_operators),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

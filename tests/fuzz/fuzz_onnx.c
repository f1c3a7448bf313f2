/* SPDX-License-Identifier: Apache-2.0 */
/* The ONNX reader under fuzzing. */
#include "fusion/passes/passes.h"
#include "tests/support/support_fuzz.h"

/* As the compiler reads it: with the gradients and collectives that it brings along. */
static void read_to_compile(const uint8_t *data, size_t size)
{
    wefti_onnx_import_params_t params = {.bytes = data, .size_bytes = size, .loss_optional = true};
    wefti_graph_t *graph = NULL;
    wefti_log_t silent = {.level = WEFT_LOG_LEVEL_ERROR};
    if (wefti_onnx_import(&params, NULL, fuzz_registry(), &graph) == WEFT_OK &&
        wefti_pass_normalize_collectives(graph, 2, false) == WEFT_OK &&
        wefti_pass_given_gradients(graph, NULL, &silent) == WEFT_OK) {
        fuzz_check(wefti_graph_verify(graph) == WEFT_OK, "a normalized graph breaks a rule");
        if (wefti_graph_bind_shapes(graph, 4, NULL, 0) == WEFT_OK &&
            wefti_check_gradients(graph) == WEFT_OK &&
            wefti_pass_tidy_collectives(graph, 2) == WEFT_OK &&
            wefti_pass_settle_gradients(graph) == WEFT_OK) {
            fuzz_check(wefti_graph_verify(graph) == WEFT_OK, "a settled graph breaks a rule");
        }
    }
    wefti_graph_destroy(graph);
}

/* A compiled graph: what is wrong with it may come out when it is verified, and not before. */
static void read_compiled(const uint8_t *data, size_t size)
{
    wefti_arena_t arena;
    wefti_onnx_property_t *properties = NULL;
    wefti_onnx_emit_t *emit = NULL;
    uint32_t count = 0;
    wefti_graph_t *graph = NULL;
    wefti_arena_init(&arena, NULL, 0);
    (void)wefti_onnx_read_properties(data, size, &arena, &properties, &count);
    wefti_onnx_import_params_t params = {
        .bytes = data, .size_bytes = size, .compiled = properties, .compiled_count = count};
    if (count > 0 && wefti_onnx_import(&params, NULL, fuzz_registry(), &graph) == WEFT_OK &&
        wefti_graph_infer_shapes(graph) == WEFT_OK && wefti_graph_verify(graph) == WEFT_OK) {
        (void)wefti_onnx_emit_begin(graph, NULL, &emit);
    }
    wefti_onnx_emit_destroy(emit);
    wefti_graph_destroy(graph);
    wefti_arena_deinit(&arena);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_onnx_import_params_t params = {.bytes = data, .size_bytes = size, .loss_optional = true};
    wefti_graph_t *graph = NULL;
    void *blob = NULL;
    size_t blob_size = 0;
    bool fixed;
    weft_status_t status = wefti_onnx_import(&params, NULL, fuzz_registry(), &graph);
    fuzz_check((status == WEFT_OK) == (graph != NULL), "status and graph disagree");
    if (graph != NULL) {
        fuzz_check(wefti_graph_verify(graph) == WEFT_OK, "an imported graph breaks a rule");
        (void)wefti_graph_bind_shapes(graph, 4, NULL, 0);
    }
    wefti_graph_destroy(graph);
    read_to_compile(data, size);
    read_compiled(data, size);
    params.loss_optional = false;
    status = wefti_onnx_eval_model(&params, NULL, fuzz_registry(), &blob, &blob_size, &fixed);
    fuzz_check((status == WEFT_OK) == (blob != NULL), "status and evaluation model disagree");
    wefti_free(NULL, blob);
}

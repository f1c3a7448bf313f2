/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ONNX reader under fuzzing. With clang: -DWEFT_LIBFUZZER -fsanitize=fuzzer,address. Without, a
 * plain driver:
 *
 *   fuzz_onnx SECONDS FILE...    each file as it is, then damaged copies until the time is over
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/onnx/onnx.h"
#include "runtime/base/file.h"
#include "runtime/base/sync.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static weft_registry_t *registry;

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s (%s)\n", what, weft_last_error());
        abort();
    }
}

/* As the compiler reads it: with the gradients and collectives that it brings along. */
static void read_to_compile(const uint8_t *data, size_t size)
{
    wefti_onnx_import_params_t params = {.bytes = data, .size_bytes = size, .loss_optional = true};
    wefti_graph_t *graph = NULL;
    wefti_log_t silent = {.level = WEFT_LOG_ERROR};
    uint32_t found;
    if (wefti_onnx_import(&params, NULL, registry, &graph) == WEFT_OK &&
        wefti_graph_normalize_collectives(graph, 2, false) == WEFT_OK &&
        wefti_graph_find_gradients(graph, NULL, &found) == WEFT_OK) {
        check(wefti_graph_verify(graph) == WEFT_OK, "a normalized graph breaks a rule");
        bool gradients = wefti_graph_has_gradients(graph);
        if ((!gradients || wefti_graph_use_gradients(graph, &silent) == WEFT_OK) &&
            wefti_graph_bind_shapes(graph, 4, NULL, 0) == WEFT_OK &&
            wefti_graph_tidy_collectives(graph, 2) == WEFT_OK &&
            wefti_graph_settle_gradients(graph) == WEFT_OK) {
            check(wefti_graph_verify(graph) == WEFT_OK, "a settled graph breaks a rule");
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
    if (count > 0 && wefti_onnx_import(&params, NULL, registry, &graph) == WEFT_OK &&
        wefti_graph_infer_shapes(graph) == WEFT_OK && wefti_graph_verify(graph) == WEFT_OK) {
        (void)wefti_onnx_emit_begin(graph, NULL, &emit);
    }
    wefti_onnx_emit_destroy(emit);
    wefti_graph_destroy(graph);
    wefti_arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wefti_onnx_import_params_t params = {.bytes = data, .size_bytes = size, .loss_optional = true};
    wefti_graph_t *graph = NULL;
    void *blob = NULL;
    size_t blob_size = 0;
    if (registry == NULL) {
        check(weft_registry_create(NULL, &registry) == WEFT_OK, "no registry");
    }
    weft_status_t status = wefti_onnx_import(&params, NULL, registry, &graph);
    check((status == WEFT_OK) == (graph != NULL), "status and graph disagree");
    if (graph != NULL) {
        check(wefti_graph_verify(graph) == WEFT_OK, "an imported graph breaks a rule");
        (void)wefti_graph_bind_shapes(graph, 4, NULL, 0);
    }
    wefti_graph_destroy(graph);
    read_to_compile(data, size);
    read_compiled(data, size);
    params.loss_optional = false;
    status = wefti_onnx_eval_model(&params, NULL, registry, &blob, &blob_size);
    check((status == WEFT_OK) == (blob != NULL), "status and evaluation model disagree");
    wefti_free(NULL, blob);
    return 0;
}

#ifndef WEFT_LIBFUZZER
static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static void damage(uint8_t *bytes, size_t size, uint64_t *seed)
{
    for (uint64_t i = next_random(seed) % 6 + 1; i > 0; i--) {
        size_t at = next_random(seed) % size, from = next_random(seed) % size;
        size_t length = next_random(seed) % 16;
        switch (next_random(seed) % 4) {
        case 0:
            bytes[at] = (uint8_t)next_random(seed);
            break;
        case 1:
            bytes[at] ^= (uint8_t)(1u << next_random(seed) % 8);
            break;
        case 2: /* small numbers: tags, lengths, counts */
            bytes[at] = (uint8_t)(next_random(seed) % 40);
            break;
        default:
            if (at + length < size && from + length < size) {
                memmove(bytes + at, bytes + from, length);
            }
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t seed = wefti_now_ns(), runs = 0;
    uint64_t end = argc > 1 ? wefti_now_ns() + strtoull(argv[1], NULL, 10) * 1000000000u : 0;
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    for (int i = 2; i < argc || (argc > 2 && wefti_now_ns() < end); i++) {
        wefti_mapping_t mapping;
        const char *path =
            argv[i < argc ? i : 2 + (int)(next_random(&seed) % (uint64_t)(argc - 2))];
        check(wefti_file_map(path, &mapping) == WEFT_OK && mapping.size_bytes > 0, path);
        uint8_t *bytes = malloc(mapping.size_bytes);
        check(bytes != NULL, "no memory");
        memcpy(bytes, mapping.data, mapping.size_bytes);
        if (i >= argc) {
            damage(bytes, mapping.size_bytes, &seed);
        }
        LLVMFuzzerTestOneInput(bytes, mapping.size_bytes);
        free(bytes);
        wefti_file_unmap(&mapping);
        runs++;
    }
    weft_registry_destroy(registry);
    printf("%llu runs\n", (unsigned long long)runs);
    return 0;
}
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are wrong by accident or on purpose: each gets a status and a message that names the
 * place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "graph/onnx/onnx.h"
#include "tests/graph/support_onnx.h"
#include "tests/support/support.h"

static weft_registry_t *registry;

static weft_status_t try_import(const void *bytes, size_t size, test_memory_t *memory)
{
    wefti_onnx_import_params_t params = {.bytes = bytes, .size_bytes = size};
    wefti_graph_t *graph = NULL;
    weft_status_t status = wefti_onnx_import(&params, &memory->allocator, registry, &graph);
    assert_true((status == WEFT_OK) == (graph != NULL));
    assert_true(status <= 0);
    if (status < 0) {
        assert_true(weft_last_error()[0] != '\0');
        assert_null(strchr(weft_last_error(), '\n'));
    } else {
        test_memory_fail(memory, UINT64_MAX, UINT64_MAX);
        assert_int_equal(wefti_graph_verify(graph), WEFT_OK);
    }
    wefti_graph_destroy(graph);
    assert_int_equal(memory->live_bytes, 0); /* nothing left behind */
    return status;
}

static void check_message(const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (texts[i] != NULL && strstr(weft_last_error(), texts[i]) == NULL) {
            fail_msg("'%s' lacks '%s'", weft_last_error(), texts[i]);
        }
    }
}

/* Imports and frees wire; the message must hold both texts. */
static void check_refused(wire_t *wire, weft_status_t expected, const char *text1,
                          const char *text2)
{
    test_memory_t memory;
    test_memory_init(&memory);
    weft_status_t status = try_import(wire->data, wire->size, &memory);
    if (status != expected) {
        fail_msg("status %s instead of %s: %s", weft_status_name(status),
                 weft_status_name(expected), status < 0 ? weft_last_error() : "");
    }
    check_message((const char *[]){text1, text2}, 2);
    wire_free(wire);
}

static void check_graph_refused(wire_t *graph, weft_status_t expected, const char *text1,
                                const char *text2)
{
    onnx_value(graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){2, 3});
    onnx_value(graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){2, 3});
    wire_t model = onnx_model(graph, 13);
    check_refused(&model, expected, text1, text2);
}

static void test_onnx_hostile_truncation(void **state)
{
    (void)state;
    wire_t wire = onnx_small_mlp();
    for (size_t size = 0; size < wire.size; size++) {
        /* A copy of exactly this size, so that a sanitizer sees the first byte too far. */
        uint8_t *copy = malloc(size + 1);
        test_memory_t memory;
        test_memory_init(&memory);
        memcpy(copy, wire.data, size);
        copy = realloc(copy, size > 0 ? size : 1);
        assert_true(try_import(copy, size, &memory) < 0);
        free(copy);
    }
    wire_free(&wire);
}

static void flip_bytes(const uint8_t *good, size_t size, size_t rounds, uint64_t *seed)
{
    uint8_t *bytes = malloc(size);
    for (size_t round = 0; round < rounds; round++) {
        test_memory_t memory;
        test_memory_init(&memory);
        memcpy(bytes, good, size);
        for (uint64_t i = test_next_random(seed) % 4 + 1; i > 0; i--) {
            bytes[test_next_random(seed) % size] = (uint8_t)test_next_random(seed);
        }
        (void)try_import(bytes, size, &memory);
        assert_true(memory.most_bytes < (size_t)256 << 20);
    }
    free(bytes);
}

static void test_onnx_hostile_random_bytes(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    wire_t wire = onnx_small_mlp();
    flip_bytes(wire.data, wire.size, 4000, &seed);
    /* Every byte of the structure once, with all bits turned. */
    for (size_t i = 0; i < wire.size; i++) {
        test_memory_t memory;
        test_memory_init(&memory);
        wire.data[i] ^= 0xff;
        (void)try_import(wire.data, wire.size, &memory);
        wire.data[i] ^= 0xff;
    }
    wire_free(&wire);
    static const char *const exported[] = {WEFT_SOURCE_DIR "/tests/data/torch_reshape_batch4.onnx",
                                           WEFT_SOURCE_DIR "/tests/data/torch_lenet_avgpool.onnx"};
    for (int i = 0; i < 2; i++) {
        wefti_mapping_t mapping;
        assert_int_equal(wefti_file_map(exported[i], &mapping), WEFT_OK);
        flip_bytes(mapping.data, mapping.size_bytes, 1500, &seed);
        wefti_file_unmap(&mapping);
    }
}

static weft_status_t import_once(const weft_allocator_t *allocator, void *user)
{
    wefti_graph_t *graph;
    weft_status_t status = wefti_onnx_import(user, allocator, registry, &graph);
    wefti_graph_destroy(graph);
    return status;
}

static weft_status_t eval_once(const weft_allocator_t *allocator, void *user)
{
    void *blob;
    size_t size;
    bool fixed;
    weft_status_t status = wefti_onnx_eval_model(user, allocator, registry, &blob, &size, &fixed);
    assert_true((status == WEFT_OK) == (blob != NULL));
    wefti_free(allocator, blob);
    return status;
}

static void test_onnx_hostile_no_memory(void **state)
{
    (void)state;
    wire_t wire = onnx_small_mlp();
    wefti_onnx_import_params_t params = {.bytes = wire.data, .size_bytes = wire.size};
    assert_true(test_memory_sweep(import_once, &params) > 5);
    assert_true(test_memory_sweep(eval_once, &params) > 10);
    wire_free(&wire);
}

static void test_onnx_hostile_not_onnx(void **state)
{
    (void)state;
    test_memory_t memory;
    test_memory_init(&memory);
    assert_int_equal(try_import("", 0, &memory), WEFT_ERR_FORMAT);
    check_message((const char *[]){"empty"}, 1);
    const char *text = "# A readme\n\nIt is not a model.\n";
    assert_int_equal(try_import(text, strlen(text), &memory), WEFT_ERR_FORMAT);
    check_message((const char *[]){"not an ONNX model"}, 1);
    uint8_t zeros[64] = {0};
    assert_int_equal(try_import(zeros, sizeof(zeros), &memory), WEFT_ERR_FORMAT);
    check_message((const char *[]){"not an ONNX model", "byte 0"}, 2);
    wire_t wire = {0};
    wire_number(&wire, 1, 8);
    check_refused(&wire, WEFT_ERR_FORMAT, "no graph", NULL);
    wire_number(&wire, 99, 8); /* only a field nobody knows */
    check_refused(&wire, WEFT_ERR_FORMAT, "not an ONNX model", NULL);
}

static void test_onnx_hostile_files(void **state)
{
    (void)state;
    wefti_onnx_import_params_t params = {.path = "/nonexistent/model.onnx"};
    wefti_graph_t *graph;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &graph), WEFT_ERR_NOT_FOUND);
    check_message((const char *[]){"/nonexistent/model.onnx"}, 1);
    params.path = "/tmp";
    assert_true(wefti_onnx_import(&params, NULL, registry, &graph) < 0);
    check_message((const char *[]){"/tmp"}, 1);
    char path[] = "/tmp/weft-empty-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    params.path = path;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &graph), WEFT_ERR_FORMAT);
    check_message((const char *[]){path, "empty"}, 2);
    unlink(path);
}

static void test_onnx_hostile_depth(void **state)
{
    (void)state;
    /* Graphs inside attributes of nodes of graphs, 2000 levels. */
    wire_t inner = {0};
    for (int i = 0; i < 2000; i++) {
        wire_t attribute = {0}, node = {0}, graph = {0};
        wire_message(&attribute, 6, &inner);
        wire_message(&node, 5, &attribute);
        wire_message(&graph, 1, &node);
        inner = graph;
    }
    wire_t model = onnx_model(&inner, 13);
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "nesting exceeds 64 levels",
                  "graph.node[0].attribute[0].g");
    /* Types nest, too. */
    wire_t type = {0};
    for (int i = 0; i < 2000; i++) {
        wire_t sequence = {0}, outer = {0};
        wire_message(&sequence, 1, &type);
        wire_message(&outer, 4, &sequence);
        type = outer;
    }
    wire_t info = {0}, graph = {0};
    wire_message(&info, 2, &type);
    wire_message(&graph, 11, &info);
    model = onnx_model(&graph, 13);
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "nesting exceeds 64 levels", "graph.input[0]");
}

static void test_onnx_hostile_amplification(void **state)
{
    (void)state;
    /* Two bytes each: 10 MB of them would unpack to more than a gigabyte. */
    static const uint8_t empties[][2] = {{0x0a, 0}, {0x2a, 0}, {0x5a, 0}};
    for (int kind = 0; kind < 3; kind++) {
        wire_t graph = {0};
        test_memory_t memory;
        test_memory_init(&memory);
        for (size_t i = 0; i < 5 << 20; i++) {
            wire_raw(&graph, empties[kind], 2);
        }
        wire_t model = onnx_model(&graph, 13);
        assert_int_equal(try_import(model.data, model.size, &memory), WEFT_ERR_UNSUPPORTED);
        check_message((const char *[]){"memory budget", "graph"}, 2);
        assert_true(memory.most_bytes < (size_t)64 << 20);
        wire_free(&model);
    }
}

static void test_onnx_hostile_budget(void **state)
{
    (void)state;
    wire_t wire = onnx_small_mlp();
    wefti_onnx_import_params_t params = {
        .bytes = wire.data, .size_bytes = wire.size, .budget_bytes = 1000};
    wefti_graph_t *graph;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &graph), WEFT_ERR_UNSUPPORTED);
    check_message((const char *[]){"memory budget of 1000 bytes"}, 1);
    wire_free(&wire);
}

static void check_tensor_refused(int type, uint32_t rank, const int64_t *dims, size_t raw_size,
                                 weft_status_t expected, const char *text)
{
    static const uint8_t raw[64];
    wire_t graph = {0};
    wire_t tensor = onnx_tensor("weird", type, rank, dims, raw_size > 0 ? raw : NULL, raw_size);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, expected, "tensor 'weird'", text);
}

static void test_onnx_hostile_tensors(void **state)
{
    (void)state;
    int64_t big = (int64_t)1 << 40;
    check_tensor_refused(1, 2, (int64_t[]){2, -3}, 24, WEFT_ERR_FORMAT,
                         "dimension 1 is negative: -3");
    check_tensor_refused(1, 2, (int64_t[]){big, big}, 24, WEFT_ERR_FORMAT,
                         "number of elements overflows");
    check_tensor_refused(1, 3, (int64_t[]){INT64_MAX, 2, 2}, 24, WEFT_ERR_FORMAT,
                         "number of elements overflows");
    check_tensor_refused(11, 1, (int64_t[]){INT64_MAX / 2}, 8, WEFT_ERR_FORMAT,
                         "size in bytes overflows");
    check_tensor_refused(1, 1, &big, 24, WEFT_ERR_FORMAT, "24 bytes, expected");
    check_tensor_refused(1, 1, (int64_t[]){7}, 24, WEFT_ERR_FORMAT, "expected 28");
    check_tensor_refused(1, 1, (int64_t[]){5}, 24, WEFT_ERR_FORMAT, "expected 20");
    check_tensor_refused(1, 1, (int64_t[]){6}, 0, WEFT_ERR_FORMAT, "no contents");
    check_tensor_refused(8, 1, (int64_t[]){6}, 24, WEFT_ERR_UNSUPPORTED, "element type 8");
    check_tensor_refused(-5, 1, (int64_t[]){6}, 24, WEFT_ERR_UNSUPPORTED, "element type -5");
    check_tensor_refused(1, 9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 4, WEFT_ERR_UNSUPPORTED,
                         "too many dimensions: 9, limit 8");
}

static void test_onnx_hostile_tensor_storage(void **state)
{
    (void)state;
    wire_t graph = {0};
    wire_t tensor = onnx_tensor("twice", ONNX_FLOAT, 1, (int64_t[]){1}, "abcd", 4);
    wire_bytes(&tensor, 4, "abcd", 4);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "duplicate tensor contents",
                        "graph.initializer[0]");
    tensor = onnx_tensor("both", ONNX_INT64, 1, (int64_t[]){1}, "abcdefgh", 8);
    wire_number(&tensor, 7, 5);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "'both'", "in both raw_data and a typed field");
    tensor = onnx_tensor("mixed", ONNX_INT64, 1, (int64_t[]){1}, NULL, 0);
    wire_bytes(&tensor, 4, "abcdefgh", 8);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "'mixed'",
                        "float_data cannot hold elements of type i64");
    tensor = onnx_tensor("wide", 3, 1, (int64_t[]){1}, NULL, 0);
    wire_number(&tensor, 5, 300);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "'wide'",
                        "element 0 is out of range for type i8: ");
    tensor = onnx_tensor("w", ONNX_FLOAT, 1, (int64_t[]){1}, "abcd", 4);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("w", ONNX_FLOAT, 1, (int64_t[]){1}, "abcd", 4);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "duplicate definition of value 'w'", NULL);
    tensor = onnx_tensor("", ONNX_FLOAT, 1, (int64_t[]){1}, "abcd", 4);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "initializer: missing name", NULL);
    tensor = (wire_t){0};
    wire_bytes(&tensor, 8, "a\0b", 3);
    wire_message(&graph, 5, &tensor);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "zero byte", "graph.initializer[0]");
}

static void test_onnx_hostile_inputs(void **state)
{
    (void)state;
    wire_t graph = {0};
    onnx_value(&graph, 11, "bad", ONNX_FLOAT, 1, (int64_t[]){-2});
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "input 'bad'", "dimension 0 is negative: -2");
    int64_t big = (int64_t)1 << 40;
    onnx_value(&graph, 11, "huge", ONNX_FLOAT, 2, (int64_t[]){big, big});
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "input 'huge'", "number of elements overflows");
    onnx_value(&graph, 11, "text", 8, 1, (int64_t[]){2});
    check_graph_refused(&graph, WEFT_ERR_UNSUPPORTED, "input 'text'", "element type 8");
    wire_t info = {0};
    wire_string(&info, 1, "shapeless");
    wire_message(&graph, 11, &info);
    check_graph_refused(&graph, WEFT_ERR_UNSUPPORTED, "input 'shapeless'", "not a tensor");
    onnx_value(&graph, 11, "x", ONNX_FLOAT, 1, (int64_t[]){2});
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "input: duplicate definition of value 'x'", NULL);
    onnx_value(&graph, 12, "ghost", ONNX_FLOAT, 1, (int64_t[]){2});
    onnx_node(&graph, "Relu", NULL, "x", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "output 'ghost'", NULL);
    onnx_node(&graph, "Relu", NULL, "x", "y", NULL);
    wire_t model = onnx_model(&graph, 13);
    check_refused(&model, WEFT_ERR_FORMAT, "no node produces input 'x'", "node 0 (Relu)");
}

static void test_onnx_hostile_nodes(void **state)
{
    (void)state;
    wire_t graph = {0};
    onnx_node(&graph, "Relu", "r1", "x", "a", NULL);
    onnx_node(&graph, "Convv", "mystery", "a", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_UNSUPPORTED, "node 1 'mystery' (Convv)",
                        "did you mean Conv");
    onnx_node(&graph, "Relu", "first", "b", "a", NULL);
    onnx_node(&graph, "Relu", "second", "a", "b", NULL);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'first' (Relu)",
                        "is produced later, by node 1 'second'");
    onnx_node(&graph, "Relu", "self", "y", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'self'", "reads its own output");
    onnx_node(&graph, "Relu", "one", "x", "y", NULL);
    onnx_node(&graph, "Relu", "two", "x", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 1 'two'",
                        "duplicate definition of value 'y'");
    onnx_node(&graph, "Relu", "over", "x", "x", NULL);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'over'",
                        "duplicate definition of value 'x'");
    onnx_node(&graph, "Relu", "greedy", "x,x,x", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_INVALID_ARGUMENT, "node 'greedy' (Relu)",
                        "wrong number of inputs: 3, expected 1");
    onnx_node(&graph, "Relu", "mute", "x", "", NULL);
    check_graph_refused(&graph, WEFT_ERR_INVALID_ARGUMENT, "node 'mute' (Relu)",
                        "wrong number of outputs: 0");
    onnx_node(&graph, "", "nothing", "x", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'nothing'", "missing operator name");
    wire_t empty = {0};
    wire_message(&graph, 1, &empty);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0", "missing operator name");
    wire_t foreign = {0};
    wire_string(&foreign, 7, "acme");
    wire_string(&foreign, 4, "Relu");
    wire_message(&graph, 1, &foreign);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0", "'acme'");
}

static void test_onnx_hostile_attributes(void **state)
{
    (void)state;
    wire_t graph = {0}, attributes = {0}, attribute = {0}, sub = {0};
    wire_string(&attribute, 1, "body");
    onnx_node(&sub, "Relu", NULL, "x", "z", NULL);
    wire_message(&attribute, 6, &sub);
    wire_number(&attribute, 20, 5);
    wire_message(&attributes, 5, &attribute);
    onnx_node(&graph, "Loop", "again", "x", "y", &attributes);
    check_graph_refused(&graph, WEFT_ERR_UNSUPPORTED, "node 'again' (Loop)", "control flow");
    onnx_attribute_int(&attributes, "transB", 1);
    onnx_attribute_int(&attributes, "transB", 0);
    onnx_node(&graph, "Gemm", "g", "x,x", "y", &attributes);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'g'", "duplicate attribute 'transB'");
    onnx_attribute_int(&attributes, "", 1);
    onnx_node(&graph, "Relu", "r", "x", "y", &attributes);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'r'", "attribute 0: missing name");
    wire_string(&attribute, 1, "kind");
    wire_number(&attribute, 20, 99);
    wire_message(&attributes, 5, &attribute);
    onnx_node(&graph, "Relu", "r", "x", "y", &attributes);
    check_graph_refused(&graph, WEFT_ERR_UNSUPPORTED, "attribute 'kind'", "type 99");
    wire_string(&attribute, 1, "value");
    wire_number(&attribute, 20, 4);
    wire_message(&attributes, 5, &attribute);
    onnx_node(&graph, "Constant", "c", "", "y", &attributes);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'c' (Constant)", "attribute 'value'");
    onnx_node(&graph, "Constant", "c", "", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_FORMAT, "node 0 'c' (Constant)", "expected 1, 1, 0");
}

static void test_onnx_hostile_models(void **state)
{
    (void)state;
    wire_t model = onnx_small_mlp(), part = {0};
    wire_string(&part, 1, "Relu"); /* calls itself */
    wire_string(&part, 4, "x");
    wire_string(&part, 5, "y");
    wire_t body = {0};
    onnx_node(&body, "Relu", "again", "x", "y", NULL);
    body.data[0] = 7 << 3 | 2; /* a node of a function instead of a graph */
    wire_raw(&part, body.data, body.size);
    wire_free(&body);
    wire_message(&model, 25, &part);
    check_refused(&model, WEFT_ERR_FORMAT, "function 'Relu'", "calls itself");
    model = onnx_small_mlp();
    for (int i = 0; i < 30; i++) { /* each calls the next one twice: 2^30 calls */
        char name[16], next[16];
        snprintf(name, sizeof(name), i == 0 ? "Relu" : "F%d", i);
        snprintf(next, sizeof(next), "F%d", i + 1);
        wire_string(&part, 1, name);
        wire_string(&part, 4, "x");
        wire_string(&part, 5, "y");
        for (int k = 0; k < 2; k++) {
            onnx_node(&body, next, NULL, k == 0 ? "x" : "t", k == 0 ? "t" : "y", NULL);
            body.data[0] = 7 << 3 | 2;
            wire_raw(&part, body.data, body.size);
            wire_free(&body);
        }
        wire_message(&model, 25, &part);
    }
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "function 'F", "more than");
    model = onnx_small_mlp();
    wire_message(&model, 20, &part);
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "training_info has no algorithm", NULL);
    model = onnx_small_mlp();
    wire_t sparse = {0}, graph = {0};
    wire_message(&graph, 15, &sparse);
    wire_message(&model, 7, &graph);
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "sparse tensors are not supported", NULL);
    graph = (wire_t){0};
    model = onnx_model(&graph, 1000);
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "opset 1000", NULL);
    model = onnx_small_mlp();
    for (int i = 0; i < 200; i++) {
        wire_t import = {0};
        wire_number(&import, 2, 1);
        wire_message(&model, 8, &import);
    }
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "too many entries in opset_import: 201", NULL);
    graph = (wire_t){0};
    onnx_node(&graph, "Gemm", "old", "a,b", "c", NULL);
    model = onnx_model(&graph, 6);
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "node 0 'old' (Gemm)", "needs opset 7 or newer");
    graph = (wire_t){0};
    wire_t attributes = {0};
    onnx_attribute_int(&attributes, "sum", 1);
    onnx_node(&graph, "Add", "new", "a,b", "c", &attributes);
    model = onnx_model(&graph, 13);
    check_refused(&model, WEFT_ERR_UNSUPPORTED, "node 0 'new' (Add)", "unknown attribute 'sum'");
    graph = (wire_t){0};
    model = onnx_model(&graph, -1);
    check_refused(&model, WEFT_ERR_FORMAT, "opset_import[0]", NULL);
    graph = (wire_t){0};
    model = onnx_model(&graph, 13);
    check_refused(&model, WEFT_ERR_FORMAT, "no outputs", NULL);
}

static void test_onnx_hostile_losses(void **state)
{
    (void)state;
    wire_t graph = {0};
    onnx_node(&graph, "Relu", NULL, "x", "y", NULL);
    check_graph_refused(&graph, WEFT_ERR_NOT_FOUND, "no loss node", "name a scalar output");
    onnx_value(&graph, 11, "l", ONNX_INT64, 1, (int64_t[]){2});
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "a", "x,l", "y", NULL);
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "b", "x,l", "z", NULL);
    check_graph_refused(&graph, WEFT_ERR_INVALID_ARGUMENT, "'y', 'z'", "loss: not set");
    wire_t attributes = {0}, attribute = {0};
    wire_string(&attribute, 1, "reduction");
    wire_string(&attribute, 4, "none");
    wire_number(&attribute, 20, 3);
    wire_message(&attributes, 5, &attribute);
    onnx_value(&graph, 11, "l", ONNX_INT64, 1, (int64_t[]){2});
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "a", "x,l", "y", &attributes);
    check_graph_refused(&graph, WEFT_ERR_UNSUPPORTED, "node 0 'a'", "reduction 'none'");
}

/* A model in folder with one external tensor of 4 floats. */
static void check_external(const char *folder, const char *const *entries, weft_status_t expected,
                           const char *text)
{
    char path[128];
    wire_t graph = {0};
    wire_t tensor = onnx_tensor("ext", ONNX_FLOAT, 1, (int64_t[]){4}, NULL, 0);
    for (; entries[0] != NULL; entries += 2) {
        wire_t entry = {0};
        wire_string(&entry, 1, entries[0]);
        wire_string(&entry, 2, entries[1]);
        wire_message(&tensor, 13, &entry);
    }
    wire_number(&tensor, 14, 1);
    wire_message(&graph, 5, &tensor);
    onnx_value(&graph, 12, "ext", ONNX_FLOAT, 1, (int64_t[]){4});
    wire_t model = onnx_model(&graph, 13);
    snprintf(path, sizeof(path), "%s/model.onnx", folder);
    write_file(path, model.data, model.size);
    wefti_onnx_import_params_t params = {.path = path, .loss_optional = true};
    wefti_graph_t *imported;
    weft_status_t status = wefti_onnx_import(&params, NULL, registry, &imported);
    wefti_graph_destroy(imported);
    if (status != expected) {
        fail_msg("status %s: %s", weft_status_name(status), weft_last_error());
    }
    if (status < 0) {
        check_message((const char *[]){path, "tensor 'ext'", text}, 3);
    }
    wire_free(&model);
    unlink(path);
}

static void test_onnx_hostile_external_data(void **state)
{
    (void)state;
    char folder[] = "/tmp/weft-hostile-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/w.bin", folder);
    write_file(path, "0123456789abcdef", 16);
    snprintf(path, sizeof(path), "%s/link", folder);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof(path), "%s/up", folder);
    assert_int_equal(symlink("/etc", path), 0);
    snprintf(path, sizeof(path), "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    static const struct {
        const char *entries[7];
        weft_status_t status;
        const char *text;
    } rows[] = {
        {{"location", "w.bin"}, WEFT_OK, NULL},
        {{"location", "w.bin", "offset", "0", "length", "16"}, WEFT_OK, NULL},
        {{"location", "../../etc/passwd"}, WEFT_ERR_FORMAT, "'../../etc/passwd'"},
        {{"location", "x/../../etc/passwd"}, WEFT_ERR_NOT_FOUND, "x/../../etc/passwd"},
        {{"location", ".."}, WEFT_ERR_FORMAT, "below the model's folder"},
        {{"location", "./w.bin"}, WEFT_ERR_FORMAT, "below the model's folder"},
        {{"location", ""}, WEFT_ERR_FORMAT, "below the model's folder"},
        {{"location", "/etc/passwd"}, WEFT_ERR_FORMAT, "absolute"},
        {{"location", "link"}, WEFT_ERR_FORMAT, "symbolic"},
        {{"location", "up/passwd"}, WEFT_ERR_NOT_FOUND, "up/passwd"},
        {{"location", "pipe"}, WEFT_ERR_FORMAT, "not a regular file"},
        {{"location", "missing.bin"}, WEFT_ERR_NOT_FOUND, "missing.bin"},
        {{"offset", "0"}, WEFT_ERR_FORMAT, "missing location"},
        {{"location", "w.bin", "offset", "1"}, WEFT_ERR_FORMAT, "exceeds the file size"},
        {{"location", "w.bin", "offset", "18446744073709551615"},
         WEFT_ERR_FORMAT,
         "exceeds the file size"},
        {{"location", "w.bin", "offset", "-1"}, WEFT_ERR_FORMAT, "offset is not a number"},
        {{"location", "w.bin", "offset", "99999999999999999999999"},
         WEFT_ERR_FORMAT,
         "offset is not a number"},
        {{"location", "w.bin", "length", "8"}, WEFT_ERR_FORMAT, "length"},
        {{"location", "w.bin", "length", "x"}, WEFT_ERR_FORMAT, "length is not a number"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_external(folder, rows[i].entries, rows[i].status, rows[i].text);
    }
    static const char *const files[] = {"w.bin", "link", "up", "pipe"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

static int setup(void **state)
{
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
        cmocka_unit_test(test_onnx_hostile_truncation),
        cmocka_unit_test(test_onnx_hostile_random_bytes),
        cmocka_unit_test(test_onnx_hostile_no_memory),
        cmocka_unit_test(test_onnx_hostile_not_onnx),
        cmocka_unit_test(test_onnx_hostile_files),
        cmocka_unit_test(test_onnx_hostile_depth),
        cmocka_unit_test(test_onnx_hostile_amplification),
        cmocka_unit_test(test_onnx_hostile_budget),
        cmocka_unit_test(test_onnx_hostile_tensors),
        cmocka_unit_test(test_onnx_hostile_tensor_storage),
        cmocka_unit_test(test_onnx_hostile_inputs),
        cmocka_unit_test(test_onnx_hostile_nodes),
        cmocka_unit_test(test_onnx_hostile_attributes),
        cmocka_unit_test(test_onnx_hostile_models),
        cmocka_unit_test(test_onnx_hostile_losses),
        cmocka_unit_test(test_onnx_hostile_external_data),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

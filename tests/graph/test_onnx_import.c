/* SPDX-License-Identifier: Apache-2.0 */
/* What the importer makes of good files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/onnx/internal.h"
#include "graph/onnx/onnx.h"
#include "tests/graph/support_onnx.h"
#include "tests/support/support.h"

static weft_registry_t *registry;

static wefti_graph_t *import_file(const char *path)
{
    wefti_onnx_import_params_t params = {.path = path};
    wefti_graph_t *graph = NULL;
    weft_status_t status = wefti_onnx_import(&params, NULL, registry, &graph);
    if (status != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    return graph;
}

/* wire must outlive the graph. */
static wefti_graph_t *import_wire(const wire_t *wire)
{
    wefti_onnx_import_params_t params = {
        .bytes = wire->data, .size_bytes = wire->size, .loss_optional = true};
    wefti_graph_t *graph = NULL;
    weft_status_t status = wefti_onnx_import(&params, NULL, registry, &graph);
    if (status != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    return graph;
}

static const wefti_value_t *value_of(const wefti_graph_t *graph, const char *name)
{
    uint32_t id = wefti_graph_find_value(graph, name);
    if (id == WEFTI_NONE) {
        fail_msg("no value '%s'", name);
    }
    return &graph->values[id];
}

static void check_type(const wefti_value_t *value, weft_dtype_t dtype, uint32_t rank,
                       const int64_t *dims)
{
    assert_int_equal(value->type.dtype, dtype);
    assert_int_equal(value->type.rank, rank);
    for (uint32_t i = 0; i < rank; i++) {
        assert_int_equal(value->type.dims[i], dims[i]);
    }
}

static bool in_mapping(const wefti_graph_t *graph, const void *data)
{
    for (uint32_t i = 0; i < graph->mapping_count; i++) {
        const uint8_t *start = graph->mappings[i].data;
        if ((const uint8_t *)data >= start &&
            (const uint8_t *)data < start + graph->mappings[i].size_bytes) {
            return true;
        }
    }
    return false;
}

static uint32_t count_kind(const wefti_graph_t *graph, wefti_value_kind_t kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->value_count; i++) {
        count += graph->values[i].kind == kind;
    }
    return count;
}

static void test_onnx_import_reads_mlp(void **state)
{
    (void)state;
    wefti_graph_t *graph = import_file(WEFT_SOURCE_DIR "/samples/models/mlp.onnx");
    assert_int_equal(wefti_graph_verify(graph), WEFT_OK);
    assert_int_equal(graph->opset, 13);
    assert_string_equal(graph->name, "mlp");
    assert_int_equal(graph->order_count, 7);
    assert_int_equal(graph->input_count, 2);
    assert_string_equal(graph->values[graph->inputs[0]].name, "image");
    check_type(value_of(graph, "image"), WEFT_DTYPE_F32, 4, (int64_t[]){-1, 1, 28, 28});
    assert_string_equal(value_of(graph, "image")->dim_names[0], "batch");
    assert_null(value_of(graph, "image")->dim_names[1]);
    check_type(value_of(graph, "label"), WEFT_DTYPE_I64, 1, (int64_t[]){-1});
    check_type(value_of(graph, "fc1.weight"), WEFT_DTYPE_F32, 2, (int64_t[]){512, 784});
    assert_int_equal(count_kind(graph, WEFTI_VALUE_PARAM), 6);
    assert_string_equal(graph->values[graph->loss].name, "loss");
    assert_string_equal(graph->values[graph->logits].name, "logits");
    assert_string_equal(graph->values[graph->label].name, "label");
    assert_int_equal(value_of(graph, "logits")->flags, WEFTI_VALUE_LOGITS | WEFTI_VALUE_OUTPUT);
    assert_int_equal(value_of(graph, "label")->flags, WEFTI_VALUE_LABEL);
    assert_int_equal(value_of(graph, "loss")->flags, WEFTI_VALUE_LOSS | WEFTI_VALUE_OUTPUT);
    const wefti_node_t *gemm = &graph->nodes[value_of(graph, "fc1_out")->producer];
    assert_string_equal(gemm->name, "fc1");
    assert_int_equal(wefti_node_attr(gemm, "transB")->i, 1);
    wefti_graph_destroy(graph);
}

static void test_onnx_import_leaves_weights_in_the_mapping(void **state)
{
    (void)state;
    wefti_graph_t *graph = import_file(WEFT_SOURCE_DIR "/samples/models/mlp.onnx");
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (graph->values[i].kind == WEFTI_VALUE_PARAM) {
            assert_true(in_mapping(graph, graph->values[i].type.data));
        }
    }
    /* The weights are two megabytes; the graph's own memory knows nothing of them. */
    assert_true(graph->arena.used_bytes < 64 << 10);
    wefti_graph_destroy(graph);
}

static void test_onnx_import_binds_samples_and_exports(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        uint32_t params;
        int64_t batch;
    } rows[] = {
        {WEFT_SOURCE_DIR "/samples/models/mlp.onnx", 6, 64},
        {WEFT_SOURCE_DIR "/samples/models/lenet.onnx", 10, 64},
        {WEFT_SOURCE_DIR "/tests/data/torch_mlp.onnx", 6, 7},
        {WEFT_SOURCE_DIR "/tests/data/torch_mlp_batch4.onnx", 6, 7},
        {WEFT_SOURCE_DIR "/tests/data/torch_lenet_avgpool.onnx", 10, 7},
        {WEFT_SOURCE_DIR "/tests/data/torch_lenet_avgpool_batch4.onnx", 10, 7},
        {WEFT_SOURCE_DIR "/tests/data/torch_reshape.onnx", 4, 7},
        {WEFT_SOURCE_DIR "/tests/data/torch_reshape_batch4.onnx", 4, 4},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        wefti_graph_t *graph = import_file(rows[i].path);
        assert_int_equal(count_kind(graph, WEFTI_VALUE_PARAM), rows[i].params);
        if (wefti_graph_bind_shapes(graph, rows[i].batch, NULL, 0) != WEFT_OK) {
            fail_msg("%s: %s", rows[i].path, weft_last_error());
        }
        check_type(value_of(graph, "logits"), WEFT_DTYPE_F32, 2, (int64_t[]){rows[i].batch, 10});
        assert_int_equal(wefti_graph_verify(graph), WEFT_OK);
        wefti_graph_destroy(graph);
    }
}

static void test_onnx_import_names_the_node_a_baked_batch_contradicts(void **state)
{
    (void)state;
    wefti_graph_t *graph = import_file(WEFT_SOURCE_DIR "/tests/data/torch_reshape_batch4.onnx");
    assert_int_not_equal(wefti_graph_bind_shapes(graph, 64, NULL, 0), WEFT_OK);
    assert_non_null(strstr(weft_last_error(), "/model/Reshape"));
    wefti_graph_destroy(graph);
}

/* One tensor of each storage, read back as a constant or parameter. */
static void check_stored(int onnx_type, uint32_t field, const void *packed, size_t packed_size,
                         const void *expected, size_t expected_size, weft_dtype_t dtype,
                         int64_t count)
{
    wire_t graph = {0};
    wire_t tensor = onnx_tensor("t", onnx_type, 1, &count, NULL, 0);
    wire_bytes(&tensor, field, packed, packed_size);
    wire_message(&graph, 5, &tensor);
    onnx_value(&graph, 12, "t", onnx_type, 1, &count);
    wire_t model = onnx_model(&graph, 13);
    wefti_graph_t *imported = import_wire(&model);
    const wefti_value_t *value = value_of(imported, "t");
    check_type(value, dtype, 1, &count);
    assert_memory_equal(value->type.data, expected, expected_size);
    wefti_graph_destroy(imported);
    wire_free(&model);
}

static void test_onnx_import_reads_every_storage(void **state)
{
    (void)state;
    static const float floats[3] = {1.5f, -2, 3};
    static const double doubles[2] = {0.1, -7};
    static const int64_t longs[2] = {5, 300};
    static const uint8_t long_bytes[] = {5, 0xac, 0x02};
    static const uint8_t int_bytes[] = {1, 0xff, 0x01};
    check_stored(1, 4, floats, 12, floats, 12, WEFT_DTYPE_F32, 3);
    check_stored(1, 9, floats, 12, floats, 12, WEFT_DTYPE_F32, 3);
    check_stored(11, 10, doubles, 16, doubles, 16, WEFT_DTYPE_F64, 2);
    check_stored(7, 7, long_bytes, 3, longs, 16, WEFT_DTYPE_I64, 2);
    check_stored(13, 11, long_bytes, 3, longs, 16, WEFT_DTYPE_U64, 2);
    check_stored(12, 11, long_bytes, 3, (uint32_t[]){5, 300}, 8, WEFT_DTYPE_U32, 2);
    check_stored(10, 5, int_bytes, 3, (uint16_t[]){1, 255}, 4, WEFT_DTYPE_F16, 2);
    check_stored(16, 5, int_bytes, 3, (uint16_t[]){1, 255}, 4, WEFT_DTYPE_BF16, 2);
    check_stored(2, 5, int_bytes, 3, (uint8_t[]){1, 255}, 2, WEFT_DTYPE_U8, 2);
    check_stored(6, 5, int_bytes, 3, (int32_t[]){1, 255}, 8, WEFT_DTYPE_I32, 2);
    check_stored(9, 5, (uint8_t[]){1, 0}, 2, (uint8_t[]){1, 0}, 2, WEFT_DTYPE_BOOL, 2);
    static const uint8_t minus_one[10] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 1};
    check_stored(3, 5, minus_one, 10, (int8_t[]){-1}, 1, WEFT_DTYPE_I8, 1);
}

static void test_onnx_import_takes_old_files(void **state)
{
    (void)state;
    /* Format 3 listed initializers among the inputs: those are parameters. */
    wire_t model = onnx_small_mlp();
    wire_t graph = {0};
    onnx_value(&graph, 11, "w1", ONNX_FLOAT, 2, (int64_t[]){3, 4});
    wire_message(&model, 7, &graph); /* a repeated message field is merged */
    wefti_graph_t *imported = import_wire(&model);
    assert_int_equal(imported->input_count, 2);
    assert_int_equal(value_of(imported, "w1")->kind, WEFTI_VALUE_PARAM);
    wefti_graph_destroy(imported);
    wire_free(&model);
}

static void test_onnx_import_turns_constants_into_values(void **state)
{
    (void)state;
    wire_t graph = {0}, attribute = {0}, attributes = {0};
    wire_string(&attribute, 1, "value_ints");
    wire_number(&attribute, 8, 2);
    wire_number(&attribute, 8, 6);
    wire_number(&attribute, 20, 7);
    wire_message(&attributes, 5, &attribute);
    onnx_node(&graph, "Constant", NULL, "", "shape", &attributes);
    onnx_node(&graph, "Reshape", NULL, "x,shape", "y", NULL);
    onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){3, 4});
    onnx_value(&graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){2, 6});
    wire_t model = onnx_model(&graph, 13);
    wefti_graph_t *imported = import_wire(&model);
    assert_int_equal(imported->order_count, 1);
    const wefti_value_t *shape = value_of(imported, "shape");
    assert_int_equal(shape->kind, WEFTI_VALUE_CONST);
    check_type(shape, WEFT_DTYPE_I64, 1, (int64_t[]){2});
    assert_memory_equal(shape->type.data, ((int64_t[]){2, 6}), 16);
    assert_int_equal(wefti_graph_infer_shapes(imported), WEFT_OK);
    check_type(value_of(imported, "y"), WEFT_DTYPE_F32, 2, (int64_t[]){2, 6});
    wefti_graph_destroy(imported);
    wire_free(&model);
}

static void add_entry(wire_t *tensor, const char *key, const char *value)
{
    wire_t entry = {0};
    wire_string(&entry, 1, key);
    wire_string(&entry, 2, value);
    wire_message(tensor, 13, &entry);
}

static void test_onnx_import_maps_external_data(void **state)
{
    (void)state;
    char folder[] = "/tmp/weft-external-XXXXXX", path[128], data[128], sub[128];
    static const float contents[6] = {9, 9, 1, 2, 3, 4};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/model.onnx", folder);
    snprintf(sub, sizeof(sub), "%s/sub", folder);
    snprintf(data, sizeof(data), "%s/sub/weights.bin", folder);
    assert_int_equal(mkdir(sub, 0700), 0);
    write_file(data, contents, sizeof(contents));
    wire_t graph = {0};
    for (int i = 0; i < 2; i++) {
        wire_t tensor =
            onnx_tensor(i == 0 ? "a" : "b", ONNX_FLOAT, 1, (int64_t[]){i == 0 ? 4 : 2}, NULL, 0);
        add_entry(&tensor, "location", "sub/weights.bin");
        add_entry(&tensor, "offset", i == 0 ? "8" : "0");
        add_entry(&tensor, "length", i == 0 ? "16" : "8");
        wire_number(&tensor, 14, 1);
        wire_message(&graph, 5, &tensor);
    }
    onnx_value(&graph, 12, "a", ONNX_FLOAT, 1, (int64_t[]){4});
    wire_t model = onnx_model(&graph, 13);
    write_file(path, model.data, model.size);
    wefti_onnx_import_params_t params = {.path = path, .loss_optional = true};
    wefti_graph_t *imported = NULL;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &imported), WEFT_OK);
    assert_int_equal(imported->mapping_count, 2); /* the model and one file, mapped once */
    assert_memory_equal(value_of(imported, "a")->type.data, contents + 2, 16);
    assert_memory_equal(value_of(imported, "b")->type.data, contents, 8);
    assert_true(in_mapping(imported, value_of(imported, "a")->type.data));
    wefti_graph_destroy(imported);
    wire_free(&model);
    unlink(data);
    unlink(path);
    rmdir(sub);
    rmdir(folder);
}

static void test_onnx_import_finds_the_loss_asked_for(void **state)
{
    (void)state;
    wire_t model = onnx_small_mlp();
    wefti_onnx_import_params_t params = {
        .bytes = model.data, .size_bytes = model.size, .loss = "h2"};
    wefti_graph_t *graph = NULL;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &graph), WEFT_OK);
    assert_string_equal(graph->values[graph->loss].name, "h2");
    assert_string_equal(graph->values[graph->logits].name, "h1");
    assert_int_equal(graph->label, WEFTI_NONE);
    wefti_graph_destroy(graph);
    params.loss = "nowhere";
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &graph), WEFT_ERR_NOT_FOUND);
    assert_null(graph);
    assert_non_null(strstr(weft_last_error(), "nowhere"));
    wire_free(&model);
}

static void add_values(wire_t *graph, const char *name, int64_t rows, int64_t columns,
                       const float *values)
{
    wire_t tensor = onnx_tensor(name, ONNX_FLOAT, 2, (int64_t[]){rows, columns}, values,
                                (size_t)(rows * columns) * sizeof(float));
    wire_message(graph, 5, &tensor);
}

static void add_floats(wire_t *graph, const char *name, uint32_t rank, int64_t dim)
{
    static const float values[16];
    size_t count = rank == 0 ? 1 : rank == 1 ? (size_t)dim : (size_t)(dim * dim);
    wire_t tensor =
        onnx_tensor(name, ONNX_FLOAT, rank, (int64_t[]){dim, dim}, values, count * sizeof(float));
    wire_message(graph, 5, &tensor);
}

/* One of metadata_props, in field of outer. */
static void add_metadata(wire_t *outer, uint32_t field, const char *key, const char *value)
{
    wire_t entry = {0};
    wire_string(&entry, 1, key);
    wire_string(&entry, 2, value);
    wire_message(outer, field, &entry);
}

/* A value_info of an initializer with a mark, as torch.onnx writes it. */
static void add_mark(wire_t *graph, const char *name, const char *key, const char *value)
{
    wire_t info = {0};
    wire_string(&info, 1, name);
    add_metadata(&info, 4, key, value);
    wire_message(graph, 13, &info);
}

/* "w+ b+ k-": names of what is trained and what not, with ? where it is a guess. */
static void check_parameters(wire_t *model, const char *expected)
{
    wefti_onnx_import_params_t params = {
        .bytes = model->data, .size_bytes = model->size, .may_lack_loss = true};
    wefti_graph_t *graph = NULL;
    wefti_text_t text;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &graph), WEFT_OK);
    wefti_text_init(&text, NULL);
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const wefti_parameter_t *parameter = &graph->parameters[i];
        wefti_text_printf(&text, "%s%s%s%s%s", i > 0 ? " " : "", parameter->name,
                          parameter->trained ? "+" : "-", parameter->guess ? "?" : "",
                          parameter->value == WEFTI_NONE ? "!" : "");
    }
    assert_string_equal(text.data, expected);
    wefti_text_deinit(&text);
    wefti_graph_destroy(graph);
    wire_free(model);
}

/* Without marks: TorchScript and others. */
static void test_parameters_by_name_and_place(void **state)
{
    (void)state;
    wire_t graph = {0};
    onnx_node(&graph, "MatMul", NULL, "x,onnx::MatMul_12", "a", NULL);
    onnx_node(&graph, "Add", NULL, "a,b1", "b", NULL);
    onnx_node(&graph, "Mul", NULL, "b,onnx::Mul_14", "c", NULL);
    onnx_node(&graph, "Mul", NULL, "c,scale", "d", NULL);
    onnx_node(&graph, "Mul", NULL, "d,net.temperature", "e", NULL);
    onnx_node(&graph, "Mul", NULL, "e,mask", "f", NULL);
    onnx_node(&graph, "Mul", NULL, "f,one", "g", NULL);
    onnx_node(&graph, "Transpose", NULL, "w2", "w2t", NULL);
    onnx_node(&graph, "Mul", NULL, "g,rope.inv_freq", "h", NULL);
    onnx_node(&graph, "MatMul", NULL, "h,w2t", "y", NULL);
    add_floats(&graph, "onnx::MatMul_12", 2, 4);
    add_floats(&graph, "b1", 1, 4);
    add_floats(&graph, "onnx::Mul_14", 0, 0);
    add_floats(&graph, "scale", 0, 0);
    add_floats(&graph, "net.temperature", 0, 0);
    add_floats(&graph, "mask", 1, 4);
    add_floats(&graph, "one", 1, 1);
    add_floats(&graph, "w2", 2, 4);
    add_floats(&graph, "rope.inv_freq", 1, 4);
    onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){4, 4});
    onnx_value(&graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){4, 4});
    wire_t model = onnx_model(&graph, 13);
    check_parameters(&model, "onnx::MatMul_12+ b1+ onnx::Mul_14- scale- net.temperature+? mask+? "
                             "one-? w2+ rope.inv_freq-");
}

#define TENSORS                                                                                    \
    "enc.B+? mask+? blur.kernel+? net.w2+ net.shift+? attn.in_proj_weight+ vit.cls_token+ "        \
    "act.alpha+ W+ attn.q_bias+ pos_embed+ block.layer_scale+ "
/* In a file of torch a name without a dot is one of a module, too. */
static void test_parameters_or_buffers_of_modules(void **state)
{
    static const char *const names[] = {"enc.B",
                                        "mask",
                                        "blur.kernel",
                                        "net.w2",
                                        "net.shift",
                                        "attn.in_proj_weight",
                                        "vit.cls_token",
                                        "act.alpha",
                                        "W",
                                        "attn.q_bias",
                                        "pos_embed",
                                        "block.layer_scale",
                                        "B"};
    (void)state;
    for (int torch = 0; torch < 2; torch++) {
        wire_t graph = {0};
        char last[8] = "x";
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char inputs[64], output[8];
            snprintf(inputs, sizeof inputs, "%s,%s", last, names[i]);
            snprintf(output, sizeof output, "t%zu", i);
            onnx_node(&graph, "MatMul", NULL, inputs, output, NULL);
            add_floats(&graph, names[i], 2, 4);
            memcpy(last, output, sizeof last);
        }
        onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){4, 4});
        onnx_value(&graph, 12, last, ONNX_FLOAT, 2, (int64_t[]){4, 4});
        wire_t model = onnx_model(&graph, 13);
        if (torch) {
            wire_string(&model, 2, "pytorch");
        }
        check_parameters(&model, torch ? TENSORS "B+?" : TENSORS "B+");
    }
}

/* Of an expression: position biases that the exporter gathered; masks and ranges are constants. */
static void test_parameters_that_may_be_in_expressions(void **state)
{
    static const float biases[] = {0.5f, -0.25f, 0.125f, 1.0f}, ranges[] = {0, 1, 2, 3},
                       masks[] = {0, -INFINITY, -3.4028235e38f, 0}, equal[] = {.5f, .5f, .5f, .5f};
    (void)state;
    wire_t graph = {0};
    onnx_node(&graph, "Add", NULL, "x,onnx::Add_1", "a", NULL);
    onnx_node(&graph, "Add", NULL, "a,onnx::Add_2", "b", NULL);
    onnx_node(&graph, "Add", NULL, "b,onnx::Add_3", "c", NULL);
    onnx_node(&graph, "Mul", NULL, "c,onnx::Mul_4", "y", NULL);
    add_values(&graph, "onnx::Add_1", 2, 2, biases);
    add_values(&graph, "onnx::Add_2", 2, 2, ranges);
    add_values(&graph, "onnx::Add_3", 2, 2, masks);
    add_values(&graph, "onnx::Mul_4", 2, 2, equal);
    onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){2, 2});
    onnx_value(&graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){2, 2});
    wire_t model = onnx_model(&graph, 13);
    check_parameters(&model, "onnx::Add_1-? onnx::Add_2- onnx::Add_3- onnx::Mul_4-");
}

/* A transposed copy becomes a Transpose; but not one that differs in an element, not one that equals
 * its own transpose, and not one of two numbers. */
static void test_parameters_that_are_tied(void **state)
{
    static const float w[] = {1, 2, 3, 4, 5, 6}, copy[] = {1, 4, 2, 5, 3, 6},
                       other[] = {1, 4, 9, 5, 3, 6}, one[] = {1, 0, 0, 1};
    static const float wide[] = {1, 0, 0, 0, 1, 0}, tall[] = {1, 0, 0, 1, 0, 0};
    (void)state;
    for (int listed = 0; listed < 2; listed++) {
        wire_t graph = {0};
        onnx_node(&graph, "MatMul", NULL, "x,emb.weight", "a", NULL);
        onnx_node(&graph, "MatMul", NULL, "a,onnx::MatMul_7", "b", NULL);
        onnx_node(&graph, "MatMul", NULL, "b,emb.weight", "c", NULL);
        onnx_node(&graph, "MatMul", NULL, "c,onnx::MatMul_8", "d", NULL);
        onnx_node(&graph, "MatMul", NULL, "d,id.weight", "e", NULL);
        onnx_node(&graph, "MatMul", NULL, "e,onnx::MatMul_9", "f", NULL);
        onnx_node(&graph, "MatMul", NULL, "f,eye.weight", "g", NULL);
        onnx_node(&graph, "MatMul", NULL, "g,onnx::MatMul_10", "y", NULL);
        add_values(&graph, "onnx::MatMul_7", 3, 2, copy);
        add_values(&graph, "emb.weight", 2, 3, w);
        add_values(&graph, "onnx::MatMul_8", 3, 2, other);
        add_values(&graph, "id.weight", 2, 2, one);
        add_values(&graph, "onnx::MatMul_9", 2, 2, one);
        add_values(&graph, "eye.weight", 2, 3, wide);
        add_values(&graph, "onnx::MatMul_10", 3, 2, tall);
        onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){4, 2});
        onnx_value(&graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){4, 2});
        wire_t model = onnx_model(&graph, 13);
        if (listed) { /* the exporter states what is trained: nothing is a guess */
            add_metadata(&model, 14, "weft.trained", "emb.weight");
        }
        check_parameters(&model, listed ? "onnx::MatMul_7- emb.weight+ onnx::MatMul_8- id.weight- "
                                          "onnx::MatMul_9- eye.weight- onnx::MatMul_10-"
                                        : "emb.weight+ onnx::MatMul_8+ id.weight+ onnx::MatMul_9+ "
                                          "eye.weight+ onnx::MatMul_10+");
    }
}

/* Two files of torch.export: one as it is, one whose optimizer folded parameters. */
static void test_parameters_by_marks_of_torch(void **state)
{
    static const char kind[] = "pkg.torch.export.graph_signature.InputSpec.kind";
    static const char signature[] = "pkg.torch.export.ExportedProgram.graph_signature";
    static const char from[] = "pkg.onnxscript.optimizer.folded_from";
    (void)state;
    for (int folded = 0; folded < 2; folded++) {
        wire_t graph = {0};
        onnx_node(&graph, "MatMul", NULL, folded ? "x,val_7" : "x,fc.weight", "a", NULL);
        onnx_node(&graph, "Mul", NULL, "a,val_3", "b", NULL);
        onnx_node(&graph, "Add", NULL, "b,shift", "c", NULL);
        onnx_node(&graph, "Add", NULL, folded ? "c,expand" : "c,fc.bias", "y", NULL);
        add_floats(&graph, folded ? "val_7" : "fc.weight", 2, 4);
        add_floats(&graph, "val_3", 1, 4);
        add_floats(&graph, "shift", 1, 4);
        add_floats(&graph, folded ? "expand" : "fc.bias", 1, 4);
        add_mark(&graph, "shift", kind, "BUFFER");
        if (folded) {
            add_mark(&graph, "val_7", from, "['fc.weight']");
            add_mark(&graph, "expand", from, "['fc.bias', 'val_2']");
        } else {
            add_mark(&graph, "fc.weight", kind, "PARAMETER");
        }
        add_metadata(
            &graph, 16, signature,
            "\n# inputs\np_w: PARAMETER target='fc.weight'\np_b: PARAMETER target='fc.bias'\n"
            "b_s: BUFFER target='shift' persistent=True\n");
        onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){4, 4});
        onnx_value(&graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){4, 4});
        wire_t model = onnx_model(&graph, 13);
        check_parameters(&model, folded ? "val_7+ val_3- shift- expand-? fc.bias-!"
                                        : "fc.weight+ val_3- shift- fc.bias+");
    }
}

/* The optimizer folded BatchNormalization into Conv, which leaves no mark at tensors. */
static void test_parameters_of_folded_normalization(void **state)
{
    static const char signature[] = "pkg.torch.export.ExportedProgram.graph_signature";
    (void)state;
    for (int folded = 0; folded < 2; folded++) {
        wire_t graph = {0};
        onnx_node(&graph, "MatMul", NULL, "x,fc.weight", "y", NULL);
        add_floats(&graph, "fc.weight", 2, 4);
        if (!folded) {
            add_floats(&graph, "bn.running_mean", 1, 4);
        }
        add_metadata(&graph, 16, signature,
                     "p_w: PARAMETER target='fc.weight'\np_s: PARAMETER target='bn.weight'\n"
                     "b_m: BUFFER target='bn.running_mean' persistent=True\n");
        onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){4, 4});
        onnx_value(&graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){4, 4});
        wire_t model = onnx_model(&graph, 18);
        check_parameters(&model, folded ? "fc.weight+ bn.weight-!" : "fc.weight+ bn.running_mean-");
    }
}

static void test_parameters_that_weft_export_lists(void **state)
{
    (void)state;
    wire_t graph = {0};
    onnx_node(&graph, "MatMul", NULL, "x,head.weight", "a", NULL);
    onnx_node(&graph, "MatMul", NULL, "a,body.weight", "y", NULL);
    add_floats(&graph, "head.weight", 2, 4);
    add_floats(&graph, "body.weight", 2, 4);
    onnx_value(&graph, 11, "x", ONNX_FLOAT, 2, (int64_t[]){4, 4});
    onnx_value(&graph, 12, "y", ONNX_FLOAT, 2, (int64_t[]){4, 4});
    wire_t model = onnx_model(&graph, 13);
    add_metadata(&model, 14, "weft.trained", "head.weight,head.bias");
    check_parameters(&model, "head.weight+ body.weight-");
}

/* Statistics that BatchNormalization updates are neither trained nor constants. */
static void test_parameters_of_batch_normalization(void **state)
{
    (void)state;
    for (int training = 0; training < 2; training++) {
        wire_t graph = {0}, attributes = {0};
        onnx_attribute_int(&attributes, "training_mode", training);
        onnx_node(&graph, "MatMul", NULL, "x,w", "y", NULL);
        onnx_node(&graph, "BatchNormalization", NULL, "x,s,b,m,v", "n", &attributes);
        add_floats(&graph, "w", 2, 4);
        add_floats(&graph, "s", 1, 4);
        add_floats(&graph, "m", 1, 4);
        wire_t model = {0};
        wire_message(&model, 7, &graph);
        wire_number(&model, 1, 8);
        wefti_onnx_file_t file;
        wefti_onnx_import_params_t params = {.bytes = model.data, .size_bytes = model.size};
        wefti_parameter_t *list;
        uint32_t count;
        wefti_arena_t arena;
        wefti_arena_init(&arena, NULL, 0);
        assert_int_equal(wefti_onnx_file_open(&params, NULL, &file), WEFT_OK);
        assert_int_equal(wefti_onnx_parameters(&file, &arena, &list, &count), WEFT_OK);
        assert_int_equal(count, 3);
        assert_true(list[0].trained && list[1].trained && !list[2].trained);
        assert_int_equal(list[2].running, training);
        assert_int_equal(list[1].fixed_norms, !training);
        wefti_onnx_file_close(&file);
        wefti_arena_deinit(&arena);
        wire_free(&model);
    }
}

/* Both operators in the form for inference; afterwards statistics are updated, and Dropout drops. */
static void test_training_form(void **state)
{
    (void)state;
    wire_t graph = {0}, opset = {0}, model = {0};
    onnx_node(&graph, "BatchNormalization", NULL, "x,s,b,m,v", "n", NULL);
    onnx_node(&graph, "Dropout", NULL, "n", "d", NULL);
    add_floats(&graph, "m", 1, 4);
    wire_number(&opset, 2, 20);
    wire_message(&model, 7, &graph);
    wire_message(&model, 8, &opset);
    wire_number(&model, 1, 8);
    wefti_onnx_file_t file;
    wefti_onnx_import_params_t params = {.bytes = model.data, .size_bytes = model.size};
    wefti_parameter_t *list;
    uint32_t count;
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_onnx_file_open(&params, NULL, &file), WEFT_OK);
    assert_int_equal(wefti_onnx_training_form(&file), WEFT_OK);
    assert_int_equal(wefti_onnx_parameters(&file, &arena, &list, &count), WEFT_OK);
    assert_int_equal(count, 1);
    assert_true(list[0].running);
    const Onnx__NodeProto *dropout = file.model->graph->node[1];
    assert_int_equal(dropout->n_input, 3);
    assert_string_equal(dropout->input[1], "");
    assert_string_equal(dropout->input[2], file.model->graph->initializer[1]->name);
    wefti_onnx_file_close(&file);
    wefti_arena_deinit(&arena);
    wire_free(&model);
}

/* A node of a function's body (field 7). */
static void body_node(wire_t *function, const char *op, const char *inputs, const char *outputs,
                      wire_t *attributes)
{
    wire_t graph = {0};
    onnx_node(&graph, op, NULL, inputs, outputs, attributes);
    graph.data[0] = 7 << 3 | 2; /* instead of field 1 */
    wire_raw(function, graph.data, graph.size);
    wire_free(&graph);
}

/* Outer(x) = Inner(Inner(x)), Inner(x) = LeakyRelu(x) + x with the caller's alpha or the usual one. */
static void test_onnx_import_inlines_functions(void **state)
{
    (void)state;
    wire_t graph = {0}, inner = {0}, outer = {0}, attributes = {0}, attribute = {0};
    onnx_value(&graph, 11, "x", ONNX_FLOAT, 1, (int64_t[]){4});
    wire_string(&attribute, 1, "slope");
    wire_raw(&attribute, "\x15\0\0\0\x3f", 5); /* field 2: 0.5f */
    wire_number(&attribute, 20, 1);
    wire_message(&attributes, 5, &attribute);
    onnx_node(&graph, "Outer", "call", "x", "y", &attributes);
    onnx_node(&graph, "Outer", NULL, "y", "z", NULL);
    onnx_value(&graph, 12, "z", ONNX_FLOAT, 1, (int64_t[]){4});
    wire_t model = onnx_model(&graph, 16);
    wire_string(&inner, 1, "Inner");
    wire_string(&inner, 4, "a");
    wire_string(&inner, 5, "c");
    wire_string(&inner, 6, "alpha");
    wire_string(&attribute, 1, "alpha");
    wire_string(&attribute, 21, "alpha");
    wire_number(&attribute, 20, 1);
    wire_message(&attributes, 5, &attribute);
    body_node(&inner, "LeakyRelu", "a", "b", &attributes);
    body_node(&inner, "Add", "b,a", "c", NULL);
    wire_message(&model, 25, &inner);
    wire_string(&outer, 1, "Outer");
    wire_string(&outer, 4, "a");
    wire_string(&outer, 5, "b");
    wire_string(&outer, 6, "slope");
    wire_string(&attribute, 1, "alpha");
    wire_string(&attribute, 21, "slope");
    wire_number(&attribute, 20, 1);
    wire_message(&attributes, 5, &attribute);
    body_node(&outer, "Inner", "a", "t", &attributes);
    body_node(&outer, "Inner", "t", "b", NULL);
    wire_message(&model, 25, &outer);
    wefti_graph_t *imported = import_wire(&model);
    static const char *const ops[] = {"LeakyRelu", "Add"};
    assert_int_equal(imported->order_count, 8);
    for (uint32_t i = 0; i < 8; i++) {
        const wefti_node_t *node = &imported->nodes[imported->order[i]];
        const weft_attr_t *alpha = wefti_node_attr(node, "alpha");
        assert_string_equal(node->def->name, ops[i % 2]);
        assert_true(i == 0 ? alpha != NULL && alpha->f == 0.5f : alpha == NULL);
    }
    assert_int_equal(value_of(imported, "y")->producer, imported->order[3]);
    assert_int_equal(value_of(imported, "z")->producer, imported->order[7]);
    wefti_graph_destroy(imported);
    wire_free(&model);
}

static void test_onnx_import_counts_device_configurations(void **state)
{
    (void)state;
    wire_t model = onnx_small_mlp(), configuration = {0};
    wefti_onnx_import_params_t params;
    wefti_graph_t *graph = NULL;
    wire_string(&configuration, 1, "two devices");
    wire_message(&model, 26, &configuration);
    params = (wefti_onnx_import_params_t){.bytes = model.data, .size_bytes = model.size};
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &graph), WEFT_OK);
    assert_int_equal(graph->device_configurations, 1);
    wefti_graph_destroy(graph);
    wire_free(&model);
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
        cmocka_unit_test(test_onnx_import_reads_mlp),
        cmocka_unit_test(test_onnx_import_leaves_weights_in_the_mapping),
        cmocka_unit_test(test_onnx_import_binds_samples_and_exports),
        cmocka_unit_test(test_onnx_import_names_the_node_a_baked_batch_contradicts),
        cmocka_unit_test(test_onnx_import_reads_every_storage),
        cmocka_unit_test(test_onnx_import_takes_old_files),
        cmocka_unit_test(test_onnx_import_turns_constants_into_values),
        cmocka_unit_test(test_onnx_import_maps_external_data),
        cmocka_unit_test(test_onnx_import_finds_the_loss_asked_for),
        cmocka_unit_test(test_parameters_by_name_and_place),
        cmocka_unit_test(test_parameters_or_buffers_of_modules),
        cmocka_unit_test(test_parameters_that_may_be_in_expressions),
        cmocka_unit_test(test_parameters_that_are_tied),
        cmocka_unit_test(test_parameters_of_folded_normalization),
        cmocka_unit_test(test_parameters_by_marks_of_torch),
        cmocka_unit_test(test_parameters_that_weft_export_lists),
        cmocka_unit_test(test_parameters_of_batch_normalization),
        cmocka_unit_test(test_training_form),
        cmocka_unit_test(test_onnx_import_inlines_functions),
        cmocka_unit_test(test_onnx_import_counts_device_configurations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

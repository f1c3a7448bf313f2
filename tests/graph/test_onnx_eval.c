/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluation models and saved files. With two arguments, MODEL and OUT, this program writes MODEL's
 * evaluation model with its own untrained weights to OUT; check_saved_onnx.py looks at that with
 * the onnx package.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <weft/compile.h>

#include "graph/onnx/onnx.h"
#include "ops/plan/plan.h"
#include "tests/graph/support_interpreter.h"
#include "tests/graph/support_onnx.h"
#include "tests/support/support.h"

static weft_registry_t *registry;

typedef struct model {
    wefti_graph_t *graph; /* the training model, for its weights */
    weft_plan_t *plan;
    void *blob;
    size_t blob_size;
    bool fixed;
    weft_named_tensor_t *tensors; /* every parameter */
    size_t tensor_count;
} model_t;

static weft_status_t open_model(const wefti_onnx_import_params_t *params, model_t *model)
{
    weft_status_t status = wefti_onnx_import(params, NULL, registry, &model->graph);
    if (status == WEFT_OK) {
        status = wefti_onnx_eval_model(params, NULL, registry, &model->blob, &model->blob_size,
                                       &model->fixed);
    }
    if (status == WEFT_OK) {
        status = wefti_plan_create(NULL, &model->plan);
    }
    if (status != WEFT_OK) {
        return status;
    }
    model->plan->eval_model = model->blob;
    model->plan->eval_model_bytes = model->blob_size;
    model->tensors = calloc(model->graph->value_count, sizeof(*model->tensors));
    for (uint32_t i = 0; i < model->graph->value_count; i++) {
        const wefti_value_t *value = &model->graph->values[i];
        if (value->kind == WEFTI_VALUE_PARAM) {
            model->tensors[model->tensor_count++] =
                (weft_named_tensor_t){.name = value->name, .desc = value->type};
        }
    }
    return WEFT_OK;
}

static void close_model(model_t *model)
{
    weft_plan_release(model->plan);
    wefti_graph_destroy(model->graph);
    wefti_free(NULL, model->blob);
    free(model->tensors);
    *model = (model_t){0};
}

static model_t open_file(const char *path)
{
    wefti_onnx_import_params_t params = {.path = path};
    model_t model = {0};
    if (open_model(&params, &model) != WEFT_OK) {
        fail_msg("%s: %s", path, weft_last_error());
    }
    return model;
}

static wefti_graph_t *import_bytes(const void *bytes, size_t size, bool holes)
{
    wefti_onnx_import_params_t params = {
        .bytes = bytes, .size_bytes = size, .loss_optional = true, .holes = holes};
    wefti_graph_t *graph = NULL;
    if (wefti_onnx_import(&params, NULL, registry, &graph) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    return graph;
}

static void test_onnx_eval_model_drops_label_and_loss(void **state)
{
    (void)state;
    static const char *const paths[] = {
        WEFT_SOURCE_DIR "/samples/models/mlp.onnx",
        WEFT_SOURCE_DIR "/samples/models/lenet.onnx",
        WEFT_SOURCE_DIR "/tests/data/torch_mlp.onnx",
        WEFT_SOURCE_DIR "/tests/data/torch_mlp_batch4.onnx",
        WEFT_SOURCE_DIR "/tests/data/torch_lenet_avgpool_batch4.onnx",
        WEFT_SOURCE_DIR "/tests/data/torch_reshape.onnx",
        WEFT_SOURCE_DIR "/tests/data/torch_reshape_batch4.onnx",
    };
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        model_t model = open_file(paths[i]);
        wefti_graph_t *eval = import_bytes(model.blob, model.blob_size, true);
        assert_int_equal(eval->input_count, 1);
        const wefti_value_t *image = &eval->values[eval->inputs[0]];
        assert_string_equal(image->name, "image");
        assert_int_equal(image->type.dims[0], -1);
        assert_string_equal(image->dim_names[0], "batch");
        assert_int_equal(eval->output_count, 1);
        assert_string_equal(eval->values[eval->outputs[0]].name, "logits");
        assert_int_equal(eval->loss, WEFTI_NONE);
        assert_int_equal(wefti_graph_find_value(eval, "label"), WEFTI_NONE);
        assert_int_equal(wefti_graph_find_value(eval, "loss"), WEFTI_NONE);
        assert_int_equal(eval->opset, model.graph->opset);
        for (size_t t = 0; t < model.tensor_count; t++) {
            uint32_t value = wefti_graph_find_value(eval, model.tensors[t].name);
            assert_int_not_equal(value, WEFTI_NONE);
            assert_null(eval->values[value].type.data);
        }
        assert_true(model.blob_size < 8 << 10); /* no weights inside */
        assert_int_equal(wefti_graph_bind_shapes(eval, 9, NULL, 0), WEFT_OK);
        assert_int_equal(eval->values[eval->outputs[0]].type.dims[0], 9);
        wefti_graph_destroy(eval);
        close_model(&model);
    }
}

static void test_onnx_eval_model_frees_a_baked_batch(void **state)
{
    (void)state;
    model_t model = open_file(WEFT_SOURCE_DIR "/tests/data/torch_reshape_batch4.onnx");
    wefti_graph_t *eval = import_bytes(model.blob, model.blob_size, true);
    uint32_t shape = wefti_graph_find_value(eval, "/model/Reshape_output_0.shape");
    assert_int_not_equal(shape, WEFTI_NONE);
    assert_memory_equal(eval->values[shape].type.data, ((int64_t[]){0, -1}), 16);
    /* The chain that made the old shape is gone. */
    assert_int_equal(wefti_graph_find_value(eval, "/model/Concat_output_0"), WEFTI_NONE);
    wefti_graph_destroy(eval);
    close_model(&model);
}

static void test_onnx_eval_model_keeps_what_is_not_trained(void **state)
{
    (void)state;
    static const char *const trained[] = {"fc1.weight", "fc3.bias"};
    wefti_onnx_import_params_t params = {
        .path = WEFT_SOURCE_DIR "/samples/models/mlp.onnx", .trained = trained, .trained_count = 2};
    model_t model = {0};
    assert_int_equal(open_model(&params, &model), WEFT_OK);
    wefti_graph_t *eval = import_bytes(model.blob, model.blob_size, true);
    for (size_t t = 0; t < model.tensor_count; t++) {
        const char *name = model.tensors[t].name;
        const weft_tensor_desc_t *kept = &eval->values[wefti_graph_find_value(eval, name)].type;
        if (strcmp(name, trained[0]) == 0 || strcmp(name, trained[1]) == 0) {
            assert_null(kept->data);
        } else {
            assert_memory_equal(kept->data, model.tensors[t].desc.data,
                                (size_t)weft_tensor_elem_count(kept) * 4);
        }
    }
    wefti_graph_destroy(eval);
    close_model(&model);
}

static void test_onnx_eval_model_keeps_a_batch_it_cannot_free(void **state)
{
    (void)state;
    /* image [4, 6] + constant [4, 6]: the constant says four samples. */
    static const float zeros[24];
    wire_t graph = {0}, tensor;
    onnx_node(&graph, "Add", "shift", "image,offsets", "moved", NULL);
    onnx_node(&graph, "Gemm", "fc", "moved,w", "logits", NULL);
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "ce", "logits,label", "loss", NULL);
    tensor = onnx_tensor("offsets", ONNX_FLOAT, 2, (int64_t[]){4, 6}, zeros, 96);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("w", ONNX_FLOAT, 2, (int64_t[]){6, 2}, zeros, 48);
    wire_message(&graph, 5, &tensor);
    onnx_value(&graph, 11, "image", ONNX_FLOAT, 2, (int64_t[]){4, 6});
    onnx_value(&graph, 11, "label", ONNX_INT64, 1, (int64_t[]){4});
    onnx_value(&graph, 12, "loss", ONNX_FLOAT, 0, NULL);
    wire_t wire = onnx_model(&graph, 13);
    wefti_onnx_import_params_t params = {.bytes = wire.data, .size_bytes = wire.size};
    void *blob = NULL;
    size_t size = 0;
    bool fixed = false;
    assert_int_equal(wefti_onnx_eval_model(&params, NULL, registry, &blob, &size, &fixed), WEFT_OK);
    assert_true(fixed);
    assert_non_null(strstr(weft_last_error(), "depends on the batch size"));
    assert_non_null(strstr(weft_last_error(), "shift"));
    wefti_onnx_import_params_t again = {
        .bytes = blob, .size_bytes = size, .loss_optional = true, .holes = true};
    wefti_graph_t *graph_of = NULL;
    assert_int_equal(wefti_onnx_import(&again, NULL, registry, &graph_of), WEFT_OK);
    assert_int_equal(graph_of->values[graph_of->inputs[0]].type.dims[0], 4);
    wefti_graph_destroy(graph_of);
    free(blob);
    wire_free(&wire);
}

/* A language model: positions are merged with the batch for the loss, and the exporter wrote the
 * batch into shapes of which a zero would be a dimension of size zero. */
static void test_onnx_eval_model_frees_merged_dimensions(void **state)
{
    (void)state;
    static const float values[24];
    static const int64_t split[3] = {4, 2, 2}, merged[2] = {8, 2}, flat[1] = {8};
    wire_t graph = {0}, tensor, attributes[2] = {{0}, {0}};
    onnx_attribute_int(&attributes[0], "allowzero", 1);
    onnx_attribute_int(&attributes[1], "allowzero", 1);
    onnx_node(&graph, "Gemm", "fc", "text,w", "h", NULL);
    onnx_node(&graph, "Reshape", "split", "h,s3", "positions", &attributes[0]);
    onnx_node(&graph, "Reshape", "merge", "positions,s2", "logits", &attributes[1]);
    onnx_node(&graph, "Reshape", "flat", "label,s1", "labels", NULL);
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "ce", "logits,labels", "loss", NULL);
    tensor = onnx_tensor("w", ONNX_FLOAT, 2, (int64_t[]){6, 4}, values, 96);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("s3", ONNX_INT64, 1, (int64_t[]){3}, split, sizeof(split));
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("s2", ONNX_INT64, 1, (int64_t[]){2}, merged, sizeof(merged));
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("s1", ONNX_INT64, 1, (int64_t[]){1}, flat, sizeof(flat));
    wire_message(&graph, 5, &tensor);
    onnx_value(&graph, 11, "text", ONNX_FLOAT, 2, (int64_t[]){4, 6});
    onnx_value(&graph, 11, "label", ONNX_INT64, 2, (int64_t[]){4, 2});
    onnx_value(&graph, 12, "loss", ONNX_FLOAT, 0, NULL);
    wire_t wire = onnx_model(&graph, 14);
    wefti_onnx_import_params_t params = {.bytes = wire.data, .size_bytes = wire.size};
    void *blob = NULL;
    size_t size = 0;
    bool fixed = true;
    assert_int_equal(wefti_onnx_eval_model(&params, NULL, registry, &blob, &size, &fixed), WEFT_OK);
    assert_false(fixed);
    wefti_onnx_import_params_t again = {
        .bytes = blob, .size_bytes = size, .loss_optional = true, .holes = true};
    wefti_graph_t *eval = NULL;
    assert_int_equal(wefti_onnx_import(&again, NULL, registry, &eval), WEFT_OK);
    assert_int_equal(wefti_graph_bind_shapes(eval, 7, NULL, 0), WEFT_OK);
    const wefti_value_t *logits = &eval->values[wefti_graph_find_value(eval, "logits")];
    assert_int_equal(logits->type.dims[0], 14);
    assert_int_equal(logits->type.dims[1], 2);
    wefti_graph_destroy(eval);
    free(blob);
    wire_free(&wire);
}

static void test_onnx_eval_model_takes_training_forms_away(void **state)
{
    (void)state;
    static const float values[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    wire_t graph = {0}, tensor, attributes = {0};
    onnx_attribute_int(&attributes, "training_mode", 1);
    onnx_node(&graph, "BatchNormalization", "bn", "image,s,b,m,v", "n,rm,rv", &attributes);
    onnx_node(&graph, "Dropout", "drop", "n,ratio,on", "d,mask", NULL);
    onnx_node(&graph, "Gemm", "fc", "d,w", "logits", NULL);
    onnx_node(&graph, "SoftmaxCrossEntropyLoss", "ce", "logits,label", "loss", NULL);
    for (int i = 0; i < 4; i++) {
        tensor = onnx_tensor((const char *[]){"s", "b", "m", "v"}[i], ONNX_FLOAT, 1, (int64_t[]){4},
                             values, 16);
        wire_message(&graph, 5, &tensor);
    }
    tensor = onnx_tensor("w", ONNX_FLOAT, 2, (int64_t[]){4, 2}, values, 32);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("ratio", ONNX_FLOAT, 0, NULL, values, 4);
    wire_message(&graph, 5, &tensor);
    tensor = onnx_tensor("on", 9, 0, NULL, "\1", 1);
    wire_message(&graph, 5, &tensor);
    onnx_value(&graph, 11, "image", ONNX_FLOAT, 2, (int64_t[]){-1, 4});
    onnx_value(&graph, 11, "label", ONNX_INT64, 1, (int64_t[]){-1});
    onnx_value(&graph, 12, "loss", ONNX_FLOAT, 0, NULL);
    wire_t wire = onnx_model(&graph, 14);
    wefti_onnx_import_params_t params = {.bytes = wire.data, .size_bytes = wire.size};
    model_t model = {0};
    if (open_model(&params, &model) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    wefti_graph_t *eval = import_bytes(model.blob, model.blob_size, true);
    const wefti_node_t *bn = &eval->nodes[eval->values[wefti_graph_find_value(eval, "n")].producer];
    const wefti_node_t *drop =
        &eval->nodes[eval->values[wefti_graph_find_value(eval, "d")].producer];
    assert_int_equal(wefti_node_attr(bn, "training_mode")->i, 0);
    assert_int_equal(bn->output_count, 1);
    assert_int_equal(drop->input_count, 1);
    assert_int_equal(wefti_graph_find_value(eval, "on"), WEFTI_NONE);
    wefti_graph_destroy(eval);
    close_model(&model);
    wire_free(&wire);
}

static void test_onnx_save_writes_given_weights(void **state)
{
    (void)state;
    char path[] = "/tmp/weft-saved-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    model_t model = open_file(WEFT_SOURCE_DIR "/tests/data/torch_mlp_batch4.onnx");
    if (weft_model_save(model.plan, model.tensors, model.tensor_count, path) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    wefti_onnx_import_params_t params = {.path = path, .loss_optional = true};
    wefti_graph_t *saved = NULL;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &saved), WEFT_OK);
    for (size_t t = 0; t < model.tensor_count; t++) {
        const weft_tensor_desc_t *wrote = &model.tensors[t].desc;
        uint32_t value = wefti_graph_find_value(saved, model.tensors[t].name);
        assert_memory_equal(saved->values[value].type.data, wrote->data,
                            (size_t)weft_tensor_elem_count(wrote) * 4);
    }
    wefti_graph_destroy(saved);
    close_model(&model);
    unlink(path);
}

/* Logits of graph at batch, by the kernels, for made-up images; the caller frees them. */
static float *compute_logits(wefti_graph_t *graph, int64_t batch, size_t *out_count)
{
    test_interpreter_t interpreter;
    if (wefti_graph_bind_shapes(graph, batch, NULL, 0) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    test_interpreter_init(&interpreter, graph);
    uint32_t image = wefti_graph_find_value(graph, "image");
    float *pixels = interpreter.buffers[image];
    size_t pixel_count = (size_t)weft_tensor_elem_count(&graph->values[image].type);
    for (size_t i = 0; i < pixel_count; i++) {
        pixels[i] = (float)((i * 2654435761u) >> 8 & 0xffff) / 65536.0f;
    }
    test_interpreter_run(&interpreter, WEFTI_PHASE_FORWARD);
    uint32_t logits = wefti_graph_find_value(graph, "logits");
    *out_count = (size_t)weft_tensor_elem_count(&graph->values[logits].type);
    float *copy = malloc(*out_count * sizeof(float));
    memcpy(copy, interpreter.buffers[logits], *out_count * sizeof(float));
    test_interpreter_deinit(&interpreter);
    return copy;
}

static void test_onnx_save_computes_the_same_logits(void **state)
{
    (void)state;
    static const char *const names[] = {"torch_mlp_batch4", "torch_lenet_avgpool_batch4",
                                        "torch_reshape_batch4", "torch_reshape"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[] = "/tmp/weft-saved-XXXXXX", from[512];
        size_t expected_count, count, more_count;
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        snprintf(from, sizeof(from), WEFT_SOURCE_DIR "/tests/data/%s.onnx", names[i]);
        model_t model = open_file(from);
        assert_int_equal(weft_model_save(model.plan, model.tensors, model.tensor_count, path),
                         WEFT_OK);
        float *expected = compute_logits(model.graph, 4, &expected_count);
        wefti_onnx_import_params_t params = {.path = path, .loss_optional = true};
        wefti_graph_t *saved = NULL, *larger = NULL;
        assert_int_equal(wefti_onnx_import(&params, NULL, registry, &saved), WEFT_OK);
        assert_int_equal(wefti_onnx_import(&params, NULL, registry, &larger), WEFT_OK);
        float *got = compute_logits(saved, 4, &count);
        float *more = compute_logits(larger, 9, &more_count);
        assert_int_equal(count, expected_count);
        assert_int_equal(more_count, 9 * 10);
        assert_memory_equal(got, expected, count * sizeof(float));
        for (size_t k = 0; k < count; k++) {
            assert_true(more[k] - expected[k] < 1e-5f && expected[k] - more[k] < 1e-5f);
        }
        assert_true(expected[0] != expected[1]);
        free(expected);
        free(got);
        free(more);
        wefti_graph_destroy(saved);
        wefti_graph_destroy(larger);
        close_model(&model);
        unlink(path);
    }
}

/* Saving must fail with a message holding text, and leave the file alone. */
static void check_refused(const model_t *model, const weft_named_tensor_t *tensors, size_t count,
                          weft_status_t expected, const char *text)
{
    const char *path = "/tmp/weft-never-written.onnx";
    unlink(path);
    assert_int_equal(weft_model_save(model->plan, tensors, count, path), expected);
    if (strstr(weft_last_error(), text) == NULL) {
        fail_msg("'%s' lacks '%s'", weft_last_error(), text);
    }
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_onnx_save_refuses_wrong_weights(void **state)
{
    (void)state;
    model_t model = open_file(WEFT_SOURCE_DIR "/tests/data/torch_mlp.onnx");
    size_t n = model.tensor_count;
    weft_named_tensor_t *tensors = calloc(n + 1, sizeof(*tensors));
    memcpy(tensors, model.tensors, n * sizeof(*tensors));
    check_refused(&model, tensors, n - 1, WEFT_ERR_INVALID_ARGUMENT,
                  "missing tensor for parameter");
    tensors[n] = tensors[0];
    check_refused(&model, tensors, n + 1, WEFT_ERR_INVALID_ARGUMENT, "duplicate tensor");
    tensors[n].name = "stranger";
    check_refused(&model, tensors, n + 1, WEFT_ERR_INVALID_ARGUMENT, "stranger");
    tensors[0].desc.dims[0]++;
    check_refused(&model, tensors, n, WEFT_ERR_INVALID_ARGUMENT, tensors[0].name);
    tensors[0].desc.dims[0]--;
    tensors[0].desc.dtype = WEFT_DTYPE_I32;
    check_refused(&model, tensors, n, WEFT_ERR_INVALID_ARGUMENT, tensors[0].name);
    tensors[0].desc.dtype = WEFT_DTYPE_F32;
    tensors[0].desc.data = NULL;
    check_refused(&model, tensors, n, WEFT_ERR_INVALID_ARGUMENT, tensors[0].name);
    free(tensors);
    assert_true(weft_model_save(model.plan, model.tensors, n, "/nonexistent/folder/x.onnx") < 0);
    assert_non_null(strstr(weft_last_error(), "/nonexistent/folder"));
    close_model(&model);
}

static void test_onnx_save_takes_constants_from_the_plan(void **state)
{
    (void)state;
    const char *path = "/tmp/weft-constants.onnx";
    model_t model = open_file(WEFT_SOURCE_DIR "/tests/data/torch_reshape.onnx");
    /* The last parameter is a constant of the plan, the others are trained. */
    const weft_named_tensor_t *last = &model.tensors[model.tensor_count - 1];
    wefti_plan_buffer_t buffer = {.name = last->name,
                                  .kind = WEFTI_BUFFER_CONST,
                                  .dtype = last->desc.dtype,
                                  .rank = last->desc.rank,
                                  .size_bytes = (uint64_t)weft_tensor_elem_count(&last->desc) * 4,
                                  .data_offset_bytes = 4};
    memcpy(buffer.dims, last->desc.dims, sizeof(buffer.dims));
    uint8_t weights[64] = {0};
    assert_true(buffer.size_bytes + 4 <= sizeof(weights));
    memcpy(weights + 4, last->desc.data, buffer.size_bytes);
    model.plan->buffers = &buffer;
    model.plan->buffer_count = 1;
    model.plan->weights = weights;
    model.plan->weights_bytes = 4 + buffer.size_bytes - 1;
    check_refused(&model, model.tensors, model.tensor_count - 1, WEFT_ERR_INVALID_ARGUMENT,
                  last->name);
    model.plan->weights_bytes++;
    assert_int_equal(weft_model_save(model.plan, model.tensors, model.tensor_count - 1, path),
                     WEFT_OK);
    wefti_onnx_import_params_t params = {.path = path, .loss_optional = true};
    wefti_graph_t *saved = NULL;
    assert_int_equal(wefti_onnx_import(&params, NULL, registry, &saved), WEFT_OK);
    uint32_t value = wefti_graph_find_value(saved, last->name);
    assert_memory_equal(saved->values[value].type.data, last->desc.data, buffer.size_bytes);
    wefti_graph_destroy(saved);
    model.plan->buffers = NULL;
    model.plan->buffer_count = 0;
    close_model(&model);
    unlink(path);
}

static void test_onnx_save_refuses_more_than_two_gigabytes(void **state)
{
    (void)state;
    int64_t dims[1] = {600000000};
    size_t size = (size_t)dims[0] * 4;
    wire_t graph = {0};
    wire_t hole = onnx_tensor("w", ONNX_FLOAT, 1, dims, NULL, 0);
    wire_message(&graph, 5, &hole);
    onnx_value(&graph, 12, "w", ONNX_FLOAT, 1, dims);
    wire_t wire = onnx_model(&graph, 13);
    /* Memory that nobody may touch: the refusal comes before. */
    void *nothing = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(nothing != MAP_FAILED);
    model_t model = {0};
    assert_int_equal(wefti_plan_create(NULL, &model.plan), WEFT_OK);
    model.plan->eval_model = wire.data;
    model.plan->eval_model_bytes = wire.size;
    weft_named_tensor_t tensor = {
        "w", {.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {dims[0]}, .data = nothing}};
    check_refused(&model, &tensor, 1, WEFT_ERR_UNSUPPORTED, "2 GiB");
    weft_plan_release(model.plan);
    munmap(nothing, size);
    wire_free(&wire);
}

static void test_onnx_save_survives_a_damaged_blob(void **state)
{
    (void)state;
    model_t model = open_file(WEFT_SOURCE_DIR "/tests/data/torch_mlp.onnx");
    uint8_t *blob = malloc(model.blob_size);
    model.plan->eval_model = blob;
    /* Every fifth byte: most damaged files are still saved, and that waits for the disk. */
    for (size_t i = 0; i < model.blob_size; i += 5) {
        memcpy(blob, model.blob, model.blob_size);
        blob[i] ^= 0x15;
        (void)weft_model_save(model.plan, model.tensors, model.tensor_count,
                              "/tmp/weft-damaged.onnx");
    }
    for (size_t i = 0; i < model.blob_size; i++) {
        model.plan->eval_model_bytes = i;
        assert_int_not_equal(weft_model_save(model.plan, model.tensors, model.tensor_count,
                                             "/tmp/weft-damaged.onnx"),
                             WEFT_OK);
    }
    unlink("/tmp/weft-damaged.onnx");
    free(blob);
    close_model(&model);
}

/* Enough of two operators that may not be built in, for the test above. */
static weft_status_t infer_as_input(weft_node_desc_t *node)
{
    for (uint32_t i = 0; i < node->output_count; i++) {
        node->outputs[i] = node->inputs[0];
        node->outputs[i].data = NULL;
    }
    return WEFT_OK;
}

static const weft_op_def_t normalization = {.domain = "",
                                            .name = "BatchNormalization",
                                            .since_version = 1,
                                            .inputs_min = 5,
                                            .inputs_max = 5,
                                            .outputs_min = 1,
                                            .outputs_max = 5,
                                            .infer = infer_as_input,
                                            .doc = "stands in"};
static const weft_op_def_t dropout = {.domain = "",
                                      .name = "Dropout",
                                      .since_version = 1,
                                      .inputs_min = 1,
                                      .inputs_max = 3,
                                      .outputs_min = 1,
                                      .outputs_max = 2,
                                      .infer = infer_as_input,
                                      .doc = "stands in"};

static int setup(void **state)
{
    (void)state;
    weft_status_t status = weft_registry_create(NULL, &registry);
    for (int i = 0; status == WEFT_OK && i < 2; i++) {
        const weft_op_def_t *def = i == 0 ? &normalization : &dropout;
        if (weft_registry_find_op(registry, "", def->name, INT32_MAX) == NULL) {
            status = weft_registry_add_op(registry, def);
        }
    }
    return status;
}

static int teardown(void **state)
{
    (void)state;
    weft_registry_destroy(registry);
    return 0;
}

static int save_one(const char *from, const char *to)
{
    wefti_onnx_import_params_t params = {.path = from};
    model_t model = {0};
    weft_status_t status = setup(NULL);
    if (status == WEFT_OK) {
        status = open_model(&params, &model);
    }
    if (status == WEFT_OK) {
        status = weft_model_save(model.plan, model.tensors, model.tensor_count, to);
    }
    if (status != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_last_error());
    }
    close_model(&model);
    teardown(NULL);
    return status == WEFT_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_onnx_eval_model_drops_label_and_loss),
        cmocka_unit_test(test_onnx_eval_model_frees_a_baked_batch),
        cmocka_unit_test(test_onnx_eval_model_keeps_what_is_not_trained),
        cmocka_unit_test(test_onnx_eval_model_frees_merged_dimensions),
        cmocka_unit_test(test_onnx_eval_model_keeps_a_batch_it_cannot_free),
        cmocka_unit_test(test_onnx_eval_model_takes_training_forms_away),
        cmocka_unit_test(test_onnx_save_writes_given_weights),
        cmocka_unit_test(test_onnx_save_computes_the_same_logits),
        cmocka_unit_test(test_onnx_save_refuses_wrong_weights),
        cmocka_unit_test(test_onnx_save_takes_constants_from_the_plan),
        cmocka_unit_test(test_onnx_save_refuses_more_than_two_gigabytes),
        cmocka_unit_test(test_onnx_save_survives_a_damaged_blob),
    };
    return argc == 3 ? save_one(argv[1], argv[2]) : cmocka_run_group_tests(tests, setup, teardown);
}

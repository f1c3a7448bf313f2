/* SPDX-License-Identifier: Apache-2.0 */
/* Files of one tensor: what is written is read again, and what cannot be is said. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/tensor_file.h>

#include "graph/onnx/onnx.h"
#include "tests/graph/support_graph.h"

static char folder[] = "/tmp/weft-tensor-XXXXXX";
static char path[128];

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t.pb", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void check_round_trip(const weft_tensor_desc_t *desc, const char *name)
{
    weft_tensor_desc_t read;
    void *data = NULL;
    size_t bytes = (size_t)weft_tensor_elem_count(desc) * weft_dtype_size_bytes(desc->dtype);
    CHECK(weft_tensor_write(path, name, desc));
    CHECK(weft_tensor_read(path, &read, &data));
    assert_int_equal(read.dtype, desc->dtype);
    assert_int_equal(read.rank, desc->rank);
    assert_memory_equal(read.dims, desc->dims, desc->rank * sizeof(desc->dims[0]));
    assert_ptr_equal(read.data, data);
    assert_memory_equal(data, desc->data, bytes);
    free(data);
}

static void test_every_type_and_rank(void **state)
{
    static const weft_dtype_t types[] = {
        WEFT_DTYPE_F64, WEFT_DTYPE_F32, WEFT_DTYPE_F16, WEFT_DTYPE_BF16, WEFT_DTYPE_I64,
        WEFT_DTYPE_I32, WEFT_DTYPE_I16, WEFT_DTYPE_I8,  WEFT_DTYPE_U64,  WEFT_DTYPE_U32,
        WEFT_DTYPE_U16, WEFT_DTYPE_U8,  WEFT_DTYPE_BOOL};
    uint8_t bytes[720 * 8];
    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i * 37 % 251);
    }
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        weft_tensor_desc_t desc = {.dtype = types[t], .data = bytes};
        check_round_trip(&desc, NULL); /* a scalar */
        for (desc.rank = 1; desc.rank <= 6; desc.rank++) {
            desc.dims[desc.rank - 1] = (int64_t)desc.rank;
            check_round_trip(&desc, "a tensor");
        }
    }
}

static void test_large_dimensions_and_no_elements(void **state)
{
    static float many[70000];
    weft_tensor_desc_t desc = {
        .dtype = WEFT_DTYPE_F32, .rank = 2, .dims = {350, 200}, .data = many};
    (void)state;
    check_round_trip(&desc, "x");
    desc.dims[0] = 0;
    check_round_trip(&desc, "none");
}

static void test_what_is_refused(void **state)
{
    float x = 1;
    weft_tensor_desc_t desc = {.dtype = WEFT_DTYPE_F32, .data = &x}, bad, read;
    void *data = &x;
    char none[160], *long_name = calloc(1, 4000);
    (void)state;
    snprintf(none, sizeof(none), "%s/none/t.pb", folder);
    test_expect_error(weft_tensor_write(NULL, "x", &desc), WEFT_ERR_INVALID_ARGUMENT, "NULL");
    test_expect_error(weft_tensor_write(path, "x", NULL), WEFT_ERR_INVALID_ARGUMENT, "desc");
    bad = desc;
    bad.data = NULL;
    test_expect_error(weft_tensor_write(path, "x", &bad), WEFT_ERR_INVALID_ARGUMENT, "desc");
    bad = desc;
    bad.dtype = WEFT_DTYPE_NONE;
    test_expect_error(weft_tensor_write(path, "x", &bad), WEFT_ERR_INVALID_ARGUMENT, "desc");
    bad = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {1 << 30}, .data = &x};
    test_expect_error(weft_tensor_write(path, "x", &bad), WEFT_ERR_UNSUPPORTED, "2 GiB");
    bad.dims[0] = -1;
    test_expect_error(weft_tensor_write(path, "x", &bad), WEFT_ERR_INVALID_ARGUMENT, "desc");
    memset(long_name, 'x', 3999);
    test_expect_error(weft_tensor_write(path, long_name, &desc), WEFT_ERR_INVALID_ARGUMENT,
                      "name too long: ");
    free(long_name);
    assert_true(weft_tensor_write(none, "x", &desc) < 0);
    assert_true(weft_tensor_read(none, &read, &data) < 0);
    assert_null(data);
    test_expect_error(weft_tensor_read(NULL, &read, &data), WEFT_ERR_INVALID_ARGUMENT, "NULL");
}

/* A file cut anywhere is an error that names it, never a crash. */
static void test_damaged_files(void **state)
{
    float x[3] = {1, 2, 3};
    uint8_t bytes[256];
    weft_tensor_desc_t desc = {.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {3}, .data = x}, read;
    void *data;
    (void)state;
    CHECK(weft_tensor_write(path, "x", &desc));
    FILE *file = fopen(path, "rb");
    size_t size = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    for (size_t cut = 0; cut < size; cut++) {
        file = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, cut, file), cut);
        fclose(file);
        test_expect_error(weft_tensor_read(path, &read, &data) < 0 ? WEFT_ERR_FORMAT : WEFT_OK,
                          WEFT_ERR_FORMAT, path);
        assert_null(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_and_rank),
        cmocka_unit_test(test_large_dimensions_and_no_elements),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_damaged_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

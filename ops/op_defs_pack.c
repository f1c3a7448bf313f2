/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of equal blocks as one tensor of blocks, and back (domain weft). A collective of several
 * tensors becomes one of one tensor:
 *
 *   x1 = | a0 | a1 |, x2 = | b0 | b1 |     blocks = 2: y = | a0 b0 | a1 b1 |
 */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Input i has whole blocks; an unknown shape passes. */
static weft_status_t check_blocks(const weft_tensor_desc_t *desc, int64_t blocks, const char *what,
                                  uint32_t i)
{
    int64_t elems = weft_tensor_elem_count(desc);
    if (blocks < 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute blocks must be at least 1: %" PRId64, blocks);
    }
    return elems < 0 || elems % blocks == 0
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "%s %u: %" PRId64 " elements do not divide into %" PRId64 " blocks",
                             what, i, elems, blocks);
}

static weft_status_t infer_pack(weft_node_desc_t *node)
{
    int64_t dims[WEFT_MAX_DIMS] = {0}, total = 0, elems;
    uint32_t rank = 1;
    weft_tensor_desc_t y;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count == 0 ? 1 : node->input_count));
    for (uint32_t i = 0; i < node->input_count; i++) {
        const weft_tensor_desc_t *x = &node->inputs[i];
        WEFT_RETURN_IF_ERROR(check_blocks(x, weft_node_attr_int(node, "blocks", 1), "input", i));
        if (x->dtype != node->inputs[0].dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs 0 and %u have types %s and %s", i,
                               weft_dtype_name(node->inputs[0].dtype), weft_dtype_name(x->dtype));
        }
        elems = weft_tensor_elem_count(x);
        if (elems >= 0 && total >= 0 && __builtin_add_overflow(total, elems, &total)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the inputs together are too large");
        }
        total = elems < 0 ? -1 : total;
    }
    dims[0] = total;
    if (weft_node_attr(node, "shape") != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "shape", dims, WEFT_MAX_DIMS, &rank));
    }
    wefti_infer_set(node, 0, node->inputs[0].dtype, rank, dims);
    y = (weft_tensor_desc_t){.rank = rank};
    memcpy(y.dims, dims, sizeof(dims));
    elems = weft_tensor_elem_count(&y);
    if (total >= 0 && elems != total) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute shape has %" PRId64 " elements, the inputs have %" PRId64,
                           elems, total);
    }
    return WEFT_OK;
}

/* The shape of one output: its rank, then its dimensions. */
static weft_status_t read_shape(const weft_attr_t *shapes, size_t *at, weft_tensor_desc_t *out)
{
    size_t left = shapes->count - *at;
    if (left == 0 || shapes->ints[*at] < 0 || shapes->ints[*at] > WEFT_MAX_DIMS ||
        (size_t)shapes->ints[*at] > left - 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute shapes must be rank and dimensions of every output");
    }
    out->rank = (uint32_t)shapes->ints[(*at)++];
    for (uint32_t d = 0; d < out->rank; d++) {
        out->dims[d] = shapes->ints[(*at)++];
        if (out->dims[d] < 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute shapes: invalid dimension %" PRId64, out->dims[d]);
        }
    }
    return WEFT_OK;
}

static weft_status_t infer_unpack(weft_node_desc_t *node)
{
    const weft_attr_t *shapes = weft_node_attr(node, "shapes");
    int64_t blocks = weft_node_attr_int(node, "blocks", 1), total = 0;
    size_t at = 0;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    if (shapes == NULL || shapes->type != WEFT_ATTR_TYPE_INTS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute shapes must be a list");
    }
    WEFT_RETURN_IF_ERROR(check_blocks(&node->inputs[0], blocks, "input", 0));
    for (uint32_t i = 0; i < node->output_count; i++) {
        weft_tensor_desc_t y = {.dtype = node->inputs[0].dtype};
        WEFT_RETURN_IF_ERROR(read_shape(shapes, &at, &y));
        WEFT_RETURN_IF_ERROR(check_blocks(&y, blocks, "output", i));
        int64_t elems = weft_tensor_elem_count(&y);
        if (elems < 0 || __builtin_add_overflow(total, elems, &total)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the outputs together are too large");
        }
        wefti_infer_set(node, i, y.dtype, y.rank, y.dims);
    }
    int64_t elems = weft_tensor_elem_count(&node->inputs[0]);
    if (at != shapes->count || (elems >= 0 && elems != total)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute shapes: outputs have %" PRId64
                           " elements, the input has %" PRId64,
                           total, elems);
    }
    return WEFT_OK;
}

#define BLOCKS                                                                                     \
    {                                                                                              \
        .name = "blocks", .type = WEFT_ATTR_TYPE_INT, .default_i = 1,                              \
        .doc = "equal blocks of every tensor"                                                      \
    }
static const weft_attr_def_t pack_attrs[] = {
    BLOCKS,
    {.name = "shape", .type = WEFT_ATTR_TYPE_INTS, .doc = "of the result; absent: one dimension"},
};
static const weft_attr_def_t unpack_attrs[] = {
    BLOCKS,
    {.name = "shapes",
     .type = WEFT_ATTR_TYPE_INTS,
     .required = 1,
     .doc = "of every output: rank, then dimensions"},
};

#define OP(label, in, out, list, rule, text)                                                       \
    {                                                                                              \
        .domain = "weft", .name = label, .since_version = 1, .inputs_min = 1, .inputs_max = in,    \
        .outputs_min = 1, .outputs_max = out, .dtypes = WEFTI_BIT_ALL,                             \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = list, .attr_count = WEFTI_COUNT(list),           \
        .infer = rule, .cost = wefti_cost_copy, .doc = text                                        \
    }

static const weft_op_def_t defs[] = {
    OP("Pack", WEFT_VARIADIC, 1, pack_attrs, infer_pack,
       "block b of Y is block b of every X, one after the other"),
    OP("Unpack", 1, WEFT_VARIADIC, unpack_attrs, infer_unpack,
       "the inverse of Pack: block b of X is block b of every Y"),
};

wefti_op_family_t wefti_op_defs_pack(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}

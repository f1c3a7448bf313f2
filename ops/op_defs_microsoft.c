/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives as ONNX Runtime's exporters write them: domain com.microsoft, version 1. They are
 * known so that a graph can be read; pass normalize-collectives turns them into those of domain
 * weft.
 */
#include <inttypes.h>

#include <weft/types.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_each(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, node->input_count);
    if (status < 0) {
        return status;
    }
    if (node->input_count != node->output_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%u inputs but %u outputs: expected as many outputs as inputs",
                           node->input_count, node->output_count);
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        wefti_infer_set_like(node, i, &node->inputs[i]);
    }
    return WEFT_OK;
}

/* Dimension axis of every tensor times group_size. */
static weft_status_t infer_gather(weft_node_desc_t *node)
{
    weft_status_t status = infer_each(node);
    int64_t size = weft_node_attr_int(node, "group_size", 0);
    int64_t axis = weft_node_attr_int(node, "axis", 0);
    if (status < 0) {
        return status;
    }
    if (size < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute group_size: invalid value %" PRId64, size);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        weft_tensor_desc_t *y = &node->outputs[i];
        uint32_t at;
        status = wefti_infer_axis(axis, y->rank, "axis", &at);
        if (status < 0) {
            return status;
        }
        if (size == 0 || y->dims[at] < 0) {
            y->dims[at] = -1;
        } else if (__builtin_mul_overflow(y->dims[at], size, &y->dims[at])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u is too large", i);
        }
    }
    return WEFT_OK;
}

#define GROUP_SIZE                                                                                 \
    {                                                                                              \
        .name = "group_size", .type = WEFT_ATTR_TYPE_INT, .doc = "ranks; absent: all of them"      \
    }
static const weft_attr_def_t gather_attrs[] = {
    {.name = "axis",
     .type = WEFT_ATTR_TYPE_INT,
     .required = 1,
     .doc = "dimension along which the blocks of the ranks are joined"},
    GROUP_SIZE,
};
static const weft_attr_def_t size_attrs[] = {GROUP_SIZE};
static const weft_attr_def_t type_attrs[] = {
    {.name = "group_type",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "0 all ranks, 1 data parallel, 4 horizontal parallel, 5 model parallel"},
};

#define MANY WEFT_VARIADIC
#define ROW(op, id, weft_op, count, types, list, rule, like, text)                                 \
    {                                                                                              \
        .domain = "com.microsoft", .name = op, .since_version = 1, .inputs_min = 1,                \
        .inputs_max = count, .outputs_min = 1, .outputs_max = count, .dtypes = types,              \
        .effects = WEFT_EFFECT_COMMUNICATES, .in_place = WEFTI_IN_PLACE_NONE, .attrs = list,       \
        .attr_count = (list) == NULL ? 0 : sizeof(list) / sizeof(weft_attr_def_t), .infer = rule,  \
        .cost = wefti_cost_copy, .equivalent = like, .doc = text, .ordering = WEFT_ORDERING_GROUP, \
        WEFTI_FACTS(.collective = id, .imported_as = weft_op)                                      \
    }

static const weft_op_def_t defs[] = {
    ROW("AllReduce", WEFT_COLLECTIVE_ALL_REDUCE, "AllReduce", MANY, WEFTI_BIT_NUMBERS, size_attrs,
        infer_each, "MPI_Allreduce, ncclAllReduce", "sum over ranks: weft::AllReduce"),
    ROW("AllGather", WEFT_COLLECTIVE_ALL_GATHER, "AllGather", MANY, WEFTI_BIT_ALL, gather_attrs,
        infer_gather, "MPI_Allgather, ncclAllGather", "weft::AllGather along any axis"),
    ROW("AllToAll", WEFT_COLLECTIVE_ALL_TO_ALL, "AllToAll", 1, WEFTI_BIT_ALL, size_attrs,
        infer_each, "MPI_Alltoall, ncclAlltoAll", "weft::AllToAll"),
    ROW("NcclAllReduce", WEFT_COLLECTIVE_ALL_REDUCE, "AllReduce", MANY, WEFTI_BIT_NUMBERS,
        type_attrs, infer_each, "MPI_Allreduce, ncclAllReduce", "sum over ranks: weft::AllReduce"),
    ROW("NcclAllGather", WEFT_COLLECTIVE_ALL_GATHER, "", MANY, WEFTI_BIT_ALL, type_attrs,
        infer_each, "MPI_Allgather, ncclAllGather",
        "all tensors as one flat buffer of equal shards, each from its rank"),
    ROW("NcclReduceScatter", WEFT_COLLECTIVE_REDUCE_SCATTER, "", MANY, WEFTI_BIT_NUMBERS,
        type_attrs, infer_each, "MPI_Reduce_scatter_block, ncclReduceScatter",
        "all tensors as one flat buffer of equal shards, each reduced for its rank"),
};

wefti_op_family_t wefti_op_defs_microsoft(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators on flat ranges (domain weft): a shard of several tensors, one update of several
 * tensors, and the fused reduce-update-gather. The compiler's passes add them. Plans hold what they
 * are lowered to: views, kernels of the update, collectives.
 */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Bytes of the flat range that count inputs form, padded; -1: a shape is unknown. */
static weft_status_t range_bytes(const weft_node_desc_t *node, uint32_t first, uint32_t count,
                                 int64_t *out_bytes)
{
    int64_t flat = weft_node_attr_int(node, "flat", 64);
    int64_t ranks = weft_node_attr_int(node, "group_size", 1), unit, rest;
    *out_bytes = 0;
    if (count == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "a range needs at least one tensor");
    }
    if (flat < 1 || ranks < 1 || __builtin_mul_overflow(flat, ranks, &unit)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attributes flat and group_size must be at least 1: %" PRId64
                           ", %" PRId64,
                           flat, ranks);
    }
    for (uint32_t i = first; i < first + count; i++) {
        const weft_tensor_desc_t *x = &node->inputs[i];
        int64_t elems = weft_tensor_elem_count(x), bytes;
        if (weft_dtype_size_bytes(x->dtype) == 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u: unknown type", i);
        }
        if (x->dtype != node->inputs[first].dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs %u and %u have types %s and %s",
                               first, i, weft_dtype_name(node->inputs[first].dtype),
                               weft_dtype_name(x->dtype));
        }
        if (elems < 0) {
            *out_bytes = -1;
            return WEFT_OK;
        }
        if (__builtin_mul_overflow(elems, (int64_t)weft_dtype_size_bytes(x->dtype), &bytes) ||
            __builtin_add_overflow(bytes, (flat - bytes % flat) % flat, &bytes) ||
            __builtin_add_overflow(*out_bytes, bytes, out_bytes)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "range of all inputs is too large");
        }
    }
    rest = *out_bytes % unit;
    if (rest != 0 && __builtin_add_overflow(*out_bytes, unit - rest, out_bytes)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "range of all inputs is too large");
    }
    return WEFT_OK;
}

weft_status_t wefti_infer_shard(weft_node_desc_t *node, uint32_t first, uint32_t count,
                                uint32_t index)
{
    int64_t bytes;
    weft_status_t status = wefti_infer_need(node, first + count);
    if (status < 0) {
        return status;
    }
    status = range_bytes(node, first, count, &bytes);
    if (status >= 0) {
        weft_dtype_t dtype = node->inputs[first].dtype;
        int64_t ranks = weft_node_attr_int(node, "group_size", 1);
        int64_t elems = bytes < 0 ? -1 : bytes / ranks / (int64_t)weft_dtype_size_bytes(dtype);
        wefti_infer_set(node, index, dtype, 1, &elems);
    }
    return status;
}

static weft_status_t infer_shard(weft_node_desc_t *node)
{
    return wefti_infer_shard(node, 0, node->input_count, 0);
}

/* Input index has as many elements as a shard of the other inputs. */
static weft_status_t check_shard(const weft_node_desc_t *node, uint32_t index, uint32_t first,
                                 uint32_t count)
{
    int64_t bytes, elems = weft_tensor_elem_count(&node->inputs[index]);
    weft_status_t status = range_bytes(node, first, count, &bytes);
    int64_t ranks = weft_node_attr_int(node, "group_size", 1);
    if (status < 0 || bytes < 0 || elems < 0) {
        return status;
    }
    int64_t expected = bytes / ranks / (int64_t)weft_dtype_size_bytes(node->inputs[first].dtype);
    return expected == elems
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "input %u: a shard has %" PRId64 " elements, got %" PRId64, index,
                             expected, elems);
}

static weft_status_t count_error(const weft_node_desc_t *node)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%u inputs do not match %u outputs",
                       node->input_count, node->output_count);
}

weft_status_t wefti_infer_flat_gather(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, node->input_count);
    if (status < 0) {
        return status;
    }
    if (node->input_count != node->output_count + 1) {
        return count_error(node);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        wefti_infer_set_like(node, i, &node->inputs[i + 1]);
    }
    return check_shard(node, 0, 1, node->output_count);
}

/* members parameters, as many gradients; then states and scalars. */
static weft_status_t read_members(const weft_node_desc_t *node, uint32_t *out_members)
{
    int64_t members = weft_node_attr_int(node, "members", 0);
    if (members < 1 || members > node->input_count / 2 || members > node->output_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute members: invalid value %" PRId64 " for %u inputs", members,
                           node->input_count);
    }
    *out_members = (uint32_t)members;
    return wefti_infer_need(node, 2 * (uint32_t)members);
}

/* Outputs are like the parameters, then like the states. */
static weft_status_t infer_members(weft_node_desc_t *node)
{
    uint32_t members = 0;
    weft_status_t status = read_members(node, &members);
    for (uint32_t i = 0; status >= 0 && i < node->output_count; i++) {
        uint32_t from = i < members ? i : members + i;
        if (from >= node->input_count) {
            return count_error(node);
        }
        wefti_infer_set_like(node, i, &node->inputs[from]);
    }
    return status;
}

static void cost_update(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    double elems = 0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        elems += wefti_cost_elems(&node->inputs[i]);
    }
    *out_flops = 4.0 * elems; /* as the rule of updates */
    *out_bytes = wefti_cost_bytes(node);
}

#define INT(key, text)                                                                             \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_INT, .doc = text                                       \
    }
#define GROUP_SIZE INT("group_size", "ranks in the group")
#define MEMBERS INT("members", "number of parameters, and of gradients")
#define UPDATE                                                                                     \
    {                                                                                              \
        .name = "update", .type = WEFT_ATTR_TYPE_STRING, .required = 1,                            \
        .doc = "operator of domain weft, whose attributes the node also has"                       \
    }

static const weft_attr_def_t shard_attrs[] = {WEFTI_ATTR_FLAT, GROUP_SIZE, WEFTI_ATTR_PARTS};
static const weft_attr_def_t update_attrs[] = {MEMBERS, WEFTI_ATTR_PARTS, UPDATE};
static const weft_attr_def_t fused_attrs[] = {
    WEFTI_ATTR_FLAT,
    INT("group", "group id, 0 is the world"),
    GROUP_SIZE,
    MEMBERS,
    WEFTI_ATTR_PARTS,
    {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .default_s = "sum", .doc = "sum or avg"},
    UPDATE,
};

#define ROW(op, effect, list, rule, price, text, ...)                                              \
    {                                                                                              \
        .domain = "weft", .name = op, .since_version = 1, .inputs_min = 1,                         \
        .inputs_max = WEFT_VARIADIC, .outputs_min = 1, .outputs_max = WEFT_VARIADIC,               \
        .dtypes = WEFTI_BIT_FLOATS, .effects = effect, .in_place = WEFTI_IN_PLACE_NONE,            \
        .attrs = list, .attr_count = WEFTI_COUNT(list), .infer = rule, .cost = price, .doc = text, \
        __VA_ARGS__                                                                                \
    }

static const weft_op_def_t defs[] = {
    ROW("Shard", WEFT_EFFECT_PURE, shard_attrs, infer_shard, wefti_cost_free,
        "this rank's shard of the flat range of all inputs; a view, nothing is copied",
        WEFTI_FACTS(.range = WEFT_RANGE_ROLE_SHARD)),
    ROW("FusedUpdate", WEFT_EFFECT_UPDATES, update_attrs, infer_members, cost_update,
        "one update of several parameters: inputs are those of the update, each parameter, "
        "gradient "
        "and state in turn for all members, then its scalars; outputs overwrite parameters and "
        "states",
        WEFTI_FACTS(.cost_curve = WEFT_COST_CURVE_UPDATE, .range = WEFT_RANGE_ROLE_UPDATE)),
    ROW("ReduceUpdateGather", WEFT_EFFECT_UPDATES | WEFT_EFFECT_COMMUNICATES, fused_attrs,
        infer_members, wefti_cost_copy,
        "ReduceScatter of gradients, update of a shard and AllGather of the parameters, fused; "
        "inputs are parameters, gradients, then states (shards) and scalars of the update",
        .equivalent = "MPI_Reduce_scatter_block, MPI_Allgather",
        WEFTI_FACTS(.range = WEFT_RANGE_ROLE_REDUCE_UPDATE)),
};

wefti_op_family_t wefti_op_defs_shard(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}

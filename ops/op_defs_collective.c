/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as operators: domain weft, version 1. */
#include <inttypes.h>
#include <string.h>

#include <weft/types.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t check_reduction(const weft_node_desc_t *node)
{
    const char *name = weft_node_attr_string(node, "reduction", "sum");
    for (int r = WEFT_REDUCTION_SUM; r <= WEFT_REDUCTION_MAX; r++) {
        if (strcmp(name, weft_reduction_name((weft_reduction_t)r)) == 0) {
            return WEFT_OK;
        }
    }
    return wefti_error(
        WEFT_ERR_INVALID_ARGUMENT,
        "attribute reduction: unknown value '%s': expected sum, avg, prod, min or max", name);
}

/* Every output is like its input; a bucket has one type. */
static weft_status_t infer_variadic(weft_node_desc_t *node)
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
        if (node->inputs[i].dtype != node->inputs[0].dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs 0 and %u have types %s and %s", i,
                               weft_dtype_name(node->inputs[0].dtype),
                               weft_dtype_name(node->inputs[i].dtype));
        }
        wefti_infer_set_like(node, i, &node->inputs[i]);
    }
    return check_reduction(node);
}

/* First dimension times or divided by (rounded up) the group's size, which is unknown when 0. */
static weft_status_t infer_scaled(weft_node_desc_t *node, bool grow)
{
    weft_status_t status = infer_variadic(node);
    int64_t size = weft_node_attr_int(node, "group_size", 0);
    if (status < 0) {
        return status;
    }
    if (size < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute group_size: invalid value %" PRId64, size);
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        weft_tensor_desc_t *y = &node->outputs[i];
        if (y->rank == 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input %u is a scalar: expected at least 1 dimension", i);
        }
        int64_t dim = y->dims[0];
        if (size == 0 || dim < 0) {
            dim = -1;
        } else if (grow && __builtin_mul_overflow(dim, size, &dim)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u is too large", i);
        } else if (!grow) {
            dim = dim / size + (dim % size != 0);
        }
        y->dims[0] = dim;
    }
    return WEFT_OK;
}

static weft_status_t infer_gathered(weft_node_desc_t *node)
{
    return weft_node_attr(node, "flat") != NULL ? wefti_infer_flat_gather(node)
                                                : infer_scaled(node, true);
}

static weft_status_t infer_scattered(weft_node_desc_t *node)
{
    if (weft_node_attr(node, "flat") == NULL) {
        return infer_scaled(node, false);
    }
    weft_status_t status = check_reduction(node);
    return status < 0 ? status : wefti_infer_shard(node, 0, node->input_count, 0);
}

/* The first dimension depends on counts per rank; which count applies is known at run time. */
static weft_status_t infer_variable(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    weft_tensor_desc_t y = node->inputs[0];
    if (y.rank == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "input 0 is a scalar: expected at least 1 dimension");
    }
    y.dims[0] = -1;
    const weft_attr_t *counts = weft_node_attr(node, "recv_counts");
    if (counts == NULL && strcmp(node->op, "AllGatherV") == 0) {
        counts = weft_node_attr(node, "counts");
    }
    if (counts != NULL && counts->type == WEFT_ATTR_TYPE_INTS) {
        y.dims[0] = 0;
        for (size_t i = 0; i < counts->count; i++) {
            if (counts->ints[i] < 0 ||
                __builtin_add_overflow(y.dims[0], counts->ints[i], &y.dims[0])) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "counts: invalid count of rank %zu: %" PRId64, i,
                                   counts->ints[i]);
            }
        }
    }
    wefti_infer_set_like(node, 0, &y);
    return check_reduction(node);
}

static weft_status_t infer_send(weft_node_desc_t *node)
{
    return wefti_infer_need(node, 1);
}

static weft_status_t infer_recv(weft_node_desc_t *node)
{
    weft_tensor_desc_t y = {0};
    weft_status_t status = wefti_attr_ints(node, "shape", y.dims, WEFT_MAX_DIMS, &y.rank);
    if (status < 0) {
        return status;
    }
    const char *name = weft_node_attr_string(node, "dtype", "f32");
    y.dtype = weft_dtype_from_name(name);
    if (y.dtype == WEFT_DTYPE_NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute dtype is \"%s\"", name);
    }
    for (uint32_t d = 0; d < y.rank; d++) {
        if (y.dims[d] < 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute shape: invalid entry %u: %" PRId64, d, y.dims[d]);
        }
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

/* The second half of a pair: output i is input i. */
static weft_status_t infer_wait(weft_node_desc_t *node)
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

static weft_status_t infer_barrier(weft_node_desc_t *node)
{
    (void)node;
    return WEFT_OK;
}

static void cost_reducing(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 0.0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        *out_flops += wefti_cost_elems(&node->inputs[i]);
    }
    *out_bytes = wefti_cost_bytes(node);
}

#define REDUCTION                                                                                  \
    {                                                                                              \
        .name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .default_s = "sum",                    \
        .doc = "sum, avg, prod, min or max"                                                        \
    }
#define ROOT                                                                                       \
    {                                                                                              \
        .name = "root", .type = WEFT_ATTR_TYPE_INT, .doc = "rank in the group"                     \
    }
#define GROUP                                                                                      \
    {                                                                                              \
        .name = "group", .type = WEFT_ATTR_TYPE_INT, .doc = "group id, 0 is the world"             \
    }
#define GROUP_SIZE                                                                                 \
    {                                                                                              \
        .name = "group_size", .type = WEFT_ATTR_TYPE_INT,                                          \
        .doc = "ranks in the group; 0: not known yet"                                              \
    }
#define ALGORITHM                                                                                  \
    {                                                                                              \
        .name = "algorithm", .type = WEFT_ATTR_TYPE_STRING, .default_s = "auto",                   \
        .doc = "candidates in order of preference, comma-separated"                                \
    }
#define COUNTS                                                                                     \
    {                                                                                              \
        .name = "counts", .type = WEFT_ATTR_TYPE_INTS, .required = 1,                              \
        .doc = "first dimension of each rank"                                                      \
    }

static const weft_attr_def_t reduce_attrs[] = {ALGORITHM, GROUP, WEFTI_ATTR_PARTS, REDUCTION};
static const weft_attr_def_t scatter_reduce_attrs[] = {
    ALGORITHM, WEFTI_ATTR_FLAT, GROUP, GROUP_SIZE, WEFTI_ATTR_PARTS, REDUCTION,
};
static const weft_attr_def_t gather_attrs[] = {ALGORITHM, WEFTI_ATTR_FLAT, GROUP, GROUP_SIZE,
                                               WEFTI_ATTR_PARTS};
static const weft_attr_def_t root_attrs[] = {ALGORITHM, GROUP, ROOT};
static const weft_attr_def_t transfer_attrs[] = {
    ALGORITHM,
    GROUP,
    ROOT,
    {.name = "to",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "1 + rank in the group that reads it; 0: all"},
};
static const weft_attr_def_t root_reduce_attrs[] = {ALGORITHM, GROUP, REDUCTION, ROOT};
static const weft_attr_def_t root_size_attrs[] = {ALGORITHM, GROUP, GROUP_SIZE, ROOT};
static const weft_attr_def_t plain_attrs[] = {ALGORITHM, GROUP};
static const weft_attr_def_t counts_attrs[] = {ALGORITHM, COUNTS, GROUP};
static const weft_attr_def_t counts_reduce_attrs[] = {ALGORITHM, COUNTS, GROUP, REDUCTION};
static const weft_attr_def_t exchange_attrs[] = {
    ALGORITHM,
    GROUP,
    {.name = "recv_counts",
     .type = WEFT_ATTR_TYPE_INTS,
     .required = 1,
     .doc = "rows from each rank"},
    {.name = "send_counts", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "rows to each rank"},
};
static const weft_attr_def_t send_attrs[] = {
    GROUP,
    {.name = "peer",
     .type = WEFT_ATTR_TYPE_INT,
     .required = 1,
     .doc = "rank in the group that receives"},
    {.name = "tag", .type = WEFT_ATTR_TYPE_INT, .doc = "must be equal on both sides"},
};
static const weft_attr_def_t recv_attrs[] = {
    {.name = "dtype",
     .type = WEFT_ATTR_TYPE_STRING,
     .default_s = "f32",
     .doc = "type of the tensor"},
    GROUP,
    {.name = "peer",
     .type = WEFT_ATTR_TYPE_INT,
     .required = 1,
     .doc = "rank in the group that sends"},
    {.name = "shape", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "shape of the tensor"},
    {.name = "tag", .type = WEFT_ATTR_TYPE_INT, .doc = "must be equal on both sides"},
};
static const weft_attr_def_t barrier_attrs[] = {GROUP};

/* Which inputs outputs may overwrite. A variadic operator may overwrite input i by output i for
 * every i, also beyond the four listed. */
#define AT_each                                                                                    \
    {                                                                                              \
        0, 1, 2, 3                                                                                 \
    }
#define AT_first                                                                                   \
    {                                                                                              \
        0, -1, -1, -1                                                                              \
    }
#define AT_none WEFTI_IN_PLACE_NONE

/* Of the table of collectives: names in MPI and NCCL, and what the rules follow from. */
static const struct {
#define TEXT(op, ...) char op[48];
    WEFT_COLLECTIVE_MAP(TEXT)
#undef TEXT
} like = {
#define TEXT(op, value, name, function, send, sender, recv, receiver, sums, v, text) text,
    WEFT_COLLECTIVE_MAP(TEXT)
#undef TEXT
};
enum {
#define SHAPE(op, value, name, function, send, sender, recv, receiver, sums, v, text)              \
    REDUCES_##op = (sums), COUNTS_##op = (v),                                                      \
    GATHERS_##op = WEFT_EXTENT_##send == WEFT_EXTENT_BLOCK,                                        \
    SCATTERS_##op = WEFT_EXTENT_##recv == WEFT_EXTENT_BLOCK,
    WEFT_COLLECTIVE_MAP(SHAPE)
#undef SHAPE
};
#define TYPES(op) (REDUCES_##op ? WEFTI_BIT_NUMBERS : WEFTI_BIT_ALL)
#define PRICE(op) (REDUCES_##op ? cost_reducing : wefti_cost_copy)
#define RULE(op)                                                                                   \
    (COUNTS_##op     ? infer_variable                                                              \
     : GATHERS_##op  ? infer_gathered                                                              \
     : SCATTERS_##op ? infer_scattered                                                             \
                     : infer_variadic)

/* An operator without inputs or without outputs has a partner rank: its order is that of the
 * pair. */
#define COLLECTIVE(op, id, part, in, out, types, places, list, rule, price, same, text, first,     \
                   second)                                                                         \
    {                                                                                              \
        .domain = "weft", .name = op, .since_version = 1, .inputs_min = in == 0 ? 0 : 1,           \
        .inputs_max = in, .outputs_min = out == 0 ? 0 : 1, .outputs_max = out, .dtypes = types,    \
        .effects = WEFT_EFFECT_COMMUNICATES, .in_place = AT_##places, .attrs = list,               \
        .attr_count = WEFTI_COUNT(list), .infer = rule, .cost = price, .equivalent = same,         \
        .doc = text,                                                                               \
        .ordering = (in == 0) != (out == 0) ? WEFT_ORDERING_PAIR : WEFT_ORDERING_GROUP,            \
        .start = first, .wait = second, WEFTI_FACTS(.collective = id, .half = part)                \
    }
#define MOVES(label, op, part, count, places, list, text, first, second)                           \
    COLLECTIVE(label, WEFT_COLLECTIVE_##op, part, count, count, TYPES(op), places, list, RULE(op), \
               PRICE(op), like.op, text, first, second)
#define ROW(label, op, places, list, text)                                                         \
    MOVES(label, op, WEFT_HALF_NONE, 1, places, list, text, NULL, NULL)
/* With its two halves: only the second one may read the tensors in flight; it returns them. */
#define PAIR(label, op, count, places, list, text)                                                 \
    MOVES(label, op, WEFT_HALF_NONE, count, places, list, text, label "Start", label "Wait"),      \
        MOVES(label "Start", op, WEFT_HALF_START, count, none, list,                               \
              "begins " label "; its outputs are in flight, only " label "Wait may read them",     \
              NULL, NULL),                                                                         \
    {                                                                                              \
        .domain = "weft", .name = label "Wait", .since_version = 1, .inputs_min = 1,               \
        .inputs_max = MANY, .outputs_min = 1, .outputs_max = MANY, .dtypes = WEFTI_BIT_ALL,        \
        .in_place = AT_each, .infer = infer_wait, .cost = wefti_cost_free,                         \
        .doc = "ends what " label "Start began; output i is input i, complete",                    \
        WEFTI_FACTS(.collective = WEFT_COLLECTIVE_##op, .half = WEFT_HALF_WAIT)                    \
    }
#define MANY WEFT_VARIADIC

static const weft_op_def_t defs[] = {
    PAIR("AllReduce", ALL_REDUCE, MANY, each, reduce_attrs,
         "every rank gets the reduction of all ranks' tensors; output i may overwrite input i"),
    PAIR(
        "ReduceScatter", REDUCE_SCATTER, MANY, none, scatter_reduce_attrs,
        "rank r gets block r (of ceil(n / ranks) rows) of the reduction; with flat, shard r of the "
        "flat range of all inputs"),
    PAIR(
        "AllGather", ALL_GATHER, MANY, none, gather_attrs,
        "every rank gets all blocks in rank order; with flat, output i is input i + 1, overwritten "
        "by its part of the range of which input 0 is a shard"),
    PAIR("Broadcast", BROADCAST, MANY, each, root_attrs,
         "every rank gets root's tensors; output i may overwrite input i"),
    {.domain = "weft",
     .name = "Transfer",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_ALL,
     .effects = WEFT_EFFECT_COMMUNICATES,
     .in_place = AT_none,
     .attrs = transfer_attrs,
     .attr_count = WEFTI_COUNT(transfer_attrs),
     .infer = infer_variadic,
     .cost = wefti_cost_copy,
     .equivalent = "MPI_Send with MPI_Recv, ncclSend with ncclRecv",
     .doc = "root sends a tensor to rank to - 1, or to all",
     .ordering = WEFT_ORDERING_GROUP,
     WEFTI_FACTS(.collective = WEFT_COLLECTIVE_BROADCAST, .gradient = WEFT_GRADIENT_TRANSFER)},
    ROW("Reduce", REDUCE, first, root_reduce_attrs,
        "root gets the reduction; the output of others is undefined"),
    ROW("Gather", GATHER, none, root_size_attrs, "root gets all blocks in rank order"),
    ROW("Scatter", SCATTER, none, root_size_attrs, "rank r gets block r of root's tensor"),
    PAIR("AllToAll", ALL_TO_ALL, 1, none, plain_attrs, "rank r's block s becomes rank s's block r"),
    ROW("AllGatherV", ALL_GATHER_V, none, counts_attrs,
        "AllGather with counts[r] rows from rank r"),
    ROW("ReduceScatterV", REDUCE_SCATTER_V, none, counts_reduce_attrs,
        "ReduceScatter with counts[r] rows for rank r"),
    ROW("AllToAllV", ALL_TO_ALL_V, none, exchange_attrs, "AllToAll with counts for each rank"),
    COLLECTIVE("Send", 0, WEFT_HALF_NONE, 1, 0, WEFTI_BIT_ALL, none, send_attrs, infer_send,
               wefti_cost_copy, "MPI_Send, ncclSend",
               "sends a tensor to the model of another rank, whose Recv it meets", NULL, NULL),
    COLLECTIVE("Recv", 0, WEFT_HALF_NONE, 0, 1, WEFTI_BIT_ALL, none, recv_attrs, infer_recv,
               wefti_cost_copy, "MPI_Recv, ncclRecv",
               "receives a tensor that a Send of another rank's model sends", NULL, NULL),
    COLLECTIVE("Barrier", WEFT_COLLECTIVE_BARRIER, WEFT_HALF_NONE, 0, 0, WEFTI_BIT_ALL, none,
               barrier_attrs, infer_barrier, wefti_cost_free, like.BARRIER,
               "no rank leaves before all have entered", NULL, NULL),
};

wefti_op_family_t wefti_op_defs_collective(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}

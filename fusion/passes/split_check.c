/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Can a batch be split, over ranks or into micro-batches? Only if samples are independent: the results of a rank's share
 * must be a share of the results of the whole batch.
 *
 *   - The sample dimension of a value is found by comparing two bindings of the model, to a share
 *     and to the whole batch: it is the dimension that grows by the number of ranks.
 *   - A value that depends on the batch and has no such dimension, or several, combines samples.
 *   - A number that is computed from the batch size is another one for a share.
 *   - Operators that mix samples and keep the dimension: weft_op_facts_t.mixing. Others are assumed
 *     not to mix them.
 *   - Collectives of the graph itself are not checked.
 */
#include "fusion/passes/passes.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define NO_DIM UINT32_MAX

typedef struct check {
    const wefti_graph_t *part, *whole;
    int64_t ranks; /* parts */
    const char *field;
    bool reductions; /* looks for these alone */
    uint32_t *dims;  /* by value: the dimension of samples; NO_DIM: does not depend on the batch */
} check_t;

weft_status_t wefti_error_split_graph(const char *field)
{
    return wefti_error_field(WEFT_ERR_UNSUPPORTED, field,
                             "the operators of the graph depend on the batch size");
}

static weft_status_t refuse(const check_t *check, const wefti_node_t *node, const char *why)
{
    return wefti_error_field(WEFT_ERR_UNSUPPORTED, check->field, "node '%s' (%s) %s", node->name,
                             node->def->name, why);
}

/* The only dimension that differs, and by the number of ranks. */
static uint32_t sample_dim(const check_t *check, uint32_t value)
{
    const weft_tensor_desc_t *part = &check->part->values[value].type;
    const weft_tensor_desc_t *whole = &check->whole->values[value].type;
    uint32_t found = NO_DIM, different = 0;
    for (uint32_t d = 0; part->rank == whole->rank && d < part->rank; d++) {
        if (part->dims[d] != whole->dims[d]) {
            found =
                whole->dims[d] % check->ranks == 0 && whole->dims[d] / check->ranks == part->dims[d]
                    ? d
                    : NO_DIM;
            different++;
        }
    }
    return different == 1 ? found : NO_DIM;
}

/* Are there as many elements as samples need? */
static bool grows(const check_t *check, uint32_t value)
{
    const weft_tensor_desc_t *part = &check->part->values[value].type;
    const weft_tensor_desc_t *whole = &check->whole->values[value].type;
    return weft_tensor_elem_count(whole) == weft_tensor_elem_count(part) * check->ranks;
}

static int64_t product_before(const weft_tensor_desc_t *type, uint32_t dim)
{
    int64_t product = 1;
    for (uint32_t d = 0; d < dim; d++) {
        product *= type->dims[d];
    }
    return product;
}

/* Does the operator let samples of its first input meet, which lie along dim, and keep them? */
static bool mixes(const check_t *check, const wefti_node_t *node, uint32_t dim)
{
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    const weft_tensor_desc_t *type = &check->part->values[node->inputs[0]].type;
    int64_t axis = wefti_node_int(node, "axis");
    axis += axis < 0 ? type->rank : 0;
    if ((facts.flags & WEFT_FACT_VIEW) != 0) { /* the dimensions before the samples stay the same */
        uint32_t out = node->outputs[0];
        return product_before(type, dim) !=
               product_before(&check->part->values[out].type, sample_dim(check, out));
    }
    switch (facts.mixing) {
    case WEFT_MIXING_AXIS:
        return axis == (int64_t)dim;
    case WEFT_MIXING_FROM_AXIS:
        return axis <= (int64_t)dim;
    case WEFT_MIXING_FROM_1:
        return dim > 0;
    case WEFT_MIXING_FROM_2:
        return dim > 1;
    default:
        return false;
    }
}

/* A constant computed from the batch size differs on a rank, unless it is the shape of the
 * output. */
static bool takes_size(const check_t *check, const wefti_node_t *node, uint32_t input)
{
    const wefti_value_t *part = &check->part->values[node->inputs[input]];
    const wefti_value_t *whole = &check->whole->values[node->inputs[input]];
    return part->kind == WEFTI_VALUE_CONST && whole->kind == WEFTI_VALUE_CONST &&
           part->type.data != NULL && whole->type.data != NULL &&
           wefti_value_bytes(part) == wefti_value_bytes(whole) &&
           memcmp(part->type.data, whole->type.data, (size_t)wefti_value_bytes(part)) != 0 &&
           (wefti_op_facts(node->def).shape_inputs >> (input & 31) & 1) == 0;
}

/* Is a constant of the whole batch that of a part, once per part? */
static bool repeats(const check_t *check, uint32_t value)
{
    const wefti_value_t *part = &check->part->values[value], *whole = &check->whole->values[value];
    const uint8_t *a = part->type.data, *b = whole->type.data;
    const uint64_t bytes = wefti_value_bytes(part);
    if (part->type.rank == whole->type.rank && bytes == wefti_value_bytes(whole)) {
        return bytes == 0 || memcmp(a, b, (size_t)bytes) == 0;
    }
    const uint32_t dim = sample_dim(check, value);
    if (dim == NO_DIM || bytes == 0) {
        return false;
    }
    const uint64_t rows = (uint64_t)product_before(&part->type, dim), size = bytes / rows;
    bool equal = true;
    for (uint64_t i = 0; equal && i < rows * (uint64_t)check->ranks; i++) {
        equal = memcmp(&b[i * size], &a[i / (uint64_t)check->ranks * size], (size_t)size) == 0;
    }
    return equal;
}

static bool is_known(const wefti_value_t *value)
{
    return value->kind == WEFTI_VALUE_CONST && value->type.data != NULL;
}

/* Is a constant another one with the whole batch? Not where every part has the same share of it. */
static bool differs(const check_t *check, uint32_t value)
{
    const wefti_value_t *part = &check->part->values[value], *whole = &check->whole->values[value];
    return is_known(part) && is_known(whole) && !repeats(check, value);
}

/* Integers are shapes, ends of ranges, or numbers of samples: right for a part. */
static bool takes_number(const check_t *check, uint32_t input)
{
    return wefti_dtype_is_floating(check->part->values[input].type.dtype) && differs(check, input);
}

/* Outputs that are constants, or inputs, are not joined of parts. */
static weft_status_t check_outputs(const check_t *check)
{
    for (uint32_t i = 0; check->reductions && i < check->part->output_count; i++) {
        const uint32_t producer = wefti_producer(check->part, check->part->outputs[i]);
        const wefti_node_t *node = producer == WEFTI_NONE ? NULL : &check->part->nodes[producer];
        const uint32_t from = node == NULL || node->input_count != 1 ? WEFTI_NONE : node->inputs[0];
        if (from == WEFTI_NONE) {
            continue;
        }
        if (check->part->values[from].kind == WEFTI_VALUE_INPUT &&
            (check->part->values[from].flags & WEFTI_VALUE_OUTPUT) != 0 &&
            check->dims[from] != NO_DIM) { /* passed through: two tensors of one name */
            return wefti_error_field(WEFT_ERR_UNSUPPORTED, check->field,
                                     "input '%s' is also an output",
                                     check->part->values[from].name);
        }
        if (is_known(&check->part->values[from]) &&
            (differs(check, from) || sample_dim(check, from) != NO_DIM)) {
            return wefti_error_field(WEFT_ERR_UNSUPPORTED, check->field,
                                     "output '%s' is computed from the batch size",
                                     check->part->values[check->part->outputs[i]].name);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_node(check_t *check, const wefti_node_t *node)
{
    bool depends = false, communicates = wefti_node_communicates(node);
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t input = node->inputs[i];
        if (input != WEFTI_NONE &&
            (check->reductions ? takes_number(check, input) : takes_size(check, node, i))) {
            return refuse(check, node, "has an input computed from the batch size");
        }
        depends = depends || (input != WEFTI_NONE && check->dims[input] != NO_DIM);
    }
    for (uint32_t i = 0; depends && i < node->output_count; i++) {
        uint32_t output = node->outputs[i];
        if (output == WEFTI_NONE) {
            continue;
        }
        check->dims[output] = !check->reductions     ? sample_dim(check, output)
                              : grows(check, output) ? 0
                                                     : NO_DIM;
        if (check->dims[output] == NO_DIM && !communicates) {
            return refuse(check, node, "combines several samples into one result");
        }
    }
    uint32_t first = depends && node->input_count > 0 ? node->inputs[0] : WEFTI_NONE;
    if (first != WEFTI_NONE && check->dims[first] != NO_DIM && !communicates &&
        !check->reductions && mixes(check, node, check->dims[first])) {
        return refuse(check, node, "mixes samples");
    }
    return WEFT_OK;
}

weft_status_t wefti_check_split(const wefti_graph_t *part, const wefti_graph_t *whole,
                                uint32_t parts, const char *field, bool reductions,
                                wefti_arena_t *arena)
{
    check_t check = {
        .part = part, .whole = whole, .ranks = parts, .field = field, .reductions = reductions};
    bool same = part->value_count == whole->value_count && part->order_count == whole->order_count;
    for (uint32_t i = 0; same && i < part->order_count; i++) {
        const weft_op_def_t *a = part->nodes[part->order[i]].def; /* foreign ones have their own */
        const weft_op_def_t *b = whole->nodes[whole->order[i]].def;
        same = part->order[i] == whole->order[i] && wefti_op_same(a, b);
    }
    if (!same) {
        return wefti_error_split_graph(field);
    }
    check.dims = wefti_arena_array(arena, (size_t)part->value_count + 1, sizeof(*check.dims));
    WEFT_RETURN_IF_NO_MEMORY(check.dims);
    memset(check.dims, 0xff, ((size_t)part->value_count + 1) * sizeof(*check.dims));
    for (uint32_t i = 0; i < part->input_count; i++) {
        check.dims[part->inputs[i]] = sample_dim(&check, part->inputs[i]);
    }
    WEFT_RETURN_IF_ERROR(check_outputs(&check));
    for (uint32_t i = 0; i < part->order_count; i++) {
        WEFT_RETURN_IF_ERROR(check_node(&check, &part->nodes[part->order[i]]));
    }
    return WEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives on activations: every tensor of a node is a bucket, a plan collective of its own. The
 * result takes the input's memory where the operator allows it and the input dies there. Otherwise
 * both have memory of their own, and the input may also be a graph input, a weight or a constant.
 */
#include <string.h>

#include "fusion/lower/lower.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

bool wefti_lower_collective_op(const wefti_node_t *node, weft_collective_t *out_op)
{
    /* The first half of a pair is both: events state when it begins and where it is waited for. */
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    *out_op = (weft_collective_t)facts.collective;
    return facts.collective >= WEFT_COLLECTIVE_ALL_REDUCE &&
           facts.collective <= WEFT_COLLECTIVE_ALL_TO_ALL && facts.half != WEFT_HALF_WAIT &&
           facts.imported_as == NULL;
}

static weft_status_t check_input(const wefti_node_t *node, uint32_t index)
{
    return node->inputs[index] == WEFTI_NONE || index >= node->output_count ||
                   node->outputs[index] == WEFTI_NONE
               ? wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (%s): missing input or output %u",
                             node->name, node->def->name, index)
               : WEFT_OK;
}

/* Blocks are equal on all ranks: a tensor that does not divide into them is refused. */
static weft_status_t check_blocks(const wefti_lowering_t *l, const wefti_node_t *node,
                                  weft_collective_t op, uint32_t index)
{
    const weft_tensor_desc_t *x = &l->graph->values[node->inputs[index]].type;
    const weft_tensor_desc_t *y = &l->graph->values[node->outputs[index]].type;
    bool divides = op == WEFT_COLLECTIVE_REDUCE_SCATTER || op == WEFT_COLLECTIVE_SCATTER ||
                   op == WEFT_COLLECTIVE_ALL_TO_ALL;
    int64_t ranks = l->params->world_size;
    if (divides && (x->rank == 0 || x->dims[0] % ranks != 0)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): first dimension of '%s' must be divisible by the "
                           "number of ranks: %lld, %lld ranks",
                           node->name, node->def->name, l->graph->values[node->inputs[index]].name,
                           x->rank == 0 ? 1ll : (long long)x->dims[0], (long long)ranks);
    }
    if (x->layout != WEFT_LAYOUT_PLAIN || y->layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_INTERNAL,
                           "node '%s' (%s): layout of input and output must be plain", node->name,
                           node->def->name);
    }
    return WEFT_OK;
}

static weft_status_t check_attrs(const wefti_lowering_t *l, const wefti_node_t *node)
{
    const weft_attr_t *group = wefti_node_attr(node, "group");
    const weft_attr_t *root = wefti_node_attr(node, "root");
    if (group != NULL && (group->type != WEFT_ATTR_TYPE_INT || group->i != 0)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): unsupported group: a plan has only group 0, all ranks",
                           node->name, node->def->name);
    }
    if (root != NULL && (root->type != WEFT_ATTR_TYPE_INT || root->i < 0 ||
                         (uint64_t)root->i >= l->params->world_size)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): invalid root %lld for world size %u", node->name,
                           node->def->name, (long long)root->i, l->params->world_size);
    }
    if (wefti_node_attr(node, "parts") != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): split, but only gradients can be split", node->name,
                           node->def->name);
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_activations(wefti_lowering_t *l, uint32_t id)
{
    weft_status_t status;
    const wefti_node_t *node = &l->graph->nodes[id];
    weft_collective_t op;
    if (!wefti_lower_collective_op(node, &op) || node->input_count != node->output_count ||
        node->input_count == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (%s): operator not supported in a plan",
                           node->name, node->def->name);
    }
    WEFT_TRY(status, check_attrs(l, node), fail);
    for (uint32_t i = 0; i < node->input_count; i++) {
        WEFT_TRY(status, check_input(node, i), fail);
        WEFT_TRY(status, check_blocks(l, node, op, i), fail);
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        wefti_member_t *member = wefti_arena_array(&l->arena, 1, sizeof(*member));
        if (member == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        *member = (wefti_member_t){node->inputs[i], node->inputs[i], node->outputs[i], WEFTI_NONE};
        l->buckets[l->bucket_count++] = (wefti_bucket_t){.node = id,
                                                         .op = op,
                                                         .members = member,
                                                         .member_count = 1,
                                                         .part = i,
                                                         .parts = node->input_count,
                                                         .update = WEFTI_NONE,
                                                         .command = l->command_count + i};
    }
fail:
    return status;
}

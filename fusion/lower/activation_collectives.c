/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of collectives on activations: every tensor of a node is a plan collective of its own. */
#include <string.h>

#include "fusion/lower/lower.h"
#include "ops/collective.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

wefti_axis_t wefti_lower_axis(const wefti_lowering_t *l, const wefti_node_t *node)
{
    int64_t group = wefti_node_int(node, "group");
    bool known = group > 0 && group <= l->params->mesh.axis_count;
    return wefti_mesh_axis(&l->params->mesh, l->params->world_size, known ? (uint32_t)group : 0);
}

/* The first half of a pair stands for both: events tell when it begins and where it is awaited. */
static bool is_supported(const wefti_node_t *node)
{
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    return wefti_collective_has_one_count((weft_collective_t)facts.collective) &&
           facts.half != WEFT_HALF_WAIT && facts.imported_as == NULL;
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
    bool divides = wefti_collective_of(op)->send.extent == WEFT_EXTENT_BLOCKS;
    int64_t ranks = wefti_lower_axis(l, node).size;
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
    if (group != NULL && (group->type != WEFT_ATTR_TYPE_INT || group->i < 0 ||
                          group->i > l->params->mesh.axis_count)) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "node '%s' (%s): no such group: the plan has group 0, all ranks, and %u axes",
            node->name, node->def->name, l->params->mesh.axis_count);
    }
    if (root != NULL && (root->type != WEFT_ATTR_TYPE_INT || root->i < 0 ||
                         root->i >= wefti_lower_axis(l, node).size)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): invalid root %lld for world size %u", node->name,
                           node->def->name, (long long)root->i, wefti_lower_axis(l, node).size);
    }
    if (wefti_node_attr(node, "parts") != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): split, but only gradients can be split", node->name,
                           node->def->name);
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_check_activations(const wefti_lowering_t *l, const wefti_node_t *node)
{
    weft_collective_t op = (weft_collective_t)wefti_op_facts(node->def).collective;
    if (node->def->ordering == WEFT_ORDERING_PAIR) { /* joined pairs are transfers */
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): no partner: it needs a model per rank, in rank_models, "
                           "and inference",
                           node->name, node->def->name);
    }
    if (!is_supported(node) || node->input_count != node->output_count || node->input_count == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (%s): operator not supported in a plan",
                           node->name, node->def->name);
    }
    WEFT_RETURN_IF_ERROR(check_attrs(l, node));
    for (uint32_t i = 0; i < node->input_count; i++) {
        WEFT_RETURN_IF_ERROR(check_input(node, i));
        WEFT_RETURN_IF_ERROR(check_blocks(l, node, op, i));
    }
    return WEFT_OK;
}

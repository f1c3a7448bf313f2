/* SPDX-License-Identifier: Apache-2.0 */
/*
 * normalize-collectives: collectives of a model take one form, so that later passes compare and
 * fuse them without special cases.
 *
 * Matches collectives of ONNX Runtime (weft_op_facts_t.imported_as) and of domain weft; start and
 * wait pairs. Produces domain weft with explicit attributes and group_size; one node per pair.
 *
 *   com.microsoft AllReduce, NcclAllReduce  -> AllReduce (sum)
 *   com.microsoft AllToAll                  -> AllToAll
 *   com.microsoft AllGather, axis 0         -> AllGather
 *   com.microsoft AllGather, other axes     -> tidy-collectives, which needs shapes
 *   XStart .. XWait                         -> XStart (graph/collective_pairs.c)
 */
#include "fusion/passes/passes.h"

#include <inttypes.h>
#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

static weft_status_t refuse(const wefti_node_t *node, const char *what)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (%s): %s", node->name, node->def->name,
                       what);
}

/* An integer attribute: absent gives the default, another type is an error. */
static weft_status_t int_attr(const wefti_node_t *node, const char *name, int64_t absent,
                              int64_t *out)
{
    const weft_attr_t *attr = wefti_node_attr(node, name);
    *out = attr != NULL ? attr->i : absent;
    return attr == NULL || attr->type == WEFT_ATTR_TYPE_INT
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "node '%s' (%s): attribute '%s' must be an integer",
                             node->name, node->def->name, name);
}

/* Of the world; a graph may say so or leave it open. */
static weft_status_t check_size(const wefti_node_t *node, uint32_t world_size)
{
    int64_t size = 0, group = 0;
    weft_status_t status;
    WEFT_TRY(status, int_attr(node, "group_size", 0, &size), done);
    WEFT_TRY(status, int_attr(node, "group", 0, &group), done);
    if (group == 0 && size != 0 && size != world_size) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "node '%s' (%s): group_size does not match world_size: %" PRId64
                             ", world_size %u",
                             node->name, node->def->name, size, world_size);
    }
done:
    return status;
}

/* ONNX Runtime's kinds of groups: a plan has one group, that of all ranks. */
static weft_status_t check_type(const wefti_node_t *node, bool infer)
{
    int64_t type = 0;
    weft_status_t status = int_attr(node, "group_type", 0, &type);
    bool data = type == 0 || type == 1, model = type == 4 || type == 5;
    if (status == WEFT_OK && !data && !(model && infer)) {
        status = wefti_error(
            WEFT_ERR_UNSUPPORTED, "node '%s' (%s): unsupported group_type %" PRId64 "%s",
            node->name, node->def->name, type,
            model ? " (a model-parallel group): in training only 0 and 1, the group of all ranks"
                  : ": the only group is that of all ranks");
    }
    return status;
}

static bool has_attr(const weft_op_def_t *def, const char *name)
{
    for (size_t i = 0; i < def->attr_count; i++) {
        if (strcmp(def->attrs[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static weft_status_t set_int(wefti_graph_t *graph, uint32_t id, const char *name, int64_t value)
{
    weft_attr_t attr = {.name = name, .type = WEFT_ATTR_TYPE_INT, .i = value};
    return wefti_graph_set_attr(graph, id, &attr);
}

static weft_status_t become(wefti_graph_t *graph, uint32_t id, const char *op)
{
    graph->nodes[id].attr_count = 0;
    return wefti_graph_change_op(graph, id, "weft", op, 0);
}

/* Writes default attributes explicitly: comparing two collectives then needs no defaults. */
static weft_status_t say_defaults(wefti_graph_t *graph, uint32_t id)
{
    const wefti_node_t *node = &graph->nodes[id];
    weft_attr_t sum = {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "sum"};
    if (has_attr(node->def, "group") && wefti_node_attr(node, "group") == NULL) {
        WEFT_RETURN_IF_ERROR(set_int(graph, id, "group", 0));
    }
    if (has_attr(node->def, "reduction") && wefti_node_attr(node, "reduction") == NULL) {
        WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, id, &sum));
    }
    return WEFT_OK;
}

/* op: the operator of domain weft, or "". */
static weft_status_t import_collective(wefti_graph_t *graph, uint32_t id, const char *op,
                                       uint32_t world_size, bool infer)
{
    const wefti_node_t *node = &graph->nodes[id];
    int64_t axis = 0;
    WEFT_RETURN_IF_ERROR(check_size(node, world_size));
    WEFT_RETURN_IF_ERROR(check_type(node, infer));
    if (*op == '\0') {
        return refuse(node,
                      "unsupported operator: how ONNX Runtime divides its buffer is not defined; "
                      "use AllGather and ReduceScatter of domain weft, or shard_optimizer");
    }
    if (!has_attr(node->def, "axis")) {
        return become(graph, id, op);
    }
    if (wefti_node_attr(node, "axis") == NULL) {
        return refuse(node, "missing attribute 'axis'");
    }
    WEFT_RETURN_IF_ERROR(int_attr(node, "axis", 0, &axis));
    WEFT_RETURN_IF_ERROR(set_int(graph, id, "group_size", world_size));
    if (axis == 0) {
        WEFT_RETURN_IF_ERROR(become(graph, id, op));
        WEFT_RETURN_IF_ERROR(set_int(graph, id, "group_size", world_size));
    }
    return WEFT_OK;
}

weft_status_t wefti_pass_normalize_collectives(wefti_graph_t *graph, uint32_t world_size,
                                               bool infer)
{
    bool halves = false;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const weft_op_def_t *def = graph->nodes[id].def;
        halves = halves || wefti_op_facts(def).half != 0;
        if (!(def->effects & WEFT_EFFECT_COMMUNICATES)) {
            continue;
        }
        graph->nodes[id].phase = WEFTI_PHASE_COMM;
        weft_op_facts_t facts = wefti_op_facts(def);
        if (facts.imported_as != NULL) {
            WEFT_RETURN_IF_ERROR(
                import_collective(graph, id, facts.imported_as, world_size, infer));
            def = graph->nodes[id].def;
            facts = wefti_op_facts(def);
        }
        if (facts.imported_as != NULL || facts.collective == 0) {
            continue; /* waits for shapes, or has a meaning of its own */
        }
        WEFT_RETURN_IF_ERROR(say_defaults(graph, id));
        WEFT_RETURN_IF_ERROR(check_size(&graph->nodes[id], world_size));
        if (has_attr(def, "group_size")) {
            WEFT_RETURN_IF_ERROR(set_int(graph, id, "group_size", world_size));
        }
    }
    if (halves) {
        WEFT_RETURN_IF_ERROR(wefti_graph_pair_collectives(graph, true));
    }
    return WEFT_OK;
}

weft_status_t wefti_apply_normalize_collectives(wefti_compiler_t *c)
{
    weft_status_t status =
        wefti_pass_normalize_collectives(c->graph, c->params.world_size, c->params.infer != 0);
    return status < 0 ? wefti_error_prefix(status, "%s", c->model->path) : WEFT_OK;
}

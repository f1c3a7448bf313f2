/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuse-elementwise: element-wise operators that read each other's results become one weft::Fused,
 * which walks the data once. Results that only members read are never in memory.
 *
 *   %a = Mul(%x, %y)   %b = Add(%a, %z)   %c = Relu(%b)   ->   %c = Fused(%x, %y, %z)
 *
 * A node joins the groups that compute its inputs if the result has the same shape and phase, and
 * if no other node before it reads a result of the group. The group runs where its last member ran,
 * so no other node runs later, and gradients are ready no later. Results that later nodes read
 * are outputs. A single node of a half type becomes a Fused also, which widens its inputs in cache.
 *
 * Memory: members run later than before, so their inputs live longer. Unless a group ran directly
 * before the joining node, it may have only one tensor that dies with it, in place of its result.
 */
#include <string.h>

#include "fusion/passes/passes.h"
#include "ops/compute/fused.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define MOST_OUTPUTS 4u

typedef struct member {
    uint32_t group; /* the first member of its group, by node */
    uint32_t next;  /* of the group, by position; or WEFTI_NONE */
    uint32_t last;  /* of a group: the last member */
    wefti_fused_step_t step;
} member_t;

typedef struct fuser {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    wefti_readers_t readers;
    uint32_t *position;   /* by node */
    member_t **member_of; /* by node; NULL: it is not element-wise */
} fuser_t;

/* What a group would be. */
typedef struct group {
    uint32_t members[WEFTI_FUSED_STEPS], count;
    uint32_t inputs[WEFTI_FUSED_INPUTS], input_count;
    uint32_t outputs[MOST_OUTPUTS], output_count; /* values; the last member's is the first */
} group_t;

static uint32_t result_of(const fuser_t *f, uint32_t node)
{
    return f->graph->nodes[node].outputs[0];
}

static bool contains(const uint32_t *list, uint32_t count, uint32_t id)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == id) {
            return true;
        }
    }
    return false;
}

static uint32_t index_in(const uint32_t *list, uint32_t count, uint32_t id)
{
    uint32_t i = 0;
    while (i < count && list[i] != id) {
        i++;
    }
    return i;
}

/* Gradients of parameters stay apart: regions have places for them. */
static weft_status_t find_member(fuser_t *f, uint32_t id)
{
    const wefti_node_t *node = &f->graph->nodes[id];
    weft_node_desc_t desc;
    wefti_fused_step_t step;
    if (!wefti_op_has(node->def, WEFT_FACT_ELEMENTWISE) || node->def->effects != WEFT_EFFECT_PURE ||
        node->output_count != 1 || f->graph->values[node->outputs[0]].grad_of != WEFTI_NONE) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(f->graph, id, &desc));
    if (!wefti_fused_step(&desc, &step)) {
        return WEFT_OK;
    }
    member_t *member = wefti_arena_array(&f->arena, 1, sizeof(*member));
    WEFT_RETURN_IF_NO_MEMORY(member);
    *member = (member_t){.group = id, .next = WEFTI_NONE, .last = id, .step = step};
    f->member_of[id] = member;
    return WEFT_OK;
}

/* Adds the members of a group, by position. */
static bool add_members(const fuser_t *f, uint32_t first, group_t *out)
{
    for (uint32_t id = first; id != WEFTI_NONE; id = f->member_of[id]->next) {
        if (out->count == WEFTI_FUSED_STEPS) {
            return false;
        }
        uint32_t at = out->count++;
        for (; at > 0 && f->position[out->members[at - 1]] > f->position[id]; at--) {
            out->members[at] = out->members[at - 1];
        }
        out->members[at] = id;
    }
    return true;
}

/* The first position of a reader outside of the group; UINT32_MAX: only members read value. */
static uint32_t first_outside(const fuser_t *f, const group_t *group, uint32_t value)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t r = f->readers.first[value]; r < f->readers.first[value + 1]; r++) {
        uint32_t reader = f->readers.nodes[r];
        if (!contains(group->members, group->count, reader) && f->position[reader] < first) {
            first = f->position[reader];
        }
    }
    return first;
}

/* Inputs and outputs of the members; false: too many, or a reader comes too early. */
static bool find_tensors(const fuser_t *f, group_t *group)
{
    const uint32_t last = group->members[group->count - 1];
    group->input_count = 0;
    group->outputs[0] = result_of(f, last);
    group->output_count = 1;
    for (uint32_t i = 0; i < group->count; i++) {
        const uint32_t id = group->members[i], result = result_of(f, id);
        const wefti_node_t *node = &f->graph->nodes[id];
        for (uint32_t k = 0; k < f->member_of[id]->step.tensors; k++) {
            const uint32_t producer = wefti_producer(f->graph, node->inputs[k]);
            if (contains(group->members, group->count, producer) ||
                contains(group->inputs, group->input_count, node->inputs[k])) {
                continue;
            }
            if (group->input_count == WEFTI_FUSED_INPUTS) {
                return false;
            }
            group->inputs[group->input_count++] = node->inputs[k];
        }
        const uint32_t outside = id == last ? UINT32_MAX : first_outside(f, group, result);
        const bool kept = outside != UINT32_MAX || f->graph->values[result].flags != 0;
        if (outside < f->position[last] || (kept && group->output_count == MOST_OUTPUTS)) {
            return false;
        }
        if (kept && id != last) {
            group->outputs[group->output_count++] = result;
        }
    }
    return true;
}

static bool same_dims(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

/* Does the tensor have the shape of the results, and no reader after the group? */
static bool dies_in(const fuser_t *f, const group_t *group, uint32_t value)
{
    const wefti_value_t *v = &f->graph->values[value];
    const uint32_t last = group->members[group->count - 1];
    for (uint32_t r = f->readers.first[value]; r < f->readers.first[value + 1]; r++) {
        if (f->position[f->readers.nodes[r]] > f->position[last]) {
            return false;
        }
    }
    return v->kind == WEFTI_VALUE_NODE && v->flags == 0 &&
           same_dims(&v->type, &f->graph->values[group->outputs[0]].type);
}

static uint32_t count_dying(const fuser_t *f, const group_t *group)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < group->input_count; i++) {
        count += dies_in(f, group, group->inputs[i]);
    }
    return count;
}

/* May the group of the producer run where node runs? */
static bool may_wait(const fuser_t *f, uint32_t first, uint32_t node)
{
    group_t alone = {0};
    const uint32_t last = f->member_of[first]->last;
    return f->position[last] + 1 == f->position[node] ||
           (add_members(f, first, &alone) && find_tensors(f, &alone) && count_dying(f, &alone) < 2);
}

/* Joins the group of node with the one that computes value. */
static void try_join(fuser_t *f, uint32_t node, uint32_t value)
{
    const uint32_t producer = wefti_producer(f->graph, value);
    const member_t *from = producer == WEFTI_NONE ? NULL : f->member_of[producer];
    const uint32_t mine = f->member_of[node]->group;
    group_t joint = {0};
    if (from == NULL || from->group == mine ||
        f->graph->nodes[producer].phase != f->graph->nodes[node].phase ||
        !same_dims(&f->graph->values[value].type, &f->graph->values[result_of(f, node)].type) ||
        !may_wait(f, from->group, node) || !add_members(f, from->group, &joint) ||
        !add_members(f, mine, &joint) || !find_tensors(f, &joint)) {
        return;
    }
    const uint32_t first = joint.members[0];
    for (uint32_t i = 0; i < joint.count; i++) {
        f->member_of[joint.members[i]]->group = first;
        f->member_of[joint.members[i]]->next =
            i + 1 < joint.count ? joint.members[i + 1] : WEFTI_NONE;
    }
    f->member_of[first]->last = joint.members[joint.count - 1];
}

/* Output 0 may take the memory of input 0. */
static void choose_first_input(const fuser_t *f, group_t *group)
{
    for (uint32_t i = 0; i < group->input_count; i++) {
        if (dies_in(f, group, group->inputs[i])) {
            const uint32_t value = group->inputs[i];
            group->inputs[i] = group->inputs[0];
            group->inputs[0] = value;
            return;
        }
    }
}

static weft_status_t add_fused(fuser_t *f, const group_t *group, uint32_t *out_node)
{
    const uint32_t count = group->count, last = group->members[count - 1];
    const char **steps = wefti_arena_array(&f->arena, count, sizeof(*steps));
    int64_t *operands = wefti_arena_array(&f->arena, (size_t)2 * count, sizeof(*operands));
    float *numbers = wefti_arena_array(&f->arena, (size_t)2 * count, sizeof(*numbers));
    const char **types = wefti_arena_array(&f->arena, count, sizeof(*types));
    int64_t results[MOST_OUTPUTS];
    bool absent[MOST_OUTPUTS], wide = true;
    WEFT_RETURN_IF_NO_MEMORY(steps && operands && numbers && types);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_node_t *node = &f->graph->nodes[group->members[i]];
        const wefti_fused_step_t *step = &f->member_of[group->members[i]]->step;
        steps[i] = step->name;
        types[i] = weft_dtype_name(step->type);
        wide = wide && step->type == WEFT_DTYPE_F32 &&
               f->graph->values[node->inputs[0]].type.dtype == WEFT_DTYPE_F32; /* of a Cast */
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t value = k < step->tensors ? node->inputs[k] : WEFTI_NONE;
            const uint32_t at = index_in(group->members, count, wefti_producer(f->graph, value));
            operands[2 * i + k] = value == WEFTI_NONE ? -1
                                  : at < count        ? (int64_t)group->input_count + at
                                               : index_in(group->inputs, group->input_count, value);
            numbers[2 * i + k] = (float)step->numbers[k];
        }
    }
    for (uint32_t o = 0; o < group->output_count; o++) {
        absent[o] = true;
        results[o] = index_in(group->members, count, wefti_producer(f->graph, group->outputs[o]));
    }
    const weft_attr_t attrs[] = {
        {.name = "steps", .type = WEFT_ATTR_TYPE_STRINGS, .count = count, .strings = steps},
        {.name = "operands",
         .type = WEFT_ATTR_TYPE_INTS,
         .count = (size_t)2 * count,
         .ints = operands},
        {.name = "numbers",
         .type = WEFT_ATTR_TYPE_FLOATS,
         .count = (size_t)2 * count,
         .floats = numbers},
        {.name = "results",
         .type = WEFT_ATTR_TYPE_INTS,
         .count = group->output_count,
         .ints = results},
        {.name = "types", .type = WEFT_ATTR_TYPE_STRINGS, .count = count, .strings = types},
    };
    const wefti_node_params_t params = {
        .domain = "weft",
        .op = "Fused",
        .name = wefti_arena_printf(&f->arena, "%s/fused", f->graph->nodes[last].name),
        .phase = f->graph->nodes[last].phase,
        .inputs = group->inputs,
        .input_count = group->input_count,
        .output_count = group->output_count,
        .output_absent = absent,
        .attrs = attrs,
        .attr_count = sizeof(attrs) / sizeof(attrs[0]) - (wide ? 1 : 0)};
    WEFT_RETURN_IF_NO_MEMORY(params.name);
    return wefti_graph_insert_node(f->graph, &params, last, out_node);
}

static weft_status_t replace_group(fuser_t *f, uint32_t first)
{
    group_t group = {0};
    uint32_t node;
    const wefti_fused_step_t *step = &f->member_of[first]->step;
    const bool serves = f->member_of[first]->next != WEFTI_NONE ||
                        (step->type != WEFT_DTYPE_F32 && strcmp(step->name, WEFTI_FUSED_CAST) != 0);
    if (!serves || !add_members(f, first, &group) || !find_tensors(f, &group)) {
        return WEFT_OK;
    }
    choose_first_input(f, &group);
    WEFT_RETURN_IF_ERROR(add_fused(f, &group, &node));
    for (uint32_t o = 0; o < group.output_count; o++) {
        wefti_graph_take_output(f->graph, node, o, group.outputs[o]);
    }
    for (uint32_t i = 0; i < group.count; i++) {
        f->graph->nodes[group.members[i]].dead = true;
        f->graph->nodes[group.members[i]].replaced_by = node;
    }
    return WEFT_OK;
}

/* Nodes whose order is fixed stay where they are: orderings, and updates in place. */
static weft_status_t leave_constrained(fuser_t *f)
{
    wefti_constraint_t *edges;
    size_t count;
    WEFT_RETURN_IF_ERROR(wefti_graph_order_edges(f->graph, &edges, &count));
    for (size_t i = 0; i < count; i++) {
        f->member_of[edges[i].before] = f->member_of[edges[i].after] = NULL;
    }
    wefti_free(f->graph->arena.allocator, edges);
    return WEFT_OK;
}

static weft_status_t fuse(fuser_t *f)
{
    wefti_graph_t *graph = f->graph;
    const uint32_t count = graph->order_count;
    f->position = wefti_id_map(&f->arena, graph->node_count);
    f->member_of = wefti_arena_array(&f->arena, graph->node_count, sizeof(*f->member_of));
    WEFT_RETURN_IF_NO_MEMORY(f->position && f->member_of);
    WEFT_RETURN_IF_ERROR(wefti_graph_readers(graph, graph->order, count, &f->arena, &f->readers));
    for (uint32_t i = 0; i < count; i++) {
        f->position[graph->order[i]] = i;
        f->member_of[graph->order[i]] = NULL;
        WEFT_RETURN_IF_ERROR(find_member(f, graph->order[i]));
    }
    WEFT_RETURN_IF_ERROR(leave_constrained(f));
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = graph->order[i];
        for (uint32_t k = 0; f->member_of[id] != NULL && k < f->member_of[id]->step.tensors; k++) {
            try_join(f, id, graph->nodes[id].inputs[k]);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = graph->order[i];
        if (f->member_of[id] != NULL && f->member_of[id]->group == id) {
            WEFT_RETURN_IF_ERROR(replace_group(f, id));
        }
    }
    return graph->order_count > count ? wefti_graph_sort(graph) : WEFT_OK;
}

weft_status_t wefti_pass_fuse_elementwise(wefti_graph_t *graph)
{
    fuser_t f = {.graph = graph};
    wefti_arena_init(&f.arena, graph->arena.allocator, 0);
    weft_status_t status = fuse(&f);
    wefti_arena_deinit(&f.arena);
    return status;
}

weft_status_t wefti_apply_fuse_elementwise(wefti_compiler_t *c)
{
    return wefti_pass_fuse_elementwise(c->graph);
}

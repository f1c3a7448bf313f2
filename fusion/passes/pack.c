/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack: buckets of reduce-scatters and of all-gathers become collectives of one tensor.
 *
 * Matches a ReduceScatter or AllGather of several tensors (bucket.c, or a host compiler), and one
 * that is split (attribute parts). Produces, for R ranks:
 *
 *   ReduceScatter x1..xn -> y1..yn     Pack (R blocks) -> ReduceScatter -> Unpack (1 block)
 *   AllGather     x1..xn -> y1..yn     Pack (1 block)  -> AllGather     -> Unpack (R blocks)
 *
 *   x1 = | a0 | a1 |, x2 = | b0 | b1 |     packed = | a0 b0 | a1 b1 |     rank 0 gets | a0 b0 |
 *
 * Rank r's block of the packed tensor is block r of every tensor, so each element is reduced in the
 * same order as before and no bit changes. A split tensor is taken apart in the same way: piece i is
 * a range of every block. Tensors that do not divide into equal blocks stay: lowering runs one
 * collective per tensor.
 */
#include <string.h>

#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

typedef struct packer {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    uint64_t *keys; /* positions for sorting, by node */
    size_t key_count;
} packer_t;

/* One collective to be replaced. */
typedef struct bundle {
    uint32_t id;
    int64_t in_blocks, out_blocks; /* of its inputs, of its outputs */
    uint64_t key;
} bundle_t;

static const weft_tensor_desc_t *type_of(const packer_t *p, uint32_t value)
{
    return &p->graph->values[value].type;
}

/* Every tensor is as many equal blocks on one side as on the other side it is blocks. */
static bool divides(const packer_t *p, const wefti_node_t *node, const bundle_t *b)
{
    for (uint32_t i = 0; i < node->input_count; i++) {
        if (node->inputs[i] == WEFTI_NONE || node->outputs[i] == WEFTI_NONE) {
            return false;
        }
        int64_t in = weft_tensor_elem_count(type_of(p, node->inputs[i]));
        int64_t out = weft_tensor_elem_count(type_of(p, node->outputs[i]));
        if (in <= 0 || out <= 0 || in % b->in_blocks != 0 || out % b->out_blocks != 0 ||
            in / b->in_blocks != out / b->out_blocks) {
            return false;
        }
    }
    return true;
}

static bool find_bundle(const packer_t *p, uint32_t id, bundle_t *out)
{
    const wefti_node_t *node = &p->graph->nodes[id];
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    bool scatters = facts.collective == WEFT_COLLECTIVE_REDUCE_SCATTER;
    int64_t parts = wefti_node_int(node, "parts");
    if ((!scatters && facts.collective != WEFT_COLLECTIVE_ALL_GATHER) ||
        facts.half != WEFT_HALF_NONE || wefti_node_int(node, "flat") > 0 ||
        node->input_count != node->output_count || (node->input_count < 2 && parts < 2) ||
        node->inputs[0] == WEFTI_NONE || node->outputs[0] == WEFTI_NONE) {
        return false;
    }
    int64_t in = weft_tensor_elem_count(type_of(p, node->inputs[0]));
    int64_t out_elems = weft_tensor_elem_count(type_of(p, node->outputs[0]));
    int64_t block = scatters ? out_elems : in, whole = scatters ? in : out_elems;
    int64_t ranks = block > 0 ? whole / block : 0;
    *out = (bundle_t){.id = id,
                      .in_blocks = scatters ? ranks : 1,
                      .out_blocks = scatters ? 1 : ranks,
                      .key = p->keys[id]};
    return ranks > 0 && divides(p, node, out);
}

/* step: 0 to 2, the last of which has no outputs yet: it takes over those of the collective. */
static weft_status_t add_node(packer_t *p, const bundle_t *b, wefti_node_params_t *params,
                              uint64_t step, uint32_t *out_node)
{
    weft_status_t status;
    bool *absent = wefti_arena_array(&p->arena, params->output_count, sizeof(*absent));
    if (absent == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(absent, step == 2, params->output_count * sizeof(*absent));
    params->output_absent = absent;
    params->domain = "weft";
    params->phase = p->graph->nodes[b->id].phase;
    WEFT_TRY(status, wefti_graph_add_node(p->graph, params, out_node), done);
    WEFT_TRY(status,
             wefti_array_reserve(p->graph->arena.allocator, &p->keys, &p->key_count,
                                 (size_t)*out_node + 1, sizeof(*p->keys)),
             done);
    p->keys[*out_node] = b->key + step;
done:
    return status;
}

/* Pack of several values; shape NULL: of one dimension. */
static weft_status_t add_pack(packer_t *p, const bundle_t *b, int64_t blocks,
                              const uint32_t *values, uint32_t count,
                              const weft_tensor_desc_t *shape, uint64_t step, uint32_t *out_node)
{
    const weft_attr_t attrs[] = {{.name = "blocks", .type = WEFT_ATTR_TYPE_INT, .i = blocks},
                                 {.name = "shape",
                                  .type = WEFT_ATTR_TYPE_INTS,
                                  .ints = shape != NULL ? shape->dims : NULL,
                                  .count = shape != NULL ? shape->rank : 0}};
    wefti_node_params_t params = {
        .op = "Pack",
        .name = wefti_arena_printf(&p->arena, "%s/pack", p->graph->nodes[b->id].name),
        .inputs = values,
        .input_count = count,
        .output_count = 1,
        .attrs = attrs,
        .attr_count = shape != NULL ? 2 : 1};
    return params.name == NULL ? WEFT_ERR_NO_MEMORY : add_node(p, b, &params, step, out_node);
}

/* Unpack of a value into tensors of these types. */
static weft_status_t add_unpack(packer_t *p, const bundle_t *b, int64_t blocks, uint32_t value,
                                const weft_tensor_desc_t *types, uint32_t count, uint64_t step,
                                uint32_t *out_node)
{
    int64_t *shapes =
        wefti_arena_array(&p->arena, (size_t)count * (WEFT_MAX_DIMS + 1), sizeof(*shapes));
    size_t used = 0;
    const char *name = wefti_arena_printf(&p->arena, "%s/unpack", p->graph->nodes[b->id].name);
    if (shapes == NULL || name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        shapes[used++] = types[i].rank;
        memcpy(shapes + used, types[i].dims, types[i].rank * sizeof(*shapes));
        used += types[i].rank;
    }
    const weft_attr_t attrs[] = {
        {.name = "blocks", .type = WEFT_ATTR_TYPE_INT, .i = blocks},
        {.name = "shapes", .type = WEFT_ATTR_TYPE_INTS, .ints = shapes, .count = used}};
    wefti_node_params_t params = {.op = "Unpack",
                                  .name = name,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_count = count,
                                  .attrs = attrs,
                                  .attr_count = 2};
    return add_node(p, b, &params, step, out_node);
}

/* The same collective on one value. */
static weft_status_t add_collective(packer_t *p, const bundle_t *b, uint32_t value,
                                    const char *name, uint32_t *out_node)
{
    const wefti_node_t *node = &p->graph->nodes[b->id];
    weft_attr_t *attrs = wefti_arena_array(&p->arena, node->attr_count, sizeof(*attrs));
    wefti_node_params_t params = {.op = node->def->name,
                                  .name = name,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_count = 1,
                                  .attrs = attrs};
    if (attrs == NULL || name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < node->attr_count; i++) {
        if (strcmp(node->attrs[i].name, "parts") != 0) {
            attrs[params.attr_count++] = node->attrs[i];
        }
    }
    bool sized = wefti_node_attr(node, "group_size") != NULL;
    if (!sized) {
        attrs = wefti_arena_array(&p->arena, (size_t)params.attr_count + 1, sizeof(*attrs));
        if (attrs == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        memcpy(attrs, params.attrs, params.attr_count * sizeof(*attrs));
        attrs[params.attr_count++] = (weft_attr_t){
            .name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = b->in_blocks * b->out_blocks};
        params.attrs = attrs;
    }
    return add_node(p, b, &params, 1, out_node);
}

static void replace(packer_t *p, const bundle_t *b, uint32_t by, uint32_t collective)
{
    wefti_node_t *node = &p->graph->nodes[b->id];
    for (uint32_t i = 0; i < node->output_count; i++) {
        wefti_graph_take_output(p->graph, by, i, node->outputs[i]);
    }
    node->dead = true;
    node->replaced_by = collective;
}

static weft_status_t pack(packer_t *p, const bundle_t *b)
{
    weft_status_t status;
    const wefti_node_t *node = &p->graph->nodes[b->id];
    uint32_t count = node->input_count, packed, collective, unpacked;
    weft_tensor_desc_t *types = wefti_arena_array(&p->arena, count, sizeof(*types));
    if (types == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        types[i] = *type_of(p, node->outputs[i]);
    }
    WEFT_TRY(status, add_pack(p, b, b->in_blocks, node->inputs, count, NULL, 0, &packed), done);
    const char *name = wefti_arena_printf(&p->arena, "%s/packed", p->graph->nodes[b->id].name);
    WEFT_TRY(status, add_collective(p, b, p->graph->nodes[packed].outputs[0], name, &collective),
             done);
    WEFT_TRY(status,
             add_unpack(p, b, b->out_blocks, p->graph->nodes[collective].outputs[0], types, count,
                        2, &unpacked),
             done);
    replace(p, b, unpacked, collective);
done:
    return status;
}

/* Elements of a block up to piece i: whole units of 64 bytes. */
static int64_t cut_at(int64_t block_elems, int64_t elem_bytes, int64_t parts, int64_t i)
{
    int64_t unit = WEFTI_PLAN_ALIGNMENT / elem_bytes;
    int64_t units = block_elems / unit + (block_elems % unit != 0);
    int64_t at = units * i / parts * unit;
    return at < block_elems ? at : block_elems;
}

static weft_status_t split(packer_t *p, const bundle_t *b)
{
    weft_status_t status;
    const wefti_node_t *node = &p->graph->nodes[b->id];
    const weft_tensor_desc_t out_type = *type_of(p, node->outputs[0]);
    uint32_t input = node->inputs[0], parts = (uint32_t)wefti_node_int(node, "parts");
    int64_t block = weft_tensor_elem_count(type_of(p, input)) / b->in_blocks;
    int64_t elem_bytes = (int64_t)weft_dtype_size_bytes(out_type.dtype);
    weft_tensor_desc_t *types = wefti_arena_array(&p->arena, parts, sizeof(*types));
    uint32_t *results = wefti_arena_array(&p->arena, parts, sizeof(*results));
    uint32_t apart, collective = WEFTI_NONE, whole;
    if (types == NULL || results == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < parts; i++) {
        int64_t elems =
            cut_at(block, elem_bytes, parts, i + 1) - cut_at(block, elem_bytes, parts, i);
        types[i] = (weft_tensor_desc_t){.rank = 1, .dims = {elems * b->in_blocks}};
    }
    WEFT_TRY(status, add_unpack(p, b, b->in_blocks, input, types, parts, 0, &apart), done);
    for (uint32_t i = 0; i < parts; i++) {
        const char *name =
            wefti_arena_printf(&p->arena, "%s/piece%u", p->graph->nodes[b->id].name, i);
        WEFT_TRY(status, add_collective(p, b, p->graph->nodes[apart].outputs[i], name, &collective),
                 done);
        results[i] = p->graph->nodes[collective].outputs[0];
    }
    WEFT_TRY(status, add_pack(p, b, b->out_blocks, results, parts, &out_type, 2, &whole), done);
    replace(p, b, whole, collective);
done:
    return status;
}

static weft_status_t pack_all(packer_t *p)
{
    weft_status_t status = WEFT_OK;
    wefti_graph_t *graph = p->graph;
    uint32_t count = graph->order_count;
    bool found = false;
    WEFT_TRY(status,
             wefti_array_reserve(graph->arena.allocator, &p->keys, &p->key_count,
                                 (size_t)graph->node_count + 1, sizeof(*p->keys)),
             done);
    for (uint32_t i = 0; i < count; i++) {
        p->keys[graph->order[i]] = 3 * (uint64_t)i;
    }
    for (uint32_t i = 0; i < count; i++) {
        bundle_t bundle;
        if (find_bundle(p, graph->order[i], &bundle)) {
            bool apart = graph->nodes[bundle.id].input_count == 1;
            WEFT_TRY(status, apart ? split(p, &bundle) : pack(p, &bundle), done);
            found = true;
        }
    }
    status = found ? wefti_graph_reorder(graph, p->keys) : WEFT_OK;
done:
    return status;
}

weft_status_t wefti_pass_pack(wefti_graph_t *graph)
{
    packer_t p = {.graph = graph};
    wefti_arena_init(&p.arena, graph->arena.allocator, 0);
    weft_status_t status = pack_all(&p);
    wefti_free(graph->arena.allocator, p.keys);
    wefti_arena_deinit(&p.arena);
    return status;
}

weft_status_t wefti_apply_pack(wefti_compiler_t *c)
{
    return wefti_pass_pack(c->graph);
}

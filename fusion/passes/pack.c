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
 * same order as before and no bit changes. A split tensor is taken apart in the same way: piece i
 * is a range of every block. Tensors that do not divide into equal blocks stay: lowering runs one
 * collective per tensor.
 */
#include <string.h>

#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

typedef struct packer {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    wefti_readers_t readers;
    uint32_t *position; /* by node, in the order */
    uint32_t count;     /* of the order, without inserted nodes */
} packer_t;

/* One collective to be replaced. */
typedef struct bundle {
    uint32_t id;
    int64_t in_blocks, out_blocks; /* of its inputs, of its outputs */
} bundle_t;

static const weft_tensor_desc_t *type_of(const packer_t *p, uint32_t value)
{
    return &p->graph->values[value].type;
}

/* Inputs and outputs divide into their numbers of blocks, and the blocks are equally large. */
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
    int64_t group_size = wefti_node_int(node, "group_size");
    *out =
        (bundle_t){.id = id, .in_blocks = scatters ? ranks : 1, .out_blocks = scatters ? 1 : ranks};
    /* 3 rows on 4 ranks are blocks of 1 row: 3 equal blocks, but not one per rank. */
    return ranks > 0 && (group_size <= 0 || ranks == group_size) && divides(p, node, out);
}

/* The node before the first reader of the collective's results. */
static uint32_t last_before_readers(const packer_t *p, uint32_t id)
{
    const wefti_node_t *node = &p->graph->nodes[id];
    uint32_t first = p->count;
    for (uint32_t i = 0; i < node->output_count; i++) {
        uint32_t reader = p->readers.first[node->outputs[i]];
        if (reader < p->readers.first[node->outputs[i] + 1]) {
            uint32_t at = p->position[p->readers.nodes[reader]];
            first = at < first ? at : first;
        }
    }
    return p->graph->order[first - 1]; /* which exists: the collective is before them */
}

/* The last node gets no outputs: it takes over those of the collective. It is placed before their
 * first reader, so compute does not wait earlier. The other nodes run as soon as they can. */
static weft_status_t insert(packer_t *p, const bundle_t *b, wefti_node_params_t *params,
                            bool is_last, uint32_t *out_node)
{
    uint32_t after = is_last ? last_before_readers(p, b->id) : WEFTI_WHEN_READY;
    bool *absent = wefti_arena_array(&p->arena, params->output_count, sizeof(*absent));
    WEFT_RETURN_IF_NO_MEMORY(absent);
    memset(absent, is_last, params->output_count * sizeof(*absent));
    params->output_absent = absent;
    params->domain = "weft";
    params->phase = p->graph->nodes[b->id].phase;
    return wefti_graph_insert_node(p->graph, params, after, out_node);
}

/* Pack of several values; shape NULL: of one dimension. */
static weft_status_t add_pack(packer_t *p, const bundle_t *b, int64_t blocks,
                              const uint32_t *values, uint32_t count,
                              const weft_tensor_desc_t *shape, bool is_last, uint32_t *out_node)
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
    return params.name == NULL ? WEFT_ERR_NO_MEMORY : insert(p, b, &params, is_last, out_node);
}

/* Unpack of a value into tensors of these types. */
static weft_status_t add_unpack(packer_t *p, const bundle_t *b, int64_t blocks, uint32_t value,
                                const weft_tensor_desc_t *types, uint32_t count, bool is_last,
                                uint32_t *out_node)
{
    int64_t *shapes =
        wefti_arena_array(&p->arena, (size_t)count * (WEFT_MAX_DIMS + 1), sizeof(*shapes));
    size_t used = 0;
    const char *name = wefti_arena_printf(&p->arena, "%s/unpack", p->graph->nodes[b->id].name);
    WEFT_RETURN_IF_NO_MEMORY(shapes && name);
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
    return insert(p, b, &params, is_last, out_node);
}

/* The same collective on one value. */
static weft_status_t add_collective(packer_t *p, const bundle_t *b, uint32_t value,
                                    const char *name, uint32_t *out_node)
{
    const wefti_node_t *node = &p->graph->nodes[b->id];
    weft_attr_t *attrs = wefti_arena_array(&p->arena, (size_t)node->attr_count + 1, sizeof(*attrs));
    wefti_node_params_t params = {.op = node->def->name,
                                  .name = name,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_count = 1,
                                  .attrs = attrs,
                                  .attr_count = 1};
    WEFT_RETURN_IF_NO_MEMORY(attrs && name);
    attrs[0] = (weft_attr_t){
        .name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = b->in_blocks * b->out_blocks};
    for (uint32_t i = 0; i < node->attr_count; i++) {
        const char *attr = node->attrs[i].name;
        if (strcmp(attr, "parts") == 0 || strcmp(attr, attrs[0].name) == 0) {
            continue;
        }
        attrs[params.attr_count] = node->attrs[i];
        if (strcmp(attr, "split_reason") == 0 && wefti_node_attr(node, "reason") == NULL) {
            attrs[params.attr_count].name = "reason"; /* a piece is not split itself */
        }
        params.attr_count++;
    }
    return insert(p, b, &params, false, out_node);
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
    const wefti_node_t *node = &p->graph->nodes[b->id];
    uint32_t count = node->input_count, packed, collective, unpacked;
    weft_tensor_desc_t *types = wefti_arena_array(&p->arena, count, sizeof(*types));
    WEFT_RETURN_IF_NO_MEMORY(types);
    for (uint32_t i = 0; i < count; i++) {
        types[i] = *type_of(p, node->outputs[i]);
    }
    WEFT_RETURN_IF_ERROR(add_pack(p, b, b->in_blocks, node->inputs, count, NULL, false, &packed));
    const char *name = wefti_arena_printf(&p->arena, "%s/packed", p->graph->nodes[b->id].name);
    WEFT_RETURN_IF_ERROR(
        add_collective(p, b, p->graph->nodes[packed].outputs[0], name, &collective));
    WEFT_RETURN_IF_ERROR(add_unpack(p, b, b->out_blocks, p->graph->nodes[collective].outputs[0],
                                    types, count, true, &unpacked));
    replace(p, b, unpacked, collective);
    return WEFT_OK;
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
    const wefti_node_t *node = &p->graph->nodes[b->id];
    const weft_tensor_desc_t out_type = *type_of(p, node->outputs[0]);
    uint32_t input = node->inputs[0], parts = (uint32_t)wefti_node_int(node, "parts");
    int64_t block = weft_tensor_elem_count(type_of(p, input)) / b->in_blocks;
    int64_t elem_bytes = (int64_t)weft_dtype_size_bytes(out_type.dtype);
    weft_tensor_desc_t *types = wefti_arena_array(&p->arena, parts, sizeof(*types));
    uint32_t *results = wefti_arena_array(&p->arena, parts, sizeof(*results));
    uint32_t apart, collective = WEFTI_NONE, whole;
    WEFT_RETURN_IF_NO_MEMORY(types && results);
    for (uint32_t i = 0; i < parts; i++) {
        int64_t elems =
            cut_at(block, elem_bytes, parts, i + 1) - cut_at(block, elem_bytes, parts, i);
        types[i] = (weft_tensor_desc_t){.rank = 1, .dims = {elems * b->in_blocks}};
    }
    WEFT_RETURN_IF_ERROR(add_unpack(p, b, b->in_blocks, input, types, parts, false, &apart));
    for (uint32_t i = 0; i < parts; i++) {
        const char *name =
            wefti_arena_printf(&p->arena, "%s/piece%u", p->graph->nodes[b->id].name, i);
        WEFT_RETURN_IF_ERROR(
            add_collective(p, b, p->graph->nodes[apart].outputs[i], name, &collective));
        results[i] = p->graph->nodes[collective].outputs[0];
    }
    WEFT_RETURN_IF_ERROR(add_pack(p, b, b->out_blocks, results, parts, &out_type, true, &whole));
    replace(p, b, whole, collective);
    return WEFT_OK;
}

/* What find_bundle does not need: most graphs have nothing to pack. */
static weft_status_t find_readers(packer_t *p)
{
    wefti_graph_t *graph = p->graph;
    p->position = wefti_arena_array(&p->arena, graph->node_count, sizeof(*p->position));
    WEFT_RETURN_IF_NO_MEMORY(p->position);
    for (uint32_t i = 0; i < p->count; i++) {
        p->position[graph->order[i]] = i;
    }
    return wefti_graph_readers(graph, graph->order, p->count, &p->arena, &p->readers);
}

static weft_status_t pack_all(packer_t *p)
{
    wefti_graph_t *graph = p->graph;
    bundle_t bundle;
    p->count = graph->order_count;
    for (uint32_t i = 0; i < p->count; i++) {
        if (find_bundle(p, graph->order[i], &bundle)) {
            bool apart = graph->nodes[bundle.id].input_count == 1;
            if (p->position == NULL) {
                WEFT_RETURN_IF_ERROR(find_readers(p));
            }
            WEFT_RETURN_IF_ERROR(apart ? split(p, &bundle) : pack(p, &bundle));
        }
    }
    return graph->order_count > p->count ? wefti_graph_sort(graph) : WEFT_OK;
}

weft_status_t wefti_pass_pack(wefti_graph_t *graph)
{
    packer_t p = {.graph = graph};
    wefti_arena_init(&p.arena, graph->arena.allocator, 0);
    weft_status_t status = pack_all(&p);
    wefti_arena_deinit(&p.arena);
    return status;
}

weft_status_t wefti_apply_pack(wefti_compiler_t *c)
{
    return wefti_pass_pack(c->graph);
}

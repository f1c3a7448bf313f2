/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rule per kind of operator: from the splits of its inputs to what it needs and what comes
 * out. An operator without a rule, or whose inputs do not fit together, needs them whole.
 */
#include "fusion/tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/sets.h"
#include "ops/op_facts.h"

static const wefti_split_t whole = {.axis = -1, .count = 1};

/* One rule at work on a node. */
typedef struct rule {
    wefti_splitter_t *s;
    const wefti_node_t *node;
    wefti_node_split_t *result;
    bool only_marks; /* inputs without an annotation of the node count as whole */
} rule_t;

static const weft_tensor_desc_t *type_of(const rule_t *r, uint32_t value)
{
    return &r->s->graph->values[value].type;
}

/* Does an annotation of the node split this input? */
static bool is_marked(const rule_t *r, uint32_t value)
{
    const uint32_t producer = r->s->graph->values[value].producer;
    const wefti_mark_t *mark =
        r->s->marks == NULL || producer == WEFTI_NONE ? NULL : r->s->mark_of[producer];
    return mark != NULL && mark->axis >= 0 && mark->reader != WEFTI_NONE &&
           &r->s->graph->nodes[mark->reader] == r->node;
}

static const wefti_split_t *split_of(const rule_t *r, uint32_t input)
{
    uint32_t value = input < r->node->input_count ? r->node->inputs[input] : WEFTI_NONE;
    return value == WEFTI_NONE || (r->only_marks && !is_marked(r, value)) ? &whole
                                                                          : &r->s->of_value[value];
}

static bool fail(rule_t *r, const char *why)
{
    r->result->why = why;
    return false;
}

static bool same_segments(const wefti_split_t *a, const wefti_split_t *b)
{
    return a->count == b->count &&
           (a->count == 1 || memcmp(a->sizes, b->sizes, a->count * sizeof(*a->sizes)) == 0);
}

static wefti_split_t at_axis(const wefti_split_t *split, int64_t axis)
{
    wefti_split_t moved = *split;
    moved.axis = (int32_t)axis;
    return moved;
}

/* In inference a rank can copy its part of a value that every rank has, such as a cache of keys. */
static bool can_copy_part(const rule_t *r, uint32_t value, int64_t axis)
{
    int64_t dim = type_of(r, value)->dims[axis];
    return !r->s->trains && !r->s->fixed[value] && dim > 0 && dim % r->s->ranks == 0;
}

/* Input index has to be split along axis as ref is: it is, or it can be. */
static bool need_like(rule_t *r, uint32_t input, int64_t axis, const wefti_split_t *ref)
{
    const wefti_split_t *have = split_of(r, input);
    uint32_t value = r->node->inputs[input];
    if (wefti_is_split(have)) {
        if (have->axis != axis || !same_segments(have, ref)) {
            return fail(r, "its inputs are split in different ways");
        }
        uint32_t origin = have->origin, other = ref->origin;
        wefti_sets_join(r->s->parent, &origin, &other);
    } else if (!can_copy_part(r, value, axis) &&
               !(r->s->fixed[value] && wefti_split_can_slice(r->s, value, (uint32_t)axis))) {
        return fail(r, "one input is split and another one is whole");
    }
    r->result->need[input] = at_axis(ref, axis);
    return true;
}

/* The first input that is split, or UINT32_MAX. */
static uint32_t first_split(const rule_t *r)
{
    for (uint32_t i = 0; i < r->node->input_count; i++) {
        if (wefti_is_split(split_of(r, i))) {
            return i;
        }
    }
    return UINT32_MAX;
}

/* Only input 0 may be split. */
static bool only_first(rule_t *r)
{
    for (uint32_t i = 1; i < r->node->input_count; i++) {
        if (wefti_is_split(split_of(r, i))) {
            return fail(r, "an input other than the first is split");
        }
    }
    r->result->need[0] = *split_of(r, 0);
    return true;
}

static int64_t normal_axis(int64_t axis, uint32_t rank)
{
    return axis < 0 ? axis + rank : axis;
}

/* ---- element by element, views, permutations ---- */

static bool elementwise(rule_t *r)
{
    const weft_tensor_desc_t *out = type_of(r, r->node->outputs[0]);
    uint32_t rank = out->rank, ref = first_split(r);
    const wefti_split_t *split = split_of(r, ref);
    const weft_tensor_desc_t *in = type_of(r, r->node->inputs[ref]);
    int64_t axis = split->axis + (int64_t)rank - in->rank;
    if (axis < 0 || out->dims[axis] != in->dims[split->axis]) {
        return fail(r, "its result has another shape than the input that is split");
    }
    for (uint32_t i = 0; i < r->node->input_count; i++) {
        uint32_t value = r->node->inputs[i];
        int64_t own = value == WEFTI_NONE ? -1 : axis - rank + type_of(r, value)->rank;
        if (own >= 0 && type_of(r, value)->dims[own] != 1 && !need_like(r, i, own, split)) {
            return false;
        }
    }
    r->result->out = at_axis(split, axis);
    return true;
}

/* The result has the shape of input 0, and the type of input 1. */
static bool conversion(rule_t *r)
{
    for (uint32_t i = 0; i < r->node->input_count; i++) {
        r->result->need[i] = *split_of(r, i);
    }
    r->result->out = *split_of(r, 0);
    return true;
}

/* The columns of the product consist of count segments: propagate again with these. */
static bool ask_segments(rule_t *r, const wefti_split_t *split, uint32_t count,
                         const int64_t *sizes)
{
    wefti_split_t *columns = &r->s->columns[split->origin];
    const wefti_node_t *product = &r->s->graph->nodes[split->origin];
    const wefti_mark_t *mark = r->s->marks != NULL ? r->s->mark_of[split->origin] : NULL;
    const weft_tensor_desc_t *type = type_of(r, product->outputs[0]);
    const uint32_t axis = mark != NULL ? (uint32_t)mark->axis : type->rank - 1;
    int64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (sizes[i] == 0 || sizes[i] % r->s->ranks != 0) {
            return fail(r, "parts of the split axis do not divide by the number of ranks");
        }
        sum += sizes[i];
    }
    if (columns->count > 1 || sum != type->dims[axis] ||
        (r->s->marks != NULL && r->s->one_segment[split->origin])) {
        return fail(r, "it divides the split axis");
    }
    columns->sizes = wefti_arena_memdup(r->s->arena, sizes, count * sizeof(*sizes));
    columns->count = count;
    r->s->changed = true;
    return fail(r, "it divides the split axis");
}

static int64_t product_of(const weft_tensor_desc_t *type, uint32_t begin, uint32_t end)
{
    int64_t product = 1;
    for (uint32_t d = begin; d < end; d++) {
        product *= type->dims[d];
    }
    return product;
}

/* The split along axis of the result as count segments of size each. */
static bool set_segments(rule_t *r, const wefti_split_t *split, uint32_t axis, int64_t count,
                         int64_t size)
{
    wefti_split_t *out = &r->result->out;
    int64_t *sizes =
        count > 1 ? wefti_arena_array(r->s->arena, (size_t)count, sizeof(*sizes)) : NULL;
    if (count > 1 && sizes == NULL) {
        return fail(r, "out of memory");
    }
    for (int64_t i = 0; i < count && count > 1; i++) {
        sizes[i] = size;
    }
    *out = (wefti_split_t){
        .axis = (int32_t)axis, .origin = split->origin, .count = (uint32_t)count, .sizes = sizes};
    return true;
}

static bool has_equal_segments(const wefti_split_t *split)
{
    bool equal = true;
    for (uint32_t i = 1; i < split->count; i++) {
        equal = equal && split->sizes[i] == split->sizes[0];
    }
    return equal;
}

/*
 * The elements of a value are periods, one after the other, and rank r has part r of each. So it is
 * in the result; what changes is the axis: heads of a hidden size, the hidden size of heads, or
 * samples and heads as one axis.
 */
static bool view(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    const weft_tensor_desc_t *in = type_of(r, r->node->inputs[0]);
    const weft_tensor_desc_t *out = type_of(r, r->node->outputs[0]);
    uint32_t axis = (uint32_t)split->axis;
    bool equal = has_equal_segments(split);
    int64_t before = product_of(in, 0, axis), after = product_of(in, axis + 1, in->rank);
    int64_t periods = before * split->count, period = in->dims[axis] / split->count * after;
    if (!only_first(r)) {
        return false;
    }
    if (product_of(out, 0, out->rank) == 0) {
        return fail(r, "it has no elements");
    }
    for (uint32_t d = 0; d < out->rank; d++) {
        int64_t inner = product_of(out, d + 1, out->rank), units = period / inner;
        int64_t outer = product_of(out, 0, d);
        if (!equal && outer == before && out->dims[d] == in->dims[axis]) {
            r->result->out = at_axis(split, d);
            return true;
        }
        if (equal && period % inner == 0 && units % r->s->ranks == 0 && units > 0 &&
            out->dims[d] % units == 0 && outer * (out->dims[d] / units) == periods) {
            return set_segments(r, split, d, out->dims[d] / units, units);
        }
    }
    for (uint32_t d = 0; d < out->rank && split->count == 1; d++) {
        int64_t sizes[WEFT_MAX_DIMS], parts = out->dims[d];
        if (product_of(out, 0, d) != before || parts == 1 || parts > WEFT_MAX_DIMS ||
            in->dims[axis] % parts != 0) {
            continue;
        }
        for (int64_t i = 0; i < parts; i++) {
            sizes[i] = in->dims[axis] / parts;
        }
        return ask_segments(r, split, (uint32_t)parts, sizes);
    }
    return fail(r, "it divides the split axis by other numbers");
}

static bool permutation(rule_t *r)
{
    const weft_attr_t *perm = wefti_node_attr(r->node, "perm");
    uint32_t rank = type_of(r, r->node->inputs[0])->rank;
    for (uint32_t d = 0; d < rank; d++) {
        int64_t from = perm != NULL ? perm->ints[d] : rank - 1 - d;
        if (from == split_of(r, 0)->axis) {
            r->result->out = at_axis(split_of(r, 0), d);
        }
    }
    return only_first(r);
}

/* What an annotation asks for, of a value in any split. */
static bool marked(rule_t *r, uint32_t id, int32_t axis)
{
    const wefti_split_t *have = split_of(r, 0);
    wefti_split_t split = whole;
    if (axis >= 0 && have->axis == axis) {
        split = *have;
    } else if (axis >= 0) {
        r->s->columns[id].origin = id;
        split = at_axis(&r->s->columns[id], axis);
    }
    r->result->need[0] = r->result->out = split;
    return true;
}

/* ---- products ---- */

/* Weights [K, M], or transposed: the axis of K, and that of M. */
static void weight_axes(const wefti_node_t *node, uint32_t *out_rows, uint32_t *out_columns)
{
    bool transposed = wefti_op_facts(node->def).gradient == WEFT_GRADIENT_GEMM &&
                      wefti_node_int(node, "transB") != 0;
    *out_rows = transposed ? 1 : 0;
    *out_columns = transposed ? 0 : 1;
}

uint32_t wefti_split_weight(const wefti_splitter_t *s, uint32_t id)
{
    const wefti_node_t *node = &s->graph->nodes[id];
    weft_gradient_t kind = wefti_op_facts(node->def).gradient;
    bool product = kind == WEFT_GRADIENT_MATRIX_PRODUCT || kind == WEFT_GRADIENT_GEMM;
    return product && s->fixed[node->inputs[1]] && !s->fixed[node->inputs[0]] &&
                   s->graph->values[node->inputs[1]].type.rank == 2
               ? 1
               : UINT32_MAX;
}

/* A whole input: the weight by columns. */
static bool by_columns(rule_t *r, uint32_t id, uint32_t columns)
{
    const weft_tensor_desc_t *weight = type_of(r, r->node->inputs[1]);
    wefti_split_t *split = &r->s->columns[id];
    if (!wefti_split_can_slice(r->s, r->node->inputs[1], columns)) {
        r->s->splits_columns[id] = false;
        r->result->why = weight->dims[columns] % r->s->ranks != 0
                             ? "its columns do not divide by the number of ranks"
                             : "its weight is computed, has other readers, or is empty";
    }
    if (!r->s->splits_columns[id]) {
        return true;
    }
    split->origin = id;
    r->result->need[1] = at_axis(split, columns);
    r->result->out = at_axis(split, type_of(r, r->node->outputs[0])->rank - 1);
    return true;
}

/* An annotation has split the weight. */
static bool by_weight(rule_t *r, uint32_t rows, int64_t inner)
{
    const wefti_split_t *split = split_of(r, 0), *weight = split_of(r, 1);
    r->result->need[1] = *weight;
    if (weight->axis != (int32_t)rows) { /* a split input is gathered */
        r->result->out = at_axis(weight, type_of(r, r->node->outputs[0])->rank - 1);
        return true;
    }
    if (split->axis == inner && !same_segments(split, weight)) {
        return fail(r, "its inputs are split in different ways");
    }
    r->result->need[0] = at_axis(weight, inner);
    r->result->sums = true;
    return true;
}

static bool weighted(rule_t *r, uint32_t id, bool *out_columns)
{
    const weft_tensor_desc_t *in = type_of(r, r->node->inputs[0]);
    const wefti_split_t *split = split_of(r, 0);
    uint32_t rows, columns;
    weight_axes(r->node, &rows, &columns);
    bool transposed = wefti_node_int(r->node, "transA") != 0;
    *out_columns = !wefti_is_split(split);
    if (wefti_is_split(split_of(r, 1))) {
        return by_weight(r, rows, (int64_t)in->rank - (transposed ? 2 : 1));
    }
    if (!wefti_is_split(split)) {
        return by_columns(r, id, columns);
    }
    r->result->need[0] = *split;
    if (split->axis == (int32_t)in->rank - (transposed ? 2 : 1)) {
        r->result->sums = true;
        return need_like(r, 1, rows, split);
    }
    r->result->out = at_axis(split, transposed ? 0 : split->axis);
    return true;
}

/* The addend of Gemm goes with the columns; a sum over ranks adds it afterwards (rewrite.c). */
static bool gemm(rule_t *r, uint32_t id)
{
    bool columns = false;
    if (wefti_split_weight(r->s, id) == UINT32_MAX) {
        return first_split(r) == UINT32_MAX || fail(r, "no rule for a product without a weight");
    }
    if (!weighted(r, id, &columns)) {
        return false;
    }
    uint32_t addend = r->node->input_count > 2 ? r->node->inputs[2] : WEFTI_NONE;
    if (addend == WEFTI_NONE || (!r->result->sums && !wefti_is_split(&r->result->out))) {
        return true;
    }
    const weft_tensor_desc_t *type = type_of(r, addend);
    int64_t axis = r->result->out.axis - 2 + (int64_t)type->rank;
    if (r->result->sums) {
        return wefti_is_split(split_of(r, 2)) ? fail(r, "its addend is split, and its result a sum")
                                              : wefti_node_float(r->node, "beta") == 1.0f ||
                                                    fail(r, "its addend has a factor");
    }
    return axis < 0 || type->dims[axis] == 1 || need_like(r, 2, axis, &r->result->out);
}

static bool batched(rule_t *r)
{
    uint32_t ranks[2], out_rank = type_of(r, r->node->outputs[0])->rank;
    int64_t from_end[2];
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = type_of(r, r->node->inputs[i])->rank;
        from_end[i] =
            wefti_is_split(split_of(r, i)) ? (int64_t)ranks[i] - 1 - split_of(r, i)->axis : -1;
    }
    if (ranks[0] < 2 || ranks[1] < 2) {
        return fail(r, "no rule for products of vectors");
    }
    uint32_t ref = from_end[0] >= 0 ? 0 : 1, other = 1 - ref;
    const wefti_split_t *split = split_of(r, ref);
    int64_t end = from_end[ref], axis = (int64_t)ranks[other] - 1 - end;
    r->result->need[ref] = *split;
    if (end >= 2) { /* heads */
        r->result->out = at_axis(split, out_rank - 1 - end);
        return axis < 0 || type_of(r, r->node->inputs[other])->dims[axis] == 1 ||
               need_like(r, other, axis, split);
    }
    if (end == ref) { /* the dimension that is summed */
        r->result->sums = true;
        return need_like(r, other, (int64_t)ranks[other] - 1 - other, split);
    }
    r->result->out = at_axis(split, out_rank - 1 - end);
    return from_end[other] < 0 || fail(r, "its inputs are split in different ways");
}

static bool matmul(rule_t *r, uint32_t id)
{
    bool columns;
    return wefti_split_weight(r->s, id) != UINT32_MAX ? weighted(r, id, &columns)
           : first_split(r) == UINT32_MAX             ? true
                                                      : batched(r);
}

/* ---- along an axis ---- */

static bool rows(rule_t *r, weft_mixing_t mixing)
{
    const wefti_split_t *split = split_of(r, 0);
    int64_t axis =
        normal_axis(wefti_node_int(r->node, "axis"), type_of(r, r->node->inputs[0])->rank);
    r->result->out = *split;
    return (mixing == WEFT_MIXING_FROM_AXIS ? split->axis < axis : split->axis != axis)
               ? only_first(r)
               : fail(r, "it combines elements along the split axis");
}

static bool reduction(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    const weft_attr_t *attr = wefti_node_attr(r->node, "axes");
    uint32_t rank = type_of(r, r->node->inputs[0])->rank, count = 0, before = 0;
    int64_t axes[WEFT_MAX_DIMS];
    bool known = attr != NULL && attr->count <= WEFT_MAX_DIMS;
    if (known) {
        count = (uint32_t)attr->count;
        memcpy(axes, attr->ints, count * sizeof(*axes));
    } else if (attr == NULL && r->node->input_count > 1 && r->node->inputs[1] != WEFTI_NONE) {
        known = wefti_split_ints(r->s->graph, r->node->inputs[1], axes, &count);
    }
    if (!known || count == 0) {
        return fail(r, "it combines all elements");
    }
    for (uint32_t i = 0; i < count; i++) {
        int64_t axis = normal_axis(axes[i], rank);
        before += axis < split->axis;
        if (axis == split->axis) {
            return fail(r, "it combines elements along the split axis");
        }
    }
    bool keeps = wefti_node_int(r->node, "keepdims") != 0;
    r->result->out = at_axis(split, split->axis - (keeps ? 0 : (int64_t)before));
    return only_first(r);
}

static bool join(rule_t *r)
{
    const wefti_split_t *split = split_of(r, first_split(r));
    int64_t axis =
        normal_axis(wefti_node_int(r->node, "axis"), type_of(r, r->node->inputs[0])->rank);
    if (axis == split->axis) {
        return fail(r, "it joins tensors along the split axis");
    }
    for (uint32_t i = 0; i < r->node->input_count; i++) {
        if (!need_like(r, i, split->axis, split)) {
            return false;
        }
    }
    r->result->out = *split;
    return true;
}

static bool parts(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    int64_t axis =
        normal_axis(wefti_node_int(r->node, "axis"), type_of(r, r->node->inputs[0])->rank);
    uint32_t count = r->node->output_count;
    int64_t sizes[WEFT_MAX_DIMS];
    r->result->out = *split;
    if (!only_first(r) || axis != split->axis) {
        return r->result->why == NULL;
    }
    for (uint32_t i = 0; i < count && count <= WEFT_MAX_DIMS; i++) {
        if (r->node->outputs[i] == WEFTI_NONE) {
            return fail(r, "it drops a part of the split axis");
        }
        sizes[i] = type_of(r, r->node->outputs[i])->dims[axis];
    }
    const wefti_split_t wanted = {.count = count, .sizes = sizes};
    if (count > WEFT_MAX_DIMS || count < 2) {
        return fail(r, "it divides the split axis into too many parts");
    }
    if (!same_segments(split, &wanted)) {
        return ask_segments(r, split, count, sizes);
    }
    r->result->out.count = 1;
    r->result->out.sizes = NULL;
    return true;
}

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Ranges of one value, as a model writes that reads queries, keys and values one by one: segments
 * end where ranges begin or end. */
static bool ask_ranges(rule_t *r, const wefti_split_t *split)
{
    const wefti_graph_t *graph = r->s->graph;
    int64_t ends[2 * WEFT_MAX_DIMS + 2] = {0}, sizes[2 * WEFT_MAX_DIMS + 1];
    uint32_t count = 1, segments = 0, place;
    ends[count++] = type_of(r, r->node->inputs[0])->dims[split->axis];
    for (uint32_t i = 0; i < graph->order_count && count + 2 <= sizeof ends / sizeof *ends; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (node->input_count > 0 && node->inputs[0] == r->node->inputs[0] &&
            wefti_op_facts(node->def).gradient == WEFT_GRADIENT_RANGE &&
            wefti_split_range(graph, node, split->axis, &ends[count], &place)) {
            count += 2;
        }
    }
    qsort(ends, count, sizeof *ends, by_number);
    for (uint32_t i = 1; i < count; i++) {
        sizes[segments] = ends[i] - ends[i - 1];
        segments += sizes[segments] > 0;
    }
    return segments > 1 ? ask_segments(r, split, segments, sizes)
                        : fail(r, "it takes a range of the split axis");
}

/* Whole segments of the split axis. */
static bool range_of_segments(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    int64_t ends[2], at = 0;
    uint32_t place, first = 0;
    if (!wefti_split_range(r->s->graph, r->node, split->axis, ends, &place)) {
        return fail(r, "it takes a range of the split axis");
    }
    if (split->count == 1) {
        return ask_ranges(r, split);
    }
    while (first < split->count && at < ends[0]) {
        at += split->sizes[first++];
    }
    uint32_t last = first;
    bool begins = at == ends[0];
    while (last < split->count && at < ends[1]) {
        at += split->sizes[last++];
    }
    if (!begins || at != ends[1]) {
        return fail(r, "it takes a range of the split axis");
    }
    r->result->out.count = last - first;
    r->result->out.sizes = last - first > 1 ? &split->sizes[first] : NULL;
    return only_first(r);
}

static bool range(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    const weft_tensor_desc_t *in = type_of(r, r->node->inputs[0]);
    const weft_tensor_desc_t *out = type_of(r, r->node->outputs[0]);
    int64_t axes[WEFT_MAX_DIMS];
    uint32_t count = 0;
    bool listed = r->node->input_count > 3 && r->node->inputs[3] != WEFTI_NONE &&
                  wefti_split_ints(r->s->graph, r->node->inputs[3], axes, &count);
    for (uint32_t i = 0; listed && i < count; i++) {
        listed = normal_axis(axes[i], in->rank) != split->axis;
    }
    r->result->out = *split;
    return listed && in->dims[split->axis] == out->dims[split->axis] ? only_first(r)
                                                                     : range_of_segments(r);
}

static bool selected(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    int64_t axis =
        normal_axis(wefti_node_int(r->node, "axis"), type_of(r, r->node->inputs[0])->rank);
    int64_t more = (int64_t)type_of(r, r->node->inputs[1])->rank - 1;
    if (!only_first(r) || split->axis == axis) {
        return fail(r, "it selects along the split axis");
    }
    r->result->out = at_axis(split, split->axis + (split->axis > axis ? more : 0));
    return true;
}

static bool repeated(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    const weft_tensor_desc_t *in = type_of(r, r->node->inputs[0]);
    const weft_tensor_desc_t *out = type_of(r, r->node->outputs[0]);
    r->result->out = at_axis(split, split->axis + (int64_t)out->rank - in->rank);
    return only_first(r);
}

static bool triangle(rule_t *r)
{
    const wefti_split_t *split = split_of(r, 0);
    r->result->out = *split;
    return split->axis + 2 < (int32_t)type_of(r, r->node->inputs[0])->rank
               ? only_first(r)
               : fail(r, "it reads positions along the split axis");
}

static bool run_rule(rule_t *r, uint32_t id)
{
    const weft_op_facts_t facts = wefti_op_facts(r->node->def);
    if (r->s->marks != NULL && r->s->mark_of[id] != NULL) {
        return marked(r, id, r->s->mark_of[id]->axis);
    }
    if (r->s->marks != NULL && r->s->keeps_whole[id]) {
        return fail(r, "its result has no order that is gathered");
    }
    if (facts.gradient == WEFT_GRADIENT_MATRIX_PRODUCT) {
        return matmul(r, id);
    }
    if (facts.gradient == WEFT_GRADIENT_GEMM) {
        return gemm(r, id);
    }
    if (first_split(r) == UINT32_MAX) {
        return true;
    }
    if (facts.gradient == WEFT_GRADIENT_CONVERSION) {
        return conversion(r);
    }
    if ((facts.flags & WEFT_FACT_ELEMENTWISE) != 0) {
        return r->node->output_count == 1 ? elementwise(r) : fail(r, "it has several outputs");
    }
    if (!wefti_is_split(split_of(r, 0)) && facts.gradient != WEFT_GRADIENT_JOIN) {
        return fail(r, "an input other than the first is split");
    }
    if ((facts.flags & WEFT_FACT_VIEW) != 0) {
        return view(r);
    }
    switch (facts.gradient) {
    case WEFT_GRADIENT_PERMUTATION:
        return permutation(r);
    case WEFT_GRADIENT_SOFTMAX:
    case WEFT_GRADIENT_ROW_NORM:
        return rows(r, facts.mixing);
    case WEFT_GRADIENT_SUM:
    case WEFT_GRADIENT_MEAN:
    case WEFT_GRADIENT_REDUCED_EXTREME:
    case WEFT_GRADIENT_REDUCED_SQUARES:
        return reduction(r);
    case WEFT_GRADIENT_JOIN:
        return join(r);
    case WEFT_GRADIENT_PARTS:
        return parts(r);
    case WEFT_GRADIENT_RANGE:
        return range(r);
    case WEFT_GRADIENT_SELECTED:
        return selected(r);
    case WEFT_GRADIENT_REPEATED:
        return repeated(r);
    case WEFT_GRADIENT_TRIANGLE:
        return triangle(r);
    default:
        return fail(r, "no rule for this operator");
    }
}

static void clear(rule_t *r)
{
    for (uint32_t i = 0; i < r->node->input_count; i++) {
        r->result->need[i] = whole;
    }
    r->result->out = whole;
    r->result->sums = false;
}

/* What an annotation asks for goes before splits that came through the graph, which are converted:
 * to another axis, but not to other segments of an axis. */
static bool run_for_marks(rule_t *r, uint32_t id)
{
    bool fits = false;
    for (uint32_t i = 0; i < r->node->input_count && r->s->marks != NULL; i++) {
        fits = fits || (r->node->inputs[i] != WEFTI_NONE && is_marked(r, r->node->inputs[i]));
    }
    const char *why = r->result->why;
    r->only_marks = true;
    fits = fits && run_rule(r, id);
    for (uint32_t i = 0; i < r->node->input_count && fits; i++) {
        const wefti_split_t *need = &r->result->need[i];
        const uint32_t value = r->node->inputs[i];
        const wefti_split_t *have = value == WEFTI_NONE ? &whole : &r->s->of_value[value];
        fits = !wefti_is_split(have) || have->axis != need->axis || same_segments(have, need);
    }
    r->result->why = fits ? NULL : why;
    return fits;
}

void wefti_split_rule(wefti_splitter_t *s, uint32_t id, wefti_node_split_t *result)
{
    rule_t r = {.s = s, .node = &s->graph->nodes[id], .result = result};
    clear(&r);
    result->why = NULL;
    if (!run_rule(&r, id)) {
        clear(&r);
        if (!run_for_marks(&r, id)) {
            clear(&r);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LSTM, GRU and RNN, step by step. The products of all inputs are one; a step adds the product of
 * its state. The gradient is then that of the steps: back-propagation through time.
 *
 *   x [T, B, I] --Gemm(W)--> [T B, gates H] --Split--> a part per step
 *   h --Gemm(R, part)--> gates --> h of the next step --Concat--> y [T, 1, B, H]
 */
#include "graph/expand.h"

#define MOST_STEPS 4096 /* of all directions */
#define MOST_PARTS 128  /* of one Split or Concat */
#define MOST_GATES 4

typedef struct cell {
    expander_t *e;
    uint32_t gates, states; /* of the operator: matrices of a step, and what it carries on */
    int64_t steps, batch, hidden, directions;
    bool by_batch;            /* layout 1: the batch is the first dimension */
    uint32_t direction;       /* the present one */
    uint32_t r, r_bias, hole; /* its weights; hole: P, or NONE */
    uint32_t lengths;         /* of the sequences, [B, 1], or NONE */
    uint32_t low, high;       /* bounds of what goes into activations, or NONE */
    uint32_t ones;            /* scalar, or NONE */
} cell_t;

/* Takes the inputs of a step, and its states, which it replaces. */
typedef void (*step_fn)(cell_t *c, uint32_t x, uint32_t *states);

static weft_attr_t int_of(const char *name, int64_t value)
{
    return (weft_attr_t){.name = name, .type = WEFT_ATTR_TYPE_INT, .i = value};
}

/* Parts along axis, of these sizes; out has room for count. */
static void split(expander_t *e, uint32_t x, int64_t axis, const int64_t *sizes, uint32_t count,
                  uint32_t *out)
{
    const weft_attr_t attr = int_of("axis", axis);
    const uint32_t in[] = {x, ints(e, sizes, count)};
    if (count == 1) {
        out[0] = x;
        return;
    }
    add_node(e, &(const wefti_node_params_t){.domain = "",
                                             .op = "Split",
                                             .version = 13,
                                             .inputs = in,
                                             .input_count = 2,
                                             .output_count = count,
                                             .attrs = &attr,
                                             .attr_count = 1});
    for (uint32_t i = 0; i < count; i++) {
        out[i] = e->status < 0 ? 0 : e->graph->nodes[e->last].outputs[i];
    }
}

static void split_equal(expander_t *e, uint32_t x, int64_t axis, int64_t size, uint32_t count,
                        uint32_t *out)
{
    int64_t sizes[MOST_PARTS] = {0};
    uint32_t groups = (count + MOST_PARTS - 1) / MOST_PARTS, parts[MOST_STEPS / MOST_PARTS + 1];
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t begin = g * MOST_PARTS;
        sizes[g] = size * (count - begin < MOST_PARTS ? count - begin : MOST_PARTS);
    }
    split(e, x, axis, sizes, groups, parts);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t begin = g * MOST_PARTS,
                 n = count - begin < MOST_PARTS ? count - begin : MOST_PARTS;
        for (uint32_t i = 0; i < n; i++) {
            sizes[i] = size;
        }
        split(e, parts[g], axis, sizes, n, out + begin);
    }
}

static uint32_t join(expander_t *e, const uint32_t *parts, uint32_t count, int64_t axis)
{
    uint32_t groups[MOST_STEPS / MOST_PARTS + 1], n = 0;
    const weft_attr_t attr = int_of("axis", axis);
    if (count <= MOST_PARTS) {
        return count == 1 ? parts[0] : add(e, "Concat", parts, count, &attr);
    }
    for (uint32_t i = 0; i < count; i += MOST_PARTS) {
        groups[n++] = join(e, parts + i, count - i < MOST_PARTS ? count - i : MOST_PARTS, axis);
    }
    return join(e, groups, n, axis);
}

/* Part of a tensor with a part per direction, without that dimension; NONE: absent. */
static uint32_t of_direction(cell_t *c, uint32_t index)
{
    uint32_t parts[2], x = input(c->e, index);
    if (x == NONE) {
        return NONE;
    }
    const weft_tensor_desc_t type = type_of(c->e, x);
    split_equal(c->e, x, 0, 1, (uint32_t)c->directions, parts);
    return reshape(c->e, parts[c->direction], type.dims + 1, type.rank > 0 ? type.rank - 1 : 0);
}

/* a b' + bias; bias may be NONE. */
static uint32_t product(expander_t *e, uint32_t a, uint32_t b, uint32_t bias)
{
    const weft_attr_t attr = int_of("transB", 1);
    const uint32_t in[] = {a, b, bias};
    return add(e, "Gemm", in, bias != NONE ? 3 : 2, &attr);
}

/* Activation index of the present direction; by default Sigmoid, and Tanh from gate on. */
static uint32_t activate(cell_t *c, uint32_t index, uint32_t x)
{
    static const char *const names[] = {"activation_alpha", "activation_beta"};
    static const char *const params[] = {"alpha", "beta"};
    expander_t *e = c->e;
    if (e->status < 0) {
        return 0;
    }
    const wefti_node_t *node = &e->graph->nodes[e->node];
    const weft_attr_t *list = wefti_node_attr(node, "activations");
    const uint32_t each = c->gates == 1 ? 1 : c->gates == 3 ? 2 : 3;
    const size_t at = (size_t)c->direction * each + index;
    const char *op = list != NULL && at < list->count ? list->strings[at]
                     : index == 0 && each > 1         ? "Sigmoid"
                                                      : "Tanh";
    const weft_op_def_t *def = weft_registry_find_op(e->graph->registry, "", op, 17);
    weft_attr_t attrs[2];
    uint32_t count = 0;
    if (c->low != NONE) {
        x = add(e, "Clip", (const uint32_t[]){x, c->low, c->high}, 3, NULL);
    }
    if (def == NULL || def->inputs_max != 1 || !wefti_op_has(def, WEFT_FACT_ELEMENTWISE)) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED, "unsupported activation '%.40s'", op);
        return 0;
    }
    for (uint32_t p = 0; p < 2; p++) {
        const weft_attr_t *values = wefti_node_attr(node, names[p]);
        for (uint32_t k = 0; values != NULL && at < values->count && k < def->attr_count; k++) {
            if (strcmp(def->attrs[k].name, params[p]) == 0) {
                attrs[count++] = (weft_attr_t){
                    .name = params[p], .type = WEFT_ATTR_TYPE_FLOAT, .f = values->floats[at]};
            }
        }
    }
    return add_node(e, &(const wefti_node_params_t){.domain = "",
                                                    .op = op,
                                                    .inputs = &x,
                                                    .input_count = 1,
                                                    .output_count = 1,
                                                    .attrs = attrs,
                                                    .attr_count = count});
}

static uint32_t rest_of_one(cell_t *c, uint32_t x)
{
    c->ones = c->ones == NONE ? number(c->e, 1.0, x) : c->ones;
    return two(c->e, "Sub", c->ones, x);
}

/* x + p * state, where there are weights from states to gates. */
static uint32_t peep(cell_t *c, uint32_t x, uint32_t which, uint32_t state)
{
    uint32_t parts[3];
    if (c->hole == NONE) {
        return x;
    }
    split_equal(c->e, c->hole, 0, c->hidden, 3, parts);
    return two(c->e, "Add", x, two(c->e, "Mul", parts[which], state));
}

/* Gates i, o, f, c. */
static void lstm_step(cell_t *c, uint32_t x, uint32_t *states)
{
    expander_t *e = c->e;
    uint32_t gate[MOST_GATES];
    split_equal(e, product(e, states[0], c->r, x), 1, c->hidden, 4, gate);
    uint32_t i = activate(c, 0, peep(c, gate[0], 0, states[1]));
    uint32_t f = int_attr(e, "input_forget") != 0 ? rest_of_one(c, i)
                                                  : activate(c, 0, peep(c, gate[2], 2, states[1]));
    uint32_t fresh = activate(c, 1, gate[3]);
    states[1] = two(e, "Add", two(e, "Mul", f, states[1]), two(e, "Mul", i, fresh));
    uint32_t o = activate(c, 0, peep(c, gate[1], 1, states[1]));
    const uint32_t low = c->low;
    c->low = NONE; /* the state is not clipped */
    states[0] = two(e, "Mul", o, activate(c, 2, states[1]));
    c->low = low;
}

/* Gates z, r, h. */
static void gru_step(cell_t *c, uint32_t x, uint32_t *states)
{
    expander_t *e = c->e;
    const int64_t sizes[] = {2 * c->hidden, c->hidden};
    uint32_t in[2], old[2], zr[2], r[2], h = states[0], fresh;
    const bool linear = int_attr(e, "linear_before_reset") != 0;
    split(e, x, 1, sizes, 2, in);
    if (linear) {
        split(e, product(e, h, c->r, c->r_bias), 1, sizes, 2, old);
        zr[0] = two(e, "Add", in[0], old[0]);
    } else {
        split(e, c->r, 0, sizes, 2, r);
        zr[0] = product(e, h, r[0], in[0]);
    }
    split_equal(e, activate(c, 0, zr[0]), 1, c->hidden, 2, zr);
    if (linear) {
        fresh = two(e, "Add", in[1], two(e, "Mul", zr[1], old[1]));
    } else {
        fresh = product(e, two(e, "Mul", zr[1], h), r[1], in[1]);
    }
    fresh = activate(c, 1, fresh);
    states[0] = two(e, "Add", two(e, "Mul", rest_of_one(c, zr[0]), fresh), two(e, "Mul", zr[0], h));
}

static void rnn_step(cell_t *c, uint32_t x, uint32_t *states)
{
    states[0] = activate(c, 0, product(c->e, states[0], c->r, x));
}

/* The bias that is added to the products of the inputs; sets r_bias, where it is not in that. */
static uint32_t input_bias(cell_t *c)
{
    uint32_t halves[2], bias = of_direction(c, 3);
    c->r_bias = NONE;
    if (bias == NONE) {
        return NONE;
    }
    split_equal(c->e, bias, 0, c->gates * c->hidden, 2, halves);
    if (c->gates == 3 && int_attr(c->e, "linear_before_reset") != 0) {
        c->r_bias = halves[1];
        return halves[0];
    }
    return two(c->e, "Add", halves[0], halves[1]);
}

/* State number k at the begin: input 5 + k, or zeros. */
static uint32_t initial(cell_t *c, uint32_t k)
{
    static const int64_t perm[] = {1, 0, 2};
    const int64_t dims[] = {c->batch, c->hidden};
    expander_t *e = c->e;
    uint32_t parts[2], x = input(e, 5 + k);
    if (x == NONE) {
        return two(e, "Expand", number(e, 0.0, input(e, 0)), ints(e, dims, 2));
    }
    x = c->by_batch ? transpose(e, x, perm, 3) : x;
    split_equal(e, x, 0, 1, (uint32_t)c->directions, parts);
    return reshape(e, parts[c->direction], dims, 2);
}

/* Where a sequence has ended, states stay, and the output is 0. */
static uint32_t mask(cell_t *c, int64_t t, const uint32_t *before, uint32_t *states)
{
    expander_t *e = c->e;
    if (c->lengths == NONE) {
        return states[0];
    }
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64};
    uint32_t inside = two(e, "Less", constant(e, &type, &t, sizeof(t)), c->lengths);
    for (uint32_t k = 0; k < c->states; k++) {
        states[k] = choose(e, inside, states[k], before[k]);
    }
    return choose(e, inside, states[0], number(e, 0.0, states[0]));
}

/* One direction: *out_y [T, 1, B, H], and its last states, [1, B, H]. */
static void run_direction(cell_t *c, step_fn step, bool reverse, uint32_t *out_y,
                          uint32_t *out_states)
{
    static const int64_t perm[] = {1, 0, 2};
    expander_t *e = c->e;
    const int64_t y_dims[] = {c->steps, 1, c->batch, c->hidden};
    const int64_t state_dims[] = {1, c->batch, c->hidden};
    uint32_t *parts = wefti_arena_array(&e->graph->arena, (size_t)c->steps, 2 * sizeof(*parts));
    if (parts == NULL) {
        e->status = e->status < 0 ? e->status : WEFT_ERR_NO_MEMORY;
        return;
    }
    uint32_t *y = parts + c->steps, states[2] = {NONE, NONE}, before[2];
    uint32_t x = c->by_batch ? transpose(e, input(e, 0), perm, 3) : input(e, 0);
    const int64_t rows[] = {c->steps * c->batch, type_of(e, x).dims[2]};
    c->r = of_direction(c, 2);
    c->hole = c->gates == 4 ? of_direction(c, 7) : NONE;
    x = product(e, reshape(e, x, rows, 2), of_direction(c, 1), input_bias(c));
    split_equal(e, x, 0, c->batch, (uint32_t)c->steps, parts);
    for (uint32_t k = 0; k < c->states; k++) {
        states[k] = initial(c, k);
    }
    for (int64_t i = 0; i < c->steps && e->status >= 0; i++) {
        const int64_t t = reverse ? c->steps - 1 - i : i;
        memcpy(before, states, sizeof(before));
        step(c, parts[t], states);
        y[t] = mask(c, t, before, states);
    }
    *out_y = reshape(e, join(e, y, e->status < 0 ? 1 : (uint32_t)c->steps, 0), y_dims, 4);
    for (uint32_t k = 0; k < c->states; k++) {
        out_states[k] = reshape(e, states[k], state_dims, 3);
    }
}

/* Lengths that are all those of the tensor need no mask. */
static uint32_t read_lengths(cell_t *c)
{
    expander_t *e = c->e;
    const int64_t column[] = {c->batch, 1};
    const weft_attr_t to = int_of("to", 7);
    uint32_t lengths = input(e, 4);
    if (lengths == NONE) {
        return NONE;
    }
    const weft_tensor_desc_t type = type_of(e, lengths);
    const int32_t *list = type.dtype == WEFT_DTYPE_I32 ? type.data : NULL;
    bool full = list != NULL;
    for (int64_t b = 0; full && b < weft_tensor_elem_count(&type); b++) {
        full = list[b] == c->steps;
    }
    return full ? NONE : add(e, "Cast", (const uint32_t[]){reshape(e, lengths, column, 2)}, 1, &to);
}

static uint32_t expand(expander_t *e, uint32_t gates, uint32_t states, step_fn step)
{
    static const int64_t y_perm[] = {2, 0, 1, 3}, state_perm[] = {1, 0, 2};
    const weft_tensor_desc_t x = type_of(e, input(e, 0)), r = type_of(e, input(e, 2));
    const bool by_batch = int_attr(e, "layout") != 0;
    const double clip = float_attr(e, "clip", 0.0);
    const char *direction = wefti_node_text(&e->graph->nodes[e->node], "direction");
    cell_t c = {.e = e,
                .gates = gates,
                .states = states,
                .steps = x.dims[by_batch ? 1 : 0],
                .batch = x.dims[by_batch ? 0 : 1],
                .hidden = r.dims[2],
                .directions = r.dims[0],
                .by_batch = by_batch,
                .low = NONE,
                .high = NONE,
                .ones = NONE};
    uint32_t y[2], last[2][2], all[2];
    if (e->status >= 0 && (c.steps < 1 || c.steps * c.directions > MOST_STEPS || c.batch < 1)) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED,
                                "%lld steps of %lld sequences in %lld directions: at least 1, at "
                                "most %d steps in all",
                                (long long)c.steps, (long long)c.batch, (long long)c.directions,
                                MOST_STEPS);
        return 0;
    }
    if (clip > 0.0) {
        c.low = number(e, -clip, input(e, 0));
        c.high = number(e, clip, input(e, 0));
    }
    c.lengths = read_lengths(&c);
    for (c.direction = 0; c.direction < c.directions && e->status >= 0; c.direction++) {
        const bool reverse = direction[0] == 'r' || c.direction == 1;
        uint32_t ends[2];
        run_direction(&c, step, reverse, &y[c.direction], ends);
        last[0][c.direction] = ends[0];
        last[1][c.direction] = ends[1];
    }
    if (e->status < 0) {
        return 0;
    }
    for (uint32_t k = 0; k < states; k++) {
        all[k] = join(e, last[k], (uint32_t)c.directions, 0);
        all[k] = by_batch ? transpose(e, all[k], state_perm, 3) : all[k];
        wefti_expand_give(e, 1 + k, all[k]);
    }
    uint32_t result = join(e, y, (uint32_t)c.directions, 1);
    return by_batch ? transpose(e, result, y_perm, 4) : result;
}

static uint32_t lstm(expander_t *e)
{
    return expand(e, 4, 2, lstm_step);
}

static uint32_t gru(expander_t *e)
{
    return expand(e, 3, 1, gru_step);
}

static uint32_t rnn(expander_t *e)
{
    return expand(e, 1, 1, rnn_step);
}

wefti_expand_fn wefti_expand_recurrent(weft_expansion_t expansion)
{
    return expansion == WEFT_EXPANSION_LSTM  ? lstm
           : expansion == WEFT_EXPANSION_GRU ? gru
           : expansion == WEFT_EXPANSION_RNN ? rnn
                                             : NULL;
}

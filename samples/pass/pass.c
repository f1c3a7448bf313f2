/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compiler pass of one's own beside Weft's. A pass reads a flat view of a graph and answers with
 * a list of edits; it never changes the graph. weft_edits_check proves that edits may be applied.
 *
 * The graph is the backward pass of LAYERS layers, with an all-reduce on every gradient:
 *
 *     dy -> [grad 0] -> dx0 -> [grad 1] -> dx1 -> [grad 2] ...
 *               |                  |
 *               dw0                dw1
 *               |                  |
 *            [reduce 0]         [reduce 1]
 *               |                  |
 *               dw0.reduced        dw1.reduced
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#define LAYERS 6u
#define NONE UINT32_MAX

static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "pass: %s\n", weft_last_error());
        exit(1);
    }
}

/* ---- the host compiler's graph, as a view ---- */

/* Values of layer i: w, dw, dw.reduced, dx; value 0 is dy. Ops of layer i: grad, reduce. */
enum { W, DW, REDUCED, DX, VALUES };
enum { GRAD, REDUCE, OPS };

static weft_view_value_t values[1 + VALUES * LAYERS];
static weft_view_op_t ops[OPS * LAYERS];
static uint32_t inputs[OPS * LAYERS], outputs[(OPS + 1) * LAYERS], users[OPS * LAYERS];
static uint32_t order[OPS * LAYERS];
static char names[VALUES + OPS][LAYERS][24];

static uint32_t value_of(uint32_t layer, uint32_t kind)
{
    return 1 + VALUES * layer + kind;
}

static const char *name_of(uint32_t kind, uint32_t layer, const char *format)
{
    snprintf(names[kind][layer], sizeof names[kind][layer], format, layer);
    return names[kind][layer];
}

static void build(const weft_op_def_t *all_reduce, weft_graph_view_t *out_view)
{
    static const weft_op_def_t grad = {.domain = "host", .name = "Grad"};
    static const uint64_t kib[LAYERS] = {8, 100, 8, 300, 8, 50};
    values[0] = (weft_view_value_t){"dy", WEFT_DTYPE_F32, 4096, NONE, NONE, 0, 1};
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint64_t bytes = kib[i] * 1024;
        uint32_t op = OPS * i, read = OPS * i, written = (OPS + 1) * i;
        values[value_of(i, W)] =
            (weft_view_value_t){name_of(W, i, "w%u"), WEFT_DTYPE_F32, bytes, NONE, NONE, 0, 0};
        values[value_of(i, DW)] = (weft_view_value_t){
            name_of(DW, i, "dw%u"), WEFT_DTYPE_F32, bytes, op + GRAD, NONE, read + 1, 1};
        values[value_of(i, REDUCED)] = (weft_view_value_t){name_of(REDUCED, i, "dw%u.reduced"),
                                                           WEFT_DTYPE_F32,
                                                           bytes,
                                                           op + REDUCE,
                                                           value_of(i, W),
                                                           0,
                                                           0};
        values[value_of(i, DX)] = (weft_view_value_t){
            name_of(DX, i, "dx%u"), WEFT_DTYPE_F32, 4096, op + GRAD, NONE, read + 2,
            i + 1 < LAYERS};
        ops[op + GRAD] = (weft_view_op_t){.name = name_of(VALUES + GRAD, i, "grad %u"),
                                          .def = &grad,
                                          .first_input = read,
                                          .input_count = 1,
                                          .first_output = written,
                                          .output_count = 2,
                                          .present = 1};
        ops[op + REDUCE] = (weft_view_op_t){.name = name_of(VALUES + REDUCE, i, "reduce %u"),
                                            .def = all_reduce,
                                            .effects = all_reduce->effects,
                                            .first_input = read + 1,
                                            .input_count = 1,
                                            .first_output = written + 2,
                                            .output_count = 1,
                                            .reduction = WEFT_AVG,
                                            .present = 1};
        inputs[read] = i == 0 ? 0 : value_of(i - 1, DX);
        inputs[read + 1] = value_of(i, DW);
        outputs[written] = value_of(i, DW);
        outputs[written + 1] = value_of(i, DX);
        outputs[written + 2] = value_of(i, REDUCED);
        users[read] = op + GRAD; /* who reads inputs[read] */
        users[read + 1] = op + REDUCE;
        order[op] = op;
        order[op + 1] = op + 1;
    }
    *out_view = (weft_graph_view_t)WEFT_GRAPH_VIEW_INIT;
    out_view->value_count = 1 + VALUES * LAYERS;
    out_view->values = values;
    out_view->op_count = out_view->order_count = OPS * LAYERS;
    out_view->ops = ops;
    out_view->order = order;
    out_view->op_inputs = inputs;
    out_view->op_outputs = outputs;
    out_view->users = users;
}

/* ---- the pass: all-reduces of small gradients travel together, large ones alone ---- */

static weft_status_t fuse_small(const weft_graph_view_t *view, uint64_t small_bytes,
                                weft_edit_list_t **out_edits)
{
    uint32_t members[OPS * LAYERS], count = 0;
    weft_status_t status = weft_edit_list_create(NULL, out_edits);
    for (uint32_t i = 0; status == WEFT_OK && i < view->order_count; i++) {
        const weft_view_op_t *op = &view->ops[view->order[i]];
        if ((op->effects & WEFT_EFFECT_COMMUNICATES) != 0 &&
            view->values[view->op_inputs[op->first_input]].bytes <= small_bytes) {
            members[count++] = view->order[i];
        }
    }
    if (status == WEFT_OK && count > 1) {
        weft_edit_t edit = {.kind = WEFT_EDIT_FUSE,
                            .members = members,
                            .member_count = count,
                            .text = "small gradients share a call"};
        status = weft_edit_list_add(*out_edits, &edit);
    }
    return status;
}

static void print_edits(const char *title, const weft_graph_view_t *view,
                        const weft_edit_list_t *edits)
{
    printf("%s\n", title);
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        const weft_edit_t *edit = weft_edit_list_get(edits, i);
        if (edit->kind == WEFT_EDIT_FUSE) {
            printf("  fuse");
            for (uint32_t m = 0; m < edit->member_count; m++) {
                printf("%s %s", m > 0 ? "," : "", view->ops[edit->members[m]].name);
            }
            printf("\n    why: %s\n", edit->text);
        }
    }
}

int main(void)
{
    weft_registry_t *registry;
    weft_graph_view_t view;
    weft_edit_list_t *edits;
    weft_bucket_params_t params = WEFT_BUCKET_PARAMS_INIT;

    check(weft_registry_create(NULL, &registry));
    build(weft_registry_find_op(registry, "weft", "AllReduce", 1), &view);

    check(fuse_small(&view, 64 * 1024, &edits));
    check(weft_edits_check(&view, edits));
    print_edits("our pass", &view, edits);
    weft_edit_list_destroy(edits);

    params.policy = "bytes:128K";
    params.world_size = 2;
    check(weft_pass_bucket(&view, &params, &edits, NULL));
    check(weft_edits_check(&view, edits));
    print_edits("weft_pass_bucket, bytes:128K", &view, edits);

    /* A mistake: an operator that is no collective. */
    uint32_t wrong[] = {0 * OPS + REDUCE, 1 * OPS + GRAD};
    weft_edit_t edit = {.kind = WEFT_EDIT_FUSE, .members = wrong, .member_count = 2, .text = ""};
    weft_edit_list_destroy(edits);
    check(weft_edit_list_create(NULL, &edits));
    check(weft_edit_list_add(edits, &edit));
    weft_status_t refused = weft_edits_check(&view, edits);
    printf("a wrong edit: %s\n", weft_last_error());
    weft_edit_list_destroy(edits);
    weft_registry_destroy(registry);
    return refused == WEFT_ERR_INVALID_ARGUMENT ? 0 : 1;
}

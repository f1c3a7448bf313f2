/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fusion/support_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/types.h>

#define COLLECTIVE(label, id)                                                                      \
    {                                                                                              \
        .domain = "weft", .name = label, .effects = WEFT_EFFECT_COMMUNICATES,                      \
        .in_place = {-1, -1, -1, -1}, .ordering = WEFT_ORDERING_GROUP,                             \
        .facts = &(const weft_op_facts_t)                                                          \
        {                                                                                          \
            .struct_size = sizeof(weft_op_facts_t), .collective = WEFT_COLLECTIVE_##id             \
        }                                                                                          \
    }

static const weft_op_def_t defs[] = {
    {.domain = "test", .name = "Compute", .in_place = {-1, -1, -1, -1}},
    {.domain = "test", .name = "InPlace", .in_place = {0, -1, -1, -1}},
    {.domain = "test",
     .name = "Unknown",
     .effects = WEFT_EFFECT_UNKNOWN,
     .in_place = {-1, -1, -1, -1}},
    COLLECTIVE("AllReduce", ALL_REDUCE),
    COLLECTIVE("ReduceScatter", REDUCE_SCATTER),
    COLLECTIVE("AllGather", ALL_GATHER),
};

void view_begin(view_builder_t *b)
{
    memset(b, 0, sizeof(*b));
}

static const char *new_name(view_builder_t *b, const char *prefix, uint32_t id)
{
    char *name = b->names[b->name_count++];
    snprintf(name, sizeof(b->names[0]), "%s%u", prefix, id);
    return name;
}

uint32_t view_value(view_builder_t *b, weft_dtype_t dtype, uint64_t bytes)
{
    if (b->value_count == VIEW_MAX) {
        abort();
    }
    b->values[b->value_count] = (weft_view_value_t){.name = new_name(b, "v", b->value_count),
                                                    .dtype = dtype,
                                                    .bytes = bytes,
                                                    .producer = UINT32_MAX,
                                                    .grad_of = UINT32_MAX};
    return b->value_count++;
}

uint32_t view_op(view_builder_t *b, const char *def, const uint32_t *inputs, uint32_t input_count,
                 weft_dtype_t dtype, uint64_t bytes)
{
    uint32_t value = view_value(b, dtype, bytes), id = b->op_count++;
    const weft_op_def_t *found = defs;
    while (strcmp(found->name, def) != 0) {
        found++;
    }
    b->ops[id] = (weft_view_op_t){.name = new_name(b, "op", id),
                                  .def = found,
                                  .effects = found->effects,
                                  .first_input = b->input_count,
                                  .input_count = input_count,
                                  .first_output = b->output_count,
                                  .output_count = 1,
                                  .reduction = WEFT_REDUCTION_AVG,
                                  .present = 1};
    for (uint32_t i = 0; i < input_count; i++) {
        b->op_inputs[b->input_count++] = inputs[i];
    }
    b->op_outputs[b->output_count++] = value;
    b->values[value].producer = id;
    b->order[id] = id;
    return value;
}

uint32_t view_gradient(view_builder_t *b, uint32_t input, weft_dtype_t dtype, uint64_t bytes)
{
    uint32_t param = view_value(b, dtype, bytes);
    uint32_t grad = view_op(b, "Compute", &input, input == UINT32_MAX ? 0 : 1, dtype, bytes);
    uint32_t reduced = view_op(b, "AllReduce", &grad, 1, dtype, bytes);
    b->values[reduced].grad_of = param;
    return reduced;
}

const weft_graph_view_t *view_end(view_builder_t *b)
{
    uint32_t user_count = 0;
    for (uint32_t v = 0; v < b->value_count; v++) {
        b->values[v].first_user = user_count;
        for (uint32_t o = 0; o < b->op_count; o++) {
            for (uint32_t i = 0; i < b->ops[o].input_count; i++) {
                if (b->op_inputs[b->ops[o].first_input + i] == v) {
                    b->users[user_count++] = o;
                    break;
                }
            }
        }
        b->values[v].user_count = user_count - b->values[v].first_user;
    }
    b->view = (weft_graph_view_t){.struct_size = sizeof(b->view),
                                  .value_count = b->value_count,
                                  .values = b->values,
                                  .op_count = b->op_count,
                                  .ops = b->ops,
                                  .order_count = b->op_count,
                                  .order = b->order,
                                  .op_inputs = b->op_inputs,
                                  .op_outputs = b->op_outputs,
                                  .users = b->users};
    return &b->view;
}

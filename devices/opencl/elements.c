/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on elements, one alone or several that the compiler has fused: a program for the
 * function elements (4_elements.cl). */
#include "devices/opencl/elements.h"
#include "devices/opencl/kernels.h"

#include <string.h>

#define INPUTS 12u
#define OUTPUTS 12u
#define MOST_STEPS 24u
#define LANES 16

enum { AS_OUTPUT, ONE, BY_ROWS, BY_ELEMENTS };

typedef struct row {
    const char *op;
    uint32_t operands;
    const char *names[2];
    float numbers[2];
} row_t;

#define ROW_OF(symbol, domain, name, count, p_name, p_value, q_name, q_value, result)              \
    {name, count, {p_name, q_name}, {p_value, q_value}},
static const row_t rows[] = {ELEMENTS(ROW_OF) ELEMENT_FORMS(ROW_OF)};

typedef struct step {
    uint32_t row, operands[3];
    float numbers[2];
    int64_t output; /* -1: none */
} step_t;

typedef struct program {
    step_t steps[MOST_STEPS];
    uint32_t step_count;
} program_t;

static bool find_row(const char *op, uint32_t *out_row)
{
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].op, op) == 0) {
            *out_row = i;
            return true;
        }
    }
    return false;
}

/* What an input is in the table; -1: nothing that the function reads. */
static int64_t type_of(const weft_tensor_desc_t *tensor)
{
    return tensor->dtype == WEFT_DTYPE_F32    ? 0
           : tensor->dtype == WEFT_DTYPE_BOOL ? 1
           : tensor->dtype == WEFT_DTYPE_U8   ? 1 /* a mask */
           : tensor->dtype == WEFT_DTYPE_I64  ? 2
           : tensor->dtype == WEFT_DTYPE_I32  ? 3
                                              : -1;
}

/* Step of a node that is an operator itself. */
static weft_status_t fill_step(const weft_node_desc_t *desc, step_t *step)
{
    const weft_attr_t *form = cl_attr(desc, "approximate");
    const char *op = desc->op;
    if (form != NULL && form->s != NULL && strcmp(form->s, "tanh") == 0) {
        op = strcmp(op, "Gelu") == 0 ? "Gelu:tanh" : "GeluGrad:tanh";
    }
    if (!find_row(op, &step->row)) {
        return cl_refuse(desc, "unknown form");
    }
    for (uint32_t i = 0; i < 2; i++) {
        const char *name = rows[step->row].names[i];
        step->numbers[i] = cl_attr_float(desc, name, rows[step->row].numbers[i]);
    }
    if (strcmp(op, "DropoutGrad") == 0) {
        float ratio = cl_attr_float(desc, "ratio", 0.5f);
        step->numbers[0] = ratio >= 1.0f ? 0.0f : (float)(1.0 / (1.0 - (double)ratio));
    }
    return WEFT_OK;
}

/* Pow has one constant exponent, of those that are products and roots. */
static weft_status_t fill_power(const weft_node_desc_t *desc, step_t *step)
{
    static const float known[] = {2.0f, 3.0f, 0.5f, -0.5f, -1.0f, 1.0f};
    uint32_t at = rows[step->row].operands;
    if (!cl_has(desc->inputs, desc->input_count, at) || desc->inputs[at].data == NULL ||
        desc->inputs[at].dtype != WEFT_DTYPE_F32 || cl_elems(&desc->inputs[at]) != 1 ||
        !cl_same_shape(&desc->inputs[at - 1], &desc->outputs[0])) {
        return cl_refuse(desc, "the exponent must be one constant of f32");
    }
    memcpy(&step->numbers[0], desc->inputs[at].data, sizeof(float));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (step->numbers[0] == known[i]) {
            return WEFT_OK;
        }
    }
    return cl_refuse(desc, "the exponent must be 1, 2, 3, 0.5, -0.5 or -1");
}

static weft_status_t fill_operator(const weft_node_desc_t *desc, program_t *program)
{
    step_t first = {.operands = {0, 1, 2}, .output = -1};
    TRY(fill_step(desc, &first));
    uint32_t operands = rows[first.row].operands;
    bool several = strcmp(desc->op, "Max") == 0 || strcmp(desc->op, "Min") == 0;
    if (strncmp(desc->op, "Pow", 3) == 0) {
        TRY(fill_power(desc, &first));
    } else if (desc->input_count != operands && !(several && desc->input_count <= INPUTS)) {
        return cl_refuse(desc, "unexpected number of inputs");
    }
    program->step_count = several && desc->input_count > 2 ? desc->input_count - 1 : 1;
    program->steps[0] = first;
    for (uint32_t i = 1; i < program->step_count; i++) { /* the result so far, and the next input */
        program->steps[i] = first;
        program->steps[i].operands[0] = desc->input_count + i - 1;
        program->steps[i].operands[1] = i + 1;
    }
    if (several && desc->input_count == 1) {
        program->steps[0].operands[1] = 0;
    }
    program->steps[program->step_count - 1].output = 0;
    return WEFT_OK;
}

static weft_status_t fill_fused(const weft_node_desc_t *desc, program_t *program)
{
    const weft_attr_t *steps = cl_attr_list(desc, "steps", WEFT_ATTR_TYPE_STRINGS);
    const weft_attr_t *operands = cl_attr_list(desc, "operands", WEFT_ATTR_TYPE_INTS);
    const weft_attr_t *numbers = cl_attr_list(desc, "numbers", WEFT_ATTR_TYPE_FLOATS);
    const weft_attr_t *results = cl_attr_list(desc, "results", WEFT_ATTR_TYPE_INTS);
    if (steps == NULL || operands == NULL || results == NULL || steps->count == 0 ||
        steps->count > MOST_STEPS || operands->count != 2 * steps->count ||
        (numbers != NULL && numbers->count != 2 * steps->count) ||
        results->count != desc->output_count || cl_attr(desc, "types") != NULL) {
        return cl_refuse(desc, "invalid steps, or steps of other types than f32");
    }
    program->step_count = (uint32_t)steps->count;
    for (uint32_t i = 0; i < program->step_count; i++) {
        step_t *step = &program->steps[i];
        *step = (step_t){.output = -1};
        if (!find_row(steps->strings[i], &step->row) || strncmp(steps->strings[i], "Pow", 3) == 0) {
            return cl_refuse(desc, steps->strings[i]);
        }
        for (uint32_t k = 0; k < 2; k++) {
            int64_t operand = operands->ints[2 * i + k];
            if (k < rows[step->row].operands && (operand < 0 || operand >= desc->input_count + i)) {
                return cl_refuse(desc, "invalid operand of a step");
            }
            step->operands[k] = k < rows[step->row].operands ? (uint32_t)operand : 0;
            step->numbers[k] = numbers != NULL ? numbers->floats[2 * i + k] : 0.0f;
        }
    }
    for (uint32_t o = 0; o < desc->output_count; o++) {
        int64_t result = results->ints[o];
        if (result < 0 || result >= program->step_count || program->steps[result].output >= 0) {
            return cl_refuse(desc, "invalid result");
        }
        program->steps[result].output = o;
    }
    return WEFT_OK;
}

/* Where elements of an input lie, by those of the output. */
static bool add_input(cl_node_t *node, const weft_tensor_desc_t *x, const weft_tensor_desc_t *y)
{
    int64_t strides[DIMS] = {0};
    cl_nest_t nest = cl_nest();
    if (!cl_broadcast(x, y, strides)) {
        return false;
    }
    for (uint32_t d = 0; d < y->rank; d++) {
        cl_nest_add(&nest, y->dims[d], strides[d], 0);
    }
    bool simple = nest.rank == 1 && (nest.a[0] == 1 || cl_elems(y) == 1);
    cl_add_to_table(node, simple                                  ? AS_OUTPUT
                          : cl_elems(x) == 1                      ? ONE
                          : nest.dims[nest.rank - 1] % LANES == 0 ? BY_ROWS
                                                                  : BY_ELEMENTS);
    cl_add_to_table(node, type_of(x));
    cl_add_to_table(node, nest.rank);
    for (uint32_t d = 0; d < DIMS; d++) {
        cl_add_to_table(node, nest.dims[d]);
    }
    for (uint32_t d = 0; d < DIMS; d++) {
        cl_add_to_table(node, nest.a[d]);
    }
    return true;
}

static void add_step(cl_node_t *node, const step_t *step, const weft_node_desc_t *desc)
{
    cl_add_to_table(node, step->row);
    for (uint32_t k = 0; k < 3; k++) {
        cl_add_to_table(node, k < rows[step->row].operands ? step->operands[k] : 0);
    }
    cl_add_to_table(node, step->output);
    cl_add_to_table(node, step->output < 0 ? 0 : type_of(&desc->outputs[step->output]));
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t bits;
        memcpy(&bits, &step->numbers[k], sizeof bits);
        cl_add_to_table(node, bits);
    }
}

/* Truth is computed from and into bool; integers are cast only. */
static weft_status_t check_types(const weft_node_desc_t *desc, uint32_t inputs)
{
    bool casts = strcmp(desc->op, "Cast") == 0;
    TRY(cl_need_plain(desc));
    for (uint32_t i = 0; i < desc->output_count; i++) {
        weft_dtype_t dtype = desc->outputs[i].dtype;
        if ((dtype != WEFT_DTYPE_F32 && dtype != WEFT_DTYPE_BOOL) ||
            !cl_same_shape(&desc->outputs[i], &desc->outputs[0])) {
            return cl_refuse(desc, "results must be f32 or bool, and of one shape");
        }
    }
    for (uint32_t i = 0; i < inputs; i++) {
        int64_t type = cl_has(desc->inputs, desc->input_count, i) ? type_of(&desc->inputs[i]) : -1;
        bool mask = strcmp(desc->op, "DropoutGrad") == 0 && i == 1;
        if (type < 0 || (type > 1 && !casts) || (desc->inputs[i].dtype == WEFT_DTYPE_U8 && !mask)) {
            return cl_refuse(desc, "operands must be f32 or bool");
        }
    }
    return WEFT_OK;
}

PREPARE(cl_prepare_elements)
{
    bool fused = strcmp(desc->op, "Fused") == 0;
    program_t program;
    cl_node_t node = cl_start(INPUTS, OUTPUTS);
    (void)env;
    if (desc->output_count == 0 || desc->output_count > OUTPUTS || desc->input_count > INPUTS) {
        return cl_refuse(desc, "too many operands");
    }
    TRY(fused ? fill_fused(desc, &program) : fill_operator(desc, &program));
    uint32_t inputs = strncmp(desc->op, "Pow", 3) == 0 ? desc->input_count - 1 : desc->input_count;
    TRY(check_types(desc, inputs));
    int64_t count = cl_elems(&desc->outputs[0]);
    if (count > INT32_MAX) {
        return cl_refuse(desc, "too many elements");
    }
    for (uint32_t i = 0; i < inputs; i++) {
        if (!add_input(&node, &desc->inputs[i], &desc->outputs[0])) {
            return cl_drop(desc, &node, "an input cannot be broadcast to the result");
        }
    }
    for (uint32_t i = 0; i < program.step_count; i++) {
        add_step(&node, &program.steps[i], desc);
    }
    cl_add_number(&node, inputs);
    cl_add_number(&node, program.step_count);
    cl_add_number(&node, count);
    cl_add_step(&node, cl_each("elements", (count + LANES - 1) / LANES));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/opencl/kernels.h"

#include <stdlib.h>
#include <string.h>

const weft_attr_t *cl_attr(const weft_node_desc_t *desc, const char *name)
{
    for (uint32_t i = 0; i < desc->attr_count; i++) {
        if (strcmp(desc->attrs[i].name, name) == 0) {
            return &desc->attrs[i];
        }
    }
    return NULL;
}

const weft_attr_t *cl_attr_list(const weft_node_desc_t *desc, const char *name,
                                weft_attr_type_t type)
{
    const weft_attr_t *found = cl_attr(desc, name);
    return found != NULL && found->type == type ? found : NULL;
}

int64_t cl_attr_int(const weft_node_desc_t *desc, const char *name, int64_t otherwise)
{
    const weft_attr_t *found = cl_attr(desc, name);
    return found != NULL && found->type == WEFT_ATTR_TYPE_INT ? found->i : otherwise;
}

float cl_attr_float(const weft_node_desc_t *desc, const char *name, float otherwise)
{
    const weft_attr_t *found = cl_attr(desc, name);
    return found != NULL && found->type == WEFT_ATTR_TYPE_FLOAT ? found->f : otherwise;
}

bool cl_has(const weft_tensor_desc_t *tensors, uint32_t count, uint32_t index)
{
    return index < count && tensors[index].dtype != WEFT_DTYPE_NONE;
}

int64_t cl_elems(const weft_tensor_desc_t *tensor)
{
    int64_t count = 1;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        count *= tensor->dims[d]; /* known and checked in a plan */
    }
    return count;
}

bool cl_same_shape(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

weft_status_t cl_refuse(const weft_node_desc_t *desc, const char *why)
{
    return cl_fail(WEFT_ERR_UNSUPPORTED, "%s: no OpenCL kernel: %s", desc->op, why);
}

static void free_parts(cl_node_t *node)
{
    free(node->steps);
    free(node->table);
    free(node->bytes);
    free(node->places);
}

weft_status_t cl_drop(const weft_node_desc_t *desc, cl_node_t *node, const char *why)
{
    free_parts(node);
    return cl_refuse(desc, why);
}

weft_status_t cl_need_f32(const weft_node_desc_t *desc, uint32_t inputs, uint32_t outputs,
                          uint32_t other_inputs)
{
    for (uint32_t i = 0; i < inputs + outputs; i++) {
        bool in = i < inputs;
        uint32_t at = in ? i : i - inputs;
        if (!cl_has(in ? desc->inputs : desc->outputs, in ? desc->input_count : desc->output_count,
                    at)) {
            return cl_refuse(desc, "an operand is absent");
        }
        const weft_tensor_desc_t *tensor = in ? &desc->inputs[at] : &desc->outputs[at];
        if (tensor->layout != WEFT_LAYOUT_PLAIN ||
            (tensor->dtype != WEFT_DTYPE_F32 && !(in && (other_inputs >> at & 1) != 0))) {
            return cl_refuse(desc, "operands must be f32 in plain layout");
        }
    }
    return WEFT_OK;
}

size_t cl_elem_bytes(weft_dtype_t dtype)
{
    static const uint8_t bytes[] = {0, 8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1};
    return (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

weft_status_t cl_keep(const weft_node_desc_t *desc, const cl_node_t *made, void **out_state,
                      size_t *out_scratch_bytes)
{
    uint32_t operands = desc->input_count + desc->output_count;
    cl_node_t *node = malloc(sizeof *node), own = *made;
    own.bytes = calloc(operands + 1u, sizeof *own.bytes);
    own.places = calloc(own.input_count + own.output_count + 1u, sizeof *own.places);
    if (node == NULL || own.failed || own.bytes == NULL || own.places == NULL) {
        free_parts(&own);
        free(node);
        return cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: a kernel");
    }
    for (uint32_t i = 0; i < operands; i++) {
        const weft_tensor_desc_t *tensor =
            i < desc->input_count ? &desc->inputs[i] : &desc->outputs[i - desc->input_count];
        own.bytes[i] = (size_t)cl_elems(tensor) * cl_elem_bytes(tensor->dtype);
    }
    *node = own;
    *out_state = node;
    *out_scratch_bytes = node->scratch_bytes;
    return WEFT_OK;
}

/* Room for one more of count elements. */
static bool grow(cl_node_t *node, void **array, size_t count, size_t *capacity, size_t bytes)
{
    if (count == *capacity && !node->failed) {
        void *grown = realloc(*array, (2 * count + 8) * bytes);
        node->failed = grown == NULL;
        *array = grown != NULL ? grown : *array;
        *capacity = grown != NULL ? 2 * count + 8 : count;
    }
    return !node->failed;
}

void cl_add_to_table(cl_node_t *node, int64_t number)
{
    void *table = node->table;
    if (grow(node, &table, node->table_count, &node->table_capacity, sizeof *node->table)) {
        node->table = table;
        node->table[node->table_count++] = number;
    }
}

cl_nest_t cl_nest(void)
{
    return (cl_nest_t){.rank = 1, .dims = {1}};
}

void cl_nest_add(cl_nest_t *nest, int64_t size, int64_t a, int64_t b)
{
    uint32_t last = nest->rank - 1;
    if (size == 1) {
        return;
    }
    if (nest->dims[last] == 1) { /* nothing was added yet */
        nest->dims[last] = size;
    } else if (nest->a[last] == a * size && nest->b[last] == b * size) {
        nest->dims[last] *= size;
    } else {
        last = nest->rank++;
        nest->dims[last] = size;
    }
    nest->a[last] = a;
    nest->b[last] = b;
}

void cl_strides(const weft_tensor_desc_t *tensor, int64_t strides[DIMS])
{
    int64_t step = 1;
    for (uint32_t d = tensor->rank; d-- > 0;) {
        strides[d] = step;
        step *= tensor->dims[d];
    }
}

bool cl_broadcast(const weft_tensor_desc_t *from, const weft_tensor_desc_t *to,
                  int64_t strides[DIMS])
{
    int64_t own[DIMS];
    if (from->rank > to->rank) {
        return false;
    }
    cl_strides(from, own);
    for (uint32_t d = 0, skipped = to->rank - from->rank; d < to->rank; d++) {
        int64_t size = d < skipped ? 1 : from->dims[d - skipped];
        if (size != 1 && size != to->dims[d]) {
            return false;
        }
        strides[d] = size == 1 ? 0 : own[d - skipped];
    }
    return true;
}

weft_status_t cl_attr_axis(const weft_node_desc_t *desc, int64_t otherwise, uint32_t rank,
                           uint32_t *out_axis)
{
    int64_t axis = cl_attr_int(desc, "axis", otherwise);
    axis = axis < 0 ? axis + rank : axis;
    if (axis < 0 || axis >= rank) {
        return cl_refuse(desc, "axis is out of range");
    }
    *out_axis = (uint32_t)axis;
    return WEFT_OK;
}

weft_status_t cl_need_plain(const weft_node_desc_t *desc)
{
    for (uint32_t i = 0; i < desc->input_count + desc->output_count; i++) {
        const weft_tensor_desc_t *tensor =
            i < desc->input_count ? &desc->inputs[i] : &desc->outputs[i - desc->input_count];
        if (tensor->dtype != WEFT_DTYPE_NONE && tensor->layout != WEFT_LAYOUT_PLAIN) {
            return cl_refuse(desc, "operands must have plain layout");
        }
    }
    return WEFT_OK;
}

cl_step_t cl_each(const char *function, int64_t count)
{
    return (cl_step_t){.function = function, .count = (size_t)count};
}

void cl_add_step(cl_node_t *node, cl_step_t step)
{
    void *steps = node->steps;
    if (step.count > 0 && /* of no elements nothing is called */
        grow(node, &steps, node->step_count, &node->step_capacity, sizeof *node->steps)) {
        node->steps = steps;
        node->steps[node->step_count++] = step;
    }
}

void cl_add_number(cl_node_t *node, int64_t number)
{
    node->numbers[node->number_count++] = number;
}

void cl_add_factor(cl_node_t *node, float factor)
{
    node->factors[node->factor_count++] = factor;
}

weft_status_t cl_attr_ints(const weft_node_desc_t *desc, const char *name, size_t count,
                           int64_t otherwise, int64_t *out)
{
    const weft_attr_t *found = cl_attr(desc, name);
    for (size_t i = 0; i < count; i++) {
        out[i] = otherwise;
    }
    if (found == NULL) {
        return WEFT_OK;
    }
    if (found->type != WEFT_ATTR_TYPE_INTS || found->count != count) {
        return cl_refuse(desc, "a list of integers has another length");
    }
    for (size_t i = 0; i < count; i++) {
        if (found->ints[i] < 0 || found->ints[i] > (1 << 24)) {
            return cl_refuse(desc, "an integer of a list is out of range");
        }
        out[i] = found->ints[i];
    }
    return WEFT_OK;
}

cl_node_t cl_start(uint32_t inputs, uint32_t outputs)
{
    return (cl_node_t){.input_count = inputs, .output_count = outputs};
}

void cl_node_destroy(void *state)
{
    cl_node_t *node = state;
    if (node == NULL) {
        return;
    }
    if (node->table_memory != NULL) {
        clReleaseMemObject(node->table_memory);
    }
    free_parts(node);
    free(node);
}

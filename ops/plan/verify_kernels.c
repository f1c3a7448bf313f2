/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: operands exist; and, where a registry is given, the operator is known, takes that many
 * operands, and its shape rule gives exactly the outputs' types. Without the last a plan could make
 * a kernel write past its output.
 */
#include "ops/plan/plan_internal.h"

#include "ops/op_infer.h"

#include <string.h>

#include "runtime/base/error.h"

#define MAX_OPERAND_PAIRS ((uint64_t)1 << 20) /* of one kernel */
#define ARENA_BYTES ((size_t)1 << 16)         /* of descriptions, before they are dropped */

static weft_status_t bad_kernel(const weft_plan_t *plan, uint32_t index, const char *what)
{
    const wefti_plan_kernel_t *kernel = &plan->kernels[index];
    return wefti_error(WEFT_ERR_FORMAT, "kernel %u (%.100s, %.60s %.60s): %s", index, kernel->name,
                       kernel->domain, kernel->op, what);
}

static int ids_exist(const weft_plan_t *plan, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] != WEFTI_PLAN_NONE &&
            (ids[i] >= plan->buffer_count || wefti_plan_is_nowhere(&plan->buffers[ids[i]]))) {
            return 0;
        }
    }
    return 1;
}

static int attrs_known(const wefti_plan_kernel_t *kernel)
{
    for (uint32_t i = 0; i < kernel->attr_count; i++) {
        const weft_attr_t *attr = &kernel->attrs[i];
        int type = (int)attr->type;
        if (!attr->name || type < (int)WEFT_ATTR_TYPE_INT || type > (int)WEFT_ATTR_TYPE_STRINGS ||
            (attr->type == WEFT_ATTR_TYPE_STRING && !attr->s)) {
            return 0;
        }
    }
    return 1;
}

/* Writing what no kernel may write, which peers or the caller own. */
static int outputs_writable(const weft_plan_t *plan, const wefti_plan_kernel_t *kernel)
{
    for (uint32_t i = 0; i < kernel->output_count; i++) {
        if (kernel->outputs[i] == WEFTI_PLAN_NONE) {
            continue;
        }
        wefti_buffer_kind_t kind = plan->buffers[kernel->outputs[i]].kind;
        /* Ranges are fine: one update covers all parameters of a bucket. */
        if (kind == WEFTI_BUFFER_CONST || kind == WEFTI_BUFFER_INPUT ||
            kind == WEFTI_BUFFER_SCALAR) {
            return 0;
        }
    }
    return 1;
}

static int within(uint32_t count, uint8_t least, uint8_t most)
{
    return count >= least && (most == WEFT_VARIADIC || count <= most);
}

static int same_type(const weft_tensor_desc_t *inferred, const weft_tensor_desc_t *planned)
{
    if (inferred->dtype != planned->dtype || inferred->rank != planned->rank) {
        return 0;
    }
    for (uint32_t i = 0; i < planned->rank; i++) {
        if (inferred->dims[i] != planned->dims[i]) {
            return 0;
        }
    }
    return 1;
}

static weft_status_t check_types(const weft_plan_t *plan, uint32_t index, const weft_op_def_t *def,
                                 wefti_arena_t *arena)
{
    weft_node_desc_t desc;
    weft_status_t status = wefti_plan_kernel_desc(plan, index, arena, &desc);
    if (status != WEFT_OK) {
        return status;
    }
    if (desc.input_count > 0 && desc.inputs[0].dtype != WEFT_DTYPE_NONE &&
        !(def->dtypes & WEFT_DTYPE_BIT(desc.inputs[0].dtype))) {
        return bad_kernel(plan, index, "the operator does not take that dtype");
    }
    size_t bytes = desc.output_count * sizeof desc.outputs[0];
    weft_tensor_desc_t *planned = wefti_arena_memdup(arena, desc.outputs, bytes);
    if (!planned) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < desc.output_count; i++) { /* layouts are the plan's choice */
        desc.outputs[i] = (weft_tensor_desc_t){.layout = planned[i].layout};
    }
    status = wefti_op_infer(def, &desc);
    if (status != WEFT_OK) {
        return wefti_error_prefix(status, "kernel %u (%.100s)", index, plan->kernels[index].name);
    }
    for (uint32_t i = 0; i < desc.output_count; i++) {
        if (planned[i].dtype != WEFT_DTYPE_NONE && !same_type(&desc.outputs[i], &planned[i])) {
            return bad_kernel(plan, index,
                              "an output has another type or shape than the operator gives");
        }
    }
    return WEFT_OK;
}

/* On some rank; of shards with one stride, on every rank or on none. */
static int overlap(const weft_plan_t *plan, const wefti_plan_buffer_t *a,
                   const wefti_plan_buffer_t *b)
{
    uint64_t a_end = a->offset_bytes + a->size_bytes, b_end = b->offset_bytes + b->size_bytes;
    if (a->size_bytes == 0 || b->size_bytes == 0) {
        return 0;
    }
    if (a->rank_stride_bytes != b->rank_stride_bytes) {
        a_end = wefti_plan_buffer_end(plan, a);
        b_end = wefti_plan_buffer_end(plan, b);
    }
    return a->offset_bytes < b_end && b->offset_bytes < a_end;
}

static int same_place(const wefti_plan_buffer_t *a, const wefti_plan_buffer_t *b)
{
    return a->offset_bytes == b->offset_bytes && a->rank_stride_bytes == b->rank_stride_bytes;
}

/* An output shares memory with an input only as the operator's in-place rule says, and then all of
 * it. */
static weft_status_t check_in_place(const weft_plan_t *plan, uint32_t index,
                                    const weft_op_def_t *def)
{
    const wefti_plan_kernel_t *kernel = &plan->kernels[index];
    if ((uint64_t)kernel->input_count * kernel->output_count > MAX_OPERAND_PAIRS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "kernel %u (%.100s): too many operands", index,
                           kernel->name);
    }
    for (uint32_t o = 0; o < kernel->output_count; o++) {
        int allowed = o < sizeof def->in_place ? def->in_place[o] : -1;
        for (uint32_t i = 0; i < kernel->input_count; i++) {
            if (kernel->outputs[o] == WEFTI_PLAN_NONE || kernel->inputs[i] == WEFTI_PLAN_NONE) {
                continue;
            }
            const wefti_plan_buffer_t *in = &plan->buffers[kernel->inputs[i]];
            const wefti_plan_buffer_t *out = &plan->buffers[kernel->outputs[o]];
            if (overlap(plan, in, out) && (allowed != (int)i || !same_place(in, out))) {
                return bad_kernel(plan, index, "an output overwrites an input that it must not");
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t check_operator(const weft_plan_t *plan, uint32_t index,
                                    const weft_registry_t *registry, wefti_arena_t *arena)
{
    const wefti_plan_kernel_t *kernel = &plan->kernels[index];
    const weft_op_def_t *def =
        weft_registry_find_op(registry, kernel->domain, kernel->op, kernel->version);
    if (!def && kernel->domain[0] && strcmp(kernel->domain, "weft") != 0) {
        /* Somebody else's, declared by nobody: what it makes is its own, and its kernel looks at
         * types when it is bound. */
        static const weft_op_def_t unknown = {.in_place = WEFTI_IN_PLACE_NONE};
        return check_in_place(plan, index, &unknown);
    }
    if (!def) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "kernel %u (%.100s): no operator %.60s%s%.60s of version %d", index,
                           kernel->name, kernel->domain, kernel->domain[0] ? "." : "", kernel->op,
                           (int)kernel->version);
    }
    if (!within(kernel->input_count, def->inputs_min, def->inputs_max) ||
        !within(kernel->output_count, def->outputs_min, def->outputs_max)) {
        return bad_kernel(plan, index, "the operator takes another number of inputs or outputs");
    }
    for (uint32_t i = 0; i < def->inputs_min; i++) {
        if (kernel->inputs[i] == WEFTI_PLAN_NONE) {
            return bad_kernel(plan, index, "an input that the operator needs is absent");
        }
    }
    weft_status_t status = check_in_place(plan, index, def);
    return status == WEFT_OK ? check_types(plan, index, def, arena) : status;
}

static weft_status_t check_kernel(const weft_plan_t *plan, uint32_t index)
{
    const wefti_plan_kernel_t *kernel = &plan->kernels[index];
    if (!kernel->op[0] || kernel->version < 1 || kernel->phase > 3) {
        return bad_kernel(plan, index, "no operator, version or phase");
    }
    if (!ids_exist(plan, kernel->inputs, kernel->input_count) ||
        !ids_exist(plan, kernel->outputs, kernel->output_count)) {
        return bad_kernel(plan, index, "an operand is no buffer");
    }
    if (!outputs_writable(plan, kernel)) {
        return bad_kernel(plan, index, "it writes a constant, an input or a scalar");
    }
    if (!attrs_known(kernel)) {
        return bad_kernel(plan, index, "an attribute has an unknown type");
    }
    return WEFT_OK;
}

weft_status_t wefti_plan_verify_kernels(const weft_plan_t *plan, const weft_registry_t *registry)
{
    weft_status_t status = WEFT_OK;
    wefti_arena_t arena; /* for some kernels at a time: chunks cost more than descriptions */
    wefti_arena_init(&arena, plan->arena.allocator, 0);
    for (uint32_t i = 0; i < plan->kernel_count && status == WEFT_OK; i++) {
        status = check_kernel(plan, i);
        if (status == WEFT_OK && registry) {
            status = check_operator(plan, i, registry, &arena);
        }
        if (arena.used_bytes > ARENA_BYTES) {
            wefti_arena_deinit(&arena);
            wefti_arena_init(&arena, plan->arena.allocator, 0);
        }
    }
    wefti_arena_deinit(&arena);
    return status;
}

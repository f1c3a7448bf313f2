/* SPDX-License-Identifier: Apache-2.0 */
/* Operator and attributes of a plan kernel. */
#include <string.h>

#include "fusion/lower/lower.h"
#include "runtime/base/error.h"

static weft_status_t copy_strings(wefti_arena_t *arena, const weft_attr_t *from, weft_attr_t *to)
{
    const char **strings = wefti_arena_array(arena, from->count, sizeof(*strings));
    for (size_t i = 0; strings != NULL && i < from->count; i++) {
        strings[i] = wefti_arena_strdup(arena, from->strings[i]);
        WEFT_RETURN_IF_NO_MEMORY(strings[i]);
    }
    to->strings = strings;
    return strings == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t copy_attr(wefti_arena_t *arena, const wefti_node_t *node,
                               const weft_attr_t *from, weft_attr_t *to)
{
    const void *copy;
    *to = (weft_attr_t){.name = wefti_arena_strdup(arena, from->name),
                        .type = from->type,
                        .i = from->i,
                        .f = from->f,
                        .count = from->count};
    copy = to->name;
    switch (from->type) {
    case WEFT_ATTR_TYPE_INT:
    case WEFT_ATTR_TYPE_FLOAT:
        break;
    case WEFT_ATTR_TYPE_STRING:
        copy = to->s = wefti_arena_strdup(arena, from->s);
        break;
    case WEFT_ATTR_TYPE_INTS:
        copy = to->ints = wefti_arena_memdup(arena, from->ints, from->count * sizeof(*from->ints));
        break;
    case WEFT_ATTR_TYPE_FLOATS:
        copy = to->floats =
            wefti_arena_memdup(arena, from->floats, from->count * sizeof(*from->floats));
        break;
    case WEFT_ATTR_TYPE_STRINGS:
        return to->name == NULL ? WEFT_ERR_NO_MEMORY : copy_strings(arena, from, to);
    case WEFT_ATTR_TYPE_TENSOR:
    default:
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "node '%s' (%s): attribute '%s': a plan cannot hold tensor attributes",
                           node->name, node->def->name, from->name);
    }
    return to->name == NULL || copy == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t copy_attrs(wefti_arena_t *arena, const wefti_node_t *node,
                                wefti_plan_kernel_t *kernel)
{
    kernel->attrs = wefti_arena_array(arena, node->attr_count, sizeof(*kernel->attrs));
    WEFT_RETURN_IF_NO_MEMORY(kernel->attrs);
    for (uint32_t i = 0; i < node->attr_count; i++) {
        if (strcmp(node->attrs[i].name, "parts") != 0) { /* which is how many kernels there are */
            WEFT_RETURN_IF_ERROR(
                copy_attr(arena, node, &node->attrs[i], &kernel->attrs[kernel->attr_count++]));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_describe_kernel(wefti_lowering_t *l, const wefti_node_t *node,
                                          const char *name, wefti_plan_kernel_t *kernel)
{
    wefti_arena_t *arena = &l->plan->arena;
    *kernel = (wefti_plan_kernel_t){.name = wefti_arena_strdup(arena, name),
                                    .domain = wefti_arena_strdup(arena, node->def->domain),
                                    .op = wefti_arena_strdup(arena, node->def->name),
                                    .version = node->version,
                                    .phase = (uint32_t)node->phase,
                                    .input_count = node->input_count,
                                    .output_count = node->output_count};
    kernel->inputs = wefti_arena_array(arena, node->input_count, sizeof(*kernel->inputs));
    kernel->outputs = wefti_arena_array(arena, node->output_count, sizeof(*kernel->outputs));
    WEFT_RETURN_IF_NO_MEMORY(kernel->name && kernel->domain && kernel->op && kernel->inputs &&
                             kernel->outputs);
    return copy_attrs(arena, node, kernel);
}

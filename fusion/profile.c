/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what weft_session_write_profile wrote: measured times instead of predicted ones. */
#include "fusion/profile.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

#define FORMAT 1
#define MAX_NS 1e15

static int by_name(const void *a, const void *b)
{
    const wefti_profile_kernel_t *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static bool number_of(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                      const char *key, double most, double *out)
{
    const wefti_json_node_t *node = wefti_json_get(tree, object, key);
    if (node == NULL || node->kind != WEFTI_JSON_NUMBER || !(node->number >= 0) ||
        node->number > most) {
        return false;
    }
    *out = node->number;
    return true;
}

static const wefti_json_node_t *array_of(const wefti_json_tree_t *tree, const char *key)
{
    const wefti_json_node_t *node = wefti_json_get(tree, &tree->nodes[0], key);
    return node != NULL && node->kind == WEFTI_JSON_ARRAY ? node : NULL;
}

static weft_status_t read_kernels(const wefti_json_tree_t *tree, const wefti_json_node_t *array,
                                  wefti_arena_t *arena, wefti_profile_t *out)
{
    out->kernels = wefti_arena_array(arena, array->count, sizeof *out->kernels);
    WEFT_RETURN_IF_NO_MEMORY(out->kernels);
    for (const wefti_json_node_t *item = wefti_json_first(tree, array); item != NULL;
         item = wefti_json_after(tree, item)) {
        const wefti_json_node_t *name =
            item->kind == WEFTI_JSON_OBJECT ? wefti_json_get(tree, item, "name") : NULL;
        double ns;
        if (name == NULL || name->kind != WEFTI_JSON_STRING ||
            !number_of(tree, item, "ns", MAX_NS, &ns)) {
            return wefti_error(WEFT_ERR_FORMAT, "kernels[%u]: missing name or ns",
                               out->kernel_count);
        }
        char *copy = wefti_arena_strdup(arena, name->string);
        WEFT_RETURN_IF_NO_MEMORY(copy);
        out->kernels[out->kernel_count++] = (wefti_profile_kernel_t){copy, ns};
        out->compute_ns += ns;
    }
    qsort(out->kernels, out->kernel_count, sizeof *out->kernels, by_name);
    return WEFT_OK;
}

static weft_status_t read_collectives(const wefti_json_tree_t *tree, const wefti_json_node_t *array,
                                      wefti_arena_t *arena, wefti_profile_t *out)
{
    out->collectives = wefti_arena_array(arena, array->count, sizeof *out->collectives);
    WEFT_RETURN_IF_NO_MEMORY(out->collectives);
    for (const wefti_json_node_t *item = wefti_json_first(tree, array); item != NULL;
         item = wefti_json_after(tree, item)) {
        double bytes, ns;
        if (item->kind != WEFTI_JSON_OBJECT || !number_of(tree, item, "bytes", 1e15, &bytes) ||
            !number_of(tree, item, "ns", MAX_NS, &ns)) {
            return wefti_error(WEFT_ERR_FORMAT, "collectives[%u]: missing bytes or ns",
                               out->collective_count);
        }
        out->collectives[out->collective_count++] =
            (wefti_profile_collective_t){(uint64_t)bytes, ns};
        out->comm_ns += ns;
    }
    return WEFT_OK;
}

/*
 * Where communication runs between kernels, a collective is under way while kernels run, too: what
 * it costs is what a step takes longer than its kernels.
 */
static void correct_inline(const wefti_json_tree_t *tree, wefti_profile_t *out)
{
    const wefti_json_node_t *is_inline = wefti_json_get(tree, &tree->nodes[0], "inline_progress");
    double step_ns;
    if (is_inline != NULL && is_inline->kind == WEFTI_JSON_BOOL && is_inline->number != 0 &&
        number_of(tree, &tree->nodes[0], "step_ns", MAX_NS, &step_ns) &&
        step_ns > out->compute_ns && step_ns - out->compute_ns < out->comm_ns) {
        out->comm_ns = step_ns - out->compute_ns;
    }
}

static weft_status_t decode(const wefti_json_tree_t *tree, wefti_arena_t *arena,
                            wefti_profile_t *out)
{
    double format = 0;
    const wefti_json_node_t *kernels, *collectives;
    if (tree->nodes[0].kind != WEFTI_JSON_OBJECT ||
        !number_of(tree, &tree->nodes[0], "format", 1e9, &format) || format != FORMAT) {
        return wefti_error(WEFT_ERR_FORMAT, "unsupported format: must be %d", FORMAT);
    }
    kernels = array_of(tree, "kernels");
    collectives = array_of(tree, "collectives");
    if (kernels == NULL || collectives == NULL) {
        return wefti_error(WEFT_ERR_FORMAT, "missing kernels or collectives");
    }
    WEFT_RETURN_IF_ERROR(read_kernels(tree, kernels, arena, out));
    WEFT_RETURN_IF_ERROR(read_collectives(tree, collectives, arena, out));
    correct_inline(tree, out);
    return WEFT_OK;
}

weft_status_t wefti_profile_load(const char *path, wefti_arena_t *arena, wefti_profile_t *out)
{
    weft_status_t status;
    wefti_mapping_t file = {0};
    wefti_json_tree_t tree = {0};
    *out = (wefti_profile_t){0};
    status = wefti_file_map(path, &file);
    if (status < 0) {
        return status;
    }
    WEFT_TRY(status,
             wefti_json_parse((const char *)file.data, file.size_bytes, arena->allocator, &tree),
             fail);
    WEFT_TRY(status, decode(&tree, arena, out), fail);
    out->known = true;
fail:
    wefti_json_tree_deinit(&tree);
    wefti_file_unmap(&file);
    return status < 0 ? wefti_error_prefix(status, "profile %s", path) : WEFT_OK;
}

bool wefti_profile_kernel_ns(const wefti_profile_t *profile, const char *name, double *out_ns)
{
    wefti_profile_kernel_t key = {.name = name};
    const wefti_profile_kernel_t *found =
        profile->kernel_count > 0 && name != NULL
            ? bsearch(&key, profile->kernels, profile->kernel_count, sizeof key, by_name)
            : NULL;
    *out_ns = found != NULL ? found->ns : 0;
    return found != NULL;
}

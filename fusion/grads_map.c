/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the map of grads_path: a JSON object, parameter -> the tensor that is its gradient. */
#include <stdlib.h>
#include <string.h>

#include "fusion/compile.h"
#include "fusion/fusion.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

static int by_param(const void *a, const void *b)
{
    return strcmp(((const wefti_gradient_name_t *)a)->param,
                  ((const wefti_gradient_name_t *)b)->param);
}

static weft_status_t read_map(const wefti_json_tree_t *tree, wefti_arena_t *arena,
                              wefti_gradient_map_t *out)
{
    const wefti_json_node_t *top = &tree->nodes[0];
    if (top->kind != WEFTI_JSON_OBJECT || top->count == 0) {
        return wefti_error(
            WEFT_ERR_FORMAT,
            "expected a JSON object {\"parameter\": \"tensor\", ...} with at least one entry");
    }
    wefti_gradient_name_t *entries = wefti_arena_array(arena, top->count, sizeof(*entries));
    WEFT_RETURN_IF_NO_MEMORY(entries);
    for (const wefti_json_node_t *item = wefti_json_first(tree, top); item != NULL;
         item = wefti_json_after(tree, item)) {
        if (item->kind != WEFTI_JSON_STRING) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "gradient of '%s' must be a string, the name of a tensor",
                               item->key);
        }
        entries[out->count].param = wefti_arena_strdup(arena, item->key);
        entries[out->count].grad = wefti_arena_strdup(arena, item->string);
        WEFT_RETURN_IF_NO_MEMORY(entries[out->count].param && entries[out->count].grad);
        out->count++;
    }
    qsort(entries, out->count, sizeof(*entries), by_param); /* the order of the file says nothing */
    for (uint32_t i = 1; i < out->count; i++) {
        if (strcmp(entries[i - 1].param, entries[i].param) == 0) {
            return wefti_error(WEFT_ERR_FORMAT, "duplicate parameter '%s'", entries[i].param);
        }
    }
    out->entries = entries;
    return WEFT_OK;
}

weft_status_t wefti_grads_map_load(const char *path, wefti_arena_t *arena,
                                   wefti_gradient_map_t *out_map)
{
    weft_status_t status;
    wefti_mapping_t file = {0};
    wefti_json_tree_t tree = {0};
    *out_map = (wefti_gradient_map_t){0};
    WEFT_TRY(status, wefti_file_map(path, &file), plain);
    WEFT_TRY(status,
             wefti_json_parse((const char *)file.data, file.size_bytes, arena->allocator, &tree),
             done);
    status = read_map(&tree, arena, out_map);
done:
    if (status < 0) {
        wefti_error_prefix(status, "%s", path);
        wefti_error_under_field(status, "grads_path");
    }
    wefti_json_tree_deinit(&tree);
    wefti_file_unmap(&file);
plain:
    return status;
}

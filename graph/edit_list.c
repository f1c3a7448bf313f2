/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/ir.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"

struct weft_edit_list {
    wefti_arena_t arena; /* strings and members of the edits */
    weft_edit_t *edits;
    size_t count, capacity;
};

weft_status_t weft_edit_list_create(const weft_allocator_t *allocator, weft_edit_list_t **out_list)
{
    WEFT_CHECK_OUT(out_list);
    weft_edit_list_t *list = wefti_alloc(allocator, sizeof(*list));
    WEFT_RETURN_IF_NO_MEMORY(list);
    wefti_arena_init(&list->arena, allocator, 0);
    *out_list = list;
    return WEFT_OK;
}

void weft_edit_list_destroy(weft_edit_list_t *list)
{
    if (list) {
        const weft_allocator_t *allocator = list->arena.allocator;
        wefti_free(allocator, list->edits);
        wefti_arena_deinit(&list->arena);
        wefti_free(allocator, list);
    }
}

/* Strings and members of copy become the list's own. */
static weft_status_t own(wefti_arena_t *arena, weft_edit_t *copy)
{
    if (copy->op_name) {
        copy->op_name = wefti_arena_strdup(arena, copy->op_name);
        WEFT_RETURN_IF_NO_MEMORY(copy->op_name);
    }
    if (copy->text) {
        copy->text = wefti_arena_strdup(arena, copy->text);
        WEFT_RETURN_IF_NO_MEMORY(copy->text);
    }
    if (copy->member_count) {
        copy->members =
            wefti_arena_memdup(arena, copy->members, copy->member_count * sizeof(*copy->members));
        WEFT_RETURN_IF_NO_MEMORY(copy->members);
    }
    return WEFT_OK;
}

weft_status_t weft_edit_list_add(weft_edit_list_t *list, const weft_edit_t *edit)
{
    WEFT_CHECK_ARG(list);
    WEFT_CHECK_ARG(edit);
    if (edit->kind < WEFT_EDIT_KIND_INSERT_COLLECTIVE || edit->kind > WEFT_EDIT_KIND_MERGE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "unknown edit kind %d", (int)edit->kind);
    }
    if (edit->member_count && !edit->members) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "members is NULL, but member_count is %u",
                           edit->member_count);
    }
    weft_status_t status = wefti_array_reserve(list->arena.allocator, &list->edits, &list->capacity,
                                               list->count + 1, sizeof(*list->edits));
    if (status < 0) {
        return status;
    }
    weft_edit_t copy = *edit;
    status = own(&list->arena, &copy);
    if (status >= 0) {
        list->edits[list->count++] = copy;
    }
    return status;
}

size_t weft_edit_list_count(const weft_edit_list_t *list)
{
    WEFT_CHECK_ARG_OR(list, 0);
    return list->count;
}

const weft_edit_t *weft_edit_list_get(const weft_edit_list_t *list, size_t index)
{
    WEFT_CHECK_ARG_OR(list, NULL);
    return index < list->count ? &list->edits[index] : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/fields.h"

#include <math.h>
#include <string.h>

#include "runtime/base/error.h"

bool wefti_json_whole(const wefti_json_node_t *node, uint32_t most, uint32_t *out)
{
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= 0) || node->number > most ||
        node->number != (double)(uint32_t)node->number) {
        return false;
    }
    *out = (uint32_t)node->number;
    return true;
}

static weft_status_t read_size(const wefti_json_node_t *node, const wefti_field_t *field,
                               uint64_t *out)
{
    if (node->kind != WEFTI_JSON_NUMBER || !(node->number >= 0) || node->number > field->most) {
        return wefti_error(WEFT_ERR_FORMAT, "key '%s': expected a number from 0 to %g", field->key,
                           field->most);
    }
    *out = (uint64_t)llround(node->number * field->unit);
    return WEFT_OK;
}

static weft_status_t read_field(const wefti_json_node_t *node, const wefti_field_t *field,
                                wefti_arena_t *arena, void *to)
{
    switch (field->kind) {
    case WEFTI_FIELD_TEXT:
        if (node->kind != WEFTI_JSON_STRING || strlen(node->string) > 127) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "key '%s': expected a string of at most 127 characters", field->key);
        }
        *(const char **)to = wefti_arena_strdup(arena, node->string);
        return *(const char **)to != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    case WEFTI_FIELD_COUNT:
    case WEFTI_FIELD_INDEX:
        return wefti_json_whole(node, (uint32_t)field->most, to)
                   ? WEFT_OK
                   : wefti_error(WEFT_ERR_FORMAT, "key '%s': expected an integer from 0 to %.0f",
                                 field->key, field->most);
    case WEFTI_FIELD_FLAG:
        *(bool *)to = node->kind == WEFTI_JSON_BOOL && node->number != 0;
        return WEFT_OK;
    default:
        return read_size(node, field, to);
    }
}

weft_status_t wefti_fields_read(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const wefti_field_t *fields, wefti_arena_t *arena, void *out)
{
    for (const wefti_field_t *field = fields; field->key != NULL; field++) {
        const wefti_json_node_t *node = wefti_json_get(tree, object, field->key);
        if (node != NULL && node->kind != WEFTI_JSON_NULL) {
            WEFT_RETURN_IF_ERROR(read_field(node, field, arena, (char *)out + field->offset));
        }
    }
    return WEFT_OK;
}

static void write_field(wefti_json_t *json, const wefti_field_t *field, const void *from)
{
    const char *key = field->key;
    if (field->kind == WEFTI_FIELD_TEXT && **(const char *const *)from != '\0') {
        wefti_json_string(json, key, *(const char *const *)from);
    } else if (field->kind == WEFTI_FIELD_COUNT ||
               (field->kind == WEFTI_FIELD_INDEX && *(const uint32_t *)from != WEFTI_TOPO_NONE)) {
        wefti_json_int(json, key, *(const uint32_t *)from);
    } else if (field->kind == WEFTI_FIELD_FLAG && *(const bool *)from) {
        wefti_json_bool(json, key, true);
    } else if (field->kind == WEFTI_FIELD_SIZE && *(const uint64_t *)from > 0) {
        wefti_json_double(json, key, (double)*(const uint64_t *)from / field->unit);
    }
}

void wefti_fields_write(wefti_json_t *json, const wefti_field_t *fields, const void *structure)
{
    for (const wefti_field_t *field = fields; field->key != NULL; field++) {
        write_field(json, field, (const char *)structure + field->offset);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A walk over the bytes of a protobuf message before protobuf-c unpacks them, by protobuf-c's own
 * descriptors. It checks that every length is inside its message and that nesting is shallow. It
 * estimates the memory of unpacking (an empty node takes 2 bytes in the file and about 200 in
 * memory). It writes a copy without unknown fields, and with references for contents of tensors.
 */
#include "graph/onnx/internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

#define FIELD_FLOAT_DATA 4u
#define FIELD_RAW_DATA 9u
#define FIELD_DOUBLE_DATA 10u

/* Per field, protobuf-c keeps a scan record; per allocation our arena rounds up. */
#define FIELD_COST_BYTES 64u

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

typedef struct place {
    const char *field;
    uint32_t id;
    uint32_t index;
    bool repeated;
} place_t;

typedef struct walker {
    const weft_allocator_t *allocator;
    const uint8_t *data; /* the whole file, for offsets */
    size_t budget_bytes;
    size_t cost_bytes;
    uint8_t *out;
    size_t out_size, out_capacity;
    const char *kind; /* of file: "model", "tensor" */
    uint32_t depth;
    place_t places[WEFTI_ONNX_MAX_DEPTH + 1];
} walker_t;

/* The path so far, such as "graph.node[3].attribute[0]". */
static const char *describe(const walker_t *walker, char *buffer, size_t size_bytes)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (uint32_t i = 0; i < walker->depth && used + 1 < size_bytes; i++) {
        const place_t *place = &walker->places[i];
        int n = place->repeated ? snprintf(buffer + used, size_bytes - used, "%s%s[%u]",
                                           i == 0 ? "" : ".", place->field, place->index)
                                : snprintf(buffer + used, size_bytes - used, "%s%s",
                                           i == 0 ? "" : ".", place->field);
        used += n > 0 ? (size_t)n : 0;
    }
    return used == 0 ? "top level" : buffer;
}

static weft_status_t damaged(const walker_t *walker, const uint8_t *at, const char *what)
{
    char path[160];
    return wefti_error(WEFT_ERR_FORMAT, "not an ONNX %s or damaged: %s at byte %zu (%s)",
                       walker->kind, what, (size_t)(at - walker->data),
                       describe(walker, path, sizeof(path)));
}

static bool read_varint(wefti_onnx_cursor_t *cursor, uint64_t *out)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 70; shift += 7) {
        if (cursor->at == cursor->end) {
            return false;
        }
        uint8_t byte = *cursor->at++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if ((byte & 0x80) == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

const char *wefti_onnx_next_field(wefti_onnx_cursor_t *cursor, wefti_onnx_field_t *out)
{
    uint64_t tag, length;
    if (!read_varint(cursor, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff) {
        return "bad field tag";
    }
    out->id = (uint32_t)(tag >> 3);
    out->wire = (uint32_t)(tag & 7);
    out->payload = cursor->at;
    out->value = 0;
    switch (out->wire) {
    case WIRE_VARINT:
        if (!read_varint(cursor, &out->value)) {
            return "truncated or overlong number";
        }
        out->size_bytes = (size_t)(cursor->at - out->payload);
        return NULL;
    case WIRE_FIXED64:
    case WIRE_FIXED32:
        length = out->wire == WIRE_FIXED64 ? 8 : 4;
        break;
    case WIRE_BYTES:
        if (!read_varint(cursor, &length)) {
            return "truncated length";
        }
        break;
    default:
        return "bad wire type";
    }
    if (length > (uint64_t)(cursor->end - cursor->at)) {
        return out->wire == WIRE_BYTES ? "field longer than its message" : "truncated number";
    }
    out->payload = cursor->at;
    out->size_bytes = (size_t)length;
    cursor->at += length;
    return NULL;
}

bool wefti_onnx_next_message(wefti_onnx_cursor_t *cursor, wefti_onnx_field_t *out)
{
    while (cursor->at < cursor->end && wefti_onnx_next_field(cursor, out) == NULL) {
        if (out->wire == WIRE_BYTES) {
            return true;
        }
    }
    return false;
}

static weft_status_t read_field(const walker_t *walker, wefti_onnx_cursor_t *cursor,
                                wefti_onnx_field_t *out)
{
    const uint8_t *start = cursor->at;
    const char *problem = wefti_onnx_next_field(cursor, out);
    return problem == NULL ? WEFT_OK : damaged(walker, start, problem);
}

static weft_status_t emit(walker_t *walker, const void *bytes, size_t size_bytes)
{
    size_t need;
    /* Lengths are rewritten as five-byte varints below, so the copy must stay under 2 GiB. */
    if (!wefti_add_size(walker->out_size, size_bytes, &need) || need > INT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "structure exceeds 2 GiB");
    }
    weft_status_t status =
        wefti_array_reserve(walker->allocator, &walker->out, &walker->out_capacity, need, 1);
    if (status < 0) {
        return status;
    }
    if (size_bytes > 0) {
        memcpy(walker->out + walker->out_size, bytes, size_bytes);
    }
    walker->out_size = need;
    return WEFT_OK;
}

static weft_status_t emit_varint(walker_t *walker, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    do {
        bytes[n] = (uint8_t)(value & 0x7f);
        value >>= 7;
        bytes[n++] |= value != 0 ? 0x80 : 0;
    } while (value != 0);
    return emit(walker, bytes, n);
}

static weft_status_t charge(walker_t *walker, size_t bytes)
{
    if (!wefti_add_size(walker->cost_bytes, bytes, &walker->cost_bytes) ||
        walker->cost_bytes > walker->budget_bytes) {
        char path[160];
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "structure exceeds the memory budget of %zu bytes (at %s)",
                           walker->budget_bytes, describe(walker, path, sizeof(path)));
    }
    return WEFT_OK;
}

static bool wire_matches(const ProtobufCFieldDescriptor *field, uint32_t wire)
{
    bool packable = field->label == PROTOBUF_C_LABEL_REPEATED;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return wire == WIRE_BYTES;
    case PROTOBUF_C_TYPE_FLOAT:
        return wire == WIRE_FIXED32 || (packable && wire == WIRE_BYTES);
    case PROTOBUF_C_TYPE_DOUBLE:
        return wire == WIRE_FIXED64 || (packable && wire == WIRE_BYTES);
    default:
        return wire == WIRE_VARINT || (packable && wire == WIRE_BYTES);
    }
}

/* Contents of a tensor: replaced by a reference, not copied. */
static weft_status_t emit_reference(walker_t *walker, const wefti_onnx_field_t *field, bool *seen)
{
    if (*seen) {
        return damaged(walker, field->payload, "duplicate tensor contents");
    }
    *seen = true;
    wefti_onnx_ref_t ref = {.field = field->id,
                            .offset_bytes = (uint64_t)(field->payload - walker->data),
                            .size_bytes = field->size_bytes};
    WEFT_RETURN_IF_ERROR(emit_varint(walker, FIELD_RAW_DATA << 3 | WIRE_BYTES));
    WEFT_RETURN_IF_ERROR(emit_varint(walker, sizeof(ref)));
    WEFT_RETURN_IF_ERROR(emit(walker, &ref, sizeof(ref)));
    return charge(walker, sizeof(ref) + FIELD_COST_BYTES);
}

static weft_status_t walk_message(walker_t *walker, const ProtobufCMessageDescriptor *descriptor,
                                  const uint8_t *data, size_t size_bytes);

static weft_status_t walk_submessage(walker_t *walker, const ProtobufCFieldDescriptor *descriptor,
                                     const wefti_onnx_field_t *field)
{
    weft_status_t status;
    if (walker->depth > WEFTI_ONNX_MAX_DEPTH - 1) {
        char path[160];
        return wefti_error(WEFT_ERR_UNSUPPORTED, "nesting exceeds %u levels (%s)",
                           WEFTI_ONNX_MAX_DEPTH, describe(walker, path, sizeof(path)));
    }
    place_t *place = &walker->places[walker->depth];
    bool repeated = descriptor->label == PROTOBUF_C_LABEL_REPEATED;
    place->index = place->id == descriptor->id ? place->index + 1 : 0;
    place->id = descriptor->id;
    place->field = descriptor->name;
    place->repeated = repeated;
    walker->depth++;
    walker->places[walker->depth].id = 0;

    WEFT_TRY(status, emit_varint(walker, (uint64_t)field->id << 3 | WIRE_BYTES), done);
    size_t length_at = walker->out_size;
    WEFT_TRY(status, emit(walker, "\0\0\0\0\0", 5), done);
    WEFT_TRY(status,
             walk_message(walker, descriptor->descriptor, field->payload, field->size_bytes), done);
    /* The copy's length is known only now: a varint padded to five bytes is as good as any. */
    uint64_t length = walker->out_size - length_at - 5;
    for (uint32_t i = 0; i < 5; i++) {
        walker->out[length_at + i] = (uint8_t)((length >> (7 * i) & 0x7f) | (i < 4 ? 0x80 : 0));
    }
done:
    walker->depth--;
    return status;
}

static weft_status_t copy_field(walker_t *walker, const ProtobufCFieldDescriptor *descriptor,
                                const wefti_onnx_field_t *field)
{
    size_t cost = field->size_bytes;
    if (descriptor->type == PROTOBUF_C_TYPE_STRING && field->size_bytes > 0 &&
        memchr(field->payload, 0, field->size_bytes) != NULL) {
        return damaged(walker, field->payload, "name contains a zero byte");
    }
    if (field->wire == WIRE_BYTES && descriptor->type != PROTOBUF_C_TYPE_STRING &&
        descriptor->type != PROTOBUF_C_TYPE_BYTES) {
        /* Packed numbers: a varint of one byte becomes eight. */
        if (!wefti_mul_size(cost, 8, &cost)) {
            cost = SIZE_MAX;
        }
    }
    WEFT_RETURN_IF_ERROR(charge(walker, cost));
    WEFT_RETURN_IF_ERROR(emit_varint(walker, (uint64_t)field->id << 3 | field->wire));
    if (field->wire == WIRE_BYTES) {
        WEFT_RETURN_IF_ERROR(emit_varint(walker, field->size_bytes));
    }
    return emit(walker, field->payload, field->size_bytes);
}

static weft_status_t walk_message(walker_t *walker, const ProtobufCMessageDescriptor *descriptor,
                                  const uint8_t *data, size_t size_bytes)
{
    weft_status_t status = charge(walker, descriptor->sizeof_message + FIELD_COST_BYTES);
    wefti_onnx_cursor_t cursor = {data, data + size_bytes};
    bool is_tensor = descriptor == &onnx__tensor_proto__descriptor;
    bool contents_seen = false;
    while (status == WEFT_OK && cursor.at < cursor.end) {
        wefti_onnx_field_t field = {0};
        WEFT_TRY(status, read_field(walker, &cursor, &field), fail);
        const ProtobufCFieldDescriptor *known =
            protobuf_c_message_descriptor_get_field(descriptor, field.id);
        if (known == NULL) {
            continue; /* of a newer version: left out */
        }
        if (!wire_matches(known, field.wire)) {
            return damaged(walker, field.payload, "wrong wire type of a field");
        }
        WEFT_TRY(status, charge(walker, FIELD_COST_BYTES), fail);
        bool contents = field.id == FIELD_RAW_DATA || field.id == FIELD_FLOAT_DATA ||
                        field.id == FIELD_DOUBLE_DATA;
        if (is_tensor && contents && field.wire == WIRE_BYTES) {
            status = emit_reference(walker, &field, &contents_seen);
        } else if (known->type == PROTOBUF_C_TYPE_MESSAGE) {
            status = walk_submessage(walker, known, &field);
        } else {
            status = copy_field(walker, known, &field);
        }
    }
fail:
    return status;
}

weft_status_t wefti_onnx_reduce(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                size_t size_bytes, size_t budget_bytes,
                                const weft_allocator_t *allocator, uint8_t **out,
                                size_t *out_size_bytes)
{
    walker_t walker = {.allocator = allocator,
                       .data = data,
                       .budget_bytes = budget_bytes,
                       .kind = descriptor == &onnx__tensor_proto__descriptor ? "tensor" : "model"};
    weft_status_t status = walk_message(&walker, descriptor, data, size_bytes);
    if (status == WEFT_OK && walker.out == NULL) {
        status = wefti_error(WEFT_ERR_FORMAT, "not an ONNX %s: no known field", walker.kind);
    }
    if (status < 0) {
        wefti_free(allocator, walker.out);
        return status;
    }
    *out = walker.out;
    *out_size_bytes = walker.out_size;
    return WEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chakra execution traces: a file per rank, of messages with their length as a varint before each:
 * GlobalMetadata, then Nodes in an order in which dependencies come first. Numbers of fields and
 * of enumerators are those of schema/protobuf/et_def.proto (github.com/mlcommons/chakra), attributes
 * those that its feeder reads. The few fields are encoded here.
 */
#include "fusion/simulate/trace.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };
enum { METADATA_VERSION = 1 };
enum {
    NODE_ID = 1,
    NODE_NAME = 2,
    NODE_TYPE = 3,
    NODE_DATA_DEPS = 5,
    NODE_MICROS = 7,
    NODE_ATTR = 10
};
enum { ATTR_NAME = 1, ATTR_INT32 = 7, ATTR_INT64 = 9, ATTR_BOOL = 27 };
enum { TYPE_COMP = 4, TYPE_SEND = 5, TYPE_RECV = 6 };

static void add_varint(wefti_text_t *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t count = 0;
    do {
        bytes[count++] = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));
        value >>= 7;
    } while (value > 0);
    wefti_text_add_bytes(out, bytes, count);
}

static void add_number(wefti_text_t *out, uint32_t field, uint64_t value)
{
    add_varint(out, field << 3 | WIRE_VARINT);
    add_varint(out, value);
}

static void add_bytes(wefti_text_t *out, uint32_t field, const void *bytes, size_t count)
{
    add_varint(out, field << 3 | WIRE_BYTES);
    add_varint(out, count);
    wefti_text_add_bytes(out, bytes, count);
}

static void add_attribute(wefti_text_t *out, const char *name, uint32_t field, uint64_t value)
{
    wefti_text_t attribute;
    wefti_text_init(&attribute, NULL);
    add_bytes(&attribute, ATTR_NAME, name, strlen(name));
    add_number(&attribute, field, value);
    add_bytes(out, NODE_ATTR, attribute.data, attribute.length);
    out->failed = out->failed || attribute.failed;
    wefti_text_deinit(&attribute);
}

/* A message of a file: its length, then itself. */
static void add_message(wefti_text_t *out, wefti_text_t *message)
{
    add_varint(out, message->length);
    wefti_text_add_bytes(out, message->data, message->length);
    out->failed = out->failed || message->failed;
    wefti_text_deinit(message);
}

static weft_status_t add_record(void *user, uint32_t rank, uint32_t number, const sim_node_t *node)
{
    static const uint32_t types[] = {TYPE_COMP, TYPE_SEND, TYPE_RECV};
    wefti_text_t message, *out = user, name;
    wefti_text_init(&message, NULL);
    wefti_text_init(&name, NULL);
    wefti_text_add_printable(&name, node->name); /* of protobuf's strings: UTF-8 */
    add_number(&message, NODE_ID, number);
    add_bytes(&message, NODE_NAME, name.data, name.length);
    add_number(&message, NODE_TYPE, types[node->kind]);
    for (uint32_t i = 0; i < node->depend_count; i++) {
        add_number(&message, NODE_DATA_DEPS, node->depends[i]);
    }
    if (node->kind == SIM_CALC) {
        add_number(&message, NODE_MICROS, (node->ns + 500) / 1000);
        add_attribute(&message, "runtime_ns", ATTR_INT64, node->ns);
    } else {
        bool sends = node->kind == SIM_SEND;
        add_attribute(&message, "comm_size", ATTR_INT64, node->bytes);
        add_attribute(&message, "comm_tag", ATTR_INT32, node->tag);
        add_attribute(&message, "comm_src", ATTR_INT32, sends ? rank : node->peer);
        add_attribute(&message, "comm_dst", ATTR_INT32, sends ? node->peer : rank);
    }
    add_attribute(&message, "is_cpu_op", ATTR_BOOL, 0);
    add_message(out, &message);
    wefti_text_deinit(&name);
    return out->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static weft_status_t make_rank(sim_tracer_t *tracer, uint32_t rank, wefti_text_t *text)
{
    static const char version[] = "0.0.4";
    wefti_text_t metadata;
    text->length = 0;
    wefti_text_init(&metadata, NULL);
    add_bytes(&metadata, METADATA_VERSION, version, sizeof version - 1);
    add_message(text, &metadata);
    return wefti_sim_trace_rank(tracer, rank, add_record, text);
}

static weft_status_t append_text(void *user, wefti_file_stream_t *stream)
{
    const wefti_text_t *text = user;
    return wefti_file_append(stream, text->data, text->length);
}

static weft_status_t write_rank(wefti_text_t *text, const char *prefix, uint32_t rank)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s.%u.et", prefix, rank);
    if (length < 0 || (size_t)length >= sizeof path) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "path of traces: too long: at most 4095");
    }
    return wefti_file_write_stream(path, append_text, text);
}

weft_status_t wefti_sim_write_chakra(const sim_world_t *world, const weft_plan_t *plan,
                                     const weft_registry_t *registry, const char *prefix,
                                     const sim_progress_t *progress)
{
    weft_status_t status;
    wefti_text_t text;
    sim_tracer_t *tracer = NULL;
    wefti_text_init(&text, NULL);
    WEFT_TRY(status, wefti_sim_tracer_create(world, plan, registry, &tracer), out);
    for (uint32_t r = 0; r < world->ranks; r++) {
        WEFT_TRY(status, make_rank(tracer, r, &text), out);
        if (r == 0) {
            uint64_t expected = (uint64_t)text.length * world->ranks;
            WEFT_TRY(status, wefti_file_check_room(prefix, expected, world->ranks), out);
            wefti_sim_announce(progress, prefix, expected, world->ranks);
        }
        WEFT_TRY(status, write_rank(&text, prefix, r), out);
        wefti_sim_progress(progress, r + 1, world->ranks);
    }
out:
    wefti_sim_tracer_destroy(tracer);
    wefti_text_deinit(&text);
    return status;
}

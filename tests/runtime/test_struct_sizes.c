/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callers that were built with other versions of the public headers: every function that takes a
 * struct with struct_size gets shorter and longer ones. The table has a row per function and
 * argument; such an argument in include/weft without a row fails the test.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"
#include "support_headers.h"

#define STEP sizeof(size_t) /* sizes that a struct with a size_t can have */
#define LONGER 64u

/* ---- the other arguments ---- */

static weft_context_t *context;
static weft_group_t *group, *pair; /* pair: of context_of_pair, to which rank 1 has sent */
static weft_context_t *context_of_pair;
static pthread_t sender;
static weft_fuser_t *fuser;
static weft_capture_t *capture;
static weft_session_t *session;
static weft_plan_t *plan;
static weft_registry_t *registry;
static weft_plan_builder_t *builder;
static weft_edit_list_t *edits;
static weft_snapshot_t *snapshot;
static char checkpoint_path[64], found_path[80];

static const weft_op_def_t make_def = {.domain = "test", .name = "Make"};
static const weft_view_value_t values[1] = {{.name = "v", .bytes = 4, .grad_of = UINT32_MAX}};
static const weft_view_op_t ops[1] = {
    {.name = "op", .def = &make_def, .output_count = 1, .present = 1}};
static const uint32_t zeros[4], two_ranks[1] = {2};
static const uint64_t op_ns[1] = {1};
static uint64_t ready_ns[1];

static char grow_address[64];
static weft_context_params_t context_params = WEFT_CONTEXT_PARAMS_INIT;
static weft_context_params_t grow_params = WEFT_CONTEXT_PARAMS_INIT;
static weft_session_params_t session_params = WEFT_SESSION_PARAMS_INIT;
static weft_algo_params_t algo_params = WEFT_ALGO_PARAMS_INIT;
static weft_bucket_params_t bucket_params = WEFT_BUCKET_PARAMS_INIT;
static weft_algorithms_params_t algorithms_params = WEFT_ALGORITHMS_PARAMS_INIT;
static weft_schedule_params_t schedule_params = WEFT_SCHEDULE_PARAMS_INIT;
static weft_compile_params_t compile_params = WEFT_COMPILE_PARAMS_INIT;
static weft_graph_view_t graph_view = WEFT_GRAPH_VIEW_INIT;
static const weft_capture_params_t capture_params = WEFT_CAPTURE_PARAMS_INIT;
static const weft_checkpoint_info_t checkpoint_info = WEFT_CHECKPOINT_INFO_INIT;
static const weft_fuser_params_t fuser_params = WEFT_FUSER_PARAMS_INIT;
static const weft_group_params_t group_params = WEFT_GROUP_PARAMS_INIT;
static const weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
static weft_checkpoint_writer_params_t writer_params = WEFT_CHECKPOINT_WRITER_PARAMS_INIT;
static const weft_plan_builder_params_t builder_params = WEFT_PLAN_BUILDER_PARAMS_INIT;
static weft_plan_buffer_params_t buffer_params = WEFT_PLAN_BUFFER_PARAMS_INIT;
static weft_plan_kernel_params_t kernel_params = WEFT_PLAN_KERNEL_PARAMS_INIT;
static weft_plan_collective_params_t collective_params = WEFT_PLAN_COLLECTIVE_PARAMS_INIT;

/* One of two ranks. */
static void join_pair(uint32_t rank, weft_context_t **out_context, weft_group_t **out_group)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    char address[64];
    snprintf(address, sizeof address, "unix:@weft-struct-sizes-pair-%d", (int)getpid());
    params.rank = rank;
    params.world_size = 2;
    params.address = address;
    assert_int_equal(weft_context_create(&params, out_context), WEFT_OK);
    assert_int_equal(weft_group_create_world(*out_context, out_group), WEFT_OK);
}

static void *send_one(void *user)
{
    weft_context_t *own = NULL;
    weft_group_t *theirs = NULL;
    (void)user;
    join_pair(1, &own, &theirs);
    weft_send_tagged("", 1, WEFT_DTYPE_U8, 0, 7, theirs, NULL);
    weft_group_destroy(theirs);
    weft_context_release(own);
    return NULL;
}

static void make(void)
{
    assert_int_equal(pthread_create(&sender, NULL, send_one, NULL), 0);
    join_pair(0, &context_of_pair, &pair);
    while (weft_probe(1, 7, pair, NULL) == WEFT_IN_PROGRESS) {
    }
    training_t training = {.world = 1, .steps = 1, .buckets = 2};
    context_params.rank = 0;
    context_params.world_size = 1;
    snprintf(grow_address, sizeof grow_address, "unix:@weft-struct-sizes-%d", (int)getpid());
    grow_params.world_size = 2;
    grow_params.address = grow_address;
    assert_int_equal(weft_context_create(&context_params, &context), WEFT_OK);
    assert_int_equal(weft_group_create_world(context, &group), WEFT_OK);
    assert_int_equal(weft_fuser_create(group, NULL, &fuser), WEFT_OK);
    assert_int_equal(weft_capture_begin(group, NULL), WEFT_OK);
    assert_int_equal(weft_barrier(group, NULL), WEFT_OK);
    assert_int_equal(weft_capture_end(group, &capture), WEFT_OK);
    assert_int_equal(support_plan(&training, false, &plan), WEFT_OK);
    assert_int_equal(support_registry(true, &registry), WEFT_OK);
    session_params.context = context;
    session_params.plan = plan;
    session_params.registry = registry;
    assert_int_equal(weft_session_create(&session_params, &session), WEFT_OK);
    assert_int_equal(weft_edit_list_create(NULL, &edits), WEFT_OK);
    snprintf(checkpoint_path, sizeof checkpoint_path, "/tmp/weft-struct-sizes-%d", (int)getpid());
    assert_int_equal(weft_session_save_checkpoint(session, checkpoint_path, NULL), WEFT_OK);
    assert_int_equal(weft_snapshot_create(&snapshot), WEFT_OK);
    assert_int_equal(weft_snapshot_take(snapshot, session, group, NULL), WEFT_OK);
    algo_params.group_size = 2;
    bucket_params.world_size = 2;
    algorithms_params.group_sizes = two_ranks;
    algorithms_params.group_count = 1;
    schedule_params.op_ns = op_ns;
    compile_params.model_path = WEFT_SOURCE_DIR "/samples/models/mlp.onnx";
    compile_params.world_size = 2;
    compile_params.batch = 4;
    uint32_t id;
    assert_int_equal(weft_plan_builder_create(&builder_params, &builder), WEFT_OK);
    buffer_params.desc.dtype = WEFT_DTYPE_F32;
    assert_int_equal(weft_plan_builder_add_buffer(builder, &buffer_params, &id), WEFT_OK);
    kernel_params.op = "Abs";
    collective_params.sends = zeros;
    collective_params.send_count = 1;
    graph_view.value_count = graph_view.op_count = graph_view.order_count = 1;
    graph_view.values = values;
    graph_view.ops = ops;
    graph_view.order = graph_view.op_inputs = graph_view.op_outputs = graph_view.users = zeros;
}

static void unmake(void)
{
    weft_group_destroy(pair);
    weft_context_release(context_of_pair);
    pthread_join(sender, NULL);
    remove(checkpoint_path);
    weft_snapshot_destroy(snapshot);
    weft_plan_builder_destroy(builder);
    weft_edit_list_destroy(edits);
    weft_session_destroy(session);
    weft_registry_destroy(registry);
    weft_plan_release(plan);
    weft_capture_destroy(capture);
    weft_fuser_destroy(fuser);
    weft_group_destroy(group);
    weft_context_release(context);
}

/* ---- the functions ---- */

#define CALLS(function, argument, expression)                                                      \
    static weft_status_t function##_##argument(void *argument)                                     \
    {                                                                                              \
        return (expression);                                                                       \
    }

/* A function that makes something, and its counterpart. */
#define CREATES(function, argument, type, create, destroy)                                         \
    static weft_status_t function##_##argument(void *argument)                                     \
    {                                                                                              \
        type *made = NULL;                                                                         \
        weft_status_t status = (create);                                                           \
        destroy(made);                                                                             \
        return status;                                                                             \
    }

CALLS(weft_algorithm_verify, params,
      weft_algorithm_verify(weft_registry_find_algorithm(NULL, WEFT_COLLECTIVE_ALL_GATHER, "ring"),
                            params))
CALLS(weft_capture_get_info, info, weft_capture_get_info(capture, info))
CALLS(weft_session_save_checkpoint, info,
      weft_session_save_checkpoint(session, checkpoint_path, info))
CREATES(weft_checkpoint_writer_create, params, weft_checkpoint_writer_t,
        weft_checkpoint_writer_create(session, params, &made), weft_checkpoint_writer_destroy)
static weft_status_t weft_checkpoint_writer_start_info(void *info)
{
    weft_checkpoint_writer_t *writer = NULL;
    weft_status_t status = weft_checkpoint_writer_create(session, NULL, &writer);
    status = status < 0 ? status : weft_checkpoint_writer_start(writer, checkpoint_path, info);
    weft_checkpoint_writer_destroy(writer);
    return status;
}
CALLS(weft_checkpoint_newest, out_info,
      weft_checkpoint_newest(checkpoint_path, found_path, sizeof found_path, out_info))
CALLS(weft_session_load_checkpoint, out_info,
      weft_session_load_checkpoint(session, checkpoint_path, out_info))
CALLS(weft_snapshot_take, info, weft_snapshot_take(snapshot, session, group, info))
CALLS(weft_snapshot_restore, out_info, weft_snapshot_restore(snapshot, session, group, out_info))
CALLS(weft_snapshot_get_info, info, weft_snapshot_get_info(snapshot, info))
CALLS(weft_checkpoint_check, out_info,
      weft_checkpoint_check(checkpoint_path, plan, registry, out_info))
CALLS(weft_compile_option_set, params, weft_compile_option_set(params, "batch", "4"))
CREATES(weft_compile, params, weft_plan_t, weft_compile(params, &made), weft_plan_release)
CREATES(weft_context_create, params, weft_context_t, weft_context_create(params, &made),
        weft_context_release)
CALLS(weft_context_peer_info, out_info, weft_context_peer_info(context, 0, out_info))
CALLS(weft_probe, out_message, weft_probe(1, 7, pair, out_message))
CALLS(weft_context_link_stats, out_stats, weft_context_link_stats(context, 0, out_stats))
CREATES(weft_fuser_create, params, weft_fuser_t, weft_fuser_create(group, params, &made),
        weft_fuser_destroy)
CREATES(weft_group_create_named, params, weft_group_t,
        weft_group_create_named("sizes", 1, 0, params, &made), weft_group_destroy)
CREATES(weft_group_create, params, weft_group_t, weft_group_create(context, params, &made),
        weft_group_destroy)
CALLS(weft_fuser_get_stats, stats, weft_fuser_get_stats(fuser, stats))
CALLS(weft_device_describe, out_info, weft_device_describe("fake", 0, out_info))
CALLS(weft_mem_get_handle, out_handle, weft_mem_get_handle(context, values, out_handle))
CALLS(weft_mem_query, out_info, weft_mem_query(context, values, out_info))
CALLS(weft_pass_ready_times, view, weft_pass_ready_times(view, op_ns, ready_ns))
CREATES(weft_pass_insert_collectives, view, weft_edit_list_t,
        weft_pass_insert_collectives(view, NULL, &made), weft_edit_list_destroy)
CREATES(weft_pass_bucket, view, weft_edit_list_t,
        weft_pass_bucket(view, &bucket_params, &made, NULL), weft_edit_list_destroy)
CREATES(weft_pass_bucket, params, weft_edit_list_t,
        weft_pass_bucket(&graph_view, params, &made, NULL), weft_edit_list_destroy)
CREATES(weft_pass_bucket, out_forecast, weft_edit_list_t,
        weft_pass_bucket(&graph_view, &bucket_params, &made, out_forecast), weft_edit_list_destroy)
CREATES(weft_pass_algorithms, view, weft_edit_list_t,
        weft_pass_algorithms(view, &algorithms_params, &made), weft_edit_list_destroy)
CREATES(weft_pass_algorithms, params, weft_edit_list_t,
        weft_pass_algorithms(&graph_view, params, &made), weft_edit_list_destroy)
CREATES(weft_pass_order, view, weft_edit_list_t, weft_pass_order(view, NULL, &made),
        weft_edit_list_destroy)
CREATES(weft_pass_start_wait, view, weft_edit_list_t, weft_pass_start_wait(view, NULL, &made),
        weft_edit_list_destroy)
CREATES(weft_pass_schedule, view, weft_edit_list_t,
        weft_pass_schedule(view, &schedule_params, &made, NULL), weft_edit_list_destroy)
CREATES(weft_pass_schedule, params, weft_edit_list_t,
        weft_pass_schedule(&graph_view, params, &made, NULL), weft_edit_list_destroy)
CREATES(weft_pass_schedule, out_report, weft_edit_list_t,
        weft_pass_schedule(&graph_view, &schedule_params, &made, out_report),
        weft_edit_list_destroy)
CALLS(weft_edits_check, view, weft_edits_check(view, edits))
CALLS(weft_plan_get_info, info, weft_plan_get_info(plan, info))
CALLS(weft_plan_get_binding, binding, weft_plan_get_binding(plan, 0, binding))
CREATES(weft_plan_builder_create, params, weft_plan_builder_t,
        weft_plan_builder_create(params, &made), weft_plan_builder_destroy)
CALLS(weft_plan_builder_add_buffer, params,
      weft_plan_builder_add_buffer(builder, params, &(uint32_t){0}))
CALLS(weft_plan_builder_add_kernel, params,
      weft_plan_builder_add_kernel(builder, params, &(uint32_t){0}))
CALLS(weft_plan_builder_add_collective, params,
      weft_plan_builder_add_collective(builder, params, &(uint32_t){0}))
CREATES(weft_session_create, params, weft_session_t, weft_session_create(params, &made),
        weft_session_destroy)
CALLS(weft_session_get_stats, stats, weft_session_get_stats(session, stats))
CREATES(weft_stream_create, params, weft_stream_t, weft_stream_create(context, params, &made),
        weft_stream_destroy)

static weft_status_t weft_capture_begin_params(void *params)
{
    weft_status_t status = weft_capture_begin(group, params);
    return status < 0 ? status : weft_capture_cancel(group);
}

static weft_status_t weft_model_check_params(void *params)
{
    char *text = NULL;
    int compiles = 0;
    weft_status_t status = weft_model_check(params, WEFT_FORMAT_TEXT, &text, &compiles);
    free(text);
    return status;
}

static weft_status_t infer(weft_node_desc_t *node)
{
    (void)node;
    return WEFT_OK;
}

static weft_status_t weft_registry_add_op_facts(void *facts)
{
    weft_registry_t *own = NULL;
    weft_op_def_t def = {.domain = "test",
                         .name = "Op",
                         .since_version = 1,
                         .in_place = {-1, -1, -1, -1},
                         .infer = infer};
    def.facts = facts;
    assert_int_equal(weft_registry_create(NULL, &own), WEFT_OK);
    weft_status_t status = weft_registry_add_op(own, &def);
    weft_registry_destroy(own);
    return status;
}

/* A world of one grows by a thread that joins; if it refuses, the thread gives up. */
static _Atomic int refused;

static int is_refused(void *user)
{
    (void)user;
    return atomic_load(&refused);
}

static void *join_grown(void *user)
{
    weft_context_params_t params = grow_params;
    weft_context_t *joined = NULL;
    (void)user;
    params.rank = 1;
    params.interrupt = is_refused;
    weft_context_create(&params, &joined);
    weft_context_release(joined);
    return NULL;
}

static weft_status_t weft_context_grow_params(void *params)
{
    pthread_t thread;
    weft_context_t *alone = NULL, *made = NULL;
    atomic_store(&refused, 0);
    assert_int_equal(weft_context_create(&context_params, &alone), WEFT_OK);
    assert_int_equal(pthread_create(&thread, NULL, join_grown, NULL), 0);
    weft_status_t status = weft_context_grow(alone, params, &made);
    atomic_store(&refused, status < 0);
    weft_context_release(made);
    weft_context_release(alone);
    pthread_join(thread, NULL);
    return status;
}

static void *join_grown_group(void *user)
{
    weft_context_params_t params = grow_params;
    weft_context_t *joined = NULL;
    weft_group_t *theirs = NULL;
    (void)user;
    params.rank = 1;
    params.interrupt = is_refused;
    if (weft_context_create(&params, &joined) == WEFT_OK) {
        weft_group_create_world(joined, &theirs);
    }
    weft_group_destroy(theirs);
    weft_context_release(joined);
    return NULL;
}

static weft_status_t weft_group_grow_params(void *params)
{
    pthread_t thread;
    weft_context_t *alone = NULL;
    weft_group_t *own = NULL, *made = NULL;
    atomic_store(&refused, 0);
    assert_int_equal(weft_context_create(&context_params, &alone), WEFT_OK);
    assert_int_equal(weft_group_create_world(alone, &own), WEFT_OK);
    assert_int_equal(pthread_create(&thread, NULL, join_grown_group, NULL), 0);
    weft_status_t status = weft_group_grow(own, params, &made);
    atomic_store(&refused, status < 0);
    weft_group_destroy(made);
    weft_group_destroy(own);
    weft_context_release(alone);
    pthread_join(thread, NULL);
    return status;
}

/* ---- the table ---- */

typedef struct row {
    const char *function, *argument;
    weft_status_t (*call)(void *argument);
    size_t bytes;     /* of the struct */
    const void *full; /* parameters that are valid; NULL: a report */
    size_t needed;    /* bytes of it that the call needs */
} row_t;

#define READS(function, argument, params, needed)                                                  \
    {                                                                                              \
#function, #argument, function##_##argument, sizeof(params), &(params), needed             \
    }
#define WRITES(function, argument, type)                                                           \
    {                                                                                              \
#function, #argument, function##_##argument, sizeof(type), NULL, 0                         \
    }
#define UP_TO(type, field) offsetof(type, field)

static const row_t rows[] = {
    READS(weft_algorithm_verify, params, algo_params, UP_TO(weft_algo_params_t, rank)),
    READS(weft_capture_begin, params, capture_params, STEP),
    WRITES(weft_capture_get_info, info, weft_capture_info_t),
    READS(weft_session_save_checkpoint, info, checkpoint_info, STEP),
    READS(weft_checkpoint_writer_create, params, writer_params, STEP),
    READS(weft_checkpoint_writer_start, info, checkpoint_info, STEP),
    WRITES(weft_checkpoint_newest, out_info, weft_checkpoint_info_t),
    WRITES(weft_session_load_checkpoint, out_info, weft_checkpoint_info_t),
    WRITES(weft_checkpoint_check, out_info, weft_checkpoint_info_t),
    READS(weft_snapshot_take, info, checkpoint_info, STEP),
    WRITES(weft_snapshot_restore, out_info, weft_checkpoint_info_t),
    WRITES(weft_snapshot_get_info, info, weft_snapshot_info_t),
    READS(weft_compile, params, compile_params, UP_TO(weft_compile_params_t, shapes)),
    READS(weft_model_check, params, compile_params, UP_TO(weft_compile_params_t, shapes)),
    READS(weft_context_create, params, context_params, 2 * STEP),
    READS(weft_context_grow, params, grow_params, UP_TO(weft_context_params_t, hub)),
    READS(weft_group_grow, params, grow_params, UP_TO(weft_context_params_t, hub)),
    WRITES(weft_context_peer_info, out_info, weft_peer_info_t),
    WRITES(weft_context_link_stats, out_stats, weft_link_stats_t),
    READS(weft_fuser_create, params, fuser_params, STEP),
    READS(weft_group_create, params, group_params, STEP),
    READS(weft_group_create_named, params, context_params, 0),
    WRITES(weft_fuser_get_stats, stats, weft_fuser_stats_t),
    WRITES(weft_probe, out_message, weft_message_t),
    WRITES(weft_device_describe, out_info, weft_device_info_t),
    WRITES(weft_mem_get_handle, out_handle, weft_mem_handle_t),
    WRITES(weft_mem_query, out_info, weft_mem_info_t),
    READS(weft_pass_ready_times, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    READS(weft_pass_insert_collectives, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    READS(weft_pass_bucket, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    READS(weft_pass_bucket, params, bucket_params, UP_TO(weft_bucket_params_t, cost)),
    WRITES(weft_pass_bucket, out_forecast, weft_bucket_forecast_t),
    READS(weft_pass_algorithms, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    READS(weft_pass_algorithms, params, algorithms_params,
          UP_TO(weft_algorithms_params_t, costs_path)),
    READS(weft_pass_order, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    READS(weft_pass_start_wait, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    READS(weft_pass_schedule, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    READS(weft_pass_schedule, params, schedule_params, UP_TO(weft_schedule_params_t, kept)),
    WRITES(weft_pass_schedule, out_report, weft_schedule_report_t),
    READS(weft_edits_check, view, graph_view, UP_TO(weft_graph_view_t, edge_count)),
    WRITES(weft_plan_get_info, info, weft_plan_info_t),
    WRITES(weft_plan_get_binding, binding, weft_binding_t),
    READS(weft_plan_builder_create, params, builder_params, STEP),
    READS(weft_plan_builder_add_buffer, params, buffer_params,
          UP_TO(weft_plan_buffer_params_t, kind)),
    READS(weft_plan_builder_add_kernel, params, kernel_params,
          UP_TO(weft_plan_kernel_params_t, version)),
    READS(weft_plan_builder_add_collective, params, collective_params,
          UP_TO(weft_plan_collective_params_t, recv) + sizeof(uint32_t)),
    READS(weft_session_create, params, session_params, UP_TO(weft_session_params_t, trace)),
    WRITES(weft_session_get_stats, stats, weft_session_stats_t),
    READS(weft_stream_create, params, stream_params, STEP),
};

/* A struct that an argument points to. */
static const weft_op_facts_t op_facts = WEFT_OP_FACTS_INIT;
static const row_t facts_row = READS(weft_registry_add_op, facts, op_facts, STEP);

/* Parameters in which the library writes one field for the caller: what it may not touch is all
 * that it must know of the rest. */
static const row_t field_row =
    READS(weft_compile_option_set, params, compile_params, UP_TO(weft_compile_params_t, shapes));

#define ROWS (sizeof rows / sizeof rows[0])

/* ---- structs of other versions ---- */

/* The caller's memory: its struct, and after that what belongs to others. */
static _Alignas(16) uint8_t memory[4096];

/* A caller's struct of that size, with zeros in fields that the library does not have. */
static void *caller_struct(const row_t *row, size_t bytes, int rest)
{
    assert_true(row->bytes + LONGER < sizeof memory && bytes <= sizeof memory);
    memset(memory, rest, sizeof memory);
    memset(memory, 0, bytes);
    if (row->full != NULL) {
        memcpy(memory, row->full, bytes < row->bytes ? bytes : row->bytes);
    }
    memcpy(memory, &bytes, sizeof bytes);
    return memory;
}

static void expect(const row_t *row, weft_status_t status, size_t bytes, weft_status_t wanted,
                   const char *text)
{
    char message[96];
    snprintf(message, sizeof message, "%s: %s", row->argument, text);
    if (status != wanted || (status < 0 && strstr(weft_last_error(), message) == NULL)) {
        fail_msg("%s with a struct of %zu bytes, library %zu: status %d, \"%s\", expected %d, "
                 "\"%s\"",
                 row->function, bytes, row->bytes, (int)status, weft_last_error(), (int)wanted,
                 message);
    }
}

static void refuse_sizes(const row_t *row)
{
    const size_t sizes[] = {0, 4, STEP + 1, (size_t)1 << 40, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *argument = caller_struct(row, row->bytes, 0);
        memcpy(argument, &sizes[i], sizeof sizes[i]);
        expect(row, row->call(argument), sizes[i], WEFT_ERR_INVALID_ARGUMENT,
               "invalid struct_size");
    }
}

/* What a shorter struct lacks has its default, whatever comes after it in memory. */
static void read_params(const row_t *row)
{
    for (size_t bytes = STEP; bytes <= row->bytes; bytes += STEP) {
        weft_status_t status = row->call(caller_struct(row, bytes, 0xff));
        if (bytes >= row->needed) {
            expect(row, status, bytes, WEFT_OK, "");
        } else if (status < 0) {
            assert_null(strstr(weft_last_error(), "struct_size"));
        }
    }
    expect(row, row->call(caller_struct(row, row->bytes + STEP, 0xff)), row->bytes + STEP, WEFT_OK,
           "");
    uint8_t *longer = caller_struct(row, row->bytes + LONGER, 0xff);
    expect(row, row->call(longer), row->bytes + LONGER, WEFT_OK, "");
    longer = caller_struct(row, row->bytes + LONGER, 0xff);
    longer[row->bytes + LONGER - 1] = 1;
    expect(row, row->call(longer), row->bytes + LONGER, WEFT_ERR_UNSUPPORTED, "unsupported field");
}

/* Leaves bytes on the stack, so that padding differs where nothing sets it. */
static void scribble(int byte)
{
    volatile uint8_t stack[16384];
    for (size_t i = 0; i < sizeof stack; i++) {
        stack[i] = (uint8_t)byte;
    }
}

/* A report is written as far as both sides have it. */
static void write_reports(const row_t *row)
{
    uint8_t first[4096], second[4096];
    scribble(0x55);
    expect(row, row->call(caller_struct(row, row->bytes, 0)), row->bytes, WEFT_OK, "");
    memcpy(first, memory, row->bytes);
    scribble(0xaa);
    expect(row, row->call(caller_struct(row, row->bytes, 0)), row->bytes, WEFT_OK, "");
    memcpy(second, memory, row->bytes);
    for (size_t bytes = STEP; bytes <= row->bytes + LONGER; bytes += STEP) {
        size_t both = bytes < row->bytes ? bytes : row->bytes, after;
        memset(memory, 0xab, sizeof memory);
        memcpy(memory, &bytes, sizeof bytes);
        expect(row, row->call(memory), bytes, WEFT_OK, "");
        memcpy(&after, memory, sizeof after);
        assert_int_equal(after, bytes);
        for (size_t i = STEP; i < both; i++) {
            assert_true(first[i] != second[i] || memory[i] == first[i]);
        }
        for (size_t i = both; i < sizeof memory; i++) {
            assert_int_equal(memory[i], 0xab);
        }
    }
}

static void test_shorter_and_longer_structs(void **state)
{
    (void)state;
    make();
    for (size_t i = 0; i < ROWS; i++) {
        refuse_sizes(&rows[i]);
        if (rows[i].full != NULL) {
            read_params(&rows[i]);
        } else {
            write_reports(&rows[i]);
        }
    }
    refuse_sizes(&facts_row);
    read_params(&facts_row);
    unmake();
}

static void test_fields_that_a_struct_lacks_are_not_set(void **state)
{
    (void)state;
    compile_params.batch = 0;
    refuse_sizes(&field_row);
    for (size_t bytes = STEP; bytes <= field_row.bytes + LONGER; bytes += STEP) {
        uint8_t *caller = caller_struct(&field_row, bytes, 0xff);
        weft_status_t status = field_row.call(caller);
        bool has_field = bytes >= field_row.needed;
        expect(&field_row, status, bytes, has_field ? WEFT_OK : WEFT_ERR_INVALID_ARGUMENT,
               "invalid struct_size");
        assert_true(!has_field || ((weft_compile_params_t *)(void *)caller)->batch == 4);
        for (size_t i = bytes; i < sizeof memory; i++) {
            assert_int_equal(memory[i], 0xff);
        }
    }
}

/* ---- the table against the headers ---- */

typedef struct scan {
    char types[64][64]; /* structs with struct_size */
    bool has_init[64];  /* the header defines its _INIT */
    size_t type_count, arguments, missing;
} scan_t;

/* weft_plan_info_t: "#define WEFT_PLAN_INFO_INIT" */
static bool defines_init(const char *text, const char *type)
{
    char macro[96];
    int length = snprintf(macro, sizeof macro, "#define %.*s_INIT", (int)strlen(type) - 2, type);
    for (int i = (int)strlen("#define "); i < length; i++) {
        macro[i] = (char)toupper((unsigned char)macro[i]);
    }
    return strstr(text, macro) != NULL;
}

static void find_structs(const char *text, void *user)
{
    scan_t *scan = user;
    for (const char *at = text; (at = strstr(at, "size_t struct_size;")) != NULL; at++) {
        const char *end = strstr(at, "\n} ");
        assert_non_null(end);
        assert_true(scan->type_count < sizeof scan->types / sizeof scan->types[0]);
        char *type = scan->types[scan->type_count];
        support_last_word(end, strchr(end, ';'), type);
        scan->has_init[scan->type_count++] = defines_init(text, type);
    }
}

static bool has_row(const char *function, const char *argument)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].function, function) == 0 && strcmp(rows[i].argument, argument) == 0) {
            return true;
        }
    }
    return strcmp(field_row.function, function) == 0;
}

static void check_argument(scan_t *scan, const char *function, const char *begin, const char *end)
{
    char name[64], type[64];
    const char *word = support_last_word(begin, end, name);
    support_last_word(begin, word, type);
    for (size_t i = 0; i < scan->type_count; i++) {
        if (strcmp(type, scan->types[i]) == 0) {
            scan->arguments++;
            if (!has_row(function, name)) {
                print_error("no row for %s.%s\n", function, name);
                scan->missing++;
            }
            if (!scan->has_init[i]) {
                print_error("no _INIT of %s\n", type);
                scan->missing++;
            }
        }
    }
}

static void check_declaration(const char *declaration, const char *end, void *user)
{
    char function[64];
    const char *open = memchr(declaration, '(', (size_t)(end - declaration));
    assert_non_null(open);
    support_last_word(declaration, open, function);
    for (const char *at = open + 1; at < end;) {
        const char *stop = at + strcspn(at, ",)");
        check_argument(user, function, at, stop);
        at = stop + 1;
    }
}

static void test_every_struct_has_a_row(void **state)
{
    static scan_t scan;
    (void)state;
    support_each_header(find_structs, &scan);
    assert_true(scan.type_count > 20);
    support_each_declaration(check_declaration, &scan);
    assert_int_equal(scan.missing, 0);
    assert_int_equal(scan.arguments, ROWS + 1); /* a row without a declaration is stale */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_struct_has_a_row),
        cmocka_unit_test(test_shorter_and_longer_structs),
        cmocka_unit_test(test_fields_that_a_struct_lacks_are_not_set)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

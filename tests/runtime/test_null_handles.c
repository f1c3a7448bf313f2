/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public function gets NULL for each of its pointer arguments in turn. The table has one row
 * per function and argument; a pointer argument in include/weft without a row fails the test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "support_headers.h"

typedef struct fixture {
    weft_context_t *context;
    weft_group_t *group;
    weft_stream_t *stream;
    weft_event_t *event;
    weft_notify_t *notify;
    weft_fuser_t *fuser;
    weft_capture_t *capture;
    weft_session_t *session;
    weft_plan_t *plan;
    weft_plan_builder_t *builder;
    weft_registry_t *registry;
    weft_edit_list_t *edits;
} fixture_t;

/* Something to point at for every argument that is not the one under test. */
static struct any {
    void *address;
    weft_algo_params_t algo_params;
    weft_algorithm_t algorithm;
    weft_algorithms_params_t algorithms_params;
    weft_binding_t binding;
    weft_blocks_t blocks;
    weft_bucket_forecast_t bucket_forecast;
    weft_bucket_params_t bucket_params;
    char bytes[256];
    weft_capture_t *capture;
    weft_capture_info_t capture_info;
    weft_capture_params_t capture_params;
    weft_checkpoint_info_t checkpoint_info;
    weft_compile_params_t compile_params;
    weft_context_t *context;
    weft_context_params_t context_params;
    uint64_t counts[8];
    weft_device_t device;
    weft_device_info_t device_info;
    weft_device_t *opened;
    weft_edit_t edit;
    weft_edit_list_t *edit_list;
    weft_graph_t *graph;
    weft_event_t *event;
    weft_fuser_t *fuser;
    weft_fuser_params_t fuser_params;
    weft_fuser_stats_t fuser_stats;
    weft_graph_view_t graph_view;
    weft_group_t *group;
    weft_kernel_t kernel;
    weft_kernel_call_t kernel_call;
    weft_link_stats_t link_stats;
    weft_mem_handle_t mem_handle;
    weft_mem_info_t mem_info;
    const char *name;
    weft_named_tensor_t named_tensor;
    weft_node_desc_t node_desc;
    weft_notify_t *notify;
    int number;
    weft_op_def_t op_def;
    weft_peer_info_t peer_info;
    weft_message_t message;
    weft_place_t place;
    weft_plan_t *plan;
    weft_plan_buffer_params_t plan_buffer_params;
    weft_plan_builder_t *plan_builder;
    weft_plan_builder_params_t plan_builder_params;
    weft_plan_collective_params_t plan_collective_params;
    weft_plan_info_t plan_info;
    weft_plan_kernel_params_t plan_kernel_params;
    double real;
    weft_schedule_params_t schedule_params;
    weft_schedule_report_t schedule_report;
    weft_session_t *session;
    weft_session_params_t session_params;
    weft_session_stats_t session_stats;
    size_t size;
    uint32_t sizes[8];
    weft_stream_t *stream;
    weft_snapshot_info_t snapshot_info;
    weft_stream_params_t stream_params;
    weft_tensor_desc_t tensor_desc;
    char *text;
} any;

static char rows[1024][96]; /* "function.argument" of each row */
static size_t row_count;

static void note(const char *function, const char *argument)
{
    assert_true(row_count < sizeof(rows) / sizeof(rows[0]));
    snprintf(rows[row_count++], sizeof(rows[0]), "%s.%s", function, argument);
}

static void expect_message(const char *function, const char *argument)
{
    char message[160];
    snprintf(message, sizeof(message), "%s: %s is NULL", function, argument);
    assert_string_equal(weft_last_error(), message);
}

/* Returns WEFT_ERR_INVALID_ARGUMENT and names function and argument. */
#define FAILS(function, argument, call)                                                            \
    do {                                                                                           \
        note(#function, #argument);                                                                \
        assert_int_equal((call), WEFT_ERR_INVALID_ARGUMENT);                                       \
        expect_message(#function, #argument);                                                      \
    } while (0)

/* The same where all ranks agree on the error first, which names the rank. */
#define AGREES(function, argument, call)                                                           \
    do {                                                                                           \
        note(#function, #argument);                                                                \
        assert_int_equal((call), WEFT_ERR_INVALID_ARGUMENT);                                       \
        assert_string_equal(weft_last_error(), "rank 0: " #function ": " #argument " is NULL");    \
    } while (0)

/* Returns a neutral value and names function and argument. */
#define GIVES(function, argument, call, value)                                                     \
    do {                                                                                           \
        note(#function, #argument);                                                                \
        assert_true((call) == (value));                                                            \
        expect_message(#function, #argument);                                                      \
    } while (0)

/* GIVES for a text. */
#define GIVES_TEXT(function, argument, call, value)                                                \
    do {                                                                                           \
        note(#function, #argument);                                                                \
        assert_string_equal((call), (value));                                                      \
        expect_message(#function, #argument);                                                      \
    } while (0)

/* Returns nothing; names function and argument. */
#define RETURNS(function, argument, call)                                                          \
    do {                                                                                           \
        note(#function, #argument);                                                                \
        (call);                                                                                    \
        expect_message(#function, #argument);                                                      \
    } while (0)

/* NULL is valid and does nothing. */
#define ACCEPTS(function, argument, call)                                                          \
    do {                                                                                           \
        note(#function, #argument);                                                                \
        (call);                                                                                    \
    } while (0)

/* NULL is valid, or valid for some values of the other arguments (see test_buffers). */
#define OPTIONAL(function, argument) note(#function, #argument)

static weft_status_t run(const weft_kernel_call_t *call)
{
    (void)call;
    return WEFT_OK;
}

static int visit(const weft_op_def_t *def, void *user)
{
    (void)def;
    (void)user;
    return 0;
}

static weft_status_t host(void *user)
{
    (void)user;
    return WEFT_OK;
}

static void call_algo(const fixture_t *f)
{
    RETURNS(weft_schedule_post, builder, weft_schedule_post(NULL, 0, 0));
    RETURNS(weft_schedule_wait, builder, weft_schedule_wait(NULL, 0, 0, 0, 0, 0, 0));
    RETURNS(weft_schedule_copy, builder,
            weft_schedule_copy(NULL, 0, any.place, any.place, any.blocks));
    RETURNS(weft_schedule_reduce, builder,
            weft_schedule_reduce(NULL, 0, &any.place, 0, &any.place, 0, any.blocks, 0));
    OPTIONAL(weft_schedule_reduce, destinations);
    OPTIONAL(weft_schedule_reduce, sources);
    FAILS(weft_registry_add_algorithm, registry, weft_registry_add_algorithm(NULL, &any.algorithm));
    FAILS(weft_registry_add_algorithm, algorithm, weft_registry_add_algorithm(f->registry, NULL));
    OPTIONAL(weft_registry_find_algorithm, registry);
    ACCEPTS(
        weft_registry_find_algorithm, name,
        assert_null(weft_registry_find_algorithm(f->registry, WEFT_COLLECTIVE_ALL_REDUCE, NULL)));
    FAILS(weft_algorithm_verify, algorithm, weft_algorithm_verify(NULL, &any.algo_params));
    FAILS(weft_algorithm_verify, params, weft_algorithm_verify(&any.algorithm, NULL));
}

static void call_capture(const fixture_t *f)
{
    FAILS(weft_capture_begin, group, weft_capture_begin(NULL, &any.capture_params));
    OPTIONAL(weft_capture_begin, params);
    FAILS(weft_capture_end, group, weft_capture_end(NULL, &any.capture));
    FAILS(weft_capture_end, out_capture, weft_capture_end(f->group, NULL));
    FAILS(weft_capture_cancel, group, weft_capture_cancel(NULL));
    FAILS(weft_capture_launch, capture, weft_capture_launch(NULL, f->stream));
    OPTIONAL(weft_capture_launch, stream);
    FAILS(weft_capture_ready, capture, weft_capture_ready(NULL, 0, f->stream));
    OPTIONAL(weft_capture_ready, stream);
    FAILS(weft_capture_wait, capture, weft_capture_wait(NULL, 0, f->stream));
    OPTIONAL(weft_capture_wait, stream);
    FAILS(weft_capture_wait_all, capture, weft_capture_wait_all(NULL));
    FAILS(weft_capture_get_info, capture, weft_capture_get_info(NULL, &any.capture_info));
    FAILS(weft_capture_get_info, info, weft_capture_get_info(f->capture, NULL));
    FAILS(weft_capture_explain, capture, weft_capture_explain(NULL, WEFT_FORMAT_TEXT, &any.text));
    FAILS(weft_capture_explain, out_text, weft_capture_explain(f->capture, WEFT_FORMAT_TEXT, NULL));
    ACCEPTS(weft_capture_destroy, capture, weft_capture_destroy(NULL));
    ACCEPTS(weft_capture_leave, capture, weft_capture_leave(NULL));
}

static void call_checkpoint(const fixture_t *f)
{
    FAILS(weft_session_save_checkpoint, session,
          weft_session_save_checkpoint(NULL, "x", &any.checkpoint_info));
    AGREES(weft_session_save_checkpoint, path,
           weft_session_save_checkpoint(f->session, NULL, &any.checkpoint_info));
    OPTIONAL(weft_session_save_checkpoint, info);
    FAILS(weft_session_load_checkpoint, session,
          weft_session_load_checkpoint(NULL, "x", &any.checkpoint_info));
    AGREES(weft_session_load_checkpoint, path,
           weft_session_load_checkpoint(f->session, NULL, &any.checkpoint_info));
    OPTIONAL(weft_session_load_checkpoint, out_info);
    weft_checkpoint_writer_t *writer = NULL;
    char path[8];
    FAILS(weft_checkpoint_writer_create, session,
          weft_checkpoint_writer_create(NULL, NULL, &writer));
    FAILS(weft_checkpoint_writer_create, out_writer,
          weft_checkpoint_writer_create(f->session, NULL, NULL));
    OPTIONAL(weft_checkpoint_writer_create, params);
    assert_int_equal(weft_checkpoint_writer_create(f->session, NULL, &writer), WEFT_OK);
    FAILS(weft_checkpoint_writer_start, writer,
          weft_checkpoint_writer_start(NULL, "x", &any.checkpoint_info));
    AGREES(weft_checkpoint_writer_start, path,
           weft_checkpoint_writer_start(writer, NULL, &any.checkpoint_info));
    OPTIONAL(weft_checkpoint_writer_start, info);
    FAILS(weft_checkpoint_writer_wait, writer, weft_checkpoint_writer_wait(NULL));
    ACCEPTS(weft_checkpoint_writer_destroy, writer, weft_checkpoint_writer_destroy(NULL));
    weft_checkpoint_writer_destroy(writer);
    FAILS(weft_checkpoint_newest, path,
          weft_checkpoint_newest(NULL, path, sizeof path, &any.checkpoint_info));
    FAILS(weft_checkpoint_newest, out_path,
          weft_checkpoint_newest("x", NULL, 0, &any.checkpoint_info));
    OPTIONAL(weft_checkpoint_newest, out_info);
    FAILS(weft_checkpoint_check, path,
          weft_checkpoint_check(NULL, f->plan, f->registry, &any.checkpoint_info));
    OPTIONAL(weft_checkpoint_check, plan);
    OPTIONAL(weft_checkpoint_check, registry);
    OPTIONAL(weft_checkpoint_check, out_info);
    weft_snapshot_t *snapshot = NULL;
    FAILS(weft_snapshot_create, out_snapshot, weft_snapshot_create(NULL));
    assert_int_equal(weft_snapshot_create(&snapshot), WEFT_OK);
    FAILS(weft_snapshot_take, snapshot,
          weft_snapshot_take(NULL, f->session, f->group, &any.checkpoint_info));
    FAILS(weft_snapshot_take, session,
          weft_snapshot_take(snapshot, NULL, f->group, &any.checkpoint_info));
    FAILS(weft_snapshot_take, group,
          weft_snapshot_take(snapshot, f->session, NULL, &any.checkpoint_info));
    OPTIONAL(weft_snapshot_take, info);
    FAILS(weft_snapshot_restore, snapshot,
          weft_snapshot_restore(NULL, f->session, f->group, &any.checkpoint_info));
    FAILS(weft_snapshot_restore, session,
          weft_snapshot_restore(snapshot, NULL, f->group, &any.checkpoint_info));
    FAILS(weft_snapshot_restore, group,
          weft_snapshot_restore(snapshot, f->session, NULL, &any.checkpoint_info));
    OPTIONAL(weft_snapshot_restore, out_info);
    FAILS(weft_snapshot_gather, snapshot, weft_snapshot_gather(NULL, f->group));
    FAILS(weft_snapshot_gather, group, weft_snapshot_gather(snapshot, NULL));
    FAILS(weft_snapshot_get_info, snapshot, weft_snapshot_get_info(NULL, &any.snapshot_info));
    FAILS(weft_snapshot_get_info, info, weft_snapshot_get_info(snapshot, NULL));
    ACCEPTS(weft_snapshot_destroy, snapshot, weft_snapshot_destroy(NULL));
    weft_snapshot_destroy(snapshot);
}

static void call_collective(const fixture_t *f)
{
    OPTIONAL(weft_all_reduce, send);
    OPTIONAL(weft_all_reduce, recv);
    FAILS(weft_all_reduce, group,
          weft_all_reduce(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, NULL,
                          f->stream));
    OPTIONAL(weft_all_reduce, stream);
    OPTIONAL(weft_reduce_scatter, send);
    OPTIONAL(weft_reduce_scatter, recv);
    FAILS(weft_reduce_scatter, group,
          weft_reduce_scatter(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, NULL,
                              f->stream));
    OPTIONAL(weft_reduce_scatter, stream);
    OPTIONAL(weft_all_gather, send);
    OPTIONAL(weft_all_gather, recv);
    FAILS(weft_all_gather, group,
          weft_all_gather(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, NULL, f->stream));
    OPTIONAL(weft_all_gather, stream);
    OPTIONAL(weft_broadcast, send);
    OPTIONAL(weft_broadcast, recv);
    FAILS(weft_broadcast, group,
          weft_broadcast(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, 0, NULL, f->stream));
    OPTIONAL(weft_broadcast, stream);
    OPTIONAL(weft_reduce, send);
    OPTIONAL(weft_reduce, recv);
    FAILS(weft_reduce, group,
          weft_reduce(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0, NULL,
                      f->stream));
    OPTIONAL(weft_reduce, stream);
    OPTIONAL(weft_gather, send);
    OPTIONAL(weft_gather, recv);
    FAILS(weft_gather, group,
          weft_gather(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, 0, NULL, f->stream));
    OPTIONAL(weft_gather, stream);
    OPTIONAL(weft_scatter, send);
    OPTIONAL(weft_scatter, recv);
    FAILS(weft_scatter, group,
          weft_scatter(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, 0, NULL, f->stream));
    OPTIONAL(weft_scatter, stream);
    OPTIONAL(weft_all_to_all, send);
    OPTIONAL(weft_all_to_all, recv);
    FAILS(weft_all_to_all, group,
          weft_all_to_all(any.bytes, any.bytes, 1, WEFT_DTYPE_F32, NULL, f->stream));
    OPTIONAL(weft_all_to_all, stream);
    OPTIONAL(weft_all_gather_v, send);
    OPTIONAL(weft_all_gather_v, recv);
    FAILS(weft_all_gather_v, counts,
          weft_all_gather_v(any.bytes, any.bytes, NULL, any.counts, WEFT_DTYPE_F32, f->group,
                            f->stream));
    OPTIONAL(weft_all_gather_v, displacements);
    FAILS(weft_all_gather_v, group,
          weft_all_gather_v(any.bytes, any.bytes, any.counts, any.counts, WEFT_DTYPE_F32, NULL,
                            f->stream));
    OPTIONAL(weft_all_gather_v, stream);
    OPTIONAL(weft_reduce_scatter_v, send);
    OPTIONAL(weft_reduce_scatter_v, recv);
    FAILS(weft_reduce_scatter_v, counts,
          weft_reduce_scatter_v(any.bytes, any.bytes, NULL, any.counts, WEFT_DTYPE_F32,
                                WEFT_REDUCTION_SUM, f->group, f->stream));
    OPTIONAL(weft_reduce_scatter_v, displacements);
    FAILS(weft_reduce_scatter_v, group,
          weft_reduce_scatter_v(any.bytes, any.bytes, any.counts, any.counts, WEFT_DTYPE_F32,
                                WEFT_REDUCTION_SUM, NULL, f->stream));
    OPTIONAL(weft_reduce_scatter_v, stream);
    OPTIONAL(weft_all_to_all_v, send);
    FAILS(weft_all_to_all_v, send_counts,
          weft_all_to_all_v(any.bytes, NULL, any.counts, any.bytes, any.counts, any.counts,
                            WEFT_DTYPE_F32, f->group, f->stream));
    OPTIONAL(weft_all_to_all_v, send_displacements);
    OPTIONAL(weft_all_to_all_v, recv);
    FAILS(weft_all_to_all_v, recv_counts,
          weft_all_to_all_v(any.bytes, any.counts, any.counts, any.bytes, NULL, any.counts,
                            WEFT_DTYPE_F32, f->group, f->stream));
    OPTIONAL(weft_all_to_all_v, recv_displacements);
    FAILS(weft_all_to_all_v, group,
          weft_all_to_all_v(any.bytes, any.counts, any.counts, any.bytes, any.counts, any.counts,
                            WEFT_DTYPE_F32, NULL, f->stream));
    OPTIONAL(weft_all_to_all_v, stream);
    OPTIONAL(weft_send, data);
    FAILS(weft_send, group, weft_send(any.bytes, 1, WEFT_DTYPE_F32, 0, NULL, f->stream));
    OPTIONAL(weft_send, stream);
    OPTIONAL(weft_recv, data);
    FAILS(weft_recv, group, weft_recv(any.bytes, 1, WEFT_DTYPE_F32, 0, NULL, f->stream));
    OPTIONAL(weft_recv, stream);
    OPTIONAL(weft_send_tagged, data);
    FAILS(weft_send_tagged, group,
          weft_send_tagged(any.bytes, 1, WEFT_DTYPE_F32, 0, 0, NULL, f->stream));
    OPTIONAL(weft_send_tagged, stream);
    OPTIONAL(weft_recv_tagged, data);
    FAILS(weft_recv_tagged, group,
          weft_recv_tagged(any.bytes, 1, WEFT_DTYPE_F32, 0, 0, NULL, f->stream));
    OPTIONAL(weft_recv_tagged, stream);
    FAILS(weft_probe, group, weft_probe(0, 0, NULL, &any.message));
    OPTIONAL(weft_probe, out_message);
    FAILS(weft_barrier, group, weft_barrier(NULL, f->stream));
    OPTIONAL(weft_barrier, stream);
    FAILS(weft_batch_begin, group, weft_batch_begin(NULL));
    FAILS(weft_batch_end, group, weft_batch_end(NULL, f->stream));
    OPTIONAL(weft_batch_end, stream);
    FAILS(weft_batch_cancel, group, weft_batch_cancel(NULL));
}

static void call_compile(const fixture_t *f)
{
    FAILS(weft_compile, params, weft_compile(NULL, &any.plan));
    FAILS(weft_compile, out_plan, weft_compile(&any.compile_params, NULL));
    ACCEPTS(weft_compile_visit_passes, visit, weft_compile_visit_passes(NULL, NULL));
    OPTIONAL(weft_compile_visit_passes, user);
    FAILS(weft_compile_option_set, params, weft_compile_option_set(NULL, "lr", "1"));
    FAILS(weft_compile_option_set, name, weft_compile_option_set(&any.compile_params, NULL, "1"));
    FAILS(weft_compile_option_set, text, weft_compile_option_set(&any.compile_params, "lr", NULL));
    RETURNS(weft_compile_option_help, prefix, weft_compile_option_help(0, NULL, any.bytes, 8));
    RETURNS(weft_compile_option_help, out, weft_compile_option_help(0, "", NULL, 8));
    FAILS(weft_bucket_policy_check, policy, weft_bucket_policy_check(NULL));
    FAILS(weft_model_check, params,
          weft_model_check(NULL, WEFT_FORMAT_TEXT, &any.text, &any.number));
    FAILS(weft_model_check, out_text,
          weft_model_check(&any.compile_params, WEFT_FORMAT_TEXT, NULL, &any.number));
    FAILS(weft_model_check, out_compiles,
          weft_model_check(&any.compile_params, WEFT_FORMAT_TEXT, &any.text, NULL));
    FAILS(weft_model_save, plan, weft_model_save(NULL, &any.named_tensor, 0, "x"));
    FAILS(weft_model_save, tensors, weft_model_save(f->plan, NULL, 1, "x"));
    FAILS(weft_model_save, path, weft_model_save(f->plan, &any.named_tensor, 0, NULL));
}

static void call_context(const fixture_t *f)
{
    FAILS(weft_hub_create, out_hub, weft_hub_create(0, NULL));
    ACCEPTS(weft_hub_destroy, hub, weft_hub_destroy(NULL));
    FAILS(weft_context_create, params, weft_context_create(NULL, &any.context));
    FAILS(weft_context_create, out_context, weft_context_create(&any.context_params, NULL));
    RETURNS(weft_context_retain, context, weft_context_retain(NULL));
    ACCEPTS(weft_context_release, context, weft_context_release(NULL));
    FAILS(weft_device_count, plugin, weft_device_count(NULL, any.sizes));
    FAILS(weft_device_count, out_count, weft_device_count("opencl", NULL));
    FAILS(weft_device_describe, plugin, weft_device_describe(NULL, 0, &any.device_info));
    FAILS(weft_device_describe, out_info, weft_device_describe("opencl", 0, NULL));
    FAILS(weft_device_open, name, weft_device_open(NULL, &any.opened));
    FAILS(weft_device_open, out_device, weft_device_open("cpu", NULL));
    ACCEPTS(weft_device_close, device, weft_device_close(NULL));
    FAILS(weft_context_set_device, context, weft_context_set_device(NULL, &any.device));
    OPTIONAL(weft_context_set_device, device);
    GIVES(weft_context_device, context, weft_context_device(NULL), NULL);
    GIVES(weft_context_rank, context, weft_context_rank(NULL), UINT32_MAX);
    GIVES(weft_context_world_size, context, weft_context_world_size(NULL), 0);
    FAILS(weft_context_peer_info, context, weft_context_peer_info(NULL, 0, &any.peer_info));
    FAILS(weft_context_peer_info, out_info, weft_context_peer_info(f->context, 0, NULL));
    FAILS(weft_context_link_stats, context, weft_context_link_stats(NULL, 0, &any.link_stats));
    FAILS(weft_context_link_stats, out_stats, weft_context_link_stats(f->context, 0, NULL));
    GIVES_TEXT(weft_context_launcher, context, weft_context_launcher(NULL), "unknown");
    GIVES(weft_context_host_count, context, weft_context_host_count(NULL), 0);
    FAILS(weft_context_topology, context,
          weft_context_topology(NULL, WEFT_FORMAT_TEXT, 0, &any.text));
    FAILS(weft_context_topology, out_text,
          weft_context_topology(f->context, WEFT_FORMAT_TEXT, 0, NULL));
    FAILS(weft_context_barrier, context, weft_context_barrier(NULL));
    FAILS(weft_context_all_gather, context, weft_context_all_gather(NULL, any.bytes, 4, any.bytes));
    FAILS(weft_context_all_gather, send, weft_context_all_gather(f->context, NULL, 4, any.bytes));
    FAILS(weft_context_all_gather, recv, weft_context_all_gather(f->context, any.bytes, 4, NULL));
    RETURNS(weft_context_abort, context, weft_context_abort(NULL, "x"));
    OPTIONAL(weft_context_abort, message);
    FAILS(weft_context_dump, context, weft_context_dump(NULL, "x"));
    OPTIONAL(weft_context_dump, path);
    FAILS(weft_context_shrink, context, weft_context_shrink(NULL, &any.context));
    FAILS(weft_context_shrink, out_context, weft_context_shrink(f->context, NULL));
    FAILS(weft_context_grow, context, weft_context_grow(NULL, &any.context_params, &any.context));
    FAILS(weft_context_grow, params, weft_context_grow(f->context, NULL, &any.context));
    FAILS(weft_context_grow, out_context, weft_context_grow(f->context, &any.context_params, NULL));
    GIVES(weft_context_member, context, weft_context_member(NULL, 0), UINT32_MAX);
    GIVES(weft_context_generation, context, weft_context_generation(NULL), 0);
}

static void call_fuser(const fixture_t *f)
{
    FAILS(weft_fuser_create, group, weft_fuser_create(NULL, &any.fuser_params, &any.fuser));
    OPTIONAL(weft_fuser_create, params);
    FAILS(weft_fuser_create, out_fuser, weft_fuser_create(f->group, &any.fuser_params, NULL));
    FAILS(weft_fuser_add, fuser,
          weft_fuser_add(NULL, any.bytes, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, "x"));
    OPTIONAL(weft_fuser_add, tensor);
    FAILS(weft_fuser_add, name,
          weft_fuser_add(f->fuser, any.bytes, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, NULL));
    FAILS(weft_fuser_flush, fuser, weft_fuser_flush(NULL));
    FAILS(weft_fuser_query, fuser, weft_fuser_query(NULL));
    FAILS(weft_fuser_wait, fuser, weft_fuser_wait(NULL));
    FAILS(weft_fuser_reset, fuser, weft_fuser_reset(NULL));
    FAILS(weft_fuser_get_stats, fuser, weft_fuser_get_stats(NULL, &any.fuser_stats));
    FAILS(weft_fuser_get_stats, stats, weft_fuser_get_stats(f->fuser, NULL));
    ACCEPTS(weft_fuser_destroy, fuser, weft_fuser_destroy(NULL));
    ACCEPTS(weft_fuser_leave, fuser, weft_fuser_leave(NULL));
}

static void call_graph_view(const fixture_t *f)
{
    OPTIONAL(weft_edit_list_create, allocator);
    FAILS(weft_edit_list_create, out_list, weft_edit_list_create(NULL, NULL));
    ACCEPTS(weft_edit_list_destroy, list, weft_edit_list_destroy(NULL));
    FAILS(weft_edit_list_add, list, weft_edit_list_add(NULL, &any.edit));
    FAILS(weft_edit_list_add, edit, weft_edit_list_add(f->edits, NULL));
    GIVES(weft_edit_list_count, list, weft_edit_list_count(NULL), 0);
    GIVES(weft_edit_list_get, list, weft_edit_list_get(NULL, 0), NULL);
}

static void call_group(const fixture_t *f)
{
    FAILS(weft_group_create_world, context, weft_group_create_world(NULL, &any.group));
    FAILS(weft_group_create_world, out_group, weft_group_create_world(f->context, NULL));
    OPTIONAL(weft_group_create, params);
    FAILS(weft_group_create, context, weft_group_create(NULL, NULL, &any.group));
    FAILS(weft_group_create, out_group, weft_group_create(f->context, NULL, NULL));
    FAILS(weft_group_split, parent, weft_group_split(NULL, 0, 0, &any.group));
    FAILS(weft_group_split, out_group, weft_group_split(f->group, 0, 0, NULL));
    FAILS(weft_group_create_ranks, parent, weft_group_create_ranks(NULL, any.sizes, 1, &any.group));
    FAILS(weft_group_create_ranks, ranks, weft_group_create_ranks(f->group, NULL, 1, &any.group));
    FAILS(weft_group_create_ranks, out_group,
          weft_group_create_ranks(f->group, any.sizes, 1, NULL));
    FAILS(weft_group_duplicate, group, weft_group_duplicate(NULL, &any.group));
    FAILS(weft_group_duplicate, out_group, weft_group_duplicate(f->group, NULL));
    FAILS(weft_group_create_named, name, weft_group_create_named(NULL, 0, 0, NULL, &any.group));
    OPTIONAL(weft_group_create_named, params);
    FAILS(weft_group_create_named, out_group, weft_group_create_named("x", 0, 0, NULL, NULL));
    FAILS(weft_group_shrink, group, weft_group_shrink(NULL, &any.group));
    FAILS(weft_group_shrink, out_group, weft_group_shrink(f->group, NULL));
    FAILS(weft_group_grow, group, weft_group_grow(NULL, &any.context_params, &any.group));
    FAILS(weft_group_grow, params, weft_group_grow(f->group, NULL, &any.group));
    FAILS(weft_group_grow, out_group, weft_group_grow(f->group, &any.context_params, NULL));
    ACCEPTS(weft_group_destroy, group, weft_group_destroy(NULL));
    ACCEPTS(weft_group_leave, group, weft_group_leave(NULL));
    GIVES(weft_group_size, group, weft_group_size(NULL), 0);
    GIVES(weft_group_rank, group, weft_group_rank(NULL), UINT32_MAX);
    GIVES(weft_group_world_rank, group, weft_group_world_rank(NULL, 0), UINT32_MAX);
    GIVES(weft_group_context, group, weft_group_context(NULL), NULL);
    FAILS(weft_group_status, group, weft_group_status(NULL));
    FAILS(weft_group_set_order, group, weft_group_set_order(NULL, WEFT_ORDER_TREE, any.sizes, 1));
    OPTIONAL(weft_group_set_order, block_sizes);
    GIVES(weft_group_order, group, weft_group_order(NULL), WEFT_ORDER_TREE);
    FAILS(weft_group_set_algorithm, group,
          weft_group_set_algorithm(NULL, WEFT_COLLECTIVE_ALL_REDUCE, "x"));
    OPTIONAL(weft_group_set_algorithm, name);
    FAILS(weft_group_set_shape, group, weft_group_set_shape(NULL, NULL, 0));
    OPTIONAL(weft_group_set_shape, dims);
    FAILS(weft_group_refuse, group, weft_group_refuse(NULL, WEFT_ERR_STATE, "x", NULL));
    FAILS(weft_group_refuse, message, weft_group_refuse(f->group, WEFT_ERR_STATE, NULL, NULL));
    OPTIONAL(weft_group_refuse, stream);
    GIVES_TEXT(weft_group_last_algorithm, group, weft_group_last_algorithm(NULL), "none");
    GIVES_TEXT(weft_group_last_path, group, weft_group_last_path(NULL), "none");
}

static void call_memory(const fixture_t *f)
{
    FAILS(weft_device_alloc, context, weft_device_alloc(NULL, 4, &any.address));
    FAILS(weft_device_alloc, out_address, weft_device_alloc(f->context, 4, NULL));
    FAILS(weft_device_free, context, weft_device_free(NULL, any.bytes));
    OPTIONAL(weft_device_free, address);
    FAILS(weft_mem_copy, context, weft_mem_copy(NULL, any.bytes, any.bytes, 4));
    FAILS(weft_mem_copy, dst, weft_mem_copy(f->context, NULL, any.bytes, 4));
    FAILS(weft_mem_copy, src, weft_mem_copy(f->context, any.bytes, NULL, 4));
    FAILS(weft_mem_fill, context, weft_mem_fill(NULL, any.bytes, 0, 4));
    FAILS(weft_mem_fill, dst, weft_mem_fill(f->context, NULL, 0, 4));
    FAILS(weft_stream_fill, stream, weft_stream_fill(NULL, any.bytes, 0, 4));
    FAILS(weft_stream_fill, dst, weft_stream_fill(f->stream, NULL, 0, 4));
    FAILS(weft_mem_query, context, weft_mem_query(NULL, any.bytes, &any.mem_info));
    FAILS(weft_mem_query, address, weft_mem_query(f->context, NULL, &any.mem_info));
    FAILS(weft_mem_query, out_info, weft_mem_query(f->context, any.bytes, NULL));
    FAILS(weft_mem_get_handle, context, weft_mem_get_handle(NULL, any.bytes, &any.mem_handle));
    FAILS(weft_mem_get_handle, address, weft_mem_get_handle(f->context, NULL, &any.mem_handle));
    FAILS(weft_mem_get_handle, out_handle, weft_mem_get_handle(f->context, any.bytes, NULL));
    FAILS(weft_mem_wrap, context, weft_mem_wrap(NULL, any.bytes, 4, &any.address));
    FAILS(weft_mem_wrap, handle, weft_mem_wrap(f->context, NULL, 4, &any.address));
    FAILS(weft_mem_wrap, out_address, weft_mem_wrap(f->context, any.bytes, 4, NULL));
    FAILS(weft_mem_unwrap, context, weft_mem_unwrap(NULL, any.bytes));
    OPTIONAL(weft_mem_unwrap, address);
    FAILS(weft_mem_alloc, context, weft_mem_alloc(NULL, 4, &any.address));
    FAILS(weft_mem_alloc, out_address, weft_mem_alloc(f->context, 4, NULL));
    FAILS(weft_mem_free, context, weft_mem_free(NULL, any.bytes));
    OPTIONAL(weft_mem_free, address);
    FAILS(weft_mem_keep, context, weft_mem_keep(NULL));
    FAILS(weft_mem_register, context, weft_mem_register(NULL, any.bytes, 4));
    FAILS(weft_mem_register, address, weft_mem_register(f->context, NULL, 4));
    FAILS(weft_mem_unregister, context, weft_mem_unregister(NULL, any.bytes));
    FAILS(weft_mem_unregister, address, weft_mem_unregister(f->context, NULL));
}

static void call_passes(const fixture_t *f)
{
    GIVES(weft_op_predict_ns, def, weft_op_predict_ns(NULL, &any.node_desc), 0);
    GIVES(weft_op_predict_ns, node, weft_op_predict_ns(&any.op_def, NULL), 0);
    FAILS(weft_pass_ready_times, view, weft_pass_ready_times(NULL, any.counts, any.counts));
    OPTIONAL(weft_pass_ready_times, op_ns);
    FAILS(weft_pass_ready_times, ready_ns,
          weft_pass_ready_times(&any.graph_view, any.counts, NULL));
    FAILS(weft_pass_insert_collectives, view,
          weft_pass_insert_collectives(NULL, NULL, &any.edit_list));
    OPTIONAL(weft_pass_insert_collectives, allocator);
    FAILS(weft_pass_insert_collectives, out_edits,
          weft_pass_insert_collectives(&any.graph_view, NULL, NULL));
    FAILS(weft_pass_bucket, view,
          weft_pass_bucket(NULL, &any.bucket_params, &any.edit_list, &any.bucket_forecast));
    FAILS(weft_pass_bucket, params,
          weft_pass_bucket(&any.graph_view, NULL, &any.edit_list, &any.bucket_forecast));
    FAILS(weft_pass_bucket, out_edits,
          weft_pass_bucket(&any.graph_view, &any.bucket_params, NULL, &any.bucket_forecast));
    OPTIONAL(weft_pass_bucket, out_forecast);
    FAILS(weft_pass_algorithms, view,
          weft_pass_algorithms(NULL, &any.algorithms_params, &any.edit_list));
    FAILS(weft_pass_algorithms, params,
          weft_pass_algorithms(&any.graph_view, NULL, &any.edit_list));
    FAILS(weft_pass_algorithms, out_edits,
          weft_pass_algorithms(&any.graph_view, &any.algorithms_params, NULL));
    FAILS(weft_pass_order, view, weft_pass_order(NULL, NULL, &any.edit_list));
    OPTIONAL(weft_pass_order, allocator);
    FAILS(weft_pass_order, out_edits, weft_pass_order(&any.graph_view, NULL, NULL));
    FAILS(weft_pass_start_wait, view, weft_pass_start_wait(NULL, NULL, &any.edit_list));
    OPTIONAL(weft_pass_start_wait, allocator);
    FAILS(weft_pass_start_wait, out_edits, weft_pass_start_wait(&any.graph_view, NULL, NULL));
    FAILS(weft_pass_schedule, view,
          weft_pass_schedule(NULL, &any.schedule_params, &any.edit_list, &any.schedule_report));
    FAILS(weft_pass_schedule, params,
          weft_pass_schedule(&any.graph_view, NULL, &any.edit_list, &any.schedule_report));
    FAILS(weft_pass_schedule, out_edits,
          weft_pass_schedule(&any.graph_view, &any.schedule_params, NULL, &any.schedule_report));
    OPTIONAL(weft_pass_schedule, out_report);
    FAILS(weft_edits_check, view, weft_edits_check(NULL, f->edits));
    FAILS(weft_edits_check, edits, weft_edits_check(&any.graph_view, NULL));
    FAILS(weft_graph_from_text, text, weft_graph_from_text(NULL, f->registry, &any.graph));
    FAILS(weft_graph_from_text, registry, weft_graph_from_text("", NULL, &any.graph));
    FAILS(weft_graph_from_text, out_graph, weft_graph_from_text("", f->registry, NULL));
    GIVES(weft_graph_get_view, graph, weft_graph_get_view(NULL), NULL);
    FAILS(weft_graph_apply, graph, weft_graph_apply(NULL, f->edits));
    weft_graph_t *graph = NULL;
    assert_int_equal(weft_graph_from_text("", f->registry, &graph), WEFT_OK);
    FAILS(weft_graph_apply, edits, weft_graph_apply(graph, NULL));
    weft_graph_destroy(graph);
    GIVES(weft_graph_to_text, graph, weft_graph_to_text(NULL), NULL);
    ACCEPTS(weft_graph_destroy, graph, weft_graph_destroy(NULL));
}

static void call_plan_builder(const fixture_t *f)
{
    weft_plan_builder_t *b = f->builder;
    uint32_t *id = any.sizes;
    FAILS(weft_plan_builder_create, params, weft_plan_builder_create(NULL, &any.plan_builder));
    FAILS(weft_plan_builder_create, out_builder,
          weft_plan_builder_create(&any.plan_builder_params, NULL));
    ACCEPTS(weft_plan_builder_destroy, builder, weft_plan_builder_destroy(NULL));
    FAILS(weft_plan_builder_add_stream, builder, weft_plan_builder_add_stream(NULL, "x", id));
    FAILS(weft_plan_builder_add_stream, name, weft_plan_builder_add_stream(b, NULL, id));
    FAILS(weft_plan_builder_add_stream, out_stream, weft_plan_builder_add_stream(b, "x", NULL));
    FAILS(weft_plan_builder_add_event, builder, weft_plan_builder_add_event(NULL, id));
    FAILS(weft_plan_builder_add_event, out_event, weft_plan_builder_add_event(b, NULL));
    FAILS(weft_plan_builder_add_buffer, builder,
          weft_plan_builder_add_buffer(NULL, &any.plan_buffer_params, id));
    FAILS(weft_plan_builder_add_buffer, params, weft_plan_builder_add_buffer(b, NULL, id));
    FAILS(weft_plan_builder_add_buffer, out_buffer,
          weft_plan_builder_add_buffer(b, &any.plan_buffer_params, NULL));
    FAILS(weft_plan_builder_add_kernel, builder,
          weft_plan_builder_add_kernel(NULL, &any.plan_kernel_params, id));
    FAILS(weft_plan_builder_add_kernel, params, weft_plan_builder_add_kernel(b, NULL, id));
    FAILS(weft_plan_builder_add_kernel, out_kernel,
          weft_plan_builder_add_kernel(b, &any.plan_kernel_params, NULL));
    FAILS(weft_plan_builder_add_collective, builder,
          weft_plan_builder_add_collective(NULL, &any.plan_collective_params, id));
    FAILS(weft_plan_builder_add_collective, params, weft_plan_builder_add_collective(b, NULL, id));
    FAILS(weft_plan_builder_add_collective, out_collective,
          weft_plan_builder_add_collective(b, &any.plan_collective_params, NULL));
    FAILS(weft_plan_builder_append_kernel, builder,
          weft_plan_builder_append_kernel(NULL, "step", 0, 0));
    FAILS(weft_plan_builder_append_kernel, program, weft_plan_builder_append_kernel(b, NULL, 0, 0));
    FAILS(weft_plan_builder_append_collective, builder,
          weft_plan_builder_append_collective(NULL, "step", 0, 0));
    FAILS(weft_plan_builder_append_collective, program,
          weft_plan_builder_append_collective(b, NULL, 0, 0));
    FAILS(weft_plan_builder_append_record, builder,
          weft_plan_builder_append_record(NULL, "step", 0, 0));
    FAILS(weft_plan_builder_append_record, program, weft_plan_builder_append_record(b, NULL, 0, 0));
    FAILS(weft_plan_builder_append_wait, builder,
          weft_plan_builder_append_wait(NULL, "step", 0, 0));
    FAILS(weft_plan_builder_append_wait, program, weft_plan_builder_append_wait(b, NULL, 0, 0));
    FAILS(weft_plan_builder_finish, builder, weft_plan_builder_finish(NULL, &any.plan));
    FAILS(weft_plan_builder_finish, out_plan, weft_plan_builder_finish(b, NULL));
}

static void call_plan(const fixture_t *f)
{
    FAILS(weft_plan_load, path, weft_plan_load(NULL, f->registry, &any.plan));
    OPTIONAL(weft_plan_load, registry);
    FAILS(weft_plan_load, out_plan, weft_plan_load("x", f->registry, NULL));
    FAILS(weft_plan_save, plan, weft_plan_save(NULL, "x"));
    FAILS(weft_plan_save, path, weft_plan_save(f->plan, NULL));
    RETURNS(weft_plan_retain, plan, weft_plan_retain(NULL));
    ACCEPTS(weft_plan_release, plan, weft_plan_release(NULL));
    FAILS(weft_plan_get_info, plan, weft_plan_get_info(NULL, &any.plan_info));
    FAILS(weft_plan_get_info, info, weft_plan_get_info(f->plan, NULL));
    GIVES(weft_plan_binding_count, plan, weft_plan_binding_count(NULL), 0);
    FAILS(weft_plan_get_binding, plan, weft_plan_get_binding(NULL, 0, &any.binding));
    FAILS(weft_plan_get_binding, binding, weft_plan_get_binding(f->plan, 0, NULL));
    FAILS(weft_plan_explain, plan, weft_plan_explain(NULL, WEFT_FORMAT_TEXT, &any.text));
    FAILS(weft_plan_explain, out_text, weft_plan_explain(f->plan, WEFT_FORMAT_TEXT, NULL));
    FAILS(weft_plan_compare, plan, weft_plan_compare(NULL, &any.text));
    FAILS(weft_plan_compare, out_text, weft_plan_compare(f->plan, NULL));
    FAILS(weft_plan_why, plan, weft_plan_why(NULL, "x", &any.text));
    FAILS(weft_plan_why, tensor, weft_plan_why(f->plan, NULL, &any.text));
    FAILS(weft_plan_why, out_text, weft_plan_why(f->plan, "x", NULL));
}

static void call_registry(const fixture_t *f)
{
    OPTIONAL(weft_registry_create, allocator);
    FAILS(weft_registry_create, out_registry, weft_registry_create(NULL, NULL));
    ACCEPTS(weft_registry_destroy, registry, weft_registry_destroy(NULL));
    FAILS(weft_registry_add_op, registry, weft_registry_add_op(NULL, &any.op_def));
    FAILS(weft_registry_add_op, def, weft_registry_add_op(f->registry, NULL));
    FAILS(weft_registry_add_kernel, registry, weft_registry_add_kernel(NULL, &any.kernel));
    FAILS(weft_registry_add_kernel, kernel, weft_registry_add_kernel(f->registry, NULL));
    RETURNS(weft_op_registry_visit, registry, weft_op_registry_visit(NULL, visit, any.bytes));
    RETURNS(weft_op_registry_visit, visit, weft_op_registry_visit(f->registry, NULL, any.bytes));
    OPTIONAL(weft_op_registry_visit, user);
    GIVES(weft_registry_find_op, registry, weft_registry_find_op(NULL, "x", "x", 1), NULL);
    OPTIONAL(weft_registry_find_op, domain);
    GIVES(weft_registry_find_op, name, weft_registry_find_op(f->registry, "x", NULL, 1), NULL);
    GIVES(weft_registry_find_kernel, registry, weft_registry_find_kernel(NULL, "x", "x", 1), NULL);
    OPTIONAL(weft_registry_find_kernel, domain);
    GIVES(weft_registry_find_kernel, op, weft_registry_find_kernel(f->registry, "x", NULL, 1),
          NULL);
    GIVES(weft_registry_find_kernel_of, registry,
          weft_registry_find_kernel_of(NULL, "x", "x", "x", 1), NULL);
    OPTIONAL(weft_registry_find_kernel_of, family);
    OPTIONAL(weft_registry_find_kernel_of, domain);
    GIVES(weft_registry_find_kernel_of, op,
          weft_registry_find_kernel_of(f->registry, "x", "x", NULL, 1), NULL);
    FAILS(weft_registry_load_ops, registry, weft_registry_load_ops(NULL, "x"));
    FAILS(weft_registry_load_ops, path, weft_registry_load_ops(f->registry, NULL));
    FAILS(weft_registry_load_algorithm, registry, weft_registry_load_algorithm(NULL, "x", NULL));
    FAILS(weft_registry_load_algorithm, path,
          weft_registry_load_algorithm(f->registry, NULL, NULL));
    OPTIONAL(weft_registry_load_algorithm, out_algorithm);
    FAILS(weft_registry_load_plugin, registry, weft_registry_load_plugin(NULL, "x"));
    FAILS(weft_registry_load_plugin, path, weft_registry_load_plugin(f->registry, NULL));
}

static void call_session(const fixture_t *f)
{
    FAILS(weft_session_create, params, weft_session_create(NULL, &any.session));
    FAILS(weft_session_create, out_session, weft_session_create(&any.session_params, NULL));
    ACCEPTS(weft_session_destroy, session, weft_session_destroy(NULL));
    FAILS(weft_session_set_input, session, weft_session_set_input(NULL, "x", any.bytes, 4));
    FAILS(weft_session_set_input, name, weft_session_set_input(f->session, NULL, any.bytes, 4));
    FAILS(weft_session_set_input, data, weft_session_set_input(f->session, "x", NULL, 4));
    FAILS(weft_session_input_memory, session,
          weft_session_input_memory(NULL, "x", &any.address, &any.size));
    FAILS(weft_session_input_memory, name,
          weft_session_input_memory(f->session, NULL, &any.address, &any.size));
    FAILS(weft_session_input_memory, out_data,
          weft_session_input_memory(f->session, "x", NULL, &any.size));
    FAILS(weft_session_input_memory, out_bytes,
          weft_session_input_memory(f->session, "x", &any.address, NULL));
    FAILS(weft_session_set_scalar, session, weft_session_set_scalar(NULL, "x", 0));
    FAILS(weft_session_set_scalar, name, weft_session_set_scalar(f->session, NULL, 0));
    FAILS(weft_session_get_scalar, session, weft_session_get_scalar(NULL, "x", &any.real));
    FAILS(weft_session_get_scalar, name, weft_session_get_scalar(f->session, NULL, &any.real));
    FAILS(weft_session_get_scalar, out_value, weft_session_get_scalar(f->session, "x", NULL));
    FAILS(weft_session_step, session, weft_session_step(NULL));
    FAILS(weft_session_micro_step, session, weft_session_micro_step(NULL));
    GIVES(weft_session_micro_count, session, weft_session_micro_count(NULL), 0);
    FAILS(weft_session_flush, session, weft_session_flush(NULL));
    FAILS(weft_session_eval, session, weft_session_eval(NULL));
    FAILS(weft_session_get_output, session,
          weft_session_get_output(NULL, "x", any.bytes, 4, &any.tensor_desc));
    FAILS(weft_session_get_output, name,
          weft_session_get_output(f->session, NULL, any.bytes, 4, &any.tensor_desc));
    FAILS(weft_session_get_output, data,
          weft_session_get_output(f->session, "x", NULL, 4, &any.tensor_desc));
    OPTIONAL(weft_session_get_output, out_desc);
    FAILS(weft_session_set_steps_done, session, weft_session_set_steps_done(NULL, 0));
    GIVES(weft_session_param_count, session, weft_session_param_count(NULL), 0);
    FAILS(weft_session_param_info, session,
          weft_session_param_info(NULL, 0, &any.name, &any.tensor_desc));
    OPTIONAL(weft_session_param_info, out_name);
    OPTIONAL(weft_session_param_info, out_desc);
    FAILS(weft_session_get_param, session, weft_session_get_param(NULL, 0, any.bytes, 4));
    FAILS(weft_session_get_param, data, weft_session_get_param(f->session, 0, NULL, 4));
    FAILS(weft_session_param_digest, session, weft_session_param_digest(NULL, any.bytes));
    FAILS(weft_session_param_digest, buffer, weft_session_param_digest(f->session, NULL));
    FAILS(weft_session_set_param, session, weft_session_set_param(NULL, 0, any.bytes, 4));
    FAILS(weft_session_set_param, data, weft_session_set_param(f->session, 0, NULL, 4));
    FAILS(weft_session_get_gradient, session, weft_session_get_gradient(NULL, 0, any.bytes, 4));
    OPTIONAL(weft_session_get_gradient, data);
    GIVES(weft_session_state_count, session, weft_session_state_count(NULL), 0);
    FAILS(weft_session_state_info, session,
          weft_session_state_info(NULL, 0, &any.name, &any.tensor_desc));
    OPTIONAL(weft_session_state_info, out_name);
    OPTIONAL(weft_session_state_info, out_desc);
    FAILS(weft_session_get_state, session, weft_session_get_state(NULL, 0, any.bytes, 4));
    OPTIONAL(weft_session_get_state, data);
    FAILS(weft_session_set_state, session, weft_session_set_state(NULL, 0, any.bytes, 4));
    OPTIONAL(weft_session_set_state, data);
    FAILS(weft_session_get_stats, session, weft_session_get_stats(NULL, &any.session_stats));
    FAILS(weft_session_get_stats, stats, weft_session_get_stats(f->session, NULL));
    FAILS(weft_session_write_trace, session, weft_session_write_trace(NULL, "x"));
    AGREES(weft_session_write_trace, path, weft_session_write_trace(f->session, NULL));
    FAILS(weft_session_write_profile, session, weft_session_write_profile(NULL, "x"));
    AGREES(weft_session_write_profile, path, weft_session_write_profile(f->session, NULL));
}

static void call_stream(const fixture_t *f)
{
    FAILS(weft_stream_create, context, weft_stream_create(NULL, &any.stream_params, &any.stream));
    OPTIONAL(weft_stream_create, params);
    FAILS(weft_stream_create, out_stream, weft_stream_create(f->context, &any.stream_params, NULL));
    ACCEPTS(weft_stream_destroy, stream, weft_stream_destroy(NULL));
    FAILS(weft_stream_launch_host, stream, weft_stream_launch_host(NULL, host, any.bytes));
    FAILS(weft_stream_launch_host, fn, weft_stream_launch_host(f->stream, NULL, any.bytes));
    OPTIONAL(weft_stream_launch_host, user);
    FAILS(weft_stream_launch, stream,
          weft_stream_launch(NULL, &any.kernel, &any.kernel_call, 0, 0));
    FAILS(weft_stream_launch, kernel, weft_stream_launch(f->stream, NULL, &any.kernel_call, 0, 0));
    FAILS(weft_stream_launch, call, weft_stream_launch(f->stream, &any.kernel, NULL, 0, 0));
    FAILS(weft_stream_copy, stream, weft_stream_copy(NULL, any.bytes, any.bytes, 4));
    FAILS(weft_stream_copy, dst, weft_stream_copy(f->stream, NULL, any.bytes, 4));
    FAILS(weft_stream_copy, src, weft_stream_copy(f->stream, any.bytes, NULL, 4));
    FAILS(weft_stream_query, stream, weft_stream_query(NULL));
    FAILS(weft_stream_synchronize, stream, weft_stream_synchronize(NULL));
    FAILS(weft_event_create, context, weft_event_create(NULL, &any.event));
    FAILS(weft_event_create, out_event, weft_event_create(f->context, NULL));
    ACCEPTS(weft_event_destroy, event, weft_event_destroy(NULL));
    FAILS(weft_event_record, event, weft_event_record(NULL, f->stream));
    FAILS(weft_event_record, stream, weft_event_record(f->event, NULL));
    FAILS(weft_stream_wait_event, stream, weft_stream_wait_event(NULL, f->event));
    FAILS(weft_stream_wait_event, event, weft_stream_wait_event(f->stream, NULL));
    FAILS(weft_event_query, event, weft_event_query(NULL));
    FAILS(weft_event_synchronize, event, weft_event_synchronize(NULL));
    FAILS(weft_event_wait, event, weft_event_wait(NULL, 0));
    FAILS(weft_event_time_ns, event, weft_event_time_ns(NULL, any.counts));
    FAILS(weft_event_time_ns, out_time_ns, weft_event_time_ns(f->event, NULL));
    FAILS(weft_notify_create, context, weft_notify_create(NULL, &any.notify));
    FAILS(weft_notify_create, out_notify, weft_notify_create(f->context, NULL));
    ACCEPTS(weft_notify_destroy, notify, weft_notify_destroy(NULL));
    FAILS(weft_notify_record, notify, weft_notify_record(NULL, f->stream));
    FAILS(weft_notify_record, stream, weft_notify_record(f->notify, NULL));
    FAILS(weft_notify_wait, notify, weft_notify_wait(NULL, f->stream));
    FAILS(weft_notify_wait, stream, weft_notify_wait(f->notify, NULL));
}

static void call_tensor_file(const fixture_t *f)
{
    (void)f;
    FAILS(weft_tensor_read, path, weft_tensor_read(NULL, &any.tensor_desc, &any.address));
    FAILS(weft_tensor_read, out_desc, weft_tensor_read("x", NULL, &any.address));
    FAILS(weft_tensor_read, out_data, weft_tensor_read("x", &any.tensor_desc, NULL));
    FAILS(weft_tensor_write, path, weft_tensor_write(NULL, "x", &any.tensor_desc));
    OPTIONAL(weft_tensor_write, name);
    FAILS(weft_tensor_write, desc, weft_tensor_write("x", "x", NULL));
}

static void call_types(const fixture_t *f)
{
    const char *otherwise = "x";
    (void)f;
    GIVES(weft_dtype_from_name, name, weft_dtype_from_name(NULL), WEFT_DTYPE_NONE);
    GIVES(weft_tensor_elem_count, desc, weft_tensor_elem_count(NULL), -1);
    GIVES(weft_node_attr, node, weft_node_attr(NULL, "x"), NULL);
    GIVES(weft_node_attr, name, weft_node_attr(&any.node_desc, NULL), NULL);
    GIVES(weft_node_attr_int, node, weft_node_attr_int(NULL, "x", 7), 7);
    GIVES(weft_node_attr_int, name, weft_node_attr_int(&any.node_desc, NULL, 7), 7);
    GIVES(weft_node_attr_float, node, weft_node_attr_float(NULL, "x", 7), 7);
    GIVES(weft_node_attr_float, name, weft_node_attr_float(&any.node_desc, NULL, 7), 7);
    GIVES(weft_node_attr_string, node, weft_node_attr_string(NULL, "x", otherwise), otherwise);
    GIVES(weft_node_attr_string, name, weft_node_attr_string(&any.node_desc, NULL, otherwise),
          otherwise);
    OPTIONAL(weft_node_attr_string, otherwise);
}

/* ---- the table against the headers ---- */

static bool has_row(const char *row)
{
    for (size_t i = 0; i < row_count; i++) {
        if (strcmp(rows[i], row) == 0) {
            return true;
        }
    }
    return false;
}

typedef struct tally {
    size_t pointers, missing;
} tally_t;

/* One declaration: a row for each argument that is a pointer, also by a type "weft_..._fn". */
static void check_declaration(const char *declaration, const char *end, void *user)
{
    tally_t *tally = user;
    char function[64], argument[64], row[160];
    const char *open = memchr(declaration, '(', (size_t)(end - declaration));
    assert_non_null(open);
    support_last_word(declaration, open, function);
    for (const char *at = open + 1; at < end;) {
        const char *stop = at;
        while (stop < end && *stop != ',' && *stop != ')') {
            stop++;
        }
        const char *name = support_last_word(at, stop, argument);
        size_t type = (size_t)(name - at);
        bool callback = memmem(at, type, "_fn ", 4) != NULL;
        if (memchr(at, '*', type) != NULL || callback) {
            tally->pointers++;
            snprintf(row, sizeof(row), "%s.%s", function, argument);
            if (!has_row(row)) {
                print_error("no row for %s\n", row);
                tally->missing++;
            }
        }
        at = stop + 1;
    }
}

static void check_table(void)
{
    tally_t tally = {0, 0};
    support_each_declaration(check_declaration, &tally);
    assert_int_equal(tally.missing, 0);
    assert_int_equal(tally.pointers, row_count); /* a row without a declaration is stale */
}

/* ---- tests ---- */

static void make(fixture_t *f)
{
    training_t training = {.world = 1, .steps = 1, .buckets = 2};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = 0;
    params.world_size = 1;
    assert_int_equal(weft_context_create(&params, &f->context), WEFT_OK);
    assert_int_equal(weft_group_create_world(f->context, &f->group), WEFT_OK);
    assert_int_equal(weft_stream_create(f->context, NULL, &f->stream), WEFT_OK);
    assert_int_equal(weft_event_create(f->context, &f->event), WEFT_OK);
    assert_int_equal(weft_notify_create(f->context, &f->notify), WEFT_OK);
    assert_int_equal(weft_fuser_create(f->group, NULL, &f->fuser), WEFT_OK);
    assert_int_equal(weft_capture_begin(f->group, NULL), WEFT_OK);
    assert_int_equal(weft_barrier(f->group, NULL), WEFT_OK);
    assert_int_equal(weft_capture_end(f->group, &f->capture), WEFT_OK);
    assert_int_equal(support_plan(&training, false, &f->plan), WEFT_OK);
    assert_int_equal(support_registry(true, &f->registry), WEFT_OK);
    weft_session_params_t session = WEFT_SESSION_PARAMS_INIT;
    session.context = f->context;
    session.plan = f->plan;
    session.registry = f->registry;
    session.trace = 1;
    assert_int_equal(weft_session_create(&session, &f->session), WEFT_OK);
    assert_int_equal(weft_edit_list_create(NULL, &f->edits), WEFT_OK);
    weft_plan_builder_params_t builder = WEFT_PLAN_BUILDER_PARAMS_INIT;
    assert_int_equal(weft_plan_builder_create(&builder, &f->builder), WEFT_OK);
}

static void unmake(fixture_t *f)
{
    weft_plan_builder_destroy(f->builder);
    weft_edit_list_destroy(f->edits);
    weft_session_destroy(f->session);
    weft_registry_destroy(f->registry);
    weft_plan_release(f->plan);
    weft_capture_destroy(f->capture);
    weft_fuser_destroy(f->fuser);
    weft_notify_destroy(f->notify);
    weft_event_destroy(f->event);
    weft_stream_destroy(f->stream);
    weft_group_destroy(f->group);
    weft_context_release(f->context);
}

static void test_every_function(void **state)
{
    (void)state;
    fixture_t f = {0};
    make(&f);
    call_algo(&f);
    call_capture(&f);
    call_checkpoint(&f);
    call_collective(&f);
    call_compile(&f);
    call_context(&f);
    call_fuser(&f);
    call_graph_view(&f);
    call_group(&f);
    call_memory(&f);
    call_passes(&f);
    call_plan(&f);
    call_plan_builder(&f);
    call_registry(&f);
    call_session(&f);
    call_stream(&f);
    call_tensor_file(&f);
    call_types(&f);
    check_table();
    unmake(&f);
}

/* Buffers that may be NULL where there is nothing to read or write, and are refused elsewhere. */
static void test_buffers(void **state)
{
    (void)state;
    fixture_t f = {0};
    float x[4] = {1, 2, 3, 4};
    uint64_t counts[] = {1}, none[] = {0};
    make(&f);
    weft_group_t *g = f.group;
    assert_int_equal(weft_all_reduce(NULL, NULL, 0, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL),
                     WEFT_OK);
    assert_int_equal(weft_all_gather_v(NULL, NULL, none, NULL, WEFT_DTYPE_F32, g, NULL), WEFT_OK);
#define BAD(call) assert_int_equal((call), WEFT_ERR_INVALID_ARGUMENT)
    BAD(weft_all_reduce(NULL, x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    BAD(weft_all_reduce(x, NULL, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, f.stream));
    BAD(weft_reduce_scatter(NULL, x, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    BAD(weft_all_gather(x, NULL, 1, WEFT_DTYPE_F32, g, NULL));
    BAD(weft_broadcast(NULL, x, 1, WEFT_DTYPE_F32, 0, g, NULL));
    BAD(weft_reduce(x, NULL, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0, g, NULL));
    BAD(weft_gather(x, NULL, 1, WEFT_DTYPE_F32, 0, g, NULL));
    BAD(weft_scatter(NULL, x, 1, WEFT_DTYPE_F32, 0, g, NULL));
    BAD(weft_all_to_all(x, NULL, 1, WEFT_DTYPE_F32, g, NULL));
    BAD(weft_all_gather_v(NULL, x, counts, NULL, WEFT_DTYPE_F32, g, NULL));
    BAD(weft_reduce_scatter_v(x, NULL, counts, NULL, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, g, NULL));
    BAD(weft_all_to_all_v(NULL, counts, NULL, x, counts, NULL, WEFT_DTYPE_F32, g, NULL));
    BAD(weft_send(NULL, 1, WEFT_DTYPE_F32, 0, g, NULL));
    BAD(weft_recv(NULL, 1, WEFT_DTYPE_F32, 0, g, NULL));
    weft_kernel_t kernel = {.abi_version = WEFT_KERNEL_ABI_VERSION};
    weft_kernel_call_t call = {0};
    BAD(weft_stream_launch(f.stream, &kernel, &call, 0, 0));
    kernel.run = run;
    BAD(weft_stream_launch(f.stream, &kernel, &call, 1, 0));
    BAD(weft_stream_launch(f.stream, &kernel, &call, 0, 1));
    assert_int_equal(weft_stream_launch(f.stream, &kernel, &call, 0, 0), WEFT_OK);
    BAD(weft_group_set_order(g, WEFT_ORDER_BLOCKS, NULL, 1));
    BAD(weft_fuser_add(f.fuser, NULL, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, "x"));
    size_t bytes = support_sizes[0] * sizeof(float);
    BAD(weft_session_get_state(f.session, 0, NULL, bytes));
    BAD(weft_session_set_state(f.session, 0, NULL, bytes));
#undef BAD
    unmake(&f);
}

/* Outputs that hold a handle are NULL after a failure. */
static void test_outputs(void **state)
{
    (void)state;
    weft_session_t *session = (weft_session_t *)&any;
    weft_context_t *context = (weft_context_t *)&any;
    weft_group_t *group = (weft_group_t *)&any;
    weft_plan_t *plan = (weft_plan_t *)&any;
    assert_int_equal(weft_session_create(NULL, &session), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(session);
    assert_int_equal(weft_context_create(NULL, &context), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(context);
    assert_int_equal(weft_group_create_world(NULL, &group), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(group);
    assert_int_equal(weft_plan_load(NULL, NULL, &plan), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(plan);
}

/* What a program that looks at no status gets when it runs alone with a plan for two ranks. */
static void test_other_world_size(void **state)
{
    (void)state;
    training_t training = {.world = 2, .steps = 1, .buckets = 2};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_session_params_t session_params = WEFT_SESSION_PARAMS_INIT;
    weft_session_t *session = NULL;
    float loss = 0;
    params.rank = 0;
    params.world_size = 1;
    assert_int_equal(weft_context_create(&params, &session_params.context), WEFT_OK);
    assert_int_equal(support_plan(&training, false, &session_params.plan), WEFT_OK);
    assert_int_equal(weft_session_create(&session_params, &session), WEFT_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_last_error(), "2"));
    assert_null(session);
    assert_int_equal(weft_session_step(session), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_session_get_output(session, "loss", &loss, sizeof(loss), NULL),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_string_equal(weft_last_error(), "weft_session_get_output: session is NULL");
    weft_session_destroy(session);
    weft_plan_release(session_params.plan);
    weft_context_release(session_params.context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_function), cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_outputs), cmocka_unit_test(test_other_world_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

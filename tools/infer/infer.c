/* SPDX-License-Identifier: Apache-2.0 */
/* Inference on one rank: set inputs, step, write outputs. */
#include "tools/output.h"
#include "tools/infer/infer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/sync.h"
#include "tools/launch/world.h"
#include "tools/timeline.h"
#include "tools/tool.h"

typedef struct output {
    weft_binding_t binding;
    void *data;
    size_t bytes;
    bool equal; /* on all ranks */
} output_t;

typedef struct inferrer {
    const infer_options_t *options;
    weft_context_t *context;
    weft_session_t *session;
    uint32_t rank, world_size;
    bool split; /* only rank 0 has inputs and outputs */
    output_t *outputs;
    size_t output_count;
    double *step_ms;
    timeline_t timeline;
    wefti_digest_t *digests; /* by rank and output */
} inferrer_t;

static weft_status_t infer_open(inferrer_t *inferrer, int32_t rank, int32_t world_size,
                                const char *address)
{
    const infer_options_t *options = inferrer->options;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    WEFT_RETURN_IF_ERROR(weft_plan_get_info(options->plan, &info));
    WEFT_RETURN_IF_ERROR(
        wefti_launched_open(options->world, rank, world_size, address, NULL, &inferrer->context));
    inferrer->rank = weft_context_rank(inferrer->context);
    inferrer->world_size = weft_context_world_size(inferrer->context);
    inferrer->split = info.split_batch != 0;
    inferrer->step_ms = calloc(options->repeat + 1, sizeof *inferrer->step_ms);
    if (inferrer->step_ms == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %llu steps",
                           (unsigned long long)options->repeat);
    }
    weft_session_params_t params = {.struct_size = sizeof params,
                                    .context = inferrer->context,
                                    .plan = options->plan,
                                    .registry = options->registry,
                                    .trace = options->trace_path != NULL ||
                                             options->profile_path != NULL};
    WEFT_RETURN_IF_ERROR(weft_session_create(&params, &inferrer->session));
    for (uint32_t i = 0; i < options->scalar_count; i++) {
        WEFT_RETURN_IF_ERROR(weft_session_set_scalar(inferrer->session, options->scalars[i].name,
                                                     options->scalars[i].value));
    }
    return WEFT_OK;
}

static void infer_close(inferrer_t *inferrer)
{
    weft_session_destroy(inferrer->session);
    weft_context_release(inferrer->context);
    for (size_t i = 0; i < inferrer->output_count; i++) {
        free(inferrer->outputs[i].data);
    }
    free(inferrer->outputs);
    free(inferrer->digests);
    free(inferrer->step_ms);
}

static weft_status_t feed_inputs(inferrer_t *inferrer, const infer_feed_t *feed)
{
    weft_binding_t binding;
    weft_status_t status = WEFT_OK;
    size_t index = 0;
    for (size_t i = 0;
         i < feed->count && status >= 0 &&
         wefti_next_binding(inferrer->options->plan, BINDINGS_OF_INPUTS, &index, &binding);
         i++) {
        size_t bytes = (size_t)weft_tensor_elem_count(&feed->descs[i]) *
                       weft_dtype_size_bytes(feed->descs[i].dtype);
        status = weft_session_set_input(inferrer->session, binding.name, feed->data[i], bytes);
    }
    return status;
}

/* The first step, whose memory is cold, is not among those timed. */
static weft_status_t run_steps(inferrer_t *inferrer)
{
    weft_status_t status = weft_session_step(inferrer->session);
    for (uint64_t i = 0; i < inferrer->options->repeat && status >= 0; i++) {
        uint64_t begin = wefti_now_ns();
        status = weft_session_step(inferrer->session);
        inferrer->step_ms[i] = (double)(wefti_now_ns() - begin) * 1e-6;
    }
    return status;
}

static weft_status_t read_outputs(inferrer_t *inferrer)
{
    const weft_plan_t *plan = inferrer->options->plan;
    output_t *output = calloc(weft_plan_binding_count(plan) + 1, sizeof *output);
    weft_status_t status = WEFT_OK;
    inferrer->outputs = output;
    if (output == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: outputs");
    }
    for (size_t index = 0; status >= 0 && wefti_next_binding(plan, 1u << WEFT_BINDING_ROLE_OUTPUT,
                                                             &index, &output->binding);
         output++) {
        inferrer->output_count++;
        output->bytes = (size_t)weft_tensor_elem_count(&output->binding.desc) *
                        weft_dtype_size_bytes(output->binding.desc.dtype);
        output->data = malloc(output->bytes + 1);
        status = output->data != NULL
                     ? weft_session_get_output(inferrer->session, output->binding.name,
                                               output->data, output->bytes, NULL)
                     : wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: output '%s'",
                                   output->binding.name);
        output->binding.desc.data = output->data;
        output->binding.desc.layout = WEFT_LAYOUT_PLAIN;
    }
    return status;
}

/* Which outputs are the same on all ranks. */
static weft_status_t compare_outputs(inferrer_t *inferrer)
{
    size_t count = inferrer->output_count;
    wefti_digest_t *own;
    weft_status_t status = WEFT_OK;
    inferrer->digests = calloc((inferrer->world_size + 1) * (count + 1), sizeof *own);
    if (inferrer->digests == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %zu digests", count);
    }
    own = inferrer->digests + inferrer->world_size * count;
    for (size_t i = 0; i < count && status >= 0; i++) {
        status = wefti_digest_of(inferrer->outputs[i].data, inferrer->outputs[i].bytes, &own[i]);
    }
    if (status >= 0 && count > 0) {
        status =
            weft_context_all_gather(inferrer->context, own, count * sizeof *own, inferrer->digests);
    }
    for (size_t i = 0; i < count; i++) {
        inferrer->outputs[i].equal = true;
        for (uint32_t r = 1; r < inferrer->world_size && !inferrer->split; r++) {
            inferrer->outputs[i].equal =
                inferrer->outputs[i].equal &&
                memcmp(&inferrer->digests[r * count + i], &inferrer->digests[i], sizeof *own) == 0;
        }
    }
    return status;
}

/* One file if all ranks have equal contents, else one in each rank's folder. A file of an earlier
 * run in the other place is removed. */
static weft_status_t write_outputs(const inferrer_t *inferrer)
{
    const infer_options_t *options = inferrer->options;
    char path[PATH_MAX];
    if (options->outputs == NULL) {
        return WEFT_OK;
    }
    for (size_t i = 0; i < inferrer->output_count; i++) {
        const output_t *output = &inferrer->outputs[i];
        int32_t rank = (int32_t)inferrer->rank;
        WEFT_RETURN_IF_ERROR(wefti_infer_output_path(options, output->binding.name,
                                                     output->equal ? rank : -1, path));
        if (output->equal || rank == 0) {
            unlink(path);
        }
        if (output->equal && rank != 0) {
            continue;
        }
        if (!output->equal) {
            snprintf(path, sizeof path, "%s/rank%d", options->outputs, rank);
            if (mkdir(path, 0777) != 0 && errno != EEXIST) {
                return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot create folder %s", path);
            }
        }
        WEFT_RETURN_IF_ERROR(wefti_infer_output_path(options, output->binding.name,
                                                     output->equal ? -1 : rank, path));
        WEFT_RETURN_IF_ERROR(weft_tensor_write(path, output->binding.name, &output->binding.desc));
    }
    return WEFT_OK;
}

static double median_ms(const inferrer_t *inferrer)
{
    return inferrer->options->repeat > 0 ? inferrer->step_ms[inferrer->options->repeat / 2] : 0;
}

static void print_json(const inferrer_t *inferrer, const weft_session_stats_t *stats)
{
    output_object_t object;
    char hex[65];
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_int(json, "world", inferrer->world_size);
    wefti_json_int(json, "steps", (int64_t)stats->steps);
    if (inferrer->options->repeat > 0) {
        wefti_json_double(json, "step_ms_p50", median_ms(inferrer));
        wefti_json_double(json, "step_ms_min", inferrer->step_ms[0]);
        wefti_json_double(json, "comm_ms_p50", stats->comm_ms_p50);
        wefti_json_double(json, "exposed_comm_ms_p50", stats->exposed_comm_ms_p50);
    }
    wefti_json_int(json, "arena_bytes", (int64_t)stats->arena_bytes);
    wefti_json_string(json, "progress", stats->inline_progress ? "inline" : "thread");
    wefti_json_begin_array(json, "outputs");
    for (size_t i = 0; i < inferrer->output_count; i++) {
        const output_t *output = &inferrer->outputs[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", output->binding.name);
        wefti_json_string(json, "dtype", weft_dtype_name(output->binding.desc.dtype));
        wefti_json_begin_array(json, "shape");
        for (uint32_t d = 0; d < output->binding.desc.rank; d++) {
            wefti_json_int(json, NULL, output->binding.desc.dims[d]);
        }
        wefti_json_end_array(json);
        wefti_json_bool(json, "equal_on_all_ranks", output->equal);
        wefti_json_string(json, "sha256", wefti_digest_hex(&inferrer->digests[i], hex));
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_launched_print_json(inferrer->context, json);
    wefti_timeline_print_json(&inferrer->timeline, inferrer->options->trace_path, json);
    wefti_output_end(&object);
}

static void print_text(const inferrer_t *inferrer, const weft_session_stats_t *stats)
{
    const infer_options_t *options = inferrer->options;
    char type[256], hex[65], path[PATH_MAX];
    printf("ran %llu step%s on %u rank%s", (unsigned long long)stats->steps,
           stats->steps == 1 ? "" : "s", inferrer->world_size,
           inferrer->world_size == 1 ? "" : "s");
    wefti_launched_print_text(inferrer->context);
    if (options->repeat > 0) {
        printf(": %.3f ms (median), %.3f ms (minimum); communication %.3f ms, exposed %.3f ms (%s)",
               median_ms(inferrer), inferrer->step_ms[0], stats->comm_ms_p50,
               stats->exposed_comm_ms_p50, stats->inline_progress ? "inline" : "on its own thread");
    }
    printf("\n");
    for (size_t i = 0; i < inferrer->output_count; i++) {
        const output_t *output = &inferrer->outputs[i];
        printf("  %s: %s, %.16s%s", output->binding.name,
               wefti_infer_type_text(&output->binding.desc, type),
               wefti_digest_hex(&inferrer->digests[i], hex),
               output->equal ? "" : " on rank 0; other ranks differ");
        if (options->outputs != NULL &&
            wefti_infer_output_path(options, output->binding.name, output->equal ? -1 : 0, path) >=
                0) {
            printf(", %s", path);
        }
        printf("\n");
    }
    wefti_timeline_print_text(&inferrer->timeline, options->trace_path, stats->steps);
}

static weft_status_t report(inferrer_t *inferrer)
{
    const infer_options_t *options = inferrer->options;
    weft_session_stats_t stats = WEFT_SESSION_STATS_INIT;
    wefti_sort_doubles(inferrer->step_ms, options->repeat);
    WEFT_RETURN_IF_ERROR(weft_session_get_stats(inferrer->session, &stats));
    if (options->trace_path != NULL) {
        WEFT_RETURN_IF_ERROR(
            wefti_timeline_write(inferrer->session, options->trace_path, &inferrer->timeline));
    }
    if (options->profile_path != NULL) {
        WEFT_RETURN_IF_ERROR(weft_session_write_profile(inferrer->session, options->profile_path));
    }
    if (inferrer->rank == 0 && options->json) {
        print_json(inferrer, &stats);
    } else if (inferrer->rank == 0) {
        print_text(inferrer, &stats);
    }
    return WEFT_OK;
}

weft_status_t wefti_infer_rank(const infer_options_t *options, const infer_feed_t *feeds,
                               int32_t rank, int32_t world_size, const char *address)
{
    inferrer_t inferrer = {.options = options};
    weft_status_t status;
    WEFT_TRY(status, infer_open(&inferrer, rank, world_size, address), done);
    WEFT_TRY(status, feed_inputs(&inferrer, &feeds[inferrer.rank]), done);
    WEFT_TRY(status, run_steps(&inferrer), done);
    WEFT_TRY(status, read_outputs(&inferrer), done);
    WEFT_TRY(status, compare_outputs(&inferrer), done);
    WEFT_TRY(status, write_outputs(&inferrer), done);
    WEFT_TRY(status, report(&inferrer), done);
done:
    infer_close(&inferrer);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated step as Chrome trace JSON, which Perfetto reads: a process per rank shown, a thread
 * per stream. All ranks run the same steps, so rank 0 and the span of all ranks are shown. */
#include "fusion/simulate/simulate.h"

#include "runtime/base/json.h"

static void add_name(wefti_json_t *json, const char *what, int64_t pid, int64_t tid,
                     const char *name)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "ph", "M");
    wefti_json_string(json, "name", what);
    wefti_json_int(json, "pid", pid);
    wefti_json_int(json, "tid", tid);
    wefti_json_begin_object(json, "args");
    wefti_json_string(json, "name", name);
    wefti_json_end_object(json);
    wefti_json_end_object(json);
}

static void add_slice(wefti_json_t *json, const weft_plan_t *plan, const sim_event_t *event,
                      int64_t pid, double begin_ns, double end_ns)
{
    const wefti_plan_kernel_t *kernel = &plan->kernels[event->collective ? 0 : event->index];
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "ph", "X");
    wefti_json_string(json, "name",
                      event->collective ? plan->collectives[event->index].name : kernel->name);
    wefti_json_string(json, "cat", event->collective ? "communication" : "kernel");
    wefti_json_int(json, "pid", pid);
    wefti_json_int(json, "tid", event->stream);
    wefti_json_double(json, "ts", begin_ns * 1e-3);
    wefti_json_double(json, "dur", (end_ns - begin_ns) * 1e-3);
    wefti_json_begin_object(json, "args");
    if (event->collective) {
        wefti_json_string(json, "algorithm", event->algorithm);
        wefti_json_double(json, "exposed_us", event->exposed_ns * 1e-3);
    } else {
        wefti_json_string(json, "op", kernel->op);
    }
    wefti_json_end_object(json);
    wefti_json_end_object(json);
}

weft_status_t wefti_sim_write_perfetto(const weft_plan_t *plan, const sim_step_t *step,
                                       const char *path)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_object(&json, NULL);
    wefti_json_string(&json, "displayTimeUnit", "ns");
    wefti_json_begin_array(&json, "traceEvents");
    for (int64_t pid = 0; pid < 2; pid++) {
        add_name(&json, "process_name", pid, 0, pid == 0 ? "rank 0" : "first to last rank");
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            add_name(&json, "thread_name", pid, s, plan->streams[s].name);
        }
        for (size_t i = 0; i < step->count; i++) {
            const sim_event_t *event = &step->events[i];
            add_slice(&json, plan, event, pid, pid == 0 ? event->rank0_begin_ns : event->begin_ns,
                      pid == 0 ? event->rank0_end_ns : event->end_ns);
        }
    }
    wefti_json_end_array(&json);
    wefti_json_end_object(&json);
    wefti_text_add(&text, "\n");
    weft_status_t status = wefti_file_write_text(path, &text);
    wefti_text_deinit(&text);
    return status;
}

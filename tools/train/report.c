/* SPDX-License-Identifier: Apache-2.0 */
/* The live progress line and the final report of `weft run`. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/sync.h"
#include "tools/launch/world.h"
#include "tools/output.h"
#include "tools/tool.h"
#include "tools/train/train.h"

#define TERMINAL_INTERVAL_NS 100000000ull
#define LOG_INTERVAL_NS 1000000000ull

void wefti_progress_begin(progress_t *progress, bool quiet, const char *noun)
{
    progress->noun = noun;
    progress->quiet = quiet;
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->started_ns = wefti_now_ns();
    progress->next_ns = progress->started_ns + TERMINAL_INTERVAL_NS;
    progress->images_done = 0;
}

bool wefti_progress_due(const progress_t *progress, uint64_t now_ns)
{
    return !progress->quiet && now_ns >= progress->next_ns;
}

/* One column short of the terminal's width: a line that wraps cannot be drawn over. */
static size_t line_width(const progress_t *progress)
{
    struct winsize size;
    if (!progress->terminal) {
        return SIZE_MAX;
    }
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? (size_t)size.ws_col - 1 : 79;
}

void wefti_progress_show(progress_t *progress, uint64_t now_ns, uint32_t epoch, uint32_t epochs,
                         uint64_t step, uint64_t steps, double loss, double exposed_ms)
{
    double seconds = (double)(now_ns - progress->started_ns) * 1e-9;
    size_t width = line_width(progress);
    char line[256];
    snprintf(line, sizeof line,
             "epoch %u/%u  step %llu/%llu  loss %.4f  %.0f %ss/s  exposed comm %.3f ms", epoch,
             epochs, (unsigned long long)step, (unsigned long long)steps, loss,
             (double)progress->images_done / seconds, progress->noun, exposed_ms);
    if (width < sizeof line) {
        line[width] = '\0';
    }
    fprintf(stderr, "%s%s%s", progress->terminal ? "\r\033[K" : "", line,
            progress->terminal ? "" : "\n");
    fflush(stderr);
    progress->next_ns = now_ns + (progress->terminal ? TERMINAL_INTERVAL_NS : LOG_INTERVAL_NS);
}

void wefti_progress_end(const progress_t *progress)
{
    if (!progress->quiet && progress->terminal) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

void wefti_progress_log(void *user, weft_log_level_t level, const char *line)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    size_t index = (size_t)level;
    (void)user;
    /* On any rank: the live line of rank 0 may be on the terminal. */
    fprintf(stderr, "\r\033[Kweft: %s: %s\n", index < 5 ? names[index] : "log", line);
}

static void print_recoveries(const train_options_t *options, const train_report_t *report,
                             wefti_json_t *json)
{
    if (options->min_ranks == 0) {
        return;
    }
    wefti_json_begin_object(json, "snapshot");
    wefti_json_int(json, "copied_bytes", (int64_t)report->snapshot.copied_bytes);
    wefti_json_int(json, "sent_bytes", (int64_t)report->snapshot.sent_bytes);
    wefti_json_int(json, "memory_bytes", (int64_t)report->snapshot.memory_bytes);
    wefti_json_double(json, "ms_mean", report->snapshot_ms);
    wefti_json_end_object(json);
    wefti_json_begin_array(json, "recoveries");
    for (uint32_t i = 0; i < report->recovery_count; i++) {
        const train_recovery_t *recovery = &report->recoveries[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "dead", recovery->dead);
        wefti_json_int(json, "dead_count", recovery->dead_count);
        wefti_json_string(json, "joined", recovery->joined);
        wefti_json_int(json, "joined_count", recovery->joined_count);
        wefti_json_int(json, "step", (int64_t)recovery->step);
        wefti_json_int(json, "world", recovery->world_size);
        wefti_json_double(json, "seconds", recovery->seconds);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void print_pauses(const train_pauses_t *pauses, wefti_json_t *json)
{
    if (pauses->count == 0) {
        return;
    }
    wefti_json_begin_object(json, "checkpoints");
    wefti_json_int(json, "count", pauses->count);
    wefti_json_double(json, "pause_ms_mean", pauses->copy_ms / pauses->count);
    wefti_json_double(json, "pause_ms_max", pauses->most_ms);
    wefti_json_double(json, "wait_ms_mean", pauses->wait_ms / pauses->count);
    wefti_json_end_object(json);
}

void wefti_report_add_json(const train_options_t *options, const train_report_t *report,
                           const weft_context_t *context, wefti_json_t *json)
{
    const weft_session_stats_t *stats = &report->stats;
    wefti_json_int(json, "world", report->world_size);
    wefti_json_int(json, "steps", (int64_t)report->steps);
    wefti_json_int(json, "first_step", (int64_t)report->first_step);
    wefti_json_double(json, "loss_first", report->loss_first);
    wefti_json_double(json, "loss_last", report->loss_last);
    wefti_json_double(json, "test_accuracy",
                      report->test_accuracy < 0 ? NAN : report->test_accuracy);
    wefti_json_double(json, "step_ms_p50", report->step_ms_p50);
    wefti_json_double(json, "step_ms_mean", report->step_ms_mean);
    wefti_json_double(json, "images_per_s", report->images_per_s);
    wefti_json_double(json, "compute_ms_p50", stats->compute_ms_p50);
    wefti_json_double(json, "comm_ms_p50", stats->comm_ms_p50);
    wefti_json_double(json, "exposed_comm_ms_p50", stats->exposed_comm_ms_p50);
    wefti_json_double(json, "overlap_fraction", stats->overlap_fraction);
    wefti_json_string(json, "kernels", stats->kernels);
    wefti_json_string(json, "progress", stats->inline_progress ? "inline" : "thread");
    wefti_json_int(json, "fusion_copied_bytes", (int64_t)stats->fusion_copied_bytes);
    wefti_json_int(json, "arena_bytes", (int64_t)stats->arena_bytes);
    wefti_json_int(json, "scratch_bytes", (int64_t)stats->scratch_bytes);
    wefti_json_int(json, "rss_bytes", (int64_t)report->rss_bytes);
    wefti_json_string(json, "param_digest", report->param_digest);
    print_recoveries(options, report, json);
    print_pauses(&report->pauses, json);
    wefti_json_string(json, "input",
                      options->data->train.columns[0].pixels ? "pixels / 255" : NULL);
    wefti_launched_print_json(context, json);
    wefti_links_print_json(&report->links, context, json);
    wefti_timeline_print_json(&report->timeline, report->traced ? options->trace_path : NULL, json);
}

static void print_text(const train_options_t *options, const train_report_t *report,
                       const weft_context_t *context)
{
    const weft_session_stats_t *stats = &report->stats;
    char arena[32];
    char rss[32];
    printf("trained %llu step%s on %u rank%s", (unsigned long long)report->steps,
           wefti_plural(report->steps), report->world_size, wefti_plural(report->world_size));
    wefti_launched_print_text(context);
    printf(": loss %.4f -> %.4f", report->loss_first, report->loss_last);
    if (report->test_accuracy >= 0) {
        printf(", test accuracy %.4f", report->test_accuracy);
    }
    printf("\n%.3f ms per step (median), %.0f %ss/s; compute %.3f ms, communication %.3f ms, "
           "exposed %.3f ms (%s)\n",
           report->step_ms_p50, report->images_per_s, options->data->noun, stats->compute_ms_p50,
           stats->comm_ms_p50, stats->exposed_comm_ms_p50,
           stats->inline_progress ? "inline" : "on its own thread");
    printf("arena %s, peak memory %s per rank, %llu bytes copied to fuse, weights %.16s\n",
           wefti_format_bytes(stats->arena_bytes, arena),
           wefti_format_bytes(report->rss_bytes, rss),
           (unsigned long long)stats->fusion_copied_bytes, report->param_digest);
    wefti_links_print_text(&report->links, context);
    if (report->first_step > 0) {
        printf("resumed after %llu step%s from %s\n", (unsigned long long)report->first_step,
               wefti_plural(report->first_step), options->resume_path);
    }
    if (options->data->train.columns[0].pixels) {
        puts("input: pixels were divided by 255");
    }
    if (report->saved) {
        printf("trained model: %s\n", options->save_path);
    }
    if (report->checkpointed) {
        printf("checkpoint: %s\n", options->checkpoint_path);
    }
    if (options->report_path != NULL && report->reported) {
        printf("report data: %s (weft report shows it)\n", options->report_path);
    }
    wefti_timeline_print_text(&report->timeline, report->traced ? options->trace_path : NULL,
                              report->first_step + report->steps);
}

weft_status_t wefti_report_print(const train_options_t *options, const train_report_t *report,
                                 const weft_context_t *context)
{
    if (options->json) {
        output_object_t object;
        wefti_report_add_json(options, report, context, wefti_output_begin(&object));
        wefti_output_end(&object);
    } else {
        print_text(options, report, context);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write standard output");
    }
    return WEFT_OK;
}

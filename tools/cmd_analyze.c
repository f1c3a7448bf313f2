/* SPDX-License-Identifier: Apache-2.0 */
/* weft analyze: which rank is behind, in which call, and where ranks disagree first. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/flight/image.h"
#include "tools/dumps.h"
#include "tools/output.h"
#include "tools/tool.h"

enum { KEY_JSON = 256, KEY_TIMELINE };

static const option_def_t own_options[] = {
    {KEY_TIMELINE, "timeline", "FILE",
     "also write the calls of all ranks as a timeline for https://ui.perfetto.dev"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_analyze_command(int argc, char **argv);

const command_t wefti_analyze_command = {
    .name = "analyze",
    .brief = "find the rank that is behind in dumps of flight recorders",
    .synopsis = "DUMP.. [--timeline FILE] [--json]",
    .summary =
        "Compares the last calls of all ranks. DUMP is a file, or a folder with files, of "
        "weft_context_dump, of WEFT_DUMP=FOLDER (after an error, or SIGUSR1), or of weft ps "
        "--dump FOLDER. Reports the ranks that others wait for and what they do instead, the first "
        "call in which ranks disagree, ranks that wait for each other, and ranks without a dump. "
        "The exit status is 1 if there is such a thing.",
    .epilogue = "examples:\n"
                "  WEFT_DUMP=dumps weft run -n 4 -- python3 train.py\n"
                "  weft analyze dumps\n"
                "  weft ps --dump dumps && weft analyze dumps --timeline calls.json\n",
    .options = {own_options},
    .run = run_analyze_command,
};

/* ---- what ranks wait for ---- */

typedef struct analysis {
    const dumps_t *dumps;
    uint32_t world_size;
    const dump_call_t **waits; /* [world_size] the call in which each rank is, or NULL */
    bool *late;   /* [world_size * world_size] row: rank; column: it waits for that one */
    bool *cause;  /* [world_size] waited for, and waits for nobody */
    bool *circle; /* [world_size] waits for itself in the end */
} analysis_t;

static bool is_before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

/* The first one that did not come to a good end and is not queued behind another. */
static const dump_call_t *find_open(const dump_t *dump)
{
    for (uint32_t i = 0; i < dump->call_count; i++) {
        const dump_call_t *call = &dump->calls[i];
        if (wefti_dump_is_open(call) && !call->queued && call->group != WEFTI_FLIGHT_ALONE) {
            return call;
        }
    }
    return NULL;
}

/* Whether rank has come to its side of call, which other is in: NULL: no; else that side. */
static const dump_call_t *find_side(const dump_t *dump, uint32_t other, const dump_call_t *call)
{
    for (uint32_t i = 0; i < dump->call_count; i++) {
        const dump_call_t *mine = &dump->calls[i];
        bool same = mine->group == call->group && mine->seq == call->seq && !mine->queued;
        bool pairs = (call->kind == DUMP_SEND && mine->kind == DUMP_RECV) ||
                     (call->kind == DUMP_RECV && mine->kind == DUMP_SEND);
        if (same && (pairs ? mine->peer == other
                           : call->kind == DUMP_COLLECTIVE && mine->kind == DUMP_COLLECTIVE)) {
            return mine;
        }
    }
    return NULL;
}

/* It has come there long ago: its ring does not reach back to that call. */
static bool has_forgotten(const dump_t *dump, const dump_call_t *call)
{
    for (uint32_t i = 0; i < dump->call_count; i++) {
        const dump_call_t *mine = &dump->calls[i];
        if (mine->group == call->group && mine->kind == DUMP_COLLECTIVE &&
            call->kind == DUMP_COLLECTIVE) {
            return is_before(call->seq, mine->seq);
        }
    }
    return false;
}

static void find_late(analysis_t *analysis, uint32_t rank)
{
    const dump_call_t *call = analysis->waits[rank];
    bool *late = analysis->late + (size_t)rank * analysis->world_size;
    for (uint32_t r = 0; call != NULL && r < analysis->world_size; r++) {
        bool concerned = call->kind != DUMP_COLLECTIVE
                             ? r == call->peer
                             : r != rank && wefti_dumps_is_member(analysis->dumps, call->group, r);
        const dump_t *dump = wefti_dumps_find(analysis->dumps, r);
        late[r] =
            concerned &&
            (dump == NULL || (find_side(dump, rank, call) == NULL && !has_forgotten(dump, call)));
    }
}

/* Its dump was written when its call failed. A call that begins after the failure has no record. */
static bool has_failed(const dump_t *dump)
{
    return dump != NULL && dump->error != NULL && dump->reason != NULL &&
           strcmp(dump->error, dump->reason) == 0;
}

/* Follows who waits for whom: a rank that is waited for and does not wait is a cause. */
static void find_causes(analysis_t *analysis)
{
    uint32_t n = analysis->world_size;
    bool *reach = malloc((size_t)n * n + 1);
    if (reach == NULL) {
        return;
    }
    memcpy(reach, analysis->late, (size_t)n * n);
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; reach[(size_t)i * n + k] && j < n; j++) {
                reach[(size_t)i * n + j] |= reach[(size_t)k * n + j];
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        bool waits = false, waited_for = false;
        for (uint32_t i = 0; i < n; i++) {
            waits |= analysis->late[(size_t)r * n + i];
            waited_for |= analysis->late[(size_t)i * n + r];
        }
        analysis->cause[r] =
            waited_for && !waits && !has_failed(wefti_dumps_find(analysis->dumps, r));
        analysis->circle[r] = reach[(size_t)r * n + r];
    }
    free(reach);
}

/* ---- where ranks disagree ---- */

typedef struct sample {
    uint32_t rank;
    const dump_call_t *call;
} sample_t;

static int by_call(const void *a, const void *b)
{
    const sample_t *x = a, *y = b;
    if (x->call->group != y->call->group) {
        return x->call->group < y->call->group ? -1 : 1;
    }
    if (x->call->seq != y->call->seq) {
        return is_before(x->call->seq, y->call->seq) ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

typedef struct disagreement {
    sample_t *samples; /* of one call, by rank */
    size_t count;
} disagreement_t;

/* Of several the one that began first. samples: [*out_count], the caller frees it. */
static disagreement_t find_disagreement(const dumps_t *dumps, sample_t **out_samples)
{
    disagreement_t found = {NULL, 0};
    size_t total = 0, count = 0;
    for (size_t i = 0; i < dumps->count; i++) {
        total += dumps->list[i].call_count;
    }
    sample_t *samples = malloc((total + 1) * sizeof *samples);
    *out_samples = samples;
    for (size_t i = 0; samples != NULL && i < dumps->count; i++) {
        const dump_t *dump = &dumps->list[i];
        for (uint32_t k = 0; k < dump->call_count; k++) {
            if (dump->calls[k].kind == DUMP_COLLECTIVE &&
                dump->calls[k].group != WEFTI_FLIGHT_ALONE) {
                samples[count++] = (sample_t){dump->rank, &dump->calls[k]};
            }
        }
    }
    if (samples == NULL) {
        return found;
    }
    qsort(samples, count, sizeof *samples, by_call);
    for (size_t from = 0, to; from < count; from = to) {
        bool differ = false;
        for (to = from + 1; to < count && samples[to].call->group == samples[from].call->group &&
                            samples[to].call->seq == samples[from].call->seq;
             to++) {
            differ |= strcmp(samples[to].call->text, samples[from].call->text) != 0;
        }
        if (differ &&
            (found.count == 0 || samples[from].call->issued < found.samples[0].call->issued)) {
            found = (disagreement_t){samples + from, to - from};
        }
    }
    return found;
}

/* ---- the report ---- */

/* "rank 2", "ranks 0 1 3"; ranks: [n]. Returns how many. */
static uint32_t list_ranks(const bool *ranks, uint32_t n, char *out, size_t bytes)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < n; r++) {
        count += ranks[r];
    }
    size_t used = (size_t)snprintf(out, bytes, "rank%s", wefti_plural(count));
    for (uint32_t r = 0; r < n && used + 16 < bytes; r++) {
        if (ranks[r]) {
            used += (size_t)snprintf(out + used, bytes - used, " %u", r);
        }
    }
    return count;
}

static const char *call_text(const dumps_t *dumps, const dump_call_t *call, char *out, size_t bytes)
{
    char group[160];
    snprintf(out, bytes, "%s, number %u of %s", call->text, call->seq,
             wefti_dumps_group_name(dumps, call->group, group, sizeof group));
    return out;
}

static double ended_at(const dump_call_t *call)
{
    return call->ended > DUMP_NO_TIME ? call->ended : call->issued;
}

/* What a rank that others wait for does. */
static void describe_cause(const analysis_t *analysis, uint32_t rank, char *out, size_t bytes)
{
    const dump_t *dump = wefti_dumps_find(analysis->dumps, rank);
    char call[400];
    if (dump == NULL) {
        snprintf(out, bytes, "no dump: it may have died");
        return;
    }
    const dump_call_t *now = analysis->waits[rank];
    const dump_call_t *last = dump->call_count > 0 ? &dump->calls[dump->call_count - 1] : NULL;
    if (now != NULL && !now->done) {
        snprintf(out, bytes, "in %s for %.3g s", call_text(analysis->dumps, now, call, sizeof call),
                 (dump->dumped - now->issued) * 1e-6);
    } else if (last != NULL) {
        snprintf(out, bytes, "in no call for %.3g s; the last one was %s",
                 (dump->dumped - ended_at(last)) * 1e-6,
                 call_text(analysis->dumps, last, call, sizeof call));
    } else {
        snprintf(out, bytes, "in no call, and has not made one");
    }
}

static void print_causes(const analysis_t *analysis)
{
    for (uint32_t r = 0; r < analysis->world_size; r++) {
        const dump_t *dump = wefti_dumps_find(analysis->dumps, r);
        char text[600];
        if (!analysis->cause[r]) {
            continue;
        }
        describe_cause(analysis, r, text, sizeof text);
        printf("behind: rank %u", r);
        if (dump != NULL) {
            printf(" (host %s, pid %u)", dump->host != NULL ? dump->host : "unknown", dump->pid);
        }
        printf(": %s\n", text);
    }
}

/* Ranks in the same call that wait for the same ranks are one line. */
static void print_waits(const analysis_t *analysis)
{
    uint32_t n = analysis->world_size;
    bool *shown = calloc(n + 1u, 1), *same = calloc(n + 1u, 1);
    for (uint32_t r = 0; shown != NULL && same != NULL && r < n; r++) {
        const dump_call_t *call = analysis->waits[r];
        const bool *late = analysis->late + (size_t)r * n;
        char who[300], whom[300], text[400];
        if (shown[r] || call == NULL || list_ranks(late, n, whom, sizeof whom) == 0) {
            continue;
        }
        memset(same, 0, n);
        for (uint32_t i = r; i < n; i++) {
            const dump_call_t *other = analysis->waits[i];
            same[i] = i == r || (other != NULL && other->group == call->group &&
                                 other->seq == call->seq && strcmp(other->text, call->text) == 0 &&
                                 memcmp(late, analysis->late + (size_t)i * n, n) == 0);
            shown[i] |= same[i];
        }
        list_ranks(same, n, who, sizeof who);
        const dump_t *dump = wefti_dumps_find(analysis->dumps, r);
        printf("%s: %s%s for %s, after %.3g s: %s\n", analysis->circle[r] ? "circle" : "waiting",
               who,
               call->done                    ? " waited"
               : strchr(who, 's') == who + 4 ? " wait"
                                             : " waits",
               whom, ((call->done ? ended_at(call) : dump->dumped) - call->issued) * 1e-6,
               call_text(analysis->dumps, call, text, sizeof text));
    }
    free(shown);
    free(same);
}

static void print_disagreement(const dumps_t *dumps, const disagreement_t *disagreement)
{
    char group[160];
    if (disagreement->count == 0) {
        return;
    }
    const sample_t *samples = disagreement->samples;
    printf("ranks disagree first in call %u of %s:\n", samples[0].call->seq,
           wefti_dumps_group_name(dumps, samples[0].call->group, group, sizeof group));
    bool *same = calloc(dumps->world_size + 1u, 1);
    for (size_t i = 0; same != NULL && i < disagreement->count; i++) {
        char who[300];
        bool first = true;
        memset(same, 0, dumps->world_size);
        for (size_t k = 0; k < disagreement->count; k++) {
            bool equal = strcmp(samples[k].call->text, samples[i].call->text) == 0;
            first = first && !(equal && k < i);
            same[samples[k].rank] = equal;
        }
        if (first) {
            list_ranks(same, dumps->world_size, who, sizeof who);
            printf("  %s: %s\n", who, samples[i].call->text);
        }
    }
    free(same);
}

static void print_errors(const dumps_t *dumps)
{
    for (size_t i = 0; i < dumps->count; i++) {
        const dump_t *dump = &dumps->list[i];
        bool repeated = false;
        for (size_t k = 0; dump->error != NULL && k < i; k++) {
            const char *other = dumps->list[k].error;
            repeated = repeated || (other != NULL && strcmp(other, dump->error) == 0);
        }
        if (dump->error != NULL && !repeated) {
            printf("error: rank %u: %s\n", dump->rank, dump->error);
        }
    }
}

static void print_missing(const dumps_t *dumps)
{
    char who[300];
    bool *missing = calloc(dumps->world_size + 1u, 1);
    for (uint32_t r = 0; missing != NULL && r < dumps->world_size; r++) {
        missing[r] = wefti_dumps_find(dumps, r) == NULL;
    }
    if (missing != NULL && list_ranks(missing, dumps->world_size, who, sizeof who) > 0) {
        printf("no dump of %s\n", who);
    }
    free(missing);
}

static void print_text(const analysis_t *analysis, const disagreement_t *disagreement, bool found)
{
    const dumps_t *dumps = analysis->dumps;
    const char *world = dumps->list[0].world;
    printf("%zu of %u ranks%s%s\n", dumps->count, dumps->world_size,
           world != NULL && world[0] != '\0' ? " of world " : "", world != NULL ? world : "");
    print_missing(dumps);
    print_causes(analysis);
    print_waits(analysis);
    print_disagreement(dumps, disagreement);
    print_errors(dumps);
    if (!found) {
        printf("no rank is behind, and no two ranks disagree\n");
    }
}

static void json_ranks(wefti_json_t *json, const char *key, const bool *ranks, uint32_t n)
{
    wefti_json_begin_array(json, key);
    for (uint32_t r = 0; r < n; r++) {
        if (ranks[r]) {
            wefti_json_int(json, NULL, r);
        }
    }
    wefti_json_end_array(json);
}

static void json_call(wefti_json_t *json, const dumps_t *dumps, const dump_call_t *call)
{
    char group[160];
    wefti_json_string(json, "call", call->text);
    wefti_json_int(json, "seq", call->seq);
    wefti_json_string(json, "group",
                      wefti_dumps_group_name(dumps, call->group, group, sizeof group));
}

static void print_json(const analysis_t *analysis, const disagreement_t *disagreement)
{
    output_object_t object;
    const dumps_t *dumps = analysis->dumps;
    uint32_t n = analysis->world_size;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_int(json, "world_size", n);
    wefti_json_begin_array(json, "missing");
    for (uint32_t r = 0; r < n; r++) {
        if (wefti_dumps_find(dumps, r) == NULL) {
            wefti_json_int(json, NULL, r);
        }
    }
    wefti_json_end_array(json);
    json_ranks(json, "behind", analysis->cause, n);
    json_ranks(json, "circle", analysis->circle, n);
    wefti_json_begin_array(json, "ranks");
    for (size_t i = 0; i < dumps->count; i++) {
        const dump_t *dump = &dumps->list[i];
        char text[600];
        describe_cause(analysis, dump->rank, text, sizeof text);
        wefti_json_begin_object(json, NULL);
        wefti_json_int(json, "rank", dump->rank);
        wefti_json_string(json, "host", dump->host);
        wefti_json_int(json, "pid", dump->pid);
        wefti_json_string(json, "doing", text);
        wefti_json_string(json, "error", dump->error);
        if (analysis->waits[dump->rank] != NULL) {
            json_call(json, dumps, analysis->waits[dump->rank]);
            json_ranks(json, "waits_for", analysis->late + (size_t)dump->rank * n, n);
        }
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "disagreement");
    for (size_t i = 0; i < disagreement->count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_int(json, "rank", disagreement->samples[i].rank);
        json_call(json, dumps, disagreement->samples[i].call);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_output_end(&object);
}

/* ---- the command ---- */

typedef struct analyze_options {
    bool json;
    const char *timeline;
} analyze_options_t;

static int handle(void *user, int key, const char *value)
{
    analyze_options_t *options = user;
    options->json = options->json || key == KEY_JSON;
    options->timeline = key == KEY_TIMELINE ? value : options->timeline;
    return EXIT_OK;
}

/* Whether there is anything to report. */
static bool analyze(analysis_t *analysis)
{
    bool found = false;
    uint32_t n = analysis->world_size;
    for (uint32_t r = 0; r < n; r++) {
        const dump_t *dump = wefti_dumps_find(analysis->dumps, r);
        analysis->waits[r] = dump != NULL ? find_open(dump) : NULL;
        found = found || dump == NULL || dump->error != NULL;
    }
    for (uint32_t r = 0; r < n; r++) {
        find_late(analysis, r);
    }
    find_causes(analysis);
    for (uint32_t r = 0; r < n; r++) {
        found = found || analysis->cause[r] || analysis->circle[r];
    }
    return found;
}

static int report(const dumps_t *dumps, bool as_json)
{
    size_t n = dumps->world_size;
    analysis_t analysis = {
        .dumps = dumps,
        .world_size = dumps->world_size,
        .waits = calloc(n, sizeof *analysis.waits),
        .late = calloc(n * n, 1),
        .cause = calloc(n, 1),
        .circle = calloc(n, 1),
    };
    sample_t *samples = NULL;
    int code = EXIT_RUN_FAILED;
    if (analysis.waits == NULL || analysis.late == NULL || analysis.cause == NULL ||
        analysis.circle == NULL) {
        code = wefti_status_error(
            "analyze", wefti_error(WEFT_ERR_NO_MEMORY, "out of memory for %zu ranks", n));
    } else {
        disagreement_t disagreement = find_disagreement(dumps, &samples);
        bool found = analyze(&analysis) || disagreement.count > 0;
        if (as_json) {
            print_json(&analysis, &disagreement);
        } else {
            print_text(&analysis, &disagreement, found);
        }
        code = found ? EXIT_RUN_FAILED : EXIT_OK;
    }
    free(samples);
    free(analysis.waits);
    free(analysis.late);
    free(analysis.cause);
    free(analysis.circle);
    return code;
}

static int run_analyze_command(int argc, char **argv)
{
    analyze_options_t options = {false, NULL};
    int positional = 0;
    int code =
        wefti_parse_options(argc, argv, &wefti_analyze_command, handle, &options, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional == 0) {
        return wefti_usage_error("analyze", "no dump: weft analyze DUMP..");
    }
    dumps_t dumps = {0};
    for (int i = 1; i <= positional && code == EXIT_OK; i++) {
        code = wefti_dumps_add(&dumps, "analyze", argv[i]);
    }
    code = code == EXIT_OK ? wefti_dumps_complete(&dumps, "analyze") : code;
    if (code == EXIT_OK && options.timeline != NULL) {
        weft_status_t status = wefti_dumps_timeline(&dumps, options.timeline);
        code = status < 0 ? wefti_status_error("analyze", status) : EXIT_OK;
    }
    code = code == EXIT_OK ? report(&dumps, options.json) : code;
    wefti_dumps_deinit(&dumps);
    return code;
}

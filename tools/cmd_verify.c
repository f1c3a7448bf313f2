/* SPDX-License-Identifier: Apache-2.0 */
/* weft verify: proves the schedules of all algorithms, or a plan (verify_plan.c). */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/algo/sweep.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "runtime/base/text.h"
#include "tools/tool.h"
#include "tools/verify_plan.h"

#define MAX_OPS 16u
#define MAX_JOBS (96u * MAX_OPS)
#define MAX_THREADS 63u
#define SMALL_CELLS (1u << 20) /* of what is proved above 64 ranks */

enum { KEY_ALL = 256, KEY_JSON, KEY_OP, KEY_ALGO, KEY_KERNELS, KEY_OPS };

static const option_def_t own_options[] = {
    {KEY_ALL, "all", NULL, "every size up to 64 ranks, and a sample up to 1024"},
    {'n', "ranks", "N", "only groups of N ranks"},
    {KEY_OP, "op", "OP", "only this operator, such as AllReduce"},
    {KEY_ALGO, "algo", "NAME", "only algorithms of this name"},
    {'j', "threads", "N", "threads to use (default: WEFT_THREADS, or one per core)"},
    {KEY_KERNELS, "kernels", "LIB.so",
     "with PLAN: load operators from a plugin before it is proved (repeatable)"},
    {KEY_OPS, "ops", "OPS.json", "with PLAN: operators that a file declares (repeatable)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_verify_command(int argc, char **argv);

const command_t wefti_verify_command = {
    .name = "verify",
    .brief = "prove collective algorithms or a plan correct",
    .synopsis = "[PLAN.weft] [--all | -n N] [--op OP] [--algo NAME] [-j N] [--json]",
    .summary =
        "With a plan: proves it for all ranks. Operators, types and shapes; every wait is "
        "satisfied "
        "and "
        "nothing is "
        "read before it is made; no two accesses race, on any rank; no memory is shared while it "
        "is in "
        "use; no deadlock "
        "over all ranks and streams; each gradient is reduced in exactly one bucket; the schedules "
        "that "
        "its "
        "collectives may run. "
        "Without: simulates all ranks of every collective algorithm on symbols, over shared memory "
        "and "
        "over links that "
        "only put and signal, and proves for all counts: results and reduction order, no deadlock, "
        "no "
        "race, no "
        "access outside a buffer. Without --all: 1 to 17, 32, 33 and 64 ranks.",
    .epilogue = "exit status: 0 all proved, 1 the plan or a schedule is wrong (where and why is "
                "printed), 2 "
                "bad "
                "input\n",
    .options = {own_options},
    .run = run_verify_command,
};

typedef struct verify_command {
    weft_registry_t *registry; /* of a plan */
    bool all, json, plugins;
    uint32_t ranks, threads;
    weft_collective_t op;
    const char *algorithm;
    uint64_t proved, left_out, steps, accesses;
} verify_command_t;

static int handle(void *user, int key, const char *value)
{
    verify_command_t *command = user;
    weft_status_t status;
    long long number;
    switch (key) {
    case KEY_ALL:
        command->all = true;
        break;
    case KEY_JSON:
        command->json = true;
        break;
    case KEY_ALGO:
        command->algorithm = value;
        break;
    case KEY_KERNELS:
        command->plugins = true;
        status = weft_registry_load_plugin(command->registry, value);
        return status < 0 ? wefti_status_error("verify", status) : EXIT_OK;
    case KEY_OPS:
        command->plugins = true;
        status = weft_registry_load_ops(command->registry, value);
        return status < 0 ? wefti_status_error("verify", status) : EXIT_OK;
    case KEY_OP:
        command->op = wefti_collective_from_name(value);
        if (command->op == 0) {
            return wefti_usage_error("verify", "no operator '%s'", value);
        }
        break;
    case 'j':
        if (!wefti_parse_int(value, 1, MAX_THREADS, &number)) {
            return wefti_usage_error("verify", "--threads %s is not within 1 to 63", value);
        }
        command->threads = (uint32_t)number;
        break;
    case 'n':
        if (!wefti_parse_int(value, 1, 4096, &number)) {
            return wefti_usage_error("verify", "--ranks %s is not within 1 to 4096", value);
        }
        command->ranks = (uint32_t)number;
        break;
    default:
        break;
    }
    return EXIT_OK;
}

/* One operator of one group size to prove. */
typedef struct job {
    uint32_t ranks;
    weft_collective_t op;
    wefti_sweep_links_t links;
} job_t;

/* Jobs are independent of each other: threads take them one by one, largest first. */
typedef struct work {
    verify_command_t *command;
    job_t jobs[MAX_JOBS];
    uint32_t job_count, next, finished;
    pthread_mutex_t mutex; /* guards next, the command's counts, status and message */
    weft_status_t status;
    char message[1024]; /* of the first thread that failed */
} work_t;

static void add_job(work_t *work, uint32_t ranks, wefti_sweep_links_t links)
{
    for (uint32_t op = 1; op < MAX_OPS; op++) {
        weft_collective_t one = (weft_collective_t)op;
        if (work->command->op != 0 ? work->command->op == one : wefti_collective_known(one)) {
            work->jobs[work->job_count++] = (job_t){ranks, one, links};
        }
    }
}

static void add_jobs(work_t *work)
{
    static const uint32_t usual[] = {64, 33, 32};
    static const uint32_t sample[] = {1024, 1000, 512, 511, 256, 255, 128, 127, 96, 65};
    const verify_command_t *command = work->command;
    if (command->ranks > 0) {
        add_job(work, command->ranks, command->ranks > 64 ? WEFTI_SWEEP_DIRECT : WEFTI_SWEEP_ALL);
        return;
    }
    for (size_t i = 0; command->all && i < sizeof sample / sizeof *sample; i++) {
        add_job(work, sample[i], WEFTI_SWEEP_DIRECT);
    }
    for (size_t i = 0; !command->all && i < sizeof usual / sizeof *usual; i++) {
        add_job(work, usual[i], WEFTI_SWEEP_ALL);
    }
    for (uint32_t ranks = command->all ? 64 : 17; ranks > 0; ranks--) {
        add_job(work, ranks, WEFTI_SWEEP_ALL);
    }
}

static void finish_job(work_t *work, const job_t *job, const wefti_sweep_t *sweep,
                       weft_status_t status)
{
    verify_command_t *command = work->command;
    pthread_mutex_lock(&work->mutex);
    command->proved += sweep->proved;
    command->left_out += sweep->left_out;
    command->steps += sweep->steps;
    command->accesses += sweep->accesses;
    if (status < 0 && work->status >= 0) {
        work->status = status;
        snprintf(work->message, sizeof work->message, "%s", weft_last_error());
    }
    work->finished++;
    if (!command->json && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%3u %%  %s, %u ranks; %" PRIu64 " cases proved",
                100 * work->finished / work->job_count, weft_collective_name(job->op), job->ranks,
                command->proved);
    }
    pthread_mutex_unlock(&work->mutex);
}

static void *run_jobs(void *user)
{
    work_t *work = user;
    for (;;) {
        pthread_mutex_lock(&work->mutex);
        uint32_t index = work->status < 0 ? work->job_count : work->next;
        work->next++;
        pthread_mutex_unlock(&work->mutex);
        if (index >= work->job_count) {
            return NULL;
        }
        const job_t *job = &work->jobs[index];
        wefti_sweep_t sweep = {.op = job->op,
                               .algorithm = work->command->algorithm,
                               .links = job->links,
                               .cell_limit = job->ranks > 64 ? SMALL_CELLS : 0};
        weft_status_t status = wefti_sweep_size(&sweep, job->ranks);
        finish_job(work, job, &sweep, status);
    }
}

static long thread_count(const verify_command_t *command)
{
    const char *text = getenv("WEFT_THREADS");
    long long number = command->threads;
    if (number == 0 && (text == NULL || !wefti_parse_int(text, 1, MAX_THREADS, &number))) {
        number = sysconf(_SC_NPROCESSORS_ONLN);
    }
    return (long)number;
}

static weft_status_t prove_all(verify_command_t *command)
{
    pthread_t threads[MAX_THREADS];
    work_t work = {.command = command, .mutex = PTHREAD_MUTEX_INITIALIZER};
    uint32_t started = 0;
    add_jobs(&work);
    long cores = thread_count(command);
    while (started + 1 < cores && started < MAX_THREADS && started + 1 < work.job_count &&
           pthread_create(&threads[started], NULL, run_jobs, &work) == 0) {
        started++;
    }
    run_jobs(&work); /* also where no thread could be had */
    while (started > 0) {
        pthread_join(threads[--started], NULL);
    }
    return work.status < 0 ? wefti_error_adopt(work.status, work.message) : WEFT_OK;
}

static void print_result(const verify_command_t *command, weft_status_t status, double seconds)
{
    if (!command->json) {
        if (isatty(STDERR_FILENO)) {
            fputs("\r\033[K", stderr);
        }
        printf("%" PRIu64 " cases proved (%" PRIu64 " steps, %" PRIu64 " accesses) in %.1f s",
               command->proved, command->steps, command->accesses, seconds);
        if (command->left_out > 0) {
            printf(", %" PRIu64 " left out as too large", command->left_out);
        }
        puts("");
        return;
    }
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_bool(&json, "ok", status >= 0);
    wefti_json_int(&json, "proved", (int64_t)command->proved);
    wefti_json_int(&json, "left_out", (int64_t)command->left_out);
    wefti_json_int(&json, "steps", (int64_t)command->steps);
    wefti_json_int(&json, "accesses", (int64_t)command->accesses);
    wefti_json_double(&json, "seconds", seconds);
    wefti_json_string(&json, "error", status < 0 ? weft_last_error() : NULL);
    wefti_json_end_object(&json);
    puts(text.failed ? "{}" : text.data);
    wefti_text_deinit(&text);
}

static int verify_algorithms(verify_command_t *command)
{
    uint64_t begin_ns = wefti_now_ns();
    weft_status_t status = prove_all(command);
    print_result(command, status, (double)(wefti_now_ns() - begin_ns) * 1e-9);
    if (status < 0) {
        fprintf(stderr, "weft verify: %s\n", weft_last_error());
        return EXIT_RUN_FAILED;
    }
    if (command->proved == 0) {
        return wefti_usage_error("verify", "no algorithm fits what was asked for");
    }
    return EXIT_OK;
}

static int verify(verify_command_t *command, int positional, char **argv)
{
    bool of_algorithms = command->all || command->ranks != 0 || command->op != 0 ||
                         command->algorithm != NULL || command->threads != 0;
    if (positional > 1) {
        return wefti_usage_error("verify", "unexpected argument '%s'", argv[2]);
    }
    if (positional == 1 && of_algorithms) {
        return wefti_usage_error("verify",
                                 "a plan is proved as a whole: --json, --kernels and --ops only");
    }
    if (positional == 0 && command->plugins) {
        return wefti_usage_error("verify", "--kernels and --ops are for plans");
    }
    return positional == 1 ? wefti_verify_plan(argv[1], command->registry, command->json)
                           : verify_algorithms(command);
}

static int run_verify_command(int argc, char **argv)
{
    verify_command_t command = {0};
    int positional = 0;
    weft_status_t status = weft_registry_create(NULL, &command.registry);
    if (status < 0) {
        return wefti_status_error("verify", status);
    }
    int code =
        wefti_parse_options(argc, argv, &wefti_verify_command, handle, &command, &positional);
    if (code == EXIT_OK) {
        code = verify(&command, positional, argv);
    }
    weft_registry_destroy(command.registry);
    return code < 0 ? EXIT_OK : code;
}

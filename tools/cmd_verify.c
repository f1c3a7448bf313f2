/* SPDX-License-Identifier: Apache-2.0 */
/* weft verify: proves the schedules of all algorithms, or a plan (verify_plan.c). */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/algo/msccl.h"
#include "ops/algo/sweep.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/sync.h"
#include "tools/output.h"
#include "tools/tool.h"
#include "tools/verify_plan.h"

#define MAX_JOBS (96u * WEFTI_OPS)
#define MAX_THREADS 63u
#define SMALL_CELLS (1u << 20) /* of what is proved above 64 ranks by running them */
#define MOST_STEPS (1u << 27)  /* of all ranks, to compare them, unless an algorithm is named */

enum { KEY_ALL = 256, KEY_JSON, KEY_OP, KEY_ALGO, KEY_KERNELS, KEY_OPS };

static const option_def_t own_options[] = {
    {KEY_ALL, "all", NULL, "every world size up to 64 ranks, and a sample up to 1024"},
    {'n', "world", "N", "only groups of N ranks"},
    {KEY_OP, "op", "OP", "only this operator, such as all_reduce"},
    {KEY_ALGO, "algo", "NAME", "only algorithms of this name"},
    {'j', "threads", "N", "number of threads (default: WEFT_THREADS, or one per core)"},
    {KEY_OPS, "ops", "OPS.json", "with a plan: declare operators from a file (repeatable)"},
    {KEY_KERNELS, "kernels", "LIB.so",
     "with a plan: load operators and kernels from a plugin (repeatable)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_verify_command(int argc, char **argv);
static int check_plan_file(int argc, char **argv, int index);

const command_t wefti_verify_command = {
    .name = "verify",
    .brief = "prove collective algorithms or a plan correct",
    .synopsis = "PLAN.weft [--ops OPS.json] [--kernels LIB.so] [--json]\n"
                "ALGORITHM.xml [--json]\n"
                "[--all | -n N] [--op OP] [--algo NAME] [-j N] [--json]",
    .summary =
        "With a plan: proves for all ranks that operators, types and shapes are correct; "
        "that every wait completes; that no buffer is read before it is written; that no two "
        "accesses race; that no memory is used for two purposes at a time; that ranks and "
        "streams cannot deadlock; that each gradient is reduced in exactly one bucket; and "
        "that the schedules of its collectives are correct.\n"
        "\n"
        "With a file of MSCCL: proves its algorithm as below, for its number of ranks, in place "
        "and not. Prints the name by which programs select it.\n"
        "\n"
        "Without a file: runs every collective algorithm on symbols for all ranks, over "
        "shared memory and over links with put and signal only. Proves for all element "
        "counts that results and reduction order are correct, and that there is no deadlock, "
        "no race, and no access outside a buffer. Without --all: 1 to 17, 32, 33 and 64 "
        "ranks. Of groups that are too large to run all ranks, algorithms are proved by symmetry: "
        "the schedule of every rank is compared with the image of rank 0's, and rank 0 is run for "
        "all. What is not symmetric is counted as not proved, and so is, unless --algo names it, "
        "what takes more than some seconds.",
    .epilogue =
        "exit status: 0 all proved, 1 the plan or a schedule is wrong (place and reason are "
        "printed)\n"
        "or a schedule was skipped, 2 invalid input\n"
        "\n"
        "examples:\n"
        "  weft verify mlp.weft\n"
        "  weft verify ring.xml\n"
        "  weft verify --op all_reduce -n 8\n",
    .options = {own_options},
    .run = run_verify_command,
    .check_positional = check_plan_file,
};

typedef struct verify_command {
    weft_registry_t *registry; /* of a plan */
    bool all, json, plugins;
    uint32_t ranks, threads;
    weft_collective_t op;
    const char *algorithm;
    uint64_t proved, by_symmetry, left_out, steps, accesses;
} verify_command_t;

static int handle(void *user, int key, const char *value)
{
    verify_command_t *command = user;
    weft_status_t status;
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
        return wefti_option_op("verify", "--op", value, false, &command->op);
    case 'j':
        return wefti_option_u32("verify", "--threads", value, 1, MAX_THREADS, &command->threads);
    case 'n':
        return wefti_option_u32("verify", "--world", value, 1, WEFTI_MAX_GROUP, &command->ranks);
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

/* Jobs are independent of each other: each thread claims the next one, largest first. */
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
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
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
    command->by_symmetry += sweep->by_symmetry;
    command->left_out += sweep->left_out;
    command->steps += sweep->steps;
    command->accesses += sweep->accesses;
    if (status < 0 && work->status >= 0) {
        work->status = status;
        snprintf(work->message, sizeof work->message, "%s", weft_last_error());
    }
    work->finished++;
    if (!command->json && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%3u %%  %s, %u rank%s; %" PRIu64 " cases proved",
                100 * work->finished / work->job_count, wefti_collective_function(job->op),
                job->ranks, wefti_plural(job->ranks), command->proved);
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
                               .cell_limit = job->ranks > 64 ? SMALL_CELLS : 0,
                               .step_limit = work->command->algorithm == NULL ? MOST_STEPS : 0};
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
    run_jobs(&work); /* also if no thread could be started */
    while (started > 0) {
        pthread_join(threads[--started], NULL);
    }
    return work.status < 0 ? wefti_error_adopt(work.status, work.message) : WEFT_OK;
}

/* Of sizes above 64 ranks, --all is a sample by what it is called. */
static bool is_complete(const verify_command_t *command)
{
    return command->left_out == 0 || command->all;
}

static void print_result(const verify_command_t *command, weft_status_t status, double seconds)
{
    if (!command->json) {
        if (isatty(STDERR_FILENO)) {
            fputs("\r\033[K", stderr);
        }
        printf("%" PRIu64 " cases proved (%" PRIu64 " steps, %" PRIu64 " accesses) in %.1f s",
               command->proved, command->steps, command->accesses, seconds);
        puts("");
        if (command->by_symmetry > 0) {
            printf("of these by symmetry: %" PRIu64 " (the schedule of every rank is the image of "
                   "rank 0's, which was proved)\n",
                   command->by_symmetry);
        }
        if (command->left_out > 0) {
            printf("not proved: %" PRIu64 " case%s skipped: too large to run all ranks, and not "
                   "proved by symmetry\n",
                   command->left_out, wefti_plural(command->left_out));
        }
        return;
    }
    output_object_t object;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_bool(json, "ok", status >= 0 && is_complete(command));
    wefti_json_int(json, "proved", (int64_t)command->proved);
    wefti_json_int(json, "by_symmetry", (int64_t)command->by_symmetry);
    wefti_json_int(json, "left_out", (int64_t)command->left_out);
    wefti_json_int(json, "steps", (int64_t)command->steps);
    wefti_json_int(json, "accesses", (int64_t)command->accesses);
    wefti_json_double(json, "seconds", seconds);
    wefti_json_string(json, "error", status < 0 ? weft_last_error() : NULL);
    wefti_output_end(&object);
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
    if (command->proved == 0 && command->left_out == 0) {
        return wefti_usage_error(
            "verify", "no algorithm matches these options; `weft algos` lists the algorithms");
    }
    return is_complete(command) ? EXIT_OK : EXIT_RUN_FAILED;
}

/* The first bytes of a file; false: it cannot be read. */
static bool read_magic(const char *path, char magic[8])
{
    FILE *file = fopen(path, "re");
    memset(magic, 0, 8);
    bool good = file != NULL && (fread(magic, 1, 8, file) == 8 || ferror(file) == 0);
    if (file != NULL) {
        fclose(file);
    }
    return good;
}

static bool is_xml(const char *path)
{
    char magic[8];
    return read_magic(path, magic) && magic[strspn(magic, " \t\r\n")] == '<';
}

/* An existing file that is not a plan: most often the model. */
static int check_plan_file(int argc, char **argv, int index)
{
    char magic[8];
    (void)argc;
    return !read_magic(argv[index], magic) || memcmp(magic, "WEFTPLAN", sizeof magic) == 0 ||
                   is_xml(argv[index])
               ? EXIT_OK /* loading it reports what is wrong with it */
               : wefti_usage_error("verify",
                                   "%s: not a plan; weft verify takes a PLAN.weft (written by "
                                   "weft compile), an XML file of MSCCL, or no file to prove the "
                                   "algorithms",
                                   argv[index]);
}

static void print_file(const wefti_msccl_t *msccl, bool json)
{
    const weft_algorithm_t *algorithm = wefti_msccl_algorithm(msccl);
    const wefti_msccl_program_t *program = &msccl->programs[0];
    bool reduces = wefti_collective_reduces(algorithm->op);
    const char *order = !reduces ? NULL : msccl->tree ? "tree" : "any";
    if (!json) {
        printf("%s: %s of %u ranks proved%s%s; %u lane%s, %u phases, %u scratch slots\n",
               algorithm->name, weft_collective_name(algorithm->op), msccl->gpu_count,
               reduces ? ", order " : "", reduces ? order : "", msccl->lanes,
               wefti_plural(msccl->lanes), program->phases, program->slots);
        return;
    }
    output_object_t object;
    wefti_json_t *writer = wefti_output_begin(&object);
    wefti_json_bool(writer, "ok", true);
    wefti_json_string(writer, "algorithm", algorithm->name);
    wefti_json_string(writer, "op", wefti_collective_function(algorithm->op));
    wefti_json_int(writer, "ranks", msccl->gpu_count);
    wefti_json_string(writer, "order", order);
    wefti_json_int(writer, "lanes", msccl->lanes);
    wefti_json_int(writer, "phases", program->phases);
    wefti_json_int(writer, "scratch_slots", program->slots);
    wefti_output_end(&object);
}

/* Loading an algorithm proves it. */
static int verify_file(verify_command_t *command, const char *path)
{
    const weft_algorithm_t *algorithm = NULL;
    weft_status_t status = weft_registry_load_algorithm(command->registry, path, &algorithm);
    if (status >= 0) {
        print_file(wefti_msccl_of(algorithm), command->json);
        return EXIT_OK;
    }
    if (command->json) {
        output_object_t object;
        wefti_json_t *writer = wefti_output_begin(&object);
        wefti_json_bool(writer, "ok", false);
        wefti_json_string(writer, "error", weft_last_error());
        wefti_output_end(&object);
    }
    int code = wefti_status_error("verify", status);
    return status == WEFT_ERR_INVALID_ARGUMENT ? EXIT_RUN_FAILED : code;
}

static int verify(verify_command_t *command, int positional, char **argv)
{
    bool of_algorithms = command->all || command->ranks != 0 || command->op != 0 ||
                         command->algorithm != NULL || command->threads != 0;
    if (positional > 1) {
        return wefti_usage_error("verify", "unexpected argument '%s'", argv[2]);
    }
    if (positional == 1 && of_algorithms) {
        return wefti_usage_error(
            "verify", "a plan is proved as a whole: only --json, --kernels and --ops are allowed");
    }
    if (positional == 0 && command->plugins) {
        return wefti_usage_error("verify", "--kernels and --ops require a plan");
    }
    return positional == 0   ? verify_algorithms(command)
           : is_xml(argv[1]) ? verify_file(command, argv[1])
                             : wefti_verify_plan(argv[1], command->registry, command->json);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* weft bench: how long collectives take on this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/algo/msccl.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/settings.h"
#include "runtime/base/text.h"
#include "tools/bench/plot.h"
#include "tools/launch/launch.h"
#include "tools/launch/world.h"

enum {
    KEY_MIN = 256,
    KEY_MAX,
    KEY_FACTOR,
    KEY_DTYPE,
    KEY_REDUCTION,
    KEY_MEMORY,
    KEY_ALGO,
    KEY_ORDER,
    KEY_ITERS,
    KEY_STREAM,
    KEY_OUT_OF_PLACE,
    KEY_CHECK,
    KEY_JSON,
    KEY_DEVICE,
    KEY_PLOT,
    KEY_PEERS
};

static const option_def_t own_options[] = {
    {'n', "world", "N", "number of local ranks, each bound to its own cores (default 2)"},
    {KEY_MIN, "min", "BYTES", "smallest size, such as 8 or 4K (default 8)"},
    {KEY_MAX, "max", "BYTES", "largest size (default 64M)"},
    {KEY_FACTOR, "factor", "F", "factor between sizes (default 8)"},
    {KEY_DTYPE, "dtype", "TYPE",
     "element type: f32 (default), f64, f16, bf16, i64, i32, i16, i8, u64, u32, u16 or u8"},
    {KEY_REDUCTION, "reduction", "R", "sum (default), avg, prod, min or max"},
    {KEY_MEMORY, "memory", "KIND",
     "registered (default), adopted (allocated by the caller, then registered) or plain"},
    {KEY_ALGO, "algo", "NAME",
     "use this algorithm, or that of a file of MSCCL (ring.xml); default: the choice by cost (weft "
     "algos)"},
    {KEY_ORDER, "order", "ORDER", "reduction order: tree (default), blocks:N,N,.. or any"},
    {KEY_ITERS, "iterations", "I", "timed calls per size (default: depends on the size)"},
    {KEY_STREAM, "stream", "KIND",
     "none (default: blocking calls), or inline or thread (calls on a stream of that kind)"},
    {KEY_OUT_OF_PLACE, "out-of-place", NULL,
     "use separate send and receive buffers for operators that also work in place"},
    {KEY_CHECK, "check", NULL, "compare all results with the expected values, bit for bit"},
    {KEY_DEVICE, "device", "DEVICE",
     "device of the ranks, as for weft run: opencl:0, or opencl:0,1 in turn (default cpu)"},
    {KEY_PLOT, "plot", "OUT.svg", "also draw times over sizes, both axes logarithmic"},
    {KEY_PEERS, "peers", "FILE.json",
     "with --plot: also draw these times of other libraries; rows of "
     "tests/bench/compare_peers.py --json, or of weft bench --json"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_bench_command(int argc, char **argv);

const command_t wefti_bench_command = {
    .name = "bench",
    .brief = "measure the time of collectives",
    .synopsis = "OP [-n N] [options]",
    .summary =
        "Measures all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter "
        "or all_to_all on N local ranks. Every rank writes its buffer before each call, as a "
        "kernel would. A time is that of the slowest rank. The floor column is the time of "
        "the same data movement by a loop without a library: one flag per step, and no "
        "agreement about the call.\n"
        "\n"
        "Ranks that mpirun or `weft run --hosts .. --` has started are used as they are; the "
        "floor is then not measured.",
    .epilogue = "examples:\n"
                "  weft bench all_reduce -n 2 --memory registered\n"
                "  weft bench all_reduce --plot all_reduce.svg --peers peers.json\n"
                "  weft run --hosts a:4,b:4 -- weft bench all_reduce\n",
    .options = {own_options},
    .run = run_bench_command,
};

static int parse_reduction(bench_t *bench, const char *value)
{
    const char *names[WEFT_REDUCTION_MAX + 1];
    size_t count = 0, index = 0;
    for (int r = WEFT_REDUCTION_SUM; r <= WEFT_REDUCTION_MAX; r++) {
        names[count++] = weft_reduction_name((weft_reduction_t)r);
    }
    int code = wefti_option_choice("bench", "--reduction", value, names, count, &index);
    bench->reduction = (weft_reduction_t)(WEFT_REDUCTION_SUM + (int)index);
    return code;
}

static int parse_number(const char *option, const char *value, long long low, long long high,
                        uint64_t *out)
{
    long long number = 0;
    int code = wefti_option_int("bench", option, value, low, high, &number);
    *out = (uint64_t)number;
    return code;
}

typedef struct bench_command {
    bench_t bench;
    const char *plot, *peers;
} bench_command_t;

static int handle(void *user, int key, const char *value)
{
    bench_command_t *command = user;
    bench_t *bench = &command->bench;
    static const char *const streams[] = {"none", "inline", "thread"};
    size_t index = 0;
    int code = EXIT_OK;
    switch (key) {
    case 'n':
        return wefti_option_u32("bench", "--world", value, 1, BENCH_MAX_RANKS, &bench->ranks);
    case KEY_MIN:
        return wefti_parse_size("bench", "--min", value, &bench->min_bytes);
    case KEY_MAX:
        return wefti_parse_size("bench", "--max", value, &bench->max_bytes);
    case KEY_FACTOR:
        return parse_number("--factor", value, 2, 1024, &bench->factor);
    case KEY_ITERS:
        return parse_number("--iterations", value, 1, 1000000, &bench->iterations);
    case KEY_DTYPE:
        bench->dtype = weft_dtype_from_name(value);
        return bench->dtype != WEFT_DTYPE_NONE && bench->dtype != WEFT_DTYPE_BOOL
                   ? EXIT_OK
                   : wefti_usage_error("bench",
                                       "--dtype %s: must be f32, f64, f16, bf16, i64, i32, i16, "
                                       "i8, u64, u32, u16 or u8",
                                       value);
    case KEY_REDUCTION:
        return parse_reduction(bench, value);
    case KEY_MEMORY:
        code = wefti_option_choice("bench", "--memory", value, wefti_bench_memory_names, 3, &index);
        bench->memory = (memory_kind_t)index;
        return code;
    case KEY_STREAM:
        code = wefti_option_choice("bench", "--stream", value, streams, 3, &index);
        bench->on_stream = index != 0;
        bench->stream_flags = index == 2 ? WEFT_STREAM_THREAD : WEFT_STREAM_INLINE;
        return code;
    case KEY_ALGO:
        bench->algorithm = value;
        return EXIT_OK;
    case KEY_ORDER:
        bench->order = value;
        return EXIT_OK;
    case KEY_OUT_OF_PLACE:
        bench->out_of_place = true;
        return EXIT_OK;
    case KEY_DEVICE: /* read by the contexts of ranks */
        setenv("WEFT_DEVICE", value, 1);
        return EXIT_OK;
    case KEY_PLOT:
        command->plot = value;
        return EXIT_OK;
    case KEY_PEERS:
        command->peers = value;
        return EXIT_OK;
    case KEY_CHECK:
        bench->check = true;
        return EXIT_OK;
    default:
        bench->json = true;
        return EXIT_OK;
    }
}

static uint64_t next_size(const bench_t *bench, uint64_t bytes)
{
    return bytes < bench->max_bytes / bench->factor ? bytes * bench->factor : bench->max_bytes;
}

/* With --json, progress goes to a terminal on standard error. */
static void show_progress(const bench_t *bench, uint64_t bytes)
{
    char size[32];
    if (bench->json && isatty(STDERR_FILENO) == 1) {
        fprintf(stderr, "\r\033[K%s, %s", wefti_collective_function(bench->op),
                wefti_format_bytes(bytes, size));
    }
}

static weft_status_t bench_rank(void *user, uint32_t rank, uint32_t world_size, const char *address)
{
    const bench_t *bench = user;
    bench_rank_t self;
    bench_row_t row;
    uint32_t printed = 0;
    bool fits;
    (void)world_size;
    weft_status_t status = wefti_bench_rank_init(&self, bench, rank, address);
    for (uint64_t bytes = bench->min_bytes; status == WEFT_OK; bytes = next_size(bench, bytes)) {
        if (rank == 0) {
            show_progress(bench, bytes);
        }
        status = wefti_bench_measure(&self, bytes, &fits, &row);
        if (rank == 0 && bench->json && isatty(STDERR_FILENO) == 1) {
            fputs("\r\033[K", stderr);
        }
        if (status == WEFT_OK && fits && rank == 0) {
            wefti_bench_print_row(bench, &row, printed++);
            if (bench->plot != NULL) {
                wefti_bench_plot_add(bench->plot, &row);
            }
        }
        if (bytes == bench->max_bytes) {
            break;
        }
    }
    if (status == WEFT_OK && rank == 0) {
        wefti_bench_print_end(bench, printed);
        status = bench->plot != NULL ? wefti_bench_plot_write(bench->plot, bench) : WEFT_OK;
    }
    wefti_bench_rank_deinit(&self);
    return status;
}

/* --algo: a built-in algorithm, or one of a file, which the registry owns. */
static int find_algorithm(const bench_t *bench, weft_registry_t *registry,
                          const weft_algorithm_t **out_algorithm)
{
    const weft_algorithm_t *algorithm;
    const char *name = bench->algorithm, *op = wefti_collective_function(bench->op);
    wefti_text_t names;
    if (name == NULL) {
        return EXIT_OK;
    }
    if (wefti_msccl_is_path(name)) {
        weft_status_t status = weft_registry_load_algorithm(registry, name, out_algorithm);
        return status < 0 ? wefti_status_error("bench", status)
               : (*out_algorithm)->op == bench->op
                   ? EXIT_OK
                   : wefti_usage_error("bench", "--algo %s: the file is an algorithm of %s, not %s",
                                       name, wefti_collective_function((*out_algorithm)->op), op);
    }
    *out_algorithm = wefti_algorithm_find(bench->op, name);
    if (*out_algorithm != NULL) {
        return EXIT_OK;
    }
    wefti_text_init(&names, NULL);
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL; i++) {
        if (algorithm->op == bench->op) {
            wefti_text_printf(&names, "%s%s", names.length > 0 ? ", " : "", algorithm->name);
        }
    }
    int code = wefti_usage_error("bench", "--algo %s: unknown algorithm of %s; must be one of %s",
                                 name, op, names.failed ? "others" : names.data);
    wefti_text_deinit(&names);
    return code;
}

/* Reports errors that every rank would find once, before ranks are started. */
static int check_eligible(const bench_t *bench, const weft_algorithm_t *algorithm)
{
    wefti_settings_t settings;
    weft_status_t status = wefti_settings_load(&settings);
    if (status < 0) {
        return wefti_status_error("bench", status);
    }
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = bench->op,
                                 .group_size = bench->ranks,
                                 .order = settings.order.order,
                                 .order_sizes = settings.order.sizes,
                                 .order_size_count = settings.order.count};
    status = wefti_algo_params_check(&params);
    if (status < 0) {
        return wefti_status_error("bench", status);
    }
    const char *reason = algorithm != NULL ? wefti_algorithm_reason(algorithm, &params) : NULL;
    return reason == NULL
               ? EXIT_OK
               : wefti_usage_error("bench", "--algo %s: not eligible for %s: %s", bench->algorithm,
                                   wefti_collective_function(bench->op), reason);
}

/* alone: this process starts the ranks. */
static int check_algorithm(const bench_t *bench, bool alone)
{
    weft_registry_t *registry = NULL;
    const weft_algorithm_t *algorithm = NULL;
    weft_status_t status = weft_registry_create(NULL, &registry);
    if (status < 0) {
        return wefti_status_error("bench", status);
    }
    int code = find_algorithm(bench, registry, &algorithm);
    if (code == EXIT_OK && alone) {
        code = check_eligible(bench, algorithm);
    }
    weft_registry_destroy(registry);
    return code;
}

/* What can be said of the picture before anything is measured; ranks are known. */
static weft_status_t prepare_plot(bench_command_t *command, bench_plot_t *plot)
{
    if (command->plot == NULL) {
        return WEFT_OK;
    }
    plot->path = command->plot;
    plot->count = 2;
    snprintf(plot->curves[0].name, sizeof plot->curves[0].name, "weft");
    snprintf(plot->curves[1].name, sizeof plot->curves[1].name, "floor");
    plot->curves[1].dashed = true;
    command->bench.plot = plot;
    WEFT_RETURN_IF_ERROR(wefti_file_check_place(command->plot));
    return command->peers != NULL ? wefti_bench_plot_read(plot, &command->bench, command->peers)
                                  : WEFT_OK;
}

/* Started by mpirun or the like: this process is one rank. */
static int bench_launched(bench_command_t *command, bench_plot_t *plot)
{
    bench_t *bench = &command->bench;
    int code = wefti_launched_join("bench", NULL, &bench->world);
    if (code != EXIT_OK) {
        return code;
    }
    uint32_t size = weft_context_world_size(bench->world);
    weft_status_t status = WEFT_OK;
    if (bench->ranks != 0 && bench->ranks != size) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "--world %u: the launcher (%s) has started %u rank%s", bench->ranks,
                             weft_context_launcher(bench->world), size, wefti_plural(size));
    }
    bench->ranks = size;
    if (status >= 0 && weft_context_rank(bench->world) == 0) {
        status = prepare_plot(command, plot);
    }
    code = wefti_launched_agree(bench->world, "bench", status);
    if (code == EXIT_OK) {
        status = bench_rank(bench, weft_context_rank(bench->world), size, NULL);
        code = status < 0 ? wefti_status_error("bench", status) : EXIT_OK;
    }
    weft_context_release(bench->world);
    return code;
}

static int run_bench_command(int argc, char **argv)
{
    static bench_plot_t plot;
    bench_command_t command = {
        .bench = {.min_bytes = 8, .max_bytes = 64u << 20, .factor = 8, .dtype = WEFT_DTYPE_F32}};
    bench_t *bench = &command.bench;
    int positional = 0;
    int code = wefti_parse_options(argc, argv, &wefti_bench_command, handle, &command, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 1) {
        return wefti_usage_error(
            "bench", "expected one operator such as all_reduce, got %d arguments", positional);
    }
    code = wefti_option_op("bench", "OP", argv[1], true, &bench->op);
    if (code != EXIT_OK) {
        return code;
    }
    if (command.peers != NULL && command.plot == NULL) {
        return wefti_usage_error("bench", "--peers requires --plot");
    }
    if (bench->min_bytes > bench->max_bytes) {
        return wefti_usage_error("bench", "--min %llu is larger than --max %llu",
                                 (unsigned long long)bench->min_bytes,
                                 (unsigned long long)bench->max_bytes);
    }
    if (bench->order != NULL) {
        setenv("WEFT_ORDER", bench->order, 1); /* the ranks inherit it */
    }
    bool launched = wefti_is_launched(bench->ranks);
    bench->ranks = bench->ranks == 0 && !launched ? 2 : bench->ranks;
    code = check_algorithm(bench, !launched);
    if (code != EXIT_OK) {
        return code;
    }
    if (launched) {
        return bench_launched(&command, &plot);
    }
    weft_status_t status = prepare_plot(&command, &plot);
    if (status < 0) {
        return wefti_status_error("bench", status);
    }
    bench->floor = wefti_bench_floor_create(bench->ranks, bench->max_bytes);
    code = wefti_launch(&(launch_t){.command = "bench"}, bench->ranks, bench_rank, bench);
    wefti_bench_floor_destroy(bench->floor);
    return code;
}

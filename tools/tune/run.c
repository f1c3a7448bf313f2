/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the ranks that measure, one group after another, and writes the table. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/settings.h"
#include "tools/launch/launch.h"
#include "tools/tune/tune.h"

void wefti_tune_init(tune_command_t *command)
{
    *command = (tune_command_t){.command = "tune", .groups = {2}, .group_count = 1};
    wefti_costs_default(&command->costs, NULL);
}

void wefti_tune_deinit(tune_command_t *command)
{
    wefti_costs_deinit(&command->costs);
}

uint64_t wefti_tune_max_bytes(const tune_command_t *command)
{
    return command->max_bytes > 0 ? command->max_bytes
           : command->quick       ? (uint64_t)4 << 20
                                  : (uint64_t)64 << 20;
}

tune_run_t wefti_tune_make_run(const tune_command_t *command, uint32_t ranks, memory_kind_t memory)
{
    tune_run_t run = {
        .bench = {.ranks = ranks,
                  .min_bytes = 8,
                  .max_bytes = wefti_tune_max_bytes(command),
                  .dtype = WEFT_DTYPE_F32,
                  .reduction = WEFT_REDUCTION_SUM,
                  .memory = memory},
        .only = command->only,
        .budget_us = command->quick ? 150 : 20000,
        .pilot_calls = command->quick ? 1 : 3,
        .min_calls = command->quick ? 3 : 7,
        .link_calls = command->quick ? 60 : 200,
        .most_us = command->quick ? 500e3 : 0,
        .rounds = command->quick ? 1 : 2,
        .growth = command->quick ? 16 : 4,
        .progress = isatty(STDERR_FILENO) == 1,
        .done = command->done,
        .total = command->total,
        .host_of = command->host_of,
        .host_count = command->host_count,
    };
    return run;
}

/* One launch; its results go into the table. */
static int run_once(tune_command_t *command, uint32_t ranks, memory_kind_t memory)
{
    tune_run_t run = wefti_tune_make_run(command, ranks, memory);
    bool links = ranks == command->groups[0] && memory == MEMORY_REGISTERED;
    run.result =
        mmap(NULL, sizeof *run.result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.result == MAP_FAILED) {
        return wefti_usage_error(command->command, "out of memory: %zu bytes of results",
                                 sizeof *run.result);
    }
    run.bench.floor = links ? wefti_bench_floor_create(ranks, wefti_tune_max_bytes(command)) : NULL;
    int code = wefti_launch(&(launch_t){.command = command->command}, ranks, wefti_tune_rank, &run);
    weft_status_t status = WEFT_OK;
    if (code == EXIT_OK && links) {
        wefti_tune_set_links(&command->costs, run.result);
        status = wefti_tune_set_steps(&command->costs, &run);
    }
    if (code == EXIT_OK && status == WEFT_OK) {
        status = wefti_tune_add(&command->costs, &run);
    }
    command->done += wefti_tune_count(&run);
    wefti_bench_floor_destroy(run.bench.floor);
    munmap(run.result, sizeof *run.result);
    return status < 0 ? wefti_status_error(command->command, status) : code;
}

static int measure_collectives(tune_command_t *command)
{
    int code = EXIT_OK;
    for (uint32_t i = 0; i < command->group_count; i++) {
        tune_run_t run = wefti_tune_make_run(command, command->groups[i], MEMORY_REGISTERED);
        command->total += 2 * wefti_tune_count(&run);
    }
    for (uint32_t i = 0; i < command->group_count && code == EXIT_OK; i++) {
        code = run_once(command, command->groups[i], MEMORY_REGISTERED);
        if (code == EXIT_OK) {
            code = run_once(command, command->groups[i], MEMORY_PLAIN);
        }
    }
    return code;
}

static size_t bounded_cache(uint64_t bytes)
{
    const size_t least = (size_t)1 << 20, most = (size_t)1 << 23;
    return bytes < least ? least : bytes > most ? most : (size_t)bytes;
}

/* One launch that measures kernels with a number of threads per rank. */
static int run_kernels(tune_command_t *command, const wefti_settings_t *settings,
                       const calibration_t *machine, uint32_t ranks, uint32_t threads)
{
    tune_kernels_t *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run == MAP_FAILED) {
        return wefti_usage_error(command->command, "out of memory: %zu bytes of results",
                                 sizeof *run);
    }
    run->threads = threads;
    run->cache_bytes = bounded_cache(machine->cache_bytes);
    run->progress = isatty(STDERR_FILENO) == 1;
    run->isa = settings->isa;
    run->family =
        settings->kernels == WEFTI_KERNELS_ONEDNN ? wefti_kernels_name(settings->kernels) : NULL;
    run->budget_ns = command->quick ? 3e6 : 50e6;
    run->deadline_ns = wefti_now_ns() + (command->quick ? 500000000ull : 10000000000ull);
    int code =
        wefti_launch(&(launch_t){.command = command->command}, ranks, wefti_tune_kernels_rank, run);
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < run->count && code == EXIT_OK && status >= 0; i++) {
        wefti_kernel_point_t *point = &run->points[i];
        double alone;
        /* More threads that take longer than one: something else was running. */
        if (threads > 1 &&
            wefti_costs_kernel_ns(&command->costs, point->kind, 1, point->size, &alone) &&
            point->ns > alone) {
            point->ns = alone;
        }
        status = wefti_costs_add_kernel(&command->costs, point);
    }
    munmap(run, sizeof *run);
    return status < 0 ? wefti_status_error(command->command, status) : code;
}

/* Every core busy in both launches: one rank per core, and one rank with a thread per core. */
static int measure_kernels(tune_command_t *command, const calibration_t *machine)
{
    wefti_settings_t settings;
    uint32_t cores = machine->cores;
    weft_status_t status = wefti_settings_load(&settings);
    if (status < 0) {
        return wefti_status_error(command->command, status);
    }
    command->costs.cores = cores;
    int code = run_kernels(command, &settings, machine,
                           cores < TUNE_KERNEL_RANKS ? cores : TUNE_KERNEL_RANKS, 1);
    return code == EXIT_OK && cores > 1 ? run_kernels(command, &settings, machine, 1, cores) : code;
}

/* One launch of as many ranks as the largest group has. */
static int measure_levels(tune_command_t *command)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < command->group_count; i++) {
        most = command->groups[i] > most ? command->groups[i] : most;
    }
    return wefti_launch(&(launch_t){.command = command->command}, most, wefti_tune_levels_rank,
                        command);
}

int wefti_tune_measure(tune_command_t *command, const calibration_t *calibration)
{
    int code = measure_collectives(command);
    if (code == EXIT_OK && command->topology != NULL) {
        code = measure_levels(command);
    }
    snprintf(command->costs.name, sizeof command->costs.name, "%s",
             command->name != NULL ? command->name : calibration->name);
    snprintf(command->costs.machine, sizeof command->costs.machine, "%s", calibration->machine);
    return code == EXIT_OK && command->only == 0 ? measure_kernels(command, calibration) : code;
}

weft_status_t wefti_tune_write(const tune_command_t *command)
{
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_costs_encode(&command->costs, &text);
    wefti_text_add(&text, "\n");
    weft_status_t status = wefti_file_write_text(command->output, &text);
    wefti_text_deinit(&text);
    return status;
}

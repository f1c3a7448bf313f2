/* SPDX-License-Identifier: Apache-2.0 */
/* weft run: trains or infers with a plan, or a model compiled on the spot; starts programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "tools/infer.h"
#include "tools/launch.h"
#include "tools/launch_world.h"
#include "tools/tool.h"
#include "tools/train.h"

enum {
    KEY_DATA = 256,
    KEY_EPOCHS,
    KEY_STEPS,
    KEY_SCHEDULE,
    KEY_SAVE,
    KEY_TRACE,
    KEY_PROFILE,
    KEY_SEED,
    KEY_JSON,
    KEY_NO_EVAL,
    KEY_INPUTS,
    KEY_OUTPUTS,
    KEY_REPEAT,
    KEY_SCALAR,
    KEY_CHECKPOINT,
    KEY_CHECKPOINT_EVERY,
    KEY_RESUME,
};

static const option_def_t own_options[] = {
    {'n', "ranks", "N", "ranks to start (default: what the plan is for, or the hosts' slots)"},
    {KEY_DATA, "data", "DIR", "training: directory with IDX image files"},
    {KEY_EPOCHS, "epochs", "E", "passes over the training set (default 1)"},
    {KEY_STEPS, "steps", "S", "train this many steps instead"},
    {KEY_SCHEDULE, "lr-schedule", "NAME", "constant (default) or linear: falls to 0 at the end"},
    {KEY_SAVE, "save", "TRAINED.onnx", "write the trained model"},
    {KEY_CHECKPOINT, "checkpoint", "FILE",
     "write weights and training state at the end (safetensors)"},
    {KEY_CHECKPOINT_EVERY, "checkpoint-every", "N",
     "and after every N steps; the file is replaced"},
    {KEY_RESUME, "resume", "FILE",
     "go on from a checkpoint; --steps, --epochs count from the beginning"},
    {KEY_TRACE, "trace", "T.json", "write a timeline of the last steps of all ranks"},
    {KEY_PROFILE, "profile", "P.json", "write measured times, for weft compile --profile"},
    {KEY_SEED, "seed", "K", "order of the data (default 0)"},
    {KEY_INPUTS, "inputs", "DIR",
     "inference: directory with tensors, <input>.pb or input_<i>.pb "
     "(TensorProto); those in DIR/rank<r> are rank r's"},
    {KEY_OUTPUTS, "outputs", "DIR",
     "inference: write <output>.pb there; in DIR/rank<r> where ranks "
     "differ"},
    {KEY_REPEAT, "repeat", "K", "inference: time K more steps"},
    {KEY_SCALAR, "scalar", "NAME=X", "inference: set a scalar input (repeatable)"},
    {KEY_NO_EVAL, "no-eval", NULL, "skip the test set at the end"},
    {KEY_JSON, "json", NULL, "print one JSON object at the end, no progress"},
    {0, NULL, NULL, NULL},
};

static int run_run_command(int argc, char **argv);

const command_t wefti_run_command = {
    .name = "run",
    .brief = "train or infer with a plan, or start a program as ranks",
    .synopsis = "PLAN.weft|MODEL.onnx -n N --data DIR|--inputs DIR [options]\n-n N [options of "
                "launching] -- PROGRAM ARGS..",
    .summary =
        "Trains on N ranks of this host or of several, or runs an inference plan (weft compile "
        "--infer) on tensors from files. A model is compiled in memory first; the compile options "
        "are "
        "then accepted too. With a plan, --lr sets the learning rate of this run. Behind -- comes "
        "a "
        "program that is started as N ranks with WEFT_RANK, WEFT_WORLD_SIZE, WEFT_LOCAL_RANK, "
        "WEFT_LOCAL_SIZE, WEFT_ADDRESS and WEFT_SECRET set; the exit code is that of the first one "
        "to "
        "fail. Options of launching: -n, --hosts, --round-robin, --rsh, --remote-weft, "
        "--tag-output.",
    .epilogue =
        "environment: WEFT_PROGRESS, WEFT_ISA, WEFT_TIMEOUT and others, see `weft info`; they\n"
        "go along to other hosts. A process started by mpirun, srun, mpiexec, torchrun, or with "
        "WEFT_RANK,\n"
        "WEFT_WORLD_SIZE and WEFT_ADDRESS set, runs as that one rank.\n\n"
        "example:\n"
        "  weft run mlp.weft -n 2 --data /usr/share/datasets/fashion-mnist --epochs 2 "
        "--lr-schedule "
        "linear\n"
        "  weft run mlp.weft --hosts node1:4,node2:4 --data /usr/share/datasets/fashion-mnist\n"
        "  weft run tp.weft --inputs in --outputs out --repeat 1000\n"
        "  weft run --hosts node1:4,node2:4 -- weft bench all_reduce\n",
    .options = {own_options, wefti_launch_option_defs, wefti_compile_option_defs},
    .run = run_run_command,
};

typedef struct run_command {
    compile_options_t compile;
    train_options_t train;
    infer_options_t infer;
    infer_feed_t *feeds; /* inference: of all ranks; those of other hosts are empty */
    launch_t launch;
    weft_context_t *world; /* NULL, or this process is one rank that something else launched */
    long long own_rank;    /* of such a process, as far as it is known; -1 */
    dataset_t data;
    const char *data_path;
    uint32_t ranks;
    bool seed_given, lr_given, epochs_given;
} run_command_t;

static int parse_count(const char *option, const char *value, long long high, uint64_t *out_count)
{
    long long number = 0;
    if (!wefti_parse_int(value, 1, high, &number)) {
        return wefti_usage_error("run", "%s '%s': expected a number from 1 to %lld", option, value,
                                 high);
    }
    *out_count = (uint64_t)number;
    return EXIT_OK;
}

static int handle(void *user, int key, const char *value)
{
    run_command_t *command = user;
    train_options_t *train = &command->train;
    uint64_t count = 0;
    long long seed = 0;
    int code = EXIT_OK;
    switch (key) {
    case 'n':
        code = parse_count("-n", value, 1024, &count);
        command->ranks = (uint32_t)count;
        return code;
    case KEY_DATA:
        command->data_path = value;
        return EXIT_OK;
    case KEY_EPOCHS:
        code = parse_count("--epochs", value, 1000000, &count);
        train->epochs = (uint32_t)count;
        command->epochs_given = true;
        return code;
    case KEY_STEPS:
        return parse_count("--steps", value, 100000000, &train->steps);
    case KEY_SCHEDULE:
        train->linear_lr = strcmp(value, "linear") == 0;
        return train->linear_lr || strcmp(value, "constant") == 0
                   ? EXIT_OK
                   : wefti_usage_error("run", "--lr-schedule '%s': expected constant or linear",
                                       value);
    case KEY_SAVE:
        train->save_path = value;
        return EXIT_OK;
    case KEY_CHECKPOINT:
        train->checkpoint_path = value;
        return EXIT_OK;
    case KEY_CHECKPOINT_EVERY:
        return parse_count("--checkpoint-every", value, 100000000, &train->checkpoint_every);
    case KEY_RESUME:
        train->resume_path = value;
        return EXIT_OK;
    case KEY_TRACE:
        train->trace_path = value;
        return EXIT_OK;
    case KEY_PROFILE:
        train->profile_path = value;
        return EXIT_OK;
    case KEY_SEED:
        if (!wefti_parse_int(value, 0, INT64_MAX, &seed)) {
            return wefti_usage_error("run", "--seed '%s': expected a number from 0", value);
        }
        train->seed = (uint64_t)seed;
        command->seed_given = true;
        return EXIT_OK;
    case KEY_NO_EVAL:
        train->no_eval = true;
        return EXIT_OK;
    case KEY_INPUTS:
        command->infer.inputs = value;
        return EXIT_OK;
    case KEY_OUTPUTS:
        command->infer.outputs = value;
        return EXIT_OK;
    case KEY_REPEAT:
        return parse_count("--repeat", value, 10000000, &command->infer.repeat);
    case KEY_SCALAR:
        return wefti_infer_parse_scalar(&command->infer, value)
                   ? EXIT_OK
                   : wefti_usage_error("run", "--scalar '%s': expected NAME=X, at most %u of them",
                                       value, INFER_MAX_SCALARS);
    case KEY_JSON:
        train->json = true;
        return EXIT_OK;
    default:
        return wefti_is_launch_option(key)
                   ? wefti_launch_option(&command->launch, key, value)
                   : wefti_compile_option(&command->compile, "run", key, value);
    }
}

/* Options that only inference has, and that say that it is meant. */
static bool means_inference(const run_command_t *command)
{
    const infer_options_t *infer = &command->infer;
    return infer->inputs != NULL || infer->outputs != NULL || infer->repeat > 0 ||
           infer->scalar_count > 0;
}

/* A plan starts with its magic; anything else is taken for a model. */
static weft_status_t is_plan_file(const char *path, bool *out_is_plan)
{
    wefti_mapping_t mapping = {0};
    weft_status_t status = wefti_file_map(path, &mapping);
    if (status < 0) {
        return status;
    }
    *out_is_plan = mapping.size_bytes >= 8 && memcmp(mapping.data, "WEFTPLAN", 8) == 0;
    wefti_file_unmap(&mapping);
    return WEFT_OK;
}

static weft_status_t load_or_compile(run_command_t *command, const char *path)
{
    weft_compile_params_t *params = &command->compile.params;
    bool is_plan = false;
    weft_status_t status = is_plan_file(path, &is_plan);
    if (status < 0) {
        return status;
    }
    command->train.lr = -1;
    command->lr_given = params->lr > 0;
    if (is_plan) {
        command->train.lr = params->lr > 0 ? params->lr : -1;
        params->lr = 0;
        if (command->compile.used) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%s is a plan: of the compile options only --lr, --ops and "
                               "--kernels apply",
                               path);
        }
        return weft_plan_load(path, command->compile.registry, &command->train.plan);
    }
    params->model_path = path;
    params->infer = params->infer || means_inference(command);
    params->world_size = params->world_size != 0 ? params->world_size : command->ranks;
    if (params->world_size == 0) {
        params->world_size = 1;
    }
    return weft_compile(params, &command->train.plan);
}

static weft_status_t run_rank(void *user, uint32_t rank, uint32_t world_size, const char *address)
{
    const run_command_t *command = user;
    if (command->feeds != NULL) {
        return wefti_infer_rank(&command->infer, command->feeds, (int32_t)rank, (int32_t)world_size,
                                address);
    }
    return wefti_train_rank(&command->train, (int32_t)rank, (int32_t)world_size, address);
}

/* Nobody wants to hear after two epochs that a directory is missing. */
static weft_status_t check_outputs(const train_options_t *train, const char *path)
{
    static const char *const names[] = {"--save", "--trace", "--profile", "--checkpoint"};
    const char *const paths[] = {train->save_path, train->trace_path, train->profile_path,
                                 train->checkpoint_path};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        weft_status_t status = paths[i] != NULL ? wefti_file_check_place(paths[i]) : WEFT_OK;
        if (status < 0) {
            return status;
        }
        if (paths[i] != NULL && wefti_same_file(paths[i], path)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: %s would be written over", names[i],
                               path);
        }
        for (size_t j = 0; j < i; j++) {
            if (paths[i] != NULL && paths[j] != NULL && wefti_same_file(paths[i], paths[j])) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s and %s both say %s", names[j],
                                   names[i], paths[i]);
            }
        }
    }
    return WEFT_OK;
}

static bool runs_here(const run_command_t *command, uint32_t rank)
{
    const launch_t *launch = &command->launch;
    if (command->own_rank >= 0) {
        return rank == command->own_rank;
    }
    for (uint32_t i = 0; launch->agent != NULL && i < launch->rank_count; i++) {
        if (launch->rank_numbers[i] == rank) {
            return true;
        }
    }
    return launch->agent == NULL;
}

/* What all ranks of this host are fed, or the one that this process is. */
static weft_status_t prepare_inference(run_command_t *command)
{
    infer_options_t *infer = &command->infer;
    const train_options_t *train = &command->train;
    weft_status_t status;
    const char *training = command->data_path != NULL       ? "--data"
                           : train->save_path != NULL       ? "--save"
                           : train->steps > 0               ? "--steps"
                           : command->epochs_given          ? "--epochs"
                           : command->lr_given              ? "--lr"
                           : train->linear_lr               ? "--lr-schedule"
                           : train->checkpoint_path != NULL ? "--checkpoint"
                           : train->resume_path != NULL     ? "--resume"
                                                            : NULL;
    if (training != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s is for training, the plan is for inference", training);
    }
    infer->plan = train->plan;
    infer->registry = command->compile.registry;
    infer->trace_path = train->trace_path;
    infer->profile_path = train->profile_path;
    infer->json = train->json;
    command->feeds = calloc(command->ranks, sizeof *command->feeds);
    if (command->feeds == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "no memory for %u ranks", command->ranks);
    }
    WEFT_TRY(status, wefti_infer_check(infer), done);
    for (uint32_t rank = 0; rank < command->ranks; rank++) {
        if (runs_here(command, rank)) {
            WEFT_TRY(status, wefti_infer_load(infer, rank, 1, &command->feeds[rank]), done);
        }
    }
done:
    return status;
}

/* Everything that can be found wrong before ranks start is found here, and said once. */
static weft_status_t prepare(run_command_t *command, const char *path)
{
    weft_status_t status = WEFT_OK;
    train_binding_t binding;
    weft_plan_info_t info = {.struct_size = sizeof info};
    WEFT_TRY(status, check_outputs(&command->train, path), done);
    WEFT_TRY(status, load_or_compile(command, path), done);
    WEFT_TRY(status, weft_plan_get_info(command->train.plan, &info), done);
    if (command->ranks == 0) {
        command->ranks = info.world_size;
    }
    if (command->ranks != info.world_size) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "%s is compiled for %u ranks, %u are wanted; compile with --world %u",
                             path, info.world_size, command->ranks, command->ranks);
        goto done;
    }
    if (info.kind == WEFT_PLAN_INFERENCE) {
        status = prepare_inference(command);
        goto done;
    }
    if (means_inference(command) || command->data_path == NULL) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "%s is a plan for training: it takes --data DIR, not --inputs", path);
        goto done;
    }
    WEFT_TRY(status, wefti_dataset_load(command->data_path, &command->data), done);
    command->train.data = &command->data;
    WEFT_TRY(status, wefti_train_bind(&command->train, &binding), done);
    if (command->train.resume_path != NULL) {
        status =
            wefti_train_resume(&command->train, &binding, command->seed_given, command->lr_given);
    }
done:
    return status;
}

static int run_joined(run_command_t *command)
{
    command->train.world = command->infer.world = command->world;
    weft_status_t status = run_rank(command, weft_context_rank(command->world),
                                    weft_context_world_size(command->world), NULL);
    return status < 0 ? wefti_status_error("run", status) : EXIT_OK;
}

static weft_log_fn log_of_ranks(void)
{
    return isatty(STDERR_FILENO) == 1 ? wefti_progress_log : NULL;
}

/* Started by hand, one rank after the other: nobody else is needed to find this one's mistakes.
 * What is wrong with the variables themselves the context says. */
static int run_by_hand(run_command_t *command, const char *path)
{
    long long size = 0;
    if (wefti_parse_int(getenv("WEFT_WORLD_SIZE"), 1, LAUNCH_MAX_RANKS, &size)) {
        command->ranks = command->ranks == 0 ? (uint32_t)size : command->ranks;
        if (!wefti_parse_int(getenv("WEFT_RANK"), 0, size - 1, &command->own_rank)) {
            return wefti_usage_error("run", "WEFT_RANK '%s': none of %lld ranks",
                                     getenv("WEFT_RANK"), size);
        }
    }
    weft_status_t status = prepare(command, path);
    int code = status < 0 ? wefti_status_error("run", status)
                          : wefti_launched_join("run", log_of_ranks(), &command->world);
    return code != EXIT_OK ? code : run_joined(command);
}

/* Started with all others by mpirun and the like: what one cannot do, none of them does. */
static int run_launched(run_command_t *command, const char *path)
{
    int code = wefti_launched_join("run", log_of_ranks(), &command->world);
    if (code != EXIT_OK) {
        return code;
    }
    uint32_t size = weft_context_world_size(command->world);
    weft_status_t status = WEFT_OK;
    if (command->ranks != 0 && command->ranks != size) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "-n %u, but this process is one of %u ranks (%s)", command->ranks,
                             size, weft_context_launcher(command->world));
    }
    command->ranks = size;
    command->own_rank = weft_context_rank(command->world);
    code =
        wefti_launched_agree(command->world, "run", status < 0 ? status : prepare(command, path));
    return code != EXIT_OK ? code : run_joined(command);
}

static int run(run_command_t *command, const char *path)
{
    const launch_t *launch = &command->launch;
    command->train.registry = command->compile.registry;
    command->train.command = "run";
    if (command->train.epochs == 0 && command->train.steps == 0) {
        command->train.epochs = 1;
    }
    if (launch->agent != NULL) {
        command->ranks = launch->world_size;
    } else if (launch->hosts != NULL) {
        return wefti_launch_remote(launch, command->ranks);
    } else if (getenv("WEFT_RANK") != NULL && getenv("WEFT_WORLD_SIZE") != NULL) {
        return run_by_hand(command, path);
    } else if (wefti_is_launched(command->ranks)) {
        return run_launched(command, path);
    }
    weft_status_t status = prepare(command, path);
    return status < 0 ? wefti_status_error("run", status)
                      : wefti_launch(launch, command->ranks, run_rank, command);
}

/* weft run -- PROGRAM */
static int run_program(run_command_t *command, int positional)
{
    const launch_t *launch = &command->launch;
    uint32_t ranks = launch->agent != NULL ? launch->world_size : command->ranks;
    if (positional != 0 || command->data_path != NULL || means_inference(command)) {
        return wefti_usage_error("run", "before -- PROGRAM only options of launching are expected");
    }
    if (ranks == 0 && launch->hosts == NULL) {
        return wefti_usage_error("run", "-n N (or --hosts) is missing: how many ranks of %s",
                                 launch->program[0]);
    }
    return wefti_launch_program(launch, ranks);
}

static int run_run_command(int argc, char **argv)
{
    run_command_t command = {.own_rank = -1};
    int positional = 0;
    int code = wefti_launch_init(&command.launch, "run", &argc, argv);
    if (code == EXIT_OK) {
        code = wefti_compile_options_init(&command.compile);
    }
    if (code != EXIT_OK) {
        wefti_launch_deinit(&command.launch, code);
        return code;
    }
    code = wefti_parse_options(argc, argv, &wefti_run_command, handle, &command, &positional);
    if (code == EXIT_OK && command.launch.program != NULL) {
        code = run_program(&command, positional);
    } else if (code == EXIT_OK && positional != 1) {
        code = wefti_usage_error("run",
                                 "expected one PLAN.weft or MODEL.onnx, got %d arguments (a "
                                 "program goes behind --)",
                                 positional);
    } else if (code == EXIT_OK && command.data_path == NULL && !means_inference(&command)) {
        code = wefti_usage_error(
            "run",
            "--data DIR (or --inputs DIR, for inference) is missing (a program goes behind --)");
    } else if (code == EXIT_OK && command.train.epochs != 0 && command.train.steps != 0) {
        code = wefti_usage_error("run", "--epochs and --steps exclude each other");
    } else if (code == EXIT_OK && command.train.checkpoint_every != 0 &&
               command.train.checkpoint_path == NULL) {
        code = wefti_usage_error("run", "--checkpoint-every needs --checkpoint FILE");
    } else if (code == EXIT_OK) {
        code = run(&command, argv[1]);
    }
    weft_plan_release(command.train.plan);
    wefti_infer_unload(command.feeds, command.feeds != NULL ? command.ranks : 0);
    free(command.feeds);
    wefti_dataset_free(&command.data);
    weft_context_release(command.world);
    wefti_compile_options_deinit(&command.compile);
    wefti_launch_deinit(&command.launch, code < 0 ? EXIT_OK : code);
    return code < 0 ? EXIT_OK : code;
}

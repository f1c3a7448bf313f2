/* SPDX-License-Identifier: Apache-2.0 */
/* weft run: trains or infers with a plan, or a model compiled on the spot; starts programs. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "tools/infer/infer.h"
#include "tools/launch/launch.h"
#include "tools/launch/world.h"
#include "tools/tool.h"
#include "tools/train/train.h"

#define DEFAULT_RESTARTS 3u

enum {
    KEY_DATA = 256,
    KEY_TEST_DATA,
    KEY_TOKENS,
    KEY_EPOCHS,
    KEY_STEPS,
    KEY_SAVE,
    KEY_TRACE,
    KEY_WRITE_PROFILE,
    KEY_REPORT,
    KEY_SEED,
    KEY_JSON,
    KEY_NO_EVAL,
    KEY_INPUTS,
    KEY_OUTPUTS,
    KEY_REPEAT,
    KEY_SCALAR,
    KEY_CHECKPOINT,
    KEY_CHECKPOINT_EVERY,
    KEY_CHECKPOINT_KEEP,
    KEY_RESUME,
    KEY_ELASTIC,
    KEY_RESTARTS,
    KEY_DEVICE,
};

static const option_def_t own_options[] = {
    {'n', "world", "N",
     "number of ranks (default: the world size of the plan, or the slots of --hosts)"},
    {KEY_DEVICE, "device", "DEVICE",
     "device of the ranks: cpu (default), or opencl, opencl:INDEX or opencl:NAME; of opencl:0,1 "
     "the "
     "ranks of a host take one each in turn (`weft info --devices` lists them)"},
    {KEY_DATA, "data", "PATH",
     "training: a directory with IDX image files or <input>.npy, a file .npz or .safetensors with "
     "an array per input, or a token file .bin"},
    {KEY_TEST_DATA, "test-data", "PATH",
     "training: .npz or .safetensors for the test accuracy at the end"},
    {KEY_TOKENS, "tokens", "TYPE",
     "training: type of a token file: u16 (default) or u32, little-endian; the inputs of the model "
     "give the length of a sequence"},
    {KEY_EPOCHS, "epochs", "E", "training: passes over the data (default 1)"},
    {KEY_STEPS, "steps", "S", "training: number of steps, in place of --epochs"},
    {KEY_SEED, "seed", "K", "training: seed of the order of samples and of dropout (default 0)"},
    {KEY_NO_EVAL, "no-eval", NULL, "training: do not evaluate the test set at the end"},
    {KEY_SAVE, "save", "TRAINED.onnx", "training: write the trained model"},
    {KEY_CHECKPOINT, "checkpoint", "FILE",
     "training: write weights and training state at the end (safetensors)"},
    {KEY_CHECKPOINT_EVERY, "checkpoint-every", "N",
     "training: also write the checkpoint after every N steps, while training goes on"},
    {KEY_CHECKPOINT_KEEP, "checkpoint-keep", "N",
     "training: keep the last N checkpoints: the newest in FILE, those before it in FILE.1, FILE.2 "
     "and so on (default 1)"},
    {KEY_RESUME, "resume", "FILE",
     "training: continue from a checkpoint, which may be of another number of ranks; --steps and "
     "--epochs count from the start of training; auto: from the newest whole one of --checkpoint "
     "if there "
     "is one"},
    {KEY_ELASTIC, "elastic", "MIN:MAX",
     "training: start with MAX ranks (or -n), and continue with those that are left when ranks "
     "die, at least MIN"},
    {KEY_RESTARTS, "restarts", "K",
     "with --elastic: start up to K processes in place of ranks that die (default 3; with --hosts "
     "0)"},
    {KEY_INPUTS, "inputs", "DIR",
     "inference: directory with one file per input, <input>.pb or input_<i>.pb (TensorProto); "
     "files in DIR/rank<r> are for rank r"},
    {KEY_OUTPUTS, "outputs", "DIR",
     "inference: write <output>.pb to DIR; outputs that differ between ranks go to DIR/rank<r>"},
    {KEY_REPEAT, "repeat", "K", "inference: measure K more steps"},
    {KEY_SCALAR, "scalar", "NAME=X", "inference: set a scalar input (repeatable)"},
    {KEY_TRACE, "trace", "T.json",
     "write a timeline of the last steps of all ranks, for ui.perfetto.dev"},
    {KEY_WRITE_PROFILE, "write-profile", "P.json",
     "write measured times of kernels and collectives, for --profile of weft compile"},
    {KEY_REPORT, "report", "RUN_DIR",
     "training: write losses, step times and links of all ranks to RUN_DIR/run.json, for weft "
     "report; while it goes on, those of rank 0 every few seconds"},
    {KEY_JSON, "json", NULL, "print one JSON object at the end, and no progress"},
    {0, NULL, NULL, NULL},
};

static int run_run_command(int argc, char **argv);
static int refuse_program(int argc, char **argv, int index);

const command_t wefti_run_command = {
    .name = "run",
    .brief = "train or infer with a plan, or start a program as ranks",
    .synopsis = "PLAN.weft|MODEL.onnx [-n N] --data DIR [options]\n"
                "PLAN.weft|MODEL.onnx [-n N] --inputs DIR [options]\n"
                "-n N [--hosts A:4,B:4] [options] -- PROGRAM ARGS..",
    .summary =
        "Trains with a plan, or runs an inference plan (weft compile --infer) on tensors "
        "from files, on N ranks of this host or of several. If a model is passed, it is "
        "compiled in memory first and the options of weft compile apply. If a plan is "
        "passed, only --lr, --ops and --kernels of those apply.\n"
        "\n"
        "A program after -- is started as N ranks, with WEFT_RANK, WEFT_WORLD_SIZE, "
        "WEFT_LOCAL_RANK, WEFT_LOCAL_SIZE, WEFT_ADDRESS and WEFT_SECRET set. The exit status "
        "is that of the first rank that fails. Options before -- are -n, --device, "
        "--hosts, --round-robin, --engine, --rsh, --remote-weft, --bind-irqs and --tag-output.\n"
        "\n"
        "With --hosts the command becomes srun (inside an allocation of Slurm), prterun, mpirun, "
        "mpiexec.hydra or, if none is installed, starts the ranks by ssh. Variables, signals and "
        "exit status are then those of the engine; docs/hosts.md compares them.\n"
        "\n"
        "With --elastic each rank keeps the training state of the last two steps in memory, and "
        "its shards on the next rank too. When ranks die, the others compile the model for their "
        "number and continue after the last step that all have, with --batch samples per rank. "
        "With --global-micro-batches the batch stays the same; ranks end until their number "
        "divides it. On one host a new process takes the place of each dead rank, up to "
        "--restarts times: it joins between two steps and receives the state; if fewer than MIN "
        "ranks are left, they wait for it. If a rank dies before all have joined, all start "
        "again. The run ends if fewer than MIN ranks are left and no process takes a place, or if "
        "two neighbours that had shards die at once; a checkpoint continues it. A plan instead of "
        "the model requires MIN = MAX.\n"
        "\n"
        "A process that mpirun, srun, mpiexec or torchrun has started, or that has "
        "WEFT_RANK, WEFT_WORLD_SIZE and WEFT_ADDRESS set, runs as that one rank.",
    .epilogue =
        "environment:\n"
        "  WEFT_PROGRESS, WEFT_ISA, WEFT_TIMEOUT and other settings (see `weft info`) also "
        "apply to ranks\n"
        "  on other hosts.\n"
        "\n"
        "examples:\n"
        "  weft run mlp.weft -n 2 --data /usr/share/datasets/fashion-mnist --epochs 2\n"
        "  weft run mlp.weft --device opencl:0,1 --data /usr/share/datasets/fashion-mnist\n"
        "  weft run mlp.weft --hosts node1:4,node2:4 --data /usr/share/datasets/fashion-mnist\n"
        "  weft run mlp.onnx --elastic 2:4 --batch 64 --data /usr/share/datasets/fashion-mnist\n"
        "  weft run mlp.weft --data DIR --checkpoint state.safetensors --checkpoint-every 100 "
        "--resume auto\n"
        "  weft run tp.weft --inputs in --outputs out --repeat 1000\n"
        "  weft run -n 2 -- python3 train.py\n"
        "  weft run --hosts node1:4,node2:4 -- weft bench all_reduce\n",
    .options = {own_options, wefti_launch_option_defs, COMPILE_OPTIONS_RUN},
    .run = run_run_command,
    .check_positional = refuse_program,
};

typedef struct run_command {
    compile_options_t compile;
    train_options_t train;
    infer_options_t infer;
    infer_feed_t *feeds; /* inference: of all ranks; those that run elsewhere are empty */
    launch_t launch;
    weft_context_t *world; /* NULL, or this process is one rank that something else launched */
    long long own_rank;    /* of such a process, if it is known; else -1 */
    dataset_t data;
    const char *data_path, *test_path;
    weft_dtype_t token_dtype;
    uint32_t ranks;
    uint32_t max_ranks;        /* elastic; 0: not */
    long long restarts;        /* -1: not set */
    bool resumes_if_any;       /* --resume auto */
    char newest[PATH_MAX + 8]; /* --resume auto: the checkpoint */
    bool compiles_alone;       /* for all ranks; else every rank compiles */
    bool seed_given, lr_given, epochs_given;
    bool not_for_program;   /* an option was set that a program after -- ignores */
    const char *report_dir; /* NULL: none */
    char report_path[4096];
} run_command_t;

static int parse_count(const char *option, const char *value, long long high, uint64_t *out_count)
{
    long long number = 0;
    int code = wefti_option_int("run", option, value, 1, high, &number);
    if (code == EXIT_OK) {
        *out_count = (uint64_t)number;
    }
    return code;
}

/* MIN:MAX */
static int parse_elastic(run_command_t *command, const char *value)
{
    char low[16] = "";
    const char *colon = strchr(value, ':');
    long long min = 0, max = 0;
    if (colon != NULL && colon - value < (long)sizeof low) {
        memcpy(low, value, (size_t)(colon - value));
    }
    if (!wefti_parse_int(low, 1, LAUNCH_MAX_RANKS, &min) ||
        !wefti_parse_int(colon + 1, min, LAUNCH_MAX_RANKS, &max)) {
        return wefti_usage_error("run", "--elastic %s: must be MIN:MAX, 1 <= MIN <= MAX <= %u",
                                 value, LAUNCH_MAX_RANKS);
    }
    command->launch.min_ranks = command->train.min_ranks = (uint32_t)min;
    command->max_ranks = command->train.max_ranks = (uint32_t)max;
    return EXIT_OK;
}

static int handle(void *user, int key, const char *value)
{
    run_command_t *command = user;
    train_options_t *train = &command->train;
    static const char *const token_types[] = {"u16", "u32"};
    uint64_t count = 0;
    size_t index = 0;
    long long seed = 0;
    int code = EXIT_OK;
    command->not_for_program = command->not_for_program ||
                               (key != 'n' && key != KEY_DEVICE && !wefti_is_launch_option(key));
    switch (key) {
    case 'n':
        return wefti_option_u32("run", "--world", value, 1, LAUNCH_MAX_RANKS, &command->ranks);
    case KEY_DEVICE: /* read by the contexts of ranks, also on other hosts */
        setenv("WEFT_DEVICE", value, 1);
        return EXIT_OK;
    case KEY_DATA:
        command->data_path = value;
        return EXIT_OK;
    case KEY_TEST_DATA:
        command->test_path = value;
        return EXIT_OK;
    case KEY_TOKENS:
        code = wefti_option_choice("run", "--tokens", value, token_types, 2, &index);
        command->token_dtype = index == 1 ? WEFT_DTYPE_U32 : WEFT_DTYPE_U16;
        return code;
    case KEY_EPOCHS:
        code = parse_count("--epochs", value, 1000000, &count);
        train->epochs = (uint32_t)count;
        command->epochs_given = true;
        return code;
    case KEY_STEPS:
        return parse_count("--steps", value, 100000000, &train->steps);
    case KEY_SAVE:
        train->save_path = value;
        return EXIT_OK;
    case KEY_CHECKPOINT:
        train->checkpoint_path = value;
        return EXIT_OK;
    case KEY_CHECKPOINT_EVERY:
        return parse_count("--checkpoint-every", value, 100000000, &train->checkpoint_every);
    case KEY_CHECKPOINT_KEEP:
        return wefti_option_u32("run", "--checkpoint-keep", value, 1, 999, &train->checkpoint_keep);
    case KEY_RESUME:
        command->resumes_if_any = strcmp(value, "auto") == 0;
        train->resume_path = value;
        return EXIT_OK;
    case KEY_ELASTIC:
        return parse_elastic(command, value);
    case KEY_RESTARTS:
        code = wefti_option_int("run", "--restarts", value, 0, 1000000, &command->restarts);
        return code;
    case KEY_TRACE:
        train->trace_path = value;
        return EXIT_OK;
    case KEY_WRITE_PROFILE:
        train->profile_path = value;
        return EXIT_OK;
    case KEY_REPORT:
        command->report_dir = value;
        return EXIT_OK;
    case KEY_SEED:
        code = wefti_option_int("run", "--seed", value, 0, INT64_MAX, &seed);
        train->seed = (uint64_t)seed;
        command->seed_given = true;
        return code;
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
                   : wefti_usage_error("run", "--scalar %s: must be NAME=X, at most %u times",
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

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* weft run -n 2 python3 train.py: prints the line with -- before the program. */
static int refuse_program(int argc, char **argv, int index)
{
    const char *name = argv[index];
    bool model = ends_with(name, ".weft") || ends_with(name, ".onnx");
    bool program = ends_with(name, ".py") || ends_with(name, ".sh") ||
                   (strchr(name, '/') == NULL ? access(name, F_OK) != 0 : access(name, X_OK) == 0);
    if (model || !program) {
        return EXIT_OK;
    }
    wefti_text_t line;
    wefti_text_init(&line, NULL);
    for (int i = 1; i < argc; i++) {
        wefti_text_printf(&line, "%s%s", i == index ? " -- " : " ", argv[i]);
    }
    int code = wefti_usage_error("run", "a program goes after --: weft run%s",
                                 line.failed ? " -n N -- PROGRAM ARGS.." : line.data);
    wefti_text_deinit(&line);
    return code;
}

/* Was an option passed that only inference has? */
static bool means_inference(const run_command_t *command)
{
    const infer_options_t *infer = &command->infer;
    return infer->inputs != NULL || infer->outputs != NULL || infer->repeat > 0 ||
           infer->scalar_count > 0;
}

/* A plan starts with its magic; any other file is read as a model. */
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

/* For another number of ranks than at first, compiles the model again: in a process of its own. */
static weft_status_t plan_for(void *user, uint32_t world_size, weft_plan_t **out_plan)
{
    run_command_t *command = user;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    WEFT_RETURN_IF_ERROR(weft_plan_get_info(command->train.plan, &info));
    if (info.world_size == world_size) {
        weft_plan_retain(command->train.plan);
        *out_plan = command->train.plan;
        return WEFT_OK;
    }
    command->compile.params.world_size = world_size;
    return weft_compile(&command->compile.params, out_plan);
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
    command->train.replan = plan_for;
    command->train.replan_user = command;
    if (is_plan && command->train.min_ranks != command->max_ranks) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s is a plan for one number of ranks: --elastic %u:%u requires the model", path,
            command->train.min_ranks, command->max_ranks);
    }
    if (is_plan) {
        command->train.lr = params->lr > 0 ? params->lr : -1;
        params->lr = 0;
        if (command->compile.used != NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%s is a plan: --%s applies only to a model that is compiled", path,
                               command->compile.used);
        }
        return weft_plan_load(path, command->compile.registry, &command->train.plan);
    }
    params->model_path = path;
    params->infer = params->infer || means_inference(command);
    params->world_size = command->ranks != 0 ? command->ranks : 1;
    status = wefti_compile_choose_costs(&command->compile, "run", command->compiles_alone);
    return status < 0 ? status : wefti_compile_with_progress(params, &command->train.plan);
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

/* Creates the folder of --report. */
static weft_status_t make_report_dir(run_command_t *command)
{
    if (command->report_dir == NULL) {
        return WEFT_OK;
    }
    if (mkdir(command->report_dir, 0777) != 0 && errno != EEXIST) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot create folder %s",
                                 command->report_dir);
    }
    if ((size_t)snprintf(command->report_path, sizeof command->report_path, "%s/run.json",
                         command->report_dir) >= sizeof command->report_path) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "--report: path too long: %zu bytes",
                           strlen(command->report_dir));
    }
    command->train.report_path = command->report_path;
    return WEFT_OK;
}

/* Paths are checked before training, so that a missing directory does not cost two epochs. */
static weft_status_t check_outputs(const train_options_t *train, const char *path)
{
    static const char *const names[] = {"--save", "--trace", "--write-profile", "--checkpoint",
                                        "--report"};
    const char *const paths[] = {train->save_path, train->trace_path, train->profile_path,
                                 train->checkpoint_path, train->report_path};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        weft_status_t status = paths[i] != NULL ? wefti_file_check_place(paths[i]) : WEFT_OK;
        if (status < 0) {
            return status;
        }
        if (paths[i] != NULL && wefti_same_file(paths[i], path)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: would overwrite the input %s",
                               names[i], path);
        }
        for (size_t j = 0; j < i; j++) {
            if (paths[i] != NULL && paths[j] != NULL && wefti_same_file(paths[i], paths[j])) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s and %s name the same file: %s",
                                   names[j], names[i], paths[i]);
            }
        }
    }
    return WEFT_OK;
}

static bool runs_here(const run_command_t *command, uint32_t rank)
{
    return command->own_rank < 0 || rank == command->own_rank;
}

/* Loads the inputs of all ranks, or of the one rank that this process is. */
static weft_status_t prepare_inference(run_command_t *command)
{
    infer_options_t *infer = &command->infer;
    const train_options_t *train = &command->train;
    const char *training = command->data_path != NULL       ? "--data"
                           : train->save_path != NULL       ? "--save"
                           : train->steps > 0               ? "--steps"
                           : command->epochs_given          ? "--epochs"
                           : command->lr_given              ? "--lr"
                           : train->checkpoint_path != NULL ? "--checkpoint"
                           : train->resume_path != NULL     ? "--resume"
                           : command->max_ranks != 0        ? "--elastic"
                                                            : NULL;
    if (training != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s applies to training only, but the plan is for inference", training);
    }
    infer->plan = train->plan;
    infer->registry = command->compile.registry;
    infer->trace_path = train->trace_path;
    infer->profile_path = train->profile_path;
    infer->json = train->json;
    command->feeds = calloc(command->ranks, sizeof *command->feeds);
    if (command->feeds == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: inputs of %u ranks", command->ranks);
    }
    WEFT_RETURN_IF_ERROR(wefti_infer_check(infer));
    for (uint32_t rank = 0; rank < command->ranks; rank++) {
        if (runs_here(command, rank)) {
            WEFT_RETURN_IF_ERROR(wefti_infer_load(infer, rank, 1, &command->feeds[rank]));
        }
    }
    return WEFT_OK;
}

/* --resume auto: the newest whole checkpoint; none: training begins. */
static weft_status_t find_newest(run_command_t *command)
{
    train_options_t *train = &command->train;
    weft_status_t status = weft_checkpoint_newest(train->checkpoint_path, command->newest,
                                                  sizeof command->newest, NULL);
    if (status < 0) {
        train->resume_path = NULL;
        return status == WEFT_ERR_NOT_FOUND ? WEFT_OK : status;
    }
    train->resume_path = command->newest;
    if (command->own_rank <= 0 && strcmp(command->newest, train->checkpoint_path) != 0) {
        fprintf(stderr, "weft run: warning: %s; continues from %s\n", weft_last_error(),
                command->newest);
    }
    return WEFT_OK;
}

static weft_status_t resume(run_command_t *command, const train_binding_t *binding)
{
    const train_options_t *train = &command->train;
    uint64_t steps = 0;
    WEFT_RETURN_IF_ERROR(wefti_train_resume(&command->train, binding, command->seed_given,
                                            command->lr_given, &steps));
    if (train->resume.step < steps) {
        return WEFT_OK;
    }
    if (!command->resumes_if_any) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: written after %llu steps, but training ends after %llu; --epochs "
                           "and --steps count from the start of training",
                           train->resume_path, (unsigned long long)train->resume.step,
                           (unsigned long long)steps);
    }
    /* A job that is started once more: files and the report are written again. */
    if (command->own_rank <= 0) {
        fprintf(stderr, "weft run: %s: training has ended after %llu steps\n", train->resume_path,
                (unsigned long long)train->resume.step);
    }
    return WEFT_OK;
}

/* What the inputs of the plan need. */
static weft_status_t load_data(run_command_t *command)
{
    train_binding_t binding;
    WEFT_RETURN_IF_ERROR(wefti_train_inputs(command->train.plan, &binding));
    const data_request_t request = {.path = command->data_path,
                                    .test_path = command->test_path,
                                    .token_dtype = command->token_dtype,
                                    .inputs = binding.inputs,
                                    .input_count = binding.input_count};
    return wefti_dataset_load(&request, &command->data);
}

/* Finds every error that can be found before ranks start; each is reported once. */
static weft_status_t prepare(run_command_t *command, const char *path)
{
    weft_status_t status = WEFT_OK;
    train_binding_t binding;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    WEFT_TRY(status, make_report_dir(command), done);
    WEFT_TRY(status, check_outputs(&command->train, path), done);
    WEFT_TRY(status, load_or_compile(command, path), done);
    WEFT_TRY(status, weft_plan_get_info(command->train.plan, &info), done);
    if (command->ranks == 0) {
        command->ranks = info.world_size;
    }
    if (command->max_ranks != 0 &&
        (command->ranks < command->train.min_ranks || command->ranks > command->max_ranks)) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "--elastic %u:%u does not include %u rank%s", command->train.min_ranks,
                             command->max_ranks, command->ranks, wefti_plural(command->ranks));
        goto done;
    }
    if (command->ranks != info.world_size) {
        status = wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s: the plan is for %u rank%s, not for %u; compile it with --world %u", path,
            info.world_size, wefti_plural(info.world_size), command->ranks, command->ranks);
        goto done;
    }
    if (info.kind == WEFT_PLAN_KIND_INFERENCE) {
        status = prepare_inference(command);
        goto done;
    }
    if (means_inference(command) || command->data_path == NULL) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "%s: a plan for training requires --data DIR, not --inputs", path);
        goto done;
    }
    WEFT_TRY(status, load_data(command), done);
    command->train.data = &command->data;
    WEFT_TRY(status, wefti_train_bind(&command->train, command->train.plan, &binding), done);
    if (command->resumes_if_any) {
        WEFT_TRY(status, find_newest(command), done);
    }
    if (command->train.resume_path != NULL) {
        status = resume(command, &binding);
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

/* Started by hand with WEFT_RANK: this rank checks its arguments before it joins the others. The
 * context reports invalid values of the variables themselves. */
static int run_by_hand(run_command_t *command, const char *path)
{
    long long size = 0;
    if (wefti_parse_int(getenv("WEFT_WORLD_SIZE"), 1, LAUNCH_MAX_RANKS, &size)) {
        command->ranks = command->ranks == 0 ? (uint32_t)size : command->ranks;
        if (!wefti_parse_int(getenv("WEFT_RANK"), 0, size - 1, &command->own_rank)) {
            return wefti_usage_error(
                "run", "WEFT_RANK %s: must be between 0 and %lld (WEFT_WORLD_SIZE %lld)",
                getenv("WEFT_RANK"), size - 1, size);
        }
    }
    weft_status_t status = prepare(command, path);
    int code = status < 0 ? wefti_status_error("run", status)
                          : wefti_launched_join("run", log_of_ranks(), &command->world);
    return code != EXIT_OK ? code : run_joined(command);
}

/* Started with all other ranks by mpirun or the like: all ranks continue, or none. */
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
                             "--world %u: the launcher (%s) has started %u rank%s", command->ranks,
                             weft_context_launcher(command->world), size, wefti_plural(size));
    }
    command->ranks = size;
    command->own_rank = weft_context_rank(command->world);
    code =
        wefti_launched_agree(command->world, "run", status < 0 ? status : prepare(command, path));
    return code != EXIT_OK ? code : run_joined(command);
}

/* For processes in place of ranks that die. */
static int make_board(run_command_t *command)
{
    uint32_t restarts = command->restarts >= 0 ? (uint32_t)command->restarts : DEFAULT_RESTARTS;
    if (command->max_ranks == 0 || restarts == 0) {
        return EXIT_OK;
    }
    launch_board_t *board = wefti_board_create(command->ranks, restarts);
    command->launch.board = command->train.board = board;
    return board != NULL
               ? EXIT_OK
               : wefti_usage_error("run", "cannot allocate shared memory: %s", strerror(errno));
}

static int run(run_command_t *command, const char *path)
{
    const launch_t *launch = &command->launch;
    command->ranks = command->ranks != 0 ? command->ranks : command->max_ranks;
    command->train.registry = command->compile.registry;
    command->train.command = "run";
    if (command->train.epochs == 0 && command->train.steps == 0) {
        command->train.epochs = 1;
    }
    if (wefti_launch_is_remote(launch)) {
        return wefti_launch_remote(launch, command->ranks);
    }
    /* The newest checkpoint is one for all ranks only after a rank 0 that still writes has ended. */
    bool joins_first = launch->is_rank || command->resumes_if_any;
    if (!joins_first && getenv("WEFT_RANK") != NULL && getenv("WEFT_WORLD_SIZE") != NULL) {
        return run_by_hand(command, path);
    } else if (launch->is_rank || wefti_is_launched(command->ranks)) {
        return run_launched(command, path);
    }
    command->compiles_alone = true;
    weft_status_t status = prepare(command, path);
    if (status < 0) {
        return wefti_compile_error(&command->compile, "run", status);
    }
    int code = make_board(command);
    return code != EXIT_OK ? code : wefti_launch(launch, command->ranks, run_rank, command);
}

/* weft run -- PROGRAM */
static int run_program(run_command_t *command, int positional)
{
    const launch_t *launch = &command->launch;
    uint32_t ranks = command->ranks;
    if (positional != 0 || command->not_for_program) {
        return wefti_usage_error("run",
                                 "before -- PROGRAM only -n, --hosts, --round-robin, --engine, "
                                 "--rsh, --remote-weft, --bind-irqs and "
                                 "--tag-output are allowed");
    }
    if (ranks == 0 && launch->hosts == NULL) {
        return wefti_usage_error("run",
                                 "missing option: -n N or --hosts, the number of ranks of %s",
                                 launch->program[0]);
    }
    return wefti_launch_program(launch, ranks);
}

static int run_run_command(int argc, char **argv)
{
    run_command_t command = {.own_rank = -1, .restarts = -1, .token_dtype = WEFT_DTYPE_U16};
    int positional = 0;
    if (wefti_launch_is_part(argc, argv)) {
        return wefti_launch_part("run");
    }
    int code = wefti_launch_init(&command.launch, "run", &argc, argv);
    if (code == EXIT_OK) {
        code = wefti_compile_options_init(&command.compile);
    }
    if (code != EXIT_OK) {
        wefti_launch_deinit(&command.launch);
        return code;
    }
    code = wefti_parse_options(argc, argv, &wefti_run_command, handle, &command, &positional);
    if (code == EXIT_OK && command.launch.engine != NULL && command.launch.hosts == NULL) {
        code = wefti_usage_error("run", "--engine requires --hosts");
    }
    if (code == EXIT_OK && command.launch.program != NULL) {
        code = run_program(&command, positional);
    } else if (code == EXIT_OK && positional != 1) {
        code =
            wefti_usage_error("run",
                              "expected one PLAN.weft or MODEL.onnx, got %d arguments; a program "
                              "goes after --",
                              positional);
    } else if (code == EXIT_OK && command.data_path == NULL && !means_inference(&command)) {
        code = wefti_usage_error(
            "run", "missing option: --data DIR for training, or --inputs DIR for inference");
    } else if (code == EXIT_OK && command.train.epochs != 0 && command.train.steps != 0) {
        code = wefti_usage_error("run", "--epochs and --steps exclude each other");
    } else if (code == EXIT_OK && command.train.checkpoint_every != 0 &&
               command.train.checkpoint_path == NULL) {
        code = wefti_usage_error("run", "--checkpoint-every requires --checkpoint FILE");
    } else if (code == EXIT_OK && command.train.checkpoint_keep != 0 &&
               command.train.checkpoint_path == NULL) {
        code = wefti_usage_error("run", "--checkpoint-keep requires --checkpoint FILE");
    } else if (code == EXIT_OK && command.resumes_if_any && command.train.checkpoint_path == NULL) {
        code = wefti_usage_error("run", "--resume auto requires --checkpoint FILE");
    } else if (code == EXIT_OK && command.restarts >= 0 && command.max_ranks == 0) {
        code = wefti_usage_error("run", "--restarts requires --elastic MIN:MAX");
    } else if (code == EXIT_OK && command.restarts > 0 && command.launch.hosts != NULL) {
        code = wefti_usage_error("run", "--restarts applies to ranks of one host, not to --hosts");
    } else if (code == EXIT_OK) {
        code = run(&command, argv[1]);
    }
    weft_plan_release(command.train.plan);
    wefti_infer_unload(command.feeds, command.feeds != NULL ? command.ranks : 0);
    free(command.feeds);
    wefti_dataset_free(&command.data);
    wefti_board_destroy(command.train.board);
    weft_context_release(command.world);
    wefti_compile_options_deinit(&command.compile);
    wefti_launch_deinit(&command.launch);
    return code < 0 ? EXIT_OK : code;
}

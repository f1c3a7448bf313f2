/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/engine.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/text.h"

extern char **environ;

/* ---- what all engines need ---- */

static const char *const rank_variables[] = {"WEFT_RANK",       "WEFT_WORLD_SIZE", "WEFT_ADDRESS",
                                             "WEFT_LOCAL_RANK", "WEFT_LOCAL_SIZE", "WEFT_GROUP"};

const char *wefti_engine_rsh(const launch_t *launch)
{
    const char *setting = getenv("WEFT_RSH");
    if (launch->rsh != NULL) {
        return launch->rsh;
    }
    return setting != NULL && *setting != '\0' ? setting : NULL;
}

bool wefti_engine_passes(const char *entry)
{
    size_t length = strcspn(entry, "=");
    bool own = strncmp(entry, "WEFT_HOST_ID=", 13) == 0 || strncmp(entry, "WEFT_RSH=", 9) == 0;
    for (size_t i = 0; i < sizeof rank_variables / sizeof *rank_variables; i++) {
        own = own || (strlen(rank_variables[i]) == length &&
                      memcmp(entry, rank_variables[i], length) == 0);
    }
    return !own && strncmp(entry, "WEFT_", 5) == 0;
}

char **wefti_engine_rank_command(const launch_t *launch, const char *weft)
{
    char **words = calloc((size_t)launch->argument_count + 4, sizeof *words);
    if (words == NULL) {
        return NULL;
    }
    if (launch->program != NULL) {
        size_t count = (size_t)(launch->arguments + launch->argument_count - launch->program);
        memcpy(words, launch->program, count * sizeof *words);
        return words;
    }
    words[0] = (char *)weft;
    words[1] = (char *)launch->command;
    words[2] = (char *)"--rank";
    memcpy(words + 3, launch->arguments + 1, (size_t)(launch->argument_count - 1) * sizeof *words);
    return words;
}

/* ---- command lines ---- */

/* Words of a command line: own copies. */
typedef struct words {
    char **data;
    size_t count, capacity;
    bool failed;
} words_t;

static void add(words_t *words, const char *word)
{
    if (words->count + 1 >= words->capacity) {
        size_t capacity = 2 * words->capacity + 16;
        char **data = realloc(words->data, capacity * sizeof *data);
        if (data == NULL) {
            words->failed = true;
            return;
        }
        words->data = data;
        words->capacity = capacity;
    }
    words->data[words->count] = word != NULL ? strdup(word) : NULL;
    words->failed = words->failed || words->data[words->count] == NULL;
    words->data[++words->count] = NULL;
}

static void add_pair(words_t *words, const char *option, const char *value)
{
    add(words, option);
    add(words, value);
}

static void add_number(words_t *words, const char *option, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    add_pair(words, option, text);
}

/* "mpirun --mca oob_tcp_if_include eth0": each word. */
static void add_words(words_t *words, const char *text)
{
    char *copy = strdup(text), *rest = NULL;
    words->failed = words->failed || copy == NULL;
    for (char *word = copy != NULL ? strtok_r(copy, " \t", &rest) : NULL; word != NULL;
         word = strtok_r(NULL, " \t", &rest)) {
        add(words, word);
    }
    free(copy);
}

typedef struct job {
    const launch_t *launch;
    const host_plan_t *plan;
    uint32_t world_size;
    const char *directory;
} job_t;

static uint32_t host_of(const host_plan_t *plan, uint32_t rank)
{
    for (uint32_t i = 0; i < plan->host_count; i++) {
        for (uint32_t k = 0; k < plan->hosts[i].rank_count; k++) {
            if (plan->hosts[i].ranks[k] == rank) {
                return i;
            }
        }
    }
    return 0;
}

/* The hosts of ranks 0, 1 ..: "a,a,b", or with runs "a:2,b:1". */
static void add_placement(words_t *words, const job_t *job, const char *option, bool runs)
{
    wefti_text_t text;
    uint32_t run = 0;
    wefti_text_init(&text, NULL);
    for (uint32_t rank = 0; rank < job->world_size; rank++) {
        uint32_t host = host_of(job->plan, rank);
        run++;
        if (!runs || rank + 1 == job->world_size || host_of(job->plan, rank + 1) != host) {
            wefti_text_printf(&text, "%s%s", text.length > 0 ? "," : "",
                              job->plan->hosts[host].name);
            if (runs) {
                wefti_text_printf(&text, ":%u", run);
            }
            run = 0;
        }
    }
    words->failed = words->failed || text.failed;
    add_pair(words, option, text.failed ? "" : text.data);
    wefti_text_deinit(&text);
}

/* PMIx where this srun has it. */
static const char *slurm_interface(const char *program)
{
    char line[512], command[PATH_MAX + 32];
    bool pmix = false;
    snprintf(command, sizeof command, "'%s' --mpi=list 2>&1", program);
    FILE *list = strchr(program, '\'') == NULL ? popen(command, "re") : NULL;
    while (list != NULL && fgets(line, sizeof line, list) != NULL) {
        pmix = pmix || strstr(line, "pmix") != NULL;
    }
    if (list != NULL) {
        pclose(list);
    }
    return pmix ? "--mpi=pmix" : "--mpi=pmi2";
}

static void use_srun(words_t *words, const job_t *job)
{
    add(words, slurm_interface(words->data[0]));
    add(words, "--kill-on-bad-exit=1");
    add(words, "--quit-on-interrupt");
    add(words, "--distribution=arbitrary");
    add_number(words, "--nodes", job->plan->host_count);
    add_number(words, "--ntasks", job->world_size);
    add_placement(words, job, "--nodelist", false);
    add_pair(words, "--chdir", job->directory);
    if (job->launch->tag_output) {
        add(words, "--label");
    }
    unsetenv("WEFT_HOST_ID"); /* all variables are passed on */
}

static void use_open_mpi(words_t *words, const job_t *job, bool prte)
{
    const char *rsh = wefti_engine_rsh(job->launch);
    add_placement(words, job, "--host", true); /* adds the slots of a host that is named twice */
    add_number(words, "-np", job->world_size);
    add_pair(words, "--map-by", job->launch->round_robin ? "node" : "slot");
    add_pair(words, "--wdir", job->directory);
    if (geteuid() == 0) {
        add(words, "--allow-run-as-root");
    }
    if (rsh != NULL) {
        add_pair(words, prte ? "--prtemca" : "--mca", prte ? "plm_ssh_agent" : "plm_rsh_agent");
        add(words, rsh);
    }
    if (job->launch->tag_output && prte) {
        add_pair(words, "--output", "tag");
    } else if (job->launch->tag_output) {
        add(words, "--tag-output");
    }
    for (char **at = environ; *at != NULL; at++) {
        if (wefti_engine_passes(*at)) { /* by name: values do not belong on a command line */
            char *name = strndup(*at, strcspn(*at, "="));
            add_pair(words, "-x", name); /* NULL: words->failed */
            free(name);
        }
    }
}

static void use_mpirun(words_t *words, const job_t *job)
{
    use_open_mpi(words, job, false);
}

static void use_prterun(words_t *words, const job_t *job)
{
    use_open_mpi(words, job, true);
}

static void use_hydra(words_t *words, const job_t *job)
{
    const char *rsh = wefti_engine_rsh(job->launch);
    wefti_text_t names;
    wefti_text_init(&names, NULL);
    for (char **at = environ; *at != NULL; at++) {
        if (wefti_engine_passes(*at)) {
            wefti_text_printf(&names, "%s%.*s", names.length > 0 ? "," : "", (int)strcspn(*at, "="),
                              *at);
        }
    }
    words->failed = words->failed || names.failed;
    if (names.length > 0) {
        add_pair(words, "-genvlist", names.data);
    } else {
        add(words, "-genvnone");
    }
    wefti_text_deinit(&names);
    add_placement(words, job, "-hosts", true);
    add_number(words, "-n", job->world_size);
    add_pair(words, "-wdir", job->directory);
    if (rsh != NULL) {
        add_pair(words, "-launcher", "ssh");
        add_pair(words, "-launcher-exec", rsh);
    }
    if (job->launch->tag_output) {
        add(words, "-prepend-rank");
    }
}

/* ---- choice ---- */

typedef struct engine {
    const char *program;
    const char *beside; /* only where this program is, too: others have one of that name */
    const char *inside; /* only where this variable is set */
    void (*use)(words_t *words, const job_t *job); /* NULL: wefti_launch_ssh */
} engine_t;

/* The first that is there is taken. */
static const engine_t engines[] = {
    {"srun", NULL, "SLURM_JOB_ID", use_srun},   {"prterun", NULL, NULL, use_prterun},
    {"mpirun.openmpi", NULL, NULL, use_mpirun}, {"mpirun", "ompi_info", NULL, use_mpirun},
    {"mpiexec.hydra", NULL, NULL, use_hydra},   {"ssh", NULL, NULL, NULL},
};
enum { ENGINE_COUNT = sizeof engines / sizeof *engines };

static bool is_installed(const char *program)
{
    char path[PATH_MAX];
    for (const char *at = getenv("PATH"); at != NULL && *at != '\0';) {
        size_t length = strcspn(at, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)length, at, program);
        if (access(path, X_OK) == 0) {
            return true;
        }
        at += length + (at[length] == ':');
    }
    return false;
}

static const engine_t *first_engine(void)
{
    for (size_t i = 0; i + 1 < ENGINE_COUNT; i++) {
        const engine_t *engine = &engines[i];
        if ((engine->inside == NULL || getenv(engine->inside) != NULL) &&
            is_installed(engine->program) &&
            (engine->beside == NULL || is_installed(engine->beside))) {
            return engine;
        }
    }
    return &engines[ENGINE_COUNT - 1];
}

/* By the name of the program in "/opt/bin/mpirun --mca a b". */
static const engine_t *named_engine(const char *text)
{
    size_t length = strcspn(text, " \t");
    const char *slash = memrchr(text, '/', length);
    const char *name = slash != NULL ? slash + 1 : text;
    length -= (size_t)(name - text);
    for (size_t i = 0; i < ENGINE_COUNT; i++) {
        if (strlen(engines[i].program) == length && memcmp(engines[i].program, name, length) == 0) {
            return &engines[i];
        }
    }
    return NULL;
}

/* Between programs, as engines other than ssh read their command line. */
static bool has_colon(const launch_t *launch)
{
    bool found = false;
    for (char **at = launch->program; at != NULL && *at != NULL; at++) {
        found = found || strcmp(*at, ":") == 0;
    }
    return found;
}

static int check(const launch_t *launch, const engine_t *engine)
{
    const char *rsh = wefti_engine_rsh(launch);
    if (rsh != NULL && rsh[strspn(rsh, " \t")] == '\0') {
        return wefti_usage_error(launch->command, "--rsh or WEFT_RSH: missing command");
    }
    if (engine == NULL) {
        return wefti_usage_error(launch->command,
                                 "--engine %s: must be srun, prterun, mpirun, mpirun.openmpi, "
                                 "mpiexec.hydra or ssh, with a path or options if needed",
                                 launch->engine);
    }
    if (engine->use != NULL && launch->min_ranks > 0) {
        return wefti_usage_error(launch->command,
                                 "--elastic requires --engine ssh: %s ends all ranks when one dies",
                                 engine->program);
    }
    if (engine->use != NULL && launch->bind_irqs) {
        return wefti_usage_error(launch->command, "--bind-irqs requires --engine ssh, not %s",
                                 engine->program);
    }
    if (engine->use != NULL && has_colon(launch)) {
        return wefti_usage_error(launch->command,
                                 "argument ':' requires --engine ssh: %s reads it as the end of a "
                                 "program",
                                 engine->program);
    }
    return EXIT_OK;
}

/* Becomes the engine. */
static int execute(const engine_t *engine, const job_t *job)
{
    const launch_t *launch = job->launch;
    char path[PATH_MAX];
    words_t words = {0};
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    char **ranks =
        wefti_engine_rank_command(launch, launch->remote_weft != NULL ? launch->remote_weft : path);
    add_words(&words, launch->engine != NULL ? launch->engine : engine->program);
    if (!words.failed && ranks != NULL) {
        engine->use(&words, job);
        for (char **at = ranks; *at != NULL; at++) {
            add(&words, *at);
        }
    }
    for (size_t i = 0; i < sizeof rank_variables / sizeof *rank_variables; i++) {
        unsetenv(rank_variables[i]); /* ranks of this host have our environment */
    }
    int code = EXIT_BAD_INPUT;
    if (words.failed || ranks == NULL) {
        code = wefti_usage_error(launch->command, "out of memory: %u ranks", job->world_size);
    } else {
        execvp(words.data[0], words.data);
        code = wefti_usage_error(launch->command, "cannot run '%s': %s", words.data[0],
                                 strerror(errno));
    }
    for (size_t i = 0; i < words.count; i++) {
        free(words.data[i]);
    }
    free(words.data);
    free(ranks);
    return code;
}

int wefti_launch_remote(const launch_t *launch, uint32_t world_size)
{
    char directory[PATH_MAX];
    host_plan_t plan;
    const engine_t *engine = launch->engine != NULL ? named_engine(launch->engine)
                             : launch->min_ranks > 0 || launch->bind_irqs
                                 ? &engines[ENGINE_COUNT - 1]
                                 : first_engine();
    int code = check(launch, engine);
    if (code == EXIT_OK) {
        code = wefti_host_plan_parse(launch->command, launch->hosts, &plan);
    }
    if (code != EXIT_OK) {
        return code;
    }
    code = wefti_host_plan_place(launch->command, &plan, world_size, launch->round_robin);
    job_t job = {.launch = launch, .plan = &plan, .directory = getcwd(directory, sizeof directory)};
    for (uint32_t i = 0; i < plan.host_count; i++) {
        job.world_size += plan.hosts[i].rank_count;
    }
    if (code == EXIT_OK && job.directory == NULL) {
        code = wefti_usage_error(launch->command, "cannot read the current directory: %s",
                                 strerror(errno));
    }
    if (code == EXIT_OK) {
        code = engine->use != NULL ? execute(engine, &job)
                                   : wefti_launch_ssh(launch, &plan, launch->engine);
    }
    wefti_host_plan_deinit(&plan);
    return code;
}

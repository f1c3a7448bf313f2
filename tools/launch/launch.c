/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/settings.h"
#include "runtime/base/sync.h"
#include "tools/interrupts.h"
#include "tools/launch/ranks.h"

enum {
    KEY_HOSTS = 512,
    KEY_ENGINE,
    KEY_RSH,
    KEY_REMOTE_WEFT,
    KEY_ROUND_ROBIN,
    KEY_BIND_IRQS,
    KEY_TAG_OUTPUT
};

const option_def_t wefti_launch_option_defs[] = {
    {KEY_HOSTS, "hosts", "A:4,B:4|FILE",
     "hosts to run on, as name or address with the number of slots (ranks), or a file with one "
     "host per line (default: this host)"},
    {KEY_ROUND_ROBIN, "round-robin", NULL,
     "assign ranks to the hosts in turn (default: fill host after host)"},
    {KEY_ENGINE, "engine", "COMMAND",
     "with --hosts, what starts the ranks: srun, prterun, mpirun (Open MPI), mpiexec.hydra or ssh, "
     "with a path or options if needed (default: the first of these that is installed; srun inside "
     "an allocation only)"},
    {KEY_RSH, "rsh", "COMMAND",
     "remote shell of the engine, called as COMMAND HOST SHELL-COMMAND (default: WEFT_RSH, or "
     "ssh)"},
    {KEY_REMOTE_WEFT, "remote-weft", "PATH",
     "path of the weft command on the other hosts (default: the same as here)"},
    {KEY_BIND_IRQS, "bind-irqs", NULL,
     "bind the interrupts of each network interface to cores of its NUMA node that have no ranks "
     "(needs root; of the engines only ssh)"},
    {KEY_TAG_OUTPUT, "tag-output", NULL,
     "print the output of ranks in whole lines that start with \"[rank] \", or as the engine does"},
    {0, NULL, NULL, NULL},
};

bool wefti_is_launch_option(int key)
{
    return key >= KEY_HOSTS && key <= KEY_TAG_OUTPUT;
}

int wefti_launch_option(launch_t *launch, int key, const char *value)
{
    switch (key) {
    case KEY_HOSTS:
        launch->hosts = value;
        break;
    case KEY_ENGINE:
        launch->engine = value;
        break;
    case KEY_RSH:
        launch->rsh = value;
        break;
    case KEY_REMOTE_WEFT:
        launch->remote_weft = value;
        break;
    case KEY_ROUND_ROBIN:
        launch->round_robin = true;
        break;
    case KEY_BIND_IRQS:
        launch->bind_irqs = true;
        break;
    default:
        launch->tag_output = true;
        break;
    }
    return EXIT_OK;
}

int wefti_launch_init(launch_t *launch, const char *command, int *argc, char **argv)
{
    *launch = (launch_t){.command = command};
    launch->is_rank = *argc > 1 && strcmp(argv[1], "--rank") == 0;
    if (launch->is_rank) {
        (*argc)--;
        memmove(argv + 1, argv + 2, (size_t)*argc * sizeof *argv); /* and the NULL */
    }
    launch->argument_count = *argc;
    launch->arguments = malloc(((size_t)*argc + 1) * sizeof *argv);
    if (launch->arguments == NULL) {
        return wefti_usage_error(command, "out of memory: %d arguments", *argc);
    }
    memcpy(launch->arguments, argv, ((size_t)*argc + 1) * sizeof *argv);
    for (int i = 1; i < launch->argument_count; i++) {
        if (strcmp(launch->arguments[i], "--") == 0) {
            launch->program = launch->arguments + i + 1;
            *argc = i;
            argv[i] = NULL;
            break;
        }
    }
    if (launch->program != NULL && launch->program[0] == NULL) {
        return wefti_usage_error(command, "missing program after --");
    }
    return EXIT_OK;
}

void wefti_launch_deinit(launch_t *launch)
{
    free(launch->arguments);
    *launch = (launch_t){.command = launch->command};
}

bool wefti_launch_is_remote(const launch_t *launch)
{
    return launch->hosts != NULL && !launch->is_rank;
}

/* ---- one host ---- */

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0';
}

bool wefti_launch_make_secret(const char *command)
{
    uint8_t bytes[32];
    wefti_digest_t digest;
    char hex[65];
    if (is_set("WEFT_SECRET") || is_set("WEFT_SECRET_FILE")) {
        return true;
    }
    if (wefti_random_bytes(bytes, sizeof bytes) < 0) {
        (void)wefti_status_error(command, WEFT_ERR_SYSTEM);
        return false;
    }
    memcpy(digest.bytes, bytes, sizeof bytes);
    setenv("WEFT_SECRET", wefti_digest_hex(&digest, hex), 1);
    wefti_forget(bytes, sizeof bytes);
    return true;
}

static int hold(int family, uint16_t *out_port)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    socklen_t bytes = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int yes = 1, no = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    if ((family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) ||
        bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *out_port = ntohs(family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                         : ((struct sockaddr_in *)&address)->sin_port);
    return fd;
}

int wefti_port_hold(uint16_t *out_port)
{
    int fd = hold(AF_INET6, out_port);
    return fd >= 0 ? fd : hold(AF_INET, out_port);
}

bool wefti_launch_unix_address(char *out, size_t bytes)
{
    uint64_t token = 0;
    if (wefti_random_bytes(&token, sizeof token) < 0) {
        return false;
    }
    snprintf(out, bytes, "unix:@weft-%u-%016llx", (unsigned)getuid(), (unsigned long long)token);
    return true;
}

/* Where WEFT_TRANSPORT leaves shared memory out ranks meet as they would on several hosts. */
static bool wants_network(void)
{
    wefti_settings_t settings;
    return wefti_settings_load(&settings) == WEFT_OK && strcmp(settings.transport, "auto") != 0 &&
           strstr(settings.transport, "shm") == NULL;
}

static bool choose_address(char *out, size_t bytes, int *out_port_fd)
{
    uint16_t port = 0;
    if (!wants_network()) {
        return wefti_launch_unix_address(out, bytes);
    }
    *out_port_fd = wefti_port_hold(&port);
    snprintf(out, bytes, "127.0.0.1:%u", port);
    return *out_port_fd >= 0;
}

static bool any_failed(const rank_set_t *set)
{
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->ranks[i].wait_status != 0) {
            return true;
        }
    }
    return false;
}

static int report(const rank_set_t *set, int code)
{
    if ((set->interrupted || code != EXIT_OK || any_failed(set)) && isatty(STDERR_FILENO) == 1) {
        fputs("\r\033[K", stderr); /* an unfinished progress line */
    }
    if (set->interrupted) {
        fprintf(stderr, "weft %s: interrupted, all ranks ended\n", set->command);
        return EXIT_INTERRUPTED;
    }
    return code != EXIT_OK ? code : wefti_ranks_report(set);
}

/* Of one of several hosts: the launcher sends signals for the ranks. After its end they end. */
static void hear_launcher(void *owner)
{
    rank_set_t *set = owner;
    uint8_t number = 0;
    ssize_t got = read(set->extra_fd, &number, 1);
    if (got == 1) {
        wefti_ranks_signal(set, number == SIGINT ? SIGINT : SIGTERM);
    } else if (got == 0) {
        set->extra_fd = -1;
        wefti_ranks_signal(set, SIGTERM);
        set->deadline_ns =
            set->deadline_ns != 0 ? set->deadline_ns : wefti_now_ns() + LAUNCH_GRACE_NS;
    }
}

static int run_here(rank_set_t *set, const char *given_address)
{
    char address[64];
    int port_fd = -1, code = EXIT_OK;
    uint32_t failed = 0;
    rank_lines_t *lines = set->capture ? wefti_rank_lines_create(set->world_size, true) : NULL;
    if ((set->capture && lines == NULL) || !wefti_launch_make_secret(set->command) ||
        (given_address == NULL && !choose_address(address, sizeof address, &port_fd))) {
        code = wefti_usage_error(set->command, "cannot start ranks: %s", strerror(errno));
    } else {
        set->address = given_address != NULL ? given_address : address;
        set->lines = lines;
        do {
            if (wefti_ranks_start(set, &failed) < 0) {
                code = wefti_usage_error(set->command, "cannot start rank %u of %u: %s", failed,
                                         set->world_size, strerror(errno));
            }
            wefti_ranks_watch(set);
        } while (code == EXIT_OK && wefti_ranks_start_over(set));
    }
    wefti_rank_lines_destroy(lines);
    if (port_fd >= 0) {
        close(port_fd);
    }
    return report(set, code);
}

int wefti_launch(const launch_t *launch, uint32_t world_size, rank_fn run, void *user)
{
    rank_set_t set = {.command = launch->command,
                      .world_size = world_size,
                      .min_ranks = launch->min_ranks,
                      .board = launch->board,
                      .count = launch->host != NULL ? launch->rank_count : world_size,
                      .run = run,
                      .user = user,
                      .program = launch->program != NULL,
                      .speaks = launch->is_rank,
                      .capture = launch->tag_output,
                      .signal_fd = -1,
                      .extra_fd = -1};
    int code = launch->bind_irqs ? wefti_bind_interrupts(launch->command, set.count) : EXIT_OK;
    if (code != EXIT_OK) {
        return code;
    }
    set.ranks = calloc(set.count, sizeof *set.ranks);
    for (uint32_t i = 0; i < set.count && set.ranks != NULL; i++) {
        set.ranks[i].rank = launch->host != NULL ? launch->rank_numbers[i] : i;
        set.ranks[i].host = launch->host;
    }
    if (set.ranks == NULL || wefti_ranks_init(&set) < 0) {
        free(set.ranks);
        return wefti_usage_error(launch->command, "cannot start ranks: %s", strerror(errno));
    }
    set.extra_fd = launch->host != NULL ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10) : -1;
    set.extra = hear_launcher;
    code = run_here(&set, launch->address);
    if (set.extra_fd >= 0) {
        close(set.extra_fd);
    }
    wefti_ranks_deinit(&set);
    free(set.ranks);
    return code;
}

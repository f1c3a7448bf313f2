/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/bootstrap/bootstrap.h"
#include "tests/faults/hook.h"

typedef struct seat {
    const world_t *world;
    weft_hub_t *hub;
    uint32_t rank;
    int result;
} seat_t;

wefti_settings_t test_settings(void)
{
    return (wefti_settings_t){.timeout_ns = 600000000000ull,
                              .spin_ns = 20000,
                              .reserve_bytes = 64ull << 20,
                              .log_level = WEFT_LOG_LEVEL_ERROR};
}

/* What ranks of a world of several hosts are told: settings live as long as the process. */
static const wefti_settings_t *tell_hosts(const world_t *world, uint32_t rank, const char *address,
                                          wefti_job_t *job)
{
    static wefti_settings_t settings;
    settings = world->settings;
    *job = (wefti_job_t){.rank = rank, .world_size = world->size, .secret_bytes = 16};
    snprintf(job->launcher, sizeof job->launcher, "test");
    snprintf(job->address, sizeof job->address, "%s", address);
    memcpy(job->secret, "sixteen letters!", 16);
    settings.connect_timeout_ns = 300000000000ull;
    settings.link_timeout_ns = 120000000000ull;
    settings.sockets = 2;
    settings.fallback = WEFTI_FALLBACK_TCP;
    snprintf(settings.transport, sizeof settings.transport, "%s", world->transport);
    snprintf(settings.host_id, sizeof settings.host_id, "host-%u",
             rank / (world->ranks_per_host > 0 ? world->ranks_per_host : 1));
    const char *interface = getenv("WEFT_IFNAME"); /* of an emulated machine, say */
    snprintf(settings.ifname, sizeof settings.ifname, "%s", interface != NULL ? interface : "lo");
    return &settings;
}

static weft_status_t open_with(const world_t *world, uint32_t rank, const char *address,
                               weft_hub_t *hub, wefti_endpoint_t **out_endpoint)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    wefti_job_t job;
    wefti_endpoint_params_t params = {.rank = rank,
                                      .world_size = world->size,
                                      .address = address,
                                      .hub = hub,
                                      .settings = &world->settings,
                                      .log = &log};
    if (world->transport != NULL) {
        params.settings = tell_hosts(world, rank, address, &job);
        params.job = &job;
    }
    weft_status_t status = wefti_endpoint_open(&params, out_endpoint);
    if (status == WEFT_OK && world->hook != NULL) {
        wefti_hook_rules_t rules;
        status = wefti_hook_parse(world->hook, &rules);
        status = status == WEFT_OK ? wefti_hook_attach(*out_endpoint, &rules) : status;
    }
    return status;
}

weft_status_t open_rank(uint32_t rank, uint32_t world_size, const char *address, weft_hub_t *hub,
                        const wefti_settings_t *settings, wefti_endpoint_t **out_endpoint)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    wefti_endpoint_params_t params = {.rank = rank,
                                      .world_size = world_size,
                                      .address = address,
                                      .hub = hub,
                                      .settings = settings,
                                      .log = &log};
    return wefti_endpoint_open(&params, out_endpoint);
}

static void *thread_main(void *argument)
{
    seat_t *seat = argument;
    wefti_endpoint_t *endpoint;
    if (open_with(seat->world, seat->rank, NULL, seat->hub, &endpoint) < 0) {
        fprintf(stderr, "rank %u: %s\n", seat->rank, weft_last_error());
        seat->result = 100;
        return NULL;
    }
    seat->result = seat->world->fn(endpoint, seat->world->user);
    wefti_endpoint_close(endpoint);
    return NULL;
}

void run_threads(const world_t *world)
{
    weft_hub_t *hub;
    pthread_t threads[64];
    seat_t seats[64];
    assert_int_equal(weft_hub_create(world->size, &hub), WEFT_OK);
    if (world->links != NULL) {
        assert_int_equal(wefti_hub_hide(hub, world->links), WEFT_OK);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        seats[r] = (seat_t){world, hub, r, -1};
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &seats[r]), 0);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        pthread_join(threads[r], NULL);
    }
    weft_hub_destroy(hub);
    for (uint32_t r = 0; r < world->size; r++) {
        assert_int_equal(seats[r].result, 0);
    }
}

void new_address(char *address, size_t capacity)
{
    static unsigned counter;
    snprintf(address, capacity, "unix:@weft-test-%d-%u", (int)getpid(), counter++);
}

pid_t fork_rank(const world_t *world, uint32_t rank, const char *address)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    wefti_endpoint_t *endpoint;
    if (open_with(world, rank, address, NULL, &endpoint) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, weft_last_error());
        _exit(100);
    }
    int result = world->fn(endpoint, world->user);
    wefti_endpoint_close(endpoint);
    _exit(result);
}

int wait_for(pid_t pid)
{
    int state = 0;
    while (waitpid(pid, &state, 0) < 0) {
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

void run_processes(const world_t *world)
{
    char address[96], folder[48] = "";
    pid_t pids[128];
    int results[128];
    assert_true(world->size <= sizeof pids / sizeof *pids);
    new_address(address, sizeof address);
    if (world->transport != NULL) {
        snprintf(folder, sizeof folder, "/tmp/weft-transport-XXXXXX");
        assert_non_null(mkdtemp(folder));
        snprintf(address, sizeof address, "file://%s/meet", folder);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        pids[r] = fork_rank(world, r, address);
        assert_true(pids[r] > 0);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        results[r] = wait_for(pids[r]);
    }
    if (world->transport != NULL) {
        unlink(address + strlen("file://"));
        assert_int_equal(rmdir(folder), 0);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        assert_int_equal(results[r], world->killed == r + 1 ? -SIGKILL : 0);
    }
}

int open_fd_count(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "support_overlay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

uint64_t soon(uint32_t seconds)
{
    return wefti_now_ns() + seconds * 1000000000ull;
}

void reserve_address(char *address, size_t capacity)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    close(fd);
    snprintf(address, capacity, "127.0.0.1:%u", ntohs(at.sin_port));
}

static void received(void *user, uint32_t origin, uint32_t kind, const void *data, size_t bytes)
{
    seat_t *seat = user;
    (void)kind, (void)data, (void)bytes;
    seat->told++;
    seat->told_by[origin % SEATS_MAX]++;
}

static void left(void *user, uint32_t rank)
{
    seat_t *seat = user;
    seat->left++;
    seat->left_by[rank % SEATS_MAX]++;
}

static void died(void *user, uint32_t rank, const char *how)
{
    seat_t *seat = user;
    seat->died++;
    seat->last_dead = rank;
    snprintf(seat->how, sizeof seat->how, "%s", how);
}

void seat_init(seat_t *seat, uint32_t rank, uint32_t world_size, const char *address)
{
    static const char secret[] = "a secret that tests have";
    memset(seat, 0, sizeof *seat);
    seat->job.rank = rank;
    seat->job.world_size = world_size;
    snprintf(seat->job.address, sizeof seat->job.address, "%s", address);
    memcpy(seat->job.secret, secret, sizeof secret);
    seat->job.secret_bytes = sizeof secret;
    seat->settings = test_settings();
    seat->settings.connect_timeout_ns = 300000000000ull;
    seat->settings.link_timeout_ns = 120000000000ull;
}

void seat_open(seat_t *seat)
{
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    const wefti_overlay_params_t params = {.job = &seat->job,
                                           .settings = &seat->settings,
                                           .log = &log,
                                           .user = seat,
                                           .received = received,
                                           .left = left,
                                           .died = died,
                                           .answer =
                                               seat->world != NULL ? seat->world->answer : NULL};
    seat->status = wefti_overlay_open(&params, &seat->overlay);
    if (seat->status < 0) {
        snprintf(seat->text, sizeof seat->text, "%s", weft_last_error());
    }
}

void seat_close(seat_t *seat)
{
    wefti_overlay_close(seat->overlay, false);
    seat->overlay = NULL;
}

static void *open_main(void *argument)
{
    seat_open(argument);
    return NULL;
}

void seats_open(seat_t *seats, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(pthread_create(&seats[i].thread, NULL, open_main, &seats[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(seats[i].thread, NULL);
    }
}

static int run_seat(seat_t *seat)
{
    seat_open(seat);
    if (seat->status < 0) {
        fprintf(stderr, "rank %u: %s\n", seat->job.rank, seat->text);
        return 100;
    }
    int result = seat->world->fn(seat, seat->world->user);
    seat_close(seat);
    return result;
}

static void *seat_main(void *argument)
{
    seat_t *seat = argument;
    seat->result = run_seat(seat);
    return NULL;
}

void run_overlay_threads(const overlay_world_t *world)
{
    char address[64];
    seat_t *seats = calloc(world->size, sizeof *seats);
    reserve_address(address, sizeof address);
    for (uint32_t r = 0; r < world->size; r++) {
        seat_init(&seats[r], r, world->size, address);
        seats[r].world = world;
        assert_int_equal(pthread_create(&seats[r].thread, NULL, seat_main, &seats[r]), 0);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        pthread_join(seats[r].thread, NULL);
    }
    for (uint32_t r = 0; r < world->size; r++) {
        assert_int_equal(seats[r].result, 0);
    }
    free(seats);
}

void run_overlay_processes(const overlay_world_t *world, int *results)
{
    char address[64];
    pid_t pids[SEATS_MAX];
    reserve_address(address, sizeof address);
    fflush(NULL);
    for (uint32_t r = 0; r < world->size; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            static seat_t seat;
            seat_init(&seat, r, world->size, address);
            seat.world = world;
            _exit(run_seat(&seat));
        }
    }
    for (uint32_t r = 0; r < world->size; r++) {
        results[r] = wait_for(pids[r]);
    }
}

bool await_events(seat_t *seat, uint32_t want_told, uint32_t want_left, uint32_t want_died)
{
    uint64_t deadline = soon(300);
    for (;;) {
        wefti_overlay_progress(seat->overlay);
        if (seat->told >= want_told && seat->left >= want_left && seat->died >= want_died) {
            return true;
        }
        if (wefti_now_ns() > deadline) {
            fprintf(stderr, "rank %u: told %u, left %u, died %u\n", seat->job.rank, seat->told,
                    seat->left, seat->died);
            return false;
        }
        struct pollfd poll_fd = {.fd = wefti_overlay_poll_fd(seat->overlay), .events = POLLIN};
        poll(&poll_fd, 1, 1000);
    }
}

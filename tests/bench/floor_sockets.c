/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What plain sockets reach between two hosts, without a library: both ends send BYTES to the other
 * at once and receive as many, again and again. One JSON line per size by the end that connects:
 * median microseconds of one exchange, which for two ranks is what an all-reduce of BYTES needs at
 * least (each sends half of its vector, receives half, and the same again for the result).
 *
 *   floor_sockets listen ADDRESS          prints its port
 *   floor_sockets connect ADDRESS PORT BYTES..
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_MAX 4000

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void die(const char *what)
{
    fprintf(stderr, "floor_sockets: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Sends and receives bytes at once. Small ones are polled for, since sleeping costs more than they
 * do. */
static void exchange(int fd, uint8_t *out, uint8_t *in, size_t bytes)
{
    size_t sent = 0, received = 0;
    while (sent < bytes || received < bytes) {
        ssize_t put =
            sent < bytes
                ? send(fd, out + sent, bytes - sent > 262144 ? 262144 : bytes - sent, MSG_NOSIGNAL)
                : 0;
        if (put < 0 && errno != EAGAIN) {
            die("send");
        }
        sent += put > 0 ? (size_t)put : 0;
        ssize_t got = received < bytes ? recv(fd, in + received, bytes - received, 0) : 0;
        if ((got < 0 && errno != EAGAIN) || (got == 0 && received < bytes)) {
            die("recv");
        }
        received += got > 0 ? (size_t)got : 0;
        if (put <= 0 && got <= 0 && bytes > 65536) {
            struct pollfd wait = {fd, POLLIN, 0};
            wait.events = (short)((sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0));
            poll(&wait, 1, 1000);
        }
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t rounds_for(uint64_t bytes)
{
    return bytes <= 4096 ? 2000 : bytes <= 262144 ? 400 : bytes <= 4u << 20 ? 40 : 10;
}

/* Both ends run the same; the one that connects says sizes first (0: the end) and prints. */
static void run(int fd, int argc, char **argv)
{
    static double times[ROUNDS_MAX];
    for (int i = 0;; i++) {
        uint64_t bytes = i < argc ? strtoull(argv[i], NULL, 10) : 0, theirs = 0;
        exchange(fd, (uint8_t *)&bytes, (uint8_t *)&theirs, sizeof bytes);
        bytes = bytes > theirs ? bytes : theirs;
        if (bytes == 0) {
            return;
        }
        uint8_t *out = malloc(bytes), *in = malloc(bytes);
        if (out == NULL || in == NULL) {
            die("memory");
        }
        memset(out, 1, bytes);
        memset(in, 1, bytes);
        uint64_t rounds = rounds_for(bytes), warm_up = rounds / 5 + 2;
        for (uint64_t k = 0; k < warm_up + rounds; k++) {
            double start = now_us();
            exchange(fd, out, in, bytes);
            times[k < warm_up ? 0 : k - warm_up] = now_us() - start;
        }
        free(out);
        free(in);
        qsort(times, rounds, sizeof *times, ascending);
        if (argc > 0) {
            printf("{\"op\":\"exchange\",\"bytes\":%llu,\"p50_us\":%.3f}\n",
                   (unsigned long long)bytes, times[rounds / 2]);
            fflush(stdout);
        }
    }
}

static void tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
        die("fcntl");
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    if (argc < 3 || inet_pton(AF_INET, argv[2], &at.sin_addr) != 1) {
        fprintf(stderr, "usage: %s listen ADDRESS | connect ADDRESS PORT BYTES..\n", argv[0]);
        return 2;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (strcmp(argv[1], "listen") == 0) {
        if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 1) != 0 ||
            getsockname(fd, (struct sockaddr *)&at, &length) != 0) {
            die(argv[2]);
        }
        printf("%u\n", ntohs(at.sin_port));
        fflush(stdout);
        fd = accept(fd, NULL, NULL);
        if (fd < 0) {
            die("accept");
        }
        tune(fd);
        run(fd, 0, argv);
        return 0;
    }
    at.sin_port = htons((uint16_t)(argc > 3 ? atoi(argv[3]) : 0));
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        die("connect");
    }
    tune(fd);
    run(fd, argc - 4, argv + 4);
    return 0;
}

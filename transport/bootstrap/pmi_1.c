/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PMI-1 as MPICH's hydra speaks it: lines of text over the descriptor PMI_FD. Names are published
 * and looked up, which needs no barrier, so a rank that never comes is found out by us and named.
 * Where that is not offered: put, barrier, get. We never say init, which an MPI in the same process
 * may want to say itself.
 */
#include "transport/bootstrap/service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

#define LINE_BYTES 2048u
#define NAME_BYTES 300u
#define ANSWER_NS 60000000000ull
#define TURNS_MAX 100000u

typedef struct pmi_service {
    wefti_service_t base;
    const wefti_log_t *log;
    int fd;
    uint32_t rank;
    char space[256]; /* of names: one per job */
    bool barrier;    /* names cannot be published */
    bool passed;     /* the barrier */
} pmi_service_t;

static weft_status_t broken(const char *what)
{
    return wefti_error(WEFT_ERR_SYSTEM, "PMI-1 launcher %s", what);
}

static weft_status_t send_line(const pmi_service_t *service, const char *line)
{
    size_t bytes = strlen(line);
    while (bytes > 0) {
        ssize_t sent = write(service->fd, line, bytes);
        if (sent < 0 && errno != EINTR && errno != EAGAIN) {
            return broken("is gone");
        }
        line += sent > 0 ? sent : 0;
        bytes -= sent > 0 ? (size_t)sent : 0;
    }
    return WEFT_OK;
}

/* One line back, without its end. */
static weft_status_t receive_line(const pmi_service_t *service, char *line)
{
    uint64_t deadline = wefti_now_ns() + ANSWER_NS;
    for (size_t have = 0; have < LINE_BYTES - 1;) {
        struct pollfd poll_fd = {.fd = service->fd, .events = POLLIN};
        if (wefti_now_ns() > deadline) {
            return broken("does not answer");
        }
        if (poll(&poll_fd, 1, 1000) <= 0) {
            continue;
        }
        /* By bytes: what follows the line is not ours to take. */
        ssize_t got = read(service->fd, line + have, 1);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
            return broken("is gone");
        }
        if (got == 1 && line[have] == '\n') {
            line[have] = '\0';
            return WEFT_OK;
        }
        have += got > 0;
    }
    return broken("says more than it should");
}

static weft_status_t ask(const pmi_service_t *service, char *line)
{
    weft_status_t status = send_line(service, line);
    return status == WEFT_OK ? receive_line(service, line) : status;
}

/* The value of name in "cmd=x name=value ...", or false. */
static bool find_value(const char *line, const char *name, char *out, size_t capacity)
{
    size_t length = strlen(name);
    for (const char *at = line; at != NULL; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (strncmp(at, name, length) == 0 && at[length] == '=') {
            size_t bytes = strcspn(at + length + 1, " ");
            if (bytes >= capacity) {
                return false;
            }
            memcpy(out, at + length + 1, bytes);
            out[bytes] = '\0';
            return true;
        }
    }
    return false;
}

static bool succeeded(const char *line)
{
    char code[16];
    return find_value(line, "rc", code, sizeof code) ? strcmp(code, "0") == 0
                                                     : strstr(line, "info=ok") != NULL;
}

/* *out_done: it was new. */
static weft_status_t publish_name(const pmi_service_t *service, const char *name, const char *text,
                                  bool *out_done)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "cmd=publish_name service=%s port=%s\n", name, text);
    weft_status_t status = ask(service, line);
    *out_done = status == WEFT_OK && succeeded(line);
    return status;
}

static weft_status_t look_up_name(const pmi_service_t *service, const char *name, char *out,
                                  size_t capacity)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "cmd=lookup_name service=%s\n", name);
    weft_status_t status = ask(service, line);
    return status != WEFT_OK                                            ? status
           : succeeded(line) && find_value(line, "port", out, capacity) ? WEFT_OK
                                                                        : WEFT_AGAIN;
}

static weft_status_t put(const pmi_service_t *service, const char *key, const char *text)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "cmd=put kvsname=%s key=%s value=%s\n", service->space, key, text);
    weft_status_t status = ask(service, line);
    return status == WEFT_OK && !succeeded(line) ? broken("does not take what ranks publish")
                                                 : status;
}

static weft_status_t get(const pmi_service_t *service, const char *key, char *out, size_t capacity)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "cmd=get kvsname=%s key=%s\n", service->space, key);
    weft_status_t status = ask(service, line);
    return status != WEFT_OK                                             ? status
           : succeeded(line) && find_value(line, "value", out, capacity) ? WEFT_OK
                                                                         : WEFT_AGAIN;
}

static weft_status_t pass_barrier(pmi_service_t *service)
{
    char line[LINE_BYTES] = "cmd=barrier_in\n";
    weft_status_t status = service->passed ? WEFT_OK : ask(service, line);
    service->passed = status == WEFT_OK;
    return status;
}

/* Each rank leaves a name of its own behind for every world it opens, which this counts. */
static weft_status_t pmi_begin(wefti_service_t *base, uint32_t *out_turn)
{
    pmi_service_t *service = (pmi_service_t *)base;
    char name[NAME_BYTES + 64], other[LINE_BYTES];
    for (uint32_t turn = 0; turn < TURNS_MAX; turn++) {
        bool done = false;
        weft_status_t status = WEFT_OK;
        *out_turn = turn;
        if (!service->barrier) {
            snprintf(name, sizeof name, "weft-open.%s.%u.%u", service->space, service->rank, turn);
            status = publish_name(service, name, "-", &done);
            if (status == WEFT_OK && !done &&
                look_up_name(service, name, other, sizeof other) != WEFT_OK) {
                service->barrier = true; /* not taken, not there before: not offered */
            }
        }
        if (service->barrier && status == WEFT_OK) {
            snprintf(name, sizeof name, "weft-open.%u.%u", service->rank, turn);
            status = get(service, name, other, sizeof other);
            done = status == WEFT_AGAIN;
            status = done ? put(service, name, "-") : status;
        }
        if (done || status < 0) {
            return status;
        }
    }
    return wefti_error(WEFT_ERR_STATE, "this process has already created %u worlds", TURNS_MAX);
}

static void make_name(const pmi_service_t *service, uint32_t turn, char *name)
{
    if (service->barrier) {
        snprintf(name, NAME_BYTES, "weft.%u", turn);
    } else {
        snprintf(name, NAME_BYTES, "weft.%s.%u", service->space, turn);
    }
}

static weft_status_t pmi_publish(wefti_service_t *base, uint32_t turn, const char *text)
{
    pmi_service_t *service = (pmi_service_t *)base;
    char name[NAME_BYTES];
    bool done = false;
    make_name(service, turn, name);
    if (service->barrier) {
        weft_status_t status = put(service, name, text);
        return status == WEFT_OK ? pass_barrier(service) : status;
    }
    weft_status_t status = publish_name(service, name, text, &done);
    return status == WEFT_OK && !done ? broken("does not take what ranks publish") : status;
}

static weft_status_t pmi_look_up(wefti_service_t *base, uint32_t turn, char *out, size_t capacity)
{
    pmi_service_t *service = (pmi_service_t *)base;
    char name[NAME_BYTES];
    make_name(service, turn, name);
    if (!service->barrier) {
        return look_up_name(service, name, out, capacity);
    }
    weft_status_t status = pass_barrier(service);
    return status == WEFT_OK ? get(service, name, out, capacity) : status;
}

static void pmi_close(wefti_service_t *base)
{
    wefti_free(NULL, base); /* the descriptor is the process's, not ours */
}

/*
 * hydra takes a process that has spoken to it and ends without "finalize" for one that crashed, and
 * kills the others; after "finalize" it listens no more. So that is said when the process ends: a
 * second world, or MPI, may need it until then. That this process has spoken is noted as the owner
 * of the descriptor, which a forked child is not.
 */
static void note_spoken(int fd)
{
    fcntl(fd, F_SETOWN, getpid());
}

__attribute__((destructor)) static void say_finalize(void)
{
    static const char line[] = "cmd=finalize\n";
    const char *text = getenv("PMI_FD");
    int fd = text != NULL ? atoi(text) : -1;
    char answer[64];
    if (fd > 2 && fcntl(fd, F_GETOWN) == getpid() &&
        send(fd, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, 1000) > 0) { /* it is told off if it cannot answer */
            ssize_t got = read(fd, answer, sizeof answer);
            (void)got;
        }
    }
}

static const wefti_service_ops_t pmi_ops = {
    .launcher = "pmi-1",
    .address = "pmi-1:",
    .begin = pmi_begin,
    .publish = pmi_publish,
    .look_up = pmi_look_up,
    .close = pmi_close,
};

static bool read_number(const char *name, uint32_t *out)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value = text != NULL ? strtol(text, &end, 10) : -1;
    if (text == NULL || end == text || *end != '\0' || value < 0 || value > INT32_MAX) {
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

weft_status_t wefti_service_pmi_1(const wefti_log_t *log, wefti_service_t **out_service,
                                  uint32_t *out_rank, uint32_t *out_world_size)
{
    uint32_t fd, kind = 0;
    socklen_t length = sizeof kind;
    if (!read_number("PMI_FD", &fd) || !read_number("PMI_RANK", out_rank) ||
        !read_number("PMI_SIZE", out_world_size)) {
        return WEFT_AGAIN;
    }
    if (getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &kind, &length) != 0 || kind != SOCK_STREAM) {
        wefti_log(log, WEFT_LOG_LEVEL_DEBUG, "PMI_FD=%u is not a connected socket", fd);
        return WEFT_AGAIN;
    }
    pmi_service_t *service = wefti_alloc(NULL, sizeof *service);
    if (service == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    char line[LINE_BYTES] = "cmd=get_my_kvsname\n";
    note_spoken((int)fd);
    *service = (pmi_service_t){.base.ops = &pmi_ops, .log = log, .fd = (int)fd, .rank = *out_rank};
    if (ask(service, line) < 0 ||
        !find_value(line, "kvsname", service->space, sizeof service->space)) {
        wefti_log(log, WEFT_LOG_LEVEL_DEBUG, "PMI_FD=%u: no PMI-1 answer", fd);
        pmi_close(&service->base);
        return WEFT_AGAIN;
    }
    *out_service = &service->base;
    return WEFT_OK;
}

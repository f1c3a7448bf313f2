/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PMI-1 as MPICH's hydra and Slurm (srun --mpi=pmi2) implement it: lines of text over the descriptor
 * PMI_FD. Publishing and looking up names needs no barrier, so the rendezvous can name missing ranks.
 * Launchers without names: put, barrier, get. Hydra answers before "init", which is left to an MPI of
 * the same process; Slurm answers to nothing else first, and takes PMI-1 and PMI-2.
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
        /* By bytes: what follows the line may be for an MPI of this process. */
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
    return broken("sent a line that is too long");
}

static weft_status_t ask(const pmi_service_t *service, char *line)
{
    WEFT_RETURN_IF_ERROR(send_line(service, line));
    return receive_line(service, line);
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

/* "weft.<turn>" for rank 0's text, "weft-open.<rank>.<turn>"; published names are unique per job.
 */
static void make_name(const pmi_service_t *service, const char *prefix, uint32_t turn, char *name)
{
    snprintf(name, NAME_BYTES, "%s%s%s.%u", prefix, service->barrier ? "" : ".",
             service->barrier ? "" : service->space, turn);
}

/* WEFT_AGAIN: the name is published already, or names cannot be published. */
static weft_status_t store(const pmi_service_t *service, const char *name, const char *text)
{
    char line[LINE_BYTES];
    if (service->barrier) {
        snprintf(line, sizeof line, "cmd=put kvsname=%s key=%s value=%s\n", service->space, name,
                 text);
    } else {
        snprintf(line, sizeof line, "cmd=publish_name service=%s port=%s\n", name, text);
    }
    WEFT_RETURN_IF_ERROR(ask(service, line));
    if (succeeded(line)) {
        return WEFT_OK;
    }
    return service->barrier ? broken("refuses to publish a key") : WEFT_AGAIN;
}

/* WEFT_AGAIN: nothing is stored under the name. */
static weft_status_t load(const pmi_service_t *service, const char *name, char *out,
                          size_t capacity)
{
    char line[LINE_BYTES];
    if (service->barrier) {
        snprintf(line, sizeof line, "cmd=get kvsname=%s key=%s\n", service->space, name);
    } else {
        snprintf(line, sizeof line, "cmd=lookup_name service=%s\n", name);
    }
    WEFT_RETURN_IF_ERROR(ask(service, line));
    return succeeded(line) && find_value(line, service->barrier ? "value" : "port", out, capacity)
               ? WEFT_OK
               : WEFT_AGAIN;
}

static weft_status_t pass_barrier(pmi_service_t *service)
{
    char line[LINE_BYTES] = "cmd=barrier_in\n";
    weft_status_t status = service->passed ? WEFT_OK : ask(service, line);
    service->passed = status == WEFT_OK;
    return status;
}

static weft_status_t pmi_claim(wefti_service_t *base, uint32_t turn)
{
    pmi_service_t *service = (pmi_service_t *)base;
    char prefix[32], name[NAME_BYTES], other[LINE_BYTES];
    snprintf(prefix, sizeof prefix, "weft-open.%u", service->rank);
    make_name(service, prefix, turn, name);
    if (!service->barrier) {
        weft_status_t status = store(service, name, "-");
        if (status != WEFT_AGAIN) {
            return status;
        }
        status = load(service, name, other, sizeof other);
        if (status != WEFT_AGAIN) {
            return status < 0 ? status : WEFT_AGAIN;
        }
        service->barrier = true; /* refused, but not there: names cannot be published */
        make_name(service, prefix, turn, name);
    }
    weft_status_t status = load(service, name, other, sizeof other);
    return status == WEFT_AGAIN ? store(service, name, "-") : status < 0 ? status : WEFT_AGAIN;
}

static weft_status_t pmi_publish(wefti_service_t *base, uint32_t turn, const char *text)
{
    pmi_service_t *service = (pmi_service_t *)base;
    char name[NAME_BYTES];
    make_name(service, "weft", turn, name);
    weft_status_t status = store(service, name, text);
    if (status == WEFT_AGAIN) {
        return broken("refuses to publish a name");
    }
    return status == WEFT_OK && service->barrier ? pass_barrier(service) : status;
}

static weft_status_t pmi_look_up(wefti_service_t *base, uint32_t turn, char *out, size_t capacity)
{
    pmi_service_t *service = (pmi_service_t *)base;
    char name[NAME_BYTES];
    make_name(service, "weft", turn, name);
    if (service->barrier) {
        WEFT_RETURN_IF_ERROR(pass_barrier(service));
    }
    return load(service, name, out, capacity);
}

static void pmi_close(wefti_service_t *base)
{
    wefti_free(NULL, base); /* the descriptor is the process's, not ours */
}

/*
 * If a process that has used PMI ends without "finalize", hydra takes it for crashed and kills the
 * others. After "finalize" hydra answers no more, but a second world or MPI may need it, so it is
 * sent when the process ends. Use is recorded as the owner of the descriptor, which a forked child
 * is not.
 */
__attribute__((destructor)) static void send_finalize(void)
{
    static const char line[] = "cmd=finalize\n";
    const char *text = getenv("PMI_FD");
    int fd = text != NULL ? atoi(text) : -1;
    char answer[64];
    if (fd > 2 && fcntl(fd, F_GETOWN) == getpid() &&
        send(fd, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, 1000) > 0) { /* hydra complains if it cannot answer */
            ssize_t got = read(fd, answer, sizeof answer);
            (void)got;
        }
    }
}

static const wefti_service_ops_t pmi_ops = {
    .launcher = "pmi-1",
    .address = "pmi-1:",
    .claim = pmi_claim,
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
    char init[LINE_BYTES] = "cmd=init pmi_version=1 pmi_subversion=1\n";
    bool first = fcntl((int)fd, F_GETOWN) != getpid();
    fcntl((int)fd, F_SETOWN, getpid());
    *service = (pmi_service_t){.base.ops = &pmi_ops, .log = log, .fd = (int)fd, .rank = *out_rank};
    if ((first && getenv("SLURM_STEP_ID") != NULL && ask(service, init) < 0) ||
        ask(service, line) < 0 ||
        !find_value(line, "kvsname", service->space, sizeof service->space)) {
        wefti_log(log, WEFT_LOG_LEVEL_DEBUG, "PMI_FD=%u: no PMI-1 answer", fd);
        pmi_close(&service->base);
        return WEFT_AGAIN;
    }
    *out_service = &service->base;
    return WEFT_OK;
}

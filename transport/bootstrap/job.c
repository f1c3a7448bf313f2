/* SPDX-License-Identifier: Apache-2.0 */
/* Rank, world size and rendezvous address: from arguments, the environment and launchers, in a
 * fixed order. */
#include "transport/bootstrap/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/bootstrap/service.h"

#define DEFAULT_PORT "29500"
/* Shorter ones can be guessed. */
#define SECRET_LEAST 16u
#define SECRET_FILE_BYTES 4096u

/* NULL: not set, or empty. */
static const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : NULL;
}

static weft_status_t read_number(const char *name, const char *text, uint32_t *out)
{
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 0 || value > INT32_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid value for %s: '%s' is not a number",
                           name, text);
    }
    *out = (uint32_t)value;
    return WEFT_OK;
}

static weft_status_t check_rank(const wefti_job_t *job)
{
    return job->world_size == 0 || job->rank >= job->world_size
               ? wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid rank %u for world size %u",
                             job->rank, job->world_size)
               : WEFT_OK;
}

static weft_status_t set_address(wefti_job_t *job, const char *text)
{
    if ((size_t)snprintf(job->address, sizeof job->address, "%s", text) >= sizeof job->address) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "address is too long: at most %zu characters",
                           sizeof job->address - 1);
    }
    return WEFT_OK;
}

/* ---- secrets ---- */

static weft_status_t set_secret(wefti_job_t *job, const char *name, const char *text, size_t bytes)
{
    wefti_digest_t digest;
    if (bytes < SECRET_LEAST) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: invalid secret: at least %u characters are required; create "
                           "one with `openssl rand -hex 32`",
                           name, SECRET_LEAST);
    }
    if (bytes <= sizeof job->secret) {
        memcpy(job->secret, text, bytes);
        job->secret_bytes = (uint32_t)bytes;
        return WEFT_OK;
    }
    weft_status_t status = wefti_digest_of(text, bytes, &digest);
    memcpy(job->secret, digest.bytes, sizeof digest.bytes);
    job->secret_bytes = sizeof digest.bytes;
    return status;
}

static weft_status_t read_secret_file(wefti_job_t *job, const char *path)
{
    char text[SECRET_FILE_BYTES];
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "WEFT_SECRET_FILE=%s", path);
    }
    bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    ssize_t got = regular ? read(fd, text, sizeof text) : -1;
    int error_number = errno;
    close(fd);
    if (!regular) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "WEFT_SECRET_FILE=%s: not a regular file",
                           path);
    }
    if (got < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "WEFT_SECRET_FILE=%s", path);
    }
    while (got > 0 && (text[got - 1] == '\n' || text[got - 1] == '\r')) {
        got--;
    }
    weft_status_t status = set_secret(job, "WEFT_SECRET_FILE", text, (size_t)got);
    wefti_forget(text, sizeof text);
    return status;
}

static weft_status_t read_secret(wefti_job_t *job)
{
    const char *text = variable("WEFT_SECRET"), *path = variable("WEFT_SECRET_FILE");
    if (text != NULL) {
        return set_secret(job, "WEFT_SECRET", text, strlen(text));
    }
    return path != NULL ? read_secret_file(job, path) : WEFT_OK;
}

/* ---- arguments and WEFT_ variables ---- */

/* What they set; rank and world size go to the job. */
typedef struct requested {
    bool rank, world_size;
    bool by_arguments;
    const char *address;
} requested_t;

/* *out_set: the argument or the variable is set. */
static weft_status_t read_count(int32_t argument, const char *name, uint32_t *out, bool *out_set)
{
    const char *text = variable(name);
    *out_set = argument >= 0 || text != NULL;
    if (argument >= 0) {
        *out = (uint32_t)argument;
        return WEFT_OK;
    }
    return text != NULL ? read_number(name, text, out) : WEFT_OK;
}

static weft_status_t read_requested(const wefti_job_wish_t *wish, wefti_job_t *job,
                                    requested_t *out)
{
    out->by_arguments = wish->world_size >= 0 || wish->address != NULL;
    out->address = wish->address != NULL ? wish->address : variable("WEFT_ADDRESS");
    WEFT_RETURN_IF_ERROR(read_count(wish->rank, "WEFT_RANK", &job->rank, &out->rank));
    return read_count(wish->world_size, "WEFT_WORLD_SIZE", &job->world_size, &out->world_size);
}

static void set_launcher(wefti_job_t *job, const char *name)
{
    snprintf(job->launcher, sizeof job->launcher, "%s", name);
}

/* "unix:@weft-<uid>-<name>": of one host and user. */
static weft_status_t join_group(wefti_job_t *job, const char *name)
{
    char address[128];
    if (strlen(name) > 64 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789._-") != strlen(name)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid value '%s' for WEFT_GROUP: expected 1 to 64 letters, digits, "
                           "dots, dashes and underscores",
                           name);
    }
    set_launcher(job, "group");
    snprintf(address, sizeof address, "unix:@weft-%u-%s", (unsigned)geteuid(), name);
    return set_address(job, address);
}

/* Rank and world size are set. */
static weft_status_t use_requested(wefti_job_t *job, const requested_t *set)
{
    const char *group = variable("WEFT_GROUP");
    WEFT_RETURN_IF_ERROR(check_rank(job));
    set_launcher(job, set->by_arguments ? "arguments" : "environment");
    if (set->address != NULL) {
        return set_address(job, set->address);
    }
    if (job->world_size == 1) {
        return WEFT_OK;
    }
    if (group != NULL) {
        return join_group(job, group);
    }
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "no rendezvous address for a world of %u ranks; set WEFT_ADDRESS or, on one "
                       "host, WEFT_GROUP",
                       job->world_size);
}

/* ---- variables of launchers ---- */

/* host:port with brackets where host is a number of IPv6. */
static weft_status_t set_host_port(wefti_job_t *job, const char *host, const char *port)
{
    char address[sizeof job->address];
    bool v6 = strchr(host, ':') != NULL && host[0] != '[';
    if ((size_t)snprintf(address, sizeof address, v6 ? "[%s]:%s" : "%s:%s", host, port) >=
        sizeof address) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "MASTER_ADDR is too long");
    }
    return set_address(job, address);
}

static weft_status_t set_id(wefti_job_t *job, const char *first, const char *second)
{
    char text[2 * sizeof job->address];
    wefti_digest_t digest;
    snprintf(text, sizeof text, "%s %s %s", job->address, first, second);
    weft_status_t status = wefti_digest_of(text, strlen(text), &digest);
    memcpy(job->id, digest.bytes, sizeof job->id);
    return status;
}

/* RANK and its companions. WEFT_AGAIN: none of them is set. */
static weft_status_t use_master(wefti_job_t *job, bool torchrun)
{
    static const char *const names[4] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    const char *values[4];
    uint32_t set = 0, needed = torchrun ? 4 : 3;
    for (uint32_t i = 0; i < 4; i++) {
        values[i] = variable(names[i]);
        set += values[i] != NULL && i < needed;
    }
    if (set == 0) {
        return WEFT_AGAIN;
    }
    for (uint32_t i = 0; i < needed; i++) {
        if (values[i] == NULL) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%s is not set, but other variables of RANK, WORLD_SIZE, "
                               "MASTER_ADDR and MASTER_PORT are%s",
                               names[i], torchrun ? "; torchrun sets all four" : "");
        }
    }
    const char *each = variable("PET_NPROC_PER_NODE"); /* of PyTorchJob; RANK is the pod's */
    if (!torchrun && each != NULL && strcmp(each, "1") != 0 && variable("LOCAL_RANK") == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "PET_NPROC_PER_NODE is %s, but this process is the only one of its pod; "
                           "start ranks by torchrun, or one per pod",
                           each);
    }
    const char *restart = variable("TORCHELASTIC_RESTART_COUNT");
    WEFT_RETURN_IF_ERROR(read_number(names[0], values[0], &job->rank));
    WEFT_RETURN_IF_ERROR(read_number(names[1], values[1], &job->world_size));
    WEFT_RETURN_IF_ERROR(check_rank(job));
    WEFT_RETURN_IF_ERROR(
        set_host_port(job, values[2], values[3] != NULL ? values[3] : DEFAULT_PORT));
    job->delivered = true;
    job->ports = torchrun ? WEFTI_PORT_OTHERS : WEFTI_PORT_FIRST;
    set_launcher(job, torchrun ? "torchrun" : "plain");
    return set_id(job, torchrun ? variable("TORCHELASTIC_RUN_ID") : "plain",
                  torchrun && restart != NULL ? restart : "");
}

/* WEFT_AGAIN: none of them started us. */
static weft_status_t ask_launchers(wefti_job_t *job, const wefti_log_t *log)
{
    weft_status_t status;
    if (variable("TORCHELASTIC_RUN_ID") != NULL) {
        status = use_master(job, true);
        if (status != WEFT_AGAIN) {
            return status;
        }
    }
    status = wefti_service_pmix(log, &job->service, &job->rank, &job->world_size);
    if (status == WEFT_AGAIN) {
        status = wefti_service_pmi_1(log, &job->service, &job->rank, &job->world_size);
    }
    if (status == WEFT_OK) {
        set_launcher(job, job->service->ops->launcher);
        job->delivered = true;
        WEFT_RETURN_IF_ERROR(set_address(job, job->service->ops->address));
        return check_rank(job);
    }
    return status == WEFT_AGAIN ? use_master(job, false) : status;
}

static weft_status_t probe(const wefti_job_wish_t *wish, const wefti_log_t *log, wefti_job_t *job)
{
    requested_t set;
    WEFT_RETURN_IF_ERROR(read_requested(wish, job, &set));
    WEFT_RETURN_IF_ERROR(read_secret(job));
    if (set.world_size && (set.rank || job->world_size == 1)) {
        return use_requested(job, &set);
    }
    if (set.rank || set.world_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s is set, but %s is not",
                           set.rank ? "the rank (WEFT_RANK)" : "the world size (WEFT_WORLD_SIZE)",
                           set.rank ? "the world size (WEFT_WORLD_SIZE)" : "the rank (WEFT_RANK)");
    }
    weft_status_t status = ask_launchers(job, log);
    if (status == WEFT_OK && set.address != NULL) {
        /* The launcher numbers the ranks; the address is the user's. */
        job->delivered = false;
        job->ports = WEFTI_PORT_ONE;
        memset(job->id, 0, sizeof job->id);
        return set_address(job, set.address);
    }
    if (status != WEFT_AGAIN) {
        return status;
    }
    const char *half = set.address != NULL              ? "WEFT_ADDRESS"
                       : variable("WEFT_GROUP") != NULL ? "WEFT_GROUP"
                                                        : NULL;
    if (half != NULL) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s is set, but WEFT_RANK and WEFT_WORLD_SIZE are not, and no launcher provides them",
            half);
    }
    job->rank = 0;
    job->world_size = 1;
    set_launcher(job, "alone");
    return WEFT_OK;
}

weft_status_t wefti_job_probe(const wefti_job_wish_t *wish, const wefti_log_t *log,
                              wefti_job_t *out_job)
{
    *out_job = (wefti_job_t){0};
    weft_status_t status = probe(wish, log, out_job);
    if (status < 0) {
        wefti_job_deinit(out_job);
    }
    return status;
}

void wefti_job_deinit(wefti_job_t *job)
{
    if (job->service != NULL) {
        job->service->ops->close(job->service);
        job->service = NULL;
    }
    wefti_forget(job->secret, sizeof job->secret);
    job->secret_bytes = 0;
}

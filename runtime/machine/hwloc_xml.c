/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hwloc's XML files. libhwloc trusts them: a damaged one can crash it or occupy it without end. So a
 * child process reads the file and sends what it found as the JSON of hardware_json.c:
 *
 *   parent    fork, waits for the pipe's end ---------------------> decodes and checks
 *   child     limits itself, wefti_hwloc_read_xml, reply_t + text -> pipe, _exit
 *
 * The process may have other threads. A lock that one of them holds during fork() is held in the
 * child for ever: there is no such thread. fork() waits until none of ours uses libhwloc. The
 * allocator of a sanitizer and the program's own libraries have locks as well, so the parent kills
 * a child that only sleeps, and forks again.
 */
#include "runtime/machine/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/sync.h"

#define MAX_XML_BYTES (64u << 20)
#define MAX_REPLY_BYTES (256u << 20)
#define CHILD_BYTES ((rlim_t)2 << 30) /* of memory, beyond what the parent has */
#define CHILD_SECONDS 20u             /* of processor time */
#define WAIT_NS 300000000000ull       /* a guard: the child gets no processor */
#define LOOK_MS 100                   /* between two looks at a silent child */
#define ASLEEP_LOOKS 20u              /* so many in a row: the child waits for a lost thread */
#define TRIES 5u                      /* the last one has WAIT_NS: files may come slowly */

/* What the child sends first; a message, or the hardware, follows. */
typedef struct reply {
    int32_t status;
    uint32_t bytes;
} reply_t;

static bool write_all(int fd, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t now = write(fd, at, bytes);
        if (now < 0 && errno != EINTR) {
            return false;
        }
        at += now > 0 ? now : 0;
        bytes -= now > 0 ? (size_t)now : 0;
    }
    return true;
}

static void limit(__rlimit_resource_t what, rlim_t most)
{
    struct rlimit bounds;
    if (getrlimit(what, &bounds) == 0) {
        bounds.rlim_cur = bounds.rlim_max < most ? bounds.rlim_max : most;
        (void)setrlimit(what, &bounds);
    }
}

/* It ends with its parent, without a core file and without a word on the parent's terminal. */
static void limit_child(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGPIPE, SIGXCPU};
    unsigned long pages;
    char line[64];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        (void)signal(faults[i], SIG_DFL);
    }
    if (null >= 0) {
        (void)dup2(null, STDOUT_FILENO);
        (void)dup2(null, STDERR_FILENO);
    }
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, CHILD_SECONDS);
    if (wefti_read_line(line, sizeof line, "/proc/self/statm") &&
        sscanf(line, "%lu", &pages) == 1) {
        limit(RLIMIT_AS, (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + CHILD_BYTES);
    }
}

static void run_child(const char *path, int fd)
{
    wefti_arena_t arena;
    wefti_hardware_t hardware;
    wefti_text_t text;
    limit_child();
    wefti_arena_init(&arena, NULL, 0);
    wefti_text_init(&text, NULL);
    weft_status_t status = wefti_hwloc_read_xml(path, &arena, &hardware);
    status = status >= 0 ? wefti_hardware_encode(&hardware, &text) : status;
    const char *data = status >= 0 ? text.data : weft_last_error();
    const reply_t reply = {status, (uint32_t)(status >= 0 ? text.length : strlen(data))};
    _exit(write_all(fd, &reply, sizeof reply) && write_all(fd, data, reply.bytes) ? 0 : 1);
}

/* A child that needs a processor or a disk is in another state. */
static bool is_asleep(pid_t child)
{
    char line[1024];
    const char *state =
        wefti_read_line(line, sizeof line, "/proc/%d/stat", (int)child) ? strrchr(line, ')') : NULL;
    return state != NULL && strncmp(state, ") S", 3) == 0;
}

/* Everything until the pipe's end. WEFT_AGAIN: the child sent nothing and only sleeps. */
static weft_status_t receive(int fd, pid_t child, bool last_try, wefti_text_t *out)
{
    char part[4096];
    uint64_t end_ns = wefti_now_ns() + WAIT_NS;
    uint32_t asleep = 0; /* looks in a row */
    for (;;) {
        struct pollfd wait_for = {.fd = fd, .events = POLLIN};
        int ready = poll(&wait_for, 1, LOOK_MS);
        ssize_t got = ready > 0 ? read(fd, part, sizeof part) : -1;
        if (got == 0) {
            return out->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
        }
        if (got > 0) {
            wefti_text_add_bytes(out, part, (size_t)got);
        }
        asleep = ready == 0 && out->length == 0 && is_asleep(child) ? asleep + 1 : 0;
        if (asleep >= ASLEEP_LOOKS && !last_try) {
            return WEFT_AGAIN;
        }
        if (out->length > MAX_REPLY_BYTES || wefti_now_ns() > end_ns ||
            (ready > 0 && got < 0 && errno != EINTR)) {
            return wefti_error(WEFT_ERR_FORMAT, "invalid hwloc XML: reading it does not end");
        }
    }
}

static weft_status_t take_reply(const wefti_text_t *text, int ended, wefti_arena_t *arena,
                                wefti_hardware_t *out)
{
    reply_t reply;
    if (text->length < sizeof reply) {
        return wefti_error(WEFT_ERR_FORMAT, "invalid hwloc XML: libhwloc %s while reading it",
                           WIFSIGNALED(ended) && WTERMSIG(ended) == SIGXCPU ? "does not end"
                                                                            : "crashed");
    }
    memcpy(&reply, text->data, sizeof reply);
    const char *data = text->data + sizeof reply;
    if (reply.bytes != text->length - sizeof reply) {
        return wefti_error(WEFT_ERR_SYSTEM, "the process that reads hwloc XML ended early");
    }
    if (reply.status < 0) { /* text ends with a zero byte */
        return wefti_error_adopt((weft_status_t)reply.status, data);
    }
    WEFT_RETURN_IF_ERROR(wefti_hardware_decode(data, reply.bytes, arena, out));
    return wefti_hardware_check(out);
}

/* WEFT_AGAIN: the child met a lock that nobody will release. */
static weft_status_t read_in_child(const char *path, bool last_try, wefti_arena_t *arena,
                                   wefti_hardware_t *out)
{
    int ends[2], ended = 0;
    wefti_text_t text;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "pipe2 failed");
    }
    wefti_hwloc_lock();
    pid_t child = fork();
    int error_number = errno;
    wefti_hwloc_unlock(); /* the child's copy as well */
    if (child == 0) {
        run_child(path, ends[1]);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "fork failed");
    }
    wefti_text_init(&text, arena->allocator);
    weft_status_t status = receive(ends[0], child, last_try, &text);
    close(ends[0]);
    if (status != WEFT_OK) {
        (void)kill(child, SIGKILL);
    }
    while (waitpid(child, &ended, 0) < 0 && errno == EINTR) { /* ECHILD: the program ignores them */
    }
    status = status == WEFT_OK ? take_reply(&text, ended, arena, out) : status;
    wefti_text_deinit(&text);
    return status;
}

weft_status_t wefti_hardware_from_xml(const char *path, wefti_arena_t *arena, wefti_hardware_t *out)
{
    wefti_mapping_t file;
    *out = (wefti_hardware_t){.cpu = ""};
    WEFT_RETURN_IF_ERROR(wefti_file_map(path, &file));
    size_t bytes = file.size_bytes;
    wefti_file_unmap(&file);
    if (bytes == 0 || bytes > MAX_XML_BYTES) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: not an hwloc XML file", path);
    }
    weft_status_t status = WEFT_AGAIN;
    for (uint32_t try = 1; status == WEFT_AGAIN; try++) {
        status = read_in_child(path, try == TRIES, arena, out);
    }
    if (status < 0) {
        *out = (wefti_hardware_t){.cpu = ""};
        return wefti_error_prefix(status, "%s", path);
    }
    return WEFT_OK;
}

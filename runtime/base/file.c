/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

static const char temporary_suffix[] = ".XXXXXX";

static weft_status_t open_for_reading(const char *path, int *out_fd)
{
    /* O_NONBLOCK: a named pipe must not keep us waiting for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        weft_status_t status =
            errno == ENOENT || errno == ENOTDIR ? WEFT_ERR_NOT_FOUND : WEFT_ERR_SYSTEM;
        return wefti_error_errno(status, errno, "cannot open %s", path);
    }
    *out_fd = fd;
    return WEFT_OK;
}

weft_status_t wefti_file_map(const char *path, wefti_mapping_t *out_mapping)
{
    weft_status_t status;
    struct stat facts;
    int fd = -1;
    *out_mapping = (wefti_mapping_t){0};
    WEFT_TRY(status, open_for_reading(path, &fd), done);
    if (fstat(fd, &facts) != 0) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot stat %s", path);
        goto done;
    }
    if (!S_ISREG(facts.st_mode)) {
        status = wefti_error(WEFT_ERR_SYSTEM, "cannot read %s: not a regular file", path);
        goto done;
    }
    if (facts.st_size > 0) {
        void *data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot map %s", path);
            goto done;
        }
        *out_mapping = (wefti_mapping_t){.data = data, .size_bytes = (size_t)facts.st_size};
    }
done:
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

void wefti_file_unmap(wefti_mapping_t *mapping)
{
    if (mapping->data) {
        munmap((void *)(uintptr_t)mapping->data, mapping->size_bytes);
    }
    *mapping = (wefti_mapping_t){0};
}

static weft_status_t write_all(int fd, const wefti_piece_t *piece, const char *path)
{
    const uint8_t *data = piece->data;
    size_t left = piece->size_bytes;
    while (left > 0) {
        /* Linux writes at most 2 GiB - 4 KiB at once. */
        ssize_t wrote = write(fd, data, left);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            return wefti_error_errno(WEFT_ERR_SYSTEM, wrote < 0 ? errno : EIO, "cannot write %s",
                                     path);
        }
        data += wrote;
        left -= (size_t)wrote;
    }
    return WEFT_OK;
}

/* mkstemp gives 0600; the result gets what open would have given. */
static void apply_umask(int fd)
{
    char line[256];
    unsigned int mask = 022; /* umask() itself can only be read by changing it, for all threads */
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status)) {
        if (sscanf(line, "Umask: %o", &mask) == 1) {
            break;
        }
    }
    if (status) {
        fclose(status);
    }
    (void)fchmod(fd, 0666 & ~mask & 0777); /* on failure the file stays private: no harm */
}

static weft_status_t write_pieces(int fd, const char *path, const wefti_piece_t *pieces,
                                  size_t piece_count)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < piece_count && status == WEFT_OK; i++) {
        status = write_all(fd, &pieces[i], path);
    }
    if (status == WEFT_OK && fsync(fd) != 0 && errno != EINVAL && errno != EROFS) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    return status;
}

/* Beyond the limit on file sizes, write ends the process with SIGXFSZ. */
static weft_status_t check_limit(const char *path, const wefti_piece_t *pieces, size_t piece_count)
{
    struct rlimit limit;
    size_t total = 0;
    for (size_t i = 0; i < piece_count; i++) {
        if (!wefti_add_size(total, pieces[i].size_bytes, &total)) {
            return wefti_error_errno(WEFT_ERR_SYSTEM, EFBIG, "cannot write %s", path);
        }
    }
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        total > limit.rlim_cur) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, EFBIG, "cannot write %s", path);
    }
    return WEFT_OK;
}

/* A rename would replace a device such as /dev/null or a pipe. */
static weft_status_t check_place(const char *path)
{
    struct stat facts;
    if (path[0] == '\0') {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "cannot write a file: the path is empty");
    }
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        return wefti_error(WEFT_ERR_SYSTEM, "cannot write %s: not a regular file", path);
    }
    return WEFT_OK;
}

/*
 * A file in path's directory: without a name where the file system has such files, because a
 * process killed while it writes then leaves nothing behind; otherwise temporary gets its name.
 */
static weft_status_t open_beside(const char *path, char *temporary, bool *out_named, int *out_fd)
{
    size_t length = strlen(path);
    const char *slash = strrchr(path, '/');
    size_t directory = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    memcpy(temporary, directory > 0 ? path : ".", directory > 0 ? directory : 1);
    temporary[directory > 0 ? directory : 1] = '\0';
    int fd = *out_named ? -1 : open(temporary, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    memcpy(temporary, path, length);
    memcpy(temporary + length, temporary_suffix, sizeof temporary_suffix);
    *out_named = fd < 0;
    if (fd < 0) {
        fd = mkostemp(temporary, O_CLOEXEC);
        if (fd < 0) {
            return wefti_error_errno(errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_SYSTEM, errno,
                                     "cannot write %s", path);
        }
        apply_umask(fd);
    }
    *out_fd = fd;
    return WEFT_OK;
}

/* Gives an unnamed file the name path. WEFT_AGAIN: this file system cannot do that. */
static weft_status_t give_name(int fd, const char *path, char *temporary)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) {
        return WEFT_OK;
    }
    for (int tries = 0; errno == EEXIST && tries < 100; tries++) {
        uint8_t random[sizeof temporary_suffix - 2];
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
            break;
        }
        for (size_t i = 0; i < sizeof random; i++) {
            temporary[strlen(path) + 1 + i] = letters[random[i] % 32];
        }
        /* A link cannot replace an existing file; only a rename can. */
        if (linkat(AT_FDCWD, self, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW) == 0) {
            if (rename(temporary, path) == 0) {
                return WEFT_OK;
            }
            int error_number = errno;
            unlink(temporary);
            return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "cannot write %s", path);
        }
    }
    return WEFT_AGAIN;
}

/* WEFT_AGAIN: try again with *out_named set. */
static weft_status_t write_beside(const char *path, char *temporary, bool *out_named,
                                  const wefti_piece_t *pieces, size_t piece_count)
{
    int fd;
    weft_status_t status = open_beside(path, temporary, out_named, &fd);
    if (status != WEFT_OK) {
        return status;
    }
    status = write_pieces(fd, path, pieces, piece_count);
    if (status == WEFT_OK && !*out_named) {
        status = give_name(fd, path, temporary);
    }
    if (close(fd) != 0 && status == WEFT_OK) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    if (status == WEFT_OK && *out_named && rename(temporary, path) != 0) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    if (status != WEFT_OK && *out_named) {
        unlink(temporary);
    }
    return status;
}

weft_status_t wefti_file_write(const char *path, const wefti_piece_t *pieces, size_t piece_count)
{
    bool named = false;
    weft_status_t status = check_place(path);
    if (status == WEFT_OK) {
        status = check_limit(path, pieces, piece_count);
    }
    if (status != WEFT_OK) {
        return status;
    }
    char *temporary = wefti_alloc(NULL, strlen(path) + sizeof temporary_suffix);
    if (!temporary) {
        return WEFT_ERR_NO_MEMORY;
    }
    status = write_beside(path, temporary, &named, pieces, piece_count);
    if (status == WEFT_AGAIN) {
        named = true;
        status = write_beside(path, temporary, &named, pieces, piece_count);
    }
    wefti_free(NULL, temporary);
    return status;
}

weft_status_t wefti_file_check_place(const char *path)
{
    bool named = false;
    int fd = -1;
    weft_status_t status = check_place(path);
    if (status != WEFT_OK) {
        return status;
    }
    char *temporary = wefti_alloc(NULL, strlen(path) + sizeof temporary_suffix);
    if (!temporary) {
        return WEFT_ERR_NO_MEMORY;
    }
    status = open_beside(path, temporary, &named, &fd);
    if (status == WEFT_OK) {
        close(fd);
        if (named) {
            unlink(temporary);
        }
    }
    wefti_free(NULL, temporary);
    return status;
}

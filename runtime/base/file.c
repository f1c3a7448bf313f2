/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

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
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot examine %s", path);
        goto done;
    }
    if (!S_ISREG(facts.st_mode)) {
        status = wefti_error(WEFT_ERR_SYSTEM, "%s is not a regular file", path);
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

/* Beyond the limit on file sizes write would end the process by a signal. */
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

weft_status_t wefti_file_write(const char *path, const wefti_piece_t *pieces, size_t piece_count)
{
    static const char suffix[] = ".XXXXXX";
    weft_status_t status;
    struct stat facts;
    size_t length = strlen(path);
    char *temporary;
    int fd;
    if (length == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "cannot write a file without a name");
    }
    /* A rename would replace a device such as /dev/null or a pipe. */
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        return wefti_error(WEFT_ERR_SYSTEM, "cannot write %s: not a regular file", path);
    }
    status = check_limit(path, pieces, piece_count);
    if (status != WEFT_OK) {
        return status;
    }
    temporary = wefti_alloc(NULL, length + sizeof suffix);
    if (!temporary) {
        return WEFT_ERR_NO_MEMORY;
    }
    memcpy(temporary, path, length);
    memcpy(temporary + length, suffix, sizeof suffix);
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        status = wefti_error_errno(errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_SYSTEM, errno,
                                   "cannot write %s", path);
        wefti_free(NULL, temporary);
        return status;
    }
    apply_umask(fd);
    status = write_pieces(fd, path, pieces, piece_count);
    if (close(fd) != 0 && status == WEFT_OK) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    if (status == WEFT_OK && rename(temporary, path) != 0) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    if (status != WEFT_OK) {
        unlink(temporary);
    }
    wefti_free(NULL, temporary);
    return status;
}

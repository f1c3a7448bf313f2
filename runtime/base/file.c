/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

#define MAX_TRIES 100 /* of names that are taken */

static weft_status_t map_open(int fd, const char *path, wefti_mapping_t *out_mapping)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot stat %s", path);
    }
    if (!S_ISREG(facts.st_mode)) {
        return wefti_error(WEFT_ERR_SYSTEM, "cannot read %s: not a regular file", path);
    }
    if (facts.st_size > 0) {
        void *data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot map %s", path);
        }
        *out_mapping = (wefti_mapping_t){.data = data, .size_bytes = (size_t)facts.st_size};
    }
    return WEFT_OK;
}

weft_status_t wefti_file_map(const char *path, wefti_mapping_t *out_mapping)
{
    *out_mapping = (wefti_mapping_t){0};
    /* O_NONBLOCK: a named pipe must not keep us waiting for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        weft_status_t status =
            errno == ENOENT || errno == ENOTDIR ? WEFT_ERR_NOT_FOUND : WEFT_ERR_SYSTEM;
        return wefti_error_errno(status, errno, "cannot open %s", path);
    }
    weft_status_t status = map_open(fd, path, out_mapping);
    close(fd);
    return status;
}

void wefti_file_unmap(wefti_mapping_t *mapping)
{
    if (mapping->data) {
        munmap((void *)(uintptr_t)mapping->data, mapping->size_bytes);
    }
    *mapping = (wefti_mapping_t){0};
}

void wefti_file_release_pages(const wefti_mapping_t *mapping)
{
    if (mapping->data) {
        madvise((void *)(uintptr_t)mapping->data, mapping->size_bytes, MADV_DONTNEED);
    }
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

struct wefti_file_stream {
    int fd;
    const char *path;
    uint64_t left; /* bytes up to the limit on file sizes */
};

weft_status_t wefti_file_append(wefti_file_stream_t *stream, const void *data, size_t size_bytes)
{
    const wefti_piece_t piece = {data, size_bytes};
    if (size_bytes > stream->left) { /* beyond the limit, write ends the process with SIGXFSZ */
        return wefti_error_errno(WEFT_ERR_SYSTEM, EFBIG, "cannot write %s", stream->path);
    }
    stream->left -= size_bytes;
    return write_all(stream->fd, &piece, stream->path);
}

/* What fills a file, and whether it has to be on the disk before it has its name. */
typedef struct filler {
    wefti_file_fill_fn fill;
    void *user;
    bool sync;
} filler_t;

static weft_status_t fill_file(int fd, const char *path, const filler_t *filler)
{
    struct rlimit limit;
    wefti_file_stream_t stream = {fd, path, UINT64_MAX};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        stream.left = limit.rlim_cur;
    }
    weft_status_t status = filler->fill(filler->user, &stream);
    if (status == WEFT_OK && filler->sync && fsync(fd) != 0 && errno != EINVAL && errno != EROFS) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    return status;
}

/* A rename would replace a device such as /dev/null or a pipe. */
static weft_status_t check_place(const char *path)
{
    struct stat facts;
    if (path[0] == '\0') {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "cannot write a file: the path is empty");
    }
    if (strlen(path) >= PATH_MAX) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, ENAMETOOLONG, "cannot write %s", path);
    }
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        return wefti_error(WEFT_ERR_SYSTEM, "cannot write %s: not a regular file", path);
    }
    return WEFT_OK;
}

/* A file in path's directory, without a name if name is "". */
typedef struct temporary {
    int fd;
    char name[PATH_MAX + 8];
} temporary_t;

/* path with a random suffix. */
static void choose_name(const char *path, temporary_t *temporary)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    uint8_t random[6] = {0};
    (void)getrandom(random, sizeof random, 0); /* a name that is taken is chosen again */
    size_t length = (size_t)snprintf(temporary->name, PATH_MAX + 1, "%s.", path);
    for (size_t i = 0; i < sizeof random; i++) {
        temporary->name[length + i] = letters[random[i] % 32];
    }
    temporary->name[length + sizeof random] = '\0';
}

/* Without a name where the file system has such files: a process killed while it writes then leaves
 * nothing behind. */
static weft_status_t open_beside(const char *path, bool named, temporary_t *temporary)
{
    const char *slash = strrchr(path, '/');
    int directory = slash == NULL || slash == path ? 1 : (int)(slash - path);
    snprintf(temporary->name, sizeof temporary->name, "%.*s", directory,
             slash == NULL ? "." : path);
    temporary->fd = named ? -1 : open(temporary->name, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    temporary->name[0] = '\0';
    for (int tries = 0; temporary->fd < 0 && tries < MAX_TRIES; tries++) {
        choose_name(path, temporary);
        temporary->fd = open(temporary->name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        if (temporary->fd < 0 && errno != EEXIST) {
            break;
        }
    }
    return temporary->fd >= 0
               ? WEFT_OK
               : wefti_error_errno(errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_SYSTEM, errno,
                                   "cannot write %s", path);
}

/* Gives a file without a name the name path or, as a link cannot replace a file, a temporary one.
 * False: this file system cannot do that. */
static bool give_name(const char *path, temporary_t *temporary)
{
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", temporary->fd);
    bool linked = linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
    for (int tries = 0; !linked && errno == EEXIST && tries < MAX_TRIES; tries++) {
        choose_name(path, temporary);
        linked = linkat(AT_FDCWD, self, AT_FDCWD, temporary->name, AT_SYMLINK_FOLLOW) == 0;
    }
    return linked;
}

/* WEFT_AGAIN: only with named. */
static weft_status_t write_beside(const char *path, bool named, const filler_t *filler)
{
    temporary_t temporary;
    WEFT_RETURN_IF_ERROR(open_beside(path, named, &temporary));
    weft_status_t status = fill_file(temporary.fd, path, filler);
    if (status == WEFT_OK && temporary.name[0] == '\0' && !give_name(path, &temporary)) {
        temporary.name[0] = '\0';
        status = WEFT_AGAIN;
    }
    if (close(temporary.fd) != 0 && status == WEFT_OK) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    if (temporary.name[0] == '\0') {
        return status;
    }
    if (status == WEFT_OK && rename(temporary.name, path) != 0) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", path);
    }
    if (status != WEFT_OK) {
        unlink(temporary.name);
    }
    return status;
}

static weft_status_t write_file(const char *path, const filler_t *filler)
{
    WEFT_RETURN_IF_ERROR(check_place(path));
    weft_status_t status = write_beside(path, false, filler);
    return status == WEFT_AGAIN ? write_beside(path, true, filler) : status;
}

weft_status_t wefti_file_write_stream(const char *path, wefti_file_fill_fn fill, void *user)
{
    return write_file(path, &(filler_t){fill, user, false});
}

typedef struct pieces {
    const wefti_piece_t *list;
    size_t count;
} pieces_t;

static weft_status_t append_pieces(void *user, wefti_file_stream_t *stream)
{
    const pieces_t *pieces = user;
    for (size_t i = 0; i < pieces->count; i++) {
        WEFT_RETURN_IF_ERROR(
            wefti_file_append(stream, pieces->list[i].data, pieces->list[i].size_bytes));
    }
    return WEFT_OK;
}

weft_status_t wefti_file_write(const char *path, const wefti_piece_t *pieces, size_t piece_count)
{
    pieces_t all = {pieces, piece_count};
    return write_file(path, &(filler_t){append_pieces, &all, true});
}

weft_status_t wefti_file_check_room(const char *path, uint64_t size_bytes, uint64_t files)
{
    struct statvfs room;
    char folder[PATH_MAX], wanted[32], left[32];
    const char *slash = strrchr(path, '/');
    int length = slash == NULL || slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path);
    if (statvfs(folder, &room) != 0 || room.f_blocks == 0) { /* ramfs and others tell no sizes */
        return WEFT_OK; /* what writing would say is more to the point */
    }
    uint64_t block = room.f_frsize > 0 ? room.f_frsize : 1;
    uint64_t blocks = size_bytes / block + files; /* the last one of a file is not full */
    if (blocks > room.f_bavail) {
        return wefti_error(WEFT_ERR_SYSTEM, "cannot write %s: no room: about %s needed, %s free",
                           path, wefti_format_bytes(blocks * block, wanted),
                           wefti_format_bytes(room.f_bavail * block, left));
    }
    return room.f_files == 0 || files <= room.f_favail
               ? WEFT_OK
               : wefti_error(WEFT_ERR_SYSTEM,
                             "cannot write %s: no room: %llu files needed, %llu free", path,
                             (unsigned long long)files, (unsigned long long)room.f_favail);
}

weft_status_t wefti_file_write_text(const char *path, const wefti_text_t *text)
{
    if (text->failed) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot build %s", path);
    }
    return wefti_file_write(path, &(wefti_piece_t){text->data, text->length}, 1);
}

weft_status_t wefti_file_check_place(const char *path)
{
    temporary_t temporary;
    WEFT_RETURN_IF_ERROR(check_place(path));
    WEFT_RETURN_IF_ERROR(open_beside(path, false, &temporary));
    close(temporary.fd);
    if (temporary.name[0] != '\0') {
        unlink(temporary.name);
    }
    return WEFT_OK;
}

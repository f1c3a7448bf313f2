/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that a thread of rank 0 writes while training goes on, and earlier ones beside them. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/save.h"
#include "runtime/plan/session_state.h"

/* The oldest that is looked at: <path>.1 to this. */
#define MOST_KEPT 999u
/* Behind the path, until the earlier ones have made room. */
#define FRESH ".new"

struct weft_checkpoint_writer {
    wefti_saver_t saver;
    uint32_t keep;
    bool open; /* between start and wait, on all ranks */
    pthread_t thread;
    char *path;           /* of the thread, until it is joined; NULL: there is none */
    weft_status_t status; /* of the thread */
    char error[WEFTI_ERROR_TEXT_BYTES];
};

/* ---- earlier ones ---- */

/* path, path.1, path.2, .. */
static char *nth_path(const char *path, uint32_t n)
{
    char *name = wefti_alloc(NULL, strlen(path) + 16);
    if (name != NULL && n == 0) {
        strcpy(name, path);
    } else if (name != NULL) {
        sprintf(name, "%s.%u", path, n);
    }
    return name;
}

/* What weft_checkpoint_newest looks at: path, path.new, path.1, path.2, .. */
static char *nth_candidate(const char *path, uint32_t n)
{
    char *name = nth_path(path, n > 1 ? n - 1 : 0);
    return name != NULL && n == 1 ? strcat(name, FRESH) : name;
}

/* from becomes to. A file system without links loses sight of from for a moment. */
static weft_status_t move(const char *from, const char *to, bool stays)
{
    struct stat is;
    if (lstat(from, &is) != 0 || !S_ISREG(is.st_mode)) {
        return WEFT_OK;
    }
    if (stays) {
        (void)unlink(to);
    }
    if ((!stays || link(from, to) != 0) && rename(from, to) != 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot rename %s to %s", from, to);
    }
    return WEFT_OK;
}

/* The checkpoint at path becomes path.1, and so on; path itself stays until it is replaced. */
static weft_status_t keep_earlier(const char *path, uint32_t keep)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t n = keep - 1; n > 0 && status == WEFT_OK; n--) {
        char *from = nth_path(path, n - 1), *to = nth_path(path, n);
        status = from != NULL && to != NULL ? move(from, to, n == 1) : WEFT_ERR_NO_MEMORY;
        wefti_free(NULL, from);
        wefti_free(NULL, to);
    }
    return status;
}

/* First whole beside path, so that an error changes nothing. */
static weft_status_t write_and_keep(wefti_saver_t *saver, const char *path, uint32_t keep)
{
    char *fresh = nth_candidate(path, 1);
    WEFT_RETURN_IF_NO_MEMORY(fresh);
    weft_status_t status = wefti_saver_write(saver, fresh);
    if (status == WEFT_OK) {
        status = keep_earlier(path, keep);
    }
    if (status == WEFT_OK && rename(fresh, path) != 0) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot rename %s to %s", fresh, path);
    }
    if (status != WEFT_OK) {
        (void)unlink(fresh);
    }
    wefti_free(NULL, fresh);
    return status;
}

weft_status_t weft_checkpoint_newest(const char *path, char *out_path, size_t out_bytes,
                                     weft_checkpoint_info_t *out_info)
{
    WEFT_CHECK_ARG(path);
    WEFT_CHECK_ARG(out_path);
    WEFT_RETURN_IF_ERROR(wefti_report_check("out_info", out_info));
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    weft_status_t first = WEFT_OK;
    char error[WEFTI_ERROR_TEXT_BYTES];
    for (uint32_t n = 0; n <= MOST_KEPT + 1; n++) {
        char *name = nth_candidate(path, n);
        WEFT_RETURN_IF_NO_MEMORY(name);
        weft_status_t status = wefti_checkpoint_check_whole(name, &info);
        if (status == WEFT_OK) {
            size_t length = (size_t)snprintf(out_path, out_bytes, "%s", name);
            wefti_free(NULL, name);
            wefti_report_write(out_info, &info, sizeof info);
            return length < out_bytes ? WEFT_OK
                                      : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                                    "out_path: %zu bytes are too few", out_bytes);
        }
        wefti_free(NULL, name);
        if (first == WEFT_OK || (first == WEFT_ERR_NOT_FOUND && status != WEFT_ERR_NOT_FOUND)) {
            first = status;
            snprintf(error, sizeof error, "%s", weft_last_error());
        }
        if (status == WEFT_ERR_NOT_FOUND && n > 1) {
            break;
        }
    }
    return wefti_error_adopt(first, error);
}

/* ---- the thread ---- */

static void *write_file(void *user)
{
    weft_checkpoint_writer_t *writer = user;
    writer->status = writer->keep > 1 ? write_and_keep(&writer->saver, writer->path, writer->keep)
                                      : wefti_saver_write(&writer->saver, writer->path);
    snprintf(writer->error, sizeof writer->error, "%s",
             writer->status < 0 ? weft_last_error() : "");
    return NULL;
}

/* The status of the file; WEFT_OK where this rank writes none. */
static weft_status_t join(weft_checkpoint_writer_t *writer)
{
    if (writer->path == NULL) {
        return WEFT_OK;
    }
    pthread_join(writer->thread, NULL);
    wefti_free(NULL, writer->path);
    writer->path = NULL;
    return writer->status < 0 ? wefti_error_adopt(writer->status, writer->error) : WEFT_OK;
}

static weft_status_t start_thread(weft_checkpoint_writer_t *writer, const char *path)
{
    writer->path = nth_path(path, 0);
    WEFT_RETURN_IF_NO_MEMORY(writer->path);
    int error = pthread_create(&writer->thread, NULL, write_file, writer);
    if (error != 0) {
        wefti_free(NULL, writer->path);
        writer->path = NULL;
        return wefti_error_errno(WEFT_ERR_SYSTEM, error, "cannot start a thread");
    }
    return WEFT_OK;
}

weft_status_t weft_checkpoint_writer_create(weft_session_t *session,
                                            const weft_checkpoint_writer_params_t *params,
                                            weft_checkpoint_writer_t **out_writer)
{
    WEFT_CHECK_OUT(out_writer);
    WEFT_CHECK_ARG(session);
    weft_checkpoint_writer_params_t own = WEFT_CHECKPOINT_WRITER_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    if (own.keep > MOST_KEPT) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "keep: %u is more than %u checkpoints",
                           own.keep, MOST_KEPT);
    }
    weft_checkpoint_writer_t *writer = wefti_alloc(session->allocator, sizeof *writer);
    WEFT_RETURN_IF_NO_MEMORY(writer);
    writer->keep = own.keep;
    writer->saver.session = session;
    writer->saver.copies_all = true;
    writer->saver.function = "weft_checkpoint_writer_start";
    wefti_saver_reserve(&writer->saver);
    *out_writer = writer;
    return WEFT_OK;
}

weft_status_t weft_checkpoint_writer_start(weft_checkpoint_writer_t *writer, const char *path,
                                           const weft_checkpoint_info_t *info)
{
    WEFT_CHECK_ARG(writer);
    weft_session_t *session = writer->saver.session;
    WEFT_RETURN_IF_ERROR(weft_checkpoint_writer_wait(writer));
    WEFTI_IN_CONTROL(session->endpoint, CHECKPOINT_SAVE);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    WEFT_RETURN_IF_ERROR(wefti_saver_begin(&writer->saver, path, info));
    weft_status_t status = wefti_saver_collect(&writer->saver);
    if (status >= 0 && session->endpoint->rank == 0) {
        status = start_thread(writer, path);
    }
    /* No rank goes on before rank 0 has copied everything. */
    writer->open = true;
    status = wefti_endpoint_agree(session->endpoint, status);
    if (status < 0) {
        writer->open = false;
        (void)join(writer);
    }
    return status;
}

weft_status_t weft_checkpoint_writer_wait(weft_checkpoint_writer_t *writer)
{
    WEFT_CHECK_ARG(writer);
    weft_session_t *session = writer->saver.session;
    if (!writer->open) {
        return WEFT_OK;
    }
    writer->open = false;
    WEFTI_IN_CONTROL(session->endpoint, CHECKPOINT_SAVE);
    return wefti_endpoint_agree(session->endpoint, join(writer));
}

void weft_checkpoint_writer_destroy(weft_checkpoint_writer_t *writer)
{
    if (writer == NULL) {
        return;
    }
    const weft_allocator_t *allocator = writer->saver.session->allocator;
    (void)join(writer);
    wefti_saver_deinit(&writer->saver);
    wefti_free(allocator, writer);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: mapped for reading, written beside their place and renamed. */
#ifndef WEFT_RUNTIME_BASE_FILE_H
#define WEFT_RUNTIME_BASE_FILE_H

#include <weft/types.h>

#include "runtime/base/text.h"

typedef struct wefti_mapping {
    const uint8_t *data; /* NULL when empty or not mapped */
    size_t size_bytes;
} wefti_mapping_t;

/* Maps a regular file read-only. WEFT_ERR_NOT_FOUND, WEFT_ERR_SYSTEM, with a message naming path.
 */
weft_status_t wefti_file_map(const char *path, wefti_mapping_t *out_mapping);
void wefti_file_unmap(wefti_mapping_t *mapping);
/* Its pages are read from the file again when they are needed. */
void wefti_file_release_pages(const wefti_mapping_t *mapping);

/* One piece of a file to be written. */
typedef struct wefti_piece {
    const void *data;
    size_t size_bytes;
} wefti_piece_t;

/* Writes the pieces to a temporary file beside path and renames it: all or nothing. */
weft_status_t wefti_file_write(const char *path, const wefti_piece_t *pieces, size_t piece_count);
/* The same of a text; WEFT_ERR_NO_MEMORY if memory for it was missing when it was built. */
weft_status_t wefti_file_write_text(const char *path, const wefti_text_t *text);
/* A file that is written piece by piece, when it is too large for memory. */
typedef struct wefti_file_stream wefti_file_stream_t;
weft_status_t wefti_file_append(wefti_file_stream_t *stream, const void *data, size_t size_bytes);
/* fill appends all of the file; it may be called twice, the second time for another file. All or
 * nothing like wefti_file_write, but for a machine that stops: the file may then be incomplete. */
typedef weft_status_t (*wefti_file_fill_fn)(void *user, wefti_file_stream_t *stream);
weft_status_t wefti_file_write_stream(const char *path, wefti_file_fill_fn fill, void *user);
/* Whether path's file system has room for files of so many bytes together. */
weft_status_t wefti_file_check_room(const char *path, uint64_t size_bytes, uint64_t files);
/* Says before the work is done what writing path would say: no directory, no permission. */
weft_status_t wefti_file_check_place(const char *path);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint on its way to a file: save.c collects it, save.c or the thread of writer.c writes it. */
#ifndef WEFT_RUNTIME_CHECKPOINT_SAVE_H
#define WEFT_RUNTIME_CHECKPOINT_SAVE_H

#include "runtime/checkpoint/checkpoint.h"

typedef struct wefti_saver {
    weft_session_t *session;
    const char *function; /* of the caller, for messages */
    bool copies_all;      /* the session goes on before the file is written */
    wefti_arena_t arena;  /* of one checkpoint */
    weft_checkpoint_info_t info;
    wefti_checkpoint_tensors_t tensors;
    uint8_t **copies; /* [tensor] NULL: its pieces are read where they lie */
    uint32_t copy_count;
    wefti_piece_t *pieces; /* of all tensors */
    uint32_t *first_piece; /* [tensor], and the end */
    uint32_t piece_count;
    wefti_stored_text_t *texts; /* by key */
    uint32_t text_count;
} wefti_saver_t;

/* Local: allocates and touches what the first checkpoint needs, as far as there is memory: it then
 * takes no longer than those after it. */
void wefti_saver_reserve(wefti_saver_t *saver);
/* Collective. An error is one of all ranks. path is read on rank 0. */
weft_status_t wefti_saver_begin(wefti_saver_t *saver, const char *path,
                                const weft_checkpoint_info_t *info);
/* Then, on all ranks. An error may be that of one rank. */
weft_status_t wefti_saver_collect(wefti_saver_t *saver);
/* On rank 0, after wefti_saver_collect. Any thread. */
weft_status_t wefti_saver_write(wefti_saver_t *saver, const char *path);
void wefti_saver_deinit(wefti_saver_t *saver);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory. Each growth of the region is a memory region of its own, so that what is
 * registered stays so while puts are on their way; pieces are the same on all ranks. Puts from
 * elsewhere go through chunks of a small pool.
 */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

/* Most often fails because of the limit of locked memory. */
static weft_status_t register_memory(const wefti_verbs_t *verbs, void *address, size_t bytes,
                                     bool remote, const char *what, struct ibv_mr **out_mr)
{
    errno = 0;
    *out_mr = remote ? ibv_reg_mr(verbs->pd, address, bytes,
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
                     : ibv_reg_mr(verbs->pd, address, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (*out_mr != NULL) {
        return WEFT_OK;
    }
    int error = errno;
    char size[32], limit[32], hint[120] = "";
    struct rlimit rlimit;
    if (error == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &rlimit) == 0 &&
        rlimit.rlim_cur != RLIM_INFINITY) {
        snprintf(hint, sizeof hint, "; this process may lock %s (ulimit -l)",
                 wefti_format_bytes(rlimit.rlim_cur, limit));
    }
    return wefti_error_errno(WEFT_ERR_NO_MEMORY, error, "ibv_reg_mr failed on %s for %s of %s%s",
                             verbs->own.device, wefti_format_bytes(bytes, size), what, hint);
}

/* Pages that forked children do not inherit: the device continues with the parent's. */
static weft_status_t buffer_create(const wefti_verbs_t *verbs, size_t bytes, bool remote,
                                   const char *what, wefti_verbs_buffer_t *out)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "out of memory: cannot allocate %zu bytes of buffers", bytes);
    }
    (void)madvise(pages, bytes, MADV_DONTFORK);
    *out = (wefti_verbs_buffer_t){.data = pages, .bytes = bytes};
    return register_memory(verbs, pages, bytes, remote, what, &out->mr);
}

static void buffer_destroy(const wefti_verbs_buffer_t *buffer)
{
    if (buffer->mr != NULL) {
        ibv_dereg_mr(buffer->mr);
    }
    if (buffer->data != NULL) {
        munmap(buffer->data, buffer->bytes);
    }
}

weft_status_t wefti_verbs_pool_create(wefti_verbs_t *verbs)
{
    for (uint32_t i = 0; i < WEFTI_VERBS_CHUNKS; i++) {
        verbs->free_chunks[verbs->free_count++] = (uint16_t)(WEFTI_VERBS_CHUNKS - 1 - i);
    }
    return buffer_create(verbs, (size_t)WEFTI_VERBS_CHUNKS * WEFTI_VERBS_CHUNK_BYTES, false,
                         "buffers", &verbs->pool);
}

weft_status_t wefti_verbs_mailbox_create(wefti_verbs_t *verbs)
{
    size_t slots = (size_t)verbs->params.world_size * verbs->per_peer * verbs->recv_depth;
    return buffer_create(verbs, slots * sizeof(wefti_verbs_slot_t), true, "slots for signals",
                         &verbs->mailbox);
}

/* ---- pieces of the region ---- */

static void piece_free(wefti_verbs_t *verbs, wefti_verbs_piece_t *piece)
{
    if (piece->mr != NULL) {
        ibv_dereg_mr(piece->mr);
    }
    wefti_free(verbs->params.allocator, piece->rkeys);
    *piece = (wefti_verbs_piece_t){0};
}

static weft_status_t add_piece(wefti_verbs_t *verbs, size_t from, size_t to)
{
    wefti_verbs_piece_t piece = {.from = from, .to = to};
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(verbs->params.allocator, &verbs->pieces,
                                             &verbs->piece_capacity, verbs->piece_count + 1,
                                             sizeof *verbs->pieces));
    piece.rkeys =
        wefti_alloc(verbs->params.allocator, verbs->params.world_size * sizeof *piece.rkeys);
    WEFT_RETURN_IF_NO_MEMORY(piece.rkeys);
    weft_status_t status =
        register_memory(verbs, verbs->base + from, to - from, true, "the region", &piece.mr);
    if (status < 0) {
        piece_free(verbs, &piece);
        return status;
    }
    verbs->pieces[verbs->piece_count++] = piece;
    return WEFT_OK;
}

weft_status_t wefti_verbs_grow(void *driver, uint8_t *base, size_t from, size_t to, void *out_key)
{
    wefti_verbs_t *verbs = driver;
    pthread_mutex_lock(&verbs->lock);
    verbs->base = base;
    /* An earlier growth to here that failed on another rank. */
    while (verbs->piece_count > 0 && verbs->pieces[verbs->piece_count - 1].from >= from) {
        piece_free(verbs, &verbs->pieces[--verbs->piece_count]);
    }
    weft_status_t status = add_piece(verbs, from, to);
    if (status == WEFT_OK) {
        wefti_verbs_key_t key = {.base = (uintptr_t)base, .from = from, .to = to};
        key.rkey = verbs->pieces[verbs->piece_count - 1].mr->rkey;
        memcpy(out_key, &key, sizeof key);
    }
    wefti_verbs_unlock(verbs);
    return status;
}

weft_status_t wefti_verbs_grown(void *driver, const uint8_t *keys)
{
    wefti_verbs_t *verbs = driver;
    weft_status_t status = WEFT_OK;
    pthread_mutex_lock(&verbs->lock);
    wefti_verbs_piece_t *piece = &verbs->pieces[verbs->piece_count - 1];
    for (uint32_t r = 0; r < verbs->params.world_size && status == WEFT_OK; r++) {
        wefti_verbs_key_t key;
        memcpy(&key, keys + (size_t)r * sizeof key, sizeof key);
        if (!verbs->peers[r].served) {
            continue;
        }
        if (key.from != piece->from || key.to != piece->to) {
            status = wefti_error(WEFT_ERR_MISMATCH,
                                 "memory registration mismatch: rank %u registered bytes %llu to "
                                 "%llu, rank %u bytes %zu to %zu",
                                 r, (unsigned long long)key.from, (unsigned long long)key.to,
                                 verbs->params.rank, piece->from, piece->to);
        }
        verbs->peers[r].base = key.base;
        piece->rkeys[r] = key.rkey;
    }
    wefti_verbs_unlock(verbs);
    return status;
}

const wefti_verbs_piece_t *wefti_verbs_piece_at(const wefti_verbs_t *verbs, size_t offset)
{
    size_t low = 0, high = verbs->piece_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (verbs->pieces[middle].to <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < verbs->piece_count && verbs->pieces[low].from <= offset ? &verbs->pieces[low]
                                                                         : NULL;
}

void wefti_verbs_memory_free(wefti_verbs_t *verbs)
{
    for (size_t i = 0; i < verbs->piece_count; i++) {
        piece_free(verbs, &verbs->pieces[i]);
    }
    wefti_free(verbs->params.allocator, verbs->pieces);
    buffer_destroy(&verbs->pool);
    buffer_destroy(&verbs->mailbox);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other before the data: shapes that may differ, and differences that are
 * errors. */
#include "python/src/collectives.h"

#include <stdlib.h>
#include <string.h>

/* Rows, and a digest of all that must be equal. */
typedef struct header {
    uint64_t rows;
    uint64_t digest;
} header_t;

void wp_shape_of(const wp_array_t *array, wp_shape_t *out)
{
    memset(out, 0, sizeof *out);
    out->dtype = (uint32_t)array->dtype;
    out->rank = array->rank > 0 ? array->rank : 1;
    memcpy(out->dims, array->dims, array->rank * sizeof *out->dims);
    if (array->rank == 0) {
        out->dims[0] = 1;
    }
}

uint64_t wp_shape_row(const wp_shape_t *shape)
{
    uint64_t count = 1;
    for (uint32_t i = 1; i < shape->rank; i++) {
        count *= (uint64_t)shape->dims[i];
    }
    return count;
}

static uint64_t digest_of(const wp_shape_t *shape)
{
    uint64_t hash = 14695981039346656037ull ^ shape->dtype; /* FNV-1a over words */
    hash = (hash ^ shape->rank) * 1099511628211ull;
    for (uint32_t i = 1; i < shape->rank; i++) {
        hash = (hash ^ (uint64_t)shape->dims[i]) * 1099511628211ull;
        hash ^= hash >> 29;
    }
    return hash;
}

/* words of 64 bits per rank. */
static int exchange(wp_state_t *state, weft_collective_t op, wp_group_t *group, const void *send,
                    void *recv, uint64_t words, uint32_t root)
{
    wp_call_t call;
    memset(&call, 0, sizeof call);
    call.op = op;
    call.group = group; /* borrowed: nothing of this call is released */
    call.send.data = (void *)(uintptr_t)send;
    call.recv.data = recv;
    call.send.dtype = WEFT_DTYPE_U64;
    call.send.rank = WEFT_SHAPE_EXCHANGE;
    call.count = words;
    call.root = root;
    return wp_call_run_entered(state, &call);
}

static PyObject *differs(wp_state_t *state, wp_group_t *group, const char *function,
                         const wp_shape_t *own)
{
    char first[160], other[160];
    wp_shape_t *all = malloc(group->size * sizeof *all);
    if (all == NULL) {
        const wp_call_t call = {.op = WEFT_COLLECTIVE_ALL_GATHER, .group = group};
        PyErr_NoMemory();
        wp_call_refuse(&call, true);
        return NULL;
    }
    if (exchange(state, WEFT_COLLECTIVE_ALL_GATHER, group, own, all, sizeof *own / 8, 0) < 0) {
        free(all);
        return NULL;
    }
    uint32_t r = 1;
    while (r + 1 < group->size && digest_of(&all[r]) == digest_of(&all[0])) {
        r++;
    }
    for (uint32_t i = 0; i <= r; i += r) { /* peers' words are not trusted */
        all[i].rank = all[i].rank <= WP_MAX_DIMS ? all[i].rank : WP_MAX_DIMS;
    }
    wp_dims_text(all[0].rank, all[0].dims, first, sizeof first);
    wp_dims_text(all[r].rank, all[r].dims, other, sizeof other);
    wp_raise_text(state, WEFT_ERR_MISMATCH,
                  "rank %u called %s with %s of shape %s, rank 0 with %s of shape %s: only the "
                  "first dimension may differ",
                  (unsigned)r, function, wp_dtype_name((weft_dtype_t)all[r].dtype), other,
                  wp_dtype_name((weft_dtype_t)all[0].dtype), first);
    free(all);
    return NULL;
}

int wp_exchange_rows(wp_state_t *state, wp_group_t *group, const char *function,
                     const wp_shape_t *own, uint64_t *rows)
{
    header_t few[16], *all = group->size <= 16 ? few : malloc(group->size * sizeof *all);
    header_t mine = {(uint64_t)own->dims[0], digest_of(own)};
    if (all == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int result = exchange(state, WEFT_COLLECTIVE_ALL_GATHER, group, &mine, all, sizeof mine / 8, 0);
    bool same = true;
    for (uint32_t r = 0; result == 0 && r < group->size; r++) {
        rows[r] = all[r].rows;
        same = same && all[r].digest == all[0].digest;
    }
    if (all != few) {
        free(all);
    }
    if (!same) {
        differs(state, group, function, own);
        return -1;
    }
    return result;
}

int wp_exchange_root(wp_state_t *state, wp_group_t *group, uint32_t root, wp_shape_t *shape)
{
    if (exchange(state, WEFT_COLLECTIVE_BROADCAST, group, shape, shape, sizeof *shape / 8, root) <
        0) {
        return -1;
    }
    bool is_shape = shape->dtype > WEFT_DTYPE_NONE && shape->dtype <= WEFT_DTYPE_BOOL &&
                    shape->rank >= 1 && shape->rank <= WP_MAX_DIMS;
    uint64_t count = 1;
    for (uint32_t i = 0; is_shape && i < shape->rank; i++) {
        is_shape =
            shape->dims[i] >= 0 && !__builtin_mul_overflow(count, (uint64_t)shape->dims[i], &count);
    }
    if (!is_shape) { /* data of another call that looked the same */
        wp_raise_text(state, WEFT_ERR_MISMATCH,
                      "rank %u sent what is no shape: it called something else than scatter, which "
                      "rank %u called",
                      (unsigned)root, (unsigned)group->rank);
        return -1;
    }
    return 0;
}

int wp_exchange_counts(wp_state_t *state, wp_group_t *group, const uint64_t *send, uint64_t *recv)
{
    return exchange(state, WEFT_COLLECTIVE_ALL_TO_ALL, group, send, recv, 1, 0);
}

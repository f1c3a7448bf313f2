/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays with strides: a call works on a packed copy of one. The copy is made when the call's turn
 * comes, on its thread or stream, and goes back when it has ended:
 *
 *   x[:, ::2]  --pack-->  packed  --call-->  packed  --unpack (WP_WRITE)-->  x[:, ::2]
 */
#include "python/src/array.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT ((size_t)64)

struct wp_packing {
    char *strided, *packed;
    size_t elem_bytes;
    uint32_t rank;
    int64_t dims[WP_MAX_DIMS], strides[WP_MAX_DIMS]; /* strides in bytes */
    bool writes;
};

/* Dimension d and those after it; returns where the packed elements end. */
static char *copy(const wp_packing_t *p, uint32_t d, char *strided, char *packed, bool back)
{
    int64_t count = p->dims[d], stride = p->strides[d];
    size_t bytes = p->elem_bytes;
    if (d + 1 < p->rank) {
        for (int64_t i = 0; i < count; i++, strided += stride) {
            packed = copy(p, d + 1, strided, packed, back);
        }
        return packed;
    }
    if (stride == (int64_t)bytes) {
        bytes *= (size_t)count;
        count = 1;
    }
    for (int64_t i = 0; i < count; i++, strided += stride, packed += bytes) {
        memcpy(back ? strided : packed, back ? packed : strided, bytes);
    }
    return packed;
}

static weft_status_t pack(void *user)
{
    const wp_packing_t *p = user;
    copy(p, 0, p->strided, p->packed, false);
    return WEFT_OK;
}

static weft_status_t unpack(void *user)
{
    const wp_packing_t *p = user;
    copy(p, 0, p->strided, p->packed, true);
    return WEFT_OK;
}

int wp_array_pack(const char *argument, wp_array_flags_t flags, wp_array_t *array,
                  const int64_t *strides)
{
    size_t elem_bytes = weft_dtype_size_bytes(array->dtype), bytes;
    size_t head = (sizeof(wp_packing_t) + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    for (uint32_t i = 0; i < array->rank && array->count > 0; i++) {
        if ((flags & WP_WRITE) && strides[i] == 0 && array->dims[i] > 1) {
            PyErr_Format(PyExc_ValueError, "%s has elements that share memory", argument);
            return -1;
        }
    }
    if (array->count == 0) { /* there is nothing to copy */
        return 0;
    }
    wp_packing_t *p = NULL;
    if (!__builtin_mul_overflow((size_t)array->count, elem_bytes, &bytes) &&
        !__builtin_add_overflow(bytes, head + ALIGNMENT, &bytes)) {
        p = aligned_alloc(ALIGNMENT, bytes & ~(ALIGNMENT - 1));
    }
    if (p == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *p = (wp_packing_t){.strided = array->data,
                        .packed = (char *)p + head,
                        .elem_bytes = elem_bytes,
                        .rank = array->rank,
                        .writes = (flags & WP_WRITE) != 0};
    memcpy(p->dims, array->dims, array->rank * sizeof *p->dims);
    memcpy(p->strides, strides, array->rank * sizeof *p->strides);
    array->packing = p;
    array->data = p->packed;
    return 0;
}

weft_status_t wp_array_pack_in(const wp_array_t *array, weft_stream_t *stream)
{
    if (array->packing == NULL) {
        return WEFT_OK;
    }
    return stream != NULL ? weft_stream_launch_host(stream, pack, array->packing)
                          : pack(array->packing);
}

weft_status_t wp_array_pack_back(const wp_array_t *array, weft_stream_t *stream)
{
    weft_status_t status;
    if (array->packing == NULL || !array->packing->writes) {
        return WEFT_OK;
    }
    if (stream == NULL) {
        return unpack(array->packing);
    }
    while ((status = weft_stream_launch_host(stream, unpack, array->packing)) == WEFT_AGAIN) {
        weft_stream_query(stream); /* its oldest call gets done, or breaks it in time */
    }
    if (status < 0) { /* the stream broke: the call, which is on it, ends soon */
        weft_stream_synchronize(stream);
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/pool.h"

#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"

static int64_t position(const wefti_pool_dim_t *dim, int64_t out, int64_t tap)
{
    return out * dim->stride - dim->pad + tap * dim->dilation;
}

static void fill_dim(wefti_pool_dim_t *dim, bool include_pad, int64_t pad_end)
{
    for (int64_t tap = 0; tap < dim->kernel; tap++) {
        wefti_pool_range_t *range = &dim->ranges[tap];
        range->from = dim->out;
        range->to = 0;
        for (int64_t o = 0; o < dim->out; o++) {
            int64_t at = position(dim, o, tap);
            if (at >= 0 && at < dim->in) {
                range->from = o < range->from ? o : range->from;
                range->to = o + 1;
            }
        }
        if (range->to < range->from) {
            range->to = range->from;
        }
    }
    for (int64_t o = 0; o < dim->out; o++) {
        int64_t inside = 0, padded = 0;
        dim->first_tap[o] = dim->kernel; /* dilation may leave a window without any */
        for (int64_t tap = dim->kernel; tap-- > 0;) {
            int64_t at = position(dim, o, tap);
            if (at >= 0 && at < dim->in) {
                dim->first_tap[o] = tap;
                inside++;
            }
            /* A window that ceil_mode lets hang over the padded end counts up to there only. */
            padded += at < dim->in + pad_end;
        }
        dim->counted[o] = (float)(include_pad ? padded : inside);
    }
}

/* Bytes of the three arrays of a dimension. */
static bool dim_bytes(const wefti_pool_dim_t *dim, size_t *out_bytes)
{
    size_t taps, outs;
    return wefti_mul_size((size_t)dim->kernel, sizeof(wefti_pool_range_t), &taps) &&
           wefti_mul_size((size_t)dim->out, sizeof(int64_t) + sizeof(float), &outs) &&
           wefti_add_size(taps, wefti_align_up(outs, 8), out_bytes);
}

static char *place_dim(wefti_pool_dim_t *dim, char *at)
{
    size_t bytes = 0;
    (void)dim_bytes(dim, &bytes);
    dim->ranges = (void *)at;
    dim->first_tap = (void *)(at + (size_t)dim->kernel * sizeof(*dim->ranges));
    dim->counted = (void *)(dim->first_tap + dim->out);
    return at + bytes;
}

static weft_status_t read_geometry(const weft_node_desc_t *node, const weft_tensor_desc_t *x,
                                   const weft_tensor_desc_t *y, wefti_pool_t *pool,
                                   wefti_window_t *window)
{
    if (x->rank < 3 || x->rank > 4 || x->rank != y->rank || x->layout != y->layout) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "pooling: expected one or two spatial dimensions and one layout for input and output");
    }
    weft_tensor_desc_t inferred = {0};
    weft_node_desc_t forward = *node;
    forward.inputs = x;
    forward.input_count = 1;
    forward.outputs = &inferred;
    forward.output_count = 1;
    WEFT_RETURN_IF_ERROR(wefti_infer_pool(&forward));
    if (memcmp(inferred.dims, y->dims, y->rank * sizeof(y->dims[0])) != 0) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "pooling: the shape of the output does not match the input and the window");
    }
    WEFT_RETURN_IF_ERROR(wefti_window_resolve(node, x->rank, x->dims, NULL, window));
    pool->n = x->dims[0];
    pool->c = x->dims[1];
    pool->channels_last = x->layout == WEFT_LAYOUT_CHANNELS_LAST;
    wefti_pool_dim_t one = {.in = 1, .out = 1, .kernel = 1, .stride = 1, .dilation = 1};
    pool->y = one; /* rank 3: one row */
    for (uint32_t d = 0; d < window->spatial; d++) {
        wefti_pool_dim_t *dim = d + 1 == window->spatial ? &pool->x : &pool->y;
        *dim = (wefti_pool_dim_t){.in = x->dims[2 + d],
                                  .out = window->out[d],
                                  .kernel = window->kernel[d],
                                  .stride = window->stride[d],
                                  .dilation = window->dilation[d],
                                  .pad = window->pad_begin[d]};
    }
    return WEFT_OK;
}

weft_status_t wefti_pool_create(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                const weft_tensor_desc_t *x, const weft_tensor_desc_t *y,
                                wefti_pool_t **out_pool)
{
    wefti_pool_t pool = {0};
    wefti_window_t window;
    size_t rows, columns, bytes;
    weft_status_t status = read_geometry(node, x, y, &pool, &window);
    if (status < 0) {
        return status;
    }
    /* No kernel is larger than its padded input, so filling the tables ends soon. */
    if (!dim_bytes(&pool.y, &rows) || !dim_bytes(&pool.x, &columns) ||
        !wefti_add_size(rows, columns, &bytes) ||
        !wefti_add_size(bytes, wefti_align_up(sizeof(pool), 8), &bytes)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "pooling: the tensor is too large");
    }
    wefti_pool_t *made = wefti_state_alloc(bytes);
    if (made == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *made = pool;
    char *at = (char *)made + wefti_align_up(sizeof(pool), 8);
    at = place_dim(&made->y, at);
    place_dim(&made->x, at);
    bool include_pad = weft_node_attr_int(node, "count_include_pad", 0) != 0;
    fill_dim(&made->y, include_pad, window.spatial == 2 ? window.pad_end[0] : 0);
    fill_dim(&made->x, include_pad, window.pad_end[window.spatial - 1]);
    made->isa = wefti_kernel_isa(env);
    made->threads = wefti_kernel_threads(env);
    *out_pool = made;
    return WEFT_OK;
}

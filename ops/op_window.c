/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of convolutions and poolings: attributes to numbers, and the output size. */
#include "ops/op_infer.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/error.h"

/* Far above any model, low enough that products of a few of them stay inside 64 bits. */
#define MAX_EXTENT ((int64_t)1 << 30)

static weft_status_t read_list(const weft_node_desc_t *node, const char *name, uint32_t want,
                               int64_t least, int64_t otherwise, int64_t *out)
{
    int64_t values[2 * WEFTI_MAX_SPATIAL];
    uint32_t count;
    weft_status_t status = wefti_attr_ints(node, name, values, 2 * WEFTI_MAX_SPATIAL, &count);
    if (status < 0) {
        return status;
    }
    if (count != 0 && count != want) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute %s has %u entries, expected %u",
                           name, count, want);
    }
    for (uint32_t i = 0; i < want; i++) {
        out[i] = count == 0 ? otherwise : values[i];
        if (out[i] < least || out[i] > MAX_EXTENT) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute %s has entry %" PRId64 ", expected %" PRId64
                               " to %" PRId64,
                               name, out[i], least, MAX_EXTENT);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_attributes(const weft_node_desc_t *node, const int64_t *kernel,
                                     wefti_window_t *window)
{
    uint32_t n = window->spatial;
    int64_t pads[2 * WEFTI_MAX_SPATIAL];
    weft_status_t status;
    if (kernel == NULL && weft_node_attr(node, "kernel_shape") == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute kernel_shape is missing");
    }
    WEFT_TRY(status, read_list(node, "kernel_shape", n, 1, 1, window->kernel), out);
    WEFT_TRY(status, read_list(node, "strides", n, 1, 1, window->stride), out);
    WEFT_TRY(status, read_list(node, "dilations", n, 1, 1, window->dilation), out);
    WEFT_TRY(status, read_list(node, "pads", 2 * n, 0, 0, pads), out);
    for (uint32_t d = 0; d < n; d++) {
        window->pad_begin[d] = pads[d];
        window->pad_end[d] = pads[n + d];
        if (kernel == NULL) {
            continue;
        }
        if (weft_node_attr(node, "kernel_shape") != NULL && kernel[d] >= 0 &&
            kernel[d] != window->kernel[d]) {
            status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                 "kernel_shape mismatch: attribute has %" PRId64
                                 ", the weights have %" PRId64,
                                 window->kernel[d], kernel[d]);
            goto out;
        }
        window->kernel[d] = kernel[d];
    }
out:
    return status;
}

/* One dimension: applies auto_pad and computes the output size. */
static weft_status_t resolve_dim(const char *auto_pad, bool ceil_mode, int64_t in, uint32_t d,
                                 wefti_window_t *w)
{
    w->out[d] = -1;
    if (strcmp(auto_pad, "VALID") == 0) {
        w->pad_begin[d] = w->pad_end[d] = 0;
    }
    if (in < 0 || w->kernel[d] < 0) {
        return WEFT_OK;
    }
    if (in > MAX_EXTENT || w->kernel[d] < 1 || w->kernel[d] > MAX_EXTENT) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "size %" PRId64 " with a window of %" PRId64 " is out of range", in,
                           w->kernel[d]);
    }
    int64_t extent = (w->kernel[d] - 1) * w->dilation[d] + 1;
    if (strncmp(auto_pad, "SAME_", 5) == 0) {
        int64_t out = (in + w->stride[d] - 1) / w->stride[d];
        int64_t total = (out - 1) * w->stride[d] + extent - in;
        total = total < 0 || out == 0 ? 0 : total;
        int64_t small = total / 2;
        bool upper = strcmp(auto_pad, "SAME_UPPER") == 0;
        w->pad_begin[d] = upper ? small : total - small;
        w->pad_end[d] = upper ? total - small : small;
        w->out[d] = out;
        return WEFT_OK;
    }
    int64_t room = in + w->pad_begin[d] + w->pad_end[d] - extent;
    if (room < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "window of %" PRId64 " is larger than the input of %" PRId64
                           " with padding %" PRId64 " and %" PRId64,
                           extent, in, w->pad_begin[d], w->pad_end[d]);
    }
    w->out[d] = room / w->stride[d] + 1;
    if (ceil_mode && room % w->stride[d] != 0 && w->out[d] * w->stride[d] < in + w->pad_begin[d]) {
        /* One more, unless it would start in the padding at the end and see nothing. */
        w->out[d]++;
    }
    return WEFT_OK;
}

/* Reads the attributes of a window over in, an input of rank dimensions. */
static weft_status_t read_window(const weft_node_desc_t *node, uint32_t rank, const int64_t *kernel,
                                 wefti_window_t *window, const char **out_auto_pad)
{
    if (rank < 3 || rank > 2 + WEFTI_MAX_SPATIAL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input 0 has %u dimensions, expected 3 to %d",
                           rank, 2 + WEFTI_MAX_SPATIAL);
    }
    window->spatial = rank - 2;
    WEFT_RETURN_IF_ERROR(read_attributes(node, kernel, window));
    const char *auto_pad = weft_node_attr_string(node, "auto_pad", "NOTSET");
    if (strcmp(auto_pad, "NOTSET") != 0 && strcmp(auto_pad, "VALID") != 0 &&
        strcmp(auto_pad, "SAME_UPPER") != 0 && strcmp(auto_pad, "SAME_LOWER") != 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute auto_pad is \"%s\"", auto_pad);
    }
    *out_auto_pad = auto_pad;
    return WEFT_OK;
}

weft_status_t wefti_window_resolve(const weft_node_desc_t *node, uint32_t rank, const int64_t *in,
                                   const int64_t *kernel, wefti_window_t *out_window)
{
    wefti_window_t window = {0};
    weft_status_t status;
    const char *auto_pad;
    WEFT_RETURN_IF_ERROR(read_window(node, rank, kernel, &window, &auto_pad));
    bool ceil_mode = weft_node_attr_int(node, "ceil_mode", 0) != 0;
    for (uint32_t d = 0; d < window.spatial; d++) {
        status = resolve_dim(auto_pad, ceil_mode, in[2 + d], d, &window);
        if (status < 0) {
            return status;
        }
    }
    *out_window = window;
    return WEFT_OK;
}

/* One dimension. wanted: the output size, or 0; extra: the output padding. */
static weft_status_t resolve_transposed_dim(const char *auto_pad, int64_t in, int64_t wanted,
                                            int64_t extra, uint32_t d, wefti_window_t *w)
{
    w->out[d] = -1;
    if (in < 0 || w->kernel[d] < 0) {
        return WEFT_OK;
    }
    if (in < 1 || in > MAX_EXTENT || w->kernel[d] < 1 || w->kernel[d] > MAX_EXTENT) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "size %" PRId64 " with a window of %" PRId64 " is out of range", in,
                           w->kernel[d]);
    }
    int64_t covered = (in - 1) * w->stride[d] + (w->kernel[d] - 1) * w->dilation[d] + 1;
    bool upper = strcmp(auto_pad, "SAME_UPPER") == 0;
    if (strcmp(auto_pad, "VALID") == 0) {
        w->pad_begin[d] = w->pad_end[d] = 0;
    }
    if (wanted == 0 && strncmp(auto_pad, "SAME_", 5) == 0) {
        wanted = in * w->stride[d];
    }
    if (wanted != 0) {
        int64_t total = covered + extra - wanted;
        total = total < 0 ? 0 : total;
        w->pad_begin[d] = upper ? total / 2 : total - total / 2;
        w->pad_end[d] = total - w->pad_begin[d];
        extra = wanted + total - covered;
    }
    w->out[d] = covered + extra - w->pad_begin[d] - w->pad_end[d];
    if (w->out[d] < 1 || extra < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "padding %" PRId64 " and %" PRId64 " leaves nothing of %" PRId64
                           " elements",
                           w->pad_begin[d], w->pad_end[d], covered + extra);
    }
    if (extra >= w->stride[d]) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "output padding %" PRId64 " must be less than the stride %" PRId64,
                           extra, w->stride[d]);
    }
    return WEFT_OK;
}

weft_status_t wefti_window_resolve_transposed(const weft_node_desc_t *node, uint32_t rank,
                                              const int64_t *in, const int64_t *kernel,
                                              wefti_window_t *out_window)
{
    wefti_window_t window = {0};
    const char *auto_pad;
    int64_t wanted[WEFTI_MAX_SPATIAL], extra[WEFTI_MAX_SPATIAL];
    WEFT_RETURN_IF_ERROR(read_window(node, rank, kernel, &window, &auto_pad));
    WEFT_RETURN_IF_ERROR(read_list(node, "output_shape", window.spatial, 0, 0, wanted));
    WEFT_RETURN_IF_ERROR(read_list(node, "output_padding", window.spatial, 0, 0, extra));
    for (uint32_t d = 0; d < window.spatial; d++) {
        WEFT_RETURN_IF_ERROR(
            resolve_transposed_dim(auto_pad, in[2 + d], wanted[d], extra[d], d, &window));
    }
    *out_window = window;
    return WEFT_OK;
}

uint32_t wefti_window_conv_attrs(const wefti_window_t *window, int64_t group, int64_t *pads,
                                 weft_attr_t *attrs)
{
    const uint32_t n = window->spatial;
    for (uint32_t d = 0; d < n; d++) {
        pads[d] = window->pad_begin[d];
        pads[n + d] = window->pad_end[d];
    }
    attrs[0] = (weft_attr_t){.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = group};
    attrs[1] = (weft_attr_t){
        .name = "strides", .type = WEFT_ATTR_TYPE_INTS, .ints = window->stride, .count = n};
    attrs[2] = (weft_attr_t){
        .name = "dilations", .type = WEFT_ATTR_TYPE_INTS, .ints = window->dilation, .count = n};
    attrs[3] =
        (weft_attr_t){.name = "pads", .type = WEFT_ATTR_TYPE_INTS, .ints = pads, .count = 2 * n};
    return WEFTI_CONV_ATTRS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a Conv or ConvGrad node. */
#include <string.h>

#include "ops/compute/conv_f32.h"
#include "ops/compute/halves.h"
#include "ops/compute/kernel_check.h"
#include "runtime/base/error.h"

/* Keeps all sums and products of positions far from overflow. */
#define LARGEST (INT64_C(1) << 24)

/* A list attribute of count numbers in [low, LARGEST], or the default for all. */
static weft_status_t read_ints(const weft_node_desc_t *node, const char *name, size_t count,
                               int64_t low, int64_t otherwise, int64_t *out)
{
    const weft_attr_t *attr = weft_node_attr(node, name);
    for (size_t i = 0; i < count; i++) {
        out[i] = otherwise;
    }
    if (attr == NULL) {
        return WEFT_OK;
    }
    if (attr->type != WEFT_ATTR_TYPE_INTS || attr->count != count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: attribute %s: expected %zu integers",
                           node->op, name, count);
    }
    for (size_t i = 0; i < count; i++) {
        if (attr->ints[i] < low || attr->ints[i] > LARGEST) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: attribute %s: invalid value %lld",
                               node->op, name, (long long)attr->ints[i]);
        }
        out[i] = attr->ints[i];
    }
    return WEFT_OK;
}

static weft_status_t read_pads(const weft_node_desc_t *node, uint32_t spatial, wefti_conv_t *c,
                               int64_t pad_end[2])
{
    const char *mode = weft_node_attr_string(node, "auto_pad", "NOTSET");
    int64_t pads[4] = {0};
    weft_status_t status = read_ints(node, "pads", 2 * (size_t)spatial, 0, 0, pads);
    if (status != WEFT_OK) {
        return status;
    }
    pad_end[0] = pad_end[1] = c->pad[0] = c->pad[1] = 0;
    for (uint32_t i = 2 - spatial; i < 2; i++) {
        const uint32_t a = i - (2 - spatial);
        if (strcmp(mode, "NOTSET") == 0 || mode[0] == '\0') {
            c->pad[i] = pads[a];
            pad_end[i] = pads[a + spatial];
        } else if (strncmp(mode, "SAME_", 5) == 0) {
            const int64_t out = (c->in[i] + c->stride[i] - 1) / c->stride[i];
            int64_t total =
                (out - 1) * c->stride[i] + (c->kernel[i] - 1) * c->dilation[i] + 1 - c->in[i];
            total = total < 0 ? 0 : total;
            if (total > LARGEST) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "%s: attribute auto_pad: padding of %lld is too large", node->op,
                                   (long long)total);
            }
            c->pad[i] = strcmp(mode, "SAME_LOWER") == 0 ? total - total / 2 : total / 2;
            pad_end[i] = total - c->pad[i];
        } else if (strcmp(mode, "VALID") != 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%s: attribute auto_pad: unsupported value '%s'", node->op, mode);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_dims(const weft_node_desc_t *node, const weft_tensor_desc_t *x,
                                const weft_tensor_desc_t *w, const weft_tensor_desc_t *y)
{
    if ((x->rank != 4 && x->rank != 3) || w->rank != x->rank || y->rank != x->rank) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: only one or two spatial dimensions are supported", node->op);
    }
    const weft_tensor_desc_t *all[3] = {x, w, y};
    for (int t = 0; t < 3; t++) {
        for (uint32_t i = 0; i < x->rank; i++) {
            if (all[t]->dims[i] > LARGEST) {
                return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: a dimension of %lld is too large",
                                   node->op, (long long)all[t]->dims[i]);
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_conv_describe(const weft_node_desc_t *node, const weft_tensor_desc_t *x,
                                  const weft_tensor_desc_t *w, const weft_tensor_desc_t *y,
                                  const weft_kernel_env_t *env, wefti_conv_t *c)
{
    weft_status_t status;
    int64_t pad_end[2], kernel[2], dims[4];
    *c = (wefti_conv_t){.isa = env->isa, .threads = env->thread_count == 0 ? 1 : env->thread_count};
    c->dtype = wefti_is_half(x->dtype) ? x->dtype : WEFT_DTYPE_F32;
    const bool wide = c->dtype == WEFT_DTYPE_F32;
    WEFT_TRY(status, wefti_check_type(node, x, "the input", wide, c->dtype), out);
    WEFT_TRY(status, wefti_check_f32(node, w, "the weights", false), out);
    WEFT_TRY(status, wefti_check_type(node, y, "the output", wide, c->dtype), out);
    WEFT_TRY(status, check_dims(node, x, w, y), out);
    const uint32_t spatial = x->rank - 2, first = 2 - spatial;
    c->images = x->dims[0];
    c->in_channels = x->dims[1];
    c->out_channels = w->dims[0];
    c->groups = weft_node_attr_int(node, "group", 1);
    c->in[0] = c->kernel[0] = c->stride[0] = c->dilation[0] = 1;
    for (uint32_t i = first; i < 2; i++) {
        c->in[i] = x->dims[i - first + 2];
        c->kernel[i] = w->dims[i - first + 2];
    }
    c->in_last = x->layout == WEFT_LAYOUT_CHANNELS_LAST;
    c->out_last = y->layout == WEFT_LAYOUT_CHANNELS_LAST;
    if (c->groups < 1 || c->in_channels % c->groups != 0 || c->out_channels % c->groups != 0 ||
        w->dims[1] != c->in_channels / c->groups) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s: shape mismatch: %lld channels in %lld groups, weights of %lld x %lld", node->op,
            (long long)c->in_channels, (long long)c->groups, (long long)w->dims[0],
            (long long)w->dims[1]);
    }
    /* Passes list the products of a sum. */
    const int64_t out_channels = c->out_channels / c->groups;
    const int64_t channels = w->dims[1] > out_channels ? w->dims[1] : out_channels;
    if (channels > LARGEST / c->kernel[0] / c->kernel[1]) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: sums of %lld x %lld x %lld products are too large", node->op,
                           (long long)channels, (long long)c->kernel[0], (long long)c->kernel[1]);
    }
    WEFT_TRY(status, read_ints(node, "strides", spatial, 1, 1, c->stride + first), out);
    WEFT_TRY(status, read_ints(node, "dilations", spatial, 1, 1, c->dilation + first), out);
    WEFT_TRY(status, read_ints(node, "kernel_shape", spatial, 1, 0, kernel), out);
    for (uint32_t i = 0; i < spatial; i++) {
        if (kernel[i] != 0 && kernel[i] != c->kernel[first + i]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%s: attribute kernel_shape differs from the shape of the weights",
                               node->op);
        }
    }
    WEFT_TRY(status, read_pads(node, spatial, c, pad_end), out);
    c->out[0] = 1;
    dims[0] = c->images;
    dims[1] = c->out_channels;
    for (uint32_t i = first; i < 2; i++) {
        const int64_t room =
            c->in[i] + c->pad[i] + pad_end[i] - (c->kernel[i] - 1) * c->dilation[i] - 1;
        if (room < 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: the kernel is larger than the input",
                               node->op);
        }
        c->out[i] = room / c->stride[i] + 1;
        dims[i - first + 2] = c->out[i];
    }
    status = wefti_check_shape(node, y, "the output", x->rank, dims);
out:
    return status;
}

int64_t wefti_conv_tap_period(const wefti_conv_t *c, int d)
{
    int64_t a = c->stride[d], b = c->dilation[d];
    while (b != 0) { /* a: the greatest common divisor */
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return c->stride[d] / a;
}

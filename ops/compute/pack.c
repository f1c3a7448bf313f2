/* SPDX-License-Identifier: Apache-2.0 */
/* Pack and Unpack: one side is a single tensor of blocks, the other its parts. */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef struct {
    int64_t blocks;
    uint32_t count;
    size_t bytes[]; /* of one block of each part */
} state_t;

static weft_status_t prepare(const weft_node_desc_t *node, const weft_tensor_desc_t *whole,
                             const weft_tensor_desc_t *parts, uint32_t count, void **out_state,
                             size_t *out_scratch_bytes)
{
    weft_status_t status;
    size_t total = 0;
    state_t *state = wefti_state_alloc(sizeof(*state) + count * sizeof(state->bytes[0]));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->blocks = weft_node_attr_int(node, "blocks", 1);
    state->count = count;
    WEFT_TRY(status, wefti_need_known(whole, "tensor of blocks", 0), fail);
    for (uint32_t i = 0; i < count; i++) {
        WEFT_TRY(status, wefti_need_known(&parts[i], "part", i), fail);
        size_t bytes =
            (size_t)weft_tensor_elem_count(&parts[i]) * weft_dtype_size_bytes(parts[i].dtype);
        if (state->blocks < 1 || bytes % (size_t)state->blocks != 0 ||
            parts[i].layout != WEFT_LAYOUT_PLAIN || parts[i].dtype != whole->dtype) {
            status =
                wefti_error(WEFT_ERR_UNSUPPORTED, "part %u: invalid blocks, layout or type", i);
            goto fail;
        }
        state->bytes[i] = bytes / (size_t)state->blocks;
        total += bytes;
    }
    if (total != (size_t)weft_tensor_elem_count(whole) * weft_dtype_size_bytes(whole->dtype) ||
        whole->layout != WEFT_LAYOUT_PLAIN) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "the tensor of blocks does not have the size of its %u parts", count);
        goto fail;
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
fail:
    wefti_state_free(state);
    return status;
}

static weft_status_t prepare_pack(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    return prepare(node, &node->outputs[0], node->inputs, node->input_count, out_state,
                   out_scratch_bytes);
}

static weft_status_t prepare_unpack(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                    void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    return prepare(node, &node->inputs[0], node->outputs, node->output_count, out_state,
                   out_scratch_bytes);
}

static weft_status_t run_pack(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    char *to = call->outputs[0];
    for (int64_t b = 0; b < s->blocks; b++) {
        for (uint32_t i = 0; i < s->count; i++) {
            if (s->bytes[i] > 0) {
                memcpy(to, (const char *)call->inputs[i] + (size_t)b * s->bytes[i], s->bytes[i]);
                to += s->bytes[i];
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t run_unpack(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const char *from = call->inputs[0];
    for (int64_t b = 0; b < s->blocks; b++) {
        for (uint32_t i = 0; i < s->count; i++) {
            if (call->outputs[i] != NULL && s->bytes[i] > 0) {
                memcpy((char *)call->outputs[i] + (size_t)b * s->bytes[i], from, s->bytes[i]);
            }
            from += s->bytes[i];
        }
    }
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_pack, "weft", "Pack", prepare_pack, run_pack);
WEFTI_KERNEL(wefti_kernel_unpack, "weft", "Unpack", prepare_unpack, run_unpack);

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support_fence.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/support.h"

enum { MAX_TENSORS = 32 };

/* Memory that ends where a page without access begins. */
typedef struct {
    void *pages, *data;
    size_t page_bytes, bytes;
} fenced_t;

static fenced_t fence(const void *from, const weft_tensor_desc_t *desc)
{
    fenced_t f = {0};
    if (from == NULL) {
        return f;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    f.bytes = (size_t)weft_tensor_elem_count(desc) * weft_dtype_size_bytes(desc->dtype);
    const size_t usable = (f.bytes + page - 1) / page * page;
    f.page_bytes = usable + page;
    f.pages = mmap(NULL, f.page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.pages != MAP_FAILED);
    assert_int_equal(mprotect((uint8_t *)f.pages + usable, page, PROT_NONE), 0);
    f.data = (uint8_t *)f.pages + usable - f.bytes;
    memcpy(f.data, from, f.bytes);
    return f;
}

weft_status_t test_run_fenced(const weft_kernel_t *kernel, const weft_node_desc_t *node,
                              const weft_kernel_call_t *call)
{
    fenced_t in[MAX_TENSORS] = {0}, out[MAX_TENSORS] = {0};
    const void *inputs[MAX_TENSORS];
    void *outputs[MAX_TENSORS];
    assert_true(node->input_count <= MAX_TENSORS && node->output_count <= MAX_TENSORS);
    for (uint32_t i = 0; i < node->input_count; i++) {
        in[i] = fence(call->inputs[i], &node->inputs[i]);
        inputs[i] = in[i].data;
    }
    for (uint32_t o = 0; o < node->output_count; o++) {
        outputs[o] = NULL;
        for (uint32_t i = 0; i < node->input_count && call->outputs[o] != NULL; i++) {
            outputs[o] = call->inputs[i] == call->outputs[o] ? in[i].data : outputs[o];
        }
        if (outputs[o] == NULL) {
            out[o] = fence(call->outputs[o], &node->outputs[o]);
            outputs[o] = out[o].data;
        }
    }
    const weft_kernel_call_t fenced = {call->state, inputs, outputs, call->scratch};
    const weft_status_t status = kernel->run(&fenced);
    for (uint32_t o = 0; o < node->output_count; o++) {
        if (outputs[o] != NULL) {
            const weft_tensor_desc_t *desc = &node->outputs[o];
            memcpy(call->outputs[o], outputs[o],
                   (size_t)weft_tensor_elem_count(desc) * weft_dtype_size_bytes(desc->dtype));
        }
    }
    for (uint32_t i = 0; i < MAX_TENSORS; i++) {
        for (int way = 0; way < 2; way++) {
            const fenced_t *f = way == 0 ? &in[i] : &out[i];
            if (f->pages != NULL) {
                munmap(f->pages, f->page_bytes);
            }
        }
    }
    return status;
}

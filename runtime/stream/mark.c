/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stream/mark.h"

weft_status_t wefti_mark_create(weft_context_t *context, wefti_mark_t **out_mark)
{
    weft_device_t *device = context->device;
    *out_mark = NULL;
    wefti_mark_t *mark = wefti_alloc(context->allocator, sizeof(*mark));
    if (mark == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    atomic_init(&mark->references, 1);
    mark->context = context;
    mark->signal = &mark->local.signal;
    if (device != NULL) {
        void *address = NULL;
        weft_status_t status =
            device->ops->mem_alloc(device, sizeof(wefti_signal_line_t), &address);
        if (status < 0) {
            wefti_free(context->allocator, mark);
            return status;
        }
        mark->signal = address;
    }
    weft_context_retain(context);
    *out_mark = mark;
    return WEFT_OK;
}

void wefti_mark_retain(wefti_mark_t *mark)
{
    atomic_fetch_add_explicit(&mark->references, 1, memory_order_relaxed);
}

void wefti_mark_release(wefti_mark_t *mark)
{
    /* acq_rel: the last one sees everything the others did */
    if (mark == NULL ||
        atomic_fetch_sub_explicit(&mark->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    weft_context_t *context = mark->context;
    if (context->device != NULL) {
        context->device->ops->mem_free(context->device, mark->signal);
    }
    wefti_free(context->allocator, mark);
    weft_context_release(context);
}

bool wefti_mark_reached(const wefti_mark_t *mark, uint32_t target)
{
    /* acquire: what was done before the record is visible */
    const _Atomic uint32_t *value =
        mark->context->device != NULL ? &mark->seen : &mark->local.signal.value;
    return wefti_signal_reached(atomic_load_explicit(value, memory_order_acquire), target);
}

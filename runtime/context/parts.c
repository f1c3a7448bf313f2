/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/context/context.h"

void *wefti_part_get(weft_context_t *context, wefti_part_t part, const wefti_part_ops_t *ops)
{
    void *made = wefti_part_find(context, part);
    if (made != NULL) {
        return made;
    }
    pthread_mutex_lock(&context->lock);
    made = wefti_part_find(context, part);
    if (made == NULL && (made = wefti_alloc(context->allocator, ops->bytes)) != NULL) {
        ops->init(context, made);
        context->parts.ops[part] = ops;
        /* release: who finds it finds it initialised */
        atomic_store_explicit(&context->parts.made[part], made, memory_order_release);
    }
    pthread_mutex_unlock(&context->lock);
    return made;
}

void wefti_part_is_plain(weft_context_t *context, void *part)
{
    (void)context;
    (void)part;
}

bool wefti_part_never_in_use(weft_context_t *context, void *part)
{
    (void)context;
    (void)part;
    return false;
}

bool wefti_part_always_in_use(weft_context_t *context, void *part)
{
    (void)context;
    (void)part;
    return true;
}

bool wefti_parts_in_use(weft_context_t *context)
{
    for (uint32_t i = 0; i < WEFTI_PARTS; i++) {
        void *part = wefti_part_find(context, (wefti_part_t)i);
        if (part != NULL && context->parts.ops[i]->in_use(context, part)) {
            return true;
        }
    }
    return false;
}

void wefti_parts_destroy(weft_context_t *context)
{
    for (uint32_t i = WEFTI_PARTS; i-- > 0;) {
        void *part = wefti_part_find(context, (wefti_part_t)i);
        if (part != NULL) {
            context->parts.ops[i]->deinit(context, part);
            wefti_free(context->allocator, part);
        }
    }
}

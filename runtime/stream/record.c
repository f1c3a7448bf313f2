/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stream/record.h"

#include "ops/reduce/reduce.h"
#include "runtime/base/error.h"
#include "runtime/base/float_mode.h"

#include <string.h>

weft_status_t wefti_record_run(const wefti_record_t *record, uint32_t epoch, weft_isa_t isa)
{
    switch ((wefti_record_kind_t)record->kind) {
    case WEFTI_RECORD_KERNEL:
        return wefti_run_kernel(record->kernel.kernel, &record->kernel.call);
    case WEFTI_RECORD_SIGNAL:
        wefti_signal_post(record->signal.signal,
                          epoch * record->signal.stride + record->signal.offset);
        return WEFT_OK;
    case WEFTI_RECORD_REDUCE:
        return wefti_reduce(&record->reduce, isa);
    case WEFTI_RECORD_COPY:
        memcpy(record->copy.dst, record->copy.src, record->copy.size_bytes);
        return WEFT_OK;
    case WEFTI_RECORD_HOST:
        return record->host.fn(record->host.user);
    case WEFTI_RECORD_SCHEDULE: /* of plans only: cursor.c */
    case WEFTI_RECORD_SWEEP:
    case WEFTI_RECORD_WAIT:
    case WEFTI_RECORD_OPAQUE:
        break;
    }
    return wefti_error(WEFT_ERR_INTERNAL, "record: kind %u cannot be executed", record->kind);
}

static weft_status_t not_for_devices(const weft_device_ops_t *ops)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "device \"%s\": host functions are not supported",
                       ops->name);
}

weft_status_t wefti_opaque_not_enqueued(void *user, const weft_device_ops_t *ops,
                                        weft_queue_t *queue)
{
    (void)user;
    (void)queue;
    return not_for_devices(ops);
}

static weft_status_t not_on_host(void)
{
    return wefti_error(WEFT_ERR_INTERNAL, "record: cannot be executed on the host");
}

weft_status_t wefti_opaque_not_run(void *user)
{
    (void)user;
    return not_on_host();
}

weft_status_t wefti_opaque_not_polled(void *user, wefti_blocked_t *out_blocked)
{
    (void)user;
    (void)out_blocked;
    return not_on_host();
}

weft_status_t wefti_opaque_not_dropped(void *user, weft_status_t status)
{
    (void)user;
    (void)status;
    return WEFT_OK;
}

weft_status_t wefti_record_enqueue(const wefti_record_t *record, uint32_t epoch,
                                   const weft_device_ops_t *ops, weft_queue_t *queue)
{
    weft_status_t status = WEFT_OK;
    switch ((wefti_record_kind_t)record->kind) {
    case WEFTI_RECORD_KERNEL:
        return ops->launch(queue, record->kernel.kernel, &record->kernel.call,
                           record->kernel.input_count, record->kernel.output_count);
    case WEFTI_RECORD_SIGNAL:
        /* only the address is taken: signals may lie in memory the host cannot touch */
        return ops->signal(queue, (uint32_t *)&record->signal.signal->value,
                           epoch * record->signal.stride + record->signal.offset);
    case WEFTI_RECORD_WAIT:
        for (uint32_t i = 0; i < record->wait.count && status >= 0; i++) {
            status = ops->wait(queue, (const uint32_t *)&record->wait.signals[i]->value,
                               epoch * record->wait.stride + record->wait.offset);
        }
        return status;
    case WEFTI_RECORD_REDUCE:
        return ops->reduce(queue, &record->reduce);
    case WEFTI_RECORD_COPY:
        return ops->copy(queue, record->copy.dst, record->copy.src, record->copy.size_bytes);
    case WEFTI_RECORD_OPAQUE:
        return record->opaque.ops->enqueue(record->opaque.user, ops, queue);
    case WEFTI_RECORD_HOST:
    case WEFTI_RECORD_SCHEDULE:
    case WEFTI_RECORD_SWEEP:
        break;
    }
    return not_for_devices(ops);
}

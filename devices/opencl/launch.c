/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of operators. */
#include "devices/opencl/opencl.h"

const weft_kernel_t cl_kernels[] = {{0}};
const size_t cl_kernel_count = 0;

weft_status_t cl_launch(weft_queue_t *queue, const weft_kernel_t *kernel,
                        const weft_kernel_call_t *call, uint32_t input_count, uint32_t output_count)
{
    (void)call;
    (void)input_count;
    (void)output_count;
    return cl_fail(WEFT_ERR_UNSUPPORTED, "device %s: operator %s is not supported",
                   queue->device->name, kernel->op);
}

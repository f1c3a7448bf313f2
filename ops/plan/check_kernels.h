/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes of a plan the CPU or a device cannot execute. */
#ifndef WEFT_OPS_PLAN_CHECK_KERNELS_H
#define WEFT_OPS_PLAN_CHECK_KERNELS_H

#include <weft/device.h>

#include "ops/plan/plan.h"

/* The kernel of a device that has kernels of its own; NULL: it does not support the operator. */
const weft_kernel_t *wefti_device_kernel(const weft_device_ops_t *device,
                                         const wefti_plan_kernel_t *kernel);
/* WEFT_ERR_UNSUPPORTED with a list of all nodes that have no kernel, or whose types or attributes
 * it does not implement. Kernels are the device's if it has any, else those of registry. name: of
 * the model, for the message. */
weft_status_t wefti_plan_check_kernels(const weft_plan_t *plan, const weft_registry_t *registry,
                                       const weft_device_ops_t *device,
                                       const weft_allocator_t *allocator, const char *name);

#endif

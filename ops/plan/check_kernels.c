/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel of a plan can be prepared: operators, types and attributes that the CPU or a device
 * does not support are one error that lists all nodes. Operators of other domains may get their
 * kernels for the CPU from a plugin where the plan runs.
 */
#include "ops/plan/check_kernels.h"

#include <string.h>

#include "ops/compute/halves.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"

#define MOST_REASONS 16u

typedef struct reason {
    const weft_op_def_t *def;
    const wefti_plan_kernel_t *first;
    const char *text;
    uint32_t count;
} reason_t;

typedef struct report {
    wefti_arena_t arena;
    reason_t reasons[MOST_REASONS];
    uint32_t count, nodes;
} report_t;

static weft_status_t note(report_t *report, const weft_registry_t *registry,
                          const wefti_plan_kernel_t *kernel, const char *text)
{
    const weft_op_def_t *def =
        weft_registry_find_op(registry, kernel->domain, kernel->op, kernel->version);
    uint32_t i = 0;
    report->nodes++;
    while (i < report->count &&
           (report->reasons[i].def != def || strcmp(report->reasons[i].text, text) != 0)) {
        i++;
    }
    if (i == MOST_REASONS) {
        return WEFT_OK;
    }
    if (i == report->count) {
        report->reasons[i] = (reason_t){def, kernel, wefti_arena_strdup(&report->arena, text), 0};
        WEFT_RETURN_IF_NO_MEMORY(report->reasons[i].text);
        report->count++;
    }
    report->reasons[i].count++;
    return WEFT_OK;
}

const weft_kernel_t *wefti_device_kernel(const weft_device_ops_t *device,
                                         const wefti_plan_kernel_t *kernel)
{
    const weft_kernel_t *best = NULL;
    for (size_t i = 0; i < device->kernel_count; i++) {
        const weft_kernel_t *found = &device->kernels[i];
        if (strcmp(found->domain, kernel->domain) == 0 && strcmp(found->op, kernel->op) == 0 &&
            found->since_version <= kernel->version &&
            (best == NULL || found->since_version > best->since_version)) {
            best = found;
        }
    }
    return best;
}

/* Kernels are those of device, or of registry if device is NULL. */
static weft_status_t check(const weft_plan_t *plan, uint32_t index, const weft_registry_t *registry,
                           const weft_device_ops_t *device, report_t *report)
{
    const wefti_plan_kernel_t *kernel = &plan->kernels[index];
    const weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    weft_node_desc_t desc;
    void *state = NULL;
    size_t scratch_bytes = 0;
    const weft_kernel_t *found =
        device != NULL
            ? wefti_device_kernel(device, kernel)
            : weft_registry_find_kernel(registry, kernel->domain, kernel->op, kernel->version);
    if (found == NULL) {
        return device != NULL || kernel->domain[0] == '\0'
                   ? note(report, registry, kernel, "it has no kernel")
                   : WEFT_OK;
    }
    if (found->prepare == NULL || found->abi_version != WEFT_KERNEL_ABI_VERSION) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_plan_kernel_desc(plan, index, &report->arena, &desc));
    weft_status_t status =
        device != NULL ? found->prepare(&desc, &env, &state, &scratch_bytes)
                       : wefti_prepare_kernel(found, &desc, &env, &found, &state, &scratch_bytes);
    if (status >= 0 && found->destroy != NULL) {
        found->destroy(state);
    }
    return status == WEFT_ERR_UNSUPPORTED ? note(report, registry, kernel, weft_last_error())
           : status == WEFT_ERR_NO_MEMORY ? status
                                          : WEFT_OK; /* binding reports it */
}

static weft_status_t refuse(const char *name, const weft_device_ops_t *device,
                            const weft_allocator_t *allocator, const report_t *report)
{
    wefti_text_t text;
    wefti_text_init(&text, allocator);
    for (uint32_t i = 0; i < report->count; i++) {
        const reason_t *reason = &report->reasons[i];
        wefti_text_printf(&text, "%snode '%.80s' (%.60s): %.200s", i > 0 ? "; " : "",
                          reason->first->name, reason->first->op, reason->text);
        if (reason->count > 1) {
            wefti_text_printf(&text, " (%u nodes)", reason->count);
        }
    }
    const char *more = report->nodes == 1 ? "" : "s", *list = text.data != NULL ? text.data : "";
    weft_status_t status =
        device != NULL
            ? wefti_error(WEFT_ERR_UNSUPPORTED, "%s: device \"%s\" does not support %u node%s: %s",
                          name, device->name, report->nodes, more, list)
            : wefti_error(WEFT_ERR_UNSUPPORTED, "%s: %u node%s without a kernel: %s", name,
                          report->nodes, more, list);
    wefti_text_deinit(&text);
    return status;
}

weft_status_t wefti_plan_check_kernels(const weft_plan_t *plan, const weft_registry_t *registry,
                                       const weft_device_ops_t *device,
                                       const weft_allocator_t *allocator, const char *name)
{
    weft_status_t status = WEFT_OK;
    report_t report = {.count = 0};
    device = device != NULL && device->kernels != NULL ? device : NULL;
    wefti_arena_init(&report.arena, allocator, 0);
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        WEFT_TRY(status, check(plan, i, registry, device, &report), done);
    }
    if (report.nodes > 0) {
        status = refuse(name, device, allocator, &report);
    }
done:
    wefti_arena_deinit(&report.arena);
    return status;
}

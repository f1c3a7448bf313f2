/* SPDX-License-Identifier: Apache-2.0 */
/* Looks kernels up, prepares them, and gives every stream scratch for the largest of its own. */
#include "runtime/plan/bind.h"

#include "ops/compute/halves.h"
#include "ops/plan/check_kernels.h"
#include "runtime/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRATCH_ALIGNMENT 64u

/* A device with kernels of its own executes no others. */
static bool has_kernels(const weft_session_t *session)
{
    return session->context->device != NULL && session->context->device->ops->kernels != NULL;
}

/* A node that the device does not support is reported with all others that it does not. */
static weft_status_t prepare_for_device(const weft_session_t *session,
                                        const wefti_plan_kernel_t *kernel,
                                        const weft_node_desc_t *desc, const weft_kernel_env_t *env,
                                        wefti_bound_kernel_t *bound)
{
    const weft_device_ops_t *ops = session->context->device->ops;
    const weft_kernel_t *found = wefti_device_kernel(ops, kernel);
    weft_status_t status = found != NULL
                               ? found->prepare(desc, env, &bound->state, &bound->scratch_bytes)
                               : WEFT_ERR_UNSUPPORTED;
    bound->kernel = status < 0 ? NULL : found;
    if (status == WEFT_ERR_UNSUPPORTED) {
        WEFT_RETURN_IF_ERROR(wefti_plan_check_kernels(session->plan, session->registry, ops, NULL,
                                                      session->plan->model_name));
    }
    return status < 0 ? wefti_error_prefix(status, "node \"%s\" (%s): device \"%s\"", kernel->name,
                                           kernel->op, ops->name)
                      : WEFT_OK;
}

static weft_status_t find_kernel(const weft_session_t *session, const wefti_plan_kernel_t *kernel,
                                 const char *family, const weft_kernel_t **out_found)
{
    const weft_kernel_t *found = weft_registry_find_kernel_of(
        session->registry, family, kernel->domain, kernel->op, kernel->version);
    if (found == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND,
                           "node \"%s\": no kernel registered for operator %s%s%s version %d",
                           kernel->name, kernel->domain, kernel->domain[0] != '\0' ? "." : "",
                           kernel->op, kernel->version);
    }
    if (found->abi_version != WEFT_KERNEL_ABI_VERSION) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "kernel %s.%s: unsupported abi_version %u: expected %u", kernel->domain,
                           kernel->op, found->abi_version, WEFT_KERNEL_ABI_VERSION);
    }
    *out_found = found;
    return WEFT_OK;
}

/* One line per node whose kernel has something to say; declined: why the wished-for family did not
 * take it. */
static void log_choice(weft_session_t *session, const wefti_plan_kernel_t *kernel,
                       const wefti_bound_kernel_t *bound, const char *declined)
{
    const char *name =
        bound->kernel->implementation != NULL ? bound->kernel->implementation(bound->state) : NULL;
    if (name != NULL || declined[0] != '\0') {
        wefti_log(&session->context->log, WEFT_LOG_LEVEL_INFO, "kernel %s: %s%s%s%s", kernel->name,
                  name != NULL ? name : "built in", declined[0] != '\0' ? " (" : "", declined,
                  declined[0] != '\0' ? ")" : "");
    }
}

/* The family that WEFT_KERNELS asks for first; what it declines goes to the kernel for every
 * choice. */
weft_status_t wefti_bind_prepare(weft_session_t *session, uint32_t index,
                                 const weft_node_desc_t *desc, uint32_t threads,
                                 wefti_bound_kernel_t *bound)
{
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[index];
    const wefti_settings_t *settings = &session->context->settings;
    const weft_kernel_env_t env = {sizeof(env), settings->isa, threads};
    const char *family =
        settings->kernels == WEFTI_KERNELS_ONEDNN ? wefti_kernels_name(settings->kernels) : NULL;
    const weft_kernel_t *found = NULL;
    char declined[160] = "";
    weft_status_t status = WEFT_OK;
    if (has_kernels(session)) {
        return prepare_for_device(session, kernel, desc, &env, bound);
    }
    WEFT_RETURN_IF_ERROR(find_kernel(session, kernel, family, &found));
    if (found->prepare != NULL) {
        const weft_kernel_t *asked = found;
        status =
            wefti_prepare_kernel(asked, desc, &env, &found, &bound->state, &bound->scratch_bytes);
        if (status == WEFT_ERR_UNSUPPORTED && asked->family != NULL) {
            snprintf(declined, sizeof(declined), "%s", weft_last_error());
            WEFT_RETURN_IF_ERROR(find_kernel(session, kernel, NULL, &asked));
            status = wefti_prepare_kernel(asked, desc, &env, &found, &bound->state,
                                          &bound->scratch_bytes);
        }
    }
    if (status < 0) {
        return wefti_error_prefix(status, "node \"%s\" (%s)", kernel->name, kernel->op);
    }
    bound->kernel = found;
    log_choice(session, kernel, bound, declined);
    return WEFT_OK;
}

static weft_status_t no_scratch(size_t bytes)
{
    return wefti_error(WEFT_ERR_NO_MEMORY,
                       "out of memory: cannot allocate %zu bytes of kernel scratch", bytes);
}

static weft_status_t make_scratch(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    for (uint32_t i = 0; i < session->plan->kernel_count; i++) {
        uint32_t stream = session->kernel_stream[i];
        if (session->kernels[i].scratch_bytes > session->scratch_bytes[stream]) {
            session->scratch_bytes[stream] = session->kernels[i].scratch_bytes;
        }
    }
    for (uint32_t s = 0; s < session->plan->stream_count; s++) {
        size_t bytes = session->scratch_bytes[s];
        if (bytes == 0) {
            continue;
        }
        if (bytes > SIZE_MAX / 2) {
            return no_scratch(bytes);
        }
        bytes = wefti_align_up(bytes, SCRATCH_ALIGNMENT);
        if (device != NULL) {
            WEFT_RETURN_IF_ERROR(device->ops->mem_alloc(device, bytes, &session->scratch[s]));
        } else {
            session->scratch[s] = aligned_alloc(SCRATCH_ALIGNMENT, bytes);
            if (session->scratch[s] == NULL) {
                return no_scratch(bytes);
            }
            memset(session->scratch[s], 0, bytes); /* touched at bind, not in the first step */
        }
        session->scratch_bytes[s] = bytes;
    }
    return WEFT_OK;
}

weft_status_t wefti_bind_use(weft_session_t *session, uint32_t index, uint32_t stream)
{
    weft_node_desc_t desc;
    wefti_bound_kernel_t *bound = &session->kernels[index];
    if (bound->kernel == NULL) {
        session->kernel_stream[index] = stream;
        WEFT_RETURN_IF_ERROR(wefti_plan_kernel_desc(session->plan, index, &session->arena, &desc));
        return wefti_bind_prepare(session, index, &desc, session->context->kernel_threads, bound);
    }
    return session->kernel_stream[index] == stream
               ? WEFT_OK
               : wefti_error(WEFT_ERR_UNSUPPORTED,
                             "kernel \"%s\": used by programs on different streams",
                             session->plan->kernels[index].name);
}

weft_status_t wefti_bind_scratch(weft_session_t *session)
{
    WEFT_RETURN_IF_ERROR(make_scratch(session));
    for (uint32_t p = 0; p < session->plan->program_count; p++) {
        for (uint32_t s = 0; s < session->plan->stream_count; s++) {
            const wefti_stream_records_t *stream = &session->programs[p].streams[s];
            for (uint32_t i = 0; i < stream->count; i++) {
                if (stream->records[i].kind == WEFTI_RECORD_KERNEL) {
                    stream->records[i].kernel.call.scratch = session->scratch[s];
                }
            }
        }
    }
    return WEFT_OK;
}

void wefti_unprepare(wefti_bound_kernel_t *bound)
{
    if (bound->kernel != NULL && bound->kernel->destroy != NULL) {
        bound->kernel->destroy(bound->state);
    }
}

void wefti_unbind_kernels(weft_session_t *session)
{
    weft_device_t *device = session->context->device;
    for (uint32_t i = 0; session->kernels != NULL && i < session->plan->kernel_count; i++) {
        wefti_unprepare(&session->kernels[i]);
    }
    for (uint32_t s = 0; session->scratch != NULL && s < session->plan->stream_count; s++) {
        if (device != NULL && session->scratch[s] != NULL) {
            device->ops->mem_free(device, session->scratch[s]);
        } else {
            free(session->scratch[s]);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Platforms and devices: counting, describing, opening; the table of functions. */
#include "devices/opencl/opencl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 64u
#define DLPACK_OPENCL 4

/* ---- what there is ---- */

static cl_uint find_devices(cl_device_id ids[DEVICES])
{
    cl_platform_id platforms[16];
    cl_uint platform_count = 0, count = 0;
    if (clGetPlatformIDs(16, platforms, &platform_count) != CL_SUCCESS) {
        return 0;
    }
    platform_count = platform_count < 16 ? platform_count : 16;
    for (cl_uint p = 0; p < platform_count && count < DEVICES; p++) {
        cl_uint found = 0;
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, DEVICES - count, ids + count,
                           &found) == CL_SUCCESS) {
            count += found < DEVICES - count ? found : DEVICES - count;
        }
    }
    return count;
}

static weft_status_t count_devices(uint32_t *out_count)
{
    cl_device_id ids[DEVICES];
    cl_uint count = find_devices(ids);
    if (count == 0) {
        return cl_fail(WEFT_ERR_NOT_FOUND, "opencl: no platform with a device found; install the "
                                           "driver of the device (Debian's for processors: "
                                           "pocl-opencl-icd)");
    }
    *out_count = count;
    return WEFT_OK;
}

static weft_status_t find_device(uint32_t index, cl_device_id *out_id)
{
    cl_device_id ids[DEVICES];
    cl_uint count = find_devices(ids);
    if (index >= count) {
        return cl_fail(WEFT_ERR_NOT_FOUND, "opencl:%u: no such device: found %u", index, count);
    }
    *out_id = ids[index];
    return WEFT_OK;
}

/* A device that computes in the memory of its host. */
static bool is_shared(cl_device_id id)
{
    cl_device_type type = 0;
    const char *asked = getenv("WEFT_OPENCL_MEMORY");
    clGetDeviceInfo(id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    return (type & CL_DEVICE_TYPE_CPU) != 0 && (asked == NULL || strcmp(asked, "buffer") != 0);
}

static bool has_f64(cl_device_id id)
{
    cl_device_fp_config config = 0;
    clGetDeviceInfo(id, CL_DEVICE_DOUBLE_FP_CONFIG, sizeof config, &config, NULL);
    return config != 0;
}

static bool has_exact_division(cl_device_id id)
{
    cl_device_fp_config config = 0;
    clGetDeviceInfo(id, CL_DEVICE_SINGLE_FP_CONFIG, sizeof config, &config, NULL);
    return (config & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
}

static bool has_denormals(cl_device_id id)
{
    cl_device_fp_config config = 0;
    clGetDeviceInfo(id, CL_DEVICE_SINGLE_FP_CONFIG, sizeof config, &config, NULL);
    return (config & CL_FP_DENORM) != 0;
}

static weft_device_caps_t caps_of(cl_device_id id)
{
    return (is_shared(id) ? WEFT_DEVICE_HOST_ACCESS | WEFT_DEVICE_PEER_DIRECT : 0) |
           (has_exact_division(id) && has_denormals(id) ? WEFT_DEVICE_CPU_BITS : 0);
}

static weft_status_t describe(uint32_t index, weft_device_info_t *out_info)
{
    cl_device_id id = NULL;
    cl_platform_id platform = NULL;
    cl_ulong memory = 0;
    cl_uint units = 0;
    weft_status_t status = find_device(index, &id);
    if (status < 0) {
        return status;
    }
    clGetDeviceInfo(id, CL_DEVICE_NAME, sizeof out_info->name - 1, out_info->name, NULL);
    clGetDeviceInfo(id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL);
    clGetDeviceInfo(id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL);
    clGetDeviceInfo(id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    char version[1024] = ""; /* PoCL's has a list of all it was built with */
    clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof version - 1, version, NULL);
    snprintf(out_info->platform, sizeof out_info->platform, "%.*s",
             (int)sizeof out_info->platform - 1, version);
    out_info->memory_bytes = memory;
    out_info->compute_units = units;
    out_info->caps = caps_of(id);
    snprintf(out_info->note, sizeof out_info->note, "%s%s%s",
             is_shared(id) ? "" : "other ranks are reached through host memory; ",
             has_exact_division(id) ? "" : "divisions are not those of the CPU; ",
             has_denormals(id) ? "" : "denormals are zero; ");
    size_t length = strlen(out_info->note);
    if (length > 2) {
        out_info->note[length - 2] = '\0';
    }
    return WEFT_OK;
}

/* ---- open, close ---- */

static const weft_device_ops_t functions = {.abi_version = WEFT_DEVICE_ABI_VERSION,
                                            .mem_alloc = cl_mem_alloc,
                                            .mem_free = cl_mem_free,
                                            .mem_export = cl_mem_export,
                                            .mem_import = cl_mem_import,
                                            .mem_unimport = cl_mem_unimport,
                                            .queue_create = cl_queue_create,
                                            .queue_destroy = cl_queue_destroy,
                                            .copy = cl_copy,
                                            .signal = cl_signal,
                                            .wait = cl_wait,
                                            .reduce = cl_reduce,
                                            .launch = cl_launch,
                                            .flush = cl_flush,
                                            .query = cl_query,
                                            .cancel = cl_cancel,
                                            .kernels = cl_kernels,
                                            .mem_handle = cl_mem_handle,
                                            .mem_wrap = cl_mem_wrap,
                                            .mem_unwrap = cl_mem_unwrap,
                                            .profile = cl_profile,
                                            .profile_take = cl_profile_take,
                                            .dlpack_type = DLPACK_OPENCL};

static void close_device(weft_device_t *base)
{
    cl_device_t *device = (cl_device_t *)base;
    if (device == NULL) {
        return;
    }
    cl_watch_close(device);
    for (size_t i = 0; i < device->function_count; i++) {
        clReleaseKernel(device->functions[i].kernel);
    }
    free(device->functions);
    if (device->program != NULL) {
        clReleaseProgram(device->program);
    }
    cl_memory_close(device);
    if (device->copies != NULL) {
        clReleaseCommandQueue(device->copies);
    }
    if (device->context != NULL) {
        clReleaseContext(device->context);
    }
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static weft_status_t start(cl_device_t *device)
{
    cl_int code;
    device->context = clCreateContext(NULL, 1, &device->id, NULL, NULL, &code);
    if (code != CL_SUCCESS) {
        device->context = NULL;
        return cl_fail_code(device, "cannot create a context", code);
    }
    device->copies = clCreateCommandQueue(device->context, device->id, 0, &code);
    if (code != CL_SUCCESS) {
        device->copies = NULL;
        return cl_fail_code(device, "cannot create a command queue", code);
    }
    weft_status_t status = cl_memory_open(device);
    return status == WEFT_OK ? cl_watch_open(device) : status;
}

static weft_status_t open_device(uint32_t index, weft_device_t **out_device)
{
    cl_device_id id;
    weft_status_t status = find_device(index, &id);
    if (status < 0) {
        return status;
    }
    cl_device_t *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: device opencl:%u", index);
    }
    device->ops = functions;
    device->ops.caps = caps_of(id);
    device->ops.kernel_count = has_f64(id) ? cl_kernel_count : cl_float_kernel_count;
    device->ops.dlpack_index = (int32_t)index;
    device->ops.name = device->name;
    device->base.ops = &device->ops;
    device->id = id;
    device->shared = is_shared(id);
    device->f64 = has_f64(id);
    device->exact_division = has_exact_division(id);
    device->file = -1;
    snprintf(device->name, sizeof device->name, "opencl:%u", index);
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->watch.lock, NULL);
    pthread_cond_init(&device->watch.change, NULL);
    status = start(device);
    if (status < 0) {
        close_device(&device->base);
        return status;
    }
    *out_device = &device->base;
    return WEFT_OK;
}

static const weft_device_plugin_t plugin = {.abi_version = WEFT_DEVICE_ABI_VERSION,
                                            .name = "opencl",
                                            .count = count_devices,
                                            .describe = describe,
                                            .open = open_device,
                                            .close = close_device};

const weft_device_plugin_t *weft_device_plugin(const weft_device_host_t *weft);

__attribute__((visibility("default"))) const weft_device_plugin_t *
weft_device_plugin(const weft_device_host_t *weft)
{
    cl_host = weft;
    return &plugin;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What all files use: messages, and functions in OpenCL C, which are built with the first one. */
#include "devices/opencl/opencl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_ITEMS 64u /* work items of a group: every device can */

const weft_device_host_t *cl_host;

/* ---- messages ---- */

weft_status_t cl_fail(weft_status_t status, const char *format, ...)
{
    char text[2 * CL_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return cl_host->error(status, text);
}

static const char *code_name(cl_int code)
{
    switch (code) {
    case CL_DEVICE_NOT_AVAILABLE:
        return "CL_DEVICE_NOT_AVAILABLE";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
        return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case CL_OUT_OF_RESOURCES:
        return "CL_OUT_OF_RESOURCES";
    case CL_OUT_OF_HOST_MEMORY:
        return "CL_OUT_OF_HOST_MEMORY";
    case CL_MEM_COPY_OVERLAP:
        return "CL_MEM_COPY_OVERLAP";
    case CL_BUILD_PROGRAM_FAILURE:
        return "CL_BUILD_PROGRAM_FAILURE";
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
        return "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST";
    default:
        return "OpenCL error";
    }
}

weft_status_t cl_fail_code(const cl_device_t *device, const char *what, cl_int code)
{
    bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES ||
                  code == CL_OUT_OF_HOST_MEMORY;
    return cl_fail(memory ? WEFT_ERR_NO_MEMORY : WEFT_ERR_SYSTEM, "device %s: %s: %s (%d)",
                   device->name, what, code_name(code), (int)code);
}

/* ---- functions in OpenCL C ---- */

static weft_status_t build(cl_device_t *device)
{
    char options[128], log[16384] = "";
    const char *source = cl_source;
    cl_int code;
    snprintf(options, sizeof options, "-cl-std=CL1.2%s%s",
             device->exact_division ? " -cl-fp32-correctly-rounded-divide-sqrt" : "",
             device->f64 ? " -D WEFT_F64" : "");
    cl_program program = clCreateProgramWithSource(device->context, 1, &source, NULL, &code);
    if (code == CL_SUCCESS) {
        code = clBuildProgram(program, 1, &device->id, options, NULL, NULL);
        if (code != CL_SUCCESS) {
            clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log,
                                  NULL);
            clReleaseProgram(program);
        }
    }
    if (code != CL_SUCCESS) {
        const char *error = strstr(log, "error:"); /* of the log, the line that matters */
        error = error != NULL ? error : log;
        return cl_fail(WEFT_ERR_SYSTEM, "device %s: cannot build kernels: %s (%d): %.*s",
                       device->name, code_name(code), (int)code, (int)strcspn(error, "\n"), error);
    }
    device->program = program;
    return WEFT_OK;
}

cl_kernel cl_function(cl_device_t *device, const char *name)
{
    cl_int code;
    for (size_t i = 0; i < device->function_count; i++) {
        if (strcmp(device->functions[i].name, name) == 0) {
            return device->functions[i].kernel;
        }
    }
    if (device->program == NULL && build(device) < 0) {
        return NULL;
    }
    if (device->function_count == device->function_capacity) {
        size_t capacity = 2 * device->function_capacity + 16;
        cl_function_t *functions = realloc(device->functions, capacity * sizeof *functions);
        if (functions == NULL) {
            cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: list of functions");
            return NULL;
        }
        device->functions = functions;
        device->function_capacity = capacity;
    }
    cl_kernel kernel = clCreateKernel(device->program, name, &code);
    if (code != CL_SUCCESS) {
        cl_fail(WEFT_ERR_SYSTEM, "device %s: function %s: %s (%d)", device->name, name,
                code_name(code), (int)code);
        return NULL;
    }
    device->functions[device->function_count++] = (cl_function_t){name, kernel};
    return kernel;
}

cl_int cl_call(weft_queue_t *queue, cl_kernel kernel, cl_uint index, size_t count,
               cl_uint wait_count, const cl_event *waits, cl_event *out_event)
{
    const size_t local = GROUP_ITEMS, global = (count + local - 1) / local * local;
    cl_ulong items = count;
    cl_int code = clSetKernelArg(kernel, index, sizeof items, &items);
    return code == CL_SUCCESS ? clEnqueueNDRangeKernel(queue->commands, kernel, 1, NULL, &global,
                                                       &local, wait_count, waits, out_event)
                              : code;
}

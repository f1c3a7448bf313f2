/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/onednn_program.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

#define ALIGNMENT 64u
/* oneDNN's generated code takes some offsets to be 32 bits wide. */
#define LARGEST_BYTES ((size_t)INT32_MAX)

weft_status_t wefti_onednn_status(dnnl_status_t status, const char *what)
{
    switch (status) {
    case dnnl_success:
        return WEFT_OK;
    case dnnl_out_of_memory:
        return wefti_error(WEFT_ERR_NO_MEMORY, "oneDNN: out of memory for %s", what);
    case dnnl_unimplemented:
    case dnnl_invalid_arguments: /* shapes were checked: this is what oneDNN cannot express */
        return wefti_error(WEFT_ERR_UNSUPPORTED, "oneDNN: unsupported operation: %s", what);
    default:
        return wefti_error(WEFT_ERR_INTERNAL, "oneDNN: %s failed with status %d", what,
                           (int)status);
    }
}

/* The instruction set of generated code is one choice per process: the CPU's best, or
 * ONEDNN_MAX_CPU_ISA. */
static weft_isa_t library_isa(void)
{
    const uint32_t isa = (uint32_t)dnnl_get_effective_cpu_isa();
    if ((isa & (uint32_t)dnnl_cpu_isa_avx512_core) == (uint32_t)dnnl_cpu_isa_avx512_core) {
        return WEFT_ISA_AVX512;
    }
    return (isa & (uint32_t)dnnl_cpu_isa_avx2) == (uint32_t)dnnl_cpu_isa_avx2 ? WEFT_ISA_AVX2
                                                                              : WEFT_ISA_PORTABLE;
}

/*
 * oneDNN keeps one cache of primitives per process, so sessions of several threads share what they
 * make. It guards that itself, but by means that ThreadSanitizer cannot see; this lock, the one
 * static variable here, is held only while kernels are made and destroyed.
 */
static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;

static weft_status_t open_program(const weft_kernel_env_t *env, wefti_onednn_program_t *program)
{
    weft_status_t status;
    static const char *const names[] = {"SSE4.1", "AVX2", "AVX-512"};
    const weft_isa_t isa = library_isa();
    if (env->isa < isa || isa == WEFT_ISA_PORTABLE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "oneDNN: already initialised for %s in this process", names[isa]);
    }
    program->threads = env->thread_count == 0 ? 1 : env->thread_count;
    WEFT_TRY(status,
             wefti_onednn_status(dnnl_engine_create(&program->engine, dnnl_cpu, 0), "an engine"),
             out);
    status = wefti_onednn_status(
        dnnl_stream_create(&program->stream, program->engine, dnnl_stream_in_order), "a stream");
out:
    return status;
}

static void close_program(wefti_onednn_program_t *program)
{
    for (uint32_t i = 0; i < program->step_count; i++) {
        dnnl_primitive_destroy(program->steps[i].primitive);
    }
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        dnnl_memory_destroy(program->tensors[i].memory);
    }
    if (program->stream != NULL) {
        dnnl_stream_destroy(program->stream);
    }
    if (program->engine != NULL) {
        dnnl_engine_destroy(program->engine);
    }
    wefti_free(NULL, program);
}

void wefti_onednn_destroy(void *state)
{
    if (state != NULL) {
        pthread_mutex_lock(&library_lock);
        close_program(state);
        pthread_mutex_unlock(&library_lock);
    }
}

weft_status_t wefti_onednn_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   wefti_onednn_describe_fn describe, void **out_state,
                                   size_t *out_scratch_bytes)
{
    *out_state = NULL;
    WEFT_RETURN_IF_ERROR(wefti_onednn_load());
    wefti_onednn_program_t *program = wefti_alloc(NULL, sizeof *program);
    if (program == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    /* Primitives are made for as many threads as OpenMP has now, and must run with as many. */
    const int threads = omp_get_max_threads();
    omp_set_num_threads(env->thread_count == 0 ? 1 : (int)env->thread_count);
    pthread_mutex_lock(&library_lock);
    weft_status_t status = open_program(env, program);
    if (status == WEFT_OK) {
        status = describe(node, env, program);
    }
    omp_set_num_threads(threads);
    if (status != WEFT_OK) {
        close_program(program);
    }
    pthread_mutex_unlock(&library_lock);
    if (status != WEFT_OK) {
        return status;
    }
    *out_state = program;
    *out_scratch_bytes = program->scratchpad_bytes + program->scratch_bytes;
    return WEFT_OK;
}

static void *address(const wefti_onednn_program_t *program, const wefti_onednn_tensor_t *tensor,
                     const weft_kernel_call_t *call)
{
    switch (tensor->place) {
    case WEFTI_ONEDNN_INPUT:
        return (void *)(uintptr_t)call->inputs[tensor->at]; /* oneDNN takes no const */
    case WEFTI_ONEDNN_OUTPUT:
        return call->outputs[tensor->at];
    case WEFTI_ONEDNN_SCRATCH:
        return (uint8_t *)call->scratch + program->scratchpad_bytes + tensor->at;
    default:
        return call->scratch;
    }
}

weft_status_t wefti_onednn_run(const weft_kernel_call_t *call)
{
    wefti_onednn_program_t *program = call->state;
    dnnl_status_t status = dnnl_success;
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        wefti_onednn_tensor_t *tensor = &program->tensors[i];
        void *handle = address(program, tensor, call);
        if (tensor->handle != handle) {
            tensor->handle = handle;
            status = dnnl_memory_set_data_handle(tensor->memory, handle);
            if (status != dnnl_success) {
                tensor->handle = NULL;
                return wefti_onednn_status(status, "an address");
            }
        }
    }
    const int threads = omp_get_max_threads();
    if (threads != (int)program->threads) {
        omp_set_num_threads((int)program->threads);
    }
    for (uint32_t i = 0; i < program->step_count && status == dnnl_success; i++) {
        const wefti_onednn_step_t *step = &program->steps[i];
        status =
            dnnl_primitive_execute(step->primitive, program->stream, step->arg_count, step->args);
    }
    if (status == dnnl_success) {
        status = dnnl_stream_wait(program->stream);
    }
    if (threads != (int)program->threads) {
        omp_set_num_threads(threads);
    }
    return status == dnnl_success ? WEFT_OK : wefti_onednn_status(status, program->name);
}

const char *wefti_onednn_implementation(void *state)
{
    return ((const wefti_onednn_program_t *)state)->name;
}

weft_status_t wefti_onednn_tensor(wefti_onednn_program_t *program, const dnnl_memory_desc_t *desc,
                                  wefti_onednn_place_t place, size_t index, uint32_t *out_tensor)
{
    if (program->tensor_count == WEFTI_ONEDNN_TENSORS) {
        return wefti_error(WEFT_ERR_INTERNAL, "oneDNN: too many tensors");
    }
    const size_t bytes = dnnl_memory_desc_get_size(desc);
    if (bytes > LARGEST_BYTES) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "oneDNN: tensor too large: %zu bytes", bytes);
    }
    wefti_onednn_tensor_t *tensor = &program->tensors[program->tensor_count];
    *tensor = (wefti_onednn_tensor_t){
        .desc = *desc, .place = place, .at = index, .copy_of = WEFTI_ONEDNN_TENSORS};
    /* No address yet: run gives it one. */
    weft_status_t status = wefti_onednn_status(
        dnnl_memory_create(&tensor->memory, desc, program->engine, DNNL_MEMORY_NONE), "a tensor");
    if (status != WEFT_OK) {
        return status;
    }
    *out_tensor = program->tensor_count++;
    return WEFT_OK;
}

weft_status_t wefti_onednn_tensor_as(wefti_onednn_program_t *program, uint32_t tensor,
                                     const dnnl_memory_desc_t *wanted, uint32_t *out_tensor)
{
    *out_tensor = tensor;
    if (dnnl_memory_desc_equal(&program->tensors[tensor].desc, wanted)) {
        return WEFT_OK;
    }
    weft_status_t status = wefti_onednn_tensor(program, wanted, WEFTI_ONEDNN_SCRATCH,
                                               program->scratch_bytes, out_tensor);
    if (status == WEFT_OK) {
        program->scratch_bytes += wefti_align_up(dnnl_memory_desc_get_size(wanted), ALIGNMENT);
    }
    return status;
}

weft_status_t wefti_onednn_reorder(wefti_onednn_program_t *program, uint32_t from, uint32_t to)
{
    weft_status_t status;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    if (from == to) {
        return WEFT_OK;
    }
    WEFT_TRY(status, wefti_onednn_status(dnnl_primitive_attr_create(&attr), "attributes"), out);
    WEFT_TRY(status,
             wefti_onednn_status(
                 dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                 "a scratchpad"),
             out);
    WEFT_TRY(status,
             wefti_onednn_status(dnnl_reorder_primitive_desc_create(
                                     &desc, &program->tensors[from].desc, program->engine,
                                     &program->tensors[to].desc, program->engine, attr),
                                 "a reorder"),
             out);
    const wefti_onednn_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    status = wefti_onednn_step(program, desc, args, 2);
out:
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

weft_status_t wefti_onednn_input_as(wefti_onednn_program_t *program, uint32_t tensor,
                                    const dnnl_memory_desc_t *wanted, uint32_t *out_tensor)
{
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        if (program->tensors[i].copy_of == tensor &&
            dnnl_memory_desc_equal(&program->tensors[i].desc, wanted)) {
            *out_tensor = i;
            return WEFT_OK;
        }
    }
    weft_status_t status = wefti_onednn_tensor_as(program, tensor, wanted, out_tensor);
    if (status == WEFT_OK && *out_tensor != tensor) {
        program->tensors[*out_tensor].copy_of = tensor;
        status = wefti_onednn_reorder(program, tensor, *out_tensor);
    }
    return status;
}

/* Its reference code is plain loops over all indices, 40 to 400 times slower than the rest. */
static bool is_reference(const char *implementation)
{
    return strncmp(implementation, "ref", 3) == 0 || strstr(implementation, ":ref") != NULL;
}

weft_status_t wefti_onednn_choose(wefti_onednn_program_t *program, const void *op_desc,
                                  dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                  const char *label, dnnl_primitive_desc_t *out_desc)
{
    weft_status_t status;
    dnnl_primitive_attr_t own = NULL;
    const char *implementation = "";
    *out_desc = NULL;
    if (attr == NULL) {
        WEFT_TRY(status, wefti_onednn_status(dnnl_primitive_attr_create(&own), "attributes"), fail);
        attr = own;
    }
    WEFT_TRY(status,
             wefti_onednn_status(
                 dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                 "a scratchpad"),
             fail);
    WEFT_TRY(status,
             wefti_onednn_status(
                 dnnl_primitive_desc_create(out_desc, op_desc, attr, program->engine, hint),
                 "these shapes and layouts"),
             fail);
    WEFT_TRY(status,
             wefti_onednn_status(
                 dnnl_primitive_desc_query(*out_desc, dnnl_query_impl_info_str, 0, &implementation),
                 "a name"),
             fail);
    if (label != NULL && is_reference(implementation)) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED,
                             "oneDNN: no optimised implementation, only reference code (%s%s)",
                             label, implementation);
        goto fail;
    }
    if (label != NULL) {
        const size_t used = strlen(program->name);
        snprintf(program->name + used, sizeof program->name - used, "%s%s%s", used > 0 ? ", " : "",
                 label, implementation);
    }
    dnnl_primitive_attr_destroy(own);
    return WEFT_OK;
fail:
    dnnl_primitive_desc_destroy(*out_desc);
    dnnl_primitive_attr_destroy(own);
    *out_desc = NULL;
    return status;
}

const dnnl_memory_desc_t *wefti_onednn_wanted(const_dnnl_primitive_desc_t desc, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(desc, what, 0);
}

weft_status_t wefti_onednn_step(wefti_onednn_program_t *program, const_dnnl_primitive_desc_t desc,
                                const wefti_onednn_arg_t *args, int arg_count)
{
    const dnnl_memory_desc_t *pad = wefti_onednn_wanted(desc, dnnl_query_scratchpad_md);
    const size_t pad_bytes = pad != NULL ? dnnl_memory_desc_get_size(pad) : 0;
    if (program->step_count == WEFTI_ONEDNN_STEPS || arg_count >= WEFTI_ONEDNN_ARGS) {
        return wefti_error(WEFT_ERR_INTERNAL, "oneDNN: too many steps");
    }
    wefti_onednn_step_t *step = &program->steps[program->step_count];
    *step = (wefti_onednn_step_t){.arg_count = arg_count};
    for (int i = 0; i < arg_count; i++) {
        step->args[i] = (dnnl_exec_arg_t){args[i].arg, program->tensors[args[i].tensor].memory};
    }
    if (pad_bytes > 0) {
        uint32_t tensor;
        weft_status_t status =
            wefti_onednn_tensor(program, pad, WEFTI_ONEDNN_SCRATCHPAD, 0, &tensor);
        if (status != WEFT_OK) {
            return status;
        }
        const size_t bytes = wefti_align_up(pad_bytes, ALIGNMENT);
        program->scratchpad_bytes =
            bytes > program->scratchpad_bytes ? bytes : program->scratchpad_bytes;
        step->args[step->arg_count++] =
            (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, program->tensors[tensor].memory};
    }
    weft_status_t status =
        wefti_onednn_status(dnnl_primitive_create(&step->primitive, desc), "a primitive");
    program->step_count += status == WEFT_OK ? 1 : 0;
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a checkpoint: everything is checked, and agreed on, before anything is changed. */
#include "runtime/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/base/text.h"
#include "runtime/plan/session_state.h"

#define MAX_STEPS ((uint64_t)1 << 53) /* steps are handed to kernels as floating point */

/* ---- metadata ---- */

static weft_status_t read_number(const wefti_safetensors_t *file, const char *key, bool required,
                                 uint64_t *out_value)
{
    const char *text = wefti_safetensors_text(file, key);
    uint64_t value = 0;
    *out_value = 0;
    if (text == NULL) {
        return required ? wefti_error(WEFT_ERR_FORMAT, "metadata: no \"%s\"", key) : WEFT_OK;
    }
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*c - '0'), &value)) {
            return wefti_error(WEFT_ERR_FORMAT, "metadata \"%s\": invalid number '%.40s'", key,
                               text);
        }
    }
    if (*text == '\0') {
        return wefti_error(WEFT_ERR_FORMAT, "metadata \"%s\": empty", key);
    }
    *out_value = value;
    return WEFT_OK;
}

static weft_status_t read_real(const wefti_safetensors_t *file, const char *key, double *out_value)
{
    double value;
    const char *text = wefti_safetensors_text(file, key);
    if (text == NULL) {
        return WEFT_OK;
    }
    if (!wefti_double_parse(text, &value) || !(value == value)) {
        return wefti_error(WEFT_ERR_FORMAT, "metadata \"%s\": invalid number '%.40s'", key, text);
    }
    *out_value = value;
    return WEFT_OK;
}

static weft_status_t read_info(const wefti_safetensors_t *file, weft_checkpoint_info_t *info)
{
    uint64_t format, world_size;
    const char *optimizer = wefti_safetensors_text(file, "weft.optimizer");
    *info =
        (weft_checkpoint_info_t){.struct_size = sizeof *info, .tensor_count = file->tensor_count};
    if (wefti_safetensors_text(file, "weft.format") == NULL) {
        return wefti_error(WEFT_ERR_FORMAT, "not a checkpoint: no \"weft.format\" in the metadata");
    }
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.format", true, &format));
    if (format != WEFTI_CHECKPOINT_FORMAT) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "unsupported checkpoint format %" PRIu64 ": expected %u", format,
                           WEFTI_CHECKPOINT_FORMAT);
    }
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.step", true, &info->step));
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.seed", false, &info->seed));
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.epoch", false, &info->epoch));
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.sample", false, &info->sample));
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.sample_count", false, &info->sample_count));
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.global_batch", false, &info->global_batch));
    WEFT_RETURN_IF_ERROR(read_number(file, "weft.world_size", false, &world_size));
    WEFT_RETURN_IF_ERROR(read_real(file, "weft.lr", &info->lr));
    if (info->step > MAX_STEPS) {
        return wefti_error(WEFT_ERR_FORMAT, "metadata \"weft.step\": too large");
    }
    if (isinf(info->lr)) {
        return wefti_error(WEFT_ERR_FORMAT, "metadata \"weft.lr\": not finite");
    }
    info->world_size = world_size > UINT32_MAX ? UINT32_MAX : (uint32_t)world_size;
    snprintf(info->optimizer, sizeof info->optimizer, "%s", optimizer != NULL ? optimizer : "");
    return WEFT_OK;
}

/* ---- does it fit? ---- */

static const char *shape_text(const weft_tensor_desc_t *desc, char *buffer, size_t bytes)
{
    int at = snprintf(buffer, bytes, "%s [", weft_dtype_name(desc->dtype));
    for (uint32_t i = 0; i < desc->rank && at > 0 && (size_t)at < bytes; i++) {
        at += snprintf(buffer + at, bytes - (size_t)at, "%s%lld", i > 0 ? ", " : "",
                       (long long)desc->dims[i]);
    }
    if (at > 0 && (size_t)at < bytes) {
        snprintf(buffer + at, bytes - (size_t)at, "]");
    }
    return buffer;
}

static weft_status_t match_tensor(const wefti_stored_tensor_t *stored, const wefti_state_t *tensor)
{
    char has[256], wants[256];
    if (stored->desc.dtype != tensor->desc.dtype || stored->desc.rank != tensor->desc.rank ||
        memcmp(stored->desc.dims, tensor->desc.dims,
               tensor->desc.rank * sizeof tensor->desc.dims[0]) != 0) {
        return wefti_error(
            WEFT_ERR_FORMAT,
            "tensor \"%.100s\": type or shape mismatch: the checkpoint has %s, the plan %s",
            stored->name, shape_text(&stored->desc, has, sizeof has),
            shape_text(&tensor->desc, wants, sizeof wants));
    }
    return WEFT_OK;
}

/* An open file fits the plan: its tensors are those of the list. */
static weft_status_t match_file(const wefti_safetensors_t *file, const weft_plan_t *plan,
                                const wefti_checkpoint_tensors_t *tensors)
{
    const char *optimizer = wefti_safetensors_text(file, "weft.optimizer");
    if (optimizer != NULL && plan->optimizer != NULL && strcmp(optimizer, plan->optimizer) != 0) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "optimizer mismatch: the checkpoint has \"%.40s\", the plan \"%.40s\"",
                           optimizer, plan->optimizer);
    }
    /* Both are by name. */
    for (uint32_t i = 0; i < tensors->count || i < file->tensor_count; i++) {
        int order = i >= tensors->count ? -1
                    : i >= file->tensor_count
                        ? 1
                        : strcmp(file->tensors[i].name, tensors->list[i]->name);
        if (order < 0) {
            return wefti_error(WEFT_ERR_FORMAT, "tensor \"%.100s\": not in the plan",
                               file->tensors[i].name);
        }
        if (order > 0) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "tensor \"%.100s\": in the plan but not in the checkpoint",
                               tensors->list[i]->name);
        }
        WEFT_RETURN_IF_ERROR(match_tensor(&file->tensors[i], tensors->list[i]));
    }
    return WEFT_OK;
}

/* The contents' digest; it is that of the metadata, unless another program has dropped it from
 * there. */
static weft_status_t digest_contents(const wefti_safetensors_t *file, wefti_digest_t *out_digest)
{
    wefti_hasher_t *hasher = NULL;
    char text[65];
    const char *stored = wefti_safetensors_text(file, WEFTI_CHECKPOINT_DIGEST);
    WEFT_RETURN_IF_ERROR(wefti_hasher_create(&hasher));
    wefti_checkpoint_digest_texts(hasher, file->texts, file->text_count);
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const wefti_stored_tensor_t *tensor = &file->tensors[i];
        wefti_checkpoint_digest_name(hasher, tensor->name);
        wefti_hasher_add(hasher, file->data + tensor->begin_bytes,
                         tensor->end_bytes - tensor->begin_bytes);
    }
    wefti_hasher_finish(hasher, out_digest);
    wefti_hasher_destroy(hasher);
    if (stored != NULL && strcmp(stored, wefti_digest_hex(out_digest, text)) != 0) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "digest mismatch: the file is damaged, or a program changed it without "
                           "removing \"" WEFTI_CHECKPOINT_DIGEST "\" from the metadata");
    }
    return WEFT_OK;
}

/* Puts the file's name before an error of its contents. */
static weft_status_t named(const char *path, weft_status_t status)
{
    return status < 0 ? wefti_error_prefix(status, "%s", path) : WEFT_OK;
}

weft_status_t wefti_checkpoint_check_whole(const char *path, weft_checkpoint_info_t *out_info)
{
    wefti_safetensors_t file = {0};
    wefti_digest_t digest;
    weft_status_t status = wefti_safetensors_open(path, NULL, &file);
    status = status < 0 ? status : named(path, read_info(&file, out_info));
    status = status < 0 ? status : named(path, digest_contents(&file, &digest));
    wefti_safetensors_close(&file);
    return status;
}

weft_status_t weft_checkpoint_check(const char *path, const weft_plan_t *plan,
                                    const weft_registry_t *registry,
                                    weft_checkpoint_info_t *out_info)
{
    WEFT_CHECK_ARG(path);
    wefti_safetensors_t file = {0};
    wefti_arena_t arena;
    wefti_state_map_t states;
    weft_registry_t *own_registry = NULL;
    wefti_checkpoint_tensors_t tensors;
    weft_checkpoint_info_t info;
    weft_status_t status;
    wefti_arena_init(&arena, NULL, 0);
    WEFT_TRY(status, wefti_report_check("out_info", out_info), done);
    WEFT_TRY(status, wefti_safetensors_open(path, NULL, &file), done);
    WEFT_TRY(status, named(path, read_info(&file, &info)), done);
    if (plan != NULL && registry == NULL) {
        WEFT_TRY(status, weft_registry_create(NULL, &own_registry), done);
        registry = own_registry;
    }
    if (plan != NULL) {
        WEFT_TRY(status, wefti_state_map_build(plan, registry, &arena, &states), done);
        WEFT_TRY(status, wefti_checkpoint_tensors(plan, &states, &arena, &tensors), done);
        WEFT_TRY(status, named(path, match_file(&file, plan, &tensors)), done);
    }
    wefti_report_write(out_info, &info, sizeof info);
done:
    wefti_safetensors_close(&file);
    weft_registry_destroy(own_registry);
    wefti_arena_deinit(&arena);
    return status;
}

/* ---- into a session ---- */

typedef struct loader {
    weft_session_t *session;
    wefti_arena_t arena;
    wefti_safetensors_t file;
    wefti_checkpoint_tensors_t tensors; /* as those of the file */
    weft_checkpoint_info_t info;
    double *scalars; /* [binding] NAN: the file does not have it */
    wefti_digest_t digest;
} loader_t;

/* What the plan's scalar inputs will be; those that the file does not name stay. */
static weft_status_t read_scalars(loader_t *loader)
{
    const weft_plan_t *plan = loader->session->plan;
    loader->scalars =
        wefti_arena_array(&loader->arena, plan->binding_count + 1u, sizeof *loader->scalars);
    WEFT_RETURN_IF_NO_MEMORY(loader->scalars);
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        loader->scalars[i] = (double)NAN;
        if (wefti_checkpoint_has_scalar(&plan->bindings[i])) {
            char *key = wefti_arena_printf(&loader->arena, WEFTI_CHECKPOINT_SCALAR "%s",
                                           plan->bindings[i].name);
            WEFT_RETURN_IF_NO_MEMORY(key);
            WEFT_RETURN_IF_ERROR(read_real(&loader->file, key, &loader->scalars[i]));
        }
    }
    return WEFT_OK;
}

static weft_status_t read_file(loader_t *loader, const char *path)
{
    weft_session_t *session = loader->session;
    WEFT_RETURN_IF_ERROR(wefti_safetensors_open(path, session->allocator, &loader->file));
    WEFT_RETURN_IF_ERROR(named(path, read_info(&loader->file, &loader->info)));
    WEFT_RETURN_IF_ERROR(wefti_checkpoint_tensors(session->plan, &session->states, &loader->arena,
                                                  &loader->tensors));
    WEFT_RETURN_IF_ERROR(named(path, match_file(&loader->file, session->plan, &loader->tensors)));
    WEFT_RETURN_IF_ERROR(named(path, read_scalars(loader)));
    return named(path, digest_contents(&loader->file, &loader->digest));
}

static weft_status_t agree_on_file(loader_t *loader, weft_status_t status)
{
    wefti_endpoint_t *endpoint = loader->session->endpoint;
    void *gathered;
    WEFT_RETURN_IF_ERROR(wefti_session_gather(endpoint, &loader->arena, status, &loader->digest,
                                              sizeof loader->digest, &gathered));
    const wefti_digest_t *all = gathered;
    for (uint32_t r = 1; r < endpoint->world_size; r++) {
        if (memcmp(&all[r], &all[0], sizeof *all) != 0) {
            char first[65], other[65];
            return wefti_error(WEFT_ERR_MISMATCH,
                               "ranks read different checkpoints: rank 0 has digest %.16s, rank %u "
                               "has %.16s",
                               wefti_digest_hex(&all[0], first), r,
                               wefti_digest_hex(&all[r], other));
        }
    }
    return WEFT_OK;
}

static weft_status_t take_tensors(loader_t *loader)
{
    for (uint32_t i = 0; i < loader->tensors.count; i++) {
        const wefti_stored_tensor_t *stored = &loader->file.tensors[i];
        if (stored->end_bytes > stored->begin_bytes) {
            WEFT_RETURN_IF_ERROR(wefti_session_distribute(loader->session, loader->tensors.list[i],
                                                          loader->file.data + stored->begin_bytes));
        }
    }
    return WEFT_OK;
}

static weft_status_t take_scalars(loader_t *loader)
{
    const weft_plan_t *plan = loader->session->plan;
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        if (!isnan(loader->scalars[i])) {
            WEFT_RETURN_IF_ERROR(wefti_session_write_scalar(
                loader->session, plan->bindings[i].buffer, loader->scalars[i]));
        }
    }
    return WEFT_OK;
}

static weft_status_t load(loader_t *loader, const char *path, weft_checkpoint_info_t *out_info)
{
    const weft_session_t *session = loader->session;
    if (path == NULL) {
        return wefti_error_null("weft_session_load_checkpoint", "path");
    }
    WEFT_RETURN_IF_ERROR(wefti_report_check("out_info", out_info));
    if (session->micro_count != 0) {
        return wefti_error(
            WEFT_ERR_STATE,
            "session: cannot load a checkpoint within a step: %u of %u micro-batches are done",
            session->micro_count, session->plan->accumulate);
    }
    return read_file(loader, path);
}

weft_status_t weft_session_load_checkpoint(weft_session_t *session, const char *path,
                                           weft_checkpoint_info_t *out_info)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, CHECKPOINT_LOAD);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    loader_t loader = {.session = session};
    weft_status_t status;
    wefti_arena_init(&loader.arena, session->allocator, 0);
    WEFT_TRY(status, agree_on_file(&loader, load(&loader, path, out_info)), done);
    status = take_tensors(&loader);
    status = status < 0 ? status : take_scalars(&loader);
    WEFT_TRY(status, wefti_endpoint_agree(session->endpoint, status), done);
    session->behind = false;                                   /* all ranks have all weights */
    session->steps_before = loader.info.step - session->steps; /* their sum counts */
    wefti_report_write(out_info, &loader.info, sizeof loader.info);
done:
    wefti_safetensors_close(&loader.file);
    wefti_arena_deinit(&loader.arena);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/msccl.h"

#include <stdio.h>
#include <string.h>

#include "ops/algo/algorithms.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

bool wefti_msccl_is_path(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".xml") == 0;
}

static const char *eligible(const weft_algo_params_t *params)
{
    const wefti_msccl_t *msccl = wefti_msccl_of(params->algorithm);
    if (params->group_size != msccl->gpu_count) {
        return msccl->other_size;
    }
    if (wefti_collective_rooted(params->op) && params->root != msccl->root) {
        return msccl->other_root;
    }
    return !wefti_collective_reduces(params->op) ? NULL
           : msccl->tree                         ? wefti_needs_tree(params)
                                                 : wefti_needs_any(params);
}

static const wefti_msccl_program_t *program_of(const weft_algo_params_t *params)
{
    return &wefti_msccl_of(params->algorithm)->programs[params->in_place != 0];
}

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    const wefti_msccl_t *msccl = wefti_msccl_of(params->algorithm);
    out->lanes = msccl->lanes;
    if (wefti_collective_is_vector(params->op)) {
        out->blocks = msccl->chunks;
    } else {
        out->parts = msccl->parts;
    }
    out->phases = program_of(params)->phases;
    out->scratch_slots = program_of(params)->slots;
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    const wefti_msccl_program_t *program = program_of(params);
    const wefti_msccl_list_t *list = &program->ranks[params->rank];
    for (size_t i = 0; i < list->count; i++) {
        const wefti_msccl_action_t *action = &list->actions[i];
        const weft_place_t *sources = program->places + action->source;
        switch (action->op) {
        case WEFTI_DO_POST:
            weft_schedule_post(b, action->lane, action->phase);
            break;
        case WEFTI_DO_WAIT:
            weft_schedule_wait(b, action->lane, action->rank, 1, action->their_lane, action->phase,
                               0);
            break;
        case WEFTI_DO_COPY:
            weft_schedule_copy(b, action->lane, action->target, *sources, action->blocks);
            break;
        default:
            weft_schedule_reduce(b, action->lane, &action->target, 1, sources, action->sources,
                                 action->blocks, action->finish);
            break;
        }
    }
}

static weft_status_t verify(const wefti_msccl_t *msccl, bool in_place, weft_order_t order)
{
    weft_algo_params_t params = WEFT_ALGO_PARAMS_INIT;
    params.op = msccl->algorithm.op;
    params.group_size = msccl->gpu_count;
    params.root = msccl->root;
    params.in_place = in_place;
    params.order = order;
    return weft_algorithm_verify(&msccl->algorithm, &params);
}

/* Converts in the first way that is proved; the message is that of the last one. */
static weft_status_t find_way(wefti_msccl_t *msccl, bool in_place)
{
    static const wefti_msccl_way_t ways[] = {{false, false, false}, {false, true, false},
                                             {true, false, false},  {true, true, false},
                                             {true, false, true},   {true, true, true}};
    wefti_msccl_program_t *program = &msccl->programs[in_place];
    weft_status_t status = WEFT_ERR_INVALID_ARGUMENT;
    for (size_t i = 0; i < sizeof ways / sizeof *ways && status == WEFT_ERR_INVALID_ARGUMENT; i++) {
        if (ways[i].in_place != in_place) {
            continue;
        }
        wefti_msccl_program_deinit(msccl, program);
        WEFT_RETURN_IF_ERROR(wefti_msccl_convert(msccl, &ways[i], program));
        status = verify(msccl, in_place, WEFT_ORDER_ANY);
    }
    return status < 0 ? wefti_error_prefix(status, "%s: verification failed", msccl->path) : status;
}

static weft_status_t prove(wefti_msccl_t *msccl)
{
    bool both = wefti_collective_of(msccl->algorithm.op)->in_place;
    WEFT_RETURN_IF_ERROR(find_way(msccl, false));
    WEFT_RETURN_IF_ERROR(both ? find_way(msccl, true) : WEFT_OK);
    msccl->tree = true; /* what follows the tree needs no leave to deviate from it */
    msccl->tree = verify(msccl, false, WEFT_ORDER_TREE) == WEFT_OK &&
                  (!both || verify(msccl, true, WEFT_ORDER_TREE) == WEFT_OK);
    return WEFT_OK;
}

uint64_t wefti_msccl_digest(const char *text, size_t size_bytes)
{
    return wefti_hash_bytes(WEFTI_HASH_START, text, size_bytes);
}

weft_status_t wefti_msccl_parse(const char *path, const char *text, size_t size_bytes,
                                const weft_allocator_t *allocator, wefti_msccl_t **out_msccl)
{
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    *out_msccl = NULL;
    wefti_msccl_t *msccl = wefti_alloc(allocator, sizeof *msccl);
    WEFT_RETURN_IF_NO_MEMORY(msccl);
    msccl->allocator = allocator;
    msccl->path = wefti_strdup(allocator, path);
    if (msccl->path == NULL) {
        goto fail;
    }
    WEFT_TRY(status, wefti_msccl_read(msccl, text, size_bytes), fail);
    size_t length = strlen(msccl->name);
    msccl->digest = wefti_msccl_digest(text, size_bytes);
    snprintf(msccl->name + length, 12, "-%08x", (uint32_t)msccl->digest);
    msccl->algorithm = (weft_algorithm_t){WEFT_ALGO_ABI_VERSION,
                                          msccl->algorithm.op,
                                          msccl->name,
                                          "read from a file of MSCCL",
                                          eligible,
                                          resources,
                                          build};
    snprintf(msccl->other_size, sizeof msccl->other_size, "its file describes %u ranks",
             msccl->gpu_count);
    WEFT_TRY(status, prove(msccl), fail);
    snprintf(msccl->other_root, sizeof msccl->other_root, "its file has the root %u", msccl->root);
    *out_msccl = msccl;
    return WEFT_OK;
fail:
    wefti_msccl_destroy(msccl);
    return status;
}

void wefti_msccl_destroy(wefti_msccl_t *msccl)
{
    if (msccl == NULL) {
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        wefti_msccl_program_deinit(msccl, &msccl->programs[i]);
    }
    wefti_free(msccl->allocator, msccl->gpus);
    wefti_free(msccl->allocator, msccl->blocks);
    wefti_free(msccl->allocator, msccl->steps);
    wefti_free(msccl->allocator, msccl->order);
    wefti_free(msccl->allocator, msccl->name);
    wefti_free(msccl->allocator, msccl->path);
    wefti_free(msccl->allocator, msccl);
}

const weft_algorithm_t *wefti_msccl_algorithm(const wefti_msccl_t *msccl)
{
    return &msccl->algorithm;
}

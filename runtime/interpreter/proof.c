/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/interpreter/proof.h"

#include <stdio.h>
#include <string.h>

#include "ops/algo/table.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

#define MAX_PROOFS 4096u /* kept; beyond, the same is proved again */

typedef struct proof {
    const weft_algorithm_t *algorithm;
    uint64_t params; /* hash of what the proof was for */
    weft_status_t status;
    char text[400];
} proof_t;

/* Part of a context. */
typedef struct proofs {
    pthread_mutex_t lock;
    proof_t *list;
    size_t count, capacity;
} proofs_t;

static void proofs_init(weft_context_t *context, void *part)
{
    (void)context;
    pthread_mutex_init(&((proofs_t *)part)->lock, NULL);
}

static void proofs_deinit(weft_context_t *context, void *part)
{
    proofs_t *proofs = part;
    pthread_mutex_destroy(&proofs->lock);
    wefti_free(context->allocator, proofs->list);
}

static const wefti_part_ops_t proofs_ops = {sizeof(proofs_t), proofs_init, proofs_deinit,
                                            wefti_part_never_in_use};

static uint64_t hash_sizes(uint64_t hash, const uint32_t *sizes, uint32_t count)
{
    hash = wefti_hash_word(hash, count);
    for (uint32_t i = 0; i < count; i++) {
        hash = wefti_hash_word(hash, sizes[i]);
    }
    return hash;
}

static uint64_t hash_params(const weft_algo_params_t *params)
{
    const uint64_t numbers[] = {params->group_size, params->root, params->in_place != 0,
                                params->order};
    bool blocks = params->order == WEFT_ORDER_BLOCKS;
    uint64_t hash = wefti_hash_words(numbers, sizeof numbers / sizeof *numbers);
    hash = hash_sizes(hash, params->order_sizes, blocks ? params->order_size_count : 0);
    hash = hash_sizes(hash, params->host_sizes, params->host_count);
    hash = hash_sizes(hash, params->host_of, params->host_of != NULL ? params->group_size : 0);
    hash = hash_sizes(hash, params->rail_of, params->rail_of != NULL ? params->group_size : 0);
    return hash_sizes(hash, params->rack_of, params->rack_of != NULL ? params->group_size : 0);
}

/* True when it is known already, with the status in *out_status. */
static bool look_up(proofs_t *proofs, const weft_algorithm_t *algorithm, uint64_t params,
                    weft_status_t *out_status)
{
    bool found = false;
    pthread_mutex_lock(&proofs->lock);
    for (size_t i = 0; i < proofs->count && !found; i++) {
        const proof_t *proof = &proofs->list[i];
        found = proof->algorithm == algorithm && proof->params == params;
        if (found) {
            *out_status =
                proof->status < 0 ? wefti_error(proof->status, "%s", proof->text) : WEFT_OK;
        }
    }
    pthread_mutex_unlock(&proofs->lock);
    return found;
}

static void keep(weft_context_t *context, proofs_t *proofs, const weft_algorithm_t *algorithm,
                 uint64_t params, weft_status_t status)
{
    char text[sizeof((proof_t *)0)->text];
    snprintf(text, sizeof text, "%s", status < 0 ? weft_last_error() : "");
    pthread_mutex_lock(&proofs->lock);
    if (proofs->count < MAX_PROOFS &&
        wefti_array_reserve(context->allocator, &proofs->list, &proofs->capacity, proofs->count + 1,
                            sizeof *proofs->list) == WEFT_OK) {
        proof_t *proof = &proofs->list[proofs->count++];
        *proof = (proof_t){.algorithm = algorithm, .params = params, .status = status};
        memcpy(proof->text, text, sizeof text);
    } /* no room: it is proved again next time */
    pthread_mutex_unlock(&proofs->lock);
    if (status < 0) {
        wefti_error_adopt(status, text);
    }
}

weft_status_t wefti_algorithm_prove(weft_context_t *context, const weft_algorithm_t *algorithm,
                                    const weft_algo_params_t *params)
{
    weft_status_t status;
    if (wefti_algorithm_find(algorithm->op, algorithm->name) == algorithm ||
        params->group_size == 1) {
        return WEFT_OK;
    }
    uint64_t hash = hash_params(params);
    proofs_t *proofs = wefti_part_get(context, WEFTI_PART_PROOFS, &proofs_ops);
    if (proofs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    if (look_up(proofs, algorithm, hash, &status)) {
        return status;
    }
    status = weft_algorithm_verify(algorithm, params);
    if (status == WEFT_ERR_INVALID_ARGUMENT) {
        status = wefti_error_prefix(WEFT_ERR_UNSUPPORTED, "%s %s: verification failed",
                                    weft_collective_name(algorithm->op), algorithm->name);
    }
    if (status == WEFT_OK || status == WEFT_ERR_UNSUPPORTED) {
        keep(context, proofs, algorithm, hash, status);
    }
    return status;
}

weft_status_t wefti_algorithm_prove_places(weft_context_t *context,
                                           const weft_algorithm_t *algorithm,
                                           const weft_algo_params_t *params)
{
    weft_algo_params_t own = *params;
    own.in_place = 0;
    weft_status_t status = wefti_algorithm_prove(context, algorithm, &own);
    if (status == WEFT_OK && wefti_collective_of(algorithm->op)->in_place) {
        own.in_place = 1;
        status = wefti_algorithm_prove(context, algorithm, &own);
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token files: u16 or u32 in little-endian order, one after the other, as nanoGPT writes them. With
 * T tokens in the input of a sample, sample i is
 *
 *   input   tokens i T .. i T + T - 1          label   tokens i T + 1 .. i T + T
 *
 * and an attention mask is 1: sequences have no padding.
 */
#include "tools/train/data.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* Models that reshape labels before the loss do not mark them: their name does. */
static bool takes_labels(const data_input_t *input)
{
    return input->is_label || strstr(input->name, "label") != NULL ||
           strstr(input->name, "target") != NULL;
}

static bool takes_ones(const data_input_t *input)
{
    return strstr(input->name, "attention_mask") != NULL;
}

/* The tokens of a sample: the first input that is neither labels nor a mask, or NULL. */
static const data_input_t *find_tokens(const data_request_t *request)
{
    for (uint32_t i = 0; i < request->input_count; i++) {
        if (!takes_labels(&request->inputs[i]) && !takes_ones(&request->inputs[i])) {
            return &request->inputs[i];
        }
    }
    return NULL;
}

/* One input, and labels and a mask if the plan has them. */
static weft_status_t check_inputs(const data_request_t *request)
{
    const data_input_t *tokens = find_tokens(request);
    uint32_t labels = 0, others = 0;
    for (uint32_t i = 0; i < request->input_count && tokens != NULL; i++) {
        const data_input_t *input = &request->inputs[i];
        labels += takes_labels(input);
        others += !takes_labels(input) && !takes_ones(input);
        if (!wefti_data_converts(request->token_dtype, input->dtype)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input '%s': type mismatch: the token file has %s, the input %s",
                               input->name, weft_dtype_name(request->token_dtype),
                               weft_dtype_name(input->dtype));
        }
        if (input->elems != tokens->elems) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input '%s': %lld elements per sample, but input '%s' has %lld: "
                               "tokens and their labels are sequences of one length",
                               input->name, (long long)input->elems, tokens->name,
                               (long long)tokens->elems);
        }
    }
    if (labels > 1 || others != 1) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "a token file has one input and its labels (an input called label or "
            "target; an attention_mask is 1), but the plan has %u inputs, %u of them "
            "labels",
            request->input_count, labels);
    }
    return WEFT_OK;
}

/* One row of ones, for all samples. */
static weft_status_t add_ones(const data_request_t *request, const char *path, size_t length,
                              data_set_t *set)
{
    const size_t size = weft_dtype_size_bytes(request->token_dtype);
    uint8_t *ones = calloc(length + 1, size);
    if (ones == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    for (size_t i = 0; i < length; i++) {
        ones[i * size] = 1; /* little-endian */
    }
    set->blocks[set->block_count++] = ones;
    const data_column_t column = {
        .data = ones, .dtype = request->token_dtype, .elems = length, .stride = 0};
    return wefti_data_add_column(set, path, &column);
}

weft_status_t wefti_data_read_tokens(const data_request_t *request, const char *path,
                                     data_set_t *set)
{
    wefti_mapping_t *file = &set->files[0];
    size_t size = weft_dtype_size_bytes(request->token_dtype);
    WEFT_RETURN_IF_ERROR(check_inputs(request));
    size_t length = (size_t)find_tokens(request)->elems, ahead = 0;
    for (uint32_t i = 0; i < request->input_count; i++) {
        ahead += takes_labels(&request->inputs[i]);
    }
    WEFT_RETURN_IF_ERROR(wefti_file_map(path, file));
    size_t tokens = file->size_bytes / size;
    if (file->size_bytes % size != 0) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: %zu bytes is not a whole number of %s tokens; --tokens sets the "
                           "type",
                           path, file->size_bytes, weft_dtype_name(request->token_dtype));
    }
    if (tokens < length + ahead) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: too short: %zu tokens, but a sequence has %zu%s",
                           path, tokens, length, ahead > 0 ? " and one label after it" : "");
    }
    size_t count = (tokens - ahead) / length;
    if (count > UINT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: too many sequences: %zu", path, count);
    }
    set->count = (uint32_t)count;
    for (uint32_t i = 0; i < request->input_count; i++) {
        if (takes_ones(&request->inputs[i])) {
            WEFT_RETURN_IF_ERROR(add_ones(request, path, length, set));
            continue;
        }
        const data_column_t column = {.data = file->data +
                                              (takes_labels(&request->inputs[i]) ? size : 0),
                                      .dtype = request->token_dtype,
                                      .elems = length,
                                      .stride = length};
        WEFT_RETURN_IF_ERROR(wefti_data_add_column(set, path, &column));
    }
    return WEFT_OK;
}

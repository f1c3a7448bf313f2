/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token files: u16 or u32 in little-endian order, one after the other, as nanoGPT writes them. With
 * T tokens in the input of a sample, sample i is
 *
 *   input   tokens i T .. i T + T - 1          label   tokens i T + 1 .. i T + T
 */
#include "tools/train/data.h"

#include <string.h>

#include "runtime/base/error.h"

/* Models that reshape labels before the loss do not mark them: their name does. */
static bool takes_labels(const data_input_t *input)
{
    return input->is_label || strstr(input->name, "label") != NULL ||
           strstr(input->name, "target") != NULL;
}

/* One input, and labels if the plan has them. */
static weft_status_t check_inputs(const data_request_t *request)
{
    uint32_t labels = 0;
    for (uint32_t i = 0; i < request->input_count; i++) {
        const data_input_t *input = &request->inputs[i];
        labels += takes_labels(input);
        if (!wefti_data_converts(request->token_dtype, input->dtype)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input '%s': type mismatch: the token file has %s, the input %s",
                               input->name, weft_dtype_name(request->token_dtype),
                               weft_dtype_name(input->dtype));
        }
        if (input->elems != request->inputs[0].elems) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input '%s': %lld elements per sample, but input '%s' has %lld: "
                               "tokens and their labels are sequences of one length",
                               input->name, (long long)input->elems, request->inputs[0].name,
                               (long long)request->inputs[0].elems);
        }
    }
    if (labels > 1 || request->input_count != 1 + labels) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "a token file has one input and its labels (an input called label or "
                           "target), but the plan has %u inputs, %u of them labels",
                           request->input_count, labels);
    }
    return WEFT_OK;
}

weft_status_t wefti_data_read_tokens(const data_request_t *request, const char *path,
                                     data_set_t *set)
{
    wefti_mapping_t *file = &set->files[0];
    size_t size = weft_dtype_size_bytes(request->token_dtype);
    WEFT_RETURN_IF_ERROR(check_inputs(request));
    size_t length = (size_t)request->inputs[0].elems, ahead = request->input_count - 1;
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
        const data_column_t column = {.data = file->data +
                                              (takes_labels(&request->inputs[i]) ? size : 0),
                                      .dtype = request->token_dtype,
                                      .elems = length,
                                      .stride = length};
        WEFT_RETURN_IF_ERROR(wefti_data_add_column(set, path, &column));
    }
    return WEFT_OK;
}

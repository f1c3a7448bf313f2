/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of buckets set by the user: positions, or shares of the bytes. */
#include "fusion/passes/bucket.h"

#include "runtime/base/error.h"

weft_status_t wefti_bucket_cut_by_index(wefti_bucketing_t *b)
{
    const wefti_policy_t *policy = b->policy;
    uint64_t last = policy->values[policy->value_count - 1];
    if (last >= b->count) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                 "index: position %llu is out of range: the model has %ss 0 to %u",
                                 (unsigned long long)last, wefti_bucket_noun(b), b->count - 1);
    }
    /* The end of the final bucket may be named too: it changes nothing. */
    for (uint32_t i = 0, segment = 0; i < b->count; i++) {
        b->candidates[i].segment = segment;
        segment += segment < policy->value_count && policy->values[segment] == i;
    }
    return WEFT_OK;
}

/* Where the segment that begins with candidate first ends: after the candidate whose end is nearest
 * to the target, but with a candidate for it and for each of the left buckets after it. */
static uint32_t cut_at(const wefti_bucketing_t *b, uint32_t first, uint32_t left, double target,
                       uint64_t *before, const char **out_why)
{
    uint32_t i = first;
    bool gradients = b->candidates[0].kind == WEFT_COLLECTIVE_ALL_REDUCE;
    *out_why = "ends nearest to";
    for (; i < b->count; i++) {
        double begin = (double)*before, end = (double)(*before + b->candidates[i].bytes);
        if (left > 0 && i == b->count - left) {
            *out_why = gradients ? "leaves a gradient for each later bucket, at"
                                 : "leaves a tensor for each later bucket, at";
            break;
        }
        if (left > 0 && end - target > target - begin) {
            if (i > first) {
                break;
            }
            *out_why = gradients ? "is the only gradient, though it exceeds"
                                 : "is the only tensor, though it exceeds";
        }
        *before += b->candidates[i].bytes;
    }
    return i;
}

weft_status_t wefti_bucket_cut_by_percent(wefti_bucketing_t *b)
{
    const wefti_policy_t *policy = b->policy;
    uint64_t total = 0, before = 0;
    uint32_t i = 0;
    double share = 0;
    if (policy->value_count > b->count) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "bucket", "percent: more shares than %ss: %u shares, %u %ss",
            wefti_bucket_noun(b), policy->value_count, b->count, wefti_bucket_noun(b));
    }
    for (uint32_t j = 0; j < b->count; j++) {
        total += b->candidates[j].bytes;
    }
    for (uint32_t segment = 0; segment < policy->value_count; segment++) {
        uint32_t first = i;
        const char *why;
        share += (double)policy->values[segment];
        i = cut_at(b, first, policy->value_count - segment - 1, (double)total * share / 100.0,
                   &before, &why);
        for (uint32_t j = first; j < i; j++) {
            b->candidates[j].segment = segment;
        }
        b->candidates[i - 1].cut = why;
    }
    return WEFT_OK;
}

/* Of all bytes, the percentage at which a segment should end. */
unsigned wefti_bucket_percent(const wefti_policy_t *policy, uint32_t segment)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i <= segment; i++) {
        sum += policy->values[i];
    }
    return (unsigned)sum;
}

uint64_t wefti_bucket_parts(const wefti_bucket_candidate_t *gradient, uint64_t cap_bytes)
{
    if (cap_bytes == 0 || gradient->bytes <= cap_bytes) {
        return 1;
    }
    uint64_t units = gradient->bytes / gradient->unit_bytes,
             most = cap_bytes / gradient->unit_bytes;
    return units / most + (units % most != 0);
}

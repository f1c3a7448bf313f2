/* SPDX-License-Identifier: Apache-2.0 */
/* Bucket policies as the command line spells them: "auto", "auto:25M", "mgwfbp",
 * "bytes:25M,time:5ms", "index:0,4,9", "percent:60,40", "one", "none". */
#include "fusion/fusion.h"

#include <limits.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

#define POLICY_FORMS                                                                               \
    "auto[:CAP], mgwfbp[:CAP], bytes:25M[,time:5ms], index:0,4,9, percent:60,40, one, none"
#define POLICY_MAX_VALUES 65536u

/* Reads decimal digits at *cursor; false when there are none or they do not fit. */
static bool read_number(const char **cursor, uint64_t *out_value)
{
    const char *at = *cursor;
    uint64_t value = 0;
    if (*at < '0' || *at > '9') {
        return false;
    }
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value)) {
            return false;
        }
    }
    *cursor = at;
    *out_value = value;
    return true;
}

/* One row of a table of units; the empty suffix comes last. */
typedef struct unit {
    const char *suffix;
    uint64_t factor;
} unit_t;

static bool read_unit(const char **cursor, const unit_t *units, uint64_t *value)
{
    const unit_t *unit = units;
    while (strncmp(*cursor, unit->suffix, strlen(unit->suffix)) != 0) {
        unit++;
    }
    *cursor += strlen(unit->suffix);
    return unit->factor != 0 && !__builtin_mul_overflow(*value, unit->factor, value);
}

static weft_status_t parse_bytes(const char *text, const char *cursor, wefti_policy_t *policy)
{
    static const unit_t sizes[] = {
        {"K", 1ull << 10}, {"M", 1ull << 20}, {"G", 1ull << 30}, {"", 1}};
    static const unit_t times[] = {
        {"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {"", 0}};
    if (!read_number(&cursor, &policy->cap_bytes) ||
        !read_unit(&cursor, sizes, &policy->cap_bytes)) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "bucket",
            "invalid size in '%s'; expected a size such as 25M (K, M, G are powers of 1024)", text);
    }
    if (policy->cap_bytes < WEFTI_PLAN_ALIGNMENT) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "bucket",
            "size in '%s' must be at least %u bytes, the unit in which tensors are split", text,
            WEFTI_PLAN_ALIGNMENT);
    }
    if (strncmp(cursor, ",time:", 6) == 0) {
        cursor += 6;
        if (!read_number(&cursor, &policy->window_ns) ||
            !read_unit(&cursor, times, &policy->window_ns) || policy->window_ns == 0) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                     "invalid time in '%s'; expected a number above 0 with a unit, "
                                     "such as 5ms (ns, us, ms, s)",
                                     text);
        }
    }
    if (*cursor != '\0') {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket", "unexpected '%s' in '%s'",
                                 cursor, text);
    }
    return WEFT_OK;
}

/* A comma-separated list of numbers into policy->values. */
static weft_status_t parse_list(const char *text, const char *cursor, wefti_arena_t *arena,
                                wefti_policy_t *policy)
{
    size_t count = 1;
    for (const char *at = cursor; *at != '\0'; at++) {
        count += *at == ',';
    }
    if (count > POLICY_MAX_VALUES) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                 "too many numbers: %zu, limit %u", count, POLICY_MAX_VALUES);
    }
    policy->values = wefti_arena_array(arena, count, sizeof(*policy->values));
    WEFT_RETURN_IF_NO_MEMORY(policy->values);
    for (size_t i = 0; i < count; i++) {
        if (!read_number(&cursor, &policy->values[i]) || *cursor != (i + 1 < count ? ',' : '\0')) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                     "expected numbers separated by commas at '%s' in '%s'", cursor,
                                     text);
        }
        cursor++;
    }
    policy->value_count = (uint32_t)count;
    return WEFT_OK;
}

static weft_status_t check_index(const char *text, const wefti_policy_t *policy)
{
    for (uint32_t i = 0; i < policy->value_count; i++) {
        if (policy->values[i] >= UINT32_MAX) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                     "position in '%s' must be below %u: %llu", text, UINT32_MAX,
                                     (unsigned long long)policy->values[i]);
        }
        if (i > 0 && policy->values[i] <= policy->values[i - 1]) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                     "positions in '%s' must increase: %llu follows %llu", text,
                                     (unsigned long long)policy->values[i],
                                     (unsigned long long)policy->values[i - 1]);
        }
    }
    return WEFT_OK;
}

static weft_status_t check_percent(const char *text, const wefti_policy_t *policy)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < policy->value_count; i++) {
        if (policy->values[i] == 0 || policy->values[i] > 100) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                     "shares in '%s' must be between 1 and 100: %llu", text,
                                     (unsigned long long)policy->values[i]);
        }
        sum += policy->values[i];
    }
    if (sum != 100) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                 "shares in '%s' must sum to 100: %llu", text,
                                 (unsigned long long)sum);
    }
    return WEFT_OK;
}

weft_status_t wefti_policy_parse(const char *text, wefti_arena_t *arena, wefti_policy_t *out_policy)
{
    wefti_policy_t policy = {0};
    if (strcmp(text, "one") == 0) {
        policy.kind = WEFTI_POLICY_ONE;
    } else if (strcmp(text, "none") == 0) {
        policy.kind = WEFTI_POLICY_NONE;
    } else if (strcmp(text, "auto") == 0 || strcmp(text, "mgwfbp") == 0) {
        policy.kind = text[0] == 'a' ? WEFTI_POLICY_AUTO : WEFTI_POLICY_MERGE;
    } else if (strncmp(text, "auto:", 5) == 0 || strncmp(text, "mgwfbp:", 7) == 0) {
        policy.kind = text[0] == 'a' ? WEFTI_POLICY_AUTO : WEFTI_POLICY_MERGE;
        WEFT_RETURN_IF_ERROR(parse_bytes(text, strchr(text, ':') + 1, &policy));
        if (policy.window_ns != 0) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                     "time in '%s' is only for policy bytes", text);
        }
    } else if (strncmp(text, "bytes:", 6) == 0) {
        policy.kind = WEFTI_POLICY_BYTES;
        WEFT_RETURN_IF_ERROR(parse_bytes(text, text + 6, &policy));
    } else if (strncmp(text, "index:", 6) == 0) {
        policy.kind = WEFTI_POLICY_INDEX;
        WEFT_RETURN_IF_ERROR(parse_list(text, text + 6, arena, &policy));
        WEFT_RETURN_IF_ERROR(check_index(text, &policy));
    } else if (strncmp(text, "percent:", 8) == 0) {
        policy.kind = WEFTI_POLICY_PERCENT;
        WEFT_RETURN_IF_ERROR(parse_list(text, text + 8, arena, &policy));
        WEFT_RETURN_IF_ERROR(check_percent(text, &policy));
    } else {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                 "unknown policy '%s'; expected one of %s", text, POLICY_FORMS);
    }
    *out_policy = policy;
    return WEFT_OK;
}

weft_status_t weft_bucket_policy_check(const char *policy)
{
    WEFT_CHECK_ARG(policy);
    wefti_arena_t arena;
    wefti_policy_t parsed;
    weft_status_t status;
    wefti_arena_init(&arena, NULL, 0);
    status = wefti_policy_parse(policy, &arena, &parsed);
    wefti_arena_deinit(&arena);
    return status;
}

void wefti_policy_round_cap(wefti_policy_t *policy, uint64_t unit_bytes)
{
    if (policy->cap_bytes != 0) {
        uint64_t units = policy->cap_bytes / unit_bytes;
        policy->cap_bytes = (units > 0 ? units : 1) * unit_bytes;
    }
}

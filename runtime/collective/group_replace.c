/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of a world that replaces a group's: of its survivors, or with ranks that join. */
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/group_create.h"
#include "runtime/group/group.h"

#include <string.h>

/* Which group a rank has passed: its members that are left, in their order. A rank may pass the
 * group that another one has already shrunk. */
typedef struct passed {
    uint64_t digest;
    uint32_t left, zero;
    uint64_t staging_bytes;
} passed_t;

static bool survives(const weft_context_t *context, uint32_t member)
{
    for (uint32_t r = 0; r < context->membership.count; r++) {
        if (wefti_membership_number(&context->membership, r) == member) {
            return true;
        }
    }
    return false;
}

static passed_t describe(const weft_group_t *group, const weft_context_t *context,
                         uint32_t *out_position)
{
    passed_t passed = {.digest = WEFTI_HASH_START,
                       .staging_bytes = wefti_group_staging_bytes(group)};
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t member = weft_context_member(group->context, group->ranks[i]);
        if (i == group->rank) {
            *out_position = passed.left;
        }
        if (survives(context, member)) {
            passed.digest = wefti_hash_step(passed.digest, member);
            passed.left++;
        }
    }
    return passed;
}

static bool is_same(const passed_t *a, const passed_t *b)
{
    return a->digest == b->digest && a->left == b->left;
}

/* The colour of this rank's group: the lowest rank that passed the same one. Staging is the largest
 * of all. */
static weft_status_t find_color(const passed_t *own, weft_context_t *context, uint32_t *out_color,
                                uint64_t *out_staging_bytes)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    passed_t *all = wefti_alloc(context->allocator, endpoint->world_size * sizeof *all);
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    WEFT_TRY(status, status, out);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, own, sizeof *own, all), out);
    for (uint32_t r = 0; r < endpoint->world_size && status == WEFT_OK; r++) {
        uint32_t same = 0;
        uint64_t bytes = all[r].staging_bytes;
        *out_staging_bytes = bytes > *out_staging_bytes ? bytes : *out_staging_bytes;
        for (uint32_t other = endpoint->world_size; other-- > 0;) {
            if (is_same(&all[other], &all[r])) {
                same++;
                *out_color = r == endpoint->rank ? other : *out_color;
            }
        }
        if (same != all[r].left) {
            status = wefti_error(WEFT_ERR_MISMATCH,
                                 "weft_group_shrink: rank %u passed a group of which %u ranks are "
                                 "left, and %u of them passed it",
                                 r, all[r].left, same);
        }
    }
out:
    wefti_free(context->allocator, all);
    return status;
}

static weft_status_t create_like(const weft_group_t *group, weft_context_t *context,
                                 weft_group_t **out_group)
{
    uint32_t color = 0, position = 0;
    uint64_t staging_bytes = 0;
    passed_t own = describe(group, context, &position);
    WEFT_RETURN_IF_ERROR(find_color(&own, context, &color, &staging_bytes));
    return wefti_group_create(context, color, position, staging_bytes, group, out_group);
}

/* Another rank has died, or found that and shrinks the world already. */
static bool must_shrink_again(const weft_context_t *context, weft_status_t status)
{
    return status == WEFT_ERR_PEER_DIED ||
           (status == WEFT_ERR_ABORTED && wefti_endpoint_shrinks(context->endpoint));
}

weft_status_t weft_group_shrink(weft_group_t *group, weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(group);
    weft_context_t *context = group->context;
    weft_status_t status;
    weft_context_retain(context);
    do {
        weft_context_t *next = NULL;
        status = weft_context_shrink(context, &next);
        weft_context_release(context);
        context = next;
        status = status < 0 ? status : create_like(group, context, out_group);
    } while (context != NULL && must_shrink_again(context, status));
    weft_context_release(context); /* the group keeps it */
    return status;
}

static weft_status_t create_world(void *user, weft_context_t *context)
{
    return wefti_group_create(context, 0, 0, 0, NULL, user);
}

weft_status_t weft_group_grow(weft_group_t *group, const weft_context_params_t *params,
                              weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(group);
    WEFT_CHECK_ARG(params);
    weft_context_t *context = NULL;
    weft_status_t status = WEFT_OK;
    WEFT_RETURN_IF_ERROR(wefti_group_check_lasting(group));
    if (group->size != group->endpoint->world_size || group->rank != group->endpoint->rank) {
        status = wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "group",
                                   "must have all %u ranks of the world in their order: it has %u",
                                   group->endpoint->world_size, group->size);
    }
    WEFT_RETURN_IF_ERROR(status);
    status = wefti_context_grow(group->context, params, create_world, out_group, &context);
    weft_context_release(context); /* the group keeps it */
    if (status < 0) {              /* on another rank */
        weft_group_destroy(*out_group);
        *out_group = NULL;
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/order.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* "4,4": whether at lists the ranks of each block. */
static bool parse_blocks(const char *at, wefti_order_setting_t *order)
{
    do {
        char *rest = NULL;
        errno = 0;
        unsigned long long value = *at >= '0' && *at <= '9' ? strtoull(at, &rest, 10) : 0;
        if (value == 0 || value > UINT32_MAX || order->count == WEFTI_ORDER_SETTING_BLOCKS) {
            return false;
        }
        order->sizes[order->count++] = (uint32_t)value;
        at = rest;
    } while (*at++ == ',');
    return at[-1] == '\0';
}

weft_status_t wefti_order_parse(const char *text, wefti_order_setting_t *out_order)
{
    static const char prefix[] = "blocks:";
    wefti_order_setting_t order = {.order = WEFT_ORDER_BLOCKS};
    if (strcmp(text, "tree") == 0 || strcmp(text, "any") == 0) {
        order.order = text[0] == 't' ? WEFT_ORDER_TREE : WEFT_ORDER_ANY;
    } else if (strncmp(text, prefix, sizeof prefix - 1) != 0 ||
               !parse_blocks(text + sizeof prefix - 1, &order)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "expected 'tree', 'any', or 'blocks:' with the number of ranks of each "
                           "block, as in blocks:4,4");
    }
    *out_order = order;
    return WEFT_OK;
}

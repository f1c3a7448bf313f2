/* SPDX-License-Identifier: Apache-2.0 */
/* The order of reductions as text: of the setting WEFT_ORDER, and of the collectives of a plan. */
#ifndef WEFT_RUNTIME_BASE_ORDER_H
#define WEFT_RUNTIME_BASE_ORDER_H

#include <weft/types.h>

#define WEFTI_ORDER_SETTING_BLOCKS 64u

/* tree, any, or blocks with the ranks of each */
typedef struct wefti_order_setting {
    weft_order_t order;
    uint32_t sizes[WEFTI_ORDER_SETTING_BLOCKS];
    uint32_t count;
} wefti_order_setting_t;
/* WEFT_ERR_INVALID_ARGUMENT, with what was expected; nothing is written then. */
weft_status_t wefti_order_parse(const char *text, wefti_order_setting_t *out_order);

#endif

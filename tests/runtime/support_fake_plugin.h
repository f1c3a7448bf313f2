/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake card and the plugin that brings it share. */
#ifndef WEFT_TESTS_RUNTIME_SUPPORT_FAKE_PLUGIN_H
#define WEFT_TESTS_RUNTIME_SUPPORT_FAKE_PLUGIN_H

#include <weft/device.h>

/* Records messages in place of this library; NULL: this library does. */
extern weft_status_t (*fake_card_error)(weft_status_t status, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Two fake cards as a plugin of devices: libweft_fake.so. It has a copy of the library inside. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/support_fake_card.h"
#include "tests/runtime/support_fake_plugin.h"

#define CARDS 2u
#ifndef FAKE_ABI
#define FAKE_ABI WEFT_DEVICE_ABI_VERSION
#endif
#ifndef FAKE_NAME
#define FAKE_NAME "fake"
#endif

static weft_status_t count_cards(uint32_t *out_count)
{
    *out_count = CARDS;
    return WEFT_OK;
}

static weft_status_t no_card(uint32_t index)
{
    char text[64];
    snprintf(text, sizeof text, "fake:%u: no such card", index);
    return fake_card_error(WEFT_ERR_NOT_FOUND, text);
}

static weft_status_t describe(uint32_t index, weft_device_info_t *out_info)
{
    if (index >= CARDS) {
        return no_card(index);
    }
    snprintf(out_info->name, sizeof out_info->name, "card number %u", index);
    snprintf(out_info->platform, sizeof out_info->platform, "tests");
    out_info->memory_bytes = (uint64_t)1 << 30;
    out_info->compute_units = 1;
    out_info->caps = WEFT_DEVICE_PEER_DIRECT;
    return WEFT_OK;
}

static weft_status_t open_card(uint32_t index, weft_device_t **out_device)
{
    if (getenv("FAKE_OPENS_NULL") != NULL) {
        *out_device = NULL;
        return WEFT_OK;
    }
    if (index >= CARDS) {
        return no_card(index);
    }
    weft_status_t status = fake_card_create(out_device);
    if (status == WEFT_OK && getenv("FAKE_HAS_NO_REDUCE") != NULL) {
        static weft_device_ops_t incomplete;
        incomplete = *(*out_device)->ops;
        incomplete.reduce = NULL;
        (*out_device)->ops = &incomplete;
    }
    return status;
}

static void close_card(weft_device_t *device)
{
    int left = fake_card_destroy(device);
    if (left != 0) {
        fprintf(stderr, "fake card: %d queues and allocations were not given back\n", left);
        abort();
    }
}

static const weft_device_plugin_t plugin = {FAKE_ABI, FAKE_NAME, count_cards,
                                            describe, open_card, close_card};

const weft_device_plugin_t *weft_device_plugin(const weft_device_host_t *host);

__attribute__((visibility("default"))) const weft_device_plugin_t *
weft_device_plugin(const weft_device_host_t *host)
{
    fake_card_error = host->error;
    return &plugin;
}

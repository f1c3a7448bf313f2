/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A card that keeps the device table honest: its addresses point nowhere the host could touch, its
 * queues run on threads of their own, and it says that work is done later than it is. Ranks are
 * threads of one process.
 */
#ifndef WEFT_TESTS_RUNTIME_SUPPORT_FAKE_CARD_H
#define WEFT_TESTS_RUNTIME_SUPPORT_FAKE_CARD_H

#include <weft/device.h>

weft_status_t fake_card_create(weft_device_t **out_device);
/* Fails (returns how many are left) when queues or memory were not given back. */
int fake_card_destroy(weft_device_t *device);
/*
 * After so many more calls that could fail (allocating, making a queue, queueing a command) one
 * does, with WEFT_ERR_NO_MEMORY; negative: none.
 */
void fake_card_fail(weft_device_t *device, int after);

#endif

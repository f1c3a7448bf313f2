/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of plugins: opened by name, counted, closed with the last user. */
#ifndef WEFT_RUNTIME_BASE_DEVICE_PLUGIN_H
#define WEFT_RUNTIME_BASE_DEVICE_PLUGIN_H

#include <stdbool.h>

#include <weft/device.h>

/* names: as the setting WEFT_DEVICE, a name of weft_device_open or "PLUGIN:A,B,..", of which rank
 * local_rank of its host takes the one at its place, again from the first after the last. */
weft_status_t wefti_device_open_of(const char *names, uint32_t local_rank,
                                   weft_device_t **out_device);
/* How many devices such names are. */
uint32_t wefti_device_names(const char *names);
/* The table of device has this version and no empty slot. */
weft_status_t wefti_device_check(const weft_device_t *device);
/* One more weft_device_close closes the device. False: devices of the program's own, and NULL, are
 * left alone, also by weft_device_close. */
bool wefti_device_retain(weft_device_t *device);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network in a process: what ranks on different simulated hosts put and signal is copied, kept
 * for a while, and delivered by one thread, in an order that a real network might choose. For
 * tests, long before a network is there.
 */
#ifndef WEFT_TRANSPORT_NETWORK_H
#define WEFT_TRANSPORT_NETWORK_H

#include "transport/hub.h"

weft_status_t wefti_network_create(uint32_t world_size, const wefti_hub_links_t *links,
                                   wefti_network_t **out_network);
void wefti_network_destroy(wefti_network_t *network); /* accepts NULL */
/* Whether the ranks are on different hosts. Accepts NULL: none are. */
bool wefti_network_between(const wefti_network_t *network, uint32_t a, uint32_t b);
/* As wefti_put, wefti_put_lent (lent not NULL: data is read when it is delivered, and not before)
 * and wefti_signal_peer say; address is in the memory of to. */
weft_status_t wefti_network_put(wefti_network_t *network, uint32_t from, uint32_t to, uint32_t lane,
                                uint8_t *address, const void *data, size_t bytes,
                                wefti_signal_t *lent);
weft_status_t wefti_network_signal(wefti_network_t *network, uint32_t from, uint32_t to,
                                   uint32_t lane, wefti_signal_t *signal, uint32_t value);
/* Returns when everything that from has sent has landed. */
void wefti_network_flush(wefti_network_t *network, uint32_t from);
/* The link between two ranks breaks: what is under way on it is lost, and what is sent after that
 * comes over another path, after tell was called. Where ranks want no other path they ask broken. */
void wefti_network_break(wefti_network_t *network, uint32_t a, uint32_t b, void (*tell)(void *user),
                         void *user);
bool wefti_network_broken(const wefti_network_t *network, uint32_t a, uint32_t b);
void wefti_network_stats(wefti_network_t *network, uint32_t from, uint32_t to,
                         wefti_link_stats_t *out);
/* Accepts NULL: 0. */
uint32_t wefti_network_host(const wefti_network_t *network, uint32_t rank);
/* Forgets what is under way: the memory it goes to will be gone. Accepts NULL. */
void wefti_network_clear(wefti_network_t *network);

#endif

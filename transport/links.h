/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves bytes between hosts: drivers behind the hosts backend (transport/hosts.c), which owns
 * the control plane, the region and the thread that makes progress.
 *
 *   open      this rank's devices and listening sockets. Without a usable device it returns the
 *             reason, and another driver serves
 *   address   the endpoint address: what peers need to connect; all-gathered
 *   join      the peers that the driver serves (the first driver that both ends have). It connects
 *             now (verbs) or at the first put (tcp)
 *   offer     what one peer alone needs of this rank (queue pairs); that peer gets it by offered
 *   grow      the own region has memory in [from, to): registers it; keys are all-gathered
 *   put, signal, progress   any thread, at any time; drivers lock for themselves
 */
#ifndef WEFT_TRANSPORT_LINKS_H
#define WEFT_TRANSPORT_LINKS_H

#include "transport/transport.h"

#define WEFTI_LINK_KEY_BYTES 32u

/* What a driver may use of its owner; valid until close. */
typedef struct wefti_link_params {
    uint32_t rank, world_size;
    const uint32_t *host_of;          /* [world_size] */
    const wefti_settings_t *settings; /* interface patterns, time-outs, ... */
    const wefti_log_t *log;
    const weft_allocator_t *allocator;
    const uint8_t *key; /* [WEFTI_LINK_KEY_BYTES] known to this world's ranks only */
    void *owner;
    /*
     * The link to peer is broken. died: the process or its host is gone, and the world ends; else
     * it is a link fault. Once per peer, with no lock held. The owner ignores peers that left.
     */
    void (*broken)(void *owner, uint32_t peer, bool died, const char *text);
    /*
     * The peer begins to send over this driver; nothing was received from it yet. If another driver
     * served the pair, the peer has given up that link, and this rank must know before it receives.
     * Called from progress; must not call this driver.
     */
    void (*arriving)(void *owner, uint32_t peer);
    /*
     * The peer sent a goodbye. The overlay may not deliver another: ranks on its way may have left.
     * Called from progress; must not call this driver.
     */
    void (*leaving)(void *owner, uint32_t peer);
    /* Wakes the thread that makes progress in the background. Any thread. */
    void (*wake)(void *owner);
} wefti_link_params_t;

typedef struct wefti_link_driver {
    const char *name; /* "tcp", "verbs" */
    uint64_t caps;    /* WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL */
    size_t address_bytes;
    size_t key_bytes; /* 0: peers need none */
    /* WEFT_ERR_UNSUPPORTED with the reason: not on this rank. Fills out_address. */
    weft_status_t (*open)(const wefti_link_params_t *params, void **out_driver, void *out_address);
    /* addresses: [world_size * address_bytes]; peers: [world_size] that this driver serves. Local:
     * what it needs of peers while it runs goes over its own connections. */
    weft_status_t (*join)(void *driver, const uint8_t *addresses, const bool *peers);
    /* 0: nothing to offer. Equal on all ranks; called before open too. */
    size_t (*offer_bytes)(const wefti_link_params_t *params);
    /* After join: out_offers [world_size * offer_bytes], the part of each peer in its place. They
     * are all-gathered, and every rank is given what each rank offers it. */
    weft_status_t (*offer)(void *driver, uint8_t *out_offers);
    weft_status_t (*offered)(void *driver, const uint8_t *offers); /* [world_size * offer_bytes] */
    /* base: the own region, whose address never changes. */
    weft_status_t (*grow)(void *driver, uint8_t *base, size_t from, size_t to, void *out_key);
    /* All ranks' keys of the latest growth, [world_size * key_bytes]; before any put goes there. */
    weft_status_t (*grown)(void *driver, const uint8_t *keys);
    /* in_use NULL: data is copied; else wefti_source_acquire now, wefti_source_release later.
     * Never blocks. */
    weft_status_t (*put)(void *driver, uint32_t peer, size_t offset, const void *data, size_t bytes,
                         uint32_t lane, wefti_signal_t *in_use);
    weft_status_t (*signal)(void *driver, uint32_t peer, size_t offset, uint32_t value,
                            uint32_t lane);
    /* Never blocks, and returns at once while another thread is in it. True: something moved. */
    bool (*progress)(void *driver);
    /* Readable when progress has something to do (an epoll descriptor, say); -1: poll me. */
    int (*poll_fd)(void *driver);
    /* Before a thread sleeps on poll_fd, every time. Asking a device for events costs more than
     * polling it. False: call progress again instead of sleeping. */
    bool (*arm)(void *driver);
    /* True when all that was put and signalled has landed, or never will; else out_peer has not
     * acknowledged something. Without blocking. */
    bool (*flushed)(void *driver, uint32_t *out_peer);
    /* A broken link is not used any more (or was never): forget the peer. */
    void (*drop)(void *driver, uint32_t peer);
    void (*describe)(void *driver, uint32_t peer, char *text, size_t bytes);
    void (*stats)(void *driver, uint32_t peer, wefti_link_stats_t *out);
    /* forked: in a child, which only gives back its copies of descriptors and memory. */
    void (*close)(void *driver, bool forked);
} wefti_link_driver_t;

extern const wefti_link_driver_t wefti_link_tcp;
#if WEFT_HAVE_VERBS
extern const wefti_link_driver_t wefti_link_verbs;
#endif
/* In builds with libibverbs; the best first, NULL at the end. */
extern const wefti_link_driver_t *const wefti_link_drivers[];

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network card in this process: the calls of libibverbs that the driver makes land here
 * (-Wl,--wrap), and bytes move between the queue pairs of all drivers opened. It checks what a card
 * would refuse: keys, ranges, depths of queues, states, packet numbers of both ends.
 */
#ifndef WEFT_TESTS_TRANSPORT_VERBS_NIC_H
#define WEFT_TESTS_TRANSPORT_VERBS_NIC_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NIC_DEVICES 4u
#define NIC_GIDS 8u

typedef enum nic_call {
    NIC_GET_DEVICE_LIST,
    NIC_OPEN_DEVICE,
    NIC_QUERY_DEVICE,
    NIC_QUERY_PORT,
    NIC_QUERY_GID_TABLE,
    NIC_ALLOC_PD,
    NIC_REG_MR,
    NIC_CREATE_COMP_CHANNEL,
    NIC_CREATE_CQ,
    NIC_CREATE_QP,
    NIC_MODIFY_QP,
    NIC_POST_RECV,
    NIC_POST_SEND,
    NIC_REQ_NOTIFY_CQ,
    NIC_POLL_CQ,
    NIC_CALLS,
} nic_call_t;

/* What there is; tests change it before drivers open. */
typedef struct nic_model {
    uint32_t device_count;
    const char *names[NIC_DEVICES];
    const char *sysfs[NIC_DEVICES]; /* ibdev_path */
    uint32_t ports;
    bool inactive[NIC_DEVICES];
    uint8_t width[NIC_DEVICES], speed[NIC_DEVICES], link_layer;
    uint32_t gid_count[NIC_DEVICES];
    struct ibv_gid_entry gids[NIC_DEVICES][NIC_GIDS];
    uint16_t lid;
    int max_cqe, max_qp_wr, max_qp;
    uint32_t max_msg_sz, max_inline;
    bool refuse_inline; /* asked for more: no queue pair, instead of a smaller size */

    bool lazy;     /* work is done when somebody polls, some of it, by seed; else at once */
    uint64_t seed; /* of lazy */
    bool held;     /* no work is done */

    /* The fail_at-th call from now on fails with fail_errno; 0: none does. */
    nic_call_t fail_call;
    uint32_t fail_at;
    int fail_errno;
    /* Likewise, the next so many work requests complete; the one after does with this status. */
    uint32_t bad_request_at;
    enum ibv_wc_status bad_status;

    /* What was seen. */
    uint32_t calls[NIC_CALLS];
    uint32_t requests, immediates; /* work requests posted */
    uint32_t not_ready;            /* messages that found no receive */
    uint32_t wrong;                /* things that a card would not forgive */
    uint32_t live;                 /* objects */
    uint32_t mtu, service_level, traffic_class, timeout, retry; /* of the latest queue pair */
    union ibv_gid destination;
} nic_model_t;

extern nic_model_t nic;

/* One device "fake0", port 1, RoCE v2 on 10.0.0.1 (GID 1) and fe80::1 (GID 0). */
void nic_reset(void);
/* "10.0.0.1" or "fd00::1". */
void nic_gid(uint32_t device, uint32_t index, uint32_t type, const char *address);
/* Moves all queue pairs of the count-th context that was opened to the error state. */
void nic_kill_queue_pairs(uint32_t context);
/* The immediate comes as if the peer of the context's first queue pair had sent it. */
void nic_forge_immediate(uint32_t context, uint32_t immediate);
void nic_raise_event(uint32_t context, enum ibv_event_type type);

#endif

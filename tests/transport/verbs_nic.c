/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs_nic.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TABLE 1024u
#define SMALL_MAX 512u

typedef struct fake_context {
    struct ibv_context base;
    uint32_t device;
    struct ibv_async_event events[8];
    uint32_t event_count, unacked;
} fake_context_t;

typedef struct fake_mr {
    struct ibv_mr base;
    bool remote;
} fake_mr_t;

typedef struct fake_cq {
    struct ibv_cq base;
    struct ibv_wc *entries;
    uint32_t head, count;
    uint32_t unacked;
    bool armed;
} fake_cq_t;

typedef struct fake_channel {
    struct ibv_comp_channel base;
    fake_cq_t *cq;
} fake_channel_t;

typedef struct request {
    struct ibv_send_wr wr;
    struct ibv_sge piece;
    uint8_t small[SMALL_MAX];
} request_t;

typedef struct fake_qp {
    struct ibv_qp base;
    enum ibv_qp_state state;
    uint32_t remote, sq_psn, rq_psn, mtu;
    struct ibv_qp_cap cap;
    request_t *sends;
    uint32_t send_head, send_count;
    uint32_t unpolled; /* requests done whose place is free only when a later one is polled */
    uint64_t *receives;
    uint32_t recv_head, recv_count;
} fake_qp_t;

nic_model_t nic;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device devices[NIC_DEVICES];
static fake_context_t *contexts[TABLE];
static fake_qp_t *queue_pairs[TABLE];
static fake_mr_t *regions[TABLE];
static uint32_t next_context, next_qp, next_mr;

/* ---- the model ---- */

void nic_gid(uint32_t device, uint32_t index, uint32_t type, const char *address)
{
    struct ibv_gid_entry *entry = &nic.gids[device][nic.gid_count[device]++];
    *entry = (struct ibv_gid_entry){.gid_index = index, .port_num = 1, .gid_type = type};
    if (strchr(address, ':') != NULL) {
        inet_pton(AF_INET6, address, entry->gid.raw);
    } else {
        entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
        inet_pton(AF_INET, address, entry->gid.raw + 12);
    }
}

void nic_reset(void)
{
    nic = (nic_model_t){
        .device_count = 1,
        .names = {"fake0", "fake1", "fake2", "fake3"},
        .sysfs = {"/nowhere", "/nowhere", "/nowhere", "/nowhere"},
        .ports = 1,
        .width = {2, 2, 2, 2},
        .speed = {32, 32, 32, 32},
        .link_layer = IBV_LINK_LAYER_ETHERNET,
        .max_cqe = 32767,
        .max_qp_wr = 1024,
        .max_qp = 1000,
        .max_msg_sz = 8u << 20,
        .max_inline = 256,
        .seed = 1,
    };
    nic_gid(0, 0, IBV_GID_TYPE_ROCE_V2, "fe80::1");
    nic_gid(0, 1, IBV_GID_TYPE_ROCE_V2, "10.0.0.1");
    next_context = 0;
}

/* Whether the call is to fail; errno is set. */
static bool fails(nic_call_t call)
{
    nic.calls[call]++;
    if (nic.fail_at == 0 || (nic.fail_call != NIC_CALLS && nic.fail_call != call) ||
        --nic.fail_at != 0) {
        return false;
    }
    errno = nic.fail_errno;
    return true;
}

static uint32_t next_random(void)
{
    nic.seed ^= nic.seed << 13;
    nic.seed ^= nic.seed >> 7;
    nic.seed ^= nic.seed << 17;
    return (uint32_t)(nic.seed >> 16);
}

/* ---- completions ---- */

static void push(struct ibv_cq *base, const struct ibv_wc *wc)
{
    fake_cq_t *cq = (fake_cq_t *)base;
    if (cq->count == (uint32_t)cq->base.cqe) {
        nic.wrong++; /* overflow */
        return;
    }
    cq->entries[(cq->head + cq->count++) % (uint32_t)cq->base.cqe] = *wc;
    if (cq->armed) {
        uint64_t one = 1;
        cq->armed = false;
        if (write(cq->base.channel->fd, &one, sizeof one) != sizeof one) {
            nic.wrong++;
        }
    }
}

static void complete_send(fake_qp_t *qp, enum ibv_wc_status status)
{
    const request_t *request = &qp->sends[qp->send_head];
    struct ibv_wc wc = {.wr_id = request->wr.wr_id,
                        .status = status,
                        .opcode = IBV_WC_RDMA_WRITE,
                        .qp_num = qp->base.qp_num,
                        .vendor_err = status == IBV_WC_SUCCESS ? 0 : 129};
    bool tells = (request->wr.send_flags & IBV_SEND_SIGNALED) != 0 || status != IBV_WC_SUCCESS;
    qp->send_head = (qp->send_head + 1) % qp->cap.max_send_wr;
    qp->send_count--;
    qp->unpolled++;
    if (tells) {
        wc.byte_len = qp->unpolled; /* how many places it frees; no use is made of it */
        qp->unpolled = 0;
        push(qp->base.send_cq, &wc);
    }
}

static void take_receive(fake_qp_t *qp, enum ibv_wc_status status, uint32_t imm, uint32_t bytes)
{
    struct ibv_wc wc = {.wr_id = qp->receives[qp->recv_head],
                        .status = status,
                        .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                        .imm_data = imm,
                        .byte_len = bytes,
                        .wc_flags = IBV_WC_WITH_IMM,
                        .qp_num = qp->base.qp_num};
    qp->recv_head = (qp->recv_head + 1) % qp->cap.max_recv_wr;
    qp->recv_count--;
    push(qp->base.recv_cq, &wc);
}

static void to_error(fake_qp_t *qp)
{
    qp->state = IBV_QPS_ERR;
    while (qp->send_count > 0) {
        complete_send(qp, IBV_WC_WR_FLUSH_ERR);
    }
    while (qp->recv_count > 0) {
        take_receive(qp, IBV_WC_WR_FLUSH_ERR, 0, 0);
    }
}

/* ---- moving bytes ---- */

static bool covers(const fake_mr_t *mr, uint64_t address, size_t bytes)
{
    uint64_t base = (uintptr_t)mr->base.addr;
    return address >= base && address - base <= mr->base.length &&
           bytes <= mr->base.length - (address - base);
}

static fake_mr_t *find_region(uint32_t key)
{
    return key > 0 && key < TABLE ? regions[key] : NULL;
}

static fake_qp_t *connected(const fake_qp_t *qp)
{
    fake_qp_t *peer = qp->remote < TABLE ? queue_pairs[qp->remote] : NULL;
    return peer != NULL && peer->remote == qp->base.qp_num && peer->rq_psn == qp->sq_psn &&
                   peer->mtu == qp->mtu &&
                   (peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS)
               ? peer
               : NULL;
}

/* The first request of the queue. False: it must wait. */
static bool carry_out(fake_qp_t *qp)
{
    request_t *request = &qp->sends[qp->send_head];
    fake_qp_t *peer = connected(qp);
    const struct ibv_send_wr *wr = &request->wr;
    size_t bytes = wr->num_sge > 0 ? request->piece.length : 0;
    bool immediate = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (nic.bad_request_at > 0 && --nic.bad_request_at == 0) {
        complete_send(qp, nic.bad_status);
        to_error(qp);
        return true;
    }
    if (peer == NULL) {
        complete_send(qp, IBV_WC_RETRY_EXC_ERR);
        to_error(qp);
        return true;
    }
    if (immediate && peer->recv_count == 0) {
        nic.not_ready++;
        return false;
    }
    if (bytes > 0) {
        const fake_mr_t *to = find_region(wr->wr.rdma.rkey);
        if (to == NULL || !to->remote || !covers(to, wr->wr.rdma.remote_addr, bytes)) {
            complete_send(qp, IBV_WC_REM_ACCESS_ERR);
            to_error(qp);
            return true;
        }
        memcpy((void *)(uintptr_t)wr->wr.rdma.remote_addr, (void *)(uintptr_t)request->piece.addr,
               bytes);
    }
    if (immediate) {
        take_receive(peer, IBV_WC_SUCCESS, wr->imm_data, (uint32_t)bytes);
    }
    complete_send(qp, IBV_WC_SUCCESS);
    return true;
}

static void work(void)
{
    for (uint32_t i = 0; i < TABLE && !nic.held; i++) {
        fake_qp_t *qp = queue_pairs[i];
        if (qp == NULL || qp->state != IBV_QPS_RTS) {
            continue;
        }
        uint32_t most = nic.lazy ? next_random() % 4 : UINT32_MAX;
        while (most-- > 0 && qp->send_count > 0 && carry_out(qp)) {
        }
    }
}

/* ---- the context's own operations ---- */

static bool accepts(const fake_qp_t *qp, const struct ibv_send_wr *wr)
{
    size_t bytes = wr->num_sge > 0 ? wr->sg_list->length : 0;
    if (wr->num_sge > 1 || bytes > nic.max_msg_sz ||
        (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)) {
        return false;
    }
    if (wr->send_flags & IBV_SEND_INLINE) {
        return bytes <= qp->cap.max_inline_data;
    }
    const fake_mr_t *from = bytes > 0 ? find_region(wr->sg_list->lkey) : NULL;
    return bytes == 0 ||
           (from != NULL && from->base.pd == qp->base.pd && covers(from, wr->sg_list->addr, bytes));
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    fake_qp_t *qp = (fake_qp_t *)base;
    int result = 0;
    pthread_mutex_lock(&lock);
    if (fails(NIC_POST_SEND)) {
        result = nic.fail_errno;
    }
    for (; wr != NULL && result == 0; wr = wr->next) {
        *bad = wr;
        if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) {
            result = EINVAL;
        } else if (!accepts(qp, wr)) {
            nic.wrong++;
            result = EINVAL;
        } else if (qp->send_count + qp->unpolled == qp->cap.max_send_wr) {
            nic.wrong++;
            result = ENOMEM;
        } else {
            request_t *request =
                &qp->sends[(qp->send_head + qp->send_count++) % qp->cap.max_send_wr];
            request->wr = *wr;
            if (wr->num_sge > 0) {
                request->piece = wr->sg_list[0];
            }
            if (wr->send_flags & IBV_SEND_INLINE) {
                memcpy(request->small, (void *)(uintptr_t)request->piece.addr,
                       request->piece.length);
                request->piece.addr = (uintptr_t)request->small;
            }
            nic.requests++;
            nic.immediates += wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        }
    }
    if (qp->state == IBV_QPS_ERR) {
        to_error(qp);
    }
    if (!nic.lazy) {
        work();
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    fake_qp_t *qp = (fake_qp_t *)base;
    int result = 0;
    pthread_mutex_lock(&lock);
    if (fails(NIC_POST_RECV)) {
        result = nic.fail_errno;
    }
    for (; wr != NULL && result == 0; wr = wr->next) {
        *bad = wr;
        if (qp->recv_count == qp->cap.max_recv_wr) {
            nic.wrong++;
            result = ENOMEM;
        } else {
            qp->receives[(qp->recv_head + qp->recv_count++) % qp->cap.max_recv_wr] = wr->wr_id;
        }
    }
    if (qp->state == IBV_QPS_ERR) {
        to_error(qp);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static int poll_cq(struct ibv_cq *base, int most, struct ibv_wc *out)
{
    fake_cq_t *cq = (fake_cq_t *)base;
    int count = 0;
    pthread_mutex_lock(&lock);
    if (fails(NIC_POLL_CQ)) {
        count = -1;
    } else {
        work();
    }
    while (count >= 0 && count < most && cq->count > 0) {
        out[count++] = cq->entries[cq->head];
        cq->head = (cq->head + 1) % (uint32_t)cq->base.cqe;
        cq->count--;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

static int req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    fake_cq_t *cq = (fake_cq_t *)base;
    pthread_mutex_lock(&lock);
    (void)solicited_only;
    int result = fails(NIC_REQ_NOTIFY_CQ) ? nic.fail_errno : 0;
    cq->armed = result == 0;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- devices ---- */

struct ibv_device **__wrap_ibv_get_device_list(int *count);
struct ibv_device **__wrap_ibv_get_device_list(int *count)
{
    if (fails(NIC_GET_DEVICE_LIST)) {
        return NULL;
    }
    struct ibv_device **list = calloc(NIC_DEVICES + 1, sizeof *list);
    for (uint32_t d = 0; d < nic.device_count; d++) {
        snprintf(devices[d].name, sizeof devices[d].name, "%s", nic.names[d]);
        snprintf(devices[d].ibdev_path, sizeof devices[d].ibdev_path, "%s", nic.sysfs[d]);
        list[d] = &devices[d];
    }
    *count = (int)nic.device_count;
    return list;
}

void __wrap_ibv_free_device_list(struct ibv_device **list);
void __wrap_ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

struct ibv_context *__wrap_ibv_open_device(struct ibv_device *device);
struct ibv_context *__wrap_ibv_open_device(struct ibv_device *device)
{
    if (fails(NIC_OPEN_DEVICE)) {
        return NULL;
    }
    fake_context_t *context = calloc(1, sizeof *context);
    context->base.device = device;
    context->device = (uint32_t)(device - devices);
    context->base.ops.poll_cq = poll_cq;
    context->base.ops.req_notify_cq = req_notify_cq;
    context->base.ops.post_send = post_send;
    context->base.ops.post_recv = post_recv;
    context->base.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    context->base.cmd_fd = eventfd(0, EFD_CLOEXEC);
    nic.live++;
    return &context->base;
}

int __wrap_ibv_close_device(struct ibv_context *base);
int __wrap_ibv_close_device(struct ibv_context *base)
{
    fake_context_t *context = (fake_context_t *)base;
    for (uint32_t i = 0; i < TABLE; i++) {
        contexts[i] = contexts[i] == context ? NULL : contexts[i];
    }
    close(base->async_fd);
    close(base->cmd_fd);
    free(context);
    nic.live--;
    return 0;
}

int __wrap_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out);
int __wrap_ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
    (void)context;
    if (fails(NIC_QUERY_DEVICE)) {
        return nic.fail_errno;
    }
    *out = (struct ibv_device_attr){.max_qp = nic.max_qp,
                                    .max_qp_wr = nic.max_qp_wr,
                                    .max_cqe = nic.max_cqe,
                                    .phys_port_cnt = (uint8_t)nic.ports};
    return 0;
}

int __wrap_ibv_query_port(struct ibv_context *base, uint8_t port,
                          struct _compat_ibv_port_attr *compat);
int __wrap_ibv_query_port(struct ibv_context *base, uint8_t port,
                          struct _compat_ibv_port_attr *compat)
{
    struct ibv_port_attr *out = (struct ibv_port_attr *)(void *)compat;
    uint32_t device = ((fake_context_t *)base)->device;
    if (fails(NIC_QUERY_PORT)) {
        return nic.fail_errno;
    }
    out->state = nic.inactive[device] && port == 1 ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    out->active_mtu = IBV_MTU_4096;
    out->max_msg_sz = nic.max_msg_sz;
    out->lid = nic.lid;
    out->active_width = nic.width[device];
    out->active_speed = nic.speed[device];
    out->link_layer = nic.link_layer;
    return 0;
}

ssize_t __wrap__ibv_query_gid_table(struct ibv_context *base, struct ibv_gid_entry *entries,
                                    size_t most, uint32_t flags, size_t entry_bytes);
ssize_t __wrap__ibv_query_gid_table(struct ibv_context *base, struct ibv_gid_entry *entries,
                                    size_t most, uint32_t flags, size_t entry_bytes)
{
    uint32_t device = ((fake_context_t *)base)->device;
    (void)flags;
    if (fails(NIC_QUERY_GID_TABLE) || entry_bytes != sizeof *entries) {
        return -nic.fail_errno;
    }
    size_t count = nic.gid_count[device] < most ? nic.gid_count[device] : most;
    memcpy(entries, nic.gids[device], count * sizeof *entries);
    return (ssize_t)count;
}

/* ---- objects ---- */

struct ibv_pd *__wrap_ibv_alloc_pd(struct ibv_context *context);
struct ibv_pd *__wrap_ibv_alloc_pd(struct ibv_context *context)
{
    if (fails(NIC_ALLOC_PD)) {
        return NULL;
    }
    /* Only what a driver uses is a context that tests know by number. */
    contexts[next_context++ % TABLE] = (fake_context_t *)context;
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    nic.live++;
    return pd;
}

int __wrap_ibv_dealloc_pd(struct ibv_pd *pd);
int __wrap_ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    nic.live--;
    return 0;
}

struct ibv_mr *__wrap_ibv_reg_mr(struct ibv_pd *pd, void *address, size_t bytes, int access);
struct ibv_mr *__wrap_ibv_reg_mr(struct ibv_pd *pd, void *address, size_t bytes, int access)
{
    if (fails(NIC_REG_MR)) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    fake_mr_t *mr = calloc(1, sizeof *mr);
    do {
        next_mr = (next_mr + 1) % TABLE;
    } while (next_mr == 0 || regions[next_mr] != NULL);
    regions[next_mr] = mr;
    mr->base = (struct ibv_mr){pd->context, pd, address, bytes, 0, next_mr, next_mr};
    mr->remote = (access & IBV_ACCESS_REMOTE_WRITE) != 0;
    nic.live++;
    pthread_mutex_unlock(&lock);
    return &mr->base;
}

int __wrap_ibv_dereg_mr(struct ibv_mr *mr);
int __wrap_ibv_dereg_mr(struct ibv_mr *mr)
{
    pthread_mutex_lock(&lock);
    regions[mr->lkey] = NULL;
    free(mr);
    nic.live--;
    pthread_mutex_unlock(&lock);
    return 0;
}

struct ibv_comp_channel *__wrap_ibv_create_comp_channel(struct ibv_context *context);
struct ibv_comp_channel *__wrap_ibv_create_comp_channel(struct ibv_context *context)
{
    if (fails(NIC_CREATE_COMP_CHANNEL)) {
        return NULL;
    }
    fake_channel_t *channel = calloc(1, sizeof *channel);
    channel->base.context = context;
    channel->base.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    nic.live++;
    return &channel->base;
}

int __wrap_ibv_destroy_comp_channel(struct ibv_comp_channel *channel);
int __wrap_ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    nic.live--;
    return 0;
}

struct ibv_cq *__wrap_ibv_create_cq(struct ibv_context *context, int cqe, void *user,
                                    struct ibv_comp_channel *channel, int vector);
struct ibv_cq *__wrap_ibv_create_cq(struct ibv_context *context, int cqe, void *user,
                                    struct ibv_comp_channel *channel, int vector)
{
    (void)vector;
    if (fails(NIC_CREATE_CQ)) {
        return NULL;
    }
    if (cqe > nic.max_cqe) {
        errno = EINVAL;
        return NULL;
    }
    fake_cq_t *cq = calloc(1, sizeof *cq);
    cq->base.context = context;
    cq->base.channel = channel;
    cq->base.cq_context = user;
    cq->base.cqe = cqe;
    cq->entries = calloc((size_t)cqe, sizeof *cq->entries);
    ((fake_channel_t *)channel)->cq = cq;
    nic.live++;
    return &cq->base;
}

int __wrap_ibv_destroy_cq(struct ibv_cq *base);
int __wrap_ibv_destroy_cq(struct ibv_cq *base)
{
    fake_cq_t *cq = (fake_cq_t *)base;
    nic.wrong += cq->unacked; /* it would wait for ever */
    free(cq->entries);
    free(cq);
    nic.live--;
    return 0;
}

int __wrap_ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out_cq, void **user);
int __wrap_ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out_cq, void **user)
{
    uint64_t count;
    if (read(channel->fd, &count, sizeof count) != sizeof count) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    *out_cq = &((fake_channel_t *)channel)->cq->base;
    ((fake_cq_t *)*out_cq)->unacked++;
    *user = (*out_cq)->cq_context;
    pthread_mutex_unlock(&lock);
    return 0;
}

void __wrap_ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count);
void __wrap_ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    ((fake_cq_t *)cq)->unacked -= count;
}

struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    if (fails(NIC_CREATE_QP)) {
        return NULL;
    }
    if (attr->cap.max_send_wr > (uint32_t)nic.max_qp_wr ||
        attr->cap.max_recv_wr > (uint32_t)nic.max_qp_wr ||
        (nic.refuse_inline && attr->cap.max_inline_data > nic.max_inline)) {
        errno = EINVAL;
        return NULL;
    }
    pthread_mutex_lock(&lock);
    attr->cap.max_inline_data = nic.max_inline;
    fake_qp_t *qp = calloc(1, sizeof *qp);
    qp->base.context = pd->context;
    qp->base.pd = pd;
    qp->base.qp_context = attr->qp_context;
    qp->base.send_cq = attr->send_cq;
    qp->base.recv_cq = attr->recv_cq;
    qp->cap = attr->cap;
    qp->sends = calloc(attr->cap.max_send_wr, sizeof *qp->sends);
    qp->receives = calloc(attr->cap.max_recv_wr, sizeof *qp->receives);
    do {
        next_qp = (next_qp + 1) % TABLE;
    } while (next_qp == 0 || queue_pairs[next_qp] != NULL);
    queue_pairs[next_qp] = qp;
    qp->base.qp_num = next_qp;
    nic.live++;
    pthread_mutex_unlock(&lock);
    return &qp->base;
}

static void record_settings(const struct ibv_qp_attr *attr, int mask)
{
    if (mask & IBV_QP_AV) {
        nic.service_level = attr->ah_attr.sl;
        nic.traffic_class = attr->ah_attr.grh.traffic_class;
        nic.destination = attr->ah_attr.grh.dgid;
        nic.mtu = 128u << attr->path_mtu;
    }
    if (mask & IBV_QP_TIMEOUT) {
        nic.timeout = attr->timeout;
        nic.retry = attr->retry_cnt;
    }
}

int __wrap_ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask);
int __wrap_ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    fake_qp_t *qp = (fake_qp_t *)base;
    if (fails(NIC_MODIFY_QP)) {
        return nic.fail_errno;
    }
    pthread_mutex_lock(&lock);
    record_settings(attr, mask);
    if (mask & IBV_QP_DEST_QPN) {
        qp->remote = attr->dest_qp_num;
        qp->rq_psn = attr->rq_psn;
        qp->mtu = attr->path_mtu;
    }
    if (mask & IBV_QP_SQ_PSN) {
        qp->sq_psn = attr->sq_psn;
    }
    qp->state = attr->qp_state;
    if (qp->state == IBV_QPS_ERR) {
        to_error(qp);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int __wrap_ibv_destroy_qp(struct ibv_qp *base);
int __wrap_ibv_destroy_qp(struct ibv_qp *base)
{
    fake_qp_t *qp = (fake_qp_t *)base;
    pthread_mutex_lock(&lock);
    nic.wrong += ((fake_context_t *)base->context)->unacked; /* it would wait for ever */
    queue_pairs[base->qp_num] = NULL;
    free(qp->sends);
    free(qp->receives);
    free(qp);
    nic.live--;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- events ---- */

int __wrap_ibv_get_async_event(struct ibv_context *base, struct ibv_async_event *out);
int __wrap_ibv_get_async_event(struct ibv_context *base, struct ibv_async_event *out)
{
    fake_context_t *context = (fake_context_t *)base;
    uint64_t count;
    if (read(base->async_fd, &count, sizeof count) != sizeof count) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    *out = context->events[--context->event_count];
    context->unacked++;
    pthread_mutex_unlock(&lock);
    return 0;
}

void __wrap_ibv_ack_async_event(struct ibv_async_event *event);
void __wrap_ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < TABLE; i++) {
        if (contexts[i] != NULL && contexts[i]->unacked > 0) {
            contexts[i]->unacked--;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- what tests do to it ---- */

static fake_qp_t *first_of(uint32_t context)
{
    for (uint32_t i = 0; i < TABLE; i++) {
        if (queue_pairs[i] != NULL && queue_pairs[i]->base.context == &contexts[context]->base) {
            return queue_pairs[i];
        }
    }
    return NULL;
}

void nic_kill_queue_pairs(uint32_t context)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < TABLE; i++) {
        if (queue_pairs[i] != NULL && queue_pairs[i]->base.context == &contexts[context]->base) {
            to_error(queue_pairs[i]);
        }
    }
    pthread_mutex_unlock(&lock);
}

void nic_forge_immediate(uint32_t context, uint32_t immediate)
{
    pthread_mutex_lock(&lock);
    take_receive(first_of(context), IBV_WC_SUCCESS, htonl(immediate), 0);
    pthread_mutex_unlock(&lock);
}

void nic_raise_event(uint32_t context, enum ibv_event_type type)
{
    uint64_t one = 1;
    pthread_mutex_lock(&lock);
    struct ibv_async_event *event = &contexts[context]->events[contexts[context]->event_count++];
    *event = (struct ibv_async_event){.event_type = type};
    fake_qp_t *qp = first_of(context);
    event->element.qp = qp != NULL ? &qp->base : NULL;
    if (write(contexts[context]->base.async_fd, &one, sizeof one) != sizeof one) {
        nic.wrong++;
    }
    pthread_mutex_unlock(&lock);
}

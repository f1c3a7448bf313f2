/* SPDX-License-Identifier: Apache-2.0 */
/* What the front and the backends share; nobody outside transport/ includes it. */
#ifndef WEFT_TRANSPORT_ENDPOINT_H
#define WEFT_TRANSPORT_ENDPOINT_H

#include "transport/transport.h"

/* Nobody sleeps longer than this before looking for aborts, deaths and the deadline. */
#define WEFTI_SLICE_NS 50000000ull
#define WEFTI_PAGE_BYTES 4096u

extern const wefti_transport_ops_t wefti_transport_null;
extern const wefti_transport_ops_t wefti_transport_inproc;
extern const wefti_transport_ops_t wefti_transport_shm;
extern const wefti_transport_ops_t wefti_transport_hosts;

/* The end of a wait that starts now; UINT64_MAX when the settings say for ever. */
uint64_t wefti_endpoint_deadline(const wefti_endpoint_t *endpoint);

/* The error of a rank that is interrupted, which may be because the world around its host's part has
 * ended. */
weft_status_t wefti_endpoint_interrupted(const wefti_endpoint_t *endpoint);
/* wefti_endpoint_abort without telling ranks whose control blocks are not mapped. */
void wefti_endpoint_abort_here(wefti_endpoint_t *endpoint, weft_status_t status, const char *text);

/* The rank's number in the world, where the endpoint is one host's part of it. */
static inline uint32_t wefti_endpoint_number(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    return endpoint->numbers != NULL ? endpoint->numbers[rank] : rank;
}
/* "rank 3 (host b, pid 77)": the host and pid that are known (pid 0: not); returns the buffer. */
#define WEFTI_WHO_BYTES 128u
const char *wefti_endpoint_who(const wefti_endpoint_t *endpoint, uint32_t rank, int32_t pid,
                               char *buffer);

/* stacks.c, with WEFT_LATE_STACKS: other processes of this user may trace this one; a helper logs
 * the stacks of ranks, at most WEFTI_STACKS processes of this host, or why there is none. It takes
 * no others meanwhile. */
#define WEFTI_STACKS 6u
weft_status_t wefti_stacks_begin(wefti_endpoint_t *endpoint);
void wefti_stacks_log(wefti_endpoint_t *endpoint, const uint32_t *ranks, const int32_t *pids,
                      uint32_t count);
void wefti_stacks_end(wefti_endpoint_t *endpoint);

/* transport/memory.c: a range of address space that memory is put into step by step. */
typedef struct wefti_range {
    uint8_t *base; /* aligned to 2 MiB; NULL: none */
    size_t bytes;
} wefti_range_t;

/* fd >= 0: maps it shared, not inherited by children; -1: private memory, inaccessible until
 * committed. */
weft_status_t wefti_range_map(wefti_range_t *range, int fd, size_t bytes);
void wefti_range_unmap(wefti_range_t *range);
/* Makes range, private memory for the endpoint's region, bytes long; as region_grow. */
weft_status_t wefti_range_grow(wefti_range_t *range, const wefti_endpoint_t *endpoint, size_t bytes,
                               bool later);
/* As region_commit, of memory that range_grow left for later. */
weft_status_t wefti_range_commit(const wefti_range_t *range, const wefti_endpoint_t *endpoint,
                                 size_t from, size_t to);
/* Faults [from, to) in; failures do not matter, it only makes the first touch cheap. */
void wefti_range_populate(const wefti_range_t *range, size_t from, size_t to);
/* Makes a memfd bytes long, without memory. */
weft_status_t wefti_memfd_extend(int fd, size_t bytes);
/* Memory for [from, to) of range, to which it is mapped from byte at on; faulted in. Lack of room
 * is an error, never a signal. */
weft_status_t wefti_memfd_commit(int fd, size_t at, const wefti_range_t *range, size_t from,
                                 size_t to);
/* A memfd that cannot shrink under its users. */
weft_status_t wefti_memfd_create(const char *name, size_t bytes, int *out_fd);
/* WEFT_ERR_NO_MEMORY when each of count ranks asking for bytes would be more than the machine has.
 */
weft_status_t wefti_memory_check(size_t bytes, uint32_t count);

/* Maps [offset, offset + bytes) of a memfd over the pages at address, not inherited by children. */
weft_status_t wefti_memfd_map_over(int fd, size_t offset, size_t bytes, void *address);
/* region_map where there is no memfd. */
weft_status_t wefti_region_map_unsupported(wefti_endpoint_t *endpoint, size_t offset, size_t bytes,
                                           void *address);

/* device_side.c: what the host's backend and memset do for host memory. */
weft_status_t wefti_device_side_grow(wefti_endpoint_t *side, size_t bytes);
weft_status_t wefti_device_side_zero(wefti_endpoint_t *side, uint8_t *address, size_t bytes);

/* link.c: put and signal where the peer's region is mapped. */
weft_status_t wefti_put_direct(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                               const void *data, size_t bytes, uint32_t lane,
                               wefti_signal_t *in_use);
weft_status_t wefti_signal_direct(wefti_endpoint_t *endpoint, uint32_t peer, size_t offset,
                                  uint32_t value, uint32_t lane);

/* mapped.c: what a backend needs no own functions for where the control blocks and regions of all
 * ranks are mapped: nothing waits to be sent, and no other thread moves it. */
weft_status_t wefti_mapped_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                      void *recv);
weft_status_t wefti_mapped_any(wefti_endpoint_t *endpoint, bool own, bool *out_any);
/* Rank 0's data to all ranks. */
weft_status_t wefti_mapped_broadcast(wefti_endpoint_t *endpoint, uint8_t *data, size_t bytes);
void wefti_mapped_aborted(wefti_endpoint_t *endpoint, weft_status_t status, const char *text);
void wefti_mapped_nothing(wefti_endpoint_t *endpoint);
bool wefti_mapped_control_sent(wefti_endpoint_t *endpoint, uint32_t number);
bool wefti_mapped_flush(wefti_endpoint_t *endpoint);
weft_status_t wefti_mapped_all_alive(wefti_endpoint_t *endpoint); /* where ranks are threads */
void wefti_mapped_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                           char *reason, size_t reason_bytes);
void wefti_mapped_link_stats(wefti_endpoint_t *endpoint, uint32_t peer, wefti_link_stats_t *out);
void wefti_mapped_bind_progress(wefti_endpoint_t *endpoint, const uint32_t *cpus,
                                uint32_t cpu_count);
/* Their control blocks, with the last two pieces of the rank's all-gathers. */
#define WEFTI_PIECE_BYTES ((4 * WEFTI_PAGE_BYTES - sizeof(wefti_control_t)) / 2)
typedef struct wefti_mapped_control {
    wefti_control_t control;
    uint8_t pieces[2][WEFTI_PIECE_BYTES];
} wefti_mapped_control_t;
_Static_assert(sizeof(wefti_mapped_control_t) == 4 * WEFTI_PAGE_BYTES, "control blocks are pages");

#define WEFTI_TRANSPORT_MAPPED                                                                     \
    .caps = WEFTI_CAP_DIRECT | WEFTI_CAP_PUT | WEFTI_CAP_SIGNAL, .mapped = true,                   \
    .put = wefti_put_direct, .signal = wefti_signal_direct, .flush = wefti_mapped_flush,           \
    .all_gather = wefti_mapped_all_gather, .any = wefti_mapped_any,                                \
    .aborted = wefti_mapped_aborted, .progress = wefti_mapped_nothing,                             \
    .yield_progress = wefti_mapped_nothing, .waits_posted = wefti_mapped_nothing,                  \
    .error_noted = wefti_mapped_nothing, .refusal_changed = wefti_mapped_nothing,                  \
    .gave_up = wefti_mapped_nothing, .control_sent = wefti_mapped_control_sent,                    \
    .describe = wefti_mapped_describe, .link_stats = wefti_mapped_link_stats,                      \
    .bind_progress = wefti_mapped_bind_progress

/* What a value that has landed does to a counter. */
void wefti_link_raise(wefti_signal_t *signal, uint32_t value);
/* Orders what links wrote into this process's memory with what its threads do after they heard of it
 * by way of other processes: an all-gather by hosts, in which ranks but the first meet no link. */
void wefti_link_order(void);

#endif

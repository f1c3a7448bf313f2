/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs, which is loaded when the driver is opened. Those that its header
 * defines itself (posting, polling) go through the device's own table. */
#include "runtime/base/library.h"

#include "transport/verbs/verbs.h"

#undef ibv_get_device_list /* macros around the functions */
#undef ibv_query_port
#undef ibv_reg_mr

#define ROWS(X)                                                                                    \
    X(struct ibv_device **, ibv_get_device_list, (int *count), (count))                            \
    X(void, ibv_free_device_list, (struct ibv_device * *list), (list))                             \
    X(const char *, ibv_get_device_name, (struct ibv_device * device), (device))                   \
    X(struct ibv_context *, ibv_open_device, (struct ibv_device * device), (device))               \
    X(int, ibv_close_device, (struct ibv_context * context), (context))                            \
    X(int, ibv_query_device, (struct ibv_context * context, struct ibv_device_attr * out),         \
      (context, out))                                                                              \
    X(int, ibv_query_port,                                                                         \
      (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr * out),            \
      (context, port, out))                                                                        \
    X(ssize_t, _ibv_query_gid_table,                                                               \
      (struct ibv_context * context, struct ibv_gid_entry * entries, size_t count, uint32_t flags, \
       size_t entry_bytes),                                                                        \
      (context, entries, count, flags, entry_bytes))                                               \
    X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * context), (context))                    \
    X(int, ibv_dealloc_pd, (struct ibv_pd * pd), (pd))                                             \
    X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd * pd, void *address, size_t bytes, int access),  \
      (pd, address, bytes, access))                                                                \
    X(struct ibv_mr *, ibv_reg_mr_iova2,                                                           \
      (struct ibv_pd * pd, void *address, size_t bytes, uint64_t iova, unsigned access),           \
      (pd, address, bytes, iova, access))                                                          \
    X(int, ibv_dereg_mr, (struct ibv_mr * mr), (mr))                                               \
    X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context * context),          \
      (context))                                                                                   \
    X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * channel), (channel))               \
    X(struct ibv_cq *, ibv_create_cq,                                                              \
      (struct ibv_context * context, int entries, void *user, struct ibv_comp_channel *channel,    \
       int vector),                                                                                \
      (context, entries, user, channel, vector))                                                   \
    X(int, ibv_destroy_cq, (struct ibv_cq * cq), (cq))                                             \
    X(int, ibv_get_cq_event,                                                                       \
      (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **user), (channel, cq, user))  \
    X(void, ibv_ack_cq_events, (struct ibv_cq * cq, unsigned count), (cq, count))                  \
    X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr * attr),        \
      (pd, attr))                                                                                  \
    X(int, ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask),               \
      (qp, attr, mask))                                                                            \
    X(int, ibv_destroy_qp, (struct ibv_qp * qp), (qp))                                             \
    X(int, ibv_get_async_event, (struct ibv_context * context, struct ibv_async_event * event),    \
      (context, event))                                                                            \
    X(void, ibv_ack_async_event, (struct ibv_async_event * event), (event))                        \
    X(const char *, ibv_wc_status_str, (enum ibv_wc_status status), (status))                      \
    X(const char *, ibv_event_type_str, (enum ibv_event_type type), (type))

WEFTI_LIBRARY_FUNCTIONS(wefti_verbs_load, WEFTI_LIBRARY_VERBS, ROWS)

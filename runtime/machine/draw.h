/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster as text, for people. */
#ifndef WEFT_RUNTIME_MACHINE_DRAW_H
#define WEFT_RUNTIME_MACHINE_DRAW_H

#include "runtime/machine/cluster.h"

/* How two ranks reach each other. */
typedef struct wefti_topo_path {
    char transport[16]; /* "shm" */
    char path[112];     /* "same NUMA node", "eth0 - eth0, 25 Gbit/s" */
    char why[176];
} wefti_topo_path_t;

/* What is between ranks a and b, and what would be used by what is known of their hosts. */
void wefti_topo_path(const wefti_cluster_t *cluster, uint32_t a, uint32_t b,
                     wefti_topo_path_t *out);
/* Corrects it by what is known better. */
typedef void (*wefti_topo_path_fn)(void *user, uint32_t a, uint32_t b, wefti_topo_path_t *out);

/* Hosts, sockets, NUMA nodes, caches, cores with their ranks, interfaces, cards; lines of up to
 * width columns. Hosts that look like the one before are only named. */
void wefti_cluster_draw(const wefti_cluster_t *cluster, uint32_t width, wefti_text_t *out);
/* A line for each pair of ranks, or with more than a few ranks for each class of pairs. path may be
 * NULL. */
void wefti_cluster_draw_pairs(const wefti_cluster_t *cluster, wefti_topo_path_fn path, void *user,
                              uint32_t width, wefti_text_t *out);
/* The same as JSON, an array called "pairs", which readers of clusters pass over. */
void wefti_cluster_write_pairs(const wefti_cluster_t *cluster, wefti_topo_path_fn path, void *user,
                               wefti_json_t *json);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine that this process runs on: hardware as hwloc and /sys report it (cluster.h has the
 * types), and binding of threads, memory and interrupts.
 */
#ifndef WEFT_RUNTIME_MACHINE_MACHINE_H
#define WEFT_RUNTIME_MACHINE_MACHINE_H

#include "runtime/base/settings.h"
#include "runtime/machine/cluster.h"
#include "runtime/machine/place.h"

/* hwloc_devices.c: the network interfaces and cards of a topology that hwloc.c has loaded. */
struct hwloc_topology;
weft_status_t wefti_hwloc_devices(struct hwloc_topology *topology, wefti_arena_t *arena,
                                  wefti_hardware_t *out);
/* hwloc.c: this machine's cores and, if wanted, devices (that takes longer). */
weft_status_t wefti_hardware_discover(bool devices, wefti_arena_t *arena, wefti_hardware_t *out);
/* hwloc_xml.c: another one's, from a file that lstopo or hwloc wrote; a wefti_hardware_file_fn.
 * Speeds of interfaces are what hwloc-annotate added as "Speed", in Mbit/s. The file need not be
 * trusted: a child process reads it, with limits. */
weft_status_t wefti_hardware_from_xml(const char *path, wefti_arena_t *arena,
                                      wefti_hardware_t *out);
/* hwloc.c: the same in this process, which a damaged file can end. */
weft_status_t wefti_hwloc_read_xml(const char *path, wefti_arena_t *arena, wefti_hardware_t *out);
/* hwloc.c: while this is locked, no thread of Weft is inside libhwloc. */
void wefti_hwloc_lock(void);
void wefti_hwloc_unlock(void);

/* interfaces.c: adds what /sys reports to the interfaces that hwloc found, and adds others: all
 * devices, or if there are none, virtual interfaces that are up. root: "/sys" except in tests. */
weft_status_t wefti_interfaces_read(const char *root, wefti_arena_t *arena,
                                    wefti_hardware_t *hardware);

/* binding.c: the calling thread's processors, growing. Returns how many; 0 if they are unknown. */
#define WEFTI_AFFINITY_CPUS 8192u
uint32_t wefti_binding_read(uint32_t cpus[WEFTI_AFFINITY_CPUS]);
/* Those of them that rank index of count of this host gets: the cores that ranks share evenly. */
weft_status_t wefti_binding_choose(uint32_t index, uint32_t count, wefti_bind_t bind,
                                   wefti_arena_t *arena, uint32_t **out_cpus, uint32_t *out_count);
/* Binds the calling thread, and what it starts, to processors. */
weft_status_t wefti_pin_thread(const uint32_t *cpus, uint32_t cpu_count);
/* Binds it as rank index of count of this host. */
weft_status_t wefti_binding_apply(uint32_t index, uint32_t count, wefti_bind_t bind);
/* Requests that untouched memory comes from the NUMA node that the calling thread is bound to. Does
 * nothing for threads of several nodes, and where the system refuses. */
void wefti_binding_prefer_near(void *address, size_t bytes);
/* The system's number of that node; -1: several nodes, or a machine with one. root: "/sys" except
 * in tests. */
int wefti_binding_node(const char *root);

/* interrupts.c: interrupts of network interfaces. root: "" but in tests. */
typedef struct wefti_interrupt {
    uint32_t number;
    char interface[32];
    char name[64];      /* as /proc/interrupts has it: "eth0-TxRx-3" */
    char affinity[256]; /* "0-3"; "" where it cannot be read */
} wefti_interrupt_t;
weft_status_t wefti_interrupts_read(const char *root, const wefti_hardware_t *hardware,
                                    wefti_arena_t *arena, wefti_interrupt_t **out,
                                    uint32_t *out_count);
/* Binds each of them to one of the processors next to its interface, in turn; to those in avoid
 * only if there are no others. WEFT_ERR_SYSTEM without permission (it takes root). */
weft_status_t wefti_interrupts_bind(const char *root, const wefti_hardware_t *hardware,
                                    const uint32_t *avoid, uint32_t avoid_count,
                                    wefti_interrupt_t *interrupts, uint32_t count);

/* kernel.c: the first line of a file, without its end; "" and false if there is none. */
bool wefti_read_line(char *line, size_t bytes, const char *format, ...) WEFT_PRINTF(3, 4);
/* Names in a folder, sorted, so that a machine always looks the same; none if there is no folder.
 */
weft_status_t wefti_list_folder(wefti_arena_t *arena, const char ***out_names, uint32_t *out_count,
                                const char *format, ...) WEFT_PRINTF(4, 5);
/* A name of the running kernel, the same in all of its containers. */
void wefti_machine_key(char *text, size_t bytes);
/* First line of a file of the process's own control group; false: there is no such file. */
bool wefti_cgroup_read(const char *name, char *line, size_t capacity);
/* CPUs' worth of time that the process's control group may use; 0: no limit. */
uint32_t wefti_machine_quota(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One table of settings: parsing of the environment, `weft info` and the documentation. */
#ifndef WEFT_RUNTIME_BASE_SETTINGS_H
#define WEFT_RUNTIME_BASE_SETTINGS_H

#include <stdbool.h>

#include <weft/context.h>
#include <weft/types.h>

#include "runtime/base/order.h"
#include "runtime/base/sync.h"

typedef enum wefti_kernels {
    WEFTI_KERNELS_EXACT = 0, /* the same bits on every instruction set, no allocation per step */
    WEFTI_KERNELS_ONEDNN =
        1, /* products and convolutions by oneDNN where it has more than reference code */
} wefti_kernels_t;

typedef enum wefti_attach {
    WEFTI_ATTACH_OFF = 0,
    WEFTI_ATTACH_AUTO = 1,   /* where it is allowed and pays */
    WEFTI_ATTACH_ALWAYS = 2, /* where it is allowed */
} wefti_attach_t;

typedef enum wefti_calibrate {
    WEFTI_CALIBRATE_OFF = 0,    /* default costs */
    WEFTI_CALIBRATE_CACHED = 1, /* the cached calibration, if there is one */
    WEFTI_CALIBRATE_AUTO = 2,   /* the same, measured and cached if there is none */
} wefti_calibrate_t;

typedef enum wefti_fallback {
    WEFTI_FALLBACK_OFF = 0,
    WEFTI_FALLBACK_TCP = 1, /* a broken verbs link goes on over tcp, with a warning */
} wefti_fallback_t;

/* How links of the verbs transport are made; 0 (gid_index: -1): the device's own choice. */
typedef struct wefti_verbs_settings {
    char device[64];        /* WEFT_VERBS_DEVICE: "" any; "mlx5_0", "mlx5_*,rxe0:1" */
    int32_t gid_index;      /* WEFT_VERBS_GID_INDEX */
    uint32_t mtu;           /* WEFT_VERBS_MTU: 256 .. 4096 bytes */
    uint32_t service_level; /* WEFT_VERBS_SL: 0 .. 15 */
    uint32_t traffic_class; /* WEFT_VERBS_TRAFFIC_CLASS: 0 .. 255 */
    uint32_t timeout;       /* WEFT_VERBS_TIMEOUT: 4.096 us * 2^timeout */
    uint32_t retry;         /* WEFT_VERBS_RETRY: 0 .. 7 */
    uint32_t queue_pairs;   /* WEFT_VERBS_QUEUE_PAIRS: per pair of ranks */
} wefti_verbs_settings_t;

typedef struct wefti_settings {
    weft_isa_t isa;           /* WEFT_ISA: auto, portable, avx2, avx512 */
    weft_progress_t progress; /* WEFT_PROGRESS: auto, inline, thread */
    uint64_t timeout_ns;      /* WEFT_TIMEOUT: seconds a wait may last, 0 for ever; default 600 */
    uint64_t spin_ns;         /* WEFT_SPIN_US: microseconds a wait spins before it yields */
    uint64_t reserve_bytes;   /* WEFT_RESERVE_BYTES: address space reserved per rank */
    uint64_t staging_bytes;   /* WEFT_STAGING_BYTES: a group's buffers for memory that peers do not
                                  reach */
    uint32_t attach;          /* WEFT_ATTACH: off, auto, always */
    uint32_t check_every;     /* WEFT_CHECK: of so many calls one is checked; 0: none */
    uint32_t log_level;       /* WEFT_LOG: error, warn, info, debug, trace; default warn */
    uint32_t threads;         /* WEFT_THREADS: kernel threads per rank, 0: the rank's cores */
    wefti_kernels_t kernels;  /* WEFT_KERNELS: exact, onednn */
    char device[256];         /* WEFT_DEVICE: "cpu", "opencl:0,1" */
    char device_path[1024];   /* WEFT_DEVICE_PATH: folder of plugins; "": the usual places */
    char algo[256];     /* WEFT_ALGO: "ring" or "AllReduce=ring,AllGather=bruck"; "": by cost */
    char costs[1024];   /* WEFT_COSTS: path of a cost table; "": the built-in one */
    uint32_t calibrate; /* WEFT_CALIBRATE: wefti_calibrate_t, of the command */
    wefti_order_setting_t order; /* WEFT_ORDER: of the reductions of the world's groups */
    char transport[64];          /* WEFT_TRANSPORT: "auto", or names of what may be used */
    char ifname[128];            /* WEFT_IFNAME: "", or patterns of interfaces */
    char congestion[16];         /* WEFT_TCP_CONGESTION: "auto" (also ""), "system", or a name */
    char host_id[128];           /* WEFT_HOST_ID: ""; what else tells hosts apart */
    uint64_t connect_timeout_ns; /* WEFT_CONNECT_TIMEOUT: seconds until all ranks have come */
    uint64_t link_timeout_ns;    /* WEFT_LINK_TIMEOUT: seconds without an answer of a host */
    uint64_t late_ns;            /* WEFT_LATE: seconds until a wait is reported; 0: never */
    uint32_t late_stacks;        /* WEFT_LATE_STACKS: with the stacks of late ranks */
    char dump[1024];             /* WEFT_DUMP: folder of dumps of the flight recorder; "": none */
    uint32_t sockets;            /* WEFT_SOCKETS: per pair of ranks */
    uint32_t fallback;           /* WEFT_FALLBACK: off, tcp */
    wefti_verbs_settings_t verbs;
    char topology[1024];  /* WEFT_TOPOLOGY: path of a cluster's description; "": what is found */
    uint32_t bind;        /* WEFT_BIND: auto, none, core, numa: wefti_bind_t */
    uint32_t verify_each; /* WEFT_VERIFY_EACH: off, on */
} wefti_settings_t;

typedef struct wefti_setting_def {
    const char *name; /* environment variable */
    const char *default_text;
    const char *unit; /* "" when it has none */
    const char *help;
    bool collective; /* must be equal on all ranks: part of the agreed digest */
    /* The rest is for settings.c: the field in wefti_settings_t, and what its parser needs. */
    size_t offset, field_bytes;
    weft_status_t (*parse)(const char *text, const struct wefti_setting_def *def, void *field);
    const char *const *choices; /* ends with NULL */
    int least, most;
    double scale;
} wefti_setting_def_t;

/* Reads the environment. An invalid value is WEFT_ERR_INVALID_ARGUMENT; the message names the
 * variable, its value, and what is expected. */
weft_status_t wefti_settings_load(wefti_settings_t *out_settings);
/* Reads one variable, for a caller that does not use the others. */
weft_status_t wefti_settings_load_one(const char *name, wefti_settings_t *settings);
/* Calls report for each variable whose name is close to a known one, but is not known. Names are
 * valid during the call. */
typedef void (*wefti_misspelt_fn)(void *user, const char *name, const char *known);
void wefti_settings_find_misspelt(wefti_misspelt_fn report, void *user);
/* The caller has reported them: contexts of this process, and of those it forks, do not. */
void wefti_settings_mute_misspelt(void);
bool wefti_settings_misspelt_muted(void);
/* "exact" or "onednn". */
const char *wefti_kernels_name(wefti_kernels_t kernels);
/* The table, for `weft info`; *out_count rows. */
const wefti_setting_def_t *wefti_setting_defs(size_t *out_count);

#endif

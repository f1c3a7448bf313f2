/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost table. Communication: alpha (latency), beta (time per byte) and gamma (time per byte
 * that is reduced) per link level, and measured times of algorithms. Kernels: measured times by
 * kind and size. To choose an algorithm, the schedule of every eligible one is simulated on a clock
 * and the fastest is taken. Equal tables give equal choices on all ranks.
 */
#ifndef WEFT_OPS_COST_COST_H
#define WEFT_OPS_COST_COST_H

#include "ops/algo/resolve.h"
#include "ops/algo/table.h"
#include "runtime/base/text.h"

typedef enum wefti_link_level {
    WEFTI_LEVEL_SELF = 0, /* a rank's own memory */
    WEFTI_LEVEL_HOST = 1, /* another rank's on the same host */
    WEFTI_LEVEL_NET = 2,  /* on another host */
    WEFTI_LEVEL_COUNT = 3,
} wefti_link_level_t;

typedef struct wefti_link_cost {
    double alpha_ns;         /* from a post to whoever waits for it */
    double beta_ns_per_byte; /* one byte read or written by one rank */
} wefti_link_cost_t;

/*
 * Measured for one algorithm over one number of ranks: replaces the prediction. A fit in pieces has
 * one of these per piece; a piece holds up to where the next one begins.
 */
typedef struct wefti_measured_cost {
    weft_collective_t op;
    char algorithm[32];
    uint32_t ranks, hosts;
    bool plain;          /* buffers that peers cannot reach: calls go through staging */
    uint64_t from_bytes; /* of the vector, or of one block */
    /* per byte of the vector, or of one block; alpha is where the line would begin and may lie
     * below 0 for a piece that is steeper than the one before it */
    double alpha_ns, beta_ns_per_byte;
} wefti_measured_cost_t;

/* What a kernel computes, as far as its time is concerned. The size of a call is counted in
 * floating point operations for the kinds before NORM, and in bytes read and written for the
 * others. */
typedef enum wefti_kernel_kind {
    WEFTI_KERNEL_PRODUCT = 0, /* Gemm, MatMul */
    WEFTI_KERNEL_CONV,
    WEFTI_KERNEL_CONV_GRAD,
    WEFTI_KERNEL_EXP, /* softmax and losses: bound by exp and log */
    WEFTI_KERNEL_ATTENTION,
    WEFTI_KERNEL_FUSED,  /* several element-wise operators in one */
    WEFTI_KERNEL_NORM,   /* layer normalization and its gradient */
    WEFTI_KERNEL_POOL,   /* pooling and its gradient */
    WEFTI_KERNEL_MOVE,   /* element-wise operators, copies and all others */
    WEFTI_KERNEL_UPDATE, /* optimizers; their size is that of all updates of a step */
    WEFTI_KERNEL_KINDS,
} wefti_kernel_kind_t;

static inline bool wefti_kernel_counts_flops(wefti_kernel_kind_t kind)
{
    return kind < WEFTI_KERNEL_NORM;
}

/* A measured kernel call. All cores of the machine were busy with such calls. */
typedef struct wefti_kernel_point {
    wefti_kernel_kind_t kind;
    uint32_t threads; /* of the kernel */
    double size, ns;
} wefti_kernel_point_t;

typedef struct wefti_costs {
    const weft_allocator_t *allocator;
    char name[64];
    char machine[256]; /* of a calibration: what it depends on; "": not known */
    uint32_t cores;    /* of the machine on which kernels were measured; 0: not measured */
    /* by kind, threads and size, growing */
    wefti_kernel_point_t *kernels;
    size_t kernel_count, kernel_capacity;
    wefti_link_cost_t level[WEFTI_LEVEL_COUNT];
    double gamma_ns_per_byte; /* reducing a byte of a source, beyond reading it */
    double step_ns;           /* the interpreter, and looking at one counter */
    /* An interpreted call before its first step, beside the links' alpha: ranks agree on it, sizes
     * become elements. */
    double call_ns;
    wefti_measured_cost_t *measured;
    size_t measured_count, measured_capacity;
} wefti_costs_t;

void wefti_costs_default(wefti_costs_t *costs, const weft_allocator_t *allocator);
/* The net level of a table that says nothing of it: links of RDMA cards, or tcp. */
void wefti_costs_set_net(wefti_costs_t *costs, bool rdma);
void wefti_costs_deinit(wefti_costs_t *costs);
/* Reads the JSON of README.md. Missing entries keep their defaults. WEFT_ERR_FORMAT names the place
 * of an error. */
weft_status_t wefti_costs_decode(wefti_costs_t *costs, const char *text, size_t bytes,
                                 const weft_allocator_t *allocator);
weft_status_t wefti_costs_load(wefti_costs_t *costs, const char *path,
                               const weft_allocator_t *allocator);
void wefti_costs_encode(const wefti_costs_t *costs, wefti_text_t *out);
weft_status_t wefti_costs_add(wefti_costs_t *costs, const wefti_measured_cost_t *item);
/* Adds pieces for what key names, from what was measured: sizes growing, at most 64 of them. */
typedef struct wefti_cost_point {
    uint64_t bytes; /* as in wefti_measured_cost_t */
    double ns;
} wefti_cost_point_t;
weft_status_t wefti_costs_add_fit(wefti_costs_t *costs, const wefti_measured_cost_t *key,
                                  const wefti_cost_point_t *points, size_t count);
/* kernel_cost.c. Adds a point; a point of the same kind, threads and size is replaced. */
weft_status_t wefti_costs_add_kernel(wefti_costs_t *costs, const wefti_kernel_point_t *point);
/* Whether kernels of this kind were measured; *out_ns is the time of a call then. */
bool wefti_costs_kernel_ns(const wefti_costs_t *costs, wefti_kernel_kind_t kind, uint32_t threads,
                           double size, double *out_ns);
/* "product" and so on; NULL above the last kind. */
const char *wefti_kernel_kind_name(wefti_kernel_kind_t kind);
/* Equal for tables that choose the same algorithms: ranks compare it before they choose. Names and
 * kernels do not count. */
uint64_t wefti_costs_digest(const wefti_costs_t *costs);

/* Time of one run: when the last rank is done. params->rank is not looked at. */
weft_status_t wefti_cost_predict(const wefti_costs_t *costs, const weft_algorithm_t *algorithm,
                                 const weft_algo_params_t *params, const wefti_counts_t *counts,
                                 double *out_ns);

typedef struct wefti_candidate {
    const weft_algorithm_t *algorithm;
    double predicted_ns; /* of eligible ones */
    bool measured;       /* from the table, not from a schedule */
    bool executor;       /* carried out on loads and stores by hand-written code */
    const char *reason;  /* why it is not eligible, or NULL */
} wefti_candidate_t;

#define WEFTI_MAX_CANDIDATES 32u

/* Time of one run; WEFT_ERR_UNSUPPORTED: it cannot be predicted. */
typedef weft_status_t (*wefti_predict_fn)(void *user, const weft_algorithm_t *algorithm,
                                          const weft_algo_params_t *params,
                                          const wefti_counts_t *counts, double *out_ns);

/* What else decides. All zero is an eager call; NULL for the whole of it: only planned. */
typedef struct wefti_choice {
    const char *wanted; /* admits only the algorithm of that name */
    bool plain;         /* some rank's buffers are memory that its peers cannot reach */
    /*
     * Mesh and one-shot have executors: no interpreter's steps, and others are chosen only where
     * they are WEFTI_EXECUTOR_LEAD quicker. For eager calls among ranks that load and store.
     */
    bool executors;
    const weft_registry_t *registry; /* its algorithms take part */
    bool planned;                    /* part of a plan: ranks have nothing to agree on first */
    wefti_predict_fn predict;        /* in place of wefti_cost_predict; NULL: that */
    void *predict_user;
} wefti_choice_t;

#define WEFTI_EXECUTOR_LEAD 1.05
/* Of groups larger than this nothing is predicted, for it would take longer than many calls: where
 * nothing was measured either, eager calls run on executors, or else what needs few steps. */
#define WEFTI_MAX_PREDICTED_RANKS 64u
/* NULL: nothing that needs few is eligible. */
const weft_algorithm_t *wefti_cost_few_steps(const weft_algo_params_t *params);
/* To how many others a rank needs links by an algorithm: few (one for each step, or for each of few
 * hosts), one for each of many hosts, or as many as there are ranks. */
typedef enum wefti_peers { WEFTI_PEERS_FEW, WEFTI_PEERS_HOSTS, WEFTI_PEERS_ALL } wefti_peers_t;
wefti_peers_t wefti_cost_peers(const weft_algorithm_t *algorithm, const weft_algo_params_t *params);
/* As wefti_cost_few_steps, with as few links as there are algorithms for, unless these move so many
 * bytes (of a block, where each peer has one) log2 n times. */
const weft_algorithm_t *wefti_cost_few_peers(const weft_algo_params_t *params, uint64_t bytes);
/*
 * How long blocks may be that go with the call slots of a call: these go from every rank to every
 * rank of other hosts, so what a host's card sends in all is to take no longer than a message.
 * UINT64_MAX: on one host, as long as fit.
 */
uint64_t wefti_cost_slot_bytes(const wefti_costs_t *costs, const weft_algo_params_t *params);
/* Whether the runtime has hand-written code for it, where ranks load and store. */
bool wefti_cost_has_executor(const weft_algorithm_t *algorithm);

/*
 * All algorithms of params->op: eligible ones first, the best first (the quickest, but for what
 * choice says of executors). A wanted one that is not there
 * or not eligible is WEFT_ERR_UNSUPPORTED with the reason.
 */
weft_status_t wefti_cost_choose(const wefti_costs_t *costs, const weft_algo_params_t *params,
                                const wefti_counts_t *counts, const wefti_choice_t *choice,
                                wefti_candidate_t out[WEFTI_MAX_CANDIDATES], uint32_t *out_count);

#endif

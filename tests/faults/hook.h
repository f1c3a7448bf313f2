/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules around an endpoint of any transport, for tests: its puts and signals are delayed, reordered
 * as far as the rules of links allow, lost or refused; its collective calls fail; its links break
 * or become slow. Of rules of one kind that match, the first counts. The endpoint stays what it is:
 * only its table of functions is another one, which calls the former one.
 *
 * As text, for whole programs (WEFT_TEST_HOOK, which test programs read, the library never):
 *
 *   delay:FROM-TO:TIME            every put and signal takes so long: "delay:0-1:100us"
 *   jitter:FROM-TO:TIME           each takes up to that, by the seed: puts land in pieces, overtake
 *                                 each other and signals of other lanes
 *   rate:FROM-TO:BYTES            a second: "rate:*-3:10M"
 *   drop:CALL:FROM-TO:K           the K-th put or signal is lost
 *   fail:CALL:RANK:K:STATUS       the K-th call of this rank fails: put, signal, all_gather, grow,
 *                                 barrier; STATUS: "link", "no_memory", "system", "timeout"
 *   break:FROM-TO:K               the K-th put or signal is lost, and the link with it
 *   seed:N
 *
 * separated by ";". FROM, TO and RANK are numbers or "*"; K counts from 1, per link.
 */
#ifndef WEFT_TESTS_FAULTS_HOOK_H
#define WEFT_TESTS_FAULTS_HOOK_H

#include "transport/transport.h"

#define WEFTI_HOOK_ANY UINT32_MAX /* any rank */
#define WEFTI_HOOK_RULES 16u

typedef enum wefti_hook_kind {
    WEFTI_HOOK_DELAY = 0,
    WEFTI_HOOK_JITTER,
    WEFTI_HOOK_RATE,
    WEFTI_HOOK_DROP,
    WEFTI_HOOK_FAIL,
    WEFTI_HOOK_BREAK,
} wefti_hook_kind_t;

typedef enum wefti_hook_call {
    WEFTI_HOOK_PUT = 0,
    WEFTI_HOOK_SIGNAL,
    WEFTI_HOOK_ALL_GATHER,
    WEFTI_HOOK_GROW,
    WEFTI_HOOK_BARRIER,
    WEFTI_HOOK_CALLS,
} wefti_hook_call_t;

typedef struct wefti_hook_rule {
    wefti_hook_kind_t kind;
    wefti_hook_call_t call; /* of DROP and FAIL */
    uint32_t from, to;      /* ranks; FAIL: from alone */
    uint64_t amount;        /* nanoseconds; bytes a second; which one, from 1 */
    weft_status_t status;   /* of FAIL */
} wefti_hook_rule_t;

typedef struct wefti_hook_rules {
    uint64_t seed;
    uint32_t count;
    wefti_hook_rule_t rules[WEFTI_HOOK_RULES];
} wefti_hook_rules_t;

/* WEFT_ERR_INVALID_ARGUMENT naming the part that is not a rule. */
weft_status_t wefti_hook_parse(const char *text, wefti_hook_rules_t *out_rules);
/* From now on; undone by closing the endpoint. Before other threads use it. */
weft_status_t wefti_hook_attach(wefti_endpoint_t *endpoint, const wefti_hook_rules_t *rules);

#endif

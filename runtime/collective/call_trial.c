/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/call_trial.h"

#include "runtime/base/sync.h"
#include "runtime/collective/call_move.h"

#define TRIES 8u          /* of each way, in turns; the quickest counts */
#define AGAIN_AFTER 1024u /* calls: machines get other work, and programs other memory */
/* After two tries of each, a way that takes so many times as long gets no more: a staged call of
 * many rounds on ranks that share cores takes 20 times as long as an attached one. */
#define FEW 4u
#define HOPELESS 4u

/* ---- one size of an operator ---- */

static bool tries(const wefti_trial_t *trial)
{
    return trial->calls % AGAIN_AFTER < 2 * TRIES;
}

static bool is_hopeless(const wefti_trial_t *trial, uint32_t way)
{
    return trial->calls % AGAIN_AFTER >= FEW &&
           trial->best_ns[way] / HOPELESS > trial->best_ns[1 - way];
}

uint32_t wefti_trial_way(const wefti_trial_t *trial)
{
    uint32_t way = trial->calls & 1u;
    if (!tries(trial)) {
        return trial->best_ns[1] < trial->best_ns[0];
    }
    return is_hopeless(trial, way) ? 1 - way : way;
}

bool wefti_trial_count(wefti_trial_t *trial)
{
    bool timed = tries(trial);
    if (trial->calls % AGAIN_AFTER == 0) {
        trial->best_ns[0] = trial->best_ns[1] = UINT32_MAX;
    }
    trial->calls++;
    return timed;
}

void wefti_trial_note(wefti_trial_t *trial, uint32_t way, uint64_t ns)
{
    if (ns < trial->best_ns[way]) {
        trial->best_ns[way] = (uint32_t)ns;
    }
}

/* ---- calls ---- */

/* One that waits for all data whichever way it moves: its time is the time of the call. */
static uint32_t deciding_rank(const wefti_call_t *call)
{
    const wefti_collective_t *op = wefti_call_op(call);
    if (!op->rooted) {
        return 0;
    }
    uint32_t root = call->request.root;
    return op->send.holder == WEFT_HOLDER_ROOT ? (root + 1) % call->group->size : root;
}

bool wefti_call_wants_attach(const wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_timed_t *timed = &group->calls->timed;
    timed->trial = NULL;
    if (group->rank != deciding_rank(call)) {
        return true;
    }
    uint32_t size = 63u - (uint32_t)__builtin_clzll(call->longest | 1);
    wefti_trial_t *trial = &group->calls->trials[call->request.op][size];
    uint32_t way = wefti_trial_way(trial);
    timed->trial = wefti_trial_count(trial) ? trial : NULL;
    timed->began_ns = 0;
    return way == 1;
}

void wefti_timed_begin(wefti_timed_t *timed, uint32_t way)
{
    timed->way = way;
    timed->began_ns = wefti_now_ns();
}

void wefti_timed_end(wefti_timed_t *timed)
{
    if (timed->began_ns != 0) {
        wefti_trial_note(timed->trial, timed->way, wefti_now_ns() - timed->began_ns);
    }
    timed->trial = NULL;
}

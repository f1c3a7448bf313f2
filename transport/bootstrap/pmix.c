/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PMIx: mpirun and prterun of Open MPI, srun --mpi=pmix. The library is loaded if its variables are
 * set. No fence: a missing rank would block all others, and PMIx does not name it. Getting rank 0's
 * key waits for rank 0 only.
 */
#include "transport/bootstrap/service.h"

#include <stdlib.h>

#if WEFT_HAVE_PMIX

#include <pmix.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/library.h"
#include "runtime/base/memory.h"

/* One wait for rank 0's text; the caller asks again. */
#define LOOK_SECONDS 1

typedef struct pmix_service {
    wefti_service_t base;
    const wefti_log_t *log;
    pmix_proc_t self;
    bool inside; /* init succeeded */
} pmix_service_t;

#define ROWS(X)                                                                                    \
    X(pmix_status_t, PMIx_Init, (pmix_proc_t * self, pmix_info_t * info, size_t count),            \
      (self, info, count))                                                                         \
    X(pmix_status_t, PMIx_Finalize, (const pmix_info_t *info, size_t count), (info, count))        \
    X(pmix_status_t, PMIx_Put, (pmix_scope_t scope, const char *key, pmix_value_t *value),         \
      (scope, key, value))                                                                         \
    X(pmix_status_t, PMIx_Commit, (void), ())                                                      \
    X(pmix_status_t, PMIx_Get,                                                                     \
      (const pmix_proc_t *proc, const char *key, const pmix_info_t *info, size_t count,            \
       pmix_value_t **out),                                                                        \
      (proc, key, info, count, out))

static weft_status_t load(void);
WEFTI_LIBRARY_SLOTS(load, WEFTI_LIBRARY_PMIX, ROWS)

static void pmix_close(wefti_service_t *base)
{
    pmix_service_t *service = (pmix_service_t *)base;
    if (service->inside) {
        slots.PMIx_Finalize(NULL, 0); /* counted: others of this process may be using it */
    }
    /* The library has threads of its own: it stays. */
    wefti_free(NULL, service);
}

static void make_key(char *key, uint32_t turn)
{
    snprintf(key, PMIX_MAX_KEYLEN, "weft.%u", turn);
}

static weft_status_t put_text(const char *key, const char *text)
{
    pmix_value_t value;
    memset(&value, 0, sizeof value);
    value.type = PMIX_STRING;
    value.data.string = (char *)(uintptr_t)text;
    pmix_status_t result = slots.PMIx_Put(PMIX_GLOBAL, key, &value);
    if (result == PMIX_SUCCESS) {
        result = slots.PMIx_Commit();
    }
    return result == PMIX_SUCCESS
               ? WEFT_OK
               : wefti_error(WEFT_ERR_SYSTEM,
                             "PMIx failed to publish this rank's address (PMIx status %d)",
                             (int)result);
}

static void release(pmix_value_t *value)
{
    if (value->type == PMIX_STRING) {
        free(value->data.string);
    }
    free(value);
}

/* Each world that a rank opens leaves a key of that rank. */
static weft_status_t pmix_claim(wefti_service_t *base, uint32_t turn)
{
    pmix_service_t *service = (pmix_service_t *)base;
    pmix_info_t local;
    pmix_value_t *value = NULL;
    char key[PMIX_MAX_KEYLEN + 1];
    memset(&local, 0, sizeof local);
    snprintf(local.key, sizeof local.key, "%s", PMIX_OPTIONAL); /* asks this process only */
    local.value.type = PMIX_BOOL;
    local.value.data.flag = true;
    make_key(key, turn);
    if (slots.PMIx_Get(&service->self, key, &local, 1, &value) == PMIX_SUCCESS) {
        release(value);
        return WEFT_AGAIN;
    }
    /* Rank 0's key has its address, and is put by publish. */
    return service->self.rank == 0 ? WEFT_OK : put_text(key, "-");
}

static weft_status_t pmix_publish(wefti_service_t *base, uint32_t turn, const char *text)
{
    (void)base;
    char key[PMIX_MAX_KEYLEN + 1];
    make_key(key, turn);
    return put_text(key, text);
}

static weft_status_t pmix_look_up(wefti_service_t *base, uint32_t turn, char *out, size_t capacity)
{
    pmix_service_t *service = (pmix_service_t *)base;
    pmix_proc_t zero = service->self;
    pmix_value_t *value = NULL;
    pmix_info_t wait;
    char key[PMIX_MAX_KEYLEN + 1];
    make_key(key, turn);
    zero.rank = 0;
    memset(&wait, 0, sizeof wait);
    snprintf(wait.key, sizeof wait.key, "%s", PMIX_TIMEOUT);
    wait.value.type = PMIX_INT;
    wait.value.data.integer = LOOK_SECONDS;
    if (slots.PMIx_Get(&zero, key, &wait, 1, &value) != PMIX_SUCCESS || value == NULL) {
        return WEFT_AGAIN;
    }
    bool good = value->type == PMIX_STRING && value->data.string != NULL &&
                (size_t)snprintf(out, capacity, "%s", value->data.string) < capacity;
    release(value);
    return good ? WEFT_OK : WEFT_AGAIN;
}

static const wefti_service_ops_t pmix_ops = {
    .launcher = "pmix",
    .address = "pmix:",
    .claim = pmix_claim,
    .publish = pmix_publish,
    .look_up = pmix_look_up,
    .close = pmix_close,
};

static bool read_size(const pmix_service_t *service, uint32_t *out_world_size)
{
    pmix_proc_t job = service->self;
    pmix_value_t *value = NULL;
    job.rank = PMIX_RANK_WILDCARD;
    if (slots.PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value) != PMIX_SUCCESS || value == NULL) {
        return false;
    }
    bool good = value->type == PMIX_UINT32 && value->data.uint32 > 0;
    *out_world_size = good ? value->data.uint32 : 0;
    release(value);
    return good;
}

weft_status_t wefti_service_pmix(const wefti_log_t *log, wefti_service_t **out_service,
                                 uint32_t *out_rank, uint32_t *out_world_size)
{
    if (getenv("PMIX_NAMESPACE") == NULL || getenv("PMIX_RANK") == NULL) {
        return WEFT_AGAIN;
    }
    pmix_service_t *service = wefti_alloc(NULL, sizeof *service);
    if (service == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    service->base.ops = &pmix_ops;
    service->log = log;
    if (load() < 0) {
        wefti_log(log, WEFT_LOG_LEVEL_WARN, "started by PMIx: %s", weft_last_error());
        pmix_close(&service->base);
        return WEFT_AGAIN;
    }
    pmix_status_t result = slots.PMIx_Init(&service->self, NULL, 0);
    service->inside = result == PMIX_SUCCESS;
    if (!service->inside || !read_size(service, out_world_size)) {
        wefti_log(log, WEFT_LOG_LEVEL_DEBUG,
                  "PMIx variables are set, but no PMIx server answers (PMIx status %d)",
                  (int)result);
        pmix_close(&service->base);
        return WEFT_AGAIN;
    }
    *out_rank = service->self.rank;
    *out_service = &service->base;
    return WEFT_OK;
}

#else

weft_status_t wefti_service_pmix(const wefti_log_t *log, wefti_service_t **out_service,
                                 uint32_t *out_rank, uint32_t *out_world_size)
{
    (void)out_service, (void)out_rank, (void)out_world_size;
    if (getenv("PMIX_NAMESPACE") != NULL && getenv("PMIX_RANK") != NULL) {
        wefti_log(log, WEFT_LOG_LEVEL_WARN,
                  "started by a PMIx launcher, but this build has no PMIx support");
    }
    return WEFT_AGAIN;
}

#endif

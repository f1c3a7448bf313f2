/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/library.h"

#include <dlfcn.h>
#include <string.h>

#include "runtime/base/error.h"

const wefti_library_def_t wefti_libraries[WEFTI_LIBRARIES] = {
    [WEFTI_LIBRARY_ONEDNN] = {"oneDNN", "libdnnl.so.2", "libdnnl2", "WEFT_KERNELS=onednn"},
    [WEFTI_LIBRARY_VERBS] = {"verbs", "libibverbs.so.1", "libibverbs1", "RDMA between hosts"},
    [WEFTI_LIBRARY_PMIX] = {"PMIx", "libpmix.so.2", "libpmix2", "ranks of mpirun and srun"},
};

static weft_status_t load(const wefti_library_def_t *def, const char *const *symbols, size_t count,
                          void *slots)
{
    void *handle = dlopen(def->file, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        return wefti_error(WEFT_ERR_NOT_FOUND, "%s: cannot load %s: %s; install %s", def->name,
                           def->file, why != NULL ? why : "unknown error", def->package);
    }
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(handle, symbols[i]);
        if (symbol == NULL) {
            dlclose(handle);
            return wefti_error(WEFT_ERR_NOT_FOUND, "%s: %s has no function %s; install %s",
                               def->name, def->file, symbols[i], def->package);
        }
        /* As POSIX allows: a pointer to a function has the bits that dlsym returned. */
        memcpy((char *)slots + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return WEFT_OK;
}

weft_status_t wefti_library_probe(wefti_library_t library)
{
    return load(&wefti_libraries[library], NULL, 0, NULL);
}

weft_status_t wefti_library_load(wefti_library_t library, const char *const *symbols, size_t count,
                                 void *slots, wefti_library_state_t *state)
{
    weft_status_t status = WEFT_OK;
    pthread_mutex_lock(&state->lock);
    if (!state->loaded) {
        status = load(&wefti_libraries[library], symbols, count, slots);
        state->loaded = status == WEFT_OK;
    }
    pthread_mutex_unlock(&state->lock);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Libraries that one option needs: they are loaded when that option is first used, so that programs
 * start without them. A header of the library is needed where Weft is built, nothing else.
 *
 * WEFTI_LIBRARY_FUNCTIONS(load, library, ROWS) defines the functions of the rows under the names
 * that the library's header declares. Each calls the loaded one. Callers and macros of the header
 * stay as they are; load() comes before the first call.
 *
 * Where the header exports its functions (PMIx), a program of ours would export them as well:
 * WEFTI_LIBRARY_SLOTS defines none, and slots.nic_open(..) is called.
 *
 *   #define ROWS(X) X(int, nic_open, (const char *name), (name))
 *   WEFTI_LIBRARY_FUNCTIONS(load_nic, WEFTI_LIBRARY_NIC, ROWS)
 */
#ifndef WEFT_RUNTIME_BASE_LIBRARY_H
#define WEFT_RUNTIME_BASE_LIBRARY_H

#include <pthread.h>
#include <stdbool.h>

#include <weft/types.h>

typedef enum wefti_library {
    WEFTI_LIBRARY_ONEDNN,
    WEFTI_LIBRARY_VERBS,
    WEFTI_LIBRARY_PMIX,
    WEFTI_LIBRARIES,
} wefti_library_t;

typedef struct wefti_library_def {
    const char *name;
    const char *file;    /* for dlopen: with the version that the header belongs to */
    const char *package; /* of Debian */
    const char *use;     /* what needs it */
} wefti_library_def_t;
extern const wefti_library_def_t wefti_libraries[WEFTI_LIBRARIES];

typedef struct wefti_library_state {
    pthread_mutex_t lock;
    bool loaded;
} wefti_library_state_t;

/*
 * Loads a library for good. slots are pointers to its functions, in the order of symbols; a second
 * call returns at once. WEFT_ERR_NOT_FOUND: there is no such library, or it lacks a function; the
 * message names the package. Any thread may call.
 */
weft_status_t wefti_library_load(wefti_library_t library, const char *const *symbols, size_t count,
                                 void *slots, wefti_library_state_t *state);

/* Whether it can be loaded, for reports; it stays loaded. The message as above. */
weft_status_t wefti_library_probe(wefti_library_t library);

#define WEFTI_LIBRARY_SLOT(type, name, params, args) type(*name) params;
#define WEFTI_LIBRARY_SYMBOL(type, name, params, args) #name,
#define WEFTI_LIBRARY_FORWARD(type, name, params, args)                                            \
    type name params                                                                               \
    {                                                                                              \
        return slots.name args;                                                                    \
    }
#define WEFTI_LIBRARY_SLOTS(load, library, ROWS)                                                   \
    static struct {                                                                                \
        ROWS(WEFTI_LIBRARY_SLOT)                                                                   \
    } slots;                                                                                       \
    weft_status_t load(void)                                                                       \
    {                                                                                              \
        static const char *const symbols[] = {ROWS(WEFTI_LIBRARY_SYMBOL)};                         \
        static wefti_library_state_t state = {PTHREAD_MUTEX_INITIALIZER, false};                   \
        return wefti_library_load(library, symbols, sizeof symbols / sizeof *symbols, &slots,      \
                                  &state);                                                         \
    }
#define WEFTI_LIBRARY_FUNCTIONS(load, library, ROWS)                                               \
    WEFTI_LIBRARY_SLOTS(load, library, ROWS)                                                       \
    ROWS(WEFTI_LIBRARY_FORWARD)

#endif

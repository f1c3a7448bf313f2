/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Definitions and kernels, built in and added. Both tables are sorted by domain, name and version,
 * so that finding is a binary search and visiting is a walk. Nothing here runs while a plan is
 * replayed.
 */
#include "ops/op_defs.h"

#include <dlfcn.h>
#include <string.h>

#include "ops/algo/msccl.h"
#include "ops/algo/table.h"
#include "ops/op_facts.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/memory.h"
#include "runtime/base/params.h"

struct weft_registry {
    const weft_allocator_t *allocator;
    weft_allocator_t own_allocator; /* copy: the caller's struct may go away */
    const weft_op_def_t **defs;
    size_t def_count, def_capacity;
    const weft_kernel_t **kernels;
    size_t kernel_count, kernel_capacity;
    const weft_algorithm_t **algorithms; /* added ones, in the order in which they came */
    size_t algorithm_count, algorithm_capacity;
    wefti_msccl_t **loaded; /* those of files */
    size_t loaded_count, loaded_capacity;
    wefti_arena_t declared; /* definitions from files */
    void **plugins;         /* of dlopen */
    size_t plugin_count, plugin_capacity;
};

typedef struct {
    const char *domain, *name;
    int32_t version;
    const char *family; /* of kernels; "": none, which sorts first */
} registry_key_t;

static int compare_keys(const registry_key_t *a, const registry_key_t *b)
{
    int order = strcmp(a->domain, b->domain);
    order = order != 0 ? order : strcmp(a->name, b->name);
    order = order != 0 ? order : (a->version > b->version) - (a->version < b->version);
    return order != 0 ? order : strcmp(a->family, b->family);
}

static registry_key_t def_key(const weft_op_def_t *def)
{
    return (registry_key_t){def->domain, def->name, def->since_version, ""};
}

static registry_key_t kernel_key(const weft_kernel_t *kernel)
{
    return (registry_key_t){kernel->domain, kernel->op, kernel->since_version,
                            kernel->family != NULL ? kernel->family : ""};
}

/* Number of definitions whose key is not above key. */
static size_t def_upper(const weft_registry_t *registry, const registry_key_t *key)
{
    size_t low = 0, high = registry->def_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        registry_key_t at = def_key(registry->defs[middle]);
        if (compare_keys(&at, key) <= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static size_t kernel_upper(const weft_registry_t *registry, const registry_key_t *key)
{
    size_t low = 0, high = registry->kernel_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        registry_key_t at = kernel_key(registry->kernels[middle]);
        if (compare_keys(&at, key) <= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static weft_status_t check_facts(const weft_op_def_t *def)
{
    weft_status_t status =
        def->facts == NULL ? WEFT_OK : wefti_params_check("facts", def->facts, sizeof(*def->facts));
    return status < 0 ? wefti_error_prefix(status, "operator %s.%s", def->domain, def->name)
                      : status;
}

static weft_status_t check_def(const weft_op_def_t *def)
{
    if (def == NULL || def->domain == NULL || def->name == NULL || def->name[0] == '\0') {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "operator definition: domain and name are required");
    }
    if ((def->infer == NULL && def->rules == NULL) || def->since_version < 1 ||
        def->inputs_min > def->inputs_max || def->outputs_min > def->outputs_max ||
        (def->attr_count > 0 && def->attrs == NULL)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "operator %s.%s: invalid definition: a shape rule, a version of at "
                           "least 1 and valid input and output counts are required",
                           def->domain, def->name);
    }
    if (def->infer == NULL && (def->rules->outputs == NULL || def->rules->output_count == 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "operator %s.%s: the table of rules is empty",
                           def->domain, def->name);
    }
    weft_status_t status = check_facts(def);
    if (status < 0) {
        return status;
    }
    weft_op_ref_t refs[] = {wefti_op_facts(def).result_grad, wefti_op_facts(def).evaluation};
    const weft_gradient_t gradient = wefti_op_facts(def).gradient;
    bool of_result = gradient == WEFT_GRADIENT_OF_RESULT || gradient == WEFT_GRADIENT_OF_INPUTS;
    if ((of_result && refs[0].name == NULL) || (refs[0].name != NULL && refs[0].domain == NULL) ||
        (refs[1].name != NULL && refs[1].domain == NULL)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "operator %s.%s: result_grad and evaluation need a domain and a name",
                           def->domain, def->name);
    }
    for (size_t i = 0; i < 4; i++) {
        if (def->in_place[i] < -1 || def->in_place[i] >= (int)def->inputs_max) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "operator %s.%s: output %zu cannot overwrite input %d", def->domain,
                               def->name, i, def->in_place[i]);
        }
    }
    return WEFT_OK;
}

weft_status_t weft_registry_add_op(weft_registry_t *registry, const weft_op_def_t *def)
{
    WEFT_CHECK_ARG(registry);
    WEFT_CHECK_ARG(def);
    weft_status_t status;
    status = check_def(def);
    if (status < 0) {
        return status;
    }
    registry_key_t key = def_key(def);
    size_t at = def_upper(registry, &key);
    if (at > 0) {
        registry_key_t before = def_key(registry->defs[at - 1]);
        if (compare_keys(&before, &key) == 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "duplicate operator %s.%s version %d",
                               def->domain, def->name, def->since_version);
        }
    }
    status = wefti_array_reserve(registry->allocator, &registry->defs, &registry->def_capacity,
                                 registry->def_count + 1, sizeof(registry->defs[0]));
    if (status < 0) {
        return status;
    }
    memmove(&registry->defs[at + 1], &registry->defs[at],
            (registry->def_count - at) * sizeof(registry->defs[0]));
    registry->defs[at] = def;
    registry->def_count++;
    return WEFT_OK;
}

/* Removes the kernels with a family that are alternatives to one without. */
static void drop_families(weft_registry_t *registry, const registry_key_t *key)
{
    size_t at = kernel_upper(registry, key), end = at;
    while (end < registry->kernel_count) {
        registry_key_t found = kernel_key(registry->kernels[end]);
        found.family = "";
        if (compare_keys(&found, key) != 0) {
            break;
        }
        end++;
    }
    if (end == at) {
        return; /* and there may be no array yet */
    }
    memmove(&registry->kernels[at], &registry->kernels[end],
            (registry->kernel_count - end) * sizeof(registry->kernels[0]));
    registry->kernel_count -= end - at;
}

weft_status_t weft_registry_add_kernel(weft_registry_t *registry, const weft_kernel_t *kernel)
{
    WEFT_CHECK_ARG(registry);
    WEFT_CHECK_ARG(kernel);
    if (kernel->domain == NULL || kernel->op == NULL || kernel->prepare == NULL ||
        kernel->run == NULL || kernel->destroy == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "kernel definition: a function or name is NULL");
    }
    if (kernel->abi_version != WEFT_KERNEL_ABI_VERSION) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "kernel %s.%s: ABI version mismatch: built for %u, this library has %u",
                           kernel->domain, kernel->op, kernel->abi_version,
                           WEFT_KERNEL_ABI_VERSION);
    }
    registry_key_t key = kernel_key(kernel);
    if (key.family[0] == '\0') {
        drop_families(registry, &key);
    }
    size_t at = kernel_upper(registry, &key);
    if (at > 0) {
        registry_key_t before = kernel_key(registry->kernels[at - 1]);
        if (compare_keys(&before, &key) == 0) {
            registry->kernels[at - 1] = kernel; /* the last one added wins */
            return WEFT_OK;
        }
    }
    weft_status_t status =
        wefti_array_reserve(registry->allocator, &registry->kernels, &registry->kernel_capacity,
                            registry->kernel_count + 1, sizeof(registry->kernels[0]));
    if (status < 0) {
        return status;
    }
    memmove(&registry->kernels[at + 1], &registry->kernels[at],
            (registry->kernel_count - at) * sizeof(registry->kernels[0]));
    registry->kernels[at] = kernel;
    registry->kernel_count++;
    return WEFT_OK;
}

static weft_status_t add_built_in(weft_registry_t *registry)
{
    weft_status_t status = WEFT_OK;
    size_t def_count = wefti_op_defs(NULL, 0), kernel_count = wefti_compute_kernels(NULL, 0);
    const weft_op_def_t **defs = wefti_alloc(registry->allocator, def_count * sizeof(*defs));
    const weft_kernel_t **kernels =
        wefti_alloc(registry->allocator, kernel_count * sizeof(*kernels));
    if (defs == NULL || kernels == NULL) {
        status = WEFT_ERR_NO_MEMORY;
        goto out;
    }
    wefti_op_defs(defs, def_count);
    wefti_compute_kernels(kernels, kernel_count);
    for (size_t i = 0; i < def_count; i++) {
        WEFT_TRY(status, weft_registry_add_op(registry, defs[i]), out);
    }
    for (size_t i = 0; i < kernel_count; i++) {
        WEFT_TRY(status, weft_registry_add_kernel(registry, kernels[i]), out);
    }
out:
    wefti_free(registry->allocator, defs);
    wefti_free(registry->allocator, kernels);
    return status;
}

weft_status_t weft_registry_add_algorithm(weft_registry_t *registry,
                                          const weft_algorithm_t *algorithm)
{
    WEFT_CHECK_ARG(registry);
    WEFT_CHECK_ARG(algorithm);
    if (!wefti_collective_known(algorithm->op) || algorithm->name == NULL ||
        algorithm->eligible == NULL || algorithm->resources == NULL || algorithm->build == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "algorithm definition: a function or name is NULL");
    }
    if (algorithm->abi_version != WEFT_ALGO_ABI_VERSION) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "algorithm %s: ABI version mismatch: built for %u, this library has %u",
                           algorithm->name, algorithm->abi_version, WEFT_ALGO_ABI_VERSION);
    }
    if (weft_registry_find_algorithm(registry, algorithm->op, algorithm->name) != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: duplicate algorithm '%s'",
                           weft_collective_name(algorithm->op), algorithm->name);
    }
    weft_status_t status = wefti_array_reserve(
        registry->allocator, &registry->algorithms, &registry->algorithm_capacity,
        registry->algorithm_count + 1, sizeof(registry->algorithms[0]));
    if (status >= 0) {
        registry->algorithms[registry->algorithm_count++] = algorithm;
    }
    return status;
}

static wefti_msccl_t *find_loaded(const weft_registry_t *registry, uint64_t digest)
{
    for (size_t i = 0; i < registry->loaded_count; i++) {
        if (registry->loaded[i]->digest == digest) {
            return registry->loaded[i];
        }
    }
    return NULL;
}

weft_status_t wefti_registry_load_algorithm(weft_registry_t *registry, const char *path,
                                            const char *text, size_t size_bytes,
                                            const weft_algorithm_t **out_algorithm)
{
    wefti_msccl_t *loaded = find_loaded(registry, wefti_msccl_digest(text, size_bytes));
    if (loaded == NULL) {
        WEFT_RETURN_IF_ERROR(
            wefti_array_reserve(registry->allocator, &registry->loaded, &registry->loaded_capacity,
                                registry->loaded_count + 1, sizeof *registry->loaded));
        WEFT_RETURN_IF_ERROR(
            wefti_msccl_parse(path, text, size_bytes, registry->allocator, &loaded));
        weft_status_t status = weft_registry_add_algorithm(registry, wefti_msccl_algorithm(loaded));
        if (status < 0) {
            wefti_msccl_destroy(loaded);
            return status;
        }
        registry->loaded[registry->loaded_count++] = loaded;
    }
    if (out_algorithm != NULL) {
        *out_algorithm = wefti_msccl_algorithm(loaded);
    }
    return WEFT_OK;
}

weft_status_t weft_registry_load_algorithm(weft_registry_t *registry, const char *path,
                                           const weft_algorithm_t **out_algorithm)
{
    WEFT_CHECK_ARG(registry);
    WEFT_CHECK_ARG(path);
    wefti_mapping_t file;
    WEFT_RETURN_IF_ERROR(wefti_file_map(path, &file));
    weft_status_t status = wefti_registry_load_algorithm(registry, path, (const char *)file.data,
                                                         file.size_bytes, out_algorithm);
    wefti_file_unmap(&file);
    return status;
}

const weft_algorithm_t *wefti_registry_algorithm_at(const weft_registry_t *registry, size_t index)
{
    return registry != NULL && index < registry->algorithm_count ? registry->algorithms[index]
                                                                 : NULL;
}

const weft_algorithm_t *weft_registry_find_algorithm(const weft_registry_t *registry,
                                                     weft_collective_t op, const char *name)
{
    for (size_t i = 0; name != NULL && registry != NULL && i < registry->algorithm_count; i++) {
        const weft_algorithm_t *algorithm = registry->algorithms[i];
        if (algorithm->op == op && strcmp(algorithm->name, name) == 0) {
            return algorithm;
        }
    }
    return name != NULL ? wefti_algorithm_find(op, name) : NULL;
}

weft_status_t weft_registry_create(const weft_allocator_t *allocator,
                                   weft_registry_t **out_registry)
{
    WEFT_CHECK_OUT(out_registry);
    weft_registry_t *registry = wefti_alloc(allocator, sizeof(*registry));
    if (registry == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    registry->own_allocator = allocator != NULL ? *allocator : *wefti_allocator_default();
    registry->allocator = &registry->own_allocator;
    wefti_arena_init(&registry->declared, registry->allocator, 0);
    weft_status_t status = add_built_in(registry);
    if (status < 0) {
        weft_registry_destroy(registry);
        return status;
    }
    *out_registry = registry;
    return WEFT_OK;
}

void weft_registry_destroy(weft_registry_t *registry)
{
    if (registry == NULL) {
        return;
    }
    weft_allocator_t allocator = registry->own_allocator; /* outlives the struct it sits in */
    wefti_free(&allocator, registry->defs);
    wefti_free(&allocator, registry->kernels);
    wefti_free(&allocator, registry->algorithms);
    while (registry->loaded_count > 0) {
        wefti_msccl_destroy(registry->loaded[--registry->loaded_count]);
    }
    wefti_free(&allocator, registry->loaded);
    while (registry->plugin_count > 0) {
        dlclose(registry->plugins[--registry->plugin_count]);
    }
    wefti_free(&allocator, registry->plugins);
    wefti_arena_deinit(&registry->declared);
    wefti_free(&allocator, registry);
}

weft_status_t wefti_registry_add_defs(weft_registry_t *registry, const weft_registry_t *from)
{
    for (size_t i = 0; from != NULL && i < from->def_count; i++) {
        const weft_op_def_t *def = from->defs[i];
        const weft_op_def_t *has =
            weft_registry_find_op(registry, def->domain, def->name, def->since_version);
        if (has == NULL || has->since_version != def->since_version) {
            weft_status_t status = weft_registry_add_op(registry, def);
            if (status < 0) {
                return status;
            }
        }
    }
    return WEFT_OK;
}

wefti_arena_t *wefti_registry_arena(weft_registry_t *registry)
{
    return &registry->declared;
}

void weft_op_registry_visit(const weft_registry_t *registry, weft_op_visit_fn visit, void *user)
{
    WEFT_CHECK_ARG_VOID(registry);
    WEFT_CHECK_ARG_VOID(visit);
    for (size_t i = 0; i < registry->def_count; i++) {
        if (visit(registry->defs[i], user) != 0) {
            return;
        }
    }
}

const weft_op_def_t *weft_registry_find_op(const weft_registry_t *registry, const char *domain,
                                           const char *name, int32_t version)
{
    WEFT_CHECK_ARG_OR(registry, NULL);
    WEFT_CHECK_ARG_OR(name, NULL);
    registry_key_t key = {domain != NULL ? domain : "", name, version, ""};
    size_t at = def_upper(registry, &key);
    if (at == 0) {
        return NULL;
    }
    const weft_op_def_t *def = registry->defs[at - 1];
    return strcmp(def->domain, key.domain) == 0 && strcmp(def->name, name) == 0 ? def : NULL;
}

const weft_kernel_t *weft_registry_find_kernel_of(const weft_registry_t *registry,
                                                  const char *family, const char *domain,
                                                  const char *op, int32_t version)
{
    WEFT_CHECK_ARG_OR(registry, NULL);
    WEFT_CHECK_ARG_OR(op, NULL);
    /* Everything up to the version, whatever its family: every family sorts before "\xff". */
    registry_key_t key = {domain != NULL ? domain : "", op, version, "\xff"};
    const weft_kernel_t *plain = NULL;
    for (size_t at = kernel_upper(registry, &key); at-- > 0;) {
        const weft_kernel_t *kernel = registry->kernels[at];
        if (strcmp(kernel->domain, key.domain) != 0 || strcmp(kernel->op, op) != 0) {
            break;
        }
        if (plain != NULL && kernel->since_version < plain->since_version) {
            break;
        }
        if (kernel_key(kernel).family[0] == '\0') {
            plain = plain != NULL ? plain : kernel;
        } else if (family != NULL && strcmp(kernel->family, family) == 0) {
            return kernel; /* met before the plain one of its version */
        }
    }
    return plain;
}

const weft_kernel_t *weft_registry_find_kernel(const weft_registry_t *registry, const char *domain,
                                               const char *op, int32_t version)
{
    WEFT_CHECK_ARG_OR(registry, NULL);
    WEFT_CHECK_ARG_OR(op, NULL);
    return weft_registry_find_kernel_of(registry, NULL, domain, op, version);
}

weft_status_t weft_registry_load_plugin(weft_registry_t *registry, const char *path)
{
    WEFT_CHECK_ARG(registry);
    WEFT_CHECK_ARG(path);
    weft_status_t status =
        wefti_array_reserve(registry->allocator, &registry->plugins, &registry->plugin_capacity,
                            registry->plugin_count + 1, sizeof(registry->plugins[0]));
    if (status < 0) {
        return status;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "cannot load %s: %s", path, dlerror());
    }
    weft_plugin_init_fn init;
    void *symbol = dlsym(library, "weft_plugin_init");
    _Static_assert(sizeof(init) == sizeof(symbol), "POSIX: function pointers fit into void *");
    memcpy(&init, &symbol, sizeof(init)); /* ISO C has no cast between the two */
    if (symbol == NULL) {
        dlclose(library);
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: not a Weft plugin: symbol weft_plugin_init not found", path);
    }
    /* Stays loaded if init fails: definitions that it added point into it. */
    registry->plugins[registry->plugin_count++] = library;
    status = init(registry);
    return status < 0 ? wefti_error_prefix(status, "%s", path) : status;
}

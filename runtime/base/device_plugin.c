/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plugins stay loaded, as drivers have threads of their own. Devices that are open are in one list,
 * so that contexts that replace each other share theirs.
 */
#include "runtime/base/device_plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/base/settings.h"

#define PLUGINS 16u
#define NAME_BYTES 32u

typedef struct plugin {
    char name[NAME_BYTES];
    const weft_device_plugin_t *table;
} plugin_t;

typedef struct opened {
    struct opened *next;
    weft_device_t *device;
    const weft_device_plugin_t *plugin;
    uint32_t references;
} opened_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static plugin_t plugins[PLUGINS];
static uint32_t plugin_count;
static opened_t *all_opened;

/* ---- loading ---- */

static weft_status_t record_error(weft_status_t status, const char *text)
{
    return wefti_error(status, "%s", text);
}

static const weft_device_host_t host = {WEFT_DEVICE_ABI_VERSION, record_error};

/* The file to load: in WEFT_DEVICE_PATH, or next to this library if it is there; else the name. */
static void find_file(const char *name, const char *folder, char *out, size_t bytes)
{
    Dl_info own;
    snprintf(out, bytes, "%s/libweft_%s.so", folder, name);
    if (folder[0] != '\0') {
        return;
    }
    if (dladdr(&host, &own) != 0 && own.dli_fname != NULL) {
        const char *slash = strrchr(own.dli_fname, '/');
        int length = slash != NULL ? (int)(slash - own.dli_fname) : 1;
        snprintf(out, bytes, "%.*s/libweft_%s.so", length, slash != NULL ? own.dli_fname : ".",
                 name);
        FILE *file = fopen(out, "rb");
        if (file != NULL) {
            fclose(file);
            return;
        }
    }
    snprintf(out, bytes, "libweft_%s.so", name);
}

/* A slot that has to be filled. */
typedef struct slot {
    const char *name;
    size_t offset;
} slot_t;
#define SLOT(type, name)                                                                           \
    {                                                                                              \
#name, offsetof(type, name)                                                                \
    }
#define OPS_SLOT(name) SLOT(weft_device_ops_t, name)
#define PLUGIN_SLOT(name) SLOT(weft_device_plugin_t, name)

static const slot_t ops_slots[] = {
    OPS_SLOT(name),         OPS_SLOT(mem_alloc),    OPS_SLOT(mem_free),     OPS_SLOT(mem_export),
    OPS_SLOT(mem_import),   OPS_SLOT(mem_unimport), OPS_SLOT(queue_create), OPS_SLOT(queue_destroy),
    OPS_SLOT(copy),         OPS_SLOT(signal),       OPS_SLOT(wait),         OPS_SLOT(reduce),
    OPS_SLOT(launch),       OPS_SLOT(flush),        OPS_SLOT(query),        OPS_SLOT(cancel),
    OPS_SLOT(mem_handle),   OPS_SLOT(mem_wrap),     OPS_SLOT(mem_unwrap),   OPS_SLOT(profile),
    OPS_SLOT(profile_take),
};
static const slot_t plugin_slots[] = {PLUGIN_SLOT(name), PLUGIN_SLOT(count), PLUGIN_SLOT(describe),
                                      PLUGIN_SLOT(open), PLUGIN_SLOT(close)};

/* The first slot that is NULL; NULL: all are filled. */
static const char *find_empty(const void *table, const slot_t *slots, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uintptr_t value;
        memcpy(&value, (const char *)table + slots[i].offset, sizeof value);
        if (value == 0) {
            return slots[i].name;
        }
    }
    return NULL;
}

static weft_status_t check_table(const char *file, const weft_device_plugin_t *table)
{
    if (table == NULL || table->abi_version != WEFT_DEVICE_ABI_VERSION) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: unsupported abi_version %u: expected %u",
                           file, table != NULL ? table->abi_version : 0, WEFT_DEVICE_ABI_VERSION);
    }
    const char *empty = find_empty(table, plugin_slots, sizeof plugin_slots / sizeof *plugin_slots);
    return empty == NULL
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "%s: weft_device_plugin_t.%s is NULL", file, empty);
}

weft_status_t wefti_device_check(const weft_device_t *device)
{
    if (device->ops == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "device", "ops is NULL");
    }
    if (device->ops->abi_version != WEFT_DEVICE_ABI_VERSION) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "device",
                                 "unsupported abi_version %u: expected %u",
                                 device->ops->abi_version, WEFT_DEVICE_ABI_VERSION);
    }
    const char *empty = find_empty(device->ops, ops_slots, sizeof ops_slots / sizeof *ops_slots);
    return empty == NULL ? WEFT_OK
                         : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "device",
                                             "weft_device_ops_t.%s is NULL", empty);
}

static weft_status_t load(const char *name, const char *folder,
                          const weft_device_plugin_t **out_table)
{
    char file[1200];
    find_file(name, folder, file, sizeof file);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        return wefti_error(WEFT_ERR_NOT_FOUND, "device plugin \"%s\": cannot load %s: %s", name,
                           file, why != NULL ? why : "unknown error");
    }
    weft_device_plugin_fn entry;
    void *symbol = dlsym(library, "weft_device_plugin");
    if (symbol == NULL) {
        dlclose(library);
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: not a device plugin: symbol weft_device_plugin not found", file);
    }
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast between the two */
    *out_table = entry(&host);
    return check_table(file, *out_table);
}

static bool is_name(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return length > 0 && length < NAME_BYTES && name[length] == '\0';
}

static weft_status_t find_plugin_locked(const char *name, const weft_device_plugin_t **out_table)
{
    wefti_settings_t settings;
    for (uint32_t i = 0; i < plugin_count; i++) {
        if (strcmp(plugins[i].name, name) == 0) {
            *out_table = plugins[i].table;
            return WEFT_OK;
        }
    }
    if (plugin_count == PLUGINS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "device plugin \"%s\": %u plugins are loaded",
                           name, PLUGINS);
    }
    WEFT_RETURN_IF_ERROR(wefti_settings_load_one("WEFT_DEVICE_PATH", &settings));
    WEFT_RETURN_IF_ERROR(load(name, settings.device_path, out_table));
    plugin_t *plugin = &plugins[plugin_count++];
    snprintf(plugin->name, sizeof plugin->name, "%s", name);
    plugin->table = *out_table;
    return WEFT_OK;
}

static weft_status_t find_plugin(const char *name, const weft_device_plugin_t **out_table)
{
    if (!is_name(name)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid device plugin \"%s\"", name);
    }
    pthread_mutex_lock(&lock);
    weft_status_t status = find_plugin_locked(name, out_table);
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- what there is ---- */

weft_status_t weft_device_count(const char *plugin, uint32_t *out_count)
{
    const weft_device_plugin_t *table;
    WEFT_CHECK_ARG(plugin);
    WEFT_CHECK_ARG(out_count);
    WEFT_RETURN_IF_ERROR(find_plugin(plugin, &table));
    return table->count(out_count);
}

weft_status_t weft_device_describe(const char *plugin, uint32_t index, weft_device_info_t *out_info)
{
    const weft_device_plugin_t *table;
    weft_device_info_t info = WEFT_DEVICE_INFO_INIT;
    WEFT_CHECK_ARG(plugin);
    WEFT_CHECK_ARG(out_info);
    WEFT_RETURN_IF_ERROR(wefti_report_check("out_info", out_info));
    WEFT_RETURN_IF_ERROR(find_plugin(plugin, &table));
    WEFT_RETURN_IF_ERROR(table->describe(index, &info));
    wefti_report_write(out_info, &info, sizeof info);
    return WEFT_OK;
}

/* The number that text is, or the first device whose name has text in it. */
static weft_status_t find_device(const weft_device_plugin_t *plugin, const char *text,
                                 uint32_t *out_index)
{
    uint32_t count = 0;
    char *end = NULL;
    WEFT_RETURN_IF_ERROR(plugin->count(&count));
    unsigned long number = strtoul(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0') {
        *out_index = (uint32_t)number;
        return number < count
                   ? WEFT_OK
                   : wefti_error(WEFT_ERR_NOT_FOUND, "device \"%s:%s\": no such index: found %u",
                                 plugin->name, text, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        weft_device_info_t info = WEFT_DEVICE_INFO_INIT;
        WEFT_RETURN_IF_ERROR(plugin->describe(i, &info));
        if (text[0] != '\0' && strstr(info.name, text) != NULL) {
            *out_index = i;
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_NOT_FOUND,
                       "device \"%s:%s\": no name of its %u devices has \"%s\" in it", plugin->name,
                       text, count, text);
}

/* ---- open, close ---- */

weft_status_t weft_device_open(const char *name, weft_device_t **out_device)
{
    char plugin[NAME_BYTES + 1]; /* so long a name is none that is_name accepts */
    const weft_device_plugin_t *table;
    uint32_t index = 0;
    WEFT_CHECK_OUT(out_device);
    WEFT_CHECK_ARG(name);
    if (strcmp(name, "cpu") == 0) {
        return WEFT_OK;
    }
    size_t length = strcspn(name, ":");
    snprintf(plugin, sizeof plugin, "%.*s", (int)(length < NAME_BYTES ? length : NAME_BYTES), name);
    WEFT_RETURN_IF_ERROR(find_plugin(plugin, &table));
    WEFT_RETURN_IF_ERROR(find_device(table, name[length] == ':' ? name + length + 1 : "0", &index));
    opened_t *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: list of devices");
    }
    weft_status_t status = table->open(index, &opened->device);
    if (status >= 0 && opened->device == NULL) {
        status = wefti_error(WEFT_ERR_FORMAT, "device \"%s\": the plugin opened NULL", name);
    }
    if (status >= 0 && wefti_device_check(opened->device) < 0) {
        status = wefti_error_prefix(WEFT_ERR_FORMAT, "device \"%s\"", name);
        table->close(opened->device);
    }
    if (status < 0) {
        free(opened);
        return status;
    }
    opened->plugin = table;
    opened->references = 1;
    *out_device = opened->device;
    pthread_mutex_lock(&lock);
    opened->next = all_opened;
    all_opened = opened;
    pthread_mutex_unlock(&lock);
    return WEFT_OK;
}

static opened_t **find_opened(const weft_device_t *device)
{
    opened_t **at = &all_opened;
    while (*at != NULL && (*at)->device != device) {
        at = &(*at)->next;
    }
    return at;
}

bool wefti_device_retain(weft_device_t *device)
{
    pthread_mutex_lock(&lock);
    opened_t *opened = *find_opened(device);
    if (opened != NULL) {
        opened->references++;
    }
    pthread_mutex_unlock(&lock);
    return opened != NULL;
}

void weft_device_close(weft_device_t *device)
{
    pthread_mutex_lock(&lock);
    opened_t **at = find_opened(device), *opened = *at;
    if (opened != NULL && --opened->references > 0) {
        opened = NULL;
    } else if (opened != NULL) {
        *at = opened->next;
    }
    pthread_mutex_unlock(&lock);
    if (opened != NULL) {
        opened->plugin->close(opened->device);
        free(opened);
    }
}

uint32_t wefti_device_names(const char *names)
{
    uint32_t count = 1;
    for (const char *c = names; *c != '\0'; c++) {
        count += *c == ',';
    }
    return count;
}

/* The item of a list of names that is at place index, again from the first after the last. */
static void pick(const char *names, uint32_t index, char *out, size_t bytes)
{
    uint32_t count = wefti_device_names(names), at = 0;
    size_t prefix = strcspn(names, ":,");
    const char *item = names;
    for (index %= count; at < index; at++) {
        item = strchr(item, ',') + 1;
    }
    size_t length = strcspn(item, ",");
    if (memchr(item, ':', length) == NULL && names[prefix] == ':') { /* opencl:0,1 */
        snprintf(out, bytes, "%.*s:%.*s", (int)prefix, names, (int)length, item);
    } else {
        snprintf(out, bytes, "%.*s", (int)length, item);
    }
}

weft_status_t wefti_device_open_of(const char *names, uint32_t local_rank,
                                   weft_device_t **out_device)
{
    char name[256];
    pick(names, local_rank, name, sizeof name);
    return weft_device_open(name, out_device);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/hosts.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE_BYTES (1u << 20)

/* ---- which host is this one ---- */

static bool is_own_address(const char *name)
{
    unsigned char wanted[sizeof(struct in6_addr)];
    int family = strchr(name, ':') != NULL ? AF_INET6 : AF_INET;
    struct ifaddrs *all = NULL;
    bool found = false;
    if (inet_pton(family, name, wanted) != 1 || getifaddrs(&all) != 0) {
        return false;
    }
    for (const struct ifaddrs *at = all; at != NULL && !found; at = at->ifa_next) {
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != family) {
            continue;
        }
        const void *own =
            family == AF_INET
                ? (const void *)&((const struct sockaddr_in *)at->ifa_addr)->sin_addr
                : (const void *)&((const struct sockaddr_in6 *)at->ifa_addr)->sin6_addr;
        found = memcmp(own, wanted, family == AF_INET ? 4 : 16) == 0;
    }
    freeifaddrs(all);
    return found;
}

static bool is_this_host(const char *name)
{
    char own[LAUNCH_HOST_BYTES] = "";
    if (gethostname(own, sizeof own - 1) == 0 && own[0] != '\0' && strcmp(own, name) == 0) {
        return true;
    }
    return strcmp(name, "localhost") == 0 || is_own_address(name);
}

/* ---- reading ---- */

static int add_host(const char *command, host_plan_t *plan, const char *name, size_t length,
                    uint32_t slots)
{
    if (length >= 2 && name[0] == '[' && name[length - 1] == ']') {
        name++;
        length -= 2;
    }
    /* It becomes an argument of ssh, where a leading dash would be an option. */
    bool sane = length > 0 && length < LAUNCH_HOST_BYTES && name[0] != '-';
    for (size_t i = 0; i < length; i++) {
        sane = sane && (isalnum((unsigned char)name[i]) || strchr("._-:@%", name[i]) != NULL);
    }
    if (!sane) {
        return wefti_usage_error(command, "--hosts: invalid host name '%.*s'",
                                 (int)(length < 64 ? length : 64), name);
    }
    if (plan->slot_count + slots > LAUNCH_MAX_RANKS) {
        return wefti_usage_error(command, "--hosts: too many slots: more than %u",
                                 LAUNCH_MAX_RANKS);
    }
    plan->slot_count += slots;
    for (uint32_t i = 0; i < plan->host_count; i++) {
        if (strlen(plan->hosts[i].name) == length &&
            memcmp(plan->hosts[i].name, name, length) == 0) {
            plan->hosts[i].slots += slots;
            return EXIT_OK;
        }
    }
    launch_host_t *hosts = realloc(plan->hosts, (plan->host_count + 1) * sizeof *hosts);
    if (hosts == NULL) {
        return wefti_usage_error(command, "out of memory: %u hosts", plan->host_count + 1);
    }
    plan->hosts = hosts;
    launch_host_t *host = &hosts[plan->host_count++];
    *host = (launch_host_t){.slots = slots};
    memcpy(host->name, name, length);
    host->here = is_this_host(host->name);
    return EXIT_OK;
}

static int read_slots(const char *command, const char *entry, const char *text, uint32_t *out_slots)
{
    long long slots = 0;
    if (!wefti_parse_int(text, 1, LAUNCH_MAX_RANKS, &slots)) {
        return wefti_usage_error(command, "--hosts: %s: slots must be between 1 and %u", entry,
                                 LAUNCH_MAX_RANKS);
    }
    *out_slots = (uint32_t)slots;
    return EXIT_OK;
}

/* "name", "name:slots", "[v6]:slots"; an address of IPv6 without brackets has no slots. */
static int read_entry(const char *command, host_plan_t *plan, const char *entry, uint32_t slots)
{
    const char *close = entry[0] == '[' ? strchr(entry, ']') : NULL;
    const char *colon = strchr(close != NULL ? close : entry, ':');
    size_t length = strlen(entry);
    if (close != NULL && close[1] != '\0' && close[1] != ':') {
        return wefti_usage_error(command, "--hosts: %s: expected [address]:slots", entry);
    }
    if (colon != NULL && strchr(colon + 1, ':') == NULL) {
        length = (size_t)(colon - entry);
        int code = read_slots(command, entry, colon + 1, &slots);
        if (code != EXIT_OK) {
            return code;
        }
    }
    return add_host(command, plan, entry, length, slots);
}

static int read_list(const char *command, host_plan_t *plan, char *text)
{
    char *rest = NULL;
    for (char *entry = strtok_r(text, ",", &rest); entry != NULL;
         entry = strtok_r(NULL, ",", &rest)) {
        int code = read_entry(command, plan, entry, 1);
        if (code != EXIT_OK) {
            return code;
        }
    }
    return EXIT_OK;
}

static int read_line(const char *command, host_plan_t *plan, char *line)
{
    char *rest = NULL;
    uint32_t slots = 1;
    line[strcspn(line, "#\r")] = '\0';
    char *entry = strtok_r(line, " \t", &rest);
    char *more = entry != NULL ? strtok_r(NULL, " \t", &rest) : NULL;
    if (entry == NULL) {
        return EXIT_OK;
    }
    if (more != NULL) {
        const char *number = strncmp(more, "slots=", 6) == 0 ? more + 6 : more;
        int code = read_slots(command, entry, number, &slots);
        if (code != EXIT_OK) {
            return code;
        }
    }
    return read_entry(command, plan, entry, slots);
}

static int read_file(const char *command, host_plan_t *plan, const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = calloc(1, MAX_FILE_BYTES + 1), *rest = NULL;
    size_t bytes = file != NULL && text != NULL ? fread(text, 1, MAX_FILE_BYTES, file) : 0;
    int code = EXIT_OK;
    if (file == NULL || text == NULL || ferror(file) != 0) {
        code = wefti_usage_error(command, "--hosts: cannot read %s: %s", path, strerror(errno));
    } else if (bytes == MAX_FILE_BYTES || strlen(text) != bytes) {
        code = wefti_usage_error(command, "--hosts: %s: not a text file of less than %u bytes",
                                 path, MAX_FILE_BYTES);
    }
    for (char *line = code == EXIT_OK ? strtok_r(text, "\n", &rest) : NULL;
         line != NULL && code == EXIT_OK; line = strtok_r(NULL, "\n", &rest)) {
        code = read_line(command, plan, line);
    }
    if (file != NULL) {
        fclose(file);
    }
    free(text);
    return code;
}

static bool is_file(const char *text)
{
    struct stat info;
    return strchr(text, '/') != NULL ||
           (strpbrk(text, ",:") == NULL && stat(text, &info) == 0 && S_ISREG(info.st_mode));
}

int wefti_host_plan_parse(const char *command, const char *text, host_plan_t *out_plan)
{
    *out_plan = (host_plan_t){0};
    char *copy = strdup(text);
    int code = EXIT_BAD_INPUT;
    if (copy == NULL) {
        return wefti_usage_error(command, "out of memory: cannot copy --hosts");
    }
    code = is_file(text) ? read_file(command, out_plan, text) : read_list(command, out_plan, copy);
    free(copy);
    if (code == EXIT_OK && out_plan->host_count == 0) {
        code = wefti_usage_error(command, "--hosts: %s: no hosts", text);
    }
    if (code != EXIT_OK) {
        wefti_host_plan_deinit(out_plan);
    }
    return code;
}

/* ---- placing ---- */

/* The host of a rank, with host->rank_count as what it has so far. */
static launch_host_t *choose_host(host_plan_t *plan, bool round_robin)
{
    launch_host_t *best = NULL;
    for (uint32_t i = 0; i < plan->host_count; i++) {
        launch_host_t *host = &plan->hosts[i];
        if (host->rank_count < host->slots &&
            (best == NULL || (round_robin && host->rank_count < best->rank_count))) {
            best = host;
        }
    }
    return best;
}

int wefti_host_plan_place(const char *command, host_plan_t *plan, uint32_t world_size,
                          bool round_robin)
{
    uint32_t count = world_size != 0 ? world_size : plan->slot_count;
    uint32_t at = 0, kept = 0;
    if (count > plan->slot_count) {
        return wefti_usage_error(command, "--world %u: too many ranks: the hosts have %u slot%s",
                                 count, plan->slot_count, wefti_plural(plan->slot_count));
    }
    plan->rank_array = calloc(plan->slot_count, sizeof *plan->rank_array);
    if (plan->rank_array == NULL) {
        return wefti_usage_error(command, "out of memory: %u ranks", count);
    }
    for (uint32_t i = 0; i < plan->host_count; i++) {
        plan->hosts[i].ranks = plan->rank_array + at;
        at += plan->hosts[i].slots;
    }
    for (uint32_t rank = 0; rank < count; rank++) {
        launch_host_t *host = choose_host(plan, round_robin);
        host->ranks[host->rank_count++] = rank;
    }
    for (uint32_t i = 0; i < plan->host_count; i++) {
        if (plan->hosts[i].rank_count > 0) {
            plan->hosts[kept++] = plan->hosts[i];
        }
    }
    plan->host_count = kept;
    return EXIT_OK;
}

void wefti_host_plan_deinit(host_plan_t *plan)
{
    free(plan->hosts);
    free(plan->rank_array);
    *plan = (host_plan_t){0};
}

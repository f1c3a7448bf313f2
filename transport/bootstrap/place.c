/* SPDX-License-Identifier: Apache-2.0 */
/* Where rank 0 listens: host:port, with further ports if that one may belong to another program; or
 * anywhere, published through a file or a launcher's service. */
#include "transport/bootstrap/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/bootstrap/service.h"

#define BACKLOG 4096
#define TURNS_MAX 100000u
#define WINDOW_PORTS 16u
/* Below the ports that systems hand out themselves. */
#define WINDOW_FIRST 20000u
#define WINDOW_SPAN 12000u
#define WINDOW_STEP 389u

/* Finds the number of this world in its process. */
static weft_status_t claim_turn(wefti_place_t *place)
{
    wefti_service_t *service = place->job->service;
    for (; place->turn < TURNS_MAX; place->turn++) {
        weft_status_t status = service->ops->claim(service, place->turn);
        if (status != WEFT_AGAIN) {
            return status;
        }
    }
    return wefti_error(WEFT_ERR_STATE, "this process has already created %u worlds", TURNS_MAX);
}

weft_status_t wefti_place_init(wefti_place_t *place, const wefti_job_t *job,
                               const wefti_settings_t *settings)
{
    *place = (wefti_place_t){.job = job, .settings = settings, .listener = -1};
    memcpy(place->id, job->id, sizeof place->id);
    memcpy(place->secret, job->secret, sizeof place->secret);
    place->secret_bytes = job->secret_bytes;
    snprintf(place->text, sizeof place->text, "%s", job->address);
    return job->service != NULL ? claim_turn(place) : WEFT_OK;
}

/* ---- host:port ---- */

/* Ports that follow from the job alone, so that all ranks try the same ones. */
static uint32_t window(const wefti_place_t *place, uint16_t port, uint16_t *out_ports)
{
    uint32_t count = 0;
    uint32_t start = 0;
    if (place->job->ports != WEFTI_PORT_OTHERS) {
        out_ports[count++] = port;
    }
    if (place->job->ports != WEFTI_PORT_ONE) {
        memcpy(&start, place->id, sizeof start);
        for (uint32_t i = 0; i < WINDOW_PORTS; i++) {
            out_ports[count++] =
                (uint16_t)(WINDOW_FIRST + (start % WINDOW_SPAN + i * WINDOW_STEP) % WINDOW_SPAN);
        }
    }
    return count;
}

static weft_status_t refuse_without_secret(const wefti_place_t *place)
{
    return wefti_error(
        WEFT_ERR_INVALID_ARGUMENT,
        "address %s: other machines can reach it, so a secret is required; set the same "
        "WEFT_SECRET or WEFT_SECRET_FILE on all ranks (`openssl rand -hex 32` creates one)",
        place->job->address);
}

/* Resolves, and fills candidates: all addresses for the first port, then for the next. */
static weft_status_t resolve(wefti_place_t *place, bool *out_literal)
{
    char host[sizeof place->job->address];
    uint16_t ports[WINDOW_PORTS + 1];
    uint16_t port;
    wefti_address_t found[8];
    uint32_t found_count = 0;
    WEFT_RETURN_IF_ERROR(wefti_address_split(place->job->address, host, &port));
    weft_status_t status = wefti_address_resolve(host, port, found, 8, &found_count, out_literal);
    if (status < 0) {
        snprintf(place->why, sizeof place->why, "%s", weft_last_error());
        return *out_literal ? status : WEFT_AGAIN; /* names may become known while we wait */
    }
    place->loopback = true;
    for (uint32_t i = 0; i < found_count; i++) {
        place->loopback = place->loopback && found[i].loopback;
    }
    if (!place->loopback && place->secret_bytes == 0 && !place->job->delivered) {
        return refuse_without_secret(place);
    }
    uint32_t port_count = window(place, port, ports);
    place->scanned = port_count > 1;
    place->count = 0;
    for (uint32_t p = 0; p < port_count; p++) {
        for (uint32_t i = 0; i < found_count && place->count < WEFTI_PLACE_CANDIDATES; i++) {
            place->candidates[place->count] = found[i];
            place->candidates[place->count++].port = ports[p];
        }
    }
    return WEFT_OK;
}

static weft_status_t open_host_port(wefti_place_t *place)
{
    bool literal = false;
    wefti_address_t bound;
    weft_status_t status = resolve(place, &literal);
    if (status != WEFT_OK) {
        return status;
    }
    /* A name may mean something else to other hosts (127.0.1.1 here): listen everywhere then. */
    bool here_only = place->loopback;
    status = WEFT_AGAIN;
    for (uint32_t i = 0; i < place->count && status == WEFT_AGAIN; i++) {
        const wefti_address_t *at = &place->candidates[i];
        status = wefti_address_listen(literal || here_only ? at : NULL, at->port, BACKLOG,
                                      &place->listener, &bound);
    }
    if (status == WEFT_AGAIN) {
        snprintf(place->why, sizeof place->why, "another process is listening there");
    } else if (status == WEFT_OK && place->scanned) {
        char text[WEFTI_ADDRESS_TEXT];
        snprintf(place->text, sizeof place->text, "%s", wefti_address_text(&bound, true, text));
    }
    return status;
}

/* ---- anywhere, published by a notice ---- */

/* Listens on all interfaces that WEFT_IFNAME selects, on any port. */
static weft_status_t listen_anywhere(wefti_place_t *place)
{
    wefti_address_t bound;
    wefti_interface_t found[6];
    uint32_t count = 0;
    WEFT_RETURN_IF_ERROR(wefti_address_interfaces(place->settings->ifname, found, 6, &count));
    if (count == 0) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "rank 0: WEFT_IFNAME=%s matches no network interface that is up and has an address",
            place->settings->ifname);
    }
    weft_status_t status = wefti_address_listen(count == 1 ? &found[0].address : NULL, 0, BACKLOG,
                                                &place->listener, &bound);
    if (status == WEFT_AGAIN) {
        return wefti_error(WEFT_ERR_SYSTEM, "no free TCP port to listen on");
    }
    place->count = count;
    for (uint32_t i = 0; i < count; i++) {
        place->candidates[i] = found[i].address;
        place->candidates[i].port = bound.port;
    }
    return status;
}

/* A job id of its own, and a secret unless the user set one. */
static weft_status_t make_identity(wefti_place_t *place)
{
    WEFT_RETURN_IF_ERROR(wefti_random_bytes(place->id, sizeof place->id));
    if (place->secret_bytes != 0) {
        return WEFT_OK;
    }
    place->secret_bytes = 32;
    return wefti_random_bytes(place->secret, place->secret_bytes);
}

static weft_status_t look_up(wefti_place_t *place)
{
    wefti_service_t *service = place->job->service;
    char notice[WEFTI_NOTICE_BYTES];
    weft_status_t status = service->ops->look_up(service, place->turn, notice, sizeof notice);
    if (status == WEFT_OK && !wefti_place_read_notice(place, notice)) {
        status = WEFT_AGAIN;
    }
    if (status == WEFT_AGAIN) {
        snprintf(place->why, sizeof place->why, "it has not published its address yet");
    }
    wefti_forget(notice, sizeof notice);
    return status;
}

/* ---- by the kind of address ---- */

static const char *file_of(const wefti_place_t *place)
{
    const char *address = place->job->address;
    return strncmp(address, "file://", 7) == 0 ? address + 7 : NULL;
}

static bool is_service(const wefti_place_t *place)
{
    return place->job->service != NULL &&
           strcmp(place->job->address, place->job->service->ops->address) == 0;
}

weft_status_t wefti_place_open(wefti_place_t *place)
{
    const char *path = file_of(place);
    wefti_service_t *service = place->job->service;
    if (path == NULL && !is_service(place)) {
        return open_host_port(place);
    }
    char notice[WEFTI_NOTICE_BYTES];
    WEFT_RETURN_IF_ERROR(listen_anywhere(place));
    WEFT_RETURN_IF_ERROR(make_identity(place));
    wefti_place_write_notice(place, notice);
    weft_status_t status = path != NULL ? wefti_place_write_file(place, path, notice)
                                        : service->ops->publish(service, place->turn, notice);
    wefti_forget(notice, sizeof notice);
    return status;
}

weft_status_t wefti_place_find(wefti_place_t *place)
{
    bool literal;
    if (file_of(place) != NULL) {
        return wefti_place_read_file(place, file_of(place));
    }
    if (is_service(place)) {
        return look_up(place);
    }
    return place->count > 0 ? WEFT_OK : resolve(place, &literal);
}

bool wefti_place_held(const wefti_place_t *place)
{
    struct stat now;
    return place->path == NULL ||
           (stat(place->path, &now) == 0 && now.st_ino == place->written.st_ino &&
            now.st_dev == place->written.st_dev &&
            now.st_mtim.tv_sec == place->written.st_mtim.tv_sec &&
            now.st_mtim.tv_nsec == place->written.st_mtim.tv_nsec);
}

void wefti_place_deinit(wefti_place_t *place)
{
    if (place->path != NULL && wefti_place_held(place)) {
        unlink(place->path);
    }
    if (place->listener >= 0) {
        close(place->listener);
    }
    wefti_forget(place->secret, sizeof place->secret);
    place->path = NULL;
    place->listener = -1;
}

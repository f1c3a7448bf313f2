/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices, and a rendezvous through a file that all hosts see. The file has mode 0600 and is
 * replaced as a whole. The notice of an earlier job leads nowhere, or to a process with another job
 * id.
 */
#include "transport/bootstrap/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"

#define NOTICE_MARK "weft-rank-0"

static void add_hex(char *out, const char *name, const uint8_t *bytes, size_t count)
{
    size_t used = strlen(out);
    used += (size_t)snprintf(out + used, WEFTI_NOTICE_BYTES - used, ";%s:", name);
    for (size_t i = 0; i < count && used + 3 < WEFTI_NOTICE_BYTES; i++) {
        used += (size_t)snprintf(out + used, WEFTI_NOTICE_BYTES - used, "%02x", bytes[i]);
    }
}

void wefti_place_write_notice(const wefti_place_t *place, char *out)
{
    snprintf(out, WEFTI_NOTICE_BYTES, NOTICE_MARK);
    add_hex(out, "id", place->id, sizeof place->id);
    if (place->job->secret_bytes == 0) {
        add_hex(out, "secret", place->secret, place->secret_bytes);
    }
    for (uint32_t i = 0; i < place->count; i++) {
        char text[WEFTI_ADDRESS_TEXT];
        size_t used = strlen(out);
        if (used + WEFTI_ADDRESS_TEXT + 8 < WEFTI_NOTICE_BYTES) {
            snprintf(out + used, WEFTI_NOTICE_BYTES - used, ";at:%s",
                     wefti_address_text(&place->candidates[i], true, text));
        }
    }
    /* A part of it is not mistaken for all. */
    size_t used = strlen(out);
    snprintf(out + used, WEFTI_NOTICE_BYTES - used, ";end");
}

/* The number of bytes; 0: not hexadecimal, or too long. */
static uint32_t read_hex(const char *text, size_t length, uint8_t *out, uint32_t capacity)
{
    if (length % 2 != 0 || length / 2 > capacity || strspn(text, "0123456789abcdef") < length) {
        return 0;
    }
    for (size_t i = 0; i < length / 2; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1]};
        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return (uint32_t)(length / 2);
}

static bool read_address(const char *text, size_t length, wefti_address_t *out)
{
    char whole[WEFTI_ADDRESS_TEXT], host[WEFTI_ADDRESS_TEXT];
    uint16_t port;
    uint32_t count;
    bool literal;
    if (length >= sizeof whole) {
        return false;
    }
    memcpy(whole, text, length);
    whole[length] = '\0';
    return wefti_address_split(whole, host, &port) == WEFT_OK &&
           strspn(host, "0123456789abcdef.:") == strlen(host) &&
           wefti_address_resolve(host, port, out, 1, &count, &literal) == WEFT_OK && literal;
}

bool wefti_place_read_notice(wefti_place_t *place, const char *text)
{
    wefti_place_t read = *place;
    const char *at = text + strcspn(text, ";\n");
    bool id = false, end = false;
    read.count = 0;
    if (strncmp(text, NOTICE_MARK ";", sizeof NOTICE_MARK) != 0) {
        return false;
    }
    while (*at == ';' && !end) {
        const char *word = at + 1;
        size_t length = strcspn(word, ";\n");
        if (strncmp(word, "id:", 3) == 0) {
            id = read_hex(word + 3, length - 3, read.id, sizeof read.id) == sizeof read.id;
        } else if (strncmp(word, "secret:", 7) == 0 && place->job->secret_bytes == 0) {
            read.secret_bytes = read_hex(word + 7, length - 7, read.secret, sizeof read.secret);
        } else if (strncmp(word, "at:", 3) == 0 && read.count < WEFTI_PLACE_CANDIDATES) {
            read.count += read_address(word + 3, length - 3, &read.candidates[read.count]);
        }
        end = length == 3 && strncmp(word, "end", 3) == 0;
        at = word + length;
    }
    bool valid = id && end && read.count > 0;
    if (valid) {
        *place = read;
    }
    wefti_forget(read.secret, sizeof read.secret);
    return valid;
}

weft_status_t wefti_place_write_file(wefti_place_t *place, const char *path, const char *notice)
{
    char temporary[sizeof place->job->address + 16];
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot write %s", temporary);
    }
    bool written = write(fd, notice, strlen(notice)) == (ssize_t)strlen(notice) && fsync(fd) == 0 &&
                   rename(temporary, path) == 0 && fstat(fd, &place->written) == 0;
    int error_number = errno;
    close(fd);
    if (!written) {
        unlink(temporary);
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "cannot write %s", path);
    }
    place->path = path;
    return WEFT_OK;
}

weft_status_t wefti_place_read_file(wefti_place_t *place, const char *path)
{
    char text[WEFTI_NOTICE_BYTES + 1];
    struct stat info;
    /* Opened anew each time: on a network file system that is what shows changes. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        snprintf(place->why, sizeof place->why, "%s", strerror(errno));
        return WEFT_AGAIN;
    }
    bool usable = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                  (info.st_mode & 077) == 0;
    ssize_t got = usable ? read(fd, text, sizeof text - 1) : 0;
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    if (!usable) {
        snprintf(place->why, sizeof place->why, "the file must belong to this user with mode 0600");
    } else if (!wefti_place_read_notice(place, text)) {
        snprintf(place->why, sizeof place->why, "the file has other contents");
        usable = false;
    }
    wefti_forget(text, sizeof text);
    return usable ? WEFT_OK : WEFT_AGAIN;
}

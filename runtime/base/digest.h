/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 and HMAC-SHA256 by libcrypto, random bytes by the kernel. */
#ifndef WEFT_RUNTIME_BASE_DIGEST_H
#define WEFT_RUNTIME_BASE_DIGEST_H

#include <stdbool.h>

#include <weft/types.h>

typedef struct wefti_digest {
    uint8_t bytes[32];
} wefti_digest_t;

typedef struct wefti_hasher wefti_hasher_t;
weft_status_t wefti_hasher_create(wefti_hasher_t **out_hasher);
void wefti_hasher_add(wefti_hasher_t *hasher, const void *data, size_t size_bytes);
void wefti_hasher_finish(wefti_hasher_t *hasher, wefti_digest_t *out_digest);
void wefti_hasher_destroy(wefti_hasher_t *hasher);

weft_status_t wefti_digest_of(const void *data, size_t size_bytes, wefti_digest_t *out_digest);
/* The first 16 hex digits are enough for people; buffer holds 65 bytes. */
const char *wefti_digest_hex(const wefti_digest_t *digest, char *buffer);

/*
 * HMAC-SHA256 of label (a string that says what it is for; its terminating zero is part of it),
 * then data. Keys of any length, also none.
 */
weft_status_t wefti_hmac(const void *key, size_t key_bytes, const char *label, const void *data,
                         size_t data_bytes, wefti_digest_t *out_mac);
/* Takes the same time wherever they differ. */
bool wefti_digest_equal(const wefti_digest_t *a, const wefti_digest_t *b);
/* For secrets and nonces. */
weft_status_t wefti_random_bytes(void *out, size_t bytes);
/* Overwrites a secret; unlike memset it is not optimised away. */
void wefti_forget(void *secret, size_t bytes);

#endif

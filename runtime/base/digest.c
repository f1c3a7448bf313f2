/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/digest.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

struct wefti_hasher {
    EVP_MD_CTX *context;
    int failed; /* libcrypto refused: the digest is then all ones, which no data has */
};

/*
 * A process may end while a thread of the library computes an HMAC, for a peer that connects.
 * libcrypto must not free its locks under that thread.
 */
__attribute__((constructor)) static void keep_until_the_end(void)
{
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

weft_status_t wefti_hasher_create(wefti_hasher_t **out_hasher)
{
    wefti_hasher_t *hasher = wefti_alloc(NULL, sizeof *hasher);
    *out_hasher = NULL;
    if (!hasher) {
        return WEFT_ERR_NO_MEMORY;
    }
    hasher->context = EVP_MD_CTX_new();
    if (!hasher->context || EVP_DigestInit_ex(hasher->context, EVP_sha256(), NULL) != 1) {
        wefti_hasher_destroy(hasher);
        return wefti_error(WEFT_ERR_SYSTEM, "libcrypto: SHA-256 is not available");
    }
    *out_hasher = hasher;
    return WEFT_OK;
}

void wefti_hasher_add(wefti_hasher_t *hasher, const void *data, size_t size_bytes)
{
    if (size_bytes && EVP_DigestUpdate(hasher->context, data, size_bytes) != 1) {
        hasher->failed = 1;
    }
}

void wefti_hasher_finish(wefti_hasher_t *hasher, wefti_digest_t *out_digest)
{
    if (EVP_DigestFinal_ex(hasher->context, out_digest->bytes, NULL) != 1 || hasher->failed) {
        memset(out_digest->bytes, 0xff, sizeof out_digest->bytes);
    }
}

void wefti_hasher_destroy(wefti_hasher_t *hasher)
{
    if (hasher) {
        EVP_MD_CTX_free(hasher->context);
        wefti_free(NULL, hasher);
    }
}

weft_status_t wefti_digest_of(const void *data, size_t size_bytes, wefti_digest_t *out_digest)
{
    return EVP_Digest(data, size_bytes, out_digest->bytes, NULL, EVP_sha256(), NULL) == 1
               ? WEFT_OK
               : wefti_error(WEFT_ERR_SYSTEM, "libcrypto: SHA-256 is not available");
}

const char *wefti_digest_hex(const wefti_digest_t *digest, char *buffer)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof digest->bytes; i++) {
        buffer[2 * i] = digits[digest->bytes[i] >> 4];
        buffer[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    buffer[2 * sizeof digest->bytes] = '\0';
    return buffer;
}

weft_status_t wefti_hmac(const void *key, size_t key_bytes, const char *label, const void *data,
                         size_t data_bytes, wefti_digest_t *out_mac)
{
    size_t mac_bytes = sizeof out_mac->bytes;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    EVP_PKEY *secret =
        EVP_PKEY_new_raw_private_key(EVP_PKEY_HMAC, NULL, key_bytes > 0 ? key : "", key_bytes);
    bool done = context != NULL && secret != NULL &&
                EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, secret) == 1 &&
                EVP_DigestSignUpdate(context, label, strlen(label) + 1) == 1 &&
                EVP_DigestSignUpdate(context, data, data_bytes) == 1 &&
                EVP_DigestSignFinal(context, out_mac->bytes, &mac_bytes) == 1;
    EVP_PKEY_free(secret);
    EVP_MD_CTX_free(context);
    return done ? WEFT_OK : wefti_error(WEFT_ERR_SYSTEM, "libcrypto: computing HMAC failed");
}

bool wefti_digest_equal(const wefti_digest_t *a, const wefti_digest_t *b)
{
    return CRYPTO_memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

weft_status_t wefti_random_bytes(void *out, size_t bytes)
{
    uint8_t *at = out;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno != EINTR) {
            return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "getrandom failed");
        }
        at += got > 0 ? got : 0;
        bytes -= got > 0 ? (size_t)got : 0;
    }
    return WEFT_OK;
}

void wefti_forget(void *secret, size_t bytes)
{
    OPENSSL_cleanse(secret, bytes);
}

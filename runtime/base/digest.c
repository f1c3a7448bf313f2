/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/digest.h"

#include <errno.h>
/* libcrypto's later interface finds SHA-256 at run time among all that it has: linked statically,
 * that is 3.8 MB, where these functions are 20 kB. They cannot fail. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>
#include <sys/random.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

struct wefti_hasher {
    SHA256_CTX context;
};

weft_status_t wefti_hasher_create(wefti_hasher_t **out_hasher)
{
    *out_hasher = wefti_alloc(NULL, sizeof **out_hasher);
    if (*out_hasher == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    SHA256_Init(&(*out_hasher)->context);
    return WEFT_OK;
}

void wefti_hasher_add(wefti_hasher_t *hasher, const void *data, size_t size_bytes)
{
    SHA256_Update(&hasher->context, data, size_bytes);
}

void wefti_hasher_finish(wefti_hasher_t *hasher, wefti_digest_t *out_digest)
{
    SHA256_Final(out_digest->bytes, &hasher->context);
}

void wefti_hasher_destroy(wefti_hasher_t *hasher)
{
    wefti_free(NULL, hasher);
}

weft_status_t wefti_digest_of(const void *data, size_t size_bytes, wefti_digest_t *out_digest)
{
    SHA256_CTX context;
    SHA256_Init(&context);
    SHA256_Update(&context, data, size_bytes);
    SHA256_Final(out_digest->bytes, &context);
    return WEFT_OK;
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

/* The key's block, each byte changed by pad, begins both hashes of an HMAC (RFC 2104). */
static void begin_padded(SHA256_CTX *context, const uint8_t *block, uint8_t pad)
{
    uint8_t padded[SHA256_CBLOCK];
    for (size_t i = 0; i < sizeof padded; i++) {
        padded[i] = block[i] ^ pad;
    }
    SHA256_Init(context);
    SHA256_Update(context, padded, sizeof padded);
    wefti_forget(padded, sizeof padded);
}

weft_status_t wefti_hmac(const void *key, size_t key_bytes, const char *label, const void *data,
                         size_t data_bytes, wefti_digest_t *out_mac)
{
    SHA256_CTX context;
    uint8_t block[SHA256_CBLOCK] = {0};
    if (key_bytes > sizeof block) {
        SHA256_Init(&context);
        SHA256_Update(&context, key, key_bytes);
        SHA256_Final(block, &context);
    } else if (key_bytes > 0) {
        memcpy(block, key, key_bytes);
    }
    begin_padded(&context, block, 0x36);
    SHA256_Update(&context, label, strlen(label) + 1);
    SHA256_Update(&context, data, data_bytes);
    SHA256_Final(out_mac->bytes, &context);
    begin_padded(&context, block, 0x5c);
    SHA256_Update(&context, out_mac->bytes, sizeof out_mac->bytes);
    SHA256_Final(out_mac->bytes, &context);
    wefti_forget(block, sizeof block);
    wefti_forget(&context, sizeof context);
    return WEFT_OK;
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/digest.h"

#include <openssl/evp.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

struct wefti_hasher {
    EVP_MD_CTX *context;
    int failed; /* libcrypto refused: the digest is then all ones, which no data has */
};

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
        return wefti_error(WEFT_ERR_SYSTEM, "libcrypto has no SHA-256");
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
    wefti_hasher_t *hasher;
    weft_status_t status = wefti_hasher_create(&hasher);
    if (status == WEFT_OK) {
        wefti_hasher_add(hasher, data, size_bytes);
        wefti_hasher_finish(hasher, out_digest);
        wefti_hasher_destroy(hasher);
    }
    return status;
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operators.c uses of XLA's C interface for custom calls (FFI), major version 0. The structs
 * have the layout of xla/ffi/api/c_api.h in jaxlib's folder include.
 */
#ifndef WEFT_INTEROP_JAX_XLA_FFI_H
#define WEFT_INTEROP_JAX_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

enum { FFI_EXTENSION_METADATA = 1, FFI_STAGE_EXECUTE = 3, FFI_ERROR_UNKNOWN = 2 };

/* Element types. */
enum {
    FFI_PRED = 1,
    FFI_S8 = 2,
    FFI_S16 = 3,
    FFI_S32 = 4,
    FFI_S64 = 5,
    FFI_U8 = 6,
    FFI_U16 = 7,
    FFI_U32 = 8,
    FFI_U64 = 9,
    FFI_F16 = 10,
    FFI_F32 = 11,
    FFI_F64 = 12,
    FFI_C64 = 15,
    FFI_BF16 = 16,
    FFI_TOKEN = 17,
    FFI_C128 = 18,
};

typedef struct ffi_extension {
    size_t struct_size;
    int type;
    struct ffi_extension *next;
} ffi_extension_t;

typedef struct ffi_version {
    size_t struct_size;
    ffi_extension_t *extensions;
    int major, minor;
} ffi_version_t;

/* A handler whose frame has this extension describes itself and does nothing else. */
typedef struct ffi_metadata {
    size_t struct_size;
    ffi_version_t version;
    uint32_t traits;
    int64_t state_type;
} ffi_metadata_t;

typedef struct ffi_metadata_extension {
    ffi_extension_t base;
    ffi_metadata_t *metadata;
} ffi_metadata_extension_t;

typedef struct ffi_buffer {
    size_t struct_size;
    ffi_extension_t *extensions;
    int dtype;
    void *data;
    int64_t rank;
    const int64_t *dims;
} ffi_buffer_t;

/* Arguments or results. */
typedef struct ffi_buffers {
    size_t struct_size;
    ffi_extension_t *extensions;
    int64_t size;
    const int *types;
    ffi_buffer_t **items;
} ffi_buffers_t;

typedef struct ffi_scalar {
    int dtype;
    const void *value;
} ffi_scalar_t;

typedef struct ffi_name {
    const char *text;
    size_t length;
} ffi_name_t;

/* Sorted by name. */
typedef struct ffi_attributes {
    size_t struct_size;
    ffi_extension_t *extensions;
    int64_t size;
    const int *types;
    ffi_name_t **names;
    void **items;
} ffi_attributes_t;

typedef struct ffi_error ffi_error_t; /* NULL: success */

typedef struct ffi_error_create {
    size_t struct_size;
    ffi_extension_t *extensions;
    const char *message;
    int code;
} ffi_error_create_t;
/* XLA counts up to the last field. */
#define FFI_ERROR_CREATE_SIZE (offsetof(ffi_error_create_t, code) + sizeof(int))

/* The end of a handler that goes on after it has returned. */
typedef struct ffi_future ffi_future_t;

typedef struct ffi_future_args {
    size_t struct_size;
    ffi_extension_t *extensions;
    ffi_future_t *future;
} ffi_future_args_t;

typedef struct ffi_future_error {
    size_t struct_size;
    ffi_extension_t *extensions;
    ffi_future_t *future;
    ffi_error_t *error; /* XLA's from then on */
} ffi_future_error_t;

typedef struct ffi_api {
    size_t struct_size;
    ffi_extension_t *extensions;
    ffi_version_t version;
    const void *internal;
    ffi_error_t *(*error_create)(ffi_error_create_t *args);
    const void *not_used[12]; /* error_get_message to thread_pool_num_threads */
    ffi_error_t *(*future_create)(ffi_future_args_t *args);
    ffi_error_t *(*future_set_available)(ffi_future_args_t *args);
    ffi_error_t *(*future_set_error)(ffi_future_error_t *args);
} ffi_api_t;

typedef struct ffi_frame {
    size_t struct_size;
    ffi_extension_t *extensions;
    const ffi_api_t *api;
    void *context;
    int stage;
    ffi_buffers_t args, results;
    ffi_attributes_t attributes;
    ffi_future_t *future; /* set by a handler that goes on; what the arguments point to lives on */
} ffi_frame_t;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this library uses of TVM's C interface (tvm-ffi 0.1). The structs have the layout of
 * tvm/ffi/c_api.h and dlpack/dlpack.h in the wheel apache-tvm-ffi; tests/interop/tvm_layout.c
 * compares them. TVM only appends to that interface.
 */
#ifndef WEFT_INTEROP_TVM_TVM_FFI_H
#define WEFT_INTEROP_TVM_TVM_FFI_H

#include <stddef.h>
#include <stdint.h>

/* Kinds of values. */
enum {
    FFI_NONE = 0,
    FFI_INT = 1,
    FFI_BOOL = 2,
    FFI_TENSOR_PTR = 7, /* ffi_tensor_t * */
    FFI_RAW_STR = 8,    /* const char * */
    FFI_SMALL_STR = 11, /* in the value itself */
    FFI_STR = 65,       /* object with an ffi_bytes_t */
    FFI_SHAPE = 69,     /* object with an ffi_shape_t */
    FFI_TENSOR = 70,    /* object with an ffi_tensor_t */
};

/* Head of every object; its contents follow. */
typedef struct ffi_object {
    uint64_t ref_count;
    int32_t type_index;
    uint32_t padding;
    void (*deleter)(void *self, int flags);
} ffi_object_t;

/* A value: an argument or a result. */
typedef struct ffi_any {
    int32_t type_index;
    uint32_t small_str_len;
    union {
        int64_t v_int64;
        void *v_ptr;
        const char *v_c_str;
        ffi_object_t *v_obj;
        char v_bytes[8];
    };
} ffi_any_t;

typedef struct ffi_bytes {
    const char *data;
    size_t size;
} ffi_bytes_t;

typedef struct ffi_shape {
    const int64_t *data;
    size_t size;
} ffi_shape_t;

/* DLPack's device types that are memory of the host. */
enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11 };

/* DLPack's type codes. */
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };

/* DLTensor. */
typedef struct ffi_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    const int64_t *shape;
    const int64_t *strides; /* elements; NULL: contiguous */
    uint64_t byte_offset;
} ffi_tensor_t;

/* Returns 0, or -1 after it has raised an error. */
typedef int (*ffi_call_fn)(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result);

/* The functions of libtvm_ffi.so, which is found where TVM has loaded it: name, result, arguments. */
#define FFI_FUNCTIONS(X)                                                                           \
    X(TVMFFIFunctionCreate, int, (void *, ffi_call_fn, void (*)(void *), void **))                 \
    X(TVMFFIFunctionSetGlobal, int, (const ffi_bytes_t *, void *, int))                            \
    X(TVMFFIFunctionGetGlobal, int, (const ffi_bytes_t *, void **))                                \
    X(TVMFFIFunctionCall, int, (void *, ffi_any_t *, int32_t, ffi_any_t *))                        \
    X(TVMFFIObjectDecRef, int, (void *))                                                           \
    X(TVMFFIErrorSetRaisedFromCStr, void, (const char *, const char *))

#endif

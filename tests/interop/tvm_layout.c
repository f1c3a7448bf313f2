/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares interop/tvm/tvm_ffi.h with the headers of the wheel apache-tvm-ffi. Only compiled, by
 * tests/python/test_tvm.py.
 */
#include <tvm/ffi/c_api.h>

#include "interop/tvm/tvm_ffi.h"

#define SAME(text, ours, theirs) _Static_assert((ours) == (theirs), text)
#define FIELD(our_type, our_field, their_type, their_field)                                        \
    SAME(#their_type "." #their_field, offsetof(our_type, our_field),                              \
         offsetof(their_type, their_field));                                                       \
    SAME("size of " #their_type "." #their_field, sizeof(((our_type *)0)->our_field),              \
         sizeof(((their_type *)0)->their_field))

SAME("version", TVM_FFI_VERSION_MAJOR, 0);

SAME("kTVMFFINone", (int)FFI_NONE, (int)kTVMFFINone);
SAME("kTVMFFIInt", (int)FFI_INT, (int)kTVMFFIInt);
SAME("kTVMFFIBool", (int)FFI_BOOL, (int)kTVMFFIBool);
SAME("kTVMFFIDLTensorPtr", (int)FFI_TENSOR_PTR, (int)kTVMFFIDLTensorPtr);
SAME("kTVMFFIRawStr", (int)FFI_RAW_STR, (int)kTVMFFIRawStr);
SAME("kTVMFFISmallStr", (int)FFI_SMALL_STR, (int)kTVMFFISmallStr);
SAME("kTVMFFIStr", (int)FFI_STR, (int)kTVMFFIStr);
SAME("kTVMFFIShape", (int)FFI_SHAPE, (int)kTVMFFIShape);
SAME("kTVMFFITensor", (int)FFI_TENSOR, (int)kTVMFFITensor);
SAME("kDLCPU", (int)DL_CPU, (int)kDLCPU);
SAME("kDLCUDAHost", (int)DL_CUDA_HOST, (int)kDLCUDAHost);
SAME("kDLROCMHost", (int)DL_ROCM_HOST, (int)kDLROCMHost);
SAME("kDLInt", (int)DL_INT, (int)kDLInt);
SAME("kDLUInt", (int)DL_UINT, (int)kDLUInt);
SAME("kDLFloat", (int)DL_FLOAT, (int)kDLFloat);
SAME("kDLBfloat", (int)DL_BFLOAT, (int)kDLBfloat);
SAME("kDLComplex", (int)DL_COMPLEX, (int)kDLComplex);
SAME("kDLBool", (int)DL_BOOL, (int)kDLBool);

SAME("TVMFFIObject", sizeof(ffi_object_t), sizeof(TVMFFIObject));
FIELD(ffi_object_t, type_index, TVMFFIObject, type_index);

SAME("TVMFFIAny", sizeof(ffi_any_t), sizeof(TVMFFIAny));
FIELD(ffi_any_t, type_index, TVMFFIAny, type_index);
FIELD(ffi_any_t, small_str_len, TVMFFIAny, small_str_len);
FIELD(ffi_any_t, v_int64, TVMFFIAny, v_int64);
FIELD(ffi_any_t, v_obj, TVMFFIAny, v_obj);
FIELD(ffi_any_t, v_bytes, TVMFFIAny, v_bytes);

SAME("TVMFFIByteArray", sizeof(ffi_bytes_t), sizeof(TVMFFIByteArray));
FIELD(ffi_bytes_t, data, TVMFFIByteArray, data);
FIELD(ffi_bytes_t, size, TVMFFIByteArray, size);
FIELD(ffi_shape_t, data, TVMFFIShapeCell, data);
FIELD(ffi_shape_t, size, TVMFFIShapeCell, size);

SAME("DLTensor", sizeof(ffi_tensor_t), sizeof(DLTensor));
FIELD(ffi_tensor_t, data, DLTensor, data);
FIELD(ffi_tensor_t, device_type, DLTensor, device.device_type);
FIELD(ffi_tensor_t, device_id, DLTensor, device.device_id);
FIELD(ffi_tensor_t, rank, DLTensor, ndim);
FIELD(ffi_tensor_t, code, DLTensor, dtype.code);
FIELD(ffi_tensor_t, bits, DLTensor, dtype.bits);
FIELD(ffi_tensor_t, lanes, DLTensor, dtype.lanes);
FIELD(ffi_tensor_t, shape, DLTensor, shape);
FIELD(ffi_tensor_t, strides, DLTensor, strides);
FIELD(ffi_tensor_t, byte_offset, DLTensor, byte_offset);

/* The same with their types: a call with other arguments does not compile. */
void call_all(void **out, TVMFFIAny *any, const TVMFFIByteArray *name);
void call_all(void **out, TVMFFIAny *any, const TVMFFIByteArray *name)
{
    TVMFFISafeCallType call = (int (*)(void *, const TVMFFIAny *, int32_t, TVMFFIAny *))0;
    (void)TVMFFIFunctionCreate((void *)0, call, (void (*)(void *))0, out);
    (void)TVMFFIFunctionSetGlobal(name, *out, 1);
    (void)TVMFFIFunctionGetGlobal(name, out);
    (void)TVMFFIFunctionCall(*out, any, (int32_t)1, any);
    (void)TVMFFIObjectDecRef(*out);
    TVMFFIErrorSetRaisedFromCStr("kind", "message");
}

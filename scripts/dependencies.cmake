# SPDX-License-Identifier: Apache-2.0
# Finds the libraries. A missing required one is an error that names the Debian package; a missing optional one is a
# line of the configuration's output and an entry of WEFT_LEFT_OUT, which scripts/test.sh prints at its end.
# Optional libraries are found by compiling and linking a line against them.
include(CheckCSourceCompiles)
include(CMakePushCheckState)

set(missing_packages "")
set_property(GLOBAL PROPERTY WEFT_LEFT_OUT "")

# weft_require(FOUND PACKAGE..): notes that PACKAGE.. must be installed unless FOUND is true.
macro(weft_require found)
  if(NOT ${found})
    list(APPEND missing_packages ${ARGN})
  endif()
endmacro()

# weft_left_out(TEXT): a part of the tree that this configuration does not build, with the reason.
function(weft_left_out text)
  message(STATUS "${text}")
  set_property(GLOBAL APPEND PROPERTY WEFT_LEFT_OUT "${text}")
endfunction()

# weft_probe(RESULT SOURCE [LIBRARIES l..] [INCLUDES dir..]): does SOURCE compile and link? A failure is tried again by
# the next configuration, for which the package may have been installed.
function(weft_probe result source)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;INCLUDES" ${ARGN})
  if(NOT ${result})
    unset(${result} CACHE)
  endif()
  cmake_push_check_state(RESET)
  set(CMAKE_REQUIRED_QUIET TRUE)
  set(CMAKE_REQUIRED_LIBRARIES ${ARG_LIBRARIES})
  set(CMAKE_REQUIRED_INCLUDES ${ARG_INCLUDES})
  check_c_source_compiles("${source}" ${result})
  cmake_pop_check_state()
endfunction()

find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
  message(FATAL_ERROR "pkg-config is missing: install the Debian package pkg-config")
endif()
find_package(ZLIB QUIET)
weft_require(ZLIB_FOUND zlib1g-dev)

# Headers only: runtime/base/library.c loads these libraries where they are needed.
find_path(DNNL_INCLUDE_DIR dnnl.h)
weft_require(DNNL_INCLUDE_DIR libdnnl-dev)

pkg_check_modules(PROTOBUF_C QUIET IMPORTED_TARGET libprotobuf-c)
weft_require(PROTOBUF_C_FOUND libprotobuf-c-dev)
find_program(PROTOC_C protoc-c)
weft_require(PROTOC_C protobuf-c-compiler)
find_path(ONNX_PROTO_DIR onnx/onnx.proto)
weft_require(ONNX_PROTO_DIR libonnx-dev)
pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc)
weft_require(HWLOC_FOUND libhwloc-dev)
pkg_check_modules(CRYPTO QUIET IMPORTED_TARGET libcrypto)
weft_require(CRYPTO_FOUND libssl-dev)
if(missing_packages)
  list(JOIN missing_packages " " missing_packages)
  message(FATAL_ERROR "libraries are missing; on Debian 12: apt-get install --no-install-recommends ${missing_packages}")
endif()

option(WEFT_VERBS "RDMA links by libibverbs, where its header is installed" ON)
set(IBVERBS_FOUND FALSE)
if(WEFT_VERBS)
  weft_probe(WEFT_VERBS_WORKS "#include <infiniband/verbs.h>
int main(void) { return IBV_ACCESS_LOCAL_WRITE == 0; }")
  set(IBVERBS_FOUND ${WEFT_VERBS_WORKS})
  if(NOT IBVERBS_FOUND)
    weft_left_out("RDMA links are left out: a line with infiniband/verbs.h does not compile (libibverbs-dev)")
  endif()
endif()

option(WEFT_OPENCL "The plugin of OpenCL devices, where its header and loader are installed" ON)
set(OPENCL_FOUND FALSE)
if(WEFT_OPENCL)
  find_path(OPENCL_INCLUDE_DIR CL/cl.h)
  find_library(OPENCL_LIBRARY OpenCL)
  if(OPENCL_INCLUDE_DIR AND OPENCL_LIBRARY)
    weft_probe(WEFT_OPENCL_WORKS "#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
int main(void) { return clGetPlatformIDs(0, 0, 0) == 0; }" LIBRARIES ${OPENCL_LIBRARY} INCLUDES ${OPENCL_INCLUDE_DIR})
    set(OPENCL_FOUND ${WEFT_OPENCL_WORKS})
  endif()
  if(NOT OPENCL_FOUND)
    weft_left_out("OpenCL devices are left out: a line with CL/cl.h does not compile (opencl-headers, ocl-icd-opencl-dev)")
  endif()
endif()

pkg_check_modules(PMIX QUIET pmix)
if(PMIX_FOUND)
  weft_probe(WEFT_PMIX_WORKS "#include <pmix.h>
int main(void) { return PMIX_SUCCESS; }" INCLUDES ${PMIX_INCLUDE_DIRS})
  set(PMIX_FOUND ${WEFT_PMIX_WORKS})
endif()
if(NOT PMIX_FOUND)
  weft_left_out("ranks started by PMIx are left out: a line with pmix.h does not compile (libpmix-dev)")
endif()

if(WEFT_PYTHON)
  if(WEFT_PYTHON_INCLUDE)
    set(PYTHON_FOUND TRUE)
    set(PYTHON_INCLUDE_DIRS ${WEFT_PYTHON_INCLUDE})
  elseif(SKBUILD AND EXISTS "${Python3_INCLUDE_DIR}/pybuffer.h") # of the interpreter that runs pip, 3.11 or later
    set(PYTHON_FOUND TRUE)
    set(PYTHON_INCLUDE_DIRS ${Python3_INCLUDE_DIR})
  else()
    pkg_check_modules(PYTHON QUIET python3>=3.11)
  endif()
  if(PYTHON_FOUND)
    weft_probe(WEFT_PYTHON_WORKS "#define Py_LIMITED_API 0x030b0000
#include <Python.h>
int main(void) { return sizeof(Py_buffer) == 0; }" INCLUDES ${PYTHON_INCLUDE_DIRS})
  endif()
  if(NOT PYTHON_FOUND OR NOT WEFT_PYTHON_WORKS)
    if(SKBUILD)
      message(FATAL_ERROR "no Python.h of CPython 3.11 or later: install the Debian package python3-dev, or name a folder by "
        "CMAKE_ARGS=-DWEFT_PYTHON_INCLUDE=DIR")
    endif()
    weft_left_out("the Python package is left out: a line with Python.h of CPython 3.11 or later does not compile (python3-dev)")
    set(WEFT_PYTHON OFF)
  endif()
endif()

# The tests need cmocka and an interpreter. AUTO leaves them out, ON demands them.
if(WEFT_TESTS)
  pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
  if(CMOCKA_FOUND)
    weft_probe(WEFT_CMOCKA_WORKS "#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
int main(void) { return cmocka_run_group_tests_name(\"none\", (struct CMUnitTest *)0, 0, 0); }" LIBRARIES PkgConfig::CMOCKA)
  endif()
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(tests_lack "")
  if(NOT CMOCKA_FOUND OR NOT WEFT_CMOCKA_WORKS)
    list(APPEND tests_lack libcmocka-dev)
  endif()
  if(NOT Python3_Interpreter_FOUND)
    list(APPEND tests_lack python3)
  endif()
  list(JOIN tests_lack " " tests_lack)
  if(tests_lack AND WEFT_TESTS STREQUAL "AUTO")
    weft_left_out("the tests are left out: not installed: ${tests_lack}; -DWEFT_TESTS=ON makes this an error")
    set(WEFT_TESTS OFF)
  elseif(tests_lack)
    message(FATAL_ERROR "WEFT_TESTS is ON and these Debian packages are missing: ${tests_lack}")
  endif()
endif()

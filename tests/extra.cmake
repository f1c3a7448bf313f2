# SPDX-License-Identifier: Apache-2.0
# Tests that are not one C file: checks of the tree, whole runs of the command.
# Debian's interpreter has the onnx package; a virtual environment over it may add onnxruntime.
set(WEFT_INTERPRETER /usr/bin/python3)
if(NOT EXISTS ${WEFT_INTERPRETER})
  set(WEFT_INTERPRETER ${Python3_EXECUTABLE})
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
  set(WEFT_INTERPRETER ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
endif()

include(tree/tree.cmake)
include(rdma/rdma.cmake)

# Programs whose ranks are threads, once more on simulated hosts of two ranks each, between which
# only puts and signals go, late and out of order.
# Under sanitizers runtime_put_links and some of them do: each whole program takes a minute there.
foreach(test groups collectives batch algorithms capture)
  if(WEFT_SANITIZE AND test MATCHES "collectives|algorithms|capture|batch")
    continue()
  endif()
  # There runtime_put_links has the puts and signals, runtime_groups_tcp the groups of ranks on other hosts.
  if(WEFT_SANITIZE STREQUAL "thread" AND test STREQUAL "groups")
    continue()
  endif()
  add_test(NAME runtime_${test}_hosts COMMAND runtime_${test})
  set_tests_properties(runtime_${test}_hosts PROPERTIES LABELS "unit;threads" TIMEOUT 900
    ENVIRONMENT "WEFT_TEST_HOSTS=2;WEFT_TEST_DELAY_NS=10000")
endforeach()

# The same in groups whose ranks agree on calls by hosts, as large groups do.
foreach(test groups put_links link_faults)
  if(WEFT_SANITIZE AND NOT test STREQUAL "link_faults")
    continue()
  endif()
  add_test(NAME runtime_${test}_hosted COMMAND runtime_${test})
  set_tests_properties(runtime_${test}_hosted PROPERTIES LABELS "unit;threads" TIMEOUT 900
    ENVIRONMENT "WEFT_TEST_HOSTS=2;WEFT_TEST_DELAY_NS=10000;WEFT_TEST_MESH_RANKS=1")
endforeach()

# And over tcp: every rank is a host of its own; ranks that are processes are two to a host.
foreach(test groups collectives random_training)
  if(WEFT_SANITIZE AND NOT (test STREQUAL "groups" AND WEFT_SANITIZE STREQUAL "thread"))
    continue()
  endif()
  add_test(NAME runtime_${test}_tcp COMMAND runtime_${test})
  set_tests_properties(runtime_${test}_tcp PROPERTIES LABELS "unit;threads" TIMEOUT 900
    ENVIRONMENT "WEFT_TEST_TRANSPORT=tcp;WEFT_TEST_HOSTS=2")
endforeach()

# The fake card as a plugin, and one of an earlier version, which is refused.
foreach(plugin fake old holes)
  add_library(weft_${plugin} MODULE runtime/fake_plugin.c runtime/support_fake_card.c)
  target_link_libraries(weft_${plugin} PRIVATE weft_testing)
  target_link_options(weft_${plugin} PRIVATE LINKER:--exclude-libs,ALL)
  set_target_properties(weft_${plugin} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  add_dependencies(runtime_device_plugin weft_${plugin})
endforeach()
target_compile_definitions(weft_old PRIVATE FAKE_ABI=2u)
target_compile_definitions(weft_holes PRIVATE FAKE_NAME=NULL)
add_dependencies(runtime_struct_sizes weft_fake)
set_tests_properties(runtime_device_plugin runtime_struct_sizes PROPERTIES ENVIRONMENT "WEFT_DEVICE_PATH=${CMAKE_CURRENT_BINARY_DIR}")
foreach(test device_table device_groups device_fusion memory stream)
  add_dependencies(runtime_${test} weft_fake)
  add_test(NAME runtime_${test}_plugin COMMAND runtime_${test})
  set_tests_properties(runtime_${test}_plugin PROPERTIES LABELS "unit;threads" TIMEOUT 600
    ENVIRONMENT "WEFT_TEST_DEVICE=fake:0;WEFT_DEVICE_PATH=${CMAKE_CURRENT_BINARY_DIR}")
endforeach()

# Tests of devices, once more on OpenCL: in memory that ranks share, and in buffers that they do not. LLVM, in the driver,
# has alternate stacks of its own.
if(TARGET weft_opencl AND NOT WEFT_SANITIZE MATCHES "thread") # the driver is not built with it
  # PoCL's LLVM has a stack of its own for signals, and LeakSanitizer crashes at exit on thread-local memory of its threads
  # now and then; on the fake card the same tests look for leaks.
  foreach(test device_table device_groups device_fusion memory stream)
    add_dependencies(runtime_${test} weft_opencl)
    foreach(memory shared buffer)
      add_test(NAME runtime_${test}_opencl_${memory} COMMAND runtime_${test})
      set_tests_properties(runtime_${test}_opencl_${memory} PROPERTIES LABELS unit TIMEOUT 600 SKIP_RETURN_CODE 77
        ENVIRONMENT "WEFT_TEST_DEVICE=opencl:0;WEFT_DEVICE_PATH=${PROJECT_BINARY_DIR};WEFT_OPENCL_MEMORY=${memory};ASAN_OPTIONS=use_sigaltstack=0:detect_leaks=0")
    endforeach()
  endforeach()
endif()

# tests/tools/cli_<area>.py: unittest programs around the built command.
file(GLOB cli_tests CONFIGURE_DEPENDS tools/cli_*.py)
foreach(test ${cli_tests})
  get_filename_component(stem ${test} NAME_WE)
  add_test(NAME tools_${stem} COMMAND ${WEFT_INTERPRETER} ${test} -v)
  set_tests_properties(tools_${stem} PROPERTIES LABELS multi TIMEOUT 1800 SKIP_RETURN_CODE 77
    ENVIRONMENT "WEFT_TOOL=$<TARGET_FILE:weft_tool>;WEFT_SOURCE_DIR=${PROJECT_SOURCE_DIR};WEFT_BINARY_DIR=${PROJECT_BINARY_DIR};WEFT_SANITIZED=${WEFT_SANITIZE}")
endforeach()

# tests/python/test_<area>.py: unittest programs around the Python package as it lies in the build tree.
if(TARGET weft_python)
  set(python_environment "PYTHONPATH=${PROJECT_BINARY_DIR}/python" "WEFT_TOOL=$<TARGET_FILE:weft_tool>"
    "WEFT_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "WEFT_BINARY_DIR=${PROJECT_BINARY_DIR}" "WEFT_SANITIZED=${WEFT_SANITIZE}")
  if(WEFT_SANITIZE MATCHES "address")
    # The interpreter is not sanitized, so the runtime comes first; what it leaves behind at its end is its own. Its objects are
    # watched, too, if they come from malloc. It has to find C++'s throw when it starts, for torch.
    foreach(library asan stdc++)
      execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=lib${library}.so OUTPUT_VARIABLE ${library}_runtime
        OUTPUT_STRIP_TRAILING_WHITESPACE)
    endforeach()
    list(APPEND python_environment "LD_PRELOAD=${asan_runtime}:${stdc++_runtime}" "ASAN_OPTIONS=detect_leaks=0" "PYTHONMALLOC=malloc"
      "UBSAN_OPTIONS=print_stacktrace=1")
  endif()
  file(GLOB python_tests CONFIGURE_DEPENDS python/test_*.py)
  if(WEFT_SANITIZE MATCHES "thread") # which cannot be loaded into an interpreter that is not built with it
    set(python_tests "")
  elseif(WEFT_SANITIZE)
    # Programs whose C others call as well: the extension is called by test_arrays, _async, _buckets, _collectives, _hostile,
    # _memory, _passes, _plan and _session, the compiler by tools_cli_front_doors, _infer and _emit, starting ranks by
    # tools_cli_launch and _failures, all under sanitizers.
    list(FILTER python_tests EXCLUDE REGEX "test_(families|samples|launchers|starting|readme|export|stubs|package)\\.py$")
  endif()
  foreach(test ${python_tests})
    get_filename_component(stem ${test} NAME_WE)
    string(REPLACE "test_" "python_" name ${stem})
    add_test(NAME ${name} COMMAND ${WEFT_INTERPRETER} ${test} -v)
    set_tests_properties(${name} PROPERTIES LABELS multi TIMEOUT 1200 SKIP_RETURN_CODE 77
      ENVIRONMENT "${python_environment}")
  endforeach()
endif()

include(interop/interop.cmake)
include(hosts/hosts.cmake)
include(faults/matrix/matrix.cmake)

# Saved models through the eyes of the onnx package.
add_test(NAME graph_onnx_saved COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_SOURCE_DIR}/graph/check_saved_onnx.py
  $<TARGET_FILE:graph_onnx_eval> ${PROJECT_SOURCE_DIR})
set_tests_properties(graph_onnx_saved PROPERTIES LABELS multi TIMEOUT 600 SKIP_RETURN_CODE 77)

include(fuzz/fuzz.cmake)
include(docs/docs.cmake)

if(TARGET weft_sample_streams)
  foreach(sample streams pass)
    add_test(NAME sample_${sample} COMMAND weft_sample_${sample})
  endforeach()
  add_test(NAME sample_all_reduce COMMAND weft_tool run -n 3 -- $<TARGET_FILE:weft_sample_all_reduce>)
  add_test(NAME sample_two_terminals COMMAND sh -c "\"$0\" 1 weft-test-$$ & \"$0\" 0 weft-test-$$ && wait $!"
    $<TARGET_FILE:weft_sample_two_terminals>)
  add_test(NAME sample_train COMMAND weft_tool run -n 2 -- $<TARGET_FILE:weft_sample_train>
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(sample_streams sample_pass sample_all_reduce sample_two_terminals sample_train
    PROPERTIES LABELS unit TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
if(TARGET weft_sample_mesh_all_gather)
  add_test(NAME sample_mesh_all_gather COMMAND weft_sample_mesh_all_gather)
  set_tests_properties(sample_mesh_all_gather PROPERTIES LABELS "unit;threads" TIMEOUT 600)
endif()
if(TARGET weft_sample_tensor_parallel)
  set(parts ${PROJECT_SOURCE_DIR}/samples/tensor_parallel)
  add_test(NAME sample_tensor_parallel COMMAND weft_sample_tensor_parallel ${parts}/whole.onnx
    ${parts}/block.rank0.onnx ${parts}/block.rank1.onnx)
  set_tests_properties(sample_tensor_parallel PROPERTIES LABELS "unit;threads" TIMEOUT 600)
endif()
if(TARGET weft_sample_fuser)
  add_test(NAME sample_fuser COMMAND weft_sample_fuser)
  set_tests_properties(sample_fuser PROPERTIES LABELS "unit;threads" TIMEOUT 600)
endif()

# Breaks plans for cli_verify.py.
add_executable(break_plan tools/break_plan.c)
target_link_libraries(break_plan PRIVATE weft_testing)

# What launchers start in cli_launchers.py.
add_executable(launched tools/launched.c)
target_link_libraries(launched PRIVATE weft_testing)

# Ranks whose flight recorders cli_ps.py and cli_analyze.py read.
add_executable(recorded tools/recorded.c)
target_link_libraries(recorded PRIVATE weft_testing)

# A plugin whose gradients are wrong, for tools/cli_gradients.py.
add_library(faulty_gradients MODULE tools/faulty_gradients.c)
target_include_directories(faulty_gradients PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(faulty_gradients PRIVATE _GNU_SOURCE)
target_link_libraries(faulty_gradients PRIVATE m)
if(WEFT_SANITIZE)
  target_link_options(faulty_gradients PRIVATE -fsanitize=${WEFT_SANITIZE})
endif()
if(TARGET weft_sample_host_compiler)
  add_test(NAME sample_host_compiler COMMAND weft_sample_host_compiler)
  add_test(NAME sample_host_compiler_pieces COMMAND weft_sample_host_compiler 4 bytes:48K)
  add_test(NAME sample_host_compiler_processes COMMAND
    ${CMAKE_CURRENT_SOURCE_DIR}/tools/two_processes.sh $<TARGET_FILE:weft_sample_host_compiler>)
  set_tests_properties(sample_host_compiler sample_host_compiler_pieces sample_host_compiler_processes
    PROPERTIES LABELS "unit;threads" TIMEOUT 600)
endif()
if(TARGET weft_sample_capture)
  add_test(NAME sample_capture COMMAND weft_sample_capture)
  set_tests_properties(sample_capture PROPERTIES LABELS "unit;threads" TIMEOUT 600)
endif()

foreach(sample mesh_all_gather tensor_parallel fuser host_compiler capture)
  if(TARGET weft_sample_${sample})
    add_dependencies(weft_threaded_tests weft_sample_${sample})
  endif()
endforeach()

# SPDX-License-Identifier: Apache-2.0
# Checks of the tree, its objects and an installed copy. Sanitizers would find the same. Included by tests/extra.cmake.
if(WEFT_SANITIZE)
  return()
endif()

add_test(NAME tree_includes
  COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/check_includes.py ${PROJECT_SOURCE_DIR})
add_test(NAME tree_op_names
  COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/check_op_names.py ${PROJECT_SOURCE_DIR})
list(TRANSFORM weft_objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/objects.txt CONTENT "$<JOIN:${objects};$<TARGET_OBJECTS:weft_tool>,\n>\n")
add_test(NAME tree_links
  COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/check_links.py ${CMAKE_NM} ${PROJECT_BINARY_DIR}/objects.txt)
add_test(NAME tree_messages COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/list_messages.py
  --check ${PROJECT_SOURCE_DIR})
add_test(NAME tree_headers COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_headers.sh ${PROJECT_SOURCE_DIR}
  ${CMAKE_C_COMPILER} ${CMAKE_CXX_COMPILER} ${PROJECT_BINARY_DIR})

add_test(NAME tree_comments COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/check_comments.py ${PROJECT_SOURCE_DIR})
add_test(NAME tree_abi COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_SOURCE_DIR}/abi/check_abi.py ${PROJECT_SOURCE_DIR}
  ${CMAKE_C_COMPILER} ${CMAKE_READELF} $<TARGET_FILE:weft>)
set_tests_properties(tree_abi PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME tree_format COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/check_format.py ${PROJECT_SOURCE_DIR})
set_tests_properties(tree_format PROPERTIES TIMEOUT 1200 SKIP_RETURN_CODE 77)

# An installed Weft is found by CMake and by pkg-config, and exports public symbols only.
add_test(NAME tree_consumer COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consumer/check.sh ${PROJECT_SOURCE_DIR}
  ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})

# The demo in a bare Debian; skipped, with the reason, where no such room can be made. Once per CI run.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  add_test(NAME bare_demo COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/bare/run.sh -- tests/bare/demo.sh)
  set_tests_properties(bare_demo PROPERTIES LABELS bare TIMEOUT 1500 SKIP_RETURN_CODE 77 COST 400)
  # Another processor has the same bits; skipped, with the reason, without a cross compiler and qemu.
  add_test(NAME aarch64_reduce COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/aarch64/run.sh ${PROJECT_SOURCE_DIR}
    ${CMAKE_C_COMPILER} ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(aarch64_reduce PROPERTIES LABELS unit SKIP_RETURN_CODE 77)
  # The wheel, where scripts/wheel.sh has built it.
  add_test(NAME bare_wheel COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/bare/run.sh --with
    ${PROJECT_SOURCE_DIR}/build/wheel/x86_64/dist -- tests/bare/wheel.sh)
  set_tests_properties(bare_wheel PROPERTIES LABELS bare TIMEOUT 1500 SKIP_RETURN_CODE 77)
endif()

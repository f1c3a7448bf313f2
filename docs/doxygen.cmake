# SPDX-License-Identifier: Apache-2.0
# Target "doc": the C API as HTML in build/doc/html. Test tree_doxygen: the comments are complete.
find_package(Doxygen QUIET)
if(DOXYGEN_FOUND)
  set(WEFT_DOXYGEN_OUTPUT ${PROJECT_BINARY_DIR}/doc)
  set(WEFT_DOXYGEN_WARN NO)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in ${PROJECT_BINARY_DIR}/doc/Doxyfile @ONLY)
  add_custom_target(doc
    COMMAND Doxygen::doxygen ${PROJECT_BINARY_DIR}/doc/Doxyfile
    COMMAND ${CMAKE_COMMAND} -E echo "wrote ${PROJECT_BINARY_DIR}/doc/html/index.html"
    VERBATIM)
  set(WEFT_DOXYGEN_OUTPUT ${PROJECT_BINARY_DIR}/doc_check)
  set(WEFT_DOXYGEN_WARN FAIL_ON_WARNINGS)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in ${PROJECT_BINARY_DIR}/doc_check/Doxyfile @ONLY)
  set(check ${DOXYGEN_EXECUTABLE} ${PROJECT_BINARY_DIR}/doc_check/Doxyfile)
else()
  set(check sh -c "echo skipped: doxygen is not installed; exit 77")
endif()
if(WEFT_TESTS)
  add_test(NAME tree_doxygen COMMAND ${check})
  set_tests_properties(tree_doxygen PROPERTIES LABELS unit TIMEOUT 120 SKIP_RETURN_CODE 77)
endif()

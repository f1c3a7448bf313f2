# SPDX-License-Identifier: Apache-2.0
# The documents: what comes from the program is up to date, code blocks and commands in them run, quoted messages exist.
if(TARGET weft_tool AND NOT WEFT_SANITIZE)
  add_test(NAME docs_generated COMMAND ${WEFT_INTERPRETER} ${PROJECT_SOURCE_DIR}/docs/generate.py --check
    --weft $<TARGET_FILE:weft_tool>)
  set_tests_properties(docs_generated PROPERTIES LABELS unit TIMEOUT 600)
  add_test(NAME docs_messages COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/check_messages.py ${PROJECT_SOURCE_DIR})
  set_tests_properties(docs_messages PROPERTIES LABELS unit TIMEOUT 600)
endif()
if(TARGET weft_tool AND TARGET weft_sample_all_reduce AND NOT WEFT_SANITIZE)
  add_test(NAME docs_blocks COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_LIST_DIR}/run_blocks.py ${PROJECT_SOURCE_DIR}
    ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
  set_tests_properties(docs_blocks PROPERTIES LABELS multi TIMEOUT 900 COST 100)
endif()

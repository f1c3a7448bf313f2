# SPDX-License-Identifier: Apache-2.0
# The documents: what comes from the program is up to date, code blocks and commands in them run, quoted messages exist.
if(TARGET weft_tool AND NOT WEFT_SANITIZE)
  add_test(NAME docs_generated COMMAND ${WEFT_INTERPRETER} ${PROJECT_SOURCE_DIR}/docs/generate.py --check
    --weft $<TARGET_FILE:weft_tool>)
  set_tests_properties(docs_generated PROPERTIES LABELS unit TIMEOUT 60)
endif()

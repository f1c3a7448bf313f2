# SPDX-License-Identifier: Apache-2.0
# Several hosts as network namespaces; skipped, with the reason, without root. Under sanitizers the small cases only.
add_executable(rank_calls hosts/rank_calls.c)
target_link_libraries(rank_calls PRIVATE weft::weft)
if(WEFT_SANITIZE)
  target_link_options(rank_calls PRIVATE -fsanitize=${WEFT_SANITIZE})
endif()
add_test(NAME hosts COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_SOURCE_DIR}/hosts/run_hosts.py -v)
set_tests_properties(hosts PROPERTIES LABELS "multi;hosts" TIMEOUT 1200 SKIP_RETURN_CODE 77 RESOURCE_LOCK hosts
  PROCESSORS 2 COST 60
  ENVIRONMENT "WEFT_TOOL=$<TARGET_FILE:weft_tool>;WEFT_RANK_CALLS=$<TARGET_FILE:rank_calls>;WEFT_SOURCE_DIR=${PROJECT_SOURCE_DIR};WEFT_BINARY_DIR=${PROJECT_BINARY_DIR};WEFT_SANITIZED=${WEFT_SANITIZE}")

# A real Slurm on such hosts. The launcher, not the ranks, is what it tests: once, without sanitizers.
if(NOT WEFT_SANITIZE)
  add_test(NAME slurm COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_SOURCE_DIR}/hosts/run_slurm.py -v)
  set_tests_properties(slurm PROPERTIES LABELS "multi;slurm" TIMEOUT 1200 SKIP_RETURN_CODE 77 RESOURCE_LOCK hosts
    PROCESSORS 2 COST 60
    ENVIRONMENT "WEFT_TOOL=$<TARGET_FILE:weft_tool>;WEFT_SOURCE_DIR=${PROJECT_SOURCE_DIR};WEFT_BINARY_DIR=${PROJECT_BINARY_DIR}")
endif()

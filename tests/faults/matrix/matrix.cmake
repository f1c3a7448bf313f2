# SPDX-License-Identifier: Apache-2.0
# Worlds of processes in which one rank suffers a fault: half a minute of random cases, longer by hand.
add_executable(fault_rank faults/matrix/rank.c faults/matrix/work.c faults/matrix/disagree.c
  faults/matrix/elastic.c faults/matrix/events.c faults/matrix/calls.c)
target_include_directories(fault_rank PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(fault_rank PRIVATE _GNU_SOURCE)
target_link_libraries(fault_rank PRIVATE weft::weft)
if(WEFT_SANITIZE)
  target_link_options(fault_rank PRIVATE -fsanitize=${WEFT_SANITIZE})
endif()
# A machine may be busy: what counts here is that all ranks end, not when, and that a disagreement is
# found before a deadline. ThreadSanitizer has a thread of its own, so no circle is certain there.
if(WEFT_SANITIZE)
  set(differ --differ-timeout 3 --tolerate disagreement)
else()
  set(differ --differ-timeout 30 --tolerate "disagreement: late")
endif()
add_test(NAME faults_matrix COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_SOURCE_DIR}/faults/matrix/matrix.py
  --build ${PROJECT_BINARY_DIR} --cases 100000 --seconds 40 --slack 120
  ${differ} --tolerate "wrong name" --tolerate "names others")
set_tests_properties(faults_matrix PROPERTIES LABELS multi TIMEOUT 600 PROCESSORS 2 COST 60)
# Rank 0 stops while some ranks know that the world is complete and others do not: all must name rank 0
# alone. The place does not depend on time.
if(NOT WEFT_SANITIZE)
  add_test(NAME faults_joining COMMAND ${WEFT_INTERPRETER} ${CMAKE_CURRENT_SOURCE_DIR}/faults/matrix/matrix.py
    --build ${PROJECT_BINARY_DIR} --by-message aaaaa,AAAA --first 10 --cases 8 --jobs 8 --timeout 8 --slack 120)
  set_tests_properties(faults_joining PROPERTIES LABELS multi TIMEOUT 600 COST 20)
endif()

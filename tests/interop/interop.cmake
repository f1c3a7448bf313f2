# SPDX-License-Identifier: Apache-2.0
# Libraries of interop/, loaded as the programs load them that they are made for.
add_executable(interop_mpi interop/test_mpi.c)
target_link_libraries(interop_mpi PRIVATE PkgConfig::CMOCKA Threads::Threads ${CMAKE_DL_LIBS})
target_include_directories(interop_mpi PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(interop_mpi PRIVATE _GNU_SOURCE WEFT_MPI_LIBRARY="$<TARGET_FILE:weft_mpi>")
if(WEFT_SANITIZE)
  target_compile_options(interop_mpi PRIVATE -fsanitize=${WEFT_SANITIZE})
  target_link_options(interop_mpi PRIVATE -fsanitize=${WEFT_SANITIZE})
endif()
add_dependencies(interop_mpi weft_mpi)
add_test(NAME interop_mpi COMMAND interop_mpi)
set_tests_properties(interop_mpi PROPERTIES LABELS "unit;threads" TIMEOUT 600)
add_dependencies(weft_threaded_tests interop_mpi)

# SPDX-License-Identifier: Apache-2.0
# RDMA: mocked in every run, and real in an emulated machine. Included by tests/extra.cmake.
if(NOT IBVERBS_FOUND)
  return()
endif()

# The verbs driver over a card in memory: what libibverbs would do is done by verbs_nic.c.
foreach(test verbs_data verbs_faults verbs_device)
  if(TARGET transport_${test})
    target_sources(transport_${test} PRIVATE transport/verbs_nic.c transport/verbs_world.c)
    foreach(call get_device_list free_device_list open_device close_device query_device query_port alloc_pd
        dealloc_pd reg_mr dereg_mr create_comp_channel destroy_comp_channel create_cq destroy_cq get_cq_event
        ack_cq_events create_qp modify_qp destroy_qp get_async_event ack_async_event)
      target_link_options(transport_${test} PRIVATE -Wl,--wrap=ibv_${call})
    endforeach()
    target_link_options(transport_${test} PRIVATE -Wl,--wrap=_ibv_query_gid_table)
  endif()
endforeach()

# The same over real devices.
add_executable(rdma_links rdma/real_nic.c transport/test_verbs_data.c transport/verbs_world.c)
target_compile_definitions(rdma_links PRIVATE VERBS_NIC_IS_REAL)
target_include_directories(rdma_links PRIVATE transport)
target_link_libraries(rdma_links PRIVATE weft_test_support)

# One rank of a world over RDMA.
add_executable(rdma_world rdma/rdma_world.c)
target_link_libraries(rdma_world PRIVATE weft_testing)
target_link_options(rdma_world PRIVATE -Wl,--wrap=ibv_create_qp)

# For real, in emulated machines made of Debian's packages; skipped, saying why, where these cannot be fetched.
add_test(NAME rdma COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/rdma/run.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
set_tests_properties(rdma PROPERTIES LABELS "multi;rdma" TIMEOUT 2400 SKIP_RETURN_CODE 77 PROCESSORS 2 COST 300
  ENVIRONMENT "WEFT_SANITIZED=${WEFT_SANITIZE}")

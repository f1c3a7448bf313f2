# SPDX-License-Identifier: Apache-2.0
# What cmake --install copies: library, command, headers, manual pages, and the files by which CMake and pkg-config find
# them.
include(CMakePackageConfigHelpers)

# (To ninja, "weft" is the command's file, not the library's target.)
add_custom_target(weft_installed)
add_dependencies(weft_installed weft weft_tool ${weft_interop} ${weft_devices})

# weft.pc finds the installation from its own place, so that a moved installation still works.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(WEFT_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  set(WEFT_PC_LIBDIR ${CMAKE_INSTALL_FULL_LIBDIR})
  set(WEFT_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(WEFT_PC_PREFIX "\${pcfiledir}/${up}")
  set(WEFT_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(WEFT_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(include/weft.pc.in weft.pc @ONLY)
write_basic_package_version_file(weft-config-version.cmake COMPATIBILITY SameMinorVersion)
install(TARGETS weft EXPORT weft-targets)
install(TARGETS weft_tool)
install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY docs/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "weft*.1")
install(EXPORT weft-targets FILE weft-config.cmake NAMESPACE weft:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
install(FILES ${PROJECT_BINARY_DIR}/weft-config-version.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
install(FILES ${PROJECT_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

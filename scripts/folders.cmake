# SPDX-License-Identifier: Apache-2.0
# One object library per folder. Libraries and programs link the objects of all folders (weft_objects).
set_property(GLOBAL PROPERTY WEFT_OBJECTS "")

# What every source of ours is compiled with.
add_library(weft_options INTERFACE)
target_compile_definitions(weft_options INTERFACE _GNU_SOURCE)
target_include_directories(weft_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(weft_options INTERFACE
  -Wall -Wextra -Wshadow -Wvla -Wformat=2 -Wundef
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>
  # Messages are cut to their buffer on purpose.
  $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>
  $<$<BOOL:${WEFT_WERROR}>:-Werror>)
if(WEFT_SANITIZE)
  target_compile_options(weft_options INTERFACE -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(weft_options INTERFACE -fsanitize=${WEFT_SANITIZE})
endif()

# weft_folder(NAME SOURCES file.. LINK library..): the object library weft_NAME. LINK names the folders that it may use,
# whose options and libraries it takes over, and its own libraries.
function(weft_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(weft_${name} OBJECT ${ARG_SOURCES})
  target_link_libraries(weft_${name} PUBLIC weft_options ${ARG_LINK})
  set_property(GLOBAL APPEND PROPERTY WEFT_OBJECTS weft_${name})
endfunction()

# weft_proto(NAME DIR FILE): generated protobuf code of DIR/FILE as object library weft_NAME_proto, without our warnings.
function(weft_proto name dir file)
  get_filename_component(stem ${file} NAME_WE)
  set(out ${PROJECT_BINARY_DIR}/generated/${name})
  file(MAKE_DIRECTORY ${out})
  add_custom_command(OUTPUT ${out}/${stem}.pb-c.c ${out}/${stem}.pb-c.h
    COMMAND ${PROTOC_C} --proto_path=${dir} --c_out=${out} ${dir}/${file}
    DEPENDS ${dir}/${file} VERBATIM)
  add_library(weft_${name}_proto OBJECT ${out}/${stem}.pb-c.c ${out}/${stem}.pb-c.h)
  target_include_directories(weft_${name}_proto PUBLIC ${out})
  target_link_libraries(weft_${name}_proto PUBLIC PkgConfig::PROTOBUF_C)
  target_compile_options(weft_${name}_proto PRIVATE -w)
  if(WEFT_SANITIZE)
    target_compile_options(weft_${name}_proto PRIVATE -fsanitize=${WEFT_SANITIZE})
  endif()
  set_property(GLOBAL APPEND PROPERTY WEFT_OBJECTS weft_${name}_proto)
endfunction()

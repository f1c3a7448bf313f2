# SPDX-License-Identifier: Apache-2.0
# Writes the texts of FILES, one after the other, to OUT as the array cl_source.
set(bytes "")
foreach(file ${FILES})
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," hex "${hex}")
  string(APPEND bytes "${hex}\n")
endforeach()
file(WRITE ${OUT} "extern const char cl_source[];\nconst char cl_source[] = {\n${bytes}0};\n")

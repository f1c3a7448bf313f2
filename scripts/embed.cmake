# SPDX-License-Identifier: Apache-2.0
# Writes the texts of FILES, one after the other, to OUT as the array NAME.
set(bytes "")
foreach(file ${FILES})
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," hex "${hex}")
  string(APPEND bytes "${hex}\n")
endforeach()
file(WRITE ${OUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes}0};\n")

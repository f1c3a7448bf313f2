#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles each public header alone as C99 and C++, and each internal header alone as C11.
# usage: check_headers.sh SOURCE_DIR CC CXX BINARY_DIR
set -eu
cd "$1"
for header in include/weft/*.h; do
  name=weft/$(basename "$header")
  printf '#include <%s>\nextern int unused;\n' "$name" | "$2" -std=c99 -pedantic -Wall -Wextra -Werror -Iinclude -x c -fsyntax-only -
  printf '#include <%s>\nextern int unused;\n' "$name" | "$3" -std=c++17 -pedantic -Wall -Wextra -Werror -Iinclude -x c++ -fsyntax-only -
done
# Every initialiser has a value for each field: no -Wmissing-field-initializers in either language.
initialisers=$(grep -ho '^#define WEFT_[A-Z_]*_INIT\b' include/weft/*.h | sed 's/^#define //' | grep -v '^WEFT_STRUCT_INIT$')
{
  echo '#include <weft/weft.h>'
  for macro in $initialisers; do
    type=$(echo "${macro%_INIT}" | tr '[:upper:]' '[:lower:]')_t
    printf 'extern %s x_%s;\n%s x_%s = %s;\n' "$type" "$type" "$type" "$type" "$macro"
  done
} >"$4/check_initialisers.c"
"$2" -std=c99 -pedantic -Wall -Wextra -Werror -Iinclude -x c -fsyntax-only "$4/check_initialisers.c"
"$3" -std=c++17 -pedantic -Wall -Wextra -Werror -Iinclude -x c++ -fsyntax-only "$4/check_initialisers.c"
for header in $(find runtime ops transport graph fusion tools -name '*.h'); do
  printf '#include "%s"\nextern int unused;\n' "$header" |
    "$2" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -I. -Iinclude \
    -I"$4/generated/onnx" -I"$4/generated/plan" -x c -fsyntax-only -
done
echo "every header stands on its own"

# Writes the C++ file OUTPUT with the commit of the checkout SOURCE, or with "" outside of one; only if it differs, so
# that nothing else is compiled again. -dirty: the tree has changes.
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-prefix
  OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
set(commit "$ENV{TESSERA_COMMIT}")  # of a build without a checkout
if(status EQUAL 0 AND prefix STREQUAL "")
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "cli/program/build_info.h"

namespace tessera {

const char* build_commit() { return "@commit@"; }

}  // namespace tessera
]])

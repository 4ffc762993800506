// Resolves the names of a parsed template: variables to slots, filters and tests to their functions.
#pragma once

#include "jinja/parse/program.h"

namespace tessera::jinja {

// Throws Error(kBadData) for a filter or test that does not exist.
void bind_names(Program& program);

}  // namespace tessera::jinja

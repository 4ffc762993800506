// Parses a template into statements; names are not resolved yet (see binder.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "jinja/parse/program.h"

namespace tessera::jinja {

// Throws Error(kBadData) "origin: line 3: expected ..., found ...".
std::unique_ptr<Program> parse_program(std::string_view source, const std::string& origin);

}  // namespace tessera::jinja

// Texts of YAML files where yaml-cpp 0.7 reads others than PyYAML does, with which the programs that these
// files are written for read them: it loses a line break of several at the end of a text in quotes or after
// >+, and writes the escapes \N and \_ as bytes that are not UTF-8.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

namespace tessera {

// The text of a scalar of the document `text`.
std::string yaml_scalar(const YAML::Node& node, std::string_view text);

}  // namespace tessera

// The text that a command works on: a file, or standard input when the name is "-".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Errors: kNoInput, kIoError.
std::string read_input(const std::string& name);

// The lines without their "\n"; text behind the last one is a line, too.
std::vector<std::string_view> split_lines(std::string_view text);

}  // namespace tessera

// Reads a command's input text: a file, or standard input if the name is "-".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Errors: kNoInput, kIoError.
std::string read_input(const std::string& name);

// The lines without their "\n"; text after the last one counts as a line.
std::vector<std::string_view> split_lines(std::string_view text);

}  // namespace tessera

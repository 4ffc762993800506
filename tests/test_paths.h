// Where tests find the source tree and the reference data beside it. Functions of one small file, so that the
// compiled tests do not depend on where the tree lies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

std::filesystem::path source_folder();
std::vector<std::filesystem::path> source_files();  // every .h and .cc of src/ and tests/, by name
std::string read_source(const std::filesystem::path& file);
std::filesystem::path shared_folder();  // may be absent: tests that need it are skipped and say so

// The folders of training cases computed by PyTorch, by name; empty where they are absent.
std::vector<std::filesystem::path> reference_cases();

}  // namespace tessera

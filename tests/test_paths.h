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

// Data that tests compare with: tests/data, part of the tree, and larger ones in ../shared, which may be
// absent.
std::filesystem::path data_folder();
std::filesystem::path shared_folder();

// Stands in a list of names for those that are absent; a test with this name skips and says so.
inline constexpr const char* kAbsent = "Absent";

// The training cases that PyTorch computed, by name, those of the tree first; kAbsent where there are no
// others.
std::vector<std::string> reference_case_names();
std::filesystem::path reference_case(const std::string& name);
std::vector<std::filesystem::path> reference_cases();  // without kAbsent

// Folders of DeepSpeed files.
std::vector<std::filesystem::path> deepspeed_folders();

}  // namespace tessera

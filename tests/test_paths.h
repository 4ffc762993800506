// Where tests find the source tree and the reference data next to it. These are functions in one small file,
// so that compiled tests do not depend on the location of the tree.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

std::filesystem::path source_folder();
std::vector<std::filesystem::path> source_files();  // every .h and .cc of src/ and tests/, sorted by name
std::string read_source(const std::filesystem::path& file);

// Reference data: tests/data, part of the tree, and larger data in ../shared, which may be absent.
std::filesystem::path data_folder();
std::filesystem::path shared_folder();

// Takes the place of absent names in a list; a test with this name is skipped with a message.
inline constexpr const char* kAbsent = "Absent";

// Names of the training cases computed by PyTorch, those in the tree first; kAbsent if there are no others.
std::vector<std::string> reference_case_names();
std::filesystem::path reference_case(const std::string& name);
std::vector<std::filesystem::path> reference_cases();  // without kAbsent

// Files made by the build: the program, and tests/support/fake_nvml.cc in a folder of its own.
const char* tessera_binary();
const char* fake_nvml_library();

// Folders with DeepSpeed files.
std::vector<std::filesystem::path> deepspeed_folders();

}  // namespace tessera

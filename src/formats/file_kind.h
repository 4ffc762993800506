// Identifies a file by its first bytes, for messages about files that are not what was expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/file.h"

namespace tessera {

struct FileKind {
  std::string name;         // "a GGUF file", "a JSON file", "a text file", "an empty file"
  std::string advice = {};  // on its use in a dataset; "" for text and where the name says enough
  bool is_text = false;     // no NUL byte, no signature of another format
  bool is_json = false;     // starts with { or [
  bool is_gguf = false;
  bool has_mark = false;  // has the signature of a format other than text and safetensors
};

// The first 8000 bytes: as many as git looks at to tell whether a file is binary.
std::string read_head(const InputFile& file);
FileKind kind_of_head(std::string_view head, int64_t file_bytes);
FileKind kind_of_file(const std::filesystem::path& path);

// Where a clone without Git LFS has a pointer in place of a file.
inline constexpr std::string_view kLfsPointerStart = "version https://git-lfs";
inline constexpr const char* kLfsPointer =
    "a Git LFS pointer instead of the file itself (run `git lfs pull`)";

// False if the head is not UTF-8; a character cut off at its end is fine.
bool starts_as_utf8(std::string_view head);

// A model is a folder: rejects a file (kBadData), saying what it is and what to do; a nonexistent path
// passes.
void check_is_model_folder(const std::filesystem::path& path);
[[noreturn]] void fail_not_a_model(const std::filesystem::path& path, const FileKind& kind);

// " (MODEL.gguf is there, but GGUF is not supported: ...)" for a folder that has GGUF files instead of the
// missing ones, otherwise "".
std::string note_on_gguf(const std::filesystem::path& folder);

}  // namespace tessera

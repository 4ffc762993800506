// What a file is by its first bytes, for messages about a file that is not what was expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "formats/file.h"

namespace tessera {

struct FileKind {
  std::string name;         // "a GGUF file", "a JSON file", "a text file", "an empty file"
  std::string advice = {};  // what to do with it in a dataset; "" for text and where the name says it
  bool is_text = false;     // no NUL byte, no mark of another format
  bool is_json = false;     // begins with { or [
  bool has_mark = false;    // of a format that is neither text nor safetensors
};

// The first 8000 bytes, from which git tells whether a file is binary.
std::string read_head(const InputFile& file);
FileKind kind_of_head(std::string_view head, int64_t file_bytes);
FileKind kind_of_file(const std::filesystem::path& path);

// False when a byte of the head is not UTF-8, apart from a character that its end cuts.
bool starts_as_utf8(std::string_view head);

// A model is a folder. Refuses (kBadData) a file, with what it is and what to do; a path that does not exist
// passes.
void check_is_model_folder(const std::filesystem::path& path);
[[noreturn]] void fail_not_a_model(const std::filesystem::path& path, const FileKind& kind);

// " (MODEL.gguf is there, but GGUF is not supported: ...)" for a folder with GGUF files in place of what is
// missing, else "".
std::string note_on_gguf(const std::filesystem::path& folder);

}  // namespace tessera

// The files that an argument of a dataset or of training a tokenizer stands for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// Regular files named by `patterns`, in that order: a path as it is, a folder as all regular files below it
// (links to folders are not followed), a glob (*, ?, [...]; no "**") as its matches, folders among them as
// above; the files of one pattern sorted by path, bytewise. A path that exists is not taken as a glob.
// Errors: kNoInput when a pattern gives no file, kBadConfig for "**" and for no pattern at all.
std::vector<std::filesystem::path> expand_input_files(const std::vector<std::string>& patterns);

enum class InputKind { kText, kJson, kPretokenized };

// By extension, in any case: .jsonl, .ndjson, .json; .safetensors; anything else is text.
InputKind input_kind(const std::filesystem::path& path);

}  // namespace tessera

// The files that an argument of a dataset or of training a tokenizer stands for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "formats/file.h"

namespace tessera {

enum class InputKind { kText, kJson, kPretokenized };

// By extension, in any case: .jsonl, .ndjson, .json; .safetensors; anything else is text.
InputKind input_kind(const std::filesystem::path& path);

enum class InputUse { kDataset, kPlainText };  // kPlainText: neither JSON nor pre-tokenized files

struct InputFiles {
  std::vector<std::filesystem::path> files;
  // A line for the user for each folder of which files were left out: how many, and why.
  std::vector<std::string> left_out;
};

// Regular files named by `patterns`, in that order: a path as it is; a folder as the files below it that have
// a known extension (.txt, .text, .md, .markdown, .rst, .tex; for a dataset those of JSON and .safetensors as
// well) and are not hidden; a glob (*, ?, [...]) as its matches, folders among them as above; DIR/**/NAME as
// all files below DIR, at any depth, that match the glob NAME (DIR/** as all of them). The files of one
// pattern are sorted by path, bytewise. A path that exists is not taken as a glob.
//
// What begins with a dot is hidden, and so is what a hidden folder holds: only a pattern that spells the dot
// reaches it. Links to files count as files, links to folders are not followed. README.md, config.json and
// other descriptions of a dataset are left out of a folder, as in Hugging Face's datasets.
//
// Errors: kNoInput when a pattern gives no file, kBadData for a name of a format that is not read (.csv,
// .parquet, .gz, ...) unless it is left out of a folder, kBadConfig for another use of "**" and for no
// pattern at all.
InputFiles find_input_files(const std::vector<std::string>& patterns, InputUse use);

// Refuses (kBadData) a text or JSON file that is something else by its first 8000 bytes: binary (a NUL byte,
// as git decides), of a format known by its mark, or UTF-16; and a text file that is JSON Lines. With
// `skip_invalid_utf8` files that are not UTF-8 pass, as they are left out later.
void check_input_content(const InputFile& file, InputUse use, bool skip_invalid_utf8);

}  // namespace tessera

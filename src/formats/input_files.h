// Expands the file arguments of datasets and of tokenizer training.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/file.h"

namespace tessera {

enum class InputKind { kText, kJson, kTable, kParquet, kPretokenized };

// By extension, in any case: .jsonl, .ndjson, .json; .csv, .tsv (tables); .parquet, .pq; .safetensors;
// anything else is text. In .jsonl.gz or .csv.zst the inner extension decides; Parquet and safetensors cannot
// be compressed so.
InputKind input_kind(const std::filesystem::path& path);

// By the last extension: .gz or .zst.
bool is_compressed(const std::filesystem::path& path);

enum class InputUse { kDataset, kPlainText };  // kPlainText: neither JSON nor pre-tokenized files

struct InputFiles {
  std::vector<std::filesystem::path> files;
  // One line for the user per folder in which files were skipped: how many, and why.
  std::vector<std::string> left_out;
};

// Expands `patterns`, in that order, to regular files: a path to a file gives that file; a folder the files
// below it that have a known extension (.txt, .text, .md, .markdown, .rst, .tex; for a dataset also those of
// JSON, tables and .safetensors, and compressed files) and are not hidden; a glob (*, ?, [...]) its matches,
// where folders expand as above; DIR/**/NAME all files below DIR, at any depth, that match the glob NAME
// (DIR/** all of them). The files of one pattern are sorted by path, bytewise. A path that exists is never
// treated as a glob.
//
// Names that start with a dot are hidden, as is everything in a hidden folder: only a pattern that spells out
// the dot matches them. Links to files count as files; links to folders are not followed. README.md,
// config.json and other dataset metadata in a folder are skipped, as in Hugging Face's datasets.
//
// Errors: kNoInput if a pattern matches no file, kBadData for a file in an unsupported format (.xlsx,
// .zip, ...) unless a folder skips it, kBadConfig for any other use of "**" and for an empty list of
// patterns.
InputFiles find_input_files(const std::vector<std::string>& patterns, InputUse use);

// Rejects (kBadData) a text or JSON file whose first 8000 bytes show that it is something else: binary (a NUL
// byte, git's rule), a format known by its signature, or UTF-16; also a text file that is JSON Lines. With
// `skip_invalid_utf8`, files that are not UTF-8 pass, since they are skipped later.
void check_input_content(const InputFile& file, InputUse use, bool skip_invalid_utf8);

}  // namespace tessera

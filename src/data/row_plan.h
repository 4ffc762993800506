// The files of a dataset, checked, and what their rows are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/chat/example.h"
#include "data/row_options.h"
#include "io/file.h"

namespace tessera {

// Paths, folders or globs, as accepted by find_source_files() (data/sources/source_files.h), whose rows have
// one shape.
struct DataSource {
  DataSource(std::string path) : paths{std::move(path)} {}  // NOLINT: a path is a source
  DataSource(const char* path) : paths{path} {}             // NOLINT

  std::vector<std::string> paths;
  // The first of these splits that a folder has is read.
  std::vector<std::string> splits = {"train"};
  RowFormat format;
  // The share of its rows in every epoch, relative to the other sources, which have weights, too.
  std::optional<double> weight;
};

struct SourceFile {
  std::filesystem::path path;
  FileStamp stamp;
  const RowFormat* format;  // of its source
  RowShape shape;
  // The rows [begin_row, end_row) of the file are used.
  int64_t begin_row = 0;
  int64_t end_row = std::numeric_limits<int64_t>::max();
};

struct RowPlan {
  std::vector<SourceFile> files;
  bool ignores_completion_mask = false;  // rows have one, which the options do not read
  std::vector<std::string> remarks;      // one line each, for the user: what is not read, ...
  bool is_pretokenized = false;          // safetensors
  bool has_labels = false;               // of token ids, or since only answers are targets
  Packing packing = Packing::kNone;      // set by checked_row_plan(); never kByRows

  bool has_shape(RowShape shape) const;
  bool has_chats() const;
  bool needs_tokenizer() const;
  std::vector<std::filesystem::path> paths() const;
};

// Finds the files of the sources, which must outlive the plan, and reads the first row of each source to see
// its shape. Errors: find_input_files(), check_input_content(), kBadData for rows of no known shape,
// kBadConfig for pre-tokenized files beside others, and for assistant_only_loss with rows that are no
// conversations.
RowPlan plan_rows(std::span<const DataSource> sources, const RowOptions& options);

}  // namespace tessera

// A report with one JSON object per line, which grows during a run and continues when it is resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "report/files/append_file.h"

namespace tessera {

// Lines reach the file as they are written, each complete or not at all. A full disk does not end the run: it
// is reported once as a warning.
class LineFile {
 public:
  // Replaces the file except for an earlier run's lines up to step `keep`: everything after them, including a
  // torn line, is cut off. kIoError if it cannot be opened.
  explicit LineFile(const std::filesystem::path& path, int64_t keep = 0);
  // `line` without its newline.
  void write(std::string_view line);

 private:
  AppendFile file_;
};

}  // namespace tessera

// A report with one JSON object per line, which grows while a run goes on and continues when it is resumed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

namespace tessera {

// Lines reach the file as they are written. A full disk does not end the run: it is reported once as a
// warning.
class LineFile {
 public:
  // Replaces the file except for an earlier run's lines up to step `keep`: everything after them, including a
  // torn line, is cut off. kIoError if it cannot be opened.
  explicit LineFile(const std::filesystem::path& path, int64_t keep = 0);
  // `line` without its newline.
  void write(std::string_view line);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool warned_ = false;
};

}  // namespace tessera

// A file that grows record by record, for readers that follow it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/unique_fd.h"

namespace tessera {

class AppendFile {
 public:
  // Opens or creates the file and truncates it to `keep_bytes`. Error(kIoError).
  explicit AppendFile(std::filesystem::path path, int64_t keep_bytes = std::numeric_limits<int64_t>::max());

  // Readers see it at once. A record that cannot be written is left out entirely, so that those after it
  // stay readable. A file that somebody removed or renamed is created again, with a warning. Returns errno,
  // or 0.
  int try_append(std::string_view record);
  // Reports the first record that cannot be written as a warning.
  void append(std::string_view record);

 private:
  int follow_path();

  std::filesystem::path path_;
  UniqueFd fd_;
  bool warned_ = false;
};

}  // namespace tessera

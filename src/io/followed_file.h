// A text file that another process writes line by line, followed like `tail -F`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace tessera {

class FollowedFile {
 public:
  struct News {
    bool restarted = false;  // earlier content is gone: the file is new, or was truncated
    std::vector<std::string> lines;
  };

  // The file need not exist yet. If it is larger than `tail_bytes` when it is first seen, only the lines in
  // its last tail_bytes are read; 0: all.
  explicit FollowedFile(std::filesystem::path path, int64_t tail_bytes = 0)
      : path_(std::move(path)), tail_bytes_(tail_bytes) {}

  // The complete lines since the last call, without newlines; a last line without its end is read later.
  // Error(kIoError) if the file cannot be read, kBadData for a line beyond 16 MiB.
  News read_news();

  // The next call starts from the beginning, with restarted set.
  void rewind() { must_restart_ = true; }

  // Whether it exists, and Unix seconds of its last change.
  bool is_there() const { return static_cast<bool>(file_); }
  double modified() const { return modified_; }

 private:
  bool open_again();
  std::string read_from(int64_t begin, int64_t end) const;

  std::filesystem::path path_;
  int64_t tail_bytes_;
  UniqueFd file_;
  uint64_t device_ = 0, inode_ = 0;
  int64_t read_bytes_ = 0;  // after the last complete line
  // The last line read, to see that the file was cut and has grown past that place again.
  std::string last_line_;
  bool must_restart_ = false;
  double modified_ = 0;
};

}  // namespace tessera

// For tests: intercepts pread(), with which all input is read (io/file.h).
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// During its lifetime reads of this file fail with EIO from number `first` on (0: all of them); one instance
// at a time.
class ReadFaults {
 public:
  ReadFaults(const std::filesystem::path& file, int first);
  ~ReadFaults();
  ReadFaults(const ReadFaults&) = delete;
  ReadFaults& operator=(const ReadFaults&) = delete;

  // So far, including those that failed.
  int num_reads() const;
};

}  // namespace tessera

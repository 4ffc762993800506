// For tests: stands between a test program and the system's call that reads files at a position, by which all
// input is read (formats/file.h).
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// While it lives, reads of this file fail with EIO from the `first`-th on (0: all of them); one at a time.
class ReadFaults {
 public:
  ReadFaults(const std::filesystem::path& file, int first);
  ~ReadFaults();
  ReadFaults(const ReadFaults&) = delete;
  ReadFaults& operator=(const ReadFaults&) = delete;

  // Until now, those that failed included.
  int num_reads() const;
};

}  // namespace tessera

// The environment of benchmarks: a folder, other programs, memory.
#pragma once

#include "base/error.h"
#include "base/text.h"
#include "platform/memory_info.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

// A temporary folder for a benchmark, deleted with the object.
class ScratchFolder {
 public:
  // Creates a new folder in `parent`. Error(kIoError).
  explicit ScratchFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Runs a shell command and returns its standard output and error. Error(on_failure) with the output if it
// fails.
std::string run_shell(const std::string& command, ExitCode on_failure = ExitCode::kIoError);

// Error(kBadConfig) if needed_bytes are not free for this process.
inline void check_bench_memory(const std::string& what, int64_t needed_bytes) {
  const int64_t free_bytes = memory_info().free_for_process_bytes;
  if (needed_bytes <= free_bytes) return;
  fail(ExitCode::kBadConfig, "{}: needs {} of memory, {} are free; use smaller shapes", what,
       format_bytes(needed_bytes), format_bytes(free_bytes));
}

}  // namespace tessera

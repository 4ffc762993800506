// A temporary folder for a benchmark, deleted with the object.
#pragma once

#include <filesystem>

namespace tessera {

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

}  // namespace tessera

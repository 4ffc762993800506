// For tests: a temporary folder that is removed at the end.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "io/file.h"

namespace tessera {

// A place where thousands of small files are created and synced quickly: in memory if possible.
inline std::filesystem::path memory_folder() {
  std::error_code error;
  return std::filesystem::is_directory("/dev/shm", error) ? "/dev/shm"
                                                          : std::filesystem::temp_directory_path();
}

class TestFolder {
 public:
  explicit TestFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    static std::atomic<int> counter = 0;
    path_ = parent / ("tessera test " + std::to_string(::getpid()) + "-" + std::to_string(++counter));
    create_folder(path_);
  }
  ~TestFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // Writes a file and returns its path.
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    write_text_file(path_ / name, content);
    return path_ / name;
  }
  // The names of its entries.
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.insert(entry.path().filename().native());
    return names;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera

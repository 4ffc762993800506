// For tests: a folder of its own that is removed at the end, and files made of bytes.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "formats/file.h"

namespace tessera {

class TestFolder {
 public:
  TestFolder() {
    static std::atomic<int> counter = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("tessera test " + std::to_string(::getpid()) + "-" + std::to_string(++counter));
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

 private:
  std::filesystem::path path_;
};

// The bytes of a safetensors file: length, header as given, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes.append(header).append(data);
}

}  // namespace tessera

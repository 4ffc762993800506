#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace tessera {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();
  // Where other processes of this user can open the same file.
  std::string path() const;

 private:
  int fd_ = -1;
};

// A new file in memory (memfd), closed by exec. A file with a size has zeros and keeps that size, so that a
// process that maps it never runs past its end. Not open, with errno set, if the system refuses.
UniqueFd memory_file(const std::string& name, int64_t size_bytes = 0);

}  // namespace tessera

// Memory for large buffers, of this process or shared: page-aligned, on huge pages where the system provides
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/unique_fd.h"

namespace tessera {

inline constexpr int64_t kCacheLineBytes = 64;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// An anonymous private mapping, zero-filled, advised to use transparent huge pages. Pages take up memory once
// touched. Throws Error(kBadConfig) naming the size if the system refuses it.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(int64_t size_bytes) : PageBuffer(UniqueFd(), size_bytes) {}
  // Shares the pages of a file in memory (memory_file()) with all who map it, each at its own address.
  // Without a file they are this process's own.
  PageBuffer(UniqueFd file, int64_t size_bytes);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(size_bytes_) / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace tessera

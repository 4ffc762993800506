// Memory for large buffers: page-aligned, on huge pages where the system provides them, and arenas sized
// before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

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
  explicit PageBuffer(int64_t size_bytes);
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

// Hands out 64-byte aligned pieces of one block in order, and releases them only as a stack (mark, release).
//
// The same code sizes and fills it: run the allocations once against a measuring arena, which counts and
// returns nullptr, then against an arena of high_water_bytes().
class Arena {
 public:
  struct Mark {
    int64_t used_bytes;
  };

  static Arena measuring() { return Arena({}, true); }
  explicit Arena(std::span<std::byte> block) : Arena(block, false) {}

  bool is_measuring() const { return measuring_; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t high_water_bytes() const { return high_water_bytes_; }

  // Uninitialised storage for `count` elements; nullptr when measuring. Overflowing the arena is a bug
  // (TESSERA_CHECK).
  template <typename T>
  T* allocate(int64_t count) {
    return reinterpret_cast<T*>(allocate_bytes(count * static_cast<int64_t>(sizeof(T))));
  }
  std::byte* allocate_bytes(int64_t size_bytes);

  Mark mark() const { return {used_bytes_}; }
  void release(Mark mark) { used_bytes_ = mark.used_bytes; }

 private:
  Arena(std::span<std::byte> block, bool measuring) : block_(block), measuring_(measuring) {}

  std::span<std::byte> block_;
  bool measuring_ = false;
  int64_t used_bytes_ = 0;
  int64_t high_water_bytes_ = 0;
};

}  // namespace tessera

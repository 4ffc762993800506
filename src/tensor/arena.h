// A block of a device's memory, measured before it is allocated.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/device.h"

namespace tessera {

// Hands out 64-byte aligned pieces of one block in order, and releases them only as a stack (mark, release).
//
// The same code sizes and fills it: run the allocations once against a measuring arena, which counts and
// returns nullptr, then against an arena of high_water_bytes().
class Arena {
 public:
  struct Mark {
    int64_t used_bytes;
  };

  static Arena measuring() { return Arena(nullptr, 0, host_device(), true); }
  explicit Arena(const DeviceBuffer& buffer)
      : Arena(buffer.address(), buffer.size_bytes(), buffer.device(), false) {}
  // A block of the host's memory.
  explicit Arena(std::span<std::byte> block)
      : Arena(block.data(), static_cast<int64_t>(block.size()), host_device(), false) {}

  Device& device() const { return *device_; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t high_water_bytes() const { return high_water_bytes_; }

  // Uninitialised storage; nullptr when measuring. Overflowing the arena is a bug (TESSERA_CHECK).
  std::byte* allocate_bytes(int64_t size_bytes);

  Mark mark() const { return {used_bytes_}; }
  void release(Mark mark) { used_bytes_ = mark.used_bytes; }

 private:
  Arena(std::byte* address, int64_t size_bytes, Device& device, bool measuring)
      : address_(address), size_bytes_(size_bytes), device_(&device), measuring_(measuring) {}

  std::byte* address_;
  int64_t size_bytes_;
  Device* device_;
  bool measuring_;
  int64_t used_bytes_ = 0;
  int64_t high_water_bytes_ = 0;
};

}  // namespace tessera

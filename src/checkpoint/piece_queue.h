// Tracks which pieces of a rank's state have been read, and by whom: the writer takes them one by one, lowest
// first; a caller whose state is about to change takes those that there is memory for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"

namespace tessera {

// A ring buffer: memory is allocated in order and released in about the same order.
class SnapshotRing {
 public:
  explicit SnapshotRing(int64_t size_bytes)
      : memory_(size_bytes > 0 ? PageBuffer(size_bytes) : PageBuffer()) {}

  std::byte* allocate(int64_t size_bytes);  // cache-line aligned; nullptr if there is no room now
  void release(const std::byte* memory);

 private:
  struct Slot {
    int64_t begin;
    int64_t end;
    bool released;
  };

  PageBuffer memory_;
  std::deque<Slot> slots_;  // oldest first; offsets may wrap to 0 once
};

// Thread-safe: the writer's thread and callers use it concurrently.
class PieceQueue {
 public:
  PieceQueue(std::vector<ParameterPiece> pieces, const StoredParts& parts, int64_t snapshot_bytes);

  const ParameterPiece& piece(size_t index) const { return pieces_[index]; }

  // For the writer: the piece to write next.
  struct Work {
    size_t index;
    std::byte* captured;  // already encoded; nullptr: the writer reads it and then calls set_read()
  };
  // Waits while all remaining pieces are being captured. nullopt: all are written, or close() was called.
  std::optional<Work> next();
  void set_read(size_t index);
  void set_written(size_t index);
  // Sleeps until `time`, or less if a thread is waiting for the writer.
  void sleep_until(std::chrono::steady_clock::time_point time);

  // For callers: a piece to encode into `memory`; call set_captured() afterwards.
  struct Capture {
    size_t index;
    std::byte* memory;
  };
  // Unread pieces that overlap the elements, as many as there is memory for; waits until there is some.
  // Empty: all have been read, or close() was called.
  std::vector<Capture> claim(ElementRange elements);
  void set_captured(const std::vector<Capture>& captures);

  // From now on the writer's sleeps return at once.
  void hurry();
  // Wakes all waiters; no more pieces are handed out.
  void close();
  bool is_closed();

 private:
  enum class State : uint8_t { kPending, kReading, kCaptured, kRead, kWritten };

  std::optional<size_t> choose() const;

  const std::vector<ParameterPiece> pieces_;
  const StoredParts parts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;
  std::vector<std::byte*> captured_;
  SnapshotRing ring_;
  size_t first_unwritten_ = 0;
  // Pieces a caller is waiting for; the writer takes them first.
  size_t wanted_begin_ = 0;
  size_t wanted_end_ = 0;
  bool hurried_ = false;
  bool closed_ = false;
};

}  // namespace tessera

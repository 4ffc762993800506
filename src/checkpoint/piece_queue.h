// Which pieces of a rank's state have been read, and by whom: the writer takes them one after another, lowest
// first; a caller whose state is about to change takes those that it has memory for.
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

// Memory handed out in order and taken back in about the same order.
class SnapshotRing {
 public:
  explicit SnapshotRing(int64_t size_bytes)
      : memory_(size_bytes > 0 ? PageBuffer(size_bytes) : PageBuffer()) {}

  std::byte* allocate(int64_t size_bytes);  // nullptr when there is no room now; cache-line aligned
  void release(const std::byte* memory);

 private:
  struct Slot {
    int64_t begin;
    int64_t end;
    bool released;
  };

  PageBuffer memory_;
  std::deque<Slot> slots_;  // oldest first; a slot may begin at 0 behind one that ends higher up
};

// All functions may be called by the writer's thread and by callers at the same time.
class PieceQueue {
 public:
  PieceQueue(std::vector<StatePiece> pieces, DType model_dtype, int64_t snapshot_bytes);

  const StatePiece& piece(size_t index) const { return pieces_[index]; }

  // For the writer: a piece to be written next.
  struct Work {
    size_t index;
    std::byte* captured;  // encoded already; nullptr: to be read by the writer, who says so with set_read()
  };
  // Waits while all that is left is being captured. Nothing: all is written, or close() was called.
  std::optional<Work> next();
  void set_read(size_t index);
  void set_written(size_t index);
  // Sleeps until `time`, or less when somebody waits for the writer.
  void sleep_until(std::chrono::steady_clock::time_point time);

  // For callers: pieces to be encoded into `memory`, which is then said with set_captured().
  struct Capture {
    size_t index;
    std::byte* memory;
  };
  // Pieces that touch the elements and that nobody has read, as many as there is memory for; waits until
  // there is some. None: all have been read, or close() was called.
  std::vector<Capture> claim(ElementRange elements);
  void set_captured(const std::vector<Capture>& captures);

  // From now on the writer's sleeps return at once.
  void hurry();
  // Ends all waiting; nothing is handed out any more.
  void close();
  bool is_closed();

 private:
  enum class State : uint8_t { kPending, kReading, kCaptured, kRead, kWritten };

  std::optional<size_t> choose() const;

  const std::vector<StatePiece> pieces_;
  const DType model_dtype_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;
  std::vector<std::byte*> captured_;
  SnapshotRing ring_;
  size_t first_unwritten_ = 0;
  // What a caller waits for; the writer takes it before anything else.
  size_t wanted_begin_ = 0;
  size_t wanted_end_ = 0;
  bool hurried_ = false;
  bool closed_ = false;
};

}  // namespace tessera

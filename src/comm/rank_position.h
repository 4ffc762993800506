// Where a rank stands, in memory that whoever started it reads: also when the rank itself cannot speak any
// more.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

// What a rank does at a time, each kind by itself.
enum class Activity {
  kWork,     // a part of the model, or another part of a run; `number` is the step, from 1
  kNode,     // an operation with the other ranks of its node
  kNetwork,  // the oldest operation between nodes that is under way, or the last one
};
inline constexpr int kNumActivities = 3;

// The number of an operation of the node counts within its kind of operation; those between nodes are
// numbered in the order in which all members of a rail issue them.
struct PositionMark {
  const char* what = "";  // what does not fit (47 bytes) is cut off
  int64_t number = 0;
  int64_t layer = -1;  // decoder layer of work, parameter group of operations; -1: none
  int64_t bytes = 0;
  int peer = -1;         // the rank that is waited for
  bool is_over = false;  // then it was the last one
};

// As it is read.
struct PositionEntry {
  std::string what;  // "" = nothing of the kind yet
  int64_t number = 0;
  int64_t layer = -1;
  int64_t bytes = 0;
  int peer = -1;
  bool is_over = false;
  double age_s = 0;  // since it began, or was over
};

struct PositionReading {
  bool is_there = false;  // the rank has begun to keep it
  std::array<PositionEntry, kNumActivities> entries;
  int64_t sent_bytes = 0;  // payload between nodes, until an operation was last over or failed
  int64_t received_bytes = 0;
  std::string folder;  // where the run keeps its files; "" = it has not said

  const PositionEntry& at(Activity activity) const { return entries[static_cast<size_t>(activity)]; }
};

struct PositionMemory;

// Writing takes no memory, no lock and no system call: some stores and a look at the clock, about 50 ns.
// Readers see whole entries. Of two threads that write the same kind at once one is not heard.
class RankPosition {
 public:
  // In memory of this process: nobody reads it from outside.
  RankPosition();
  // In a file of size_bytes() that another process maps too. Error(kIoError).
  explicit RankPosition(int fd);
  // The writer's end of a file that the launcher names; "" or one that cannot be opened: as RankPosition().
  static RankPosition of_rank(const std::string& path);
  ~RankPosition();
  RankPosition(RankPosition&& other) noexcept;
  RankPosition& operator=(RankPosition&&) = delete;

  static int64_t size_bytes();

  void mark(Activity activity, const PositionMark& mark) noexcept;
  void count_network(int64_t sent_bytes, int64_t received_bytes) noexcept;
  // Once, before others may fail. One of more than 1023 bytes is not kept.
  void set_folder(const std::filesystem::path& folder) noexcept;

  PositionReading read() const;

 private:
  explicit RankPosition(PositionMemory* memory) : memory_(memory) {}

  PositionMemory* memory_;
};

}  // namespace tessera

// Where a rank currently is, in memory that its launcher can read even when the rank itself no longer
// responds.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

// The kinds of activity of a rank, each tracked separately.
enum class Activity {
  kWork,     // a part of the model or another phase of a run; `number` is the step, from 1
  kNode,     // an operation with the other ranks of its node
  kNetwork,  // the oldest running operation between nodes, or the last one
};
inline constexpr int kNumActivities = 3;

// The work of a rank until all ranks are connected.
inline constexpr const char* kMeetingRanks = "meeting the other ranks";

// Operations within the node are numbered per kind of operation; those between nodes are numbered in the
// order in which all members of a rail issue them.
struct PositionMark {
  const char* what = "";  // truncated to 47 bytes
  int64_t number = 0;
  int64_t layer = -1;  // decoder layer (kWork) or parameter group (operations); -1: none
  int64_t bytes = 0;
  int peer = -1;         // the awaited rank
  bool is_over = false;  // it has ended: this was the last one
};

// A PositionMark as read back.
struct PositionEntry {
  std::string what;  // "" = no activity of this kind yet
  int64_t number = 0;
  int64_t layer = -1;
  int64_t bytes = 0;
  int peer = -1;
  bool is_over = false;
  double age_s = 0;  // since it began, or ended
};

struct PositionReading {
  bool is_there = false;  // the rank has begun to write it
  std::array<PositionEntry, kNumActivities> entries;
  int64_t sent_bytes = 0;  // inter-node payload, up to the last operation that ended
  int64_t received_bytes = 0;
  std::string folder;  // where the run keeps its files; "" = not known yet

  const PositionEntry& at(Activity activity) const { return entries[static_cast<size_t>(activity)]; }
};

struct PositionMemory;

// Writing takes no allocation, no lock and no system call: a few stores and a clock read, about 50 ns.
// Readers never see torn entries. If two threads write the same kind at once, one of the writes is dropped.
class RankPosition {
 public:
  // Allocates it in private memory of this process.
  RankPosition();
  // In a file of size_bytes() that another process also maps. Error(kIoError).
  explicit RankPosition(int fd);
  // The rank's side, in the file named by the launcher. Like RankPosition() if `path` is "" or cannot be
  // opened.
  static RankPosition of_rank(const std::string& path);
  ~RankPosition();
  RankPosition(RankPosition&& other) noexcept;
  RankPosition& operator=(RankPosition&&) = delete;

  static int64_t size_bytes();

  void mark(Activity activity, const PositionMark& mark) noexcept;
  void count_network(int64_t sent_bytes, int64_t received_bytes) noexcept;
  // Call once, before other ranks can fail. A path of more than 1023 bytes is dropped.
  void set_folder(const std::filesystem::path& folder) noexcept;

  PositionReading read() const;

 private:
  explicit RankPosition(PositionMemory* memory) : memory_(memory) {}

  PositionMemory* memory_;
};

}  // namespace tessera

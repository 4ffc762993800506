// The state of one rank behind one step, in memory that outlives its process (World::snapshot_slots): float32
// masters and moments of the elements that it owns, and the texts that a checkpoint has beside them. Whoever
// finds it later can tell by checksums whether it is whole.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/model_folder.h"
#include "checkpoint/run_state.h"
#include "comm/node_group.h"
#include "platform/thread_pool.h"

namespace tessera {

// What the states of all ranks behind one step have in common.
struct SnapshotId {
  uint64_t job = 0;        // of the name of the job and its output folder
  uint64_t start_key = 0;  // a random number of the start that made it
  int64_t start = 0;       // World::restart_count
  int64_t step = 0;
  int64_t num_nodes = 1;
  int64_t local_world_size = 1;

  int64_t world_size() const { return num_nodes * local_world_size; }
  bool operator==(const SnapshotId&) const = default;
};

struct SnapshotTexts {
  std::string_view run;          // training_record_json()
  std::string_view log_history;  // LogHistoryText
};

struct SnapshotSizes {
  int64_t num_ranges = 0;
  int64_t num_elements = 0;
  int64_t run_bytes = 0;
  int64_t log_history_bytes = 0;

  int64_t slot_bytes() const;    // of a slot that holds it
  int64_t memory_bytes() const;  // what prepare() takes for it
};

// Where things lie: a page of header, then regions that begin at cache lines, each checked in blocks.
//   masters, exp_avg, exp_avg_sq   float32 [num_elements] each, ranges one behind the other
//   ranges                         int64 [num_ranges][2]: elements [begin, end) of the flat array, ascending
//   texts                          run, log_history
//   checksums                      uint32, CRC32C of every block of the regions above, in this order
class SnapshotSlot {
 public:
  // `fd` is borrowed. Error(kBadConfig) when it is none.
  explicit SnapshotSlot(int fd);

  // Whose state lies in it, as far as its header is whole: verify() tells of the rest.
  struct Content {
    SnapshotId id;
    int64_t rank = 0;  // of id.world_size()
    SnapshotSizes sizes;
  };
  std::optional<Content> content() const;
  // Every byte is what was written.
  bool verify(ThreadPool& pool) const;
  // Memory that it takes now.
  int64_t held_bytes() const;

  // What is in it is gone, and there is room for that many bytes, which the system has provided. What was
  // provided for about as many is used again. Error(kBadConfig) when the system refuses it.
  void prepare(int64_t slot_bytes, ThreadPool& pool);
  // Into a prepared slot: reads `source` from several threads. From its return on the content is whole.
  void write(const SnapshotId& id, int64_t rank, std::span<const ElementRange> ranges,
             const StateSource& source, const SnapshotTexts& texts, ThreadPool& pool);
  // Of a slot prepared for so many bytes: what is sent to another rank's, the header last.
  std::span<std::byte> header() const;
  std::span<std::byte> body(int64_t slot_bytes) const;
  // Gives the memory back.
  void clear();

  // Of what is in it, when that is whole.
  std::span<const ElementRange> ranges() const;
  std::span<const float> values(StateKind kind) const;
  SnapshotTexts texts() const;

 private:
  const struct SnapshotHeader* whole_header() const;
  void map();

  int fd_;
  SharedSegment memory_;  // all of the file; empty: it was empty
};

}  // namespace tessera

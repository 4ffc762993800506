// The state of one rank after one step, in memory that outlives its process (World::snapshot_slots): float32
// masters and optimizer state of the elements it owns, and the texts a checkpoint stores with them. Checksums
// tell a later reader whether it is intact.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/run_state.h"
#include "comm/node/node_group.h"
#include "platform/thread_pool.h"
#include "weights/model_folder.h"

namespace tessera {

// The properties that the states of all ranks after one step share.
struct SnapshotId {
  uint64_t job = 0;        // hash of the job's name and output folder
  uint64_t start_key = 0;  // a random number drawn by the start that wrote it
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
  int64_t num_state_tensors = 0;
  int64_t num_ranges = 0;
  int64_t num_elements = 0;
  int64_t run_bytes = 0;
  int64_t log_history_bytes = 0;

  int64_t slot_bytes() const;    // size of a slot that holds it
  int64_t memory_bytes() const;  // allocated by prepare()
};

// Memory for the slots of a rank that owns `num_elements` elements, without the texts of the run: two of its
// own and, on several nodes, two for the rank before it.
int64_t peer_snapshot_bytes(int64_t num_elements, int64_t num_state_tensors, int num_nodes);

// Layout: one page of header, then regions aligned to cache lines, each checksummed in blocks.
//   masters, tensors of the optimizer  float32 [num_elements] each, ranges back to back
//   ranges       int64 [num_ranges][2]: elements [begin, end) of the flat array, ascending
//   texts        run, log_history
//   checksums    uint32, CRC32C of every block of the regions above, in this order
class SnapshotSlot {
 public:
  // `fd` is borrowed. Error(kBadConfig) if it is not a valid descriptor.
  explicit SnapshotSlot(int fd);

  // The run and step whose state the slot holds by an intact header; verify() checks the rest.
  struct Content {
    SnapshotId id;
    int64_t rank = 0;  // of id.world_size()
    SnapshotSizes sizes;
  };
  std::optional<Content> content() const;
  // True if every byte is as written.
  bool verify(ThreadPool& pool) const;
  // Memory it takes at present.
  int64_t held_bytes() const;

  // Discards the content and makes room for `slot_bytes`, backed by memory. Memory of about the same size is
  // reused. Error(kBadConfig) if the system refuses it.
  void prepare(int64_t slot_bytes, ThreadPool& pool);
  // Fills a prepared slot, reading `source` from several threads. The content is intact once this returns.
  void write(const SnapshotId& id, int64_t rank, std::span<const ElementRange> ranges,
             int64_t num_state_tensors, const StateSource& source, const SnapshotTexts& texts,
             ThreadPool& pool);
  // The parts of a slot prepared for `slot_bytes` that are sent to another rank's slot, the header last.
  std::span<std::byte> header() const;
  std::span<std::byte> body(int64_t slot_bytes) const;
  // Releases the memory.
  void clear();

  // The content; only valid if it is intact.
  std::span<const ElementRange> ranges() const;
  std::span<const float> values(StateKind kind) const;
  SnapshotTexts texts() const;

 private:
  const struct SnapshotHeader* whole_header() const;
  void map();

  int fd_;
  PageBuffer memory_;  // the whole file; empty if the file was
};

}  // namespace tessera

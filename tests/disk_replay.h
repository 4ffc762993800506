// For tests: reconstructs, from a recording (disk_shim.h), a disk as a crash may leave it.
//
// After a power loss a disk keeps a change to a file's data if the file was synced afterwards, and a change
// of names if one of the folders involved was synced afterwards (a rename is one change, as in a journal).
// Any other change may be present or not, in any combination, and a write may be partial.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "disk_shim.h"

namespace tessera {

// The part of a change that is on the disk: all, nothing, or the first bytes of a write.
struct Fate {
  bool is_done = true;
  int64_t bytes = INT64_MAX;
};

// Marks those of the first `cut` changes that can no longer be lost.
std::vector<bool> durable_ops(const std::vector<DiskOp>& ops, size_t cut);

// Fills `folder`, which must be empty, with the state after the first fates.size() of `ops`.
void make_disk(const std::vector<DiskNode>& before, const std::vector<DiskOp>& ops,
               std::span<const Fate> fates, const std::filesystem::path& folder);

}  // namespace tessera

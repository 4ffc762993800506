// For tests: the disk as a crash may leave it, made again from a recording (disk_shim.h).
//
// What a disk keeps after a loss of power: a change of a file's data when the file was synced afterwards; a
// change of names when one of the folders concerned was synced afterwards (a rename is one change, as in a
// journal). Of all other changes any may be there or not, in any combination, and a write may be there in
// part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "disk_shim.h"

namespace tessera {

// What of a change is on the disk: all, nothing, or the first bytes of a write.
struct Fate {
  bool is_done = true;
  int64_t bytes = INT64_MAX;
};

// Which of the first `cut` changes cannot be lost any more.
std::vector<bool> durable_ops(const std::vector<DiskOp>& ops, size_t cut);

// Fills `folder`, which is empty, with what there is after as many of `ops` as there are fates.
void make_disk(const std::vector<DiskNode>& before, const std::vector<DiskOp>& ops,
               std::span<const Fate> fates, const std::filesystem::path& folder);

}  // namespace tessera

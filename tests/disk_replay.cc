#include "disk_replay.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

struct Node {
  bool is_folder = false;
  std::string data;
  std::map<std::string, int64_t> names;
};
using Disk = std::map<int64_t, Node>;

void apply_write(std::string& file, const DiskOp& op, int64_t bytes) {
  const auto size = static_cast<size_t>(std::min<int64_t>(bytes, std::ssize(op.data)));
  const auto at = static_cast<size_t>(op.offset);
  if (size == 0) return;
  file.resize(std::max(file.size(), at + size), '\0');
  file.replace(at, size, op.data, 0, size);
}

void apply(Disk& disk, const DiskOp& op, const Fate& fate) {
  switch (op.kind) {
    case Kind::kCreate:
    case Kind::kMakeDir:
      disk[op.node].is_folder = op.kind == Kind::kMakeDir;
      if (fate.is_done) disk[op.folder].names[op.name] = op.node;
      return;
    case Kind::kWrite:
      if (fate.is_done) apply_write(disk[op.node].data, op, fate.bytes);
      return;
    case Kind::kTruncate:
      if (fate.is_done) disk[op.node].data.resize(static_cast<size_t>(op.offset), '\0');
      return;
    case Kind::kSync:
      return;
    case Kind::kRename:
      if (!fate.is_done) return;
      disk[op.folder].names.erase(op.name);
      disk[op.to_folder].names[op.to_name] = op.node;
      return;
    case Kind::kExchange:
      if (!fate.is_done) return;
      disk[op.folder].names[op.name] = op.other;
      disk[op.to_folder].names[op.to_name] = op.node;
      return;
    case Kind::kRemove:
      if (fate.is_done) disk[op.folder].names.erase(op.name);
      return;
  }
}

void write_node(const Disk& disk, int64_t number, const fs::path& path) {
  const Node& node = disk.at(number);
  if (!node.is_folder) {
    std::ofstream(path, std::ios::binary) << node.data;
    return;
  }
  fs::create_directories(path);
  for (const auto& [name, child] : node.names) write_node(disk, child, path / name);
}

}  // namespace

std::vector<bool> durable_ops(const std::vector<DiskOp>& ops, size_t cut) {
  std::vector<bool> durable(cut);
  for (size_t i = 0; i < cut; ++i) {
    const DiskOp& op = ops[i];
    const bool is_data = op.kind == Kind::kWrite || op.kind == Kind::kTruncate;
    durable[i] = std::any_of(ops.begin() + static_cast<std::ptrdiff_t>(i),
                             ops.begin() + static_cast<std::ptrdiff_t>(cut), [&](const DiskOp& later) {
                               if (later.kind != Kind::kSync) return false;
                               return is_data ? later.node == op.node
                                              : later.node == op.folder ||
                                                    (op.to_folder >= 0 && later.node == op.to_folder);
                             });
  }
  return durable;
}

void make_disk(const std::vector<DiskNode>& before, const std::vector<DiskOp>& ops,
               std::span<const Fate> fates, const fs::path& folder) {
  Disk disk;
  disk[0].is_folder = true;
  for (const DiskNode& node : before) {
    disk[node.node].is_folder = node.is_folder;
    disk[node.node].data = node.data;
    disk[node.folder].names[node.name] = node.node;
  }
  for (size_t i = 0; i < fates.size(); ++i) apply(disk, ops[i], fates[i]);
  write_node(disk, 0, folder);
}

}  // namespace tessera

// tessera/manifest.json and the index of each rank: which files a checkpoint has, their sizes and the
// checksum of every piece. docs/checkpoint-format.md specifies both. Parsing rejects any deviation (kBadData
// with `origin`, field, expected and found) and takes memory proportional to the text.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "weights/model_folder.h"

namespace tessera {

// A file of the checkpoint.
struct FileRecord {
  std::string name;  // relative to the checkpoint's folder
  int64_t bytes = 0;
  std::optional<uint32_t> crc32c;  // of the whole file; nullopt: the rank indexes list it in pieces
};

struct CheckpointManifest {
  std::string program_version;
  int64_t step = 0;
  int64_t world_size = 0;
  DType model_dtype = DType::kBF16;
  std::vector<FileRecord> files;
  std::string run_json;  // one object
};
std::string write_manifest(const CheckpointManifest& manifest);
CheckpointManifest parse_manifest(std::string_view text, const std::string& origin);

// Bytes written as a unit.
struct PieceRecord {
  int64_t offset_bytes;
  int64_t size_bytes;
  uint32_t crc32c;
};

struct RankIndex {
  struct File {
    std::string name;
    std::vector<PieceRecord> pieces;  // ascending without overlap
  };
  int64_t rank = 0;
  int64_t world_size = 1;
  std::vector<File> files;
  // For each parameter that the rank owns a part of: its element ranges in the order of the state tensors,
  // ascending without overlap.
  std::map<std::string, std::vector<ElementRange>> elements;
};
std::string write_rank_index(const RankIndex& index);
RankIndex parse_rank_index(std::string_view text, const std::string& origin);

}  // namespace tessera

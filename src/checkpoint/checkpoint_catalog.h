// The content of a checkpoint folder, checked in full before any value is used: files, pieces, tensors, and
// which file holds which elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_manifest.h"
#include "formats/safetensors/safetensors.h"
#include "io/file.h"

namespace tessera {

// A file that the rank indexes divide into pieces.
struct CatalogFile {
  std::string name;
  int64_t bytes = 0;
  std::vector<PieceRecord> pieces;        // cover the file, ascending
  std::vector<SafetensorsEntry> entries;  // if a safetensors file; offsets from the start of the file

  // The piece containing this byte.
  size_t piece_at(int64_t offset_bytes) const;
};

// Elements [begin, end) of a parameter, contiguous in one file.
struct Extent {
  int64_t begin;
  int64_t end;
  size_t file;
  int64_t offset_bytes;  // of element `begin`
};

struct CatalogParameter {
  std::vector<int64_t> shape;
  int64_t num_elements = 0;
  Extent model;
  std::vector<ElementRange> owned = {};         // by any rank, ascending; they cover the parameter
  std::vector<std::vector<Extent>> state = {};  // by part, ascending, for the same elements
};

struct CheckpointCatalog {
  // Error(kNoInput) if there is no complete checkpoint; kBadData names file, field, expected and found.
  static CheckpointCatalog read(const std::filesystem::path& folder);

  std::filesystem::path folder;
  CheckpointManifest manifest;
  StoredParts parts{DType::kF32, {}};  // as the state files have them, in any order
  std::vector<CatalogFile> files;
  std::map<std::string, CatalogParameter> parameters;

  std::filesystem::path path_of(const std::string& name) const { return folder / name; }
};

// kBadData if a file with a single checksum does not match it.
void check_text(const std::filesystem::path& path, const FileRecord& record);
// kBadData if these bytes do not match the piece's size and checksum.
void check_piece(const std::filesystem::path& path, const PieceRecord& piece,
                 std::span<const std::byte> bytes);

}  // namespace tessera

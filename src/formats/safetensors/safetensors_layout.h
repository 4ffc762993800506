// Computes where everything in a safetensors file goes before anything is written: the same header for files
// written from front to back and for files that several processes write at known offsets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors/safetensors.h"
#include "io/output_file.h"

namespace tessera {

struct SafetensorsSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype;
};

// Where the data may begin, as in the reference writer.
inline constexpr int64_t kHeaderAlignment = 8;

// One file: tensors in the order given, but wider types before narrower ones so that every tensor is aligned
// to its element size. The data begin at a multiple of header_alignment bytes, itself one of
// kHeaderAlignment.
class SafetensorsLayout {
 public:
  explicit SafetensorsLayout(std::vector<SafetensorsSpec> tensors,
                             int64_t header_alignment = kHeaderAlignment,
                             const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // The bytes before the data: length, JSON, padding.
  const std::string& header() const { return header_; }
  int64_t file_bytes() const { return file_bytes_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // by offset
  const SafetensorsEntry* find(const std::string& name) const;               // nullptr if unknown

  // Creates the file at full size and writes its header; the data reads as zeros until written.
  OutputFile create(const std::filesystem::path& path) const;

 private:
  std::string header_;
  int64_t file_bytes_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_;
};

// The files of a model folder: model.safetensors, or model-0000i-of-0000n.safetensors with
// model.safetensors.index.json if the data exceeds max_shard_bytes. Shards are filled with tensors in the
// order given, up to that limit; a larger tensor gets a shard of its own. Data begin with a page, so that
// files can share it (OutputFile::share_at()).
struct SafetensorsModelLayout {
  struct File {
    std::string name;
    SafetensorsLayout layout;
  };
  struct Place {
    int64_t file;  // index in files
    const SafetensorsEntry* entry;
  };

  SafetensorsModelLayout(const std::vector<SafetensorsSpec>& tensors, int64_t max_shard_bytes);
  // One file of that name.
  SafetensorsModelLayout(std::vector<SafetensorsSpec> tensors, std::string file_name);
  Place at(const std::string& name) const;  // unknown = bug

  std::vector<File> files;
  std::string index_json;  // the content of model.safetensors.index.json; empty for a single file
};

// Replaces an older model's files in `folder` with a new model's complete files: give_name(i) renames file i
// of `layout` to its final name; the older model's index, shards and single file are removed. An interruption
// leaves the old model, the new one or none, never a mix. Error(kIoError).
void replace_model_files(const std::filesystem::path& folder, const SafetensorsModelLayout& layout,
                         const std::function<void(size_t file)>& give_name);

}  // namespace tessera

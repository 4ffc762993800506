// Where everything in safetensors files lies, laid out before anything is written: one header for files that
// are written from front to back and for those that several processes write at known offsets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/output_file.h"
#include "formats/safetensors.h"

namespace tessera {

struct SafetensorsSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype;
};

// One file: tensors in the order given, wider types before narrower ones so that every tensor is aligned to
// its elements, data 8-byte aligned as the reference writer does.
class SafetensorsLayout {
 public:
  explicit SafetensorsLayout(std::vector<SafetensorsSpec> tensors,
                             const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // The bytes before the data: length, JSON, padding.
  const std::string& header() const { return header_; }
  int64_t file_bytes() const { return file_bytes_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // by offset
  const SafetensorsEntry* find(const std::string& name) const;               // nullptr when unknown

  // A new file of its full size with the header in it; the data reads as zeros until it is written.
  OutputFile create(const std::filesystem::path& path) const;

 private:
  std::string header_;
  int64_t file_bytes_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_;
};

// The files of a model's folder: model.safetensors, or model-0000i-of-0000n.safetensors with
// model.safetensors.index.json when the data exceeds max_shard_bytes. A shard is filled with tensors in the
// order given as far as that allows; a larger tensor has one of its own.
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
  Place at(const std::string& name) const;  // unknown = bug

  std::vector<File> files;
  std::string index_json;  // what model.safetensors.index.json says; empty for a single file
};

// Puts a model's complete files in the place of an older model's in `folder`: give_name(i) gives file i of
// `layout` its name; index, shards and single file of the older model go. An interruption leaves the old
// model, the new one or none, but never files of both. Error(kIoError).
void replace_model_files(const std::filesystem::path& folder, const SafetensorsModelLayout& layout,
                         const std::function<void(size_t file)>& give_name);

}  // namespace tessera

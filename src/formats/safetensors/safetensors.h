// The safetensors format: u64 little-endian header length, JSON header, tensor data. Files are read with
// explicit reads, never mapped, so that a truncated or vanishing file is an error and not a SIGBUS.
// Specification: github.com/huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "tensor/tensor_view.h"

namespace tessera {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // may have more axes than Shape allows
  int64_t offset_bytes;        // from the start of the file
  int64_t size_bytes;
};

// One file. Opening checks everything the format requires: unique names, known types, and ranges that match
// the shapes and cover the data exactly, without holes or overlaps. Errors (kBadData, kNoInput) name file,
// tensor and field.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // by offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsEntry* find(const std::string& name) const;

  // Reads elements [begin, begin + destination.num_elements()) of the flattened tensor, converted to
  // destination's dtype (BF16, F16, F32, F64 to BF16, F16 or F32; integers to I64 or I32, with a range
  // check).
  void read(const SafetensorsEntry& entry, int64_t begin, TensorView destination) const;
  // Starts readahead for these elements; returns at once.
  void announce(const SafetensorsEntry& entry, int64_t begin, int64_t count) const;

 private:
  InputFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// Checks a header (the JSON text after the length) and returns its entries, with offsets from the start of
// the data. `data_bytes` is the size of the file after the header. `origin` names the file in errors.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                                       const std::string& origin,
                                                       std::map<std::string, std::string>* metadata);

// A model's tensors, in one file or in shards with model.safetensors.index.json.
class SafetensorsModel {
 public:
  // A folder with model.safetensors or an index, an index file, or one .safetensors file. The index says
  // which files are the shards, and no tensor may be in two of them. Where else index and shards disagree,
  // the shards count, with a warning, as in Transformers. Errors: kNoInput if something is missing, kBadData
  // if something is wrong.
  static SafetensorsModel open(const std::filesystem::path& path);

  struct Location {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  const std::map<std::string, Location>& tensors() const { return tensors_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

 private:
  void add_file(const std::filesystem::path& path);
  void open_index(const std::filesystem::path& path);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location> tensors_;
};

// A tensor to write.
struct SafetensorsItem {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype;  // in the file
  // Fills `buffer` with elements [begin, begin + count) in the file's dtype; called in order, in pieces of
  // bounded size.
  std::function<void(int64_t begin, int64_t count, std::byte* buffer)> produce;
};

// An item with the elements of `data`, which must outlive the write, converted to file_dtype (see
// formats/huggingface/convert.h; an integer that does not fit is a bug).
SafetensorsItem make_item(std::string name, std::vector<int64_t> shape, ConstTensorView data,
                          DType file_dtype);

// Writes one file atomically (io/file.h): items in the order given, but wider types before narrower ones
// so that every tensor is aligned to its element size; data 8-byte aligned, as in the reference writer.
void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Writes model.safetensors, or model-0000i-of-0000n.safetensors and model.safetensors.index.json when the
// data exceeds max_shard_bytes. Removes shards and index of an earlier model in that folder.
void write_safetensors_model(const std::filesystem::path& folder, const std::vector<SafetensorsItem>& items,
                             int64_t max_shard_bytes = int64_t{5'000'000'000});

}  // namespace tessera

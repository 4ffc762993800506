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

#include "formats/file.h"
#include "tensor/tensor_view.h"

namespace tessera {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // of any rank: a file may hold more axes than Shape takes
  int64_t offset_bytes;        // from the start of the file
  int64_t size_bytes;
};

// One file. Everything the format demands is checked on opening: unique names, known types, ranges that cover
// the data exactly without holes or overlaps and agree with the shapes. Errors (kBadData, kNoInput) name
// file, tensor and field.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // by offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsEntry* find(const std::string& name) const;

  // Elements [begin, begin + destination.num_elements()) of the flattened tensor, converted to destination's
  // dtype (BF16, F16, F32, F64 to BF16, F16 or F32; integers to I64 or I32, with a range check).
  void read(const SafetensorsEntry& entry, int64_t begin, TensorView destination) const;
  // Tells the system that these elements will be read soon; returns at once.
  void announce(const SafetensorsEntry& entry, int64_t begin, int64_t count) const;

 private:
  InputFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// Checks a header (the JSON text behind the length) and returns its entries with offsets from the start of
// the data. `data_bytes` is what the file holds behind the header. `origin` names the file in errors.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                                       const std::string& origin,
                                                       std::map<std::string, std::string>* metadata);

// A model's tensors, in one file or in shards with model.safetensors.index.json.
class SafetensorsModel {
 public:
  // A folder with model.safetensors or an index, an index file, or one .safetensors file. The index is
  // checked against the shards: every tensor once, in the shard it is said to be in, none missing, none
  // besides. Errors: kNoInput for what is missing, kBadData for what is wrong. Published totals
  // (metadata.total_size) are not always right: a difference is a warning.
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

// A tensor to be written.
struct SafetensorsItem {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype;  // in the file
  // Fills `buffer` with elements [begin, begin + count) in the file's dtype; called in order, in pieces of
  // bounded size.
  std::function<void(int64_t begin, int64_t count, std::byte* buffer)> produce;
};

// The elements of `data`, which must live until the write ends, converted to file_dtype (see
// formats/convert.h; an integer that does not fit is a bug).
SafetensorsItem make_item(std::string name, std::vector<int64_t> shape, ConstTensorView data,
                          DType file_dtype);

// Writes one file atomically (formats/file.h): items in the order given, wider types before narrower ones so
// that every tensor is aligned to its elements, data 8-byte aligned as the reference writer does.
void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Writes model.safetensors, or model-0000i-of-0000n.safetensors and model.safetensors.index.json when the
// data exceeds max_shard_bytes. Removes shards and index of an earlier model in that folder.
void write_safetensors_model(const std::filesystem::path& folder, const std::vector<SafetensorsItem>& items,
                             int64_t max_shard_bytes = int64_t{5'000'000'000});

}  // namespace tessera

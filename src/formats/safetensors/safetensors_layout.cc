#include "formats/safetensors/safetensors_layout.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "formats/safetensors/shard_name.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

int64_t size_bytes(const SafetensorsSpec& tensor) {
  int64_t size = dtype_bytes(tensor.dtype);
  for (const int64_t dim : tensor.shape) {
    TESSERA_CHECK(dim >= 0 && !__builtin_mul_overflow(size, dim, &size), "{}", tensor.name);
  }
  return size;
}

// `entries` have offsets from the start of the data. Built entry by entry, so that a header of many tensors
// needs no JSON tree.
std::string make_header(const std::vector<SafetensorsEntry>& entries,
                        const std::map<std::string, std::string>& metadata, int64_t alignment) {
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + OrderedJson(metadata).dump() + ",";
  for (const SafetensorsEntry& entry : entries) {
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                        OrderedJson(entry.name).dump(), dtype_name(entry.dtype), fmt::join(entry.shape, ","),
                        entry.offset_bytes, entry.offset_bytes + entry.size_bytes);
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  uint64_t length = 0;
  const int64_t header_bytes = round_up(std::ssize(json) + static_cast<int64_t>(sizeof(length)), alignment);
  json.resize(static_cast<size_t>(header_bytes) - sizeof(length), ' ');
  length = json.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return header + json;
}

std::vector<std::vector<SafetensorsSpec>> split_into_shards(const std::vector<SafetensorsSpec>& tensors,
                                                            int64_t max_shard_bytes) {
  std::vector<std::vector<SafetensorsSpec>> shards(1);
  int64_t shard_bytes = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const int64_t size = size_bytes(tensor);
    if (!shards.back().empty() && shard_bytes + size > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(tensor);
    shard_bytes += size;
  }
  return shards;
}

std::string make_index(const std::vector<SafetensorsModelLayout::File>& files) {
  int64_t total_bytes = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& [name, layout] : files) {
    for (const SafetensorsEntry& entry : layout.entries()) {
      weight_map[entry.name] = name;
      total_bytes += entry.size_bytes;
    }
  }
  OrderedJson index;
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = weight_map;
  return index.dump(2) + "\n";
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(std::vector<SafetensorsSpec> tensors, int64_t header_alignment,
                                     const std::map<std::string, std::string>& metadata) {
  // Widest type first aligns every tensor to its element size without holes, which the format forbids.
  std::stable_sort(tensors.begin(), tensors.end(), [](const SafetensorsSpec& a, const SafetensorsSpec& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  int64_t data_bytes = 0;
  for (SafetensorsSpec& tensor : tensors) {
    const int64_t size = size_bytes(tensor);
    TESSERA_CHECK(tensor.name != "__metadata__" && index_.emplace(tensor.name, entries_.size()).second,
                  "tensor '{}' twice", tensor.name);
    entries_.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), data_bytes, size});
    data_bytes += size;
  }
  header_ = make_header(entries_, metadata, header_alignment);
  const auto data_begin = static_cast<int64_t>(header_.size());
  for (SafetensorsEntry& entry : entries_) entry.offset_bytes += data_begin;
  file_bytes_ = data_begin + data_bytes;
}

const SafetensorsEntry* SafetensorsLayout::find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

OutputFile SafetensorsLayout::create(const std::filesystem::path& path) const {
  OutputFile file = OutputFile::create(path, file_bytes_);
  file.write_at(0, header_);
  return file;
}

SafetensorsModelLayout::SafetensorsModelLayout(const std::vector<SafetensorsSpec>& tensors,
                                               int64_t max_shard_bytes) {
  std::vector<std::vector<SafetensorsSpec>> shards = split_into_shards(tensors, max_shard_bytes);
  const auto num_shards = static_cast<int64_t>(shards.size());
  for (std::vector<SafetensorsSpec>& shard : shards) {
    const auto number = static_cast<int64_t>(files.size()) + 1;
    files.push_back({num_shards == 1 ? kSingleFileName : shard_name(number, num_shards),
                     SafetensorsLayout(std::move(shard), kSharedPageBytes)});
  }
  if (num_shards > 1) index_json = make_index(files);
}

SafetensorsModelLayout::SafetensorsModelLayout(std::vector<SafetensorsSpec> tensors, std::string file_name) {
  files.push_back({std::move(file_name), SafetensorsLayout(std::move(tensors))});
}

SafetensorsModelLayout::Place SafetensorsModelLayout::at(const std::string& name) const {
  for (size_t i = 0; i < files.size(); ++i) {
    if (const SafetensorsEntry* entry = files[i].layout.find(name); entry != nullptr) {
      return {static_cast<int64_t>(i), entry};
    }
  }
  TESSERA_CHECK(false, "unknown tensor {}", name);
  return {};
}

}  // namespace tessera

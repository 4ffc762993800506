#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "formats/convert.h"
#include "formats/safetensors.h"
#include "formats/shard_name.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kPieceBytes = int64_t{1} << 22;
constexpr int64_t kHeaderAlignment = 8;

int64_t num_elements(const SafetensorsItem& item) {
  int64_t count = 1;
  for (const int64_t dim : item.shape) {
    TESSERA_CHECK(dim >= 0 && !__builtin_mul_overflow(count, dim, &count), "{}", item.name);
  }
  return count;
}

int64_t size_bytes(const SafetensorsItem& item) {
  int64_t size = 0;
  TESSERA_CHECK(!__builtin_mul_overflow(num_elements(item), dtype_bytes(item.dtype), &size), "{}", item.name);
  return size;
}

using Items = std::vector<const SafetensorsItem*>;

// One by one, so that a header of many tensors is not built as a tree first.
std::string make_header(const Items& items, const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + OrderedJson(metadata).dump() + ",";
  int64_t offset = 0;
  for (const SafetensorsItem* item : items) {
    const int64_t end = offset + size_bytes(*item);
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                          OrderedJson(item->name).dump(), dtype_name(item->dtype),
                          fmt::join(item->shape, ","), offset, end);
    offset = end;
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.resize(static_cast<size_t>(round_up(static_cast<int64_t>(header.size()), kHeaderAlignment)), ' ');
  return header;
}

void write_items(AtomicFile& file, Items items, const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  for (const SafetensorsItem* item : items)
    TESSERA_CHECK(item->name != "__metadata__" && names.insert(item->name).second, "tensor '{}' twice",
                  item->name);
  // Widest type first keeps every tensor aligned to its elements without holes, which the format forbids.
  std::stable_sort(items.begin(), items.end(), [](const SafetensorsItem* a, const SafetensorsItem* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });
  const std::string header = make_header(items, metadata);
  const uint64_t header_bytes = header.size();
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(header);
  std::vector<std::byte> buffer(static_cast<size_t>(kPieceBytes));
  for (const SafetensorsItem* item : items) {
    const int64_t count = num_elements(*item);
    const int64_t element_bytes = dtype_bytes(item->dtype);
    const int64_t piece = kPieceBytes / element_bytes;
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t now = std::min(piece, count - begin);
      item->produce(begin, now, buffer.data());
      file.write(std::span(buffer).first(static_cast<size_t>(now * element_bytes)));
    }
  }
}

// Fills each shard as far as max_shard_bytes allows; a larger tensor has a shard of its own.
std::vector<Items> split_into_shards(const std::vector<SafetensorsItem>& items, int64_t max_shard_bytes) {
  std::vector<Items> shards(1);
  int64_t shard_bytes = 0;
  for (const SafetensorsItem& item : items) {
    const int64_t size = size_bytes(item);
    if (!shards.back().empty() && shard_bytes + size > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(&item);
    shard_bytes += size;
  }
  return shards;
}

std::string make_index(const std::vector<Items>& shards) {
  int64_t total_bytes = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const SafetensorsItem* item : shards[i]) {
      weight_map[item->name] = shard_name(static_cast<int64_t>(i) + 1, static_cast<int64_t>(shards.size()));
      total_bytes += size_bytes(*item);
    }
  }
  OrderedJson index;
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = weight_map;
  return index.dump(2) + "\n";
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) fail(ExitCode::kIoError, "{}: cannot remove: {}", path.native(), error.message());
}

void remove_other_shards(const fs::path& folder, const std::set<std::string>& keep) {
  std::vector<fs::path> old;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().native();
    if (parse_shard_name(name) && !keep.contains(name)) old.push_back(file.path());
  }
  for (const fs::path& path : old) remove_file(path);
}

}  // namespace

SafetensorsItem make_item(std::string name, std::vector<int64_t> shape, ConstTensorView data,
                          DType file_dtype) {
  SafetensorsItem item = {std::move(name), std::move(shape), file_dtype, nullptr};
  TESSERA_CHECK(num_elements(item) == data.num_elements(), "{}: {} of {}", item.name, num_elements(item),
                data.shape().to_string());
  item.produce = [data, file_dtype, label = item.name](int64_t begin, int64_t count, std::byte* buffer) {
    const std::byte* source = data.bytes() + begin * dtype_bytes(data.dtype());
    const auto unfit = convert_elements(data.dtype(), source, file_dtype, buffer, count);
    TESSERA_CHECK(!unfit, "tensor '{}': element {} does not fit {}", label, begin + *unfit,
                  dtype_name(file_dtype));
  };
  return item;
}

void write_safetensors(const fs::path& path, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata) {
  Items pointers;
  for (const SafetensorsItem& item : items) pointers.push_back(&item);
  AtomicFile file(path);
  write_items(file, std::move(pointers), metadata);
  file.commit();
}

void write_safetensors_model(const fs::path& folder, const std::vector<SafetensorsItem>& items,
                             int64_t max_shard_bytes) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const std::vector<Items> shards = split_into_shards(items, max_shard_bytes);
  if (shards.size() == 1) {
    // Readers prefer the single file, so that an older index beside it does no harm until it is gone.
    write_safetensors(folder / kSingleFileName, items, metadata);
    remove_file(folder / kIndexFileName);
    remove_other_shards(folder, {});
    return;
  }
  // Everything is written before anything of an older model is touched; the index goes first and comes last,
  // so that an interruption leaves the old model, the new one or none, but never shards of both.
  std::vector<std::unique_ptr<AtomicFile>> files;
  std::set<std::string> names;
  for (const Items& shard : shards) {
    const std::string name =
        shard_name(static_cast<int64_t>(files.size()) + 1, static_cast<int64_t>(shards.size()));
    files.push_back(std::make_unique<AtomicFile>(folder / name));
    write_items(*files.back(), shard, metadata);
    names.insert(name);
  }
  AtomicFile index(folder / kIndexFileName);
  index.write(make_index(shards));
  remove_file(folder / kIndexFileName);
  remove_file(folder / kSingleFileName);
  for (const auto& file : files) file->commit();
  index.commit();
  remove_other_shards(folder, names);
}

}  // namespace tessera

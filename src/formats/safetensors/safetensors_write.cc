#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "formats/huggingface/convert.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/safetensors_layout.h"
#include "formats/safetensors/shard_name.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWritePieceBytes = int64_t{1} << 22;

int64_t num_elements(const SafetensorsItem& item) {
  int64_t count = 1;
  for (const int64_t dim : item.shape) {
    TESSERA_CHECK(dim >= 0 && !__builtin_mul_overflow(count, dim, &count), "{}", item.name);
  }
  return count;
}

// Writes the file that `layout` describes. `items` has its tensors, and maybe others.
void write_items(AtomicFile& file, const SafetensorsLayout& layout,
                 const std::vector<SafetensorsItem>& items) {
  std::unordered_map<std::string_view, const SafetensorsItem*> by_name;
  for (const SafetensorsItem& item : items) by_name.emplace(item.name, &item);
  file.write(layout.header());
  std::vector<std::byte> buffer(static_cast<size_t>(kWritePieceBytes));
  for (const SafetensorsEntry& entry : layout.entries()) {
    const SafetensorsItem& item = *by_name.at(entry.name);
    const int64_t element_bytes = dtype_bytes(entry.dtype);
    const int64_t count = entry.size_bytes / element_bytes;
    const int64_t piece = kWritePieceBytes / element_bytes;
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t now = std::min(piece, count - begin);
      item.produce(begin, now, buffer.data());
      file.write(std::span(buffer).first(static_cast<size_t>(now * element_bytes)));
    }
  }
}

std::vector<SafetensorsSpec> specs_of(const std::vector<SafetensorsItem>& items) {
  std::vector<SafetensorsSpec> specs;
  for (const SafetensorsItem& item : items) specs.push_back({item.name, item.shape, item.dtype});
  return specs;
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
  AtomicFile file(path);
  write_items(file, SafetensorsLayout(specs_of(items), kHeaderAlignment, metadata), items);
  file.commit();
}

void write_safetensors_model(const fs::path& folder, const std::vector<SafetensorsItem>& items,
                             int64_t max_shard_bytes) {
  const SafetensorsModelLayout layout(specs_of(items), max_shard_bytes);
  // Temporary files of a process that was killed here would take disk space for good: they are hidden.
  remove_abandoned_files(folder, ".safetensors");
  // Everything is written before an older model is touched.
  std::vector<std::unique_ptr<AtomicFile>> files;
  for (const auto& [name, file_layout] : layout.files) {
    files.push_back(std::make_unique<AtomicFile>(folder / name));
    write_items(*files.back(), file_layout, items);
  }
  replace_model_files(folder, layout, [&](size_t file) { files[file]->commit(); });
}

void replace_model_files(const fs::path& folder, const SafetensorsModelLayout& layout,
                         const std::function<void(size_t file)>& give_name) {
  if (layout.files.size() == 1) {
    // Readers prefer the single file, so an older index next to it does no harm until it is removed.
    give_name(0);
    remove_file(folder / kIndexFileName);
    remove_other_shards(folder, {});
    return;
  }
  // The old index is removed first, the new one appears last.
  AtomicFile index(folder / kIndexFileName);
  index.write(layout.index_json);
  remove_file(folder / kIndexFileName);
  remove_file(folder / kSingleFileName);
  std::set<std::string> names;
  for (size_t file = 0; file < layout.files.size(); ++file) {
    give_name(file);
    names.insert(layout.files[file].name);
  }
  index.commit();
  remove_other_shards(folder, names);
}

}  // namespace tessera

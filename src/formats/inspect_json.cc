#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "formats/file_kind.h"
#include "formats/gguf/gguf.h"
#include "formats/huggingface/model_config.h"
#include "formats/inspect.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/shard_name.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using OrderedJson = nlohmann::ordered_json;

// Adds a tensor and the totals over all of them.
void add_tensor(OrderedJson* out, OrderedJson tensor, int64_t num_elements, int64_t size_bytes) {
  tensor["num_elements"] = num_elements;
  tensor["bytes"] = size_bytes;
  (*out)["tensors"].push_back(std::move(tensor));
  (*out)["num_elements"] = (*out)["num_elements"].get<int64_t>() + num_elements;
  (*out)["bytes"] = (*out)["bytes"].get<int64_t>() + size_bytes;
}

OrderedJson gguf_value(const GgufScalar& value) {
  return std::visit([](const auto& held) { return OrderedJson(held); }, value);
}

OrderedJson gguf_value(const GgufField& field) {
  if (const auto* scalar = std::get_if<GgufScalar>(&field.value)) return gguf_value(*scalar);
  OrderedJson values = OrderedJson::array();
  for (const GgufScalar& value : std::get<GgufArray>(field.value).values) values.push_back(gguf_value(value));
  return values;
}

void add_gguf(const fs::path& path, OrderedJson* out) {
  const GgufContent content = read_gguf(path);
  for (const GgufField& field : content.fields) (*out)["metadata"][field.key] = gguf_value(field);
  for (const GgufTensor& tensor : content.tensors) {
    const GgmlTypeInfo& type = *tensor.type;
    add_tensor(out,
               {{"name", tensor.name},
                {"dtype", type.name},
                {"shape", tensor.shape},
                {"file", path.filename().string()}},
               tensor.size_bytes / type.block_bytes * type.block_elements, tensor.size_bytes);
  }
}

void add_safetensors(const fs::path& path, OrderedJson* out) {
  const SafetensorsModel model = SafetensorsModel::open(path);
  for (const auto& file : model.files()) {
    for (const auto& [key, value] : file->metadata()) (*out)["metadata"][key] = value;
    for (const SafetensorsEntry& entry : file->entries()) {
      add_tensor(out,
                 {{"name", entry.name},
                  {"dtype", dtype_name(entry.dtype)},
                  {"shape", entry.shape},
                  {"file", file->path().filename().string()}},
                 entry.size_bytes / dtype_bytes(entry.dtype), entry.size_bytes);
    }
  }
}

}  // namespace

std::string inspect_json(const fs::path& path) {
  OrderedJson out = {{"path", path.string()},
                     {"config", nullptr},
                     {"num_elements", 0},
                     {"bytes", 0},
                     {"metadata", OrderedJson::object()},
                     {"tensors", OrderedJson::array()}};
  std::error_code error;
  bool has_weights = true;
  if (fs::is_directory(path, error) && fs::exists(path / "config.json", error)) {
    read_model_config(path);  // refuses what training would refuse
    const fs::path config = path / "config.json";
    out["config"] = parse_json(read_text_file(config), config.string());
    has_weights = fs::exists(path / kSingleFileName, error) || fs::exists(path / kIndexFileName, error);
  }
  const FileKind kind = fs::is_regular_file(path, error) ? kind_of_file(path) : FileKind();
  if (kind.has_mark && !kind.is_gguf) fail_not_a_model(path, kind);
  if (kind.is_gguf) {
    add_gguf(path, &out);
  } else if (has_weights) {
    add_safetensors(path, &out);
  }
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace tessera

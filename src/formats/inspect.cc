#include "formats/inspect.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <system_error>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/gguf/gguf.h"
#include "formats/huggingface/convert.h"
#include "formats/huggingface/model_config.h"
#include "formats/huggingface/model_families.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/shard_name.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using Row = std::array<std::string, 4>;  // name, type, shape, bytes

int64_t num_elements(const SafetensorsEntry& entry) { return entry.size_bytes / dtype_bytes(entry.dtype); }

// Columns are as wide as their longest cell; bytes are right-aligned.
void append_table(const std::vector<Row>& rows, std::string& out) {
  std::array<size_t, 4> widths = {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    fmt::format_to(std::back_inserter(out), "{:<{}}  {:<{}}  {:<{}}  {:>{}}\n", row[0], widths[0], row[1],
                   widths[1], row[2], widths[2], row[3], widths[3]);
  }
}

void append_file(const SafetensorsFile& file, std::string& out) {
  std::vector<Row> rows;
  for (const SafetensorsEntry& entry : file.entries()) {
    rows.push_back({printable(entry.name, 200), std::string(dtype_name(entry.dtype)), shape_text(entry.shape),
                    format_bytes(entry.size_bytes)});
  }
  fmt::format_to(std::back_inserter(out), "{}\n", file.path().native());
  for (const auto& [key, value] : file.metadata())
    fmt::format_to(std::back_inserter(out), "metadata {}: {}\n", printable(key), printable(value));
  append_table(rows, out);
}

void append_totals(const SafetensorsModel& model, std::string& out) {
  int64_t elements = 0, size_bytes = 0;
  bool only_floats = true;
  std::map<DType, int64_t> by_type;
  for (const auto& [name, location] : model.tensors()) {
    elements += num_elements(*location.entry);
    size_bytes += location.entry->size_bytes;
    by_type[location.entry->dtype] += num_elements(*location.entry);
    only_floats &= can_convert(location.entry->dtype, DType::kF32);
  }
  std::vector<std::string> types;
  for (const auto& [dtype, count] : by_type)
    types.push_back(fmt::format("{} {}", format_count(count), dtype_name(dtype)));
  fmt::format_to(std::back_inserter(out), "{} in {}, {} ({}), {}\n",
                 format_count(std::ssize(model.tensors()), "tensor"),
                 format_count(std::ssize(model.files()), "file"),
                 format_count(elements, only_floats ? "parameter" : "element"), fmt::join(types, ", "),
                 format_bytes(size_bytes));
}

std::string scalar_text(const GgufScalar& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::string>)
          return printable(held);
        else
          return fmt::format("{}", held);
      },
      value);
}

std::string value_text(const GgufField& field) {
  constexpr size_t kShown = 4;
  if (const auto* scalar = std::get_if<GgufScalar>(&field.value)) return scalar_text(*scalar);
  const std::vector<GgufScalar>& values = std::get<GgufArray>(field.value).values;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(values.size(), kShown); ++i) shown.push_back(scalar_text(values[i]));
  if (values.size() > kShown) shown.push_back("...");
  return fmt::format("[{}] ({})", fmt::join(shown, ", "), format_count(std::ssize(values), "value"));
}

// Shapes are in GGUF's order.
std::string inspect_gguf(const fs::path& path) {
  const GgufContent content = read_gguf(path);
  std::string out = path.native() + "\n";
  for (const GgufField& field : content.fields)
    fmt::format_to(std::back_inserter(out), "{}: {}\n", printable(field.key), value_text(field));
  std::vector<Row> rows;
  int64_t elements = 0, size_bytes = 0;
  std::map<std::string, int64_t> by_type;
  for (const GgufTensor& tensor : content.tensors) {
    const GgmlTypeInfo& type = *tensor.type;
    const int64_t count = tensor.size_bytes / type.block_bytes * type.block_elements;
    rows.push_back(
        {printable(tensor.name, 200), type.name, shape_text(tensor.shape), format_bytes(tensor.size_bytes)});
    elements += count;
    size_bytes += tensor.size_bytes;
    by_type[type.name] += count;
  }
  append_table(rows, out);
  std::vector<std::string> types;
  for (const auto& [name, count] : by_type) types.push_back(fmt::format("{} {}", format_count(count), name));
  fmt::format_to(std::back_inserter(out), "\n{}, {} ({}), {}\n",
                 format_count(std::ssize(content.tensors), "tensor"), format_count(elements, "element"),
                 fmt::join(types, ", "), format_bytes(size_bytes));
  return out;
}

std::string rope_text(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  switch (scaling.type) {
    case RopeType::kDefault:
      return fmt::format("theta {}", config.rope_theta);
    case RopeType::kLinear:
      return fmt::format("theta {}, linear scaling by {}", config.rope_theta, scaling.factor);
    case RopeType::kLlama3:
      break;
  }
  return fmt::format("theta {}, llama3 scaling by {} from {}", config.rope_theta, scaling.factor,
                     format_count(scaling.original_max_position_embeddings, "position"));
}

void append_config(const ModelConfig& config, std::string& out) {
  const auto line = [&](const char* name, const std::string& value) {
    fmt::format_to(std::back_inserter(out), "{:<12}{}\n", name, value);
  };
  line("model", family_info(config.family).architecture);
  line("layers", format_count(config.num_hidden_layers));
  line("hidden", format_count(config.hidden_size));
  line("heads", fmt::format("{} query, {} key-value, {} elements each", config.num_attention_heads,
                            config.num_key_value_heads, config.head_dim));
  line("mlp", format_count(config.intermediate_size));
  line("vocabulary",
       format_count(config.vocab_size) + (config.tie_word_embeddings ? ", tied embeddings" : ""));
  line("positions", format_count(config.max_position_embeddings));
  line("rope", rope_text(config));
  const int64_t windowed = std::count_if(config.sliding_window.begin(), config.sliding_window.end(),
                                         [](int64_t window) { return window != 0; });
  if (windowed != 0) {
    const int64_t window = *std::max_element(config.sliding_window.begin(), config.sliding_window.end());
    line("window", fmt::format("{} in {} of {}", format_count(window, "token"), windowed,
                               format_count(config.num_hidden_layers, "layer")));
  }
  std::vector<std::string> extras;
  if (config.qkv_bias) extras.emplace_back("q/k/v bias");
  if (config.o_bias) extras.emplace_back("o bias");
  if (config.mlp_bias) extras.emplace_back("mlp bias");
  if (config.qk_norm) extras.emplace_back("q/k norm");
  if (!extras.empty()) line("extras", fmt::format("{}", fmt::join(extras, ", ")));
}

}  // namespace

std::string inspect(const fs::path& path) {
  std::error_code error;
  std::string out;
  if (fs::is_directory(path, error)) {
    const bool has_config = fs::exists(path / "config.json", error);
    if (has_config) {
      append_config(read_model_config(path), out);
      out += "\n";
    }
    const bool has_weights =
        fs::exists(path / kSingleFileName, error) || fs::exists(path / kIndexFileName, error);
    if (has_config && !has_weights) return out + "no weights in this folder\n";
  }
  if (fs::is_regular_file(path, error)) {
    const FileKind kind = kind_of_file(path);
    if (kind.is_gguf) return inspect_gguf(path);
    if (kind.has_mark) fail_not_a_model(path, kind);
  }
  const SafetensorsModel model = SafetensorsModel::open(path);
  for (const auto& file : model.files()) {
    append_file(*file, out);
    out += "\n";
  }
  append_totals(model, out);
  return out;
}

}  // namespace tessera

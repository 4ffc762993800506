#include "formats/inspect/inspect.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/gguf/gguf.h"
#include "formats/huggingface/convert.h"
#include "formats/huggingface/model_config.h"
#include "formats/huggingface/model_families.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/shard_name.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using OrderedJson = nlohmann::ordered_json;

struct TensorLine {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;  // of GGUF, in its order
  int64_t num_elements;
  int64_t size_bytes;
  bool is_float;
};

struct FileContent {
  fs::path path;
  OrderedJson metadata = OrderedJson::object();
  std::vector<TensorLine> tensors;
};

OrderedJson json_of(const GgufScalar& value) {
  return std::visit([](const auto& held) { return OrderedJson(held); }, value);
}

FileContent content_of_gguf(const fs::path& path) {
  const GgufContent gguf = read_gguf(path);
  FileContent content;
  content.path = path;
  for (const GgufField& field : gguf.fields) {
    OrderedJson& value = content.metadata[field.key];
    if (const auto* scalar = std::get_if<GgufScalar>(&field.value)) {
      value = json_of(*scalar);
      continue;
    }
    value = OrderedJson::array();
    for (const GgufScalar& item : std::get<GgufArray>(field.value).values) value.push_back(json_of(item));
  }
  for (const GgufTensor& tensor : gguf.tensors) {
    const GgmlTypeInfo& type = *tensor.type;
    content.tensors.push_back({tensor.name, type.name, tensor.shape,
                               tensor.size_bytes / type.block_bytes * type.block_elements, tensor.size_bytes,
                               false});
  }
  return content;
}

FileContent content_of_safetensors(const SafetensorsFile& file) {
  FileContent content;
  content.path = file.path();
  for (const auto& [key, value] : file.metadata()) content.metadata[key] = value;
  for (const SafetensorsEntry& entry : file.entries()) {
    content.tensors.push_back({entry.name, std::string(dtype_name(entry.dtype)), entry.shape,
                               entry.size_bytes / dtype_bytes(entry.dtype), entry.size_bytes,
                               can_convert(entry.dtype, DType::kF32)});
  }
  return content;
}

struct Content {
  std::optional<ModelConfig> config;  // of a folder that has config.json
  bool is_gguf = false;
  std::vector<FileContent> files;  // none: a folder without weights
};

Content read_content(const fs::path& path) {
  Content content;
  std::error_code error;
  if (fs::is_directory(path, error) && fs::exists(path / "config.json", error)) {
    content.config = read_model_config(path);
    if (!fs::exists(path / kSingleFileName, error) && !fs::exists(path / kIndexFileName, error))
      return content;
  }
  const FileKind kind = fs::is_regular_file(path, error) ? kind_of_file(path) : FileKind();
  if (kind.has_mark && !kind.is_gguf) fail_not_a_model(path, kind);
  content.is_gguf = kind.is_gguf;
  if (content.is_gguf) {
    content.files.push_back(content_of_gguf(path));
  } else {
    const SafetensorsModel model = SafetensorsModel::open(path);
    for (const auto& file : model.files()) content.files.push_back(content_of_safetensors(*file));
  }
  return content;
}

// Text as it is, everything else as JSON; of a list only the first values.
std::string value_text(const OrderedJson& value) {
  constexpr size_t kShown = 4;
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_number_float()) {  // F32 with the digits that it has
    const auto number = value.get<double>();
    const auto single = static_cast<float>(number);
    return single == number ? fmt::format("{}", single) : fmt::format("{}", number);
  }
  if (!value.is_array()) return value.dump();
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(value.size(), kShown); ++i) shown.push_back(value_text(value[i]));
  if (value.size() > kShown) shown.push_back("...");
  return fmt::format("[{}] ({})", fmt::join(shown, ", "), format_count(std::ssize(value), "value"));
}

// Columns are as wide as their longest cell; bytes are right-aligned.
void append_tensors(const std::vector<TensorLine>& tensors, std::string& out) {
  std::vector<std::array<std::string, 4>> rows;
  std::array<size_t, 4> widths = {};
  for (const TensorLine& tensor : tensors) {
    rows.push_back({printable(tensor.name, 200), tensor.type, shape_text(tensor.shape),
                    format_bytes(tensor.size_bytes)});
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], rows.back()[i].size());
  }
  for (const auto& row : rows) {
    fmt::format_to(std::back_inserter(out), "{:<{}}  {:<{}}  {:<{}}  {:>{}}\n", row[0], widths[0], row[1],
                   widths[1], row[2], widths[2], row[3], widths[3]);
  }
}

void append_totals(const Content& content, std::string& out) {
  int64_t tensors = 0, elements = 0, size_bytes = 0;
  bool only_floats = !content.is_gguf;
  std::map<std::string, int64_t> by_type;
  for (const FileContent& file : content.files) {
    for (const TensorLine& tensor : file.tensors) {
      ++tensors;
      elements += tensor.num_elements;
      size_bytes += tensor.size_bytes;
      by_type[tensor.type] += tensor.num_elements;
      only_floats &= tensor.is_float;
    }
  }
  std::vector<std::string> types;
  for (const auto& [name, count] : by_type) types.push_back(fmt::format("{} {}", format_count(count), name));
  const std::string in_files =
      content.is_gguf ? "" : fmt::format(" in {}", format_count(std::ssize(content.files), "file"));
  fmt::format_to(std::back_inserter(out), "{}{}, {} ({}), {}\n", format_count(tensors, "tensor"), in_files,
                 format_count(elements, only_floats ? "parameter" : "element"), fmt::join(types, ", "),
                 format_bytes(size_bytes));
}

std::string_view scaling_name(RopeType type) {
  switch (type) {
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kLongRope:
      return "longrope";
    case RopeType::kDefault:
    case RopeType::kLinear:
      break;
  }
  return "linear";
}

std::string rope_text(double theta, const RopeScaling& scaling) {
  std::string text = fmt::format("theta {}", theta);
  if (scaling.type == RopeType::kDefault) return text;
  text += fmt::format(", {} scaling by {}", scaling_name(scaling.type), scaling.factor);
  if (scaling.type == RopeType::kLinear) return text;
  return text + fmt::format(" from {}", format_count(scaling.original_max_position_embeddings, "position"));
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
  if (config.experts) {
    const MixtureOfExperts& experts = *config.experts;
    const auto sparse = std::ranges::count(experts.layers, true);
    line("experts", fmt::format("{} of {} for each token, {} wide, in {} of {}", experts.num_experts_per_tok,
                                experts.num_experts, format_count(experts.moe_intermediate_size), sparse,
                                format_count(config.num_hidden_layers, "layer")));
  }
  if (!config.experts || std::ranges::count(config.experts->layers, false) > 0)
    line("mlp", format_count(config.intermediate_size));
  line("vocabulary",
       format_count(config.vocab_size) + (config.tie_word_embeddings ? ", tied embeddings" : ""));
  if (config.encoder_decoder) {
    line("encoder", format_count(config.encoder_decoder->num_encoder_layers, "layer"));
    line("positions",
         fmt::format("relative, {} up to a distance of {}",
                     format_count(config.encoder_decoder->relative_attention_num_buckets, "bucket"),
                     config.encoder_decoder->relative_attention_max_distance));
  } else if (config.encoder && config.encoder->has_positions) {
    line("positions", fmt::format("{}, absolute", format_count(config.max_position_embeddings)));
  } else {
    line("positions", format_count(config.max_position_embeddings));
    line("rope", rope_text(config.rope_theta, config.rope_scaling));
    if (has_local_rope(config))
      line("local rope", rope_text(config.local_rope.theta, config.local_rope.scaling));
    if (const auto without = std::ranges::count(config.layer_rope, LayerRope::kNone); without > 0)
      line("no rope", fmt::format("in {} of {}", without, format_count(config.num_hidden_layers, "layer")));
  }
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
  const Content content = read_content(path);
  std::string out;
  if (content.config) {
    append_config(*content.config, out);
    out += "\n";
  }
  if (content.files.empty()) return out + "no weights in this folder\n";
  for (const FileContent& file : content.files) {
    fmt::format_to(std::back_inserter(out), "{}\n", file.path.native());
    for (const auto& [key, value] : file.metadata.items())
      fmt::format_to(std::back_inserter(out), "{}{}: {}\n", content.is_gguf ? "" : "metadata ",
                     printable(key), value_text(value));
    append_tensors(file.tensors, out);
    out += "\n";
  }
  append_totals(content, out);
  return out;
}

std::string inspect_json(const fs::path& path) {
  const Content content = read_content(path);
  OrderedJson out = {{"path", path.string()},
                     {"config", nullptr},
                     {"num_elements", 0},
                     {"bytes", 0},
                     {"metadata", OrderedJson::object()},
                     {"tensors", OrderedJson::array()}};
  if (content.config) out["config"] = parse_json(content.config->json, (path / "config.json").string());
  int64_t num_elements = 0, size_bytes = 0;
  for (const FileContent& file : content.files) {
    out["metadata"].update(file.metadata);
    for (const TensorLine& tensor : file.tensors) {
      out["tensors"].push_back({{"name", tensor.name},
                                {"dtype", tensor.type},
                                {"shape", tensor.shape},
                                {"file", file.path.filename().string()},
                                {"num_elements", tensor.num_elements},
                                {"bytes", tensor.size_bytes}});
      num_elements += tensor.num_elements;
      size_bytes += tensor.size_bytes;
    }
  }
  out["num_elements"] = num_elements;
  out["bytes"] = size_bytes;
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace tessera

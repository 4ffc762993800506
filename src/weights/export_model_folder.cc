#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "formats/huggingface/convert.h"
#include "formats/safetensors/shard_name.h"
#include "io/file.h"
#include "io/synced_folder.h"
#include "weights/model_folder.h"
#include "weights/saved_tensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kChatTemplateFile = "chat_template.jinja";
// The tokenizer files that transformers reads; all are optional.
constexpr std::array kTokenizerFiles = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "tokenizer.model",
                                        "vocab.json",
                                        "merges.txt"};

const char* torch_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
    default:
      break;
  }
  TESSERA_CHECK(false, "weights cannot be saved as {}", dtype_name(dtype));
  return "";
}

float element(DType dtype, const std::byte* data, int64_t index) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(data)[index];
  if (dtype == DType::kBF16) return to_float(reinterpret_cast<const bf16*>(data)[index]);
  return to_float(reinterpret_cast<const f16*>(data)[index]);
}

std::vector<SafetensorsItem> make_items(const ParameterLayout& layout, const WeightSource& source,
                                        DType dtype) {
  // All items share one buffer: they are produced one after another.
  const auto values = std::make_shared<std::vector<float>>();
  std::vector<SafetensorsItem> items;
  const auto produce = [&source, dtype, values](const Parameter& parameter, int64_t begin, int64_t count,
                                                std::byte* buffer) {
    values->resize(static_cast<size_t>(count));
    source(parameter.offset + begin, *values);
    round_to_saved(*values, dtype, buffer);
    check_saved_weights(parameter, begin, *values, dtype, buffer);
  };
  for (const SavedTensor& tensor : saved_tensors(layout)) {
    items.push_back({tensor.name, tensor.shape, dtype,
                     [parts = tensor.parts, produce, dtype](int64_t begin, int64_t count, std::byte* buffer) {
                       const auto body = [&](const Parameter& part, int64_t first, int64_t of_part) {
                         produce(part, first, of_part, buffer);
                         buffer += of_part * dtype_bytes(dtype);
                       };
                       for_each_part(parts, begin, count, body);
                     }});
  }
  return items;
}

void add_if_present(const fs::path& from, const char* name, std::vector<NamedText>* files) {
  std::error_code error;
  if (fs::exists(from, error)) files->push_back({name, read_text_file(from)});
}

// A generation_config.json with `id` among the tokens that end a text.
std::string with_eos(const std::string& text, int32_t id) {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return text;  // copied from a model that programs cannot read anyway
  nlohmann::ordered_json& ends = config["eos_token_id"];
  if (ends.is_null()) ends = nlohmann::ordered_json::array();
  if (!ends.is_array()) ends = nlohmann::ordered_json::array({ends});
  if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  // It no longer follows from config.json: Transformers would compute it again from there, without `id`.
  config.erase("_from_model_config");
  return config.dump(2) + "\n";
}

// A JSON object with another value of a field.
std::string with_field(const std::string& text, const char* name, const nlohmann::ordered_json& value) {
  nlohmann::ordered_json object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return text;
  object[name] = value;
  return object.dump(2) + "\n";
}

// The text of generation_config.json.
std::string generation_settings(const ModelConfig& config, const ExportOptions& options) {
  std::error_code error;
  const std::string text = fs::exists(options.generation_config, error)
                               ? read_text_file(options.generation_config)
                               : write_generation_config(config);
  const std::string ended = options.eos_token ? with_eos(text, options.eos_token->id) : text;
  return options.end_of_answer ? with_eos(ended, *options.end_of_answer) : ended;
}

void add_tokenizer_files(const ExportOptions& options, std::vector<NamedText>* files) {
  if (options.tokenizer_folder.empty()) return;
  for (const char* name : kTokenizerFiles) {
    if (options.chat_template.empty() || name != kChatTemplateFile)
      add_if_present(options.tokenizer_folder / name, name, files);
  }
  if (!options.chat_template.empty())
    files->push_back({std::string(kChatTemplateFile), options.chat_template});
  if (!options.eos_token) return;
  if (std::ranges::none_of(*files,
                           [](const NamedText& file) { return file.name == "tokenizer_config.json"; }))
    files->push_back({"tokenizer_config.json", "{}"});
  for (NamedText& file : *files) {
    if (file.name == "tokenizer_config.json" || file.name == "special_tokens_map.json")
      file.text = with_field(file.text, "eos_token", options.eos_token->text);
  }
}

}  // namespace

void round_to_saved(std::span<const float> masters, DType dtype, std::byte* saved) {
  if (dtype == DType::kBF16) {
    std::transform(masters.begin(), masters.end(), reinterpret_cast<bf16*>(saved), master_weight);
    return;
  }
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(masters.data()), dtype, saved,
                   std::ssize(masters));
}

// F16 ends at 65504. Both are checked because rounding can turn a NaN master into a finite weight.
void check_saved_weights(const Parameter& parameter, int64_t begin, std::span<const float> values,
                         DType dtype, const std::byte* saved) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && std::isfinite(element(dtype, saved, static_cast<int64_t>(i)))) continue;
    fail(ExitCode::kNumerics, "tensor '{}': element {}: expected a finite value to save as {}, found {}{}",
         parameter.name, begin + static_cast<int64_t>(i), dtype_name(dtype), values[i],
         std::isfinite(values[i]) ? " (save as BF16 or F32)" : "");
  }
}

SafetensorsModelLayout model_file_layout(const ParameterLayout& layout, const ExportOptions& options) {
  std::vector<SafetensorsSpec> tensors;
  for (const SavedTensor& tensor : saved_tensors(layout)) {
    tensors.push_back({tensor.name, tensor.shape, options.save_dtype});
  }
  if (layout.is_adapter()) return {tensors, kAdapterFileName};
  return {tensors, options.max_shard_bytes};
}

std::vector<NamedText> model_folder_texts(const ModelConfig& config, const ExportOptions& options) {
  std::vector<NamedText> files;
  if (config.lora) {
    files.push_back({kAdapterConfigName, write_lora_config(*config.lora)});
    // Not the base model's alone: for the model that the adapters are merged into.
    if (options.end_of_answer || options.eos_token)
      files.push_back({kGenerationConfigName, generation_settings(config, options)});
    add_tokenizer_files(options, &files);
    return files;
  }
  std::string text = write_model_config(config, torch_dtype_name(options.save_dtype));
  if (options.eos_token) text = with_field(text, "eos_token_id", options.eos_token->id);
  files.push_back({"config.json", std::move(text)});
  files.push_back({kGenerationConfigName, generation_settings(config, options)});
  add_tokenizer_files(options, &files);
  return files;
}

void export_model_folder(const fs::path& folder, const ModelConfig& config, const ParameterLayout& layout,
                         const WeightSource& source, const ExportOptions& options) {
  create_synced_folder(folder);
  // Weights first: if the disk fills up, the folder stays as it was.
  const std::vector<SafetensorsItem> items = make_items(layout, source, options.save_dtype);
  if (layout.is_adapter()) {
    write_safetensors(folder / kAdapterFileName, items);
  } else {
    write_safetensors_model(folder, items, options.max_shard_bytes);
  }
  for (const auto& [name, text] : model_folder_texts(config, options)) write_text_file(folder / name, text);
}

bool has_model_files(const fs::path& folder, const ModelConfig& config, const ParameterLayout& layout,
                     const ExportOptions& options) {
  std::error_code ignored;
  const SafetensorsModelLayout weights = model_file_layout(layout, options);
  for (const auto& [name, file] : weights.files) {
    if (fs::file_size(folder / name, ignored) != static_cast<uintmax_t>(file.file_bytes())) return false;
  }
  const bool has_index = weights.index_json.empty() || fs::exists(folder / kIndexFileName, ignored);
  const std::vector<NamedText> texts = model_folder_texts(config, options);
  return has_index && std::all_of(texts.begin(), texts.end(), [&](const NamedText& text) {
           return fs::exists(folder / text.name, ignored);
         });
}

}  // namespace tessera

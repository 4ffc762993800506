// Models as Hugging Face folders: reads weights into, and writes them from, the flat arrays of a
// ParameterLayout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/safetensors_layout.h"
#include "model/parameters.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"
#include "weights/load_plan.h"
#include "weights/parameter_pieces.h"
#include "weights/value_sums.h"

namespace tessera {

// Receives float32 values of the flat elements [begin, begin + values.size()); called from several threads
// for disjoint ranges.
using WeightSink = std::function<void(int64_t begin, std::span<const float> values)>;
// Destination of flat elements [begin, begin + count) that are BF16 in the files: returns memory for the
// first of them, at least one and as many as are contiguous. Called from several threads.
using Bf16Destination = std::function<std::span<bf16>(int64_t begin, int64_t count)>;
// Fills float32 values of the flat elements [begin, begin + values.size()).
using WeightSource = std::function<void(int64_t begin, std::span<float> values)>;

struct LoadProgress {
  int64_t bytes_done = 0;  // in the files
  int64_t bytes_total = 0;
  double seconds = 0;  // since the start

  double fraction() const;
  double bytes_per_second() const;
};

struct LoadOptions {
  // Ranges to read, ascending without overlap; nullopt = everything. Ranks of a node that share weights in
  // memory read disjoint ranges, so that every byte is read once.
  std::optional<std::span<const ElementRange>> ranges = {};
  // If set, receives tensors that are BF16 in the files instead of the sink, without a copy.
  Bf16Destination bf16_destination = {};
  ValueSums* sums = nullptr;                               // what is read is added
  std::function<void(const LoadProgress&)> progress = {};  // called by one thread at a time
};

// Reads the parameters of `layout` in file order, in pieces of bounded size (a few MiB per thread), several
// at once and with readahead. Rejected, with file, tensor, expected and found: missing tensors, unknown extra
// tensors, shapes that differ from config.json (all three for all tensors, whatever the ranges), and
// non-finite values (counted, in what is read). An lm_head that duplicates tied embeddings is accepted if
// equal; rotary inv_freq buffers of old files are skipped.
void load_weights(const SafetensorsModel& model, const ModelConfig& config, const ParameterLayout& layout,
                  const WeightSink& sink, ThreadPool& pool, const LoadOptions& options = {});
// The same with the result of plan_load(), which takes time for models of many tensors: for reading in parts.
void load_weights(std::span<const PlannedTensor> tensors, const WeightSink& sink, ThreadPool& pool,
                  const LoadOptions& options);

struct EosToken {
  std::string text;
  int32_t id = 0;
};

struct ExportOptions {
  DType save_dtype = DType::kBF16;               // BF16, F16 or F32
  std::filesystem::path tokenizer_folder = {};   // tokenizer files are copied from here; empty = none
  std::filesystem::path generation_config = {};  // copied if it exists, otherwise made from the configuration
  int64_t max_shard_bytes = 5'000'000'000;
  // A chat template that takes the place of the tokenizer's, and the token that ends its answers, at which
  // programs that generate have to stop.
  std::string chat_template = {};
  std::optional<int32_t> end_of_answer = {};
  std::optional<EosToken> eos_token = {};  // takes the place of the tokenizer's and the configuration's
};

// Writes config.json, generation_config.json, model.safetensors (or shards and index) and the tokenizer's
// files (tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json,
// chat_template.jinja, tokenizer.model, vocab.json, merges.txt: where present). A value that is not finite in
// save_dtype is an Error(kNumerics).
void export_model_folder(const std::filesystem::path& folder, const ModelConfig& config,
                         const ParameterLayout& layout, const WeightSource& source,
                         const ExportOptions& options);

// Whether `folder` has every file that export_model_folder() would write there, with weight files at full
// size.
bool has_model_files(const std::filesystem::path& folder, const ModelConfig& config,
                     const ParameterLayout& layout, const ExportOptions& options);

// Where everything goes in the files with the weights.
SafetensorsModelLayout model_file_layout(const ParameterLayout& layout, const ExportOptions& options);

inline constexpr const char* kGenerationConfigName = "generation_config.json";

// The files of a model folder besides the weights: config.json, generation_config.json and the tokenizer's
// files. Beside adapters: adapter_config.json, generation_config.json if there is an end of answers, and the
// tokenizer's files.
struct NamedText {
  std::string name;
  std::string text;
};
std::vector<NamedText> model_folder_texts(const ModelConfig& config, const ExportOptions& options);

// Converts float32 masters to the values in model files: for BF16 the weights that training uses
// (master_weight(), ties away from zero), so that a step's model has the same bytes in its checkpoint and in
// an export; for F16 rounded to nearest, ties to even.
void round_to_saved(std::span<const float> masters, DType dtype, std::byte* saved);

// Error(kNumerics) if one of `values` (the parameter's elements from `begin` on) is not finite in `saved`,
// their conversion to `dtype`.
void check_saved_weights(const Parameter& parameter, int64_t begin, std::span<const float> values,
                         DType dtype, const std::byte* saved);

}  // namespace tessera

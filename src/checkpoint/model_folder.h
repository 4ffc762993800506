// A model as a Hugging Face folder: weights read into and written from the flat arrays of a ParameterLayout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/model_config.h"
#include "formats/safetensors.h"
#include "model/parameters.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"

namespace tessera {

// Receives float32 values of the flat elements [begin, begin + values.size()); called from several threads
// for disjoint ranges.
using WeightSink = std::function<void(int64_t begin, std::span<const float> values)>;
// Where flat elements from `begin` on go that the files hold in BF16: memory for the first of `count` of
// them, at least one and as many as lie one behind the other. They are read into it. Called from several
// threads.
using Bf16Destination = std::function<std::span<bf16>(int64_t begin, int64_t count)>;
// Fills float32 values of the flat elements [begin, begin + values.size()).
using WeightSource = std::function<void(int64_t begin, std::span<float> values)>;

// Elements [begin, end) of the flat array.
struct ElementRange {
  int64_t begin;
  int64_t end;
};

struct LoadProgress {
  int64_t bytes_done = 0;  // of the files
  int64_t bytes_total = 0;
  double seconds = 0;  // since the start

  double fraction() const;
  double bytes_per_second() const;
};

struct LoadOptions {
  // What is read and given to the sinks, ascending without overlap; nothing = everything. The ranks of a node
  // that share weights in memory read disjoint ranges, so that every byte is read once.
  std::optional<std::span<const ElementRange>> ranges = {};
  // Where set, takes tensors that are BF16 in the files in place of the sink, without a copy.
  Bf16Destination bf16_destination = {};
  std::function<void(const LoadProgress&)> progress = {};  // by one thread at a time
};

// Reads the parameters of `layout` from front to back of the files, in pieces of bounded size (a few MiB per
// thread), several at once and announced to the system ahead. Refused with file, tensor, expected and found:
// missing tensors, unknown extra tensors, shapes that differ from config.json (of all tensors, whatever the
// ranges); non-finite values (counted, of what is read). An lm_head that repeats tied embeddings is accepted
// when equal; rotary inv_freq buffers of old files are skipped.
void load_weights(const SafetensorsModel& model, const ModelConfig& config, const ParameterLayout& layout,
                  const WeightSink& sink, ThreadPool& pool, const LoadOptions& options = {});

struct ExportOptions {
  DType save_dtype = DType::kBF16;              // BF16, F16 or F32
  std::filesystem::path tokenizer_folder = {};  // its tokenizer files are copied; empty = none
  std::filesystem::path generation_config =
      {};  // copied when it exists; otherwise made from the configuration
  int64_t max_shard_bytes = 5'000'000'000;
};

// Writes config.json, generation_config.json, model.safetensors (or shards and index) and the tokenizer's
// files (tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json,
// chat_template.jinja, tokenizer.model, vocab.json, merges.txt: where present). A value that is not finite in
// save_dtype is refused (kNumerics).
void export_model_folder(const std::filesystem::path& folder, const ModelConfig& config,
                         const ParameterLayout& layout, const WeightSource& source,
                         const ExportOptions& options);

// What stands in a model's folder beside its weights: config.json, generation_config.json and the tokenizer's
// files.
struct NamedText {
  std::string name;
  std::string text;
};
std::vector<NamedText> model_folder_texts(const ModelConfig& config, const ExportOptions& options);

// Float32 masters as model files have them: in BF16 the weights that training uses (master_weight(), ties
// away from zero), so that the model of a step has the same bytes in its checkpoint and as a finished model;
// in F16 rounded to nearest, ties to even.
void round_to_saved(std::span<const float> masters, DType dtype, std::byte* saved);

// Error(kNumerics) when one of `values`, the elements of a parameter from `begin` on, is not finite in
// `saved`, what became of them in `dtype`.
void check_saved_weights(const Parameter& parameter, int64_t begin, std::span<const float> values,
                         DType dtype, const std::byte* saved);

}  // namespace tessera

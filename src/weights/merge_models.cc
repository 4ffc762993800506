#include "weights/merge_models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include "base/error.h"
#include "formats/huggingface/convert.h"
#include "formats/json.h"
#include "io/disk_space.h"
#include "io/file.h"
#include "io/synced_folder.h"
#include "model/families/families.h"
#include "weights/merged_adapters.h"
#include "weights/model_folder.h"
#include "weights/saved_tensors.h"
#include "weights/stored_parameter.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// 256 KiB of BF16, as load_weights() reads.
constexpr int64_t kElementsPerTask = int64_t{1} << 17;

struct Source {
  fs::path folder;
  ModelConfig config;
  SafetensorsModel weights;
};

// The settings that two models must share, in the spelling of config.json.
Json comparable(ModelConfig config) {
  config.json.clear();
  config.bos_token_id = config.pad_token_id = std::nullopt;
  config.eos_token_ids.clear();
  config.initializer_range = 0;
  return Json::parse(write_model_config(config, ""));
}

void check_same_config(const Source& first, const Source& other) {
  const Json a = comparable(first.config), b = comparable(other.config);
  for (const auto* fields : {&a, &b}) {
    for (const auto& [key, unused] : fields->items()) {
      const Json in_a = a.value(key, Json()), in_b = b.value(key, Json());
      if (in_a == in_b) continue;
      fail(ExitCode::kBadConfig,
           "{}: {}: expected {} as in {}, found {}: only models of the same shape can be merged",
           (other.folder / "config.json").native(), key, in_a.dump(), first.folder.native(), in_b.dump());
    }
  }
}

class Merger {
 public:
  Merger(const std::vector<Source>& sources, const MergedAdapters& adapters, const MergeOptions& options,
         ThreadPool& pool)
      : sources_(sources),
        adapters_(adapters),
        options_(options),
        pool_(pool),
        readers_(static_cast<size_t>(pool.num_threads()) * sources.size()) {}

  // Sets the factors for the elements of `parameter` that produce() computes next.
  void begin(const Parameter& parameter) {
    factors_.clear();
    if (options_.method == MergeMethod::kSlerp) {
      factors_ = slerp_factors(parameter);
      return;
    }
    const double sum = std::accumulate(options_.weights.begin(), options_.weights.end(), 0.0);
    for (const double weight : options_.weights) factors_.push_back(static_cast<float>(weight / sum));
  }

  void produce(const Parameter& parameter, int64_t begin, int64_t count, std::byte* saved) {
    const int64_t element_bytes = dtype_bytes(options_.save_dtype);
    pool_.parallel_blocks(count, kElementsPerTask, [&](int64_t first, int64_t last) {
      thread_local std::vector<float> sum, values;
      if (sources_.size() == 1) {
        // Exact: arithmetic on the pool's threads takes subnormal values as zero.
        read(0, parameter, begin + first, last - first, &sum);
      } else {
        sum.assign(static_cast<size_t>(last - first), 0.0f);
        for (size_t i = 0; i < sources_.size(); ++i) {
          read(i, parameter, begin + first, last - first, &values);
          for (size_t j = 0; j < sum.size(); ++j) sum[j] += factors_[i] * values[j];
        }
      }
      adapters_.add(parameter, begin + first, sum);
      std::byte* const out = saved + first * element_bytes;
      convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(sum.data()), options_.save_dtype, out,
                       last - first);
      check_saved_weights(parameter, begin + first, sum, options_.save_dtype, out);
    });
  }

 private:
  void read(size_t source, const Parameter& parameter, int64_t begin, int64_t count,
            std::vector<float>* values) {
    values->resize(static_cast<size_t>(count));
    const std::optional<StoredParameter> stored =
        find_parameter(sources_[source].weights, sources_[source].config, parameter);
    TESSERA_CHECK(stored.has_value(), "{} is gone", parameter.name);  // load_weights() has found it
    const auto thread = static_cast<size_t>(ThreadPool::thread_index());
    readers_[thread * sources_.size() + source].read(*stored, parameter, begin, *values);
  }

  std::vector<float> slerp_factors(const Parameter& parameter) {
    constexpr double kParallel = 0.9995;  // mergekit's DOT_THRESHOLD
    const int64_t num_tasks = (parameter.num_elements + kElementsPerTask - 1) / kElementsPerTask;
    struct Sums {
      double aa = 0, bb = 0, ab = 0;
    };
    std::vector<Sums> parts(
        static_cast<size_t>(num_tasks));  // added in order, whatever the number of threads
    pool_.parallel_blocks(parameter.num_elements, kElementsPerTask, [&](int64_t first, int64_t last) {
      thread_local std::vector<float> a, b;
      read(0, parameter, first, last - first, &a);
      read(1, parameter, first, last - first, &b);
      Sums& sums = parts[static_cast<size_t>(first / kElementsPerTask)];
      for (size_t i = 0; i < a.size(); ++i) {
        const double x = a[i], y = b[i];
        sums.aa += x * x;
        sums.bb += y * y;
        sums.ab += x * y;
      }
    });
    Sums sums;
    for (const Sums& part : parts) {
      sums.aa += part.aa;
      sums.bb += part.bb;
      sums.ab += part.ab;
    }
    const double t = options_.t;
    const double norms = std::sqrt(sums.aa) * std::sqrt(sums.bb);
    const double cosine = norms == 0 ? 0 : sums.ab / norms;  // mergekit's choice for zeros
    if (std::abs(cosine) > kParallel) return {static_cast<float>(1 - t), static_cast<float>(t)};
    const double theta = std::acos(cosine);
    return {static_cast<float>(std::sin((1 - t) * theta) / std::sin(theta)),
            static_cast<float>(std::sin(t * theta) / std::sin(theta))};
  }

  const std::vector<Source>& sources_;
  const MergedAdapters& adapters_;
  const MergeOptions& options_;
  ThreadPool& pool_;
  std::vector<ParameterReader> readers_;  // by thread and source
  std::vector<float> factors_;            // of each model
};

std::vector<Source> open_sources(const std::vector<fs::path>& models, ThreadPool& pool) {
  std::vector<Source> sources;
  for (const fs::path& folder : models) {
    sources.push_back({folder, read_model_config(folder), SafetensorsModel::open(folder)});
    const Source& source = sources.back();
    check_same_config(sources.front(), source);
    // Checks names, shapes and types of all tensors. Reads no elements except a copy of tied embeddings in
    // the files: it is left out, so it must be equal.
    const ParameterLayout layout = parameter_layout(source.config);
    const Parameter& embedding = layout.parameters().front();
    const ElementRange tied = {embedding.offset, embedding.offset + embedding.num_elements};
    const bool has_copy = source.config.tie_word_embeddings && source.weights.tensors().contains(kLmHeadName);
    load_weights(source.weights, source.config, layout, [](int64_t, std::span<const float>) {}, pool,
                 {.ranges = std::span(&tied, has_copy ? 1 : 0)});
  }
  return sources;
}

}  // namespace

void merge_models(const std::vector<fs::path>& models, const MergeOptions& options, const fs::path& output,
                  ThreadPool& pool) {
  TESSERA_CHECK(
      options.method == MergeMethod::kSlerp ? models.size() == 2 : models.size() == options.weights.size(),
      "{} models, {} weights", models.size(), options.weights.size());
  const std::vector<Source> sources = open_sources(models, pool);
  const MergedAdapters adapters(options.adapters, sources.front().config, pool);
  const ParameterLayout layout = parameter_layout(sources.front().config);
  check_disk_space(output / "model.safetensors", layout.num_parameters() * dtype_bytes(options.save_dtype));

  Merger merger(sources, adapters, options, pool);
  int64_t num_done = 0;
  std::vector<SafetensorsItem> items;
  for (const SavedTensor& tensor : saved_tensors(layout)) {
    items.push_back({tensor.name, tensor.shape, options.save_dtype,
                     [&, parts = tensor.parts](int64_t first, int64_t of_tensor, std::byte* saved) {
                       for_each_part(parts, first, of_tensor,
                                     [&](const Parameter& parameter, int64_t begin, int64_t count) {
                                       if (begin == 0) merger.begin(parameter);
                                       merger.produce(parameter, begin, count, saved);
                                       saved += count * dtype_bytes(options.save_dtype);
                                     });
                       num_done += of_tensor;
                       if (options.progress)
                         options.progress(static_cast<double>(num_done) /
                                          static_cast<double>(layout.num_parameters()));
                     }});
  }
  create_synced_folder(output);
  // Weights first: if the disk fills up, the folder stays as it was.
  write_safetensors_model(output, items, options.max_shard_bytes);
  const fs::path& first = sources.front().folder;
  const ExportOptions texts = {.save_dtype = options.save_dtype,
                               .tokenizer_folder = tokenizer_source(first, options.adapters),
                               .generation_config = generation_config_source(first, options.adapters)};
  for (const auto& [name, text] : model_folder_texts(sources.front().config, texts))
    write_text_file(output / name, text);
}

DType weights_dtype(const fs::path& model) {
  std::map<DType, int64_t> bytes;
  const SafetensorsModel weights = SafetensorsModel::open(model);
  for (const auto& [name, location] : weights.tensors()) {
    const DType dtype = location.entry->dtype;
    bytes[dtype == DType::kU8 ? DType::kBF16 : dtype] += location.entry->size_bytes;  // codes in MXFP4
  }
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; });
  const bool is_saved_type =
      most != bytes.end() && (most->first == DType::kBF16 || most->first == DType::kF16);
  return is_saved_type ? most->first : DType::kF32;
}

}  // namespace tessera

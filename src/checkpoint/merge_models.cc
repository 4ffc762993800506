#include "checkpoint/merge_models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "checkpoint/disk_space.h"
#include "checkpoint/model_folder.h"
#include "formats/huggingface/convert.h"
#include "formats/json.h"
#include "io/file.h"
#include "io/synced_folder.h"
#include "model/families.h"

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

struct Adapter {
  LoraConfig config;
  SafetensorsModel weights;
};

// The adapter of one matrix, in float32.
struct MatrixAdapter {
  int64_t rank;
  int64_t num_inputs;
  float scale;
  std::vector<float> a, b;  // [rank, in], [out, rank]
};

// What two models must share, in the spelling of config.json.
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
  Merger(const std::vector<Source>& sources, const std::vector<Adapter>& adapters,
         const MergeOptions& options, ThreadPool& pool)
      : sources_(sources), adapters_(adapters), options_(options), pool_(pool) {}

  // Sets factors and adapters for the elements of `parameter` that produce() computes next.
  void begin(const Parameter& parameter) {
    factors_.clear();
    read_adapters(parameter);
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
      for (const MatrixAdapter& adapter : of_matrix_) add(adapter, begin + first, sum);
      std::byte* const out = saved + first * element_bytes;
      convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(sum.data()), options_.save_dtype, out,
                       last - first);
      check_saved_weights(parameter, begin + first, sum, options_.save_dtype, out);
    });
  }

 private:
  static void read(const SafetensorsModel& weights, const std::string& name, int64_t begin, int64_t count,
                   std::vector<float>* values) {
    values->resize(static_cast<size_t>(count));
    const SafetensorsModel::Location& at = weights.tensors().at(name);
    at.file->read(*at.entry, begin, TensorView(values->data(), DType::kF32, Shape({count})));
  }
  void read(size_t source, const Parameter& parameter, int64_t begin, int64_t count,
            std::vector<float>* values) const {
    read(sources_[source].weights, parameter.name, begin, count, values);
  }

  void read_adapters(const Parameter& parameter) {
    of_matrix_.clear();
    const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
    for (const Adapter& adapter : adapters_) {
      const std::optional<LoraModule> lora = adapter.config.adapter_of(module);
      if (!lora || parameter.shape.size() != 2) continue;
      const int64_t rank = lora->rank, outputs = parameter.shape[0], inputs = parameter.shape[1];
      of_matrix_.push_back({rank, inputs, static_cast<float>(lora->scale), {}, {}});
      read(adapter.weights, lora_a_name(module), 0, rank * inputs, &of_matrix_.back().a);
      read(adapter.weights, lora_b_name(module), 0, outputs * rank, &of_matrix_.back().b);
    }
  }

  // values are the matrix's elements from `begin` on: w[o, i] += scale * sum over k of b[o, k] a[k, i].
  static void add(const MatrixAdapter& adapter, int64_t begin, std::span<float> values) {
    const int64_t K = adapter.num_inputs, end = begin + std::ssize(values);
    std::vector<float> row;
    for (int64_t at = begin; at < end;) {
      const int64_t output = at / K, first = at % K, count = std::min(K - first, end - at);
      row.assign(static_cast<size_t>(count), 0.0f);
      for (int64_t k = 0; k < adapter.rank; ++k) {
        const float factor = adapter.b[static_cast<size_t>(output * adapter.rank + k)];
        const float* a = adapter.a.data() + k * K + first;
        for (size_t i = 0; i < row.size(); ++i) row[i] += factor * a[i];
      }
      float* to = values.data() + (at - begin);
      for (size_t i = 0; i < row.size(); ++i) to[i] += adapter.scale * row[i];
      at += count;
    }
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
  const std::vector<Adapter>& adapters_;
  const MergeOptions& options_;
  ThreadPool& pool_;
  std::vector<float> factors_;  // of each model
  std::vector<MatrixAdapter> of_matrix_;
};

std::vector<Source> open_sources(const std::vector<fs::path>& models, ThreadPool& pool) {
  std::vector<Source> sources;
  for (const fs::path& folder : models) {
    sources.push_back({folder, read_model_config(folder), SafetensorsModel::open(folder)});
    const Source& source = sources.back();
    check_same_config(sources.front(), source);
    // Reads no element: checks names, shapes and types of all tensors.
    load_weights(source.weights, source.config, parameter_layout(source.config), {}, pool,
                 {.ranges = std::span<const ElementRange>()});
  }
  return sources;
}

// Checks that they fit the model, too.
std::vector<Adapter> open_adapters(const std::vector<fs::path>& folders, ModelConfig model,
                                   ThreadPool& pool) {
  std::vector<Adapter> adapters;
  for (const fs::path& folder : folders) {
    adapters.push_back({read_lora_config(folder), SafetensorsModel::open(folder / kAdapterFileName)});
    model.lora = adapters.back().config;
    load_weights(adapters.back().weights, model, parameter_layout(model), {}, pool,
                 {.ranges = std::span<const ElementRange>()});
  }
  return adapters;
}

// Training may have changed the chat template.
fs::path tokenizer_source(const std::vector<fs::path>& models, const std::vector<fs::path>& adapters) {
  for (const fs::path& folder : adapters) {
    std::error_code error;
    if (fs::exists(folder / "tokenizer.json", error)) return folder;
  }
  return models.front();
}

}  // namespace

void merge_models(const std::vector<fs::path>& models, const MergeOptions& options, const fs::path& output,
                  ThreadPool& pool) {
  TESSERA_CHECK(
      options.method == MergeMethod::kSlerp ? models.size() == 2 : models.size() == options.weights.size(),
      "{} models, {} weights", models.size(), options.weights.size());
  const std::vector<Source> sources = open_sources(models, pool);
  const std::vector<Adapter> adapters = open_adapters(options.adapters, sources.front().config, pool);
  const ParameterLayout layout = parameter_layout(sources.front().config);
  check_disk_space(output / "model.safetensors", layout.num_parameters() * dtype_bytes(options.save_dtype));

  Merger merger(sources, adapters, options, pool);
  int64_t num_done = 0;
  std::vector<SafetensorsItem> items;
  for (const Parameter& parameter : layout.parameters()) {
    items.push_back({parameter.name, parameter.shape, options.save_dtype,
                     [&](int64_t begin, int64_t count, std::byte* saved) {
                       if (begin == 0) merger.begin(parameter);
                       merger.produce(parameter, begin, count, saved);
                       num_done += count;
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
                               .tokenizer_folder = tokenizer_source(models, options.adapters),
                               .generation_config = first / "generation_config.json"};
  for (const auto& [name, text] : model_folder_texts(sources.front().config, texts))
    write_text_file(output / name, text);
}

DType weights_dtype(const fs::path& model) {
  std::map<DType, int64_t> bytes;
  const SafetensorsModel weights = SafetensorsModel::open(model);
  for (const auto& [name, location] : weights.tensors())
    bytes[location.entry->dtype] += location.entry->size_bytes;
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; });
  const bool is_saved_type =
      most != bytes.end() && (most->first == DType::kBF16 || most->first == DType::kF16);
  return is_saved_type ? most->first : DType::kF32;
}

}  // namespace tessera

#include "forecast/time/measured_costs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/median.h"
#include "base/text.h"
#include "ops/cpu_ops.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "platform/peak.h"

namespace tessera {
namespace {

// The size of a call, to compare it with another one of the same kind.
double amount(const OpWork& work) { return work.flop() > 0 ? work.flop() : work.bytes; }

bool is_alike(const OpWork& a, const OpWork& b) {
  return a.name == b.name && a.dtype == b.dtype && a.kind == b.kind;
}

// Whether only the number of rows differs.
bool differs_in_rows(const OpWork& a, const OpWork& b) {
  return is_alike(a, b) && std::equal(a.sizes.begin() + 1, a.sizes.end(), b.sizes.begin() + 1) &&
         a.adds == b.adds && a.squares == b.squares && a.packed == b.packed;
}

// Seconds of a call that was not measured, from the ones that are most like it.
double extrapolated(const OpWork& work, const std::map<OpWork, double>& measured) {
  const std::pair<const OpWork, double>*first = nullptr, *second = nullptr;
  const auto distance = [&](const OpWork& other) {
    return std::abs(std::log(amount(work) / amount(other))) + (differs_in_rows(work, other) ? 0 : 100) +
           (is_alike(work, other) ? 0 : 1000) + (work.kind == other.kind ? 0 : 10000);
  };
  for (const auto& entry : measured) {
    if (first == nullptr || distance(entry.first) < distance(first->first)) {
      second = std::exchange(first, &entry);
    } else if (second == nullptr || distance(entry.first) < distance(second->first)) {
      second = &entry;
    }
  }
  TESSERA_CHECK(first != nullptr, "nothing was measured");
  const double proportional = first->second * amount(work) / amount(first->first);
  if (second == nullptr || !differs_in_rows(work, second->first) ||
      amount(first->first) == amount(second->first)) {
    return proportional;
  }
  // A line through both: what is independent of the rows, such as the weights, costs once.
  const double slope = (first->second - second->second) / (amount(first->first) - amount(second->first));
  const double on_line = first->second + slope * (amount(work) - amount(first->first));
  return slope > 0 ? std::min(std::max(on_line, proportional / 2), 2 * proportional) : proportional;
}

// The configuration with this number of layers in every stack.
ModelConfig with_layers(ModelConfig config, int64_t num_layers) {
  config.num_hidden_layers = num_layers;
  if (config.encoder_decoder) {
    config.encoder_decoder->num_encoder_layers = num_layers;
    config.num_hidden_layers = 2 * num_layers;
  }
  if (!config.sliding_window.empty()) config.sliding_window.resize(static_cast<size_t>(num_layers));
  return config;
}

}  // namespace

MachineRates measured_rates(ThreadPool& pool) {
  const CpuFeatures& features = cpu_features();
  InstanceFigures figures;
  figures.num_cores = pool.num_threads();
  figures.clock_ghz = 1;
  figures.amx = features.amx.granted;
  figures.avx512_bf16 = features.avx512_bf16;
  figures.avx512 = features.avx512;
  // Medians of short measurements: another process may take a core away during any of them.
  constexpr int kRounds = 9;
  constexpr double kSeconds = 0.02;
  const auto median_of = [](const std::function<double()>& measure) {
    std::vector<double> values;
    for (int round = 0; round < kRounds; ++round) values.push_back(measure());
    return median(std::move(values));
  };
  BandwidthMeter memory(pool);
  figures.memory_gb_per_s = median_of([&] { return memory.measure_best(kSeconds); });
  const MachineRates per_ghz = rates_of_instance(figures);
  const std::vector<std::string> instruction_sets = ComputePeakMeter::instruction_sets();
  if (instruction_sets.empty()) return per_ghz;  // nothing to tell the clock from
  ComputePeakMeter peak(pool, instruction_sets.front());
  const double core_tflops =
      median_of([&] { return peak.measure(kSeconds); }) / static_cast<double>(figures.num_cores);
  figures.clock_ghz =
      core_tflops / (peak.arithmetic() == "float32" ? per_ghz.core_f32_tflops : per_ghz.core_bf16_tflops);
  return rates_of_instance(figures);
}

MachineRates rates_of_this_processor(std::optional<double> tflops, int64_t num_cores, DType dtype) {
  const CpuFeatures& features = cpu_features();
  InstanceFigures figures;
  figures.num_cores = num_cores;
  figures.clock_ghz = 3;  // the speed of the caches follows from it
  figures.amx = features.amx.granted;
  figures.avx512_bf16 = features.avx512_bf16;
  figures.avx512 = features.avx512;
  MachineRates rates = rates_of_instance(figures);
  const double peak = static_cast<double>(num_cores) *
                      (dtype == DType::kBF16 ? rates.core_bf16_tflops : rates.core_f32_tflops);
  const double scale = tflops.value_or(peak) / peak;
  rates.core_bf16_tflops *= scale;
  rates.core_f32_tflops *= scale;
  return rates;
}

bool MeasuredCosts::packs_weights(DType dtype) const {
  constexpr int64_t kWidth = 1024;
  ThreadPool pool(1);
  return make_cpu_ops(pool)->packed_weight_bytes(kWidth, kWidth, dtype) > 0;
}

SampleRequest MeasuredCosts::request_for(const StepWalks& walks, const std::vector<PassShape>& passes,
                                         const RankShare& share) {
  // Two layers, so that each finds in the caches what the other left there; a model of two layers is not
  // measured in full.
  constexpr int64_t kManyLayers = 4;
  const ModelConfig& config = walks.config();
  SampleRequest request;
  request.config = with_layers(config, config.num_hidden_layers < kManyLayers ? 1 : 2);
  request.dtype = walks.dtype();
  request.share = share;
  request.optimizer = options_.optimizer;
  request.seconds = options_.seconds;
  for (PassShape pass : passes) {
    // The work of a rank that shares rows on its own tokens; attention is extrapolated.
    pass.row_tokens = divide_up(pass.row_tokens, std::exchange(pass.context_size, 1));
    pass.num_kept_outputs = 0;  // with every output recomputed, all operations of any number of them occur
    const int64_t most = std::max<int64_t>(1, options_.max_tokens / pass.row_tokens);
    if (pass.rows > most) {
      notes_.push_back(fmt::format("passes of {} were measured with {}", count_of(pass.rows, "row"), most));
      pass.rows = std::max<int64_t>(1, most / 2);
      request.passes.push_back(pass);
      pass.rows = most;
    }
    request.passes.push_back(pass);
  }
  constexpr int64_t kSmallestVocabulary = 1024;
  const int64_t free_bytes = memory_info().free_for_process_bytes;
  while (request.memory_bytes() > free_bytes && request.config.vocab_size >= 2 * kSmallestVocabulary) {
    request.config.vocab_size /= 2;
  }
  if (request.config.vocab_size < config.vocab_size) {
    notes_.push_back(fmt::format("the head was measured with a vocabulary of {} for lack of memory",
                                 format_count(request.config.vocab_size, "token")));
  }
  if (request.memory_bytes() > free_bytes) {
    fail(ExitCode::kBadConfig,
         "measuring a layer of this model takes {}, {} are free: plan it with the rates of a machine instead",
         format_bytes(request.memory_bytes()), format_bytes(free_bytes));
  }
  return request;
}

void MeasuredCosts::clear() {
  measured_.clear();
  current_ = nullptr;
  notes_.clear();
}

void MeasuredCosts::prepare(const StepWalks& walks, const std::vector<PassShape>& passes,
                            const RankShare& share) {
  const Key key = {write_model_config(walks.config(), "bfloat16"), walks.dtype(), passes, share};
  auto at = measured_.find(key);
  if (at == measured_.end()) {
    at = measured_.emplace(key, sample_step(request_for(walks, passes, share))).first;
  }
  current_ = &at->second;
}

double MeasuredCosts::seconds(const OpWork& work, const RankShare& /*share*/) {
  TESSERA_CHECK(current_ != nullptr, "prepare() was not called");
  const auto at = current_->call_s.find(work);
  return at != current_->call_s.end() ? at->second : extrapolated(work, current_->call_s);
}

double MeasuredCosts::update_seconds(const UpdateWork& work, const RankShare& share) {
  return work.bytes() * current_->update_s_per_byte +
         RatedCosts(options_.rates).update_product_seconds(work, share);
}

double MeasuredCosts::node_sum_seconds(int64_t num_elements, bool adds, const RankShare& /*share*/) {
  return static_cast<double>(num_elements) *
         (adds ? current_->add_s_per_element : current_->sum_s_per_element);
}

}  // namespace tessera

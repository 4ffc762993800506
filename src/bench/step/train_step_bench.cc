#include "bench/step/train_step_bench.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/kernels/random_tensor.h"
#include "bench/step/timed_ops.h"
#include "bench/step/verifying_ops.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "model/initialize.h"
#include "model/llama/llama_model.h"
#include "ops/cpu_ops.h"
#include "optim/adamw.h"
#include "optim/optimizer_state.h"
#include "plan/passes.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

// The vocabulary when only the decoder layers run: embedding and LM head then take next to no memory.
constexpr int64_t kNoHeadVocabulary = 32;
constexpr float kGradientScale =
    1e-3f;  // standard deviation of the gradient at the last layer's output, without head
constexpr double kLearningRate = 1e-5;

ModelConfig effective_config(const TrainStepOptions& options) {
  ModelConfig config = options.config;
  if (!options.with_head) config.vocab_size = kNoHeadVocabulary;
  TESSERA_CHECK(config.vocab_size > 0, "no vocabulary");
  return config;
}

ActivationLimits limits_of(const TrainStepOptions& options, int64_t num_rows) {
  ActivationLimits limits = {num_rows * options.max_length, options.max_length};
  limits.gradient_checkpointing = options.gradient_checkpointing;
  limits.pack_weights = options.pack_weights;
  return limits;
}

// Rows of random tokens, every token except the first of a row is a target.
PackedBatch random_batch(int64_t num_rows, int64_t length, int64_t vocab_size) {
  const CounterRng rng(1, 1);
  PackedBatch batch;
  batch.cu_seqlens.push_back(0);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t t = 0; t < length; ++t) {
      const auto token = [&](int64_t i) {
        const double fraction = rng.uniform(static_cast<uint64_t>(i));
        return static_cast<int32_t>(fraction * static_cast<double>(vocab_size));
      };
      batch.input_ids.push_back(token(row * length + t));
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.targets.push_back(t + 1 < length ? token(row * length + t + 1) : kIgnoredLabel);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>((row + 1) * length));
  }
  batch.num_targets = num_rows * (length - 1);
  return batch;
}

// The trained parameters: all, or those of the layers.
std::vector<ParameterRange> trained_ranges(const ParameterLayout& layout, const TrainStepOptions& options) {
  std::vector<ParameterRange> ranges;
  for (const Parameter& parameter : layout.parameters()) {
    const bool in_layer = 1 <= parameter.group && parameter.group <= options.config.num_hidden_layers;
    if (!options.with_head && !in_layer) continue;
    ranges.push_back({parameter.offset, parameter.num_elements, parameter.weight_decay});
  }
  return ranges;
}

// Random weights with the distribution of initialize_parameter, but generated faster.
void fill_weights(const ParameterLayout& layout, const ModelConfig& config, TensorView weights,
                  ThreadPool& pool) {
  for (const Parameter& parameter : layout.parameters()) {
    const TensorView tensor = weights.rows(parameter.offset, parameter.offset + parameter.num_elements);
    if (parameter.shape.size() == 2) {
      fill_random(tensor, hash_name(parameter.name) % 1000, static_cast<float>(config.initializer_range),
                  pool);
    } else {
      initialize_parameter(parameter, config.initializer_range, 1, 0, tensor);
    }
  }
}

// Restarts the measurement of peak resident memory. False if the system does not support it.
bool reset_peak_resident_bytes() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  return static_cast<bool>(file.flush());
}

// Seconds for the parts of one step, and the peak measured during it.
struct StepTimes {
  double forward = 0, head = 0, backward = 0, optimizer = 0;
  double peak_tflops = 0;
  double other_forward_backward = 0, other_optimizer = 0;  // of the other program, 0 without one
  double full_forward_backward = 0, full_whole = 0;        // training all weights, 0 without adapters

  double other_whole() const { return other_forward_backward + other_optimizer; }
  double forward_backward() const { return forward + head + backward; }
  double whole() const { return forward_backward() + optimizer; }
};

class TrainStep {
 public:
  TrainStep(const TrainStepOptions& options, ThreadPool& pool)
      : options_(options),
        pool_(pool),
        cpu_ops_(make_cpu_ops(pool)),
        ops_(*cpu_ops_),
        config_(effective_config(options)),
        model_(config_, options.dtype, ops_) {
    const int64_t accumulation = options.gradient_accumulation_steps;
    const int64_t merged = options.merge_micro_batches == "never" ? 1
                           : options.merge_micro_batches == "always"
                               ? accumulation
                               : micro_batches_per_pass(model_, limits_of(options, options.micro_batch),
                                                        accumulation, AdamW::kStateTensors);
    pass_rows_ = merged * options.micro_batch;
  }

  // Bytes of everything that allocate() allocates.
  int64_t planned_bytes() const {
    const int64_t num_elements = model_.layout().num_elements();
    const int64_t stream_bytes = pass_tokens() * config_.hidden_size * dtype_bytes(options_.dtype);
    return num_elements * (dtype_bytes(options_.dtype) + dtype_bytes(DType::kF32)) + model_.frozen_bytes() +
           optimizer_state_bytes(AdamW::kStateTensors, num_elements, options_.dtype) +
           model_.activation_bytes(limits_of(options_, pass_rows_)).total() +
           (options_.with_head ? 0 : 2 * stream_bytes);
  }

  void allocate() {
    const int64_t num_elements = model_.layout().num_elements();
    weights_ = PageBuffer(num_elements * dtype_bytes(options_.dtype));
    gradients_ = PageBuffer(num_elements * dtype_bytes(DType::kF32));
    fill_weights(model_.layout(), config_, weights(), pool_);
    model_.bind_parameters(weights(), gradients());
    if (model_.is_adapted()) allocate_frozen();
    model_.reserve(limits_of(options_, pass_rows_));
    optimizer_.emplace(std::make_unique<AdamW>(OptimizerSettings{}),
                       trained_ranges(model_.layout(), options_), weights(), gradients(), pool_);
    for (int64_t rows = options_.step_rows(); rows > 0; rows -= pass_rows_) {
      passes_.push_back(random_batch(std::min(rows, pass_rows_), options_.max_length, config_.vocab_size));
    }
    if (options_.with_head) return;
    const Shape stream = {pass_tokens(), config_.hidden_size};
    x_TD_.emplace(options_.dtype, stream, 1, 1.0f, pool_);
    dx_TD_.emplace(options_.dtype, stream, 2, kGradientScale, pool_);
  }

  // Runs one step with every operation compared with float64.
  Verification verify() {
    VerifyingOps verifying(*cpu_ops_);
    ops_.forward_to(verifying);
    StepTimes unused;
    for (size_t i = 0; i < passes_.size(); ++i) run_pass(i, &unused);
    ops_.forward_to(*cpu_ops_);
    Verification result = verifying.result();
    verify_optimizer(result);
    ops_.reset();
    return result;
  }

  StepTimes run(ComputePeakMeter& peak, double peak_seconds) {
    StepTimes times;
    std::vector<double> peaks = {peak.measure(peak_seconds)};
    for (size_t i = 0; i < passes_.size(); ++i) {
      run_pass(i, &times);
      peaks.push_back(peak.measure(peak_seconds));
    }
    const double update_seconds = seconds_of([&] { update(std::sqrt(gradient_squares_)); });
    ops_.add_seconds("adamw", update_seconds);
    times.optimizer = update_seconds + seconds_of([&] { model_.refresh_packed_forms(); });
    for (const double value : peaks) times.peak_tflops += value / static_cast<double>(peaks.size());
    return times;
  }

  int64_t pass_tokens() const { return pass_rows_ * options_.max_length; }
  double flop() const {
    double flop = 0;
    for (const PackedBatch& batch : passes_) {
      flop += model_.flops(batch.cu_seqlens, options_.with_head ? batch.num_targets : 0).forward_backward();
    }
    return flop;
  }
  int64_t num_parameters() const {
    int64_t count = 0;
    for (const ParameterRange& range : trained_ranges(model_.layout(), options_)) count += range.count;
    return count;
  }
  TimedOps& ops() { return ops_; }

 private:
  TensorView weights() const { return {weights_.data(), options_.dtype, {model_.layout().num_elements()}}; }
  TensorView gradients() const { return {gradients_.data(), DType::kF32, {model_.layout().num_elements()}}; }

  void allocate_frozen() {
    frozen_ = PageBuffer(model_.frozen_bytes());
    const int64_t num_frozen = model_.weight_layout().num_elements();
    if (config_.base_quantization == Quantization::kNone) {
      const TensorView frozen(frozen_.data(), options_.dtype, {num_frozen});
      fill_weights(model_.weight_layout(), config_, frozen, pool_);
      return model_.bind_frozen(frozen);
    }
    for (const Parameter& parameter : model_.weight_layout().parameters()) {
      const BoundParameters::Place place =
          model_.frozen_place(parameter, frozen_.data() + model_.frozen_begin(parameter.group));
      if (place.elements == nullptr) {
        fill_quantized(parameter, place);
      } else {
        initialize_parameter(parameter, config_.initializer_range, 1, 0,
                             {place.elements, options_.dtype, {parameter.num_elements}});
      }
    }
    model_.bind_frozen({frozen_.data(), DType::kU8, {model_.frozen_bytes()}});
  }

  // The same random rows again and again: memory for all of them as float32 would count as the step's.
  void fill_quantized(const Parameter& parameter, const BoundParameters::Place& place) {
    const int64_t num_rows = parameter.shape[0], K = parameter.shape[1];
    const int64_t most_rows = std::min<int64_t>(num_rows, 64);
    RandomTensor rows(DType::kF32, {most_rows, K}, hash_name(parameter.name) % 1000,
                      static_cast<float>(config_.initializer_range), pool_);
    for (int64_t row = 0; row < num_rows; row += most_rows) {
      const ConstTensorView piece = rows.view().rows(0, std::min(most_rows, num_rows - row));
      quantize_rows(piece, place.first_row + row, place.matrix, pool_);
    }
  }

  // Clipped to a norm of one, as training does.
  double gradient_scale(double norm) const { return 1 / std::max(1.0, norm); }
  void update(double norm) {
    optimizer_->update({++step_, kLearningRate, gradient_scale(norm)});
    model_.weights_changed();
  }

  void run_pass(size_t index, StepTimes* times) {
    const PackedBatch& batch = passes_[index];
    gradient_squares_ = 0;
    const WeightUpdate update = {index == 0 ? Update::kOverwrite : Update::kAdd,
                                 index + 1 == passes_.size() ? &gradient_squares_ : nullptr};
    times->forward += seconds_of([&] { model_.begin(batch); });
    Activations& activations = model_.activations();
    const int64_t num_tokens = batch.num_tokens();  // of the last pass: maybe fewer
    if (!options_.with_head)
      copy(x_TD_->view().rows(0, num_tokens), activations.layers.front().attention.x_TD);
    times->forward += seconds_of([&] {
      if (options_.with_head) model_.forward_embedding(batch);
      model_.forward_layers();
    });
    if (options_.with_head) {
      const int64_t num_targets = options_.step_rows() * (options_.max_length - 1);
      const float grad_scale = 1.0f / static_cast<float>(num_targets);
      times->head +=
          seconds_of([&] { model_.forward_backward_head(batch, grad_scale, /*label_smoothing=*/0, update); });
    } else {
      copy(dx_TD_->view().rows(0, num_tokens), activations.dx_TD);
    }
    times->backward += seconds_of([&] {
      model_.backward_layers(update);
      if (options_.with_head) model_.backward_embedding(batch, update);
    });
  }

  // Checks the gradient norm of the step, and the first update of a sample of weights; with zero moments
  // AdamW's is
  //   w -= lr g / (|g| + eps)
  void verify_optimizer(Verification& result) {
    Verifier verifier("optimizer, " + format_count(num_parameters(), "parameter"), result);
    const double norm = std::sqrt(gradient_squares_);
    const double expected_norm = std::sqrt(sum_of_squares_of_ranges());
    constexpr double kDoubleRounding = 0x1p-53;
    verifier.compare("norm", 0, 0, norm, expected_norm,
                     static_cast<double>(num_parameters()) * kDoubleRounding * expected_norm);

    const std::vector<ParameterRange> ranges = trained_ranges(model_.layout(), options_);
    std::vector<int64_t> elements;
    for (const ParameterRange& range : ranges) {
      constexpr int64_t kPerTensor = 16;
      for (const int64_t i : sample_indices(range.count, kPerTensor)) elements.push_back(range.begin + i);
    }
    const auto master = [&](int64_t i) {
      float value = 0;
      optimizer_->read_master(i, {&value, 1});
      return static_cast<double>(value);
    };
    std::vector<double> before;
    for (const int64_t i : elements) before.push_back(master(i));
    update(norm);
    for (size_t i = 0; i < elements.size(); ++i) {
      const double g = element(gradients(), elements[i]) * gradient_scale(norm);
      const double expected = before[i] - kLearningRate * g / (std::abs(g) + OptimizerSettings{}.epsilon);
      verifier.compare("weight", 0, elements[i], master(elements[i]), expected,
                       4 * kFloatEps * std::abs(before[i]) + 1e-5 * kLearningRate);
    }
  }

  double sum_of_squares_of_ranges() const {
    const std::vector<ParameterRange> ranges = trained_ranges(model_.layout(), options_);
    const float* gradient = gradients().as<float>();
    std::vector<double> sums(ranges.size());
    pool_.parallel_for(static_cast<int64_t>(ranges.size()), [&](int64_t index) {
      const ParameterRange& range = ranges[static_cast<size_t>(index)];
      double sum = 0;
      for (int64_t i = range.begin; i < range.begin + range.count; ++i) {
        sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
      }
      sums[static_cast<size_t>(index)] = sum;
    });
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  }

  TrainStepOptions options_;
  ThreadPool& pool_;
  std::unique_ptr<Ops> cpu_ops_;
  TimedOps ops_;
  ModelConfig config_;
  LlamaModel model_;
  PageBuffer weights_, gradients_, frozen_;
  std::optional<OptimizerState> optimizer_;
  std::optional<RandomTensor> x_TD_, dx_TD_;
  int64_t pass_rows_ = 0;  // rows through the model at once, fewer in the last pass
  std::vector<PackedBatch> passes_;
  double gradient_squares_ = 0;  // of the step, after its last pass
  int64_t step_ = 0;
};

std::vector<std::pair<std::string, double>> shares(const std::map<std::string, double>& seconds,
                                                   double total) {
  std::vector<std::pair<std::string, double>> result;
  double rest = total;
  for (const auto& [name, value] : seconds) {
    result.emplace_back(name, value / total);
    rest -= value;
  }
  result.emplace_back("other", rest / total);
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

template <typename Value>
Quartiles quartiles_of(const std::vector<StepTimes>& steps, const Value& value) {
  std::vector<double> values;
  for (const StepTimes& step : steps) values.push_back(value(step));
  return quartiles(values);
}

AgainstOther against_other(const std::string& name, const std::vector<StepTimes>& steps) {
  AgainstOther result;
  result.name = name;
  result.forward_backward_seconds =
      quartiles_of(steps, [](const StepTimes& s) { return s.other_forward_backward; });
  result.optimizer_seconds = quartiles_of(steps, [](const StepTimes& s) { return s.other_optimizer; });
  result.ratio_forward_backward =
      quartiles_of(steps, [](const StepTimes& s) { return s.other_forward_backward / s.forward_backward(); });
  result.ratio_optimizer =
      quartiles_of(steps, [](const StepTimes& s) { return s.other_optimizer / s.optimizer; });
  result.ratio_step = quartiles_of(steps, [](const StepTimes& s) { return s.other_whole() / s.whole(); });
  return result;
}

void fill_statistics(const std::vector<StepTimes>& steps, TrainStepLine* line) {
  const auto tokens = static_cast<double>(line->options.step_tokens());
  const auto statistic = [&](const auto& value) { return quartiles_of(steps, value); };
  line->rounds = static_cast<int64_t>(steps.size());
  line->step_seconds = statistic([](const StepTimes& s) { return s.whole(); });
  line->forward_seconds = statistic([](const StepTimes& s) { return s.forward; });
  line->head_seconds = statistic([](const StepTimes& s) { return s.head; });
  line->backward_seconds = statistic([](const StepTimes& s) { return s.backward; });
  line->optimizer_seconds = statistic([](const StepTimes& s) { return s.optimizer; });
  line->tokens_per_second = statistic([&](const StepTimes& s) { return tokens / s.whole(); });
  line->tokens_per_second_forward_backward =
      statistic([&](const StepTimes& s) { return tokens / s.forward_backward(); });
  line->peak = statistic([](const StepTimes& s) { return s.peak_tflops; });
  line->mfu = statistic([&](const StepTimes& s) { return line->step_tflop / s.whole() / s.peak_tflops; });
  line->mfu_forward_backward =
      statistic([&](const StepTimes& s) { return line->step_tflop / s.forward_backward() / s.peak_tflops; });
}

}  // namespace

TrainStepLine run_train_step(const TrainStepOptions& options, const MeasureOptions& measure,
                             OtherProgram* other, ThreadPool& pool) {
  const bool peak_counts_anew = reset_peak_resident_bytes();
  ComputePeakMeter peak = make_peak_meter(pool, options.dtype);
  TrainStep step(options, pool);
  std::optional<TrainStep> full;
  if (options.config.lora) {
    TrainStepOptions of_all = options;
    of_all.config.lora.reset();
    of_all.config.base_quantization = Quantization::kNone;
    full.emplace(of_all, pool);
  }
  const int64_t planned = step.planned_bytes() + (full ? full->planned_bytes() : 0);
  const int64_t free_bytes = memory_info().free_for_process_bytes;
  if (planned > free_bytes) {
    fail(ExitCode::kBadConfig,
         "the step does not fit in memory: it takes {} ({}, {} at once), {} are free; lower "
         "--layers, --max_length or --micro_batch",
         format_bytes(planned), format_count(step.num_parameters(), "parameter"),
         format_count(step.pass_tokens(), "token"), format_bytes(free_bytes));
  }
  const int64_t baseline = resident_bytes();
  step.allocate();

  TrainStepLine line;
  line.options = options;
  line.operations = step.ops().description();
  line.peak_name = peak.instruction_set();
  line.num_parameters = step.num_parameters();
  line.step_tflop = step.flop() * 1e-12;
  line.predicted_bytes = baseline + planned;
  line.pass_tokens = step.pass_tokens();
  line.verification = step.verify();
  step.run(peak, measure.turn_seconds);  // touches all pages
  if (full) {
    full->allocate();
    full->run(peak, measure.turn_seconds);
  }
  if (other != nullptr) {
    other->run("forward_backward");
    other->run("optimizer");
  }
  step.ops().reset();
  std::vector<StepTimes> steps;
  double total = 0;
  while (static_cast<int64_t>(steps.size()) < measure.min_rounds || total < measure.seconds) {
    steps.push_back(step.run(peak, measure.turn_seconds));
    if (full) {
      const StepTimes of_all = full->run(peak, measure.turn_seconds);
      steps.back().full_forward_backward = of_all.forward_backward();
      steps.back().full_whole = of_all.whole();
    }
    if (other != nullptr) {
      steps.back().other_forward_backward = other->run("forward_backward");
      steps.back().other_optimizer = other->run("optimizer");
    }
    total += steps.back().whole();
  }
  fill_statistics(steps, &line);
  if (other != nullptr) line.against = against_other(other->name(), steps);
  if (full) {
    line.ratio_full_forward_backward = quartiles_of(
        steps, [](const StepTimes& s) { return s.full_forward_backward / s.forward_backward(); });
    line.ratio_full_step = quartiles_of(steps, [](const StepTimes& s) { return s.full_whole / s.whole(); });
  }
  line.operation_shares = shares(step.ops().seconds(), total);
  line.measured_bytes = peak_counts_anew ? peak_resident_bytes() : 0;
  return line;
}

}  // namespace tessera
